"""The frame of measures of all layer pairs of two models: their settings, tables, headline numbers and screens.

The numbers come from `gathering`, which runs models over batches of text, or of stimuli where recordings take the place
of a model. A measure gives an `Accumulator` of `thinkalike.measures.accumulators`, or the settings that make one.
"""

from __future__ import annotations

import itertools
import logging
import math
from abc import abstractmethod
from collections.abc import Collection, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Optional

from thinkalike.config import AnalyzeConfig, MeasureConfig, layers_of_sides, pairs_of_layers, ranged
from thinkalike.config.schema import CONTEXT, TOKENS_AT_ONCE, pool_tokens
from thinkalike.errors import ConfigError, ThinkalikeError
from thinkalike.instruments.of_stimuli import stimuli_inputs, without_model
from thinkalike.job import Instrument, Outcome, Work
from thinkalike.models.shapes import Passes, Shape, Shapes, both_of
from thinkalike.screen import show_map, show_text
from thinkalike.store import Headline, Result

if TYPE_CHECKING:
    import pandas as pd
    import torch

    from thinkalike.models.families import Layer
    from thinkalike.models.frozen import FrozenModel
    from thinkalike.states.batches import ModelRuns, StateBatches

log = logging.getLogger(__name__)


# ruff: noqa: UP045
@dataclass
class LayerPairsConfig(MeasureConfig):
    """The settings that all measures of layer pairs have."""

    batches: int = ranged(64, least=1, most=10**9)  # whose mean is the value
    tokens_per_batch: int = ranged(1024, least=1, most=TOKENS_AT_ONCE)  # words, where the models' tokenizers differ
    level: Literal["auto", "token", "word"] = "auto"  # of rows; auto: words where the tokenizers differ
    embed: bool = False  # also the site before block 0
    skip_first_tokens: Optional[int] = ranged(None, least=0, most=CONTEXT)  # of every row of text; null: the few
    # tokens whose long states decide some layer are left out, and the first of a row is often one; 0: none is
    skip_special_tokens: bool = False  # leave out BOS, EOS and the like
    stop_at_width: Optional[float] = ranged(None, above=0)  # stop when every interval is narrower
    given: Literal["none", "token", "token_position"] = "none"  # token: rows are compared with those of the same token
    # or word alone; token_position: less the means of their tokens and positions


@dataclass
class WithNull(LayerPairsConfig):
    """The settings of a measure of layer pairs that has a null."""

    batches: int = ranged(16, least=1, most=10**9)  # whose mean is the value; each is compared 11 times for intervals
    null: bool = False  # beside each value what permuted documents give, the calibrated value and p
    permutations: int = ranged(99, least=1, most=10**6)  # of documents, in one batch; p is at least 1 / (this + 1)

    @property
    def unused(self) -> Collection[str]:
        return () if self.null else {"permutations"}

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.given != "none" and self.kind not in ("", "cka", "mutual_knn"):
            raise ConfigError(
                f"measure={self.kind} compares all rows: leave measure.given={self.given} out, or take cka"
            )


