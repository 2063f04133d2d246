"""Models in a TransformerBridge of TransformerLens, as their own classes make them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from copy import deepcopy
from typing import TYPE_CHECKING

import torch
from torch import nn
from transformer_lens.hook_points import HookPoint
from transformer_lens.model_bridge.generalized_components.base import GeneralizedComponent

from thinkalike.code_text import module_of
from thinkalike.config import ModelConfig
from thinkalike.errors import ModelError, listed
from thinkalike.models.description import HOOKS
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

# The package of TransformerLens whose code wires hooks of its own inside a bridge.
BRIDGE_PACKAGE = "transformer_lens.model_bridge"


def unbridged(bridge: TransformerBridge) -> PreTrainedModel:
    """Return a copy of the model in a TransformerBridge without TransformerLens's wrappers.

    The copy has the class of the model in transformers, and is in evaluation mode. The bridge is
    not changed.

    Raises:
        ModelError: The bridge is in compatibility mode, which changes weights, or has hooks of
            the user's, or its logits for sample tokens differ from those of the copy.
    """
    if bridge.compatibility_mode:
        raise ModelError(
            "this TransformerBridge is in compatibility mode, which changes weights: give one "
            "that is not"
        )
    hooked = sorted(set(_hooked_by_user(bridge)))
    if hooked:
        raise ModelError(
            f"this TransformerBridge has hooks on {listed(hooked)}, which its copy would not "
            "have: remove them, as by reset_hooks(including_permanent=True)"
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
            f"the logits of this TransformerBridge differ by {error:.1e} from those of the model "
            "that it wraps: give the model"
        )
    return module


def _hooked_by_user(bridge: TransformerBridge) -> Iterator[str]:
    """Yield the names of the wrappers of a bridge that have forward hooks of the user's.

    Sample tokens cannot tell whether there are any: a hook may change late positions, some tokens,
    or states that are stored and not the logits. A hook of a wrapped module stays in its copy, and
    is not named here.
    """
    names = {module: name for name, module in bridge.original_model.named_modules()}
    names |= {module: name for name, module in bridge.named_modules()}  # the names of hooks
    for module, name in names.items():
        if not isinstance(module, GeneralizedComponent | HookPoint | type(bridge)):
            continue
        for hook in _hooks_of(module):
            package = module_of(hook) + "."
            if not package.startswith(BRIDGE_PACKAGE + "."):
                yield name or "the bridge itself"


def _hooks_of(wrapper: nn.Module) -> Iterator[Callable[..., object]]:
    """Yield the forward hooks of a wrapper, as they were given to it."""
    # `HookPoint.add_hook` registers a function of its own that calls the function given.
    given = {}
    if isinstance(wrapper, HookPoint):
        given = {handle.hook.id: handle.user_hook for handle in wrapper.fwd_hooks}
    for attribute in HOOKS:
        for number, hook in vars(wrapper)[attribute].items():
            yield given.get(number) or hook


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
