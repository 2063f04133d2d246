"""How a door ends: one line for an error that a user can act on, the signal's status, and a stdout that may close."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

from hydra.errors import HydraException, MissingConfigException
from omegaconf.errors import OmegaConfBaseException
from yaml import MarkedYAMLError, YAMLError

from thinkalike.config.compose import options as known_options
from thinkalike.config.doors.plain import in_plain_words
from thinkalike.errors import ThinkalikeError, first_line, nearest
from thinkalike.interrupts import Interrupted

SLURM = "'thinkalike[slurm]'"
PLUGINS = {  # of Hydra, by the option that is missing: what a user names, and what is to be installed
    "hydra/launcher/submitit_slurm": ("hydra/launcher=slurm", SLURM),
    "hydra/launcher/submitit_local": ("hydra/launcher=submitit_local", SLURM),
    "hydra/launcher/joblib": ("hydra/launcher=joblib", "hydra-joblib-launcher"),
    "hydra/launcher/ray": ("hydra/launcher=ray", "hydra-ray-launcher"),
    "hydra/launcher/rq": ("hydra/launcher=rq", "hydra-rq-launcher"),
    "hydra/sweeper/optuna": ("hydra/sweeper=optuna", "hydra-optuna-sweeper"),
    "hydra/sweeper/ax": ("hydra/sweeper=ax", "hydra-ax-sweeper"),
    "hydra/sweeper/nevergrad": ("hydra/sweeper=nevergrad", "hydra-nevergrad-sweeper"),
}
USER_ERRORS = (ThinkalikeError, OmegaConfBaseException, HydraException, YAMLError)


class OneLineErrors:
    """Turns an error that a user can act on into one line and exit status 1, and a signal into one line and its own."""

    def __enter__(self) -> None: ...

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if isinstance(error, Interrupted):
            print(f"{error}{_requeued(error)}", file=sys.stderr, flush=True)
            sys.exit(error.status)
        if isinstance(error, USER_ERRORS) and "THINKALIKE_TRACEBACK" not in os.environ:
            print(f"error: {one_line(error)}", file=sys.stderr, flush=True)
            sys.exit(1)


def one_line(error: BaseException) -> str:
    """Return what an error says in one line."""
    if isinstance(error, MissingConfigException) and error.missing_cfg_file:  # Hydra lists all that there is
        named_by = re.match(r"In '((?!hydra/).+?/.+?)':", str(error))  # a file of a group whose defaults name it
        said = _missing(str(error.missing_cfg_file), error.options or [])
        return f"the defaults of {named_by[1]}: {said}" if named_by else said
    if isinstance(error, HydraException):  # says what it could not do; its cause says why
        cause = next(iter(str(error.__cause__ or "").splitlines()), "")  # below stands where in a schema it was
        return in_plain_words(f"{error}: {cause}".strip().removesuffix(":"))
    if isinstance(error, MarkedYAMLError) and error.problem_mark:
        return f"{error.problem_mark.name}, line {error.problem_mark.line + 1}: {error.problem}"
    if isinstance(error, YAMLError):
        return f"a file of YAML cannot be read: {' '.join(str(error).split())[:300]}"
    first = first_line(error) or type(error).__name__
    if not isinstance(error, OmegaConfBaseException):
        return first
    key = getattr(error, "full_key", None)
    return in_plain_words(f"{key}: {first}" if key else first)


def _missing(name: str, options: Sequence[str]) -> str:
    """Return that there is no option of such a name, and which there are or how it is to be had."""
    group, _, option = name.rpartition("/")
    if name in PLUGINS:
        return "{} needs a plugin: pip install {}".format(*PLUGINS[name])
    more = {known.rpartition("/")[2] for known in PLUGINS if known.startswith(f"{group}/")}
    return f"{group}={option} is not known; {nearest(option, more.union(options or known_options(group)))}"


class Stdout:
    """A stdout whose reader may leave: what is printed then is lost, and nothing else."""

    def __init__(self, stream: Any):
        self._stream = stream or open(os.devnull, "w")  # noqa: SIM115

    def write(self, text: str) -> int:
        """Write, or forget what cannot be written."""
        try:
            return int(self._stream.write(text))
        except OSError:
            return self._forget(len(text))

    def flush(self) -> None:
        """Flush, or forget what cannot be written."""
        try:
            self._stream.flush()
        except OSError:
            self._forget(0)

    def _forget(self, count: int) -> int:
        os.dup2(os.open(os.devnull, os.O_WRONLY), self._stream.fileno())
        return count

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def _requeued(error: Interrupted) -> str:
    """Put a job of SLURM that was submitted with --requeue back into the queue; returns what to say of it."""
    number = os.environ.get("SLURM_JOB_ID")
    first = os.environ.get("SLURM_PROCID", "0") == "0"
    if error.number != signal.SIGTERM or not number or not first or not shutil.which("scontrol"):
        return ""
    shown = subprocess.run(["scontrol", "show", "job", number], capture_output=True, text=True)
    if "Requeue=1" not in shown.stdout:
        return ""
    again = subprocess.run(["scontrol", "requeue", number], capture_output=True, text=True)
    return "; SLURM has the job in its queue again" if again.returncode == 0 else "; SLURM does not take it back"
