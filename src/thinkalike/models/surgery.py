"""Changes to a module that undo themselves: submodules that are swapped, and states that are captured or replaced."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from torch import Tensor, nn


@contextlib.contextmanager
def swapped(module: nn.Module, replacements: dict[str, nn.Module]) -> Iterator[None]:
    """Replace the submodules at these dotted paths while the context is open."""
    places = [(*_parent(module, path), new) for path, new in replacements.items()]
    originals = [parent._modules[name] for parent, name, _ in places]
    try:
        for parent, name, new in places:
            parent._modules[name] = new
        yield
    finally:
        for (parent, name, _), original in zip(places, originals, strict=True):
            parent._modules[name] = original


@contextlib.contextmanager
def captured_input(module: nn.Module, key: Any, states: dict[Any, Tensor]) -> Iterator[None]:
    """Store the first input of every pass through a module as `states[key]` while the context is open."""

    def store(_: nn.Module, args: tuple) -> None:
        states[key] = args[0]

    handle = module.register_forward_pre_hook(store)
    try:
        yield
    finally:
        handle.remove()


@contextlib.contextmanager
def captured_output(module: nn.Module, key: Any, states: dict[Any, Tensor]) -> Iterator[None]:
    """Store the first output of every pass through a module as `states[key]` while the context is open."""

    def store(_: nn.Module, args: tuple, output: Any) -> None:
        states[key] = first_tensor(output)

    handle = module.register_forward_hook(store)
    try:
        yield
    finally:
        handle.remove()


@contextlib.contextmanager
def replaced_input(module: nn.Module, state: Tensor) -> Iterator[None]:
    """Give a module this state as the first input of every pass while the context is open."""

    def replace(_: nn.Module, args: tuple, kwargs: dict) -> tuple[tuple, dict]:
        return (state, *args[1:]), kwargs

    handle = module.register_forward_pre_hook(replace, with_kwargs=True)
    try:
        yield
    finally:
        handle.remove()


def first_tensor(output: Any) -> Tensor:
    """Return the output of a module that returns a tensor, or the first of several."""
    return output if isinstance(output, Tensor) else output[0]


def _parent(module: nn.Module, path: str) -> tuple[nn.Module, str]:
    head, _, name = path.rpartition(".")
    return module.get_submodule(head), name
