"""Readings of layer pairs in bits of both models, for `ruler=bits`.

The ruler of `thinkalike.instruments.ruler` says what the values of any measure are in bits: the
models and their rounded copies read the same rows of text, of `READING_BATCHES` batches at most,
and are compared at five layer pairs at most.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cached_property, partial
from typing import NamedTuple

import pandas as pd
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.functional import pad

from thinkalike.config import AnalyzeConfig, DataConfig
from thinkalike.errors import listed
from thinkalike.instruments.layer_pairs.measure import AnyPairMeasure
from thinkalike.instruments.layer_pairs.screen import unit_of_rows
from thinkalike.instruments.layer_pairs.settings import LayerPairsConfig, sampled
from thinkalike.instruments.ruler.calibration_points import (
    MIXING,
    RulerComparison,
    States,
    Values,
    changed_copy,
    greatest_by_layer,
    measure_calibration_points,
)
from thinkalike.instruments.ruler.instrument import DEPTHS
from thinkalike.instruments.ruler.screen import sentence_of_readings, show_readings
from thinkalike.instruments.ruler.table import BLANK, calibration_points_table, ruler_table
from thinkalike.job import Outcome, Work
from thinkalike.measures.estimates import without_parts
from thinkalike.measures.folds import JACKKNIFE_PARTS
from thinkalike.measures.layer_means import LayerMeans
from thinkalike.memory import free_cached_memory
from thinkalike.models.frozen import FrozenModel
from thinkalike.models.layer_choice import LayerChoice, layers_at_depths, pairs_of_layers
from thinkalike.models.rounding import can_be_rounded
from thinkalike.processes import counted
from thinkalike.screen import capitalised
from thinkalike.states.batches import (
    ModelRuns,
    StateBatch,
    StateBatches,
    StateReader,
    text_batches,
)
from thinkalike.states.mixing import CONTROLS, TokenMixing
from thinkalike.states.source import StateSource
from thinkalike.store import Result

log = logging.getLogger(__name__)

ROW_DIMENSIONS = 2
"""States of rows are (n, d); those of whole sequences have one axis more."""


def pairs_read(
    layers: LayerChoice, source_layers: int, target_layers: int
) -> list[tuple[int, int]]:
    """Return the layer pairs that have a reading: at most `DEPTHS` of them.

    They are spaced evenly among the pairs of `layers=`; for "same" and "all" they are pairs of
    equal relative depth.

    Args:
        layers: The setting `layers=`.
        source_layers, target_layers: How many layers the models have.
    """
    if layers in ("same", "all"):
        return layers_at_depths(DEPTHS, source_layers, target_layers)
    pairs = pairs_of_layers(layers, source_layers, target_layers)
    evenly_spaced = layers_at_depths(DEPTHS, len(pairs), len(pairs))
    return [pairs[index] for index, _ in evenly_spaced]


def with_readings(
    instrument: AnyPairMeasure,
    outcome: Outcome,
    config: AnalyzeConfig,
    models: Sequence[StateSource],
    level: str,
    work: Work,
) -> Outcome:
    """Return an outcome with readings of its values in bits of both models.

    Args:
        instrument: The instrument.
        outcome: The outcome without readings.
        config: The job.
        models: The source and the target.
        level: What a row of a batch is: a token or a word.
        work: The context of the running job.
    """
    tables, scalars = readings_of_layer_pairs(instrument, config, models, level, work)
    return replace(
        outcome,
        tables=outcome.tables | tables,
        scalars=outcome.scalars | scalars,
        blank=(*outcome.blank, *BLANK),
    )


def readings_of_layer_pairs(
    instrument: AnyPairMeasure,
    config: AnalyzeConfig,
    models: Sequence[StateSource],
    level: str,
    work: Work,
) -> tuple[dict[str, pd.DataFrame], dict[str, float]]:
    """Return the tables `equivalent_bits` and `calibration_points`, and how much text they are of.

    Both are empty where a model cannot be rounded.

    Args:
        instrument: The instrument, which makes the metrics.
        config: The job.
        models: The source and the target.
        level: What a row of a batch is: a token or a word.
        work: The context of the running job.
    """
    not_rounded = []
    for model in models:
        if not (isinstance(model, FrozenModel) and can_be_rounded(model)):
            not_rounded.append(model.name)
    if not_rounded:
        log.warning(
            "warning: there are no readings in bits, as %s cannot be rounded",
            listed(not_rounded),
        )
        return {}, {}

    source, target = models
    pairs = pairs_read(config.layers, source.n_layers, target.n_layers)
    measure = sampled(instrument.measure_settings(config), level)
    free_cached_memory(source.device)
    with work.phase("readings"):
        comparison = BatchComparison(instrument, config.data, measure, models, pairs)
    values = measure_calibration_points(comparison, models, work)

    names = [source.name, target.name]
    tables = {
        "equivalent_bits": ruler_table(names, pairs, values),
        "calibration_points": calibration_points_table(names, comparison.layers, values.points),
    }
    documents = comparison.documents
    scalars = {
        "rows_read": float(len(documents)),
        "documents_read": float(len(documents.unique())),
    }
    return tables, scalars


class RowLabels(NamedTuple):
    """What is known of the rows of a batch, or of its sequences."""

    number: int
    """The number of the batch."""

    documents: Int[Tensor, " n"]

    tokens: Int[Tensor, " n"] | None
    """The token of each row, where rows are compared given the token."""

    mask: Bool[Tensor, "b t"] | None
    """The tokens that count, where whole sequences are compared."""


class BatchComparison(RulerComparison):
    """Compares two models, and the points of their rulers, by a measure on batches of text.

    States are those of all batches, one after the other, at each layer pair.

    Args:
        instrument: The instrument, which makes the metrics.
        data: The text.
        measure: The settings of the measure.
        models: The source and the target.
        pairs: The layer pairs.
    """

    def __init__(
        self,
        instrument: AnyPairMeasure,
        data: DataConfig,
        measure: LayerPairsConfig,
        models: Sequence[StateSource],
        pairs: Sequence[tuple[int, int]],
    ):
        self.models = list(models)
        self.layers = [
            [source_layer for source_layer, _ in pairs],
            [target_layer for _, target_layer in pairs],
        ]
        self.measure = measure
        of_metric = measure
        if measure.conditional_on != "none":
            # The means of positions have been removed from the states of the batches already.
            of_metric = replace(measure, conditional_on="token")
        self._new_metric = partial(instrument.metric, of_metric, 1, 1)

        layers_of_models = [self._layers_of_model(side) for side in (0, 1)]
        self._text = text_batches(
            models, layers_of_models, data, measure, ModelRuns(), is_spread=True
        )
        self.batches: list[RowLabels] = []
        batches_by_side: tuple[list[States], list[States]] = ([], [])
        for batch in _all_batches(self._text):
            tokens = batch.tokens
            if measure.conditional_on == "none":
                tokens = None
            self.batches.append(RowLabels(batch.number, batch.groups, tokens, batch.mask))
            for side in (0, 1):
                states = self._by_pair(side, batch.states[side], layers_of_models[side])
                batches_by_side[side].append(states)

        self.states = [_joined(batches) for batches in batches_by_side]
        first_layer = self.states[0][0]
        self.is_massive = torch.zeros(len(first_layer), dtype=torch.bool)
        compares_sequences = first_layer.dim() > ROW_DIMENSIONS
        self.keeps_massive = measure.massive == "keep" or compares_sequences

    @property
    def documents(self) -> Int[Tensor, " rows"]:
        """The document of each row of all batches."""
        return torch.cat([batch.documents for batch in self.batches])

    def _layers_of_model(self, side: int) -> list[int]:
        """Return the layers at which the model of a side is read.

        Where a model is compared with itself, these are the layers of both sides.
        """
        layers = set()
        for other_side in (0, 1):
            if self.models[other_side] is self.models[side]:
                layers |= set(self.layers[other_side])
        return sorted(layers)

    def _by_pair(self, side: int, states: States, layers: Sequence[int]) -> States:
        """Return the states of a side at each layer pair.

        Args:
            side: 0 for the source, 1 for the target.
            states: The states of some layers, which include those of the pairs.
            layers: The numbers of these layers.
        """
        return [states[layers.index(layer)] for layer in self.layers[side]]

    def read(self, side: int, point: str) -> States:
        model = self.models[side]
        if point == MIXING:
            batches = self._batches_of(TokenMixing(model), CONTROLS)
            return _joined([batch.states[0] for batch in batches])
        layers = sorted(set(self.layers[side]))
        states_of_batches = []
        for batch in self._batches_of(changed_copy(model, point), layers):
            states_of_batches.append(self._by_pair(side, batch.states[0], layers))
        return _joined(states_of_batches)

    def _batches_of(self, model: StateReader, layers: Sequence[int | str]) -> list[StateBatch]:
        """Return the batches of the same rows of text as another reader has them.

        Args:
            model: The reader.
            layers: Its layers.
        """
        assert self._text.of is not None
        return list(_all_batches(self._text.of(model, layers)))

    def prepare(self) -> None:
        """Do nothing: a metric gets the rows that are compared each time a value is computed."""

    def value(self) -> Values:
        source_states, target_states = self.states
        return self._likeness(source_states, target_states)

    def shared(self, side: int, point: str, states: States) -> Values:
        states_of_model = self.states[side]
        if point != MIXING:
            return self._likeness(states_of_model, states)
        values = []
        for control in states:
            same_at_each_layer = [control] * len(states_of_model)
            values.append(self._likeness(states_of_model, same_at_each_layer))
        return greatest_by_layer(values)

    def _likeness(self, sources: States, targets: States) -> Values:
        """Return the measure at each layer pair, of all documents and without each part of them.

        A measure is the same there and back. States of a copy that cannot be compared, because
        they are all alike, share nothing.
        """
        by_layer = []
        for source, target in zip(sources, targets, strict=True):
            metric = self._new_metric()
            assert isinstance(metric, LayerMeans)
            try:
                self._update(metric, source, target)
                values = metric.replicates()[:, 0, 0].cpu()
            except ValueError:
                values = torch.zeros(1, dtype=torch.float64)
            missing = self._replicates - len(values)
            by_layer.append(pad(values, (0, missing), value=math.nan))
        one_way = torch.stack(by_layer)  # (l, replicates)
        return one_way[:, None].expand(-1, 2, -1)

    @cached_property
    def _replicates(self) -> int:
        """How many values a layer pair has.

        These are the value of all documents and those without each part, if these are enough.
        States of a copy that cannot be compared have one value, and NaN in place of the others.
        """
        documents = torch.cat([batch.documents.flatten() for batch in self.batches])
        sums_of_parts = torch.zeros(JACKKNIFE_PARTS, dtype=torch.float64)
        return 1 + len(without_parts(sums_of_parts, documents))

    def _update(
        self,
        metric: LayerMeans,
        source: Float[Tensor, "rows ..."],
        target: Float[Tensor, "rows ..."],
    ) -> None:
        """Add the batches of two layers to a metric, without the rows that are left out."""
        start = 0
        for batch in self.batches:
            stop = start + len(batch.documents)
            is_compared = ~self.is_massive[start:stop]
            rows = is_compared.nonzero()[:, 0]
            if len(rows):
                rows_on_device = rows.to(source.device)
                metric.update(
                    [source[start:stop][rows_on_device]],
                    [target[start:stop].to(source.device)[rows_on_device]],
                    number=batch.number,
                    documents=_labels_of(batch.documents, rows, source.device),
                    groups=_labels_of(batch.tokens, rows, source.device),
                    mask=_labels_of(batch.mask, rows, source.device),
                )
            start = stop


def _labels_of(labels: Tensor | None, rows: Tensor, device: torch.device) -> Tensor | None:
    """Return the labels of some rows on a device; None if there are no labels."""
    if labels is None:
        return None
    return labels[rows].to(device)


def _joined(batches: Sequence[States]) -> States:
    """Return for each layer the states of all batches, one after the other."""
    return [torch.cat(layer) for layer in zip(*batches, strict=True)]


def _all_batches(batches: StateBatches) -> Iterator[StateBatch]:
    """Yield the batches of all pools."""
    for number in counted(range(batches.total), "pool"):
        yield from batches.pool(number)


def answer_of_readings(result: Result, label: str) -> str:
    """Return at which layer pairs models are similar beyond the control, in words.

    Args:
        result: The result.
        label: What figures call the measure.
    """
    return sentence_of_readings(result.tables["equivalent_bits"], label)


def show_read(result: Result, label: str) -> None:
    """Print the readings of a measure in a table.

    Args:
        result: The result.
        label: What figures call the measure.
    """
    rows = result.scalars["rows_read"]
    documents = result.scalars["documents_read"]
    title = (
        f"{capitalised(label)} on {rows:,.0f} {unit_of_rows(result)} of {documents:.0f} "
        f"documents, with the equivalent bit width by {label}"
    )
    show_readings(result.tables["equivalent_bits"], title, label)
