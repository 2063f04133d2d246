"""Distance correlation and RSA of two layers' distances of the same rows, as measures of layer pairs.

What they are without a part of the rows comes from the distances of all rows, which are computed once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from thinkalike.measures.contract import Blocks, LayerMeasure, Pair, both_in_order, products
from thinkalike.measures.distances.comparators import mid_ranks, ranks_of_levels
from thinkalike.measures.distances.neural import PANEL, NeuralDistances, upper
from thinkalike.measures.estimates import ROUNDINGS
from thinkalike.measures.kernel_alignment import unbiased_from_sums
from thinkalike.measures.rows import centred

ROUNDING = 1e-12  # share of a matrix in float64 that centring leaves of nothing
FEWEST_RANKED = 3  # rows, whose distances are compared


def distance_correlation(X: Float[Tensor, "n d"], Y: Float[Tensor, "m e"]) -> Float[Tensor, ""]:
    """Return the bias-corrected distance correlation R* = <A, B> / √(<A, A> <B, B>), in [-1, 1].

    A and B are the U-centred Euclidean distances of the rows (Székely & Rizzo 2013; in this form 2014). It estimates
    the *square* of the distance correlation of Székely, Rizzo & Bakirov (2007): about 0 for independent features of any
    width, and a positive limit for any kind of dependence. It has no gradient here. A ValueError says that n < 4 or
    differs between the sides, that a value is not finite, or that all distances of a side are equal.
    """
    return DistanceCorrelation().of(X, Y)


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


@dataclass(frozen=True)
class DistanceCorrelation(LayerMeasure[Tensor]):
    """Bias-corrected distance correlation, see `distance_correlation`."""

    formula = "<A, B> / √(<A, A> <B, B>), A and B the U-centred distances; estimates the squared distance correlation"
    source = "Székely et al. 2007, Székely & Rizzo 2013"
    value_range = (-1.0, 1.0)
    version = 12
    in_atlas = True
    in_benchmarks = True
    leaves_out_parts = True

    @torch.no_grad()
    def prepare(self, layer: Float[Tensor, "n d"], name: str) -> Float[Tensor, "n n"]:
        """Return the U-centred distances of the rows, of norm 1."""
        rows = centred(layer, name).rows
        rounding = max(ROUNDING, ROUNDINGS * torch.finfo(rows.dtype).eps)
        return u_centred(NeuralDistances.of(rows, name=name).squared(), name, rounding)

    def compare(self, first: Float[Tensor, "n n"], second: Float[Tensor, "n n"]) -> Float[Tensor, ""]:
        return (first * second).sum()

    def moved(self, prepared: Float[Tensor, "n n"], order: Int[Tensor, " n"]) -> Float[Tensor, "n n"]:
        return both_in_order(prepared, order)

    def compare_all(self, layers: Sequence[Float[Tensor, "n n"]], blocks: Blocks) -> dict[Pair, Float[Tensor, "l m"]]:
        return products(layers, blocks, is_symmetric=True)

    def compare_without_parts(
        self, layers: Sequence[Float[Tensor, "n n"]], blocks: Blocks, sizes: Sequence[int]
    ) -> dict[Pair, Float[Tensor, "_ l m"]]:
        """Return the correlations of all rows and without each part, whose sums are left out of those of all rows.

        U-centring takes out all that is a sum of something of both rows, so what it leaves of distances will do.
        """
        products_of_all = products(layers, blocks, is_symmetric=True)
        sums_of_all = blocks.by_model([layer.sum(0) for layer in layers])
        values = {pair: [correlations] for pair, correlations in products_of_all.items()}
        start = 0
        for size, *strips in zip(sizes, *(layer.split([*sizes]) for layer in layers), strict=True):
            end = start + size
            rows_left = len(layers[0]) - size
            part_with_all = products(strips, blocks)
            part_with_part = products([strip[:, start:end] for strip in strips], blocks)
            sums_of_part = blocks.by_model([strip.sum(0) for strip in strips])
            row_sums = []
            for whole, part in zip(sums_of_all, sums_of_part, strict=True):
                difference = whole - part
                row_sums.append(torch.cat([difference[:, :start], difference[:, end:]], 1))
            totals = [sums.sum(1) for sums in row_sums]
            hsics = {}
            for (a, b), whole in products_of_all.items():
                trace = whole - 2 * part_with_all[a, b] + part_with_part[a, b]
                hsics[a, b] = unbiased_from_sums(
                    rows_left, trace, row_sums[a] @ row_sums[b].T, torch.outer(totals[a], totals[b])
                )
            norms = {a: hsic.diagonal().sqrt() for (a, b), hsic in hsics.items() if a == b}
            for (a, b), hsic in hsics.items():
                values[a, b].append(hsic / torch.outer(norms[a], norms[b]))
            start = end
        return {pair: torch.stack(correlations) for pair, correlations in values.items()}


class _Ranks(NamedTuple):
    """Twice the centred mid-ranks of the distances of any two rows, whole numbers, and their norm."""

    doubled: Float[Tensor, "n n"]
    norm: Float[Tensor, ""]

    def without(self, pairs: Int[Tensor, " p"]) -> Float[Tensor, " p"]:
        """Return the ranks among these pairs, about 0 and of norm 1; equal ones are equal among fewer pairs."""
        count = len(self.doubled) * (len(self.doubled) - 1) // 2
        codes = (self.doubled.view(-1)[pairs] + count).long()  # from 1 - count to count - 1
        ranks = ranks_of_levels(codes, torch.ones_like(codes, dtype=torch.float64), 2 * count).sub_(
            (len(pairs) + 1) / 2
        )
        return ranks / ranks.norm()


@dataclass(frozen=True)
class TokenRSA(LayerMeasure[_Ranks]):
    """Spearman's ρ of the distances of all pairs of rows: the numbers of `rsa`."""

    formula = "Spearman's ρ of the Euclidean distances of all pairs of rows"
    source = "Kriegeskorte et al. 2008"
    value_range = (-1.0, 1.0)
    fewest = FEWEST_RANKED
    version = 12
    in_atlas = True
    in_benchmarks = True
    leaves_out_parts = True

    @torch.no_grad()
    def prepare(self, layer: Float[Tensor, "n d"], name: str) -> _Ranks:
        distances = NeuralDistances.of(layer, name=name)
        squared = distances.squared()
        above = upper(len(squared), squared.device)
        ranked = torch.zeros_like(squared)
        different = squared.flatten()[above]
        ranks = mid_ranks(different, distances.rounding(above, different)).mul_(2).sub_(len(above) + 1)
        norm = ranks.norm() * 2**0.5
        if norm == 0:
            raise ValueError(f"the distances of {name}: all {len(ranks)} values are equal and have no ranks")
        ranked.view(-1)[above] = ranks
        return _Ranks(ranked.add_(ranked.T.contiguous()), norm)

    def compare(self, first: _Ranks, second: _Ranks) -> Float[Tensor, ""]:
        return (first.doubled * second.doubled).sum() / (first.norm * second.norm)

    def moved(self, prepared: _Ranks, order: Int[Tensor, " n"]) -> _Ranks:
        return prepared._replace(doubled=both_in_order(prepared.doubled, order))

    def compare_all(self, layers: Sequence[_Ranks], blocks: Blocks) -> dict[Pair, Float[Tensor, "l m"]]:
        norms = blocks.by_model([layer.norm for layer in layers])
        found = products([layer.doubled for layer in layers], blocks, is_symmetric=True)
        return {(a, b): product / torch.outer(norms[a], norms[b]) for (a, b), product in found.items()}

    def compare_without_parts(
        self, layers: Sequence[_Ranks], blocks: Blocks, sizes: Sequence[int]
    ) -> dict[Pair, Float[Tensor, "_ l m"]]:
        """Return the correlations of all rows and without each part, among whose pairs nothing is sorted anew."""
        n = len(layers[0].doubled)
        values = {pair: [correlations] for pair, correlations in self.compare_all(layers, blocks).items()}
        every_row = torch.arange(n, device=layers[0].norm.device)
        start = 0
        for size in sizes:
            rows = torch.cat([every_row[:start], every_row[start + size :]])
            first, second = torch.triu_indices(n - size, n - size, 1, device=every_row.device)
            ranks = blocks.by_model([layer.without(rows[first] * n + rows[second]) for layer in layers])
            is_enough = n - size >= FEWEST_RANKED
            for (a, b), correlations in values.items():
                correlations.append(ranks[a] @ ranks[b].T if is_enough else correlations[0] * torch.nan)
            start += size
        return {pair: torch.stack(correlations) for pair, correlations in values.items()}
