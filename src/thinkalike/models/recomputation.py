"""Blocks that keep nothing but their input for the backward pass, and compute the rest again there."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from thinkalike.models.surgery import replaced_forward


def recomputed(blocks: Sequence[nn.Module]) -> contextlib.AbstractContextManager[None]:
    """Let blocks run again in the backward pass while the context is open; hooks stay outside of it.

    Values and gradients stay the same to the bit, as frozen blocks have no dropout. A third more time, and a block's
    input in place of all that happens in it, which is an n-th of the memory with n some 20.
    """
    return replaced_forward(blocks, [_again_in_backward(block.forward) for block in blocks])


def _again_in_backward(forward: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(forward)
    def run(*args: Any, **keywords: Any) -> Any:
        if not torch.is_grad_enabled():
            return forward(*args, **keywords)
        return checkpoint(forward, *args, use_reentrant=False, preserve_rng_state=False, **keywords)

    return run
