"""Rows of tokens, of one tokenizer or of two side by side, and the corpus of them that a job reads."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from jaxtyping import Float, Int
from torch import Tensor

from thinkalike.data.cache import Entry


@dataclass(frozen=True)
class Layout:
    """The parts of a row.

    A row is t tokens that the target and the source read. Where they cut text differently, it is four parts side by
    side: t target tokens | s source tokens, padded on the right | for each target token the place of the source token
    whose state it gets (t) | the document of each source token, -1 for a token of none (s).
    """

    target: int  # t
    source: int = 0  # s; 0 where the source reads the target's tokens

    def target_tokens(self, rows: Int[Tensor, "b width"]) -> Int[Tensor, "b t"]:
        """Return the tokens that the target reads and that losses are of."""
        return rows[:, : self.target]

    def source_tokens(self, rows: Int[Tensor, "b width"]) -> Int[Tensor, "b s"]:
        """Return the tokens that the source reads."""
        return rows[:, self.target : self.target + self.source] if self.source else rows

    def source_documents(self, rows: Int[Tensor, "b width"], documents: Int[Tensor, "b t"]) -> Int[Tensor, "b s"]:
        """Return the documents of the source's tokens, given those of the target's; -1 for a token that is of none."""
        return rows[:, 2 * self.target + self.source :] if self.source else documents

    def gathered(
        self, states: Sequence[Float[Tensor, "b s _"]], rows: Int[Tensor, "b width"]
    ) -> list[Float[Tensor, "b t _"]]:
        """Return for each target token the states that it gets, of each layer of the source."""
        if not self.source:
            return list(states)
        places = rows[:, self.target + self.source : 2 * self.target + self.source, None].long()
        return [state.gather(1, places.to(state.device).expand(-1, -1, state.shape[-1])) for state in states]

    def source_states(
        self, source: Any, rows: Int[Tensor, "b width"], layers: Sequence[int]
    ) -> list[Float[Tensor, "b t _"]]:
        """Return for each target token the states that it gets, of these layers of a source model, in one pass."""
        return self.gathered(source.residuals(self.source_tokens(rows), layers), rows)


@dataclass(frozen=True)
class TokenRows:
    """Rows of tokens, and for every token the number of its document."""

    tokens: Int[Tensor, "rows context"]
    documents: Int[Tensor, "rows context"]

    def __len__(self) -> int:
        return self.tokens.shape[0]

    @property
    def context(self) -> int:
        """The number of tokens of a row that losses are of."""
        return self.documents.shape[1]

    @property
    def layout(self) -> Layout:
        """The parts of a row."""
        return Layout(self.context)


@dataclass(frozen=True)
class PairedRows(TokenRows):
    """Rows of the tokens of two tokenizers, see `Layout`, and the documents of the target's."""

    tokens: Int[Tensor, "rows width"]
    documents: Int[Tensor, "rows context"]
    target_bytes: Int[Tensor, " documents"]  # the bytes in UTF-8 of all tokens that each model predicts
    source_bytes: Int[Tensor, " documents"]
    names: Int[Tensor, " documents"]  # a hash of each document's text

    @property
    def layout(self) -> Layout:
        """The parts of a row."""
        return Layout(self.context, self.tokens.shape[1] // 2 - self.context)


@dataclass(frozen=True)
class Corpus:
    """Rows to fit on, rows to report on, and counts of what was used and what was dropped."""

    fit: TokenRows
    report: TokenRows
    counts: dict[str, int]

    def fingerprint(self) -> str:
        """Return the SHA-256 of all tokens of both sides, as 16 hexadecimal digits."""
        digest = hashlib.sha256()
        for rows in (self.fit, self.report):
            digest.update(rows.tokens.contiguous().numpy().tobytes())
        return digest.hexdigest()[:16]

    def entry(self) -> Entry:
        """Return the corpus as the cache keeps it."""
        sides = {"fit": self.fit, "report": self.report}
        return Entry({f"{side}.{key}": each for side in sides for key, each in vars(sides[side]).items()}, self.counts)

    @classmethod
    def of(cls, entry: Entry) -> Corpus:
        """Return the corpus of an entry."""
        return cls(_rows("fit.", entry), _rows("report.", entry), entry.about)

    def facts(self) -> dict[str, Any]:
        """Return what the provenance of a result says of the corpus."""
        return {"tokens": self.fingerprint(), **self.counts}


def _rows(side: str, entry: Entry) -> TokenRows:
    parts = {key.removeprefix(side): each for key, each in entry.tensors.items() if key.startswith(side)}
    return PairedRows(**parts) if "names" in parts else TokenRows(**parts)
