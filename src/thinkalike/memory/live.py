"""The bytes of the tensors that a piece of code makes, and the most of them that exist at the same time.

Temporary memory inside a kernel, which is no tensor, is not seen.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class OverLimit(Exception):
    """The tensors of a measured piece of code have grown beyond the limit."""


class LiveBytes(TorchDispatchMode):
    """Counts the storages on a device that operators make while this is open, until they die.

    A storage that existed before, such as a weight's, does not count, nor does a view of it. Forward and backward
    passes are both seen. The numbers computed are what they would be without it.

        with LiveBytes(device) as live:
            loss = step()
            kept = live.now
            live.restart()
            loss.backward()
        live.peak

    Attributes:
        now: the bytes that exist.
        peak: the most bytes that existed since this began, or since `restart`.

    Args:
        limit: the bytes beyond which the code is stopped.

    Raises:
        OverLimit: there were more; raised by the operator that made them.
    """

    def __init__(self, device: torch.device, limit: float = float("inf")):
        super().__init__()
        self.device, self.limit = device, limit
        self.now = self.peak = 0
        self._known: weakref.WeakSet[Any] = weakref.WeakSet()

    def restart(self) -> None:
        """Forget the peak so far."""
        self.peak = self.now

    def __torch_dispatch__(
        self, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        self._known.update(self._storages((args, kwargs)))  # an operator's input was there before its output
        made = func(*args, **(kwargs or {}))
        for storage in self._storages(made):
            if storage not in self._known:
                self._known.add(storage)
                size = storage.nbytes()
                self.now += size
                weakref.finalize(storage, self._free, size).atexit = False
        self.peak = max(self.peak, self.now)
        if self.now > self.limit:
            raise OverLimit(f"{self.now} bytes of {self.limit:.0f}")
        return made

    def _free(self, size: int) -> None:
        self.now -= size

    def _storages(self, tree: Any) -> list[Any]:
        tensors = (leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor))
        return [tensor.untyped_storage() for tensor in tensors if _same(tensor.device, self.device)]


def _same(one: torch.device, other: torch.device) -> bool:
    return one.type == other.type and (one.index or 0) == (other.index or 0)
