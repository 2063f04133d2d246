"""How long a piece of work takes on this machine: measured once, and remembered.

Seconds are of processor time divided by the number of threads, so that other work on the machine
changes little.
"""

from __future__ import annotations

import contextlib
import logging
import math
import time
from collections.abc import Callable, Iterator
from functools import partial

import torch

from thinkalike.digests import remembered

# A first call that takes longer counts: what libraries do once is a small part of it.
LONG_CALL_SECONDS = 0.5
ENOUGH_SECONDS = 0.3  # of further calls; their mean counts if the first is short
SECONDS_OF_LOAD = 0.3  # by the clock, in which it shows how much other programs take
STEEPEST_POWER = 3.0  # of the rows, with which the time of any work grows


def seconds_of(work: Callable[[], object]) -> float:
    """Return how long some work takes.

    Libraries are loaded in the first call, which does not count if it is short.
    """
    level_before = logging.root.manager.disable
    # Random states may well be worth a warning, which nobody asked for.
    logging.disable(logging.WARNING)
    try:
        first = _seconds_of_call(work)
        if first > LONG_CALL_SECONDS:
            return first
        further: list[float] = []
        while sum(further) < ENOUGH_SECONDS:
            further.append(_seconds_of_call(work))
        return sum(further) / len(further)
    finally:
        logging.disable(level_before)


def _seconds_of_call(work: Callable[[], object]) -> float:
    began = time.process_time()
    work()
    return (time.process_time() - began) / torch.get_num_threads()


def share_of_processor() -> float:
    """Return which share of a processor this process gets now: 1 if nothing else needs it.

    It is the processor time of a busy moment, relative to its time by the clock.
    """
    began = time.perf_counter()
    began_on_processor = time.process_time()
    while time.perf_counter() - began < SECONDS_OF_LOAD:
        pass
    share = (time.process_time() - began_on_processor) / (time.perf_counter() - began)
    return min(share, 1.0)


class TooLongToTimeError(Exception):
    """Something would have to be timed, and there is no time left for that."""


_seconds_left: float | None = None  # for timing; None: as many as it takes


@contextlib.contextmanager
def timing_at_most(seconds: float) -> Iterator[None]:
    """Let the body time new work for about so many seconds; what is remembered takes none.

    Raises:
        TooLongToTimeError: Work was to be timed after that.
    """
    global _seconds_left
    before = _seconds_left
    _seconds_left = seconds
    try:
        yield
    finally:
        _seconds_left = before


def timed_once(name: str, find: Callable[[], float]) -> float:
    """Return a number that is timed once for a machine, and remembered.

    Args:
        name: Everything that decides the number, except for the machine.
        find: Times it.

    Raises:
        TooLongToTimeError: It is not known yet, and no time is left, see `timing_at_most`.
    """

    def find_in_time() -> float:
        global _seconds_left
        if _seconds_left is None:
            return find()
        if _seconds_left <= 0:
            raise TooLongToTimeError
        began = time.monotonic()
        number = find()
        _seconds_left -= time.monotonic() - began
        return number

    return remembered(name, find_in_time)


def remembered_seconds(name: str, work: Callable[[], object]) -> float:
    """Return how long some work takes, which is done once for a machine.

    Args:
        name: Everything that decides how long it takes, except for the machine.
    """
    machine = f"{torch.get_num_threads()} threads, torch {torch.__version__}"
    return timed_once(f"{name}, {machine}", partial(seconds_of, work))


def seconds_of_rows(name: str, work: Callable[[int], object], rows: int, most: int) -> float:
    """Return how long some work on so many rows takes.

    No more than `most` rows are made: that many and half as many tell with which power of the rows
    the time grows.
    """

    def timed(count: int) -> float:
        return remembered_seconds(f"{name}, {count} rows", partial(work, count))

    if rows <= most:
        return timed(rows)
    large = timed(most)
    small = timed(most // 2)
    power = math.log2(large / small)
    power = min(max(power, 1.0), STEEPEST_POWER)  # linear at least, as all rows are read
    return large * (rows / most) ** power
