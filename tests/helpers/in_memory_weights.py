"""Weights in a dictionary, in place of a file."""

from __future__ import annotations

from torch import Tensor

Weights = dict[str, Tensor]


class InMemory:
    """Weights in a dictionary, which are read as those of a file are."""

    def __init__(self, tensors: Weights):
        self.tensors = tensors

    def shapes(self) -> dict[str, tuple[int, ...]]:
        return {name: tuple(tensor.shape) for name, tensor in self.tensors.items()}

    def read(self, name: str) -> Tensor:
        return self.tensors[name]
