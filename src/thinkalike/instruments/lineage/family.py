"""The relations of several models: which share blocks, which share a stream, and their tree."""

from __future__ import annotations

import pandas as pd

from thinkalike.instruments.lineage.comparison import (
    ALPHA,
    Comparison,
    table_of_origins,
)


def table_of_relations(comparisons: list[Comparison]) -> pd.DataFrame:
    """Return a row for each pair of models: the share of blocks and of units that they share.

    The columns are source, target, blocks (of the model with fewer), shared_blocks,
    units_in_place (their mean share over those blocks), lowest_p_corrected (of two blocks),
    same_stream (whether the coordinates of their embeddings are in place) and stream_p.
    """
    rows: list[dict[str, object]] = []
    for comparison in comparisons:
        origins = table_of_origins(comparison)
        with_origin = origins[origins["p_corrected"] < ALPHA]
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


def groups_of(relations: pd.DataFrame, names: list[str], related: str) -> list[list[str]]:
    """Return the models in groups that are connected by related pairs, each of two or more.

    Args:
        relations: A row for each pair of models.
        names: The names of all models, in order.
        related: The column that says whether a pair is related.
    """
    group_of = {name: {name} for name in names}
    for source, target in relations.loc[relations[related] > 0, ["source", "target"]].to_numpy():
        together = group_of[source] | group_of[target]
        for name in together:
            group_of[name] = together
    groups = []
    for name in names:
        group = [member for member in names if member in group_of[name]]
        if len(group) > 1 and group not in groups:
            groups.append(group)
    return groups
