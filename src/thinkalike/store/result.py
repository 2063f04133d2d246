"""A finished job, read from its folder: the one way to read a result."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from thinkalike.config import from_yaml
from thinkalike.errors import StoreError
from thinkalike.plots import plot
from thinkalike.store import manifest
from thinkalike.store.headlines import Headline

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Result:
    """A finished job, read from its folder; each file is read when it is first asked for."""

    folder: Path

    def __repr__(self) -> str:
        try:
            sides = self.table.get(["source", "target"])
            names = [] if sides is None else list(dict.fromkeys(sides.iloc[0]))
            first = [f"{each.label} {each.text}" for each in self.headlines[:1]]
            told = f"{self.kind}{' of ' if names else ''}{' and '.join(names)}{': ' if first else ''}{''.join(first)}"
        except (OSError, ValueError, KeyError) as error:
            told = f"cannot be read, {type(error).__name__}"
        return f"Result({told}; {self.folder})"

    @cached_property
    def _record(self) -> dict[str, Any]:
        return json.loads((self.folder / "result.json").read_text())  # type: ignore[no-any-return]

    def fingerprint(self) -> str:
        """Return the SHA-256 of tables, arrays and stitches, as 16 hexadecimal digits."""
        return manifest.content_digest(self.folder)

    @property
    def kind(self) -> str:
        """The kind of the job, such as stitching or cka."""
        return str(self._record["kind"])

    @property
    def key(self) -> str:
        """The hash of all that could change the numbers, which names the folder."""
        return str(self._record["key"])

    @property
    def scalars(self) -> dict[str, float]:
        """Further numbers of the whole result, by name."""
        return dict(self._record["scalars"])

    @property
    def headlines(self) -> list[Headline]:
        """The headline numbers with their intervals, the first of them first; none in a result of an older version."""
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
        """The resolved configuration; a part that the job does not read is None."""
        return from_yaml((self.folder / "config.yaml").read_text())

    @cached_property
    def table(self) -> pd.DataFrame:
        """The tidy table of the result."""
        return self._read("table")

    @cached_property
    def tables(self) -> dict[str, pd.DataFrame]:
        """All tables by name; the one that every result has is `table`."""
        return {path.stem: self._read(path.stem) for path in sorted(self.folder.glob("*.csv"))}

    def _read(self, name: str) -> pd.DataFrame:
        return pd.read_csv(self.folder / f"{name}.csv")

    @cached_property
    def arrays(self) -> dict[str, np.ndarray]:
        """The arrays by name; none if the job leaves none."""
        path = self.folder / "arrays.npz"
        if not path.exists():
            return {}
        with np.load(path) as file:
            return {name: file[name] for name in file.files}

    @property
    def figures(self) -> list[Path]:
        """The files of the figures, PNG and SVG."""
        return sorted((self.folder / "figures").glob("*"))

    def plot(self, name: str | None = None) -> tuple[Any, Any]:
        """Draw a figure of the result once more, for a notebook; returns the figure and its axes.

        Args:
            name: of a file of `figures`, such as "penalty"; by default the first that the kind draws.

        Raises:
            ResultError: there is no such figure.
        """
        return plot("result", self, name)


def open_result(folder: str | os.PathLike[str]) -> Result:
    """Open the folder of a finished job, which stays open where the working folder changes.

    Raises:
        StoreError: the folder holds no finished result, or a file of it is missing or damaged.
    """
    result = Result(Path(folder).expanduser().absolute())
    if not (result.folder / manifest.NAME).exists():
        raise StoreError(f"{result.folder} holds no finished result; it would have a {manifest.NAME}")
    manifest.check(result.folder)
    return result


def finished(store: str | os.PathLike[str], kind: str = "*") -> Iterator[Result]:
    """Yield all finished results of a store, or those of one kind; a damaged one is left out with a warning."""
    for sealed in sorted(Path(store).expanduser().glob(f"{kind}/*/{manifest.NAME}")):
        if sealed.parent.suffix == ".partial":
            continue
        if wrong := manifest.damage(sealed.parent):
            log.warning("left out: %s", wrong)
        else:
            yield Result(sealed.parent)
