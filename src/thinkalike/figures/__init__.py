"""Drawing: everything here takes tables of results and writes figures; nothing here computes a measure.

Each name is loaded when it is first used, because importing matplotlib takes a second.
"""

from importlib import import_module
from typing import Any

_NAMES = {
    "style": ("COLOURS", "canvas", "close", "heatmap", "line", "save", "shown"),
    "layers": ("changes", "components", "layer_heatmaps", "layer_pairs", "profiles", "ruler", "shifts", "similarity"),
    "lineage": ("family",),
    "stitching": ("penalties", "penalty_map"),
    "trajectories": ("trajectory",),
}
_HOME = {name: module for module, names in _NAMES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'thinkalike.figures' has no attribute '{name}'")
    return getattr(import_module(f"thinkalike.figures.{_HOME[name]}"), name)
