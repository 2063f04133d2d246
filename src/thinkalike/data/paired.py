"""Rows of text for two models whose tokenizers differ, with the tokens of both.

The target's tokenizer and packing decide the rows, because losses are of its tokens. The source
reads its own tokens of the same characters. They are cut where the rows are; a token that begins
before a row is left out; and BOS stands first if the source expects it. A target token that has no
source token of its own document in its row gets the state of the EOS before it. Where there is no
such EOS, the source's row begins with one, as after a document.

Example: a document is "abcabc". The target cuts it into abc|ab|c and the source into ab|cab|c.
Each target token gets the state of the last source token that has seen no character beyond it:

    target token                  abc   ab    c    EOS
    aligned source token           ab   cab   c    EOS
    ends at the same character     no   yes   yes  yes
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from thinkalike.config import DataConfig
from thinkalike.data.alignment import Alignment, TokenisedText, align
from thinkalike.data.documents import document_fingerprint
from thinkalike.data.packing import TextLimits, pack, separators, without_separators
from thinkalike.data.rows import Corpus, PairedRows, SourceTokens, TokenRows
from thinkalike.errors import DataError

if TYPE_CHECKING:
    import tokenizers
    from transformers import PreTrainedTokenizerBase

IntArray = NDArray[np.integer]

NO_TEXT = -1
"""Stands for BOS among the numbers of target tokens, because BOS is no token of the text."""

NO_DOCUMENT = -1
"""Stands for the document of a token that belongs to none."""


@dataclass(frozen=True)
class SourceTokenizer:
    """How a source reads text."""

    name: str
    tokenizer: PreTrainedTokenizerBase
    bos: bool
    """Whether its rows begin with BOS."""

    context: int
    """The length of the longest row that it can read."""

    def pack(
        self,
        config: DataConfig,
        tokenizer: PreTrainedTokenizerBase,
        context: int,
        bos: bool,
        limits: TextLimits,
    ) -> Corpus:
        """Tokenise text for a target and this source, and pack the target's tokens into rows.

        Rows are made shorter than `context` until the source, which may need more tokens for the
        same text, can read each of them.

        Args:
            config: The settings of the text.
            tokenizer: The target's tokenizer.
            context: How many tokens a row has for the target, BOS included.
            bos: Whether the target's rows begin with BOS.
            limits: How much text is read.

        Raises:
            DataError: Even rows of two tokens are too long for the source, or text is lacking.
        """
        reader = PairedReader(tokenizer, self, bos)
        row_length = context
        while True:
            # The rows hold indices into the stream of all target tokens instead of token ids, so
            # that the aligned source tokens can be looked up.
            packed = pack(config, reader, row_length, limits)
            streams = reader.streams()
            fit = AlignedRows.of(packed.fit, reader, streams)
            report = AlignedRows.of(packed.report, reader, streams)
            longest = max(fit.source_width, report.source_width)
            if longest <= self.context:
                counts = packed.counts | report.alignment_counts(streams)
                fit_rows = fit.paired_rows(reader, streams)
                return Corpus(fit_rows, report.paired_rows(reader, streams), counts)

            # The next attempt is shorter in proportion, and by at least one token.
            row_length = min(row_length - 1, row_length * self.context // longest)
            if row_length < 2:
                raise DataError(
                    f"{self.name} reads at most {self.context} tokens, and needs {longest} for "
                    f"one row of {packed.fit.context} of the target; choose a source with a "
                    "longer context"
                )


@dataclass(frozen=True)
class TokenStreams:
    """The tokens of all documents end to end, for the target (T of them) and the source (S).

    A token is known by its number in the stream of its model.
    """

    target_ids: IntArray
    """(T,): the target's token ids; each document ends with EOS."""

    source_ids: IntArray
    """(S,): the source's token ids; each document ends with EOS."""

    target_bytes: IntArray
    """(T,): how many bytes of text each target token adds."""

    source_bytes: IntArray
    """(S,): how many bytes of text each source token adds."""

    aligned: IntArray
    """(T,): the number of the source token whose state each target token gets.

    This is one less than the first of its document if no source token ends early enough.
    """

    is_exact: NDArray[np.bool_]
    """(T,): whether that source token ends where the target token does."""

    target_starts: IntArray
    """(documents,): the number of each document's first target token."""

    source_starts: IntArray
    """(documents,): the number of each document's first source token."""

    document_hashes: IntArray
    """(documents,): a hash of each document's text."""

    def document_of(self, target_indices: IntArray) -> IntArray:
        """Return the index of the document that each target token belongs to.

        Args:
            target_indices: The index of each token in the stream of all target tokens.
        """
        # The last document that does not start behind the token.
        return np.searchsorted(self.target_starts, target_indices, "right") - 1


