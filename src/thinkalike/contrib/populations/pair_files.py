"""Reads MNLI and HANS from files, as they are published, or from the Hugging Face hub."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import torch

from thinkalike.contrib.populations.pairs import HANS_CLASSES, MNLI_CLASSES, Pairs
from thinkalike.data.sources import (
    Record,
    json_lines,
    parquet_rows,
    read_by_ending,
    stream_records,
    whole_text,
)
from thinkalike.data.stimuli import select_names
from thinkalike.errors import DataError

log = logging.getLogger(__name__)

PUBLISHED_COLUMNS = ("sentence1", "sentence2", "gold_label")
HUB_COLUMNS = ("premise", "hypothesis", "label")  # on the hub, labels are indices of classes

# What MNLI has instead of a label if its annotators did not agree: as published, and on the hub.
NO_LABEL = ("-", "-1")

CLASSES = {"mnli": MNLI_CLASSES, "hans": HANS_CLASSES}


class HubSet(NamedTuple):
    """A data set of the hub.

    Attributes:
        repository: Its name on the hub.
        split: The split that results are reported on.
        revision: The revision that is read; None: the main branch.
    """

    repository: str
    split: str
    revision: str | None


HUB = {
    "mnli": HubSet("nyu-mll/multi_nli", "validation_matched", None),
    # The main branch of HANS is a script, which newer versions of `datasets` do not run.
    "hans": HubSet("jhu-cogsci/hans", "validation", "refs/convert/parquet"),
}


def pairs_in(path: str | Path, name: str) -> Pairs:
    """Return the pairs of sentences of MNLI or HANS in a file.

    The ending of the file name tells its format: `.jsonl` and `.txt` as published, `.tsv` as in
    GLUE, or `.parquet`.

    Args:
        path: The file.
        name: The data set that the file is of, "mnli" or "hans".
    """
    # These readers yield each record with its location, such as "FILE line 3", which
    # `_without_locations` takes off again.
    readers = {
        ".jsonl": _without_locations(json_lines),
        ".parquet": _without_locations(parquet_rows),
        ".tsv": _without_locations(_tab_separated),
        ".txt": _without_locations(_tab_separated),
    }
    records = read_by_ending(Path(path), readers)
    return _pairs_from(records, CLASSES[name], str(path))


def _without_locations(
    read: Callable[[Path], Iterable[tuple[str, Record]]],
) -> Callable[[Path], list[Record]]:
    """Return a function that returns the records of a file alone, without their locations.

    Args:
        read: A function that yields (location, record) for each record of a file. The location,
            such as a line number, is for error messages.
    """

    def records_of(file: Path) -> list[Record]:
        """Return the records of a file."""
        return [record for _, record in read(file)]

    return records_of


def hub_pairs(name: str, split: str | None = None) -> Pairs:
    """Return the pairs of sentences of MNLI or HANS from the Hugging Face hub.

    Args:
        name: "mnli" or "hans".
        split: The split of the data set that is read, such as "train"; None: its split for
            evaluation.
    """
    hub_set = HUB[name]
    split = split or hub_set.split
    records = stream_records(
        name,
        hub_set.repository,
        split=split,
        revision=hub_set.revision,
        remedy="use files (pairs=files) or the templates (pairs=templates)",
    )
    return _pairs_from(list(records), CLASSES[name], f"{hub_set.repository} {split}")


def _tab_separated(path: Path) -> Iterator[tuple[str, Record]]:
    """Yield (location for error messages, row) for each row of a file with tab-separated cells.

    The first line has the names of the columns. Quotation marks have no special meaning: the files
    of GLUE have some that are never closed. Empty lines are skipped.

    Raises:
        DataError: A row has a different number of cells than the header, or two columns have the
            same name.
    """
    # `splitlines` would also split at characters such as U+2028 inside a sentence.
    lines = whole_text(path).split("\n")
    header = lines[0].split("\t")
    repeated = [name for name, count in Counter(header).items() if count > 1]
    if repeated:
        raise DataError(f"{path} has two columns {repeated[0]}; leave one of them out")
    for number, line in enumerate(lines[1:], 2):
        if line == "":
            continue
        cells = line.split("\t")
        if len(cells) != len(header):
            raise DataError(
                f"{path} line {number} has {len(cells)} cells, the header {len(header)}"
            )
        yield f"{path} line {number}", dict(zip(header, cells, strict=True))


def _pairs_from(records: Sequence[Record], classes: tuple[str, ...], source: str) -> Pairs:
    """Return the pairs of sentences in a table, without pairs that have no agreed label.

    Args:
        records: The rows of the table, with the column names of the published files or of the
            hub.
        classes: The names of the classes of MNLI or of HANS. Only HANS names a heuristic and a
            subcase for each pair.
        source: What messages call the table.

    Raises:
        DataError: The table is empty, lacks a column or a text, or has an unknown label.
    """
    if not records:
        raise DataError(f"{source} is empty: it has no rows")

    premise_column, hypothesis_column, label_column = _pair_columns(records[0])
    premises = _cells_of_column(records, premise_column, source)
    hypotheses = _cells_of_column(records, hypothesis_column, source)
    labels = _cells_of_column(records, label_column, source)
    heuristics: list[str] = []
    subcases: list[str] = []
    if classes == HANS_CLASSES:
        heuristics = _cells_of_column(records, "heuristic", source)
        subcases = _cells_of_column(records, "subcase", source)

    class_numbers = _class_numbers(labels, classes, source)
    labelled = [row for row, number in enumerate(class_numbers) if number is not None]
    n_unlabelled = len(records) - len(labelled)
    if n_unlabelled:
        log.info(
            "%s: left out %s of %s pairs, which have no agreed label",
            source,
            f"{n_unlabelled:,}",
            f"{len(records):,}",
        )
    return Pairs(
        premises=[premises[row] for row in labelled],
        hypotheses=[hypotheses[row] for row in labelled],
        labels=torch.tensor([class_numbers[row] for row in labelled], dtype=torch.long),
        classes=classes,
        # Only MNLI has pairs without a label, so these lists of HANS have an entry for each pair.
        heuristics=heuristics,
        subcases=subcases,
        source=source,
    )


def _pair_columns(record: Record) -> tuple[str, str, str]:
    """Return the names of the columns of the premise, the hypothesis and the label.

    The published files and the hub name these columns differently. The set of names of which the
    row has more is returned, so that an error can say which of these names is missing.
    """

    def n_present(columns: tuple[str, str, str]) -> int:
        """Return how many of the columns the row has."""
        return len(set(columns) & set(record))

    return max((PUBLISHED_COLUMNS, HUB_COLUMNS), key=n_present)


def _class_numbers(
    labels: Sequence[str], classes: tuple[str, ...], source: str
) -> list[int | None]:
    """Return the index of the class of each label; None where the annotators did not agree.

    Args:
        labels: The label of each row: the name of a class, its index as text, or, in MNLI alone,
            a mark that annotators did not agree ("-" or "-1").
        classes: The names of the classes of MNLI or of HANS.
        source: What the error message calls the table.

    Raises:
        DataError: A label is none of these.
    """
    number_of_label: dict[str, int | None] = {}
    for number, name in enumerate(classes):
        number_of_label[name] = number
        number_of_label[str(number)] = number
    if classes == MNLI_CLASSES:
        number_of_label |= dict.fromkeys(NO_LABEL)
    for row_number, label in enumerate(labels, 1):
        if label not in number_of_label:
            raise DataError(
                f"{source} row {row_number}: the label {label!r} is not one of "
                f"{', '.join(classes)}"
            )
    return [number_of_label[label] for label in labels]


def _cells_of_column(records: Sequence[Record], name: str, source: str) -> list[str]:
    """Return the cells of a column as text, also if they are whole numbers (labels on the hub).

    Args:
        records: The rows of the table.
        name: The name of the column.
        source: What the error message calls the table.

    Raises:
        DataError: There is no such column, or a cell of it is neither text nor a whole number.
    """
    # Raises an error that lists the columns if there is none of this name.
    select_names(source, [name], list(records[0]), "column")
    cells = []
    for row_number, record in enumerate(records, 1):
        cell = record.get(name)
        if not isinstance(cell, str | int):
            raise DataError(
                f"{source} row {row_number} has no text in column {name}, but {cell!r}"
            )
        cells.append(str(cell))
    return cells
