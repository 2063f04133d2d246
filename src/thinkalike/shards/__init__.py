"""A folder of states that a model computed elsewhere: its index, its rows and its arrays."""
