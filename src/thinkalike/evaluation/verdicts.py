"""What a stitching result says of two models, by stated rules that have to agree with each other.

A stitch can cost nothing because the models are alike, because the source holds the target's answers, or because it
holds the next token; and it can cost much because training stopped early. So a verdict never rests on the penalty
alone, but on what the states share *given the current token*, both ways, and on whether the states as they are bear
that out. Thresholds are those that validity/court fits on sources of known similarity, rounded.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

LEAK, SAME, PART, SUPERSET = "leak", "same up to an affine map", "part of", "superset of"
BEYOND, RELATED, BETTER = "alike beyond the token", "related", "better model"
ANSWERS, TOKEN, DIFFERENT, UNDECIDED = "same answers", "token only", "different", "undecided"
VERDICTS = (LEAK, SAME, PART, SUPERSET, BEYOND, RELATED, BETTER, TOKEN, ANSWERS, DIFFERENT, UNDECIDED)


class Thresholds(NamedTuple):
    """Where the rules of `verdict` part what is alike from what is not.

    Attributes:
        leak: of `future`; above it the source knows what only later text decides.
        gain: nats per token; a stitched loss that far below the target's, and below the source's, is a leak.
        same: of R², as the states are and given the token; above it in both directions, two models hold the same up to
            an affine map.
        related: of the smaller R² given the token times CKA given the token.
        token: of R² and CKA given the token; below it in all three, nothing is left beside the token.
        answers: of the KL divergence as a share of what the current token alone costs.
    """

    leak: float = 0.05
    same: float = 0.9
    related: float = 0.3
    token: float = 0.05
    answers: float = 0.6
    gain: float = 0.05


STATED = Thresholds()
TRIED = {"fit_tokens": 120_000, "report_tokens": 32_000}  # the least text that the rules were tried with


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

    1. leak: `future` is above the threshold, and the source is not simply the better model; or the stitched model loses
       less than either model does.
    2. same, part of (the target knows the source, and not the other way round) or superset of: R², as the states are
       and given the token.
    3. alike beyond the token: so given the token, but not as the states are, so the tokens' own states differ.
    4. related: the smaller R² given the token, times CKA given the token.
    5. better model: `future` is above the threshold, and the source has the lower loss.
    6. token only: all three are about 0.
    7. same answers: KL to the target's output is small beside what the current token alone costs.
    8. different.

    Args:
        row: `future`, `r2`, `r2_back`, `r2_given_token`, `r2_given_token_back`, `cka_given_token` and `penalty`, each
            with its `_low` and `_high`; `kl` and `token_mean_penalty`; `stitching_loss`, `target_loss` and
            `source_loss`, which is NaN for a source without an unembedding.
    """
    same = thresholds.same
    forth, back, cka = (_Ends.of(row, name) for name in ("r2_given_token", "r2_given_token_back", "cka_given_token"))
    onward, backward = (
        _all(_Ends.of(row, name).above(same), given.above(same)) for name, given in (("r2", forth), ("r2_back", back))
    )
    least = _Ends(min(forth.low, back.low), min(forth.high, back.high))
    product = _Ends(max(least.low, 0) * max(cka.low, 0), max(least.high, 0) * max(cka.high, 0))
    foresees, is_better = _Ends.of(row, "future").above(thresholds.leak), row["source_loss"] < row["target_loss"]
    below_both = row["penalty_high"] < -thresholds.gain and not row["stitching_loss"] >= row["source_loss"]
    rules = (
        (LEAK, below_both or (not is_better and foresees)),
        (SAME, _all(onward, backward)),
        (SUPERSET, onward),
        (PART, backward),
        (BEYOND, max(forth.low, back.low) >= same),
        (RELATED, product.above(thresholds.related)),
        (BETTER, is_better and foresees),
        (TOKEN, max(forth.high, back.high, cka.high) <= thresholds.token),
        (ANSWERS, row["kl"] <= thresholds.answers * row["token_mean_penalty"]),
    )
    for name, holds in rules:
        if holds is None:
            return UNDECIDED
        if holds:
            return name
    return DIFFERENT


def _all(*holds: bool | None) -> bool | None:
    """Return whether all rules hold; None: none fails, and one is not decided."""
    return False if False in holds else None if None in holds else True
