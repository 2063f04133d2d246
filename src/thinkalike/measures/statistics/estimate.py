"""A value with the ends of its interval: what everything returns here that says how sure it is."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from jaxtyping import Float
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Estimate:
    """A value with the lower and the upper end of its interval: three tensors of one shape.

    It iterates as (value, low, high), `estimate[index]` indexes all three, and the format of a single number writes it
    with its interval: f"{estimate:+.3f}" is "+0.037 [+0.032, +0.043]".

    Raises:
        ValueError: The three tensors differ in shape.
    """

    value: Tensor
    low: Tensor
    high: Tensor

    def __post_init__(self) -> None:
        shapes = [tuple(part.shape) for part in (self.value, self.low, self.high)]
        if len(set(shapes)) > 1:
            raise ValueError(f"a value and the ends of its interval have one shape, not {shapes}")

    def __iter__(self) -> Iterator[Tensor]:
        return iter((self.value, self.low, self.high))

    def __getitem__(self, index: Any) -> Estimate:
        return Estimate(*(part[index] for part in self))

    def __format__(self, spec: str) -> str:
        """Write a single number with its interval; without a format the estimate is written as any dataclass is.

        Raises:
            ValueError: The estimate is not a single number.
        """
        if not spec:
            return str(self)
        if self.value.numel() != 1:
            raise ValueError(f"an estimate of shape {tuple(self.value.shape)} is no single number: index it first")
        return span(self.value.item(), self.low.item(), self.high.item(), spec)


def interval_around(value: Float[Tensor, "..."], half: Float[Tensor, "..."] | float) -> Estimate:
    """Return the estimate value ± half."""
    return Estimate(value, value - half, value + half)


def span(value: Any, low: Any, high: Any, spec: str = "+.3f") -> str:
    """Return a number with its interval as everything writes it: "+0.037 [+0.032, +0.043]"."""
    return f"{value:{spec}} [{low:{spec}}, {high:{spec}}]"
