"""The outcome of a job of layer pairs: its table, its headline numbers and its warnings."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping

import pandas as pd
from jaxtyping import Float
from torch import Tensor

from thinkalike.instruments.layer_pairs.comparison import LayerPairComparison
from thinkalike.instruments.layer_pairs.components import components_of
from thinkalike.instruments.layer_pairs.measure import AnyPairMeasure
from thinkalike.job import Outcome
from thinkalike.measures.estimates import Estimate
from thinkalike.measures.layer_pair_estimate import LayerPairEstimate
from thinkalike.measures.row_groups import FEW
from thinkalike.tables import layer_rows, matrix_rows

log = logging.getLogger(__name__)


def outcome_of_comparison(instrument: AnyPairMeasure, comparison: LayerPairComparison) -> Outcome:
    """Return the table and the numbers of all batches.

    Args:
        instrument: The instrument of the job, which adds the columns and numbers of its measure.
        comparison: The comparison, all of whose batches are gathered.

    Raises:
        DataError: There is no batch, or one could not be compared.
    """
    estimate, with_massive = comparison.estimates()
    source = layer_rows(comparison.source.name, comparison.source.layers)
    target = layer_rows(comparison.target.name, comparison.target.layers)
    level = comparison.batches.level
    instrument.warn(estimate, source, target, level)
    if estimate.rows_used is not None:
        _warn_of_few_rows_used(estimate.rows_used, level)

    further_columns = instrument.columns(estimate)
    if with_massive is not None:
        further_columns["including_massive_activations"] = with_massive.value
    table = _table_of_layer_pairs(comparison, estimate, source, target, further_columns)
    if instrument.same_layers:
        is_same = table["source_layer"] == table["target_layer"]
        table = table[is_same].reset_index(drop=True)
    if comparison.measure.conditional_on != "none":
        table["conditional_on"] = comparison.measure.conditional_on.replace("_", " and ")

    across = table[table["source"] != table["target"]]
    arrays = _arrays_of_values(estimate, on_diagonal=instrument.same_layers) | instrument.arrays(
        estimate
    )
    return Outcome(
        table,
        _own_scalars(estimate) | instrument.scalars(estimate),
        {name: values.cpu().numpy() for name, values in arrays.items()},
        tables=components_of(across, instrument.is_distance),
        models=[comparison.source.describe(), comparison.target.describe()],
        facts=comparison.batches.facts,
        # Pairs within a model have no cells in these columns.
        blank=tuple(further_columns),
    )


def _warn_of_few_rows_used(share: float, level: str) -> None:
    """Warn if few rows stand in groups of one token that are large enough.

    Args:
        share: The share of rows that do.
        level: What a row is called.
    """
    if share < FEW:
        log.warning(
            f"warning: only {100 * share:.0f} % of the {level}s occur often enough in a batch to "
            "be compared conditional on the token, and those are frequent ones; raise "
            "measure.tokens_per_batch"
        )


def _own_scalars(estimate: LayerPairEstimate) -> dict[str, float]:
    """Return the headline numbers that no instrument changes."""
    scalars = {"batches": float(estimate.batches)}
    widest_interval = estimate.widest_interval()
    if math.isfinite(widest_interval):
        scalars["widest_interval"] = widest_interval
    if estimate.rows_used is not None:
        scalars["rows_used"] = estimate.rows_used
    return scalars


def _arrays_of_values(estimate: LayerPairEstimate, *, on_diagonal: bool) -> dict[str, Tensor]:
    """Return the arrays of values across the two models, and within each if these are measured."""
    value = estimate.value
    if on_diagonal:
        value = value.diagonal()
    arrays = {"value": value}
    if estimate.within_source is not None:
        arrays["within_source"] = estimate.within_source.value
    if estimate.within_target is not None:
        arrays["within_target"] = estimate.within_target.value
    return arrays


def _table_of_layer_pairs(
    comparison: LayerPairComparison,
    estimate: LayerPairEstimate,
    source: pd.DataFrame,
    target: pd.DataFrame,
    further_columns: Mapping[str, Float[Tensor, "l m"]],
) -> pd.DataFrame:
    """Return one row for each layer pair across the two models, and then of those within each.

    Args:
        comparison: The comparison.
        estimate: The values.
        source, target: The layers of the source and of the target.
        further_columns: Columns of the rows across the two models.
    """
    blocks = [_block(source, target, estimate, further_columns)]
    if comparison.source is not comparison.target:
        if estimate.within_source is not None:
            blocks.append(_block(source, source, estimate.within_source, {}))
        if estimate.within_target is not None:
            blocks.append(_block(target, target, estimate.within_target, {}))
    return pd.concat(blocks, ignore_index=True)


def _block(
    source: pd.DataFrame,
    target: pd.DataFrame,
    estimate: Estimate,
    further_columns: Mapping[str, Float[Tensor, "l m"]],
) -> pd.DataFrame:
    """Return one row for each of the source's layers with each of the target's.

    Args:
        source: The first columns of the rows, for each of l layers of the source.
        target: The same for each of m layers of the target.
        estimate: The values of all l x m pairs.
        further_columns: Further values of all pairs, by the name of the column.
    """
    columns = {"value": estimate.value, "low": estimate.low, "high": estimate.high}
    if estimate.uncorrected is not None:
        columns["uncorrected"] = estimate.uncorrected
    return matrix_rows(source, target, **columns, **further_columns)
