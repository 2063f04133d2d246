"""Rows of token ids that the models read, and the document that each token belongs to.

Where the source and the target share a tokenizer, a row is read by both. Where their tokenizers
differ, the target's tokens decide the rows, and `SourceTokens` holds what the source reads of the
same text.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Protocol, TypeVar, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor

from thinkalike.processes import counted

LayerOfReader = TypeVar("LayerOfReader", contravariant=True)


@runtime_checkable
class RowReader(Protocol[LayerOfReader]):
    """A model, or anything else that has states of rows of tokens at some layers."""

    def residuals(
        self, tokens: Int[Tensor, "b t"], layers: Sequence[LayerOfReader], /
    ) -> list[Float[Tensor, "b t _"]]: ...


@dataclass(frozen=True)
class SourceTokens:
    """The tokens that the source reads of rows that the target's tokenizer cut.

    Each row has s columns for the source, which are padded on the right, and t for the target.
    """

    tokens: Int[Tensor, "rows s"]
    """The source's token ids."""

    positions: Int[Tensor, "rows t"]
    """For each target token, the column of the source token whose state it gets."""

    documents: Int[Tensor, "rows s"]
    """The document of each source token; -1 for BOS, padding and other tokens of no document."""

    def select(self, rows: slice | Int[Tensor, " some"]) -> SourceTokens:
        """Return the tokens of the chosen rows, in the order of `rows`."""
        return SourceTokens(self.tokens[rows], self.positions[rows], self.documents[rows])


@dataclass(frozen=True)
class TokenRows:
    """Rows of t tokens, and the number of each token's document."""

    tokens: Int[Tensor, "rows t"]
    """The token ids that the target reads and whose losses are reported."""

    documents: Int[Tensor, "rows t"]
    """The number of the document of each token, from 0."""

    source: SourceTokens | None = None
    """What the source reads; None if it reads `tokens`."""

    def __len__(self) -> int:
        return self.tokens.shape[0]

    @property
    def context(self) -> int:
        """The number t of target tokens in a row."""
        return self.tokens.shape[1]

    @property
    def source_tokens(self) -> Int[Tensor, "rows s"]:
        """The token ids that the source model reads.

        They are those of the target model, unless the source has another tokenizer.
        """
        if self.source is None:
            return self.tokens
        return self.source.tokens

    @property
    def source_documents(self) -> Int[Tensor, "rows s"]:
        """The document of each token that the source reads; -1 for a token of no document."""
        if self.source is None:
            return self.documents
        return self.source.documents

    def select(self, rows: slice | Int[Tensor, " some"]) -> TokenRows:
        """Return the chosen rows, in the order of `rows`."""
        source = None
        if self.source is not None:
            source = self.source.select(rows)
        return TokenRows(self.tokens[rows], self.documents[rows], source)

    def batches(self, size: int, name: str = "batch") -> Iterator[TokenRows]:
        """Yield the rows in batches of `size` rows, with token ids in int64, as models need them.

        The last batch may be smaller. A progress display counts the batches and calls them `name`.
        """
        starts = range(0, len(self), size)
        for start in counted(starts, name):
            yield self.select(slice(start, start + size)).to_int64()

    def to_int64(self) -> TokenRows:
        """Return the same rows with token ids in int64; a corpus stores int32 to save memory."""
        source = self.source
        if source is not None:
            source = replace(source, tokens=source.tokens.long())
        return TokenRows(self.tokens.long(), self.documents, source)

    def align(
        self, states: Sequence[Float[Tensor, "rows s _"]]
    ) -> list[Float[Tensor, "rows t _"]]:
        """Return the source's states at several layers, reordered to one state per target token.

        If source and target share a tokenizer, the states are returned as they are.

        Args:
            states: For each layer, the states of the s tokens that the source reads. Layers may
                have different widths.
        """
        if self.source is None:
            return list(states)
        return aligned_states(states, self.source.positions)

    def source_states(
        self, model: RowReader[LayerOfReader], layers: Sequence[LayerOfReader]
    ) -> list[Float[Tensor, "rows t _"]]:
        """Run the source once and return its states at these layers, one per target token.

        Args:
            model: The source, or anything else that reads the source's tokens.
            layers: The layers, in the order of the result.
        """
        return self.align(model.residuals(self.source_tokens, layers))

    @property
    def layout(self) -> PackedLayout:
        """How many columns of the matrix from `packed` belong to the target, and to the source.

        The source has 0 columns if it reads the target's tokens.
        """
        source_width = 0
        if self.source is not None:
            source_width = self.source.tokens.shape[1]
        return PackedLayout(self.context, source_width)

    def packed(self) -> Int[Tensor, "rows width"]:
        """Return everything that the models read as one matrix, which a DataLoader can batch.

        These are the target's tokens and, if the source has another tokenizer, behind them the
        source's tokens, positions and documents.
        """
        if self.source is None:
            return self.tokens
        columns = [self.tokens, self.source.tokens, self.source.positions, self.source.documents]
        return torch.cat(columns, 1)


