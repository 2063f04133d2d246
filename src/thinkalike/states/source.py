"""Where states come from: a model that computes them, or a folder of states that one computed elsewhere.

A `StateSource` gives the states of rows of tokens. A `FrozenModel` is one, and runs; a `StateFolder` is another, and
looks up what was written. Instruments that only compare states take either.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeVar, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor

from thinkalike.data.words import Span
from thinkalike.errors import DataError
from thinkalike.models.families import Layer
from thinkalike.models.frozen import FrozenModel, encoded_text


@runtime_checkable
class Tokenizer(Protocol):
    """The part of a tokenizer of transformers that sources of states need."""

    @property
    def all_special_ids(self) -> list[int]: ...
    @property
    def bos_token_id(self) -> int | None: ...
    def get_vocab(self) -> dict[str, int]: ...
    def save_pretrained(self, save_directory: Path) -> object: ...
    def decode(
        self,
        token_ids: list[int],
        skip_special_tokens: bool = False,
        *,
        clean_up_tokenization_spaces: bool = False,
    ) -> str: ...


@runtime_checkable
class TextReader(Protocol):
    """What decides which tokens of a text a model reads, and how many fit into a row."""

    @property
    def name(self) -> str: ...
    @property
    def context(self) -> int: ...
    def encoded(self, text: str) -> tuple[list[int], list[Span]]:
        """Return the tokens of a text that is read alone, and the characters of each; special tokens have none."""


AnyLayer = TypeVar("AnyLayer", contravariant=True)


@runtime_checkable
class WordReader(TextReader, Protocol[AnyLayer]):
    """A `TextReader` whose states can be taken at the tokens of words: a `StateSource`, or a `TokenMixing`."""

    @property
    def identity(self) -> int:
        """A number that readers share if they give the same states, whatever they are called."""

    @property
    def device(self) -> torch.device: ...
    def residuals(
        self,
        tokens: Int[Tensor, "b t"],
        layers: Sequence[AnyLayer],
        mask: Int[Tensor, "b t"] | None = None,
    ) -> list[Float[Tensor, "b t _"]]:
        """Return the states of rows of tokens at these layers; the mask is 1 for tokens and 0 for padding."""


@runtime_checkable
class StateSource(WordReader[Layer], Protocol):
    """A model that computes states, or a folder of states that one computed elsewhere."""

    @property
    def tokenizer(self) -> Tokenizer | None:
        """What cut text into the tokens; None: it is not known, and tokens are compared by their numbers."""

    @property
    def ids_fingerprint(self) -> str:
        """A digest of all that decides which ids a text becomes, the same for sources that cut texts alike."""

    @property
    def bos_each_row(self) -> bool: ...
    @property
    def revision(self) -> str:
        """Which version of the model it is."""

    @property
    def vocabulary(self) -> int:
        """One more than the largest token id."""

    @property
    def dtype(self) -> torch.dtype: ...
    @property
    def d_model(self) -> int:
        """The width of the residual stream."""

    @property
    def n_layers(self) -> int:
        """The number of blocks of the model."""

    @property
    def layers(self) -> Sequence[int]:
        """The numbers of the blocks after which there are states."""

    def sites_at(self, layers: Iterable[int]) -> list[Layer]:
        """Return the places at which states are taken in these layers."""

    def width(self, layer: Layer) -> int:
        """Return the width of the states of a layer."""

    def sampled_vocabulary(self) -> Int[Tensor, " sample"]:
        """Return some tokens that stand for the whole vocabulary."""

    def embedded(self, vocabulary: Int[Tensor, " v"]) -> Float[Tensor, "v d"]:
        """Return what enters block 0 for each of these tokens in the first place of a row."""

    def parameters(self) -> int:
        """Return how many weights are in memory."""

    def check_context(self, asked: int | None) -> None:
        """Raise an error if rows of this many tokens are longer than what the source can read."""

    def fingerprint(self) -> str:
        """Return a digest of everything that decides the states."""

    def describe(self) -> dict[str, str]:
        """Return what the provenance of a result says of the source."""


@dataclass(frozen=True)
class Reader:
    """What decides which tokens of a text a model reads, without the model's weights."""

    name: str
    tokenizer: Tokenizer
    context: int
    bos_each_row: bool

    def encoded(self, text: str) -> tuple[list[int], list[Span]]:
        return encoded_text(self.tokenizer, text, self.bos_each_row)


def with_weights(sources: Sequence[StateSource], asked: str) -> list[FrozenModel]:
    """Return sources that are all models; a DataError says which is none, and what asked for weights."""
    models = [source for source in sources if isinstance(source, FrozenModel)]
    if len(models) < len(sources):
        without = next(source.name for source in sources if not isinstance(source, FrozenModel))
        raise DataError(
            f"{without} is a folder of states, which has no weights, and {asked}: give a model"
        )
    return models


def reader_of(source: StateSource) -> Reader:
    """Return what decides which tokens of a text a source reads, without its weights."""
    if source.tokenizer is None:
        raise DataError(f"{source.name} has no tokenizer, so that it reads no text")
    return Reader(source.name, source.tokenizer, source.context, source.bos_each_row)


def pairs_of_sources(
    count: int, source: StateSource, target: StateSource
) -> list[tuple[int, int]]:
    """Return as many pairs of layers of about equal relative depth, among those of which there are states."""
    depths = [
        [layer / max(side.n_layers - 1, 1) for layer in side.layers] for side in (source, target)
    ]
    return [
        (source.layers[ours], target.layers[theirs])
        for ours, theirs in closest_pairs(count, *depths)
    ]


def closest_pairs(
    count: int, source: Sequence[float], target: Sequence[float]
) -> list[tuple[int, int]]:
    """Return pairs of places in two lists of depths: some of the shorter list, each with the closest one of the other.

    >>> closest_pairs(2, [0.0, 0.5, 1.0], [0.0, 0.2, 0.4, 0.6, 0.8, 1.0])
    [(0, 0), (2, 5)]
    """
    if len(target) < len(source):
        return [(ours, theirs) for theirs, ours in closest_pairs(count, target, source)]
    count = min(count, len(source))
    places = [round(place * (len(source) - 1) / max(count - 1, 1)) for place in range(count)]
    return [
        (place, min(range(len(target)), key=lambda number: abs(target[number] - source[place])))
        for place in places
    ]
