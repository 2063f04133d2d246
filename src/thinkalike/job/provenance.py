"""What a result says of the machine and the code that computed it."""

from __future__ import annotations

import contextlib
import resource
import socket
import subprocess
from datetime import datetime, timezone
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from thinkalike.config import command_line

PACKAGES = ("thinkalike", "torch", "transformers", "transformer-lens", "pytorch-lightning", "datasets", "numpy")


def environment() -> dict[str, Any]:
    """Return date (UTC), command line, host, versions, commit, threads and peak memory of this process."""
    gpu = {"peak_gpu_bytes": torch.cuda.max_memory_allocated()} if torch.cuda.is_available() else {}
    return {
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "command": command_line(),
        "host": socket.gethostname(),
        "versions": versions(),
        "git_commit": _commit(),
        "threads": torch.get_num_threads(),
        "peak_memory_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        **gpu,
    }


def versions() -> dict[str, str]:
    """Return the versions of the packages that can change numbers."""
    found = {}
    for package in PACKAGES:
        with contextlib.suppress(PackageNotFoundError):
            found[package] = version(package)
    return found


def _commit() -> str:
    """The commit of the checkout that this code runs from."""
    here = Path(__file__).parent
    try:
        run = subprocess.run(["git", "describe", "--always", "--dirty"], cwd=here, capture_output=True, text=True)
    except OSError:  # there is no git
        return "unknown"
    return run.stdout.strip() or "unknown"
