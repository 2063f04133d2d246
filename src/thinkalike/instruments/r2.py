"""measure=r2: what a linear map of each layer of one model predicts of each layer of the other.

R² is measured in both directions, for states less the word, its position and linear mixing of the
earlier tokens, as `measure=ruler` has it for a few layer pairs. The R² of the states as they are
stands beside it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

import torch
from jaxtyping import Float
from torch import Tensor

from thinkalike.advice import named_setting
from thinkalike.config import AnalyzeConfig, MeasureConfig, setting
from thinkalike.instruments.layer_pairs.components import components_of
from thinkalike.instruments.layer_pairs.equal_depth import at_equal_depth, layer_counts_of
from thinkalike.instruments.layer_pairs.forecast import (
    compared_layers_by_shape,
    setting_of_fewer_layers,
    source_and_target_shapes,
)
from thinkalike.instruments.layer_pairs.matrix import LayerMatrix
from thinkalike.instruments.ruler.instrument import TOKENS_PER_PIECE
from thinkalike.instruments.ruler.screen import MEANING_OF_RESIDUAL_R2
from thinkalike.instruments.ruler.words import (
    LEAST_WORDS,
    WORDS,
    WordComparison,
    comparison_at_words,
    estimated_tokens_of_words,
    facts_of_words,
    fewest_words_for_r2,
    log_left_out_words,
    seconds_of_maps,
)
from thinkalike.job import Outcome, Work
from thinkalike.job.reductions import REDUCTIONS
from thinkalike.measures.contract import SAME_SHAPE
from thinkalike.measures.ridge import Predictor, both_ways, bytes_of_predictor, with_interval
from thinkalike.models.shapes import Passes, Shapes
from thinkalike.processes import doing
from thinkalike.screen import range_text, show_note, show_text
from thinkalike.states.folder import load_sources
from thinkalike.store import Result
from thinkalike.tables import layer_rows, matrix_rows

if TYPE_CHECKING:
    import pandas as pd

PREDICTOR_BYTES = 2**31
"""The predictors of source layers that are in memory at once take at most so many bytes."""

Values = Float[Tensor, "l m 2 replicates"]
"""The R² of each layer pair in both directions. Replicate 0 is that of all documents, and each
further one leaves out a part of the documents."""


@dataclass
class R2Config(MeasureConfig):
    """The settings of held-out R² of all layer pairs."""

    kind: str = "r2"
    # number of held-out words, in pieces of text of up to 128 tokens
    words: int = setting(WORDS, least=LEAST_WORDS, most=10**8)
    # also compare the embedding, the input of block 0
    embed: bool = False
    # drop excludes the few words with massive activations, which alone would decide a layer; keep
    # includes them
    massive: Literal["drop", "keep"] = "drop"


class LayerR2(
    LayerMatrix,
    kind="r2",
    version=12,
    reads=("model", "target", "layers", "data", "measure"),
):
    """Predicts all layers of `model@target` from all of `model`, and back."""

    formula = (
        "[residual R²](layer-pairs.md#a-changed-copy-and-linear-maps): held-out R² of ridge "
        "regression, both ways, beyond word, position and linear mixing of tokens"
    )
    value_range = (-math.inf, 1.0)
    best = 1.0
    source = ""
    invariances = SAME_SHAPE
    in_atlas = True
    smallest: ClassVar[Mapping[str, object]] = {"measure.words": 8192}

    def has_embedding(self, config: AnalyzeConfig) -> bool:
        """Return whether the embedding is compared like a layer."""
        return config.measure_as(R2Config).embed

    def model_passes(self, config: AnalyzeConfig, shapes: Shapes) -> list[Passes]:
        """Return one pass of each model over about as many tokens as the words need.

        The passes serve to estimate the job's time. A model that is compared with itself has one.
        """
        tokens = estimated_tokens_of_words(config.measure_as(R2Config).words)
        passes = []
        for shape in dict.fromkeys(shapes.values()):
            passes.append(shape.passes("models", tokens, TOKENS_PER_PIECE, with_logits=False))
        return passes

    def seconds_beside_passes(self, config: AnalyzeConfig, shapes: Shapes) -> float:
        """Return the seconds that fitting linear maps takes, to estimate the job's time.

        All maps are fitted twice at the words of the text: to states from which word, position and
        earlier tokens were regressed out, and to the states as they are.
        """
        measure = config.measure_as(R2Config)
        # How many layers of each model are compared. A shape (its name and sizes) stands for the
        # model, which is not loaded yet; a model and itself have one entry.
        layer_counts = compared_layers_by_shape(config, shapes, has_embedding=measure.embed)
        source, target = source_and_target_shapes(shapes)
        width = max(source.width, target.width)
        seconds = seconds_of_maps(measure.words, width)
        n_layers = sum(layer_counts.values())
        n_pairs = layer_counts[source] * layer_counts[target]
        return 2 * (seconds.per_layer * n_layers + seconds.per_pair * n_pairs)

    def reductions(
        self, config: AnalyzeConfig, shapes: Shapes, chosen: Collection[str]
    ) -> Iterator[dict[str, object]]:
        """Yield settings that take ever less time, for `budget=`, which takes the first that fits.

        They have fewer layers of equal relative depth, and then also fewer words, but never fewer
        words than R² needs, unless the job itself asks for fewer.
        """
        words = config.measure_as(R2Config).words  # how many words of text are read
        words_needed = fewest_words_for_r2(shape.width for shape in shapes.values())
        fewest = min(words_needed, words)
        # Each reduction has a number of layer pairs, and a number that divides the amount of text.
        for layers, divisor in REDUCTIONS:
            settings = setting_of_fewer_layers(layers, shapes)
            if divisor > 1:
                settings["measure.words"] = max(words // divisor, fewest)
            yield settings

    def bytes_beside_models(self, config: AnalyzeConfig, shapes: Shapes) -> float:
        """Return the bytes that are in memory at once, to estimate the job's memory.

        These are the states of all words in all layers, in float32 (4 bytes), and the ridge
        predictors, which are made for as many layers at a time as fit into `PREDICTOR_BYTES`.
        """
        measure = config.measure_as(R2Config)
        layer_counts = compared_layers_by_shape(config, shapes, has_embedding=measure.embed)
        numbers_per_word = sum(count * shape.width for shape, count in layer_counts.items())
        return 4.0 * measure.words * numbers_per_word + PREDICTOR_BYTES

    def run(self, config: AnalyzeConfig, work: Work) -> Outcome:
        """Predict each layer of either model from each layer of the other.

        R² is computed with and without what the words themselves explain.
        """
        measure = config.measure_as(R2Config)
        with work.phase("loading"):
            models = load_sources(config.model, config.target)
        source, target = models
        sites = self.sites(config, models)
        with work.phase("models"):
            comparison = comparison_at_words(
                config.data,
                models,
                sites,
                measure.words,
                keeps_massive=measure.massive == "keep",
            )
        log_left_out_words(comparison)
        described = [model.describe() for model in models]
        with work.phase("maps"):
            residual, plain = _residual_and_plain_r2(comparison, is_itself=source is target)

        values = {
            "value": residual[:, :, 0],
            "value_backward": residual[:, :, 1],
            "r2_forward": plain[:, :, 0],
            "r2_backward": plain[:, :, 1],
        }
        columns: dict[str, Tensor] = {}
        for name, replicates in values.items():
            columns |= _interval_columns(name, replicates)
        source_rows = layer_rows(source.name, self.named(sites[0]))
        target_rows = layer_rows(target.name, self.named(sites[1]))
        table = matrix_rows(source_rows, target_rows, **columns)
        tables = {}
        if source.name != target.name:
            tables = components_of(table, self.is_distance)
        return Outcome(
            table,
            comparison.numbers(),
            {name: columns[name].numpy() for name in values},
            tables=tables,
            models=described,
            facts=facts_of_words(config.data),
        )

    def label(self, result: Result) -> str:
        """Return the name of the measure for tables and figures.

        Results of earlier versions have R² only of the states as they are, and the name is "R²".
        """
        label = super().label(result)
        if "r2_forward" in result.details:  # then the value itself is residual R²
            return label
        return label.replace(self.name, "R²")

    def uncomputed_controls(self, result: Result) -> Sequence[str]:
        """Return what the layers could have been compared with: local mixing, by the ruler."""
        if "r2_forward" not in result.details:
            return ()
        return [f"by local mixing of tokens ({named_setting('measure', 'ruler')})"]

    def show(self, result: Result) -> None:
        """Print residual R² (after word, position and earlier tokens) and R² of the states.

        Results of earlier versions have only the latter.
        """
        super().show(result)
        if "r2_forward" in result.details:
            compared = at_equal_depth(result.details, layer_counts_of(result))
            for sentence in sentences_of_directions(compared):
                show_text(sentence)
            show_note(MEANING_OF_RESIDUAL_R2)


def sentences_of_directions(compared: pd.DataFrame) -> list[str]:
    """Return two sentences about the directions of prediction.

    The first says which model predicts which, and the residual R² (after word, position and
    earlier tokens are regressed out) in the reverse direction. The second has R² without
    regressing them out, in both directions.

    Args:
        compared: The rows of the layer pairs that the sentences are about.
    """
    source = compared["source"].iloc[0]
    target = compared["target"].iloc[0]
    forward = f"{target} from {source}"
    backward = f"{source} from {target}"
    where = " at the layer pairs of equal relative depth"
    if source == target:
        forward = "the layer of a column from that of a row"
        backward = "the layer of a row from that of a column"
        where = " between consecutive layers"
    if len(compared) == 1:
        where = ""

    residual_back = _range_in_words(compared["value_backward"])
    plain = _range_in_words(compared["r2_forward"])
    plain_back = _range_in_words(compared["r2_backward"])
    return [
        f"These values predict {forward}. Predicting {backward}, residual R² is "
        f"{residual_back}{where}.",
        f"If word, position and earlier tokens are not regressed out, R² is {plain}{where}, and "
        f"{plain_back} in the reverse direction.",
    ]


def _range_in_words(values: pd.Series) -> str:
    """Return the least and the greatest value, or one number if they are the same."""
    return range_text(values.min(), values.max(), ".2f")


def _residual_and_plain_r2(
    comparison: WordComparison, *, is_itself: bool
) -> tuple[Values, Values]:
    """Return two values for each layer pair: the residual R², and R² of the states as they are.

    For the residual R², the word, its position and linear mixing of earlier tokens are regressed
    out of the states of both models first.

    Args:
        comparison: The states of two models at the same words.
        is_itself: Whether a model is compared with itself.
    """
    sources, targets = comparison.states
    if is_itself:
        # If both lists are one object, each pair of layers is fitted once.
        targets = sources
    residual = r2_of_every_layer_pair(
        sources, targets, comparison.residual.predictor, "layer pair"
    )
    plain = r2_of_every_layer_pair(
        sources, targets, comparison.residual.plain_predictor, "layer pair as it is"
    )
    return residual, plain


def r2_of_every_layer_pair(
    sources: Sequence[Float[Tensor, "n _"]],
    targets: Sequence[Float[Tensor, "n _"]],
    predictor: Callable[[Tensor], Predictor],
    counted: str,
) -> Values:
    """Return the held-out R² of each target layer from each source layer, and in reverse.

    Source layers are taken in blocks whose ridge predictors fit into `PREDICTOR_BYTES`. Those of
    target layers are made again for each block.

    Args:
        sources: The states of the source, by layer.
        targets: The states of the target, by layer. They are the same list if a model is compared
            with itself: each pair is then fitted once.
        predictor: Makes the ridge predictor from a layer's states.
        counted: What the progress display calls a layer pair.
    """
    is_itself = targets is sources
    widest = max(states.shape[1] for states in sources)
    bytes_of_each = bytes_of_predictor(len(sources[0]), widest)
    block_size = max(int(PREDICTOR_BYTES / bytes_of_each), 1)

    values: dict[tuple[int, int], Float[Tensor, "2 replicates"]] = {}
    with doing(counted, len(sources) * len(targets)) as activity:
        for first in range(0, len(sources), block_size):
            block = [predictor(states) for states in sources[first : first + block_size]]
            for target_layer, states in enumerate(targets):
                if is_itself and target_layer < first:
                    continue  # an earlier block has fitted its pairs
                if is_itself and target_layer < first + len(block):
                    target = block[target_layer - first]
                else:
                    target = predictor(states)

                for source_layer, source in enumerate(block, first):
                    if is_itself and source_layer > target_layer:
                        continue  # the pair is fitted in the other direction
                    of_pair = both_ways(source, target)
                    values[source_layer, target_layer] = of_pair
                    if is_itself:
                        values[target_layer, source_layer] = of_pair.flip(0)
                    activity.reach(len(values))

    rows = []
    for source_layer in range(len(sources)):
        row = [values[source_layer, target_layer] for target_layer in range(len(targets))]
        rows.append(torch.stack(row))
    return torch.stack(rows)


def _interval_columns(
    name: str, values: Float[Tensor, "l m replicates"]
) -> dict[str, Float[Tensor, "l m"]]:
    """Return the columns of a value and of the ends of its 95 % interval over documents.

    The ends are called NAME_low and NAME_high, or "low" and "high" if the name is "value".

    Args:
        name: The name of the column.
        values: Replicates of each layer pair. The first is the value of all documents, and each
            further one leaves a part of the documents out.
    """
    prefix = "" if name == "value" else f"{name}_"
    estimate = with_interval(values)
    return {
        name: estimate.value,
        f"{prefix}low": estimate.low,
        f"{prefix}high": estimate.high,
    }
