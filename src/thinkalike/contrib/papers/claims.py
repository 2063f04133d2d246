"""What a paper claims, and how a claim is judged: by the ends of intervals, never by points.

A claim says where some numbers should be, such as above 0. It holds if their whole intervals are
there. It does not hold if one of them is wholly elsewhere. It is undecided as long as an interval
has a part on either side. Where a claim is about several numbers, their intervals hold for all of
them together.
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

# Nats, shares or correlations: a number that is closer to a limit than this counts as at the
# limit.
LIMIT_ROUNDING = 1e-9


@dataclass(frozen=True)
class Claim:
    """What a paper says, the verdict, and what the verdict rests on.

    Attributes:
        numbers: What was found, with intervals.
        units: What the intervals are over, such as "58 documents (effective sample size 41.3)".
        tolerance: Where the numbers must be for the claim to hold, such as "above 0".
        smallest_effect: The smallest effect that could have been seen: half the widest interval;
            None if it is unbounded or there is none.
    """

    claim: str
    verdict: Verdict
    numbers: str
    units: str
    tolerance: str
    smallest_effect: float | None = None


@dataclass(frozen=True)
class Bound:
    """Where a number must be for a claim to hold: above a limit, below it, or that close to 0."""

    # "within" means -limit < number < limit.

    kind: Literal["above", "below", "within"]
    limit: float = 0.0

    def __str__(self) -> str:
        """Return the bound in words, such as "above 0" or "within 0.1 of 0"."""
        if self.kind == "within":
            return f"within {self.limit:g} of 0"
        return f"{self.kind} {self.limit:g}"

    def verdict(self, low: float, high: float) -> Verdict:
        """Return the verdict on a number whose interval is [low, high].

        A bound is x > limit ("above"), x < limit ("below") or |x| < limit ("within"). The verdict
        is HOLDS if the whole interval satisfies the bound, FAILS if no number of the interval
        does, and UNDECIDED otherwise. An end that rounding alone separates from the limit counts
        as at the limit, so that it decides nothing.
        """
        if self.kind == "within":
            # |x| < limit is x > -limit and x < limit together.
            above = Bound("above", -self.limit).verdict(low, high)
            below = Bound("below", self.limit).verdict(low, high)
            return verdict_on_all([above, below])
        if self.kind == "below":
            # x < limit is -x > -limit, and the interval of -x is [-high, -low].
            return Bound("above", -self.limit).verdict(-high, -low)
        if low > self.limit + LIMIT_ROUNDING:
            return HOLDS
        if high < self.limit - LIMIT_ROUNDING:
            return FAILS
        return UNDECIDED


ABOVE_ZERO = Bound("above", 0.0)
BELOW_ZERO = Bound("below", 0.0)


def verdict_on_all(verdicts: Iterable[Verdict]) -> Verdict:
    """Return the verdict on the statement that several statements are all true.

    It fails if one of them fails. Otherwise it is untestable if one is, then undecided if one is,
    and it holds if all hold (or if there are none).
    """
    distinct_verdicts = set(verdicts)
    for verdict in (FAILS, UNTESTABLE, UNDECIDED):
        if verdict in distinct_verdicts:
            return verdict
    return HOLDS


def judged_claim(
    claim: str, bounds_and_estimates: Sequence[tuple[Bound, Estimate]], finding: str, units: str
) -> Claim:
    """Judge the claim that every number of some estimates lies within its bound.

    The interval of each number decides. A number satisfies its bound if its whole interval does,
    and fails it if no point of the interval satisfies it; otherwise it is undecided. The claim
    holds if all numbers satisfy their bounds, and fails if one of them fails. Without any number
    it is untestable.

    Args:
        claim: The claim in words.
        bounds_and_estimates: Pairs of a bound and an estimate. An estimate may have several
            numbers, each with an interval. The intervals should be simultaneous: all of them
            contain their true values at once, with a probability such as 95 %. The caller makes
            them wide enough for this (see `bonferroni_level`), as nothing is corrected here.
        finding: What was found, in words.
        units: What was sampled for the intervals, in words, such as "5 seeds".
    """
    verdicts: list[Verdict] = []
    half_widths: list[float] = []
    for bound, estimate in bounds_and_estimates:
        lows = estimate.low.flatten().tolist()
        highs = estimate.high.flatten().tolist()
        for low, high in zip(lows, highs, strict=True):
            verdicts.append(bound.verdict(low, high))
            half_widths.append((high - low) / 2)

    # An effect that is smaller than half of an interval cannot be told from none.
    smallest_effect = None
    if half_widths and math.isfinite(max(half_widths)):
        smallest_effect = max(half_widths)
    # Each once, in order.
    distinct_bounds = dict.fromkeys(str(bound) for bound, _ in bounds_and_estimates)
    return Claim(
        claim,
        verdict=verdict_on_all(verdicts) if verdicts else UNTESTABLE,
        numbers=finding,
        units=units,
        tolerance=", ".join(distinct_bounds),
        smallest_effect=smallest_effect,
    )


def exact_claim(claim: str, holds: bool, finding: str, units: str) -> Claim:
    """Return a claim that is decided by counting, without an interval: it holds or it fails.

    Args:
        claim: What the paper says.
        holds: Whether it is true of the results.
        finding: What was counted, in words.
        units: What it was counted over, in words.
    """
    return Claim(claim, HOLDS if holds else FAILS, finding, units, tolerance="exact")


def untestable_claim(claim: str, reason: str) -> Claim:
    """Return a claim that these models or these data cannot test."""
    return Claim(claim, UNTESTABLE, numbers=reason, units="none", tolerance="none")


def bonferroni_level(count: int, level: float = 0.95) -> float:
    """Return the level of each of `count` intervals that hold together at `level`.

    It is 1 - (1 - level) / count (Bonferroni); with a count of 0, it is `level`.
    """
    return 1 - (1 - level) / max(count, 1)


def bonferroni_note(count: int) -> str:
    """Return the note beside `count` intervals that they hold together; "" for a single one."""
    if count <= 1:
        return ""
    return f"; intervals hold for all {count} together (Bonferroni)"


def claims_table(claims: Sequence[Claim]) -> pd.DataFrame:
    """Return one row per claim, with a column for each of its attributes."""
    return pd.DataFrame([asdict(claim) for claim in claims]).astype({"smallest_effect": float})


def counts_of(claims: Sequence[Claim]) -> dict[str, float]:
    """Return the number of claims, and the number with each verdict, by the name of the count."""
    verdicts = [claim.verdict for claim in claims]
    return {
        "claims": float(len(claims)),
        "claims_that_hold": float(verdicts.count(HOLDS)),
        "claims_that_do_not_hold": float(verdicts.count(FAILS)),
        "claims_undecided": float(verdicts.count(UNDECIDED)),
        "claims_not_testable": float(verdicts.count(UNTESTABLE)),
    }


def over_models(
    statistic: Callable[[list[int]], Float[Tensor, "*s"] | float],
    models: Sequence[Hashable],
    level: float = 0.95,
) -> Estimate:
    """Return a statistic of a set of items, with a jackknife interval over their models.

    The items are models, or layers of models. The jackknife computes the statistic again without
    all items of each model in turn. If one of these values cannot be computed, since too few items
    remain, the interval is (-∞, ∞).

    Args:
        statistic: Returns the statistic of the items at some indices. It raises a ValueError or
            returns NaN if they are too few.
        models: The model of each item.
        level: The probability with which the interval covers the statistic of all such models.
    """
    indices = list(range(len(models)))
    value = torch.as_tensor(statistic(indices)).double()
    distinct_models = list(dict.fromkeys(models))
    try:
        values_without_model = []
        for model in distinct_models:
            remaining = [index for index in indices if models[index] != model]
            values_without_model.append(torch.as_tensor(statistic(remaining)).double())
        replicates = torch.stack(values_without_model)
    except ValueError:
        # Replicates of NaN make both ends NaN, which become -∞ and ∞ below.
        replicates = torch.full((len(distinct_models), *value.shape), torch.nan).double()

    _, low, high = jackknife(value, replicates, level=level)
    low = low.where(~low.isnan(), -torch.inf)
    high = high.where(~high.isnan(), torch.inf)
    return Estimate(value, low, high)
