"""The instrument of all measures of layer pairs: the loop from batches of states to a table.

A measure says which metric gathers its batches: an `Accumulator`.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from thinkalike import figures
from thinkalike.config import AnalyzeConfig
from thinkalike.instruments.layer_pairs import forecast
from thinkalike.instruments.layer_pairs.comparison import pools_to_gather
from thinkalike.instruments.layer_pairs.measure import PairMeasure, Settings
from thinkalike.instruments.layer_pairs.one_pass import run_together
from thinkalike.instruments.layer_pairs.table import outcome_of_comparison
from thinkalike.job import Outcome, Work
from thinkalike.job.inputs import Inputs
from thinkalike.job.reductions import REDUCTIONS
from thinkalike.screen import show_text
from thinkalike.states.batches import ModelRuns
from thinkalike.states.folder import load_sources
from thinkalike.states.source import StateSource
from thinkalike.store import Result

if TYPE_CHECKING:
    from thinkalike.models.shapes import Passes, Shape, Shapes

log = logging.getLogger(__name__)


class LayerPairs(PairMeasure[Settings]):
    """A measure of every layer of `model` with every layer of `model@target`, and within each.

    `activations` takes the place of `model`. Then stimuli are compared instead of tokens of text.
    """

    run_all = staticmethod(run_together)  # type: ignore[assignment]  # for measures of pairs

    def inputs(self, config: AnalyzeConfig) -> Inputs:
        """Return what decides the numbers besides settings, by name, for the hash of the job.

        These are the models and the text; with a recording they are the stimuli and recordings.
        """
        if not config.activations:
            return super().inputs(config)
        from thinkalike.instruments.of_stimuli import inputs_of_stimuli

        return inputs_of_stimuli(config)

    # ---- what a job will take

    def model_passes(self, config: AnalyzeConfig, shapes: Shapes) -> list[Passes]:
        """Return the passes of both models over all batches, to estimate the job's time."""
        measure = self.measure_settings(config)
        has_bit_widths = self.has_bit_widths(config)
        return forecast.passes_over_batches(config, measure, shapes, has_bit_widths=has_bit_widths)

    def seconds_beside_passes(self, config: AnalyzeConfig, shapes: Shapes) -> float:
        """Return the seconds that comparing takes, to estimate the job's time.

        They are extrapolated from the time for a batch of random states of one layer and that for
        two layers.
        """
        measure = self.measure_settings(config)
        layer_counts = self._layer_counts(config, shapes)
        width = max(shape.width for shape in layer_counts)

        def seconds_of_batch(layers: int) -> float:
            """Time the comparison of a batch of random states of this many layers per model."""
            return forecast.seconds_of_random_batch(measure, self.metric, layers, width)

        return forecast.seconds_of_comparing(
            measure,
            layer_counts,
            seconds_of_batch,
            same_layers=self.same_layers,
            has_bit_widths=self.has_bit_widths(config),
        )

    def reductions(
        self, config: AnalyzeConfig, shapes: Shapes, chosen: Collection[str]
    ) -> Iterator[dict[str, object]]:
        """Yield settings that take ever less time, of which `budget=` takes the first that fits.

        They have fewer layer pairs, of equal relative depth, and then also fewer batches. If the
        job has the setting `ruler`, all of them also compute equivalent bit widths, which compare
        the models with a model whose weights are rounded.

        Args:
            config: The job.
            shapes: The sizes of the models.
            chosen: The settings that the user has chosen; not read here.
        """
        batches = self.measure_settings(config).batches
        # Each reduction has a number of layer pairs, and a number that divides the amount of text.
        for n_layer_pairs, divisor in REDUCTIONS:
            settings = forecast.setting_of_fewer_layers(n_layer_pairs, shapes)
            if divisor > 1:
                settings["measure.batches"] = max(batches // divisor, 1)
            if "ruler" in self.reads:
                settings["ruler"] = "bits"
            yield settings

    def bytes_beside_models(self, config: AnalyzeConfig, shapes: Shapes) -> float:
        """Return the bytes of all states that are in memory at once."""
        return forecast.bytes_of_states(
            config,
            self.measure_settings(config),
            self._layer_counts(config, shapes),
            has_bit_widths=self.has_bit_widths(config),
        )

    def _layer_counts(self, config: AnalyzeConfig, shapes: Shapes) -> dict[Shape, int]:
        """Return how many layers of each model are compared, by the shape of the model."""
        return forecast.compared_layers_by_shape(
            config, shapes, has_embedding=self.has_embedding(config)
        )

    # ---- the run

    def run(self, config: AnalyzeConfig, work: Work) -> Outcome:
        """Compare all pairs of layers on text, or on stimuli where a recording takes part.

        Equivalent bit widths are added where the job asks for them.
        """
        runs = ModelRuns()  # caches the states of a batch, which several metrics read
        models: Sequence[StateSource] = ()  # none if a recording takes part
        with work.phase("loading"):
            if config.activations:
                from thinkalike.instruments.of_stimuli import comparison_of_stimuli

                comparison = comparison_of_stimuli(self, config, work)
            else:
                models = load_sources(config.model, config.target)
                comparison = self.comparison_on_text(config, work, models, runs)

        # A pool is some batches over which the models run at once.
        for number in pools_to_gather([comparison], runs):
            for batch in comparison.pool(number):
                # One metric without massive tokens (very long states), and one with them.
                for metric, batch_of_metric in comparison.metrics_of(batch):
                    comparison.update(metric, batch_of_metric)
                runs.forget(of_batch=True)  # frees the states of this batch
        outcome = outcome_of_comparison(self, comparison)
        level = comparison.batches.level  # what is compared: tokens, words or stimuli
        work.processes.end_of_share()  # all processes but the first end here
        if not self.has_bit_widths(config):
            return outcome

        # Free the states and metrics: changed copies of the models will need the memory.
        runs.forget()
        del comparison
        from thinkalike.instruments.layer_pairs.readings import with_bit_widths

        return with_bit_widths(self, outcome, config, models, level, work)

    # ---- figures and screen

    def draw(self, result: Result, folder: Path) -> None:
        """Draw a map of the layer pairs, and the equivalent bit widths if the result has them."""
        super().draw(result, folder)
        if "equivalent_bits" in result.tables:
            figures.calibrated_layer_pairs(
                result.tables["equivalent_bits"],
                result.tables["calibration_points"],
                result.scalars["documents_read"],
                folder,
                self.label(result),
            )

    def show(self, result: Result) -> None:
        """Print the answer, a map of the layer pairs, and their equivalent bit widths if any."""
        if "equivalent_bits" not in result.tables:
            super().show(result)
            return

        from thinkalike.instruments.layer_pairs.readings import (
            answer_of_bit_widths,
            show_table_of_bit_widths,
        )

        # This sentence names only layers above the local-mixing control (networks without training
        # that only mix earlier tokens). It comes first, as values alone may suggest more.
        label = self.label(result)
        show_text(answer_of_bit_widths(result, label))
        super().show(result)
        show_table_of_bit_widths(result, label)
