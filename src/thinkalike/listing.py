"""Lists of results: on a screen, for other programs, in Python, and of a sweep."""

from __future__ import annotations

import argparse
import json
import logging
import math
import os
import re
import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from thinkalike.errors import ConfigError, StoreError, checked_path, flat, listed, nearest, one_line, one_of, plain
from thinkalike.processes import counted
from thinkalike.screen import Column, Table, show_table, text_column
from thinkalike.store import Headline, Result, damage, first_scalar, is_sealed

if TYPE_CHECKING:
    import pandas as pd  # which takes half a second to import, and most lists need no table

log = logging.getLogger(__name__)

KEYS = ("store", "kind", "model", "sort")
ORDERS = {"date": "date", "duration": "seconds", "models": "models", "kind": "result.kind"}  # attributes of an entry
NAMED = ("model", "target", "data")  # parts whose other settings mostly follow from the name
SHOWN_AS_MODELS = ("model.name", "target.name")
MOST_COLUMNS = 5000  # of a table of results; those of all kinds together have a few hundred
# the columns that every list has; see `results`
FIXED = ("kind", "key", "date", "models", "headline", "value", "low", "high", "seconds", "folder")
FORMULA = ("=", "+", "-", "@", "\t", "\r")  # how cells begin that spreadsheets compute
NUMBER = re.compile(r"[+-]?[\d.]+(e[+-]?\d+)?", re.IGNORECASE)
EXAMPLES = """\
thinkalike {name}                                     all finished jobs of the folder results
thinkalike {name} kind=cka,mutual_knn model=gpt2      those of any of these kinds, and of any of these models
thinkalike {name} store=DIR sort=mean_penalty                   sort=date|duration|models|kind, or a headline number"""


@dataclass(frozen=True)
class Entry:
    """A finished job as lists show it."""

    result: Result
    date: datetime
    models: list[str]
    settings: dict[str, Any]  # those that differ from their defaults, by dotted names
    headlines: list[Headline]
    seconds: float  # of all phases, including the earlier runs of an interrupted job

    @classmethod
    def of(cls, result: Result) -> Entry:
        made, headlines = result.provenance, result.headlines or first_scalar(result.scalars)
        _ = [*map(str, headlines)]  # a list writes them, and they may be no numbers
        written = datetime.fromtimestamp(result.folder.stat().st_mtime, UTC)
        date = datetime.fromisoformat(made["date"]) if "date" in made else written
        return cls(
            result,
            date if date.tzinfo else date.replace(tzinfo=UTC),
            list(dict.fromkeys(str(model["name"]) for model in made.get("models", []))),
            flat(result.settings),
            headlines,
            float(sum(made.get("phases", {}).values())),
        )

    @property
    def numbers(self) -> dict[str, float]:
        """All headline numbers and the ends of their intervals, by name; of two of one name, the more important one."""
        numbers: dict[str, float] = {}
        for headline in self.headlines:  # the most important one comes first
            for name, value in headline.numbers.items():
                numbers.setdefault(name, value)
        return numbers


@dataclass
class Found:
    """The content of a store."""

    store: Path
    entries: list[Entry] = field(default_factory=list)  # the finished jobs, the newest last
    unfinished: list[Path] = field(default_factory=list)  # folders of jobs that run, or that were interrupted
    skipped: list[str] = field(default_factory=list)  # a line for each result that is damaged


def search(store: Path, endings: Collection[str] = ()) -> Found:
    """Return the content of a store, in which no link is followed.

    Args:
        endings: of the files whose digests are compared, see `damage`; of the others, the sizes are.
    """
    found = Found(store)
    for folder in counted(_folders(found), "result"):
        if folder.suffix == ".partial":
            found.unfinished.append(folder)
        try:
            if not is_sealed(folder):
                continue
            if wrong := damage(folder, endings):
                found.skipped.append(wrong)
                continue
            entry = Entry.of(Result(folder))
            if entry.result.kind == folder.parent.name:
                found.entries.append(entry)
            else:  # lists go by the folder, and everything else by what the result says
                found.skipped.append(f"{folder} holds a result of {entry.result.kind}, not of {folder.parent.name}")
        except Exception as error:  # a result may come from anywhere
            found.skipped.append(f"{folder} cannot be read ({type(error).__name__}: {one_line(error)})")
    found.entries.sort(key=lambda entry: entry.date)
    return found


