"""What a job prints: tables and sentences that fit the screen, and on stderr how far it is.

Lines end between words, and only very long words are broken. A table that is too wide becomes several below each other,
each with the key columns. What a job is doing is shown live on a terminal, and elsewhere in a plain line every half
minute; the line is taken away at the end, and nothing of it goes to stdout.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import math
import multiprocessing
import os
import shutil
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from rich import box
from rich.cells import cell_len
from rich.console import Console, RenderableType
from rich.live import Live
from rich.spinner import Spinner
from rich.table import Table as Drawn
from rich.text import Text

from thinkalike.errors import ConfigError, plain, short
from thinkalike.processes import RANKS, Activity, under_way

if TYPE_CHECKING:
    import pandas as pd

LONG = 40  # columns of a word that may be broken where it wraps, such as a list of layers
BESIDE, EDGE = 3, 1  # columns of the screen for the frame: of each column, and of the table
ROWS = 16  # of the tables of a screen
SHADES = " ░▒▓█"
MAP_ROWS, MAP_WIDTH = 18, 48  # lines and columns of the screen, at most, beside the labels
PROGRESS = "THINKALIKE_PROGRESS"  # environment variable: seconds between lines where there is no terminal; 0: silence
EVERY = 30.0  # where it is not set
LONGEST_WAIT = 1e6  # seconds; Python refuses to wait much longer
MAIN = "MainProcess"  # workers of a sweep have other names, and share the terminal

_live: Live | None = None


def span(value: Any, low: Any, high: Any, spec: str = "+.3f") -> str:
    """Return a number with its interval, if that is known: "+0.037 [+0.032, +0.043]"."""
    return f"{value:{spec}}" if math.isnan(low) or math.isnan(high) else f"{value:{spec}} [{low:{spec}}, {high:{spec}}]"


def screen_width() -> int:
    """Return the columns of the screen: $COLUMNS if it is set, else those of the terminal, else 80."""
    return shutil.get_terminal_size().columns


def wrapped(text: str, width: int) -> list[str]:
    """Return the lines of a text in this many columns; only a word that is wider than that is broken."""
    lines = Text(plain(text)).wrap(Console(), max(width, 1))
    return [line.plain.rstrip() for line in lines]


@dataclass(frozen=True)
class Column:
    """A column of a table."""

    name: str  # the header, which wraps between words
    cells: Sequence[str]  # one for each row; a cell may have several lines
    wraps: bool = False  # whether cells are words, on the left, which wrap; else numbers, on the right, which never do
    follows: bool = False  # whether it stays in one table with the column before it

    @property
    def least(self) -> int:
        """The fewest columns of the screen that it needs."""
        words = "\n".join(self.cells).split(None if self.wraps else "\n")
        most = LONG if self.wraps else math.inf
        return max(int(min(cell_len(word), most)) for word in ("", *self.name.split(), *words))


def text_column(name: str, cells: Iterable[object]) -> Column:
    """Return a column of text, which wraps between words."""
    return Column(name, [str(cell) for cell in cells], wraps=True)


def number_column(name: str, cells: Iterable[object], form: str = "", follows: bool = False) -> Column:
    """Return a column of numbers in a format, which never wrap."""
    return Column(name, [f"{cell:{form}}" for cell in cells], follows=follows)


@dataclass(frozen=True)
class Table:
    """A table to print."""

    title: str
    columns: Sequence[Column]  # all have as many cells
    keys: int = 1  # how many of the columns, from the first on, say what a row is of
    ruled: bool = False  # whether there is a line between rows


def show_table(table: Table) -> None:
    """Print a table to stdout, as wide as the screen at most."""
    width = screen_width()
    console = Console(width=width, highlight=False, force_jupyter=False)  # which would show it by itself
    console.print(Text("\n".join(wrapped(table.title, width)), style="italic"), soft_wrap=True)
    for block in stacked(table.columns, table.keys, width):
        rooms = widths(block, width)
        is_plain = not console.is_terminal and not console.options.ascii_only
        if is_plain and sum(rooms) + BESIDE * len(rooms) + EDGE <= width:
            for line in drawn_lines(block, rooms, table.ruled):
                console.file.write(f"{line}\n")
            continue
        drawn = Drawn(box=box.HEAVY_HEAD, show_lines=table.ruled)
        for column, room in zip(block, rooms, strict=True):
            side: Any = "left" if column.wraps else "right"
            drawn.add_column(Text(plain(column.name)), justify=side, width=room, overflow="fold")
        for row in zip(*(column.cells for column in block), strict=True):
            drawn.add_row(*(Text(plain(cell)) for cell in row))
        console.print(drawn, crop=False)


def drawn_lines(block: Sequence[Column], rooms: Sequence[int], ruled: bool) -> Iterator[str]:
    """Yield the lines of a table as rich draws them without a terminal, which takes it a millisecond for each row."""
    rules = ["─" * (room + 2) for room in rooms]
    heavy = ["━" * (room + 2) for room in rooms]
    yield f"┏{'┳'.join(heavy)}┓"
    yield from _row_lines([column.name for column in block], block, rooms, "┃", at_bottom=True)
    yield f"┡{'╇'.join(heavy)}┩"
    for number, row in enumerate(zip(*(column.cells for column in block), strict=True)):
        if ruled and number:
            yield f"├{'┼'.join(rules)}┤"
        yield from _row_lines(row, block, rooms, "│")
    yield f"└{'┴'.join(rules)}┘"


def _row_lines(
    cells: Sequence[str], block: Sequence[Column], rooms: Sequence[int], edge: str, at_bottom: bool = False
) -> Iterator[str]:
    """Yield the lines of one row, as many as its highest cell has."""
    parts = []
    for cell, column, room in zip(cells, block, rooms, strict=True):
        lines = []
        for line in plain(cell).split("\n"):
            is_narrow = line.isascii() and len(line) <= room
            lines += [line.rstrip()] if is_narrow else wrapped(line, room) or [""]
        parts.append([_padded(line, room, column.wraps) for line in lines])
    height = max(map(len, parts))
    for lines, room in zip(parts, rooms, strict=True):
        blank = [" " * room] * (height - len(lines))
        lines[:] = [*blank, *lines] if at_bottom else [*lines, *blank]
    for pieces in zip(*parts, strict=True):
        yield f"{edge} {f' {edge} '.join(pieces)} {edge}"


def _padded(line: str, room: int, left: bool) -> str:
    space = " " * (room - (len(line) if line.isascii() else cell_len(line)))
    return line + space if left else space + line


def show_text(text: str, indent: int = 0) -> None:
    """Print a text to stdout in lines as wide as the screen at most; those after the first begin further right."""
    first, *others = wrapped(text, screen_width() - indent - 2)
    print("\n".join([" " * indent + first, *(" " * (indent + 2) + line for line in others)]))


def stacked(columns: Sequence[Column], keys: int, width: int) -> list[list[Column]]:
    """Return the columns of each table that a table becomes in this width; all have its first `keys` columns."""
    starts = [place for place in range(keys, len(columns)) if place == keys or not columns[place].follows]
    blocks = [list(columns[:keys])]
    for start, stop in itertools.pairwise([*starts, len(columns)]):
        wider = [*blocks[-1], *columns[start:stop]]
        fits = sum(column.least + BESIDE for column in wider) + EDGE <= width
        if fits or len(blocks[-1]) == keys:
            blocks[-1] = wider
        else:
            blocks.append([*columns[:keys], *columns[start:stop]])
    return blocks


def widths(block: Sequence[Column], width: int) -> list[int]:
    """Return how wide each column is in a table of this width: the room is shared by how much each would wrap."""
    least = [column.least for column in block]
    whole = [max(map(cell_len, "\n".join([column.name, *column.cells]).split("\n"))) for column in block]
    wanted = [max(most - own, 0) for own, most in zip(least, whole, strict=True)]
    spare = max(width - EDGE - sum(own + BESIDE for own in least), 0)
    share = min(spare / max(sum(wanted), 1), 1)
    return [own + int(share * more) for own, more in zip(least, wanted, strict=True)]


def few(count: int, most: int = ROWS) -> list[int]:
    """Return the places of at most this many of `count` rows, evenly spaced, the first and the last among them."""
    shown = min(count, max(most, 2))
    return sorted({round(place * (count - 1) / max(shown - 1, 1)) for place in range(shown)})


def show_map(values: pd.DataFrame, less_is_closer: bool = False) -> None:
    """Print a matrix as shaded cells, the darker the closer; the closest cell of each row has a dot."""
    import numpy as np

    width = max(2, *(len(str(name)) for name in values.columns)) + 1
    rows, columns = few(len(values), MAP_ROWS), few(len(values.columns), MAP_WIDTH // width)
    cells = values.iloc[rows, columns].to_numpy(float)
    if not np.isfinite(cells).any():
        return
    low, high = float(np.nanmin(cells)), float(np.nanmax(cells))
    depth = (high - cells if less_is_closer else cells - low) / ((high - low) or 1)
    names, edge = [str(values.index[row]) for row in rows], max(len(str(name)) for name in values.index) + 2
    print(" " * (edge + 1) + "".join(f"{values.columns[column]!s:>{width}}" for column in columns))
    for name, own in zip(names, depth, strict=True):
        shades = ["?" if np.isnan(each) else SHADES[min(int(each * len(SHADES)), len(SHADES) - 1)] for each in own]
        closest = -1 if np.isnan(own).all() else int(np.nanargmax(own))
        drawn = [shade * (width - 1) + ("●" if place == closest else shade) for place, shade in enumerate(shades)]
        print(f"{name:>{edge}} " + "".join(drawn))
    ends = (high, low) if less_is_closer else (low, high)
    left_out = "" if len(rows) * len(columns) == values.size else "; some layers are left out"
    show_text(f"scale: blank {ends[0]:.3f} to {SHADES[-1]} {ends[1]:.3f}; ● the closest in its row{left_out}", edge)


def number_of_documents(numbers: Mapping[str, float]) -> str:
    """Return over how many documents an interval is, in words: "58 documents (as 41.3 of equal length)".

    Results of earlier versions have no number of equal length.
    """
    equal = numbers.get("effective_documents")
    return f"{numbers['documents']:.0f} documents" + (f" (as {equal:.1f} of equal length)" if equal else "")


def _seconds_between_lines() -> float:
    """Return what the environment says of progress; a ConfigError if it is not a number."""
    given = os.environ.get(PROGRESS) or str(EVERY)
    try:
        seconds = float(given)
    except ValueError:
        seconds = math.nan
    if not math.isfinite(seconds):
        raise ConfigError(f"{PROGRESS}={short(given)} must be a number of seconds; 0 shows no progress")
    return min(seconds, LONGEST_WAIT)


@contextlib.contextmanager
def watched() -> Iterator[None]:
    """Show what is being done while this is open."""
    stream, every = sys.stderr, _seconds_between_lines()
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
    """Show a line that changes; what is logged to the terminal stands above it, as what is printed to stderr does."""
    global _live
    console, began, spinner = Console(file=stream), time.monotonic(), Spinner("dots")

    def drawn() -> RenderableType:
        spinner.update(text="\n".join(wrapped(sentence(under_way(), began), console.width - 2)))
        return spinner

    handlers = [each for each in logging.root.handlers if isinstance(each, logging.StreamHandler)]
    ours = [each for each in handlers if each.stream is stream]
    _live = Live(console=console, get_renderable=drawn, transient=True, redirect_stdout=False)
    try:
        with _live:
            for handler in ours:
                handler.setStream(sys.stderr)
            yield
    finally:
        _live = None
        for handler in ours:
            handler.setStream(stream)


@contextlib.contextmanager
def _in_lines(stream: Any, every: float) -> Iterator[None]:
    ended, began = threading.Event(), time.monotonic()

    def tell() -> None:
        while not ended.wait(every):
            if activities := under_way():
                with contextlib.suppress(OSError, ValueError):  # nobody reads stderr any more
                    stream.write(f"{plain(sentence(activities, began))}\n")
                    stream.flush()

    threading.Thread(target=tell, daemon=True, name="progress").start()
    try:
        yield
    finally:
        ended.set()


def sentence(activities: Sequence[Activity], began: float) -> str:
    """Return what is being done in one line: "0:03:20 job 3 of 12: batch 4 of 33, 2.1 per second, 0:00:14 left"."""
    now, said = time.monotonic(), [_counted(each) for each in activities]
    if activities:
        inner = activities[-1]
        rate, left = inner.rate, inner.left(now)
        speed = "" if rate is None else f"{rate:,.2f} per second"
        said[-1] = ", ".join(filter(None, [said[-1], inner.note, speed, "" if left is None else f"{clock(left)} left"]))
    return f"{clock(now - began)} {': '.join(said)}"


def _counted(activity: Activity) -> str:
    if activity.total is not None:
        return f"{activity.name} {activity.done:,} of {activity.total:,}"
    return f"{activity.name} {activity.done:,}" if activity.done else activity.name


def clock(seconds: float) -> str:
    """Return seconds as a clock shows them: 0:12:30."""
    return str(timedelta(seconds=max(round(seconds), 0)))