@dataclass(frozen=True)
class Stretches:
    """The n stretches of rows; a stretch is the tokens of one document in one row."""

    rows: IntArray
    """(n,): the row of each stretch."""

    documents: IntArray
    """(n,): the number of its document, as in `TokenRows.documents`."""

    target_first: IntArray
    """(n,): the number of its first target token."""

    target_last: IntArray
    """(n,): the number of its last target token."""

    of_token: IntArray
    """(tokens,): the stretch of each target token, in the order of the rows."""

    @classmethod
    def of(cls, target_indices: IntArray, documents: IntArray) -> Stretches:
        """Divide rows into stretches, each of which has the tokens of one document in one row.

        Args:
            target_indices: (rows, t), the index of each target token in the stream of all target
                tokens. BOS is not included.
            documents: (rows, t), the document of each of these tokens.
        """
        width = target_indices.shape[1]
        # A stretch starts with the row, and wherever the document differs from that of the token
        # before.
        is_start = np.ones(target_indices.shape, bool)
        is_start[:, 1:] = np.diff(documents) != 0
        starts = np.flatnonzero(is_start.ravel())
        ends = np.append(starts[1:], target_indices.size) - 1
        return cls(
            rows=starts // width,
            documents=documents.ravel()[starts],
            target_first=target_indices.ravel()[starts],
            target_last=target_indices.ravel()[ends],
            of_token=np.cumsum(is_start.ravel()) - 1,
        )

    def first_source_tokens(self, streams: TokenStreams) -> IntArray:
        """Return the index of the first source token that begins within each stretch, (n,).

        A stretch is the tokens of one document in one row. Indices count from the beginning of the
        stream of all source tokens.
        """
        document = streams.document_of(self.target_first)
        is_document_start = self.target_first == streams.target_starts[document]

        # Where a row begins within a document, consider the last target token before the row, and
        # the source token aligned with it. If both end at the same character, the next source
        # token is the first of the row. If the source token ends earlier, the next source token
        # begins before the row, and the one after that is the first of the row.
        last_before = self.target_first - 1  # -1 for the very first token, where it is not used
        step = np.where(streams.is_exact[last_before], 1, 2)
        first_within_document = streams.aligned[last_before] + step
        first_of_document = streams.source_starts[document]
        return np.where(is_document_start, first_of_document, first_within_document)


