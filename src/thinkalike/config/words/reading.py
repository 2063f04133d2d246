"""The words of a command line as Hydra reads them: `~` stands for the home folder, and what cannot be read says why."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Sequence
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import ChoiceSweep, Override
from hydra.errors import HydraException

from thinkalike.errors import ConfigError

HOME = re.compile(r"""([=\[({,:'"]\s*)(~[\w.-]*)(?=[/\])},'"]|$)""")  # where a path may begin
KEY = re.compile(r"[~+]{0,2}[A-Za-z_$][\w$./:@-]*", re.ASCII)
PLAIN = re.compile(r"[\w./+*-]+", re.ASCII)
PAIRS = {"(": ")", "[": "]", "{": "}"}


def at_home(words: Sequence[str]) -> list[str]:
    """Return words in whose values `~` and `~user`, where a path may begin, are the folders that they stand for."""
    return [HOME.sub(lambda found: found[1] + os.path.expanduser(found[2]), word) for word in words]


def is_override(word: str) -> bool:
    """Return whether a word of a command line is an override, and not an option of Hydra or its value."""
    return not word.strip() or word[0] in "+~" or ("=" in word and word[0] != "-")


def parse_overrides(words: Sequence[str]) -> list[Override]:
    """Return the overrides of a command line.

    Raises:
        ConfigError: one cannot be read; the message names it, and says what would be right.
    """
    try:
        return _read(words)
    except HydraException:
        for word in words:
            _check(word)
        raise


def values_of(override: Override) -> list[Any]:
    """Return the values of an override: several in a sweep; what was quoted there comes without quotes."""
    value = override.value()
    values = value.list if isinstance(value, ChoiceSweep) else [value]
    return [getattr(each, "text", each) for each in values]


def quoted(value: Any) -> str:
    """Return a value as a word of the command line has it."""
    if isinstance(value, list | tuple):
        return f"[{','.join(map(quoted, value))}]"
    if isinstance(value, dict):
        return f"{{{','.join(f'{key}:{quoted(each)}' for key, each in value.items())}}}"
    if not isinstance(value, str):
        return "null" if value is None else str(value)
    escaped = re.sub(r"(\\*)('|$)", lambda end: 2 * end[1] + ("\\'" if end[2] else ""), value)
    return f"'{escaped}'"


def _read(words: Sequence[str]) -> list[Override]:
    return OverridesParser.create().parse_overrides(list(words))


def _check(word: str) -> None:
    """Raise a ConfigError if Hydra cannot read this word."""
    try:
        _read([word])
    except HydraException as error:
        raise ConfigError(f"cannot read '{word}': {_fault(word, error)}") from None


def _fault(word: str, error: HydraException) -> str:
    """Return what is wrong with a word, and what would be right."""
    key, equals, value = word.partition("=")
    if not word.strip():
        return "a word of the command line is empty; write key=value"
    if not KEY.fullmatch(key):
        return f"'{key}' can be no setting; write key=value without spaces around ="
    if not equals:
        return "it has no value; write key=value"
    if value.startswith("="):
        return "write one = between a setting and its value"
    if mark := _unpaired(value):
        return f"the {mark} is not {'opened' if mark in PAIRS.values() else 'closed'}"
    if nobody := HOME.search(word):
        return f"{nobody[2]} is no one's home folder here; quote what is no folder"
    if evaluated := next((line for line in str(error).splitlines() if "while evaluating" in line), None):
        return evaluated  # such as range(5,1,0)
    if better := next(filter(_can_be_read, _with_quotes(key, value)), None):
        return f"quote a value with spaces, accents or signs: {shlex.quote(better)}"
    return next(iter(str(error).splitlines()))


def _can_be_read(word: str) -> bool:
    try:
        return bool(_read([word]))
    except HydraException:
        return False


def _unpaired(value: str) -> str:
    """Return a bracket of a value that has no beginning, the first bracket or quote that has no end, or nothing."""
    waiting: list[str] = []
    for mark in value:
        if waiting and waiting[-1] in "'\"":
            if mark == waiting[-1]:
                waiting.pop()
        elif mark in "'\"" or mark in PAIRS:
            waiting.append(mark)
        elif mark in PAIRS.values():
            if not waiting or mark != PAIRS[waiting[-1]]:
                return waiting[0] if waiting else mark
            waiting.pop()
    return waiting[0] if waiting else ""


def _with_quotes(key: str, value: str) -> list[str]:
    """Return an override with its value in quotes; of a list each item that needs them."""
    if value.startswith("[") and value.endswith("]"):
        items = [each.strip() for each in value[1:-1].split(",")]
        return [f"{key}=[{','.join(each if PLAIN.fullmatch(each) else _in_quotes(each) for each in items)}]"]
    return [f"{key}={_in_quotes(value)}"]


def _in_quotes(text: str) -> str:
    mark = "'" if '"' in text else '"'
    return f"{mark}{text}{mark}"
