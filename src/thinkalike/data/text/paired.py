"""Rows of text for two models that cut it differently: the target's rows, and what the source reads in each of them.

The target's tokenizer and packing decide the rows, because losses are of its tokens. The source reads the same
characters: its own tokens of the documents, cut where the rows are; a token that begins before a row is in none. Its
rows begin with BOS if it expects that. Where a target token has no source token of its own document in its row, it gets
the state of the EOS before, and where there is none either, the source's row begins with EOS, as after a document.
"""

from __future__ import annotations

import logging
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from thinkalike.config import DataConfig
from thinkalike.data.text.packing import pack
from thinkalike.data.text.rows import Corpus, PairedRows, TokenRows
from thinkalike.data.text.two_tokenizers import BOS, AllTokens, Numbers, SourceText, TwoTokenizers
from thinkalike.errors import DataError

log = logging.getLogger(__name__)


def pack_pairs(
    config: DataConfig,
    tokenizer: Any,
    source: SourceText,
    context: int,
    bos: bool,
    fit_tokens: int | None,
    report_tokens: int,
    most_bytes: int | None = None,
) -> Corpus:
    """Tokenise and pack as `pack` does, with the source's tokens beside the target's.

    Rows are shorter than `context` where the source could not take what it reads in one of them.

    Raises:
        DataError: there is too little text, a tokenizer lacks EOS or BOS, or the source's context is too short.
    """
    reader, length = TwoTokenizers(tokenizer, source, bos), context
    while True:
        packed = pack(config, reader, length, fit_tokens, report_tokens, most_bytes)
        read = reader.everything()
        fit, report = Side(packed.fit, reader, read), Side(packed.report, reader, read)
        longest = max(fit.longest, report.longest)
        if longest <= source.context:
            return Corpus(fit.rows(), report.rows(), packed.counts | report.counts())
        length = min(length - 1, length * source.context // longest)
        if length < 2:
            raise DataError(
                f"{source.name} reads at most {source.context} tokens, and needs {longest} for one row of "
                f"{packed.fit.context} of the target; choose a source with a longer context"
            )


def alignment_shares(corpus: Corpus) -> dict[str, float]:
    """Return the shares of the report's target tokens that are aligned exactly, earlier and nowhere."""
    counts = corpus.counts
    exactly, nowhere = (counts[f"aligned_{how}"] / counts["report_tokens"] for how in ("exactly", "nowhere"))
    return {"exactly": exactly, "earlier": 1 - exactly - nowhere, "nowhere": nowhere}


class _Stretches(NamedTuple):
    """What the source reads of one document in one row: from which token on, how many, and of whom."""

    row: Numbers
    document: Numbers
    first: Numbers
    length: Numbers
    before: Numbers  # tokens of earlier stretches of the row
    of_token: Numbers  # the stretch of each target token, in the order of rows


class Side:
    """Rows of one side of a corpus, from the rows of numbers that `pack` made."""

    def __init__(self, packed: TokenRows, reader: TwoTokenizers, read: AllTokens):
        self.packed, self.reader, self.read = packed, reader, read
        self.skipped, self.lead = int(reader.start is not None), int(reader.source_bos is not None)
        self.numbers, self.owners = (
            part[:, self.skipped :].numpy().astype(np.int64) for part in (packed.tokens, packed.documents)
        )
        self.stretches = _stretches(self.numbers, self.owners, read)
        of_token, base = self.stretches.of_token, self.lead + self.stretches.before
        self.local = np.maximum(read.last[self.numbers.ravel()] - self.stretches.first[of_token], -1)
        places = (base[of_token] + self.local).reshape(self.numbers.shape)
        first = np.full((len(packed), self.skipped), self.lead - 1)  # the state of BOS is that of the source's
        places = np.concatenate([first, places], 1)
        self.shift = (places.min(1) < 0).astype(np.int64)  # of rows that begin with EOS
        self.places = places + self.shift[:, None]
        ends = base + self.stretches.length + self.shift[self.stretches.row]
        self.longest = int(max(ends.max(), self.lead, 1))

    def rows(self) -> PairedRows:
        """Return the rows, see `Layout`."""
        read, stretches, reader = self.read, self.stretches, self.reader
        order = _counting(stretches.length)
        chosen = np.repeat(stretches.first, stretches.length) + order
        starts = self.lead + stretches.before + self.shift[stretches.row]
        where = np.repeat(stretches.row, stretches.length), np.repeat(starts, stretches.length) + order
        shape = (len(self.packed), self.longest)
        source, documents, sizes = np.full(shape, reader.source_end), np.full(shape, -1), np.zeros(shape, np.int64)
        if reader.source_bos is not None:
            source[:, 0] = reader.source_bos
        source[where], sizes[where] = read.source[chosen], read.source_bytes[chosen]
        documents[where] = np.repeat(stretches.document, stretches.length)
        numbers = self.packed.tokens.numpy()
        text = numbers != BOS
        target = np.where(text, read.target[numbers], reader.bos or 0)
        owners = self.packed.documents.numpy()
        count = int(owners.max()) + 1
        names = np.zeros(count, np.int64)
        names[self.owners.ravel()] = read.names[np.searchsorted(read.target_first, self.numbers.ravel(), "right") - 1]
        return PairedRows(
            _tensor(np.concatenate([target, source, self.places, documents], 1)),
            self.packed.documents,
            _by_document(np.where(text, read.target_bytes[numbers], 0), owners, count),
            _by_document(sizes, documents, count),
            torch.from_numpy(names),
        )

    def counts(self) -> dict[str, int]:
        """Return how many target tokens get the state of a source token that ends where they do, or of none."""
        nowhere = self.local < 0
        exact = int((self.read.exact[self.numbers.ravel()] & ~nowhere).sum())
        begins = self.skipped * len(self.packed)  # BOS, which the source may have, too
        exact, without = (exact + begins, 0) if self.lead else (exact, begins)
        return {"aligned_exactly": exact, "aligned_nowhere": int(nowhere.sum()) + without}


def _stretches(numbers: Numbers, owners: Numbers, read: AllTokens) -> _Stretches:
    """Cut what the source reads of documents where the target's rows are."""
    change = np.ones(numbers.shape, bool)
    change[:, 1:] = np.diff(owners) != 0
    at = np.flatnonzero(change.ravel())
    row, begin = at // numbers.shape[1], numbers.ravel()[at]
    end = numbers.ravel()[np.append(at[1:], numbers.size) - 1]
    document = np.searchsorted(read.target_first, begin, "right") - 1
    after = read.last[begin - 1] + np.where(read.exact[begin - 1], 1, 2)  # without a token that begins before the row
    first = np.where(begin == read.target_first[document], read.source_first[document], after)
    length = np.maximum(read.last[end] + 1 - first, 0)
    before = np.cumsum(length) - length
    before -= before[np.searchsorted(row, row)]
    return _Stretches(row, owners.ravel()[at], first, length, before, np.cumsum(change.ravel()) - 1)


def _counting(lengths: Numbers) -> Numbers:
    """Return 0, 1, ... for each of these lengths, one after the other."""
    return np.arange(lengths.sum()) - np.repeat(np.cumsum(lengths) - lengths, lengths)


def _by_document(values: Numbers, documents: Numbers, count: int) -> Tensor:
    """Return the sum of the values of each document's tokens, without the first of each row, which is not predicted."""
    predicted = documents[:, 1:] >= 0
    sums = np.bincount(documents[:, 1:][predicted], values[:, 1:][predicted], count)
    return torch.from_numpy(sums.astype(np.int64))


def _tensor(numbers: Numbers) -> Tensor:
    return torch.from_numpy(numbers.astype(np.int32))
