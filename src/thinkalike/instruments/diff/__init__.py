"""What a change did to a model: whether it changed, where, on what, in which directions, and within which margins."""

NULLS = 19  # random changes: the fewest that can be exceeded with p = .05
EXIT_STATUS = {"equivalent": 0, "not equivalent": 1, "undecided": 3}
