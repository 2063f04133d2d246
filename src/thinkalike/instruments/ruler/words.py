"""Two models at the words of held-out text, beyond what the word, its position and mixing explain.

What a linear map of one model's states predicts of another's, beyond the word, its position and
linear mixing of the earlier tokens (`thinkalike.measures.residual`), is a number without a scale.
The calibration points of a ruler give it one.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple, TypeVar

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from thinkalike.advice import named_setting
from thinkalike.config import DataConfig
from thinkalike.errors import DataError
from thinkalike.evaluation.columns import document_counts
from thinkalike.instruments.ruler.calibration_points import (
    BLOCKS_AWAY,
    MIXING,
    OTHER_TEXT,
    RulerComparison,
    States,
    Values,
    changed_copy,
    greatest_at_each_pair,
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
from thinkalike.states.batches import say_massive
from thinkalike.states.copies import COPIES
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

WORDS_READ_PER_COMPARED_WORD = 2
"""So many words are read for each word that is compared: the others occur only once in their
fifth of the documents, and have no mean state."""

TOKENS_PER_WORD = 1.5
"""About how many tokens a word has."""

TIMED_ROWS = 4096
"""A forecast times the maps of so many random states; the time of more is extrapolated."""

TIMED_DOCUMENTS = 50
"""The random states of a forecast are of so many documents."""


def estimated_tokens_of_words(words: int) -> float:
    """Return about how many tokens a model reads for so many words."""
    return TOKENS_PER_WORD * words


def fewest_words_for_r2(widths: Iterable[int]) -> int:
    """Return about how many words of text R² needs, given the widths of the models.

    More words are needed the wider the models are, and the more covariates are regressed out. The
    covariates are principal components of each model's bags (weighted sums of earlier embeddings)
    and functions of the token position in every model but the first. The position in the first
    model needs no covariate, as the mean state of each position is subtracted.
    """
    widths = list(widths)
    components = sum(min(width, COMPONENTS_OF_BAG) for width in widths)
    position_covariates = POSITION_FUNCTIONS * (len(widths) - 1)
    covariates = len(BAGS) * components + position_covariates
    # About half of the words that are read are compared.
    return WORDS_READ_PER_COMPARED_WORD * fewest_rows(max(widths), covariates)


class Words:
    """Words of text in pieces of several documents, as two models read them.

    Args:
        data: The text.
        models: What reads the text.
        words: How many words are read, at least.
        remedy: What an error about too few words tells the user to do; None: to raise
                `measure.words`.

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
        remedy: str | None = None,
    ):
        """Draw pieces of text that hold at least `words` words, and number their documents.

        Args:
            data: The text.
            models: The models whose tokenizers the text must fit.
            words: How many words the pieces hold, at least.
            remedy: What an error about too few words tells the user to do; None: to raise
                `measure.words`.

        Raises:
            DataError: The pieces are from too few documents for folds over documents.
        """
        self.remedy = remedy or f"raise {named_setting('measure.words')}, or give more text"
        self.text: Pieces = drawn_pieces(data, models, words)
        documents = len(set(self.text.documents))
        if documents < FOLDS:
            raise DataError(
                f"R² of held-out text needs the text of {FOLDS} documents, not {documents}: give "
                "more text"
            )
        # Documents are numbered such that the number modulo 10 is the part of the jackknife.
        self.documents = numbered_by_part(self.text.owners)
        self.forms = self.text.forms

    def states(
        self, model: WordReader[AnyLayer], layers: Sequence[AnyLayer]
    ) -> list[Float[Tensor, "words d"]]:
        """Return the states of a model at all words, one tensor for each entry of `layers`.

        A layer that is given twice is read once, and its tensor is returned twice.

        Args:
            model: The model, or networks that only mix the embeddings of earlier tokens.
            layers: What the model calls its layers; of networks that mix tokens, the ways of
                mixing.

        Raises:
            DataError: A state is not finite.
        """
        distinct_layers = list(dict.fromkeys(layers))
        piece_indices = torch.arange(len(self.text.texts))
        batches = []  # for each batch of pieces of text, the states of its words at each layer
        for indices in counted(piece_indices.split(PIECES_PER_PASS), "batch"):
            text = self.text.select(indices)
            batches.append(word_states(model, text, distinct_layers))

        states_of_layer = {}
        for index, layer in enumerate(distinct_layers):
            states = torch.cat([batch[index] for batch in batches]).cpu()
            if not states.isfinite().all():
                raise DataError(
                    f"a state of {model.name} at layer {layer} is not finite: run it in a wider "
                    "dtype"
                )
            states_of_layer[layer] = states
        return [states_of_layer[layer] for layer in layers]

    def quoted(self, is_chosen: Bool[Tensor, " words"]) -> list[str]:
        """Return the chosen words as they stand in the text, in quotes."""
        written = self.text.written_words()
        chosen_indices = is_chosen.nonzero()[:, 0].tolist()
        return [repr(written[index]) for index in chosen_indices]


