"""Plugins: stitches, measures, optimisers and callbacks of a user's own, in a file of their own.

    # mine.py
    from thinkalike.plugins import register_stitch

    @register_stitch("two_layer")
    def two_layer(width_in, width_out): ...

    python train.py plugins=[mine.py] stitch=two_layer

A job reads its plugins anew, knows no others, and has their content in its key; see docs/plugins.md.
"""

from thinkalike.plugins.loading import Plugin, activate, active, fingerprint
from thinkalike.plugins.registry import (
    MeasurePlugin,
    OptimizerPlugin,
    register_callback,
    register_measure,
    register_optimizer,
    register_stitch,
)

__all__ = [
    "MeasurePlugin",
    "OptimizerPlugin",
    "Plugin",
    "activate",
    "active",
    "fingerprint",
    "register_callback",
    "register_measure",
    "register_optimizer",
    "register_stitch",
]
