"""States of running jobs, each in a file that is named by its number and its digest.

A state is written beside its destination and renamed, and the one before it is kept until then, so there is a whole one
at any moment; a bit that flips afterwards is noticed.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import torch

from thinkalike.digests import digest_of
from thinkalike.errors import StoreError, first_line
from thinkalike.store.manifest import sync

PATTERN = re.compile(r"(?P<name>.+)-(?P<number>\d+)-(?P<digest>[0-9a-f]{16})\.pt")


def newest_state(folder: Path, name: str) -> Path | None:
    """Return the file of the newest state of this name, or None."""
    return max(_states(folder, name), key=_number, default=None)


def write_state(folder: Path, name: str, state: dict[str, Any]) -> Path:
    """Write a state of tensors and plain values in place of the one before; returns its file.

    Raises:
        OSError: it cannot be written; the one before is still there.
    """
    folder.mkdir(parents=True, exist_ok=True)
    before, aside = _states(folder, name), folder / f"{name}.aside"
    with aside.open("wb") as file:
        torch.save(state, file)
        file.flush()
        os.fsync(file.fileno())
    number = max(map(_number, before), default=0) + 1
    path = folder / f"{name}-{number}-{digest_of(aside)[:16]}.pt"
    os.replace(aside, path)
    sync(folder)
    for old in before:
        old.unlink()
    return path


def read_state(path: Path) -> dict[str, Any]:
    """Read a state onto the CPU.

    Raises:
        StoreError: it is damaged.
    """
    named = PATTERN.fullmatch(path.name)
    try:
        if not named or digest_of(path)[:16] != named["digest"]:
            raise ValueError("its checksum is not that of what was written")
        state: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # whatever reading half a file raises
        reason = first_line(error) or type(error).__name__
        again = "deleting it is safe: the job begins anew"
        raise StoreError(f"the state {path} is damaged ({reason:.100}); {again}") from error
    return state


def _states(folder: Path, name: str) -> list[Path]:
    found = ((path, PATTERN.fullmatch(path.name)) for path in folder.glob(f"{name}-*.pt"))
    return [path for path, named in found if named and named["name"] == name]


def _number(path: Path) -> int:
    named = PATTERN.fullmatch(path.name)
    return int(named["number"]) if named else 0
