"""Reading language models through TransformerLens: checkpoints of transformers, and its own legacy layout."""

from __future__ import annotations

import copy
from typing import Any, NamedTuple

import torch

from thinkalike.config import ModelConfig
from thinkalike.errors import ModelError
from thinkalike.models.checkpoints.tokenizers import read_tokenizer
from thinkalike.models.checkpoints.unhooked import without_hooks
from thinkalike.models.checkpoints.weights import check_finite, check_fit, parts_of, read_weights
from thinkalike.models.families import Family
from thinkalike.models.proof import TOLERANCE, relative_error
from thinkalike.models.samples import sample_tokens
from thinkalike.models.surgery import first_tensor


class Checkpoint(NamedTuple):
    """What a reader makes of a checkpoint: the module is on the CPU, and the longest row may be unknown."""

    module: Any
    tokenizer: Any
    context: int | None


def read_transformers(config: ModelConfig, family: Family, place: str, dtype: torch.dtype) -> Checkpoint:
    """Read a language model that `save_pretrained` wrote, with its own tokenizer.

    The bridge's tokenizer is not taken, because it puts BOS before every text, which GPT-2 and Pythia were not trained
    with.

    Args:
        place: a folder, or a repository of the hub.

    Raises:
        ModelError: weights or the tokenizer are missing, or the logits change when TransformerLens's hooks are taken
            off.
    """
    import transformers
    from transformer_lens.model_bridge import TransformerBridge

    kind = transformers.AutoModelForMaskedLM if family.predicts == "hidden" else transformers.AutoModelForCausalLM
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)  # a head that nothing reads may be missing: equal checkpoints give equal modules
        module, fit = read_weights(kind, config, place, dtype=dtype, attn_implementation="eager")
    check_fit(fit, config.name, place, parts_of(family))
    tokenizer = read_tokenizer(config, place)
    bridge = TransformerBridge.boot_transformers(
        place, hf_model=module, tokenizer=copy.deepcopy(tokenizer), device="cpu", dtype=dtype
    )
    return Checkpoint(_module_of(bridge, config), tokenizer, bridge.cfg.n_ctx)


def read_legacy(config: ModelConfig, family: Family, place: str, dtype: torch.dtype) -> Checkpoint:
    """Read a language model in the layout of TransformerLens 1, with the tokenizer that it names.

    Args:
        place: a repository of the hub.

    Raises:
        ModelError: the logits change when TransformerLens's hooks are taken off.
    """
    from transformer_lens.model_bridge import TransformerBridge

    bridge = TransformerBridge.boot_tl_legacy(place, device="cpu", dtype=dtype)
    return Checkpoint(_module_of(bridge, config), bridge.tokenizer, bridge.cfg.n_ctx)


def _module_of(bridge: Any, config: ModelConfig) -> Any:
    """Return the bridge's module; raw weights run without the hooks and with fused attention, proved to agree."""
    if config.processing == "compat":
        bridge.enable_compatibility_mode()
        return bridge.original_model
    tokens = sample_tokens(bridge.cfg.d_vocab, bridge.cfg.n_ctx or 16)
    with torch.no_grad():
        hooked = bridge(tokens)
        module: Any = without_hooks(bridge.original_model.eval())
        bare = first_tensor(module(tokens))
    error = relative_error(bare, hooked)
    if not error <= TOLERANCE[bare.dtype]:  # NaN fails as well
        check_finite(module, config.name)
        raise ModelError(f"{config.name}: without TransformerLens's hooks the logits differ by {error:.1e}")
    return module