@dataclass(frozen=True)
class AlignedRows:
    """Where the source's tokens of some rows stand, and which of them each target token gets."""

    packed: TokenRows
    """The target's rows; `tokens` has numbers of target tokens, and `NO_TEXT` for BOS."""

    stretches: Stretches

    source_first: IntArray
    """(n,): the number of the first source token of each stretch."""

    source_lengths: IntArray
    """(n,): how many source tokens each stretch has."""

    source_columns: IntArray
    """(n,): the column of the source's row in which each stretch begins."""

    offsets: IntArray
    """(tokens,): which source token of its stretch each target token gets; -1 for none."""

    positions: IntArray
    """(rows, t): the column of the source token whose state each target token gets."""

    source_width: int
    """The length of the longest row of the source."""

    source_has_bos: bool

    @classmethod
    def of(cls, packed: TokenRows, reader: PairedReader, streams: TokenStreams) -> AlignedRows:
        """Find the source tokens of packed rows of the target, and align the rows with them.

        Args:
            packed: The target's rows. In place of token ids they have the index of each token in
                the stream of all target tokens.
            reader: What cut the documents; it knows the separators of both models.
            streams: The tokens of all documents.
        """
        bos_width = 0 if reader.start is None else 1
        source_bos_width = 0 if reader.source_bos is None else 1
        stream_indices = packed.tokens[:, bos_width:].numpy().astype(np.int64)
        documents = packed.documents[:, bos_width:].numpy().astype(np.int64)
        stretches = Stretches.of(stream_indices, documents)  # the tokens of a document in a row

        # The source's tokens of a stretch end with the one that its last target token gets.
        source_first = stretches.first_source_tokens(streams)
        aligned_last = streams.aligned[stretches.target_last]
        source_lengths = np.maximum(aligned_last + 1 - source_first, 0)

        # In the source's row the stretches stand one after another, behind BOS.
        length_before = np.cumsum(source_lengths) - source_lengths
        first_of_row = np.searchsorted(stretches.rows, stretches.rows)
        source_columns = source_bos_width + length_before - length_before[first_of_row]

        # A target token of offset -1 gets the column before its stretch: EOS of the document
        # before, BOS, or column -1.
        aligned = streams.aligned[stream_indices.ravel()]
        offsets = np.maximum(aligned - source_first[stretches.of_token], -1)
        positions = source_columns[stretches.of_token] + offsets
        positions = positions.reshape(stream_indices.shape)
        bos_positions = np.full((len(packed), bos_width), source_bos_width - 1)
        positions = np.concatenate([bos_positions, positions], 1)

        # A row that needs column -1 begins with EOS, and all its tokens move by one.
        begins_with_end = (positions.min(1) < 0).astype(np.int64)
        positions = positions + begins_with_end[:, None]
        source_columns = source_columns + begins_with_end[stretches.rows]
        longest = int((source_columns + source_lengths).max())
        return cls(
            packed=packed,
            stretches=stretches,
            source_first=source_first,
            source_lengths=source_lengths,
            source_columns=source_columns,
            offsets=offsets,
            positions=positions,
            source_width=max(longest, source_bos_width, 1),
            source_has_bos=source_bos_width > 0,
        )

    def paired_rows(self, reader: PairedReader, streams: TokenStreams) -> PairedRows:
        """Return the rows with the token ids of both models, and the bytes of each document.

        The source's `positions` tell, for each token of a target's row, at which column of the
        source's row the state is that the token is compared with.
        """
        source_tokens, source_documents, source_bytes = self._source_rows(reader, streams)

        # The packed rows hold indices into the stream of all target tokens, or NO_TEXT for BOS.
        stream_indices = self.packed.tokens.numpy()
        documents = self.packed.documents.numpy()
        is_text = stream_indices != NO_TEXT
        # Without BOS every token is text, so that the 0 is not used.
        bos = 0 if reader.bos is None else reader.bos
        # NO_TEXT is -1, which as an index reads the last token of the stream. `np.where` replaces
        # that token by BOS, and its bytes by 0.
        target_tokens = np.where(is_text, streams.target_ids[stream_indices], bos)
        target_bytes = np.where(is_text, streams.target_bytes[stream_indices], 0)

        # The streams have all documents that were read, and the rows have only some of them, which
        # they number from 0. A stretch (the tokens of one document in one row) knows the number of
        # its document in the rows, and by its first token also the number in the streams.
        document_count = int(documents.max()) + 1
        document_hashes = np.zeros(document_count, np.int64)
        indices_in_streams = streams.document_of(self.stretches.target_first)
        document_hashes[self.stretches.documents] = streams.document_hashes[indices_in_streams]

        source = SourceTokens(
            tokens=_int32(source_tokens),
            positions=_int32(self.positions),
            documents=_int32(source_documents),
        )
        return PairedRows(
            _int32(target_tokens),
            self.packed.documents,
            source,
            target_bytes=_sum_by_document(target_bytes, documents, document_count),
            source_bytes=_sum_by_document(source_bytes, source_documents, document_count),
            document_hashes=torch.from_numpy(document_hashes),
        )

    def _source_rows(
        self, reader: PairedReader, streams: TokenStreams
    ) -> tuple[IntArray, IntArray, IntArray]:
        """Return the source's token ids, their documents and their bytes, (rows, s) each.

        EOS pads each row on the right. Padding and BOS have no document and 0 bytes.
        """
        shape = (len(self.packed), self.source_width)
        token_ids = np.full(shape, reader.source_end)  # EOS pads a row on the right, too
        documents = np.full(shape, NO_DOCUMENT)
        byte_counts = np.zeros(shape, np.int64)
        if reader.source_bos is not None:
            token_ids[:, 0] = reader.source_bos

        # For each source token: the index of its stretch (the tokens of one document in one row),
        # and how many tokens of the stretch come before it. For lengths 2 and 3 these are
        # 0 0 1 1 1 and 0 1 0 1 2.
        stretch = np.repeat(np.arange(len(self.source_lengths)), self.source_lengths)
        tokens_before_stretch = np.cumsum(self.source_lengths) - self.source_lengths
        offset = np.arange(len(stretch)) - tokens_before_stretch[stretch]

        stream_indices = self.source_first[stretch] + offset
        rows = self.stretches.rows[stretch]
        columns = self.source_columns[stretch] + offset
        token_ids[rows, columns] = streams.source_ids[stream_indices]
        documents[rows, columns] = self.stretches.documents[stretch]
        byte_counts[rows, columns] = streams.source_bytes[stream_indices]
        return token_ids, documents, byte_counts

    def alignment_counts(self, streams: TokenStreams) -> dict[str, int]:
        """Return how many target tokens are aligned exactly, and how many with no source token.

        A target token is aligned exactly if it ends at the same character as its source token. BOS
        is aligned exactly with BOS of the source, or with no token if the source has none.
        """
        # The packed rows hold indices into the stream of all target tokens, or NO_TEXT for BOS.
        stream_indices = self.packed.tokens.numpy()
        is_text = stream_indices != NO_TEXT
        has_no_source = self.offsets < 0  # no source token of its document stands in its row
        is_exact = streams.is_exact[stream_indices[is_text]] & ~has_no_source
        counts = {
            "aligned_exactly": int(is_exact.sum()),
            "aligned_nowhere": int(has_no_source.sum()),
        }
        bos_tokens = int((~is_text).sum())
        alignment_of_bos = "aligned_exactly" if self.source_has_bos else "aligned_nowhere"
        counts[alignment_of_bos] += bos_tokens
        return counts


