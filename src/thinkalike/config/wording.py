"""The words of a command line as Hydra reads them: `~` stands for the home folder, and what cannot be read says why."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Callable, Sequence
from typing import TypeVar

from thinkalike.errors import ConfigError

HOME = re.compile(r"""(?<=[=\[,'"])~[\w.-]*(?=[/\],'"]|$)""")
KEY = re.compile(r"[~+]{0,2}[A-Za-z_$][\w$./:@-]*", re.ASCII)
PLAIN = re.compile(r"[\w./+-]+", re.ASCII)
PAIRS = {"(": ")", "[": "]", "{": "}"}
T = TypeVar("T")


def at_home(words: Sequence[str]) -> list[str]:
    """Return words in whose values `~` and `~user`, where a path may begin, are the folders that they stand for."""
    return [HOME.sub(lambda found: os.path.expanduser(found[0]), word) for word in words]


def read_words(words: Sequence[str], read: Callable[[list[str]], T], error: type[Exception]) -> T:
    """Return what `read` makes of words.

    Args:
        error: what it raises of words that it cannot read.

    Raises:
        ConfigError: it cannot; the message names the first word that is at fault, and what would be right.
    """
    try:
        return read(list(words))
    except error:
        for word in words:
            try:
                read([word])
            except error as why:
                raise ConfigError(f"cannot read '{word}': {_fault(word, why, read, error)}") from None
        raise


def _fault(word: str, why: Exception, read: Callable[[list[str]], object], error: type[Exception]) -> str:
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
    if unclosed := _unclosed(value):
        return f"{unclosed} is not closed"
    for better in _quoted(key, value):
        try:
            read([better])
            return f"quote what holds other characters than letters of ASCII: {shlex.quote(better)}"
        except error:
            pass
    lines = str(why).splitlines()
    return lines[1] if len(lines) > 1 and "while evaluating" in lines[1] else lines[0]


def _unclosed(value: str) -> str:
    """Return the first bracket or quote of a value that has no end, or nothing."""
    waiting: list[str] = []
    for mark in value:
        if waiting and waiting[-1] in "'\"":
            if mark == waiting[-1]:
                waiting.pop()
        elif mark in "'\"" or mark in PAIRS:
            waiting.append(mark)
        elif waiting and mark == PAIRS[waiting[-1]]:
            waiting.pop()
    return waiting[0] if waiting else ""


def _quoted(key: str, value: str) -> list[str]:
    """Return an override with its value in quotes; of a list each item that needs them."""
    if value.startswith("[") and value.endswith("]"):
        items = [each.strip() for each in value[1:-1].split(",")]
        return [f"{key}=[{','.join(each if PLAIN.fullmatch(each) else _in_quotes(each) for each in items)}]"]
    return [f"{key}={_in_quotes(value)}"]


def _in_quotes(text: str) -> str:
    mark = "'" if '"' in text else '"'
    return f"{mark}{text}{mark}"