@dataclass(frozen=True, kw_only=True)
class PairedRows(TokenRows):
    """Rows for two tokenizers, and the sizes of their documents.

    The first token of a row is not predicted and counts for no size.
    """

    target_bytes: Int[Tensor, " documents"]
    """The number of UTF-8 bytes of the tokens that the target predicts in each document."""

    source_bytes: Int[Tensor, " documents"]
    """The number of UTF-8 bytes of the tokens that the source predicts in each document."""

    document_hashes: Int[Tensor, " documents"]
    """A hash of the text of each document."""


@dataclass(frozen=True)
class Corpus:
    """Rows to fit on, rows to report on, and counts of what was used and what was dropped."""

    fit: TokenRows
    report: TokenRows
    counts: dict[str, int]

    def fingerprint(self) -> str:
        """Return the SHA-256 of all token ids of both splits, as 16 hexadecimal digits."""
        digest = hashlib.sha256()
        for rows in (self.fit, self.report):
            digest.update(rows.packed().contiguous().numpy().tobytes())
        return digest.hexdigest()[:16]

    def alignment(self) -> dict[str, float]:
        """Return which shares of the target's evaluation tokens are aligned in which way.

        - "aligned_exactly": a source token ends at the same character.
        - "aligned_earlier": the last source token that has seen no later text ends earlier.
        - "aligned_nowhere": no source token of the document stands before it in the row.
        """
        evaluation_tokens = self.counts["report_tokens"]
        exactly = self.counts["aligned_exactly"] / evaluation_tokens
        nowhere = self.counts["aligned_nowhere"] / evaluation_tokens
        return {
            "aligned_exactly": exactly,
            "aligned_earlier": 1 - exactly - nowhere,
            "aligned_nowhere": nowhere,
        }

    def facts(self) -> dict[str, object]:
        """Return what a result stores about its text."""
        return {"tokens": self.fingerprint(), **self.counts}


@dataclass(frozen=True)
class PackedLayout:
    """The columns of a matrix that holds all token ids of rows, so that a DataLoader can cut it.

    Where both models read the same tokens, the matrix is these t tokens. Otherwise it has
    t target tokens | s source tokens | t positions | s documents, see `SourceTokens`.
    """

    target_width: int
    """The number t of target tokens in a row."""

    source_width: int = 0
    """The number s of source tokens in a row; 0 if the source reads the target's tokens."""

    def target_tokens(self, packed: Int[Tensor, "b width"]) -> Int[Tensor, "b t"]:
        """Return the token ids that the target reads."""
        return packed[:, : self.target_width]

    def source_states(
        self,
        model: RowReader[int],
        packed: Int[Tensor, "b width"],
        layers: Sequence[int],
    ) -> list[Float[Tensor, "b t _"]]:
        """Run the source once and return its states at these layers, one per target token.

        Args:
            model: The source, or anything else that reads the source's tokens.
            packed: Rows of t target tokens | s source tokens | t positions | s documents; only the
                target's tokens if the source reads these.
            layers: The layers of the source, in the order of the result.
        """
        if self.source_width == 0:
            return list(model.residuals(packed, layers))
        end_of_source_tokens = self.target_width + self.source_width
        end_of_positions = end_of_source_tokens + self.target_width
        source_tokens = packed[:, self.target_width : end_of_source_tokens]
        positions = packed[:, end_of_source_tokens:end_of_positions]
        return aligned_states(model.residuals(source_tokens, layers), positions)


def aligned_states(
    states: Sequence[Float[Tensor, "b s _"]], positions: Int[Tensor, "b t"]
) -> list[Float[Tensor, "b t _"]]:
    """Return `states[layer][row, positions[row, i]]` for each layer, row and i < t.

    Args:
        states: The states of the s source tokens of each row, for each layer; widths may differ.
        positions: For each of the t target tokens, the index of the source token whose state it
            gets.
    """
    aligned = []
    for state in states:
        width = state.shape[-1]
        index = positions[..., None].long().to(state.device)  # (b, t, 1)
        aligned.append(state.gather(1, index.expand(-1, -1, width)))
    return aligned
