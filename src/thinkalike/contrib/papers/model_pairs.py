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
        """Return the pairs of layers at some relative depths.

        There are none where the number of blocks of a model is unknown before it is loaded.

        Args:
            depths: Shares of the blocks of both models; empty: those of each layer of the
                shallower model.
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
        return [[max(round(depth * count), 1) - 1 for count in n_blocks] for depth in depths]


def pairs_of(case: Case) -> list[Pair]:
    """Return the models of a case two by two."""
    models = list(case.models.values())
    return [Pair(*pair) for pair in zip(models[::2], models[1::2], strict=False)]


def layers_word(case: Case, pair: Pair, depths: Sequence[Fraction] = ()) -> str:
    """Return the word of a command line that says at which layers a pair is compared.

    These are the layers that a user asked for, or those at equal depth. Where the number of
    blocks is unknown, the word is "layers=same".

    Args:
        case: The experiment, whose configuration may name layers.
        pair: The pair of models.
        depths: At which relative depths, see `Pair.layers`.
    """
    layers: object = case.config.layers
    if layers in (None, "same"):
        layers = pair.layers(depths) or "same"
    return f"layers={layers}".replace(" ", "")
