"""Groups of rows, such as those of one token, in which all that the token decides is constant."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import reduce
from typing import Annotated

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor

from thinkalike.arguments import Count, Within, takes_arrays

# The unbiased estimator of HSIC divides by n - 3, so it compares at least this many rows.
FEWEST_HSIC_ROWS = 4

# Where groups hold less than this share of all rows, a result is one of frequent tokens alone.
FEW = 0.5

# A sum may be off by this many units in the last place of its terms.
SUM_ROUNDING = 8

# Eigenvalues below this share of the largest belong to directions that the groups alone decide.
EIGENVALUE_ROUNDING = 1e-9


def common_dtype(features: Iterable[Tensor]) -> torch.dtype:
    """Return the widest dtype of all tensors, and at least float32."""
    return reduce(torch.promote_types, (tensor.dtype for tensor in features), torch.float32)


def all_alike(
    squared_distance: Float[Tensor, "*b"], squared_mean: Float[Tensor, "*b"], dtype: torch.dtype
) -> Bool[Tensor, "*b"]:
    """Return whether rows are the same, that is, differ from their mean by no more than rounding.

    The mean was subtracted from numbers of about its own size, so rounding is relative to its
    norm.

    Args:
        squared_distance: The squared distance of a row from the mean, or the mean of several of
            these.
        squared_mean: The squared norm of the mean.
        dtype: The dtype of the rows, which decides how large rounding is.
    """
    rounding = SUM_ROUNDING * torch.finfo(dtype).eps  # as a share of the norm
    return squared_distance <= rounding**2 * squared_mean


@dataclass(frozen=True, eq=False)
class _PositionEffects:
    """What `RowGroups.without_means` needs to know of positions.

    Attributes:
        positions: The position of each row of the batch.
        indices: For each row in `order`, the index of its position among the p different ones.
        inverse: The pseudo-inverse of Z'Z, where Z are the indicators of the p positions less
            their means within groups.
    """

    positions: Int[Tensor, " n"]
    indices: Int[Tensor, " kept"]
    inverse: Float[Tensor, "p p"]


@dataclass(frozen=True, eq=False)
class RowGroups:
    """Which rows of a batch belong together.

    Attributes:
        order: The rows that are in a group. Those of one group stand side by side, and the
            smallest groups come first.
        counts_and_sizes: For each size of groups, in rising order, the number of such groups and
            this size.
        row_count: How many rows the batch has, including those without a group.
    """

    order: Int[Tensor, " kept"]
    counts_and_sizes: Sequence[tuple[int, int]]
    row_count: int
    # Many layers are centred for the same positions, so the effects of the last ones are kept.
    _last_effects: list[_PositionEffects] = field(default_factory=list)

    @classmethod
    @takes_arrays
    def of(
        cls, tokens: Annotated[Int[Tensor, " n"], Within(fewest=1)], fewest: Count
    ) -> RowGroups:
        """Return the groups of rows with the same token, sorted by their size.

        Args:
            tokens: The token of each row.
            fewest: The fewest rows that make a group; rows of rarer tokens are in no group.

        Raises:
            ValueError: No token has enough rows.
        """
        # The index of each row's token among the different tokens, and how often each of these
        # occurs.
        _, token_of_row, occurrences = tokens.unique(return_inverse=True, return_counts=True)
        # The different sizes of groups, and how many groups have each size.
        sizes, group_counts = occurrences[occurrences >= fewest].unique(return_counts=True)
        if not len(sizes):
            raise ValueError(
                f"no group or token has {fewest} of the {len(tokens)} rows, so nothing can be "
                "compared within one: give more rows, on a command line by "
                "measure.tokens_per_batch"
            )

        # Sort rows by the size of their group and then by the group; the groups that are too small
        # come first and are dropped.
        rows_in_groups = int((sizes * group_counts).sum())  # of the groups that are large enough
        sort_key = occurrences[token_of_row] * len(occurrences) + token_of_row
        order = sort_key.argsort(stable=True)[len(tokens) - rows_in_groups :]
        counts_and_sizes = list(zip(group_counts.tolist(), sizes.tolist(), strict=True))
        return cls(order, counts_and_sizes, row_count=len(tokens))

    @classmethod
    def whole(cls, n: int, device: torch.device) -> RowGroups:
        """Return a single group of all n rows."""
        return cls(torch.arange(n, device=device), [(1, n)], n)

    def split_by_size(
        self, rows: Shaped[Tensor, " kept *d"]
    ) -> Iterator[Shaped[Tensor, "g s *d"]]:
        """Yield, for each size s that groups have, the rows of all g groups of this size.

        The result is a view, (g, s, *d), so that it can be changed in place.

        Args:
            rows: A number or a vector for each row that is in a group, in the order of the
                attribute `order`: that of small groups first, and within these group by group.
        """
        start = 0
        for group_count, size in self.counts_and_sizes:
            stop = start + group_count * size
            yield rows[start:stop].unflatten(0, (group_count, size))
            start = stop

    def without_means(
        self,
        rows: Float[Tensor, "n d"],
        positions: Int[Tensor, " n"] | None = None,
        dtype: torch.dtype = torch.float64,
    ) -> Float[Tensor, "kept d"]:
        """Return the rows less the mean of their group, and less the effect of their position.

        With positions these are the residuals of a least-squares regression on the indicators of
        groups and of positions. By the theorem of Frisch, Waugh and Lovell, the means of groups
        are first subtracted from rows and from the indicators of positions, and then the rows are
        regressed on the indicators. Where nothing but rounding remains of a row, as where the
        token alone decides the state, it is set to 0.

        Args:
            rows: The rows of the batch.
            positions: The position of each row; None: only the means of groups are subtracted.
            dtype: The dtype of the result.

        Returns:
            The residuals of the rows that are in a group, in the order of the groups.
        """
        ordered_rows = rows[self.order].to(dtype)
        residuals = self._centre(ordered_rows.clone())
        if positions is not None:
            effects = self._position_effects(positions)
            width = residuals.shape[1]
            # Z' residuals, with Z the indicators of positions less their means within groups: as
            # residuals have mean 0 in each group, these means do not matter.
            sums = residuals.new_zeros(len(effects.inverse), width)
            sums.index_add_(0, effects.indices, residuals)
            coefficients = (effects.inverse @ sums.double()).to(dtype)  # (p, d), of positions
            residuals = self._centre(residuals.sub_(coefficients[effects.indices]))

        squared_distance = residuals.square().sum(1, keepdim=True)
        means = ordered_rows.sub_(residuals)  # what was subtracted from each row
        squared_mean = means.square().sum(1, keepdim=True)
        # Without positions the digits of the rows decide what is rounding. The pseudo-inverse
        # loses some of these, so with positions only float32's count.
        precision = common_dtype([rows]) if positions is None else torch.float32
        return residuals.masked_fill_(all_alike(squared_distance, squared_mean, precision), 0)

    def _position_effects(self, positions: Int[Tensor, " n"]) -> _PositionEffects:
        """Return what a regression of rows on the indicators of their positions needs.

        The regression is on a matrix Z with a column for each position, which is 1 in the rows at
        this position, else 0, less its mean within each group. It needs the pseudo-inverse of
        Z'Z = Σ_g (diag(n_g) - n_g n_g' / s), a sum over groups g of s rows, with n_g how often
        each position occurs in the group. This is returned, with the index of each row's position
        among the different ones. The last result is stored for the next layer, and is returned
        again if `positions` is the same tensor object.

        Args:
            positions: The position of each row of the batch.
        """
        if self._last_effects and self._last_effects[0].positions is positions:
            return self._last_effects[0]
        _, indices = positions[self.order].unique(return_inverse=True)
        position_count = int(indices.max()) + 1
        sizes_of_groups = []
        for group_count, size in self.counts_and_sizes:
            sizes_of_groups += [size] * group_count
        sizes = torch.tensor(sizes_of_groups, device=indices.device)
        group_of_row = torch.arange(len(sizes), device=indices.device).repeat_interleave(sizes)

        # how often each group has each position, (groups, p)
        counts = torch.zeros(
            len(sizes), position_count, dtype=torch.float64, device=indices.device
        )
        counts.index_put_((group_of_row, indices), counts.new_ones(()), accumulate=True)
        products = counts.sum(0).diag() - counts.T @ (counts / sizes[:, None])  # Z'Z
        inverse = torch.linalg.pinv(products, rtol=EIGENVALUE_ROUNDING, hermitian=True)
        effects = _PositionEffects(positions, indices, inverse)
        self._last_effects[:] = [effects]  # in place, as the dataclass is frozen
        return effects

    def _centre(self, rows: Float[Tensor, "kept d"]) -> Float[Tensor, "kept d"]:
        """Subtract the mean of each group from its rows, in place.

        Args:
            rows: The rows that are in a group, in the order of the attribute `order`.
        """
        for block in self.split_by_size(rows):
            block -= block.mean(1, keepdim=True)
        return rows
