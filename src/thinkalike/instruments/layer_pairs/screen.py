"""What a result of layer pairs says on the screen and in lists: a map, where likeness is least, and its components."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any, get_args

import pandas as pd

from thinkalike.config.parts import Site
from thinkalike.screen import number_of_documents, show_map, show_text, span
from thinkalike.store import Headline, Result

ACCUMULATES = (
    "Distances accumulate: each place reads what already differs before it, so the greatest is rarely the cause. "
    "`thinkalike diff` exchanges single outputs and heads between the two models."
)
ROUNDING = 1e-5  # of likeness or distance, up to which states are the same
PLACE = rf"-?\d+\.(?:{'|'.join(get_args(Site))})(?:\.\d+)?$"  # LAYER.SITE or LAYER.z.HEAD


def at_equal_depth(table: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of a table that its sentences are about, see `_compared`; all if there are none."""
    across = _rows_across(table)
    compared = _compared(across)
    return compared if len(compared) else across


def _compared(across: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of layers of equal relative depth, or, of a model beside itself, of every two layers in a row."""
    rows, columns = (across[f"{side}_layer"].unique().tolist() for side in ("source", "target"))
    if across["source"].iloc[0] != across["target"].iloc[0] and _has_gaps(rows, columns):
        pairs = [(layer, _closest_in_depth(layer, rows, columns)) for layer in rows]
    elif across["source"].iloc[0] != across["target"].iloc[0]:
        last = len(columns) - 1
        pairs = [(layer, columns[round(n * last / max(len(rows) - 1, 1))]) for n, layer in enumerate(rows)]
    else:
        pairs = list(itertools.pairwise(rows))
    return across.set_index(["source_layer", "target_layer"]).reindex(pairs).dropna(subset="value").reset_index()


def _has_gaps(rows: Sequence[Any], columns: Sequence[Any]) -> bool:
    """Return whether layers of one side are some of a model's, and not as many as those of the other side."""
    sides = [list(rows), list(columns)]
    are_numbered = all(isinstance(layer, int) for side in sides for layer in side)
    if not are_numbered or len(rows) == len(columns):
        return False
    return any(side != list(range(len(side))) for side in sides if min(side) >= 0)


def _closest_in_depth(layer: int, rows: Sequence[int], columns: Sequence[int]) -> int:
    """Return the layer of the columns whose depth is closest, each relative to the deepest layer of its side."""
    depth = layer / max(*rows, 1)
    return min(columns, key=lambda column: abs(column / max(*columns, 1) - depth))


def _least(rows: pd.DataFrame, is_distance: bool) -> Any:
    place = rows["value"].argmax() if is_distance else rows["value"].argmin()
    return next(rows.iloc[[int(place)]].itertuples())


def _where(row: Any) -> str:
    both = f"layer {row.source_layer} with {row.target_layer}"
    return f"layer {row.source_layer}" if row.source_layer == row.target_layer else both


def _rows_across(table: pd.DataFrame) -> pd.DataFrame:
    """Return the rows across the two models, which come first."""
    first = table.iloc[0]
    return table[(table["source"] == first["source"]) & (table["target"] == first["target"])]


def _in_words(compared: pd.DataFrame, is_distance: bool, itself: bool) -> list[str]:
    """Return where layers of equal depth, or layers in a row of one model, are least alike, and where that begins."""
    row = _least(compared, is_distance)
    number = span(row.value, row.low, row.high, ".3f")
    if len(compared) == 1 and not isinstance(row.source_layer, int):  # such as the logits
        return [f"Between the two models it is {number}."]
    if itself:
        return [f"From one layer to the next, the states change most at {_where(row)}: {number}."]
    lines = [f"At equal depth, the models are least alike at {_where(row)}: {number}."]
    falls = compared["value"].diff().mul(1 if is_distance else -1).to_numpy()
    if len(compared) > 1 and (most := falls[1:].max()) > 0:
        place = int(falls[1:].argmax())
        before, after = compared["source_layer"].iloc[place : place + 2]
        lines.append(f"Likeness falls most from layer {before} to layer {after}, by {most:.3f}.")
    elif len(compared) > 1:
        lines.append("Likeness never falls from one layer to the next.")
    return lines


def headlines_of(kind: str, result: Result, is_distance: bool) -> Sequence[Headline]:
    """Return the least likeness of the layers of equal relative depth, and the mean over them.

    Of a model beside itself these are the least of two layers in a row, and the mean over different layers; of one
    layer beside itself there is nothing to say. The least likeness by a distance is the greatest one.
    """
    across = _rows_across(result.table)
    is_itself = (across["source"] == across["target"]) & (across["source_layer"] == across["target_layer"])
    pairs, compared = across[~is_itself], _compared(across)
    if compared.empty:
        return []
    mean = float((compared if len(pairs) == len(across) else pairs)["value"].mean())
    row, name = _least(compared, is_distance), "greatest" if is_distance else "least"
    most = Headline.with_ends(f"{name}_{kind}", row.value, row.low, row.high, at=_where(row))
    return [most, Headline(f"mean_{kind}", mean)]


def rows_of(result: Result) -> str:
    """Return in words how much was compared: "64 batches of 1,024 rows, 58 documents", or "1,018 stimuli".

    Batches may hold fewer rows than `tokens_per_batch` asks for. Results of earlier versions do not know their rows.
    """
    if stimuli := result.provenance.get("stimuli"):
        return f"{stimuli['count']:,} stimuli"
    if "words" in result.scalars:
        return f"{result.scalars['words']:,.0f} words, {number_of_documents(result.scalars)}"
    batches, documents = result.scalars["batches"], number_of_documents(result.scalars)
    if "rows" not in result.scalars:
        return f"{batches:.0f} batches, {documents}"
    rows = result.scalars["rows"] / batches
    about = "" if rows.is_integer() else "about "
    return f"{batches:.0f} batches of {about}{rows:,.0f} rows, {documents}"


def show_layer_pairs(label: str, result: Result, is_distance: bool) -> None:
    """Print a map of all layer pairs, and where likeness is least and falls most."""
    across, scalars = _rows_across(result.table), result.scalars
    source, target = across["source"].iloc[0], across["target"].iloc[0]
    units = "their groups" if "stimuli" in result.provenance else "documents"
    values = across.pivot(index="source_layer", columns="target_layer", values="value")
    sides = (f"{source} (rows)", f"{target} (columns)") if values.size > 1 else (source, target)
    who = f"the layers of {source}" if source == target else " and ".join(sides)
    show_text(f"{label} of {who}, {rows_of(result)}, 95 % intervals over {units}")
    if values.size > 1:
        show_map(values.loc[across["source_layer"].unique(), across["target_layer"].unique()], is_distance)
    if len(compared := _compared(across)):
        for line in _in_words(compared, is_distance, source == target):
            show_text(line)
    if "rows_used" in scalars:
        show_text(f"{scalars['rows_used']:.0%} of the rows stood in large enough groups of one token.")
    if "largest_p" in scalars:
        chance = f"{scalars['largest_calibrated']:+.4f} above chance (of 1), p = {scalars['largest_p']:.3g}"
        show_text(f"The closest layers are {chance} among all layer pairs.")


def components_of(across: pd.DataFrame, is_distance: bool) -> dict[str, pd.DataFrame]:
    """Return the table `components` of layer pairs of two models whose layers are named LAYER.SITE or LAYER.z.HEAD.

    Models with the same places, as a changed copy has, are compared place by place. Of other models a place stands
    beside the closest one of the same site, in whatever layer and head; there is no table where no site is the same.
    """
    names = [across[f"{side}_layer"] for side in ("source", "target")]
    if across.empty or not all(each.astype(str).str.match(PLACE).all() for each in names):
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
    if is_distance and not closest:
        show_text(ACCUMULATES)
    same = table["value"] < ROUNDING if is_distance else table["value"] > 1 - ROUNDING
    if closest or not same.iloc[0]:
        return  # no changed copy
    if not same.all():
        first = table[~same].iloc[0]
        show_text(f"They begin to differ at {first['component']} of layer {first['layer']}.")
    if not is_distance:
        show_text(f"{label} may not see that a component grew; measure=distance does.")
