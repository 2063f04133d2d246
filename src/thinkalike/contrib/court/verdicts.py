"""A verdict on a source by rules that have to agree, which the court tries on known similarity.

A stitch can cost nothing because the models are alike, because the source holds the target's
answers, or because it holds the next token; and it can cost much because training stopped early. So
a verdict never rests on the penalty alone, but on which directions the states share, held out and
both ways, as they are and *beyond the tokens*. No rotation of either side moves what it reads, nor,
where there is enough text, any change of basis.

The rules were tried on models of up to width 128 and on no real model, so no instrument of the core
prints a verdict.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

LEAK, BETTER, SAME, SUPERSET, PART = (
    "leak",
    "better model",
    "same up to an affine map",
    "superset of",
    "part of",
)
BEYOND, RELATED, TOKENS, UNDECIDED = (
    "alike beyond the tokens",
    "related",
    "tokens only",
    "undecided",
)
VERDICTS = (LEAK, BETTER, SAME, SUPERSET, PART, BEYOND, RELATED, TOKENS, UNDECIDED)


class Thresholds(NamedTuple):
    """Where the rules of `verdict` separate what is alike from what is not.

    Attributes:
        later: Of `later`: rounding moves a causal source's states by less.
        better: Of `foresight`: above it the source foresees what the target has not learnt.
        same: Of the least R² of a direction, and of `r2_output`.
        gain: In nats per token: a penalty that is further from 0 contradicts "same".
        bare: How much larger a share of the source's variance than of the target's may be beyond
            the tokens.
    """

    later: float = 1e-4
    better: float = 0.025
    same: float = 0.95
    gain: float = 0.05
    bare: float = 0.25


STATED = Thresholds()


def above(row: Mapping[Any, Any], name: str, threshold: float) -> bool | None:
    """Return whether an interval lies above a threshold; None: it holds the threshold."""
    low = float(row[f"{name}_low"])
    high = float(row[f"{name}_high"])
    if low < threshold <= high:
        return None
    return low >= threshold


def _all(*holds: bool | None) -> bool | None:
    """Return whether all rules hold; None: none fails, and one is not decided."""
    if False in holds:
        return False
    return None if None in holds else True


def is_leak(row: Mapping[Any, Any], thresholds: Thresholds = STATED) -> bool | None:
    """Return whether a source's states move where later tokens are replaced; None: nobody tried.

    Only a source that reads later tokens can do that. A source that copies earlier text foresees
    later text as well wherever the text repeats itself, and its stitch may lose less than the
    target. So neither is evidence of a leak.
    """
    if math.isnan(row["later"]):
        return None
    return bool(row["later"] > thresholds.later)


def _loses_too_little(row: Mapping[Any, Any], thresholds: Thresholds) -> bool:
    """Return whether the stitched model loses less than the target does, and less than the source.

    A source without an unembedding has no loss (NaN), so nothing explains what is gained.
    """
    is_explained = row["stitching_loss"] >= row["source_loss"]
    return bool(row["penalty_high"] < -thresholds.gain and not is_explained)


def _agrees(row: Mapping[Any, Any], thresholds: Thresholds) -> bool | None:
    """Return whether the penalty and the output agree with "same"; None: one contradicts it."""
    is_cheap = row["penalty_low"] <= thresholds.gain and not _loses_too_little(row, thresholds)
    return True if is_cheap and above(row, "r2_output", thresholds.same) else None


def _is_related(row: Mapping[Any, Any]) -> bool | None:
    """Return whether the source predicts more than untrained networks do; None: no interval."""
    if row["r2_output_learnt_low"] > 0:
        return True
    return None if row["r2_output_learnt_high"] == math.inf else False


def verdict(row: Mapping[Any, Any], thresholds: Thresholds = STATED) -> str:
    """Return what one row of a court's table says of source and target, one of `VERDICTS`.

    The first rule that holds decides, and a rule holds if it does at both ends of the interval;
    where the two ends disagree, nothing is decided.

    1. leak: the source's states move where later tokens are replaced, see `is_leak`. Better model:
       the source has the lower loss, and `foresight` is above its threshold.
    2. same, superset of, or part of (the target knows the source, and not the reverse): every
       direction is predicted, in both ways or in one, as the states are and beyond the tokens.
       "Same" is not decided where the penalty or the output contradicts it.
    3. alike beyond the tokens: every direction is predicted beyond them, but not as the states are,
       so the tokens' own states differ. Where they are missing in the source, it is part of the
       target.
    4. related: beyond the tokens the source is seen to predict more of what the target's output
       depends on than networks do that were never trained.
    5. tokens only: it is not.

    Args:
        row: `foresight`, `r2_output_learnt`, `penalty`, and the measures of `DirectionSums.compute`
            with and without `_beyond`, each with its `_low` and `_high`; `context`, `context_back`
            and `later`; `stitching_loss`, `target_loss` and `source_loss`, which is NaN for a
            source without an unembedding.
    """
    ways = ("", "_back", "_beyond", "_back_beyond")
    onward, back, beyond, beyond_back = (above(row, f"cca_least{way}", thresholds.same) for way in ways)
    is_better = row["source_loss"] < row["target_loss"]
    lacks_tokens = row["context_back"] > row["context"] + thresholds.bare
    rules = (
        (LEAK, is_leak(row, thresholds)),
        (BETTER, is_better and above(row, "foresight", thresholds.better)),
        (SAME, _all(onward, back, beyond, beyond_back, _agrees(row, thresholds))),
        (SUPERSET, _all(onward, beyond)),
        (PART, _all(back, beyond_back)),
        (PART, _all(beyond, beyond_back, lacks_tokens)),
        (BEYOND, _all(beyond, beyond_back)),
        (RELATED, _is_related(row)),
    )
    for name, holds in rules:
        if holds is None:
            return UNDECIDED
        if holds:
            return name
    return TOKENS
