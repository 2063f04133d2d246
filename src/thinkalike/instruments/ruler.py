"""measure=ruler: how alike the layers of two models are, in bits: as alike as a model and its copy rounded to b bits.

What a linear map of one model's states predicts of another's, beyond the word, its position and linear mixing of the
earlier tokens (`thinkalike.measures.residual`), is a number without a scale. Known changes of the models themselves
give it one: both models are rounded to fewer and fewer bits, in memory, and read the same text. Networks that only mix
neighbouring tokens (`thinkalike.states.mixing`) say what is shared without anything learnt.
"""

from __future__ import annotations

import hashlib
import logging
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np
import pandas as pd
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from thinkalike import figures
from thinkalike.config import AnalyzeConfig, DataConfig, MeasureConfig, SettingValues, setting
from thinkalike.data.corpus import warn_of_few_documents
from thinkalike.errors import DataError
from thinkalike.evaluation.columns import document_counts
from thinkalike.job import Instrument, Outcome, Work
from thinkalike.job.setting_groups import FIT_TEXT, REPORT_TEXT, left_in_key
from thinkalike.measures.estimates import Estimate, jackknife
from thinkalike.measures.folds import numbered_by_part
from thinkalike.measures.ladder import RUNGS, next_rung, reading_interval
from thinkalike.measures.massive_rows import massive
from thinkalike.measures.residual import COMPONENTS, POSITION_FUNCTIONS, ResidualStates, fewest_rows
from thinkalike.measures.ridge import FOLDS, Predictor, both_ways, with_interval
from thinkalike.measures.sample_size import has_interval, why_no_interval
from thinkalike.memory import free_cached_memory
from thinkalike.models.fingerprints import checkpoint_fingerprint
from thinkalike.models.frozen import FrozenModel
from thinkalike.models.layer_choice import layers_at_depths, pairs_of_layers
from thinkalike.models.load import load_model
from thinkalike.models.model_config import configured
from thinkalike.models.rounding import rounded
from thinkalike.models.shapes import Passes, Shapes
from thinkalike.models.variants import twin
from thinkalike.processes import counted
from thinkalike.screen import (
    Column,
    Table,
    number_column,
    number_of_documents,
    show_table,
    show_text,
    span,
    text_column,
)  # fmt: skip
from thinkalike.states.batches import KEEPS_MASSIVE, say_massive
from thinkalike.states.folder import load_sources
from thinkalike.states.mixing import BAGS, CONTROLS, POSITION, TokenMixing
from thinkalike.states.pieces import Pieces, drawn_pieces
from thinkalike.states.source import StateSource, TextReader, pairs_of_sources, reader_of
from thinkalike.states.word_states import word_states
from thinkalike.store import Headline, Result
from thinkalike.timing import seconds_of_rows

log = logging.getLogger(__name__)

States = list[Tensor]  # of rows of text, at each layer that is compared

DEPTHS = 5  # layers of each model, at equal relative depth, unless `layers=` names some
AT_ONCE = 8  # pieces of text in a pass
WORDS = 8192  # of held-out text, unless more are needed or asked for
LEAST_WORDS = 256  # that can be asked for
MORE_WORDS = "raise measure.words, or give more text"
WORDS_PER_ROW = 2  # about half of the words of a text stand twice in a fifth of it
UNTRAINED, TEXT, MIXING = "untrained", "other text", "local mixing"
AWAY = {"1 block away": 1, "2 blocks away": 2, "4 blocks away": 4}
OWN: dict[str, Sequence[str]] = {"bits": (), "layers": tuple(AWAY), "text": (TEXT,)}  # by the words of `rungs`
EXACT = 1e-12  # how far below 1 a similarity counts as that of the very same states
OF_COPIES = ("untrained", "bits", "bits_low", "bits_high")  # columns of a side's copies
BLANK = ("bits", "source_bits_high", "target_bits_high")  # of an untrained twin; without rungs
TIMED_ROWS, TIMED_DOCUMENTS = 4096, 50  # of random states by which a forecast times maps; more is extrapolated
TWIN = 65537  # seed of the untrained twin, which nobody takes for a model


