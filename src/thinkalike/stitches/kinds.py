"""The kinds of stitches, by name. This module imports nothing, and so no torch."""

# The kinds of maps that are trained, ...
TRAINED = ("linear", "affine", "low_rank", "orthogonal")
# ... and those that are computed by a closed form.
CLOSED = ("least_squares", "procrustes", "reduced_rank", "bias")

# The kinds of `StitchModule`; a plugin adds others.
KINDS = ("identity", *TRAINED)

# Where a stitch may have a LayerNorm: nowhere, before the map or after it.
NORMS = ("none", "pre", "post")

# The most seeds with which stitches are fitted.
MOST_SEEDS = 1000
