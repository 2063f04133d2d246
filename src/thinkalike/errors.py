"""Errors that a user can act on: one line with cause and remedy.

Any other error is a bug and keeps its traceback.
"""

from __future__ import annotations

import contextlib
import difflib
import importlib.util
import itertools
import os
import re
import textwrap
import unicodedata
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any, NoReturn, TypeGuard

from thinkalike.advice import named_setting

LISTED = 40  # names that a message lists
LISTED_IN_SENTENCE = 4  # names that a sentence lists
LEAST_SIMILARITY = 0.6  # of a typo to the name that was meant, as difflib counts
LONGEST_REASON = 400  # letters of what a library says
LONGEST_VALUE = 60  # letters of a value in a message
LONGEST_FILE_NAME = 255  # bytes of the name of a file or folder, on all common file systems
# control and format characters, surrogates, and the separators of lines and paragraphs
HIDDEN_CATEGORIES = ("Cc", "Cf", "Cs", "Zl", "Zp")
# those of them that a table or a terminal cannot hold, and not the format characters of scripts
UNWRITABLE_CATEGORIES = ("Cc", "Cs", "Zl", "Zp")
REPLACEMENT = "\ufffd"
# surrogates by which Python reads bytes of a file name that are not UTF-8; they end with the byte
BYTES_OF_NAMES = range(0xDC80, 0xDD00)


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


@contextlib.contextmanager
def refusing_data(compared: str, in_words: Callable[[str], str] = str) -> Iterator[None]:
    """Turn what a measure raises of its data within the context into a DataError.

    A measure is a function of arrays, which refuses them by a ValueError.

    Args:
        compared: What is compared, with which the message begins.
        in_words: Returns what the measure says with the names that the user knows.

    Raises:
        DataError: A ValueError was raised within the context.
    """
    try:
        yield
    except ValueError as error:
        raise DataError(f"{compared}: {in_words(str(error))}") from error


def one_of(key: str, value: str, choices: Iterable[str]) -> None:
    """Raise a ConfigError with the nearest choice if a value is not one of the choices."""
    names = list(choices)
    if value not in names:
        raise ConfigError(f"{named_setting(key, value)} is not known; {nearest(value, names)}")


def in_home(path: str | os.PathLike[str]) -> Path:
    """Return a path with the home folder in the place of ~; that of an unknown user stays ~user."""
    return Path(os.path.expanduser(path))


def checked_path(name: str, value: object) -> str:
    """Return a path as text.

    Raises:
        ConfigError: no file can have this path, or a name in it is too long; the message names the
            argument.
    """
    if not isinstance(value, str | os.PathLike):
        raise ConfigError(f"{name}={value!r} must be a path: text, or a pathlib.Path")
    path = os.fspath(value)
    if not isinstance(path, str) or not path or "\0" in path:
        raise ConfigError(f"{name}={path!r} must be a path as text, which is not empty and has no character NUL")
    try:
        os.fsencode(path)
    except UnicodeEncodeError:
        raise ConfigError(f"{name}={path!r} has half of a surrogate pair, which no name of a file has") from None
    for part in Path(path).parts:
        if len(os.fsencode(part)) > LONGEST_FILE_NAME:
            raise ConfigError(
                f"{name}={short(path)} has a name of more than {LONGEST_FILE_NAME} bytes, which no file has"
            )
    return path


def refuse_words(message: str) -> NoReturn:
    """Raise a ConfigError; `argparse.ArgumentParser.error`, which this replaces, exits instead."""
    raise ConfigError(f"{message}; --help shows all options")


def check_extra(extra: str, packages: Sequence[str], subject: str) -> None:
    """Check that the packages of an extra are installed.

    Args:
        subject: what needs them.

    Raises:
        ModelError: one is missing; the message has the command that installs it.
    """
    missing = [package for package in packages if importlib.util.find_spec(package) is None]
    if missing:
        needed = " and ".join(missing)
        raise ModelError(f"{subject}, which needs {needed}: pip install 'thinkalike[{extra}]'")


def nearest(value: str, names: Iterable[str]) -> str:
    """Return "did you mean …?" for a likely typo, and else the list of what there is."""
    names = sorted(names)
    if not names:
        return "there is none"
    name_of_lower = {name.lower(): name for name in names}
    close = difflib.get_close_matches(str(value).lower(), name_of_lower, n=1, cutoff=LEAST_SIMILARITY)
    if close:
        return f"did you mean '{name_of_lower[close[0]]}'?"
    shown = names
    if len(names) > LISTED:
        shown = [*names[:LISTED], f"... ({len(names)} in all)"]
    return "there is: " + ", ".join(shown)


def listed(names: Collection[object]) -> str:
    """Return the first few names, and their count where there are more."""
    shown = ", ".join(map(str, itertools.islice(names, LISTED_IN_SENTENCE)))
    if len(names) <= LISTED_IN_SENTENCE:
        return shown
    return f"{shown}, ... ({len(names)} in all)"


