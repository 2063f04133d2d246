"""How many seconds a job spends in each of its phases, such as loading and drawing."""

from __future__ import annotations

import contextlib
import time
from collections import defaultdict
from collections.abc import Iterator

from thinkalike.processes import doing


class Phases:
    """The seconds that this run of a job has spent in each of its phases.

    A phase inside another one takes its time from it, so that the seconds of all phases add up to
    those of the run.
    """

    def __init__(self) -> None:
        self._seconds: defaultdict[str | None, float] = defaultdict(float)
        self._current: str | None = None  # None: between phases
        self._since = time.monotonic()

    @contextlib.contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        """Time a phase, and show it as the current activity."""
        with doing(name), self.counting(name):
            yield

    @contextlib.contextmanager
    def counting(self, name: str) -> Iterator[None]:
        """Time a phase."""
        outer = self._current
        self._turn_to(name)
        try:
            yield
        finally:
            self._turn_to(outer)

    @property
    def seconds(self) -> dict[str, float]:
        """The seconds of each phase that has ended, to a hundredth."""
        return {name: round(value, 2) for name, value in self._seconds.items() if name}

    def _turn_to(self, name: str | None) -> None:
        """Add the time since the last turn to the current phase, and begin another.

        Args:
            name: The phase that begins; None: time belongs to no phase from now on.
        """
        now = time.monotonic()
        self._seconds[self._current] += now - self._since
        self._current = name
        self._since = now