class LayerPairs(Instrument):
    """A measure of every layer of `model` with every layer of `model@target`, and within each.

    `activations` takes the place of `model`; then stimuli are compared, and not tokens of text.
    """

    name: ClassVar[str]  # as tables and figures print it
    scale: ClassVar[tuple[float, float]] = (0.0, 1.0)  # of the colours
    is_distance: ClassVar[bool] = False  # whether less is closer
    same_layers: ClassVar[bool] = False  # whether only layers of one number have a value
    takes_activations: ClassVar[bool] = True
    is_shared: ClassVar[bool] = True
    in_one_pass: ClassVar[bool] = True
    of_models: ClassVar[str] = "pairs"
    of_text: ClassVar[Mapping[str, Any]] = {  # settings that are of text alone, and their values for stimuli
        "level": "auto", "skip_special_tokens": False, "stop_at_width": None, "given": "none"
    }  # fmt: skip

    def inputs(self, config: AnalyzeConfig) -> Mapping[str, Any]:
        return stimuli_inputs(config) if config.activations else super().inputs(config)

    def with_unread_reset(self, config: AnalyzeConfig) -> AnalyzeConfig:
        read: Any = without_model(config) if config.activations else copy(config)
        if config.activations:
            read.data, read.layers = None, "same"
            read.measure = replace(config.measure, batches=LayerPairsConfig.batches, **self.of_text)  # type: ignore[call-arg]
        else:
            read.stimuli = None
        return read  # type: ignore[no-any-return]

    def sites(self, config: AnalyzeConfig, models: Sequence[FrozenModel]) -> list[list[Layer]]:
        """Return the layers of both models that are compared: those of the pairs of `layers=`, by default all."""
        from thinkalike.states.tokens import sites

        embed = config.measure.embed  # type: ignore[attr-defined]
        if config.layers in ("same", "all"):
            return [sites(model, embed) for model in models]
        depths = (model.n_layers for model in models)
        chosen = layers_of_sides(config.layers, *depths, itself=models[0] is models[1])
        return [sites(model, embed, own) for model, own in zip(models, chosen, strict=True)]

    def named(self, sites: Sequence[Layer]) -> list[Any]:
        """Return what tables call these layers of a model."""
        from thinkalike.states.tokens import site_numbers

        return site_numbers(sites)

    def fewest(self, measure: Any) -> int:
        """Return how many rows a batch must have."""
        return 2

    @abstractmethod
    def metric(self, measure: Any, source_layers: int, target_layers: int) -> Any:
        """Return what gathers the batches."""

    def passes(self, config: AnalyzeConfig, shapes: Shapes) -> list[Passes]:
        """Return the passes of both models over all batches, which jobs of one pass share."""
        tokens = float(_batches(config.measure) * config.measure.tokens_per_batch)  # type: ignore[attr-defined]
        row = config.data.context or min(shape.context for shape in shapes.values())
        models = dict.fromkeys(both_of(shapes))
        return [Passes("forward passes", each, tokens, row, full=False, is_shared=True) for each in models]

    def holds(self, config: AnalyzeConfig, shapes: Shapes) -> float:
        """Return the bytes of the states of a pool, and of a batch also in float32, in all layers of both models."""
        measure: Any = config.measure
        batch, layers = measure.tokens_per_batch, layers_compared(config, shapes)
        sizes = [(count * each.width, each.bytes / each.parameters) for each, count in layers.items()]
        most = pool_tokens(batch, sum(width for width, _ in sizes), sum(each.parameters for each in layers))
        pool = min(most, batch * _batches(measure)) if config.data else 0
        pool *= 1 + (measure.given == "token_position")  # as they are, and less the means
        return float(sum(width * ((pool + batch) * size + 4 * batch) for width, size in sizes))

    def columns(self, estimates: Any) -> dict[str, torch.Tensor]:
        """Return further columns (l, m) of the rows across the two models: those of the null."""
        if (chance := estimates.chance) is None:
            return {}
        calibrated = zip(("calibrated", "calibrated_low", "calibrated_high"), chance.calibrated, strict=True)
        return {"null": chance.null, **dict(calibrated), "p": chance.p, "p_of_largest": chance.p_of_largest}

    def scalars(self, estimates: Any) -> dict[str, float]:
        """Return further headline numbers: how many documents there were, and those of the null, where there is p."""
        found, chance = {"documents": float(estimates.documents)}, estimates.chance
        if chance is None or math.isnan(chance.largest):
            return found
        return {"largest_calibrated": chance.largest, "largest_p": float(chance.p_of_largest.min()), **found}

    def run(self, config: AnalyzeConfig, work: Work) -> Outcome:
        (outcome,) = self.run_all([(self, config, work)])
        if isinstance(outcome, ThinkalikeError):
            raise outcome
        return outcome

    @staticmethod
    def run_all(jobs: Sequence[tuple[LayerPairs, AnalyzeConfig, Work]]) -> list[Outcome | ThinkalikeError]:
        """Compute the numbers of several jobs in one pass, in which each model runs once for each different input."""
        from thinkalike.instruments.layer_pairs.gathering import compare_all

        return compare_all(jobs)

    def batches(
        self, measure: Any, config: AnalyzeConfig, models: Sequence[FrozenModel], runs: ModelRuns
    ) -> StateBatches:
        """Return the batches of states that are compared; `runs` keeps states for other jobs of the pass."""
        from thinkalike.states.batches import text_batches

        return text_batches(models, self.sites(config, models), config.data, measure, runs)

    def arrays(self, estimates: Any) -> dict[str, torch.Tensor]:
        """Return further arrays to keep."""
        return {}

    def warn(self, estimates: Any, rows: pd.DataFrame, columns: pd.DataFrame, level: str) -> None:
        """Warn of what makes the numbers doubtful; a row of a batch is a token, a word or a stimulus."""
        from thinkalike.measures.estimates import FEWEST_GROUPS

        if not math.isfinite(estimates.widest_interval()):
            log.warning("warning: %d documents are too few, or too unequal, for intervals", estimates.documents)
        if estimates.chance is not None and (count := estimates.chance.documents) < FEWEST_GROUPS:
            log.warning("warning: p is missing: %d documents of a batch have as many rows as others", count)

    def draw(self, result: Result, folder: Path) -> None:
        from thinkalike import figures

        figures.layer_heatmaps(result.table, folder, self.kind, self.label(result), self.scale)

    def label(self, result: Result) -> str:
        """Return what tables and figures call the measure."""
        given = result.table["given"].iloc[0] if "given" in result.table else None
        return f"{self.name} given the {given}" if given else self.name

    def headlines(self, result: Result) -> Sequence[Headline]:
        """Return the least likeness of the layers of equal relative depth, and the mean over them.

        Of a model beside itself these are the least of two layers in a row, and the mean over different layers; of one
        layer beside itself there is nothing to say. The least likeness by a distance is the greatest one.
        """
        across = _rows_across(result.table)
        pairs, compared = across[~_is_itself(across)], _compared(across)
        if compared.empty:
            return super().headlines(result)
        mean = float((compared if len(pairs) == len(across) else pairs)["value"].mean())
        row, name = _least(compared, self.is_distance), "greatest" if self.is_distance else "least"
        return [
            Headline.with_ends(f"{name}_{self.kind}", row.value, row.low, row.high, at=_where(row)),
            Headline(f"mean_{self.kind}", mean),
        ]

    def show(self, result: Result) -> None:
        """Print a map of all layer pairs, and where likeness is least and falls most."""
        across, scalars = _rows_across(result.table), result.scalars
        source, target = across["source"].iloc[0], across["target"].iloc[0]
        count, stimuli = int(scalars["batches"]), result.provenance.get("stimuli")
        rest, units = (f"{stimuli['count']} stimuli", "their groups") if stimuli else (f"{count} batches", "documents")
        values = across.pivot(index="source_layer", columns="target_layer", values="value")
        sides = (f"{source} (rows)", f"{target} (columns)") if values.size > 1 else (source, target)
        who = f"the layers of {source}" if source == target else " and ".join(sides)
        show_text(f"{self.label(result)} of {who}, {rest}, 95 % intervals over {units}")
        if values.size > 1:
            show_map(values.loc[across["source_layer"].unique(), across["target_layer"].unique()], self.is_distance)
        if len(compared := _compared(across)):
            for line in _in_words(compared, self.is_distance, source == target):
                show_text(line)
        if "rows_used" in scalars:
            show_text(f"{scalars['rows_used']:.0%} of the rows stood in large enough groups of one token.")
        if "largest_p" in scalars:
            chance = f"{scalars['largest_calibrated']:+.4f} above chance (of 1), p = {scalars['largest_p']:.3g}"
            show_text(f"The closest layers are {chance} among all layer pairs.")


