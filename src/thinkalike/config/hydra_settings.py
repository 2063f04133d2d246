"""Which of Hydra's own settings a file may have: plain parameters of a launcher and a sweeper.

Hydra instantiates classes, opens logs and imports modules that its own settings name, and a file
may be a stranger's. Which launcher or sweeper runs is chosen by name, among those of installed
packages.
"""

from __future__ import annotations

import re

from thinkalike.errors import ConfigError, short

# such as gpu:a100:2; no path, module, URL, ${...} or line of a shell
WORD = re.compile(r"[\w:|&,*@+\[\] -]*")
# becomes a line of a script for SLURM
PARAMETER = re.compile(r"[a-z][\w-]*", re.ASCII | re.IGNORECASE)
# such as ++stitch.lr; whatever stands before it, no key of a sweep is one of Hydra's own settings
SWEPT_KEY = re.compile(r"[+~]{0,2}(?!hydra\b)[a-z][\w-]*([./][\w-]+)*(@target)?", re.ASCII)
# such as choice(0.1,1); without a colon it names no FILE.py:NAME
SWEPT_VALUES = re.compile(r"[\w\s.,()\[\]*/+=-]*")


def check_hydras_settings(settings: object, file: str) -> None:
    """Check that a file sets nothing of Hydra's own but plain parameters.

    Args:
        settings: The content of the file.

    Raises:
        ConfigError: The file has another setting of Hydra's, such as a callback, a folder or a
            log.
    """
    if not isinstance(settings, dict) or "hydra" not in settings:
        return
    of_hydra = settings["hydra"]
    if not isinstance(of_hydra, dict):
        raise ConfigError(
            f"{file}: hydra: must have launcher: or sweeper:, and it is {short(of_hydra)}"
        )
    for name, part in of_hydra.items():
        if name not in ("launcher", "sweeper"):
            raise ConfigError(
                f"{file} sets hydra.{name}, and of Hydra's own settings a file may have launcher "
                f"and sweeper alone; give hydra.{name} on the command line, if you trust it"
            )
        if not isinstance(part, dict):
            raise ConfigError(f"{file}: hydra.{name} must be settings, and it is {short(part)}")
        _check_parameters(f"hydra.{name}", part, file)


def _check_parameters(key: str, parameters: dict[object, object], file: str) -> None:
    """Check that the parameters of a launcher or sweeper are numbers, words, or values to try.

    Their names are checked as well: submitit writes those of a launcher into a script, and a
    sweeper makes overrides of its own, some of which are of Hydra's settings.
    """
    for name, value in parameters.items():
        if not (_is_parameter(key, name) and _is_plain(key, name, value)):
            setting = f"{key}.{short(name)}"
            raise ConfigError(
                f"{file} sets {setting}, which could name code or a file to run; choose a "
                f"launcher or sweeper by its name in defaults, and give {setting} on the command "
                "line, if you trust it"
            )
        if isinstance(value, dict):
            _check_parameters(f"{key}.{name}", value, file)


def _is_parameter(key: str, name: object) -> bool:
    """Return whether a name can be that of a parameter in the settings of a key."""
    allowed = SWEPT_KEY if key.startswith("hydra.sweeper.") else PARAMETER
    return isinstance(name, str) and allowed.fullmatch(name) is not None


def _is_plain(key: str, name: object, value: object) -> bool:
    """Return whether the value of a parameter in the settings of a key names no code or file."""
    if key == "hydra.sweeper.params":
        return SWEPT_VALUES.fullmatch(str(value)) is not None
    if isinstance(value, str):  # a sweeper's texts may be functions to import
        may_be_text = key.startswith("hydra.launcher") or name == "direction"
        return may_be_text and WORD.fullmatch(value) is not None
    return value is None or isinstance(value, bool | int | float | dict)
