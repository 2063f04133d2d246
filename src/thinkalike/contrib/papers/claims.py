"""What a paper claims, and how it is judged: by the ends of intervals, never by points.

A claim says where some numbers should be, such as above 0. It holds if their whole intervals are there, it does not
hold if one of them is wholly elsewhere, and it is undecided as long as an interval has a part on either side. Where a
claim is about several numbers, their intervals hold for all of them together.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Literal

import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor

from thinkalike.measures.estimates import Estimate, jackknife

Verdict = Literal["holds", "does not hold", "undecided", "not testable here"]
VERDICTS: tuple[Verdict, ...] = ("holds", "does not hold", "undecided", "not testable here")
HOLDS, FAILS, UNDECIDED, UNTESTABLE = VERDICTS
ROUNDING = 1e-9  # nats, shares or correlations: what is nearer to a limit than that is at it


@dataclass(frozen=True)
class Claim:
    """What a paper says, the verdict, and what it rests on."""

    claim: str
    verdict: Verdict
    numbers: str  # what was found, with intervals
    units: str  # over how many of what the intervals are, such as "58 documents (as 41.3 of equal length)"
    tolerance: str  # where numbers must be for the claim to hold, such as "above 0"
    smallest_effect: float | None = None  # that could have been seen: half the widest interval; None: it has no ends


@dataclass(frozen=True)
class Bound:
    """Where a number must be for a claim to hold: above a limit, below it, or within so much of 0."""

    kind: Literal["above", "below", "within"]
    limit: float = 0.0

    def __str__(self) -> str:
        return f"within {self.limit:g} of 0" if self.kind == "within" else f"{self.kind} {self.limit:g}"

    def verdict(self, low: float, high: float) -> Verdict:
        """Return the verdict on a number with an interval from low to high."""
        if self.kind == "within":
            both = (Bound("above", -self.limit), Bound("below", self.limit))
            return joined(bound.verdict(low, high) for bound in both)
        if self.kind == "below":
            low, high = -high, -low
        limit = self.limit if self.kind == "above" else -self.limit
        return HOLDS if low > limit + ROUNDING else FAILS if high < limit - ROUNDING else UNDECIDED


def joined(verdicts: Iterable[Verdict]) -> Verdict:
    """Return the verdict on all of several statements: one that fails decides, and then the least certain one."""
    given = set(verdicts)
    return next((verdict for verdict in (FAILS, UNTESTABLE, UNDECIDED) if verdict in given), HOLDS)


def judged(claim: str, parts: Sequence[tuple[Bound, Estimate]], numbers: str, units: str) -> Claim:
    """Return a claim that all numbers of some estimates are in the bound beside them, with its verdict."""
    ends = [
        (bound, low, high)
        for bound, estimate in parts
        for low, high in zip(estimate.low.flatten().tolist(), estimate.high.flatten().tolist(), strict=True)
    ]
    widest = max(((high - low) / 2 for _, low, high in ends), default=math.inf)
    return Claim(
        claim,
        joined(bound.verdict(low, high) for bound, low, high in ends) if ends else UNTESTABLE,
        numbers,
        units,
        ", ".join(dict.fromkeys(str(bound) for bound, _ in parts)),
        widest if math.isfinite(widest) else None,
    )


def counted(claim: str, so: bool, numbers: str, units: str) -> Claim:
    """Return a claim that can be counted out, and has no interval: it holds or it does not."""
    return Claim(claim, HOLDS if so else FAILS, numbers, units, "exact")


def untestable(claim: str, reason: str) -> Claim:
    return Claim(claim, UNTESTABLE, reason, "none", "none")


def level_of_each(count: int, level: float = 0.95) -> float:
    """Return the level of each of `count` intervals at which they all hold together at `level` (Bonferroni)."""
    return 1 - (1 - level) / max(count, 1)


def together(count: int) -> str:
    """Return what numbers say of intervals at `level_of_each`."""
    return f"; intervals hold for all {count} together (Bonferroni)" if count > 1 else ""


def claims_table(claims: Sequence[Claim]) -> pd.DataFrame:
    """Return one row per claim, with a column for each of its attributes."""
    return pd.DataFrame([asdict(claim) for claim in claims]).astype({"smallest_effect": float})


def counts_of(claims: Sequence[Claim]) -> dict[str, float]:
    """Return how many claims there are, and how many have each verdict, as headline numbers."""
    names = ("claims_that_hold", "claims_that_do_not_hold", "claims_undecided", "claims_not_testable")
    numbers = [float(sum(claim.verdict == verdict for claim in claims)) for verdict in VERDICTS]
    return {"claims": float(len(claims)), **dict(zip(names, numbers, strict=True))}


def over_models(
    statistic: Callable[[list[int]], Float[Tensor, "*s"] | float], models: Sequence[Hashable], level: float = 0.95
) -> Estimate:
    """Return a statistic of some layers or models, given by their places, with a jackknife interval over the models.

    `models` has the model at each place, and the layers of one model are left out together. Where the statistic does
    not exist without one of the models, the interval is (-∞, ∞).
    """
    every = list(range(len(models)))
    without = [[place for place in every if models[place] != name] for name in dict.fromkeys(models)]
    whole = torch.as_tensor(statistic(every)).double()
    try:
        replicates = torch.stack([torch.as_tensor(statistic(places)).double() for places in without])
    except ValueError:  # too few layers are left
        replicates = whole[None].expand(len(without), *whole.shape) * torch.nan
    _, low, high = jackknife(whole, replicates, level=level)
    return Estimate(whole, low.where(~low.isnan(), -torch.inf), high.where(~high.isnan(), torch.inf))
