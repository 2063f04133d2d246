"""Tidy rows as a matrix, such as that of layer pairs, with no more cells than the rows justify."""

from __future__ import annotations

from typing import TYPE_CHECKING

from thinkalike.errors import ResultError, short

if TYPE_CHECKING:
    import pandas as pd

MOST_CELLS = 4_000_000  # of a matrix that most rows leave empty; 2,000 by 2,000 layers
MOST_CELLS_PER_ROW = 20  # of a larger one


def matrix_of(rows: pd.DataFrame, *, index: str | list[str], columns: str, values: str) -> pd.DataFrame:
    """Return the matrix whose cells are the rows of a table; a cell without a row is NaN.

    Args:
        index: The columns of the table whose values are the rows of the matrix.
        columns: The column whose values are the columns of the matrix.
        values: The column that has the cells.

    Raises:
        ResultError: The matrix would be large, and nearly empty.
        ValueError: Two rows are the same cell.
    """
    check_matrix(rows, index=index, columns=columns)
    return rows.pivot(index=index, columns=columns, values=values)


def check_matrix(rows: pd.DataFrame, *, index: str | list[str], columns: str) -> None:
    """Check that a matrix of rows has no more cells than they justify.

    A table may be a stranger's: with as many layers as rows, a matrix of them fills the memory.

    Raises:
        ResultError: It would be large, and nearly empty.
    """
    row_count = len(rows[index].drop_duplicates())
    column_count = rows[columns].nunique(dropna=False)
    if row_count * column_count > max(MOST_CELLS, MOST_CELLS_PER_ROW * len(rows)):
        index_names = index if isinstance(index, str) else " and ".join(index)
        raise ResultError(
            f"a matrix of {row_count:,} values of {short(index_names)} by {column_count:,} of "
            f"{short(columns)} is too large to be shown, as the table has only {len(rows):,} "
            "rows; read result.details"
        )
