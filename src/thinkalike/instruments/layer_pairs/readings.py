"""Equivalent bit widths of layer pairs, for `ruler=bits`.

An equivalent bit width expresses the similarity of two models in bits. It is the number of bits to
which a model's weights are rounded in a copy that is as similar to it as the other model is, by
the same measure. The models and their rounded copies read the same rows of text and are compared
at five layer pairs at most.
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
from thinkalike.instruments.layer_pairs.settings import LayerPairsConfig, settings_for_bit_widths
from thinkalike.instruments.ruler.calibration_points import (
    MIXING,
    RulerComparison,
    States,
    Values,
    changed_copy,
    greatest_at_each_pair,
    measure_calibration_points,
)
from thinkalike.instruments.ruler.instrument import MOST_LAYER_PAIRS
from thinkalike.instruments.ruler.screen import sentence_of_pairs_above_control, show_bit_widths
from thinkalike.instruments.ruler.table import BLANK, calibration_points_table, ruler_table
from thinkalike.job import Outcome, Work
from thinkalike.measures.estimates import without_parts
from thinkalike.measures.folds import JACKKNIFE_PARTS
from thinkalike.measures.layer_means import LayerMeans
from thinkalike.memory import free_cached_memory
from thinkalike.models.frozen import FrozenModel
from thinkalike.models.layer_choice import LayerChoice, layers_at_depths, pairs_of_layers
from thinkalike.models.rounding import is_rounded_unasked
from thinkalike.processes import counted
from thinkalike.screen import capitalised
from thinkalike.states.batches import ModelRuns, StateBatch, StateBatches, text_batches
from thinkalike.states.mixing import CONTROLS, TokenMixing
from thinkalike.states.source import AnyLayer, StateSource, WordReader
from thinkalike.store import Result

log = logging.getLogger(__name__)

ROW_DIMENSIONS = 2
"""States of rows are (n, d); those of whole sequences have one axis more."""


def layer_pairs_with_bit_widths(
    layers: LayerChoice, source_layers: int, target_layers: int
) -> list[tuple[int, int]]:
    """Return the layer pairs whose equivalent bit width is computed, at most `MOST_LAYER_PAIRS`.

    The equivalent bit width of a pair is the number of bits to which a model's weights are rounded
    in a copy that is as similar to it as the other model. The pairs are spaced evenly among those
    that the setting `layers=` lists. If it is "same" or "all", they have equal relative depth.

    Args:
        layers: The setting `layers=`.
        source_layers, target_layers: How many layers the models have.
    """
    if layers in ("same", "all"):
        return layers_at_depths(MOST_LAYER_PAIRS, source_layers, target_layers)
    pairs = pairs_of_layers(layers, source_layers, target_layers)
    # Here "layers" are indices of the list of pairs, the same for both sides.
    evenly_spaced = layers_at_depths(MOST_LAYER_PAIRS, len(pairs), len(pairs))
    return [pairs[index] for index, _ in evenly_spaced]


def with_bit_widths(
    instrument: AnyPairMeasure,
    outcome: Outcome,
    config: AnalyzeConfig,
    models: Sequence[StateSource],
    level: str,
    work: Work,
) -> Outcome:
    """Return the outcome of a job with the equivalent bit widths of some layer pairs added.

    Args:
        instrument: Computes the measure.
        outcome: The outcome without bit widths.
        config: The job.
        models: The source and the target.
        level: What a row of a batch is, "token" or "word".
        work: The context of the running job.
    """
    tables, scalars = bit_widths_of_layer_pairs(instrument, config, models, level, work)
    return replace(
        outcome,
        tables=outcome.tables | tables,
        scalars=outcome.scalars | scalars,
        blank=(*outcome.blank, *BLANK),  # these columns may have empty cells
    )


def bit_widths_of_layer_pairs(
    instrument: AnyPairMeasure,
    config: AnalyzeConfig,
    models: Sequence[StateSource],
    level: str,
    work: Work,
) -> tuple[dict[str, pd.DataFrame], dict[str, float]]:
    """Return the equivalent bit widths of some layer pairs as tables, and the size of the sample.

    The equivalent bit width is the number of bits to which a model's weights are rounded in a copy
    that is as similar to it as the other model. The table `calibration_points` has the similarity
    of each model to such copies. If a model cannot be rounded, a warning is logged, and both
    dictionaries are empty.

    Args:
        instrument: Makes the metrics.
        config: The job.
        models: The source and the target.
        level: What a row of a batch is, "token" or "word".
        work: The context of the running job.
    """
    not_rounded = []
    for model in models:
        if not (isinstance(model, FrozenModel) and is_rounded_unasked(model)):
            not_rounded.append(model.name)
    if not_rounded:
        log.warning(
            "warning: there are no readings in bits, as %s cannot be rounded",
            listed(not_rounded),
        )
        return {}, {}

    source, target = models
    pairs = layer_pairs_with_bit_widths(config.layers, source.n_layers, target.n_layers)
    measure = settings_for_bit_widths(instrument.measure_settings(config), level)
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
    """What a metric must know of the rows of a batch besides their states."""

    number: int
    """The number of the batch."""

    documents: Int[Tensor, " n"]
    """The number of the document of each row."""

    tokens: Int[Tensor, " n"] | None
    """The token of each row; None unless rows are compared conditional on the token."""

    mask: Bool[Tensor, "b t"] | None
    """The tokens that count, where whole sequences are compared."""


class BatchComparison(RulerComparison):
    """Compares two models, and each with its calibration points, by a measure on batches of text.

    Calibration points are copies of a model with known changes, such as fewer bits. States are
    those of all batches, one after the other, at each layer pair.

    Args:
        instrument: Makes the metrics.
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
        """Read all batches of the text with both models, and keep their states at the pairs."""
        self.models = list(models)
        self.layers = [
            [source_layer for source_layer, _ in pairs],
            [target_layer for _, target_layer in pairs],
        ]
        self.measure = measure
        settings_of_metric = measure
        if measure.conditional_on != "none":
            # The means of positions have been removed from the states of the batches already.
            settings_of_metric = replace(measure, conditional_on="token")
        # A metric of one layer of either side: each layer pair has its own.
        self._new_metric = partial(instrument.metric, settings_of_metric, 1, 1)

        layers_by_side = [self._layers_to_read(side) for side in (0, 1)]
        self._text = text_batches(
            models, layers_by_side, data, measure, ModelRuns(), is_spread=True
        )
        self.batches: list[RowLabels] = []
        batches_by_side: tuple[list[States], list[States]] = ([], [])
        for batch in _batches_of_all_pools(self._text):
            tokens = batch.tokens
            if measure.conditional_on == "none":
                tokens = None
            self.batches.append(RowLabels(batch.number, batch.groups, tokens, batch.mask))
            for side in (0, 1):
                states = self._states_at_pairs(side, batch.states[side], layers_by_side[side])
                batches_by_side[side].append(states)

        self.states = [_joined_batches(batches) for batches in batches_by_side]
        first_layer = self.states[0][0]
        self.is_massive = torch.zeros(len(first_layer), dtype=torch.bool)
        compares_sequences = first_layer.dim() > ROW_DIMENSIONS
        self.keeps_massive = measure.massive == "keep" or compares_sequences

    @property
    def documents(self) -> Int[Tensor, " rows"]:
        """The document of each row of all batches."""
        return torch.cat([batch.documents for batch in self.batches])

    def _layers_to_read(self, side: int) -> list[int]:
        """Return the numbers of the layers at which the model of a side is read, in rising order.

        If a model is compared with itself, these are the layers of both sides, so that one pass
        of the model reads all of them.

        Args:
            side: 0 for the source, 1 for the target.
        """
        layers = set()
        for side_of_pairs in (0, 1):
            if self.models[side_of_pairs] is self.models[side]:
                layers |= set(self.layers[side_of_pairs])
        return sorted(layers)

    def _states_at_pairs(self, side: int, states: States, layers: Sequence[int]) -> States:
        """Return the states of a side at each layer pair, where a layer may occur repeatedly.

        Args:
            side: 0 for the source, 1 for the target.
            states: The states at `layers`.
            layers: The numbers of layers, which include all those of the side's pairs.
        """
        return [states[layers.index(layer)] for layer in self.layers[side]]

    def calibration_states(self, side: int, calibration_point: str) -> States:
        """Return the states of a calibration point at each layer pair.

        A calibration point is a changed copy of the side's model, such as one rounded to 4 bits.
        Local mixing is one, too: networks without training that only mix earlier tokens. They have
        no layers, so that the list has a tensor for each way of mixing instead.

        Args:
            side: 0 for the source of the layer pairs, 1 for the target.
            calibration_point: Its name.
        """
        model = self.models[side]
        if calibration_point == MIXING:
            batches = self._batches_of_same_text(TokenMixing(model), CONTROLS)
            return _joined_batches([batch.states[0] for batch in batches])
        layers = sorted(set(self.layers[side]))
        copy = changed_copy(model, calibration_point)
        states_of_batches = []
        for batch in self._batches_of_same_text(copy, layers):
            states_of_batches.append(self._states_at_pairs(side, batch.states[0], layers))
        return _joined_batches(states_of_batches)

    def _batches_of_same_text(
        self, model: WordReader[AnyLayer], layers: Sequence[AnyLayer]
    ) -> list[StateBatch]:
        """Return the batches of states of a further model, on the text that the two models read.

        Args:
            model: A changed copy of a model, or a network that only mixes tokens.
            layers: What this model calls its layers.
        """
        batches_of_reader = self._text.of  # reads the same rows of text with a different model
        assert batches_of_reader is not None
        return list(_batches_of_all_pools(batches_of_reader(model, layers)))

    def prepare_compared_rows(self) -> None:
        """Do nothing: each value is computed anew from the rows that are compared."""

    def similarity_of_models(self) -> Values:
        """Return the measure of the two models at each layer pair."""
        source_states, target_states = self.states
        return self._similarity_at_pairs(source_states, target_states)

    def similarity_to_point(self, side: int, calibration_point: str, states: States) -> Values:
        """Return the similarity of one side's model to a calibration point, at each layer pair.

        A calibration point is a changed copy of the model. Another one is local mixing (networks
        without training that only mix earlier tokens), whose value is the greatest over the ways
        of mixing.

        Args:
            side: 0 for the source, 1 for the target.
            calibration_point: The name of the change, such as a number of bits.
            states: What `calibration_states` returns.
        """
        states_of_model = self.states[side]
        if calibration_point != MIXING:
            return self._similarity_at_pairs(states_of_model, states)
        values_by_mixing = []
        for states_of_mixing in states:
            # A way of mixing has no layers: it is compared with every layer of the model.
            same_at_each_layer = [states_of_mixing] * len(states_of_model)
            similarity = self._similarity_at_pairs(states_of_model, same_at_each_layer)
            values_by_mixing.append(similarity)
        return greatest_at_each_pair(values_by_mixing)

    def _similarity_at_pairs(self, sources: States, targets: States) -> Values:
        """Return the measure at each layer pair, with axes (pair, direction, replicate).

        Replicate 0 is the value of all documents, and each further one leaves a part of them out.
        Where states cannot be compared, such as constant states of a coarsely rounded copy, the
        value is 0 and the further replicates are NaN.
        """
        values = []
        for source, target in zip(sources, targets, strict=True):
            forward = self._replicates(source, target)
            backward = forward
            if not self._is_symmetric:
                backward = self._replicates(target, source)
            values.append(torch.stack([forward, backward]))
        return torch.stack(values)  # (pair, direction, replicate)

    @cached_property
    def _is_symmetric(self) -> bool:
        """Whether the measure has the same value in both directions; a user's may differ."""
        metric = self._new_metric()
        assert isinstance(metric, LayerMeans)
        return metric.measure.is_symmetric

    def _replicates(
        self, first: Float[Tensor, "rows ..."], second: Float[Tensor, "rows ..."]
    ) -> Float[Tensor, " replicates"]:
        """Return the measure of two layers in this direction: its value and jackknife replicates.

        Replicate 0 is the value over all documents, and each further one leaves out a part of
        them. If the states cannot be compared, replicate 0 is 0 and the others are NaN.

        Args:
            first, second: The states of each layer, of all batches one after the other.
        """
        metric = self._new_metric()
        assert isinstance(metric, LayerMeans)
        try:
            self._update(metric, first, second)
            # The metric has a single layer of either side: (replicate, 1, 1).
            replicates = metric.replicates()[:, 0, 0].cpu()
        except ValueError:  # for instance constant states, which count as wholly unlike
            replicates = torch.zeros(1, dtype=torch.float64)
        n_missing = self._replicate_count - len(replicates)
        return pad(replicates, (0, n_missing), value=math.nan)

    @cached_property
    def _replicate_count(self) -> int:
        """How many values the jackknife over documents computes for each layer pair.

        It divides the documents into `JACKKNIFE_PARTS` parts, and computes one value of all
        documents and one without each part. If there are too few documents for an interval, it
        computes only the first.
        """
        documents = torch.cat([batch.documents.flatten() for batch in self.batches])
        # `without_parts` decides whether the documents are enough: it returns a value without each
        # part, or none. Any sums will do here, since only the number of values is used.
        any_sums = torch.zeros(JACKKNIFE_PARTS, dtype=torch.float64)
        return 1 + len(without_parts(any_sums, documents))

    def _update(
        self,
        metric: LayerMeans,
        source: Float[Tensor, "rows ..."],
        target: Float[Tensor, "rows ..."],
    ) -> None:
        """Add the states of two layers to a metric, batch by batch.

        Rows with massive activations (very long states) are left out, and so are batches that have
        no other rows.

        Args:
            metric: Gathers the batches.
            source, target: The states of all batches, one after the other.
        """
        start = 0
        for batch in self.batches:
            stop = start + len(batch.documents)
            source_states = source[start:stop]
            target_states = target[start:stop].to(source.device)
            is_compared = ~self.is_massive[start:stop]
            start = stop

            compared_rows = is_compared.nonzero()[:, 0]
            if len(compared_rows) == 0:
                continue
            rows_on_device = compared_rows.to(source.device)
            metric.update(
                [source_states[rows_on_device]],
                [target_states[rows_on_device]],
                number=batch.number,
                documents=_labels_of_rows(batch.documents, compared_rows, source.device),
                groups=_labels_of_rows(batch.tokens, compared_rows, source.device),
                mask=_labels_of_rows(batch.mask, compared_rows, source.device),
            )


