"""How results that an earlier version stored are read under the names of today.

A row of the registry says under which names its instrument stored tables, columns and numbers
before. `thinkalike.store.Result` reads by them, and nothing else knows a former name.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

FormerNames = Mapping[str, str]
"""Former names by the names of today.

`{"penalty": "cost"}` holds in all tables of a result and for its numbers,
`{"profiles.penalty": "cost"}` in the table profiles alone, and `{"profiles.csv": "rows.csv"}` is
the name of a table. `penalty_low` and `penalty_high` follow `penalty`.
"""

ENDS_OF_INTERVALS = ("_low", "_high")

Value = TypeVar("Value")


def column_today(name: str, former_names: FormerNames, table: str = "") -> str:
    """Return the name of today for a stored column, or for a number of the whole result.

    Args:
        name: The stored name.
        former_names: Those of the kind of the result.
        table: The name of today for the table of the column; "" for a number.
    """
    quantity = name
    end_of_interval = ""
    for end in ENDS_OF_INTERVALS:
        if name.endswith(end):
            quantity = name.removesuffix(end)
            end_of_interval = end

    for today, former in former_names.items():
        scope, _, column = today.rpartition(".")
        if former == quantity and scope in ("", table):
            return column + end_of_interval
    return name


def table_today(name: str, former_names: FormerNames) -> str:
    """Return the name of today for a stored table, such as calibration_points for rungs."""
    for today, former in former_names.items():
        if former == f"{name}.csv":
            return today.removesuffix(".csv")
    return name


def by_names_today(values: Mapping[str, Value], former_names: FormerNames, table: str = "") -> dict[str, Value]:
    """Return the columns of a table, or the numbers of a result, by their names of today."""
    return {column_today(name, former_names, table): value for name, value in values.items()}
