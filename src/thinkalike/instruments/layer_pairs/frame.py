"""The frame of measures of all layer pairs of two models: settings, and the loop from batches of states to a table.

A measure says which metric gathers its batches, an `Accumulator` of `thinkalike.measures.accumulator`.
"""

from __future__ import annotations

import logging
import math
from abc import abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import pandas as pd
import torch

from thinkalike import figures
from thinkalike.catalogue import title_of
from thinkalike.config import AnalyzeConfig, MeasureConfig, SettingValues, setting
from thinkalike.config.parts import AFTER, CONTEXT, TOKENS_AT_ONCE
from thinkalike.errors import ConfigError
from thinkalike.instruments.layer_pairs import screen
from thinkalike.instruments.layer_pairs.comparison import Comparison, Side, rounds, run_together
from thinkalike.job import Instrument, Outcome, Work
from thinkalike.job.budget_ladder import LADDER
from thinkalike.job.setting_groups import FIT_TEXT, REPORT_TEXT, left_in_key
from thinkalike.measures.row_groups import FEW
from thinkalike.measures.sample_size import FEWEST_GROUPS
from thinkalike.models.families import Layer
from thinkalike.models.layer_choice import layers_at_depths, layers_of_sides, pairs_of_layers
from thinkalike.states.batches import ModelRuns, StateBatches, pool_tokens, sampled, text_batches
from thinkalike.states.folder import load_sources
from thinkalike.states.source import StateSource
from thinkalike.states.tokens import site_numbers, sites
from thinkalike.store import Headline, Result
from thinkalike.tables import layer_rows, matrix_rows
from thinkalike.timing import seconds_of_rows

if TYPE_CHECKING:
    from thinkalike.models.shapes import Passes, Shape, Shapes

log = logging.getLogger(__name__)

TIMED_ROWS = 4096  # rows of states that a forecast compares at most; the time of more is extrapolated
BATCHES = 64  # whose mean is the value; a measure whose batches take longer has a part of them
OF_STATES = ("model", "target", "layers", "data", "measure", "stimuli", "ruler")  # what a measure of states reads
COPIES, READ_PAIRS = 5, 5  # of each model, about, and layer pairs, at most, that a reading in bits takes


@dataclass
class LayerPairsConfig(MeasureConfig):
    """The settings that all measures of layer pairs have."""

    batches: int = setting(BATCHES, by_recipe=True, least=1, most=10**9)  # whose mean is the value
    # words, where the models' tokenizers differ
    tokens_per_batch: int = setting(1024, least=1, most=TOKENS_AT_ONCE)
    level: Literal["auto", "token", "word"] = "auto"  # of rows; auto: words where the tokenizers differ
    embed: bool = False  # also the site before block 0
    massive: Literal["drop", "keep"] = "drop"  # the few tokens whose long states decide some layer
    # tokens of every row of text that are left out
    skip_first: int = setting(0, least=0, most=CONTEXT)
    skip_special_tokens: bool = False  # leave out BOS, EOS and the like
    given: Literal["none", "token", "token_position"] = "none"  # token: rows are compared with those of the same token
    # or word alone; token_position: less the means of their tokens and positions


@dataclass
class WithNull(LayerPairsConfig):
    """The settings of a measure of layer pairs that has a null."""

    compares_within_groups: ClassVar[bool] = False  # whether rows of one token can be compared among themselves
    null: bool = False  # beside each value what permuted documents give, the calibrated value and p
    # of documents, in one batch; p is at least 1 / (this + 1)
    permutations: int = setting(99, least=1, most=10**6)

    def settings_read(self) -> frozenset[str]:
        read = super().settings_read()
        return read if self.null else read - {"permutations"}

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.given != "none" and self.kind and not self.compares_within_groups:
            raise ConfigError(f"measure={self.kind} compares all rows: omit measure.given={self.given}, or take cka")


def layers_compared(config: AnalyzeConfig, shapes: Shapes) -> dict[Shape, int]:
    """Return how many sites of each different model are compared."""
    both = shapes["model"], shapes.get("target", shapes["model"])
    counts = [shape.layers for shape in both]
    if config.layers not in ("same", "all"):
        counts = [len(set(side)) for side in zip(*pairs_of_layers(config.layers, *counts), strict=True)]
    for side, model in enumerate((config.model, config.target)):
        counts[side] *= 1 if isinstance(model.site, str) else len(model.site)
    return {each: count + config.measure.embed for each, count in zip(both, counts, strict=True)}  # type: ignore[attr-defined]


