"""What measures of all layer pairs of two models have in common: batches of text in, a matrix with intervals out.

With recordings in the place of a model, or of both, they are batches of stimuli.

A measure of this sort gives a metric: an object with `update(source_states, target_states, mask, number)`, `compute()`,
`state_dict()` and `load_state_dict()`, and `update_pairs(metrics, sides, states, mask, number)`, which adds a batch of
several models to a metric for each pair, such as `CKA` or `BatchMeans`; where processes may share the job
(`is_shared`), also `merge_state(other)`.
"""

from __future__ import annotations

import logging
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import pandas as pd
import torch

from thinkalike import figures
from thinkalike.config import AnalyzeConfig
from thinkalike.data import Stimuli
from thinkalike.errors import ConfigError, DataError, ThinkalikeError
from thinkalike.instruments.layer_pairs.gathering import Comparison, gather
from thinkalike.instruments.layer_pairs.memory import check_feasible
from thinkalike.instruments.layer_pairs.screen import mean_and_closest, show_cells
from thinkalike.instruments.layer_pairs.settings import LayerPairsConfig
from thinkalike.instruments.of_stimuli import stimuli_facts, stimuli_inputs, without_model
from thinkalike.instruments.operations.layer_pairs import Widths, bytes_of_states, phases_of
from thinkalike.interrupts import at_boundaries
from thinkalike.job import Instrument, Outcome, Phase, Shapes, Work, phase_of_all
from thinkalike.measures import FEW
from thinkalike.models import FrozenModel, load_groups
from thinkalike.states import ModelRuns, StateBatches, array_batches, site_numbers, stimulus_states_of, text_batches
from thinkalike.store import Headline, Result
from thinkalike.tables import layer_rows, matrix_rows

log = logging.getLogger(__name__)


class Side(NamedTuple):
    """A model or a recording: its name, its layers, and what the provenance says of it."""

    name: str
    layers: list[Any]
    describe: Callable[[], dict[str, str]]


class Given(NamedTuple):
    """What a job compares: two sides, which are one object where a model is compared with itself, in batches."""

    measure: Any
    source: Side
    target: Side
    batches: StateBatches


