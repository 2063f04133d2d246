"""A verdict on a source: a word that follows from R², from local mixing and from what later tokens move.

R² is that of cross-fitted linear maps between the states of source and target, in both directions. It is measured of
the states as they are, and of what is left of them beyond the token, its position and linear mixing of the earlier
tokens, as `measure=ruler` has it. R² adds up variance: *same* means that neither side lacks more than 5 % of what
varies in the other one, and says nothing about a direction of less variance, unless the penalty shows it.

The rules were tried on models of up to width 128 and on no real model, so no instrument of the core prints a verdict.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

LEAK = "leak"
SAME = "same"
SUPERSET = "superset of"
PART = "part of"
BEYOND = "same beyond the token"
SIMILAR = "similar"
MIXING = "no more than local mixing"
UNDECIDED = "undecided"
VERDICTS = (LEAK, SAME, SUPERSET, PART, BEYOND, SIMILAR, MIXING, UNDECIDED)

MOVES = 1e-4  # share of the states' variance: rounding moves the states of a causal source by less
WHOLE = 0.95  # R² from which one side is said to hold what varies in the other one
CHEAP = 0.05  # nats per token: a penalty that is further from 0 contradicts "same"

NUMBERS = ("later", "penalty")
ESTIMATES = ("r2", "r2_back", "residual_r2", "residual_r2_back", "beyond_mixing")  # each with `_low` and `_high`
COLUMNS = (*NUMBERS, *(f"{name}{end}" for name in ESTIMATES for end in ("", "_low", "_high")))


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


def is_leak(row: Mapping[Any, Any]) -> bool | None:
    """Return whether a source's states move where later tokens are replaced; None: nobody tried.

    Only a source that reads later tokens can do that. A source that copies earlier text predicts later text as well
    wherever the text repeats itself, and its stitch may lose less than the target. So neither is evidence of a leak.
    """
    if math.isnan(row["later"]):
        return None
    return bool(row["later"] > MOVES)


def _shares_more_than_mixing(row: Mapping[Any, Any]) -> bool | None:
    """Return whether source and target share clearly more than the target and local mixing; None: no interval."""
    if row["beyond_mixing_low"] > 0:
        return True
    return None if row["beyond_mixing_high"] == math.inf else False


def verdict(row: Mapping[Any, Any]) -> str:
    """Return what one row of a court's table says of source and target, one of `VERDICTS`.

    The first rule that holds decides, and a rule holds if it does at both ends of the interval; where the two ends
    disagree, nothing is decided.

    1. leak: the source's states move where later tokens are replaced, see `is_leak`.
    2. same, superset of, or part of (the target predicts the source, and not the reverse): R² is at least `WHOLE`, in
       both directions or in one, of the states as they are and beyond token, position and mixing. "Same" is not decided
       where the penalty contradicts it: what is missing has little variance, and the target needs it.
    3. same beyond the token: R² is at least `WHOLE` in both directions beyond token, position and mixing, but not of
       the states as they are, so what differs is what the token alone decides.
    4. similar: beyond token, position and mixing, source and target share more than 1.25 times what the target shares
       with any network that only mixes neighbouring tokens.
    5. no more than local mixing: they do not.

    Args:
        row: `COLUMNS`; see `thinkalike.contrib.court.evidence.Evidence.columns`.
    """
    onward = _all(above(row, "r2", WHOLE), above(row, "residual_r2", WHOLE))
    back = _all(above(row, "r2_back", WHOLE), above(row, "residual_r2_back", WHOLE))
    beyond = _all(above(row, "residual_r2", WHOLE), above(row, "residual_r2_back", WHOLE))
    is_cheap = True if abs(row["penalty"]) <= CHEAP else None
    rules = (
        (LEAK, is_leak(row)),
        (SAME, _all(onward, back, is_cheap)),
        (SUPERSET, onward),
        (PART, back),
        (BEYOND, beyond),
        (SIMILAR, _shares_more_than_mixing(row)),
    )
    for name, holds in rules:
        if holds is None:
            return UNDECIDED
        if holds:
            return name
    return MIXING
