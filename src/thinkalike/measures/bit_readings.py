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


def next_bits(
    values: Sequence[float], measured_copies: Mapping[int, Sequence[float]]
) -> int | None:
    """Return to how many bits the next copy of a model is to be rounded, to measure it.

    Each of several values, such as one per layer, is to be bracketed by those of two copies with
    neighbouring bits, of `BITS_OF_COPIES`. More bits give larger values. None if each value is
    bracketed, or lies below the first copy or above the last.

    Args:
        values: The values that are to be bracketed.
        measured_copies: For each copy measured so far, by its bits, what was measured of it: a
            number to compare with each of `values`.
    """
    for index, value in enumerate(values):
        bits_below = []
        bits_above = []
        for bits, values_of_copy in measured_copies.items():
            if values_of_copy[index] <= value:
                bits_below.append(bits)
            elif values_of_copy[index] > value:  # NaN is neither
                bits_above.append(bits)
        low = max(bits_below, default=0)
        high = min((bits for bits in bits_above if bits > low), default=math.inf)

        candidates = [bits for bits in BITS_OF_COPIES if low < bits < high]
        if not candidates:
            continue  # this value is bracketed
        if not measured_copies:
            return FIRST_BITS
        # The next more bits than those of the copy below; without one, the next fewer.
        has_copy_below = low > 0
        return candidates[0] if has_copy_below else candidates[-1]
    return None


def interpolated_bits(
    value: Float[Tensor, " r"], bits: Sequence[int], values_of_copies: Float[Tensor, "k r"]
) -> Float[Tensor, " r"]:
    """Return to how many bits a model is rounded when its copy has a value, interpolated linearly.

    The k copies of a model were rounded to known numbers of bits, and a measure gave a value for
    each. Values should rise with the bits: a copy whose value is below that of an earlier one
    takes the value of the earlier one. A value below those of all copies gives the fewest bits,
    and a value above all of them the most.

    Args:
        value: A value and then its jackknife replicates, each of which is read by itself.
        bits: The bits of the k copies, in rising order.
        values_of_copies: The value of each copy, with the same replicates.
    """
    rising = values_of_copies.cummax(0).values
    reading = torch.full_like(value, float(bits[0]))
    for upper in range(1, len(bits)):
        lower = upper - 1
        step = (rising[upper] - rising[lower]).clamp(min=LEAST_STEP)
        share = ((value - rising[lower]) / step).clamp(0, 1)
        interpolated = bits[lower] + share * (bits[upper] - bits[lower])
        reading = torch.where(value > rising[lower], interpolated, reading)
    return reading


def reading_interval(
    value: Float[Tensor, " r"], bits: Sequence[int], values_of_copies: Float[Tensor, "k r"]
) -> Estimate:
    """Return to how many bits a model is rounded when its copy has a value, with a 95 % interval.

    The k copies of a model were rounded to known numbers of bits, and a measure gave a value for
    each. For every candidate number of bits between the first and the last of `BITS_OF_COPIES`,
    the value that a copy of so many bits would have is interpolated linearly between the copies,
    or extrapolated from the outer two. The interval spans the result and all candidates for which
    the interval of the difference between the value and that of the copy holds 0 (Fieller 1954).

    Args:
        value: The value and then its jackknife replicates.
        bits: The bits of the k copies, in rising order.
        values_of_copies: The value of each copy, with the same replicates.
    """
    candidates = torch.arange(
        BITS_OF_COPIES[0],
        BITS_OF_COPIES[-1] + INTERVAL_STEP / 2,
        INTERVAL_STEP,
        dtype=value.dtype,
        device=value.device,
    )
    bits_of_copies = torch.tensor(bits).to(candidates)
    # A copy whose value is below that of an earlier one is replaced by that copy.
    rising = values_of_copies[values_of_copies[:, 0].cummax(0).indices]

    # The indices of the copies around each candidate; the outer two copies beyond the ends.
    below = torch.bucketize(candidates, bits_of_copies[1:-1])
    above = below + 1
    width = bits_of_copies[above] - bits_of_copies[below]
    share = ((candidates - bits_of_copies[below]) / width)[:, None]
    expected = torch.lerp(rising[below], rising[above], share)  # (candidates, r)
    difference = with_interval(value - expected)
    holds_zero = (difference.low <= 0) & (difference.high >= 0)

    reading = interpolated_bits(value[:1], bits, values_of_copies[:, :1])  # without replicates
    not_excluded = torch.cat([candidates[holds_zero], reading])
    return Estimate(reading[0], not_excluded.min(), not_excluded.max())
