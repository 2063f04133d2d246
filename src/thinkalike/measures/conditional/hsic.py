"""HSIC of many layers within groups of rows, such as those of one token: what CKA given the token is a ratio of."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from thinkalike.measures.conditional.groups import RowGroups
from thinkalike.measures.kernels.centring import CentredRows, all_alike
from thinkalike.measures.kernels.gram_products import block_statistics
from thinkalike.measures.kernels.hsic import ROUNDINGS, all_hsics, unbiased_from_sums


@torch.no_grad()
def centre_groups(features: Float[Tensor, "n d"], groups: RowGroups, name: str = "features") -> CentredRows:
    """Shift the rows of every group about its typical point, and scale all of them; see `centre`.

    Args:
        features: The rows of the batch, in float32 or float64; those without a group are left out.
        name: What an error calls them.

    Raises:
        ValueError: A value is not finite, or the rows of every group are the same up to rounding.
    """
    rows = features[groups.order]
    offset, apart = rows.new_zeros(()), rows.new_empty(len(rows))
    for block, distances in zip(groups.blocks(rows), groups.blocks(apart), strict=True):
        mean = block.mean(1, keepdim=True)
        offset = offset + block.shape[1] * mean.square().sum()
        block -= mean
        distances.copy_(torch.linalg.vector_norm(block, dim=2).square())
    spread = apart.mean()
    if not spread.isfinite():
        raise ValueError(f"{name}: a value is not finite, or too large for {features.dtype}")
    if all_alike(spread, offset / len(rows), features.dtype):
        raise ValueError(f"{name}: the rows of each token are the same, so given the token there is nothing to compare")
    for block, distances in zip(groups.blocks(rows), groups.blocks(apart), strict=True):
        weights = 1 / (distances + spread)
        block -= weights[:, None] @ block / weights.sum(1)[:, None, None]
    scale = spread.sqrt()
    return CentredRows(name, rows.div_(scale), scale, apart.max() / apart.sum())


def group_hsics(
    rows: Sequence[Float[Tensor, "n _"]], groups: RowGroups, estimator: str, places: Sequence[int] | None = None
) -> tuple[Float[Tensor, "l l"], Bool[Tensor, " l"]]:
    """Return Σ_g n_g HSIC_g of every two layers over the groups, in float64, and which layers have nothing in it.

    HSIC_g is that of the n_g rows of group g (Song et al. 2012, eq. 5), in which a shift of the whole group cancels.

    Args:
        rows: Of each different layer, in the order of the groups and about centred in each of them.
        estimator: "unbiased" or "biased".
        places: Which of them each of the l layers has; by default each has its own.

    Returns:
        The sums, and whether nothing but rounding is left of a layer's sum with itself.
    """
    layers = len(rows if places is None else places)
    total = rows[0].new_zeros(layers, layers, dtype=torch.float64)
    size_of_terms, start = total.diagonal().clone(), 0
    for count, size in groups.shapes:
        part = [x[start : start + count * size] for x in rows]
        statistics = block_statistics(part, count, places)
        total += size * all_hsics(statistics, estimator, count)
        of_sums = statistics.sums.square().sum(1)
        totals = statistics.sums.unflatten(1, (count, size)).sum(2).square().sum(1)
        size_of_terms += size * unbiased_from_sums(size, statistics.products.diagonal(), -of_sums, totals)
        start += count * size
    return total, total.diagonal() <= ROUNDINGS * torch.finfo(rows[0].dtype).eps * size_of_terms


def layer_hsics_within(
    layers: Sequence[CentredRows], groups: RowGroups, estimator: str, places: Sequence[int] | None = None
) -> Float[Tensor, "l l"]:
    """Return `group_hsics` of every two layers in the unit of the features, as `layer_hsics` does without groups.

    Raises:
        ValueError: Nothing is left of a layer, as where the rows of each token are alike but for one.
    """
    places = list(range(len(layers)) if places is None else places)
    hsics, flat = group_hsics([layer.rows for layer in layers], groups, estimator, places)
    for place, is_flat in zip(places, flat.tolist(), strict=True):
        if is_flat:
            raise ValueError(f"{layers[place].name}: given the token there is no variance but in single rows")
    squares = torch.stack([layers[place].scale for place in places]).double().square()
    return hsics * torch.outer(squares, squares)