class LayerPairs(Instrument):
    """A measure of every layer of `model` with every layer of `model@target`, and within each.

    `activations` takes the place of `model`; then stimuli are compared, and not tokens of text.
    """

    name: ClassVar[str]  # as tables and figures print it
    scale: ClassVar[tuple[float, float]] = (0.0, 1.0)  # of the colours
    is_distance: ClassVar[bool] = False  # whether less is closer
    takes_activations: ClassVar[bool] = True
    is_shared: ClassVar[bool] = True
    in_one_pass: ClassVar[bool] = True
    of_models: ClassVar[str] = "pairs"
    of_text: ClassVar[Mapping[str, Any]] = {
        "level": "auto",
        "skip_first_tokens": 0,
        "skip_special_tokens": False,
        "stop_at_width": None,
        "given": "none",
    }  # settings that stimuli have not

    def inputs(self, config: AnalyzeConfig) -> Mapping[str, Any]:
        return stimuli_inputs(config) if config.activations else super().inputs(config)

    def narrowed(self, config: AnalyzeConfig) -> AnalyzeConfig:
        narrowed: Any = without_model(config) if config.activations else copy(config)
        if config.activations:
            narrowed.data = None
            narrowed.measure = replace(config.measure, batches=LayerPairsConfig.batches)  # type: ignore[call-arg]
        else:
            narrowed.stimuli = None
        return narrowed  # type: ignore[no-any-return]

    def layers(self, measure: Any, model: FrozenModel) -> list[Any]:
        """Return what tables call the layers of a model that are compared."""
        return site_numbers(model, measure.embed)

    def fewest(self, measure: Any) -> int:
        """Return how many rows a batch must have."""
        return 2

    @abstractmethod
    def metric(self, measure: Any, source_layers: int, target_layers: int, left_out: bool) -> Any:
        """Return what gathers the batches; `left_out`: the first has all rows, and the others all but a part."""

    def comparing(self, measure: Any, source: Widths, target: Widths | None) -> float:
        """Return the operations of comparing all batches of layers of these widths, beside the models' passes."""
        return 0.0

    def operations(self, config: AnalyzeConfig, shapes: Shapes) -> list[Phase]:
        return phases_of(config, shapes, self.comparing, getattr(config.measure, "fit_batches", 0))

    def holds(self, config: AnalyzeConfig, shapes: Shapes) -> float:
        return bytes_of_states(config, shapes)

    def columns(self, estimates: Any) -> dict[str, torch.Tensor]:
        """Return further columns (l, m) of the rows across the two models."""
        return {}

    def scalars(self, estimates: Any) -> dict[str, float]:
        """Return further headline numbers."""
        return {}

    def check(self, compared: Sequence[tuple[Any, FrozenModel, FrozenModel]]) -> None:
        """Refuse pairs, each with the settings of its measure, that do not fit together."""
        check_feasible(self.metric, compared)

    def run(self, config: AnalyzeConfig, work: Work) -> Outcome:
        (outcome,) = self.run_all([(self, config, work)])
        if isinstance(outcome, ThinkalikeError):
            raise outcome
        return outcome

    @staticmethod
    def run_all(jobs: Sequence[tuple[LayerPairs, AnalyzeConfig, Work]]) -> list[Outcome | ThinkalikeError]:
        """Compute the numbers of several jobs in one pass, in which each model runs once for each different input."""
        runs, kinds, works = ModelRuns(), [kind for kind, _, _ in jobs], [work for _, _, work in jobs]
        with phase_of_all(works, "loading"):
            if jobs[0][1].activations:
                given = [kind._of_stimuli(config, work) for kind, config, work in jobs]
            else:
                given = _of_text(kinds, [config for _, config, _ in jobs], runs)
        both = zip(kinds, given, works, strict=True)
        comparisons = [kind._comparison(each, work) for kind, each, work in both]
        with at_boundaries():
            gather(comparisons, runs, works[0].team)
        found = zip(kinds, given, comparisons, strict=True)
        return [kind._outcome(each, comparison) for kind, each, comparison in found]

    def _comparison(self, given: Given, work: Work) -> Comparison:
        measure, counts = given.measure, (len(given.source.layers), len(given.target.layers))
        new = partial(self.metric, measure, *counts, given.batches.parts_left_out > 0)
        return Comparison(new, measure, given.batches, (_called(given.source), _called(given.target)), work)

    def _outcome(self, given: Given, comparison: Comparison) -> Outcome | ThinkalikeError:
        try:
            estimates = comparison.estimates()
        except DataError as error:
            return error
        source, target, batches = given.source, given.target, given.batches
        rows, columns = (layer_rows(side.name, side.layers) for side in (source, target))
        self.warn(estimates, rows, columns, batches.level)
        _warn_of_few(estimates, batches.level)
        ends = {"value": estimates.value, "low": estimates.low, "high": estimates.high}
        across = self.columns(estimates)
        parts = [matrix_rows(rows, columns, **ends, **across)]
        if source is not target:
            for layers, within in ((rows, estimates.within_source), (columns, estimates.within_target)):
                parts.append(matrix_rows(layers, layers, value=within.value, low=within.low, high=within.high))
        table = pd.concat(parts, ignore_index=True)
        if given.measure.given == "token":
            table["given"] = "token"
        arrays = {"value": estimates.value, "within_source": estimates.within_source.value}
        arrays |= {"within_target": estimates.within_target.value, **self.arrays(estimates)}
        scalars = {"batches": float(estimates.batches), "widest_interval": estimates.widest_interval()}
        if estimates.rows_used is not None:
            scalars["rows_used"] = estimates.rows_used
        return Outcome(
            table,
            scalars | self.scalars(estimates),
            {name: values.cpu().numpy() for name, values in arrays.items()},
            models=[source.describe(), target.describe()],
            facts=batches.facts,
            blank=tuple(across),  # within a model
        )

    def _of_stimuli(self, config: AnalyzeConfig, work: Work) -> Given:
        measure: Any = config.measure
        for name, own in self.of_text.items():
            if (value := getattr(measure, name)) != own:
                raise ConfigError(
                    f"measure.{name}={value} is for text; leave it out, as stimuli are compared one by one"
                )
        if any(word.startswith("measure.batches=") for word in config.chosen):
            raise ConfigError("measure.batches is for text; leave it out, as all stimuli are compared")
        stimuli: Stimuli = work.inputs["stimuli"]
        found = stimulus_states_of(config, stimuli, measure.embed)
        sides = [Side(each.name, each.layers, partial(dict, each.origin)) for each in found]
        batches = array_batches(
            [found[0].states, found[-1].states],
            stimuli.groups,
            rows_per_batch=measure.tokens_per_batch,
            fewest=self.fewest(measure),
        )
        batches = replace(batches, facts={**batches.facts, **stimuli_facts(stimuli)})
        measure = replace(measure, batches=batches.parts_left_out or batches.total)
        return Given(measure, sides[0], sides[-1], batches)

    def batches(
        self, measure: Any, config: AnalyzeConfig, models: Sequence[FrozenModel], runs: ModelRuns
    ) -> StateBatches:
        """Return the batches of states that are compared; `runs` keeps states for other jobs of the pass."""
        return text_batches(
            models,
            config.data,
            batches=measure.batches,
            tokens_per_batch=measure.tokens_per_batch,
            level=measure.level,
            embed=measure.embed,
            skip_first_tokens=measure.skip_first_tokens,
            skip_special_tokens=measure.skip_special_tokens,
            runs=runs,
        )

    def arrays(self, estimates: Any) -> dict[str, torch.Tensor]:
        """Return further arrays to keep."""
        return {}

    def warn(self, estimates: Any, rows: pd.DataFrame, columns: pd.DataFrame, level: str) -> None:
        """Warn of what makes the numbers doubtful; a row of a batch is a token, a word or a stimulus."""

    def draw(self, result: Result, folder: Path) -> None:
        figures.layer_heatmaps(result.table, folder, self.kind, self.label(result), self.scale)

    def label(self, result: Result) -> str:
        """Return what tables and figures call the measure."""
        return f"{self.name} given the token" if result.config["measure"].get("given") == "token" else self.name

    def headlines(self, result: Result) -> Sequence[Headline]:
        return mean_and_closest(result.table, self.kind, self.is_distance) or super().headlines(result)

    def show(self, result: Result) -> None:
        """Print what fits on a screen: the cells of equal relative depth."""
        show_cells(result, self.label(result))


