"""measure=ruler: how alike the layers of two models are, in bits: as alike as a model and its copy rounded to b bits.

What a linear map of one model's states predicts of another's, beyond the word and its place, is a number without a
scale. Known changes of the models themselves give it one: both models are rounded to fewer and fewer bits, in memory,
and read the same text. An untrained twin says what is shared without any training.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Literal

import pandas as pd
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from thinkalike import figures
from thinkalike.config import AnalyzeConfig, DataConfig, MeasureConfig, ranged
from thinkalike.data.corpus import warn_of_few
from thinkalike.errors import DataError
from thinkalike.evaluation.language import document_numbers
from thinkalike.job import Instrument, Outcome, Work
from thinkalike.job.instrument import FIT_TEXT, REPORT_TEXT
from thinkalike.measures.estimates import (
    RUNGS,
    Estimate,
    RowGroups,
    has_interval,
    jackknife,
    massive,
    next_rung,
    numbered_by_part,
    why_no_interval,
)  # fmt: skip
from thinkalike.measures.ridge import FOLDS, Predictor, fold_of, with_ends, with_interval
from thinkalike.memory import hand_back
from thinkalike.models.families import layers_at_depths, pairs_of_layers
from thinkalike.models.frozen import FrozenModel
from thinkalike.models.load import configured, load_model, load_models, rounded, twin
from thinkalike.models.places import checkpoint_fingerprint
from thinkalike.models.shapes import Passes, Shapes
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
from thinkalike.states.batches import say_massive
from thinkalike.states.tokens import Pieces, TextReader, drawn_pieces, text_reader, word_states
from thinkalike.store import Headline, Result

log = logging.getLogger(__name__)

DEPTHS = 5  # layers of each model, at equal relative depth, unless `layers=` names some
AT_ONCE = 8  # pieces of text in a pass
REPEATED = 2  # rows of one word in a fold, at least: less their mean they say what the word alone does not
UNTRAINED, TEXT = "untrained", "other text"
AWAY = {"1 block away": 1, "2 blocks away": 2, "4 blocks away": 4}
OWN: dict[str, Sequence[str]] = {"bits": (), "layers": tuple(AWAY), "text": (TEXT,)}  # by the words of `rungs`
BLANK = ("bits", "source_bits_high", "target_bits_high")  # of an untrained twin; without rungs
TWIN = 65537  # seed of the untrained twin, which nobody takes for a model


@dataclass
class RulerConfig(MeasureConfig):
    """The settings of the ruler."""

    kind: str = "ruler"
    words: int = ranged(8192, least=256, most=10**8)  # of held-out text, in pieces of up to 128
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

    def further_of(self, model: FrozenModel) -> list[str]:
        """Return the names of a model's rungs but those of bits: without layers further away than any has another."""
        names = [each for name in self.rungs for each in OWN.get(name, (name,))]
        return [name for name in names if 2 * AWAY.get(name, 0) <= model.n_layers]