def _int32(values: IntArray) -> Tensor:
    """Return whole numbers as a tensor of int32, which takes half the memory of int64."""
    return torch.from_numpy(values.astype(np.int32))


def _sum_by_document(values: IntArray, documents: IntArray, document_count: int) -> Tensor:
    """Return the sum of the values of each document's tokens, (documents,), in int64.

    The first token of each row does not count, because no model predicts it.

    Args:
        values: (rows, t), the value of each token, such as its number of bytes.
        documents: (rows, t), the document of each token; negative for tokens of no document.
        document_count: How many documents there are; one without tokens has the sum 0.
    """
    predicted_documents = documents[:, 1:]
    has_document = predicted_documents >= 0
    predicted_values = values[:, 1:][has_document]
    sums = np.bincount(predicted_documents[has_document], predicted_values, document_count)
    return torch.from_numpy(sums.astype(np.int64))


@dataclass(frozen=True)
class _ReadDocument:
    """A document as both models cut it; its token ids end with EOS of each model."""

    target_ids: IntArray
    source_ids: IntArray
    alignment: Alignment


class PairedReader:
    """Cuts documents with two tokenizers, and yields the numbers of the target's tokens.

    The numbers are those of `TokenStreams`. A document that was read before is not cut again.

    Args:
        target: The target's tokenizer.
        source: How the source reads.
        bos: Whether the target's rows begin with BOS.
    """

    def __init__(self, target: PreTrainedTokenizerBase, source: SourceTokenizer, bos: bool):
        """Prepare both tokenizers, and begin without documents.

        EOS ends each document and BOS begins each row: `end` and `bos` are their ids for the
        target, `source_end` and `source_bos` for the source. `bos` and `source_bos` may be None.
        """
        # This reader yields indices into the stream of target tokens in place of token ids, so
        # that a row begins with NO_TEXT in place of BOS.
        self.start = NO_TEXT if bos else None
        self.end, self.bos = separators(target, bos)
        self.source_end, self.source_bos = separators(source.tokenizer, source.bos)
        self._target_tokenizer = target
        self._source_tokenizer = source.tokenizer
        self._target_backend = backend_with_untrimmed_offsets(target)
        self._source_backend = backend_with_untrimmed_offsets(source.tokenizer)
        self._target_ranges: dict[int, range] = {}  # of each document's tokens, by its hash
        self._documents: list[_ReadDocument] = []
        self._token_count = 0

    def __call__(self, texts: Sequence[str]) -> Iterator[range]:
        """Return, for each document, the range of its target tokens in the stream of all of them.

        A document that was read before keeps its range and is not tokenised again.
        """
        # The first 60 bits of SHA-256, which an int64 holds.
        hashes = [int(document_fingerprint(text)[:15], 16) for text in texts]
        new_texts: dict[int, str] = {}
        for document_hash, text in zip(hashes, texts, strict=True):
            if document_hash not in self._target_ranges:
                new_texts[document_hash] = text

        bare_texts = self._without_separators(list(new_texts.values()))
        target_cuts = tokenised_texts(self._target_backend, bare_texts)
        source_cuts = tokenised_texts(self._source_backend, bare_texts)
        documents = zip(new_texts, bare_texts, target_cuts, source_cuts, strict=True)
        for document_hash, text, target, source in documents:
            self._add(document_hash, text, target, source)
        return (self._target_ranges[document_hash] for document_hash in hashes)

    def _without_separators(self, texts: list[str]) -> list[str]:
        """Return documents without a written BOS before or EOS after them, of either model."""
        texts = without_separators(texts, self._target_tokenizer, self.bos, self.end)
        return without_separators(texts, self._source_tokenizer, self.source_bos, self.source_end)

    def _add(
        self, document_hash: int, text: str, target: TokenisedText, source: TokenisedText
    ) -> None:
        """Append a document to the token streams of both models, with its tokens aligned.

        The range of its tokens in the target's stream is stored under the hash of the document.

        Args:
            document_hash: A hash of the document as it was read, which may begin or end with a
                mark that separates documents, such as "<|endoftext|>".
            text: The document without such marks.
            target, source: The tokens of `text`, to which EOS of each model is added here.
        """
        target_ids = np.array([*target.ids, self.end], np.int32)
        source_ids = np.array([*source.ids, self.source_end], np.int32)
        self._documents.append(_ReadDocument(target_ids, source_ids, align(text, target, source)))
        first = self._token_count
        self._token_count += len(target_ids)
        self._target_ranges[document_hash] = range(first, self._token_count)

    def streams(self) -> TokenStreams:
        """Return the tokens of all documents that were read end to end, in the order of reading.

        Indices of aligned source tokens count within a document at first, and from the beginning
        of the stream in the result.
        """
        documents = self._documents
        target_starts = _starts([document.target_ids for document in documents])
        source_starts = _starts([document.source_ids for document in documents])
        aligned = []
        for document, start in zip(documents, source_starts, strict=True):
            aligned.append(document.alignment.aligned.astype(np.int64) + start)
        alignments = [document.alignment for document in documents]
        return TokenStreams(
            target_ids=np.concatenate([document.target_ids for document in documents]),
            source_ids=np.concatenate([document.source_ids for document in documents]),
            target_bytes=np.concatenate([alignment.target_bytes for alignment in alignments]),
            source_bytes=np.concatenate([alignment.source_bytes for alignment in alignments]),
            aligned=np.concatenate(aligned),
            is_exact=np.concatenate([alignment.is_exact for alignment in alignments]),
            target_starts=target_starts,
            source_starts=source_starts,
            document_hashes=np.array(list(self._target_ranges)),  # its keys, in order of reading
        )


