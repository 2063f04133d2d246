"""Drawing: what figures of results are made of; nothing here computes a measure.

Each name is loaded when it is first used, because matplotlib takes a second to import.
"""

from importlib import import_module
from typing import Any

_HOME = {
    "COLOURS": "style",
    "canvas": "style",
    "heatmap": "style",
    "line": "style",
    "save": "style",
    "shown": "style",
    "layer_heatmaps": "matrices",
    "layer_pairs": "matrices",
    "similarity": "likeness",
    "subject_scores": "subjects",
    "Contrast": "features",
    "correlation": "features",
    "levels": "planes",
    "profiles": "features",
    "scatter": "features",
    "directions": "stitching",
    "learning_curves": "stitching",
    "penalties": "stitching",
    "penalty_map": "stitching",
    "transfer_maps": "maps",
    "sae_curves": "saes",
    "sae_transfers": "saes",
    "distances": "populations",
    "groups_by_depth": "populations",
    "agreement": "agreements",
    "ranks": "agreements",
    "court": "courts",
    "doses": "courts",
    "carried_probes": "transfers",
    "steering": "transfers",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'thinkalike.figures' has no attribute '{name}'")
    return getattr(import_module(f"thinkalike.figures.{_HOME[name]}"), name)