def _labels_of_rows(labels: Tensor | None, rows: Tensor, device: torch.device) -> Tensor | None:
    """Return the labels of some rows on a device; None if there are no labels."""
    if labels is None:
        return None
    return labels[rows].to(device)


def _joined_batches(batches: Sequence[States]) -> States:
    """Return for each layer the states of all batches, joined along the rows.

    Args:
        batches: The states of each batch, by layer.
    """
    return [torch.cat(layer) for layer in zip(*batches, strict=True)]


def _batches_of_all_pools(batches: StateBatches) -> Iterator[StateBatch]:
    """Yield all batches; a pool is some batches over which the models run at once."""
    for number in counted(range(batches.total), "pool"):
        yield from batches.pool(number)


def answer_of_bit_widths(result: Result, label: str) -> str:
    """Return in words at which layer pairs the models are more similar than a control.

    The control is untrained networks that only mix earlier tokens. The table `equivalent_bits` has
    a row for each layer pair, with the similarity of the models, the similarity to the control,
    and the equivalent bit widths that give the table its name: the number of bits to which a
    model's weights are rounded in a copy that is as similar to it as the other model.

    Args:
        result: A result with this table.
        label: What figures call the measure.
    """
    return sentence_of_pairs_above_control(result.tables["equivalent_bits"], label)


def show_table_of_bit_widths(result: Result, label: str) -> None:
    """Print the measure and the equivalent bit width at some layer pairs in a table.

    The equivalent bit width of a layer pair is the number of bits to which a model's weights are
    rounded in a copy that is as similar to it as the other model.

    Args:
        result: A result with the table `equivalent_bits`.
        label: What figures call the measure.
    """
    rows = result.scalars["rows_read"]
    documents = result.scalars["documents_read"]
    title = (
        f"{capitalised(label)} on {rows:,.0f} {unit_of_rows(result)} of {documents:.0f} "
        f"documents, with the equivalent bit width by {label}"
    )
    show_bit_widths(result.tables["equivalent_bits"], title, label)
