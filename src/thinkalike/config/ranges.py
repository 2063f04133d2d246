"""The range of every number of a configuration: it is declared where the number is, and checked in one place.

    @dataclass
    class StitchConfig(Checked, part="stitch"):
        steps: int = ranged(2000, least=1, most=10**7)

A list or dictionary of numbers declares the range of each of them. None, where a field may be None, is in every range.
An amount of memory is declared with `sized`, and written with its unit: 8GB.
"""

from __future__ import annotations

import dataclasses
import math
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

from thinkalike.errors import ConfigError

SEEDS = 2**32 - 1  # the largest seed that every library takes
COUNTS = 10**12  # the largest count of tokens: a product of two counts that are bounded so fits 64 bits
STEPS = 10**7
TOKENS_AT_ONCE = 10**8
CONTEXT = 10**7
THREADS = 1024

SIZE = re.compile(r"(\d{1,9}(?:\.\d+)?) ?([kmgt]?)(i?)b", re.IGNORECASE)  # 8GB, 500 MB, 1.5GiB
MOST_BYTES = 2**60

TEXTS = ("str", "Optional[str]")  # annotations of words
WORDS = ("list[str]", "Optional[list[str]]")  # annotations of lists of words

Number = int | float


@dataclass(frozen=True)
class Range:
    """The numbers between two ends: `least` and `most` belong to it, `above` and `below` do not; nan never does."""

    least: Number | None = None
    above: Number | None = None
    most: Number | None = None
    below: Number | None = None

    def __contains__(self, value: object) -> bool:
        if isinstance(value, bool) or not isinstance(value, int | float) or not _finite(value):
            return False
        low = self.least is None or value >= self.least
        high = self.most is None or value <= self.most
        return (
            low and high and (self.above is None or value > self.above) and (self.below is None or value < self.below)
        )

    def __str__(self) -> str:
        positive = self.above == 0 or self.least == 1
        low = "positive" if positive else f"at least {self.least}" if self.above is None else f"more than {self.above}"
        high = f"at most {self.most}" if self.most is not None else f"less than {self.below}"
        return f"{low} and {'finite' if self.most is None and self.below is None else high}"


def ranged(
    default: Any,
    *,
    least: Number | None = None,
    above: Number | None = None,
    most: Number | None = None,
    below: Number | None = None,
    neutral: bool = False,
) -> Any:
    """Return a dataclass field of a number, or of a list or dictionary of numbers, with its range.

    Args:
        default: the value, or a function that makes a list anew.
        least, above, most, below: see `Range`.
        neutral: whether it cannot change the numbers of any job.
    """
    metadata = {"range": Range(least, above, most, below), "neutral": neutral}
    if callable(default):
        return dataclasses.field(default_factory=default, metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


def sized(default: str | None) -> Any:
    """Return a dataclass field of an amount of memory with its unit, which cannot change the numbers of any job."""
    return dataclasses.field(default=default, metadata={"size": True, "neutral": True})


def bytes_of(key: str, size: str) -> float:
    """Return the bytes of an amount of memory such as 8GB, 8 GiB or 500MB.

    Raises:
        ConfigError: it is none.
    """
    written = SIZE.fullmatch(str(size).strip())
    if written:
        number, prefix, binary = written.groups()
        amount = float(number) * (1024 if binary else 1000) ** " kmgt".index(prefix.lower() or " ")
        if 1 <= amount <= MOST_BYTES and not (binary and not prefix):
            return amount
    raise ConfigError(f"{key}={_short(size)} must be a positive amount of memory with its unit, such as 8GB or 500MiB")


class Checked:
    """A schema whose numbers are checked when it is made.

    Args:
        part: what the keys of its fields begin with on a command line.

    Raises:
        ConfigError: a number is out of its range, an amount of memory is none, a word is empty, as one of a shell's
            variable that is not set, or a list of words holds something else.
    """

    part: ClassVar[str] = ""
    paths: ClassVar[tuple[str, ...]] = ()  # the fields that hold a path or a list of them, where ~ is the home folder

    def __init_subclass__(cls, part: str | None = None, **more: Any) -> None:
        super().__init_subclass__(**more)
        if part is not None:
            cls.part = part

    def __post_init__(self) -> None:
        for name in self.paths:
            setattr(self, name, _at_home(getattr(self, name)))
        for item in dataclasses.fields(self):  # type: ignore[arg-type]
            key, value = f"{self.part}.{item.name}" if self.part else item.name, getattr(self, item.name)
            if "range" in item.metadata:
                check_range(key, value, item.metadata["range"])
            elif "size" in item.metadata and value is not None:
                bytes_of(key, value)
            elif str(item.type) in TEXTS and value not in (None, item.default) and not value.strip():
                raise ConfigError(f"{key}= is empty; leave it out, or say what it is")
            elif str(item.type) in WORDS and not all(isinstance(each, str) and each.strip() for each in value or []):
                raise ConfigError(f"{key}={_short(value)} must be a list of words, none of them empty")


def _at_home(path: Any) -> Any:
    """Return a path or a list of them with the home folder in the place of ~; anything else as it is."""
    if isinstance(path, list):
        return [_at_home(each) for each in path]
    return os.path.expanduser(path) if isinstance(path, str) else path


def check_range(key: str, value: Any, allowed: Range) -> None:
    """Check a number, or all numbers in a list or dictionary; None passes.

    Raises:
        ConfigError: one of them is out of range, or is no number.
    """
    several = isinstance(value, list | tuple | dict)
    for each in _leaves(value):
        if each not in allowed:
            which = f": {_short(each)}" if several else ""
            raise ConfigError(f"{key}={_short(value)}{which} must be {allowed}")


def _leaves(value: Any) -> Iterator[Any]:
    """Yield the numbers of nested lists and dictionaries; nothing for None."""
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list | tuple):
        for each in value:
            yield from [None] if each is None else _leaves(each)
    elif value is not None:
        yield value


def _finite(value: Number) -> bool:
    return isinstance(value, int) or math.isfinite(value)


def _short(value: Any) -> str:
    """Return a value as a message shows it: one line, and not a whole file of numbers."""
    text = " ".join(str(value).split())
    return text if len(text) <= 60 else f"{text[:57]}..."
