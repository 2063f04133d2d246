"""What a layer is, in one line under tables and maps of layers."""

from __future__ import annotations

from thinkalike.config.parts import AFTER
from thinkalike.screen import show_note
from thinkalike.store import Result

LAYER_NOTE = "Layer n is the residual stream after block n, counted from 0."

STATES = "states"
"""What the provenance calls the family of a folder of states, whose layers may be anything."""


def show_layer_note(result: Result) -> None:
    """Say what a layer is, if the layers of a result are residual streams after blocks."""
    models = result.provenance.get("models", ())
    are_models = all(model.get("family", STATES) != STATES for model in models)
    if models and are_models and _are_after_blocks(result):
        show_note(LAYER_NOTE)


def _are_after_blocks(result: Result) -> bool:
    """Return whether no state was read at a hook point other than those after blocks."""
    for side in ("model", "target"):
        model = result.config.get(side)
        if model and str(model.get("site", AFTER)) != AFTER:
            return False
    is_cut_inside_blocks = any("site" in model for model in result.provenance["models"])
    for name in ("layer", "source_layer", "target_layer"):
        if name in result.details and not result.details[name].map(_is_number_text).all():
            return False
    return not is_cut_inside_blocks


def _is_number_text(layer: object) -> bool:
    return str(layer).isdigit()
