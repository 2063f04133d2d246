"""The values of a batch without some of its rows."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor

from thinkalike.measures.contract import AnyMeasure, BatchRows, ModelPairs, Pair
from thinkalike.measures.folds import JACKKNIFE_PARTS
from thinkalike.measures.row_groups import RowGroups
from thinkalike.measures.seeds import seeded


def measure_within_tokens(
    measure: AnyMeasure, rows: BatchRows
) -> tuple[AnyMeasure, RowGroups | None]:
    """Return a measure that compares rows only with rows of the same token, and these groups.

    Groups are the rows of one token, for each token that is frequent enough. If the rows have no
    tokens, the measure is returned unchanged, with None in place of groups.

    Args:
        measure: The measure, which compares all rows with each other.
        rows: The rows of a batch, with their tokens if these are known.

    Raises:
        ValueError: No token has as many rows as the measure needs.
    """
    if rows.tokens is None:
        return measure, None
    groups = RowGroups.of(rows.tokens, measure.fewest)
    return measure.within(groups), groups


def sizes_of_parts(part_of_row: Int[Tensor, " n"]) -> list[int]:
    """Return how many rows each of the `JACKKNIFE_PARTS` parts has; a part may have none."""
    parts = torch.arange(JACKKNIFE_PARTS, device=part_of_row.device)
    is_in_part = part_of_row[:, None] == parts  # (n, parts)
    return is_in_part.sum(0).tolist()


def values_without_each_part(
    measure: AnyMeasure,
    part_of_row: Int[Tensor, " n"],
    rows: BatchRows,
    model_pairs: ModelPairs,
    values_of_all: Mapping[Pair, Tensor],
) -> list[Mapping[Pair, Tensor]]:
    """Return the values without the rows of each part in turn, by comparing the remaining rows.

    Values are NaN if the measure raises a ValueError for the remaining rows, for instance because
    they are too few.

    Args:
        measure: The measure, before it is restricted to rows of the same token.
        part_of_row: The part that each row belongs to, 0 to `JACKKNIFE_PARTS` - 1.
        rows: The rows of the batch.
        model_pairs: The layers of each model, and which models are compared.
        values_of_all: The values of all rows. They stand in for a part that has no rows.

    Returns:
        For each part, the values by pair of models.
    """
    nan_values = {
        pair: torch.full_like(values_of_pair, torch.nan)
        for pair, values_of_pair in values_of_all.items()
    }
    rows_of_parts = part_of_row.argsort(stable=True).split(sizes_of_parts(part_of_row))
    values_without: list[Mapping[Pair, Tensor]] = []
    for part_number, rows_of_part in enumerate(rows_of_parts):
        if not len(rows_of_part):
            values_without.append(values_of_all)
            continue
        values: Mapping[Pair, Tensor] = nan_values
        with contextlib.suppress(ValueError):  # the measure refuses the remaining rows
            remaining_parts = [*rows_of_parts[:part_number], *rows_of_parts[part_number + 1 :]]
            remaining = rows.selected(torch.cat(remaining_parts).sort().values)
            measure_of_remaining, _ = measure_within_tokens(measure, remaining)
            layers = measure_of_remaining.prepared(
                remaining.layers, remaining.names, remaining.order
            )
            values = measure_of_remaining.compare_all(layers, model_pairs)
        values_without.append(values)
    return values_without


def bias_of_documents(
    measure: AnyMeasure,
    layers: Sequence[object],
    rows: BatchRows,
    model_pairs: ModelPairs,
    values: Mapping[Pair, Float[Tensor, "_ _ _"]],
) -> dict[Pair, Float[Tensor, "_ _"]]:
    """Return how much leaving out documents changes a value beyond leaving out as many rows.

    This is the mean value without each part of the documents, minus the mean value without parts
    of the same sizes that consist of rows drawn at random. It is about 0 if the rows of a
    document do not depend on each other.

    Args:
        measure: The measure, before it is restricted to rows of the same token.
        layers: The layers of the batch as the measure prepared them, restricted if rows have
            tokens.
        rows: The rows of the batch.
        model_pairs: The layers of each model, and which models are compared.
        values: For each pair of models, the value of all rows and without each part of the
            documents, (1 + parts, l, m).

    Returns:
        The bias for each pair of models, (l, m).
    """
    part_of_row = rows.documents % JACKKNIFE_PARTS
    order = torch.randperm(len(part_of_row), generator=seeded(0)).to(part_of_row.device)
    random_part_of_row = part_of_row[order]
    measure_of_rows, _ = measure_within_tokens(measure, rows)
    if measure_of_rows.leaves_out_parts:
        # The rows of each random part must stand together.
        by_part = random_part_of_row.argsort(stable=True)
        sorted_layers = [
            measure_of_rows.reordered(measure_of_rows.copied(layer), by_part) for layer in layers
        ]
        sizes = sizes_of_parts(random_part_of_row)
        values_by_pair = measure_of_rows.compare_leaving_out_parts(
            sorted_layers, model_pairs, sizes
        )
        # Entry 0 is the value of all rows.
        without_rows = {pair: of_parts[1:] for pair, of_parts in values_by_pair.items()}
    else:
        values_of_all = {pair: values_of_pair[0] for pair, values_of_pair in values.items()}
        without_parts = values_without_each_part(
            measure, random_part_of_row, rows, model_pairs, values_of_all
        )
        without_rows = {
            pair: torch.stack([without_part[pair] for without_part in without_parts])
            for pair in values
        }
    biases = {}
    for pair, values_of_pair in values.items():
        without_documents = values_of_pair[1:]
        biases[pair] = (without_documents - without_rows[pair]).mean(0)
    return biases
