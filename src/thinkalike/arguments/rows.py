"""Labels of rows: the rows of several tables are paired by their order, so labels that contradict it are refused."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any


def check_rows(named: Iterable[tuple[str, Any]]) -> None:
    """Check that the DataFrames and Series among some values have their rows in one order, as far as labels say.

    Raises:
        ValueError: two have the same labels in another order, or a label of theirs stands in other rows. Rows that are
            merely numbered say nothing of those of another table.
    """
    first: list[tuple[str, Any]] = []
    for name, table in _tables(named):
        for before, known in first:
            if len(known) == len(table) and _contradict(known, table):
                raise ValueError(f"the rows of {before} and {name} have {_remedy(known, table.index, before, name)}")
        first.append((name, table.index))


def _remedy(known: Any, labels: Any, before: str, name: str) -> str:
    """Return how two indices differ, and what to do."""
    by_order = "and rows are paired by their order"
    if set(known) == set(labels):
        again = f"{name}.loc[{before}.index]"
        return f"the same labels in another order, {by_order}: give {again}, or arrays, which have no labels"
    some = next(label for label in [*known, *labels] if (label in known) != (label in labels))
    return (
        f"labels of which some are in both, in other rows, and some, such as {some!r}, in one alone, {by_order}: give "
        "the rows that both have, in one order, or arrays, which have no labels"
    )


def _tables(named: Iterable[tuple[str, Any]]) -> Iterator[tuple[str, Any]]:
    """Yield each table, also of a list of layers; a row of numbers, of which a long list may be made, has none."""
    for name, value in named:
        if hasattr(value, "iloc"):
            yield name, value
        elif isinstance(value, list | tuple) and value and not isinstance(value[0], int | float):
            yield from _tables((f"{name}[{place}]", each) for place, each in enumerate(value))


def _contradict(known: Any, table: Any) -> bool:
    labels = table.index
    if labels.equals(known):
        return False
    if not (labels.is_unique and known.is_unique):
        return Counter(labels) == Counter(known)
    places = labels.get_indexer(known)
    shared = places >= 0
    numbered = any(list(index) == list(range(len(index))) for index in (labels, known))
    moved = bool((places[shared] != shared.nonzero()[0]).any())
    return bool(shared.all()) or (moved and not numbered)
