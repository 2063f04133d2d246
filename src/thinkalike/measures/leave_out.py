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
    """Return the measure, within groups of one token if rows have tokens, and these groups."""
    if rows.tokens is None:
        return measure, None
    groups = RowGroups.of(rows.tokens, measure.fewest)
    return measure.within(groups), groups


def sizes_of_parts(parts: Int[Tensor, " n"]) -> list[int]:
    """Return how many rows each of the `JACKKNIFE_PARTS` parts has."""
    is_in_part = parts[:, None] == torch.arange(JACKKNIFE_PARTS, device=parts.device)
    return is_in_part.sum(0).tolist()


def without_each(
    measure: AnyMeasure,
    parts: Int[Tensor, " n"],
    rows: BatchRows,
    blocks: Blocks,
    whole: Mapping[Pair, Tensor],
) -> list[Mapping[Pair, Tensor]]:
    """Return the values without the rows of each part in turn, by comparing the remaining rows.

    A value is NaN where the measure refuses the remaining rows.

    Args:
        measure: The measure.
        parts: The part of each row.
        rows: The rows of the batch.
        blocks: The layers of each model, and which models are compared.
        whole: The values of all rows, which are those without a part that has no rows.
    """
    refused = {pair: torch.full_like(values, torch.nan) for pair, values in whole.items()}
    rows_of_parts = parts.argsort(stable=True).split(sizes_of_parts(parts))
    without: list[Mapping[Pair, Tensor]] = []
    for part, rows_of_part in enumerate(rows_of_parts):
        if not len(rows_of_part):
            without.append(whole)
            continue
        values: Mapping[Pair, Tensor] = refused
        with contextlib.suppress(ValueError):
            remaining_parts = [*rows_of_parts[:part], *rows_of_parts[part + 1 :]]
            remaining = rows.of(torch.cat(remaining_parts).sort().values)
            of_remaining, _ = given_tokens(measure, remaining)
            layers = of_remaining.prepared(remaining.layers, remaining.names, remaining.order)
            values = of_remaining.compare_all(layers, blocks)
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
        layers: What it prepared of the layers.
        rows: The rows of the batch.
        blocks: The layers of each model, and which models are compared.
        values: For each pair of models, the value of all rows and without each part of the
            documents, (1 + parts, l, m).
    """
    parts = rows.documents % JACKKNIFE_PARTS
    order = torch.randperm(len(parts), generator=seeded(0)).to(parts.device)
    random_parts = parts[order]
    measure_of_rows, _ = given_tokens(measure, rows)
    if measure_of_rows.leaves_out_parts:
        by_part = random_parts.argsort(stable=True)
        moved = [measure_of_rows.moved(layer, by_part) for layer in layers]
        sizes = sizes_of_parts(random_parts)
        compared = measure_of_rows.compare_without_parts(moved, blocks, sizes)
        without_rows = {pair: of_pair[1:] for pair, of_pair in compared.items()}
    else:
        whole = {pair: of_pair[0] for pair, of_pair in values.items()}
        of_parts = without_each(measure, random_parts, rows, blocks, whole)
        without_rows = {
            pair: torch.stack([of_part[pair] for of_part in of_parts]) for pair in values
        }
    return {pair: (of_pair[1:] - without_rows[pair]).mean(0) for pair, of_pair in values.items()}
