"""What an error of Hydra or OmegaConf says, in one line, with cause and remedy.

Which of these sentences fits an error is decided by its type, see
`thinkalike.config.compose.explained`.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path

from yaml import YAMLError

from thinkalike.config.groups import HINTS, options
from thinkalike.config.schema import unknown
from thinkalike.errors import LONGEST_REASON, chain, flat, nearest, one_line, short

# What to install for plugins of Hydra that this project names, or that its authors publish; our
# slurm builds on submitit_slurm.
INSTALLED_BY = {
    "hydra/launcher/submitit_slurm": "hydra-submitit-launcher: pip install 'thinkalike[slurm]'",
    "hydra/launcher/submitit_local": "hydra-submitit-launcher: pip install 'thinkalike[slurm]'",
    "hydra/launcher/joblib": "hydra-joblib-launcher: pip install hydra-joblib-launcher",
    "hydra/launcher/ray": "hydra-ray-launcher: pip install hydra-ray-launcher",
    "hydra/launcher/rq": "hydra-rq-launcher: pip install hydra-rq-launcher",
    "hydra/sweeper/optuna": "hydra-optuna-sweeper: pip install hydra-optuna-sweeper",
    "hydra/sweeper/ax": "hydra-ax-sweeper: pip install hydra-ax-sweeper",
    "hydra/sweeper/nevergrad": "hydra-nevergrad-sweeper: pip install hydra-nevergrad-sweeper",
}

LINK = "https://hydra.cc/"  # in the last line of what Hydra says of an override
SPECIAL_IN_SHELL = re.compile(r'[$`"\\!]')  # also inside double quotes


def first_sentence(error: BaseException) -> str:
    """Return what an error says, in one printable line, with the key that it is about."""
    message = str(error) if isinstance(error, YAMLError) else _without_full_key(str(error))
    if not message:  # Hydra wraps some errors of a file without a word
        message = type(error).__name__
        for inner in chain(error):
            if str(inner):
                message = one_line(inner).split(" full_key")[0]
                break
    key = getattr(error, "full_key", None)
    if key and key not in message:
        message = f"{key}: {message}"
    message = "".join(letter if letter.isprintable() else " " for letter in message)
    if len(message) > LONGEST_REASON:
        return f"{message[:LONGEST_REASON]} ..."
    return message


def _without_full_key(message: str) -> str:
    """Return a message of OmegaConf in one line, without the part that begins with full_key."""
    return " ".join(re.split(r"\n\s*full_key", message)[0].split())


def explained_override(override: str, cause: BaseException) -> str:
    """Return what to say of an override whose value does not fit its setting.

    Hydra's message has the override alone; that of OmegaConf, its cause, has what the setting
    takes.
    """
    return f"{short(override)} is not possible: {short(_without_full_key(str(cause)))}"


def explained_unreadable(
    override: str, error: BaseException, special_character: str, remedy: str | None
) -> str:
    """Return what to say of an override that Hydra cannot read.

    Args:
        special_character: Which character it cannot read; "" if it reads each, but not together.
        remedy: The override with quotes by which it can be read; None if there is none.
    """
    if special_character:
        reason = f"'{special_character}' is a special character"
    else:
        lines = str(error).splitlines()
        heading = f"Error parsing override '{override}'"
        reason = "; ".join(line for line in lines if line != heading and LINK not in line)
        reason = reason.split(" expecting ")[0]  # the tokens of Hydra's grammar follow
    beginning = f"{short(override)} cannot be read, because {reason}"
    if remedy is not None:
        return f"{beginning}; quote the value: {_for_shell(remedy)}"
    if special_character:
        return f"{beginning}; write it in values alone, and there in quotes, as \"store='~/x'\""
    return first_sentence(error)


def _for_shell(word: str) -> str:
    """Return a word as it is typed in a shell."""
    if not SPECIAL_IN_SHELL.search(word):
        return f'"{word}"'
    if '"' in word or "\\" in word:
        return shlex.quote(word)
    return "'" + word.replace("'", '"') + "'"  # to Hydra, both quotes are alike


def explained_missing_folder(error: BaseException) -> str:
    """Return what to say of a --config-path that does not exist."""
    folder = re.search(r"config (?:directory|module) '(?:thinkalike\.)?(.*?)'", str(error))
    if folder is None:
        return one_line(error)
    return (
        f"--config-path={short(folder[1])} is no folder; "
        "give the whole path of one, as /home/me/mine"
    )


def explained_unread_file(file: Path, remedy: str) -> str:
    """Return what to say of a file that exists, and that Hydra does not find by the name given."""
    reason = "only files that end with .yaml are"
    if file.suffix == ".yaml":
        reason = "it is in no folder of configurations"
    return f"{file} is not read, because {reason}; {remedy}"


def explained_missing_option(
    path: str, offered: Iterable[str] | None, groups: Collection[str]
) -> str:
    """Return what to say of an option that does not exist.

    Args:
        path: GROUP/NAME.
        offered: The options of the group that Hydra has found.
        groups: Those that have options.
    """
    if path.startswith("hydra/"):
        group, _, name = path.rpartition("/")
    else:
        group, _, name = path.partition("/")
    if path in INSTALLED_BY:
        chosen = name.removeprefix("submitit_")
        return f"{group}={chosen} needs {INSTALLED_BY[path]}"
    if not name or not (group in groups or group.startswith("hydra/")):
        return (
            f"there is no configuration {short(path)}; "
            "give one of --config-dir by its path in there"
        )
    names = offered or options(group)
    return f"{group}={short(name)} is not known; {nearest(name, names)}{HINTS.get(group, '')}"


def explained_unknown_key(key: str, beside: Mapping[str, object]) -> str:
    """Return what to say of a setting that does not exist.

    Args:
        beside: The settings of the part that would have it.
    """
    part = key.rpartition(".")[0]
    if part == "hydra.launcher":
        return (
            f"'{key}' is not a setting of this launcher; "
            "choose another one, as hydra/launcher=joblib"
        )
    known = []
    for name in keys_inside(beside):
        if not name.startswith("hydra"):
            known.append(f"{part}.{name}".lstrip("."))
    return unknown(key, known)


def keys_inside(settings: Mapping[str, object]) -> list[str]:
    """Return the dotted keys of nested settings, also of those that hold others."""
    keys: dict[str, None] = {}  # in their order
    for key in flat(settings):
        names = key.split(".")
        for length in range(1, len(names) + 1):
            keys[".".join(names[:length])] = None
    return list(keys)
