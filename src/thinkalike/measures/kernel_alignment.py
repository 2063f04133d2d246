"""Centred kernel alignment of two sets of features (Kornblith et al. 2019), within groups of rows, and of batches."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from operator import attrgetter
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from thinkalike.arguments import check_choice
from thinkalike.measures.contract import Blocks, CompareAll, LayerMeasure, Pair, one_model
from thinkalike.measures.hsic import (
    GramStatistics,
    all_hsics,
    block_statistics,
    dense_statistics,
    hsic1,
    left_out_statistics,
    linear_statistics,
    products_of,
    rbf_gram,
    rounding_of,
)
from thinkalike.measures.rows import (
    FEWEST,
    CentredRows,
    RowGroups,
    centre,
    common_dtype,
    flaw_of,
    refuse_flaws,
    size_of,
)

CHOICES = {
    "estimator": ("unbiased", "biased"),
    "kernel": ("linear", "rbf"),
    "aggregate": ("ratio_of_means", "mean_of_ratios"),
    "flatten": ("token", "sample", "mean"),
    "given": ("none", "token"),
}


def cka(
    X: Float[Tensor, "n d"],
    Y: Float[Tensor, "m e"],
    *,
    estimator: str = "unbiased",
    kernel: str = "linear",
    as_printed: bool = False,
) -> Float[Tensor, ""]:
    """Return HSIC(K, L) / √(HSIC(K, K) HSIC(L, L)) of the Gram matrices K of X and L of Y.

    It is in [-1, 1] up to rounding, [0, 1] if biased, and differentiable. Products are taken of centred features in
    float32, or what is wider (`torch.set_float32_matmul_precision("high")` takes digits from them), and summed up in
    float64.

    Args:
        X, Y: Features, with row i of both from stimulus i; widths and dtypes may differ.
        estimator: "unbiased" (Song et al. 2012, eq. 5), or "biased", which tends to 1 where n is far below the widths.
        kernel: "linear", or "rbf" with the median distance as its bandwidth.
        as_printed: Whether to follow Brown et al. 2023, appendix C.1, to the letter
            (docs/reference/brown2023-typos.md), which gives numbers of any size.

    Raises:
        ValueError: n < 4 or n differs between the sides, a value is not finite, a side has no variance, the estimator
            or kernel is unknown, or `as_printed` comes with others than the paper's.
    """
    check_choices(estimator=estimator, kernel=kernel)
    dtype = common_dtype([X, Y])
    if as_printed:
        if (estimator, kernel) != ("unbiased", "linear"):
            raise ValueError(f"the paper prints the unbiased linear CKA, not the {estimator} {kernel} one")
        return _as_printed(X.double(), Y.double()).to(dtype)
    return cka_measure(estimator, kernel, is_relative=True).of(X, Y).to(dtype)


def cka_measure(
    estimator: str = "unbiased", kernel: str = "linear", flatten: str = "token", *, is_relative: bool = False
) -> LayerMeasure:
    """Return CKA as a measure of layer pairs: HSICs of batches are averaged, and CKA is a ratio of the means.

    If `is_relative`, HSICs are of rows of unit variance, so that features of any size have one.
    """
    compare = partial(layer_hsics, kernel=kernel, estimator=estimator, is_relative=is_relative)
    without = partial(hsics_without_parts, estimator=estimator) if kernel == "linear" else None
    given = partial(_within, estimator) if (kernel, flatten) == ("linear", "token") else None
    unbiased = estimator == "unbiased"
    return _measure(centre, compare, flatten=flatten, given=given, compare_without_parts=without, is_unbiased=unbiased)


def _within(estimator: str, groups: RowGroups) -> LayerMeasure:
    compare = partial(layer_hsics_within, groups=groups, estimator=estimator)
    return _measure(partial(centre_groups, groups), compare, similarities=partial(_grams, groups))


def _grams(groups: RowGroups, layer: CentredRows) -> list[Float[Tensor, "_ _ _"]]:
    """Return the Gram matrices of the groups, each group with the weight of its rows."""
    return [block @ block.mT / block.shape[1] ** 0.5 for block in groups.blocks(layer.rows)]


def _measure(prepare: Callable[..., CentredRows], compare: CompareAll, **options: Any) -> LayerMeasure:
    share = attrgetter("leverage")
    return LayerMeasure(prepare, compare, _moved, fewest=FEWEST, finish=alignment, leverage=share, **options)


def _moved(layer: CentredRows, order: Int[Tensor, " n"]) -> CentredRows:
    return layer._replace(rows=layer.rows[order])


def check_choices(**given: str) -> None:
    """Raise a ValueError that names the first option that is not known."""
    for key, value in given.items():
        check_choice(key, value, CHOICES[key])


def alignment(hsics: Float[Tensor, "*b l l"]) -> Float[Tensor, "*b l l"]:
    """Return the CKA of every two layers from their HSICs."""
    norms = hsics.diagonal(dim1=-2, dim2=-1).sqrt()
    return hsics / (norms[..., :, None] * norms[..., None, :])


def layer_hsics(
    layers: Sequence[CentredRows], blocks: Blocks, *, kernel: str, estimator: str, is_relative: bool = False
) -> dict[Pair, Float[Tensor, "l m"]]:
    """Return the HSIC of every two layers of models compared in float64, in the unit of the features; differentiable.

    A ValueError names a layer that cannot be compared, or whose rows are all alike but for one.
    """
    rows = [layer.rows for layer in layers]
    if kernel == "linear" and not any(x.requires_grad for x in rows):
        statistics = linear_statistics(rows, blocks)
    else:
        statistics = dense_statistics([x @ x.T if kernel == "linear" else rbf_gram(x) for x in rows], blocks)
    hsics = _checked(statistics, layers, blocks, estimator)
    return hsics if kernel == "rbf" or is_relative else _in_units(hsics, layers, blocks)


def _checked(
    statistics: GramStatistics, layers: Sequence[CentredRows], blocks: Blocks, estimator: str
) -> dict[Pair, Float[Tensor, "l m"]]:
    """Return the HSICs of all rows, unless a layer cannot be compared."""
    if _alone(blocks):  # permuted rows are compared across models alone
        refuse_flaws(layers)
    hsics = all_hsics(statistics, estimator)
    if estimator == "unbiased":
        left = {model: rounding_of(statistics, model, layers[0].rows.dtype) for model in _alone(blocks)}
        flat = {model: hsics[model, model].diagonal() <= least for model, least in left.items()}
        _refuse_flat(flat, layers, blocks, "no variance but in one row, which the unbiased estimator cannot see")
    return hsics


def hsics_without_parts(
    layers: Sequence[CentredRows], blocks: Blocks, sizes: Sequence[int], *, estimator: str
) -> dict[Pair, Float[Tensor, "_ _ _"]]:
    """Return `layer_hsics` of the linear kernel of all rows, and of all but each part; see `left_out_statistics`.

    A part that leaves fewer than 4 rows has NaN.
    """
    found: dict[Pair, list[Tensor]] = {pair: [] for pair in blocks.pairs}
    rows = [layer.rows for layer in layers]
    products = products_of(rows)(rows, blocks, sizes)
    for place, statistics in enumerate(left_out_statistics(rows, blocks, sizes, products)):
        if place == 0:
            hsics = _checked(statistics, layers, blocks, estimator)
        elif len(layers[0].rows) - sizes[place - 1] >= FEWEST:
            hsics = all_hsics(statistics, estimator)
        else:
            hsics = {pair: torch.full_like(each[0], torch.nan) for pair, each in found.items()}
        for pair, each in _in_units(hsics, layers, blocks).items():
            found[pair].append(each)
    return {pair: torch.stack(each) for pair, each in found.items()}


def _in_units(hsics: Mapping[Pair, Tensor], layers: Sequence[CentredRows], blocks: Blocks) -> dict[Pair, Tensor]:
    """Return HSICs of scaled rows in the unit of the features."""
    squares = [scale.square() for scale in blocks.by_model([layer.scale for layer in layers])]
    return {(a, b): each * torch.outer(squares[a], squares[b]) for (a, b), each in hsics.items()}


def _alone(blocks: Blocks) -> list[int]:
    """Return the models that are compared with themselves."""
    return [a for a, b in blocks.pairs if a == b]


def _refuse_flat(flat: Mapping[int, Tensor], layers: Sequence[CentredRows], blocks: Blocks, message: str) -> None:
    """Refuse the first layer of which nothing but rounding is left."""
    for model, own in flat.items():
        for place, is_flat in zip(blocks.models[model], own.tolist(), strict=True):
            if is_flat:
                raise ValueError(f"{layers[place].name}: {message}")


def _as_printed(X: Float[Tensor, "n d"], Y: Float[Tensor, "n e"]) -> Float[Tensor, ""]:
    """Return CKA without 1/n in the centring and without the root; HSIC's last term is read as a trace like the others.

    The shift that the missing 1/n leaves, -(n-1) times the mean, is NaN in float32 at n = 1024.
    """
    K, L = (rows @ rows.T for rows in (X - X.sum(0), Y - Y.sum(0)))
    return hsic1(K, L) / (hsic1(K, K) * hsic1(L, L))


@torch.no_grad()
def centre_groups(groups: RowGroups, features: Float[Tensor, "n d"], name: str = "features") -> CentredRows:
    """Shift the rows of every group about its typical point, and scale all of them; see `centre`.

    Rows of the batch that have no group are left out.
    """
    rows = features[groups.order]
    size = size_of(rows)
    rows /= size
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
    return CentredRows(name, rows.div_(scale), scale.double() * size, apart.max() / apart.sum(), flaw)


def group_hsics(
    rows: Sequence[Float[Tensor, "n _"]], groups: RowGroups, estimator: str
) -> tuple[Float[Tensor, "l l"], Bool[Tensor, " l"]]:
    """Return Σ_g n_g HSIC_g of every two layers over the groups, in float64, and of which layers only rounding is left.

    HSIC_g is that of the n_g rows of group g (Song et al. 2012, eq. 5), in which a shift of the whole group cancels.

    Args:
        rows: Of each different layer, in the order of the groups and about centred in each of them.
        estimator: "unbiased" or "biased".
    """
    hsics, flat = _block_hsics(rows, groups, estimator, one_model(len(rows)))
    return hsics[0, 0], flat[0]


def _block_hsics(
    rows: Sequence[Float[Tensor, "n _"]], groups: RowGroups, estimator: str, blocks: Blocks
) -> tuple[dict[Pair, Tensor], dict[int, Tensor]]:
    """Return `group_hsics` of the layers of every two models compared, and by model which have nothing in it."""
    total: dict[Pair, Tensor] = {}
    left: dict[int, Tensor] = {}
    start = 0
    for count, size in groups.shapes:
        statistics = block_statistics([x[start : start + count * size] for x in rows], count, blocks)
        for pair, hsics in all_hsics(statistics, estimator, count).items():
            total[pair] = total.get(pair, 0) + size * hsics
        for model in _alone(blocks):
            left[model] = left.get(model, 0) + size * rounding_of(statistics, model, rows[0].dtype, count)
        start += count * size
    return total, {model: total[model, model].diagonal() <= least for model, least in left.items()}


def layer_hsics_within(
    layers: Sequence[CentredRows], blocks: Blocks, *, groups: RowGroups, estimator: str
) -> dict[Pair, Float[Tensor, "l m"]]:
    """Return the sums of `group_hsics` in the unit of the features; a ValueError if nothing is left of a layer."""
    if _alone(blocks):
        refuse_flaws(layers, "the rows of each token are the same")
    hsics, flat = _block_hsics([layer.rows for layer in layers], groups, estimator, blocks)
    _refuse_flat(flat, layers, blocks, "given the token there is no variance but in single rows")
    return _in_units(hsics, layers, blocks)


def arc_length(ckas: Float[Tensor, "*b l"]) -> Float[Tensor, "*b"]:
    """Return √Σ arccos²(CKA) over l layers, in [0, π √l] radians (Brown et al. 2023, eq. 2).

    CKA is clipped to [-1, 1], which the paper leaves out: rounding can take it beyond.
    """
    return ckas.clamp(-1, 1).arccos().square().sum(-1).sqrt()
