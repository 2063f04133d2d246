"""A finished job, read from its folder: the one way to read a result.

A manifest with the digests of all files is written last, so that later damage is noticed and named. Nothing in a result
is ever executed: its files are tables, arrays, JSON, YAML without aliases, safetensors and pictures.
"""

from __future__ import annotations

import hashlib
import json
import logging
import math
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import yaml

from thinkalike.config.compose import from_yaml
from thinkalike.digests import digest_of
from thinkalike.errors import StoreError, first_line

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd

log = logging.getLogger(__name__)

MANIFEST = "manifest.json"
NUMBERS = {".csv", ".npz", ".safetensors"}  # the endings of files that hold what was computed


class Headline(NamedTuple):
    """A number that sums up a result, with its 95 % interval if it has one.

    Attributes:
        name: a term of the field, such as mean_penalty; one name has one unit in all results of a kind.
        value: in the unit of the result's table.
        low, high: the ends of the interval; None: there is no interval, or it has no ends.
        of: the total, where the value is a count.
        at: the layers that it is of, in words, such as "layer 2 with 3".
    """

    name: str
    value: float
    low: float | None = None
    high: float | None = None
    of: int | None = None
    at: str = ""

    @classmethod
    def with_ends(cls, name: str, value: float, low: float, high: float, *, at: str = "") -> Headline:
        """Return a headline number with an interval, or without one if an end is blank or infinite."""
        ends = (float(low), float(high))
        first, last = ends if all(map(math.isfinite, ends)) else (None, None)
        return cls(name, float(value), first, last, at=at)

    @property
    def label(self) -> str:
        """The name in plain words."""
        return self.name.replace("_", " ")

    @property
    def text(self) -> str:
        """The number as screens write it: "0.2048 [0.1838, 0.2329] at layer 2", or "3 of 5"."""
        if self.of is not None:
            return f"{self.value:.0f} of {self.of}"
        interval = "" if self.low is None or self.high is None else f" [{self.low:.4g}, {self.high:.4g}]"
        return f"{self.value:.4g}{interval}{f' at {self.at}' if self.at else ''}"

    @property
    def numbers(self) -> dict[str, float]:
        """The value under its name, and the ends of the interval under that name with `_low` and `_high`."""
        ends = {"": self.value, "_low": self.low, "_high": self.high}
        return {f"{self.name}{end}": value for end, value in ends.items() if value is not None}


def first_scalar(scalars: Mapping[str, float]) -> list[Headline]:
    """Return the first of a result's scalars as its only headline number, with the interval that stands beside it."""
    first = list(scalars.items())[:1]
    return [Headline(name, value, scalars.get(f"{name}_low"), scalars.get(f"{name}_high")) for name, value in first]


@dataclass(frozen=True)
class Result:
    """A finished job, read from its folder; each file is read when it is first asked for."""

    folder: Path

    def __repr__(self) -> str:
        try:
            names = " and ".join(dict.fromkeys(str(model["name"]) for model in self.provenance.get("models", [])))
            first = "".join(f": {each.label} {each.text}" for each in self.headlines[:1])
            told = f"{self.kind}{' of ' if names else ''}{names}{first}"
        except (OSError, ValueError, KeyError, TypeError) as error:
            told = f"cannot be read, {type(error).__name__}"
        return f"Result({told}; {self.folder})"

    @cached_property
    def _record(self) -> dict[str, Any]:
        return json.loads((self.folder / "result.json").read_text())  # type: ignore[no-any-return]

    def fingerprint(self) -> str:
        """Return 16 digits of the SHA-256 of tables, arrays and stitches, by the manifest; figures are left out."""
        entries = json.loads((self.folder / MANIFEST).read_text())["files"]
        numbers = {name: entry for name, entry in entries.items() if Path(name).suffix in NUMBERS and "/" not in name}
        return _digest_of_entries(numbers)[:16]

    @property
    def kind(self) -> str:
        """The kind of the job, such as stitching or cka."""
        return str(self._record["kind"])

    @property
    def key(self) -> str:
        """The hash of everything that can change the numbers; it names the folder."""
        return str(self._record["key"])

    @property
    def scalars(self) -> dict[str, float]:
        """Further numbers of the whole result, by name."""
        return dict(self._record["scalars"])

    @property
    def headlines(self) -> list[Headline]:
        """The headline numbers with their intervals, the most important one first; older results have none."""
        return [Headline(**each) for each in self._record.get("headlines", [])]

    @property
    def settings(self) -> dict[str, Any]:
        """The settings that entered the key: those that can change numbers and are not the defaults."""
        return dict(self._record["settings"])

    @property
    def provenance(self) -> dict[str, Any]:
        """Versions, commit, seed, models and data with their fingerprints, peak memory, and how it was made.

        That is the date (UTC), command line, host, wall time and seconds of each phase; older results lack some.
        """
        return dict(self._record["provenance"])

    @cached_property
    def config(self) -> dict[str, Any]:
        """The resolved configuration; a part that the job does not read is None.

        Raises:
            StoreError: the file cannot be read, or has aliases, which no job writes and which could fill the memory.
        """
        file = self.folder / "config.yaml"
        try:
            text = file.read_text()
            if "&" in text and any(isinstance(token, yaml.AliasToken) for token in yaml.scan(text)):
                raise ValueError("it has aliases")
            return from_yaml(text)
        except Exception as error:  # the file may come from anywhere
            raise StoreError(f"{file} cannot be read ({first_line(error)[:100]})") from error

    @cached_property
    def table(self) -> pd.DataFrame:
        """The tidy table of the result."""
        import pandas as pd

        return pd.read_csv(self.folder / "table.csv")

    @cached_property
    def tables(self) -> dict[str, pd.DataFrame]:
        """All tables by name; the one that every result has is `table`."""
        import pandas as pd

        return {path.stem: pd.read_csv(path) for path in sorted(self.folder.glob("*.csv"))}

    @cached_property
    def arrays(self) -> dict[str, np.ndarray]:
        """The arrays by name; empty if the job leaves none."""
        import numpy as np

        path = self.folder / "arrays.npz"
        if not path.exists():
            return {}
        with np.load(path) as file:
            return {name: file[name] for name in file.files}

    @property
    def figures(self) -> list[Path]:
        """The files of the figures, PNG and SVG."""
        return sorted((self.folder / "figures").glob("*"))


