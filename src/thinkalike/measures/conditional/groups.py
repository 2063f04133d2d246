"""Rows of one batch by their token: within such groups everything that the token itself decides is constant.

Groups are those of one batch, and no table over the vocabulary is kept, so memory does not grow with the vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor

from thinkalike.arguments import seeded, takes_arrays
from thinkalike.measures.kernels.centring import all_alike, common_dtype
from thinkalike.measures.kernels.rows import rows_of

FEW = 0.5  # share of the rows; where fewer stand in groups, what is found is of frequent tokens alone


@dataclass(frozen=True, eq=False)
class RowGroups:
    """Which rows of a batch belong together.

    Attributes:
        order: The rows that are in a group, with those of one group side by side, and the smallest groups first.
        shapes: How many groups there are of each size: (number of groups, size), by size.
        rows: How many rows the batch has, those without a group included.
    """

    order: Int[Tensor, " kept"]
    shapes: Sequence[tuple[int, int]]
    rows: int

    @classmethod
    @takes_arrays
    def of(cls, tokens: Int[Tensor, " n"], fewest: int) -> RowGroups:
        """Group rows by their token; a token that stands in fewer than `fewest` rows makes no group.

        Raises:
            ValueError: No token stands in as many rows.
        """
        _, labels, counts = tokens.unique(return_inverse=True, return_counts=True)
        sizes, numbers = counts[counts >= fewest].unique(return_counts=True)
        if not len(sizes):
            raise ValueError(
                f"no token stands in {fewest} of the {len(tokens)} rows, so nothing can be compared given the token: "
                "give more rows at once, as by measure.tokens_per_batch"
            )
        kept = int((sizes * numbers).sum())
        order = (counts[labels] * len(counts) + labels).argsort(stable=True)[len(tokens) - kept :]
        return cls(order, list(zip(numbers.tolist(), sizes.tolist(), strict=True)), len(tokens))

    @classmethod
    def whole(cls, n: int, device: torch.device) -> RowGroups:
        """Return a single group of all n rows."""
        return cls(torch.arange(n, device=device), [(1, n)], n)

    @property
    def used(self) -> float:
        """The share of the rows that are in a group, in (0, 1]."""
        return len(self.order) / self.rows

    def blocks(self, rows: Shaped[Tensor, kept * d]) -> Iterator[Shaped[Tensor, "g s *d"]]:
        """Yield views of rows that stand in `order`: for each size s, its g groups."""
        start = 0
        for count, size in self.shapes:
            yield rows[start : start + count * size].unflatten(0, (count, size))
            start += count * size

    def shuffled(self, seed: int) -> Int[Tensor, " kept"]:
        """Return a permutation of rows that stand in `order`, at random within every group."""
        generator, places = seeded(seed), torch.arange(len(self.order))
        parts = [
            block.gather(1, torch.rand(block.shape, generator=generator).argsort(1)) for block in self.blocks(places)
        ]
        return torch.cat([part.flatten() for part in parts]).to(self.order.device)

    def without_means(self, rows: Float[Tensor, "n d"]) -> Float[Tensor, "kept d"]:
        """Return the rows in `order`, in float64, less the mean of their group.

        What is left of a row may be nothing but rounding, as where the token decides the state; then it is set to 0.

        Raises:
            ValueError: A value is not finite.
        """
        kept = rows[self.order].double()
        if not kept.isfinite().all():
            raise ValueError("a value is not finite; run the model in a wider dtype")
        for block in self.blocks(kept):
            mean = block.mean(1, keepdim=True)
            block -= mean
            apart = block.square().sum(2, keepdim=True)
            offset = mean.square().sum(2, keepdim=True).expand_as(apart)
            block.masked_fill_(all_alike(apart, offset, common_dtype([rows])), 0)
        return kept


def groups_of(
    tokens: Int[Tensor, " ..."], mask: Shaped[Tensor, " ..."] | None, states: Shaped[Tensor, " ..."], fewest: int
) -> RowGroups:
    """Return the groups of the rows of a batch of states, (b, t, d) or (n, d), that a mask leaves; see `RowGroups.of`.

    Raises:
        ValueError: There is not one token for each state, the mask does not fit, or no token stands in as many rows.
    """
    if tokens.shape != states.shape[:-1]:
        raise ValueError(f"tokens of shape {tuple(tokens.shape)} do not fit states of shape {tuple(states.shape)}")
    rows = rows_of(tokens[..., None], "token", mask).squeeze(1)
    return RowGroups.of(rows.to(states.device), fewest)
