"""Models in a TransformerBridge of TransformerLens, as their own classes make them."""

from __future__ import annotations

import contextlib
from copy import deepcopy
from typing import TYPE_CHECKING

import torch
from torch import nn
from transformer_lens.model_bridge.generalized_components.base import GeneralizedComponent

from thinkalike.config import ModelConfig
from thinkalike.errors import ModelError
from thinkalike.models.module_facts import (
    TOLERANCE,
    embedding_of,
    evaluation_mode,
    first_tensor,
    relative_error,
    sample_tokens,
)
from thinkalike.models.survey import without_hooks
from thinkalike.models.tokenizer_reading import read_tokenizer

if TYPE_CHECKING:
    from transformer_lens.model_bridge import TransformerBridge
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


def unbridged(bridge: TransformerBridge) -> PreTrainedModel:
    """Return a copy of the model in a TransformerBridge without TransformerLens's wrappers.

    The copy has the class of the model in transformers, and is in evaluation mode. The bridge is
    not changed.

    Raises:
        ModelError: The bridge is in compatibility mode, which changes weights, or hooks or
            anything else make its logits for sample tokens differ from those of the copy.
    """
    if bridge.compatibility_mode:
        raise ModelError(
            "this TransformerBridge is in compatibility mode, which changes weights: give one "
            "that is not"
        )
    module = _unwrapped_copy(bridge)
    embedding = embedding_of(module)
    tokens = sample_tokens(len(embedding), 16).to(embedding.device)
    with torch.no_grad(), evaluation_mode(bridge):
        actual = first_tensor(module(tokens))
        expected = first_tensor(bridge(tokens))
    error = relative_error(actual, expected)
    if not error <= TOLERANCE[embedding.dtype]:  # NaN fails as well
        raise ModelError(
            f"without its hooks the logits of this TransformerBridge differ by {error:.1e}: "
            "remove them"
        )
    return module


def _unwrapped_copy(bridge: TransformerBridge) -> PreTrainedModel:
    """Return a copy of the model in a bridge without wrappers, in evaluation mode."""
    # The memo of `deepcopy`, from the `id` of an object to its copy. An entry for a wrapper makes
    # `deepcopy` put a copy of the wrapped module in its place. Inner wrappers come first.
    copies: dict[int, nn.Module] = {}
    for submodule in reversed(list(bridge.original_model.modules())):
        if isinstance(submodule, GeneralizedComponent):
            copies[id(submodule)] = deepcopy(submodule.original_component, copies)
    module = without_hooks(deepcopy(bridge.original_model, copies)).eval()
    _remove_added_bias(module)
    return module


def _remove_added_bias(module: PreTrainedModel) -> None:
    """Remove, in place, the bias of zeros that a bridge adds to a head without a bias.

    A new model of the same class, without values, tells whether the head should have a bias.
    """
    if not hasattr(module, "lm_head") or "lm_head.bias" not in module.state_dict():
        return
    with torch.device("meta"):
        new_model = type(module)(module.config)
    if "lm_head.bias" not in new_model.state_dict():
        module.lm_head.bias = None


def tokenizer_of(tokenizer: PreTrainedTokenizerBase) -> PreTrainedTokenizerBase:
    """Return the tokenizer of a bridge as it was before the bridge changed its settings.

    It is read from the checkpoint that the tokenizer names. The argument itself is returned if
    that cannot be read, or has another vocabulary.
    """
    with contextlib.suppress(OSError, ValueError, AttributeError, ModelError):
        tokenizer_read = read_tokenizer(ModelConfig(name="bridge"), tokenizer.name_or_path)
        if tokenizer_read.get_vocab() == tokenizer.get_vocab():
            return tokenizer_read
    return tokenizer
