"""What a result of layer pairs says on a screen and in a list: the cells of equal relative depth, mean and closest."""

from __future__ import annotations

import pandas as pd

from thinkalike.measures import span
from thinkalike.screen import show_text
from thinkalike.store import Headline, Result


def mean_and_closest(table: pd.DataFrame, kind: str, is_distance: bool = False) -> list[Headline]:
    """Return the mean over layers of equal relative depth and the closest of all pairs of the two models' layers.

    Of a model beside itself these are the mean over different layers, and the closest of those; of one layer beside
    itself there is nothing to say.

    Args:
        is_distance: whether the least value is the closest, and not the greatest.
    """
    across = _across(table)
    pairs = across[(across["source"] != across["target"]) | (across["source_layer"] != across["target_layer"])]
    if pairs.empty:
        return []
    same = len(pairs) < len(across)
    mean = float(pairs["value"].mean() if same else _of_equal_depth(across)["value"].mean())
    values = pairs["value"]
    most, name = (values.argmin(), "least") if is_distance else (values.argmax(), "greatest")
    closest = pairs.iloc[int(most)]
    return [
        Headline(f"mean_{kind}", mean),
        Headline.with_ends(f"{name}_{kind}", closest["value"], closest["low"], closest["high"]),
    ]


def show_cells(result: Result, label: str) -> None:
    """Print the values of layers of equal relative depth; `label` is what the measure is called."""
    across, scalars = _across(result.table), result.scalars
    source, target = across["source"].iloc[0], across["target"].iloc[0]
    count, stimuli = int(scalars["batches"]), result.provenance.get("stimuli")
    rest, parts = (f"{stimuli['count']} stimuli", f"{count} parts") if stimuli else (f"{count} batches", "batches")
    show_text(f"{label} of {source} and {target}, {rest}, 95 % intervals over {parts}")
    for cell in _of_equal_depth(across).itertuples():
        number = span(cell.value, cell.low, cell.high, "+.4f")
        show_text(f"layer {cell.source_layer:>3} with {cell.target_layer:>3}   {number}", indent=2)
    if "rows_used" in scalars:
        show_text(f"{scalars['rows_used']:.0%} of the rows stood in large enough groups of one token", indent=2)


def _across(table: pd.DataFrame) -> pd.DataFrame:
    """Return the rows across the two models, which come first."""
    first = table.iloc[0]
    return table[(table["source"] == first["source"]) & (table["target"] == first["target"])]


def _of_equal_depth(across: pd.DataFrame) -> pd.DataFrame:
    """Return one row for each layer of the source: with the layer of the target at the same relative depth."""
    rows, columns = (across[f"{side}_layer"].unique() for side in ("source", "target"))
    last = len(columns) - 1
    pairs = [(layer, columns[round(n * last / max(len(rows) - 1, 1))]) for n, layer in enumerate(rows)]
    return across.set_index(["source_layer", "target_layer"]).loc[pairs].reset_index()
