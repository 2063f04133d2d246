"""Distance correlation and RSA of two layers' distances of the same rows, as measures of layer pairs.

What they are without a part of the rows comes from the distances of all rows, which are computed once.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from thinkalike.measures.centred_rows import centred
from thinkalike.measures.contract import Blocks, LayerMeasure, Pair, both_in_order, products
from thinkalike.measures.distances.comparators import mid_ranks, ranks_of_levels
from thinkalike.measures.distances.neural import PANEL, NeuralDistances, upper
from thinkalike.measures.hsic import unbiased_from_sums
from thinkalike.measures.row_groups import SUM_ROUNDING

ROUNDING = 1e-12  # share of a matrix in float64 that centring leaves of nothing
FEWEST_RANKED = 3  # rows, whose distances are compared


def distance_correlation(X: Float[Tensor, "n d"], Y: Float[Tensor, "m e"]) -> Float[Tensor, ""]:
    """Return the bias-corrected distance correlation R* = <A, B> / √(<A, A> <B, B>), in [-1, 1].

    A and B are the U-centred Euclidean distances of the rows (Székely & Rizzo 2013; in this form 2014). It estimates
    the *square* of the distance correlation of Székely, Rizzo & Bakirov (2007): about 0 for independent features of any
    width, and a positive limit for any kind of dependence. It has no gradient here. A ValueError says that n < 4 or
    differs between the sides, that a value is not finite, or that all distances of a side are equal.
    """
    return DISTANCE_CORRELATION.of(X, Y)


@torch.no_grad()
def u_centred(squared: Float[Tensor, "n n"], name: str, rounding: float) -> Float[Tensor, "n n"]:
    """U-centre the roots of a symmetric matrix in place to norm 1; a ValueError if rounding alone is left.

    Aᵢⱼ = aᵢⱼ - aᵢ./(n-2) - a.ⱼ/(n-2) + a../((n-1)(n-2)) off the diagonal, and 0 on it. Products of two such matrices
    are unbiased. Some rows at a time stay in the cache from one step to the next.
    """
    n, norms = len(squared), []
    parts = squared.fill_diagonal_(0).split(n if squared.is_cuda else PANEL // 4)
    sums, sizes = zip(*[(part.sqrt_().sum(1), part.norm()) for part in parts], strict=True)
    means = torch.cat(sums) / (n - 2)
    constant = means.sum() / (n - 1)
    for place, (part, own) in enumerate(zip(parts, means.split(len(parts[0])), strict=True)):
        part.sub_(means).sub_((own - constant)[:, None]).diagonal(place * len(parts[0])).zero_()
        norms.append(part.norm())
    norm = torch.stack(norms).norm()
    if not norm > rounding * torch.stack(sizes).norm():
        raise ValueError(f"{name}: all distances are equal, or all but those of one row, so none can be compared")
    return squared.div_(norm)


@torch.no_grad()
def _of_distances(features: Float[Tensor, "n d"], name: str) -> Float[Tensor, "n n"]:
    rows = centred(features, name).rows
    rounding = max(ROUNDING, SUM_ROUNDING * torch.finfo(rows.dtype).eps)
    return u_centred(NeuralDistances.of(rows, name=name).squared(), name, rounding)


def _values_without_parts(
    layers: Sequence[Float[Tensor, "n n"]], blocks: Blocks, sizes: Sequence[int]
) -> dict[Pair, Float[Tensor, "_ l m"]]:
    """Return the correlations of all rows and without each part, whose sums over rows are left out of those of all.

    U-centring takes out all that is a sum of something of both rows, so what it leaves of distances will do for these.
    """
    whole, sums = products(layers, blocks, is_symmetric=True), blocks.by_model([each.sum(0) for each in layers])
    found, start = {pair: [each] for pair, each in whole.items()}, 0
    for size, *strips in zip(sizes, *(each.split([*sizes]) for each in layers), strict=True):
        part, n = slice(start, start + size), len(layers[0]) - size
        crossed, inside = products(strips, blocks), products([each[:, part] for each in strips], blocks)
        left = [each - own for each, own in zip(sums, blocks.by_model([each.sum(0) for each in strips]), strict=True)]
        left = [torch.cat([each[:, :start], each[:, start + size :]], 1) for each in left]
        totals = [each.sum(1) for each in left]
        hsics = {
            (a, b): unbiased_from_sums(
                n, each - 2 * crossed[a, b] + inside[a, b], left[a] @ left[b].T, torch.outer(totals[a], totals[b])
            )
            for (a, b), each in whole.items()
        }
        norms = {a: each.diagonal().sqrt() for (a, b), each in hsics.items() if a == b}
        for (a, b), each in hsics.items():
            found[a, b].append(each / torch.outer(norms[a], norms[b]))
        start += size
    return {pair: torch.stack(each) for pair, each in found.items()}


class _Ranks(NamedTuple):
    """Twice the centred mid-ranks of the distances of any two rows, whole numbers, and their norm."""

    doubled: Float[Tensor, "n n"]
    norm: Float[Tensor, ""]

    def moved(self, order: Int[Tensor, " n"]) -> _Ranks:
        return self._replace(doubled=both_in_order(self.doubled, order))

    def without(self, pairs: Int[Tensor, " p"]) -> Float[Tensor, " p"]:
        """Return the ranks among these pairs, about 0 and of norm 1; equal ones are equal among fewer pairs."""
        count = len(self.doubled) * (len(self.doubled) - 1) // 2
        codes = (self.doubled.view(-1)[pairs] + count).long()  # from 1 - count to count - 1
        ranks = ranks_of_levels(codes, torch.ones_like(codes, dtype=torch.float64), 2 * count).sub_(
            (len(pairs) + 1) / 2
        )
        return ranks / ranks.norm()


@torch.no_grad()
def _of_ranks(features: Float[Tensor, "n d"], name: str) -> _Ranks:
    distances = NeuralDistances.of(features, name=name)
    squared = distances.squared()
    above, ranked = upper(len(squared), squared.device), torch.zeros_like(squared)
    different = squared.flatten()[above]
    ranks = mid_ranks(different, distances.rounding(above, different)).mul_(2).sub_(len(above) + 1)
    norm = ranks.norm() * 2**0.5
    if norm == 0:
        raise ValueError(f"the distances of {name}: all {len(ranks)} values are equal and have no ranks")
    ranked.view(-1)[above] = ranks
    return _Ranks(ranked.add_(ranked.T.contiguous()), norm)


def _rank_correlations(layers: Sequence[_Ranks], blocks: Blocks) -> dict[Pair, Float[Tensor, "l m"]]:
    norms = blocks.by_model([each.norm for each in layers])
    found = products([each.doubled for each in layers], blocks, is_symmetric=True)
    return {(a, b): each / torch.outer(norms[a], norms[b]) for (a, b), each in found.items()}


def _rank_correlations_without_parts(
    layers: Sequence[_Ranks], blocks: Blocks, sizes: Sequence[int]
) -> dict[Pair, Float[Tensor, "_ l m"]]:
    """Return the correlations of all rows and without each part, among whose pairs nothing is sorted anew."""
    n, start, found = len(layers[0].doubled), 0, {}
    found = {pair: [each] for pair, each in _rank_correlations(layers, blocks).items()}
    every = torch.arange(n, device=layers[0].norm.device)
    for size in sizes:
        rows = torch.cat([every[:start], every[start + size :]])
        first, second = torch.triu_indices(n - size, n - size, 1, device=every.device)
        ranks = blocks.by_model([each.without(rows[first] * n + rows[second]) for each in layers])
        for (a, b), each in found.items():
            each.append(ranks[a] @ ranks[b].T if n - size >= FEWEST_RANKED else each[0] * torch.nan)
        start += size
    return {pair: torch.stack(each) for pair, each in found.items()}


DISTANCE_CORRELATION = LayerMeasure(
    _of_distances, partial(products, is_symmetric=True), both_in_order, compare_without_parts=_values_without_parts
)
RANKED_DISTANCES = LayerMeasure(  # the numbers of `rsa`
    _of_ranks,
    _rank_correlations,
    _Ranks.moved,
    fewest=FEWEST_RANKED,
    compare_without_parts=_rank_correlations_without_parts,
)
