"""A headline number of a result: what a list of results, a sweep's table and W&B's summary show of it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple


class Headline(NamedTuple):
    """A number that sums up a result, with its 95 % interval if it has one.

    Attributes:
        name: in the words of the field, such as mean_penalty; one name has one unit in all results of a kind.
        value: in the unit of the result's table.
        low, high: the ends of the interval; None: there is no interval, or it has no ends.
        of: how many of what was counted there are; None: nothing was counted.
    """

    name: str
    value: float
    low: float | None = None
    high: float | None = None
    of: int | None = None

    @classmethod
    def with_ends(cls, name: str, value: float, low: float, high: float) -> Headline:
        """Return a headline number with an interval, whose ends may be blank or infinite: then there is none."""
        ends = (float(low), float(high))
        return cls(name, float(value), *(ends if all(map(math.isfinite, ends)) else (None, None)))

    @property
    def label(self) -> str:
        """The name in plain words."""
        return self.name.replace("_", " ")

    @property
    def text(self) -> str:
        """The number as screens write it: "0.2048 [0.1838, 0.2329]", or "3 of 5"."""
        if self.of is not None:
            return f"{self.value:.0f} of {self.of}"
        interval = "" if self.low is None or self.high is None else f" [{self.low:.4g}, {self.high:.4g}]"
        return f"{self.value:.4g}{interval}"

    @property
    def numbers(self) -> dict[str, float]:
        """The value under its name, and the ends of the interval under that name with `_low` and `_high`."""
        ends = {"": self.value, "_low": self.low, "_high": self.high}
        return {f"{self.name}{end}": value for end, value in ends.items() if value is not None}


def first_scalar(scalars: Mapping[str, float]) -> list[Headline]:
    """Return the first of a result's scalars as its only headline number, with the interval that stands beside it."""
    for name, value in scalars.items():
        return [Headline(name, value, scalars.get(f"{name}_low"), scalars.get(f"{name}_high"))]
    return []
