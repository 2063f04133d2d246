"""The table that a reader gets of a result: the rows that answer the question first, few columns.

The index of a ranked table keeps the number of each row in the stored one, so that
`table.sort_index()` restores its order.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas as pd

MOST_COLUMNS = 15  # of `Result.table`: a wider table fits neither a screen nor a notebook


def ranked_rows(table: pd.DataFrame, by: str, smallest_first: bool = False) -> pd.DataFrame:
    """Return the rows in the order of a column, the largest value first.

    Rows without a value come last. A result of an earlier version may lack the column, and keeps
    its order.
    """
    if by not in table:
        return table
    return table.sort_values(by, ascending=smallest_first, kind="stable")


def ranked_layer_pairs(table: pd.DataFrame, smallest_first: bool = False) -> pd.DataFrame:
    """Return layer pairs in the order of their value, the largest first.

    Pairs of two models come before those of two layers of one model, and pairs of a layer with
    itself come last: their values say little. A table of other rows keeps its order.
    """
    if not {"source", "target", "source_layer", "target_layer"} <= set(table.columns):
        return table
    is_of_one_model = table["source"] == table["target"]
    is_of_itself = is_of_one_model & (table["source_layer"] == table["target_layer"])
    group = is_of_one_model.astype(int) + is_of_itself.astype(int)
    ranked = ranked_rows(table, "value", smallest_first)
    order = group.loc[ranked.index].argsort(kind="stable")
    return ranked.iloc[order.to_numpy()]


def shortened(table: pd.DataFrame) -> pd.DataFrame:
    """Return a table with at most `MOST_COLUMNS` columns.

    Of a wider one, the ends of the intervals of further columns, such as back_low, are left out
    first.
    """
    names = list(map(str, table.columns))
    if len(names) > MOST_COLUMNS:
        names = [name for name in names if not name.endswith(("_low", "_high"))]
    return table[names[:MOST_COLUMNS]]
