"""How the blocks of a model run: one after the other, what they return, and without wrappers."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from thinkalike.errors import ModelError, listed, reason_in_words
from thinkalike.models.cut_model import CutModel
from thinkalike.models.hooks import Arguments
from thinkalike.models.module_facts import config_of_text_model, first_tensor, sample_tokens

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

# Entries of a configuration that ask a pass for more than its logits: keys and values of earlier
# tokens, and the loss of the routers of all blocks, which a pass that ends early cannot give.
ADDED_OUTPUTS = ("use_cache", "output_router_logits")

# The rows and the tokens of the sample.
SAMPLE_ROWS = 2
SAMPLE_TOKENS = 3


class FailedPass(ModelError):
    """A model's own pass over sample tokens raised an error.

    Attributes:
        reason: The type of that error and its message.
    """

    def __init__(self, name: str, reason: str):
        super().__init__(f"{name}: its forward pass fails on sample tokens ({reason})")
        self.reason = reason


class Survey(NamedTuple):
    """What the blocks of a model return.

    Attributes:
        width: The width of the residual stream.
        tuple_lengths: The length of the tuple that each block returns, or None for a tensor.
    """

    width: int
    tuple_lengths: list[int | None]


def survey(model: CutModel) -> Survey:
    """Run a model on sample tokens, and return the width of its states and how blocks return them.

    A block returns a tensor of states, (rows, tokens, width), or a tuple or list that begins with
    it, whose length is returned.

    The configuration of the model is changed in place: ADDED_OUTPUTS, such as "use_cache", are
    switched off, since nothing here reads them.

    Raises:
        ModelError: Blocks do not run one after the other and once each, or do not return such
            states, all of one shape.
    """
    for config, name in _added_outputs(model.module):
        setattr(config, name, False)
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


def _added_outputs(module: nn.Module) -> list[tuple[PreTrainedConfig, str]]:
    """Return (configuration, name) for each entry of ADDED_OUTPUTS that is on.

    Such an entry, for example "use_cache", asks a pass for more than its logits. Both the model's
    own configuration and that of its text model are searched.
    """
    entries = []
    for config in (getattr(module, "config", None), config_of_text_model(module)):
        for name in ADDED_OUTPUTS:
            if config is not None and getattr(config, name, False):
                entries.append((config, name))
    return entries


@contextlib.contextmanager
def added_outputs_off(module: nn.Module) -> Iterator[None]:
    """Switch ADDED_OUTPUTS off in the configuration of a model while the context is open.

    They are entries that ask a pass for more than logits, such as `use_cache`. The body of the
    `with` statement may end passes early, which such outputs do not survive.
    """
    entries = _added_outputs(module)  # (configuration, name) of each that is on
    try:
        for config, name in entries:
            setattr(config, name, False)
        yield
    finally:
        for config, name in entries:
            setattr(config, name, True)


def _outputs_of_blocks(model: CutModel) -> tuple[list[int], list[object]]:
    """Return the numbers of blocks in the order in which they ran, and what each returned.

    The model runs once on sample tokens. A block that does not run is in neither list, and one
    that runs twice is in both lists twice.
    """
    order: list[int] = []
    outputs: list[object] = []

    def record(number: int, block: nn.Module, args: Arguments, output: object) -> None:
        """Note that the block of this number ran, as a hook after it."""
        order.append(number)
        outputs.append(output)

    with contextlib.ExitStack() as hooks:
        for number, block in enumerate(model.blocks):
            record_block = functools.partial(record, number)
            hooks.enter_context(block.register_forward_hook(record_block))
        with explaining_pass_errors(model.name):
            model.full(sample_tokens(model.vocabulary, SAMPLE_TOKENS, rows=SAMPLE_ROWS))
    return order, outputs


def _check_order(model: CutModel, order: Sequence[int]) -> None:
    """Raise a ModelError unless the blocks of a model run one after the other and once each.

    A model without blocks is refused as well. The error names blocks that did not run at all, such
    as blocks that read only images.

    Args:
        model: The model.
        order: The numbers of the blocks in the order in which they ran on sample tokens.
    """
    expected = list(range(model.n_layers))
    has_blocks = len(order) > 0
    if has_blocks and order == expected:
        return
    idle_blocks = sorted(set(expected) - set(order))
    about_idle = ""
    if idle_blocks:
        about_idle = f" (of these, {listed(idle_blocks)} do not run when the input is only text)"
    raise ModelError(
        f"{model.name}: the {model.n_layers} blocks of {model.family.blocks} do not run one "
        f"after the other and once each{about_idle}, so it has no residual stream to cut"
    )


@contextlib.contextmanager
def explaining_pass_errors(name: str) -> Iterator[None]:
    """Turn an error of a pass over sample tokens into a FailedPass, which names the model.

    A ModelError, and an error whose message is about memory, are raised as they are.
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
        reason = reason_in_words(error)
        raise FailedPass(name, reason) from error