def _folders(found: Found) -> list[Path]:
    """Return the folders of the jobs of a store; what cannot be looked into is noted as skipped."""
    folders = []
    try:
        kinds = _folders_in(found.store, found)
    except OSError as error:
        raise StoreError(f"the store {found.store} cannot be read: {error.strerror}; choose store=DIR") from error
    for kind in kinds:
        try:
            folders += _folders_in(kind, found)
        except OSError as error:
            found.skipped.append(f"{kind} cannot be read: {error.strerror}")
    return sorted(folders, key=str)


def _folders_in(place: Path, found: Found) -> list[Path]:
    inside = [entry for entry in os.scandir(place) if not entry.name.startswith(".")]
    links = [entry.path for entry in inside if entry.is_symlink() and os.path.isdir(entry.path)]
    found.skipped += [f"{path} is a link, and links inside a store are not followed" for path in links]
    return [Path(entry.path) for entry in inside if entry.is_dir(follow_symlinks=False)]


@dataclass(frozen=True)
class Query:
    """Which results of which store, and in what order: one of `ORDERS`, or by a headline number."""

    store: Path = Path("results")
    kinds: tuple[str, ...] = ()
    models: tuple[str, ...] = ()
    order: str = "date"

    @classmethod
    def parsed(cls, words: Sequence[str]) -> Query:
        """Read the words of a command line, such as `kind=cka`; one without a key is the store."""
        is_store = ("=" not in word or Path(word).expanduser().is_dir() for word in words)  # as of a folder a=b
        pairs = (
            ("store", "=", word) if is_folder else word.partition("=")
            for word, is_folder in zip(words, is_store, strict=True)
        )
        given = {key: value for key, _, value in pairs}
        for key in given:
            if key not in KEYS:
                raise ConfigError(f"'{key}' is not a setting of results; {nearest(key, KEYS)}")
        store = Path(given.get("store") or "results").expanduser()
        kinds, models = (tuple(filter(None, given.get(key, "").split(","))) for key in ("kind", "model"))
        return cls(store, kinds, models, given.get("sort", "date"))


def parser(name: str, about: str) -> argparse.ArgumentParser:
    """Return what reads the words of a command that is about the results of a store."""
    form, examples = argparse.RawDescriptionHelpFormatter, EXAMPLES.format(name=name)
    made = argparse.ArgumentParser(prog=f"thinkalike {name}", description=about, epilog=examples, formatter_class=form)
    made.add_argument("which", nargs="*", metavar="STORE|key=value", help="kind=, model= and sort= choose")
    return made


def selected(found: Found, query: Query) -> list[Entry]:
    """Return the results that a user asks for, in the order that was asked for."""
    entries, names = found.entries, {name for entry in found.entries for name in entry.models}
    kinds = {entry.result.kind for entry in entries}
    for key, given, known in (("kind", query.kinds, kinds), ("model", query.models, names)):
        for value in given:
            if entries and value not in known:
                raise ConfigError(f"{key}={value} is in no result of {found.store}; {nearest(value, known)}")
    chosen = [entry for entry in entries if not query.kinds or entry.result.kind in query.kinds]
    chosen = [entry for entry in chosen if not query.models or {*query.models} & {*entry.models}]
    if not chosen:
        waiting = f", and {len(found.unfinished)} unfinished" if found.unfinished else ""
        more = "leave out kind= or model=" if entries else "; ".join(found.skipped[:1]) or "run a job first"
        raise StoreError(f"the store {found.store} holds no such finished results{waiting}; {more}")
    if query.order in ORDERS:
        return sorted(chosen, key=attrgetter(ORDERS[query.order]))
    one_of("sort", query.order, {*ORDERS, *(each.name for entry in chosen for each in entry.headlines)})
    return sorted(chosen, key=lambda entry: entry.numbers.get(query.order, -math.inf))  # those without come first


def differing(entries: Sequence[Entry]) -> list[dict[str, Any]]:
    """Return for each result the settings in which the results of its kind differ, by dotted names.

    A setting of a model or of data is among them only if it differs between results in which that has one name.
    """
    names: dict[str, list[str]] = {}
    for kind in {entry.result.kind for entry in entries}:
        own = [entry for entry in entries if entry.result.kind == kind]
        known = sorted({name for entry in own for name in entry.settings} - {*SHOWN_AS_MODELS})
        names[kind] = [name for name in known if _differs(name, own)]
    found = []
    for entry in entries:
        lacks = {*(wanted := names[entry.result.kind])} - {*entry.settings}
        given = (flat(entry.result.config) if lacks else {}) | entry.settings  # a default is in its configuration
        found.append({name: given.get(name) for name in wanted})
    return found


