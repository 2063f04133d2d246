"""Models by the name of their repository on the hub, ORG/NAME, which have no file in conf/model."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from hydra.core.config_store import ConfigStore

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
        remedy = f"give {key}=local {part}.path={name}"
        if is_repository(name):
            remedy += ", or call from elsewhere for the repository of this name"
        raise ConfigError(f"{key}={name} is a folder; {remedy}")


def _is_name(name: str) -> bool:
    return bool(REPOSITORY.fullmatch(name)) and "--" not in name and ".." not in name and not name.endswith(".git")
