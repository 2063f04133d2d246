"""The overrides of a command line, `key=value`, as Hydra reads them; `~` stands for the home folder."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from hydra.core.config_store import ConfigStore
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import ChoiceSweep, Override
from hydra.errors import HydraException

from thinkalike.errors import ConfigError

HOME = re.compile(r"""([=\[({,:'"]\s*)(~[\w.-]*)(?=[/\])},'"]|$)""")  # where a path may begin
KEY = re.compile(r"[~+]{0,2}[A-Za-z_$][\w$./:@-]*", re.ASCII)
PART = r"[A-Za-z0-9_](?:[\w.-]{0,94}[A-Za-z0-9_])?"  # the hub's rule for names of users and repositories
REPOSITORY = rf"^(?:{PART}/)?{PART}$"


def at_home(words: Sequence[str]) -> list[str]:
    """Return words with home folders for `~` and `~user` where a path may begin in a value.

    A plain value with accents, spaces or signs, which Hydra cannot read, is put in quotes.
    """
    found = [HOME.sub(lambda home: home[1] + os.path.expanduser(home[2]), word) for word in words]
    return [word if _parsed(word) else _in_quotes(word) for word in found]


def is_override(word: str) -> bool:
    """Return whether a word of a command line is an override, and not an option of Hydra or its value."""
    return not word.strip() or word[0] in "+~" or ("=" in word and word[0] != "-")


def key_of(word: str) -> str:
    """Return the key of an override; the group of the second model is `target`, as its settings are."""
    return word.lstrip("+~").partition("=")[0].replace("model@target", "target")


def parse_overrides(words: Sequence[str]) -> list[Override]:
    """Return the overrides of a command line.

    Raises:
        ConfigError: one cannot be read.
    """
    found = []
    for word in words:
        if (override := _parsed(word)) is None:
            raise ConfigError(f"cannot read {word!r}; write key=value, with quotes around a value that has signs")
        found.append(override)
    return found


@cache
def _parsed(word: str) -> Override | None:
    """Return an override, or None for a word that Hydra cannot read."""
    try:
        return OverridesParser.create().parse_overrides([word])[0]
    except HydraException:
        return None


def _in_quotes(word: str) -> str:
    key, equals, value = word.partition("=")
    quoted_word = f"{key}={quoted(value)}"
    plain = equals and value[:1] not in ("", "~") and KEY.fullmatch(key) and not re.search(r"[\[\]{}()'\",]", value)
    return quoted_word if plain and _parsed(quoted_word) else word


def values_of(override: Override) -> list[Any]:
    """Return the values of an override, several in a sweep; a quoted one comes without quotes."""
    value = override.value()
    values = value.list if isinstance(value, ChoiceSweep) else [value]
    return [getattr(each, "text", each) for each in values]


def quoted(value: Any) -> str:
    """Return a value as an override writes it."""
    if isinstance(value, list | tuple):
        return f"[{','.join(map(quoted, value))}]"
    if isinstance(value, dict):
        return f"{{{','.join(f'{key}:{quoted(each)}' for key, each in value.items())}}}"
    if not isinstance(value, str):
        return "null" if value is None else str(value)
    escaped = re.sub(r"(\\*)('|$)", lambda end: 2 * end[1] + ("\\'" if end[2] else ""), value)
    return f"'{escaped}'"


def is_repository(name: str) -> bool:
    """Return whether this can be the name of a repository with its owner: ORG/NAME."""
    is_name = re.match(REPOSITORY, name, re.ASCII) and "--" not in name and ".." not in name
    return "/" in name and bool(is_name) and not name.endswith(".git")


def register_repositories(group: str, names: Iterable[str]) -> None:
    """Tell Hydra the options `model=ORG/NAME`, or `data=`, for these repositories: each is `hub` with its name."""
    for name in names:
        *owner, own = name.split("/")
        node = {"defaults": [f"/{group}/hub@_here_", "_self_"], "hub_id": name}
        node |= {"name": name} if group == "data" else {}
        ConfigStore.instance().store(group="/".join([group, *owner]), name=own, node=node)


def is_folder(name: str) -> bool:
    """Return whether this is a path, a GGUF file, or a folder that exists and is not named like a model alone."""
    written = name.startswith((".", "/", "~")) or name.count("/") > 1 or name.endswith(".gguf")
    return "://" not in name and (written or ("/" in name and Path(name).is_dir()))


def folders_named(words: Sequence[str]) -> list[str]:
    """Return the words of a command line with `model=local model.path=DIR` for each `model=DIR`, of the target, too.

    In a sweep over several models the user writes it so.
    """
    found: list[str] = []
    for word, override in zip(words, parse_overrides(words), strict=True):
        is_one = override.key_or_group == "model" and not override.is_sweep_override()
        name = values_of(override)[0] if is_one else None
        if isinstance(name, str) and is_folder(name):
            found += [f"{word.partition('=')[0]}=local", path_of(override.package or "model", name)]
        else:
            found.append(word)
    return found


def path_of(part: str, folder: str) -> str:
    """Return the override that says in which folder a model of `local` is."""
    return f"{part}.path={quoted(os.path.expanduser(folder))}"
