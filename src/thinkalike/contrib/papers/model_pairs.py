"""Pairs of a source and a target model, and the layers at which they are compared."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import NamedTuple

from thinkalike.config import ModelConfig
from thinkalike.contrib.papers.experiment import ExperimentRun
from thinkalike.models import labels
from thinkalike.models.shapes import shape_of

MODELS = {
    "mini": ["gpt2-mini", "gpt2-mini-s1"],
    "paper": ["pythia-70m-deduped", "pythia-160m-deduped", "gpt2", "gpt2-medium"],
}


class Pair(NamedTuple):
    """A source and a target."""

    source: ModelConfig
    target: ModelConfig

    @property
    def label(self) -> str:
        """The names of both models, such as "GPT-2 into BERT"."""
        return f"{labels.label(self.source)} into {labels.label(self.target)}"

    def layers(self, depths: Sequence[Fraction] = ()) -> list[list[int]]:
        """Return pairs [source layer, target layer] at the same relative depths.

        The list is empty if the number of blocks of a model is unknown before it is loaded.

        Args:
            depths: Relative depths as shares of the blocks, such as 1/2: layers are compared after
                this share. If empty, there is a depth for each layer of the shallower model.
        """
        source_shape = shape_of(self.source)
        target_shape = shape_of(self.target)
        if source_shape is None or target_shape is None:
            return []
        n_source_blocks = source_shape.layers
        n_target_blocks = target_shape.layers
        if not depths:
            n_depths = min(n_source_blocks, n_target_blocks)
            depths = [Fraction(number, n_depths) for number in range(1, n_depths + 1)]
        return [
            [_layer_at(depth, n_source_blocks), _layer_at(depth, n_target_blocks)]
            for depth in depths
        ]


def _layer_at(depth: Fraction, n_blocks: int) -> int:
    """Return the index of the layer after a share of a model's blocks, and at least one block."""
    n_blocks_before = max(round(depth * n_blocks), 1)
    return n_blocks_before - 1


def pairs_of(experiment: ExperimentRun) -> list[Pair]:
    """Return the models of an experiment in pairs: the first and second, the third and fourth...

    The last one of an odd number of models is left out.
    """
    models = list(experiment.models.values())
    sources = models[::2]
    targets = models[1::2]  # one fewer than sources if the number of models is odd
    return [Pair(source, target) for source, target in zip(sources, targets, strict=False)]


def layers_argument(experiment: ExperimentRun, pair: Pair, depths: Sequence[Fraction] = ()) -> str:
    """Return the argument layers=... of the command line that compares a pair of models.

    It holds the layers that the user asked for. If the user asked for none, or for "same", it
    holds the pairs of layers at equal relative depth. If the number of blocks is unknown before a
    model is loaded, it is "layers=same", which stands for layers of equal number.

    Args:
        experiment: The experiment, whose configuration may name layers.
        pair: The source and the target.
        depths: Shares of the blocks of both models; empty: the depths of all layers.
    """
    layers: object = experiment.config.layers
    if layers in (None, "same"):
        layers = pair.layers(depths) or "same"
    return f"layers={layers}".replace(" ", "")