class WordComparison(RulerComparison):
    """Compares two models at words, beyond what local mixing of tokens explains.

    The similarity is held-out R² of ridge regression, in both directions.

    Args:
        words: The words.
        models: The source and the target.
        layers: The layers of each model, pair by pair.
        keeps_massive: Whether words are compared whose states have so large a norm (massive
            activations) that they alone decide some layer.

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
        """Read the words with both models, and prepare what is regressed out of the states.

        Args:
            words: The text, in words.
            models: The source and the target, which may be one model.
            layers: The layers of each model, pair by pair.
            keeps_massive: Whether words with very long states are compared, too.
        """
        self.words = words
        self.models = list(models)
        self.layers = [list(layers_of_model) for layers_of_model in layers]
        self.is_massive = torch.zeros(len(words.forms), dtype=torch.bool)
        self.keeps_massive = keeps_massive

        self._mixing_of_model: dict[StateSource, TokenMixing] = {}
        for model in dict.fromkeys(models):  # once where a model is compared with itself
            self._mixing_of_model[model] = TokenMixing(model)
        self._positions = []  # the token position of each word, for each model
        self._bags: list[Tensor] = []  # weighted sums of earlier embeddings, (words, d) each
        for mixing in self._mixing_of_model.values():
            (positions,) = words.states(mixing, [POSITION])  # (words, 1)
            self._positions.append(positions[:, 0].long())
        for mixing in self._mixing_of_model.values():
            self._bags += words.states(mixing, list(BAGS))

        self.states: list[States] = []
        for model, layers_of_model in zip(models, self.layers, strict=True):
            self.states.append(words.states(model, layers_of_model))
        if not keeps_massive:
            source_states, target_states = self.states
            massive_rows = massive([*source_states, *target_states])  # None: there are none
            if massive_rows is not None:
                self.is_massive = massive_rows
        self.prepare_compared_rows()

    def prepare_compared_rows(self) -> None:
        """Prepare to regress word, position and local mixing out of the states.

        It must be called again whenever further words are left out because of their long states.

        Raises:
            DataError: No word repeats often enough for a mean state of the word.
        """
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
        self._predictors: dict[int, list[Predictor]] = {}  # by side; made when they are needed

    def predictors(self, side: int) -> list[Predictor]:
        """Return a ridge predictor from each layer of one model, made at the first call.

        For wide models, all predictors together take as much memory as the weights.

        Args:
            side: 0 for the source, 1 for the target.
        """
        if side not in self._predictors:
            self._predictors[side] = self._predictors_from(self.states[side])
        return self._predictors[side]

    def _predictors_from(self, states: States) -> list[Predictor]:
        """Return a ridge predictor from each layer, with word, position and mixing removed."""
        return [self.residual.predictor(layer) for layer in states]

    def numbers(self) -> dict[str, float]:
        """Return the headline numbers of the sample: documents, words, and `words_used`.

        `words_used` is the share of words that are compared, among all words without massive
        activations (very long states).
        """
        words_of_documents = torch.bincount(self.residual.documents)
        return {
            **document_counts(words_of_documents),
            "words": float(len(self.residual.rows)),
            "words_used": self.share_compared,
        }

    def check_enough_words(self) -> None:
        """Check that there are enough words: maps that are fitted on too few predict nothing.

        Raises:
            DataError: There are too few words.
        """
        width = max(model.d_model for model in self.models)
        fewest = fewest_rows(width, self.residual.covariate_count)
        compared = len(self.residual.rows)
        if compared < fewest:
            words_read = len(self.words.forms)
            # Of the words that are read, only some are compared; the number is rounded up.
            words_needed = fewest * words_read / compared
            hundreds_of_words = math.ceil(words_needed / 100)
            raise DataError(
                f"R² needs about {100 * hundreds_of_words:,} words for models of width {width:,}, "
                f"and has {words_read:,}: {self.words.remedy}"
            )

    def calibration_states(self, side: int, calibration_point: str) -> States:
        """Return the states of a calibration point at the words, a tensor for each layer pair.

        A calibration point is something that the side's model is compared with: a changed copy of
        it, its own layers some blocks away, or another model at equal relative depth. For local
        mixing, the list has a tensor for each way of mixing instead. For other text it is empty,
        as the model's own states are compared with themselves, shifted over the words.
        """
        model = self.models[side]
        layers = self.layers[side]
        if calibration_point == OTHER_TEXT:
            return []
        if calibration_point == MIXING:
            return self.words.states(self._mixing_of_model[model], CONTROLS)
        if calibration_point in BLOCKS_AWAY:
            blocks = BLOCKS_AWAY[calibration_point]
            layers_away = [_layer_blocks_away(layer, blocks) for layer in layers]
            return self.words.states(model, layers_away)
        if calibration_point in COPIES:
            return self.words.states(changed_copy(model, calibration_point), layers)

        # Any other calibration point is the name or folder of a model.
        other_model = load_model(calibration_point)
        last_layer = max(model.n_layers - 1, 1)
        last_layer_of_other = other_model.n_layers - 1
        layers_at_equal_depth = []
        for layer in layers:
            layers_at_equal_depth.append(round(int(layer) * last_layer_of_other / last_layer))
        return self.words.states(other_model, layers_at_equal_depth)

    def similarity_of_models(self) -> Values:
        """Return the residual R² of the two models at each layer pair."""
        return r2_of_layers(self.predictors(0), self.predictors(1))

    def similarity_to_point(self, side: int, calibration_point: str, states: States) -> Values:
        """Return the residual R² of one of the two models with a calibration point, by layer pair.

        Residual R² is the R² of linear maps between states from which word, position and linear
        mixing of earlier words are regressed out. A calibration point is what the model is
        compared with in place of the other model:

        - A copy of the model, such as a rounded one.
        - `MIXING`: untrained networks that mix earlier tokens. The value is that of the best one.
        - `OTHER_TEXT`: the model itself, with the state at each word paired with its state half
          the text away, so that what they share is chance.

        Args:
            side: 0 for the source, 1 for the target.
            calibration_point: Its name.
            states: The states of the copy at each layer, or those of each mixing network. They are
                not read for `OTHER_TEXT`.
        """
        predictors = self.predictors(side)
        if calibration_point == OTHER_TEXT:
            shifted_predictors = []
            for predictor in predictors:
                half_of_words = len(predictor.states) // 2
                shifted_states = predictor.states.roll(half_of_words, 0)
                shifted_predictors.append(Predictor(shifted_states, self.residual.documents))
            return r2_of_layers(predictors, shifted_predictors)
        if calibration_point == MIXING:
            values = []
            for control in self._predictors_from(states):
                # A way of mixing has no layers: it is compared with every layer of the model.
                values.append(r2_of_layers(predictors, [control] * len(predictors)))
            return greatest_at_each_pair(values)
        # One predictor at a time: those of all layers need much memory.
        return r2_of_layers(predictors, map(self.residual.predictor, states))


def _layer_blocks_away(layer: Layer, blocks: int) -> int:
    """Return the layer `blocks` before a layer, or, if there is none, the layer `blocks` after."""
    number = int(layer)
    if number >= blocks:
        return number - blocks
    return number + blocks


def r2_of_layers(sources: Iterable[Predictor], targets: Iterable[Predictor]) -> Values:
    """Return the held-out R² of each layer pair in both directions, (pair, direction, replicate).

    Args:
        sources, targets: A ridge predictor for each layer pair. An iterator that makes them one
            at a time saves memory.
    """
    pairs = zip(sources, targets, strict=True)
    return torch.stack([both_ways(source, target) for source, target in pairs])


def comparison_at_words(
    data: DataConfig,
    models: Sequence[StateSource],
    layers: Sequence[Sequence[Layer]],
    words: int,
    *,
    readers: Sequence[TextReader] = (),
    keeps_massive: bool = False,
    remedy: str | None = None,
) -> WordComparison:
    """Return the comparison of two models by residual R² at the words of held-out text.

    Residual R² is the share of variance that a linear map predicts after the word, its position
    and linear mixing of earlier tokens are regressed out.

    Args:
        data: The text.
        models: The source and the target.
        layers: The layers of each model, pair by pair.
        words: How many words are read, at least.
        readers: Models that read the same text later, so that it must fit their tokenizers too.
        keeps_massive: Whether words with massive activations (states so long that a few of them
            decide a layer) are compared; if not, they are left out.
        remedy: What an error about too few words tells the user to do; None: to raise
                `measure.words`.

    Raises:
        DataError: The text has too few documents or words.
    """
    text = Words(data, [*dict.fromkeys(models), *readers], words, remedy)
    free_cached_memory(models[0].device)
    comparison = WordComparison(text, models, layers, keeps_massive)
    comparison.check_enough_words()
    return comparison


def facts_of_words(data: DataConfig) -> dict[str, object]:
    """Return what the provenance of a result says of its text: a name, and that rows are words."""
    return {"data": {"name": data.name, "level": "word"}}


def log_left_out_words(comparison: WordComparison, remedy: str | None = None) -> None:
    """Log which words are left out because of massive activations (very long states), if any.

    Args:
        comparison: The comparison, which knows the words.
        remedy: The end of the message, which says how to keep them; None: by a setting.
    """
    is_left_out = comparison.is_massive
    if is_left_out.any():
        say_massive(is_left_out, comparison.words.quoted(is_left_out), "words", remedy)


class SecondsOfMaps(NamedTuple):
    """How long the linear maps of R² take."""

    per_layer: float
    """The seconds for preparing the ridge predictor of a layer."""

    per_pair: float
    """The seconds for R² of a layer pair in both directions, without preparing the two layers."""


def seconds_of_maps(words: int, width: int) -> SecondsOfMaps:
    """Return the seconds for preparing a layer's ridge predictor, and for R² of a layer pair.

    Both are timed with random states at up to `TIMED_ROWS` words, and extrapolated to all words.

    Args:
        words: How many words are read.
        width: The width of the states.
    """

    def random_predictors(rows: int, n_layers: int) -> list[Predictor]:
        """Return a predictor for each of several layers of random states."""
        generator = torch.Generator().manual_seed(0)
        documents = torch.arange(rows) % TIMED_DOCUMENTS
        predictors = []
        for _ in range(n_layers):
            states = torch.randn(rows, width, generator=generator)
            predictors.append(Predictor(states, documents))
        return predictors

    def prepare_layer(rows: int) -> None:
        """Make the predictor of one layer of random states."""
        random_predictors(rows, 1)

    def compare_layers(rows: int) -> None:
        """Make the predictors of two layers and compare them in both directions."""
        source, target = random_predictors(rows, 2)
        both_ways(source, target)

    rows = words // WORDS_READ_PER_COMPARED_WORD  # the words that are compared
    name = f"maps of width {width}"
    seconds_of_layer = seconds_of_rows(f"{name}, a layer", prepare_layer, rows, TIMED_ROWS)
    seconds_of_both = seconds_of_rows(f"{name}, a pair", compare_layers, rows, TIMED_ROWS)
    # Comparing two layers has prepared both of them, too.
    seconds_of_pair = max(seconds_of_both - 2 * seconds_of_layer, 0.0)
    return SecondsOfMaps(seconds_of_layer, seconds_of_pair)
