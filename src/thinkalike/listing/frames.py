"""Results as one table for pandas and spreadsheets, and as records for other programs."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, TypedDict

from thinkalike.errors import ConfigError, checked_path, in_home, plain
from thinkalike.listing.query import Query, selected
from thinkalike.listing.store_content import ListedResult, search
from thinkalike.store import Headline

if TYPE_CHECKING:
    import pandas as pd  # importing it takes half a second, and most lists need no table

# the columns that every table of results has; see `results`
FIXED_COLUMNS = (
    "kind",
    "key",
    "date",
    "models",
    "headline",
    "value",
    "low",
    "high",
    "seconds",
    "folder",
)
FORMULA_SIGNS = ("=", "+", "-", "@", "\t", "\r")  # a spreadsheet computes cells that begin so
NUMBER = re.compile(r"[+-]?[\d.]+(e[+-]?\d+)?", re.IGNORECASE)


class ListRecord(TypedDict):
    """A result as lists for other programs have it.

    Attributes:
        date: in ISO format (UTC).
        settings: those in which the results of its kind differ.
        headlines: the fields of each `Headline` by name.
        command: the command line that computed it; None if its provenance does not say.
    """

    kind: str
    key: str
    date: str
    models: list[str]
    settings: dict[str, object]
    headlines: list[dict[str, object]]
    scalars: dict[str, float]
    seconds: float
    command: str | None
    folder: str


def results(
    store: str | os.PathLike[str], kind: str | Sequence[str] = (), model: str | Sequence[str] = ()
) -> pd.DataFrame:
    """Return one row for each finished result of a store, the newest last.

    The columns are kind, key, date (UTC), models, the settings in which the results of a kind
    differ, the first headline number (headline, value, low, high), all headline numbers and
    scalars by their names, seconds, and folder. A setting or number whose name another column has
    is called after its part, such as "scalars.date". Damaged results and other folders are left
    out.

    Args:
        kind: one kind or several, such as "cka"; empty for all.
        model: results of any of these models, by name; empty for all.

    Raises:
        ConfigError: no result is of such a kind or model.
        StoreError: there is no such folder, or no such result.

    >>> result = diff("gelu-3l-mini", "gelu-3l-mini", store="found")
    >>> list(results("found")["kind"])
    ['diff']
    """
    content = search(in_home(checked_path("store", store)))
    kinds = _as_texts("kind", kind)
    models = _as_texts("model", model)
    if not content.entries and not kinds and not models:
        return results_table([])
    return results_table(selected(content, Query(content.store, kinds, models)))


def _as_texts(argument: str, value: object) -> tuple[str, ...]:
    """Return one text or several as a tuple; a ConfigError names an argument that is neither."""
    texts = value
    if isinstance(value, str):
        texts = (value,)
    elif hasattr(value, "tolist"):  # an array or a column of a table
        texts = value.tolist()
    if not isinstance(texts, list | tuple | set) or not all(
        isinstance(text, str) for text in texts
    ):
        raise ConfigError(f"{argument}={value!r} must be text, or a list of texts")
    return tuple(texts)


def results_table(entries: Sequence[ListedResult]) -> pd.DataFrame:
    """Return one row for each result, with the columns that `results` names.

    A setting or a number that has the name of another column gets one of its own, such as
    "scalars.date".
    """
    import pandas as pd

    settings: set[str] = set()
    scalars: set[str] = set()
    numbers: set[str] = set()
    # scalars that have the name of a headline number and another value
    differing_scalars: set[str] = set()
    for entry in entries:
        settings.update(entry.differing)
        scalars.update(entry.result.scalars)
        numbers.update(entry.numbers)
        differing_scalars.update(_differing_scalars(entry))

    reserved = {*FIXED_COLUMNS, *settings, *scalars, *numbers}
    taken_by_settings = {*FIXED_COLUMNS, *settings}
    setting_columns = _columns_by_name(settings, "settings", FIXED_COLUMNS, reserved)
    scalar_columns = _columns_by_name(
        scalars, "scalars", taken_by_settings | differing_scalars, reserved
    )
    number_columns = _columns_by_name(numbers, "headlines", taken_by_settings, reserved)

    rows = []
    for entry in entries:
        row: dict[str, object] = {
            "kind": entry.result.kind,
            "key": entry.result.key,
            "date": entry.date,
            "models": ", ".join(entry.models),
        }
        for name, setting in entry.differing.items():
            row[setting_columns[name]] = setting
        row |= _first_headline_cells(entry.headlines)
        for name, scalar in entry.result.scalars.items():
            row[scalar_columns[name]] = scalar
        for name, number in entry.numbers.items():
            row[number_columns[name]] = number
        row["seconds"] = entry.seconds
        row["folder"] = str(entry.result.folder)
        rows.append(row)
    return pd.DataFrame(rows)


def _first_headline_cells(headlines: Sequence[Headline]) -> dict[str, object]:
    """Return the cells of the most important headline number, which are blank without one."""
    if not headlines:
        return dict.fromkeys(("headline", "value", "low", "high"))
    first = headlines[0]
    return {"headline": first.name, "value": first.value, "low": first.low, "high": first.high}


def _differing_scalars(entry: ListedResult) -> list[str]:
    """Return the scalars that differ from the headline number with the same name."""
    scalars = entry.result.scalars
    numbers = entry.numbers
    names = []
    for name in scalars.keys() & numbers.keys():
        if not _is_same_number(scalars[name], numbers[name]):
            names.append(name)
    return names


def _is_same_number(first: float | None, second: float) -> bool:
    both_are_nan = first != first and second != second
    return first == second or both_are_nan


def _columns_by_name(
    names: Collection[str], part: str, taken: Collection[str], reserved: set[str]
) -> dict[str, str]:
    """Return the columns of settings or numbers by their names.

    Args:
        names: of the settings or numbers.
        part: what stands before a name that is `taken`, as in "scalars.date". It stands there
            twice if another column has that name.
        taken: names of columns that hold something different.
        reserved: the names of all columns, to which the new ones are added.
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


def records(entries: Sequence[ListedResult]) -> list[ListRecord]:
    """Return each result as a record, with models and headline numbers as lists."""
    return [
        ListRecord(
            kind=entry.result.kind,
            key=entry.result.key,
            date=entry.date.isoformat(),
            models=entry.models,
            settings=entry.differing,
            headlines=[headline._asdict() for headline in entry.headlines],
            scalars=entry.result.scalars,
            seconds=entry.seconds,
            command=entry.result.provenance.get("command"),
            folder=str(entry.result.folder),
        )
        for entry in entries
    ]


def json_of(content: object) -> str:
    """Return the JSON text of some content; a number that is not finite is null, as in JSON."""
    finite = json.loads(json.dumps(content), parse_constant=lambda _: None)
    return json.dumps(finite, indent=1, allow_nan=False)


def csv_of(entries: Sequence[ListedResult]) -> str:
    """Return the table of results as CSV, which is safe to open in a spreadsheet."""
    table = results_table(entries)
    return table.rename(columns=_as_cell).map(_as_cell).to_csv(index=False)


def _as_cell(value: object) -> object:
    """Return a cell in which a spreadsheet computes nothing, whoever wrote the text."""
    if not isinstance(value, str):
        return value
    text = plain(value)
    is_formula = text.startswith(FORMULA_SIGNS) and not NUMBER.fullmatch(text)
    if is_formula:
        return f"'{text}"
    return text
