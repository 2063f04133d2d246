"""Where states come from: a model, or a folder of states that a model computed elsewhere.

A `StateSource` gives the states of rows of tokens. A `FrozenModel` computes them, and a
`StateFolder` looks up what was written. Instruments that only compare states take either.
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
    """What sources of states need of a tokenizer of transformers."""

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
    ) -> str:
        """Return the text of some tokens.

        Args:
            token_ids: The tokens.
            skip_special_tokens: Whether special tokens are left out of the text.
            clean_up_tokenization_spaces: Whether spaces before punctuation are removed.
        """


@runtime_checkable
class TextReader(Protocol):
    """What decides which tokens of a text a model reads, and how many fit into a row."""

    @property
    def name(self) -> str: ...
    @property
    def context(self) -> int: ...
    def encoded(self, text: str) -> tuple[list[int], list[Span]]:
        """Return the token ids of a text that is read alone, and the characters of each.

        Special tokens have an empty span.
        """


AnyLayer = TypeVar("AnyLayer", contravariant=True)


@runtime_checkable
class WordReader(TextReader, Protocol[AnyLayer]):
    """A `TextReader` whose states can be taken at words: a `StateSource`, or a `TokenMixing`."""

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
        """Return the states of rows of tokens at some layers, in the order of `layers`.

        Args:
            tokens: Token ids.
            layers: The layers; their states may have different widths.
            mask: 1 for tokens and 0 for padding; None: there is no padding.
        """


@runtime_checkable
class StateSource(WordReader[Layer], Protocol):
    """A model that computes states, or a folder of states that one computed elsewhere."""

    @property
    def tokenizer(self) -> Tokenizer | None:
        """The tokenizer that cut the text into tokens.

        None: it is not known, and tokens are compared by their numbers.
        """

    @property
    def ids_fingerprint(self) -> str:
        """A digest of all that decides which token ids a text becomes."""

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
        """Return the hook points at which states are taken in these layers, in order of depth."""

    def width(self, layer: Layer) -> int:
        """Return the width of the states of a layer."""

    def sampled_vocabulary(self) -> Int[Tensor, " sample"]:
        """Return some tokens that stand for the whole vocabulary."""

    def embedded(self, vocabulary: Int[Tensor, " v"]) -> Float[Tensor, "v d"]:
        """Return what enters block 0 for each of these tokens as the first of a row."""

    def parameters(self) -> int:
        """Return how many weights are in memory."""

    def check_context(self, asked: int | None) -> None:
        """Raise an error if the source cannot read rows of so many tokens; None: it is not set."""

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
        """Return the token ids of a text that is read alone, and the span of each in the text."""
        return encoded_text(self.tokenizer, text, self.bos_each_row)


def with_weights(sources: Sequence[StateSource], purpose: str) -> list[FrozenModel]:
    """Return the same sources, after a check that each is a model and no folder of stored states.

    Args:
        sources: Models, or folders of states.
        purpose: The part of the error that says what the weights are needed for.

    Raises:
        DataError: A source is a folder of states.
    """
    models = []
    for source in sources:
        if not isinstance(source, FrozenModel):
            raise DataError(
                f"{source.name} is a folder of states, which has no weights, and {purpose}: give "
                "a model"
            )
        models.append(source)
    return models


def reader_of(source: StateSource) -> Reader:
    """Return the tokenizer and context of a source without its weights, as a reader of text.

    Raises:
        DataError: The source has no tokenizer.
    """
    if source.tokenizer is None:
        raise DataError(f"{source.name} has no tokenizer, so that it reads no text")
    return Reader(source.name, source.tokenizer, source.context, source.bos_each_row)


def pairs_of_sources(
    count: int, source: StateSource, target: StateSource
) -> list[tuple[int, int]]:
    """Return at most `count` pairs (source layer, target layer) of about equal relative depth.

    They are evenly spaced from the first to the last of the layers that have states.
    """
    source_depths = _relative_depths(source)
    target_depths = _relative_depths(target)
    pairs = []
    for source_index, target_index in closest_pairs(count, source_depths, target_depths):
        pairs.append((source.layers[source_index], target.layers[target_index]))
    return pairs


def _relative_depths(source: StateSource) -> list[float]:
    """Return the depth of each layer of a source, from 0 for the first block to 1 for the last."""
    last_block = max(source.n_layers - 1, 1)
    return [layer / last_block for layer in source.layers]


def closest_pairs(
    count: int, source: Sequence[float], target: Sequence[float]
) -> list[tuple[int, int]]:
    """Return pairs of indices of two lists of depths, such that the depths are close.

    `count` evenly spaced elements of the shorter list, or all if it has fewer, are each paired
    with the closest depth of the longer list. If `count` is 1, it is the first element.

    >>> closest_pairs(2, [0.0, 0.5, 1.0], [0.0, 0.2, 0.4, 0.6, 0.8, 1.0])
    [(0, 0), (2, 5)]
    """
    # The rest assumes that the source's list is not the longer one.
    if len(target) < len(source):
        swapped = closest_pairs(count, target, source)
        return [(source_index, target_index) for target_index, source_index in swapped]
    count = min(count, len(source))
    steps = max(count - 1, 1)  # between the first and the last pair
    pairs = []
    for number in range(count):
        source_index = round(number * (len(source) - 1) / steps)
        distances = [abs(depth - source[source_index]) for depth in target]
        target_index = distances.index(min(distances))
        pairs.append((source_index, target_index))
    return pairs
