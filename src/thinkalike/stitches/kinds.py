"""The kinds of stitches, which a configuration and the file of a result name; it imports nothing, and so no torch."""

TRAINED = ("linear", "affine", "low_rank", "orthogonal")
CLOSED = ("least_squares", "procrustes", "reduced_rank", "bias")
KINDS = ("identity", *TRAINED)  # of `Stitch`; a plugin adds others
NORMS = ("none", "pre", "post")
MOST_SEEDS = 1000