def _batches(measure: Any) -> int:
    """Return how many batches are read, those that maps are fitted on included."""
    return int(measure.batches + getattr(measure, "fit_batches", 0))


def layers_compared(config: AnalyzeConfig, shapes: Shapes) -> dict[Shape, int]:
    """Return how many sites of each different model are compared."""
    both = both_of(shapes)
    counts = [shape.layers for shape in both]
    if config.layers not in ("same", "all"):
        counts = [len(set(side)) for side in zip(*pairs_of_layers(config.layers, *counts), strict=True)]
    return {each: count + config.measure.embed for each, count in zip(both, counts, strict=True)}  # type: ignore[attr-defined]


def _in_words(compared: pd.DataFrame, is_distance: bool, itself: bool) -> list[str]:
    """Return where layers of equal depth, or layers in a row of one model, are least alike, and where that begins."""
    from thinkalike.measures.estimates import span

    row = _least(compared, is_distance)
    number = span(row.value, row.low, row.high, ".3f")
    if len(compared) == 1 and not isinstance(row.source_layer, int):  # such as the logits
        return [f"Between the two models it is {number}."]
    if itself:
        return [f"From one layer to the next, the states change most at {_where(row)}: {number}."]
    lines = [f"At equal depth, the models are least alike at {_where(row)}: {number}."]
    falls = compared["value"].diff().mul(1 if is_distance else -1).to_numpy()
    if len(compared) > 1 and (most := falls[1:].max()) > 0:
        place = int(falls[1:].argmax())
        before, after = compared["source_layer"].iloc[place : place + 2]
        lines.append(f"Likeness falls most from layer {before} to layer {after}, by {most:.3f}.")
    elif len(compared) > 1:
        lines.append("Likeness falls nowhere from one layer to the next.")
    return lines


