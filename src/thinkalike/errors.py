"""Errors that a user can act on: one line with cause and remedy. Any other error is a bug and keeps its traceback."""

from __future__ import annotations

import difflib
import importlib.util
import itertools
import os
import re
import textwrap
import unicodedata
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, NoReturn

LISTED = 40  # names that a message lists
LONGEST = 400  # letters of what a library says


class ThinkalikeError(Exception):
    """A job cannot be done as asked; the message says why and what would work."""

    def __init__(self, message: object = ""):
        super().__init__(plain_line(str(message)))


class ConfigError(ThinkalikeError):
    """A configuration value is not possible."""


class PluginError(ThinkalikeError):
    """A plugin cannot be found or imported, or does not fit the package."""


class ModelError(ThinkalikeError):
    """A model cannot be loaded, or is not what its configuration says."""


class DataError(ThinkalikeError):
    """Text is missing, unreadable or too little."""


class StoreError(ThinkalikeError):
    """The results store cannot be written, or a file in it is damaged."""


class StitchError(ThinkalikeError):
    """A stitch cannot be read, or does not fit the models that it is applied to."""


class ResourceError(ThinkalikeError):
    """The machine has too little memory or disk for a job."""


class ResultError(ThinkalikeError):
    """A computed value is not a finite number."""


class TrainingError(ThinkalikeError):
    """Training cannot go on."""


class ShareDone(Exception):
    """This process has done its share of a job; the first process does the rest."""


def one_of(key: str, value: str, choices: Iterable[str]) -> None:
    """Raise a ConfigError that names the nearest choice if a value is not among the choices for its key."""
    names = list(choices)
    if value not in names:
        raise ConfigError(f"{key}={value} is not known; {nearest(value, names)}")


def checked_path(name: str, value: object) -> str:
    """Return a path, or a name, as text; a ConfigError that names the argument if no file can have it."""
    if not isinstance(value, str | os.PathLike):
        raise ConfigError(f"{name}={value!r} must be a path: text, or a pathlib.Path")
    path = os.fspath(value)
    if not isinstance(path, str) or not path or "\0" in path:
        raise ConfigError(f"{name}={path!r} must be a path as text, which is not empty and has no character NUL")
    try:
        os.fsencode(path)
    except UnicodeEncodeError:
        raise ConfigError(f"{name}={path!r} has half of a surrogate pair, which no name of a file has") from None
    return path


def refuse_words(message: str) -> NoReturn:
    """Raise a ConfigError in the place of `argparse.ArgumentParser.error`, which prints words as they are and exits."""
    raise ConfigError(f"{message}; --help shows all options")


def check_extra(extra: str, packages: Sequence[str], what: str) -> None:
    """Raise a ModelError with the remedy unless the packages of an extra are installed; `what` says what needs it."""
    if missing := [package for package in packages if importlib.util.find_spec(package) is None]:
        raise ModelError(f"{what}, which needs {' and '.join(missing)}: pip install 'thinkalike[{extra}]'")


def nearest(value: str, names: Iterable[str]) -> str:
    """Return "did you mean …?" for a likely typo, and else the list of what there is."""
    names = sorted(names)
    lower = {name.lower(): name for name in names}
    close = difflib.get_close_matches(str(value).lower(), lower, n=1, cutoff=0.6)
    shown = names if len(names) <= LISTED else [*names[:LISTED], f"... ({len(names)} in all)"]
    return f"did you mean '{lower[close[0]]}'?" if close else "there is: " + ", ".join(shown)


def listed(names: Collection[object]) -> str:
    """Return the first few names, and their count where there are more."""
    shown = ", ".join(map(str, itertools.islice(names, 4)))
    return shown if len(names) <= 4 else f"{shown}, ... ({len(names)} in all)"


def flat(settings: Mapping[Any, Any]) -> dict[str, Any]:
    """Return nested settings by dotted names."""
    found: dict[str, Any] = {}
    for name, value in settings.items():
        inner = flat(value) if isinstance(value, Mapping) else {"": value}
        found |= {f"{name}.{key}".removesuffix("."): each for key, each in inner.items()}
    return found


def natural_order(name: str) -> tuple[list[Any], str]:
    """Return the key of an order in which 2 comes before 10."""
    return [int(part) if odd % 2 else part for odd, part in enumerate(re.split(r"(\d+)", name))], name


def chain(error: BaseException | None, suppressed: bool = False) -> Iterator[BaseException]:
    """Yield an error and those that led to it, with `suppressed` also those that `raise ... from None` hides."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        yield error
        seen.add(id(error))
        error = error.__cause__ or (error.__context__ if suppressed or not error.__suppress_context__ else None)


def one_line(error: BaseException) -> str:
    """Return what an error of a library says in one line, whole unless it is very long; nothing if it says nothing.

    Advice to run the code of a file is not passed on.
    """
    text = str(error)
    if "weights_only" in text:  # torch goes on to name the argument by which a file could run anything
        reason = re.search(r"WeightsUnpickler error: (.*?)(?:\. |\n|$)", text)
        detail = f" ({reason[1]})" if reason and reason[1] else ""
        text = f"it is damaged, or holds more than tensors{detail}, and what else it holds is never run"
    elif "allow_pickle" in text:
        text = "it holds pickled objects, which are never run; save arrays of numbers or text"
    elif "trust_remote_code" in text:
        text = "it needs code of its own repository, and that is never run"
    return textwrap.shorten(text, LONGEST, placeholder=" ...")


def panicked(error: BaseException) -> bool:
    """Return whether an error is a panic of a library in Rust, which is no Exception, so that nobody handles it.

    That of tokenizers panics where a pattern of a tokenizer.json takes too many steps on a text.
    """
    return type(error).__name__ == "PanicException"


def short(value: Any) -> str:
    """Return a value as a message shows it: one line of printable characters, and not a whole file of numbers."""
    try:
        written = str(value)
    except ValueError:  # Python writes no integer of more than 4300 digits
        written = "an integer of thousands of digits"
    text = "".join(each if each.isprintable() else " " for each in written)
    return text if len(text) <= 60 else f"{text[:57]}..."


def plain(text: str) -> str:
    """Return a text without control characters, by which a forged name could write anywhere on a terminal.

    Halves of surrogate pairs, which no encoding can write, are replaced as well, and so are the separators of lines
    and paragraphs, by which one line would become several.
    """
    if text.isascii() and text.replace("\n", "").isprintable():  # nearly all texts, and lists of results have many
        return text
    hidden = ("Cc", "Cf", "Cs", "Zl", "Zp")
    return "".join("\ufffd" if unicodedata.category(each) in hidden and each != "\n" else each for each in text)


def plain_line(text: str) -> str:
    """Return a text as `plain` does, in one line: a name with line breaks would forge further lines of a list."""
    return plain(text).replace("\n", " ")
