"""How much of a job `budget=` leaves: fewer layers of each model, and less of the text."""

from __future__ import annotations

from typing import NamedTuple

ALL_LAYERS = 10**9


class Reduction(NamedTuple):
    """An amount of work.

    Attributes:
        layers: The most layers of each model.
        text_divisor: The text is divided by it.
    """

    layers: int
    text_divisor: int


# from all of the job to little of it: a budget takes the first one that it has time for
REDUCTIONS = (
    Reduction(ALL_LAYERS, 1),
    Reduction(12, 1),
    Reduction(8, 1),
    Reduction(5, 1),
    Reduction(5, 2),
    Reduction(5, 4),
    Reduction(5, 8),
    Reduction(5, 16),
    Reduction(5, 32),
    Reduction(5, 64),
    Reduction(5, 128),
    Reduction(2, 128),
)


def halvings(amount: int, least: int) -> list[int]:
    """Return an amount, half of it, a quarter, and so on, down to `least`, which is the last one.

    If the amount is not above `least`, it is returned alone.

    >>> halvings(2048, least=500)
    [2048, 1024, 512, 500]
    """
    amounts = [amount]
    while amounts[-1] > least:
        amounts.append(max(amounts[-1] // 2, least))
    return amounts
