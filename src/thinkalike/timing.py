"""How long a piece of work takes on this machine: found once by doing it, and remembered.

Seconds are of processor time divided by the number of threads, so that other work on the machine changes little.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable
from functools import partial

import torch

from thinkalike.digests import remembered

LONG = 0.5  # seconds, from which a first call is taken as it is: what libraries do at first is a small part of it
ENOUGH = 0.3  # seconds of further calls, whose mean counts where one is short


def seconds_of(work: Callable[[], object]) -> float:
    """Return how long some work takes; libraries are loaded the first time, which does not count if it is short."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)  # random states may well be worth a warning, and nobody asked for them
    try:
        first = _seconds_of_call(work)
        if first > LONG:
            return first
        further: list[float] = []
        while sum(further) < ENOUGH:
            further.append(_seconds_of_call(work))
        return sum(further) / len(further)
    finally:
        logging.disable(before)


def _seconds_of_call(work: Callable[[], object]) -> float:
    began = time.process_time()
    work()
    return (time.process_time() - began) / torch.get_num_threads()


def remembered_seconds(name: str, work: Callable[[], object]) -> float:
    """Return how long some work takes, which is done once for a machine.

    Args:
        name: Everything that decides how long it takes, but for the machine.
    """
    machine = f"{torch.get_num_threads()} threads, torch {torch.__version__}"
    return remembered(f"{name}, {machine}", partial(seconds_of, work))


def seconds_of_rows(name: str, work: Callable[[int], object], rows: int, most: int) -> float:
    """Return how long some work on so many rows takes.

    More than `most` rows are not made: that many and half as many tell with which power of the rows the time grows.
    """

    def timed(count: int) -> float:
        return remembered_seconds(f"{name}, {count} rows", partial(work, count))

    if rows <= most:
        return timed(rows)
    large = timed(most)
    small = timed(most // 2)
    power = min(max(math.log2(large / small), 1.0), 3.0)  # linear at least, as all rows are read
    return large * (rows / most) ** power
