"""Centred kernel alignment of two sets of features of the same n stimuli (Kornblith et al. 2019)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from thinkalike.measures.kernels.blocks import Blocks, Pair, joined
from thinkalike.measures.kernels.centring import CentredRows, centre, common_dtype, refuse_flaws
from thinkalike.measures.kernels.gram_products import dense_statistics, linear_gram, linear_statistics, rbf_gram
from thinkalike.measures.kernels.hsic import GramStatistics, all_hsics, cancels, enough_rows, hsic1

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
        as_printed: Whether to follow Brown et al. 2023, appendix C.1, to the letter (docs/brown2023-typos.md), which
            gives numbers of any size.

    Raises:
        ValueError: n < 4 or n differs between the sides, a value is not finite, a side has no variance, the estimator
            or kernel is unknown, or `as_printed` comes with others than the paper's.
    """
    check_choices(estimator=estimator, kernel=kernel)
    if len(X) != len(Y):
        raise ValueError(f"both sides need the same rows, but X has {len(X)} and Y has {len(Y)}")
    enough_rows(len(X))
    dtype = common_dtype([X, Y])
    with torch.autocast(X.device.type, enabled=False):
        if as_printed:
            if (estimator, kernel) != ("unbiased", "linear"):
                raise ValueError(f"the paper prints the unbiased linear CKA, not the {estimator} {kernel} one")
            return _as_printed(X.double(), Y.double()).to(dtype)
        sides = [centre(X.to(dtype), "X"), centre(Y.to(dtype), "Y")]
        refuse_flaws(sides)
        hsics = layer_hsics(sides, kernel, estimator, Blocks([[0], [1]], [(0, 0), (0, 1), (1, 1)]))
        return alignment(joined(hsics, (0, 1)))[0, 1].to(dtype)


def check_choices(**given: str) -> None:
    """Raise a ValueError that names the first option that is not known."""
    for key, value in given.items():
        if value not in CHOICES[key]:
            raise ValueError(f"{key}={value} is not known; there is: {', '.join(CHOICES[key])}")


def alignment(hsics: Float[Tensor, "*b l l"]) -> Float[Tensor, "*b l l"]:
    """Return the CKA of every two layers from their HSICs."""
    norms = hsics.diagonal(dim1=-2, dim2=-1).sqrt()
    return hsics / (norms[..., :, None] * norms[..., None, :])


def layer_hsics(
    layers: Sequence[CentredRows], kernel: str, estimator: str, blocks: Blocks
) -> dict[Pair, Float[Tensor, "l m"]]:
    """Return the HSIC of every two layers of models compared in float64, in the unit of the features; differentiable.

    Args:
        layers: Different features.
        blocks: Which models have them, and which are compared.

    Raises:
        ValueError: The rows of a layer are all alike but for one, which the unbiased estimator cannot tell from none.
    """
    rows = [layer.rows for layer in layers]
    if kernel == "linear" and not any(x.requires_grad for x in rows):
        statistics = linear_statistics(rows, blocks)
    else:
        gram = linear_gram if kernel == "linear" else rbf_gram
        statistics = dense_statistics([gram(x) for x in rows], blocks)
    if estimator == "unbiased":
        _refuse_flat(statistics, layers, blocks)
    hsics = all_hsics(statistics, estimator)
    return hsics if kernel == "rbf" else in_units(hsics, layers, blocks)


def in_units(hsics: Mapping[Pair, Tensor], layers: Sequence[CentredRows], blocks: Blocks) -> dict[Pair, Tensor]:
    """Return HSICs of scaled rows in the unit of the features."""
    squares = [scale.double().square() for scale in blocks.by_model([layer.scale for layer in layers])]
    return {(a, b): each * torch.outer(squares[a], squares[b]) for (a, b), each in hsics.items()}


def layer_names(source_layers: int, target_layers: int) -> list[str]:
    """Return what errors call the layers: the source's first, then the target's."""
    counts = {"source": source_layers, "target": target_layers}
    return [f"{side} layer {index}" for side, count in counts.items() for index in range(count)]


def _refuse_flat(statistics: GramStatistics, layers: Sequence[CentredRows], blocks: Blocks) -> None:
    alone = [model for model in range(len(blocks.models)) if (model, model) in statistics.products]
    flat = []
    for model in alone:
        sums = statistics.sums[model]
        terms = statistics.products[model, model].diagonal(), sums.square().sum(1), sums.sum(1).square()
        flat.append(cancels(sums.shape[1], *terms, layers[0].rows.dtype))
    names = [layers[place].name for model in alone for place in blocks.models[model]]
    for name, is_flat in zip(names, torch.cat(flat).tolist() if flat else [], strict=True):
        if is_flat:
            raise ValueError(f"{name}: no variance but in one row, which the unbiased estimator cannot see")


def _as_printed(X: Float[Tensor, "n d"], Y: Float[Tensor, "n e"]) -> Float[Tensor, ""]:
    """Return CKA without 1/n in the centring and without the root; HSIC's last term is read as a trace like the others.

    Features come in float64: the shift that the missing 1/n leaves, -(n-1) times the mean, is NaN in float32 at
    n = 1024.
    """
    K, L = (linear_gram(features - features.sum(0)) for features in (X, Y))
    return hsic1(K, L) / (hsic1(K, K) * hsic1(L, L))
