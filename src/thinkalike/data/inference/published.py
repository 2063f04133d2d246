"""MNLI and HANS as they are published, in files and on the hub."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch

from thinkalike.data.files import read_with
from thinkalike.data.hub import stream_records
from thinkalike.data.inference.pairs import HANS, MNLI, Pairs
from thinkalike.errors import DataError, nearest

log = logging.getLogger(__name__)

Record = Mapping[str, Any]  # a row, by column

PUBLISHED = ["sentence1", "sentence2", "gold_label"]
OF_THE_HUB = ["premise", "hypothesis", "label"]  # where labels are places among the classes
NO_LABEL = ("-", "-1")  # in MNLI, as published and on the hub: its annotators did not agree


class _HubSet(NamedTuple):
    """A data set of the hub, and the split that results are reported on."""

    name: str
    classes: tuple[str, ...]
    split: str
    revision: str | None = None


HUB = {
    "mnli": _HubSet("nyu-mll/multi_nli", MNLI, "validation_matched"),
    "hans": _HubSet("jhu-cogsci/hans", HANS, "validation", "refs/convert/parquet"),  # its main branch is a script
}


def read_mnli(path: str | Path) -> Pairs:
    """Read the pairs of an MNLI file: `.jsonl` and `.txt` as published, `.tsv` of GLUE, `.parquet` of the hub.

    Raises:
        DataError: the file cannot be read or is empty, a line is damaged, a column is missing or a label is unknown.
    """
    return _pairs(_records(Path(path)), MNLI, str(path))


def read_hans(path: str | Path) -> Pairs:
    """Read the pairs of a HANS file: `.txt` and `.jsonl` as published, `.parquet` of the hub.

    Raises:
        DataError: as in `read_mnli`.
    """
    return _pairs(_records(Path(path)), HANS, str(path))


def _records(path: Path) -> Iterable[Record]:
    return read_with(path, {".jsonl": _lines, ".tsv": _separated, ".txt": _separated, ".parquet": _parquet})


def _lines(path: Path) -> list[Record]:
    records: list[Record] = []
    for number, line in enumerate(path.read_text(encoding="utf-8-sig").split("\n"), 1):
        if line.strip():
            try:
                records.append(dict(json.loads(line)))
            except (ValueError, TypeError) as error:
                raise DataError(
                    f"{path} line {number} is no JSON object ({error}); correct it or leave it out"
                ) from None
    return records


def _separated(path: Path) -> list[Record]:
    """Read cells between tabs. A quotation mark is a character like any other: GLUE has ones that are never closed."""
    lines = path.read_text(encoding="utf-8-sig").split("\n")  # splitlines would cut at U+2028, too
    header, *rows = [line.split("\t") for line in lines]
    for number, row in enumerate(rows, 2):
        if row != [""] and len(row) != len(header):
            raise DataError(
                f"{path} line {number} has {len(row)} cells, the header {len(header)}; separate them by one tab each"
            )
    return [dict(zip(header, row, strict=True)) for row in rows if row != [""]]


def _parquet(path: Path) -> list[Record]:
    import pyarrow.parquet

    return pyarrow.parquet.read_table(path).to_pylist()


def hub_pairs(name: str, split: str | None = None) -> Pairs:
    """Return MNLI or HANS from the hub.

    Args:
        name: "mnli" or "hans".
        split: None takes the one that results are reported on.

    Raises:
        DataError: there is no such set, or the hub cannot be reached; or as in `read_mnli`.
    """
    if name not in HUB:
        raise DataError(f"pairs={name} is no data set of the hub; {nearest(name, HUB)}")
    repository, classes, default, revision = HUB[name]
    remedy = f"use a local file (read_{name}) or the templates (nli_training, nli_challenge)"
    records = list(stream_records(name, repository, split=split or default, revision=revision, remedy=remedy))
    return _pairs(records, classes, f"{repository} {split or default}")


def _pairs(records: Iterable[Record], classes: tuple[str, ...], source: str) -> Pairs:
    rows = list(records)
    if not rows:
        raise DataError(f"{source} is empty: it has no rows; give a file that has some")
    named = max((PUBLISHED, OF_THE_HUB), key=lambda names: len(set(names) & set(rows[0])))
    premises, hypotheses, labels = (_column(rows, name, source) for name in named)
    heuristics, subcases = (_column(rows, name, source) if classes == HANS else [] for name in ("heuristic", "subcase"))
    places = {name: place for place, name in enumerate(classes)} | {str(n): n for n in range(len(classes))}
    for number, label in enumerate(labels, 1):
        if label not in places and not (classes == MNLI and label in NO_LABEL):
            raise DataError(f"{source} row {number}: the label {label!r} is not known; there is: {', '.join(classes)}")
    kept = [row for row, label in enumerate(labels) if label in places]
    if unlabelled := len(rows) - len(kept):
        log.info("%s: left out %s of %s pairs, which have no agreed label", source, f"{unlabelled:,}", f"{len(rows):,}")
    kept_premises, kept_hypotheses = ([texts[row] for row in kept] for texts in (premises, hypotheses))
    numbers = torch.tensor([places[labels[row]] for row in kept], dtype=torch.long)
    return Pairs(kept_premises, kept_hypotheses, numbers, classes, heuristics, subcases, source, unlabelled)


def _column(rows: Sequence[Record], name: str, source: str) -> list[str]:
    """Return the cells of a column as text; the hub has numbers for labels."""
    if name not in rows[0]:
        raise DataError(f"{source} has no column {name}; {nearest(name, rows[0])}")
    for number, row in enumerate(rows, 1):
        if not isinstance(row.get(name), str | int):
            raise DataError(f"{source} row {number} has no text in column {name}, but {row.get(name)!r}")
    return [str(row[name]) for row in rows]
