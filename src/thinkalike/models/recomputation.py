"""Blocks that keep nothing but their input for the backward pass, and compute the rest again there."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint


@contextlib.contextmanager
def recomputed(blocks: Iterable[nn.Module]) -> Iterator[None]:
    """Let blocks run again in the backward pass while the context is open; hooks stay outside of it.

    Values and gradients stay the same to the bit, as frozen blocks have no dropout. A third more time, and a block's
    input in place of all that happens in it, which is an n-th of the memory with n some 20.
    """
    with contextlib.ExitStack() as undone:
        for block in blocks:
            before = vars(block).get("forward")  # of another context, such as that of compiled blocks
            undone.callback(_put_back, block, before)
            vars(block)["forward"] = _again_in_backward(block.forward)
        yield


def _again_in_backward(forward: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(forward)
    def run(*args: Any, **keywords: Any) -> Any:
        if not torch.is_grad_enabled():
            return forward(*args, **keywords)
        return checkpoint(forward, *args, use_reentrant=False, preserve_rng_state=False, **keywords)

    return run


def _put_back(block: nn.Module, before: Any) -> None:
    vars(block).pop("forward", None)
    if before is not None:
        vars(block)["forward"] = before
