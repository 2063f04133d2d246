"""What a job is doing, on stderr: live on a terminal, and elsewhere a plain line every half minute.

The line is taken away at the end, and nothing of it goes to stdout.
"""

from __future__ import annotations

import contextlib
import logging
import multiprocessing
import os
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from thinkalike.progress import Activity, under_way
from thinkalike.screen.tables import wrapped

PROGRESS = "THINKALIKE_PROGRESS"  # environment variable: seconds between lines where there is no terminal; 0: silence
EVERY = 30.0  # where it is not set
LEAST_BAR, MOST_BAR, BESIDE = 8, 24, 5  # columns of a bar, and of the spinner and spaces beside it
RANKS = ("RANK", "LOCAL_RANK", "SLURM_PROCID")  # of the processes that share a job, the first alone speaks
MAIN = "MainProcess"  # workers of a sweep have other names, and share the terminal
SHOW_CURSOR = "\x1b[?25h"

_live: Live | None = None


@contextlib.contextmanager
def watched() -> Iterator[None]:
    """Show what is being done while this is open."""
    stream, every = sys.stderr, float(os.environ.get(PROGRESS, EVERY))
    if stream is None or every <= 0 or any(os.environ.get(name, "0") != "0" for name in RANKS):
        yield
    elif stream.isatty() and os.environ.get("TERM") != "dumb" and multiprocessing.current_process().name == MAIN:
        with _on_terminal(stream):
            yield
    else:
        with _in_lines(stream, every):
            yield


@contextlib.contextmanager
def aside() -> Iterator[None]:
    """Take what is shown from the terminal while something else is printed there."""
    if _live is None:
        yield
        return
    _live.stop()
    try:
        yield
    finally:
        if _live is not None:
            _live.start()


@contextlib.contextmanager
def _on_terminal(stream: Any) -> Iterator[None]:
    global _live
    console, began, spinner = Console(file=stream), time.monotonic(), Spinner("dots")

    def drawn() -> RenderableType:
        return _drawn(under_way(), time.monotonic(), began, spinner, console.width)

    _live = Live(console=console, get_renderable=drawn, transient=True, redirect_stdout=False)
    try:
        with _live, _logged_above(stream):
            yield
    finally:
        _live = None
        stream.write(SHOW_CURSOR)  # also where a second signal came while it was being taken away
        stream.flush()


@contextlib.contextmanager
def _in_lines(stream: Any, every: float) -> Iterator[None]:
    ended, began = threading.Event(), time.monotonic()

    def tell() -> None:
        while not ended.wait(every):
            if activities := under_way():
                with contextlib.suppress(OSError, ValueError):  # nobody reads stderr any more
                    stream.write(f"{sentence(activities, time.monotonic(), began)}\n")
                    stream.flush()

    threading.Thread(target=tell, daemon=True, name="progress").start()
    try:
        yield
    finally:
        ended.set()


@contextlib.contextmanager
def _logged_above(stream: Any) -> Iterator[None]:
    """Let what is logged to the terminal stand above what is live there, as what is printed to stderr does."""
    handlers = [each for each in logging.root.handlers if isinstance(each, logging.StreamHandler)]
    ours = [each for each in handlers if each.stream is stream]
    for handler in ours:
        handler.setStream(sys.stderr)
    try:
        yield
    finally:
        for handler in ours:
            handler.setStream(stream)


def sentence(activities: list[Activity], now: float, began: float) -> str:
    """Return what is being done in one line: "3:20 job 3 of 12: report: batch 4 of 33, 2.1 per second, 0:14 left"."""
    *outer, inner = activities
    said = ", ".join(filter(None, [_counted(inner), *_state(inner, now)]))
    return f"{clock(now - began)} {': '.join([*map(_counted, outer), said])}"


def _drawn(activities: list[Activity], now: float, began: float, spinner: Any, width: int) -> RenderableType:
    """Return the same for a terminal: a line for the outer activities, and a bar for the innermost if it is counted."""
    if not activities:
        return Text("")
    *outer, inner = activities
    cells: list[RenderableType] = [spinner, Text(_counted(inner))]
    more = ", ".join(filter(None, _state(inner, now))) or clock(now - inner.since)
    room = width - len(_counted(inner)) - len(more) - BESIDE
    if inner.total and room >= LEAST_BAR:
        cells.append(ProgressBar(inner.total, min(inner.done, inner.total), width=min(room, MOST_BAR)))
    row = Table.grid(padding=(0, 1))
    row.add_row(*cells, Text(more))
    around = f"{clock(now - began)} {': '.join(map(_counted, outer))}"
    return Group(Text("\n".join(wrapped(around, width))), row) if outer else row


def _counted(activity: Activity) -> str:
    """Return what is being done, and how far it is."""
    if activity.total is not None:
        return f"{activity.name} {activity.done:,} of {activity.total:,}"
    return f"{activity.name} {activity.done:,}" if activity.done else activity.name


def _state(activity: Activity, now: float) -> list[str]:
    """Return the note, the rate, and how long the rest will take at that rate, as far as they are known."""
    rate, left = activity.rate, activity.left(now)
    if rate is None:
        return [activity.note]
    if rate < 1:
        said = f"{1 / rate:.3g} s each"
    else:
        said = f"{rate:,.0f} per second" if rate >= 100 else f"{rate:.3g} per second"
    return [activity.note, said, "" if left is None else f"{clock(left)} left"]


def clock(seconds: float) -> str:
    """Return seconds as a clock shows them: 0:07, 12:30, 3:05:00."""
    minutes, rest = divmod(max(round(seconds), 0), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
