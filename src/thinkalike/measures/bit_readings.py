"""Readings in bits: a value stands between those of copies of a model of fewer and fewer bits.

Each calibration point is one copy. A value is read by where it stands between the values of two
points.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from thinkalike.measures.estimates import Estimate
from thinkalike.measures.ridge import with_interval

# The bits of a copy's weights, for each calibration point.
BITS_OF_COPIES = (2, 3, 4, 5, 6, 8)

# Real models that are alike read 3 to 5 bits, so the first copy that is measured lies between.
FIRST_BITS = 4

# Two points of equal value must not divide by 0; where a value lies between them does not matter.
LEAST_STEP = 1e-12

# The ends of the interval of a reading are searched in steps of this many bits.
INTERVAL_STEP = 0.02


def next_bits(values: Sequence[float], known: Mapping[int, Sequence[float]]) -> int | None:
    """Return the bits of the calibration point to measure next.

    None says that every value already lies between two neighbouring points, or beyond the
    first or the last of `BITS_OF_COPIES`.

    Args:
        values: The values that are to be read.
        known: For the bits of each copy measured so far, its value beside each of `values`.
    """
    for index, value in enumerate(values):
        below = [bits for bits, point in known.items() if point[index] <= value]
        low = max(below, default=0)
        above = [bits for bits, point in known.items() if point[index] > value and bits > low]
        high = min(above, default=math.inf)

        between = [bits for bits in BITS_OF_COPIES if low < bits < high]
        if not between:
            continue
        if not known:
            return FIRST_BITS
        # One step up from the point below; where no point is below, one step down.
        return between[0] if low else between[-1]
    return None


def reading_of(
    value: Float[Tensor, " r"], marks: Sequence[int], points: Float[Tensor, "k r"]
) -> Float[Tensor, " r"]:
    """Return where a value stands among the calibration points, in the unit of their marks.

    Values between two points are interpolated linearly. The points are first made to rise with
    their marks: a point below one of a lower mark takes its value. A value outside of all points
    reads as the first or the last mark.

    Args:
        value: A value with its replicates, as of `HeldOut.shares`.
        marks: The marks of the calibration points, in rising order.
        points: The value of each calibration point, with the same replicates.
    """
    rising = points.cummax(0).values
    reading = torch.full_like(value, float(marks[0]))
    for upper in range(1, len(marks)):
        lower = upper - 1
        step = (rising[upper] - rising[lower]).clamp(min=LEAST_STEP)
        share = ((value - rising[lower]) / step).clamp(0, 1)
        interpolated = marks[lower] + share * (marks[upper] - marks[lower])
        reading = torch.where(value > rising[lower], interpolated, reading)
    return reading


def reading_interval(
    value: Float[Tensor, " r"], marks: Sequence[int], points: Float[Tensor, "k r"]
) -> Estimate:
    """Return the reading of a value, with the readings where it does not differ from the points.

    The interval holds the marks at which the interval of the difference of value and points holds
    0 (Fieller 1954), so that it is right where points lie close to each other, or the value lies
    below all of them. Points are interpolated linearly, and beyond the outer marks they are
    extrapolated.

    Args:
        value, marks, points: See `reading_of`.
    """
    candidates = torch.arange(
        BITS_OF_COPIES[0],
        BITS_OF_COPIES[-1] + INTERVAL_STEP / 2,
        INTERVAL_STEP,
        dtype=value.dtype,
        device=value.device,
    )
    known_marks = torch.tensor(marks).to(candidates)
    rising = points[points[:, 0].cummax(0).indices]

    # the calibration points below and above each candidate
    below = torch.bucketize(candidates, known_marks[1:-1])
    above = below + 1
    width = known_marks[above] - known_marks[below]
    share = ((candidates - known_marks[below]) / width)[:, None]
    expected = torch.lerp(rising[below], rising[above], share)  # (candidates, r)
    difference = with_interval(value - expected)
    holds_zero = (difference.low <= 0) & (difference.high >= 0)

    reading = reading_of(value[:1], marks, points[:, :1])
    inside = torch.cat([candidates[holds_zero], reading])
    return Estimate(reading[0], inside.min(), inside.max())
