"""Figures of results; nothing here computes a measure."""

from thinkalike.figures.cka import cka
from thinkalike.figures.populations import distances, groups_by_depth
from thinkalike.figures.profiles import Contrast, correlation, profiles, scatter, similarity
from thinkalike.figures.stitching import asymmetry, directions, learning_curves, penalties, penalty_map, stitches

__all__ = [
    "Contrast",
    "asymmetry",
    "cka",
    "correlation",
    "directions",
    "distances",
    "groups_by_depth",
    "learning_curves",
    "penalties",
    "penalty_map",
    "profiles",
    "scatter",
    "similarity",
    "stitches",
]
