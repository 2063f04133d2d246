"""Bits per byte: what losses are compared in where models have different tokenizers, whose tokens are not alike."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from thinkalike.data import Corpus, PairedRows, alignment_shares
from thinkalike.evaluation.intervals import with_ends

BITS = 1 / math.log(2)  # per nat


def document_bytes(corpus: Corpus) -> dict[str, Tensor]:
    """Return by document the bytes that each model predicts, and a hash of its text, if the tokenizers differ."""
    rows = corpus.report
    if not isinstance(rows, PairedRows):
        return {}
    return {"target_bytes": rows.target_bytes, "source_bytes": rows.source_bytes, "documents": rows.names}


def bits_columns(sums: Mapping[str, Tensor]) -> dict[str, Any]:
    """Return the columns in bits per byte: both models' own losses, and the penalty, each with its 95 % interval.

    Each loss is divided by the bytes that its own tokens hold.
    """
    target, source = (readable_bytes(sums[f"{side}_bytes"]) for side in ("target", "source"))
    return {
        **with_ends("target_bits_per_byte", sums["target"] * BITS, target),
        **with_ends("source_bits_per_byte", sums["source"] * BITS, source),
        **with_ends("penalty_bits_per_byte", (sums["stitch"] - sums["target"]) * BITS, target),
    }


def readable_bytes(counts: Int[Tensor, " documents"]) -> Int[Tensor, " documents"]:
    """Return bytes by document of which none is 0: a document of which nothing but its end is predicted counts as one.

    It has a loss, and would be left out of the mean.
    """
    return counts.clamp(min=1)


def bytes_by_document(
    tokenizer: Any, rows: Int[Tensor, "rows context"], documents: Int[Tensor, "rows context"]
) -> Int[Tensor, " documents"]:
    """Return the bytes in UTF-8 of each document's predicted tokens, to within a character per document and row."""
    runs, owners = [], []
    for row, numbers in zip(rows[:, 1:], documents[:, 1:], strict=True):
        values, lengths = torch.unique_consecutive(numbers, return_counts=True)
        runs += [part.tolist() for part in row.split(lengths.tolist())]
        owners += values.tolist()
    sizes = [len(text.encode()) for text in tokenizer.batch_decode(runs, skip_special_tokens=True)]
    total = torch.zeros(int(documents.max()) + 1, dtype=torch.long)
    return total.index_add_(0, torch.tensor(owners), torch.tensor(sizes))


def alignment_scalars(corpus: Corpus) -> dict[str, float]:
    """Return the shares of target tokens by how they are aligned, if the tokenizers differ."""
    if not isinstance(corpus.report, PairedRows):
        return {}
    return {f"aligned_{how}": share for how, share in alignment_shares(corpus).items()}
