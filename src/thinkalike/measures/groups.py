"""Groups of rows, such as those of one token: within them everything that the token alone decides is constant."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import reduce

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor

from thinkalike.arguments import takes_arrays

FEWEST = 4  # rows that are compared, as the unbiased estimator of HSIC divides by n - 3
ROUNDINGS = 8  # what a sum may be off by, in units of its terms' last digit
ROUNDED = 1e-9  # of the largest eigenvalue: directions of positions that the groups decide have less
FEWEST_NEIGHBOURS = 20  # documents that are looked at
CODES, ORDERS = 64, 200  # numbers of a token, and random orders of documents
ALIKE = 0.05  # correlation of neighbours, from which four of one source widen intervals by a tenth
FEW = 0.5  # share of the rows; where fewer stand in groups, what is found is of frequent tokens alone


def common_dtype(features: Iterable[Tensor]) -> torch.dtype:
    """Return the widest dtype, and at least float32."""
    return reduce(torch.promote_types, (x.dtype for x in features), torch.float32)


def all_alike(spread: Float[Tensor, "*b"], offset: Float[Tensor, "*b"], dtype: torch.dtype) -> Bool[Tensor, "*b"]:
    """Return whether squared distances from the mean are what rounding leaves of the squared offset of that mean."""
    return spread <= (ROUNDINGS * torch.finfo(dtype).eps) ** 2 * offset


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
        """Group rows by their token; one of fewer than `fewest` rows makes no group, and a ValueError if all do so."""
        _, labels, counts = tokens.unique(return_inverse=True, return_counts=True)
        sizes, numbers = counts[counts >= fewest].unique(return_counts=True)
        if not len(sizes):
            found = f"no token stands in {fewest} of the {len(tokens)} rows, so nothing can be compared given the token"
            raise ValueError(f"{found}: give more rows at once, as by measure.tokens_per_batch")
        kept = int((sizes * numbers).sum())
        order = (counts[labels] * len(counts) + labels).argsort(stable=True)[len(tokens) - kept :]
        return cls(order, list(zip(numbers.tolist(), sizes.tolist(), strict=True)), len(tokens))

    @classmethod
    def whole(cls, n: int, device: torch.device) -> RowGroups:
        """Return a single group of all n rows."""
        return cls(torch.arange(n, device=device), [(1, n)], n)

    def blocks(self, rows: Shaped[Tensor, " kept *d"]) -> Iterator[Shaped[Tensor, "g s *d"]]:
        """Yield views of rows that stand in `order`: for each size s, its g groups."""
        start = 0
        for count, size in self.shapes:
            yield rows[start : start + count * size].unflatten(0, (count, size))
            start += count * size

    def without_means(
        self,
        rows: Float[Tensor, "n d"],
        positions: Int[Tensor, " n"] | None = None,
        dtype: torch.dtype = torch.float64,
    ) -> Float[Tensor, "kept d"]:
        """Return the rows in `order`, in this dtype, less the mean of their group, and of their position if given.

        With positions these are the residuals of least squares on both: what the groups leave of the positions'
        indicators is taken out of what they leave of the rows. What is left of a row may be nothing but rounding, as
        where the token decides the state; then it is set to 0.
        """
        whole = rows[self.order].to(dtype)
        kept = self._centre(whole.clone())
        if positions is not None:
            _, places = positions[self.order].unique(return_inverse=True)
            sums = kept.new_zeros(int(places.max()) + 1, kept.shape[1]).index_add_(0, places, kept)
            effects = self._inverse_of_positions(places) @ sums.double()
            kept = self._centre(kept.sub_(effects.to(dtype)[places]))
        apart, offset = (each.square().sum(1, keepdim=True) for each in (kept, whole - kept))
        narrow = common_dtype([rows]) if positions is None else torch.float32  # the last digits are still on their way
        return kept.masked_fill_(all_alike(apart, offset, narrow), 0)

    def _inverse_of_positions(self, places: Int[Tensor, " kept"]) -> Float[Tensor, "p p"]:
        """Return the pseudo-inverse of the products of positions' indicators less the means of their groups."""
        sizes = torch.tensor([size for count, size in self.shapes for _ in range(count)], device=places.device)
        groups = torch.arange(len(sizes), device=places.device).repeat_interleave(sizes)
        counts = torch.zeros(len(sizes), int(places.max()) + 1, dtype=torch.float64, device=places.device)
        counts.index_put_((groups, places), counts.new_ones(()), accumulate=True)
        products = counts.sum(0).diag() - counts.T @ (counts / sizes[:, None])
        return torch.linalg.pinv(products, rtol=ROUNDED, hermitian=True)

    def _centre(self, kept: Float[Tensor, "kept d"]) -> Float[Tensor, "kept d"]:
        """Take the mean of its group from each row in `order`, in place."""
        for block in self.blocks(kept):
            block -= block.mean(1, keepdim=True)
        return kept


def neighbours_alike(tokens: Int[Tensor, "*n"], documents: Int[Tensor, "*n"]) -> float:
    """Return the intraclass correlation of documents that follow each other in a source, 0 if chance explains it.

    Each document is the mean random code of its tokens, less that of all, times the root of their number. The
    correlation Σ x'y / Σ x'x, over neighbours x and y, is compared with that of the same documents in random orders.
    """
    used, owners = documents.flatten().unique(return_inverse=True)
    if len(used) < FEWEST_NEIGHBOURS:
        return 0.0
    generator, tokens = torch.Generator().manual_seed(0), tokens.flatten().long()
    codes = torch.randn(int(tokens.max()) + 1, CODES, generator=generator)[tokens]
    counts = owners.bincount(minlength=len(used))[:, None]
    means = torch.zeros(len(used), CODES).index_add_(0, owners, codes - codes.mean(0)) / counts.sqrt()
    orders = [torch.arange(len(used)), *(torch.randperm(len(used), generator=generator) for _ in range(ORDERS))]
    products = [(means[order[1:]] * means[order[:-1]]).sum() for order in orders]
    found = torch.stack(products) / means.square().sum()
    return float(found[0]) if found[0] > max(found[1:].max(), ALIKE) else 0.0
