"""What permutations say of the values of layer pairs: chance, values beside it, and p."""

from __future__ import annotations

from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor

from thinkalike.measures.statistics.batch_means import LayerPairEstimate
from thinkalike.measures.statistics.estimate import Estimate
from thinkalike.measures.statistics.jackknifing import jackknife

TIE = 1e-9  # of values that are equal up to rounding, such as those of a permutation that moves nothing
Means = tuple[Float[Tensor, "l m"], Float[Tensor, "b l m"]]  # over all batches, and over all but each


@dataclass(frozen=True, eq=False)
class Chance:
    """What permutations say of the values of l x m layer pairs.

    Attributes:
        null: The mean value of permuted documents, (l, m), of those permutations that leave next to no row where it
            was: with few documents many do not, and would show part of the likeness itself.
        calibrated: (value - null) / (best - null), (l, m): 0 by chance, 1 for a layer with itself; also of distances.
        p: The share of permutations, with the value itself, whose value is at least as close, (l, m). All of them
            count here, since a test is exact only then.
        p_of_largest: The same against the closest of all layer pairs of each permutation (Westfall & Young 1993): for a
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
class CalibratedEstimate(LayerPairEstimate):
    """A measure of l layers of a source with m of a target; `chance` is None unless there were permutations."""

    chance: Chance | None


def chance_of(
    values: Means, levels: Means, nulls: Float[Tensor, "p l m"], documents: int, best: float = 1.0, sign: int = 1
) -> Chance:
    """Return what permutations say of values.

    Args:
        levels: The values by chance.
        nulls: The value of each permutation.
        documents: How many different ones the batch with the fewest has.
        best: The value of a layer with itself.
        sign: -1 of a distance.
    """
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
