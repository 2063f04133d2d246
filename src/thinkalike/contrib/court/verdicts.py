"""A verdict on a source: a word that follows from R², from local mixing and from later tokens.

R² is that of cross-fitted linear maps between the states of source and target, in both
directions. It is measured of the states as they are, and of what is left of them beyond the
token, its position and linear mixing of the earlier tokens, as in `measure=ruler`. R² adds up
variance: *same* means that neither side lacks more than 5 % of what varies in the other one. It
says nothing about a direction of less variance, unless the penalty shows it.

The rules were tested on models of up to width 128 and on no published model, so no instrument of
the core prints a verdict.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping
from typing import SupportsFloat

LEAK = "leak"
SAME = "same"
SUPERSET = "superset of"
PART = "part of"
BEYOND = "same beyond the token"
SIMILAR = "similar"
MIXING = "no more than local mixing"
UNDECIDED = "undecided"
VERDICTS = (LEAK, SAME, SUPERSET, PART, BEYOND, SIMILAR, MIXING, UNDECIDED)

# Share of the states' variance that later tokens move. Rounding moves a causal source by less.
LEAK_SHARE = 1e-4
# R² from which one side is said to hold what varies in the other one.
WHOLE_R2 = 0.95
# Nats per token. A penalty that is further from 0 contradicts "same".
SMALL_PENALTY = 0.05

NUMBERS = ("later", "penalty")
ESTIMATES = ("r2", "r2_back", "residual_r2", "residual_r2_back", "beyond_mixing")
COLUMNS = (*NUMBERS, *(f"{name}{end}" for name in ESTIMATES for end in ("", "_low", "_high")))

Row = Mapping[Hashable, object]
"""A row of a court's table, with numbers in `COLUMNS`."""


def _number(row: Row, column: str) -> float:
    """Return the number in a column of a row, as a float.

    A cell that is no number is an error of the code, not of the user.
    """
    value = row[column]
    assert isinstance(value, SupportsFloat), f"{column}={value} is no number"
    return float(value)


def is_above(row: Row, name: str, threshold: float) -> bool | None:
    """Return whether an interval lies above a threshold, or None if it contains the threshold.

    An interval that lies below the threshold gives False.

    Args:
        row: A row with the ends of the interval in the columns `{name}_low` and `{name}_high`.
        name: The quantity, such as "r2".
        threshold: The interval is above it if its lower end is at least this.
    """
    low = _number(row, f"{name}_low")
    high = _number(row, f"{name}_high")
    if low < threshold <= high:
        return None
    return low >= threshold


def _all_hold(*rules: bool | None) -> bool | None:
    """Return the conjunction of rules in three-valued logic, where None is "undecided".

    It is False if any rule fails, else None if any is undecided, else True.
    """
    if False in rules:
        return False
    if None in rules:
        return None
    return True


def is_leak(row: Row) -> bool | None:
    """Return whether a source's states change when later tokens are replaced.

    That proves that the source reads later tokens. Two weaker signs are no evidence of a leak:
    that its states predict later text, and that the target, stitched to them, predicts better than
    by itself. Both are also true of a source that copies earlier text, wherever the text repeats
    itself. Returns None if the change was not measured (NaN).
    """
    relative_change = _number(row, "later")  # squared, relative to the spread of states
    if math.isnan(relative_change):
        return None
    return relative_change > LEAK_SHARE


def _shares_more_than_mixing(row: Row) -> bool | None:
    """Return whether the source is clearly more similar to the target than local mixing is.

    Local mixing is a network that has the target's embedding and only mixes earlier tokens. The
    interval of `beyond_mixing` decides, which is the source's residual R² (R² beyond what the
    token, its position and such mixing predict) minus 1.25 times that of local mixing: True if it
    lies above 0. An interval whose upper end is infinite comes from too few documents and says
    nothing, so the result is None.

    Args:
        row: The row of the source in the table of its court, which compares sources with a target.
    """
    if _number(row, "beyond_mixing_low") > 0:
        return True
    if _number(row, "beyond_mixing_high") == math.inf:
        return None
    return False


def verdict(row: Row) -> str:
    """Return in a word how a source is similar to a target, one of `VERDICTS`.

    The first rule that holds decides. A rule holds if it holds at both ends of the interval; where
    the two ends disagree before any rule holds, the verdict is "undecided".

    1. leak: the source's states move when later tokens are replaced, see `is_leak`.
    2. same, superset of, or part of (the target predicts the source, and not the reverse): R² is
       at least `WHOLE_R2`, in both directions or in one, of the states as they are and beyond
       token, position and mixing. "Same" is undecided where the penalty contradicts it: what is
       missing has little variance, and the target needs it.
    3. same beyond the token: R² is at least `WHOLE_R2` in both directions beyond token, position
       and mixing, but not of the states as they are. What differs is what the token alone decides.
    4. similar: beyond token, position and mixing, source and target share more than 1.25 times
       what the target shares with any network that only mixes earlier tokens.
    5. no more than local mixing: they do not.

    Args:
        row: The measured numbers of one source, by column: `COLUMNS`, which
            `thinkalike.contrib.court.evidence.Evidence.columns` explains.
    """
    predicts_target = _all_hold(
        is_above(row, "r2", WHOLE_R2), is_above(row, "residual_r2", WHOLE_R2)
    )
    predicted_by_target = _all_hold(
        is_above(row, "r2_back", WHOLE_R2), is_above(row, "residual_r2_back", WHOLE_R2)
    )
    same_beyond_token = _all_hold(
        is_above(row, "residual_r2", WHOLE_R2), is_above(row, "residual_r2_back", WHOLE_R2)
    )
    # A large penalty makes "same" undecided, and does not exclude it.
    is_penalty_small: bool | None = None
    if abs(_number(row, "penalty")) <= SMALL_PENALTY:
        is_penalty_small = True

    rules = (
        (LEAK, is_leak(row)),
        (SAME, _all_hold(predicts_target, predicted_by_target, is_penalty_small)),
        (SUPERSET, predicts_target),
        (PART, predicted_by_target),
        (BEYOND, same_beyond_token),
        (SIMILAR, _shares_more_than_mixing(row)),
    )
    for name, holds in rules:
        if holds is None:
            return UNDECIDED
        if holds:
            return name
    return MIXING
