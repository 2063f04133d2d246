"""The finished jobs of a store, the unfinished ones, and everything else; and which of them a user asks for."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from operator import attrgetter
from pathlib import Path
from typing import Any

from thinkalike.errors import ConfigError, StoreError, nearest, one_of
from thinkalike.store import Headline, Result, damage, first_scalar, is_sealed

OTHERS = {"wandb"}  # folders that loggers keep in a store


@dataclass(frozen=True)
class Entry:
    """A finished job as lists show it.

    Attributes:
        settings: those that differ from their defaults, by dotted names.
        seconds: of all phases, including the earlier runs of an interrupted job.
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
            StoreError: its record cannot be read.
        """
        try:
            made = result.provenance
            return cls(
                result,
                result.kind,
                result.key,
                utc(datetime.fromisoformat(made["date"])) if "date" in made else _written(result.folder),
                list(dict.fromkeys(str(model["name"]) for model in made.get("models", []))),
                flat(result.settings),
                result.headlines or first_scalar(result.scalars),
                float(sum(made.get("phases", {}).values())),
            )
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            reason = type(error).__name__
            raise StoreError(f"{result.folder} is damaged: its record cannot be read ({reason}); delete it") from error


@dataclass
class Found:
    """The content of a store.

    Attributes:
        entries: the finished jobs, the newest last.
        unfinished: folders of jobs that run, or that were interrupted.
        skipped: a line for everything else.
    """

    store: Path
    entries: list[Entry] = field(default_factory=list)
    unfinished: list[Path] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)


def search(store: Path) -> Found:
    """Return the content of a store; the sizes of its files are checked, but not their content.

    Raises:
        StoreError: there is no such folder, or it cannot be read.
    """
    found = Found(store)
    try:
        for folder in _visible(store):
            _search_kind(folder, found)
    except OSError as error:
        raise StoreError(f"the store {store} cannot be read: {error.strerror}; choose store=DIR") from error
    found.entries.sort(key=lambda entry: entry.date)
    return found


def _search_kind(folder: Path, found: Found) -> None:
    """Sort the content of the folder of a kind; one without results and unfinished jobs is skipped whole."""
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
            try:
                found.entries.append(Entry.of(Result(job)))
            except StoreError as error:
                found.skipped.append(str(error))


def _visible(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if not path.name.startswith(".") and path.name not in OTHERS)


def _written(folder: Path) -> datetime:
    return datetime.fromtimestamp(folder.stat().st_mtime, UTC)


def utc(date: datetime) -> datetime:
    """Return a date with its time zone, which is UTC unless it says another."""
    return date if date.tzinfo else date.replace(tzinfo=UTC)


# Which results a user asks for: `kind=cka,mutual_knn model=gelu-3l-mini since=7d sort=mean_cka`.

KEYS = ("store", "kind", "model", "since", "sort", "--csv", "--json")
UNITS = {"h": timedelta(hours=1), "d": timedelta(days=1), "w": timedelta(weeks=1)}
ORDERS = {"date": "date", "duration": "seconds", "models": "models", "kind": "kind"}  # attributes of an entry


@dataclass(frozen=True)
class Query:
    """Which results of which store, in what order, and in which form.

    Attributes:
        kinds, models: any of these; empty: all.
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
        """Read a command line, such as `results kind=cka --csv`.

        Raises:
            ConfigError: a key is not known, or `since` is no date.
        """
        given: dict[str, str] = {}
        for word in words:
            key, mark, value = word.partition("=")
            key, value = (key, value) if mark or word.startswith("-") else ("store", word)
            if key not in KEYS:
                raise ConfigError(f"'{key}' is not a setting of results; {nearest(key, KEYS)}")
            given[key] = value
        return cls(
            Path(given.get("store") or "results").expanduser(),
            tuple(filter(None, given.get("kind", "").split(","))),
            tuple(filter(None, given.get("model", "").split(","))),
            moment(given["since"]) if "since" in given else None,
            given.get("sort", "date"),
            "csv" if "--csv" in given else "json" if "--json" in given else "text",
        )


