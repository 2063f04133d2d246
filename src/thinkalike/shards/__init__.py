"""A folder of states that a model computed elsewhere: its index, its rows of text, and its arrays, read by need."""
