"""Models in a TransformerBridge of TransformerLens, as their own classes make them."""

from __future__ import annotations

import contextlib
from copy import deepcopy
from typing import Any

import torch
from transformer_lens.model_bridge.generalized_components.base import GeneralizedComponent

from thinkalike.config import ModelConfig
from thinkalike.errors import ModelError
from thinkalike.models.module_facts import (
    TOLERANCE,
    embedding_of,
    first_tensor,
    relative_error,
    sample_tokens,
)
from thinkalike.models.survey import without_hooks
from thinkalike.models.tokenizer_reading import read_tokenizer


def unbridged(bridge: Any) -> Any:
    """Return a copy of the module of a TransformerBridge without TransformerLens's wrappers, as its class makes it.

    Raises:
        ModelError: the bridge has changed the weights, or hooks, or whatever else, make it give
            other logits.
    """
    if bridge.compatibility_mode:
        raise ModelError(
            "this TransformerBridge is in compatibility mode, which changes weights: give one that is not"
        )
    copies: dict[int, Any] = {}
    for part in reversed(
        list(bridge.original_model.modules())
    ):  # a wrapper becomes a copy of what it wraps
        if isinstance(part, GeneralizedComponent):
            copies[id(part)] = deepcopy(part.original_component, copies)
    module: Any = without_hooks(deepcopy(bridge.original_model, copies)).eval()
    if (
        hasattr(module, "lm_head") and "lm_head.bias" in module.state_dict()
    ):  # the bridge adds one of zeros
        with torch.device("meta"):
            is_own = "lm_head.bias" in type(module)(module.config).state_dict()
        module.lm_head.bias = module.lm_head.bias if is_own else None
    tokens, training = (
        sample_tokens(len(embedding_of(module)), 16).to(embedding_of(module).device),
        bridge.training,
    )
    with torch.no_grad():
        error = relative_error(first_tensor(module(tokens)), first_tensor(bridge.eval()(tokens)))
    bridge.train(training)
    if not error <= TOLERANCE[embedding_of(module).dtype]:  # NaN fails as well
        raise ModelError(
            f"without its hooks the logits of this TransformerBridge differ by {error:.1e}: remove them"
        )
    return module


def tokenizer_of(tokenizer: Any) -> Any:
    """Return a bridge's tokenizer as its checkpoint has it, or itself where that cannot be read or has other words."""
    with contextlib.suppress(OSError, ValueError, AttributeError, ModelError):
        own = read_tokenizer(ModelConfig(name="bridge"), tokenizer.name_or_path)
        if own.get_vocab() == tokenizer.get_vocab():
            return own
    return tokenizer
