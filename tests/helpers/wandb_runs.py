"""Reads back what Weights & Biases wrote about an offline run."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any


def without_key(home: Path) -> dict[str, str]:
    """Environment variables of a user who has no key for W&B."""
    return {"WANDB_API_KEY": "", "HOME": str(home), "NETRC": str(home / "none")}


def records(run: Path) -> list:
    """All records of an offline run: a LevelDB log of 32 KiB blocks, each part with checksum, length and type."""
    from wandb.proto.wandb_internal_pb2 import Record

    data, place, parts, found = run.read_bytes(), 7, b"", []
    while place + 7 <= len(data):
        if (left := 32768 - place % 32768) < 7:
            place += left
            continue
        length, kind = int.from_bytes(data[place + 4 : place + 6], "little"), data[place + 6]
        parts = (b"" if kind in (1, 2) else parts) + data[place + 7 : place + 7 + length]
        place += 7 + length
        if kind in (1, 4):
            found.append(Record.FromString(parts))
    return found


@dataclass(frozen=True)
class Offline:
    """What an offline run has written.

    Attributes:
        folder: the run's own.
        run: its name, group, project and job type.
        config, summary: what was logged last, by key.
        history: the keys of what was logged.
    """

    folder: Path
    run: Any
    config: dict[str, Any]
    summary: dict[str, Any]
    history: list[str]
    artifacts: list[Any]
    exit_codes: list[int]

    @classmethod
    def only(cls, store: Path) -> Offline:
        """Return the only offline run in a store."""
        (log,) = store.glob("wandb/offline-run-*/run-*.wandb")
        return cls.of(log)

    @classmethod
    def of(cls, log: Path) -> Offline:
        """Read the log of a run when it has ended; W&B's own process may still write it."""
        deadline = time.monotonic() + 20
        while not any(record.HasField("exit") for record in records(log)) and time.monotonic() < deadline:
            time.sleep(0.05)
        found = records(log)

        def kind(name: str) -> list:
            return [getattr(record, name) for record in found if record.HasField(name)]

        def values(items: Iterable) -> dict[str, Any]:
            return {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in items}

        return cls(
            log.parent,
            kind("run")[0],
            values(item for part in (kind("run")[0].config, *kind("config")) for item in part.update),
            values(item for part in kind("summary") for item in part.update),
            [item.key or item.nested_key[0] for part in kind("history") for item in part.item],
            [artifact for artifact in kind("artifact") if artifact.type != "run_table"],
            [end.exit_code for end in kind("exit")],
        )
