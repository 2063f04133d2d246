"""The range of a number, which arguments, measures and settings declare in the same way."""

from __future__ import annotations

import dataclasses
import math
from typing import Any, NamedTuple

Number = int | float

EXACT = 2**53  # beyond it float64 leaves out whole numbers


class Within(NamedTuple):
    """The numbers that a setting or an argument takes, as in Annotated[int, Within(least=1)].

    Attributes:
        least, most: The ends that belong to the range; None: there is no such end.
        above, below: The ends that do not.
        allows_infinity: Whether infinite numbers are in the range, if its ends permit them.
        fewest: The least number of values of an array of such numbers.
    """

    least: Number | None = None
    most: Number | None = None
    above: Number | None = None
    below: Number | None = None
    allows_infinity: bool = False
    fewest: int = 0

    def __contains__(self, number: object) -> bool:
        if isinstance(number, bool) or not isinstance(number, int | float):
            return False
        if isinstance(number, float) and math.isnan(number):
            return False
        if number in (math.inf, -math.inf) and not self.allows_infinity:
            return False
        return (
            (self.least is None or number >= self.least)
            and (self.most is None or number <= self.most)
            and (self.above is None or number > self.above)
            and (self.below is None or number < self.below)
        )

    @property
    def has_ends(self) -> bool:
        """Whether there is a number that is too small or too large."""
        return any(end is not None for end in (self.least, self.most, self.above, self.below))

    def __str__(self) -> str:
        """Return the range in words, such as "at least 1 and below 2^63"; "" without ends."""
        ends = {
            "at least": self.least,
            "above": self.above,
            "at most": self.most,
            "below": self.below,
        }
        words = []
        for word, end in ends.items():
            if end is None:
                continue
            written = f"{end:,}" if abs(end) < EXACT else f"2^{math.log2(end):g}"
            words.append(f"{word} {written}")
        return " and ".join(words)


def parameter(default: Number, **ends: Number) -> Any:
    """Return a dataclass field of a number that is a setting, with its range.

    Args:
        ends: The ends of the range by their names, see `Within`.
    """
    within = Within(
        least=ends.pop("least", None),
        most=ends.pop("most", None),
        above=ends.pop("above", None),
        below=ends.pop("below", None),
    )
    if ends:
        raise TypeError(f"{', '.join(ends)}: a range has least or above, and most or below")
    return dataclasses.field(default=default, metadata={"range": within})


def check_within(name: str, value: object, within: Within, *, is_whole: bool) -> None:
    """Raise a ValueError unless a value is a number in a range, and whole if that is wanted."""
    if value not in within or (is_whole and not isinstance(value, int)):
        kind = "whole number" if is_whole else "number"
        raise ValueError(f"{name}={value!r} must be a {kind}, {within}")
