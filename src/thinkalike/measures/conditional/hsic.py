"""HSIC of many layers within groups of rows, such as those of one token: what CKA given the token is a ratio of."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from thinkalike.measures.conditional.groups import RowGroups
from thinkalike.measures.kernels.blocks import Blocks, Pair, one_model
from thinkalike.measures.kernels.centring import CentredRows, flaw_of
from thinkalike.measures.kernels.gram_products import block_statistics
from thinkalike.measures.kernels.hsic import ROUNDINGS, GramStatistics, all_hsics, unbiased_from_sums
from thinkalike.measures.kernels.kernel_alignment import in_units


@torch.no_grad()
def centre_groups(features: Float[Tensor, "n d"], groups: RowGroups, name: str = "features") -> CentredRows:
    """Shift the rows of every group about its typical point, and scale all of them; see `centre`.

    Args:
        features: The rows of the batch, in float32 or float64; those without a group are left out.
        name: What an error calls them.
    """
    rows = features[groups.order]
    offset, apart = rows.new_zeros(()), rows.new_empty(len(rows))
    for block, distances in zip(groups.blocks(rows), groups.blocks(apart), strict=True):
        mean = block.mean(1, keepdim=True)
        offset = offset + block.shape[1] * mean.square().sum()
        block -= mean
        distances.copy_(torch.linalg.vector_norm(block, dim=2).square())
    spread = apart.mean()
    flaw = flaw_of(spread, offset / len(rows), features.dtype)
    for block, distances in zip(groups.blocks(rows), groups.blocks(apart), strict=True):
        weights = 1 / (distances + spread)
        block -= weights[:, None] @ block / weights.sum(1)[:, None, None]
    scale = spread.sqrt()
    return CentredRows(name, rows.div_(scale), scale, apart.max() / apart.sum(), flaw)


def group_hsics(
    rows: Sequence[Float[Tensor, "n _"]], groups: RowGroups, estimator: str
) -> tuple[Float[Tensor, "l l"], Bool[Tensor, " l"]]:
    """Return Σ_g n_g HSIC_g of every two layers over the groups, in float64, and which layers have nothing in it.

    HSIC_g is that of the n_g rows of group g (Song et al. 2012, eq. 5), in which a shift of the whole group cancels.

    Args:
        rows: Of each different layer, in the order of the groups and about centred in each of them.
        estimator: "unbiased" or "biased".

    Returns:
        The sums, and whether nothing but rounding is left of a layer's sum with itself.
    """
    hsics, flat = _block_hsics(rows, groups, estimator, one_model(len(rows)))
    return hsics[0, 0], flat[0]


def _block_hsics(
    rows: Sequence[Float[Tensor, "n _"]], groups: RowGroups, estimator: str, blocks: Blocks
) -> tuple[dict[Pair, Tensor], dict[int, Tensor]]:
    """Return `group_hsics` of the layers of every two models compared, and by model which have nothing in it."""
    total: dict[Pair, Tensor] = {}
    size_of_terms: dict[int, Tensor] = {}
    start = 0
    for count, size in groups.shapes:
        statistics = block_statistics([x[start : start + count * size] for x in rows], count, blocks)
        for pair, hsics in all_hsics(statistics, estimator, count).items():
            total[pair] = total.get(pair, 0) + size * hsics
        for model, terms in _size_of_terms(statistics, count, size).items():
            size_of_terms[model] = size_of_terms.get(model, 0) + size * terms
        start += count * size
    rounding = ROUNDINGS * torch.finfo(rows[0].dtype).eps
    flat = {model: total[model, model].diagonal() <= rounding * terms for model, terms in size_of_terms.items()}
    return total, flat


def _size_of_terms(statistics: GramStatistics, count: int, size: int) -> dict[int, Float[Tensor, " l"]]:
    """Return the terms of the HSIC of each layer with itself, all with one sign, by model."""
    found = {}
    for (model, other), products in statistics.products.items():
        if model == other:
            sums = statistics.sums[model]
            totals = sums.unflatten(1, (count, size)).sum(2).square().sum(1)
            found[model] = unbiased_from_sums(size, products.diagonal(), -sums.square().sum(1), totals)
    return found


def layer_hsics_within(
    layers: Sequence[CentredRows], groups: RowGroups, estimator: str, blocks: Blocks
) -> dict[Pair, Float[Tensor, "l m"]]:
    """Return the sums of `group_hsics` in the unit of the features, as `layer_hsics` does without groups.

    Raises:
        ValueError: Nothing is left of a layer, as where the rows of each token are alike but for one.
    """
    hsics, flat = _block_hsics([layer.rows for layer in layers], groups, estimator, blocks)
    names = [layers[place].name for model in flat for place in blocks.models[model]]
    flags = torch.cat(list(flat.values())).tolist() if flat else []
    for name, is_flat in zip(names, flags, strict=True):
        if is_flat:
            raise ValueError(f"{name}: given the token there is no variance but in single rows")
    return in_units(hsics, layers, blocks)
