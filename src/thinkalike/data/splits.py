"""Which documents of a source are for fitting, and which for the report.

A hash of its content decides the side of a document, so that sides do not move when files are
added. Two more rules ensure that nothing in the report was fitted on, up to small changes:

- A copy of an earlier document of its side is left out. Copies differ only in white space and
  case.
- A document of the report is left out if one document to fit on has more than half of it, see
  `near_duplicates`.

For local sources and the grammar, all documents to fit on count, whether a job reads them or not,
because the minis read them. For a set of the hub only those that were read count, wherever they
are: a later document may remove one from the report, so that the report is settled only at the
end. The report loses no document if `same_split` fits on the report's own documents, and none of a
user's text if a job fits nothing.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from thinkalike.config import DataConfig
from thinkalike.data.documents import (
    beginning_bytes,
    canonical,
    document_fingerprint,
    documents_of,
    group_of,
)
from thinkalike.data.near_duplicates import Shingles, near_duplicates, shingles
from thinkalike.processes import counted

REPORT_SHARE = 0.1
"""The share of documents for the report if `data.evaluation_share` is not set."""

SOURCES_UNSEEN_BY_MINIS = ("text", "hub")
"""Sources of which the minis have read nothing."""


class _SplitDocument(NamedTuple):
    """A document and whether it is for the report or for fitting."""

    text: str
    fingerprint: str
    """The SHA-256 of the text."""

    is_for_report: bool


class DocumentSplit:
    """The documents of a source and their sides, in order, without copies and empty documents.

    Iteration yields each document and whether it is for the report.

    Args:
        config: The source.
        is_fitted: Whether the job fits anything on documents. If not, the report has all of the
            user's text, or the share that is set, near-duplicates included. Documents of the
            sources that the minis were trained on are held out in any case.

    Attributes:
        counts: How many documents were left out so far, by reason.
        fit_documents, report_documents: How many documents to fit on, and for the report, were
            yielded so far.
        is_settled: Whether all documents of the report stay once they are yielded. Where a set of
            the hub is streamed they may not; `report_repeats` says which have to leave.
    """

    def __init__(self, config: DataConfig, is_fitted: bool = True):
        self.config = config
        self.counts = Counter(duplicate_documents=0, near_duplicates=0)
        self.fit_documents = 0
        self.report_documents = 0
        is_unseen = config.source in SOURCES_UNSEEN_BY_MINIS
        self._is_held_out = is_fitted or not is_unseen
        same_split = bool(config.same_split)
        self.is_settled = config.source != "hub" or same_split or not self._is_held_out
        self._report_shingles: list[Shingles] = []
        self._fit_shingles: list[Shingles] = []

    def __iter__(self) -> Iterator[tuple[str, bool]]:
        """Yield each document and whether it is for the report."""
        repeating: set[str] = set()
        if self._is_held_out and self.is_settled and not self.config.same_split:
            repeating = _repeating_documents(self.config)
        for document in _without_copies(self.config, self.counts, self.evaluation_share):
            if document.fingerprint in repeating:
                self.counts["near_duplicates"] += 1
                continue
            if not self.is_settled:
                self._remember(document)
            if document.is_for_report:
                self.report_documents += 1
            else:
                self.fit_documents += 1
            yield document.text, document.is_for_report

    def _remember(self, document: _SplitDocument) -> None:
        """Remember the shingles of a document, by which near duplicates are found later."""
        if document.is_for_report:
            self._report_shingles.append(shingles(document.text))
        else:
            self._fit_shingles.append(shingles(document.text))

    @property
    def evaluation_share(self) -> float:
        """The share of documents for the report: all of them if nothing has to be held out."""
        if self.config.evaluation_share is None and not self._is_held_out:
            return 1.0
        return self.config.evaluation_share or REPORT_SHARE

    def report_repeats(self) -> NDArray[np.bool_]:
        """Return, for each document of the report so far, whether it nearly repeats one to fit on.

        It is empty if `is_settled`, since documents are remembered only until then.
        """
        return near_duplicates(self._report_shingles, self._fit_shingles)


def tokens_of_report(config: DataConfig, evaluation_tokens: int, vocabulary: int) -> int:
    """Return about how many tokens a report has: those asked for, or fewer if a local text has.

    A text of the hub is taken to be long enough, as its length is not known. A token of a
    vocabulary of v entries has about log2(v) / 4 bytes of English or code: 2.7 of the minis' 2,048
    entries, and 3.9 of 49,152.
    """
    if config.source in ("hub", "states"):
        return evaluation_tokens
    most = beginning_bytes(evaluation_tokens)
    size = 0
    for document in _split_documents(config, config.evaluation_share or REPORT_SHARE):
        if document.is_for_report:
            size += min(len(document.text.encode("utf-8", errors="replace")), most)
    bytes_per_token = math.log2(max(vocabulary, 2)) / 4
    return min(evaluation_tokens, round(size / bytes_per_token))


def training_texts(config: DataConfig) -> Iterator[str]:
    """Yield the documents that may be fitted on, in order and without copies."""
    evaluation_share = config.evaluation_share or REPORT_SHARE
    for document in _without_copies(config, Counter(), evaluation_share):
        if not document.is_for_report:
            yield document.text


def _without_copies(
    config: DataConfig, counts: Counter[str], evaluation_share: float
) -> Iterator[_SplitDocument]:
    """Yield each document unless it is empty or a copy of an earlier one of the same split.

    Args:
        config: The settings of the text.
        counts: Gets how many documents were left out, as "duplicate_documents".
        evaluation_share: The share of documents for the evaluation text.
    """
    earlier_keys: set[tuple[bool, str]] = set()
    for document in _split_documents(config, evaluation_share):
        content = document_fingerprint(canonical(document.text))
        key = (document.is_for_report, content)
        is_empty = not document.text.strip()
        if is_empty or key in earlier_keys:
            counts["duplicate_documents"] += 1
        else:
            earlier_keys.add(key)
            yield document


def _split_documents(config: DataConfig, evaluation_share: float) -> Iterator[_SplitDocument]:
    """Yield each document with its side, which the hash of its content or its group decides.

    Args:
        config: The source.
        evaluation_share: The share of documents, or of groups, for the report.
    """
    for text in documents_of(config):
        fingerprint = document_fingerprint(text)
        group = group_of(text)
        deciding_hash = fingerprint
        if group is not None:
            deciding_hash = document_fingerprint(group)
        uniform = int(deciding_hash[:8], 16) / 16**8  # in [0, 1)
        yield _SplitDocument(text, fingerprint, uniform < evaluation_share)


def _repeating_documents(config: DataConfig) -> set[str]:
    """Return the fingerprints of the report's documents that nearly repeat one to fit on.

    All documents of the source count.
    """
    evaluation_share = config.evaluation_share or REPORT_SHARE
    report_documents: dict[str, Shingles] = {}
    for document in counted(_split_documents(config, evaluation_share), "document looked at"):
        if document.is_for_report:
            report_documents[document.fingerprint] = shingles(document.text)

    # The source is read once more, so that the documents to fit on need no memory.
    fit_shingles = (
        shingles(document.text)
        for document in counted(_split_documents(config, evaluation_share), "document compared")
        if not document.is_for_report
    )
    repeats = near_duplicates(list(report_documents.values()), fit_shingles)
    fingerprints = zip(report_documents, repeats, strict=True)
    return {fingerprint for fingerprint, is_repeat in fingerprints if is_repeat}
