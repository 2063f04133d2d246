"""Models that have no file in conf/model: by the name of their repository on the hub, ORG/NAME, or by their folder."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from hydra.core.config_store import ConfigStore

from thinkalike.config.words.reading import parse_overrides, quoted
from thinkalike.errors import ConfigError

PART = r"[A-Za-z0-9_](?:[\w.-]{0,94}[A-Za-z0-9_])?"  # as the hub has names of users and of repositories
REPOSITORY = re.compile(rf"(?:{PART}/)?{PART}", re.ASCII)


def is_repository(name: str) -> bool:
    """Return whether this can be the name of a repository with its owner: ORG/NAME."""
    return "/" in name and _is_name(name)


def register_repositories(names: Iterable[str]) -> None:
    """Tell Hydra the options `model=ORG/NAME` for these repositories: each is `model=hub` with its name."""
    for name in filter(is_repository, names):
        owner, _, own = name.partition("/")
        node = {"defaults": ["/model/hub@_here_", "_self_"], "hub_id": name}
        ConfigStore.instance().store(group=f"model/{owner}", name=own, node=node)


def check_repository(key: str, name: str) -> None:
    """Check a name of a repository; some old ones have no owner.

    Raises:
        ConfigError: it can be none.
    """
    if not _is_name(name):
        raise ConfigError(f"{key}={name} is no repository of the hub, ORG/NAME; a folder is model=local model.path=DIR")


def is_folder(name: str) -> bool:
    """Return whether this is a path, or there is a folder of this name, which is not that of a model alone."""
    written = name.startswith((".", "/", "~")) or name.count("/") > 1
    return written or ("/" in name and Path(name).is_dir())


def folders_named(words: Sequence[str]) -> list[str]:
    """Return the words of a command line with `model=local model.path=DIR` for each `model=DIR`, of the target, too.

    In a sweep over several models a folder has to be given so by the user.
    """
    found: list[str] = []
    for word, override in zip(words, parse_overrides(words), strict=True):
        part, value = override.package or "model", None if override.is_sweep_override() else override.value()
        name = getattr(value, "text", value)  # what was quoted
        if override.key_or_group == "model" and isinstance(name, str) and "://" not in name and is_folder(name):
            found += [f"{word.partition('=')[0]}=local", path_of(part, name)]
        else:
            found.append(word)
    return found


def path_of(part: str, folder: str) -> str:
    """Return the word of a command line that says in which folder a model of `local` is."""
    return f"{part}.path={quoted(os.path.expanduser(folder))}"


def check_no_folder(key: str, name: str) -> None:
    """Refuse a folder or an address where a model is named.

    Args:
        key: model or model@target.

    Raises:
        ConfigError: this is an address or a path, or there is a folder of this name.
    """
    if "://" in name:
        near = "/".join(name.partition("://")[2].removeprefix("huggingface.co/").split("/")[:2])
        raise ConfigError(f"{key}={name} is an address; a model of the hub is named by its repository: {key}={near}")
    if is_folder(name):
        part = key.rpartition("@")[2]
        raise ConfigError(f"{key}={name} is a folder; in a sweep give {key}=local {part}.path={name},...")


def _is_name(name: str) -> bool:
    return bool(REPOSITORY.fullmatch(name)) and "--" not in name and ".." not in name and not name.endswith(".git")
