"""The relations of several models: which share blocks, which share a stream, and their tree."""

from __future__ import annotations

import pandas as pd

from thinkalike.instruments.lineage.comparison import (
    ALPHA,
    Comparison,
    table_of_origins,
)


def table_of_relations(comparisons: list[Comparison]) -> pd.DataFrame:
    """Return a row for each pair of models: how many blocks and units they have in common.

    The columns are:

    - source, target: the names of the models;
    - blocks: the number of blocks of the model with fewer;
    - shared_blocks: how many target blocks come from a source block: units of both blocks that
      match by their weights are at the same position in both, with a corrected p-value below
      `ALPHA`;
    - units_in_place: the share of units at the same position, as a mean over blocks, with 0 for
      blocks without an origin;
    - lowest_p_corrected: the lowest corrected p-value of this test, over all target blocks and
      the source blocks that they are compared with;
    - same_stream: whether the coordinates of the embeddings agree in position, so that the models
      have the same residual stream;
    - stream_p: the p-value of that, which is 1 if it was not tested.
    """
    rows: list[dict[str, object]] = []
    for comparison in comparisons:
        origins = table_of_origins(comparison)
        with_origin = origins[origins["p_corrected"] < ALPHA]
        # Several target blocks may come from one source block, so there may be more of them than
        # `blocks`; counts and shares are then capped.
        blocks = min(len(comparison.source.units), len(comparison.target.units))
        shares = with_origin["in_place"] / with_origin["units"]
        coordinates = comparison.streams.coordinates
        rows.append({
            "source": comparison.source.name,
            "target": comparison.target.name,
            "blocks": blocks,
            "shared_blocks": min(len(with_origin), blocks),
            "units_in_place": min(float(shares.sum()) / blocks, 1.0),
            "lowest_p_corrected": float(origins["p_corrected"].min()),
            "same_stream": comparison.streams.basis == "shared",
            "stream_p": 1.0 if coordinates is None else coordinates.p,
        })  # fmt: skip
    return pd.DataFrame(rows)


def groups_of_related_models(
    relations: pd.DataFrame, names: list[str], related: str
) -> list[list[str]]:
    """Return the connected components of the graph of related models, without single models.

    Args:
        relations: A row for each pair of models.
        names: The names of all models, in the order that groups keep.
        related: The name of the column that is above 0 if a pair is related.
    """
    group_of = {name: {name} for name in names}
    is_related = relations[related] > 0
    for source, target in relations.loc[is_related, ["source", "target"]].to_numpy():
        merged_group = group_of[source] | group_of[target]
        for name in merged_group:
            group_of[name] = merged_group
    groups = []
    for name in names:
        group = [member for member in names if member in group_of[name]]
        if len(group) > 1 and group not in groups:
            groups.append(group)
    return groups
