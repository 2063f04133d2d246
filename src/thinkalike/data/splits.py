"""Which documents of a source are for fitting, and which for evaluation (the report).

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
from collections.abc import Iterator, Sequence
from functools import cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from thinkalike.config import DataConfig
from thinkalike.config.parts import UNSEEN_BY_MINIS, Source
from thinkalike.data.documents import (
    beginning_bytes,
    canonical,
    document_fingerprint,
    documents_of,
    group_of,
)
from thinkalike.data.near_duplicates import Shingles, near_duplicates, shingles
from thinkalike.processes import counted

DEFAULT_EVALUATION_SHARE = 0.1
"""The share of documents for evaluation if `data.evaluation_share` is not set."""

BUILT_IN_SOURCES = ("stdlib", "pydoc", "grammar")
"""Sources whose text stays as it is while a process runs."""


class _SplitDocument(NamedTuple):
    """A document and whether it is for the report or for fitting."""

    text: str
    fingerprint: str
    """The SHA-256 of the text."""

    is_for_evaluation: bool


class DocumentSplit:
    """The documents of a source, in order, without copies and empty documents.

    Iteration yields each document and whether it is for evaluation (the report) or for fitting.

    Args:
        config: The settings of the source of text.
        is_fitted: Whether the job fits anything on documents. If not, all of the user's text is
            for evaluation, or the share that is set, near-duplicates included. Documents of the
            sources that the mini models were trained on are held out in any case.

    Attributes:
        counts: How many documents were left out so far, by reason.
        fit_document_count, report_document_count: How many documents to fit on, and for the
            report, were yielded so far.
        evaluation_is_provisional: Whether some of the evaluation documents that are yielded may
            have to be removed at the end: those that `repeats_of_fitting_documents` marks. This
            happens only for a data set of the hub, which is streamed.
    """

    def __init__(self, config: DataConfig, is_fitted: bool = True):
        """Decide whether evaluation documents are held out from fitting; nothing is read yet.

        Documents of a user's texts or of the hub are held out only if the job fits something.
        Documents of the built-in texts, on which the mini models were trained, always are.

        Args:
            config: The settings of the source of text.
            is_fitted: Whether the job fits anything on documents.
        """
        self.config = config
        self.counts = Counter(duplicate_documents=0, near_duplicates=0)
        self.fit_document_count = 0
        self.report_document_count = 0
        is_unseen_by_minis = config.source in UNSEEN_BY_MINIS
        self._is_held_out = is_fitted or not is_unseen_by_minis

        # Evaluation documents that nearly repeat a fitting document are removed, unless the job
        # fits on the evaluation documents themselves (`same_split`).
        removes_repeats = self._is_held_out and not config.same_split
        # A data set of the hub is read once. Only at its end is it known whether a later document
        # is for fitting and nearly repeats an evaluation document.
        is_read_once = config.source == "hub"
        self.evaluation_is_provisional = removes_repeats and is_read_once
        self._finds_repeats_first = removes_repeats and not is_read_once
        self._report_shingles: list[Shingles] = []
        self._fit_shingles: list[Shingles] = []

    def __iter__(self) -> Iterator[tuple[str, bool]]:
        """Yield each document and whether it is for evaluation.

        Empty documents and copies are left out and counted. For an evaluation document that nearly
        repeats a fitting document, there are three cases. Two flags, of which at most one is True,
        tell them apart.

        - Neither is True: the document is yielded like any other. The job fits nothing and the
          text is not a built-in one, or it fits on the evaluation documents (`same_split`).
        - `evaluation_is_provisional`: the source is a data set of the hub, which can be read only
          once. The document is yielded, and `repeats_of_fitting_documents` marks it afterwards.
        - `_finds_repeats_first`: any other source is read once beforehand to find such documents.
          The document is left out and counted.
        """
        fingerprints_of_repeats: set[str] = set()
        if self._finds_repeats_first:
            fingerprints_of_repeats = _repeating_documents(self.config)
        for document in _without_copies(self.config, self.counts, self.evaluation_share):
            if document.fingerprint in fingerprints_of_repeats:
                self.counts["near_duplicates"] += 1
                continue
            if self.evaluation_is_provisional:
                self._store_shingles(document)
            if document.is_for_evaluation:
                self.report_document_count += 1
            else:
                self.fit_document_count += 1
            yield document.text, document.is_for_evaluation

    def _store_shingles(self, document: _SplitDocument) -> None:
        """Store the shingles of a document (runs of eight words), to find near-duplicates."""
        if document.is_for_evaluation:
            self._report_shingles.append(shingles(document.text))
        else:
            self._fit_shingles.append(shingles(document.text))

    @property
    def evaluation_share(self) -> float:
        """The share of documents for evaluation.

        It is the setting `data.evaluation_share`. If that is not set, it is
        `DEFAULT_EVALUATION_SHARE`, or 1 if evaluation documents need not be held out from fitting.
        """
        if self.config.evaluation_share is None and not self._is_held_out:
            return 1.0
        return self.config.evaluation_share or DEFAULT_EVALUATION_SHARE

    def repeats_of_fitting_documents(self) -> NDArray[np.bool_]:
        """Return, for each evaluation document so far, whether it nearly repeats a fitting one.

        The order is that in which they were yielded. The result is empty unless
        `evaluation_is_provisional`: otherwise such documents were left out before, or may stay.
        """
        return near_duplicates(self._report_shingles, self._fit_shingles)


def estimated_token_count(config: DataConfig, evaluation_tokens: int, vocabulary: int) -> int:
    """Estimate how many tokens the evaluation text has in a job that also fits something.

    These are `evaluation_tokens`, or fewer if a local text is too short. A text of the hub, whose
    length is not known, and the text of a folder of states are taken to be long enough.

    Args:
        config: The settings of the text.
        evaluation_tokens: How many tokens are asked for.
        vocabulary: The number of entries of the model's vocabulary.
    """
    if config.source in ("hub", "states"):
        return evaluation_tokens
    evaluation_share = config.evaluation_share or DEFAULT_EVALUATION_SHARE
    if config.source in BUILT_IN_SOURCES:
        sizes = _sizes_of_built_in_text(config.source, config.sentences, evaluation_share)
    else:
        sizes = _evaluation_sizes(config, evaluation_share)
    most_bytes = beginning_bytes(evaluation_tokens)
    byte_count = sum(min(size, most_bytes) for size in sizes)
    # A rule of thumb for English and code: 2.7 bytes per token for a vocabulary of 2,048 entries,
    # and 3.9 for one of 49,152.
    bytes_per_token = math.log2(max(vocabulary, 2)) / 4
    return min(evaluation_tokens, round(byte_count / bytes_per_token))


@cache
def _sizes_of_built_in_text(
    source: Source, sentences: int | None, evaluation_share: float
) -> Sequence[int]:
    """Return the bytes of each evaluation document of a built-in text, which does not change.

    The sizes stay in memory, because a job may be forecast dozens of times, with less and less to
    do, until it fits into the time that the user has.
    """
    return _evaluation_sizes(DataConfig(source=source, sentences=sentences), evaluation_share)


def _evaluation_sizes(config: DataConfig, evaluation_share: float) -> Sequence[int]:
    """Return the bytes of each document that is for evaluation."""
    sizes = []
    for document in _split_documents(config, evaluation_share):
        if document.is_for_evaluation:
            sizes.append(len(document.text.encode("utf-8", errors="replace")))
    return sizes


def training_texts(config: DataConfig) -> Iterator[str]:
    """Yield the documents that are not held out for evaluation, in order and without copies."""
    evaluation_share = config.evaluation_share or DEFAULT_EVALUATION_SHARE
    for document in _without_copies(config, Counter(), evaluation_share):
        if not document.is_for_evaluation:
            yield document.text


def _without_copies(
    config: DataConfig, counts: Counter[str], evaluation_share: float
) -> Iterator[_SplitDocument]:
    """Yield each document unless it is empty or a copy of an earlier one of the same split.

    Documents that differ only in white space or case are copies.

    Args:
        config: The settings of the text.
        counts: Its entry "duplicate_documents" is increased for each document that is left out,
            also for an empty one.
        evaluation_share: The share of documents for the evaluation text.
    """
    earlier_keys: set[tuple[bool, str]] = set()
    for document in _split_documents(config, evaluation_share):
        content = document_fingerprint(canonical(document.text))
        key = (document.is_for_evaluation, content)
        is_empty = not document.text.strip()
        if is_empty or key in earlier_keys:
            counts["duplicate_documents"] += 1
        else:
            earlier_keys.add(key)
            yield document


def _split_documents(config: DataConfig, evaluation_share: float) -> Iterator[_SplitDocument]:
    """Yield each document with whether it is for evaluation, which a hash decides.

    This is the hash of the document's text or, if the document is in a group, of the name of the
    group, so that a group is never divided.

    Args:
        config: The settings of the text.
        evaluation_share: The expected share of documents, or of groups, for evaluation.
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
    """Return the fingerprints of evaluation documents that nearly repeat a fitting document.

    A document nearly repeats another one that has more than half of its shingles (runs of eight
    words). All documents of the source are compared, also those that a job does not read. The
    source is read twice.
    """
    evaluation_share = config.evaluation_share or DEFAULT_EVALUATION_SHARE
    shingles_of_report: dict[str, Shingles] = {}  # by the fingerprint of the document
    for document in counted(_split_documents(config, evaluation_share), "document looked at"):
        if document.is_for_evaluation:
            shingles_of_report[document.fingerprint] = shingles(document.text)

    # The source is read again, so that the fitting documents need not be kept in memory.
    fit_shingles = (
        shingles(document.text)
        for document in counted(_split_documents(config, evaluation_share), "document compared")
        if not document.is_for_evaluation
    )
    are_repeats = near_duplicates(list(shingles_of_report.values()), fit_shingles)
    fingerprints = zip(shingles_of_report, are_repeats, strict=True)
    return {fingerprint for fingerprint, is_repeat in fingerprints if is_repeat}
