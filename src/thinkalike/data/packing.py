"""Packing: documents are joined with EOS and cut into rows.

A report may read the beginnings of documents alone, so that it holds many documents of about one length rather than a
few long ones: intervals are over documents, and a document that holds most of the tokens decides most of the mean.
"""

from __future__ import annotations

import logging
import re
from abc import ABC, abstractmethod
from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import torch

from thinkalike.config import DataConfig
from thinkalike.data.rows import Corpus, TokenRows
from thinkalike.data.split import Sides
from thinkalike.errors import DataError
from thinkalike.progress import Activity, doing

log = logging.getLogger(__name__)

DOCUMENTS_AT_ONCE = 64  # how many are tokenised in one call
DOCUMENTS = 100  # that a report should hold
BYTES = 2  # of text, which most tokens have at least
FEWEST_BYTES = 1000  # of a document that is cut


def beginning_bytes(report_tokens: int) -> int:
    """Return how many bytes in UTF-8 of each document a report reads, so that it holds `DOCUMENTS` of them.

    It is a number of bytes and not of tokens, so that models with different tokenizers read the same text.
    """
    return max(BYTES * report_tokens // DOCUMENTS, FEWEST_BYTES)


def beginning(text: str, most: int | None) -> str:
    """Return the beginning of a document, of at most `most` bytes in UTF-8; None: all of it.

    It ends before a white space, unless there is none in its second half.
    """
    if most is None or len(encoded := text.encode("utf-8", errors="replace")) <= most:
        return text
    kept = encoded[:most].decode("utf-8", errors="ignore")
    words = re.match(r"(?s).*\S(?=\s)", kept)
    return words[0] if words and 2 * len(words[0]) > len(kept) else kept


class _Packer:
    """Joins documents into one stream of tokens, up to a limit, and cuts it into rows.

    Where it is `aligned`, a document that passes the end of a row is cut there, and the next one begins a row.
    """

    def __init__(self, limit: int | None, context: int, bos: int | None, aligned: bool = False):
        self.limit, self.context, self.bos, self.aligned, self.cut = limit, context, bos, aligned, 0
        self.tokens = array("i")  # four bytes a token, where a list takes thirty
        self.lengths: list[int] = []

    @property
    def payload(self) -> int:
        """The number of tokens of text in a row."""
        return self.context - (self.bos is not None)

    @property
    def most_rows(self) -> int | None:
        """The number of rows that the limit allows, at least one; None if there is no limit."""
        return None if self.limit is None else max(self.limit // self.context, 1)

    @property
    def full(self) -> bool:
        """Whether another document would change nothing."""
        return self.most_rows is not None and len(self.tokens) >= self.most_rows * self.payload

    def add(self, tokens: Sequence[int]) -> None:
        """Append a document."""
        kept = tokens[: self.payload - len(self.tokens) % self.payload] if self.aligned else tokens
        self.tokens.extend(kept)
        self.lengths.append(len(kept))
        self.cut += len(tokens) - len(kept)

    def rows(self) -> tuple[TokenRows, int]:
        """Return the rows, and the number of tokens that did not fit."""
        if not self.tokens:
            return TokenRows(*torch.zeros(2, 0, self.context, dtype=torch.int32)), 0
        count = len(self.tokens) // self.payload
        count = count if self.most_rows is None else min(count, self.most_rows)
        used = count * self.payload
        tokens = torch.frombuffer(self.tokens, dtype=torch.int32)[:used].clone().view(count, self.payload)
        owners = torch.repeat_interleave(torch.arange(len(self.lengths), dtype=torch.int32), torch.tensor(self.lengths))
        owners = owners[:used].view(count, self.payload)
        if self.bos is not None:
            tokens = torch.cat([torch.full((count, 1), self.bos, dtype=torch.int32), tokens], 1)
            owners = torch.cat([owners[:, :1], owners], 1)
        return TokenRows(tokens, owners), len(self.tokens) - used + self.cut


class Reader(ABC):
    """Turns documents into tokens; `start` begins each row, unless it is None."""

    start: int | None

    @abstractmethod
    def __call__(self, texts: Sequence[str]) -> Iterable[Sequence[int]]:
        """Return the tokens of each document; the last one ends it."""


@dataclass(frozen=True)
class SourceText:
    """The reading of a source: its tokenizer, whether rows begin with BOS, and the length of the longest row."""

    name: str
    tokenizer: Any
    bos: bool
    context: int


class OneTokenizer(Reader):
    """Makes tokens as a tokenizer does.

    Raises:
        DataError: the tokenizer lacks EOS or BOS.
    """

    def __init__(self, tokenizer: Any, bos: bool):
        self.tokenizer = tokenizer
        self.end, self.start = separators(tokenizer, bos)

    def __call__(self, texts: Sequence[str]) -> Iterator[Sequence[int]]:
        for tokens in self.tokenizer(texts, add_special_tokens=False, verbose=False)["input_ids"]:
            yield [*tokens, self.end]


def pack(
    config: DataConfig,
    reader: Reader,
    context: int,
    fit_tokens: int | None,
    report_tokens: int,
    most_bytes: int | None = None,
) -> Corpus:
    """Tokenise as many documents as both sides need, and pack them; see `read_tokens`.

    Raises:
        DataError: there is too little text.
    """
    limits = (fit_tokens, report_tokens)
    fit, report = (_Packer(limit, context, reader.start, bool(config.aligned)) for limit in limits)
    sides = Sides(config)
    with doing("tokenising, token", None if fit_tokens is None else fit_tokens + report_tokens) as activity:
        report = _filled(fit, report, sides, reader, most_bytes, activity)
    (fit_rows, fit_left), (report_rows, report_left) = fit.rows(), report.rows()
    _check(config, fit_rows, report_rows, context, report_tokens, sides.counts["near_duplicates"])
    counts = dict(sides.counts) | {
        "fit_tokens": fit_rows.tokens.numel(),
        "report_tokens": report_rows.tokens.numel(),
        "fit_documents": _documents_in(fit_rows),
        "report_documents": _documents_in(report_rows),
        "dropped_tokens": fit_left + report_left,
    }
    return Corpus(fit_rows, report_rows, counts)


def _filled(
    fit: _Packer, report: _Packer, sides: Sides, reader: Reader, most_bytes: int | None, activity: Activity
) -> _Packer:
    """Read documents until both sides are full, or there are no more, and return what the report has become."""
    reading, same = iter(sides), bool(sides.config.same_split)
    given: list[array[int]] = []  # the documents of the report, while they may still have to give way
    while batch := list(islice(reading, DOCUMENTS_AT_ONCE)):
        if activity.done == 0:
            activity.begin(0)  # the source has been looked through by now
        activity.reach(len(fit.tokens) + len(report.tokens))
        reported = [beginning(text, most_bytes) for text, for_report in batch if for_report]
        fitted = [text for text, for_report in batch if for_report == same]
        for tokens in reader(reported) if reported and not (sides.settled and report.full) else ():
            if not sides.settled:
                given.append(array("i", tokens))
            if not report.full:
                report.add(tokens)
        for tokens in reader(fitted) if fitted and not fit.full else ():
            if not fit.full:
                fit.add(tokens)
        if fit.full and report.full:
            report = _settled(report, sides, given)
            if report.full:
                return report
    return _settled(report, sides, given)


def _settled(report: _Packer, sides: Sides, given: Sequence[array[int]]) -> _Packer:
    """Return the report without the documents that nearly repeat one to fit on that was read up to now."""
    if sides.settled:
        return report
    gone = sides.repeats()
    sides.counts["near_duplicates"] = int(gone.sum())
    settled = _Packer(report.limit, report.context, report.bos, report.aligned)
    for tokens, repeats in zip(given, gone, strict=True):
        if not repeats and not settled.full:
            settled.add(tokens)
    return settled


def separators(tokenizer: Any, bos: bool) -> tuple[int, int | None]:
    """Return the token that ends a document and the one that begins a row, None if none does.

    Raises:
        DataError: the tokenizer lacks EOS or BOS.
    """
    end = tokenizer.eos_token_id if tokenizer.eos_token_id is not None else tokenizer.sep_token_id
    if end is None:
        raise DataError("the tokenizer has no EOS token to separate documents with; choose another model")
    if bos and tokenizer.bos_token_id is None:
        raise DataError("the tokenizer has no BOS token to begin rows with; set data.bos=false")
    return end, tokenizer.bos_token_id if bos else None


def _documents_in(rows: TokenRows) -> int:
    return len(torch.unique(rows.documents))


def _check(
    config: DataConfig, fit: TokenRows, report: TokenRows, context: int, report_tokens: int, repeats: int
) -> None:
    if len(fit) + len(report) == 0:
        raise DataError(f"data={config.name} holds no text: not one row of {context} tokens; give more text")
    if len(fit) == 0:
        raise DataError(
            f"data={config.name} has too little text to fit on: not one row of {context} tokens; give more text"
        )
    if len(report) == 0 or _documents_in(report) < 2:
        without = f" ({repeats} more nearly repeat one to fit on)" if repeats else ""
        raise DataError(
            f"data={config.name} has too little text for the report: {len(report)} rows of {_documents_in(report)} "
            f"documents{without}, and an interval needs two documents; give more text, or raise "
            f"data.report_share={config.report_share} or data.report_tokens={report_tokens}"
        )
    if report.tokens.numel() < report_tokens // context * context:
        log.warning("data %s: the report has %s tokens of the %s asked for: there are no more", config.name,
                    f"{report.tokens.numel():,}", f"{report_tokens:,}")  # fmt: skip
