"""Two models at the words of held-out text, beyond what the word, its position and mixing explain.

What a linear map of one model's states predicts of another's, beyond the word, its position and
linear mixing of the earlier tokens (`thinkalike.measures.residual`), is a number without a scale.
The calibration points of a ruler give it one.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import TypeVar

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from thinkalike.config import DataConfig
from thinkalike.data.corpus import warn_of_few_documents
from thinkalike.errors import DataError
from thinkalike.evaluation.columns import document_counts
from thinkalike.instruments.ruler.calibration_points import (
    BLOCKS_AWAY,
    MIXING,
    TEXT,
    UNTRAINED,
    RulerComparison,
    States,
    Values,
    changed_copy,
    greatest_by_layer,
)
from thinkalike.measures.folds import numbered_by_part
from thinkalike.measures.massive_rows import massive
from thinkalike.measures.residual import (
    COMPONENTS_OF_BAG,
    POSITION_FUNCTIONS,
    ResidualStates,
    fewest_rows,
)
from thinkalike.measures.ridge import FOLDS, Predictor, both_ways
from thinkalike.memory import free_cached_memory
from thinkalike.models.families import Layer
from thinkalike.models.load import load_model
from thinkalike.processes import counted
from thinkalike.states.batches import KEEPS_MASSIVE, say_massive
from thinkalike.states.mixing import BAGS, CONTROLS, POSITION, TokenMixing
from thinkalike.states.pieces import Pieces, drawn_pieces
from thinkalike.states.source import StateSource, TextReader, WordReader
from thinkalike.states.word_states import word_states
from thinkalike.timing import seconds_of_rows

AnyLayer = TypeVar("AnyLayer")
"""What a reader calls its layers: a hook point, or a way of mixing tokens."""

WORDS = 8192
"""How many words of held-out text are compared, unless more are needed or asked for."""

LEAST_WORDS = 256
"""The fewest words that can be asked for."""

PIECES_PER_PASS = 8
"""How many pieces of text a model reads in one pass."""

MORE_WORDS = "raise measure.words, or give more text"
"""What an error about too few words tells the user to do."""

WORDS_PER_ROW = 2
"""So many words are read for each word that is compared: the others stand once in their fifth of
the documents."""

TOKENS_PER_WORD = 1.5
"""About how many tokens a word has."""

TIMED_ROWS = 4096
"""A forecast times the maps of so many random states; the time of more is extrapolated."""

TIMED_DOCUMENTS = 50
"""The random states of a forecast are of so many documents."""


def tokens_of_words(words: int) -> float:
    """Return about how many tokens a model reads for so many words."""
    return TOKENS_PER_WORD * words


def fewest_words(widths: Iterable[int]) -> int:
    """Return about how many words of text R² needs, given the widths of both models.

    More words are needed the wider the models are, and the more covariates are regressed out.
    """
    widths = list(widths)
    components = sum(min(width, COMPONENTS_OF_BAG) for width in widths)
    covariates = len(BAGS) * components + POSITION_FUNCTIONS * (len(widths) - 1)
    return WORDS_PER_ROW * fewest_rows(max(widths), covariates)


class Words:
    """Words of text in pieces of several documents, as two models read them.

    Args:
        data: The text.
        models: What reads the text.
        words: How many words are read, at least.
        remedy: What an error about too few words tells the user to do.

    Attributes:
        text: The pieces of text.
        documents: The number of the document of each word.
        forms: The number of the form of each word.

    Raises:
        DataError: There are too few documents.
    """

    def __init__(
        self,
        data: DataConfig,
        models: Sequence[TextReader],
        words: int,
        remedy: str = MORE_WORDS,
    ):
        self.remedy = remedy
        self.text: Pieces = drawn_pieces(data, models, words)
        documents = len(set(self.text.documents))
        if documents < FOLDS:
            raise DataError(
                f"R² of held-out text needs the text of {FOLDS} documents, not {documents}: give "
                "more text"
            )
        warn_of_few_documents(data, documents)
        self.documents = numbered_by_part(self.text.owners)
        self.forms = self.text.forms

    def states(
        self, model: WordReader[AnyLayer], layers: Sequence[AnyLayer]
    ) -> list[Float[Tensor, "words d"]]:
        """Return the states of a model at all words, by layer.

        Args:
            model: The model, or another reader of the text.
            layers: Its layers, of which several may be the same.

        Raises:
            DataError: A state is not finite.
        """
        different_layers = list(dict.fromkeys(layers))
        pieces = torch.arange(len(self.text.texts))
        batches = []
        for numbers in counted(pieces.split(PIECES_PER_PASS), "batch"):
            text = self.text.select(numbers)
            batches.append(word_states(model, text, different_layers))

        states_of_layer = {}
        for index, layer in enumerate(different_layers):
            states = torch.cat([batch[index] for batch in batches]).cpu()
            if not states.isfinite().all():
                raise DataError(
                    f"a state of {model.name} at layer {layer} is not finite: run it in a wider "
                    "dtype"
                )
            states_of_layer[layer] = states
        return [states_of_layer[layer] for layer in layers]

    def named(self, rows: Bool[Tensor, " words"]) -> list[str]:
        """Return the words of these rows in writing, in quotes."""
        written = self.text.written_words()
        return [repr(written[row]) for row in rows.nonzero()[:, 0].tolist()]


class WordComparison(RulerComparison):
    """Compares two models at words, beyond what local mixing of tokens explains.

    The likeness is R², held out, of ridge regression both ways.

    Args:
        words: The words.
        models: The source and the target.
        layers: The layers of each model, pair by pair.
        keeps_massive: Whether words stay whose long states decide some layer.

    Attributes:
        states: The states of each model, by layer pair.
        residual: What words, positions and mixing explain, for the words that are compared.
        share_compared: The share of the words without massive states that are compared.
    """

    def __init__(
        self,
        words: Words,
        models: Sequence[StateSource],
        layers: Sequence[Sequence[Layer]],
        keeps_massive: bool = False,
    ):
        self.words = words
        self.models = list(models)
        self.layers = [list(layers_of_model) for layers_of_model in layers]
        self.is_massive = torch.zeros(len(words.forms), dtype=torch.bool)
        self.keeps_massive = keeps_massive

        self._mixing_of_model: dict[StateSource, TokenMixing] = {}
        for model in dict.fromkeys(models):
            self._mixing_of_model[model] = TokenMixing(model)
        self._positions = []
        self._bags: list[Tensor] = []
        for mixing in self._mixing_of_model.values():
            (positions,) = words.states(mixing, [POSITION])
            self._positions.append(positions[:, 0].long())
        for mixing in self._mixing_of_model.values():
            self._bags += words.states(mixing, list(BAGS))

        self.states: list[States] = []
        for model, layers_of_model in zip(models, self.layers, strict=True):
            self.states.append(words.states(model, layers_of_model))
        if not keeps_massive:
            source_states, target_states = self.states
            outliers = massive([*source_states, *target_states])
            if outliers is not None:
                self.is_massive = outliers
        self.prepare()

    def prepare(self) -> None:
        """Prepare what words, positions and mixing explain, for the words that are compared."""
        is_compared = ~self.is_massive
        try:
            self.residual = ResidualStates(
                self.words.forms,
                self.words.documents,
                self._positions,
                self._bags,
                is_compared,
            )
        except ValueError as error:
            raise DataError(
                f"no word stands twice in a fifth of the documents: {self.words.remedy}"
            ) from error
        self.share_compared = len(self.residual.rows) / int(is_compared.sum())
        self._predictors: dict[int, list[Predictor]] = {}

    def predictors(self, side: int) -> list[Predictor]:
        """Return the predictors from one model's states, by layer.

        For wide models they take as much memory as weights.
        """
        if side not in self._predictors:
            self._predictors[side] = self._predictors_from(self.states[side])
        return self._predictors[side]

    def _predictors_from(self, states: States) -> list[Predictor]:
        """Return the predictor of each layer, from what is left of its states."""
        return [self.residual.predictor(layer) for layer in states]

    def numbers(self) -> dict[str, float]:
        """Return how many documents and words are compared, and their share of all words.

        Words with massive states do not belong to that share.
        """
        words_of_documents = torch.bincount(self.residual.documents)
        return {
            **document_counts(words_of_documents),
            "words": float(len(self.residual.rows)),
            "words_used": self.share_compared,
        }

    def check_number(self) -> None:
        """Check that there are enough words for R²; maps of few rows predict nothing.

        Raises:
            DataError: There are too few words.
        """
        width = max(model.d_model for model in self.models)
        fewest = fewest_rows(width, self.residual.covariates)
        compared = len(self.residual.rows)
        if compared < fewest:
            words = len(self.words.forms)
            words_needed = math.ceil(fewest * words / compared / 100) * 100
            raise DataError(
                f"R² needs about {words_needed:,} words for models of width {width:,}, and has "
                f"{words:,}: {self.words.remedy}"
            )

    def read(self, side: int, point: str) -> States:
        model = self.models[side]
        layers = self.layers[side]
        if point == TEXT:
            return []  # the states of both models are known
        if point == MIXING:
            return self.words.states(self._mixing_of_model[model], CONTROLS)
        if point in BLOCKS_AWAY:
            away = BLOCKS_AWAY[point]
            return self.words.states(model, [_layer_away(layer, away) for layer in layers])
        if point == UNTRAINED or point.isdigit():
            return self.words.states(changed_copy(model, point), layers)

        further = load_model(point)
        last = max(model.n_layers - 1, 1)
        last_of_further = further.n_layers - 1
        at_equal_depth = [round(int(layer) * last_of_further / last) for layer in layers]
        return self.words.states(further, at_equal_depth)

    def value(self) -> Values:
        return r2_of_layers(self.predictors(0), self.predictors(1))

    def shared(self, side: int, point: str, states: States) -> Values:
        predictors = self.predictors(side)
        if point == TEXT:
            shifted = []
            for predictor in predictors:
                rows = predictor.states.roll(len(predictor.states) // 2, 0)
                shifted.append(Predictor(rows, self.residual.documents))
            return r2_of_layers(predictors, shifted)
        if point == MIXING:
            values = []
            for control in self._predictors_from(states):
                values.append(r2_of_layers(predictors, [control] * len(predictors)))
            return greatest_by_layer(values)
        # One predictor at a time: those of all layers need much memory.
        return r2_of_layers(predictors, map(self.residual.predictor, states))


def _layer_away(layer: Layer, away: int) -> int:
    """Return the layer `away` blocks before a layer, or after it where there is none before."""
    number = int(layer)
    if number >= away:
        return number - away
    return number + away


def r2_of_layers(sources: Iterable[Predictor], targets: Iterable[Predictor]) -> Values:
    """Return for each layer the R² of the target's states from the source's, and back.

    Args:
        sources, targets: The predictors of each layer of both; they may come one at a time.
    """
    pairs = zip(sources, targets, strict=True)
    return torch.stack([both_ways(source, target) for source, target in pairs])


def compare_words(
    data: DataConfig,
    models: Sequence[StateSource],
    layers: Sequence[Sequence[Layer]],
    words: int,
    *,
    readers: Sequence[TextReader] = (),
    keeps_massive: bool = False,
    remedy: str = MORE_WORDS,
) -> WordComparison:
    """Return the comparison of two models at words of held-out text.

    Args:
        data: The text.
        models: The source and the target.
        layers: The layers of each model, pair by pair.
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


