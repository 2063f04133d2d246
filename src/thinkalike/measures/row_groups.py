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
    spread: Float[Tensor, "*b"], offset: Float[Tensor, "*b"], dtype: torch.dtype
) -> Bool[Tensor, "*b"]:
    """Return whether rows differ from their mean by no more than rounding.

    Args:
        spread: The squared distance of rows from their mean.
        offset: The squared norm of that mean.
        dtype: The dtype of the rows.
    """
    return spread <= (SUM_ROUNDING * torch.finfo(dtype).eps) ** 2 * offset


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
        shapes: For each size of groups, in rising order, the number of such groups and this size.
        rows: How many rows the batch has, including those without a group.
    """

    order: Int[Tensor, " kept"]
    shapes: Sequence[tuple[int, int]]
    rows: int
    # Many layers are centred for the same positions, so the effects of the last ones are kept.
    _last_effects: list[_PositionEffects] = field(default_factory=list)

    @classmethod
    @takes_arrays
    def of(
        cls, tokens: Annotated[Int[Tensor, " n"], Within(fewest=1)], fewest: Count
    ) -> RowGroups:
        """Group rows by their token.

        Args:
            tokens: The token of each row.
            fewest: A token of fewer rows makes no group.

        Raises:
            ValueError: No token has enough rows.
        """
        _, labels, counts = tokens.unique(return_inverse=True, return_counts=True)
        sizes, numbers = counts[counts >= fewest].unique(return_counts=True)
        if not len(sizes):
            raise ValueError(
                f"no group or token has {fewest} of the {len(tokens)} rows, so nothing can be "
                "compared within one: give more rows, on a command line by "
                "measure.tokens_per_batch"
            )

        # Sort rows by the size of their group and then by the group; the groups that are too small
        # come first and are dropped.
        row_count = int((sizes * numbers).sum())  # of the groups that are large enough
        sort_key = counts[labels] * len(counts) + labels
        order = sort_key.argsort(stable=True)[len(tokens) - row_count :]
        shapes = list(zip(numbers.tolist(), sizes.tolist(), strict=True))
        return cls(order, shapes, len(tokens))

    @classmethod
    def whole(cls, n: int, device: torch.device) -> RowGroups:
        """Return a single group of all n rows."""
        return cls(torch.arange(n, device=device), [(1, n)], n)

    def blocks(self, rows: Shaped[Tensor, " kept *d"]) -> Iterator[Shaped[Tensor, "g s *d"]]:
        """Yield views of rows that stand in `order`: for each size s, its g groups."""
        start = 0
        for count, size in self.shapes:
            stop = start + count * size
            yield rows[start:stop].unflatten(0, (count, size))
            start = stop

    def without_means(
        self,
        rows: Float[Tensor, "n d"],
        positions: Int[Tensor, " n"] | None = None,
        dtype: torch.dtype = torch.float64,
    ) -> Float[Tensor, "kept d"]:
        """Return the rows in `order`, less the mean of their group and of their position.

        With positions these are the residuals of least squares on the indicators of both. They are
        computed by Frisch-Waugh-Lovell: what the groups leave of the positions' indicators
        explains part of what the groups leave of the rows, and is subtracted. What remains of a
        row may be nothing but rounding, as where the token decides the state; such a row is set to
        0.

        Args:
            rows: The rows of the batch.
            positions: The position of each row; None: only the means of groups are subtracted.
            dtype: The dtype of the result.
        """
        ordered_rows = rows[self.order].to(dtype)
        residuals = self._centre(ordered_rows.clone())
        if positions is not None:
            effects = self._effects_of(positions)
            width = residuals.shape[1]
            sums = residuals.new_zeros(len(effects.inverse), width)
            sums.index_add_(0, effects.indices, residuals)
            coefficients = (effects.inverse @ sums.double()).to(dtype)  # (p, d)
            residuals = self._centre(residuals.sub_(coefficients[effects.indices]))

        spread = residuals.square().sum(1, keepdim=True)
        means = ordered_rows.sub_(residuals)  # what was subtracted from each row
        offset = means.square().sum(1, keepdim=True)
        # Without positions the digits of the rows decide what is rounding. The pseudo-inverse
        # loses some of these, so with positions only float32's count.
        precision = common_dtype([rows]) if positions is None else torch.float32
        return residuals.masked_fill_(all_alike(spread, offset, precision), 0)

    def _effects_of(self, positions: Int[Tensor, " n"]) -> _PositionEffects:
        """Return what `without_means` needs to know of these positions.

        It is computed once for the same tensor object, which is compared by identity.
        """
        if self._last_effects and self._last_effects[0].positions is positions:
            return self._last_effects[0]
        _, indices = positions[self.order].unique(return_inverse=True)
        position_count = int(indices.max()) + 1
        size_of_group = [size for count, size in self.shapes for _ in range(count)]
        sizes = torch.tensor(size_of_group, device=indices.device)
        groups = torch.arange(len(sizes), device=indices.device).repeat_interleave(sizes)

        # how often each group has each position, (groups, p)
        counts = torch.zeros(
            len(sizes), position_count, dtype=torch.float64, device=indices.device
        )
        counts.index_put_((groups, indices), counts.new_ones(()), accumulate=True)
        products = counts.sum(0).diag() - counts.T @ (counts / sizes[:, None])
        inverse = torch.linalg.pinv(products, rtol=EIGENVALUE_ROUNDING, hermitian=True)
        effects = _PositionEffects(positions, indices, inverse)
        self._last_effects[:] = [effects]
        return effects

    def _centre(self, rows: Float[Tensor, "kept d"]) -> Float[Tensor, "kept d"]:
        """Subtract the mean of each group from rows that stand in `order`, in place."""
        for block in self.blocks(rows):
            block -= block.mean(1, keepdim=True)
        return rows