def moment(text: str) -> datetime:
    """Return the date that a text means: 2026-11-01, or a number of hours, days or weeks ago, as in 7d; UTC by default.

    Raises:
        ConfigError: the text is no date.
    """
    try:
        if ago := re.fullmatch(r"(\d+)([hdw])", text):
            return datetime.now(UTC) - int(ago[1]) * UNITS[ago[2]]
        return utc(datetime.fromisoformat(text))
    except (ValueError, OverflowError):
        raise ConfigError(f"since={text} is no date; give one, such as 2026-11-01, or 12h, 7d or 2w") from None


def selected(found: Found, query: Query) -> list[Entry]:
    """Return the results that a user asks for, in the order that was asked for.

    Raises:
        ConfigError: no result has such a kind, model or headline number.
        StoreError: the store holds no such result.
    """
    entries, names = found.entries, {name for entry in found.entries for name in entry.models}
    for key, given, known in (("kind", query.kinds, {entry.kind for entry in entries}), ("model", query.models, names)):
        for value in given:
            if entries and value not in known:
                raise ConfigError(f"{key}={value} is in no result of {found.store}; {nearest(value, known)}")
    if not (chosen := [entry for entry in entries if _asked_for(entry, query)]):
        waiting = f", and {len(found.unfinished)} unfinished" if found.unfinished else ""
        more = "leave out kind=, model= or since=" if entries else "; ".join(found.skipped[:1]) or "run a job first"
        raise StoreError(f"the store {found.store} holds no such finished results{waiting}; {more}")
    if query.order in ORDERS:
        return sorted(chosen, key=attrgetter(ORDERS[query.order]))
    numbers = [{each.name: each.value for each in entry.headlines} for entry in chosen]
    one_of("sort", query.order, {*ORDERS, *(name for own in numbers for name in own)})
    values = [own.get(query.order, -math.inf) for own in numbers]  # results without the number come first
    return [chosen[place] for place in sorted(range(len(chosen)), key=values.__getitem__)]


def _asked_for(entry: Entry, query: Query) -> bool:
    kind = not query.kinds or entry.kind in query.kinds
    model = not query.models or bool(set(query.models) & set(entry.models))
    return kind and model and (query.since is None or entry.date >= query.since)


# The settings in which listed results of one kind differ.

NAMED = ("model", "target", "data")  # parts whose other settings mostly follow from the name
SHOWN_AS_MODELS = ("model.name", "target.name")


def flat(settings: Mapping[str, Any], before: str = "") -> dict[str, Any]:
    """Return nested settings by dotted names."""
    found: dict[str, Any] = {}
    for name, value in settings.items():
        whole = f"{before}{name}"
        found |= flat(value, f"{whole}.") if isinstance(value, Mapping) else {whole: value}
    return found


def differing(entries: Sequence[Entry]) -> list[dict[str, Any]]:
    """Return for each result the settings in which the results of its kind differ, by dotted names.

    A setting of a model or of data is among them only if it differs between results in which that has one name.
    """
    names = {}
    for kind in {entry.kind for entry in entries}:
        own = [entry for entry in entries if entry.kind == kind]
        known = sorted({name for entry in own for name in entry.settings} - set(SHOWN_AS_MODELS))
        names[kind] = [name for name in known if _differs(name, own)]
    return [{name: _value(entry, name) for name in names[entry.kind]} for entry in entries]


def _differs(name: str, entries: Sequence[Entry]) -> bool:
    part = name.partition(".")[0]
    by_name: dict[Any, set[str]] = {}
    for entry in entries:
        whose = entry.settings.get(f"{part}.name") if part in NAMED and name != f"{part}.name" else None
        by_name.setdefault(whose, set()).add(json.dumps(entry.settings.get(name), sort_keys=True))
    return any(len(values) > 1 for values in by_name.values())


def _value(entry: Entry, name: str) -> Any:
    """Return a setting of a result; a default is read from its configuration, and None if that is damaged."""
    if name in entry.settings:
        return entry.settings[name]
    try:
        json.dumps(value := flat(entry.result.config).get(name))
    except (StoreError, TypeError):  # a file that no job wrote
        return None
    return value
