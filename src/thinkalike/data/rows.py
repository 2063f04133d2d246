"""Rows of token ids that the models read, and the document that each token belongs to.

Where the source and the target share a tokenizer, a row is read by both. Where their tokenizers
differ, the target's tokens decide the rows, and `SourceTokens` holds what the source reads of the
same text.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from thinkalike.processes import counted


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
        """The token ids that the source reads."""
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
        """Yield at most `size` rows at a time, and show progress in batches of this name.

        The last batch may be smaller. Token ids are int64, as models and losses need them.
        """
        starts = range(0, len(self), size)
        for start in counted(starts, name):
            yield self.select(slice(start, start + size)).to_int64()

    def to_int64(self) -> TokenRows:
        """Return the same rows with token ids in int64; a corpus has int32, which takes half."""
        source = self.source
        if source is not None:
            source = replace(source, tokens=source.tokens.long())
        return TokenRows(self.tokens.long(), self.documents, source)

    def align(
        self, states: Sequence[Float[Tensor, "rows s _"]]
    ) -> list[Float[Tensor, "rows t _"]]:
        """Return, for each target token, the source's state at each of several layers.

        Args:
            states: For each layer, the states of the tokens that the source reads. Layers may have
                different widths.
        """
        if self.source is None:
            return list(states)
        return aligned_states(states, self.source.positions)

    def source_states(self, model: Any, layers: Sequence[Any]) -> list[Float[Tensor, "rows t _"]]:
        """Return, for each target token, the source's states at these layers, from one pass.

        Args:
            model: The source, or anything else with `residuals` that reads the source's tokens.
        """
        return self.align(model.residuals(self.source_tokens, layers))

    @property
    def layout(self) -> PackedLayout:
        """The layout of `packed`."""
        source_width = 0
        if self.source is not None:
            source_width = self.source.tokens.shape[1]
        return PackedLayout(self.context, source_width)

    def packed(self) -> Int[Tensor, "rows width"]:
        """Return everything that the models read in one matrix, laid out as `layout` says."""
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
        """Return the SHA-256 of all token ids of both, as 16 hexadecimal digits."""
        digest = hashlib.sha256()
        for rows in (self.fit, self.report):
            digest.update(rows.packed().contiguous().numpy().tobytes())
        return digest.hexdigest()[:16]

    def alignment(self) -> dict[str, float]:
        """Return the shares of the report's target tokens by how they are aligned.

        `aligned_exactly` end where a source token ends, `aligned_earlier` get the state of a
        source token that ends before them, and `aligned_nowhere` follow no source token.
        """
        evaluation_tokens = self.counts["report_tokens"]
        exactly = self.counts["aligned_exactly"] / evaluation_tokens
        nowhere = self.counts["aligned_nowhere"] / evaluation_tokens
        return {
            "aligned_exactly": exactly,
            "aligned_earlier": 1 - exactly - nowhere,
            "aligned_nowhere": nowhere,
        }

    def facts(self) -> dict[str, Any]:
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
        self, model: Any, packed: Int[Tensor, "b width"], layers: Sequence[int]
    ) -> list[Float[Tensor, "b t _"]]:
        """Return, for each target token, the source's states at these layers, from one pass.

        Args:
            model: The source, or anything else with `residuals` that reads the source's tokens.
            packed: Rows in this layout.
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
    """Return the states at these positions of each row, for each of several layers.

    Args:
        states: The states of each layer; widths may differ.
        positions: For each of the t results, the column of its state in the s columns of its row.
    """
    aligned = []
    for state in states:
        width = state.shape[-1]
        index = positions[..., None].long().to(state.device)  # (b, t, 1)
        aligned.append(state.gather(1, index.expand(-1, -1, width)))
    return aligned