def flat(settings: Mapping[Any, Any]) -> dict[str, Any]:  # a file may have numbers as names
    """Return nested settings by dotted names."""
    by_name: dict[str, Any] = {}
    for name, value in settings.items():
        if isinstance(value, Mapping):
            for inner_name, inner_value in flat(value).items():
                by_name[f"{name}.{inner_name}"] = inner_value
        else:
            by_name[str(name)] = value
    return by_name


def natural_order(name: str) -> tuple[list[str | Decimal], str]:
    """Return the sort key of an order in which 2 comes before 10."""
    key: list[str | Decimal] = []
    # The split gives texts at even positions and numbers at odd ones, so types never mix.
    for position, piece in enumerate(re.split(r"(\d+)", name)):
        is_number = position % 2 == 1
        if is_number:
            key.append(Decimal(piece))  # Python reads no integer of more than 4300 digits
        else:
            key.append(piece)
    return key, name


def chain(error: BaseException | None, suppressed: bool = False) -> Iterator[BaseException]:
    """Yield an error and those that led to it.

    Args:
        suppressed: whether to yield those that `raise ... from None` hides, too.
    """
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        yield error
        seen.add(id(error))
        if error.__cause__ is not None:
            error = error.__cause__
        elif suppressed or not error.__suppress_context__:
            error = error.__context__
        else:
            error = None


def one_line(error: BaseException) -> str:
    """Return what an error of a library says in one line; empty if it says nothing.

    It is cut if it is very long. Advice to run the code of a file is not passed on, nor is the
    number of an error of the operating system, which has a sentence.
    """
    text = str(error)
    if is_of_system(error):
        text = text.removeprefix(f"[Errno {error.errno}] ")
    if "weights_only" in text:  # torch then names the argument by which a file could run anything
        reason = re.search(r"WeightsUnpickler error: (.*?)(?:\. |\n|$)", text)
        detail = ""
        if reason and reason[1]:
            detail = f" ({reason[1]})"
        text = f"it is damaged, or holds more than tensors{detail}, and what else it holds is never run"
    elif "Object arrays" in text:
        text = "it holds pickled objects, which are never run; save arrays of numbers or text"
    elif "allow_pickle" in text:  # NumPy names it of all that it cannot read, whatever that is
        text = (
            "it is damaged, or holds something other than plain arrays with short headers, "
            "which is never run; save arrays of numbers or text"
        )
    elif "trust_remote_code" in text:
        text = "it needs code of its own repository, and that is never run"
    return textwrap.shorten(text, LONGEST_REASON, placeholder=" ...")


def is_of_system(error: BaseException) -> TypeGuard[OSError]:
    """Return whether an error is the operating system's, which says in words what happened."""
    return isinstance(error, OSError) and error.strerror is not None


def reason_in_words(error: BaseException) -> str:
    """Return what any error says in one line, such as "KeyError: 'loss'" or "Permission denied: 'a.txt'".

    The message of a library may be a mere name, so that it needs the name of its class. That of the
    operating system needs none.
    """
    if is_of_system(error):
        return one_line(error)
    return f"{type(error).__name__}: {one_line(error)}"


def panicked(error: BaseException) -> bool:
    """Return whether an error is a panic of a library in Rust.

    A panic is not an Exception, so nobody handles it. The library tokenizers panics where a
    pattern of a tokenizer.json takes too many steps on a text.
    """
    return type(error).__name__ == "PanicException"


def short(value: object) -> str:
    """Return a value as a message shows it: one short line of printable characters."""
    try:
        written = str(value)
    except ValueError:  # Python writes no integer of more than 4300 digits
        written = "an integer of thousands of digits"
    text = "".join(letter if letter.isprintable() else " " for letter in written)
    if len(text) <= LONGEST_VALUE:
        return text
    return f"{text[: LONGEST_VALUE - 3]}..."


def plain(text: str) -> str:
    """Return a text without control characters, by which a forged name could write on a terminal.

    Halves of surrogate pairs, which no encoding can write, are replaced as well, and so are the
    separators of lines and paragraphs, by which one line would become several.
    """
    # nearly all texts are such, and lists of results have many
    if text.isascii() and text.replace("\n", "").isprintable():
        return text
    letters = []
    for letter in text:
        is_hidden = unicodedata.category(letter) in HIDDEN_CATEGORIES and letter != "\n"
        if is_hidden:
            letters.append(REPLACEMENT)
        else:
            letters.append(letter)
    return "".join(letters)


def plain_line(text: str) -> str:
    """Return a plain text in one line: line breaks in a name would forge lines of a list."""
    return plain(text).replace("\n", " ")


def plain_name(name: str) -> str:
    r"""Return the name of a file, a folder or a model as tables, pages and terminals can hold it.

    A name may have any characters but NUL and the slash: control characters, line breaks, and
    bytes that are not UTF-8. They are written as in a text of Python, such as \r or \xf6, so that
    different names stay different. The file is opened by its own name.
    """
    return "".join(map(_as_written, name))


def _as_written(letter: str) -> str:
    r"""Return a character, or what stands for it in a name, such as \r."""
    if unicodedata.category(letter) not in UNWRITABLE_CATEGORIES:
        return letter
    if ord(letter) in BYTES_OF_NAMES:
        return f"\\x{ord(letter) % 256:02x}"
    return letter.encode("unicode_escape").decode()
