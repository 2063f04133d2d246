"""What a stitching result says of two models, by stated rules that have to agree with each other.

A stitch can cost nothing because the models are alike, because the source holds the target's answers, or because it
holds the next token; and it can cost much because training stopped early. So a verdict never rests on the penalty
alone, but on which directions the states share, held out and both ways, as they are and *beyond the tokens*. No change
of basis of either side moves what it reads. Thresholds lie in the gaps that validity/court finds between sources of
known similarity.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

LEAK, BETTER, SAME, SUPERSET, PART = "leak", "better model", "same up to an affine map", "superset of", "part of"
BEYOND, RELATED, TOKENS, UNDECIDED = "alike beyond the tokens", "related", "tokens only", "undecided"
VERDICTS = (LEAK, BETTER, SAME, SUPERSET, PART, BEYOND, RELATED, TOKENS, UNDECIDED)


class Thresholds(NamedTuple):
    """Where the rules of `verdict` part what is alike from what is not.

    Attributes:
        leak: of `future`; above it the source knows what only later text decides.
        better: of `foresight`; above it the source foresees what the target has not learnt.
        same: of the least R² of a direction, and of `r2_output`.
        related: of `r2_output_beyond`; what untrained networks and bags of tokens share with the target is below.
        gain: nats per token; a stitched loss that far below the target's, and below the source's, is a leak, and a
            penalty that far above 0 contradicts "same".
        bare: how much larger a share of the source's variance than of the target's may be beyond the tokens.
    """

    leak: float = 0.05
    better: float = 0.025
    same: float = 0.95
    related: float = 0.06
    gain: float = 0.05
    bare: float = 0.25


STATED = Thresholds()
TRIED = {"fit_tokens": 60_000, "report_tokens": 32_000}  # the least text that the rules were tried with
WIDEST = 128  # the widest models that they were tried with
HELD = {  # of the cases of validity/court, by thresholds from other kinds and targets: how many are right of how many
    LEAK: (49, 49),
    SAME: (60, 60),
    SUPERSET: (14, 14),
    PART: (41, 41),
    BEYOND: (14, 15),
    RELATED: (104, 104),
    TOKENS: (140, 140),
}
FEWEST_ROWS = 0.8  # share of the rows, whose token must stand 4 times in their batch


def above(row: Mapping[Any, Any], name: str, threshold: float) -> bool | None:
    """Return whether the interval of a number lies above a threshold; None: the threshold is inside."""
    low, high = float(row[f"{name}_low"]), float(row[f"{name}_high"])
    return None if low < threshold <= high else low >= threshold


def verdict(row: Mapping[Any, Any], thresholds: Thresholds = STATED) -> str:
    """Return what one row of a stitching table says of source and target, one of `VERDICTS`.

    The first rule that holds decides, and a rule holds if it does at both ends of the interval; where the two ends
    disagree, nothing is decided.

    1. leak: `future` (see `Likeness`) is above the threshold, and the source is not simply the better model; or the
       stitched model loses less than either model does. Better model: the source has the lower loss, and `foresight`
       is above its threshold.
    2. same, superset of, or part of (the target knows the source, and not the other way round): every direction is
       predicted, in both ways or in one, as the states are and beyond the tokens. "Same" is not decided where the
       penalty or the output contradicts it.
    3. alike beyond the tokens: so beyond them, but not as the states are, so the tokens' own states differ. Where they
       are missing in the source, it is part of the target.
    4. related: beyond the tokens the source predicts some of what the target's output depends on.
    5. tokens only.

    Args:
        row: `foresight`, `future`, `penalty`, and the measures of `DirectionSums.compute` with and without `_beyond`,
            each with its `_low` and `_high`; `context` and `context_back`; `stitching_loss`, `target_loss` and
            `source_loss`, which is NaN for a source without an unembedding.
    """
    onward, back, beyond, beyond_back = (
        above(row, f"cca_least{way}", thresholds.same) for way in ("", "_back", "_beyond", "_back_beyond")
    )
    is_better = row["source_loss"] < row["target_loss"]
    gains = row["penalty_high"] < -thresholds.gain and not row["stitching_loss"] >= row["source_loss"]
    agrees = (row["penalty_low"] <= thresholds.gain and above(row, "r2_output", thresholds.same)) or None
    lacks_tokens = row["context_back"] > row["context"] + thresholds.bare
    rules = (
        (LEAK, gains or (not is_better and above(row, "future", thresholds.leak))),
        (BETTER, is_better and above(row, "foresight", thresholds.better)),
        (SAME, _all(onward, back, beyond, beyond_back, agrees)),
        (SUPERSET, _all(onward, beyond)),
        (PART, _all(back, beyond_back)),
        (PART, _all(beyond, beyond_back, lacks_tokens)),
        (BEYOND, _all(beyond, beyond_back)),
        (RELATED, above(row, "r2_output_beyond", thresholds.related)),
    )
    for name, holds in rules:
        if holds is None:
            return UNDECIDED
        if holds:
            return name
    return TOKENS


def _all(*holds: bool | None) -> bool | None:
    """Return whether all rules hold; None: none fails, and one is not decided."""
    return False if False in holds else None if None in holds else True


def held(said: str) -> str:
    """Return how many of the cases with this verdict were right when it was tried, in words."""
    return "{} of {}".format(*HELD[said]) if said in HELD else "not tried"


def untried(counts: Mapping[str, int], rows_used: float, width: int, beyond_chance: float) -> str:
    """Return in words why the rules say nothing of a result, as they were not tried on such; "" where they were.

    Args:
        counts: The tokens that were read, by the names of `TRIED`.
        rows_used: See `Likeness`.
        width: Of the wider model.
        beyond_chance: The target's loss less that of a guess at random, in nats per token.
    """
    few = [f"{counts[name]:,} {name}" for name, least in TRIED.items() if counts[name] < least]
    if rows_used < FEWEST_ROWS:
        few.append(f"rows of which {rows_used:.0%} have a token that stands four times in their batch")
    if width > WIDEST:
        few.append(f"models of width {width:,}")
    if beyond_chance > 0:
        few.append("text that the target predicts worse than a guess at random")
    return " and ".join(few)
