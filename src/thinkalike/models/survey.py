"""What one short pass shows of a model: the width of its stream, what its blocks return, and what it takes."""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable
from typing import Any

from torch import nn

from thinkalike.errors import ModelError
from thinkalike.models.samples import sample_tokens
from thinkalike.models.surgery import first_tensor, form_of


def survey(model: Any) -> tuple[int, list[int | None]]:
    """Return the width of the residual stream and the form of what each block returns, see `surgery.passed_over`.

    Args:
        model: a FrozenModel, whose own module imports this one.

    Raises:
        ModelError: the blocks do not run one after the other and once each, or do not return states of one width.
    """
    ran: list[int] = []
    outputs: dict[int, Any] = {}

    def note(number: int, _: nn.Module, __: tuple, output: Any) -> None:
        ran.append(number)
        outputs[number] = output

    with contextlib.ExitStack() as hooks:
        for number, block in enumerate(model.blocks):
            hooks.callback(block.register_forward_hook(functools.partial(note, number)).remove)
        model.full(sample_tokens(model.vocabulary, 2))
    if ran != list(range(model.n_layers)):
        raise ModelError(
            f"{model.name}: the {model.n_layers} blocks of {model.family.blocks} do not run one after the other and "
            f"once each (the order was {str(ran)[:60]}), so it has no residual stream to cut"
        )
    shapes = {tuple(first_tensor(output).shape) for output in outputs.values()}
    if len(shapes) > 1 or len(next(iter(shapes))) != 3:
        raise ModelError(
            f"{model.name}: its blocks return states of the shapes {sorted(shapes)} for 2 rows of 2 tokens, and one "
            "residual stream of (rows, tokens, width) is what can be compared"
        )
    return next(iter(shapes))[-1], [form_of(outputs[number]) for number in range(model.n_layers)]


def accepted(module: Any) -> Callable[[str], bool]:
    """Return whether a module's forward pass takes an argument of this name.

    Types of tokens are taken only where there is more than one: RoBERTa has the argument, and one type.
    """
    parameters = inspect.signature(module.forward).parameters
    single = getattr(getattr(module, "config", None), "type_vocab_size", 2) or 0

    def accepts(name: str) -> bool:
        return name in parameters and (name != "token_type_ids" or single > 1)

    return accepts


def windows(module: Any) -> list[int]:
    """Return the lengths, in tokens, of all windows that a model's configuration says some of its layers attend to."""
    shape = getattr(module, "config", None)
    shape = shape.get_text_config() if hasattr(shape, "get_text_config") else shape
    names = ("sliding_window", "attention_window_size", "local_attention", "attention_chunk_size", "window_size")
    sizes = [getattr(shape, name, None) for name in names]
    return [size for size in sizes if isinstance(size, int) and size > 0]


def kinds_of_layers(module: Any) -> list[str]:
    """Return which kind each layer is of, as the configuration says, or nothing where all are alike."""
    shape = getattr(module, "config", None)
    shape = shape.get_text_config() if hasattr(shape, "get_text_config") else shape
    for name in ("layer_types", "layers_block_type", "attention_layers"):
        if isinstance(kinds := getattr(shape, name, None), list):
            return [str(kind) for kind in kinds]
    return []
