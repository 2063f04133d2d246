"""The range of a number, which measures and schemas of settings declare in the same way."""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

Number = int | float


class Range(NamedTuple):
    """The numbers between two ends: `least` and `most` belong to it, `above` and `below` do not."""

    least: Number | None = None
    above: Number | None = None
    most: Number | None = None
    below: Number | None = None

    def __contains__(self, number: object) -> bool:
        if isinstance(number, bool) or not isinstance(number, int | float):
            return False
        return (
            (self.least is None or number >= self.least)
            and (self.above is None or number > self.above)
            and (self.most is None or number <= self.most)
            and (self.below is None or number < self.below)
        )

    def __str__(self) -> str:
        """Return the interval, such as [1, 100] or (0, 1]."""
        low = f"({self.above}" if self.above is not None else f"[{self.least}" if self.least is not None else "(-∞"
        high = f"{self.below})" if self.below is not None else f"{self.most}]" if self.most is not None else "∞)"
        return f"{low}, {high}"


def parameter(default: Number, **ends: Number) -> Any:
    """Return a dataclass field of a number that is a setting, with its range.

    Args:
        ends: least or above, most or below; see `Range`.
    """
    return dataclasses.field(default=default, metadata={"range": Range(**ends)})


def check_within(name: str, value: object, ends: Range, *, is_whole: bool) -> None:
    """Raise a ValueError unless a value is a number in a range, and a whole one if that is wanted."""
    if value not in ends or (is_whole and not isinstance(value, int)):
        raise ValueError(f"{name}={value!r} must be a {'whole ' * is_whole}number in {ends}")
