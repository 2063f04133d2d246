"""How the blocks of a model run: one after the other, what they return, and without wrappers."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from thinkalike.errors import ModelError, listed, one_line
from thinkalike.models.cut_model import CutModel
from thinkalike.models.hooks import Arguments
from thinkalike.models.module_facts import config_of_text_model, first_tensor, sample_tokens

# The rows and the tokens of the sample.
SAMPLE_ROWS = 2
SAMPLE_TOKENS = 3


class Survey(NamedTuple):
    """What the blocks of a model return.

    Attributes:
        width: The width of the residual stream.
        tuple_lengths: The length of the tuple that each block returns, or None for a tensor.
    """

    width: int
    tuple_lengths: list[int | None]


def survey(model: CutModel) -> Survey:
    """Return the width and the form of what the blocks of a model return.

    Blocks must run one after the other and once each, and return states of one width. The
    configuration of the model is changed in place: from then on no pass keeps keys and values for
    later tokens, since nothing is ever generated.

    Raises:
        ModelError: Blocks do not run so, or return something else.
    """
    for config in (getattr(model.module, "config", None), config_of_text_model(model.module)):
        if config is not None and hasattr(config, "use_cache"):
            config.use_cache = False
    order, outputs = _outputs_of_blocks(model)
    _check_order(model, order)
    unknown_types = set()
    for output in outputs:
        if not isinstance(output, Tensor | tuple | list):
            unknown_types.add(type(output).__name__)
    if unknown_types:
        raise ModelError(
            f"{model.name}: its blocks return {listed(sorted(unknown_types))}, and no states that "
            "can be cut"
        )
    shapes = {tuple(first_tensor(output).shape) for output in outputs}
    first_shape = next(iter(shapes))
    if len(shapes) > 1 or first_shape[:-1] != (SAMPLE_ROWS, SAMPLE_TOKENS):
        raise ModelError(
            f"{model.name}: its blocks return {sorted(shapes)} for {SAMPLE_ROWS} rows of "
            f"{SAMPLE_TOKENS} tokens"
        )
    tuple_lengths: list[int | None] = []
    for output in outputs:
        tuple_lengths.append(len(output) if isinstance(output, tuple | list) else None)
    return Survey(first_shape[-1], tuple_lengths)


def _outputs_of_blocks(model: CutModel) -> tuple[list[int], list[object]]:
    """Return the numbers of blocks in the order in which they ran, and what each returned."""
    order: list[int] = []
    outputs: list[object] = []

    def record(number: int, block: nn.Module, args: Arguments, output: object) -> None:
        order.append(number)
        outputs.append(output)

    with contextlib.ExitStack() as hooks:
        for number, block in enumerate(model.blocks):
            record_block = functools.partial(record, number)
            hooks.enter_context(block.register_forward_hook(record_block))
        with passing(model.name):
            model.full(sample_tokens(model.vocabulary, SAMPLE_TOKENS, rows=SAMPLE_ROWS))
    return order, outputs


def _check_order(model: CutModel, order: Sequence[int]) -> None:
    """Raise a ModelError unless blocks ran one after the other and once each.

    Args:
        model: The model.
        order: The numbers of the blocks in the order in which they ran.
    """
    expected = list(range(model.n_layers))
    if order and order == expected:  # a model without blocks cannot be cut either
        return
    idle = sorted(set(expected) - set(order))
    which = f" (of these, {listed(idle)} do not run for text alone)" if idle else ""
    raise ModelError(
        f"{model.name}: the {model.n_layers} blocks of {model.family.blocks} do not run one "
        f"after the other and once each{which}, so it has no residual stream to cut"
    )


@contextlib.contextmanager
def passing(name: str) -> Iterator[None]:
    """Turn errors of a pass over sample tokens into a ModelError, unless they are about memory.

    Args:
        name: What the error calls the model.
    """
    try:
        yield
    except (
        RuntimeError,
        TypeError,
        ValueError,
        LookupError,
        AttributeError,
        ImportError,
    ) as error:
        if isinstance(error, ModelError) or "memory" in str(error):
            raise
        reason = f"{type(error).__name__}: {one_line(error)}"
        raise ModelError(f"{name}: its forward pass fails on sample tokens ({reason})") from error


def without_hooks(module: nn.Module) -> nn.Module:
    """Return the module without TransformerLens's wrappers and with fused attention, in place.

    TransformerLens's native attention computes every attention pattern, which is 40 % of a pass.
    Loading proves that numbers agree.
    """
    from transformer_lens.model_bridge.generalized_components.base import GeneralizedComponent
    from transformer_lens.model_bridge.sources.native.model import NativeAttention

    for name, child in list(module._modules.items()):
        while isinstance(child, GeneralizedComponent):
            child = child.original_component
        module._modules[name] = child
        if child is not None:
            without_hooks(child)
    if getattr(module, "_supports_sdpa", False):
        module.set_attn_implementation("sdpa")  # type: ignore[operator]
        return module
    is_plain = isinstance(module, NativeAttention) and module.causal and module.rotary is None
    if not is_plain:
        return module
    has_soft_cap = module.attn_scores_soft_cap > 0  # type: ignore[operator]
    if module.kv_repeats == 1 and not has_soft_cap:
        module.__class__ = _fused()  # the weights stay where they are
    return module


@functools.cache
def _fused() -> type[nn.Module]:
    """Return the class of a NativeAttention that runs through the fused kernel.

    It is a class, as compiled blocks share a graph only if their code refers to no object of one
    of them. Its module and its name are part of the identity of a model in memory, and so of the
    keys of results.
    """
    from transformer_lens.model_bridge.sources.native.model import NativeAttention

    class FusedAttention(NativeAttention):
        def forward(
            self, hidden_states: Tensor, attention_mask: Tensor | None = None, **_: object
        ) -> tuple[Tensor, Tensor | None]:
            if attention_mask is not None:
                return super().forward(hidden_states, attention_mask=attention_mask)
            shape = (*hidden_states.shape[:2], self.n_heads, self.d_head)
            q, k, v = (
                projection(hidden_states).view(shape).transpose(1, 2)
                for projection in (self.q, self.k, self.v)
            )
            mixed = scaled_dot_product_attention(q, k, v, is_causal=True, scale=1 / self.scale)
            return self.o(mixed.transpose(1, 2).flatten(2)), None

    return FusedAttention
