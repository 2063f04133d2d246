"""The content of a store: its finished results, its unfinished jobs, and what is damaged."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path

from thinkalike.errors import StoreError, flat, reason_in_words
from thinkalike.processes import counted
from thinkalike.store import Headline, Result, damage, first_scalar, is_sealed
from thinkalike.store.manifest import MANIFEST, RECORD

MOST_SEARCHED = 1000  # folders that are looked at for a store where a user named another folder


@dataclass(frozen=True)
class ListedResult:
    """A finished job as lists show it.

    Attributes:
        result: the result in its folder.
        date: when it was computed (UTC).
        models: the names of its models, each once.
        settings: those that differ from their defaults, by dotted names.
        headlines: its headline numbers; for older results, its first scalar.
        seconds: of all phases, including the earlier runs of an interrupted job.
        differing: the settings in which the results of its kind differ, see `with_differing`.
    """

    result: Result
    date: datetime
    models: list[str]
    settings: dict[str, object]
    headlines: list[Headline]
    seconds: float
    differing: dict[str, object] = field(default_factory=dict)

    @classmethod
    def of(cls, result: Result) -> ListedResult:
        """Return the entry of a result; its files may cause any error, see `skipping`."""
        provenance = result.provenance
        headlines = result.headlines or first_scalar(result.scalars)
        for headline in headlines:  # lists write them, and a damaged one would raise only there
            str(headline)
        names = [str(model["name"]) for model in provenance.get("models", [])]
        seconds = sum(provenance.get("phases", {}).values())
        return cls(
            result=result,
            date=_date_of(result),
            models=list(dict.fromkeys(names)),
            settings=flat(result.settings),
            headlines=headlines,
            seconds=float(seconds),
        )

    @property
    def numbers(self) -> dict[str, float]:
        """All headline numbers and the ends of their intervals, by name.

        Of two numbers with the same name, it is the more important one.
        """
        numbers: dict[str, float] = {}
        for headline in self.headlines:  # the most important one comes first
            for name, value in headline.numbers.items():
                numbers.setdefault(name, value)
        return numbers


def _date_of(result: Result) -> datetime:
    """Return when a result was computed (UTC), or else when its folder changed."""
    stated = result.provenance.get("date")
    if stated is None:
        return _date_of_folder(result.folder)
    date = datetime.fromisoformat(stated)
    if date.tzinfo is None:
        return date.replace(tzinfo=UTC)
    return date.astimezone(UTC)


def _date_of_folder(folder: Path) -> datetime:
    """Return when a folder was last changed; the oldest date for one beyond the calendar."""
    try:
        return datetime.fromtimestamp(folder.stat().st_mtime, UTC)
    except (ValueError, OverflowError):
        return datetime.fromtimestamp(0, UTC)


@dataclass
class StoreContent:
    """The content of a store.

    Attributes:
        store: the folder of the store.
        entries: the finished jobs, the newest last.
        unfinished: the folders of jobs that are running or were interrupted.
        skipped: a sentence about each damaged result.
    """

    store: Path
    entries: list[ListedResult] = field(default_factory=list)
    unfinished: list[Path] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)


@contextlib.contextmanager
def skipping(folder: Path, skipped: list[str]) -> Iterator[None]:
    """Turn any error of a result's files, which may come from anywhere, into a line of `skipped`.

    Whatever reads stored results for a list or a page reads them inside this context, one result
    at a time, so that a damaged one never ends the whole list.
    """
    try:
        yield
    except StoreError as error:
        names_result = str(folder) in str(error)
        if names_result:
            skipped.append(str(error))
        else:
            skipped.append(f"{folder}: {error}")
    except Exception as error:
        reason = reason_in_words(error)
        skipped.append(f"{folder} cannot be read ({reason})")


def search(store: Path, endings: Collection[str] = ()) -> StoreContent:
    """Return the content of a store; no link in it is followed.

    Args:
        endings: of the files whose digests are compared, see `damage`. The sizes of all files are
            compared.

    Raises:
        StoreError: there is no such folder, or it is not a store but inside or around one.
    """
    content = StoreContent(store)
    folders = _job_folders(content)
    for folder in counted(folders, "result"):
        if folder.suffix == ".partial":
            content.unfinished.append(folder)
        with skipping(folder, content.skipped):
            if not is_sealed(folder):
                _check_is_no_result(folder)
                continue
            problem = damage(folder, endings)
            if problem is not None:
                raise StoreError(problem)
            entry = ListedResult.of(Result(folder))
            _check_location(entry.result)
            content.entries.append(entry)
    if not (content.entries or content.unfinished or content.skipped):
        _check_is_store(store, folders)
    content.entries.sort(key=lambda entry: entry.date)
    return content


def _check_is_no_result(folder: Path) -> None:
    """Check that a folder without a manifest has no record, which a finished result alone has.

    A job that runs, or was stopped, has its files in a folder of another name.
    """
    if folder.suffix != ".partial" and os.path.lexists(folder / RECORD):
        raise StoreError(f"{folder} is damaged: it has {RECORD}, and {MANIFEST} is no file there")


def _check_is_store(store: Path, folders: Sequence[Path]) -> None:
    """Check that a folder without results is not inside of a store, nor around one.

    Args:
        folders: those two levels inside the folder, where a store has its results.
    """
    actual_store = None
    if is_sealed(store):
        actual_store = store.resolve().parents[1]
    elif _has_results(store):
        actual_store = store.resolve().parent
    else:
        for folder in folders[:MOST_SEARCHED]:
            if _has_results(folder):
                actual_store = folder.parent.resolve()
                break
    if actual_store is not None:
        raise StoreError(f"{store} is not a store itself; the store is {actual_store}: name that")


def _has_results(folder: Path) -> bool:
    """Return whether finished results are directly inside a folder that can be read."""
    with contextlib.suppress(OSError, StoreError):
        return any(is_sealed(inner) for inner in islice(folder.iterdir(), MOST_SEARCHED))
    return False


def _check_location(result: Result) -> None:
    """Check that a result is in the folder of its kind and key: some programs rely on it."""
    stated = f"{result.kind}/{result.key}"
    location = f"{result.folder.parent.name}/{result.folder.name}"
    if stated != location:
        raise StoreError(
            f"{result.folder} holds the result {stated}, and its folder is that of {location}"
        )


def _job_folders(content: StoreContent) -> list[Path]:
    """Return the folders `<store>/<kind>/<key>`; what cannot be read is added to `skipped`."""
    try:
        kind_folders = _folders_in(content.store, content)
    except OSError as error:
        reason = f"the store {content.store} cannot be read: {error.strerror}"
        raise StoreError(f"{reason}; choose store=DIR") from error
    folders = []
    for kind_folder in kind_folders:
        try:
            folders += _folders_in(kind_folder, content)
        except OSError as error:
            content.skipped.append(f"{kind_folder} cannot be read: {error.strerror}")
    return sorted(folders, key=str)


def _folders_in(folder: Path, content: StoreContent) -> list[Path]:
    """Return the visible folders inside a folder; links to folders are added to `skipped`."""
    folders = []
    for item in os.scandir(folder):
        if item.name.startswith("."):
            continue
        if item.is_symlink() and os.path.isdir(item.path):
            content.skipped.append(
                f"{item.path} is a link, and links inside a store are not followed"
            )
        elif item.is_dir(follow_symlinks=False):
            folders.append(Path(item.path))
    return folders
