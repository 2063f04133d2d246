"""What states can be taken from: a FrozenModel, or anything else that is a function from tokens to states."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor


@runtime_checkable
class StateSource(Protocol):
    """The part of a FrozenModel that a stitch needs of its source: no unembedding, and no more layers than it has.

    Attributes:
        d_model: the width of the states.
        n_layers: the number of layers.
        vocabulary: the number of tokens.
        device, dtype: of the states.
    """

    d_model: int
    n_layers: int
    vocabulary: int
    device: torch.device
    dtype: torch.dtype

    def residuals(self, tokens: Tensor, layers: Sequence[Any], /) -> list[Tensor]:
        """Return the states (b, t, d) of tokens (b, t) at each of these layers."""
