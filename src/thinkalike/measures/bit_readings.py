"""Converts a value of a measure, such as a similarity, to bits, by rounded copies of a model.

The measure gives a value for each of several copies of the model, whose weights are rounded to
different numbers of bits. The number of bits for any value is interpolated between the two copies
whose values are next to it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from thinkalike.measures.estimates import Estimate
from thinkalike.measures.ridge import with_interval

# The bits to which the weights of each copy are rounded.
BITS_OF_COPIES = (2, 3, 4, 5, 6, 8)

# Similar models usually correspond to 3 to 5 bits, so that the first copy that is measured lies
# between.
FIRST_BITS = 4

# The least difference of the values of two copies by which interpolation divides. A value cannot
# lie between two equal values, so that nothing but a division by 0 is avoided.
LEAST_STEP = 1e-12

# The ends of the interval of a number of bits are searched on a grid with steps of this many bits,
# ...
GRID_STEP = 0.02
# ... and then bisected this many times, down to 2e-8 bits.
BISECTIONS = 20


def next_bits(
    values: Sequence[float], measured_copies: Mapping[int, Sequence[float]]
) -> int | None:
    """Return the number of bits of the copy of a model that is to be measured next, if any.

    A measure gives values for copies of a model whose weights are rounded to some number of bits
    in `BITS_OF_COPIES`; more bits give larger values. Each of several other values, such as one
    per layer, shall lie between those of two copies whose bits are neighbours in this list. The
    first value that does not decides which copy is next. None means that all do, or are below the
    copy of the fewest bits or above that of the most. No copy is measured twice, also if its
    values are NaN.

    Args:
        values: The values that shall lie between those of copies. NaN lies nowhere.
        measured_copies: For each copy that has been measured, by its bits, its values: a number to
            compare with each of `values`.
    """
    for index, value in enumerate(values):
        if math.isnan(value):
            continue
        bits_below = []
        bits_above = []
        for bits, values_of_copy in measured_copies.items():
            if values_of_copy[index] <= value:
                bits_below.append(bits)
            elif values_of_copy[index] > value:  # NaN is neither
                bits_above.append(bits)
        low = max(bits_below, default=0)
        high = min((bits for bits in bits_above if bits > low), default=math.inf)

        candidates = []
        for bits in BITS_OF_COPIES:
            if low < bits < high and bits not in measured_copies:
                candidates.append(bits)
        if not candidates:
            continue  # this value needs no further copy
        if not measured_copies:
            return FIRST_BITS  # in the middle of the list
        # The next more bits than those of the copy below; without one, the next fewer.
        has_copy_below = low > 0
        return candidates[0] if has_copy_below else candidates[-1]
    return None


def interpolated_bits(
    value: Float[Tensor, " r"], bits: Sequence[int], values_of_copies: Float[Tensor, "k r"]
) -> Float[Tensor, " r"]:
    """Return the number of bits at which a rounded copy of a model would have this value.

    A measure gave a value for each of k copies of the model, whose weights are rounded to known
    numbers of bits. Between these points the number of bits is interpolated linearly. A value that
    is not above that of the first copy gives the fewest bits, and a value above those of all
    copies the most.

    The value of copies should rise with their bits. If a copy has a smaller value than one of
    fewer bits, the larger value is used for it (a running maximum). If copies of 3 and 4 bits have
    one value for this reason, exactly this value gives 3 bits, and a greater one more than 4.

    Args:
        value: A value and then its jackknife replicates. Each gives a number of bits by itself.
        bits: The bits of the k copies, in rising order.
        values_of_copies: The value of each copy, and then its replicates, in the same order.
    """
    running_maximum = values_of_copies.cummax(0).values
    result = torch.full_like(value, float(bits[0]))
    for upper in range(1, len(bits)):
        lower = upper - 1
        step = (running_maximum[upper] - running_maximum[lower]).clamp(min=LEAST_STEP)
        share = ((value - running_maximum[lower]) / step).clamp(0, 1)
        interpolated = bits[lower] + share * (bits[upper] - bits[lower])
        result = torch.where(value > running_maximum[lower], interpolated, result)
    return result


def reading_interval(
    value: Float[Tensor, " r"], bits: Sequence[int], values_of_copies: Float[Tensor, "k r"]
) -> Estimate:
    """Return the number of bits at which a rounded copy would have this value, with its interval.

    A measure gave a value for each of k copies of a model, whose weights are rounded to known
    numbers of bits; see `interpolated_bits` for the estimate. The 95 % interval consists of the
    numbers of bits that a test does not reject (Fieller 1954), and spans at most all of
    `BITS_OF_COPIES`, although only some of these copies may have been measured.

    For any number of bits, the value of such a copy is interpolated linearly between the measured
    copies, or extrapolated from the two at the end. The number of bits is plausible if the
    jackknife interval of the given value minus that of such a copy includes 0. The result's
    interval spans the estimate and all plausible numbers of bits. Numbers on a grid are tested
    first; the ends of the interval, which lie between numbers of the grid, are then bisected.

    Args:
        value: The value and then its jackknife replicates.
        bits: The bits of the k measured copies, in rising order; k is at least 2.
        values_of_copies: The value of each copy, and then its replicates, in the same order.
    """
    bits_of_copies = torch.tensor(bits).to(value)
    # If a copy has a smaller value than one of fewer bits, the values of that one are used for it,
    # with all replicates.
    rising = values_of_copies[values_of_copies[:, 0].cummax(0).indices]

    def is_plausible(tested: Float[Tensor, " t"]) -> Bool[Tensor, " t"]:
        """Return which of these numbers of bits are plausible."""
        # The indices of the two copies that each number of bits lies between. Without the outer
        # two copies among the boundaries, numbers beyond the ends get the first two or the last
        # two.
        below = torch.bucketize(tested, bits_of_copies[1:-1])
        above = below + 1
        width = bits_of_copies[above] - bits_of_copies[below]
        share = ((tested - bits_of_copies[below]) / width)[:, None]
        value_of_copy = torch.lerp(rising[below], rising[above], share)  # (t, r)
        difference = with_interval(value - value_of_copy)
        return (difference.low <= 0) & (difference.high >= 0)

    fewest = float(BITS_OF_COPIES[0])
    most = float(BITS_OF_COPIES[-1])
    # with half a step more, so that the end is included
    grid = torch.arange(fewest, most + GRID_STEP / 2, GRID_STEP).to(value)
    estimate = interpolated_bits(value[:1], bits, values_of_copies[:, :1])  # without replicates
    plausible_bits = torch.cat([grid[is_plausible(grid)], estimate])

    # Both ends of the interval at once: the outermost plausible numbers, and beside each of them
    # one further out that is not plausible, or is the end of the scale.
    inside = torch.stack([plausible_bits.min(), plausible_bits.max()])
    outside = inside + torch.tensor([-GRID_STEP, GRID_STEP]).to(inside)
    outside = outside.clamp(fewest, most)
    for _ in range(BISECTIONS):
        middle = (inside + outside) / 2
        middle_is_plausible = is_plausible(middle)
        inside = torch.where(middle_is_plausible, middle, inside)
        outside = torch.where(middle_is_plausible, outside, middle)
    return Estimate(estimate[0], inside[0], inside[1])