class Words:
    """Words of text in pieces of several documents, and what two models' states of them hold beyond word and place.

    Raises:
        DataError: There are too few documents, or no word stands twice in the same fold of them.
    """

    def __init__(self, data: DataConfig, models: Sequence[TextReader], words: int):
        self.text: Pieces = drawn_pieces(data, models, words)
        if len(set(self.text.documents)) < FOLDS:
            raise DataError(f"the ruler needs the text of {FOLDS} documents, not {len(set(self.text.documents))}")
        warn_of_few(data, len(set(self.text.documents)))
        self._documents = numbered_by_part(self.text.owners)
        self._forms = self.text.forms
        self._places = torch.cat([torch.arange(len(spans)) for spans in self.text.words])
        self.keep(torch.ones(len(self._forms), dtype=torch.bool))

    def keep(self, kept: Tensor) -> None:
        """Compare these words alone."""
        self._groups: list[tuple[Tensor, RowGroups]] = []
        folds = fold_of(self._documents)
        for fold in range(FOLDS):
            rows = (kept & (folds == fold)).nonzero()[:, 0]
            try:
                self._groups.append((rows, RowGroups.of(self._forms[rows], REPEATED)))
            except ValueError as error:
                raise DataError("no word stands twice in a fifth of the documents; raise measure.words") from error
        self.documents: Int[Tensor, " kept"] = torch.cat(
            [self._documents[rows[own.order]] for rows, own in self._groups]
        )
        self.share = len(self.documents) / int(kept.sum())

    def states(self, model: FrozenModel, layers: Sequence[int]) -> list[Float[Tensor, "words d"]]:
        """Return the states of a model at all words, at each of these layers, of which some may be the same."""
        at = list(dict.fromkeys(layers))
        parts = [
            word_states(model, self.text.chosen(numbers), at)
            for numbers in counted(torch.arange(len(self.text.texts)).split(AT_ONCE), "batch")
        ]
        found = dict(zip(at, (torch.cat(each).cpu() for each in zip(*parts, strict=True)), strict=True))
        return [found[layer] for layer in layers]

    def predictors(self, states: Iterable[Float[Tensor, "words d"]]) -> Iterator[Predictor]:
        """Yield for each layer what its states less the means of their word and of their place predict.

        Means are those of a fold, so that no row that is judged has a part in one that maps are fitted on.
        """
        for layer in states:
            parts = [own.without_means(layer[rows], self._places[rows]) for rows, own in self._groups]
            yield Predictor(torch.cat(parts), self.documents)

    def leave_out(self, layers: Sequence[Float[Tensor, "words _"]]) -> None:
        """Leave out the few words whose long states decide some layer."""
        outliers = massive(layers)
        if outliers is not None:
            both = zip(self.text.texts, self.text.words, strict=True)
            names = [repr(text[start:stop]) for text, spans in both for start, stop in spans]
            say_massive(outliers, [names[place] for place in outliers.nonzero()[:, 0]], "words")
            self.keep(~outliers)


