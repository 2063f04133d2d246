"""Tables of results as a page draws them: the grids of a table."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import islice
from typing import Any

from thinkalike.columns import Columns

Grid = dict[str, Any]

MOST_GRIDS = 1000  # of a table; one with more of them, or with larger ones, is shown as rows
MOST_LABELS = 2000  # rows or columns of a grid
# All crossings of the rows and columns of a grid, so that a table of 2,000 layer pairs can stand for four million;
# two models of a hundred layers have 10,000.
MOST_CELLS = 100_000
NUMBERS = (int, float)

# Grids: tables that the page can draw, told apart by their columns and never by the kind of their result.
#
# A *pair* grid has the layers of a source as rows and those of a target as columns. A *profile* grid has the features
# of one model as rows and its layers as columns. A *layers* grid has one row; its columns are the layers of one model.
# A *steps* grid has features or layers as rows and the steps of a training as columns.

PAIR = ["source", "target", "source_layer", "target_layer"]
PLACES = [*PAIR, "model", "layer", "step", "feature"]
COMPARED = ["measure", "other"]  # two measures, of whose values a row has both
MAIN = ("value", "penalty", "importance", "score", "asymmetry")  # what a grid shows first, where it has one of these
WITH_ENDS = ("value", "importance", "score", "share", "effect", "accuracy", "mean", "rho")  # whose are low and high
LOW_IS_ALIKE = (
    "penalty", "unexplained", "loss", "distance", "kl", "bits_per_byte", "flips", "procrustes", "jsd", "disagreement",
)  # fmt: skip
SIGNED = ("asymmetry", "gap", "difference", "gain")  # of which 0 is the middle
DIGITS = 6  # significant ones that a page holds
MOST_TELLING = 8  # columns that tell the grids of two models apart; rows alike in these are numbered
BLANK_NAME = "(blank)"  # the name on a page of a model whose cell in the table is blank
MOST_MODELS = 12  # in a table of one layer per row: those of populations have more, and are shown as tables


def grids_of(table: Columns, is_distance: bool = False, run: str = "") -> list[Grid]:
    """Return the grids of a table, or none if a page shows its rows instead.

    So it does where the columns are not those of a grid, where the table sets two measures side by side, and where the
    grids are more or larger than a page can draw.

    Each grid has `role` (pair, profile, layers or steps), `models` (source and target, or one), `variant` (what tells
    it from other grids of the same models), `rows`, `columns` (the labels of both axes), `cells` (row * columns +
    column of each number, or None where all are there in order), `main` (which number is shown first) and `numbers`.
    Each of the numbers has `name`, `v`, `colours` (rising, falling or signed), and, if they are there, `low` and
    `high`; what is not finite is None.

    Args:
        is_distance: whether less is closer in the column `value`.
        run: the model whose training has the steps of a table with these.
    """
    table = _with_layer_pairs(table)
    found: Iterator[Grid] = iter(())
    if table.has(*PAIR) and not table.has(*COMPARED):
        found = _pair_grids(table)
    elif table.has("model", "layer") and _numbers(table) and not table.has(*COMPARED):
        found = _layer_grids(table)
    elif table.has("step") and not table.has("other"):
        found = _step_grids(table, run)
    grids = list(islice(found, MOST_GRIDS + 1))
    if len(grids) > MOST_GRIDS or any(map(_is_too_large, grids)):
        return []
    for number in (number for grid in grids for number in grid["numbers"] if number["name"] == "value"):
        number["colours"] = "falling" if is_distance else number["colours"]
    return grids


def _is_too_large(grid: Grid) -> bool:
    rows, columns = len(grid["rows"]), len(grid["columns"])
    return max(rows, columns) > MOST_LABELS or rows * columns > MOST_CELLS


def rounded(values: Sequence[Any]) -> list[Any]:
    """Return numbers with `DIGITS` significant digits, None for what is not finite, and all else as text."""
    return [plain_value(value) for value in values]


def plain_value(value: Any) -> Any:
    """Return a value as a page holds it, see `rounded`."""
    if isinstance(value, float):
        return float(f"{value:.{DIGITS}g}") if math.isfinite(value) else None
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    return None if value is None else str(value)


def _with_layer_pairs(table: Columns) -> Columns:
    """Return a table of one layer of two models as one of layer pairs, each layer with itself."""
    if not table.has("source", "target", "layer") or table.has("source_layer"):
        return table
    if len(set(table.values["source"]) - {None}) > MOST_MODELS:
        return table
    layers, kind = table.values["layer"], table.kinds["layer"]
    names = {"layer": "source_layer"}
    renamed = {names.get(name, name): column for name, column in table.values.items()}
    kinds = {names.get(name, name): kind for name, kind in table.kinds.items()}
    return Columns(renamed, kinds).with_column("target_layer", kind, layers)


def _pair_grids(table: Columns) -> Iterator[Grid]:
    if not _numbers(table):
        return
    for (source, target), rows in table.groups(["source", "target"]).items():
        for variant, cells in _variants(rows, PAIR[2:]):
            axes = cells.values["source_layer"], cells.values["target_layer"]
            yield _grid("pair", [_model_name(source), _model_name(target)], variant, cells, axes)


def _layer_grids(table: Columns) -> Iterator[Grid]:
    for (model,), rows in table.groups(["model"]).items():
        labels = [name for name in _texts(rows, PLACES) if rows.kinds[name] != "truth"]
        if rows.has("feature"):  # also where the features are numbers
            labels = [name for name in rows.names if name in {*labels, "feature"}]
        features = [" × ".join(map(_label, key)) for key in rows.keys(labels)]  # one empty word where there is no label
        keyed = rows.without(labels).with_column("feature", "text", features)
        for variant, cells in _variants(keyed, ["feature", "layer"]):
            role = "profile" if labels else "layers"
            axes = cells.values["feature"], cells.values["layer"]
            yield _grid(role, [_model_name(model)], variant, cells, axes)


def _step_grids(table: Columns, run: str) -> Iterator[Grid]:
    layers = [f"layer {_label(layer)}" for layer in table.values["layer"]] if table.has("layer") else [""] * len(table)
    named = table.with_column("layer", "text", layers)
    if "feature" not in table.values:
        for variant, cells in _variants(named, ["layer", "step"]):
            axes = cells.values["layer"], cells.values["step"]
            yield _grid("steps", [run], variant, cells, axes)
        return
    for (layer,), rows in sorted(named.groups(["layer"]).items()):  # each layer has a grid of its own
        for variant, cells in _variants(rows, ["feature", "step"]):
            name = ", ".join(filter(None, [str(layer), variant]))
            yield _grid("steps", [run], name, cells, (cells.values["feature"], cells.values["step"]))


def _label(value: Any) -> str:
    return "nan" if value is None else str(value)


def _model_name(value: Any) -> str:
    return BLANK_NAME if value is None else str(value)


def _variants(rows: Columns, places: list[str]) -> Iterator[tuple[str, Columns]]:
    """Yield the parts of rows in which each place comes once, named by the columns that tell them apart."""
    # The number of a row's group stands for its values in `places` and in `by`: a key of all these values would grow
    # with every column, and the time with their square.
    groups = _numbered(rows.keys(places))
    by: list[str] = []
    for name in rows.names:
        count = len(set(groups))
        if count == len(rows) or len(by) == MOST_TELLING:
            break
        if name in PLACES or not _has_few_values(rows, name):
            continue
        finer = _numbered(list(zip(groups, rows.values[name], strict=True)))
        if len(set(finer)) > count:
            by.append(name)
            groups = finer
    if len(set(groups)) < len(rows):
        counts: dict[int, int] = {}
        repetitions = []
        for group in groups:
            counts[group] = counts.get(group, 0) + 1
            repetitions.append(counts[group])
        rows = rows.with_column("repetition", "number", repetitions)
        by.append("repetition")
    for values, part in rows.groups(by).items():
        yield ", ".join(f"{name} {_label(value)}" for name, value in zip(by, values, strict=True)), part


def _numbered(keys: Sequence[tuple[Any, ...]]) -> list[int]:
    """Return for each key the number of the first one that is equal to it."""
    numbers: dict[tuple[Any, ...], int] = {}
    return [numbers.setdefault(key, len(numbers)) for key in keys]


def _has_few_values(rows: Columns, name: str) -> bool:
    """Return whether a column of words, truths or whole numbers has two values or a few more."""
    return rows.kinds[name] != "float" and 1 < len(set(rows.values[name]) - {None}) <= MOST_MODELS


def _grid(
    role: str, models: list[str], variant: str, cells: Columns, axes: tuple[Sequence[Any], Sequence[Any]]
) -> Grid:
    first, second = (list(dict.fromkeys(axis)) for axis in axes)
    for labels in (first, second):  # layers from the first to the last, and features as they come
        if all(isinstance(label, NUMBERS) for label in labels):
            labels.sort()
    width = len(second)
    row, column = ({label: i for i, label in enumerate(labels)} for labels in (first, second))
    place = [row[above] * width + column[beside] for above, beside in zip(*axes, strict=True)]
    order = sorted(range(len(place)), key=place.__getitem__)
    if order != list(range(len(place))):
        cells = cells.at(order)
        place.sort()
    ends = _ends(cells.names)
    names = _numbers(cells)
    mains = [name for name in MAIN if name in names] or names
    words = [name for name in _texts(cells, PLACES) if name != "repetition"]
    return {
        "role": role,
        "models": models,
        "variant": variant,
        "rows": _axis(first),
        "columns": _axis(second),
        "cells": None if place == list(range(len(first) * width)) else place,
        "main": names.index(mains[0]) if mains else 0,
        "numbers": [_number(cells, name, ends.get(name)) for name in names],
        "words": [{"name": name, "v": rounded(cells.values[name])} for name in words],
    }


def _axis(labels: Sequence[Any]) -> list[Any]:
    """Return the labels of the rows or columns of a grid, rounded only where they stay different."""
    short = rounded(labels)
    return short if len(set(short)) == len(labels) else [_label(label) for label in labels]


def _number(cells: Columns, name: str, ends: tuple[str, str] | None) -> dict[str, Any]:
    """Return a column with its interval, and how its colours run."""
    number: dict[str, Any] = {"name": name, "v": rounded(cells.values[name]), "colours": _colours(name)}
    if ends:
        number |= {"low": rounded(cells.values[ends[0]]), "high": rounded(cells.values[ends[1]])}
    return number


@lru_cache(maxsize=10_000)  # as a thousand grids may have the same thousand columns
def _colours(name: str) -> str:
    """Return how the colours of a column run: rising, falling (low is alike), or signed."""
    if _says(name, SIGNED):
        return "signed"
    return "falling" if _says(name, LOW_IS_ALIKE) else "rising"


def _says(name: str, words: Sequence[str]) -> bool:
    return any(f"_{word}_" in f"_{name.lower()}_" for word in words)


def _ends(columns: Sequence[str]) -> dict[str, tuple[str, str]]:
    """Return by column the two of its interval: NAME_low and NAME_high, or low and high of the one these belong to."""
    known = set(columns)
    ends = {}
    if {"low", "high"} <= known:
        before = columns[: columns.index("low")][-1:]
        measured = next((name for name in (*WITH_ENDS, *before) if name in known), None)
        if measured is not None:
            ends[measured] = ("low", "high")
    for name in columns:
        if {f"{name}_low", f"{name}_high"} <= known:
            ends[name] = (f"{name}_low", f"{name}_high")
    return ends


def _numbers(table: Columns) -> list[str]:
    """Return the columns of numbers that are neither places nor ends of intervals."""
    left_out = {*PLACES, "repetition"}
    for ends in _ends(table.names).values():
        left_out.update(ends)
    return [name for name in table.names if table.kinds[name] in ("number", "float") and name not in left_out]


def _texts(table: Columns, places: Sequence[str]) -> list[str]:
    """Return the columns of texts and truths, without those that name a place."""
    return [name for name in table.names if table.kinds[name] in ("text", "truth") and name not in places]
