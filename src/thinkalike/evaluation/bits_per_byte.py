"""Bits per byte: what losses are compared in where models have different tokenizers, whose tokens are not alike."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from thinkalike.data import Corpus, PairedRows, alignment_shares
from thinkalike.measures import bootstrap_interval

BITS = 1 / math.log(2)  # per nat


def document_bytes(corpus: Corpus) -> dict[str, Tensor]:
    """Return by document the bytes that each model predicts, and a hash of its text, if the tokenizers differ."""
    rows = corpus.report
    if not isinstance(rows, PairedRows):
        return {}
    return {"target_bytes": rows.target_bytes, "source_bytes": rows.source_bytes, "documents": rows.names}


def bits_columns(sums: Mapping[str, Tensor]) -> dict[str, Any]:
    """Return the columns in bits per byte: both models' own losses, and the penalty with a 95 % interval.

    Each loss is divided by the bytes that its own tokens hold. A document of which nothing but its end is predicted has
    no bytes, and counts as one when documents are drawn.
    """
    total = sums["target_bytes"].sum()
    excess = sums["stitch"] - sums["target"]
    ends = bootstrap_interval(excess * BITS, sums["target_bytes"].clamp(min=1).double())
    return {
        "target_bits_per_byte": float(sums["target"].sum() * BITS / total),
        "source_bits_per_byte": float(sums["source"].sum() * BITS / sums["source_bytes"].sum()),
        "penalty_bits_per_byte": (excess.sum(-1) * BITS / total).tolist(),
        "penalty_bits_per_byte_low": ends.low.tolist(),
        "penalty_bits_per_byte_high": ends.high.tolist(),
    }


def alignment_scalars(corpus: Corpus) -> dict[str, float]:
    """Return the shares of target tokens by how they are aligned, if the tokenizers differ."""
    if not isinstance(corpus.report, PairedRows):
        return {}
    return {f"aligned_{how}": share for how, share in alignment_shares(corpus).items()}
