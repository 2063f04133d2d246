"""Plots of what lower floors hold: who draws each of them stands here by name, and is imported when it is asked for.

They are strings because those who draw stand above what they draw, and matplotlib takes a second to import.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

DRAWN_BY = {
    "layer pairs": ("thinkalike.figures", "layer_pairs"),
    "result": ("thinkalike.instruments", "plot_result"),
}


def plot(what: str, *given: Any) -> tuple[Any, Any]:
    """Draw one of the things of `DRAWN_BY`; returns figure and axes."""
    module, name = DRAWN_BY[what]
    return getattr(import_module(module), name)(*given)  # type: ignore[no-any-return]
