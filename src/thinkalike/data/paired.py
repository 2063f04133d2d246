"""Rows of text for two models that cut it differently: the target's tokens, and the source's tokens of the same text.

The target's tokenizer and packing decide the rows, because losses are of its tokens. The source reads its own tokens of
the same characters, cut where the rows are, without a token that begins before a row, and after BOS if it expects that.
A target token without a source token of its own document in its row gets the state of the EOS before; where there is
none, the source's row begins with EOS, as after a document.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from thinkalike.config import DataConfig
from thinkalike.data.alignment import Alignment, Cut, align
from thinkalike.data.corpus import Corpus, Limits, PairedRows, TokenRows, pack, separators, without_marks
from thinkalike.data.documents import document_fingerprint
from thinkalike.errors import DataError


@dataclass(frozen=True)
class SourceText:
    """How a source reads: its tokenizer, whether rows begin with BOS, and the length of the longest row."""

    name: str
    tokenizer: Any
    bos: bool
    context: int

    def pack(self, config: DataConfig, tokenizer: Any, context: int, bos: bool, limits: Limits) -> Corpus:
        """Tokenise and pack for a target as `corpus.pack` does, with the source's tokens beside the target's.

        Rows are shorter than `context` where the source could not take what it reads in one of them.
        """
        reader, length = TwoTokenizers(tokenizer, self, bos), context
        while True:
            packed = pack(config, reader, length, limits)
            read = reader.everything()
            fit, report = Side(packed.fit, reader, read), Side(packed.report, reader, read)
            longest = max(fit.longest, report.longest)
            if longest <= self.context:
                return Corpus(fit.rows(), report.rows(), packed.counts | report.counts())
            length = min(length - 1, length * self.context // longest)
            if length < 2:
                raise DataError(
                    f"{self.name} reads at most {self.context} tokens, and needs {longest} for one row of "
                    f"{packed.fit.context} of the target; choose a source with a longer context"
                )


class Side:
    """The rows of one side of a corpus, from the rows of numbers that `pack` made.

    What the source reads of documents is cut where the target's rows are: a stretch is the tokens of one document that
    the source reads in one row.
    """

    def __init__(self, packed: TokenRows, reader: TwoTokenizers, read: AllTokens):
        self.packed, self.reader, self.read = packed, reader, read
        self.skipped, self.lead = int(reader.start is not None), int(reader.source_bos is not None)
        both = (packed.tokens, packed.documents)
        self.numbers, owners = (part[:, self.skipped :].numpy().astype(np.int64) for part in both)
        change = np.ones(self.numbers.shape, bool)
        change[:, 1:] = np.diff(owners) != 0
        at, flat = np.flatnonzero(change.ravel()), self.numbers.ravel()
        self.row, self.owners, begin = at // self.numbers.shape[1], owners.ravel(), flat[at]
        self.document, end = self.owners[at], flat[np.append(at[1:], flat.size) - 1]
        number = np.searchsorted(read.target_first, begin, "right") - 1
        after = read.last[begin - 1] + np.where(read.exact[begin - 1], 1, 2)  # no token that begins before the row
        self.first = np.where(begin == read.target_first[number], read.source_first[number], after)
        self.length = np.maximum(read.last[end] + 1 - self.first, 0)
        before = np.cumsum(self.length) - self.length
        self.starts = self.lead + before - before[np.searchsorted(self.row, self.row)]  # in the source's row
        stretch = np.cumsum(change.ravel()) - 1  # of each target token
        self.local = np.maximum(read.last[flat] - self.first[stretch], -1)
        places = (self.starts[stretch] + self.local).reshape(self.numbers.shape)
        first = np.full((len(packed), self.skipped), self.lead - 1)  # the state of BOS is that of the source's
        places = np.concatenate([first, places], 1)
        shift = (places.min(1) < 0).astype(np.int64)  # of rows that begin with EOS
        self.places, self.starts = places + shift[:, None], self.starts + shift[self.row]
        self.longest = int(max((self.starts + self.length).max(), self.lead, 1))

    def rows(self) -> PairedRows:
        read, reader = self.read, self.reader
        of = np.repeat(np.arange(len(self.row)), self.length)  # the stretch of each source token
        order = np.arange(len(of)) - (np.cumsum(self.length) - self.length)[of]
        chosen, where = self.first[of] + order, (self.row[of], self.starts[of] + order)
        shape = (len(self.packed), self.longest)
        source, documents, sizes = np.full(shape, reader.source_end), np.full(shape, -1), np.zeros(shape, np.int64)
        if reader.source_bos is not None:
            source[:, 0] = reader.source_bos
        source[where], sizes[where] = read.source[chosen], read.source_bytes[chosen]
        documents[where] = self.document[of]
        numbers, owners = self.packed.tokens.numpy(), self.packed.documents.numpy()
        text = numbers != BOS
        target = np.where(text, read.target[numbers], reader.bos or 0)
        count = int(owners.max()) + 1
        names = np.zeros(count, np.int64)
        names[self.owners] = read.names[np.searchsorted(read.target_first, self.numbers.ravel(), "right") - 1]
        return PairedRows(
            torch.from_numpy(np.concatenate([target, source, self.places, documents], 1).astype(np.int32)),
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


def _by_document(values: Numbers, documents: Numbers, count: int) -> Tensor:
    """Return the sum of the values of each document's tokens, without the first of each row, which is not predicted."""
    predicted = documents[:, 1:] >= 0
    sums = np.bincount(documents[:, 1:][predicted], values[:, 1:][predicted], count)
    return torch.from_numpy(sums.astype(np.int64))


