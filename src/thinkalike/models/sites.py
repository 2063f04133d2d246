"""The sites of a residual stream, by the number of the block that they come after."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, Literal

import numpy as np

from thinkalike.errors import ModelError

EMBED: Final = "embed"  # the site before block 0, in the place of a layer's number
Layer = int | Literal["embed"]


def after(layer: Layer) -> int:
    """Return how many blocks run before a site."""
    return 0 if layer == EMBED else int(layer) + 1


def check_numbers(model: Any, layers: Sequence[Layer]) -> None:
    """Check that a FrozenModel, whose own module imports this one, has these sites.

    Raises:
        ModelError: it has not.
    """
    for layer in layers:
        is_block = isinstance(layer, int | np.integer) and not isinstance(layer, bool)
        if layer != EMBED and not (is_block and 0 <= layer < model.n_layers):
            raise ModelError(
                f"{model.name} has no layer {layer!r}: its layers are 0 to {model.n_layers - 1}, and '{EMBED}' is the "
                "site before them"
            )


def check_blocks(model: Any, start: int, stop: int, width: int) -> None:
    """Check that a FrozenModel can run blocks start..stop-1 on states of this width.

    Raises:
        ModelError: it has no such blocks, or its states are of another width.
    """
    if not (0 <= start <= model.n_layers and stop <= model.n_layers):
        raise ModelError(f"{model.name} has no blocks {start} to {stop - 1}: its blocks are 0 to {model.n_layers - 1}")
    if width != model.d_model:
        raise ModelError(f"{model.name} has states of width {model.d_model}, and these have {width}")
