"""How results that an earlier version stored are read under the present names of their columns.

`thinkalike.registry` says under which names the results of each kind had tables, columns and
numbers before. `thinkalike.store.Result` reads by them, and nothing else knows a former name.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

FormerColumns = Mapping[str, str]
"""Former names by the present ones.

`{"penalty": "cost"}` holds in all tables of a result and for its numbers,
`{"profiles.penalty": "cost"}` in the table profiles alone, and `{"profiles.csv": "rows.csv"}` is
the name of a table. `penalty_low`, `penalty_high` and `penalty_uncorrected` follow `penalty`.
"""

ENDINGS = ("_low", "_high", "_uncorrected")

Value = TypeVar("Value")


def present_column(name: str, former_columns: FormerColumns, table: str = "") -> str:
    """Return the present name of a stored column, or of a number of the whole result.

    Args:
        name: The stored name.
        former_columns: Those of the kind of the result.
        table: The present name of the table of the column; "" for a number.
    """
    quantity = name
    suffix = ""
    for ending in ENDINGS:
        if name.endswith(ending):
            quantity = name.removesuffix(ending)
            suffix = ending

    # Nearly all names have no former one, and a list of results asks for a hundred thousand.
    if quantity not in former_columns.values():
        return name
    for present, former in former_columns.items():
        scope, _, column = present.rpartition(".")
        if former == quantity and scope in ("", table):
            return column + suffix
    return name


def present_table(name: str, former_columns: FormerColumns) -> str:
    """Return the present name of a stored table, such as calibration_points for rungs."""
    for present, former in former_columns.items():
        if former == f"{name}.csv":
            return present.removesuffix(".csv")
    return name


def by_present_names(values: Mapping[str, Value], former_columns: FormerColumns, table: str = "") -> dict[str, Value]:
    """Return the columns of a table, or the numbers of a result, by their present names."""
    return {present_column(name, former_columns, table): value for name, value in values.items()}
