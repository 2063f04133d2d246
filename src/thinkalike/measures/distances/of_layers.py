"""Distance correlation and RSA of two layers' distances, as measures of layer pairs.

What they are without a part of the rows comes from the distances of all rows, which are computed
once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from thinkalike.measures.centred_rows import centred
from thinkalike.measures.contract import LayerMeasure, ModelPairs, Pair, products, reordered_matrix
from thinkalike.measures.distances.neural import (
    ROWS_AT_ONCE,
    NeuralDistances,
    upper_triangle_indices,
)
from thinkalike.measures.distances.ranks import ranks_of_levels
from thinkalike.measures.hsic import unbiased_from_sums
from thinkalike.measures.row_groups import SUM_ROUNDING

# Where centring leaves less than this share of a matrix in float64, it leaves nothing but
# rounding.
CENTRING_ROUNDING = 1e-12

# Fewer rows have no two distances that could be ranked.
FEWEST_RANKED_ROWS = 3


def distance_correlation(X: Float[Tensor, "n d"], Y: Float[Tensor, "m e"]) -> Float[Tensor, ""]:
    """Return the bias-corrected distance correlation R* = <A, B> / √(<A, A> <B, B>), in [-1, 1].

    A and B are the U-centred Euclidean distances of the rows (Székely & Rizzo 2013; in this form
    2014). It estimates the *square* of the distance correlation of Székely, Rizzo & Bakirov
    (2007): about 0 for independent features of any width, and a positive limit for any kind of
    dependence. It has no gradient.

    Raises:
        ValueError: n < 4 or n differs between the sides, a value is not finite, or all distances
            of a side are equal.
    """
    return DistanceCorrelation().of(X, Y)


@torch.no_grad()
def u_centred(squared: Float[Tensor, "n n"], name: str, rounding: float) -> Float[Tensor, "n n"]:
    """Replace squared distances, in place, by U-centred distances of norm 1, and return them.

    Aᵢⱼ = aᵢⱼ - aᵢ./(n-2) - a.ⱼ/(n-2) + a../((n-1)(n-2)) off the diagonal, and 0 on it, where a are
    the distances, and a dot stands for the sum over an index. Products of two such matrices are
    unbiased. A panel of some rows at a time is processed, so that it stays in the cache of the
    processor from one step to the next.

    Args:
        squared: A symmetric matrix of squared distances.
        name: What errors call the layer.
        rounding: The share of the norm of the distances that may be nothing but rounding.

    Raises:
        ValueError: No larger share is left by centring.
    """
    n = len(squared)
    rows_at_once = ROWS_AT_ONCE // 4
    if squared.is_cuda:
        rows_at_once = n
    panels = squared.fill_diagonal_(0).split(rows_at_once)
    sums = []
    norms_before = []
    for panel in panels:
        sums.append(panel.sqrt_().sum(1))
        norms_before.append(panel.norm())

    means = torch.cat(sums) / (n - 2)
    constant = means.sum() / (n - 1)
    first_row = 0
    norms = []
    for panel in panels:
        row_means = means[first_row : first_row + len(panel)]
        panel.sub_(means).sub_((row_means - constant)[:, None])
        panel.diagonal(first_row).zero_()
        norms.append(panel.norm())
        first_row += len(panel)

    norm = torch.stack(norms).norm()
    if not norm > rounding * torch.stack(norms_before).norm():
        raise ValueError(
            f"{name}: all distances are equal, or all but those of one row, or they differ by too "
            "little, so none can be compared"
        )
    return squared.div_(norm)


@dataclass(frozen=True)
class DistanceCorrelation(LayerMeasure[Tensor]):
    """Bias-corrected distance correlation, see `distance_correlation`."""

    formula = (
        "<A, B> / √(<A, A> <B, B>), A and B the U-centred distances; "
        "estimates the squared distance correlation"
    )
    meaning = (
        "A value estimates the squared distance correlation of two layers: 0 if their states are "
        "independent, 1 if their distances are proportional."
    )
    source = "Székely et al. 2007, Székely & Rizzo 2013"
    value_range = (-1.0, 1.0)
    version = 13
    in_atlas = True
    in_benchmarks = True
    leaves_out_parts = True

    @torch.no_grad()
    def prepare(self, layer: Float[Tensor, "n d"], name: str) -> Float[Tensor, "n n"]:
        """Return the U-centred Euclidean distances of all pairs of rows, as a matrix of norm 1.

        U-centring subtracts means of rows and columns such that products of two results are
        unbiased (Székely & Rizzo 2013). `u_centred` is given squared distances, of which it takes
        the square root in place, so that there is only one matrix of n by n numbers.

        Raises:
            ValueError: All distances are equal up to rounding, or a state is not finite.
        """
        rows = centred(layer, name).rows
        squared_distances = NeuralDistances.of(rows, name=name).squared()
        # If U-centring leaves no larger share of the distances than this, they are all equal. What
        # is left is then the rounding of float64 (`CENTRING_ROUNDING`), or for states of a lower
        # precision, as float32, some units in the last place of a sum (`SUM_ROUNDING`).
        rounding = max(CENTRING_ROUNDING, SUM_ROUNDING * torch.finfo(rows.dtype).eps)
        return u_centred(squared_distances, name, rounding)

    def compare(
        self, first: Float[Tensor, "n n"], second: Float[Tensor, "n n"]
    ) -> Float[Tensor, ""]:
        """Return the distance correlation of two prepared layers."""
        return (first * second).sum()

    def reordered(
        self, prepared: Float[Tensor, "n n"], order: Int[Tensor, " n"]
    ) -> Float[Tensor, "n n"]:
        """Return the U-centred distances after the rows took another order."""
        return reordered_matrix(prepared, order)

    def compare_all(
        self, layers: Sequence[Float[Tensor, "n n"]], model_pairs: ModelPairs
    ) -> dict[Pair, Float[Tensor, "l m"]]:
        """Return the distance correlation of every two layers, (l, m) for each pair of models."""
        return products(layers, model_pairs, is_symmetric=True)

    def compare_leaving_out_parts(
        self, layers: Sequence[Float[Tensor, "n n"]], model_pairs: ModelPairs, sizes: Sequence[int]
    ) -> dict[Pair, Float[Tensor, "_ l m"]]:
        """Return the distance correlations of all rows, and then leaving out each part of them.

        They have the shape (1 + parts, l, m) for each pair of models. The correlation of the
        remaining rows is a ratio of unbiased HSICs, which do not change if a_i + a_j is added to
        the distance of rows i and j. U-centred distances of all rows differ from the distances by
        such sums, so they can be used in their place.

        Args:
            layers: U-centred distances.
            model_pairs: The layers of each model, and which models are compared.
            sizes: The sizes of the parts of the rows, which follow one another.
        """
        n = len(layers[0])
        products_of_all = products(layers, model_pairs, is_symmetric=True)
        row_sums = model_pairs.by_model([layer.sum(0) for layer in layers])  # (l, n)
        correlations = {pair: [product] for pair, product in products_of_all.items()}
        start = 0
        for size in sizes:
            stop = start + size
            strips = [layer[start:stop] for layer in layers]  # the rows of the part, (k, n)
            part_by_all = products(strips, model_pairs)
            part_by_part = products([strip[:, start:stop] for strip in strips], model_pairs)
            part_sums = model_pairs.by_model([strip.sum(0) for strip in strips])

            # The sums of the remaining rows over the remaining columns.
            sums_left = []
            for sums_of_all, sums_of_part in zip(row_sums, part_sums, strict=True):
                without_part = sums_of_all - sums_of_part
                sums_left.append(torch.cat([without_part[:, :start], without_part[:, stop:]], 1))
            totals_left = [sums.sum(1) for sums in sums_left]

            # tr(A B) over the remaining rows is all rows - 2 (part x all) + (part x part).
            hsics = {}
            for source, target in model_pairs.pairs:
                pair = (source, target)
                products_left = products_of_all[pair] - 2 * part_by_all[pair] + part_by_part[pair]
                hsics[pair] = unbiased_from_sums(
                    n - size,
                    products_left,
                    sums_left[source] @ sums_left[target].T,
                    torch.outer(totals_left[source], totals_left[target]),
                )
            norms = {}
            for (source, target), hsic in hsics.items():
                if source == target:
                    norms[source] = hsic.diagonal().sqrt()
            for (source, target), hsic in hsics.items():
                correlation = hsic / torch.outer(norms[source], norms[target])
                correlations[source, target].append(correlation)
            start = stop
        return {pair: torch.stack(values) for pair, values in correlations.items()}


class _Ranks(NamedTuple):
    """The mid-ranks of the distances of any two rows, centred, and doubled to be whole numbers.

    Attributes:
        doubled_centred: 2 (rank - mean rank) of each distance, a whole number; 0 on the diagonal.
        norm: The Frobenius norm of this matrix.
    """

    doubled_centred: Float[Tensor, "n n"]
    norm: Float[Tensor, ""]

    def unit_ranks_among(self, pairs: Int[Tensor, " p"]) -> Float[Tensor, " p"]:
        """Return the mid-ranks of the distances of only some pairs of rows, centred, of norm 1.

        They are computed from the ranks among all pairs, which have the order of the distances, so
        that nothing is sorted again.

        Args:
            pairs: For rows i and j the flat index i n + j in an n x n matrix.
        """
        n = len(self.doubled_centred)
        pair_count = n * (n - 1) // 2
        # The least of all distances has rank 1 and the greatest has rank pair_count, so that
        # 2 (rank - mean rank) goes from 1 - pair_count to pair_count - 1. After this shift it goes
        # from 1 to 2 * pair_count - 1, and is a level: a whole number in the order of distances.
        levels = (self.doubled_centred.view(-1)[pairs] + pair_count).long()
        copies_of_distance = torch.ones_like(levels, dtype=torch.float64)  # each counts once
        ranks = ranks_of_levels(levels, copies_of_distance, most_levels=2 * pair_count)
        mean_rank = (len(pairs) + 1) / 2
        centred_ranks = ranks.sub_(mean_rank)
        norm: Tensor = centred_ranks.norm()
        return centred_ranks / norm


@dataclass(frozen=True)
class TokenRSA(LayerMeasure[_Ranks]):
    """Spearman's ρ of the distances of all pairs of rows: the values of `rsa`."""

    formula = "Spearman's ρ of the Euclidean distances of all pairs of rows"
    meaning = "A value is Spearman's ρ of the distances of all pairs of rows in two layers."
    source = "Kriegeskorte et al. 2008"
    value_range = (-1.0, 1.0)
    fewest = FEWEST_RANKED_ROWS
    version = 13
    in_atlas = True
    in_benchmarks = True
    leaves_out_parts = True

    @torch.no_grad()
    def prepare(self, layer: Float[Tensor, "n d"], name: str) -> _Ranks:
        """Return the ranks of the distances of all pairs of rows, as a symmetric matrix.

        Equal distances share the mean of their ranks. Entry (i, j) of the matrix is twice the rank
        of the distance of rows i and j, less twice the mean rank. Its Frobenius norm comes with
        it.

        Raises:
            ValueError: All distances are equal, or a state is not finite.
        """
        distances = NeuralDistances.of(layer, name=name)
        n = len(distances)
        pairs = upper_triangle_indices(n, distances.states.device)  # flat indices of i < j
        ranks = distances.ranks_at(pairs)
        # 2 (rank - mean rank) is a whole number also for ties, so that sums of these are exact.
        doubled_centred = ranks.mul_(2).sub_(len(pairs) + 1)  # the mean rank is (pairs + 1) / 2
        norm = doubled_centred.norm() * 2**0.5  # of the matrix, in which each pair occurs twice
        if norm == 0:
            raise ValueError(
                f"the distances of {name}: all {len(pairs)} values are equal and have no ranks"
            )
        matrix = doubled_centred.new_zeros(n, n)
        matrix.view(-1)[pairs] = doubled_centred  # the upper triangle
        symmetric = matrix.add_(matrix.T.contiguous())
        return _Ranks(symmetric, norm)

    def compare(self, first: _Ranks, second: _Ranks) -> Float[Tensor, ""]:
        """Return Spearman's ρ of the distances of two prepared layers."""
        products_of_ranks = first.doubled_centred * second.doubled_centred
        return products_of_ranks.sum() / (first.norm * second.norm)

    def reordered(self, prepared: _Ranks, order: Int[Tensor, " n"]) -> _Ranks:
        """Return the ranks of distances after the rows took another order."""
        reordered_ranks = reordered_matrix(prepared.doubled_centred, order)
        return prepared._replace(doubled_centred=reordered_ranks)

    def compare_all(
        self, layers: Sequence[_Ranks], model_pairs: ModelPairs
    ) -> dict[Pair, Float[Tensor, "l m"]]:
        """Return Spearman's ρ of the row distances in two layers, for l layers with each of m.

        It is the inner product of the centred ranks of the distances over the product of their
        norms. The ranks are doubled, which makes them whole numbers and cancels in the ratio.

        Args:
            layers: The doubled centred ranks, and their norm, in each of the distinct layers.
            model_pairs: Which of these layers each model has, and which models are compared.
        """
        norms = model_pairs.by_model([layer.norm for layer in layers])
        products_of_ranks = products(
            [layer.doubled_centred for layer in layers], model_pairs, is_symmetric=True
        )
        return {
            (source, target): products_of_pair / torch.outer(norms[source], norms[target])
            for (source, target), products_of_pair in products_of_ranks.items()
        }

    def compare_leaving_out_parts(
        self, layers: Sequence[_Ranks], model_pairs: ModelPairs, sizes: Sequence[int]
    ) -> dict[Pair, Float[Tensor, "_ l m"]]:
        """Return the rank correlations of all rows, and then leaving out each part of the rows.

        They are NaN where fewer than `FEWEST_RANKED_ROWS` rows remain. The distances of the
        remaining rows are not sorted again: their new ranks are counted from the old ones.

        Args:
            layers: The ranks of distances in each of the distinct layers.
            model_pairs: Which of these layers each model has, and which models are compared.
            sizes: How many rows each part has; the parts follow one another.

        Returns:
            The correlations (1 + parts, l, m) for each pair of models.
        """
        n = len(layers[0].doubled_centred)
        values_of_all_rows = self.compare_all(layers, model_pairs)
        correlations = {pair: [values] for pair, values in values_of_all_rows.items()}
        row_numbers = torch.arange(n, device=layers[0].norm.device)
        start = 0
        for size in sizes:
            stop = start + size
            rows = torch.cat([row_numbers[:start], row_numbers[stop:]])  # those that remain
            first, second = torch.triu_indices(n - size, n - size, 1, device=rows.device)
            pairs = rows[first] * n + rows[second]  # flat indices in the n x n matrix of ranks
            ranks = model_pairs.by_model([layer.unit_ranks_among(pairs) for layer in layers])
            for (source, target), values in correlations.items():
                if n - size >= FEWEST_RANKED_ROWS:
                    values.append(ranks[source] @ ranks[target].T)
                else:
                    values.append(values[0] * torch.nan)
            start = stop
        return {pair: torch.stack(values) for pair, values in correlations.items()}
