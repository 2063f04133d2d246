"""The outcome of a job of layer pairs: its table, its headline numbers and its warnings."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping

import pandas as pd
from jaxtyping import Float
from torch import Tensor

from thinkalike.advice import named_setting
from thinkalike.instruments.layer_pairs.comparison import LayerPairComparison
from thinkalike.instruments.layer_pairs.components import components_of
from thinkalike.instruments.layer_pairs.measure import AnyPairMeasure
from thinkalike.job import Outcome
from thinkalike.measures.estimates import Estimate
from thinkalike.measures.layer_pair_estimate import LayerPairEstimate
from thinkalike.measures.row_groups import FEW as FEW_ROWS_USED
from thinkalike.tables import layer_rows, matrix_rows

log = logging.getLogger(__name__)


def outcome_of_comparison(instrument: AnyPairMeasure, comparison: LayerPairComparison) -> Outcome:
    """Return the outcome of a job: its table, headline numbers and arrays.

    Args:
        instrument: Adds the columns, numbers, arrays and warnings of its measure.
        comparison: The comparison, which has gathered all batches.

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

    rows_of_both_models = table[table["source"] != table["target"]]
    arrays = _arrays_of_values(estimate, on_diagonal=instrument.same_layers)
    arrays |= instrument.arrays(estimate)
    return Outcome(
        table,
        _scalars_of_every_measure(estimate) | instrument.scalars(estimate),
        {name: values.cpu().numpy() for name, values in arrays.items()},
        tables=components_of(rows_of_both_models, instrument.is_distance),
        models=[comparison.source.describe(), comparison.target.describe()],
        facts=comparison.batches.facts,
        # Pairs within a model have no cells in these columns.
        blank=tuple(further_columns),
    )


def _warn_of_few_rows_used(share: float, level: str) -> None:
    """Warn if few rows could be compared conditional on the token.

    Such a comparison is among rows of the same token, and needs several of them in a batch.

    Args:
        share: The share of rows whose token occurs often enough.
        level: What a row is called, such as "token".
    """
    if share < FEW_ROWS_USED:
        log.warning(
            f"warning: only {100 * share:.0f} % of the {level}s occur often enough in a batch to "
            "be compared conditional on the token, and those are frequent ones; raise "
            f"{named_setting('measure.tokens_per_batch')}"
        )


def _scalars_of_every_measure(estimate: LayerPairEstimate) -> dict[str, float]:
    """Return the headline numbers that jobs of every measure have.

    `widest_interval` is left out if there are no intervals. `rows_used` is the share of rows that
    are compared, and is left out if all rows are.
    """
    scalars = {"batches": float(estimate.batches)}
    widest_interval = estimate.widest_interval()
    if math.isfinite(widest_interval):
        scalars["widest_interval"] = widest_interval
    if estimate.rows_used is not None:
        scalars["rows_used"] = estimate.rows_used
    return scalars


def _arrays_of_values(estimate: LayerPairEstimate, *, on_diagonal: bool) -> dict[str, Tensor]:
    """Return the values of layer pairs as arrays, by the names under which a result stores them.

    `value` compares layers of the source with layers of the target. `within_source` and
    `within_target` compare the layers of one model; they are left out if they were not computed.

    Args:
        estimate: The values of all layer pairs.
        on_diagonal: Whether layer n is compared with layer n alone; `value` is then the diagonal
            of the matrix.
    """
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
    """Return a row for each layer of the source with each layer of the target.

    Rows for the pairs of layers within the source, and then within the target, follow. They are
    left out if the estimate does not have them, and if a model is compared with itself, as they
    would be the same rows again.

    Args:
        comparison: Says whether there are two models.
        estimate: The values of all layer pairs.
        source, target: The first columns of the rows (model and layer), for each layer of either.
        further_columns: Values for further columns; they are empty in the rows within a model.
    """
    tables = [_table_of_two_sides(source, target, estimate, further_columns)]
    if comparison.source is not comparison.target:
        if estimate.within_source is not None:
            tables.append(_table_of_two_sides(source, source, estimate.within_source, {}))
        if estimate.within_target is not None:
            tables.append(_table_of_two_sides(target, target, estimate.within_target, {}))
    return pd.concat(tables, ignore_index=True)


def _table_of_two_sides(
    source: pd.DataFrame,
    target: pd.DataFrame,
    estimate: Estimate,
    further_columns: Mapping[str, Float[Tensor, "l m"]],
) -> pd.DataFrame:
    """Return a table with one row for each layer of one side with each layer of the other.

    The columns are the value and its interval, and `uncorrected`, the value with its bias, if a
    known bias was subtracted from the value.

    Args:
        source: The first columns of the rows (model and layer), for each of l layers.
        target: The same for each of m layers of the other side.
        estimate: The values of all l x m pairs.
        further_columns: Further values of all pairs, by the name of the column.
    """
    columns = {"value": estimate.value, "low": estimate.low, "high": estimate.high}
    if estimate.uncorrected is not None:
        columns["uncorrected"] = estimate.uncorrected
    return matrix_rows(source, target, **columns, **further_columns)
