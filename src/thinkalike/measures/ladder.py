"""The ladder of a ruler: values of copies of a model that are rounded to fewer and fewer bits.

Each rung is one copy. A value is read by where it stands between the values of two rungs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from thinkalike.measures.estimates import Estimate
from thinkalike.measures.ridge import with_interval

# The bits of a copy's weights, for each rung.
RUNGS = (2, 3, 4, 5, 6, 8)

# Real models that are alike read 3 to 5 bits, so the first rung that is measured lies between.
FIRST_RUNG = 4

# Two rungs of equal value must not divide by 0; where a value lies between them does not matter.
LEAST_STEP = 1e-12

# The ends of the interval of a reading are searched in steps of this many bits.
INTERVAL_STEP = 0.02


def next_rung(values: Sequence[float], known: Mapping[int, Sequence[float]]) -> int | None:
    """Return the bits of the rung to measure next.

    None says that every value already lies between two neighbouring rungs, or beyond an end of
    the ladder. Of several values the first that does not is looked at.

    Args:
        values: The values that are to be read.
        known: For the bits of each rung measured so far, the values of its copy, in the order of
            `values`; empty at first.
    """
    for index, value in enumerate(values):
        below = [bits for bits, rung in known.items() if rung[index] <= value]
        low = max(below, default=0)
        above = [bits for bits, rung in known.items() if rung[index] > value and bits > low]
        high = min(above, default=math.inf)

        between = [bits for bits in RUNGS if low < bits < high]
        if not between:
            continue
        if not known:
            return FIRST_RUNG
        # One step up from the rung below; where no rung is below, one step down.
        return between[0] if low else between[-1]
    return None


def reading_of(
    value: Float[Tensor, " r"], marks: Sequence[int], rungs: Float[Tensor, "k r"]
) -> Float[Tensor, " r"]:
    """Return where a value stands among the rungs, in the unit of their marks.

    Values between two rungs are interpolated linearly. The rungs are first made to rise with
    their marks: a rung below one of a lower mark takes its value. A value outside of all rungs
    reads as the first or the last mark.

    Args:
        value: A value with its replicates, as of `HeldOut.shares`.
        marks: The marks of the rungs, in rising order.
        rungs: The value of each rung, with the same replicates.
    """
    rising = rungs.cummax(0).values
    reading = torch.full_like(value, float(marks[0]))
    for upper in range(1, len(marks)):
        lower = upper - 1
        step = (rising[upper] - rising[lower]).clamp(min=LEAST_STEP)
        share = ((value - rising[lower]) / step).clamp(0, 1)
        interpolated = marks[lower] + share * (marks[upper] - marks[lower])
        reading = torch.where(value > rising[lower], interpolated, reading)
    return reading


def reading_interval(
    value: Float[Tensor, " r"], marks: Sequence[int], rungs: Float[Tensor, "k r"]
) -> Estimate:
    """Return the reading of a value, with the readings at which it does not differ from the rungs.

    The interval holds the marks at which the interval of the difference of value and rungs holds 0
    (Fieller 1954), so that it is right where rungs lie close to each other, or the value lies
    below all of them. Rungs are interpolated linearly, and beyond the outer marks they are
    extrapolated.

    Args:
        value, marks, rungs: See `reading_of`.
    """
    candidates = torch.arange(
        RUNGS[0],
        RUNGS[-1] + INTERVAL_STEP / 2,
        INTERVAL_STEP,
        dtype=value.dtype,
        device=value.device,
    )
    known_marks = torch.tensor(marks).to(candidates)
    rising = rungs[rungs[:, 0].cummax(0).indices]

    # the rungs below and above each candidate
    below = torch.bucketize(candidates, known_marks[1:-1])
    above = below + 1
    width = known_marks[above] - known_marks[below]
    share = ((candidates - known_marks[below]) / width)[:, None]
    expected = torch.lerp(rising[below], rising[above], share)  # (candidates, r)
    difference = with_interval(value - expected)
    holds_zero = (difference.low <= 0) & (difference.high >= 0)

    reading = reading_of(value[:1], marks, rungs[:, :1])
    inside = torch.cat([candidates[holds_zero], reading])
    return Estimate(reading[0], inside.min(), inside.max())
