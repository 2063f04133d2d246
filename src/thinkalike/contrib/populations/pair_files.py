"""Reads MNLI and HANS from files, as they are published, or from the Hugging Face hub."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import torch

from thinkalike.contrib.populations.pairs import HANS, MNLI, Pairs
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
HUB_COLUMNS = ("premise", "hypothesis", "label")  # labels are indices of classes there

# In MNLI, as published and on the hub: its annotators did not agree on a label.
NO_LABEL = ("-", "-1")

CLASSES = {"mnli": MNLI, "hans": HANS}


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
    """Read the pairs of MNLI ("mnli") or HANS ("hans") from a file.

    The formats are `.jsonl` and `.txt` as published, `.tsv` as in GLUE, and `.parquet`.
    """

    def records_by(
        read: Callable[[Path], Iterable[tuple[str, Record]]],
    ) -> Callable[[Path], list[Record]]:
        """Return a function that reads the records of a file without their names.

        `read` yields pairs of the name of a record, for messages, and the record.
        """
        return lambda file: [record for _, record in read(file)]

    readers = {
        ".jsonl": records_by(json_lines),
        ".parquet": records_by(parquet_rows),
        ".tsv": records_by(_tab_separated),
        ".txt": records_by(_tab_separated),
    }
    records = read_by_ending(Path(path), readers)
    return _pairs_from(records, CLASSES[name], str(path))


def hub_pairs(name: str, split: str | None = None) -> Pairs:
    """Return pairs of MNLI or HANS from the Hugging Face hub.

    Args:
        name: "mnli" or "hans".
        split: The split that is read; None: the one that results are reported on.
    """
    hub_set = HUB[name]
    split = split or hub_set.split
    records = list(
        stream_records(
            name,
            hub_set.repository,
            split=split,
            revision=hub_set.revision,
            remedy="use files (pairs=files) or the templates (pairs=templates)",
        )
    )
    return _pairs_from(records, CLASSES[name], f"{hub_set.repository} {split}")


def _tab_separated(path: Path) -> Iterator[tuple[str, Record]]:
    """Yield (name for error messages, row) for each row of a file with tab-separated cells.

    Quotation marks have no special meaning: the files of GLUE have some that are never closed.
    Empty lines are skipped.

    Raises:
        DataError: A row has another number of cells than the header, or two columns have one name.
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
    """Return the pairs of a table, without those whose annotators did not agree.

    Columns are named as published or as on the hub, whichever has more of them.

    Args:
        records: The rows.
        classes: The classes of MNLI or of HANS.
        source: What messages call the table.

    Raises:
        DataError: The table is empty, lacks a column or a text, or has an unknown label.
    """
    if not records:
        raise DataError(f"{source} is empty: it has no rows")

    names = max(
        (PUBLISHED_COLUMNS, HUB_COLUMNS), key=lambda columns: len(set(columns) & set(records[0]))
    )
    premise_column, hypothesis_column, label_column = names
    premises = _cells_of_column(records, premise_column, source)
    hypotheses = _cells_of_column(records, hypothesis_column, source)
    labels = _cells_of_column(records, label_column, source)
    heuristics: list[str] = []
    subcases: list[str] = []
    if classes == HANS:
        heuristics = _cells_of_column(records, "heuristic", source)
        subcases = _cells_of_column(records, "subcase", source)

    # A label is the name of a class, or its number.
    class_number = {name: number for number, name in enumerate(classes)}
    class_number |= {str(number): number for number in range(len(classes))}
    without_label = NO_LABEL if classes == MNLI else ()
    for row_number, label in enumerate(labels, 1):
        if label not in class_number and label not in without_label:
            raise DataError(
                f"{source} row {row_number}: the label {label!r} is not one of "
                f"{', '.join(classes)}"
            )

    labelled = [row for row, label in enumerate(labels) if label in class_number]
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
        labels=torch.tensor([class_number[labels[row]] for row in labelled], dtype=torch.long),
        classes=classes,
        heuristics=heuristics,
        subcases=subcases,
        source=source,
    )


def _cells_of_column(records: Sequence[Record], name: str, source: str) -> list[str]:
    """Return the cells of a column as text.

    Labels are numbers on the hub, which become text here.

    Raises:
        DataError: There is no such column, or a cell of it is empty.
    """
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
