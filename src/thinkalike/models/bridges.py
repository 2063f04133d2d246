"""Models in a TransformerBridge of TransformerLens, as their own classes make them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from copy import deepcopy
from typing import TYPE_CHECKING

import torch
from torch import nn
from transformer_lens.hook_points import HookPoint
from transformer_lens.model_bridge.generalized_components.base import GeneralizedComponent

from thinkalike.config import ModelConfig
from thinkalike.errors import ModelError, listed
from thinkalike.models.copies import copied, has_added_code
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
        ModelError: The bridge is in compatibility mode, which changes weights, or runs code that
            was added to it and that the copy would not run, or its logits for sample tokens differ
            from those of the copy.
    """
    if bridge.compatibility_mode:
        raise ModelError(
            "this TransformerBridge is in compatibility mode, which changes weights: give one "
            "that is not"
        )
    names = {module: name for name, module in bridge.original_model.named_modules()}
    names |= {module: name for name, module in bridge.named_modules()}  # the names of hooks
    modules_with_code = [module for module in names if has_added_code(module, BRIDGE_PACKAGE)]
    wrappers = [module for module in modules_with_code if _is_wrapper(module, bridge)]
    _refuse_uncopied_code(names[module] for module in wrappers)
    copy = _unwrapped_copy(bridge)
    embedding = embedding_of(copy)
    tokens = sample_tokens(len(embedding), context=16).to(embedding.device)
    modules_run: set[nn.Module] = set()
    with torch.no_grad(), evaluation_mode(bridge):
        actual = first_tensor(copy(tokens))
        with _noted_runs(modules_with_code, modules_run):
            expected = first_tensor(bridge(tokens))
    # A wrapper may compute by itself what the module inside it does. Code that was added to such a
    # module does not run in the bridge, but would run in the copy.
    modules_not_run = [module for module in modules_with_code if module not in modules_run]
    _refuse_uncopied_code(names[module] for module in modules_not_run)
    error = relative_error(actual, expected)
    if not error <= TOLERANCE[embedding.dtype]:  # NaN fails as well
        raise ModelError(
            f"the logits of this TransformerBridge differ by {error:.1e} from those of the model "
            "that it wraps: give the model"
        )
    return copy


def _is_wrapper(module: nn.Module, bridge: TransformerBridge) -> bool:
    """Return whether a module of a bridge is one that its unwrapped copy does not have."""
    return isinstance(module, GeneralizedComponent | HookPoint | type(bridge))


def _refuse_uncopied_code(names: Iterable[str]) -> None:
    """Raise a ModelError if there are modules whose added code a copy would not run.

    All such code is refused, since sample tokens cannot tell whether it changes anything: it may
    act on late positions, some tokens, or states that are stored and not the logits.

    Args:
        names: The names of these modules in a bridge; "" is the bridge itself.
    """
    places = sorted({name or "the bridge itself" for name in names})
    if places:
        raise ModelError(
            f"this TransformerBridge has hooks or code of your own on {listed(places)}, which a "
            "copy without its wrappers would not run as the bridge does: remove them, hooks by "
            "reset_hooks(including_permanent=True)"
        )


@contextlib.contextmanager
def _noted_runs(modules: Iterable[nn.Module], modules_run: set[nn.Module]) -> Iterator[None]:
    """Add each of some modules to `modules_run` when it runs while the context is open."""
    with contextlib.ExitStack() as hooks:
        for module in modules:
            hooks.enter_context(
                module.register_forward_pre_hook(lambda module, _: modules_run.add(module))
            )
        yield


def _unwrapped_copy(bridge: TransformerBridge) -> PreTrainedModel:
    """Return a copy of the model in a bridge without wrappers, in evaluation mode.

    A wrapper is a module of TransformerLens around one of the model. A bias of zeros that the
    bridge added to the unembedding is removed as well.
    """
    # The memo of `deepcopy`, from the `id` of an object to its copy. An entry for a wrapper makes
    # `deepcopy` put a copy of the wrapped module in its place. `modules` yields outer modules
    # before inner ones, so in reverse order inner wrappers come first.
    copies: dict[int, object] = {}
    for submodule in reversed(list(bridge.original_model.modules())):
        if isinstance(submodule, GeneralizedComponent):
            copies[id(submodule)] = deepcopy(submodule.original_component, copies)
    module = without_hooks(copied(bridge.original_model, copies)).eval()
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
    should_have_bias = "lm_head.bias" in new_model.state_dict()
    if not should_have_bias:
        module.lm_head.bias = None


def tokenizer_of(tokenizer: PreTrainedTokenizerBase) -> PreTrainedTokenizerBase:
    """Return the tokenizer of a TransformerBridge without the settings that the bridge changed.

    It is read from the checkpoint that the tokenizer names. The argument itself is returned if
    that cannot be read, or has another vocabulary.
    """
    with contextlib.suppress(OSError, ValueError, AttributeError, ModelError):
        tokenizer_read = read_tokenizer(ModelConfig(name="bridge"), tokenizer.name_or_path)
        if tokenizer_read.get_vocab() == tokenizer.get_vocab():
            return tokenizer_read
    return tokenizer
