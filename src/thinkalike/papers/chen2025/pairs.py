"""The pairs of models between which features are carried, and the layers at equal relative depth."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import NamedTuple

from thinkalike.models import shape_of
from thinkalike.papers.experiment import Case, Model

MODELS = {
    "mini": ["gpt2-mini", "gpt2-mini-s1"],
    "paper": ["pythia-70m-deduped", "pythia-160m-deduped", "gpt2", "gpt2-medium"],
}


class Pair(NamedTuple):
    """A source and a target."""

    source: Model
    target: Model

    @property
    def label(self) -> str:
        return f"{self.source.name} into {self.target.name}"

    @property
    def words(self) -> tuple[str, ...]:
        """The words of a command line that choose both."""
        return (*self.source.words, *self.target.as_target())

    def layers(self, depths: Sequence[Fraction] = ()) -> list[list[int]]:
        """Return the pairs of layers after these shares of the blocks of both; of each layer of the shallower one.

        None where the number of blocks of a model is not known before it is loaded.
        """
        counts = [shape.layers for model in self if (shape := shape_of(model.config))]
        if len(counts) < 2:
            return []
        fewest = min(counts)
        shares = depths or [Fraction(number, fewest) for number in range(1, fewest + 1)]
        return [[max(round(share * count), 1) - 1 for count in counts] for share in shares]


def pairs_of(case: Case) -> list[Pair]:
    """Return the models of a case two by two."""
    return [Pair(*case.models[place : place + 2]) for place in range(0, len(case.models), 2)]


def layers_word(case: Case, pair: Pair, depths: Sequence[Fraction] = ()) -> str:
    """Return the word that says at which layers a pair is compared: those that were asked for, or at equal depth."""
    asked = case.config.layers
    return f"layers={asked if asked != 'same' else pair.layers(depths) or 'same'}".replace(" ", "")
