"""Configurations of the user's own: folders that are searched before `conf/`, and files of overrides.

python train.py --config-dir mine model=ours            mine/model/ours.yaml is an option like any other
python train.py --config-dir mine --config-name long    the overrides in mine/long.yaml, then those given
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import yaml
from hydra.core.config_search_path import ConfigSearchPath, SearchPathQuery
from hydra.plugins.search_path_plugin import SearchPathPlugin

from thinkalike.config.overrides import is_override, key_of, quoted
from thinkalike.errors import ConfigError, nearest

_CHECKOUT = Path(__file__).resolve().parents[3] / "conf"
CONF = _CHECKOUT if _CHECKOUT.is_dir() else Path(__file__).resolve().parents[1] / "conf"  # where a wheel has it

OWN = "THINKALIKE_CONFIG"  # environment variable: the user's folders, also for the workers of a sweep
FOLDER = ("--config-dir", "-cd", "--config-path", "-cp")  # Hydra's names of the option
NAME = ("--config-name", "-cn")


class OwnFolders(SearchPathPlugin):
    """Lets Hydra search the user's folders before the one that ships."""

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        for folder in _own():
            search_path.prepend("own", f"file://{folder}", anchor=SearchPathQuery(provider="main"))


def configurations(path: str) -> Iterator[Path]:
    """Yield the files or folders of this path in all folders of configurations, the user's first."""
    yield from (found for root in (*_own(), CONF) if (found := root / path).exists())


def _own() -> list[Path]:
    return [Path(folder) for folder in os.environ.get(OWN, "").split(os.pathsep) if folder]


def with_own(entry_point: str, words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Replace the options of own configurations in a command line.

    Returns:
        The other words, with the overrides of the files before those that were given, which win; and the options that
        name the folders again.

    Raises:
        ConfigError: a folder or a file does not exist, or holds something else.
    """
    rest, paths, names, waiting = list[str](), list[str](), list[str](), iter(words)
    for word in waiting:
        option, equals, value = word.partition("=")
        if option in (*FOLDER, *NAME):
            (names if option in NAME else paths).append(value if equals else next(waiting, ""))
        else:
            rest.append(word)
    folders = [Path(path.removeprefix("file://")).expanduser().resolve() for path in paths]
    if folders:
        os.environ[OWN] = os.pathsep.join(map(str, folders))
    for folder in _own():
        if not folder.is_dir() or (folder / f"{entry_point}.yaml").exists():
            raise ConfigError(f"{folder} must be a folder of configurations, without a {entry_point}.yaml")
    given = {key_of(word) for word in rest if is_override(word)}
    own = [word for name in names for word in words_of(entry_point, name) if key_of(word) not in given]
    first = next((place for place, word in enumerate(rest) if is_override(word)), len(rest))
    return [*rest[:first], *own, *rest[first:]], [f"--config-dir={folder}" for folder in folders]


def words_of(entry_point: str, name: str, above: Sequence[str] = ()) -> list[str]:
    """Return the overrides that a file of the user's stands for: its choices, then its settings.

    Args:
        above: the files whose defaults name this one.

    Raises:
        ConfigError: the file does not exist, holds something else, or names itself.
    """
    name = name.removesuffix(".yaml").strip("/")
    if name in (entry_point, f"{entry_point}_schema"):
        return []
    path = next((found for root in _own() if name and (found := root / f"{name}.yaml").is_file()), None)
    if path is None or name in above:
        names = [path.stem for root in _own() for path in root.glob("*.yaml")]
        raise ConfigError(f"--config-name={name} is not in a --config-dir; {nearest(name, names)}")
    with path.open() as file:  # whose name an error of YAML gives
        settings, words = yaml.safe_load(file) or {}, list[str]()
    if not isinstance(settings, dict) or not isinstance(settings.get("defaults", []), list):
        raise ConfigError(f"{path} must hold settings, key: value, and a list of defaults at most")
    for entry in settings.pop("defaults", []):
        if isinstance(entry, dict):  # such as `override /measure: cka`
            words += [f"{group.split()[-1].lstrip('/')}={option}" for group, option in entry.items() if option]
        elif entry != "_self_":
            words += words_of(entry_point, str(entry), [*above, name])
    for key, value in settings.items():
        words += _settings(key, value)
    return list({key_of(word): word for word in words}.values())  # of a key that is set twice the last


def _settings(key: str, value: Any) -> list[str]:
    """Return the overrides of a setting, or of all settings of a part."""
    if key == "hydra.sweeper.params":
        return [f"{name}={values}" for name, values in value.items()]
    if isinstance(value, str) and any(configurations(key.split("@")[0])):  # model: gpt2, as in its defaults
        return [f"{key}={value}"]
    if isinstance(value, dict) and ("." not in key or key.startswith("hydra.")):
        return [word for name, inner in value.items() for word in _settings(f"{key}.{name}", inner)]
    new = "++" if isinstance(value, dict) or key.startswith("hydra.") else ""  # which Hydra may not know yet
    return [f"{new}{key}={quoted(value)}"]
