"""What maps that are fitted on text carry from one model to another: probes and steering vectors."""