def _differs(name: str, entries: Sequence[Entry]) -> bool:
    part = name.partition(".")[0]
    by_name: dict[Any, set[str]] = {}
    for entry in entries:
        whose = entry.settings.get(f"{part}.name") if part in NAMED and name != f"{part}.name" else None
        by_name.setdefault(whose, set()).add(json.dumps(entry.settings.get(name), sort_keys=True))
    return any(len(values) > 1 for values in by_name.values())


def results(
    store: str | os.PathLike[str], kind: str | Sequence[str] = (), model: str | Sequence[str] = ()
) -> pd.DataFrame:
    """Return one row for each finished result of a store, the newest last; an empty table if there is none.

    The columns are kind, key, date (UTC), models, the settings in which the results of a kind differ, the first
    headline number (headline, value, low, high), all headline numbers and scalars by their names, seconds, folder.
    One whose name another column has is called after its part, such as "scalars.date". Damaged results and other
    folders are left out.

    Args:
        kind: one kind or several, such as "cka"; nothing: all.
        model: results of any of these models, by their names.

    Raises:
        ConfigError: no result is of such a kind or model.
        StoreError: there is no such folder, or no such result.

    >>> result = diff("gelu-3l-mini", "gelu-3l-mini", store="found")
    >>> list(results("found")["kind"])
    ['diff']
    """
    found = search(Path(checked_path("store", store)).expanduser())
    kinds, models = ((each,) if isinstance(each, str) else tuple(each) for each in (kind, model))
    return frame(selected(found, Query(found.store, kinds, models)) if found.entries or kinds or models else [])


def frame(entries: Sequence[Entry]) -> pd.DataFrame:
    """Return one row for each result, with the columns that `results` names.

    A setting or a number that has the name of another column gets one of its own, such as "scalars.date".

    Raises:
        StoreError: there would be more columns than any table is for, as where somebody made up thousands of settings.
    """
    import pandas as pd

    told = records(entries)
    columns = {name for record in told for part in ("settings", "scalars") for name in record[part]}
    if len(columns) > MOST_COLUMNS:
        counted = f"these results have {len(columns):,} settings and numbers, and a table has {MOST_COLUMNS:,} at most"
        raise StoreError(f"{counted}; choose some of them with kind= or model=")
    settings = {name for record in told for name in record["settings"]}
    rows = []
    for entry, record in zip(entries, told, strict=True):
        first = (record["headlines"] or [{}])[0]
        row = {name: record[name] for name in ("kind", "key")}
        row |= {"date": entry.date, "models": ", ".join(entry.models)}
        row |= _renamed(record["settings"], "settings", FIXED)
        row |= {"headline": first.get("name"), **{name: first.get(name) for name in ("value", "low", "high")}}
        row |= _renamed(record["scalars"], "scalars", {*FIXED, *settings})
        row |= _renamed(entry.numbers, "headlines", {*FIXED, *settings})
        rows.append(row | {name: record[name] for name in ("seconds", "folder")})
    return pd.DataFrame(rows)


def _renamed(values: Mapping[str, Any], part: str, taken: Collection[str]) -> dict[str, Any]:
    """Return values by names that are not taken: one that is gets the part that it is of before it."""
    return {f"{part}.{name}" if name in taken else name: value for name, value in values.items()}


def records(entries: Sequence[Entry]) -> list[dict[str, Any]]:
    """Return what lists hold of each result: the columns of `frame`, with models and headline numbers as lists."""
    return [
        {
            "kind": entry.result.kind,
            "key": entry.result.key,
            "date": entry.date.isoformat(),
            "models": entry.models,
            "settings": settings,
            "headlines": [each._asdict() for each in entry.headlines],
            "scalars": entry.result.scalars,
            "seconds": entry.seconds,
            "command": entry.result.provenance.get("command"),
            "folder": str(entry.result.folder),
        }
        for entry, settings in zip(entries, differing(entries), strict=True)
    ]


