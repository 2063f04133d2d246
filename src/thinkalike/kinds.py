"""The kind of feature that a column of a table is: one rule for files, DataFrames and arrays.

| column | kind |
|---|---|
| text, truth values, categories without an order, mixed values | nominal |
| categories with an order | ordinal |
| numbers, ten different ones or more, of which some are no whole numbers | continuous |
| other numbers | numeric |

Whole numbers are never taken for continuous, as they may be codes, counts or identities. An array or a tensor says of
no column what its numbers stand for: there, other numbers than continuous ones are nominal.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

KINDS = ("nominal", "ordinal", "numeric", "continuous")
NUMBERS = KINDS[2:]
MANY = 10  # different values of a continuous feature, at least


def kind_of(column: pd.Series) -> str:
    """Return the kind that the type and the values of a column imply, see the table above."""
    if isinstance(column.dtype, pd.CategoricalDtype):
        return "ordinal" if column.cat.ordered else "nominal"
    if not pd.api.types.is_numeric_dtype(column) or pd.api.types.is_bool_dtype(column):
        return "nominal"
    return "continuous" if is_continuous(column.dropna().to_numpy(float)) else "numeric"


def is_continuous(values: np.ndarray) -> bool:
    """Return whether numbers are ten different ones or more, some of them no whole numbers; NaN does not count."""
    different = np.unique(values[np.isfinite(values)])
    return len(different) >= MANY and bool((different != np.round(different)).any())
