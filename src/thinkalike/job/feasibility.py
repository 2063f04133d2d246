"""Estimates of what a job needs, so that one that cannot end is refused before it begins."""

from __future__ import annotations

from thinkalike.errors import ResourceError
from thinkalike.memory import Budget, readable

FASTEST = 1e15  # operations per second of a large GPU in half precision
YEAR = 3.15e7  # seconds


def check_memory(what: str, memory: float, budget: Budget, remedy: str = "lower it") -> None:
    """Check that there is the memory for something.

    Args:
        what: the setting that decides it and a verb, for the message.
        memory: the bytes that it takes, beside those in use.
        remedy: what to do otherwise.

    Raises:
        ResourceError: there is not.
    """
    if budget.used + memory > budget.total:
        needed = f"{readable(memory)} of memory beside {readable(budget.used)} in use"
        raise ResourceError(f"{what} at least {needed}, and {budget.allowed}; {remedy}, {budget.more}")


def check_time(what: str, operations: float) -> None:
    """Check that something would end within a year on the fastest device.

    Args:
        what: the settings that decide it, for the message.
        operations: the fewest multiplications and additions.

    Raises:
        ResourceError: it would not.
    """
    if operations > YEAR * FASTEST:
        years = operations / FASTEST / YEAR
        raise ResourceError(f"{what} would take at least {years:,.0f} years on the fastest GPU there is; lower it")
