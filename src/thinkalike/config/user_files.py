"""Configuration files that are not of this package: which these are, and what they may hold.

They are a user's, or a stranger's whom the user trusts with settings alone.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from yaml import YAMLError

from thinkalike.config.groups import GROUPS, LISTS, option_folders
from thinkalike.config.overrides import check_option
from thinkalike.errors import ConfigError, one_line, short

LARGEST_FILE = 2**18  # bytes of a configuration file
# what may stand before the name of a group in a list of defaults
KEYWORDS = re.compile(r"^\s*((override|optional)\s+)*/?")
# of an integer in a file, as no float is larger; Python refuses to print very long ones
MOST_BITS = 1024


@cache
def own_folders() -> list[Path]:
    """Return the folders of groups of this package and of installed packages that extend it."""
    return [folder.resolve() for folder in option_folders()]


@cache
def names_of_package(folder_of_hydra: Path) -> list[str]:
    """Return the paths of the configurations of the package and of Hydra, such as model/gpt2."""
    names = {"train_schema", "analyze_schema"}
    names.update(f"{group}/schema" for group in GROUPS)
    for group, offered in LISTS.items():
        names.update(f"{group}/{name}" for name in offered)
    for folder in (*own_folders(), folder_of_hydra):
        for file in folder.rglob("*.yaml"):
            names.add(str(file.relative_to(folder).with_suffix("")))
    return sorted(names)


def user_file(folder: str, config_path: str) -> Path | None:
    """Return the file that a configuration of a folder is read from; None for one of ours."""
    name = f"{Path(config_path).name.removesuffix('.yaml')}.yaml"
    file = Path(folder, config_path).with_name(name).resolve()
    whole_folder = Path(folder).resolve()
    is_ours = whole_folder in own_folders() and file.is_relative_to(whole_folder)  # not by ../..
    return None if is_ours else file


def check_defaults(settings: object, file: str) -> None:
    """Check that each item of a list of defaults names an option, and no two those of one group.

    Hydra does not say which item has something else instead, and of two options it takes one.
    """
    defaults = settings.get("defaults") if isinstance(settings, Mapping) else None
    if not isinstance(defaults, list):
        return
    chosen_of_group: dict[str, object] = {}
    for item in defaults:
        if not isinstance(item, Mapping):
            continue
        for group, chosen in item.items():
            name = short(KEYWORDS.sub("", str(group)))
            if isinstance(chosen, Mapping):
                raise ConfigError(
                    f"{file}: its defaults have settings for {name} in place of the name of an "
                    f"option; write override {name}: NAME there, and the settings below it, "
                    "outside of defaults"
                )
            check_option(name.partition("@")[0], chosen, f"{file}: ")
            first = chosen_of_group.setdefault(name, chosen)
            if first != chosen:
                raise ConfigError(
                    f"{file}: its defaults choose both {name}={short(first)} and "
                    f"{name}={short(chosen)}; leave one of them out"
                )


def check_integers(value: object, file: str) -> None:
    """Check that no integer is so long that Python could not print it; 0xfff... is one, too."""
    if isinstance(value, Mapping):
        for name, inner in value.items():
            check_integers(name, file)
            check_integers(inner, file)
    elif isinstance(value, list):
        for inner in value:
            check_integers(inner, file)
    elif isinstance(value, int) and value.bit_length() > MOST_BITS:
        raise ConfigError(
            f"{file} has an integer of {value.bit_length():,} bits; {MOST_BITS:,} are the most"
        )


def explained_yaml(error: YAMLError) -> str:
    """Return what is wrong with a text in YAML, and where, without the name of its stream."""
    problem = getattr(error, "problem", None)
    if not problem:
        return one_line(error)
    mark = getattr(error, "problem_mark", None)
    if mark is None:
        return str(problem)
    return f"{problem} in line {mark.line + 1}"
