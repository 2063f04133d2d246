"""The overrides of a command line as plain values: what they set, and which are refused.

Hydra's grammar reads them, see `thinkalike.config.compose.read_overrides`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from thinkalike.config.groups import LISTS, option_folders, options
from thinkalike.errors import ConfigError, nearest, short

DEEPEST_OVERRIDE = 20  # nested brackets; Hydra's reader calls itself a dozen times for each
OF_HYDRA = re.compile(r"hydra\b")  # the beginning of the keys of Hydra's own settings
CALL = re.compile(r"[a-z_]+\(.*\)$")  # a value such as choice(a,b)
BETWEEN_VALUES = ","  # of a sweep
SWEPT = "hydra.sweeper.params."  # the beginning of the keys of the values that a sweep tries


@dataclass(frozen=True)
class PlainOverride:
    """An override, such as stitch.lr=0.1 or +model@target=gpt2.

    Attributes:
        text: What was written.
        key: Of the setting or the group, such as model.
        package: What stands behind @, such as target; "" without one.
        value: That of the setting, or the option; for a sweep, an object of Hydra's.
        values: What a sweep chooses from by choice(...) or commas; otherwise the value alone.
        is_addition: Whether it begins with + or ++.
        is_removal: Whether it begins with ~.
    """

    text: str
    key: str
    package: str
    value: object
    values: tuple[object, ...]
    is_addition: bool
    is_removal: bool

    def settings(self) -> Iterator[tuple[str, object]]:
        """Yield the settings that it gives, with their values, see `settings_given`."""
        yield from settings_given(self.key, self.value)

    def keys(self) -> list[str]:
        """Return the keys that it sets, each once; those of the second model begin with target.

        `stitch={lr: 0.5}` sets stitch.lr as well as stitch. Settings of Hydra's are left out.
        """
        keys: dict[str, None] = {}
        for setting in (self.key, *(setting for setting, _ in self.settings())):
            key = setting
            if self.package:
                key = self.package + setting.removeprefix(self.key)
            if not OF_HYDRA.match(key):
                keys[key] = None
        return list(keys)

    def replaced_keys(self) -> list[str]:
        """Return the keys of the settings whose values it replaces, with all that is inside them.

        The choice of an option, such as model=mine, replaces nothing inside the group: what the
        file of the option has counts. A mapping is merged, so what it gives is replaced alone.
        """
        if self.package:  # of an option, to which a package gives its place
            return []
        keys = []
        for key, value in self.settings():
            is_option = key == self.key and is_group(key)
            if not is_option and not isinstance(value, Mapping):
                keys.append(key)
        return keys

    def is_about(self, message: str) -> bool:
        """Return whether the message of an error is about this override."""
        if f"'{self.key}'" in message or f"{self.key}={short(self.value)}" in message:
            return True
        if message.startswith((f"{self.key}:", f"{self.key}.")):
            return True
        names_key = re.search(rf"\b{re.escape(self.key)}\b", message) is not None
        return self.is_addition and names_key


def settings_given(key: str, value: object) -> Iterator[tuple[str, object]]:
    """Yield the settings that the value of a key gives.

    For settings that hold others, the value is a mapping without any: two of them are merged, and
    none goes with a plain value. To a group, a plain value gives nothing but its option.
    """
    if not isinstance(value, Mapping):
        yield key, value
        return
    if not is_group(key):
        yield key, {}
    for name, inner_value in value.items():
        yield from settings_given(f"{key}.{name}", inner_value)


def is_group(name: str) -> bool:
    """Return whether a name is that of a group of options of this project."""
    return name in LISTS or any((folder / name).is_dir() for folder in option_folders())


def gives(override_key: str, key: str) -> bool:
    """Return whether the override of a key gives a value to a setting.

    The choice of a group, such as stitch=affine, gives none of its settings.
    """
    if override_key == key:
        return True
    return "." in override_key and key.startswith(f"{override_key}.")


def quoted(text: str) -> str:
    r"""Return a text in quotes, as Hydra's grammar reads it.

    Backslashes stand for themselves there, unless a quote follows.
    """

    def escaped(end: re.Match[str]) -> str:
        quote = "\\'" if end[2] else ""
        return 2 * end[1] + quote

    return "'" + re.sub(r"(\\*)('|$)", escaped, text) + "'"


def with_quoted_text(word: str, position: int | None) -> str | None:
    """Return an override with quotes around the text that Hydra cannot read.

    In lists, mappings and sweeps, only the entry is quoted that has the unreadable character.

    Args:
        word: The override.
        position: Where its unreadable character is; None if that is not known.

    Returns:
        None if the character is in no text of the value, or in one that is quoted.
    """
    key, equals, value = word.partition("=")
    beginning = len(key + equals)
    end = len(word)
    separators = _separators_of_entries(value)
    if position is None:
        if separators != BETWEEN_VALUES:  # which of the entries cannot be read is not known
            return None
    elif position < beginning:
        return None
    else:
        ends_before = [word.rfind(letter, beginning, position) + 1 for letter in separators]
        beginning = max(beginning, *ends_before)
        starts_after = [word.find(letter, position) for letter in separators]
        end = min((start for start in starts_after if start >= 0), default=end)
    text = word[beginning:end].strip()
    is_quoted = len(text) > 1 and text[0] == text[-1] and text[0] in "'\""
    if not text or is_quoted:
        return None
    return word[:beginning] + quoted(text) + word[end:]


def _separators_of_entries(value: str) -> str:
    """Return the characters that begin, end and separate the entries of an override's value."""
    if value.startswith("{"):
        return BETWEEN_VALUES + "[]{}:"
    if value.startswith("["):
        return BETWEEN_VALUES + "[]{}"
    if CALL.match(value):
        return BETWEEN_VALUES + "()"
    return BETWEEN_VALUES


