"""Columns of means per token with the ends of their intervals over documents."""

from __future__ import annotations

from typing import Any

from jaxtyping import Shaped
from torch import Tensor

from thinkalike.measures import Estimate, bootstrap_interval, effective_number


def with_ends(
    column: str, sums: Shaped[Tensor, "*b documents"], counts: Shaped[Tensor, " documents"]
) -> dict[str, Any]:
    """Return a column of means, and those called `_low` and `_high` with the ends of their 95 % intervals.

    Args:
        sums, counts: see `bootstrap_interval`; a number of each document in place of (*b) gives single numbers.

    Raises:
        ValueError: Fewer than two documents have counts.
    """
    return ends_of(column, bootstrap_interval(sums.double(), counts.double()))


def ends_of(column: str, estimate: Estimate) -> dict[str, Any]:
    """Return a column of values, and those called `_low` and `_high` with the ends of their intervals."""
    return {f"{column}{end}": values.tolist() for end, values in zip(("", "_low", "_high"), estimate, strict=True)}


def number_of_documents(numbers: Any) -> str:
    """Return over how many documents an interval is, in words: "58 documents (as 41.3 of equal length)".

    Args:
        numbers: something that has `documents` and `effective_documents` by name.
    """
    return f"{numbers['documents']:.0f} documents (as {numbers['effective_documents']:.1f} of equal length)"


def document_numbers(counts: Shaped[Tensor, " documents"]) -> dict[str, float]:
    """Return how many documents have tokens, and how many of equal length weigh as much, see `effective_number`."""
    return {"documents": float((counts > 0).sum()), "effective_documents": effective_number(counts)}
