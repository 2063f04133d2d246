"""The job of a command line, as Hydra has read it."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping
from dataclasses import dataclass

# environment variable: how the user called the script, also for the workers of a sweep
PROGRAM = "THINKALIKE_PROGRAM"


@dataclass(frozen=True)
class Called:
    """What Hydra knows of the job of a command line.

    Attributes:
        overrides: Its words.
        choices: By group the option that is chosen, or None.
        config_folders: Those of --config-dir.
        config_name: That of --config-name; otherwise train or analyze.
        has_values_to_try: Whether a file gives values for a sweep.
        has_launcher: Whether another launcher than Hydra's own is chosen.
        number: Which job of a sweep it is, from 0.
    """

    overrides: list[str]
    choices: Mapping[str, str | None]
    config_folders: list[str]
    config_name: str
    has_values_to_try: bool
    has_launcher: bool
    number: int

    def command_line(self) -> str:
        """Return the command line that does this job alone; "" if no script was called."""
        if PROGRAM not in os.environ:
            return ""
        words = [f"--config-dir={folder}" for folder in self.config_folders]
        if self.config_name not in ("train", "analyze"):
            words.append(f"--config-name={self.config_name}")
        words.extend(self.overrides)
        return f"{os.environ[PROGRAM]} {shlex.join(words)}".rstrip()
