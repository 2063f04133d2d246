"""Reads back what Weights & Biases wrote about an offline run."""

from pathlib import Path


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
