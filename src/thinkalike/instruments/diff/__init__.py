"""What a change did to a model: whether it changed, where, on what, in which directions, and within which margins."""
