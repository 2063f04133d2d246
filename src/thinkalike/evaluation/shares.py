"""How much of a report is in memory at once: all that it used to read together, unless that does not fit."""

from __future__ import annotations

from collections.abc import Callable


def halved(most: int, fits: Callable[[int], bool]) -> int:
    """Return the first of most, most / 2, ... down to 1 that fits; 1 if none does."""
    while most > 1 and not fits(most):
        most //= 2
    return most
