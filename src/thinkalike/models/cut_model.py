"""What the checks at load use of a model that can be cut, which `FrozenModel` is.

They run while a FrozenModel is made, whose own module imports them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, MutableMapping, Sequence
from typing import TYPE_CHECKING, Protocol, TypeVar, runtime_checkable

import torch
from torch import Tensor, nn

from thinkalike.models.families import Family, Layer, Place, Predicts

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Key = TypeVar("Key")


@runtime_checkable
class CutModel(Protocol):
    """A model whose states can be taken and put in after each block; see `FrozenModel`."""

    name: str
    module: nn.Module
    family: Family
    tokenizer: PreTrainedTokenizerBase
    blocks: list[nn.Module]
    n_layers: int
    vocabulary: int
    context: int
    dtype: torch.dtype

    @property
    def predicts(self) -> Predicts: ...

    def full(
        self, tokens: Tensor, mask: Tensor | None = None, types: Tensor | None = None
    ) -> Tensor: ...

    def residuals(
        self,
        tokens: Tensor,
        layers: Sequence[Layer],
        mask: Tensor | None = None,
        types: Tensor | None = None,
    ) -> list[Tensor]:
        """Return the states (b, t, d) of each of these layers, from one forward pass.

        Args:
            tokens: Rows of token ids, (b, t).
            layers: The layers.
            mask: Which tokens are no padding; None: there is no padding.
            types: The token type of each token, for models that read pairs of texts; None: all are
                of the first type.
        """
        ...

    def advance(
        self, residual: Tensor, start: int, stop: int, mask: Tensor | None = None
    ) -> Tensor: ...

    def finish(self, residual: Tensor, mask: Tensor | None = None) -> Tensor: ...

    def output(self, residual: Tensor, mask: Tensor | None = None) -> Tensor: ...


@runtime_checkable
class StateSites(Protocol):
    """The sites at which the states of a model are taken; see `Sites`."""

    chosen: list[str]
    head: int | str | None

    def at(self, layers: Iterable[int]) -> list[Place]: ...

    def captured(
        self,
        place: Place,
        key: Key,
        batch_shape: Sequence[int],
        states: MutableMapping[Key, Tensor],
    ) -> contextlib.AbstractContextManager[object]:
        """Return a context in which every pass writes the states at `place` to `states[key]`.

        `batch_shape` is the shape of the states without their width, (b, t).
        """
        ...