def fewer_layers(count: int, shapes: Shapes) -> dict[str, Any]:
    """Return the setting of so many layer pairs of equal relative depth, if models have more, for `budget=`.

    A folder of states may lack some layers, and all that it has are cheap.
    """
    both = shapes["model"], shapes.get("target", shapes["model"])
    depths = [shape.layers for shape in both]
    if count >= max(depths) or not all(shape.parameters for shape in both):
        return {}
    return {"layers": layers_at_depths(count, *depths)}


def _called(name: str, described: Callable[[], dict[str, str]]) -> dict[str, str]:
    return {**described(), "name": name}  # that it has in this job


class LayerMatrix(Instrument[AnalyzeConfig]):
    """A job whose table has a value for each layer of `model` beside each layer of `model@target`."""

    scale: tuple[float, float] = (0.0, 1.0)  # of the colours
    is_distance: bool = False  # whether less is closer
    in_atlas: bool = False  # whether `measure=atlas` has it where nobody chooses
    takes_sites: ClassVar[bool] = True
    of_models: ClassVar[str] = "pairs"

    @property
    def name(self) -> str:
        """The title of the measure in tables and figures."""
        return title_of(self.kind)

    def unread(self, config: AnalyzeConfig) -> SettingValues:
        return left_in_key(config, FIT_TEXT | REPORT_TEXT)

    def sites(self, config: AnalyzeConfig, models: Sequence[StateSource]) -> list[list[Layer]]:
        """Return the layers of both models that are compared: those of the pairs of `layers=`, by default all."""
        embed = config.measure.embed  # type: ignore[attr-defined]
        if config.layers in ("same", "all"):
            return [sites(model, embed) for model in models]
        depths = (model.n_layers for model in models)
        chosen = layers_of_sides(config.layers, *depths, itself=models[0] is models[1])
        return [sites(model, embed, own) for model, own in zip(models, chosen, strict=True)]

    def named(self, sites: Sequence[Layer]) -> list[Any]:
        """Return what tables call these layers of a model."""
        return site_numbers(sites)

    def draw(self, result: Result, folder: Path) -> None:
        if "components" in result.tables:
            cells = screen.as_matrix(result.tables["components"])
            scale = (0.0, float(result.tables["components"]["value"].max())) if self.is_distance else self.scale
            about = screen.rows_of(result)
            about += "; differences accumulate from layer to layer" if self.is_distance else ""
            figures.components(cells, folder, self.kind, self.label(result), scale, about)
            return
        label, about = self.label(result), screen.rows_of(result)
        figures.layer_heatmaps(result.table, folder, self.kind, label, self.scale, about=about)

    def label(self, result: Result) -> str:
        """Return what tables and figures call the measure."""
        given = f" given the {result.table['given'].iloc[0]}" if "given" in result.table else ""
        models = [model for side in ("model", "target") if (model := result.config.get(side))]
        sites = {str(model.get("site", AFTER)) for model in models} - {AFTER}
        at = f" at {sites.pop()}" if len(sites) == 1 and "components" not in result.tables else ""
        return f"{self.name}{at}{given}"

    def headlines(self, result: Result) -> Sequence[Headline]:
        return screen.headlines_of(self.kind, result, self.is_distance) or super().headlines(result)

    def show(self, result: Result) -> None:
        if "components" in result.tables:
            screen.show_components(self.label(result), result, self.is_distance)
        else:
            screen.show_layer_pairs(self.label(result), result, self.is_distance)


