"""What a stitching result says of two models, by stated rules; never from the penalty alone.

A stitch can cost nothing because the models are alike, because the source holds the target's answers, or because it
holds the token that comes next; and it can cost much because training stopped early. So a verdict rests on what the two
models' states share *given the current token*, in both directions. The experiment validity/court fits the thresholds
on sources whose answer is known and tries them on other targets; the stated ones are its, rounded.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

LEAK, SAME, PART, SUPERSET = "leak", "same up to an affine map", "part of", "superset of"
RELATED, ANSWERS, TOKEN = "related", "same answers", "token only"
DIFFERENT, UNDECIDED = "different", "undecided"
VERDICTS = (LEAK, SAME, PART, SUPERSET, RELATED, ANSWERS, TOKEN, DIFFERENT, UNDECIDED)


class Thresholds(NamedTuple):
    """Where the rules of `verdict` part what is alike from what is not.

    Attributes:
        leak: of `future`; above it the source knows what only later text decides.
        same: of R² given the token; above it in both directions, two models hold the same up to an affine map.
        related: of the smaller R² given the token times CKA given the token.
        token: of R² and CKA given the token; below it in all three, nothing is left beside the token.
        answers: of the KL divergence as a share of what the current token alone costs.
    """

    leak: float = 0.05
    same: float = 0.9
    related: float = 0.3
    token: float = 0.05
    answers: float = 0.6


STATED = Thresholds()


class _Ends(NamedTuple):
    """The ends of an interval."""

    low: float
    high: float

    @classmethod
    def of(cls, row: Mapping[Any, Any], name: str) -> _Ends:
        return cls(float(row[f"{name}_low"]), float(row[f"{name}_high"]))

    def above(self, threshold: float) -> bool | None:
        """Return whether the interval lies above a threshold; None: the threshold is inside."""
        return None if self.low < threshold <= self.high else self.low >= threshold


def verdict(row: Mapping[Any, Any], thresholds: Thresholds = STATED) -> str:
    """Return what one row of a stitching table says of source and target, one of `VERDICTS`.

    The first rule that holds decides, and a rule holds if it does at both ends of the interval; where the two ends
    disagree, nothing is decided.

    1. leak: `future` is above the threshold.
    2. same, part of (the target knows the source, and not the other way round) or superset of: R² given the token.
    3. related: the smaller R² given the token, times CKA given the token.
    4. token only: all three are about 0.
    5. same answers: KL to the target's output is small beside what the current token alone costs.
    6. different.

    Args:
        row: `future`, `r2_given_token`, `r2_given_token_back` and `cka_given_token`, each with its `_low` and `_high`,
            and `kl` and `token_mean_penalty`.
    """
    forth, back, cka = (_Ends.of(row, name) for name in ("r2_given_token", "r2_given_token_back", "cka_given_token"))
    least = _Ends(min(forth.low, back.low), min(forth.high, back.high))
    product = _Ends(max(least.low, 0) * max(cka.low, 0), max(least.high, 0) * max(cka.high, 0))
    rules = (
        (LEAK, _Ends.of(row, "future").above(thresholds.leak)),
        (SAME, least.above(thresholds.same)),
        (SUPERSET, forth.above(thresholds.same)),
        (PART, back.above(thresholds.same)),
        (RELATED, product.above(thresholds.related)),
        (TOKEN, max(forth.high, back.high, cka.high) <= thresholds.token),
        (ANSWERS, row["kl"] <= thresholds.answers * row["token_mean_penalty"]),
    )
    for name, holds in rules:
        if holds is None:
            return UNDECIDED
        if holds:
            return name
    return DIFFERENT
