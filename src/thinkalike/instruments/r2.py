"""measure=r2: what a linear map of each layer of one model predicts of each layer of the other, in both directions.

R² is that of states less the word, its position and linear mixing of the earlier tokens, as `measure=ruler` has it for
a few layer pairs, and beside it that of the states as they are.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from jaxtyping import Float
from torch import Tensor

from thinkalike.config import AnalyzeConfig, MeasureConfig, setting
from thinkalike.instruments.layer_pairs import screen
from thinkalike.instruments.layer_pairs.frame import LayerMatrix, fewer_layers, layers_compared
from thinkalike.instruments.ruler import (
    LEAST_WORDS,
    WORDS,
    compare_words,
    facts_of_words,
    fewest_words,
    say_left_out,
    seconds_of_maps,
    tokens_of_words,
)  # fmt: skip
from thinkalike.job import Outcome, Work
from thinkalike.job.budget_ladder import LADDER
from thinkalike.measures.contract import SAME_SHAPE
from thinkalike.measures.ridge import Predictor, both_ways, bytes_of_predictor, with_interval
from thinkalike.models.shapes import Passes, Shapes
from thinkalike.processes import doing
from thinkalike.screen import show_text
from thinkalike.states.folder import load_sources
from thinkalike.store import Result
from thinkalike.tables import layer_rows, matrix_rows

PREDICTORS = 2**31  # bytes of predictors of source layers in memory at once


@dataclass
class R2Config(MeasureConfig):
    """The settings of held-out R² of all layer pairs."""

    kind: str = "r2"
    # of held-out text, in pieces of up to 128
    words: int = setting(WORDS, least=LEAST_WORDS, most=10**8)
    embed: bool = False  # also the site before block 0
    massive: Literal["drop", "keep"] = "drop"  # the few words whose long states decide some layer


class LayerR2(LayerMatrix, kind="r2", version=12, reads=("model", "target", "layers", "data", "measure")):
    """Predicts all layers of `model@target` from all of `model`, and back."""

    formula = (
        "[residual R²](layer-pairs.md#a-changed-copy-and-linear-maps): held-out R² of ridge regression, both ways, "
        "beyond word, position and linear mixing of tokens"
    )
    value_range = (-math.inf, 1.0)
    best = 1.0
    source = ""
    invariances = SAME_SHAPE
    in_atlas = True
    smallest: ClassVar[Mapping[str, Any]] = {"measure.words": 8192}

    def passes(self, config: AnalyzeConfig, shapes: Shapes) -> list[Passes]:
        tokens = tokens_of_words(config.measure.words)  # type: ignore[attr-defined]
        return [each.passes("models", tokens, 128, full=False) for each in dict.fromkeys(shapes.values())]

    def seconds(self, config: AnalyzeConfig, shapes: Shapes) -> float:
        """Return what the maps take, of residuals and of the states as they are."""
        compared = layers_compared(config, shapes)
        source = shapes["model"]
        target = shapes.get("target", source)
        words = config.measure_as(R2Config).words
        of_layer, of_pair = seconds_of_maps(words, max(source.width, target.width))
        return 2 * (of_layer * sum(compared.values()) + of_pair * compared[source] * compared[target])

    def smaller(self, config: AnalyzeConfig, shapes: Shapes, chosen: Collection[str]) -> Iterator[dict[str, Any]]:
        """Yield fewer layers of equal relative depth, and then fewer words, as many as a number needs at least."""
        words = config.measure.words  # type: ignore[attr-defined]
        least = min(fewest_words(shape.width for shape in shapes.values()), words)
        for layers, share in LADDER:
            fewer = fewer_layers(layers, shapes)
            if share > 1:
                fewer["measure.words"] = max(words // share, least)
            yield fewer

    def holds(self, config: AnalyzeConfig, shapes: Shapes) -> float:
        """Return the bytes of the states of all words at all layers, and of the maps that are made at once."""
        layers = layers_compared(config, shapes)
        floats = sum(count * each.width for each, count in layers.items())
        return 4.0 * config.measure.words * floats + PREDICTORS  # type: ignore[attr-defined]

    def run(self, config: AnalyzeConfig, work: Work) -> Outcome:
        measure = config.measure_as(R2Config)
        with work.phase("loading"):
            models = load_sources(config.model, config.target)
        sites = self.sites(config, models)
        with work.phase("models"):
            keeps_massive = measure.massive == "keep"
            compared = compare_words(config.data, models, sites, measure.words, keeps_massive=keeps_massive)
        say_left_out(compared)
        described = [model.describe() for model in models]
        names = [model.name for model in models]
        layers = [layer_rows(name, self.named(own)) for name, own in zip(names, sites, strict=True)]
        sources, targets = compared.states
        if models[0] is models[1]:
            targets = sources
        with work.phase("maps"):
            residual = all_pairs(sources, targets, compared.residual.predictor, "layer pair")
            plain = all_pairs(sources, targets, compared.residual.plain_predictor, "layer pair as it is")
        ways = {
            "value": residual[:, :, 0],
            "back": residual[:, :, 1],
            "plain": plain[:, :, 0],
            "plain_back": plain[:, :, 1],
        }
        columns: dict[str, Tensor] = {}
        for column, shares in ways.items():
            columns |= _with_ends(column, shares)
        table = matrix_rows(layers[0], layers[1], **columns)
        arrays = {column: columns[column].numpy() for column in ways}
        components = screen.components_of(table, self.is_distance) if names[0] != names[1] else {}
        facts = facts_of_words(config.data)
        return Outcome(table, compared.numbers(), arrays, tables=components, models=described, facts=facts)

    def label(self, result: Result) -> str:
        """Return what tables and figures call the measure; results of earlier versions are of states as they are."""
        label = super().label(result)
        return label if "plain" in result.table else label.replace(self.name, "R²")

    def show(self, result: Result) -> None:
        super().show(result)
        if "plain" in result.table:
            compared = screen.at_equal_depth(result.table)
            ends = [f"{value:.2f}" for value in (compared["plain"].min(), compared["plain"].max())]
            span = " to ".join(dict.fromkeys(ends))
            show_text(f"With words, positions and neighbours left in, R² is {span} at these layers.")


def all_pairs(
    sources: Sequence[Tensor], targets: Sequence[Tensor], predictor: Callable[[Tensor], Predictor], counted: str
) -> Float[Tensor, "l m 2 replicates"]:
    """Return the R² of each target layer from each source layer, and back, and those without each part of documents.

    Predictors of as many source layers as fit into `PREDICTORS` bytes are in memory at once, and those of target layers
    are made again for the next.

    Args:
        targets: The same list as the sources if a model is compared with itself: each pair is then fitted once.
        predictor: Makes the predictor of a layer's states.
        counted: What the progress calls a pair of layers.
    """
    is_itself = targets is sources
    values: dict[tuple[int, int], Tensor] = {}
    held = bytes_of_predictor(len(sources[0]), max(states.shape[1] for states in sources))
    at_once = max(int(PREDICTORS / held), 1)
    with doing(counted, len(sources) * len(targets)) as activity:
        for first in range(0, len(sources), at_once):
            block = [predictor(states) for states in sources[first : first + at_once]]
            for depth, states in enumerate(targets):
                if is_itself and depth < first:
                    continue
                in_block = is_itself and depth < first + len(block)
                target = block[depth - first] if in_block else predictor(states)
                for layer, source in enumerate(block, first):
                    if is_itself and layer > depth:
                        continue
                    values[layer, depth] = both_ways(source, target)
                    if is_itself:
                        values[depth, layer] = values[layer, depth].flip(0)
                    activity.reach(len(values))
    rows = [torch.stack([values[layer, depth] for depth in range(len(targets))]) for layer in range(len(sources))]
    return torch.stack(rows)


def _with_ends(name: str, shares: Float[Tensor, "l m r"]) -> dict[str, Float[Tensor, "l m"]]:
    """Return the columns of a value and of the ends of its interval."""
    prefix = "" if name == "value" else f"{name}_"
    found = with_interval(shares)
    return {name: found.value, f"{prefix}low": found.low, f"{prefix}high": found.high}
