"""Columns of tables that hold estimates with their intervals."""

from __future__ import annotations

from typing import Any

from jaxtyping import Shaped
from torch import Tensor

from thinkalike.measures.bootstrap import bootstrap_interval
from thinkalike.measures.estimates import Estimate
from thinkalike.measures.sample_size import effective_number


def interval_columns(column: str, estimate: Estimate) -> dict[str, Any]:
    """Return the columns of a table that hold an estimate, by name.

    With the name "x" they are x, x_low and x_high, the value and the ends of its interval, and
    x_uncorrected if a bias was subtracted. A column holds a number if the estimate has one value,
    and a list if it has several.

    Args:
        column: The name of the column of values.
        estimate: The values with their intervals.
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
    """Return the columns of means per token and of their 95 % intervals over documents, by name.

    Args:
        column: The name of the column of means; those of the ends have `_low` and `_high` added.
        sums: The sum of a value over the tokens of each document, or those of several values.
        counts: How many tokens each document has.
    """
    return interval_columns(column, bootstrap_interval(sums.double(), counts.double()))


def document_counts(counts: Shaped[Tensor, " documents"]) -> dict[str, float]:
    """Return the columns "documents" and "effective_sample_size".

    The former is the number of documents that have tokens. The latter is how many documents of
    equal length would give intervals as narrow; it is below the number if lengths differ.

    Args:
        counts: How many tokens each document has.
    """
    return {
        "documents": float((counts > 0).sum()),
        "effective_sample_size": effective_number(counts),
    }
