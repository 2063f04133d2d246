"""What a change did to a model: whether, where, on what, in which directions, and how much."""
