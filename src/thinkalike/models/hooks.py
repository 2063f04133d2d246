"""Changes to a forward pass that undo themselves: where it ends, what a block reads, what runs.

Each function here is a context. While it is open, every pass through the module is changed; when
it closes, the module is as it was.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from typing import NoReturn, cast
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

# What a forward pass is called with, as hooks see it.
Arguments = tuple[object, ...]
NamedArguments = dict[str, object]

# The name under which blocks of transformers are given the state.
STATE_ARGUMENT = "hidden_states"

# Held while the two variables below change.
_changing = threading.Lock()

# A lock for each module, see `alone`.
_locks: WeakKeyDictionary[nn.Module, contextlib.AbstractContextManager[bool]] = WeakKeyDictionary()

# The function of transformers that `one_text_per_row` replaces, once for each context that is
# open.
_replaced_functions: list[Callable[..., object]] = []


class _PassEnded(Exception):
    """Ends a pass once all wanted states have been captured."""


def alone(module: nn.Module) -> contextlib.AbstractContextManager[bool]:
    """Return the lock of a module; while it is held, no other thread passes through the module.

    The hooks of one pass would see the other one. The same thread may take the lock again.
    """
    with _changing:
        return _locks.setdefault(module, threading.RLock())


@contextlib.contextmanager
def replaced_forward(
    blocks: Sequence[nn.Module], forwards: Sequence[Callable[..., object]]
) -> Iterator[None]:
    """Give each block another forward pass.

    Afterwards each has its own again, or the one that an outer context gave it.
    """
    earlier_forwards = [vars(block).get("forward") for block in blocks]
    try:
        for block, forward in zip(blocks, forwards, strict=True):
            # Not by assignment, which a wrapper of TransformerLens would hand on to what it wraps.
            vars(block)["forward"] = forward
        yield
    finally:
        for block, earlier_forward in zip(blocks, earlier_forwards, strict=True):
            vars(block).pop("forward", None)
            if earlier_forward is not None:
                vars(block)["forward"] = earlier_forward


def skipped(
    blocks: Sequence[nn.Module], tuple_lengths: Sequence[int | None]
) -> contextlib.AbstractContextManager[None]:
    """Let blocks return the state that they are given.

    Args:
        blocks: The blocks.
        tuple_lengths: The length of the tuple that each returns; None: it returns a tensor.
    """
    forwards = [functools.partial(_return_state, length) for length in tuple_lengths]
    return replaced_forward(blocks, forwards)


def _return_state(
    tuple_length: int | None, *args: object, **kwargs: object
) -> Tensor | tuple[Tensor | None, ...]:
    """Return the state that a block was given, in the form in which the block returns one.

    In a tuple the state comes first, and None stands for what else the block returns.
    """
    state = state_in(args, kwargs)
    if tuple_length is None:
        return state
    return (state, *[None] * (tuple_length - 1))


@contextlib.contextmanager
def without_hooks_on(blocks: Sequence[nn.Module]) -> Iterator[None]:
    """Let no hook of these blocks run, such as one that adds a steering vector.

    Hooks of modules inside the blocks still run.
    """
    hook_attributes = ("_forward_hooks", "_forward_pre_hooks")
    earlier_hooks = []
    for block in blocks:
        earlier_hooks.append({name: vars(block)[name] for name in hook_attributes})
    try:
        for block in blocks:
            for name in hook_attributes:
                vars(block)[name] = OrderedDict()
        yield
    finally:
        for block, hooks in zip(blocks, earlier_hooks, strict=True):
            vars(block).update(hooks)


@contextlib.contextmanager
def one_text_per_row() -> Iterator[None]:
    """Let no pass of transformers look for several texts in a row.

    The search would wait for the device.
    """
    from transformers import masking_utils  # imports torch's compiler, which takes a second

    with _changing:
        _replaced_functions.append(masking_utils.find_packed_sequence_indices)
        masking_utils.find_packed_sequence_indices = lambda _: None
    try:
        yield
    finally:
        with _changing:
            # Contexts of several threads may close in any order: the last one that closes takes
            # out the function that the first one found.
            original = _replaced_functions.pop()
            if not _replaced_functions:
                masking_utils.find_packed_sequence_indices = original


def recomputed_in_backward(forward: Callable[..., object]) -> Callable[..., object]:
    """Return a forward pass that keeps no states for the backward pass, which runs it again.

    It must not draw random numbers, since the second run would draw others.
    """

    @functools.wraps(forward)
    def run(*args: object, **kwargs: object) -> object:
        if not torch.is_grad_enabled():
            return forward(*args, **kwargs)
        run_forward = functools.partial(forward, **kwargs)
        return checkpoint(run_forward, *args, use_reentrant=False, preserve_rng_state=False)

    return run


@contextlib.contextmanager
def ended_at(module: nn.Module, *, entering: bool = False) -> Iterator[None]:
    """End the pass where it leaves a module, or enters it; what was captured stays.

    The code after the pass, inside of the context, does not run either.
    """
    if entering:
        handle = module.register_forward_pre_hook(_end_pass)
    else:
        handle = module.register_forward_hook(_end_pass)
    with contextlib.suppress(_PassEnded), handle:
        yield


def _end_pass(*_: object) -> NoReturn:
    """Raise what ends the pass, as a hook before or after a module."""
    raise _PassEnded


def replaced_input(block: nn.Module, state: Tensor) -> contextlib.AbstractContextManager[object]:
    """Let a block read this state in place of the one that it is given."""

    def replace(
        _: nn.Module, args: Arguments, kwargs: NamedArguments
    ) -> tuple[Arguments, NamedArguments]:
        if args:
            return (state, *args[1:]), kwargs
        return args, kwargs | {_name_of_state(kwargs): state}

    return block.register_forward_pre_hook(replace, with_kwargs=True)


def state_in(args: Arguments, kwargs: NamedArguments) -> Tensor:
    """Return the state among the arguments of a module: the first one."""
    if args:
        return cast(Tensor, args[0])
    return cast(Tensor, kwargs[_name_of_state(kwargs)])


def _name_of_state(kwargs: NamedArguments) -> str:
    """Return the name under which a block is given the state, by convention hidden_states.

    Without that name, it is the first argument.
    """
    if STATE_ARGUMENT in kwargs:
        return STATE_ARGUMENT
    return next(iter(kwargs))
