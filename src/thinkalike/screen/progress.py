"""What a job is doing, shown on stderr."""

from __future__ import annotations

import contextlib
import logging
import math
import multiprocessing
import os
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TextIO, cast

from rich.console import Console, RenderableType
from rich.live import Live
from rich.spinner import Spinner

from thinkalike.errors import ConfigError, plain, short
from thinkalike.processes import RANKS, Activity, TextStream, under_way
from thinkalike.screen.text import wrapped

# environment variable: seconds between lines where there is no terminal; 0: silence
PROGRESS = "THINKALIKE_PROGRESS"
SECONDS_BETWEEN_LINES = 30.0  # where the variable is not set
SECONDS_BEFORE_FIRST_LINE = 10.0  # at most, so that a wait has an end in sight early
LONGEST_WAIT = 1e6  # seconds; Python refuses to wait much longer
MAIN_PROCESS = "MainProcess"  # workers of a sweep have other names, and share the terminal
SPINNER_WIDTH = 2  # columns before the sentence


@dataclass(frozen=True)
class ExpectedEnd:
    """When a job as a whole is to end.

    Attributes:
        end: The time, as `time.monotonic` counts.
        seconds: How long the job takes from the forecast on.
        is_least: Whether the job takes at least this long, as only a part of it was timed.
    """

    end: float
    seconds: float
    is_least: bool

    def in_words(self, now: float) -> str:
        """Return what is left of the whole job, or that it takes longer than forecast."""
        left = self.end - now
        if left < 0:
            return f"whole job: longer than the {clock(self.seconds)} of its forecast"
        certainty = "at least" if self.is_least else "about"
        return f"whole job: {certainty} {clock(left)} left"


_forecast: ExpectedEnd | None = None
_live: Live | None = None
_watchers = 0  # how many `watched` are open that show what is being done


def _seconds_between_lines() -> float:
    """Return what the environment says of progress; a ConfigError if it is not a number."""
    setting = os.environ.get(PROGRESS)
    if not setting:
        return SECONDS_BETWEEN_LINES
    try:
        seconds = float(setting)
    except ValueError:
        seconds = math.nan
    if not math.isfinite(seconds):
        raise ConfigError(
            f"{PROGRESS}={short(setting)} must be a number of seconds; 0 shows no progress"
        )
    return min(seconds, LONGEST_WAIT)


@contextlib.contextmanager
def watched() -> Iterator[None]:
    """Show what is being done while this is open."""
    stream = sys.stderr
    seconds = _seconds_between_lines()
    is_first_process = all(os.environ.get(name, "0") == "0" for name in RANKS)
    if stream is None or seconds <= 0 or not is_first_process:
        yield
        return
    shown = _on_terminal(stream) if _is_own_terminal(stream) else _in_lines(stream, seconds)
    with shown, _counting_watchers():
        yield


@contextlib.contextmanager
def _counting_watchers() -> Iterator[None]:
    """Count one that shows what is being done, while this is open."""
    global _watchers, _forecast
    _watchers += 1
    try:
        yield
    finally:
        _watchers -= 1
        if not _watchers:
            _forecast = None


def expect(seconds: float, is_least: bool = False) -> None:
    """Show from now on what is left of the whole job, where what is being done is shown.

    Args:
        seconds: How long the job takes from now on, by the clock.
        is_least: Whether it takes at least this long.
    """
    global _forecast
    if _watchers:
        _forecast = ExpectedEnd(time.monotonic() + seconds, seconds, is_least)


def say(line: str) -> None:
    """Write a line to stderr, where what is being done is shown; nothing where it is not."""
    if _watchers:
        with contextlib.suppress(OSError, ValueError):  # nobody reads stderr any more
            print(plain(line), file=sys.stderr, flush=True)


def _is_own_terminal(stream: TextStream) -> bool:
    """Return whether a stream is a terminal that no other process of the same job writes to."""
    is_terminal = stream.isatty() and os.environ.get("TERM") != "dumb"
    return is_terminal and multiprocessing.current_process().name == MAIN_PROCESS


@contextlib.contextmanager
def aside() -> Iterator[None]:
    """Take the live line from the terminal while something else is printed there."""
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
def _on_terminal(stream: TextStream) -> Iterator[None]:
    """Show a line that changes; log messages and what is printed to stderr appear above it."""
    global _live
    console = Console(file=cast(TextIO, stream))
    began = time.monotonic()
    spinner = Spinner("dots")

    def drawn() -> RenderableType:
        lines = wrapped(sentence(under_way(), began), console.width - SPINNER_WIDTH)
        spinner.update(text="\n".join(lines))
        return spinner

    log_handlers = []
    for handler in logging.root.handlers:
        if isinstance(handler, logging.StreamHandler) and handler.stream is stream:
            log_handlers.append(handler)
    _live = Live(console=console, get_renderable=drawn, transient=True, redirect_stdout=False)
    try:
        with _live:
            for handler in log_handlers:
                handler.setStream(sys.stderr)  # which rich has redirected
            yield
    finally:
        _live = None
        for handler in log_handlers:
            handler.setStream(stream)


@contextlib.contextmanager
def _in_lines(stream: TextStream, seconds: float) -> Iterator[None]:
    """Write a line about what is being done every so many seconds."""
    has_ended = threading.Event()
    began = time.monotonic()

    def write_lines() -> None:
        wait = min(seconds, SECONDS_BEFORE_FIRST_LINE)
        while not has_ended.wait(wait):
            wait = seconds
            activities = under_way()
            if not activities:
                continue
            with contextlib.suppress(OSError, ValueError):  # nobody reads stderr any more
                stream.write(f"{plain(sentence(activities, began))}\n")
                stream.flush()

    threading.Thread(target=write_lines, daemon=True, name="progress").start()
    try:
        yield
    finally:
        has_ended.set()


def sentence(activities: Sequence[Activity], began: float) -> str:
    """Return what is being done in one line, with the speed of the innermost activity.

    For example "0:03:20 job 3 of 12: batch 4 of 33, 2.1 per second, 0:00:14 left". What is left
    of the whole job follows, if there is a forecast: "; whole job: about 0:11:00 left".
    """
    now = time.monotonic()
    descriptions = [_counted(activity) for activity in activities]
    if activities:
        descriptions[-1] = ", ".join([descriptions[-1], *_details(activities[-1], now)])
    line = f"{clock(now - began)} {': '.join(descriptions)}"
    if _forecast is None:
        return line
    return f"{line}; {_forecast.in_words(now)}"


def _details(activity: Activity, now: float) -> list[str]:
    """Return the note, the speed and the remaining time of an activity, if they are known."""
    details = []
    if activity.note:
        details.append(activity.note)
    if activity.rate is not None:
        details.append(f"{activity.rate:,.2f} per second")
    seconds_left = activity.seconds_left(now)
    if seconds_left is not None:
        details.append(f"{clock(seconds_left)} left")
    return details


def _counted(activity: Activity) -> str:
    """Return what is done and how much of it: "batch 4 of 33"."""
    if activity.total is not None:
        return f"{activity.name} {activity.done:,} of {activity.total:,}"
    if activity.done:
        return f"{activity.name} {activity.done:,}"
    return activity.name


def clock(seconds: float) -> str:
    """Return seconds as a clock shows them: 0:12:30."""
    return str(timedelta(seconds=max(round(seconds), 0)))