def _starts(arrays: Sequence[IntArray]) -> IntArray:
    """Return the index at which each of several arrays begins once they are joined."""
    lengths = [len(array) for array in arrays]
    return np.cumsum([0, *lengths[:-1]])


def backend_with_untrimmed_offsets(tokenizer: PreTrainedTokenizerBase) -> tokenizers.Tokenizer:
    """Return a copy of a tokenizer that cuts text alike and whose offsets include white space.

    The post-processor of byte-level tokenizers trims white space from offsets, and alignment needs
    to know where it is. Truncation and padding are switched off as well. Special tokens that are
    written in a text are cut like other text if `tokenizer` does so (`split_special_tokens`).

    Args:
        tokenizer: A fast tokenizer of transformers.
    """
    import tokenizers

    settings = json.loads(tokenizer.backend_tokenizer.to_str())
    settings |= {"post_processor": None, "truncation": None, "padding": None}
    backend = tokenizers.Tokenizer.from_str(json.dumps(settings))
    backend.encode_special_tokens = bool(getattr(tokenizer, "split_special_tokens", False))
    return backend


def tokenised_texts(tokenizer: tokenizers.Tokenizer, texts: Sequence[str]) -> list[TokenisedText]:
    """Return the tokens of each text and their character offsets, without special tokens.

    Args:
        tokenizer: A `tokenizers.Tokenizer`.
        texts: The texts.
    """
    # Any normaliser may join a letter and its accent to one character, and then leaves the accent
    # out of offsets. So alignment takes both for one character if there is a normaliser.
    composes = tokenizer.normalizer is not None
    # By its type it may return None, for an unknown id. The ids of encodings are all known.
    token_of_id = cast(Callable[[int], str], tokenizer.id_to_token)
    tokenised = []
    for encoding in tokenizer.encode_batch(texts, add_special_tokens=False):
        offsets = np.array(encoding.offsets, np.int64).reshape(-1, 2)
        tokenised.append(TokenisedText(encoding.ids, offsets, token_of_id, composes))
    return tokenised
