"""Labels of tables: rows, and columns, that belong together stand in one order."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from thinkalike.arguments.messages import REAL_NUMBERS
from thinkalike.arguments.tensor_arguments import TensorArgument
from thinkalike.arguments.tensors import DEEPEST

if TYPE_CHECKING:
    import pandas as pd  # which takes half a second to import


class Axis(NamedTuple):
    """An axis of a table, with its labels.

    Attributes:
        table: The name of the table in messages.
        number: 0 for rows, 1 for columns.
        names: Of all axes of the table in its annotation; "" for one without a name.
        column: The column that holds the labels; None: they are those of the axis itself.
    """

    table: str
    number: int
    labels: pd.Index
    names: Sequence[str]
    column: str | None = None

    @classmethod
    def of_column(cls, table: str, values: Iterable[object], column: str) -> Axis:
        """Return the rows of a table with the values of one of its columns as their labels."""
        import pandas as pd

        return cls(table, 0, pd.Index(values, dtype=object), [""], column)

    @property
    def word(self) -> str:
        """What messages call the entries of the axis."""
        return "columns" if self.number else "rows"

    @property
    def source(self) -> str:
        """The expression that gives the labels."""
        if self.column is not None:
            return f'{self.table}["{self.column}"]'
        return f"{self.table}.columns" if self.number else f"{self.table}.index"

    def selected(self, labels: str) -> str:
        """Return the expression that gives the table in the order of other labels."""
        return f"{self.table}.loc[:, {labels}]" if self.number else f"{self.table}.loc[{labels}]"

    def is_paired_with(self, later: Axis) -> bool:
        """Return whether the entries of two axes belong together: annotations name both alike.

        If the annotations of two tables name no axis alike, their rows belong together.
        """
        if (set(self.names) & set(later.names)) - {""}:
            name = self.names[self.number]
            return name != "" and name == later.names[later.number]
        return self.number == 0 and later.number == 0


def check_rows(
    named: Iterable[tuple[str, object]], wanted: Mapping[str, TensorArgument] | None = None
) -> None:
    """Check that tables, also those in lists and mappings, have in one order what is paired.

    Rows are paired by their order, and so are columns where the annotations give both axes one
    name. Labels that are merely numbers say nothing about another table, unless that has the same
    numbers. A number and its text are one label, since headers of files are text.

    Args:
        named: Each value with its name. An `Axis` stands for itself, such as ids in a column. Such
            ids say nothing about rows whose labels merely count them.
        wanted: What the annotations of the arguments want, by name.

    Raises:
        ValueError: A label that two axes have stands in different places, or a list contains
            itself.
    """
    axes: list[Axis] = []
    for name, value in named:
        argument = None if wanted is None else wanted.get(name)
        axes += _axes_in(name, value, argument, depth=0)
    ids = {axis.table: axis for axis in axes if axis.column is not None}
    for first, second in itertools.combinations(axes, 2):
        if second.column is None and second.table in ids:
            ids_of_rows = ids[second.table].labels
            if _are_alike(first.labels, ids_of_rows):  # whatever the index of the table is
                continue
        if not first.is_paired_with(second) or len(first.labels) != len(second.labels):
            continue
        if first.column is not None and _count_rows(second.labels):
            continue
        if not first.labels.equals(second.labels) and _are_moved(first.labels, second.labels):
            raise ValueError(_in_another_order(first, second))


def _in_another_order(first: Axis, second: Axis) -> str:
    """Return what is wrong with the labels of two axes, and the remedy."""
    if first.word == second.word == "rows":
        problem = (
            f"{first.table} and {second.table} have labels of rows in another order, "
            "and rows are paired by their order"
        )
    else:
        problem = (
            f"the {first.word} of {first.table} and the {second.word} of {second.table} have "
            "labels in another order, and they are paired by their order"
        )
    remedy = "both with the same labels in one order"
    if first.column is not None:
        problem = (
            f"the labels of the rows of {second.table} are the ids of {first.table} in another "
            "order, and rows are paired by their order"
        )
    if first.labels.isin(second.labels).all():
        remedy = second.selected(first.source)
    return f"{problem}: give {remedy}, or arrays, which have no labels"


def _are_moved(first_labels: Iterable[object], second_labels: Iterable[object]) -> bool:
    """Return whether labels that two axes of one length have stand in different places."""
    first = [_comparable_label(label) for label in first_labels]
    second = [_comparable_label(label) for label in second_labels]
    common = set(second)
    moved = False
    for first_label, second_label in zip(first, second, strict=True):
        if first_label != second_label and first_label in common:
            moved = True
    is_numbered = _count_rows(first) or _count_rows(second)
    return moved and (not is_numbered or common == set(first))


def _are_alike(first_labels: Iterable[object], second_labels: Iterable[object]) -> bool:
    """Return whether two axes have the same labels in the same order."""
    first = [_comparable_label(label) for label in first_labels]
    return first == [_comparable_label(label) for label in second_labels]


def _count_rows(labels: Iterable[object]) -> bool:
    """Return whether labels merely count the rows: 0, 1, 2 and so on."""
    comparable = [_comparable_label(label) for label in labels]
    return comparable == [str(position) for position in range(len(comparable))]


def _comparable_label(label: object) -> object:
    """Return a label, and the text of a number; that of 2.0 is 2."""
    if isinstance(label, tuple):
        return tuple(_comparable_label(part) for part in label)
    if isinstance(label, bool) or not isinstance(label, int | float | np.number):
        return label
    if np.isreal(label) and math.isfinite(label) and label == int(label):
        return str(int(label))
    return str(label)


def has_labels(name: str, value: object) -> bool:
    """Return whether a value is or contains a table whose labels do more than count its rows."""
    for axis in _axes_in(name, value, None, depth=0):
        if axis.number == 0 and not _count_rows(axis.labels):
            return True
    return False


def _axes_in(
    name: str, value: object, wanted: TensorArgument | None, depth: int
) -> Iterator[Axis]:
    """Yield the axes of a table, or of all tables in a list or a mapping."""
    if depth > DEEPEST:
        argument = name.partition("[")[0]
        raise ValueError(f"{argument} contains itself, or is nested too deep: {REAL_NUMBERS}")
    inside = None if wanted is None else wanted.items
    if isinstance(value, Axis):
        yield value
    elif hasattr(value, "iloc"):
        yield from _axes_of_table(name, value, wanted)
    elif isinstance(value, Mapping):
        for key, entry in value.items():
            yield from _axes_in(f"{name}[{key!r}]", entry, inside, depth + 1)
    elif isinstance(value, list | tuple) and value and not isinstance(value[0], int | float):
        for position, entry in enumerate(value):
            yield from _axes_in(f"{name}[{position}]", entry, inside, depth + 1)


def _axes_of_table(name: str, table: object, wanted: TensorArgument | None) -> Iterator[Axis]:
    """Yield the rows of a table, and its columns if it has them."""
    labels_of_axes: Sequence[pd.Index] = getattr(table, "axes", ())
    count = len(labels_of_axes)
    names = [""] * count if wanted is None else wanted.names_of_axes(count)
    for number, labels in enumerate(labels_of_axes):
        yield Axis(name, number, labels, names)