def facts_of_words(data: DataConfig) -> dict[str, object]:
    """Return what the provenance of a result says of the text whose words it compares."""
    return {"data": {"name": data.name, "level": "word"}}


def say_left_out(comparison: WordComparison, remedy: str = KEEPS_MASSIVE) -> None:
    """Log which words are left out, if any are.

    Args:
        comparison: The comparison.
        remedy: How to keep them.
    """
    is_left_out = comparison.is_massive
    if is_left_out.any():
        say_massive(is_left_out, comparison.words.named(is_left_out), "words", remedy)


def seconds_of_maps(words: int, width: int) -> tuple[float, float]:
    """Return the seconds of preparing the maps of a layer, and of those of a layer pair both ways.

    They are timed with random states.

    Args:
        words: How many words are read.
        width: The width of the states.
    """

    def predictors(rows: int, count: int) -> list[Predictor]:
        """Return predictors from so many layers of random states."""
        generator = torch.Generator().manual_seed(0)
        documents = torch.arange(rows) % TIMED_DOCUMENTS
        prepared = []
        for _ in range(count):
            states = torch.randn(rows, width, generator=generator)
            prepared.append(Predictor(states, documents))
        return prepared

    def prepare_layer(rows: int) -> None:
        predictors(rows, 1)

    def compare_layers(rows: int) -> None:
        source, target = predictors(rows, 2)
        both_ways(source, target)

    rows = words // WORDS_PER_ROW
    name = f"maps of width {width}"
    of_layer = seconds_of_rows(f"{name}, a layer", prepare_layer, rows, TIMED_ROWS)
    of_both = seconds_of_rows(f"{name}, a pair", compare_layers, rows, TIMED_ROWS)
    of_pair = max(of_both - 2 * of_layer, 0.0)
    return of_layer, of_pair
