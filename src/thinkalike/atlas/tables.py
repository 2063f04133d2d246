"""One table of all that an atlas rests on: a row for each layer pair, a column for each measure."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import Any

import pandas as pd

from thinkalike.atlas.agreement import PLACE
from thinkalike.atlas.parts import BACK, FORWARD, Part
from thinkalike.config import MEASURES
from thinkalike.instruments import instrument
from thinkalike.store import Result


def joined(parts: Sequence[Part], results: Sequence[Result]) -> pd.DataFrame:
    """Return the table `source, target, source_layer, target_layer, cka, ...`, in the order of the parts.

    A measure of predictions has a value for the last layers alone, from which they are made; the other cells are blank.
    """
    long: dict[str, list[pd.DataFrame]] = {}
    for part, result in zip(parts, results, strict=True):
        cells = _stitched(part, result) if part.measure in (FORWARD, BACK) else _across(part, result)
        long.setdefault(part.measure, []).append(cells)
    of_states = {name: tables for name, tables in long.items() if not _of_outputs(tables)}
    wide = reduce(lambda one, other: one.merge(other, how="left", on=PLACE), map(pd.concat, of_states.values()))
    for name in long.keys() - of_states.keys():
        wide = wide.merge(_at_last_layers(pd.concat(long[name]), wide), how="left", on=PLACE)
    order = [column for tables in long.values() for column in tables[0] if column not in PLACE]
    return wide[[*PLACE, *order]]


def measured(parts: Sequence[Part]) -> dict[str, bool]:
    """Return the columns of the table of these parts, and whether each is a distance."""
    kinds = dict.fromkeys(part.measure for part in parts)
    names = [name for kind in kinds for name in ((kind, f"{kind}_back") if kind == "r2" else (kind,))]
    return {name: is_distance(name) for name in names}


def is_distance(name: str) -> bool:
    """Return whether less is closer in a column."""
    if name in (FORWARD, BACK):
        return True
    own: Any = instrument(MEASURES[name.removesuffix("_back")])
    return bool(own.is_distance)


def _across(part: Part, result: Result) -> pd.DataFrame:
    """Return the cells across the two models, which come first in a result of layer pairs."""
    table = result.table
    first = table.iloc[0]
    across = table[(table["source"] == first["source"]) & (table["target"] == first["target"])]
    values = {part.measure: across["value"]}
    if "back" in across:
        values[f"{part.measure}_back"] = across["back"]
    return _placed(part, across["source_layer"], across["target_layer"], values)


def _stitched(part: Part, result: Result) -> pd.DataFrame:
    """Return the penalties, in nats per token, in the place of the pair's own source and target."""
    rows, columns = result.table["source_layer"], result.table["target_layer"]
    if part.measure == BACK:
        rows, columns = columns, rows
    return _placed(part, rows, columns, {part.measure: result.table["penalty"]})


def _placed(part: Part, rows: pd.Series, columns: pd.Series, values: dict[str, pd.Series]) -> pd.DataFrame:
    places = {"source": part.source, "target": part.target, "source_layer": rows, "target_layer": columns}
    return pd.DataFrame({**places, **values}, index=rows.index)


def _of_outputs(tables: Sequence[pd.DataFrame]) -> bool:
    return bool((tables[0]["source_layer"] == "logits").all())


def _at_last_layers(cells: pd.DataFrame, wide: pd.DataFrame) -> pd.DataFrame:
    """Return values of predictions in the places of the last layers of the two models."""
    last = wide.groupby(PLACE[:2], sort=False)[PLACE[2:]].max().reset_index()
    return cells.drop(columns=PLACE[2:]).merge(last, on=PLACE[:2])
