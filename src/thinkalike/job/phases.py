"""How long the phases of a job take: loading, computing, drawing, and those that an instrument names."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from thinkalike.progress import doing

FILE = "phases.json"


class Phases:
    """The seconds that a job has spent in each of its phases, those of earlier runs of an interrupted job included.

    A phase inside another one takes its time from it, so that the seconds of all phases add up to those of the job.

    Args:
        folder: where a job keeps its states, which holds the seconds of its earlier runs; None: they are not kept.
    """

    def __init__(self, folder: Path | None = None):
        self._file = folder / FILE if folder else None
        self._seconds: dict[str, float] = {}
        self._now: str | None = None
        self._since = time.monotonic()
        if self._file:
            with contextlib.suppress(OSError, ValueError, TypeError, AttributeError):  # it is missing or damaged
                self._seconds = {name: float(value) for name, value in json.loads(self._file.read_text()).items()}

    @contextlib.contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        """Time a phase, and show it as the current activity."""
        with doing(name), self.counting(name):
            yield

    @contextlib.contextmanager
    def counting(self, name: str) -> Iterator[None]:
        """Time a phase."""
        before = self._turn_to(name)
        try:
            yield
        finally:
            self._turn_to(before)
            if self._file and self._file.parent.is_dir():  # else the job has left nothing to go on from
                self._file.write_text(json.dumps(self._seconds))

    @property
    def seconds(self) -> dict[str, float]:
        """The seconds of each phase that has ended, to a hundredth."""
        return {name: round(value, 2) for name, value in self._seconds.items()}

    def _turn_to(self, name: str | None) -> str | None:
        now, before = time.monotonic(), self._now
        if before is not None:
            self._seconds[before] = self._seconds.get(before, 0.0) + now - self._since
        self._now, self._since = name, now
        return before


@contextlib.contextmanager
def phase_of_all(works: Iterable[Any], name: str) -> Iterator[None]:
    """Time a phase of all jobs of one pass; phases inside it take their time from it."""
    with contextlib.ExitStack() as phases, doing(name, steps_aside=True):
        for work in works:
            phases.enter_context(work.phase.counting(name))
        yield
