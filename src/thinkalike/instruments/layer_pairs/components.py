"""The table of components of a result at several sites or heads: how alike two models are at each of every layer."""

from __future__ import annotations

from typing import Any

import pandas as pd

from thinkalike.screen import show_map, show_text, span
from thinkalike.store import Result


def components_of(across: pd.DataFrame, is_distance: bool) -> dict[str, pd.DataFrame]:
    """Return the table `components` of layer pairs of two models whose layers are named LAYER.SITE or LAYER.z.HEAD.

    Models with the same places, as a changed copy has, are compared place by place. Of other models a place stands
    beside the closest one of the same site, in whatever layer and head; there is no table where no site is the same.
    """
    names = [across[f"{side}_layer"] for side in ("source", "target")]
    if across.empty or not all(str(each.iloc[0]).count(".") for each in names):
        return {}
    parts = [each.str.split(".", n=1, expand=True) for each in names]
    rows = across[["source", "target"]].assign(layer=parts[0][0].astype(int), component=parts[0][1])
    rows = rows.assign(target_layer=parts[1][0].astype(int), target_component=parts[1][1])
    rows[["value", "low", "high"]] = across[["value", "low", "high"]]
    if set(names[0]) == set(names[1]):
        rows = rows[names[0] == names[1]]
    else:
        rows = rows[parts[0][1].str.split(".").str[0] == parts[1][1].str.split(".").str[0]]
        by_place = rows.groupby(["layer", "component"], sort=False)["value"]
        rows = rows.loc[by_place.idxmin() if is_distance else by_place.idxmax()]
    return {"components": rows.reset_index(drop=True)} if len(rows) else {}


def as_matrix(components: pd.DataFrame) -> pd.DataFrame:
    """Return the values by layer and component."""
    names = components["component"].unique()
    return components.pivot(index="layer", columns="component", values="value")[names]


def show_components(label: str, result: Result, is_distance: bool) -> None:
    """Print a map of layers and components, and the place where the models are least alike."""
    table = result.tables["components"]
    source, target = table[["source", "target"]].iloc[0]
    closest = "" if (table["layer"] == table["target_layer"]).all() else "; of each place with the closest of its site"
    show_text(f"{label} of {source} and {target}, layers (rows) by component (columns){closest}")
    if len(matrix := as_matrix(table)):
        show_map(matrix, is_distance)
    row: Any = table.iloc[int(table["value"].argmax() if is_distance else table["value"].argmin())]
    number = span(row["value"], row["low"], row["high"], ".3f")
    show_text(f"The models are least alike at {row['component']} of layer {row['layer']}: {number}.")
