"""Lists of results: on a screen, for other programs, in Python, and of a sweep."""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import math
import os
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from thinkalike.errors import (
    ConfigError,
    StoreError,
    checked_path,
    flat,
    listed,
    nearest,
    one_line,
    one_of,
    plain,
    plain_line,
    refuse_words,
)
from thinkalike.files import is_folder
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
MOST_CELLS = 5_000_000  # of such a table; 50,000 results of a hundred columns fit
# the columns that every list has; see `results`
FIXED = ("kind", "key", "date", "models", "headline", "value", "low", "high", "seconds", "folder")
ENCODER = json.JSONEncoder(sort_keys=True)
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
    differing: dict[str, Any] = field(default_factory=dict)  # see `with_differing`

    @classmethod
    def of(cls, result: Result) -> Entry:
        made, headlines = result.provenance, result.headlines or first_scalar(result.scalars)
        _ = [*map(str, headlines)]  # a list writes them, and they may be no numbers
        date = datetime.fromisoformat(made["date"]) if "date" in made else _date_of(result.folder)
        return cls(
            result,
            date.astimezone(UTC) if date.tzinfo else date.replace(tzinfo=UTC),
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


def _date_of(folder: Path) -> datetime:
    """Return when a folder was last changed; one whose date is beyond the calendar counts as the oldest."""
    try:
        return datetime.fromtimestamp(folder.stat().st_mtime, UTC)
    except (ValueError, OverflowError):
        return datetime.fromtimestamp(0, UTC)


@dataclass
class Found:
    """The content of a store."""

    store: Path
    entries: list[Entry] = field(default_factory=list)  # the finished jobs, the newest last
    unfinished: list[Path] = field(default_factory=list)  # folders of jobs that run, or that were interrupted
    skipped: list[str] = field(default_factory=list)  # a line for each result that is damaged


@contextlib.contextmanager
def skipping(folder: Path, skipped: list[str]) -> Iterator[None]:
    """Add a line about a result to those skipped if its files cause an error: they may come from anywhere.

    All that reads a stored result for a list or a page reads it inside of this, one result at a time, so that none of
    them ends the whole list.
    """
    try:
        yield
    except StoreError as error:
        # it names a file of the result, or the result
        skipped.append(str(error) if str(folder) in str(error) else f"{folder}: {error}")
    except Exception as error:
        reason = f"{type(error).__name__}: {one_line(error)}"
        skipped.append(f"{folder} cannot be read ({reason})")


def search(store: Path, endings: Collection[str] = ()) -> Found:
    """Return the content of a store, in which no link is followed.

    Args:
        endings: of the files whose digests are compared, see `damage`; of the others, the sizes are.
    """
    found = Found(store)
    for folder in counted(_folders(found), "result"):
        if folder.suffix == ".partial":
            found.unfinished.append(folder)
        with skipping(folder, found.skipped):
            if not is_sealed(folder):
                continue
            if wrong := damage(folder, endings):
                raise StoreError(wrong)
            entry = Entry.of(Result(folder))
            _check_folder(entry.result)
            found.entries.append(entry)
    found.entries.sort(key=lambda entry: entry.date)
    return found


def _check_folder(result: Result) -> None:
    """Check that a result is in the folder of its kind and key: some of those who read a store go by the folders."""
    stated = f"{result.kind}/{result.key}"
    folder = f"{result.folder.parent.name}/{result.folder.name}"
    if stated != folder:
        raise StoreError(f"{result.folder} holds the result {stated}, and its folder is that of {folder}")


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
        places, settings = divided(words)
        given: dict[str, str] = {}
        for key, _, value in (word.partition("=") for word in settings):
            if key not in KEYS:
                raise ConfigError(f"'{key}' is not a setting of results; {nearest(key, KEYS)}")
            if not value:
                raise ConfigError(f"{key}= has no value; give one, or leave it out")
            first = given.setdefault(key, value)
            if first != value:
                remedy = f"give {key}={first},{value}" if key in ("kind", "model") else "leave one of them out"
                raise ConfigError(f"{key}={first} and {key}={value} are given; {remedy}")
        if "store" in given:
            places = list(dict.fromkeys([*places, given["store"]]))
        if len(places) > 1:
            raise ConfigError(
                f"{places[0]} and {places[1]} are two stores, and here one is named; "
                "thinkalike report STORE STORE shows several"
            )
        store = Path(places[0] if places else "results").expanduser()
        kinds, models = (tuple(filter(None, given.get(key, "").split(","))) for key in ("kind", "model"))
        return cls(store, kinds, models, given.get("sort", "date"))


def divided(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the folders that words name, each once, and their settings key=value; a folder may be called a=b."""
    places: list[str] = []
    settings: list[str] = []
    for word in words:
        is_place = "=" not in word or (word.partition("=")[0] not in KEYS and is_folder(Path(word).expanduser()))
        (places if is_place else settings).append(word)
    return list(dict.fromkeys(places)), settings


def parser(name: str, about: str) -> argparse.ArgumentParser:
    """Return what reads the words of a command that is about the results of a store."""
    form, examples = argparse.RawDescriptionHelpFormatter, EXAMPLES.format(name=name)
    made = argparse.ArgumentParser(prog=f"thinkalike {name}", description=about, epilog=examples, formatter_class=form)
    made.error = refuse_words  # type: ignore[method-assign]
    made.add_argument("which", nargs="*", metavar="STORE|key=value", help="kind=, model= and sort= choose")
    return made


def selected(found: Found, query: Query) -> list[Entry]:
    """Return the results that a user asks for, in the order that was asked for, with the settings that differ.

    One whose configuration cannot be read is added to `found.skipped`.
    """
    entries, names = found.entries, {name for entry in found.entries for name in entry.models}
    kinds = {entry.result.kind for entry in entries}
    for key, given, known in (("kind", query.kinds, kinds), ("model", query.models, names)):
        for value in given:
            if entries and value not in known:
                raise ConfigError(f"{key}={value} is in no result of {found.store}; {nearest(value, known)}")
    asked_for = [entry for entry in entries if not query.kinds or entry.result.kind in query.kinds]
    asked_for = [entry for entry in asked_for if not query.models or {*query.models} & {*entry.models}]
    chosen = with_differing(asked_for, found.skipped)
    if not chosen:
        waiting = f", and {len(found.unfinished)} unfinished" if found.unfinished else ""
        if entries and not asked_for:
            more = "leave out kind= or model="
        else:
            more = found.skipped[0] if found.skipped else "run a job first"
        raise StoreError(f"the store {found.store} holds no such finished results{waiting}; {more}")
    if query.order == "duration":
        return sorted(chosen, key=lambda entry: _nan_last(entry.seconds))
    if query.order in ORDERS:
        return sorted(chosen, key=attrgetter(ORDERS[query.order]))
    one_of("sort", query.order, {*ORDERS, *(each.name for entry in chosen for each in entry.headlines)})
    # those without the number come first
    return sorted(chosen, key=lambda entry: _nan_last(entry.numbers.get(query.order, -math.inf)))


def _nan_last(number: float) -> tuple[bool, float]:
    """Return the key of an order in which NaN, which is neither less nor more than any number, comes last."""
    is_nan = math.isnan(number)
    return (is_nan, 0.0 if is_nan else number)


def with_differing(entries: Sequence[Entry], skipped: list[str]) -> list[Entry]:
    """Return results with `differing`: the settings in which those of one kind differ, by dotted names.

    A setting of a model or of data is among them only if it differs between results in which that has one name.
    A result whose configuration cannot be read is left out, and `skipped` gets a line about it; so is one with more
    settings and numbers than a list has room for.
    """
    narrow = _narrow_enough(entries, skipped)
    readable = _with_differing(narrow, skipped)
    if len(readable) < len(narrow):  # fewer settings may differ without the others, of which each could be read
        readable = _with_differing(readable, skipped)
    return readable


def _narrow_enough(entries: Sequence[Entry], skipped: list[str]) -> Sequence[Entry]:
    """Return the results that one list has room for; those with the most settings and numbers are left out first.

    `skipped` gets a line about each of these. Whoever makes up thousands of numbers so hides no result but theirs.
    """
    if not _is_too_wide(entries):
        return entries
    by_width = sorted(range(len(entries)), key=lambda position: _width(entries[position]))
    least, most = 0, len(entries)  # so many of the narrowest fit, and so many do not
    while most - least > 1:
        middle = (least + most) // 2
        if _is_too_wide([entries[position] for position in by_width[:middle]]):
            most = middle
        else:
            least = middle
    for position in sorted(by_width[least:]):
        entry = entries[position]
        skipped.append(
            f"{entry.result.folder} has {_width(entry):,} settings and numbers, and a list has {MOST_COLUMNS:,} at "
            f"most, or {MOST_CELLS:,} cells"
        )
    return [entries[position] for position in sorted(by_width[:least])]


def _width(entry: Entry) -> int:
    return len(entry.settings) + len(entry.result.scalars) + len(entry.numbers)


def _is_too_wide(entries: Sequence[Entry]) -> bool:
    """Return whether results have more settings and numbers than any list is for."""
    settings, numbers = set[str](), set[str]()
    for entry in entries:
        settings.update(entry.settings)
        numbers.update(entry.result.scalars, entry.numbers)
    if _fits(len(entries), len(settings | numbers)):  # most lists, which need no look at the values
        return False
    differing = {name for members in _by_kind(entries).values() for name in _differing_names(members)}
    return not _fits(len(entries), len(differing | numbers))


def _fits(rows: int, columns: int) -> bool:
    return columns <= MOST_COLUMNS and rows * columns <= MOST_CELLS


def _by_kind(entries: Sequence[Entry]) -> dict[str, list[Entry]]:
    by_kind: dict[str, list[Entry]] = defaultdict(list)
    for entry in entries:
        by_kind[entry.result.kind].append(entry)
    return by_kind


def _with_differing(entries: Sequence[Entry], skipped: list[str]) -> list[Entry]:
    names = {kind: _differing_names(members) for kind, members in _by_kind(entries).items()}
    completed = []
    for entry in entries:
        with skipping(entry.result.folder, skipped):
            settings = _with_defaults(entry, names[entry.result.kind])
            completed.append(replace(entry, differing=settings))
    return completed


def _with_defaults(entry: Entry, names: Sequence[str]) -> dict[str, Any]:
    """Return the settings of these names; one that a result does not state is that of its configuration."""
    if all(name in entry.settings for name in names):  # most configurations need not be read
        known = entry.settings
    else:
        known = flat(entry.result.config) | entry.settings
    return {name: known.get(name) for name in names}


def _differing_names(entries: Sequence[Entry]) -> list[str]:
    """Return the names of the settings in which results of one kind differ, in one pass over the settings of each."""
    whole = ("", "")
    sizes = Counter({whole: len(entries)})  # results by part and name of that part, as ("model", '"gpt2"')
    texts: dict[tuple[str, tuple[str, str]], Counter[str]] = defaultdict(Counter)
    for entry in entries:
        groups = {part: (part, _as_text(entry.settings.get(f"{part}.name"))) for part in NAMED}
        sizes.update(groups.values())
        for name, value in entry.settings.items():
            if value is None or name in SHOWN_AS_MODELS:
                continue
            part = name.partition(".")[0]
            group = groups[part] if part in NAMED and name != f"{part}.name" else whole
            texts[name, group][_as_text(value)] += 1
    differing = set()
    for (name, group), counts in texts.items():
        some_lack_it = counts.total() < sizes[group]
        if some_lack_it or len(counts) > 1:
            differing.add(name)
    return sorted(differing)


def _as_text(value: Any) -> str:
    """Return a text that equal values have alone; a setting may be a list, which no set or dictionary can hold."""
    if isinstance(value, str):
        return f'"{value}'  # no other value begins with a quote, and lists write thousands of texts
    return ENCODER.encode(value)


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
    kinds, models = _texts_of("kind", kind), _texts_of("model", model)
    return frame(selected(found, Query(found.store, kinds, models)) if found.entries or kinds or models else [])


def _texts_of(name: str, value: Any) -> tuple[str, ...]:
    """Return one text or several as a tuple; a ConfigError names an argument that is neither."""
    texts = (value,) if isinstance(value, str) else value.tolist() if hasattr(value, "tolist") else value
    if not isinstance(texts, list | tuple | set) or not all(isinstance(text, str) for text in texts):
        raise ConfigError(f"{name}={value!r} must be text, or a list of texts")
    return tuple(texts)


def frame(entries: Sequence[Entry]) -> pd.DataFrame:
    """Return one row for each result, with the columns that `results` names.

    A setting or a number that has the name of another column gets one of its own, such as "scalars.date".
    """
    import pandas as pd

    settings, scalars, numbers = set[str](), set[str](), set[str]()
    for entry in entries:
        settings.update(entry.differing)
        scalars.update(entry.result.scalars)
        numbers.update(entry.numbers)
    reserved = {*FIXED, *settings, *scalars, *numbers}
    setting_columns = _columns_of(settings, "settings", FIXED, reserved)
    differing = {name for entry in entries for name in _differing_scalars(entry)}
    scalar_columns = _columns_of(scalars, "scalars", {*FIXED, *settings, *differing}, reserved)
    number_columns = _columns_of(numbers, "headlines", {*FIXED, *settings}, reserved)
    rows = []
    for entry, record in zip(entries, records(entries), strict=True):
        first = (record["headlines"] or [{}])[0]
        row = {name: record[name] for name in ("kind", "key")}
        row |= {"date": entry.date, "models": ", ".join(entry.models)}
        row |= {setting_columns[name]: value for name, value in record["settings"].items()}
        row |= {"headline": first.get("name"), **{name: first.get(name) for name in ("value", "low", "high")}}
        row |= {scalar_columns[name]: value for name, value in record["scalars"].items()}
        row |= {number_columns[name]: value for name, value in entry.numbers.items()}
        rows.append(row | {name: record[name] for name in ("seconds", "folder")})
    return pd.DataFrame(rows)


def _differing_scalars(entry: Entry) -> list[str]:
    """Return the names of a result's scalars whose values are not those of its headline numbers of the same name."""
    scalars, numbers = entry.result.scalars, entry.numbers
    return [name for name in scalars.keys() & numbers.keys() if not _same_number(scalars[name], numbers[name])]


def _same_number(first: float | None, second: float) -> bool:
    return first == second or (first != first and second != second)  # NaN is not itself


def _columns_of(names: Collection[str], part: str, taken: Collection[str], reserved: set[str]) -> dict[str, str]:
    """Return the columns of settings or numbers by their names; a name that is taken gets its part before it.

    It gets that once more where the longer name is `reserved` for another column; the columns are added to these.
    """
    columns = {}
    for name in sorted(names):
        column = name
        if name in taken:
            column = f"{part}.{name}"
            while column in reserved:
                column = f"{part}.{column}"
            reserved.add(column)
        columns[name] = column
    return columns


def records(entries: Sequence[Entry]) -> list[dict[str, Any]]:
    """Return what lists hold of each result: the columns of `frame`, with models and headline numbers as lists."""
    return [
        {
            "kind": entry.result.kind,
            "key": entry.result.key,
            "date": entry.date.isoformat(),
            "models": entry.models,
            "settings": entry.differing,
            "headlines": [each._asdict() for each in entry.headlines],
            "scalars": entry.result.scalars,
            "seconds": entry.seconds,
            "command": entry.result.provenance.get("command"),
            "folder": str(entry.result.folder),
        }
        for entry in entries
    ]


def json_of(content: Any) -> str:
    """Return a text in JSON, in which a number that is not finite is null, as JSON has no NaN."""
    finite = json.loads(json.dumps(content), parse_constant=lambda _: None)
    return json.dumps(finite, indent=1, allow_nan=False)


def show_entries(entries: Sequence[Entry]) -> None:
    """Print a table for each kind of result, with the settings in which its results differ."""
    by_folder: dict[Path, list[Entry]] = defaultdict(list)
    for entry in entries:
        by_folder[entry.result.folder.parent].append(entry)
    for folder, members in by_folder.items():
        jobs = []
        lines = []
        for entry in members:
            key = plain_line(entry.result.key)
            jobs.append(f"{key}\n{entry.date:%Y-%m-%d %H:%M}\n{duration(entry.seconds)}")
            models = entry.models if len(entry.models) <= 2 else [listed(entry.models)]
            settings = [_written(name, value) for name, value in entry.differing.items()]
            lines.append([*models, *settings])
        title = f"{folder}: {len(members)} {'result' if len(members) == 1 else 'results'}"
        _show(title, jobs, "models and settings", lines, members)


def _show(
    title: str, jobs: Sequence[str], column: str, lines: Sequence[Sequence[str]], entries: Sequence[Entry]
) -> None:
    """Print a table of jobs, of lines about each, and of its headline numbers."""
    # each in one line: a name with line breaks would forge further settings and numbers
    about = ["\n".join(map(plain_line, of_job)) for of_job in lines]
    numbers = ["\n".join(plain_line(str(headline)) for headline in entry.headlines) for entry in entries]
    columns = [Column("job", jobs), text_column(column, about), text_column("result", numbers)]
    show_table(Table(plain_line(title), columns, ruled=True))


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
    left_out: list[str] = []
    for words, folder in made:
        with skipping(folder, left_out):
            entries.append(Entry.of(Result(folder)))
            given.append({key.lstrip("+~"): value for key, _, value in (word.partition("=") for word in words)})
    for line in left_out:
        log.warning("left out of the sweep's table: %s", plain_line(line))
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
    if asked.csv and asked.json:
        raise ConfigError("--csv and --json do not go together; leave one of them out")
    query = Query.parsed(asked.which)
    found = search(query.store)
    try:
        entries = selected(found, query)
    finally:
        for line in found.skipped:
            print(plain_line(f"skipped: {line}"), file=sys.stderr)
    if asked.csv:
        print(frame(entries).rename(columns=_as_cell).map(_as_cell).to_csv(index=False), end="")
    elif asked.json:
        print(json_of(records(entries)))
    else:
        show_entries(entries)
    if found.unfinished:
        folders = listed([f"{each.parent.name}/{each.stem}" for each in found.unfinished])
        told = f"unfinished, running or interrupted: {len(found.unfinished)} ({folders})"
        print(plain_line(told), file=sys.stderr)


def _as_cell(value: Any) -> Any:
    """Return a value as a table for other programs has it: a spreadsheet runs what begins as a formula does."""
    if not isinstance(value, str):
        return value
    text = plain(value)
    return f"'{text}" if text.startswith(FORMULA) and not NUMBER.fullmatch(text) else text