Numbers = NDArray[np.integer]
BOS = -1  # in place of the number of a token of text


@dataclass(frozen=True)
class AllTokens:
    """The tokens of all documents end to end, of the target and of the source.

    A target token gets the state of the source token `last`, one less than the first of its document if there is none.
    """

    target: Numbers  # ids; each document ends with EOS
    source: Numbers
    target_bytes: Numbers  # how much text each token adds
    source_bytes: Numbers
    last: Numbers  # for each target token the number of a source token
    exact: NDArray[np.bool_]  # whether that one ends where the target token does
    target_first: Numbers  # the number of each document's first token
    source_first: Numbers
    names: Numbers  # a hash of each document's text


class TwoTokenizers:
    """Reads documents with two tokenizers, and calls the target's tokens by their numbers in `AllTokens`."""

    def __init__(self, target: Any, source: SourceText, bos: bool):
        self.start = BOS if bos else None
        self.end, self.bos = separators(target, bos)
        self.source_end, self.source_bos = separators(source.tokenizer, source.bos)
        self._marks = (target, self.bos, self.end), (source.tokenizer, self.source_bos, self.source_end)
        self._tokenizers = untrimmed(target), untrimmed(source.tokenizer)
        self._known: dict[int, range] = {}  # the target tokens of each document, by its name
        self._read: list[tuple[Numbers, Numbers, Alignment]] = []
        self._count = 0

    def __call__(self, texts: Sequence[str]) -> Iterator[range]:
        """Return the numbers of each document's target tokens; one that was read before is not cut again."""
        names = [int(document_fingerprint(text)[:15], 16) for text in texts]
        new = {name: text for name, text in zip(names, texts, strict=True) if name not in self._known}
        bare = without_marks(without_marks(list(new.values()), *self._marks[0]), *self._marks[1])
        cuts = (cuts_of(tokenizer, bare) for tokenizer in self._tokenizers)
        for name, text, target, source in zip(new, bare, *cuts, strict=True):
            self._known[name] = range(self._count, self._count + len(target.ids) + 1)
            self._count += len(target.ids) + 1
            ids = (np.array([*target.ids, self.end], np.int32), np.array([*source.ids, self.source_end], np.int32))
            self._read.append((*ids, align(text, target, source)))
        return (self._known[name] for name in names)

    def everything(self) -> AllTokens:
        targets, sources, alignments = zip(*self._read, strict=True)
        target_first, source_first = (np.cumsum([0, *map(len, each[:-1])]) for each in (targets, sources))
        lasts = [each.last.astype(np.int64) + first for each, first in zip(alignments, source_first, strict=True)]
        return AllTokens(
            target=np.concatenate(targets),
            source=np.concatenate(sources),
            target_bytes=np.concatenate([each.target_bytes for each in alignments]),
            source_bytes=np.concatenate([each.source_bytes for each in alignments]),
            last=np.concatenate(lasts),
            exact=np.concatenate([each.exact for each in alignments]),
            target_first=target_first,
            source_first=source_first,
            names=np.array(list(self._known)),
        )


def untrimmed(tokenizer: Any) -> Any:
    """Return a tokenizer of the `tokenizers` library that cuts alike and whose offsets leave no white space out."""
    from tokenizers import Tokenizer

    whole = json.loads(tokenizer.backend_tokenizer.to_str())
    backend = Tokenizer.from_str(json.dumps(whole | {"post_processor": None, "truncation": None, "padding": None}))
    backend.encode_special_tokens = bool(getattr(tokenizer, "split_special_tokens", False))
    return backend


def cuts_of(tokenizer: Any, texts: Sequence[str]) -> list[Cut]:
    encoded = tokenizer.encode_batch(texts, add_special_tokens=False)
    look, composes = tokenizer.id_to_token, tokenizer.normalizer is not None
    return [Cut(each.ids, np.array(each.offsets, np.int64).reshape(-1, 2), look, composes) for each in encoded]
