"""What is in a store: finished jobs, unfinished ones, and what is neither."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from thinkalike.config import KINDS, options
from thinkalike.errors import StoreError
from thinkalike.instruments import instrument
from thinkalike.listing.forms import flat
from thinkalike.papers import experiment_named
from thinkalike.store import Headline, Result, damage, first_scalar, is_sealed

OTHERS = {"wandb"}  # folders that loggers keep in a store


@dataclass(frozen=True)
class Entry:
    """A finished job as lists show it; `settings` are those that differ from their defaults, by dotted names.

    `seconds` are those of all phases, of an interrupted job's earlier runs, too.
    """

    result: Result
    kind: str
    key: str
    date: datetime
    models: list[str]
    settings: dict[str, Any]
    headlines: list[Headline]
    seconds: float

    @classmethod
    def of(cls, result: Result) -> Entry:
        """Read a finished job.

        Raises:
            StoreError: what it says of itself cannot be read.
        """
        try:
            made = result.provenance
            return cls(
                result,
                result.kind,
                result.key,
                _date(result),
                list(dict.fromkeys(str(model["name"]) for model in made.get("models", []))),
                flat(result.settings),
                headlines_of(result),
                float(sum(made["phases"].values()) if "phases" in made else made.get("wall_seconds", 0.0)),
            )
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            what = type(error).__name__
            raise StoreError(f"{result.folder} is damaged: its record cannot be read ({what}); delete it") from error


@dataclass
class Found:
    """What is in a store.

    Attributes:
        entries: the finished jobs, the newest last.
        unfinished: folders of jobs that run, or that were interrupted.
        skipped: what is neither, a line each.
    """

    store: Path
    entries: list[Entry] = field(default_factory=list)
    unfinished: list[Path] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)


def search(store: Path) -> Found:
    """Return what is in a store; the sizes of its files are checked, and their content is not.

    Raises:
        StoreError: there is no such folder, it is itself a result, or it cannot be read.
    """
    found = Found(store)
    if is_sealed(store):
        raise StoreError(f"{store} is one result, and no store; its store is {store.parent.parent}")
    try:
        for folder in _visible(store):
            _search_kind(folder, found)
    except OSError as error:
        raise StoreError(f"the store {store} cannot be read: {error.strerror}; choose store=DIR") from error
    found.entries.sort(key=lambda entry: entry.date)
    return found


def headlines_of(result: Result) -> list[Headline]:
    """Return the headline numbers of a result; those of an older version are found in its tables, or are a scalar."""
    try:
        return result.headlines or _computed(result)
    except (KeyError, ValueError, OSError):  # tables of before have other columns
        return first_scalar(result.scalars)


def _computed(result: Result) -> list[Headline]:
    """Return the headline numbers that an instrument finds in a result of its kind."""
    named = {name.replace("/", "-"): name for name in options("experiment")}
    if result.kind in named:
        return list(experiment_named(named[result.kind]).headlines(result))
    if result.kind in KINDS:
        return list(instrument(KINDS[result.kind]).headlines(result))
    return first_scalar(result.scalars)


def _search_kind(folder: Path, found: Found) -> None:
    """Sort what is in the folder of a kind; one that holds neither results nor unfinished jobs is skipped whole."""
    jobs = _visible(folder) if folder.is_dir() else []
    if not any(job.suffix == ".partial" or is_sealed(job) for job in jobs):
        if jobs or not folder.is_dir():
            found.skipped.append(f"{folder} holds no results")
        return
    for job in jobs:
        if job.suffix == ".partial":
            found.unfinished.append(job)
        elif not is_sealed(job):
            found.skipped.append(f"{job} holds no finished result")
        elif wrong := damage(job, content=False):
            found.skipped.append(wrong)
        else:
            _read(job, found)


def _read(job: Path, found: Found) -> None:
    try:
        found.entries.append(Entry.of(Result(job)))
    except StoreError as error:
        found.skipped.append(str(error))


def _visible(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if not path.name.startswith(".") and path.name not in OTHERS)


def _date(result: Result) -> datetime:
    """Return when a job was finished: as its record says, or else when its folder was written."""
    if (stated := result.provenance.get("date")) is None:
        return datetime.fromtimestamp(result.folder.stat().st_mtime, timezone.utc)
    date = datetime.fromisoformat(str(stated))
    return date if date.tzinfo else date.replace(tzinfo=timezone.utc)
