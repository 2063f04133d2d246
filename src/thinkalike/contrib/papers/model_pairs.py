"""Pairs of a source and a target model, and the layers at which they are compared."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import NamedTuple

from thinkalike.config import ModelConfig
from thinkalike.contrib.papers.experiment import Case
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
        n_blocks = []
        for model in self:
            shape = shape_of(model)
            if shape is None:
                return []
            n_blocks.append(shape.layers)
        if not depths:
            shallower = min(n_blocks)
            depths = [Fraction(number, shallower) for number in range(1, shallower + 1)]
        layer_pairs = []
        for depth in depths:
            # The layer after n blocks has index n - 1.
            layer_pairs.append([max(round(depth * count), 1) - 1 for count in n_blocks])
        return layer_pairs


def pairs_of(case: Case) -> list[Pair]:
    """Return the models of a case two by two."""
    models = list(case.models.values())
    return [Pair(*pair) for pair in zip(models[::2], models[1::2], strict=False)]


def layers_argument(case: Case, pair: Pair, depths: Sequence[Fraction] = ()) -> str:
    """Return the argument layers=... of the command line that compares a pair of models.

    It holds the layers that the user asked for, or else the pairs of layers at equal relative
    depth. If the number of blocks is unknown before a model is loaded, it is "layers=same".

    Args:
        case: The experiment, whose configuration may name layers.
        pair: The source and the target.
        depths: Shares of the blocks of both models; empty: the depths of all layers.
    """
    layers: object = case.config.layers
    if layers in (None, "same"):
        layers = pair.layers(depths) or "same"
    return f"layers={layers}".replace(" ", "")
