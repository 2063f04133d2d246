"""Columns of tables that hold estimates with their intervals."""

from __future__ import annotations

from typing import Any

from jaxtyping import Shaped
from torch import Tensor

from thinkalike.measures.bootstrap import bootstrap_interval
from thinkalike.measures.estimates import Estimate
from thinkalike.measures.sample_size import effective_number


def interval_columns(column: str, estimate: Estimate) -> dict[str, Any]:
    """Return a column of values and the columns of their intervals, by name, as plain numbers.

    These end in `_low` and `_high`, and in `_uncorrected` if the estimate has uncorrected values.
    An estimate of a single value gives numbers, one of several gives lists.
    """
    columns = {
        column: estimate.value,
        f"{column}_low": estimate.low,
        f"{column}_high": estimate.high,
        f"{column}_uncorrected": estimate.uncorrected,
    }
    return {name: values.tolist() for name, values in columns.items() if values is not None}


def mean_columns(
    column: str, sums: Shaped[Tensor, "*b documents"], counts: Shaped[Tensor, " documents"]
) -> dict[str, Any]:
    """Return a column of means per token, with 95 % intervals over documents.

    Args:
        column: The name of the column.
        sums: The sum of a value over the tokens of each document.
        counts: How many tokens each document has.
    """
    return interval_columns(column, bootstrap_interval(sums.double(), counts.double()))


def document_counts(counts: Shaped[Tensor, " documents"]) -> dict[str, float]:
    """Return the number of documents that have tokens, and their effective sample size.

    The latter is how many documents of equal length they are worth.

    Args:
        counts: How many tokens each document has.
    """
    return {
        "documents": float((counts > 0).sum()),
        "effective_sample_size": effective_number(counts),
    }
