"""What is carried from one model to the other by maps between their states."""
