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
        """Add the time of the body to a phase, and show its name as the current activity."""
        with doing(name), self.counting(name):
            yield

    @contextlib.contextmanager
    def counting(self, name: str) -> Iterator[None]:
        """Add the time of the body to a phase.

        Meanwhile the time of an outer phase stands still, so that no second counts twice.
        """
        outer = self._current
        self._switch_to(name)
        try:
            yield
        finally:
            self._switch_to(outer)

    @property
    def seconds(self) -> dict[str, float]:
        """The seconds that each phase took until the last change of phase, rounded to 0.01."""
        return {name: round(value, 2) for name, value in self._seconds.items() if name}

    def _switch_to(self, name: str | None) -> None:
        """End the current phase and begin another.

        The time since the last change is added to the current phase.

        Args:
            name: The phase that begins; None: time belongs to no phase from now on.
        """
        now = time.monotonic()
        self._seconds[self._current] += now - self._since
        self._current = name
        self._since = now
