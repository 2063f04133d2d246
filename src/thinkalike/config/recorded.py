"""Recorded states of stimuli in memory, as an entry of `activations`, in place of a file."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from functools import cached_property
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

IN_ORDER = "order"  # in place of the ids of recorded states: row i is stimulus i
DIGITS = 16  # of a fingerprint


class RecordedArrays:
    """Recorded states of stimuli in memory, whose rows are in the order of the stimuli.

    Attributes:
        name: What tables call them.
        argument: What errors call them, such as source or models[0].
        layers: The states of each layer by its name, all (stimuli, width); or one array
            (layers, stimuli, width).
        path: The file or folder that the arrays were read from; None: they were in memory.
    """

    def __init__(
        self, name: str, argument: str, layers: Mapping[str, Tensor], path: str | None = None
    ):
        self.name = name
        self.argument = argument
        self.layers = layers
        self.path = path

    def __repr__(self) -> str:
        return self.argument

    @cached_property
    def fingerprint(self) -> str:
        """The name, and the first digits of the SHA-256 of the arrays as safetensors."""
        from safetensors.numpy import save

        arrays = {name: states.numpy() for name, states in self.layers.items()}
        content = save(arrays, metadata={"ids": IN_ORDER})
        return f"{self.name} {hashlib.sha256(content).hexdigest()[:DIGITS]}"
