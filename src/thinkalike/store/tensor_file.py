"""Files of tensors, such as the stitches of a result, on disk or in memory."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:
    from torch import Tensor


@runtime_checkable
class TensorReader(Protocol):
    """An open file of tensors: one of safetensors, or a `TensorFile`."""

    def keys(self) -> list[str]:
        """Return the names of the tensors."""

    def get_tensor(self, name: str) -> Tensor:
        """Return the tensor of this name."""

    def metadata(self) -> dict[str, str]:
        """Return the texts that describe the tensors, by name."""


@dataclass(frozen=True)
class TensorFile:
    """A file of tensors in memory.

    Attributes:
        tensors: the tensors by name.
        about: texts that describe them, by name.
    """

    tensors: Mapping[str, Tensor]
    about: Mapping[str, str]

    def keys(self) -> list[str]:
        """Return the names of the tensors."""
        return list(self.tensors)

    def get_tensor(self, name: str) -> Tensor:
        """Return the tensor of this name."""
        return self.tensors[name]

    def metadata(self) -> dict[str, str]:
        """Return the texts that describe the tensors, by name."""
        return dict(self.about)

    def write(self, path: Path) -> None:
        """Write the tensors and their description as a .safetensors file."""
        from safetensors.torch import save_file

        save_file(dict(self.tensors), path, metadata=dict(self.about))


@contextlib.contextmanager
def opened_safetensors(path: Path) -> Iterator[TensorReader]:
    """Open a .safetensors file for reading; its tensors are read one by one."""
    from safetensors import safe_open

    with safe_open(path, framework="pt") as file:
        yield file