class LayerPairs(LayerMatrix):
    """A measure of every layer of `model` with every layer of `model@target`, and within each.

    `activations` takes the place of `model`; then stimuli are compared, and not tokens of text.
    """

    same_layers: ClassVar[bool] = False  # whether only layers of one number have a value
    takes_activations: ClassVar[bool] = True
    is_shared: ClassVar[bool] = True
    run_all = staticmethod(run_together)
    smallest: ClassVar[Mapping[str, Any]] = {"measure.batches": 2, "measure.tokens_per_batch": 256}
    # the values of settings that stimuli do not have
    for_stimuli: ClassVar[Mapping[str, Any]] = {"level": "auto", "skip_special_tokens": False, "given": "none"}

    def inputs(self, config: AnalyzeConfig) -> Mapping[str, Any]:
        if not config.activations:
            return super().inputs(config)
        from thinkalike.instruments.of_stimuli import stimuli_inputs

        return stimuli_inputs(config)

    def unread(self, config: AnalyzeConfig) -> SettingValues:
        unread: dict[str, Any] = {} if self.is_read(config) else {"ruler": None}
        if not config.activations:
            return unread | {**super().unread(config), "stimuli": None}
        unread |= {**config.unread_beside_recordings(), "data": None, "layers": "same"}
        # Stimuli are one batch. Their keys have always had the number of batches of CKA for it.
        of_tokens = {"batches": BATCHES, **self.for_stimuli}
        return unread | {f"measure.{name}": value for name, value in of_tokens.items()}

    def fewest(self, measure: Any) -> int:
        """Return how many rows a batch must have."""
        return 2

    @abstractmethod
    def metric(self, measure: Any, source_layers: int, target_layers: int) -> Any:
        """Return what gathers the batches."""

    def passes(self, config: AnalyzeConfig, shapes: Shapes) -> list[Passes]:
        """Return the passes of both models over all batches, which jobs of one pass share."""
        tokens = float(config.measure.batches * config.measure.tokens_per_batch)  # type: ignore[attr-defined]
        row = config.data.context or min(shape.context for shape in shapes.values())
        models = dict.fromkeys(shapes.values())
        found = [each.passes("forward passes", tokens, row, full=False, is_shared=True) for each in models]
        if self.is_read(config):
            few = float(sampled(config.measure).batches * config.measure.tokens_per_batch)  # type: ignore[attr-defined]
            found += [each.passes("readings", few * (1 + COPIES), row, full=False) for each in models]
        return found

    def seconds(self, config: AnalyzeConfig, shapes: Shapes) -> float:
        """Return what comparing takes, from the time of a batch of one and of two layers of each model."""
        measure: Any = config.measure
        layers = layers_compared(config, shapes)
        width = max(shape.width for shape in layers)
        one = self._batch_seconds(measure, 1, width)
        count = sum(layers.values())
        if self.same_layers:
            batch = one * count / 2
        else:
            # Two layers have 3 pairs, those within a model included, and four have 10. Where one layer of each model
            # takes long, pairs are nearly all of it, and two of each are not timed.
            two = 10 / 3 * one if one > 1 else self._batch_seconds(measure, 2, width)
            pair = max((two - 2 * one) / 4, 0.0)
            layer = max(one - 3 * pair, 0.0) / 2
            batch = layer * count + pair * count * (count + 1) / 2
        if not self.is_read(config):
            return batch * int(measure.batches)
        of_readings = READ_PAIRS * (1 + 2 * COPIES) * one
        return batch * int(measure.batches) + of_readings * int(sampled(measure).batches)

    def _batch_seconds(self, measure: Any, layers: int, width: int) -> float:
        """Return the seconds of comparing a batch of random states of so many layers of each model."""
        settings = replace(measure, batches=1, tokens_per_batch=TIMED_ROWS)  # which do not change the name of a step

        def compare(rows: int) -> None:
            generator = torch.Generator().manual_seed(0)
            states = [[torch.randn(rows, width, generator=generator) for _ in range(layers)] for _ in range(2)]
            groups = {} if measure.given == "none" else {"groups": torch.arange(rows) % 32}
            given = "token" if groups else "none"
            metric = self.metric(replace(settings, given=given, tokens_per_batch=rows), layers, layers)
            metric.update(*states, number=0, documents=torch.arange(rows) // 32, **groups)
            metric.compute()

        name = f"{settings} of width {width}, {layers} layers"
        return seconds_of_rows(name, compare, measure.tokens_per_batch, TIMED_ROWS)

    def smaller(self, config: AnalyzeConfig, shapes: Shapes, chosen: Collection[str]) -> Iterator[dict[str, Any]]:
        """Yield fewer layers of equal relative depth, and then fewer batches."""
        batches = config.measure.batches  # type: ignore[attr-defined]
        for layers, share in LADDER:
            fewer: dict[str, Any] = {"measure.batches": max(batches // share, 1)} if share > 1 else {}
            fewer |= {"ruler": "bits"} if "ruler" in self.reads else {}
            yield fewer_layers(layers, shapes) | fewer

    def holds(self, config: AnalyzeConfig, shapes: Shapes) -> float:
        """Return the bytes of the states of a pool, and of a batch also in float32, in all layers of both models."""
        measure: Any = config.measure
        batch, layers = measure.tokens_per_batch, layers_compared(config, shapes)
        sizes = [(count * each.width, each.bytes_of_number) for each, count in layers.items()]
        most = pool_tokens(batch, sum(width for width, _ in sizes), sum(each.parameters for each in layers))
        pool = min(most, batch * measure.batches) if config.data else 0
        pool *= 1 + (measure.given == "token_position")  # as they are, and less the means
        copy = max(shape.bytes for shape in layers) * self.is_read(config)
        return float(copy + sum(width * ((pool + batch) * size + 4 * batch) for width, size in sizes))

    def columns(self, estimates: Any) -> dict[str, torch.Tensor]:
        """Return further columns (l, m) of the rows across the two models: those of the null."""
        if (chance := estimates.chance) is None:
            return {}
        calibrated = zip(("calibrated", "calibrated_low", "calibrated_high"), chance.calibrated, strict=True)
        return {"null": chance.null, **dict(calibrated), "p": chance.p, "p_of_largest": chance.p_of_largest}

    def scalars(self, estimates: Any) -> dict[str, float]:
        """Return further headline numbers: how many rows and documents, and those of the null, where there is p."""
        found, chance = {"documents": float(estimates.documents)}, estimates.chance
        if estimates.rows is not None:
            found["rows"] = float(estimates.rows)
        if estimates.effective is not None:
            found["effective_documents"] = estimates.effective
        if chance is None or math.isnan(chance.largest):
            return found
        return {"largest_calibrated": chance.largest, "largest_p": float(chance.p_of_largest.min()), **found}

    def run(self, config: AnalyzeConfig, work: Work) -> Outcome:
        runs = ModelRuns()
        models: Sequence[StateSource] = ()
        with work.phase("loading"):
            if config.activations:
                from thinkalike.instruments.of_stimuli import comparison_of_stimuli

                job = comparison_of_stimuli(self, config, work)
            else:
                models = load_sources(config.model, config.target)
                job = self.of_text(config, work, models, runs)
        for number in rounds([job], runs):
            for batch in job.pool(number):
                for metric, part in job.parts(batch):
                    job.update(metric, part)
                runs.forget(of_batch=True)
        outcome, level = self.outcome(job), job.batches.level
        work.processes.end_of_share()
        if not self.is_read(config):
            return outcome
        runs.forget()
        del job  # whose states and maps make room for copies
        return self.with_readings(outcome, config, models, level, work)

    def is_read(self, config: AnalyzeConfig) -> bool:
        """Return whether values have readings in bits of both models, which are of the stream after each block."""
        is_stream = config.model.site == config.target.site == AFTER and not config.activations
        return config.ruler is not None and "ruler" in self.reads and is_stream

    def with_readings(
        self, outcome: Outcome, config: AnalyzeConfig, models: Sequence[StateSource], level: str, work: Work
    ) -> Outcome:
        """Return the outcome with what its values are in bits of both models."""
        from thinkalike.instruments.layer_pairs.readings import readings  # which few jobs have
        from thinkalike.instruments.ruler import BLANK

        tables, numbers = readings(self, config, models, level, work)
        scalars, blank = outcome.scalars | numbers, (*outcome.blank, *BLANK)
        return replace(outcome, tables=outcome.tables | tables, scalars=scalars, blank=blank)

    # ---- what is compared

    def of_text(self, config: AnalyzeConfig, work: Work, models: Sequence[StateSource], runs: ModelRuns) -> Comparison:
        """Return the comparison of two models; the weights of one module are read once for all jobs of a pass."""
        measure = config.measure_as(LayerPairsConfig)
        sides: dict[int, Side] = {}
        for model, own in zip(models, self.sites(config, models), strict=True):
            described = partial(runs.text, ("provenance", model.identity), model.describe)
            sides[id(model)] = Side(model.name, self.named(own), partial(_called, model.name, described))
        batches = self.batches(measure, config, models, runs)
        if batches.level == "word" and measure.given == "token_position":
            log.info("words have no common position: compared given the token alone")
            measure = replace(measure, given="token")
        return self.comparison(measure, [sides[id(model)] for model in models], batches, work)

    def comparison(self, measure: Any, sides: Sequence[Side], batches: StateBatches, work: Work) -> Comparison:
        """Return the comparison of two sides, which are one object where a model is compared with itself."""
        told = measure if measure.given == "none" else replace(measure, given="token")  # positions are out already
        new = partial(self.metric, told, *(len(side.layers) for side in sides))
        return Comparison(new, measure, (sides[0], sides[1]), batches, work)

    def batches(
        self, measure: Any, config: AnalyzeConfig, models: Sequence[StateSource], runs: ModelRuns
    ) -> StateBatches:
        """Return the batches of states that are compared; `runs` keeps states for other jobs of the pass."""
        return text_batches(models, self.sites(config, models), config.data, measure, runs)

    # ---- what comes out

    def outcome(self, job: Comparison) -> Outcome:
        """Return the table and the numbers of all batches."""
        estimates, with_massive = job.estimates()
        rows, columns = (layer_rows(side.name, side.layers) for side in (job.source, job.target))
        level = job.batches.level
        self.warn(estimates, rows, columns, level)
        scalars = {"batches": float(estimates.batches)}
        if math.isfinite(width := estimates.widest_interval()):  # there are intervals
            scalars["widest_interval"] = width
        if (used := estimates.rows_used) is not None:
            scalars["rows_used"] = used
            if used < FEW:
                log.warning(
                    f"warning: only {100 * used:.0f} % of the {level}s occur often enough in a batch to be compared "
                    "given the token, and those are frequent ones; raise measure.tokens_per_batch"
                )
        further = self.columns(estimates)
        if with_massive is not None:
            further["with_massive"] = with_massive.value
        within = {"within_source": estimates.within_source, "within_target": estimates.within_target}
        values = estimates.value.diagonal() if self.same_layers else estimates.value
        arrays = {"value": values, **{name: each.value for name, each in within.items() if each is not None}}
        table = self._table(job, estimates, rows, columns, further)
        return Outcome(
            table,
            scalars | self.scalars(estimates),
            {name: each.cpu().numpy() for name, each in (arrays | self.arrays(estimates)).items()},
            tables=screen.components_of(table[table["source"] != table["target"]], self.is_distance),
            models=[job.source.describe(), job.target.describe()],
            facts=job.batches.facts,
            blank=tuple(further),  # within a model
        )

    def _table(
        self,
        job: Comparison,
        estimates: Any,
        rows: pd.DataFrame,
        columns: pd.DataFrame,
        further: Mapping[str, torch.Tensor],
    ) -> pd.DataFrame:
        """Return one row for each layer pair across the two models, and then of those within each of them."""
        blocks = [(rows, columns, estimates, further)]
        if job.source is not job.target:
            blocks += [(rows, rows, estimates.within_source, {}), (columns, columns, estimates.within_target, {})]
        parts = []
        for first, second, each, more in blocks:
            if each is not None:
                known = {} if each.uncorrected is None else {"uncorrected": each.uncorrected}
                numbers = {"value": each.value, "low": each.low, "high": each.high, **known, **more}
                parts.append(matrix_rows(first, second, **numbers))
        table = pd.concat(parts, ignore_index=True)
        if self.same_layers:
            table = table[table["source_layer"] == table["target_layer"]].reset_index(drop=True)
        if job.measure.given != "none":
            table["given"] = job.measure.given.replace("_", " and ")
        return table

    def arrays(self, estimates: Any) -> dict[str, torch.Tensor]:
        """Return further arrays to keep."""
        return {}

    def warn(self, estimates: Any, rows: pd.DataFrame, columns: pd.DataFrame, level: str) -> None:
        """Warn of what makes the numbers doubtful; a row of a batch is a token, a word or a stimulus."""
        if not math.isfinite(estimates.widest_interval()):
            unknown = f"{estimates.documents} documents have no intervals: without some of them there is no value"
            log.warning("warning: %s", estimates.why_no_interval or unknown)
        if estimates.chance is not None and (count := estimates.chance.documents) < FEWEST_GROUPS:
            log.warning("warning: p is missing: %d documents of a batch have as many rows as others", count)

    def draw(self, result: Result, folder: Path) -> None:
        super().draw(result, folder)
        if "readings" in result.tables:
            readings = result.tables["readings"]
            rungs = result.tables["rungs"]
            figures.ruler(readings, rungs, result.scalars["documents_read"], folder, self.label(result))

    def show(self, result: Result) -> None:
        super().show(result)
        if "readings" in result.tables:
            from thinkalike.instruments.layer_pairs.readings import show_read

            show_read(result, self.label(result))
