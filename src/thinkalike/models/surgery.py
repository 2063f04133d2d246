"""Changes to a module that undo themselves: skipped blocks, and states that are captured or replaced."""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from transformers import masking_utils
from transformers.pytorch_utils import Conv1D

_CHANGING = threading.Lock()  # held while the next two change
_LOCKS: WeakKeyDictionary[nn.Module, Any] = WeakKeyDictionary()  # of each module, see `alone`
_one_text_per_row: list[Any] = []  # transformers' own function, once for each running pass, see `one_text_per_row`


class _Reached(Exception):
    """Ends a pass once all wanted states have been captured."""


def alone(module: nn.Module) -> contextlib.AbstractContextManager[Any]:
    """Let no other thread pass through a module while the context is open: its hooks would see both passes."""
    with _CHANGING:
        return _LOCKS.setdefault(module, threading.RLock())  # type: ignore[no-any-return]


def passed_over(blocks: Sequence[nn.Module], forms: Sequence[int | None]) -> contextlib.AbstractContextManager[None]:
    """Let blocks return their input while the context is open, in the form of their output.

    A form is None for a tensor, or the length of a tuple whose first part is the state.
    """
    return replaced_forward(blocks, [functools.partial(_same, form) for form in forms])


@contextlib.contextmanager
def replaced_forward(blocks: Sequence[nn.Module], forwards: Sequence[Callable[..., Any]]) -> Iterator[None]:
    """Give each block another forward pass while the context is open, and then its own, or that of an outer context."""
    own = [vars(block).get("forward") for block in blocks]
    try:
        for block, forward in zip(blocks, forwards, strict=True):
            vars(block)["forward"] = forward  # a wrapper of TransformerLens would hand on what is assigned
        yield
    finally:
        for block, before in zip(blocks, own, strict=True):
            vars(block).pop("forward", None)
            if before is not None:
                vars(block)["forward"] = before


def captured_input(module: nn.Module, key: Any, states: dict[Any, Tensor]) -> contextlib.AbstractContextManager[Any]:
    """Store the state that enters a module in every pass as `states[key]` while the context is open."""
    return module.register_forward_pre_hook(
        lambda _, args, named: states.update({key: _state_in(args, named)}), with_kwargs=True
    )


def captured_output(module: nn.Module, key: Any, states: dict[Any, Tensor]) -> contextlib.AbstractContextManager[Any]:
    """Store the first output of every pass through a module as `states[key]` while the context is open."""
    return module.register_forward_hook(lambda _, args, output: states.update({key: first_tensor(output)}))


def replaced_input(module: nn.Module, state: Tensor) -> contextlib.AbstractContextManager[Any]:
    """Let this state enter a module in every pass while the context is open."""
    return module.register_forward_pre_hook(functools.partial(_replace_input, state), with_kwargs=True)


@contextlib.contextmanager
def one_text_per_row() -> Iterator[None]:
    """Let no pass of transformers look for several texts in a row, which waits for the device, while this is open."""
    with _CHANGING:
        _one_text_per_row.append(masking_utils.find_packed_sequence_indices)
        masking_utils.find_packed_sequence_indices = lambda _: None
    try:
        yield
    finally:
        with _CHANGING:
            before = _one_text_per_row.pop()  # the last pass to end takes out what the first one found
            if not _one_text_per_row:
                masking_utils.find_packed_sequence_indices = before


@contextlib.contextmanager
def cast_once(module: nn.Module, dtype: torch.dtype) -> Iterator[None]:
    """Give every linear map of a module weights of this dtype while the context is open, as autocast would.

    Autocast casts frozen weights again in every product. Values stay the same to the bit under autocast. Embeddings
    keep their own weights, also those that a linear map shares. The copies take half the memory of the float32 maps.
    """
    maps = [part for part in module.modules() if isinstance(part, nn.Linear | Conv1D)]
    own = [(part, name, weight) for part in maps for name, weight in part._parameters.items() if weight is not None]
    own = [each for each in own if each[2].dtype == torch.float32]
    copies = {id(weight): nn.Parameter(weight.to(dtype), requires_grad=False) for _, _, weight in own}
    try:
        for part, name, weight in own:
            part._parameters[name] = copies[id(weight)]
        yield
    finally:
        for part, name, weight in own:
            part._parameters[name] = weight


def recomputed(blocks: Sequence[nn.Module]) -> contextlib.AbstractContextManager[None]:
    """Let blocks run again in the backward pass while the context is open; hooks stay outside of it.

    Values and gradients stay the same to the bit, as frozen blocks have no dropout. It takes a third more time and
    about a twentieth of the memory.
    """
    return replaced_forward(blocks, [_again_in_backward(block.forward) for block in blocks])


def _again_in_backward(forward: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(forward)
    def run(*args: Any, **keywords: Any) -> Any:
        if not torch.is_grad_enabled():
            return forward(*args, **keywords)
        return checkpoint(forward, *args, use_reentrant=False, preserve_rng_state=False, **keywords)

    return run


@contextlib.contextmanager
def ended_at(module: nn.Module, *, entering: bool = False) -> Iterator[None]:
    """End the pass that runs inside of the context where it leaves or enters a module; what was captured stays."""
    register = module.register_forward_pre_hook if entering else module.register_forward_hook
    with contextlib.suppress(_Reached), register(_end):
        yield


def first_tensor(output: Any) -> Tensor:
    """Return the output of a module that returns a tensor, or the first of several."""
    return output if isinstance(output, Tensor) else output[0]


def _replace_input(state: Tensor, _: nn.Module, args: tuple, kwargs: dict[str, Any]) -> tuple[tuple, dict[str, Any]]:
    if args:
        return (state, *args[1:]), kwargs
    return args, kwargs | {_name_of_state(kwargs): state}


def _end(*_: Any) -> None:
    raise _Reached


def _same(form: int | None, *args: Any, **kwargs: Any) -> Any:
    """Return the state that a block was given, in the form in which the block returns one."""
    state = _state_in(args, kwargs)
    return state if form is None else (state, *[None] * (form - 1))


def _state_in(args: tuple, kwargs: dict[str, Any]) -> Any:
    return args[0] if args else kwargs[_name_of_state(kwargs)]


def _name_of_state(kwargs: dict[str, Any]) -> str:
    """Return the name by which a block is given the state: the first one, by convention hidden_states."""
    return "hidden_states" if "hidden_states" in kwargs else next(iter(kwargs))