# ---- what is refused


def check_depth(text: str) -> None:
    """Check that an override has few brackets inside one another."""
    depth = 0
    for letter in text:
        if letter in "[{(":
            depth += 1
        elif letter in "]})":
            depth -= 1
        if depth > DEEPEST_OVERRIDE:
            raise ConfigError(
                f"{short(text)} has more than {DEEPEST_OVERRIDE} brackets inside one another; "
                "remove some"
            )


def check_override(override: PlainOverride) -> None:
    """Check that an override is of a setting or a group, and gives it what it can have.

    Each job has all of its settings and groups, so that the default of what was removed would be
    read without a word.
    """
    line = short(override.text)
    key = override.key
    package = override.package
    if not key:
        raise ConfigError(f"{line} names no setting; write name=value")
    if key == "hydra":
        raise ConfigError(f"{line} is not a setting; Hydra's own are hydra.NAME=value")
    if override.is_removal and not OF_HYDRA.match(key):
        name = f"{key}@{package}" if package else key
        raise ConfigError(
            f"{line} removes a setting, and a job needs all of them; "
            f"leave it out, or give {name}=value"
        )
    check_option(key, override.value)
    if package and isinstance(override.value, Mapping):
        raise ConfigError(
            f"{line} has settings in place of the name of an option; "
            f"give {package}={{name: value}} for settings"
        )


def check_option(group: str, chosen: object, file: str = "") -> None:
    """Check that a group has one option.

    Hydra would mix the settings of several into a model that nobody has.

    Args:
        file: The beginning of messages on a file; "": the option is that of an override.
    """
    name = group.strip("/")
    if not name or not is_group(name):
        return
    if isinstance(chosen, list):
        raise ConfigError(
            f"{file}{name}={short(chosen)} chooses several options, and a job has one; choose one"
        )
    is_nothing = chosen is None and not file
    if is_nothing or isinstance(chosen, bool | int | float):
        written, what_it_is = _read_value(chosen)
        remedy = "write the name of an option in quotes"
        if not file:
            remedy = f"write \"{name}='{written}'\" for an option of that name"
        raise ConfigError(
            f"{file}{name}={written} is not the name of an option: without quotes it is read as "
            f"{what_it_is}; {remedy}; "
            f"{nearest(written, options(name))}"
        )


def _read_value(value: object) -> tuple[str, str]:
    """Return how a value that is no text is written, and what it is, in words."""
    if value is None:
        return "null", "no value"
    if isinstance(value, bool):
        return short(value).lower(), "a truth value"
    return short(value), "a number"


def check_given_once(overrides: Iterable[PlainOverride]) -> None:
    """Check that no two overrides of a command line give one setting different values.

    Hydra would take the last. `stitch={lr: 0.5}` gives the settings inside, so that it goes with
    stitch=affine, which chooses the others, and with stitch={steps: 9}. Hydra's own settings are
    left out, as a process that shares a job gets some of them again from the one before it.
    """
    first_of_key: dict[tuple[str, str], tuple[str, object]] = {}
    for override in overrides:
        if override.is_removal or OF_HYDRA.match(override.key):
            continue
        for setting, value in override.settings():
            key = (setting, override.package)
            first, first_value = first_of_key.setdefault(key, (override.text, value))
            is_same = first_value is value or first_value == value  # nan does not equal itself
            if not is_same:
                raise ConfigError(
                    f"{short(first)} and {short(override.text)} give one setting twice; "
                    "leave one of them out"
                )


def check_has_value(word: str) -> None:
    """Check that an override does not leave its setting open, as ???."""
    if word.partition("=")[2] == "???":
        raise ConfigError(f"{word} gives no value; give one, or leave it out")
