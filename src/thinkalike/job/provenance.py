"""Where a result comes from: date, command line, machine, versions, commit, threads and memory."""

from __future__ import annotations

import contextlib
import resource
import shlex
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextvars import ContextVar
from datetime import UTC, datetime
from pathlib import Path

from thinkalike.digests import versions_of

PACKAGES = (
    "thinkalike",
    "torch",
    "transformers",
    "transformer-lens",
    "pytorch-lightning",
    "datasets",
    "numpy",
    "mamba-ssm",
    "causal-conv1d",
)
# Linux gives the peak memory of a process in KiB.
BYTES_OF_MAXRSS = 1024

_command_line: ContextVar[str | None] = ContextVar("command line", default=None)


@contextlib.contextmanager
def called_by(command_line: str) -> Iterator[None]:
    """Store this command line in all results computed in the body, not that of the process."""
    token = _command_line.set(command_line)
    try:
        yield
    finally:
        _command_line.reset(token)


def environment() -> dict[str, object]:
    """Return where and how a result is computed now, to be stored with it.

    These are the date (UTC), command line (of `called_by`, else of the process), host, versions of
    packages, commit, threads and peak memory so far, with that of the GPU if there is one.
    """
    import torch

    facts: dict[str, object] = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": _command_line.get() or shlex.join(sys.argv),
        "host": socket.gethostname(),
        "versions": versions_of(PACKAGES),
        "git_commit": _git_commit() or "unknown",
        "threads": torch.get_num_threads(),
        "peak_memory_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * BYTES_OF_MAXRSS,
    }
    if torch.cuda.is_available():
        facts["peak_gpu_bytes"] = torch.cuda.max_memory_allocated()
    return facts


def _git_commit() -> str:
    """Return the commit of the Git checkout that this package is in, or "".

    It is "" if Git is not installed or the package is in no checkout. A commit ends in "-dirty" if
    files of the checkout were changed.
    """
    describe = ["git", "describe", "--always", "--dirty"]
    try:
        run = subprocess.run(describe, cwd=Path(__file__).parent, capture_output=True, text=True)
    except OSError:  # git is not installed
        return ""
    return run.stdout.strip()
