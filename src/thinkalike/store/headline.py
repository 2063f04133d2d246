"""Headline numbers: the few numbers that sum up a result."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

from thinkalike.errors import plain_line


class Headline(NamedTuple):
    """A number that sums up a result, with its 95 % interval if it has one.

    Attributes:
        name: a term of the field, such as mean_penalty. A name has the same unit in all results of
            a kind.
        value: in the unit of the result's table.
        low: the lower end of the interval; None if there is no interval, or if it is unbounded.
        high: the upper end of the interval, as `low`.
        of: the total, where the value is a count.
        at: the layers of the value in words, such as "layer 2 with 3".
    """

    name: str
    value: float
    low: float | None = None
    high: float | None = None
    of: int | None = None
    at: str = ""

    @classmethod
    def with_ends(
        cls, name: str, value: float, low: float, high: float, *, at: str = ""
    ) -> Headline:
        """Return a headline number with its interval, or without one if an end is not finite.

        Args:
            name, value, at: Of the headline number.
            low, high: The ends of its interval, which may be infinite or NaN.
        """
        low = float(low)
        high = float(high)
        if math.isfinite(low) and math.isfinite(high):
            return cls(name, float(value), low, high, at=at)
        return cls(name, float(value), at=at)

    def __str__(self) -> str:
        """Return the text that screens show.

        For example "mean cka 0.2048 [0.1838, 0.2329] at layer 2", or "claims that hold 3 of 5".
        """
        label = plain_line(self.name.replace("_", " "))
        if self.of is not None:
            # ".0f" would round a damaged count, such as 2.5 of 3, to a whole number.
            return f"{label} {self.value:.10g} of {self.of}"

        text = f"{label} {self.value:.4g}"
        if self.low is not None and self.high is not None:
            text += f" [{self.low:.4g}, {self.high:.4g}]"
        if self.at:
            text += f" at {plain_line(self.at)}"
        return text

    @property
    def numbers(self) -> dict[str, float]:
        """The value by its name, and the ends of the interval as `NAME_low` and `NAME_high`."""
        numbers = {self.name: self.value}
        if self.low is not None:
            numbers[f"{self.name}_low"] = self.low
        if self.high is not None:
            numbers[f"{self.name}_high"] = self.high
        return numbers


def first_scalar(scalars: Mapping[str, float]) -> list[Headline]:
    """Return the first scalar of a result as its only headline number; empty without scalars.

    Its interval is that of the scalars with the same name and `_low` and `_high`, if they exist.
    """
    if not scalars:
        return []
    name = next(iter(scalars))
    low = scalars.get(f"{name}_low")
    high = scalars.get(f"{name}_high")
    return [Headline(name, scalars[name], low, high)]
