"""Documents are kept apart for fitting and for reporting.

A hash of its content decides on which side a document falls, so the split does not move when files are added. Then two
rules see to it that nothing that is reported on was fitted on, up to small changes:

- A copy of an earlier document of its side is left out. Documents are copies if they differ in white space and case
  alone.
- A document of the report of which one document to fit on holds more than half gives way (`overlap` says how that is
  counted). The documents to fit on never depend on those of the report.

Of local sources and of the grammar, all documents to fit on count, whether a job reads them or not, because the minis
did. Of a set of the hub only those that were read count, wherever they stand: a document of the report may give way to
one that comes after it, so the report is settled only at the end. With `same_split`, which fits on the report's own
documents, none gives way.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from thinkalike.config import DataConfig
from thinkalike.data.text.documents import canonical, document_fingerprint, documents
from thinkalike.data.text.overlap import Shingles, near_duplicates, shingles
from thinkalike.progress import counted

READ_AHEAD = 512  # documents of a hub set that are read before the first of them is given out


class Sides:
    """The documents of a source and their sides, in order, without copies and empty documents.

    `settled` says whether all documents of the report that are given out may stay. Where they may not, which is where a
    set of the hub is streamed, `repeats` says which of them must give way to what was read up to then.
    """

    def __init__(self, config: DataConfig):
        self.config, self.counts = config, Counter(duplicate_documents=0, near_duplicates=0)
        self.settled = config.source != "hub" or bool(config.same_split)
        self._report: list[Shingles] = []
        self._fit: list[Shingles] = []

    def __iter__(self) -> Iterator[tuple[str, bool]]:
        """Yield each document and whether it is for the report."""
        known = self.settled and not self.config.same_split
        gone = _giving_way(self.config) if known else set()
        for text, fingerprint, for_report in _without_copies(self.config, self.counts):
            if fingerprint in gone:
                self.counts["near_duplicates"] += 1
                continue
            if not self.settled:
                (self._report if for_report else self._fit).append(shingles(text))
            yield text, for_report

    def repeats(self, since: int = 0) -> NDArray[np.bool_]:
        """Return of each document of the report that was given out, from one on, whether it must give way."""
        return near_duplicates(self._report[since:], self._fit)


def training_texts(config: DataConfig) -> Iterator[str]:
    """Yield the documents that may be fitted on, in order and without copies."""
    return (text for text, _, for_report in _without_copies(config, Counter()) if not for_report)


def held_out_texts(config: DataConfig) -> Iterator[str]:
    """Yield the documents that nothing is fitted on, in order and without copies.

    Those of a set of the hub are compared with all documents to fit on up to `READ_AHEAD` documents further.
    """
    sides = Sides(config)
    reading, given = iter(sides), 0
    if sides.settled:
        yield from (text for text, for_report in reading if for_report)
        return
    while batch := list(islice(reading, READ_AHEAD)):
        held_out = [text for text, for_report in batch if for_report]
        yield from (text for text, gone in zip(held_out, sides.repeats(given), strict=True) if not gone)
        given += len(held_out)


def _without_copies(config: DataConfig, counts: Counter[str]) -> Iterator[tuple[str, str, bool]]:
    """Yield documents as `_sided` does, without empty ones and copies of earlier ones of their side."""
    seen: set[tuple[bool, str]] = set()
    for text, fingerprint, for_report in _sided(config):
        copy = for_report, document_fingerprint(canonical(text))
        if not text.strip() or copy in seen:
            counts["duplicate_documents"] += 1
            continue
        seen.add(copy)
        yield text, fingerprint, for_report


def _sided(config: DataConfig) -> Iterator[tuple[str, str, bool]]:
    """Yield each document, its fingerprint, and whether it is for the report."""
    share = config.report_share or 0.1
    for text in documents(config):
        fingerprint = document_fingerprint(text)
        yield text, fingerprint, int(fingerprint[:8], 16) / 16**8 < share


def _giving_way(config: DataConfig) -> set[str]:
    """Return the fingerprints of the documents of the report that nearly repeat one to fit on, of the whole source."""
    looked_at, compared = (counted(_sided(config), f"document {done}") for done in ("looked at", "compared"))
    held_out = {fingerprint: shingles(text) for text, fingerprint, for_report in looked_at if for_report}
    to_fit = (shingles(text) for text, _, for_report in compared if not for_report)
    gone = near_duplicates(list(held_out.values()), to_fit)
    return {fingerprint for fingerprint, repeats in zip(held_out, gone, strict=True) if repeats}
