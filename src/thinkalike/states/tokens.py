"""Where in a model states are taken, and at which tokens."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from thinkalike.models.families import EMBED, Layer, Place
from thinkalike.states.source import StateSource


def sites(
    model: StateSource, embed: bool = False, layers: Iterable[int] | None = None
) -> list[Layer]:
    """Return the hook points at which a model's states are taken, in order of depth.

    Args:
        model: The model.
        embed: Whether EMBED, what enters block 0, comes first.
        layers: The numbers of the layers; None: all.
    """
    if layers is None:
        layers = model.layers
    hook_points = model.sites_at(layers)
    if embed:
        return [EMBED, *hook_points]
    return hook_points


def site_numbers(hook_points: Iterable[Layer]) -> list[int] | list[str]:
    """Return what tables call hook points, in the same order.

    If all are of one site and head, these are the numbers of their layers, where -1 stands for
    what enters block 0 (EMBED). Otherwise they are names such as "2.z.0": layer, site and head.

    Args:
        hook_points: EMBED, numbers of layers (the residual stream after a block), and `Place`s
            (another site of a layer, or one head of it).
    """
    points = list(hook_points)
    distinct_sites = {(point.site, point.head) for point in points if isinstance(point, Place)}
    if len(distinct_sites) > 1:
        return [str(point) for point in points]
    return [-1 if point == EMBED else int(point) for point in points]


def compared_tokens(
    rows: Int[Tensor, "b t"], skip_first: int = 0, special: Iterable[int] = ()
) -> Bool[Tensor, "b t"]:
    """Return which tokens of rows are compared: all but the first ones and special ones.

    Args:
        rows: Token ids.
        skip_first: How many tokens at the beginning of each row are left out.
        special: Ids of tokens that are left out wherever they stand, such as BOS.
    """
    special_ids = torch.tensor(sorted(special), dtype=rows.dtype)
    is_compared = ~torch.isin(rows, special_ids)
    is_compared[:, :skip_first] = False
    return is_compared
