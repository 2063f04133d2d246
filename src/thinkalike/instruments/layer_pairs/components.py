"""The table `components`: a measure at each component of each layer, such as a head or an MLP."""

from __future__ import annotations

from typing import Literal, get_args

import pandas as pd

from thinkalike.advice import named_setting
from thinkalike.config.parts import Site
from thinkalike.instruments.layer_pairs.equal_depth import rows_between_models
from thinkalike.instruments.layer_pairs.screen import (
    row_of_least_similar,
    row_of_most_similar,
    show_what_was_read,
)
from thinkalike.matrices import matrix_of
from thinkalike.ranking import ranked_rows
from thinkalike.screen import show_map, show_note, show_text, span
from thinkalike.store import Result

ACCUMULATES = (
    "Distances accumulate: every component reads states that already differ, so the one of the "
    "greatest distance is rarely the cause. `thinkalike diff` exchanges single outputs and heads "
    "between the two models."
)

ROUNDING = 1e-5
"""States are the same if their value differs by less from that of a layer with itself."""

NEARLY_ALL = 0.8
"""The share of hook points that are most similar to themselves in a copy, though some changed."""

HOOK_POINT = rf"-?\d+\.(?:{'|'.join(get_args(Site))})(?:\.\d+)?$"
"""Matches the names of hook points, LAYER.SITE or LAYER.z.HEAD."""


def components_of(rows_of_both: pd.DataFrame, is_distance: bool) -> dict[str, pd.DataFrame]:
    """Return the table `components` by its name; {} unless layers are named for hook points.

    Models with the same hook points, such as a model and a changed copy, are compared point by
    point. Where they differ, each hook point of the source stands beside the most similar one of
    the same site, in whatever layer and head. There is no table where no site is the same.

    Args:
        rows_of_both: The rows of a table of layer pairs that compare two models.
        is_distance: Whether smaller values mean more similar.
    """
    if not _compare_hook_points(rows_of_both):
        return {}

    sources = rows_of_both["source_layer"]
    targets = rows_of_both["target_layer"]
    # Column 0 is the layer, and column 1 the component: "2.z.0" is head 0 of site z in layer 2.
    source_names = sources.str.split(".", n=1, expand=True)
    target_names = targets.str.split(".", n=1, expand=True)
    rows = rows_of_both[["source", "target"]].assign(
        layer=source_names[0].astype(int),
        component=source_names[1],
        target_layer=target_names[0].astype(int),
        target_component=target_names[1],
        value=rows_of_both["value"],
        low=rows_of_both["low"],
        high=rows_of_both["high"],
    )

    if set(sources) == set(targets):
        rows = rows[sources == targets]
    else:
        source_sites = source_names[1].str.split(".").str[0]
        target_sites = target_names[1].str.split(".").str[0]
        rows = rows[source_sites == target_sites]
        values = rows.groupby(["layer", "component"], sort=False)["value"]
        closest = values.idxmin() if is_distance else values.idxmax()
        rows = rows.loc[closest]
    if rows.empty:
        return {}
    return {"components": rows.reset_index(drop=True)}


def places_correspond(rows_of_both: pd.DataFrame, is_distance: bool) -> bool:
    """Return whether hook points at the same place of both models correspond to each other.

    So they do in a model and a changed copy of it, where the question is what differs: nearly all
    hook points are then most similar to the one in the same place. The heads of models that were
    trained separately are numbered independently; there the question is which are alike.

    Args:
        rows_of_both: The rows of a table of layer pairs that compare two models.
        is_distance: Whether smaller values mean more similar.
    """
    if not _compare_hook_points(rows_of_both):
        return False
    if set(rows_of_both["source_layer"]) != set(rows_of_both["target_layer"]):
        return False
    with_value = rows_of_both.dropna(subset="value")
    values = with_value.groupby("source_layer", sort=False)["value"]
    # For each row, the value of the target's hook point that is most similar to the source's.
    value_of_closest = values.transform("min" if is_distance else "max")
    # Several may be closest: equal heads are as similar to each other as to themselves.
    is_closest = (with_value["value"] - value_of_closest).abs() < ROUNDING
    is_in_place = with_value["source_layer"] == with_value["target_layer"]
    n_closest_in_place = (is_closest & is_in_place).sum()
    return bool(n_closest_in_place >= NEARLY_ALL * values.ngroups)


def _compare_hook_points(rows: pd.DataFrame) -> bool:
    """Return whether rows compare hook points inside layers, such as "2.z.0", not whole layers.

    It is False if there are no rows.
    """
    if rows.empty:
        return False
    layers = pd.concat([rows["source_layer"], rows["target_layer"]])
    return bool(layers.astype(str).str.match(HOOK_POINT).all())


def layer_by_component(components: pd.DataFrame) -> pd.DataFrame:
    """Return the values as a matrix: a row for each layer, a column for each component.

    Components are in the order of their first rows in the table.
    """
    names = components["component"].unique()
    matrix = matrix_of(components, index="layer", columns="component", values="value")
    return matrix[names]  # `pivot` has sorted the columns