def json_of(content: Any) -> str:
    """Return a text in JSON, in which a number that is not finite is null, as JSON has no NaN."""
    finite = json.loads(json.dumps(content), parse_constant=lambda _: None)
    return json.dumps(finite, indent=1, allow_nan=False)


def show_entries(entries: Sequence[Entry]) -> None:
    """Print a table for each kind of result, with the settings in which its results differ."""
    for folder in dict.fromkeys(entry.result.folder.parent for entry in entries):
        own = [entry for entry in entries if entry.result.folder.parent == folder]
        jobs = [f"{each.result.key}\n{each.date:%Y-%m-%d %H:%M}\n{duration(each.seconds)}" for each in own]
        models = [each.models if len(each.models) <= 2 else [listed(each.models)] for each in own]
        settings = [[_written(*each) for each in given.items()] for given in differing(own)]
        title = f"{folder}: {len(own)} {'result' if len(own) == 1 else 'results'}"
        said = [[*names, *given] for names, given in zip(models, settings, strict=True)]
        _show(title, jobs, "models and settings", said, own)


def _show(
    title: str, jobs: Sequence[str], column: str, said: Sequence[Sequence[str]], entries: Sequence[Entry]
) -> None:
    """Print a table of jobs, of what is said of each, and of its headline numbers."""
    numbers = ["\n".join(map(str, entry.headlines)) for entry in entries]
    settings = text_column(column, ["\n".join(lines) for lines in said])
    show_table(Table(title, [Column("job", jobs), settings, text_column("result", numbers)], ruled=True))


def _written(name: str, value: Any) -> str:
    """Return a setting as a command line gives it: stitch=affine, layers=[[0,0]]."""
    text = value if isinstance(value, str) else json.dumps(value, separators=(",", ":"), ensure_ascii=False)
    return f"{name.removesuffix('.name').removesuffix('.kind')}={text}"


def duration(seconds: float) -> str:
    """Return seconds in words: 31 s, 12 min, 3.5 h."""
    if seconds < 100:
        return f"{seconds:.3g} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"


def show_sweep(made: Sequence[tuple[Sequence[str], Path]]) -> None:
    """Print one table of the results of a sweep, of each its overrides and its folder.

    One that cannot be read any more is left out with a warning.
    """
    entries, given = [], []
    for words, folder in made:
        try:
            entries.append(Entry.of(Result(folder)))
        except StoreError as error:
            log.warning("left out of the sweep's table: %s", error)
            continue
        given.append({key.lstrip("+~"): value for key, _, value in (word.partition("=") for word in words)})
    keys = dict.fromkeys(key for each in given for key in each)
    swept = [key for key in keys if len(given) == 1 or len({each.get(key) for each in given}) > 1]
    if entries:
        jobs = [f"{entry.result.key}\n{duration(entry.seconds)}" for entry in entries]
        said = [[f"{name}={each.get(name, '')}" for name in swept] for each in given]
        _show(f"jobs of the sweep: {len(entries)}", jobs, "swept", said, entries)


def list_results(words: Sequence[str]) -> None:
    """Print the results that a command line asks for; damaged results and unfinished jobs go to stderr."""
    reads = parser("results", "List the finished jobs of a store, the newest last.")
    for form in ("--csv", "--json"):
        reads.add_argument(form, action="store_true", help="for machines, in full precision, and nothing else")
    asked = reads.parse_args(words)
    query = Query.parsed(asked.which)
    found = search(query.store)
    for line in found.skipped:
        print(plain(f"skipped: {line}"), file=sys.stderr)
    entries = selected(found, query)
    if asked.csv:
        print(frame(entries).rename(columns=_as_cell).map(_as_cell).to_csv(index=False), end="")
    elif asked.json:
        print(json_of(records(entries)))
    else:
        show_entries(entries)
    if found.unfinished:
        folders = listed([f"{each.parent.name}/{each.stem}" for each in found.unfinished])
        told = f"unfinished, running or interrupted: {len(found.unfinished)} ({folders})"
        print(plain(told), file=sys.stderr)


def _as_cell(value: Any) -> Any:
    """Return a value as a table for other programs has it: a spreadsheet runs what begins as a formula does."""
    if not isinstance(value, str):
        return value
    text = plain(value)
    return f"'{text}" if text.startswith(FORMULA) and not NUMBER.fullmatch(text) else text
