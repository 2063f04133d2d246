"""The kinds of numbers and words that arguments are, as annotations and as a check."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from thinkalike.arguments.messages import shown
from thinkalike.ranges import Within

# each repeats the whole computation, and p-values of a million draws have four digits
MOST_REPETITIONS = 10**6

Count = Annotated[int, Within(least=1, below=2**63)]
Size = Annotated[int, Within(least=0, most=10**7)]  # of an array that a function makes
# random repetitions, such as permutations
Repetitions = Annotated[int, Within(least=1, most=MOST_REPETITIONS)]
RepetitionsOrNone = Annotated[int, Within(least=0, most=MOST_REPETITIONS)]  # 0 leaves them out
Seed = Annotated[int, Within(least=0, below=2**63)]
BatchNumber = Annotated[int | None, Within(least=0, below=2**63)]  # None: the next one
Level = Annotated[float, Within(above=0, below=1)]  # a probability, such as 0.95 for 95 %


def check_whole_numbers(name: str, values: object, fewest: int = 0) -> None:
    """Raise a ValueError unless a value is a list of different whole numbers, none below 0.

    Args:
        name: The argument, for the message.
        values: The value.
        fewest: How many numbers there must be at least.
    """
    if isinstance(values, Sequence) and not isinstance(values, str | bytes):
        numbers = [value for value in values if type(value) is int and value >= 0]
        if len(values) == len(set(numbers)) and len(values) >= fewest:
            return
    raise ValueError(f"{name}={shown(values)} must be a list of different whole numbers")


def check_choice(name: str, value: object, choices: Sequence[str]) -> None:
    """Raise a ValueError unless a value is one of the choices."""
    if not isinstance(value, str) or value not in choices:  # an array would compare its items
        raise ValueError(f"{name}={shown(value)} is unknown: choose {', '.join(choices)}")