def show_components(label: str, result: Result, is_distance: bool) -> None:
    """Print where the models are least and most similar, and a map of layers and components.

    For a model and a changed copy of it, also print where they begin to differ.

    Args:
        label: What sentences call the measure.
        result: A result with the table `components`: a row for each component (such as a head) of
            each layer, with the component of the other model that it is compared with.
        is_distance: Whether smaller values mean more similar.
    """
    table = result.tables["components"]
    source, target = table[["source", "target"]].iloc[0]
    least_similar = row_of_least_similar(table, is_distance)
    most_similar = row_of_most_similar(table, is_distance)
    marked = marked_components(result, is_distance)
    ends = {"least similar": least_similar, "most similar": most_similar}
    first = ends.pop(marked)
    ((other, last),) = ends.items()
    show_text(
        f"{source} and {target} are {marked} at {_place_in_words(first)} "
        f"({label} {_value_of_component(first)}) and {other} at "
        f"{_place_in_words(last)} ({_value_of_component(last)})."
    )

    is_place_by_place = are_same_components(table)
    if not is_place_by_place:
        show_text(
            f"Each hook point of {source} is compared with the most similar one of {target}, in "
            "whatever place."
        )
    title = f"{label} of {source} and {target}, layers (rows) by component (columns)"
    if not is_place_by_place:
        title += "; each hook point with the most similar one of the same kind"
    show_note(title)
    matrix = layer_by_component(table)
    if len(matrix):
        show_map(matrix, is_distance, marked)
    show_what_was_read(result)
    if is_distance and is_place_by_place:
        show_text(ACCUMULATES)
    if is_place_by_place:
        _show_where_copy_differs(label, table, is_distance)
        _show_closest_elsewhere(label, result, is_distance)


def marked_components(
    result: Result, is_distance: bool
) -> Literal["most similar", "least similar"]:
    """Return which components come first and are marked: those that are most or least similar.

    Of a model and a changed copy of it, these are the least similar ones, and of models that were
    trained separately, the most similar ones.

    Args:
        result: A result with the table `components`.
        is_distance: Whether smaller values mean more similar.
    """
    if places_correspond(rows_between_models(result.details), is_distance):
        return "least similar"
    return "most similar"


def components_that_differ_first(table: pd.DataFrame, is_distance: bool) -> pd.DataFrame:
    """Return the rows of a table, first those that compare a hook point with the copy's same one.

    Of these, the hook points that differ most come first. All other rows follow in their order:
    pairs of different hook points, and pairs within one model.

    Args:
        table: The table of layer pairs, whose layers are hook points of a model and its copy.
        is_distance: Whether smaller values mean more similar.
    """
    is_of_both_models = table["source"] != table["target"]
    is_in_place = is_of_both_models & (table["source_layer"] == table["target_layer"])
    in_place = ranked_rows(table[is_in_place], "value", smallest_first=not is_distance)
    return pd.concat([in_place, table[~is_in_place]])


def are_same_components(table: pd.DataFrame) -> bool:
    """Return whether every component is compared with the one in the same place."""
    same_layer = table["layer"] == table["target_layer"]
    same_component = table["component"] == table["target_component"]
    return bool((same_layer & same_component).all())


def _show_closest_elsewhere(label: str, result: Result, is_distance: bool) -> None:
    """Print the most similar components of all if they are at different places of the models.

    Heads of models that were trained separately are numbered independently, so that head 2 of one
    may do what head 0 of the other does. Nothing is printed if the most similar components are in
    the same place.

    Args:
        label: What sentences call the measure.
        result: The result. Its main table has a row for each component of the source with each
            component of the target.
        is_distance: Whether smaller values are more similar.
    """
    closest = row_of_most_similar(rows_between_models(result.details), is_distance)
    # These "layers" are the names of hook points, such as "2.z.0" for head 0 of layer 2.
    if closest["source_layer"] == closest["target_layer"]:
        return
    show_text(
        "The components above are compared with those in the same places. The most similar of "
        f"all are {_hook_point_in_words(closest, 'source')} and "
        f"{_hook_point_in_words(closest, 'target')} ({label} {_value_of_component(closest)})."
    )


def _hook_point_in_words(row: pd.Series, side: str) -> str:
    """Return in words the hook point of one side of a layer pair: "z.0 of layer 2 of gpt2".

    Args:
        row: The row of the layer pair.
        side: "source" or "target".
    """
    layer, _, component = row[f"{side}_layer"].partition(".")  # "2.z.0" is z.0 of layer 2
    return f"{component} of layer {layer} of {row[side]}"


def _place_in_words(row: pd.Series) -> str:
    """Return the components and layers of a row in words, such as "attention of layer 3".

    Both models are named if the compared components or layers differ.
    """
    place = f"{row['component']} of layer {row['layer']}"
    target_place = f"{row['target_component']} of layer {row['target_layer']}"
    if place == target_place:
        return place
    return f"{place} of {row['source']} with {target_place} of {row['target']}"


def _value_of_component(row: pd.Series) -> str:
    """Return the value of a row with its interval."""
    return span(row["value"], row["low"], row["high"], ".3f")


def _show_where_copy_differs(label: str, table: pd.DataFrame, is_distance: bool) -> None:
    """Print where a changed copy begins to differ from its model.

    If the models differ at the first component already, they are not taken for a model and its
    copy, and nothing is printed. For a similarity, a sentence warns that it ignores the scale.

    Args:
        label: What sentences call the measure.
        table: A row for each component, in the order in which a model computes them.
        is_distance: Whether the value is a distance, 0 for equal states, and not a similarity,
            which is 1 for them.
    """
    difference = table["value"] if is_distance else 1 - table["value"]
    is_same = difference < ROUNDING
    if not is_same.iloc[0]:
        return
    if not is_same.all():
        first = table[~is_same].iloc[0]
        show_text(f"They begin to differ at {first['component']} of layer {first['layer']}.")
    if not is_distance:
        show_text(
            f"{label} does not change when a component is scaled; "
            f"{named_setting('measure', 'distance')} does."
        )
