"""Documents are kept apart for fitting and for reporting.

A hash of its content decides on which side a document falls, so a copy of a document is never on the other side and the
split does not move when files are added.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from thinkalike.config import DataConfig
from thinkalike.data.text.documents import document_fingerprint, documents


def training_texts(config: DataConfig) -> Iterator[str]:
    """Yield the documents that may be fitted on, in order and without copies."""
    return (text for text, for_report in split_documents(documents(config), config, {}) if not for_report)


def held_out_texts(config: DataConfig) -> Iterator[str]:
    """Yield the documents that nothing is fitted on, in order and without copies."""
    return (text for text, for_report in split_documents(documents(config), config, {}) if for_report)


def split_documents(texts: Iterable[str], config: DataConfig, counts: dict[str, int]) -> Iterator[tuple[str, bool]]:
    """Yield each document and whether it is for the report, without copies and empty documents.

    Args:
        counts: `duplicate_documents` becomes the number of those left out.
    """
    seen: set[str] = set()
    share = config.report_share or 0.1
    for text in texts:
        fingerprint = document_fingerprint(text)
        if not text.strip() or fingerprint in seen:
            counts["duplicate_documents"] = counts.get("duplicate_documents", 0) + 1
            continue
        seen.add(fingerprint)
        yield text, int(fingerprint[:8], 16) / 16**8 < share
