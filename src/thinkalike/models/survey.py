"""What one short pass shows of a model: the width of its stream, what its blocks return, and what it takes."""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable, Iterator
from typing import Any

from torch import nn

from thinkalike.errors import ModelError, first_line
from thinkalike.models.samples import sample_tokens
from thinkalike.models.surgery import first_tensor, form_of

ROWS, TOKENS = 2, 3  # of the sample


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
        with passing(model.name):
            model.full(sample_tokens(model.vocabulary, TOKENS, rows=ROWS))
    if not ran or ran != list(range(model.n_layers)):
        raise ModelError(
            f"{model.name}: the {model.n_layers} blocks of {model.family.blocks} do not run one after the other and "
            f"once each (the order was {str(ran)[:60]}), so it has no residual stream to cut"
        )
    shapes = {tuple(first_tensor(output).shape) for output in outputs.values()}
    if len(shapes) > 1 or next(iter(shapes))[:-1] != (ROWS, TOKENS):
        raise ModelError(
            f"{model.name}: its blocks return states of the shapes {sorted(shapes)} for {ROWS} rows of {TOKENS} "
            "tokens, and one residual stream of (rows, tokens, width) is what can be compared"
        )
    return next(iter(shapes))[-1], [form_of(outputs[number]) for number in range(model.n_layers)]


@contextlib.contextmanager
def passing(name: str) -> Iterator[None]:
    """Turn what is raised in a pass over sample tokens into one line, unless it is about memory.

    Raises:
        ModelError: the pass failed.
    """
    try:
        yield
    except (RuntimeError, TypeError, ValueError, LookupError, AttributeError, ImportError) as error:
        if isinstance(error, ModelError) or "memory" in str(error):
            raise
        raise ModelError(
            f"{name}: its forward pass fails on sample tokens ({type(error).__name__}: {first_line(error)[:200]}); it "
            "may need a package, another version of transformers, or more than tokens"
        ) from error


def without_cache(module: Any) -> None:
    """Let no pass keep keys and values for tokens to come; nothing is ever generated."""
    shape: Any = getattr(module, "config", None)
    for each in (shape, _text(shape)):
        if hasattr(each, "use_cache"):
            each.use_cache = False


def accepted(module: Any) -> Callable[[str], bool]:
    """Return whether a module's forward pass takes an argument of this name.

    Types of tokens are taken only where there is more than one: RoBERTa has the argument, and one type.
    """
    names = set(inspect.signature(module.forward).parameters)
    if (getattr(getattr(module, "config", None), "type_vocab_size", 2) or 0) <= 1:
        names -= {"token_type_ids"}
    return names.__contains__


def windows(module: Any) -> list[int]:
    """Return the lengths, in tokens, of all windows that a model's configuration says some of its layers attend to."""
    shape = _text(getattr(module, "config", None))
    names = ("sliding_window", "attention_window_size", "local_attention", "attention_chunk_size", "window_size")
    sizes = [getattr(shape, name, None) for name in names]
    return [size for size in sizes if isinstance(size, int) and size > 0]


def kinds_of_layers(module: Any) -> list[str]:
    """Return which kind each layer is of, as the configuration says, or nothing where all are alike."""
    shape = _text(getattr(module, "config", None))
    for name in ("layer_types", "layers_block_type", "attention_layers"):
        if isinstance(kinds := getattr(shape, name, None), list):
            return [str(kind) for kind in kinds]
    return []


def _text(shape: Any) -> Any:
    """Return the part of a configuration of transformers that is about text, or whatever else was given."""
    return shape.get_text_config() if hasattr(shape, "get_text_config") else shape


def embedding_of(module: Any) -> Tensor:
    """Return the token embedding, (vocabulary, width): by convention, or else the first matrix."""
    with contextlib.suppress(AttributeError, NotImplementedError):
        return module.get_input_embeddings().weight  # type: ignore[no-any-return]
    return next(weight for weight in module.parameters() if weight.dim() == 2)
