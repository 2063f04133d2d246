"""Values of layer pairs with their intervals, and what chance gives: nulls by permutation, calibrated values, p."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from thinkalike.arguments import seeded
from thinkalike.measures.estimates import Estimate, jackknife
from thinkalike.plots import plot

AT_HOME = 0.05  # share of rows in their own place up to which a permutation shows chance alone
TIE = 1e-9  # of values that are equal up to rounding, such as those of a permutation that moves nothing
Means = tuple[Float[Tensor, "l m"], Float[Tensor, "b l m"]]  # over all batches, and over all but each


@dataclass(frozen=True, eq=False)
class Chance:
    """The null of the values of l x m layer pairs by permutation.

    Attributes:
        null: The mean value of permuted documents, (l, m), of those permutations that leave next to no row where it
            was; the others would show part of the likeness itself.
        calibrated: (value - null) / (best - null), (l, m): 0 by chance, 1 for a layer with itself; also of distances.
        p: The share of all permutations, with the value itself, whose value is at least as close, (l, m).
        p_of_largest: The same against the closest of all layer pairs of each permutation (Westfall & Young 1993), for a
            pair that was chosen because it is the closest.
        largest: The calibrated value of the closest pair, chance being the mean of the closest of each permutation.
        documents: How many different documents the batch with the fewest has.
    """

    null: Estimate
    calibrated: Estimate
    p: Float[Tensor, "l m"]
    p_of_largest: Float[Tensor, "l m"]
    largest: float
    documents: int


@dataclass(frozen=True, eq=False, repr=False)
class LayerPairEstimate(Estimate):
    """A measure of l layers of a source with m of a target, (l, m), and of the layers within each.

    Attributes:
        rows_used: The share of the rows that stood in groups of one token, where rows are compared within such groups.
        chance: The null by permutations, None without any.
        by_chance: The value of features with nothing in common, where it is known in closed form.
        calibrated: (value - by_chance) / (1 - by_chance), (l, m): 0 by chance and at most 1.
    """

    within_source: Estimate  # (l, l)
    within_target: Estimate  # (m, m)
    batches: int
    rows_used: float | None = field(default=None, kw_only=True)
    chance: Chance | None = field(default=None, kw_only=True)
    by_chance: float | None = field(default=None, kw_only=True)
    calibrated: Estimate | None = field(default=None, kw_only=True)

    label: ClassVar[str] = "value"  # what plots call a value

    def __repr__(self) -> str:
        l, m = self.value.shape  # noqa: E741
        closest = f"{float(self.value.min()):.3f} to {float(self.value.max()):.3f}"
        width = f"intervals at most {self.widest_interval():.3g} wide"
        return f"{type(self).__name__}({l} x {m} layers, {self.batches} batches: {closest}, {width})"

    def plot(self, ax: Any = None) -> tuple[Any, Any]:
        """Draw `value` as a matrix, into axes or a new figure; returns figure and axes."""
        return plot("layer pairs", self.value.cpu().numpy(), self.label, (0.0, 1.0), ax)

    def widest_interval(self) -> float:
        """Return the width of the widest interval of `value`, `within_source` and `within_target`."""
        estimates = (self, self.within_source, self.within_target)
        return max(float((estimate.high - estimate.low).max()) for estimate in estimates)


def chance_of(
    values: Means, levels: Means, nulls: Float[Tensor, "p l m"], documents: int, best: float = 1.0, sign: int = 1
) -> Chance:
    """Return values beside their levels by chance and the values of permutations; the sign of a distance is -1."""
    calibrated = [(value - level) / (best - level) for value, level in zip(values, levels, strict=True)]
    value, closest = sign * values[0], (sign * nulls).flatten(1).amax(1)
    chance = float(closest.mean())
    return Chance(
        jackknife(*levels),
        jackknife(*calibrated),
        _share(sign * nulls, value),
        _share(closest[:, None, None], value),
        (float(value.max()) - chance) / (sign * best - chance),
        documents,
    )


def _share(chance: Float[Tensor, "p ..."], value: Float[Tensor, "l m"]) -> Float[Tensor, "l m"]:
    """Return (1 + #{chance ≥ value}) / (1 + p)."""
    return (1 + (chance >= value - TIE).double().sum(0)) / (1 + len(chance))


class Permutations(NamedTuple):
    """Orders of the rows of a batch, (p, n), and which of them leave next to no row where it was, (p,)."""

    orders: Int[Tensor, "p n"]
    away: Bool[Tensor, " p"]


def permutations_of(documents: Int[Tensor, " n"], count: int, seed: int) -> Permutations:
    """Return this number of permutations of documents, see `permuted_rows`, on the CPU."""
    generator = seeded(seed)
    orders = torch.stack([permuted_rows(documents, generator) for _ in range(count)]).cpu()
    home = (orders == torch.arange(len(documents))).double().mean(1)
    return Permutations(orders, home <= home.min().clamp(min=AT_HOME))


def permuted_rows(documents: Int[Tensor, " n"], generator: torch.Generator) -> Int[Tensor, " n"]:
    """Return an order of rows in which whole documents changed places, at random; rows of one keep their order.

    If two models have nothing in common, documents are exchangeable and their rows are not, so documents are permuted
    as blocks (Winkler et al. 2015): single rows would make chance look smaller than it is. Documents in a random order
    are laid end to end. Those of one length are permuted exactly; others lie across two places, as far as their lengths
    differ. Rows of a single document are rotated by a random number, which keeps neighbours.
    """
    labels = documents.unique(return_inverse=True)[1].cpu()
    home = labels.argsort(stable=True)  # rows document by document
    count = int(labels.max()) + 1
    if count == 1:
        moved = home.roll(int(torch.randint(len(home), (1,), generator=generator)))
    else:
        ranks = torch.randperm(count, generator=generator)
        moved = ranks[labels].argsort(stable=True)
    order = torch.empty_like(home)
    order[home] = moved
    return order.to(documents.device)