def _of_text(kinds: Sequence[LayerPairs], configs: Sequence[AnalyzeConfig], runs: ModelRuns) -> list[Given]:
    """Load each different model once; the batches of each job are those that it would read alone."""
    pairs = load_groups([(config.model, config.target) for config in configs])
    measures: list[Any] = [config.measure for config in configs]
    for kind in dict.fromkeys(kinds):
        jobs = zip(kinds, measures, pairs, strict=True)
        kind.check([(measure, *models) for each, measure, models in jobs if each is kind])
    described: dict[int, dict[str, str]] = {}
    given = []
    for kind, config, measure, models in zip(kinds, configs, measures, pairs, strict=True):
        sides = {
            id(model): Side(model.name, kind.layers(measure, model), partial(_described, model, described))
            for model in models
        }
        batches = kind.batches(measure, config, models, runs)
        given.append(Given(measure, sides[id(models[0])], sides[id(models[1])], batches))
    return given


def _described(model: FrozenModel, known: dict[int, dict[str, str]]) -> dict[str, str]:
    """Return what the provenance says of a model; the weights of one module are read once."""
    if id(model.module) not in known:
        known[id(model.module)] = model.describe()
    return {**known[id(model.module)], "name": model.name}


def _called(side: Side) -> str:
    """Return the name of a side, with the names of its layers where they are not their numbers."""
    named = [f"{number} {layer}" for number, layer in enumerate(side.layers) if not isinstance(layer, int)]
    return f"{side.name}, layers {', '.join(named)}" if named else side.name


def _warn_of_few(estimates: Any, level: str) -> None:
    """Say when too few rows stood in groups of one token for the numbers to speak of all of them."""
    if estimates.rows_used is not None and estimates.rows_used < FEW:
        log.warning(
            "warning: only %.0f %% of the %ss stand in groups of one that are large enough, and those are frequent "
            "ones; raise measure.tokens_per_batch",
            100 * estimates.rows_used, level,
        )  # fmt: skip
