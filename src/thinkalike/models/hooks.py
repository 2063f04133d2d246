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

from thinkalike.global_state import renewed_in_forked_processes

# What a forward pass is called with, as hooks see it.
Arguments = tuple[object, ...]
NamedArguments = dict[str, object]

# The name under which blocks of transformers are given the state.
STATE_ARGUMENT = "hidden_states"

# Held while the two variables below change.
_changing = threading.Lock()

# A lock for each module, see `pass_lock`.
_locks: WeakKeyDictionary[nn.Module, contextlib.AbstractContextManager[bool]] = WeakKeyDictionary()

# The function of transformers that `one_text_per_row` replaces, once for each context that is
# open.
_replaced_functions: list[Callable[..., object]] = []


class _PassEnded(Exception):
    """Ends a pass once all wanted states have been captured."""


def pass_lock(module: nn.Module) -> contextlib.AbstractContextManager[bool]:
    """Return the lock under which a module's forward pass runs; each module has one lock.

    Without it, the hooks that one thread registers would also act on the pass of another thread.
    The thread that holds the lock may take it again.
    """
    with _changing:  # so that two threads do not make two locks for a module
        return _locks.setdefault(module, threading.RLock())


def _renew_locks() -> None:
    """Let a forked process run models whose passes ran in another thread, which it lacks."""
    global _changing
    _changing = threading.Lock()
    _locks.clear()


renewed_in_forked_processes(_renew_locks)


@contextlib.contextmanager
def replaced_forward(
    blocks: Sequence[nn.Module], forwards: Sequence[Callable[..., object]]
) -> Iterator[None]:
    """Replace the forward pass of each block by the function at the same index of `forwards`.

    When the context closes, a block runs its earlier forward pass again: that of its class, or the
    one that an outer context of this kind had put in place.
    """
    # None: the block runs the forward of its class.
    earlier_forwards = [vars(block).get("forward") for block in blocks]
    try:
        for block, forward in zip(blocks, forwards, strict=True):
            # `block.forward = forward` would, on a wrapper of TransformerLens, set the attribute
            # of the module that is wrapped.
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
    """Return a context in which blocks compute nothing, and return the state that they are given.

    Args:
        blocks: The blocks to skip.
        tuple_lengths: For each block the length of the tuple that it returns, which it keeps when
            it is skipped; None: it returns a tensor.
    """
    forwards = [functools.partial(_return_state, length) for length in tuple_lengths]
    return replaced_forward(blocks, forwards)


def _return_state(
    tuple_length: int | None, *args: object, **kwargs: object
) -> Tensor | tuple[Tensor | None, ...]:
    """Stand in for the forward pass of a skipped block: return the state that it is given.

    With a `tuple_length`, the state is the first member of a tuple of that length, whose other
    members, such as attention weights, are None.
    """
    state = state_in(args, kwargs)
    if tuple_length is None:
        return state
    return (state, *[None] * (tuple_length - 1))


@contextlib.contextmanager
def without_hooks_on(blocks: Sequence[nn.Module]) -> Iterator[None]:
    """Take the forward hooks off these blocks while the context is open.

    Such a hook may, for example, add a steering vector. Hooks of modules inside the blocks stay.
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
    """Make transformers treat each row as one text while the context is open.

    Otherwise it searches the positions of each row for several packed texts, and has to wait for
    the GPU. The function that searches is replaced by one that finds nothing. The lock `_changing`
    is held while it is replaced.
    """
    from transformers import masking_utils  # imports torch's compiler, which takes a second

    with _changing:
        _replaced_functions.append(masking_utils.find_packed_sequence_indices)
        masking_utils.find_packed_sequence_indices = lambda _: None
    try:
        yield
    finally:
        with _changing:
            # Contexts of several threads may close in any order. Only the last one to close puts
            # back the original, which is the first of the list. All later entries are replacements
            # that an earlier context had put in place.
            earlier_function = _replaced_functions.pop()
            if not _replaced_functions:
                masking_utils.find_packed_sequence_indices = earlier_function


def recomputed_in_backward(forward: Callable[..., object]) -> Callable[..., object]:
    """Return a forward pass with gradient checkpointing.

    It keeps no intermediate states; the backward pass runs `forward` again instead. `forward` must
    not draw random numbers, since the second run would draw others.
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
    """End a forward pass early: after a module has run, or, if `entering`, before it runs.

    The pass raises an exception that this context catches. So the statements of the `with` block
    that follow the pass do not run either, and the pass returns nothing.
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
    """Return a context in which a block reads `state` instead of the state that it is given.

    It is the handle of a hook: leaving the context removes the hook.
    """

    def replace(
        _: nn.Module, args: Arguments, kwargs: NamedArguments
    ) -> tuple[Arguments, NamedArguments]:
        """Return the arguments of the block's forward pass, with `state` as its input state."""
        if args:
            return (state, *args[1:]), kwargs
        return args, kwargs | {_name_of_state(kwargs): state}

    return block.register_forward_pre_hook(replace, with_kwargs=True)


def state_in(args: Arguments, kwargs: NamedArguments) -> Tensor:
    """Return the hidden state among the arguments with which a module is called.

    It is the first positional argument. Without any it is the keyword argument `hidden_states`,
    or else the first keyword argument.
    """
    if args:
        return cast(Tensor, args[0])
    return cast(Tensor, kwargs[_name_of_state(kwargs)])


def _name_of_state(kwargs: NamedArguments) -> str:
    """Return the name of the keyword argument that holds a block's hidden state.

    By convention it is "hidden_states". Without that argument it is the first one.
    """
    if STATE_ARGUMENT in kwargs:
        return STATE_ARGUMENT
    return next(iter(kwargs))
