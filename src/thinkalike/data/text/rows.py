"""Rows of tokens, and the corpus of them that a job reads."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

from jaxtyping import Int
from torch import Tensor


@dataclass(frozen=True)
class TokenRows:
    """Rows of tokens, and for every token the number of its document."""

    tokens: Int[Tensor, "rows context"]
    documents: Int[Tensor, "rows context"]

    def __len__(self) -> int:
        return self.tokens.shape[0]


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

    def facts(self) -> dict[str, Any]:
        """Return what the provenance of a result says of the corpus."""
        return {"tokens": self.fingerprint(), **self.counts}
