"""The kinds of stitches, by name. This module imports nothing, and so no torch."""

TRAINED = ("linear", "affine", "low_rank", "orthogonal")
CLOSED = ("least_squares", "procrustes", "reduced_rank", "bias")
KINDS = ("identity", *TRAINED)  # of `StitchModule`; a plugin adds others
NORMS = ("none", "pre", "post")
MOST_SEEDS = 1000