class Side:
    """One of two models at the layers that are compared, with its states of the words."""

    def __init__(self, model: FrozenModel, layers: Sequence[int], words: Words):
        self.model, self.layers, self.words = model, list(layers), words
        self.states = words.states(model, layers)

    @cached_property
    def predictors(self) -> list[Predictor]:
        """The maps from the states beyond the words; those of large models take as much memory as their weights."""
        return [*self.words.predictors(self.states)]

    def rung(self, name: str) -> Float[Tensor, "l 2 replicates"]:
        """Return how alike this model and a changed copy of it, or what else a rung is of, are at each layer."""
        if name == TEXT:
            moved = (each.states.roll(len(each.states) // 2, 0) for each in self.predictors)
            return alike(self.predictors, (Predictor(each, self.words.documents) for each in moved))
        states = self.words.states(*self._changed(name))  # the other model is gone then
        hand_back(self.model.device)
        return alike(self.predictors, self.words.predictors(states))

    def _changed(self, name: str) -> tuple[FrozenModel, list[int]]:
        """Return the model that a rung is of, and its layers that stand beside those of this one."""
        model, layers = self.model, self.layers
        if name == UNTRAINED or name.isdigit():
            return changed(model, name), layers
        if name in AWAY:
            return model, [layer - away if layer >= (away := AWAY[name]) else layer + away for layer in layers]
        other = load_model(name)
        return other, [round(layer * (other.n_layers - 1) / max(model.n_layers - 1, 1)) for layer in layers]


def changed(model: FrozenModel, rung: str) -> FrozenModel:
    """Return a copy of so many bits, or the untrained twin."""
    return twin(model, TWIN) if rung == UNTRAINED else rounded(model, int(rung))


def measured(
    value: Float[Tensor, "l 2 replicates"],
    todo: dict[int, tuple[FrozenModel, Callable[[str], Tensor]]],
    work: Work,
    further: Callable[[FrozenModel], Sequence[str]] = lambda model: (),
) -> list[dict[str, Tensor]]:
    """Return the rungs of both models around each value, each kept as it comes; a model beside itself has one ruler.

    Args:
        todo: By side, a model, and what gives its rung of a name, of the shape of the value. A side leaves when its
            turn comes, so that its model may go, the larger one last.
        further: Gives the names of a model's rungs that are not of bits.
    """
    kept = work.resume("rungs") or {}
    rungs: list[dict[str, Tensor]] = [kept.get(str(number), {}) for number in (0, 1)]
    for number in sorted(todo, key=lambda number: todo[number][0].parameters()):
        (model, rung), own = todo.pop(number), rungs[number]
        with work.phase(f"rungs of {model.name}"):
            while name := _next(value.mean(1), own, further(model)):
                log.info("%s beside %s", model.name, _called(name))
                own[name] = rung(name)
                hand_back(model.device)
                work.keep("rungs", {str(each): found for each, found in enumerate(rungs)})
    return [own or rungs[0] for own in rungs]


def alike(ours: Iterable[Predictor], others: Iterable[Predictor]) -> Float[Tensor, "l 2 replicates"]:
    """Return for each layer the R² of other states from ours, and of ours from the others."""
    both = zip(ours, others, strict=True)
    return torch.stack([torch.stack([a.of(b.states).shares, b.of(a.states).shares]) for a, b in both])


class Ruler(Instrument, kind="ruler", version=6, reads=("model", "target", "layers", "data", "measure")):
    """Says how alike two models are at pairs of layers, in bits of each of them."""

    of_models: ClassVar[str] = "pairs"
    ignores = Instrument.ignores | FIT_TEXT | REPORT_TEXT

    def inputs(self, config: AnalyzeConfig) -> Mapping[str, Any]:
        names: Sequence[str] = config.measure.further_models  # type: ignore[attr-defined]
        rungs = [configured(name, {}) for name in names]
        fingerprints = {f"rung {rung.called}": checkpoint_fingerprint(rung) for rung in rungs}
        return {**super().inputs(config), **fingerprints}

    def passes(self, config: AnalyzeConfig, shapes: Shapes) -> Sequence[Passes]:
        """Return the passes of both models and of all their rungs, of one and a half tokens for each word."""
        tokens = 1.5 * config.measure.words * (2 + len(RUNGS))  # type: ignore[attr-defined]
        return [each.passes("models and rungs", tokens, 128, full=False) for each in dict.fromkeys(shapes.values())]

    def smaller(self, config: AnalyzeConfig, shapes: Shapes, chosen: Collection[str]) -> Iterator[dict[str, Any]]:
        """Yield fewer words."""
        words = config.measure.words  # type: ignore[attr-defined]
        yield from ({"measure.words": max(words // 2**times, 256)} for times in range(5))

    def run(self, config: AnalyzeConfig, work: Work) -> Outcome:
        measure: Any = config.measure
        with work.phase("loading"):
            models = load_models(config.model, config.target)
            # A rung that cannot be loaded, or reads shorter texts, must show before the other rungs are made.
            rung_readers = [text_reader(load_model(name)) for name in measure.further_models]
            words = Words(config.data, [*dict.fromkeys(models), *rung_readers], measure.words)
            hand_back(models[0].device)
        pairs = _pairs(config.layers, *(model.n_layers for model in models))
        names, described = ([model.name for model in models], [model.describe() for model in models])
        with work.phase("models"):
            layers = [[pair[side] for pair in pairs] for side in (0, 1)]
            sides = [Side(model, own, words) for model, own in zip(models, layers, strict=True)]
            if measure.massive == "drop":
                words.leave_out([layer for side in sides for layer in side.states])
            value = alike(*(words.predictors(side.states) for side in sides))
        todo: dict[int, Any] = {number: (side.model, side.rung) for number, side in enumerate(sides[: len({*models})])}
        del models, sides  # the model of a side is gone when its rungs are done
        rungs = measured(value, todo, work, measure.further_of)
        numbers = document_numbers(torch.bincount(words.documents))
        worth = numbers["effective_documents"]
        if not has_interval(worth):
            log.warning("warning: %s", why_no_interval(worth, int(numbers["documents"])))
        table = table_of(names, pairs, value, rungs)
        scalars = numbers | {"words": float(len(words.documents)), "words_used": words.share}
        facts = {"data": {"name": config.data.name, "level": "word"}}
        tables = {"rungs": rungs_table(names, layers, rungs)}
        return Outcome(table, scalars, tables=tables, models=described, facts=facts, blank=BLANK)

    def draw(self, result: Result, folder: Path) -> None:
        label = "share of what varies beyond word and place"
        figures.ruler(result.table, result.tables["rungs"], result.scalars["documents"], folder, label)

    def headlines(self, result: Result) -> Sequence[Headline]:
        """Return the reading of each side at the middle layer pair."""
        row = result.table.iloc[len(result.table) // 2]
        columns = {"shared": ["value", "low", "high"]}
        for side in ("source", "target"):
            columns[f"bits_of_{side}"] = [f"{side}_bits{end}" for end in ("", "_low", "_high")]
        return [Headline.with_ends(name, *row[own]) for name, own in columns.items()]

    def show(self, result: Result) -> None:
        table = result.table
        source, target = table["source"].iloc[0], table["target"].iloc[0]
        title = f"What a linear map predicts of {source} and {target} beyond the word and its place, as bits of a copy"
        show_readings(table, title, "shared")
        show_text(sentence(table, result.scalars))
        rungs = result.tables["rungs"]
        named = rungs[rungs["bits"].isna() & (rungs["rung"] != UNTRAINED)]
        for model, own in named.groupby("model", sort=False):
            cells = own.pivot(index="rung", columns="layer", values="value").loc[own["rung"].unique()]
            columns = [
                text_column("rung", cells.index),
                *(number_column(str(each), cells[each], ".2f") for each in cells),
            ]
            show_table(Table(f"What {model} shares, by layer, with", columns))


def show_readings(table: pd.DataFrame, title: str, label: str) -> None:
    """Print the values of layer pairs, with their readings in bits of both models and what an untrained twin has."""
    columns = [
        Column("layers", [f"{a} → {b}" for a, b in zip(table["source_layer"], table["target_layer"], strict=True)]),
        Column(label, [span(a, b, c, ".2f") for a, b, c in table[["value", "low", "high"]].to_numpy(float)]),
        *(Column(f"bits of {name}", [_in_bits(row, side) for _, row in table.iterrows()])
          for side, name in _sides(table["source"].iloc[0], table["target"].iloc[0])),
        number_column("untrained", table[["source_untrained", "target_untrained"]].max(axis=1), ".2f"),
    ]  # fmt: skip
    show_table(Table(title, columns))


def sentence(table: pd.DataFrame, scalars: Mapping[str, float]) -> str:
    """Return what a ruler's table says of the middle layer pair, in words."""
    row = table.iloc[len(table) // 2]
    over = f"over {number_of_documents(scalars)}"
    place = f"layers {row['source_layer']} and {row['target_layer']}" if len(table) > 1 else "these layers"
    if not shares_more(row):
        return (
            f"Beyond the word and its place, {place} of {row['source']} and {row['target']} share no more than an "
            f"untrained twin does ({row['value']:.2f} of what varies, {over})."
        )
    return (
        f"Beyond the word and its place, {place} of {row['source']} and {row['target']} share "
        f"{100 * row['value']:.0f} % of what varies, {over}: as much as {copies_in_words(row, 'shares')}. "
        f"An untrained twin shares {100 * max(row['source_untrained'], row['target_untrained']):.0f} %."
    )


def shares_more(row: Any) -> bool:
    """Return whether a layer pair shares more than an untrained twin does: by the interval where there is one."""
    return bool(row["beyond"] > 0) and not row["beyond_low"] <= 0


def copies_in_words(row: Any, verb: str) -> str:
    """Return the copies that the models of a layer pair are as alike as, in words."""
    sides = _sides(row["source"], row["target"])
    bits = [f"{name} {{}}with its copy of {_in_bits(row, side)} bits" for side, name in sides]
    return ", and ".join(bits).format(f"{verb} ", "")


def _sides(source: str, target: str) -> list[tuple[str, str]]:
    return [("source", source)] if source == target else [("source", source), ("target", target)]


def _in_bits(row: Any, side: str) -> str:
    value, low, high = (row[f"{side}_bits{end}"] for end in ("", "_low", "_high"))
    if value <= RUNGS[0]:
        return f"below {RUNGS[0]}"
    return f"{RUNGS[-1]} or more" if value >= RUNGS[-1] else span(value, low, high, ".1f")


def twins_share(first: Float[Tensor, "l r"], second: Float[Tensor, "l r"]) -> Float[Tensor, "l r"]:
    """Return what untrained twins share with two models: the larger, or the mean if that is larger by chance alone."""
    most, mean = torch.where(first[:, :1] >= second[:, :1], first, second), (first + second) / 2
    return torch.where(_is_beyond(apart(most - mean))[:, None], most, mean)


def apart(difference: Float[Tensor, "l r"]) -> Estimate:
    """Return differences of values of the same rows, whose intervals end above 0 in 5 % of those that are 0."""
    return jackknife(difference[:, 0], difference[:, 1:].T, level=0.9)


def _is_beyond(difference: Estimate) -> Bool[Tensor, " l"]:
    """Return whether a difference from an untrained twin is above 0: by its interval where there is one."""
    return torch.where(difference.low.isfinite(), difference.low, difference.value) > 0


def _pairs(layers: Any, source: int, target: int) -> list[tuple[int, int]]:
    """Return the pairs of `layers=`; by default some of equal relative depth."""
    return layers_at_depths(DEPTHS, source, target) if layers == "same" else pairs_of_layers(layers, source, target)


def _called(rung: str) -> str:
    return f"{rung} bits" if rung.isdigit() else rung


def _next(value: Float[Tensor, "l r"], rungs: Mapping[str, Tensor], further: Sequence[str]) -> str | None:
    """Return the rung to measure next, until each layer that shares more than an untrained twin is between two."""
    if UNTRAINED not in rungs:
        return UNTRAINED
    beyond = _is_beyond(apart(value - rungs[UNTRAINED].mean(1)))
    known = {int(name): each.mean(1)[beyond, 0].tolist() for name, each in rungs.items() if name.isdigit()}
    bits = next_rung(value[beyond, 0].tolist(), known)
    return str(bits) if bits else next((name for name in further if name not in rungs), None)


def table_of(
    names: Sequence[str], pairs: Sequence[tuple[int, int]], value: Tensor, rungs: Sequence[Mapping[str, Tensor]]
) -> pd.DataFrame:
    """Return one row for each layer pair: what is shared, both ways, and the reading in bits of each side."""
    both = value.mean(1)
    columns: dict[str, Any] = {
        "source": names[0], "target": names[1],
        "source_layer": [pair[0] for pair in pairs], "target_layer": [pair[1] for pair in pairs],
    }  # fmt: skip
    columns |= dict(zip(("value", "low", "high"), with_interval(both), strict=True))
    columns |= {"there": value[:, 0, 0], "back": value[:, 1, 0]}
    beyond = apart(both - twins_share(*(own[UNTRAINED].mean(1) for own in rungs)))
    columns |= dict(zip(("beyond", "beyond_low", "beyond_high"), beyond, strict=True))
    for side, own in zip(("source", "target"), rungs, strict=True):
        columns[f"{side}_untrained"] = own[UNTRAINED].mean(1)[:, 0]
        found = [_reading(both[layer], own, layer, bool(_is_beyond(beyond)[layer])) for layer in range(len(pairs))]
        for end, part in zip(("", "_low", "_high"), zip(*found, strict=True), strict=True):
            columns[f"{side}_bits{end}"] = torch.stack(part)
    return pd.DataFrame({name: each.numpy() if isinstance(each, Tensor) else each for name, each in columns.items()})


def _reading(value: Tensor, rungs: Mapping[str, Tensor], layer: int, is_beyond: bool) -> Estimate:
    """Return the reading of a layer pair with its interval; the lowest if it is not beyond an untrained twin."""
    marks, lowest = sorted(int(name) for name in rungs if name.isdigit()), torch.tensor(float(RUNGS[0])).double()
    if not marks:
        return Estimate(lowest, lowest, lowest * math.nan)
    each = torch.stack([rungs[str(mark)].mean(1)[layer] for mark in marks])
    found = with_ends(value, marks, each)
    return found if is_beyond else Estimate(lowest, lowest, found.high)


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