def open_result(folder: str | os.PathLike[str]) -> Result:
    """Open the folder of a finished job, which stays open where the working folder changes.

    Raises:
        StoreError: the folder holds no finished result, or a file of it is missing or damaged.
    """
    result = Result(Path(folder).expanduser().absolute())
    if not is_sealed(result.folder):
        raise StoreError(f"{result.folder} holds no finished result; it would have a {MANIFEST}")
    check_sealed(result.folder)
    return result


def finished(store: str | os.PathLike[str], kind: str = "*") -> Iterator[Result]:
    """Yield all finished results of a store, or those of one kind; a damaged one is left out with a warning."""
    folders = sorted(sealed.parent for sealed in Path(store).expanduser().glob(f"{kind}/*/{MANIFEST}"))
    for folder in (each for each in folders if each.suffix != ".partial"):
        if wrong := damage(folder):
            log.warning("left out: %s", wrong)
        else:
            yield Result(folder)


def seal(folder: Path) -> None:
    """Write the manifest of a folder, and make sure that all of it is on the disk."""
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path.name != MANIFEST)
    entries = {str(path.relative_to(folder)): [path.stat().st_size, digest_of(path)] for path in files}
    manifest = {"files": entries, "digest": _digest_of_entries(entries)}
    (folder / MANIFEST).write_text(json.dumps(manifest, indent=1) + "\n")
    for path in (*files, folder / MANIFEST, *(path for path in folder.rglob("*") if path.is_dir()), folder):
        sync(path)


def is_sealed(folder: Path) -> bool:
    """Return whether a folder has a manifest, as that of a finished result does."""
    return (folder / MANIFEST).is_file()


def damage(folder: Path, content: bool = True) -> str | None:
    """Return what is wrong with a sealed folder, as half a sentence, or None.

    Args:
        content: compare digests too, and not sizes alone.
    """
    try:
        manifest = json.loads((folder / MANIFEST).read_text())
        entries = [(name, int(size), digest) for name, (size, digest) in manifest["files"].items()]
        if manifest["digest"] != _digest_of_entries(manifest["files"]):
            return f"{folder / MANIFEST} is damaged"
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        return f"{folder / MANIFEST} is missing or damaged ({type(error).__name__})"
    for name, size, digest in entries:
        path = folder / name
        if not path.is_file():
            return f"{path} is missing"
        if path.stat().st_size != size:
            return f"{path} is damaged: it has {path.stat().st_size:,} bytes and should have {size:,}"
        if content and digest_of(path) != digest:
            return f"{path} is damaged: its checksum is not that of what was written"
    return None


def check_sealed(folder: Path) -> None:
    """Check the digests of all files of a sealed folder.

    Raises:
        StoreError: a file is missing or damaged; the message names it.
    """
    if wrong := damage(folder):
        raise StoreError(f"{wrong}; delete {folder} or do the job again with force=true")


def sync(path: Path) -> None:
    """Make sure that a file, or the list of a folder's files, is on the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _digest_of_entries(entries: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(entries, sort_keys=True).encode()).hexdigest()