@dataclass
class RulerConfig(MeasureConfig):
    """The settings of the ruler."""

    kind: str = "ruler"
    # of held-out text, in pieces of up to 128
    words: int = setting(WORDS, least=LEAST_WORDS, most=10**8)
    massive: Literal["drop", "keep"] = "drop"  # the few words whose long states decide some layer
    # layers: the own layers 1, 2 and 4 blocks away; text: states of other text; names and folders of further models
    rungs: list[str] = field(default_factory=lambda: ["bits"])

    def __post_init__(self) -> None:
        super().__post_init__()
        # Copies of fewer bits are always made, and a rung is made once: other spellings are the same job.
        self.rungs = list(dict.fromkeys(["bits", *self.rungs]))

    @property
    def further_models(self) -> list[str]:
        """The names and folders of the models that are rungs."""
        return [name for name in self.rungs if name not in OWN]

    def further_of(self, model: StateSource) -> list[str]:
        """Return the names of a model's rungs but those of bits: without layers further away than any has another."""
        names = [each for name in self.rungs for each in OWN.get(name, (name,))]
        return [name for name in names if 2 * AWAY.get(name, 0) <= model.n_layers]


class Comparison(ABC):
    """The same rows of text as two models have them, and as changed copies of each have them.

    A side is 0 for the source and 1 for the target. States of a point are those of all rows that were read, and values
    are of the rows that are still compared.

    Attributes:
        is_massive: Which of the rows that were read are left out, as they decide what is found of some layer.
        keeps_massive: Whether such rows stay.
    """

    is_massive: Bool[Tensor, " rows"]
    keeps_massive: bool

    @abstractmethod
    def read(self, side: int, point: str) -> States:
        """Return the states that a point of one side's ruler has, such as its copy of "4" bits."""

    def leave_out_massive(self, states: States) -> bool:
        """Leave out the rows that decide what is found of these states; return whether these are further ones."""
        outliers = None if self.keeps_massive else massive(states)
        if outliers is None or not (outliers & ~self.is_massive).any():
            return False
        self.is_massive |= outliers
        self.prepare()
        return True

    @abstractmethod
    def prepare(self) -> None:
        """Prepare what depends on which rows are compared."""

    @abstractmethod
    def value(self) -> Float[Tensor, "l 2 replicates"]:
        """Return how alike both models are at each layer pair, both ways, and without each part of the documents."""

    @abstractmethod
    def shared(self, side: int, point: str, states: States) -> Float[Tensor, "l 2 replicates"]:
        """Return the same of one side's model and the states of a point."""


def tokens_of_words(words: int) -> float:
    """Return about how many tokens a model reads for so many words."""
    return 1.5 * words


def fewest_words(widths: Iterable[int]) -> int:
    """Return about how many words of text a number needs, from the widths of both models."""
    of_models = list(widths)
    of_bags = len(BAGS) * sum(min(width, COMPONENTS) for width in of_models)
    covariates = of_bags + POSITION_FUNCTIONS * (len(of_models) - 1)
    return WORDS_PER_ROW * fewest_rows(max(of_models), covariates)


class Words:
    """Words of text in pieces of several documents, as two models read them.

    Args:
        words: How many there are, at least.
        remedy: What an error about too few words tells the user to do.

    Raises:
        DataError: There are too few documents, or no word stands twice in the same fold of them.
    """

    def __init__(self, data: DataConfig, models: Sequence[TextReader], words: int, remedy: str = MORE_WORDS):
        self.remedy = remedy
        self.text: Pieces = drawn_pieces(data, models, words)
        documents = len(set(self.text.documents))
        if documents < FOLDS:
            raise DataError(f"R² of held-out text needs the text of {FOLDS} documents, not {documents}: give more text")
        warn_of_few_documents(data, documents)
        self.documents = numbered_by_part(self.text.owners)
        self.forms = self.text.forms

    def states(self, model: StateSource | TokenMixing, layers: Sequence[Any]) -> list[Float[Tensor, "words d"]]:
        """Return the states of a model at all words, at each of these layers, of which some may be the same.

        Raises:
            DataError: A state is not finite.
        """
        different = list(dict.fromkeys(layers))
        pieces = torch.arange(len(self.text.texts)).split(AT_ONCE)
        batches = [word_states(model, self.text.select(numbers), different) for numbers in counted(pieces, "batch")]
        by_layer = {
            layer: torch.cat(states).cpu() for layer, states in zip(different, zip(*batches, strict=True), strict=True)
        }
        for layer, of_layer in by_layer.items():
            if not of_layer.isfinite().all():
                raise DataError(f"a state of {model.name} at layer {layer} is not finite: run it in a wider dtype")
        return [by_layer[layer] for layer in layers]

    def named(self, rows: Bool[Tensor, " words"]) -> list[str]:
        """Return these words in writing."""
        spans = [
            (text, start, stop)
            for text, words in zip(self.text.texts, self.text.words, strict=True)
            for start, stop in words
        ]
        return [repr(spans[row][0][spans[row][1] : spans[row][2]]) for row in rows.nonzero()[:, 0].tolist()]


