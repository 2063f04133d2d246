"""What is in a store: finished jobs, unfinished ones, and what is neither."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

from thinkalike.config import KINDS, options
from thinkalike.errors import ConfigError, StoreError, nearest
from thinkalike.instruments import instrument
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


# ------------------------------------------------------------
# Which results a user asks for: `kind=cka,mutual_knn model=gelu-3l-mini since=7d sort=mean_cka`.

KEYS = ("store", "kind", "model", "since", "sort")
FLAGS = ("--csv", "--json")
UNITS = {"h": timedelta(hours=1), "d": timedelta(days=1), "w": timedelta(weeks=1)}
ORDERS = {
    "date": lambda entry: entry.date.timestamp(),
    "duration": lambda entry: entry.seconds,
    "models": lambda entry: entry.models,
    "kind": lambda entry: entry.kind,
}


@dataclass(frozen=True)
class Query:
    """Which results of which store, in what order, and in which form.

    Attributes:
        kinds, models: any of these; all where there are none.
        since: when the oldest was finished.
        order: one of `ORDERS`, or the name of a headline number.
        form: text | csv | json.
    """

    store: Path = Path("results")
    kinds: tuple[str, ...] = ()
    models: tuple[str, ...] = ()
    since: datetime | None = None
    order: str = "date"
    form: str = "text"

    @classmethod
    def parsed(cls, words: Sequence[str]) -> Query:
        """Read the words of a command line.

        Raises:
            ConfigError: a word is not known, is said twice, or cannot be read.
        """
        said: dict[str, str] = {}
        for word in words:
            key, mark, value = ("form", "=", word[2:]) if word in FLAGS else word.partition("=")
            if not mark:
                key, value = "store", word
            if word.startswith("-") and word not in FLAGS:
                raise ConfigError(f"{word} is not known; {nearest(word, FLAGS)}")
            if key not in (*KEYS, "form"):
                raise ConfigError(f"'{key}' is not a setting of results; {nearest(key, KEYS)}")
            if key in said or not value:
                raise ConfigError(f"{word} must be said once, and with a value: thinkalike results [STORE] kind=cka")
            said[key] = value
        return cls(
            Path(said.get("store", "results")).expanduser(),
            _names(said.get("kind", "")),
            _names(said.get("model", "")),
            moment(said["since"]) if "since" in said else None,
            said.get("sort", "date"),
            said.get("form", "text"),
        )


def moment(text: str, now: datetime | None = None) -> datetime:
    """Return the moment that a text means: a date such as 2026-11-01, or so many hours, days or weeks ago, as 7d.

    A date without a time zone is in UTC.

    Raises:
        ConfigError: it means none.
    """
    try:
        if ago := re.fullmatch(r"(\d+)([hdw])", text):
            return (now or datetime.now(timezone.utc)) - int(ago[1]) * UNITS[ago[2]]
        date = datetime.fromisoformat(text)
    except (ValueError, OverflowError):
        raise ConfigError(f"since={text} is no date; give one, such as 2026-11-01, or 12h, 7d or 2w") from None
    return date if date.tzinfo else date.replace(tzinfo=timezone.utc)


def selected(found: Found, query: Query) -> list[Entry]:
    """Return the results that a user asks for, in the order that was asked for.

    Raises:
        ConfigError: a kind or a model is in no result, or nothing is called as the order is.
        StoreError: the store holds no results, or none that were asked for.
    """
    entries = found.entries
    if not entries:
        waiting = f", and {len(found.unfinished)} unfinished" if found.unfinished else ""
        raise StoreError(f"the store {found.store} holds no finished results{waiting}; python train.py makes one")
    _check("kind", query.kinds, {entry.kind for entry in entries}, found)
    _check("model", query.models, {model for entry in entries for model in entry.models}, found)
    chosen = [entry for entry in entries if _asked_for(entry, query)]
    if not chosen:
        raise StoreError(f"no result of {found.store} is all that was asked for; leave out kind=, model= or since=")
    if query.order in ORDERS:
        return sorted(chosen, key=ORDERS[query.order])
    names = {each.name for entry in chosen for each in entry.headlines}
    if query.order not in names:
        raise ConfigError(f"sort={query.order} is not known; {nearest(query.order, {*ORDERS, *names})}")
    return sorted(chosen, key=lambda entry: _number(entry, query.order))


def _names(text: str) -> tuple[str, ...]:
    return tuple(name for name in text.split(",") if name)


def _asked_for(entry: Entry, query: Query) -> bool:
    kind = not query.kinds or entry.kind in query.kinds
    model = not query.models or bool(set(query.models) & set(entry.models))
    return kind and model and (query.since is None or entry.date >= query.since)


def _check(key: str, given: Iterable[str], there: set[str], found: Found) -> None:
    for value in given:
        if value not in there:
            raise ConfigError(f"{key}={value} is in no result of {found.store}; {nearest(value, there)}")


def _number(entry: Entry, name: str) -> tuple[bool, float]:
    """Return what sorts by a headline number, those that lack it first."""
    numbers = {each.name: each.value for each in entry.headlines}
    return name in numbers, numbers.get(name, 0.0)


# ------------------------------------------------------------
# Settings by dotted names, and as a command line gives them.


def flat(settings: Mapping[str, Any], before: str = "") -> dict[str, Any]:
    """Return nested settings by dotted names."""
    named = {f"{before}{name}": value for name, value in settings.items()}
    inner = [flat(value, f"{name}.") if isinstance(value, Mapping) else {name: value} for name, value in named.items()]
    return {name: value for part in inner for name, value in part.items()}


def written(name: str, value: Any) -> str:
    """Return a setting as a command line gives it: stitch=affine, layers=[[0,0]]."""
    text = value if isinstance(value, str) else json.dumps(value, separators=(",", ":"), ensure_ascii=False)
    return f"{name.removesuffix('.name').removesuffix('.kind')}={text}"


# ------------------------------------------------------------
# The settings that tell listed results apart: those in which jobs of one kind differ.

NAMED = ("model", "target", "data")  # parts whose other settings mostly follow from the name
SHOWN_AS_MODELS = ("model.name", "target.name")


def differing(entries: Sequence[Entry]) -> list[str]:
    """Return the dotted names of the settings in which results of one kind differ.

    A setting of a model or of data is among them only if it differs between results in which that has one name.
    """
    names = sorted({name for entry in entries for name in entry.settings} - set(SHOWN_AS_MODELS))
    return [name for name in names if _differs(name, entries)]


def values_of(entry: Entry, names: Sequence[str]) -> dict[str, Any]:
    """Return these settings of a result; one that has its default is read from its configuration."""
    return {name: entry.settings[name] if name in entry.settings else _default(entry, name) for name in names}


def _differs(name: str, entries: Sequence[Entry]) -> bool:
    part = name.partition(".")[0]
    by_name: dict[Any, set[str]] = {}
    for entry in entries:
        whose = entry.settings.get(f"{part}.name") if part in NAMED and name != f"{part}.name" else None
        by_name.setdefault(whose, set()).add(json.dumps(entry.settings.get(name), sort_keys=True))
    return any(len(values) > 1 for values in by_name.values())


def _default(entry: Entry, name: str) -> Any:
    try:
        value: Any = entry.result.config
    except StoreError:  # a damaged or forged file costs this cell only
        return None
    for part in name.split("."):
        value = value.get(part) if isinstance(value, dict) else None
    return value
