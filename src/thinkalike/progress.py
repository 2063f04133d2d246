"""Nested activities and their progress, which a screen may show.

    with doing("report"):
        for batch in counted(batches, "batch"): ...

Nothing is printed here, no number depends on it, and where nobody looks it costs an addition for each item.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from typing import TypeVar

T = TypeVar("T")


@dataclass(eq=False)
class Activity:
    """An activity.

    Attributes:
        name: what it is, or what it counts, such as "step".
        total: the number of its items; None: it is not counted, or nobody knows.
        done, first: the items that are done, and those of them that an earlier run did, which count for no rate.
        steps_aside: whether it is not shown while something is done inside it.
        note: what else to say, such as a loss.
        since, reached: when it began, and when `done` last grew.
        thread: the thread that does it.
    """

    name: str
    total: int | None = None
    done: int = 0
    first: int = 0
    steps_aside: bool = False
    note: str = ""
    since: float = field(default_factory=time.monotonic)
    reached: float = field(default_factory=time.monotonic)
    thread: int = field(default_factory=threading.get_ident)

    def begin(self, done: int) -> None:
        """Begin counting after the items that an earlier run did."""
        self.done = self.first = done
        self.since = self.reached = time.monotonic()

    def reach(self, done: int) -> None:
        """Set the number of items done."""
        self.done, self.reached = done, time.monotonic()

    @property
    def rate(self) -> float | None:
        """Items per second, or None before the first item."""
        passed = self.reached - self.since
        return (self.done - self.first) / passed if self.done > self.first and passed > 0 else None

    def left(self, now: float) -> float | None:
        """Return the estimated seconds left, or None if unknown."""
        if self.rate is None or self.total is None:
            return None
        return max((self.total - self.done) / self.rate - (now - self.reached), 0.0)


_open: list[Activity] = []  # the outermost first


def under_way() -> list[Activity]:
    """Return the current activities, the outermost first."""
    activities = list(_open)
    return [each for place, each in enumerate(activities, 1) if place == len(activities) or not each.steps_aside]


@contextlib.contextmanager
def doing(name: str, total: int | None = None, done: int = 0, *, steps_aside: bool = False) -> Iterator[Activity]:
    """Show an activity while this is open; see `Activity`. An earlier run did the first `done` items."""
    activity = Activity(name, total, done, done, steps_aside)
    _open.append(activity)
    try:
        yield activity
    finally:
        if activity in _open:  # close it, and those that the same thread has left open inside it
            place = _open.index(activity)
            _open[place:] = [each for each in _open[place:] if each.thread != activity.thread]


def counted(items: Iterable[T], name: str, total: int | None = None) -> Iterator[T]:
    """Yield items, and count those that are done.

    Args:
        name: what one of them is.
        total: how many there are; None: their length, if they have one.
    """
    if total is None and isinstance(items, Collection):
        total = len(items)
    with doing(name, total) as activity:
        for item in items:
            yield item
            activity.reach(activity.done + 1)
