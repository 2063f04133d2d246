"""Tables of results as a page draws them: grids, which are recognised by their columns.

A grid never depends on the kind of its result. There are four roles:

- *pair*: rows are the layers of a source, columns those of a target.
- *profile*: rows are the features of one model, or its calibration points, columns its layers.
- *layers*: one row; columns are the layers of one model.
- *steps*: rows are features or layers, columns the steps of a training.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import islice
from typing import Literal, NamedTuple, NotRequired, TypedDict

from thinkalike.columns import Columns

MOST_GRIDS = 1000  # of a table; one with more of them, or with larger ones, is shown as rows
MOST_LABELS = 2000  # rows or columns of a grid
# All crossings of the rows and columns of a grid count, as a table of 2,000 layer pairs can stand
# for four million cells; two models of a hundred layers have 10,000.
MOST_CELLS = 100_000

# columns that say where a number belongs
PAIR = ("source", "target", "source_layer", "target_layer")
LOCATIONS = (*PAIR, "model", "layer", "step", "feature")
COMPARED_MEASURES = ("measure", "other")  # in tables whose rows have the values of two measures
REPETITION = "repetition"  # the column that numbers rows with the same location
# what a grid shows first, if it has one of these
MAIN_COLUMNS = ("value", "penalty", "importance", "score", "asymmetry")
# the columns that `low` and `high` may belong to
WITH_INTERVAL = (
    "value",
    "importance",
    "score",
    "share",
    "effect",
    "accuracy",
    "mean",
    "rho",
)
# columns whose lower values mean more similar
LOW_IS_SIMILAR = (
    "penalty",
    "unexplained",
    "loss",
    "distance",
    "kl",
    "bits_per_byte",
    "flips",
    "procrustes",
    "jsd",
    "disagreement",
)
SIGNED = ("asymmetry", "gap", "difference", "gain")  # columns whose middle is 0
DIGITS = 6  # significant digits of a number on a page
# columns that tell the grids of two models apart; rows that are alike in these are numbered
MOST_DISTINGUISHING = 8
BLANK_NAME = "(blank)"  # the name on a page of a model whose cell in the table is blank
# models in a table of one layer per row; those of populations have more, and are shown as tables
MOST_MODELS = 12
MOST_CACHED_NAMES = 10_000  # a thousand grids may have the same thousand columns

Cell = str | int | float | None
Key = tuple[object, ...]
Role = Literal["pair", "profile", "layers", "steps"]
Colours = Literal["rising", "falling", "signed"]


class GridNumbers(TypedDict):
    """A column of numbers of a grid.

    Attributes:
        v: the numbers, in the order of the cells; None for one that is not finite.
        colours: how its colours run.
        low: the lower ends of its intervals.
        high: the upper ends.
    """

    name: str
    v: list[Cell]
    colours: Colours
    low: NotRequired[list[Cell]]
    high: NotRequired[list[Cell]]


class GridWords(TypedDict):
    """A column of texts of a grid, in the order of the cells."""

    name: str
    v: list[Cell]


class Grid(TypedDict):
    """A table that a page can draw.

    Attributes:
        role: see this module.
        models: the source and the target, or one model.
        variant: what tells it from other grids of the same models.
        rows: the labels of the rows.
        row_name: what a row of a *profile* is, such as "feature"; empty in other roles.
        columns: the labels of the columns.
        cells: for each number, row * number of columns + column; None if all are there in order.
        main: the position of the column of numbers that is shown first.
        numbers: its columns of numbers.
        words: its columns of texts.
        title: what the page calls it.
        results: the numbers of the results that have it.
    """

    role: Role
    models: list[str]
    variant: str
    rows: list[Cell]
    row_name: str
    columns: list[Cell]
    cells: list[int] | None
    main: int
    numbers: list[GridNumbers]
    words: list[GridWords]
    title: NotRequired[str]
    results: NotRequired[list[int]]


class Ends(NamedTuple):
    """The columns of an interval."""

    low: str
    high: str


def grids_of(table: Columns, is_distance: bool = False, trained_model: str = "") -> list[Grid]:
    """Return the grids of a table; none if a page shows its rows instead.

    It does so if the columns are not those of a grid, if the rows compare two measures, and if the
    grids are more or larger than a page can draw.

    Args:
        is_distance: whether less is closer in the column `value`.
        trained_model: the model whose training has the steps of a table with steps.
    """
    grids = list(islice(_all_grids(_with_layer_pairs(table), trained_model), MOST_GRIDS + 1))
    if len(grids) > MOST_GRIDS or any(map(_is_too_large, grids)):
        return []
    if is_distance:
        for grid in grids:
            for numbers in grid["numbers"]:
                if numbers["name"] == "value":
                    numbers["colours"] = "falling"
    return grids


def _all_grids(table: Columns, trained_model: str) -> Iterator[Grid]:
    """Return the grids of a table, of any number and size."""
    compares_measures = table.has(*COMPARED_MEASURES)
    if table.has(*PAIR) and not compares_measures:
        return _pair_grids(table)
    if table.has("model", "layer") and _number_columns(table) and not compares_measures:
        return _layer_grids(table)
    if table.has("step") and not table.has("other_step"):
        return _step_grids(table, trained_model)
    return iter(())


def _is_too_large(grid: Grid) -> bool:
    rows = len(grid["rows"])
    columns = len(grid["columns"])
    return max(rows, columns) > MOST_LABELS or rows * columns > MOST_CELLS


def plain_values(values: Sequence[object]) -> list[Cell]:
    """Return values as a page holds them, see `plain_value`."""
    return [plain_value(value) for value in values]


def plain_value(value: object) -> Cell:
    """Return a value as a page holds it.

    Numbers have `DIGITS` significant digits. What is blank or not finite is None, and all else is
    text.
    """
    if value is None:
        return None
    if isinstance(value, float):
        if math.isfinite(value):
            return float(f"{value:.{DIGITS}g}")
        return None
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    return str(value)


def _with_layer_pairs(table: Columns) -> Columns:
    """Return a table of one layer of two models as one of layer pairs, each layer with itself."""
    if not table.has("source", "target", "layer") or table.has("source_layer"):
        return table
    sources = set(table.values["source"]) - {None}
    if len(sources) > MOST_MODELS:
        return table

    values = {}
    kinds = {}
    for name in table.names:
        column = name
        if name == "layer":
            column = "source_layer"
        values[column] = table.values[name]
        kinds[column] = table.kinds[name]
    layers = table.values["layer"]
    return Columns(values, kinds).with_column("target_layer", table.kinds["layer"], layers)


def _pair_grids(table: Columns) -> Iterator[Grid]:
    if not _number_columns(table):
        return
    grids_of_models: dict[tuple[str, str], list[Grid]] = {}
    for (source, target), rows in table.groups(["source", "target"]).items():
        models = (_model_name(source), _model_name(target))
        turned_grids = grids_of_models.get(models[::-1], [])
        for variant, cells in _variants(rows, ["source_layer", "target_layer"]):
            grid = _grid("pair", list(models), variant, cells, "source_layer", "target_layer")
            if source != target and any(_mirrors(grid, turned) for turned in turned_grids):
                continue  # a symmetric measure has the same numbers in both directions
            grids_of_models.setdefault(models, []).append(grid)
            yield grid


def _mirrors(grid: Grid, turned: Grid) -> bool:
    """Return whether a grid is the other one with its rows as columns."""
    if grid["rows"] != turned["columns"] or grid["columns"] != turned["rows"]:
        return False
    if grid["variant"] != turned["variant"]:
        return False
    return _by_layers(grid) == _by_layers(turned, is_turned=True)


def _by_layers(grid: Grid, is_turned: bool = False) -> dict[Key, Key]:
    """Return the numbers and words of a grid by row and column, swapped if `is_turned`."""
    width = len(grid["columns"])
    positions = grid["cells"]
    if positions is None:
        positions = list(range(len(grid["rows"]) * width))
    names = []
    value_lists = []
    for numbers in grid["numbers"]:
        ends = {"v": numbers["v"], "low": numbers.get("low"), "high": numbers.get("high")}
        for end, values in ends.items():
            if values is not None:
                names.append((numbers["name"], end))
                value_lists.append(values)
    for words in grid["words"]:
        names.append((words["name"], "words"))
        value_lists.append(words["v"])

    by_layers: dict[Key, Key] = {("names",): tuple(names)}
    for number, position in enumerate(positions):
        row, column = divmod(position, width)
        place = (column, row) if is_turned else (row, column)
        by_layers[place] = tuple(values[number] for values in value_lists)
    return by_layers


def _layer_grids(table: Columns) -> Iterator[Grid]:
    for (model,), rows in table.groups(["model"]).items():
        label_columns = [
            name for name in _text_columns(rows, LOCATIONS) if rows.kinds[name] != "truth"
        ]
        if rows.has("feature"):  # also if the features are numbers
            label_columns = [name for name in rows.names if name in {*label_columns, "feature"}]
        role: Role = "layers"
        if label_columns:
            role = "profile"

        # Without label columns, all rows have the same empty label.
        features = [" × ".join(map(_label_text, key)) for key in rows.keys(label_columns)]
        labelled = rows.without(label_columns).with_column("feature", "text", features)
        row_name = " × ".join(name.replace("_", " ") for name in label_columns)
        for variant, cells in _variants(labelled, ["feature", "layer"]):
            grid = _grid(role, [_model_name(model)], variant, cells, "feature", "layer")
            grid["row_name"] = row_name
            yield grid


def _step_grids(table: Columns, trained_model: str) -> Iterator[Grid]:
    layer_names = [""] * len(table)
    if table.has("layer"):
        layer_names = [f"layer {_label_text(layer)}" for layer in table.values["layer"]]
    named = table.with_column("layer", "text", layer_names)
    if not table.has("feature"):
        for variant, cells in _variants(named, ["layer", "step"]):
            yield _grid("steps", [trained_model], variant, cells, "layer", "step")
        return

    # Each layer has a grid of its own.
    for (layer_name,), rows in sorted(named.groups(["layer"]).items()):
        for variant, cells in _variants(rows, ["feature", "step"]):
            full_variant = ", ".join(text for text in (str(layer_name), variant) if text)
            yield _grid("steps", [trained_model], full_variant, cells, "feature", "step")


def _label_text(value: object) -> str:
    if value is None:
        return "nan"
    return str(value)


def _model_name(value: object) -> str:
    if value is None:
        return BLANK_NAME
    return str(value)


def _variants(rows: Columns, locations: Sequence[str]) -> Iterator[tuple[str, Columns]]:
    """Yield parts of rows in which each location occurs once.

    Each part is named by the columns that tell it from the others.
    """
    # The number of a row's group stands for its values in `locations` and in the columns found so
    # far: a key of all these values would grow with every column, and the time with its square.
    groups = _numbered(rows.keys(locations))
    distinguishing: list[str] = []
    for name in rows.names:
        group_count = len(set(groups))
        if group_count == len(rows) or len(distinguishing) == MOST_DISTINGUISHING:
            break
        if name in LOCATIONS or not _has_few_values(rows, name):
            continue
        finer_groups = _numbered(list(zip(groups, rows.values[name], strict=True)))
        if len(set(finer_groups)) > group_count:
            distinguishing.append(name)
            groups = finer_groups

    if len(set(groups)) < len(rows):
        rows = rows.with_column(REPETITION, "number", _repetitions(groups))
        distinguishing.append(REPETITION)
    for values, cells in rows.groups(distinguishing).items():
        names = []
        for name, value in zip(distinguishing, values, strict=True):
            names.append(f"{name} {_label_text(value)}")
        yield ", ".join(names), cells


def _numbered(keys: Sequence[Key]) -> list[int]:
    """Return for each key the number of the first one that is equal to it."""
    numbers: dict[Key, int] = {}
    return [numbers.setdefault(key, len(numbers)) for key in keys]


def _repetitions(groups: Sequence[int]) -> list[int]:
    """Return for each row how many rows of its group there are up to it."""
    counts: dict[int, int] = {}
    repetitions = []
    for group in groups:
        counts[group] = counts.get(group, 0) + 1
        repetitions.append(counts[group])
    return repetitions


def _has_few_values(rows: Columns, name: str) -> bool:
    """Return whether a column of words, truths or whole numbers has two values or a few more."""
    if rows.kinds[name] == "float":
        return False
    distinct_values = set(rows.values[name]) - {None}
    return 1 < len(distinct_values) <= MOST_MODELS


def _grid(
    role: Role,
    models: list[str],
    variant: str,
    cells: Columns,
    row_column: str,
    column_column: str,
) -> Grid:
    """Return the grid of some cells.

    Args:
        row_column: the column whose values are the rows of the grid.
        column_column: the column whose values are its columns.
    """
    row_values = cells.values[row_column]
    column_values = cells.values[column_column]
    row_labels = _sorted_labels(row_values)
    column_labels = _sorted_labels(column_values)
    row_numbers = {label: number for number, label in enumerate(row_labels)}
    column_numbers = {label: number for number, label in enumerate(column_labels)}

    width = len(column_labels)
    positions = []
    for row, column in zip(row_values, column_values, strict=True):
        positions.append(row_numbers[row] * width + column_numbers[column])
    order = sorted(range(len(positions)), key=positions.__getitem__)
    if order != list(range(len(positions))):
        cells = cells.at(order)
        positions.sort()
    is_complete = positions == list(range(len(row_labels) * width))

    ends_of_column = _ends(cells.names)
    number_names = _number_columns(cells)
    numbers = []
    for name in number_names:
        numbers.append(_grid_numbers(cells, name, ends_of_column.get(name)))
    words = []
    for name in _text_columns(cells, LOCATIONS):
        if name != REPETITION:
            words.append(GridWords(name=name, v=plain_values(cells.values[name])))
    main = 0
    for name in MAIN_COLUMNS:
        if name in number_names:
            main = number_names.index(name)
            break
    return Grid(
        role=role,
        models=models,
        variant=variant,
        rows=_axis(row_labels),
        row_name="",
        columns=_axis(column_labels),
        cells=None if is_complete else positions,
        main=main,
        numbers=numbers,
        words=words,
    )


def _sorted_labels(values: Sequence[Cell]) -> list[Cell]:
    """Return the labels of an axis, each once: numbers in order, and texts as they come."""
    labels = list(dict.fromkeys(values))
    numbers = [label for label in labels if isinstance(label, int | float)]
    if len(numbers) == len(labels):
        return list[Cell](sorted(numbers))
    return labels


def _axis(labels: Sequence[Cell]) -> list[Cell]:
    """Return the labels of the rows or columns of a grid, rounded if they stay different."""
    short = plain_values(labels)
    if len(set(short)) == len(labels):
        return short
    return [_label_text(label) for label in labels]


def _grid_numbers(cells: Columns, name: str, ends: Ends | None) -> GridNumbers:
    """Return a column of numbers with its interval, and how its colours run."""
    numbers = GridNumbers(name=name, v=plain_values(cells.values[name]), colours=_colours(name))
    if ends:
        numbers["low"] = plain_values(cells.values[ends.low])
        numbers["high"] = plain_values(cells.values[ends.high])
    return numbers


@lru_cache(maxsize=MOST_CACHED_NAMES)
def _colours(name: str) -> Colours:
    """Return how the colours of a column run: rising, falling (low is similar), or signed."""
    if _has_word(name, SIGNED):
        return "signed"
    if _has_word(name, LOW_IS_SIMILAR):
        return "falling"
    return "rising"


def _has_word(name: str, words: Sequence[str]) -> bool:
    return any(f"_{word}_" in f"_{name.lower()}_" for word in words)


def _ends(columns: Sequence[str]) -> dict[str, Ends]:
    """Return the columns of the interval of each column that has one.

    These are NAME_low and NAME_high, or low and high, which belong to one of `WITH_INTERVAL` or to
    the column before them.
    """
    known = set(columns)
    ends = {}
    if "low" in known and "high" in known:
        column_before = columns[: columns.index("low")][-1:]
        for name in (*WITH_INTERVAL, *column_before):
            if name in known:
                ends[name] = Ends("low", "high")
                break
    for name in columns:
        own_ends = Ends(f"{name}_low", f"{name}_high")
        if known.issuperset(own_ends):
            ends[name] = own_ends
    return ends


def _number_columns(table: Columns) -> list[str]:
    """Return the columns of numbers that are neither locations nor ends of intervals."""
    excluded = {*LOCATIONS, REPETITION}
    for ends in _ends(table.names).values():
        excluded.update(ends)
    names = []
    for name in table.names:
        if table.kinds[name] in ("number", "float") and name not in excluded:
            names.append(name)
    return names


def _text_columns(table: Columns, locations: Sequence[str]) -> list[str]:
    """Return the columns of texts and truths, without those that name a location."""
    names = []
    for name in table.names:
        if table.kinds[name] in ("text", "truth") and name not in locations:
            names.append(name)
    return names
