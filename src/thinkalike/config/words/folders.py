"""The user's own configurations: folders whose files come before those that ship, and files that stand for words.

python train.py --config-dir mine model=ours            mine/model/ours.yaml is an option like any other
python train.py --config-dir mine --config-name long    the words that mine/long.yaml stands for, then those given
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import yaml
from hydra.core.config_search_path import ConfigSearchPath, SearchPathQuery
from hydra.plugins.search_path_plugin import SearchPathPlugin

from thinkalike.config.overrides import is_override, quoted
from thinkalike.errors import ConfigError, nearest

_CHECKOUT = Path(__file__).resolve().parents[4] / "conf"
CONF = _CHECKOUT if _CHECKOUT.is_dir() else Path(__file__).resolve().parents[2] / "conf"  # where a wheel has it

OWN = "THINKALIKE_CONFIG"  # environment variable: the user's folders, also for the workers of a sweep
FOLDER = ("--config-dir", "-cd", "--config-path", "-cp")  # what Hydra calls the option of a folder
NAME = ("--config-name", "-cn")
DOORS = ("train", "analyze")


class OwnFolders(SearchPathPlugin):
    """Lets Hydra look into the user's folders before it looks into the one that ships."""

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        for folder in _own():
            search_path.prepend("own", f"file://{folder}", anchor=SearchPathQuery(provider="main"))


def with_own(door: str, words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Take the options of own configurations from a command line.

    Returns:
        The other words, with those that a configuration stands for before the overrides that were given, which win;
        and the options that say again which folders there are.

    Raises:
        ConfigError: there is no such folder or configuration, or it cannot be read.
    """
    rest, named = list[str](), list[tuple[str, str]]()
    waiting = iter(words)
    for word in waiting:
        option, equals, value = word.partition("=")
        if option in (*FOLDER, *NAME):
            named.append((option, value if equals else _value(option, next(waiting, "-"))))
        else:
            rest.append(word)
    folders = [_folder(option, value) for option, value in named if option in FOLDER]
    if folders:
        os.environ[OWN] = os.pathsep.join(map(str, folders))
    _check_folders(door)
    chosen = [word for option, value in named if option in NAME for word in words_of(door, option, value)]
    given = {_key(word) for word in rest if is_override(word)}
    own = [word for word in chosen if _key(word) not in given]
    first = next((place for place, word in enumerate(rest) if is_override(word)), len(rest))
    return [*rest[:first], *own, *rest[first:]], [f"--config-dir={folder}" for folder in folders]


def _value(option: str, word: str) -> str:
    if is_override(word) or word.startswith("-"):
        raise ConfigError(
            f"{option} needs {'a folder' if option in FOLDER else 'the name of a configuration of yours'}"
        )
    return word


def configurations(path: str) -> Iterator[Path]:
    """Yield the files or folders of this path in all folders of configurations, the user's first."""
    yield from (found for root in (*_own(), CONF) if (found := root / path).exists())


def words_of(door: str, option: str, name: str, above: Sequence[str] = ()) -> list[str]:
    """Return the words that a configuration of the user's stands for: its choices, then its settings.

    Args:
        option: of the command line, or what names it, for messages.
        above: the configurations whose defaults name this one.

    Raises:
        ConfigError: there is no such configuration, it cannot be read, is of the other door, or rests on itself.
    """
    name = name.removesuffix(".yaml").strip("/")
    if name in (door, f"{door}_schema"):
        return []
    if name in DOORS:
        raise ConfigError(f"{option} {name} is of {name}.py, and this is {door}.py")
    if name in above:
        raise ConfigError(f"{above[-1]}.yaml names {name}, which rests on it; leave it out")
    path = next((found for root in _own() if name and (found := root / f"{name}.yaml").is_file()), None)
    if path is None:
        raise ConfigError(f"{option} {name}: {_no_configuration(name)}")
    settings, words = _read(path), list[str]()
    for entry in settings.pop("defaults", None) or []:
        if isinstance(entry, str):
            words += words_of(door, f"{path.name}:", entry, [*above, name]) if entry != "_self_" else []
        else:
            words += [_choice(group, chosen) for group, chosen in entry.items() if chosen is not None]
    for key, value in settings.items():
        words += _settings(key, value)
    return list({_key(word): word for word in words}.values())  # of a key that is set twice the last


def _own() -> list[Path]:
    return [Path(folder) for folder in os.environ.get(OWN, "").split(os.pathsep) if folder]


def _folder(option: str, name: str) -> Path:
    folder = Path(name.removeprefix("file://")).expanduser().resolve()
    if not name or not folder.is_dir():
        raise ConfigError(f"{option}={name}: there is no such folder here")
    return folder


def _check_folders(door: str) -> None:
    for folder in _own():
        if not folder.is_dir():
            raise ConfigError(f"{OWN}={folder}: there is no such folder here")
        if (folder / f"{door}.yaml").exists():
            raise ConfigError(
                f"{folder / door}.yaml has the name of what ships; call it mine.yaml, leave in it what differs, and "
                "name it: --config-name mine"
            )


def _no_configuration(name: str) -> str:
    names = [path.stem for root in _own() for path in root.glob("*.yaml")]
    if names:
        return f"there is no {name}.yaml in {', '.join(map(str, _own()))}; {nearest(name, names)}"
    return f"there is no {name}.yaml; say in which folder of yours it is: --config-dir DIR"


def _read(path: Path) -> dict[str, Any]:
    with path.open() as file:
        read = yaml.safe_load(file) or {}
    entries = read.get("defaults") or [] if isinstance(read, dict) else None
    if not isinstance(entries, list) or not all(isinstance(entry, str | dict) for entry in entries):
        raise ConfigError(f"{path} must hold settings, key: value, and a list of defaults at most")
    return read  # type: ignore[no-any-return]


def _choice(group: str, option: Any) -> str:
    """Return the word of an entry of defaults, such as `override /measure: cka`."""
    return f"{group.split()[-1].lstrip('/')}={option}"


def _settings(key: str, value: Any) -> list[str]:
    """Return the words of a setting, or of all settings of a part."""
    if key == "hydra.sweeper.params":
        return [f"{name}={values}" for name, values in value.items()]
    if isinstance(value, str) and any(configurations(key.split("@")[0])):  # model: gpt2, as in its defaults
        return [f"{key}={value}"]
    if isinstance(value, dict) and ("." not in key or key.startswith("hydra.")):
        return [word for name, inner in value.items() for word in _settings(f"{key}.{name}", inner)]
    new = "++" if isinstance(value, dict) or key.startswith("hydra.") else ""  # which Hydra may not know yet
    return [f"{new}{key}={quoted(value)}"]


def _key(word: str) -> str:
    return word.lstrip("+~").partition("=")[0]
