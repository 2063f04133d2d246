"""How a door ends: one line for an error that a user can act on, the signal's status, and a stdout that may close."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from typing import Any

from thinkalike.config.words.plain import COMPOSING_ERRORS, one_line
from thinkalike.errors import ThinkalikeError
from thinkalike.interrupts import Interrupted

USER_ERRORS = (ThinkalikeError, *COMPOSING_ERRORS)


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
