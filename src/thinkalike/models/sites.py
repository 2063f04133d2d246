"""The sites of a residual stream, by the number of the block that they come after."""

from __future__ import annotations

from typing import Final, Literal

EMBED: Final = "embed"  # the site before block 0, in the place of a layer's number
Layer = int | Literal["embed"]


def after(layer: Layer) -> int:
    """Return how many blocks run before a site."""
    return 0 if layer == EMBED else int(layer) + 1
