"""What --help says, in lines that fit the screen."""

from __future__ import annotations

import re
import shutil
from textwrap import fill

from omegaconf import OmegaConf

from thinkalike.config.compose import options
from thinkalike.config.words.folders import CONF

_TWO_COLUMNS = re.compile(r"(?P<words>\s*\S.*?) {2,}(?P<meaning>\S.*)")
_MOST = 34  # columns that settings may take before what they mean
_DEEPER = 6  # columns, where settings stand alone above what they mean


def register_help() -> None:
    """Tell OmegaConf the resolvers of --help: all groups with their options, and a text that is made to fit."""
    OmegaConf.register_new_resolver("groups", _groups, replace=True)
    OmegaConf.register_new_resolver("fitted", _fitted, replace=True)


def _groups() -> str:
    names = sorted(folder.name for folder in CONF.iterdir() if folder.is_dir() and folder.name != "hydra")
    return "\n".join(f"{name}: {', '.join(options(name))}" for name in names)


def _fitted(text: str) -> str:
    """Return a text whose lines fit the screen, but for commands, which are copied and stay in one line."""
    width = shutil.get_terminal_size().columns
    return "\n".join(line if len(line) <= width else _line(line, width) for line in text.splitlines())


def _line(line: str, width: int) -> str:
    columns = _TWO_COLUMNS.fullmatch(line)
    if columns is None:
        start = len(line) - len(line.lstrip())
        return line if line.startswith("python ") else _filled(line[:start], line[start:], width, max(start, 2))
    place = columns.start("meaning")
    if place <= _MOST:
        return _filled(line[:place], line[place:], width, place)
    return f"{columns['words']}\n{_filled(' ' * _DEEPER, columns['meaning'], width, _DEEPER)}"


def _filled(start: str, text: str, width: int, indent: int) -> str:
    return fill(text, width, initial_indent=start, subsequent_indent=" " * indent, break_on_hyphens=False,
                break_long_words=False)  # fmt: skip