def _is_itself(across: pd.DataFrame) -> pd.Series:
    """Return which rows compare a layer of a model with itself."""
    return (across["source"] == across["target"]) & (across["source_layer"] == across["target_layer"])


def _compared(across: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of layers of equal relative depth, or, of a model beside itself, of every two layers in a row."""
    if across["source"].iloc[0] != across["target"].iloc[0]:
        return _of_equal_depth(across)
    layers = across["source_layer"].unique()
    pairs = list(itertools.pairwise(layers))
    return across.set_index(["source_layer", "target_layer"]).reindex(pairs).dropna(subset="value").reset_index()


def _least(rows: pd.DataFrame, is_distance: bool) -> Any:
    """Return the row of least likeness."""
    place = rows["value"].argmax() if is_distance else rows["value"].argmin()
    return next(rows.iloc[[int(place)]].itertuples())


def _where(row: Any) -> str:
    """Return the layers of a row in words."""
    both = f"layer {row.source_layer} with {row.target_layer}"
    return f"layer {row.source_layer}" if row.source_layer == row.target_layer else both


def _rows_across(table: pd.DataFrame) -> pd.DataFrame:
    """Return the rows across the two models, which come first."""
    first = table.iloc[0]
    return table[(table["source"] == first["source"]) & (table["target"] == first["target"])]


def _of_equal_depth(across: pd.DataFrame) -> pd.DataFrame:
    """Return one row for each layer of the source: with the layer of the target at the same relative depth."""
    rows, columns = (across[f"{side}_layer"].unique() for side in ("source", "target"))
    last = len(columns) - 1
    pairs = [(layer, columns[round(n * last / max(len(rows) - 1, 1))]) for n, layer in enumerate(rows)]
    return across.set_index(["source_layer", "target_layer"]).loc[pairs].reset_index()