class WordComparison(Comparison):
    """Compares two models, and the points of their rulers, at words beyond what local mixing of tokens knows.

    Args:
        layers: Those of each model, pair by pair.
        keeps_massive: Whether words stay whose long states decide some layer.
    """

    def __init__(
        self,
        words: Words,
        models: Sequence[StateSource],
        layers: Sequence[Sequence[Any]],
        keeps_massive: bool = False,
    ):
        self.words = words
        self.models = list(models)
        self.layers = [list(of_model) for of_model in layers]
        self.is_massive = torch.zeros(len(words.forms), dtype=torch.bool)
        self.keeps_massive = keeps_massive
        self._mixing = [TokenMixing(model) for model in dict.fromkeys(models)]
        self._positions = [words.states(mixing, [POSITION])[0][:, 0].long() for mixing in self._mixing]
        self._bags = [states for mixing in self._mixing for states in words.states(mixing, list(BAGS))]
        self.states = [words.states(model, own) for model, own in zip(models, self.layers, strict=True)]
        outliers = None if keeps_massive else massive([layer for states in self.states for layer in states])
        if outliers is not None:
            self.is_massive = outliers
        self.prepare()

    def prepare(self) -> None:
        """Prepare what words, positions and mixing explain, for the rows that are compared."""
        is_compared = ~self.is_massive
        try:
            self.residual = ResidualStates(
                self.words.forms, self.words.documents, self._positions, self._bags, is_compared
            )
        except ValueError as error:
            raise DataError(f"no word stands twice in a fifth of the documents: {self.words.remedy}") from error
        self.share_compared = len(self.residual.rows) / int(is_compared.sum())
        self._predictors: dict[int, list[Predictor]] = {}

    def predictors(self, side: int) -> list[Predictor]:
        """Return what one model's states predict, by layer; for wide models they take as much memory as weights."""
        if side not in self._predictors:
            self._predictors[side] = [self.residual.predictor(states) for states in self.states[side]]
        return self._predictors[side]

    def numbers(self) -> dict[str, float]:
        """Return how many documents and words are compared, and which share of those with no massive states."""
        counts = document_counts(torch.bincount(self.residual.documents))
        return counts | {"words": float(len(self.residual.rows)), "words_used": self.share_compared}

    def check_number(self) -> None:
        """Raise a DataError if the words are too few for a number: maps of few rows predict nothing that is there."""
        width = max(model.d_model for model in self.models)
        least = fewest_rows(width, self.residual.covariates)
        compared = len(self.residual.rows)
        if compared < least:
            needed = math.ceil(least * len(self.words.forms) / compared / 100) * 100
            raise DataError(
                f"R² needs about {needed:,} words for models of width {width:,}, and has "
                f"{len(self.words.forms):,}: {self.words.remedy}"
            )

    def read(self, side: int, point: str) -> States:
        model = self.models[side]
        layers = self.layers[side]
        if point == TEXT:
            return []  # the states of both models are known
        if point == MIXING:
            return self.words.states(self._mixing[list(dict.fromkeys(self.models)).index(model)], CONTROLS)
        if point in AWAY:
            away = AWAY[point]
            return self.words.states(model, [layer - away if layer >= away else layer + away for layer in layers])
        if point == UNTRAINED or point.isdigit():
            return self.words.states(changed(model, point), layers)
        further = load_model(point)
        last = max(model.n_layers - 1, 1)
        at_equal_depth = [round(layer * (further.n_layers - 1) / last) for layer in layers]
        return self.words.states(further, at_equal_depth)

    def value(self) -> Float[Tensor, "l 2 replicates"]:
        return alike(self.predictors(0), self.predictors(1))

    def shared(self, side: int, point: str, states: States) -> Float[Tensor, "l 2 replicates"]:
        predictors = self.predictors(side)
        if point == TEXT:
            moved = (own.states.roll(len(own.states) // 2, 0) for own in predictors)
            return alike(predictors, (Predictor(rows, self.residual.documents) for rows in moved))
        if point == MIXING:
            controls = [self.residual.predictor(control) for control in states]
            return most([alike(predictors, [control] * len(predictors)) for control in controls])
        return alike(predictors, map(self.residual.predictor, states))


def compare_words(
    data: DataConfig,
    models: Sequence[StateSource],
    layers: Sequence[Sequence[Any]],
    words: int,
    *,
    readers: Sequence[TextReader] = (),
    keeps_massive: bool = False,
    remedy: str = MORE_WORDS,
) -> WordComparison:
    """Return the comparison of two models at words of held-out text, which are enough for a number.

    Args:
        layers: Those of each model, pair by pair.
        words: How many words are read, at least.
        readers: What else reads the same text later.
        keeps_massive: Whether words stay whose long states decide some layer.
        remedy: What an error about too few words tells the user to do.

    Raises:
        DataError: The text has too few documents or words.
    """
    text = Words(data, [*dict.fromkeys(models), *readers], words, remedy)
    free_cached_memory(models[0].device)
    comparison = WordComparison(text, models, layers, keeps_massive)
    comparison.check_number()
    return comparison


def facts_of_words(data: DataConfig) -> dict[str, Any]:
    """Return what a result says of the text whose words it compares."""
    return {"data": {"name": data.name, "level": "word"}}


def say_left_out(comparison: WordComparison, remedy: str = KEEPS_MASSIVE) -> None:
    """Say which words are left out, if any are, and what keeps them."""
    left_out = comparison.is_massive
    if left_out.any():
        say_massive(left_out, comparison.words.named(left_out), "words", remedy)


def most(values: Sequence[Float[Tensor, "l 2 r"]]) -> Float[Tensor, "l 2 r"]:
    """Return at each layer the greatest of several values, by the mean of both ways over all documents."""
    stacked = torch.stack(list(values))
    greatest = stacked[..., 0].mean(-1).argmax(0)
    return stacked[greatest, torch.arange(stacked.shape[1])]


def changed(model: StateSource, rung: str) -> FrozenModel:
    """Return a copy of so many bits, or the untrained twin."""
    assert isinstance(model, FrozenModel), "a folder of states has no such points, see `_next`"
    return twin(model, TWIN) if rung == UNTRAINED else rounded(model, int(rung))


class Measured(NamedTuple):
    """The value of a comparison, and for each side the values of the points of its ruler, by name."""

    value: Float[Tensor, "l 2 replicates"]
    rungs: list[dict[str, Float[Tensor, "l 2 replicates"]]]


def measured(
    comparison: Comparison,
    models: Sequence[StateSource],
    work: Work,
    further: Callable[[StateSource], Sequence[str]] = lambda model: (),
) -> Measured:
    """Return the value of a comparison and the points of both models' rulers around it; equal models have one ruler.

    A folder of states has no weights that could be rounded, so that local mixing is the only point of its side.

    Rows that decide what is found of the states of one point are left out of all. So states of points are kept, and
    all values are computed once more at the end if rows were left out on the way. What was read is kept when the job
    stops.

    Args:
        further: Gives the names of a model's points that are neither copies of fewer bits nor local mixing.
    """
    states: list[dict[str, States]] = [{}, {}]
    rungs: list[dict[str, Tensor]] = [{}, {}]
    value = comparison.value()
    is_outdated = False
    sides = range(len(dict.fromkeys(models)))
    for side in sorted(sides, key=lambda number: models[number].parameters()):
        model = models[side]
        with work.phase(f"rungs of {model.name}"):
            while point := _next(model, value.mean(1), rungs[side], further(model)):
                log.info("%s beside %s", model.name, _called(point))
                states[side][point] = _read(comparison, side, point, work)
                free_cached_memory(model.device)
                if point != MIXING and comparison.leave_out_massive(states[side][point]):
                    is_outdated = True
                rungs[side][point] = comparison.shared(side, point, states[side][point])
    if is_outdated:
        value = comparison.value()
        rungs = [
            {point: comparison.shared(side, point, of_point) for point, of_point in of_side.items()}
            for side, of_side in enumerate(states)
        ]
    return Measured(value, [own or rungs[0] for own in rungs])


def _read(comparison: Comparison, side: int, point: str, work: Work) -> States:
    """Return the states of a point, which an earlier run of the job may have kept."""
    name = f"rung-{side}-{hashlib.sha256(point.encode()).hexdigest()[:12]}"
    resumed = work.resume(name)
    if resumed is not None:
        return resumed["states"]  # type: ignore[no-any-return]
    states = comparison.read(side, point)
    work.keep(name, {"states": states})
    return states


def alike(ours: Iterable[Predictor], others: Iterable[Predictor]) -> Float[Tensor, "l 2 replicates"]:
    """Return for each layer the R² of other states from ours, and of ours from the others."""
    return torch.stack([both_ways(own, other) for own, other in zip(ours, others, strict=True)])


def check_has_ruler(models: Sequence[StateSource]) -> None:
    """Say which side has no points that need weights; a DataError says that no side has."""
    without = [model.name for model in dict.fromkeys(models) if not isinstance(model, FrozenModel)]
    having = [model.name for model in models if isinstance(model, FrozenModel)]
    if not without:
        return
    if not having:
        raise DataError(
            f"the ruler needs a model, as its points are copies of one, and {' and '.join(without)} have no "
            "weights: give one side as a model, or take measure=r2"
        )
    log.warning(
        f"warning: {without[0]} is a folder of states, which has no weights: values are read in bits of "
        f"{having[0]} alone"
    )


def blank_columns(table: pd.DataFrame) -> tuple[str, ...]:
    """Return the columns of a ruler's table that may have empty cells: also those of a side without copies."""
    lacking = [side for side in ("source", "target") if table[f"{side}_bits"].isna().all()]
    return (*BLANK, *(f"{side}_{name}" for side in lacking for name in OF_COPIES))


def seconds_of_maps(words: int, width: int) -> tuple[float, float]:
    """Return how long the maps of a layer take to prepare, and those of a layer pair both ways, of random states."""

    def predictors(rows: int, count: int) -> list[Predictor]:
        generator = torch.Generator().manual_seed(0)
        documents = torch.arange(rows) % TIMED_DOCUMENTS
        return [Predictor(torch.randn(rows, width, generator=generator), documents) for _ in range(count)]

    rows = words // WORDS_PER_ROW
    name = f"maps of width {width}"
    of_layer = seconds_of_rows(f"{name}, a layer", lambda count: predictors(count, 1), rows, TIMED_ROWS)
    of_both = seconds_of_rows(f"{name}, a pair", lambda count: both_ways(*predictors(count, 2)), rows, TIMED_ROWS)
    return of_layer, max(of_both - 2 * of_layer, 0.0)


class Ruler(
    Instrument[AnalyzeConfig], kind="ruler", version=10, reads=("model", "target", "layers", "data", "measure")
):
    """Says how alike two models are at pairs of layers, in bits of each of them."""

    of_models: ClassVar[str] = "pairs"
    smallest: ClassVar[Mapping[str, Any]] = {"measure.words": 8192, "layers": "[[2,2]]"}

    def unread(self, config: AnalyzeConfig) -> SettingValues:
        return left_in_key(config, FIT_TEXT | REPORT_TEXT)

    def inputs(self, config: AnalyzeConfig) -> Mapping[str, Any]:
        names: Sequence[str] = config.measure_as(RulerConfig).further_models
        rungs = [configured(name, {}) for name in names]
        fingerprints = {f"rung {rung.called}": checkpoint_fingerprint(rung) for rung in rungs}
        return {**super().inputs(config), **fingerprints}

    def passes(self, config: AnalyzeConfig, shapes: Shapes) -> Sequence[Passes]:
        """Return the passes of both models and of all their rungs."""
        tokens = tokens_of_words(config.measure.words) * (2 + len(RUNGS))  # type: ignore[attr-defined]
        return [each.passes("models and rungs", tokens, 128, full=False) for each in dict.fromkeys(shapes.values())]

    def seconds(self, config: AnalyzeConfig, shapes: Shapes) -> float:
        """Return what the maps take: between the models, and between each of them and its copies."""
        layers = DEPTHS if config.layers in ("same", "all") else len(config.layers)
        width = max(shape.width for shape in shapes.values())
        of_layer, of_pair = seconds_of_maps(config.measure_as(RulerConfig).words, width)
        copies = 2 * len(RUNGS)
        return layers * ((2 + copies) * of_layer + (1 + copies) * of_pair)

    def smaller(self, config: AnalyzeConfig, shapes: Shapes, chosen: Collection[str]) -> Iterator[dict[str, Any]]:
        """Yield fewer words."""
        words = config.measure.words  # type: ignore[attr-defined]
        least = fewest_words(shape.width for shape in shapes.values())
        fewer = [words // 2**times for times in range(5)]
        yield from ({"measure.words": number} for number in dict.fromkeys(max(n, min(least, words)) for n in fewer))

    def run(self, config: AnalyzeConfig, work: Work) -> Outcome:
        measure = config.measure_as(RulerConfig)
        with work.phase("loading"):
            models = load_sources(config.model, config.target)
            check_has_ruler(models)
            # A rung that cannot be loaded, or reads shorter texts, must show before the other rungs are made.
            rung_readers = [reader_of(load_model(name)) for name in measure.further_models]
        pairs = _pairs(config.layers, models)
        names = [model.name for model in models]
        described = [model.describe() for model in models]
        layers = [[pair[side] for pair in pairs] for side in (0, 1)]
        with work.phase("models"):
            comparison = compare_words(
                config.data,
                models,
                layers,
                measure.words,
                readers=rung_readers,
                keeps_massive=measure.massive == "keep",
            )
        value, rungs = measured(comparison, models, work, measure.further_of)
        say_left_out(comparison)
        scalars = comparison.numbers()
        worth = scalars["effective_documents"]
        if not has_interval(worth):
            log.warning("warning: %s", why_no_interval(worth, int(scalars["documents"])))
        table = table_of(names, pairs, value, rungs)
        facts = facts_of_words(config.data)
        tables = {"rungs": rungs_table(names, layers, rungs)}
        return Outcome(table, scalars, tables=tables, models=described, facts=facts, blank=blank_columns(table))

    def draw(self, result: Result, folder: Path) -> None:
        label = "share of what varies beyond word, position and neighbours"
        figures.ruler(result.table, result.tables["rungs"], result.scalars["documents"], folder, label)

    def headlines(self, result: Result) -> Sequence[Headline]:
        """Return the reading of each side at the middle layer pair."""
        row = result.table.iloc[len(result.table) // 2]
        columns = {"shared": ["value", "low", "high"]}
        for side, _ in _sides(row):
            columns[f"bits_of_{side}"] = [f"{side}_bits{end}" for end in ("", "_low", "_high")]
        return [Headline.with_ends(name, *row[own]) for name, own in columns.items()]

    def show(self, result: Result) -> None:
        table = result.table
        source, target = table["source"].iloc[0], table["target"].iloc[0]
        title = f"What {source} and {target} share beyond the word, its position and its neighbours, as bits of a copy"
        show_readings(table, title, "shared")
        show_text(sentence(table, result.scalars))
        rungs = result.tables["rungs"]
        named = rungs[rungs["bits"].isna() & ~rungs["rung"].isin([MIXING, UNTRAINED])]
        for model, own in named.groupby("model", sort=False):
            cells = own.pivot(index="rung", columns="layer", values="value").loc[own["rung"].unique()]
            columns = [
                text_column("rung", cells.index),
                *(number_column(str(each), cells[each], ".2f") for each in cells),
            ]
            show_table(Table(f"What {model} shares, by layer, with", columns))


def show_readings(table: pd.DataFrame, title: str, label: str) -> None:
    """Print the values of layer pairs, with their readings in bits of both models and what local mixing has."""
    columns = [
        Column("layers", [f"{a} → {b}" for a, b in zip(table["source_layer"], table["target_layer"], strict=True)]),
        Column(label, [span(a, b, c, ".2f") for a, b, c in table[["value", "low", "high"]].to_numpy(float)]),
        *(Column(f"bits of {name}", [_in_bits(row, side) for _, row in table.iterrows()])
          for side, name in _sides(table.iloc[0])),
        number_column("local mixing", local_mixing(table), ".2f"),
    ]  # fmt: skip
    show_table(Table(title, columns))


def sentence(table: pd.DataFrame, scalars: Mapping[str, float]) -> str:
    """Return what a ruler's table says of the middle layer pair, in words."""
    row = table.iloc[len(table) // 2]
    over = f"over {number_of_documents(scalars)}"
    layers = f"layers {row['source_layer']} and {row['target_layer']}" if len(table) > 1 else "these layers"
    beyond = f"Beyond the word, its position and its neighbours, {layers} of {row['source']} and {row['target']}"
    mixing = f"{100 * float(local_mixing(row)):.0f} %"
    if not shares_more(row):
        return (
            f"{beyond} share no more than a network does that only mixes neighbouring words "
            f"({row['value']:.2f} of what varies, against {mixing}, {over})."
        )
    return (
        f"{beyond} share {100 * row['value']:.0f} % of what varies, {over}: as much as "
        f"{copies_in_words(row, 'shares')}. A network that only mixes neighbouring words shares {mixing}."
    )


def local_mixing(table: Any) -> Any:
    """Return what local mixing shares with the one model or the other, whichever is more; for a table or its row.

    Results of earlier versions have an untrained twin in its place.
    """
    control = "mixing" if "source_mixing" in table else "untrained"
    both = table[[f"source_{control}", f"target_{control}"]]
    return both.max(axis=1) if isinstance(table, pd.DataFrame) else both.max()


def shares_more(rows: Any, prefix: str = "") -> Any:
    """Return whether a layer pair shares more than local mixing does: by the interval where there is one.

    Args:
        rows: A table, or one of its rows.
        prefix: Of the names of the columns.
    """
    is_more = rows[f"{prefix}beyond"] > 0
    is_open = rows[f"{prefix}beyond_low"] <= 0
    return np.logical_and(is_more, np.logical_not(is_open))


def copies_in_words(row: Any, verb: str) -> str:
    """Return the copies that the models of a layer pair are as alike as, in words."""
    sides = _sides(row)
    bits = [f"{name} {{}}with its copy of {_in_bits(row, side)} bits" for side, name in sides]
    return ", and ".join(bits).format(f"{verb} ", "")


def _sides(row: Any) -> list[tuple[str, str]]:
    """Return the sides that have readings, with the names of their models; a model beside itself is one side."""
    sides = ["source"] if row["source"] == row["target"] else ["source", "target"]
    return [(side, row[side]) for side in sides if not pd.isna(row[f"{side}_bits"])]


def _in_bits(row: Any, side: str) -> str:
    value, low, high = (row[f"{side}_bits{end}"] for end in ("", "_low", "_high"))
    if value <= RUNGS[0]:
        return f"below {RUNGS[0]}"
    return f"{RUNGS[-1]} or more" if value >= RUNGS[-1] else span(value, low, high, ".1f")


def apart(difference: Float[Tensor, "l r"]) -> Estimate:
    """Return differences of values of the same rows, whose intervals end above 0 in 5 % of those that are 0."""
    return jackknife(difference[:, 0], difference[:, 1:].T, level=0.9)


def _is_beyond(difference: Estimate) -> Bool[Tensor, " l"]:
    """Return whether a difference from local mixing is above 0: by its interval where there is one."""
    return torch.where(difference.low.isfinite(), difference.low, difference.value) > 0


def _pairs(layers: Any, models: Sequence[StateSource]) -> list[tuple[int, int]]:
    """Return the pairs of `layers=`; by default some of equal relative depth, where there are states."""
    depths = [model.n_layers for model in models]
    if layers != "same":
        return pairs_of_layers(layers, *depths)
    if all(len(model.layers) == model.n_layers for model in models):
        return layers_at_depths(DEPTHS, *depths)
    return pairs_of_sources(DEPTHS, *models)


def _called(rung: str) -> str:
    return f"{rung} bits" if rung.isdigit() else rung


def _next(
    model: StateSource, value: Float[Tensor, "l r"], rungs: Mapping[str, Tensor], further: Sequence[str]
) -> str | None:
    """Return the point to measure next, until each layer that shares more than local mixing is between two rungs."""
    if MIXING not in rungs:
        return MIXING
    if not isinstance(model, FrozenModel):
        return None
    beyond = _is_beyond(apart(value - rungs[MIXING].mean(1)))
    known = {int(name): shared.mean(1)[beyond, 0].tolist() for name, shared in rungs.items() if name.isdigit()}
    bits = next_rung(value[beyond, 0].tolist(), known)
    if bits:
        return str(bits)
    return next((name for name in (UNTRAINED, *further) if name not in rungs), None)


def table_of(
    names: Sequence[str], pairs: Sequence[tuple[int, int]], value: Tensor, rungs: Sequence[Mapping[str, Tensor]]
) -> pd.DataFrame:
    """Return one row for each layer pair: what is shared, both ways, and the reading in bits of each side."""
    both = value.mean(1)
    columns: dict[str, Any] = {
        "source": names[0], "target": names[1],
        "source_layer": [pair[0] for pair in pairs], "target_layer": [pair[1] for pair in pairs],
    }  # fmt: skip
    columns |= shared_columns(value, [own[MIXING] for own in rungs])
    beyond = Estimate(columns["beyond"], columns["beyond_low"], columns["beyond_high"])
    for side, own in zip(("source", "target"), rungs, strict=True):
        columns[f"{side}_mixing"] = own[MIXING].mean(1)[:, 0]
        nothing = torch.full((len(pairs),), math.nan, dtype=torch.float64)
        if UNTRAINED not in own:  # of a folder of states
            columns |= {f"{side}_{name}": nothing for name in OF_COPIES}
            continue
        columns[f"{side}_untrained"] = own[UNTRAINED].mean(1)[:, 0]
        found = [_reading(both[layer], own, layer, bool(_is_beyond(beyond)[layer])) for layer in range(len(pairs))]
        for end, part in zip(("", "_low", "_high"), zip(*found, strict=True), strict=True):
            columns[f"{side}_bits{end}"] = torch.stack(part)
    return pd.DataFrame({name: each.numpy() if isinstance(each, Tensor) else each for name, each in columns.items()})


def shared_columns(
    value: Float[Tensor, "l 2 r"], mixing: Sequence[Float[Tensor, "l 2 r"]]
) -> dict[str, Float[Tensor, " l"]]:
    """Return columns of what layer pairs share, both ways, and of how much more that is than local mixing shares.

    Args:
        mixing: What local mixing shares with each of the models.
    """
    both = value.mean(1)
    columns = dict(zip(("value", "low", "high"), with_interval(both), strict=True))
    columns |= {"there": value[:, 0, 0], "back": value[:, 1, 0]}
    beyond = apart(both - most(mixing).mean(1))
    return columns | dict(zip(("beyond", "beyond_low", "beyond_high"), beyond, strict=True))


def _reading(value: Tensor, rungs: Mapping[str, Tensor], layer: int, is_beyond: bool) -> Estimate:
    """Return the reading of a layer pair with its interval; the lowest if it is not beyond local mixing."""
    marks, lowest = sorted(int(name) for name in rungs if name.isdigit()), torch.tensor(float(RUNGS[0])).double()
    if not marks:
        return Estimate(lowest, lowest, lowest * math.nan)
    of_copies = torch.stack([rungs[str(mark)].mean(1)[layer] for mark in marks])
    found = reading_interval(fisher_z(value), marks, fisher_z(of_copies))
    return found if is_beyond else Estimate(lowest, lowest, found.high)


def fisher_z(similarity: Float[Tensor, "*n"]) -> Float[Tensor, "*n"]:
    """Return the Fisher transform, artanh(R), of a similarity R² between 0 and 1; values below 0 count as 0.

    It rises by nearly the same amount with every half bit of a copy, where the similarity itself falls ever
    faster towards few bits. Interpolated between copies of whole bits, it reads copies of 2.5 to 4.5 bits within
    a tenth of a bit, by R², CKA and mutual neighbours alike.
    """
    correlation = similarity.clamp(0, 1 - EXACT).sqrt()
    return correlation.atanh()


def rungs_table(
    names: Sequence[str], layers: Sequence[Sequence[int]], rungs: Sequence[Mapping[str, Tensor]]
) -> pd.DataFrame:
    """Return one row for each rung and layer of each model."""
    rows = []
    for name, own, changed in zip(names, layers, rungs, strict=True):
        for rung, values in changed.items():
            for layer, each in zip(own, values, strict=True):
                ends = with_interval(each.mean(0))
                rows.append(
                    {
                        "model": name, "layer": layer, "rung": _called(rung),
                        "bits": float(rung) if rung.isdigit() else math.nan,
                        "value": float(ends.value), "low": float(ends.low), "high": float(ends.high),
                        "there": float(each[0, 0]), "back": float(each[1, 0]),
                    }
                )  # fmt: skip
    return pd.DataFrame(rows).drop_duplicates(ignore_index=True)
