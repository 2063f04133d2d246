"""What a layer is, in one line under tables and maps of layers."""

from __future__ import annotations

from thinkalike.config.parts import AFTER
from thinkalike.screen import show_note
from thinkalike.store import Result

LAYER_NOTE = "Layer n is the residual stream after block n, counted from 0."

STATES = "states"
"""What the provenance calls the family of a folder of states, whose layers may be anything."""


def show_layer_note(result: Result) -> None:
    """Print what "layer n" means, if the layers of a result are the residual stream after blocks.

    Nothing is printed if a side is a folder of stored states, whose layers may be anything.
    """
    models = result.provenance.get("models", ())
    are_models = all(model.get("family", STATES) != STATES for model in models)
    if models and are_models and _are_after_blocks(result):
        show_note(LAYER_NOTE)


def _are_after_blocks(result: Result) -> bool:
    """Return whether all states of a result are those after blocks, the default hook point.

    It is also False if a layer of the table is not a plain number: -1 for the embedding, or the
    name of a hook point.
    """
    for side in ("model", "target"):
        model = result.config.get(side)
        if model and str(model.get("site", AFTER)) != AFTER:
            return False
    # The provenance names a site if, for example, a stitch is inside a block, before the MLP.
    has_site_inside_blocks = any("site" in model for model in result.provenance["models"])
    for name in ("layer", "source_layer", "target_layer"):
        if name in result.details and not result.details[name].map(_is_number_text).all():
            return False
    return not has_site_inside_blocks


def _is_number_text(layer: object) -> bool:
    """Return whether a layer is called by a number of 0 or more, and not by a name."""
    return str(layer).isdigit()