def without_hooks(module: nn.Module) -> nn.Module:
    """Remove TransformerLens's wrappers from a module in place, and use fused attention.

    The wrappers run TransformerLens's hooks. Its native attention computes every attention
    pattern, which takes 40 % of the time of a pass. It is replaced by a fused kernel if that
    computes the same. The module itself is returned. The caller must check that the logits are
    still the same.
    """
    from transformer_lens.model_bridge.generalized_components.base import GeneralizedComponent
    from transformer_lens.model_bridge.sources.native.model import NativeAttention

    for name, child in list(module._modules.items()):
        while isinstance(child, GeneralizedComponent):
            child = child.original_component
        module._modules[name] = child
        if child is not None:
            without_hooks(child)
    if getattr(module, "_supports_sdpa", False):  # a model of transformers
        module.set_attn_implementation("sdpa")  # type: ignore[operator]
        return module
    # The fused class replaces only native attention that is causal and has no rotary positions. It
    # has neither grouped keys and values nor a soft cap of the scores.
    is_native_attention = isinstance(module, NativeAttention)
    if not is_native_attention or not module.causal or module.rotary is not None:
        return module
    has_soft_cap = module.attn_scores_soft_cap > 0  # type: ignore[operator]
    if module.kv_repeats == 1 and not has_soft_cap:
        module.__class__ = _fused()  # the weights stay where they are
    return module


@functools.cache
def _fused() -> type[nn.Module]:
    """Return a subclass of TransformerLens's NativeAttention that uses torch's fused kernel.

    Attention is changed by its class, and not by a function for each block, since compiled blocks
    share a graph only if their code refers to no object of one of them. The class's module and
    qualified name, with the name of this function, are part of the identity of a model in memory,
    and so of the keys of results: neither can be renamed.
    """
    from transformer_lens.model_bridge.sources.native.model import NativeAttention

    class FusedAttention(NativeAttention):
        def forward(
            self, hidden_states: Tensor, attention_mask: Tensor | None = None, **_: object
        ) -> tuple[Tensor, Tensor | None]:
            """Return the output of causal attention, and None for the attention pattern.

            With a mask, which the fused kernel is not given, the original attention runs.
            """
            if attention_mask is not None:
                return super().forward(hidden_states, attention_mask=attention_mask)
            shape = (*hidden_states.shape[:2], self.n_heads, self.d_head)  # (b, t, heads, d_head)
            # Each is (b, heads, t, d_head).
            q, k, v = (
                projection(hidden_states).view(shape).transpose(1, 2)
                for projection in (self.q, self.k, self.v)
            )
            # TransformerLens divides the scores by its `scale`, and torch multiplies them.
            mixed = scaled_dot_product_attention(q, k, v, is_causal=True, scale=1 / self.scale)
            heads_side_by_side = mixed.transpose(1, 2).flatten(2)  # (b, t, heads * d_head)
            return self.o(heads_side_by_side), None

    return FusedAttention
