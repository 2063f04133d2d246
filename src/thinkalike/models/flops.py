"""How many operations a model's passes take: multiplications and additions of matrix products, two per weight."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn
from transformers.pytorch_utils import Conv1D

from thinkalike.models.frozen import FrozenModel

HEADS, HEAD_WIDTHS = ("num_attention_heads", "n_heads", "n_head"), ("head_dim", "d_head")
ATTENTION_BACK = (
    2.0  # products of attention in the backward pass for each of the forward pass; kernels compute some again
)


@dataclass(frozen=True)
class Operations:
    """The operations of a model's parts for each token; norms, activations and scans are left out, as is usual.

    Attributes:
        blocks: of each block's linear maps, 2 · weights.
        attention: of a block's attention for each token that is attended to, 4 · heads · width of a head; kernels that
            skip what comes later do half of it.
        output: of the linear maps after the blocks, mostly the unembedding.
    """

    blocks: tuple[float, ...]
    attention: float
    output: float

    def forward(self, start: int, stop: int, context: int) -> float:
        """Return the operations for one token of blocks start..stop-1 in a row of so many tokens."""
        return sum(self.blocks[start:stop]) + max(stop - start, 0) * self.attention * context

    def backward(self, start: int, stop: int, context: int) -> float:
        """Return those of the backward pass, in which frozen weights get no gradient."""
        return sum(self.blocks[start:stop]) + max(stop - start, 0) * ATTENTION_BACK * self.attention * context

    def full(self, context: int) -> float:
        """Return the operations of the full pass for one token."""
        return self.forward(0, len(self.blocks), context) + self.output


def operations(model: FrozenModel) -> Operations:
    """Return the operations of a model, from the weights of its linear maps and the shape of its attention."""
    return operations_of(model.module, model.blocks, model.d_model)


def operations_of(module: nn.Module, blocks: Sequence[nn.Module], width: int) -> Operations:
    """Return the operations of a module with these blocks; it may be on the meta device.

    Args:
        width: of its residual stream.
    """
    own = tuple(_products(block.modules()) for block in blocks)
    return Operations(own, 4.0 * _attention_width(module, width), _products(module.modules()) - sum(own))


def _products(parts: Iterable[nn.Module]) -> float:
    return sum(2.0 * part.weight.numel() for part in parts if isinstance(part, nn.Linear | Conv1D))


def _attention_width(module: nn.Module, d_model: int) -> int:
    """Return the width of all heads together; 0 for a model whose configuration names no heads."""
    shape: Any = getattr(module, "config", None) or getattr(module, "cfg", None)
    heads = next((getattr(shape, name) for name in HEADS if getattr(shape, name, None)), 0)
    width = next((getattr(shape, name) for name in HEAD_WIDTHS if getattr(shape, name, None)), None)
    return int(heads * (width or d_model // max(heads, 1)))
