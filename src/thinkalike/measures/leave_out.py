"""The values of a batch without some of its rows."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from thinkalike.measures.contract import AnyMeasure, BatchRows, Blocks, Pair
from thinkalike.measures.folds import JACKKNIFE_PARTS
from thinkalike.measures.row_groups import RowGroups
from thinkalike.measures.seeds import seeded


def given_tokens(measure: AnyMeasure, rows: BatchRows) -> tuple[AnyMeasure, RowGroups | None]:
    """Return the measure that compares rows within groups of one token, if rows have tokens.

    Returns:
        That measure and the groups; without tokens the given measure and None.

    Raises:
        ValueError: No token has as many rows as the measure needs.
    """
    if rows.tokens is None:
        return measure, None
    groups = RowGroups.of(rows.tokens, measure.fewest)
    return measure.within(groups), groups


def sizes_of_parts(part_of_row: Int[Tensor, " n"]) -> list[int]:
    """Return how many rows each of the `JACKKNIFE_PARTS` parts has, 0 for a part without any."""
    parts = torch.arange(JACKKNIFE_PARTS, device=part_of_row.device)
    is_in_part = part_of_row[:, None] == parts  # (n, parts)
    return is_in_part.sum(0).tolist()


def without_each(
    measure: AnyMeasure,
    part_of_row: Int[Tensor, " n"],
    rows: BatchRows,
    blocks: Blocks,
    values_of_all: Mapping[Pair, Tensor],
) -> list[Mapping[Pair, Tensor]]:
    """Return the values without the rows of each part in turn, by comparing the remaining rows.

    A value is NaN where the measure refuses the remaining rows.

    Args:
        measure: The measure.
        part_of_row: The part that each row belongs to, 0 to `JACKKNIFE_PARTS` - 1.
        rows: The rows of the batch.
        blocks: The layers of each model, and which models are compared.
        values_of_all: The values of all rows, which are also those without a part that has no
            rows.
    """
    refused = {pair: torch.full_like(values, torch.nan) for pair, values in values_of_all.items()}
    rows_of_parts = part_of_row.argsort(stable=True).split(sizes_of_parts(part_of_row))
    without: list[Mapping[Pair, Tensor]] = []
    for part_number, rows_of_part in enumerate(rows_of_parts):
        if not len(rows_of_part):
            without.append(values_of_all)
            continue
        values: Mapping[Pair, Tensor] = refused
        with contextlib.suppress(ValueError):
            remaining_parts = [*rows_of_parts[:part_number], *rows_of_parts[part_number + 1 :]]
            remaining = rows.of(torch.cat(remaining_parts).sort().values)
            measure_of_remaining, _ = given_tokens(measure, remaining)
            layers = measure_of_remaining.prepared(
                remaining.layers, remaining.names, remaining.order
            )
            values = measure_of_remaining.compare_all(layers, blocks)
        without.append(values)
    return without


def bias_of_documents(
    measure: AnyMeasure,
    layers: Sequence[Any],
    rows: BatchRows,
    blocks: Blocks,
    values: Mapping[Pair, Float[Tensor, "_ _ _"]],
) -> dict[Pair, Float[Tensor, "_ _"]]:
    """Return how much leaving out documents changes a value beyond leaving out as many rows.

    This is the mean value without each part of the documents, minus that without parts of the same
    sizes of rows drawn at random. It shows how much the rows of a document depend on each other.

    Args:
        measure: The measure.
        layers: What the measure prepared of each layer.
        rows: The rows of the batch.
        blocks: The layers of each model, and which models are compared.
        values: For each pair of models, the value of all rows and without each part of the
            documents, (1 + parts, l, m).

    Returns:
        The bias for each pair of models, (l, m).
    """
    part_of_row = rows.documents % JACKKNIFE_PARTS
    order = torch.randperm(len(part_of_row), generator=seeded(0)).to(part_of_row.device)
    random_part_of_row = part_of_row[order]
    measure_of_rows, _ = given_tokens(measure, rows)
    if measure_of_rows.leaves_out_parts:
        by_part = random_part_of_row.argsort(stable=True)
        moved = [measure_of_rows.moved(layer, by_part) for layer in layers]
        sizes = sizes_of_parts(random_part_of_row)
        compared = measure_of_rows.compare_without_parts(moved, blocks, sizes)
        without_rows = {pair: of_pair[1:] for pair, of_pair in compared.items()}
    else:
        values_of_all = {pair: of_pair[0] for pair, of_pair in values.items()}
        without_parts = without_each(measure, random_part_of_row, rows, blocks, values_of_all)
        without_rows = {
            pair: torch.stack([without_part[pair] for without_part in without_parts])
            for pair in values
        }
    biases = {}
    for pair, of_pair in values.items():
        without_documents = of_pair[1:]
        biases[pair] = (without_documents - without_rows[pair]).mean(0)
    return biases
