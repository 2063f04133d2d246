"""Which results a page is of: those of stores and of single folders; what is none is named and left out."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from thinkalike.errors import StoreError
from thinkalike.store import Result, open_result

SEAL = "manifest.json"  # what every finished result has


@dataclass
class Gathered:
    """Results in the order of their folders, and one sentence for each folder that was left out."""

    results: list[Result] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)


def gather(places: Sequence[str | os.PathLike[str]]) -> Gathered:
    """Return the results of stores and of single folders, each folder once.

    A folder in a store that holds no finished result, or a damaged one, is left out, and `left_out` says so.

    Args:
        places: stores such as `results`, folders of one kind such as `results/cka`, or folders of single results.

    Raises:
        StoreError: a place is no folder, or there is no finished result in any of them.
    """
    gathered = Gathered()
    for folder in dict.fromkeys(folder for place in places for folder in _folders(Path(place).expanduser())):
        try:
            gathered.results.append(open_result(folder))
        except StoreError as error:
            gathered.left_out.append(str(error))
    if not gathered.results:
        reasons = f" ({gathered.left_out[0]})" if gathered.left_out else ""
        raise StoreError(
            f"{', '.join(map(str, places))} holds no finished result{reasons}; run train.py or analyze.py first, or "
            "name another store"
        )
    return gathered


def _folders(place: Path) -> Iterator[Path]:
    """Yield the folders that may hold results: a place itself if it is sealed, else those in it and in its folders.

    Raises:
        StoreError: it is no folder.
    """
    if not place.is_dir():
        raise StoreError(f"{place} is no folder; name a store, such as results, or the folder of a result")
    if (place / SEAL).exists():
        yield place
        return
    for kind in _inside(place):
        if (kind / SEAL).exists():  # the place is the folder of one kind
            yield kind
        else:
            yield from _inside(kind)


def _inside(folder: Path) -> list[Path]:
    """Return the folders in a folder, sorted; not those of jobs that still run or were interrupted."""
    return [path for path in sorted(folder.iterdir()) if path.is_dir() and path.suffix != ".partial"]
