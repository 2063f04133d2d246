"""The minis: small models that this project trained; folders of config.json, half-precision weights and tokenizer.

A mini of a Hugging Face family is a checkpoint as `save_pretrained` writes it, and loads like any other.
"""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn.functional import scaled_dot_product_attention

from thinkalike.models.families import FAMILIES

END = "<|endoftext|>"


class Checkpoint(NamedTuple):
    """What was read of a checkpoint."""

    module: Any  # on its device
    tokenizer: Any
    longest: int | None  # row of tokens that it can take; None: nothing limits it
    quantization: str = ""  # how its weights are or were quantised


def build_mini(architecture: dict[str, Any], vocabulary: int, seed: int, family: str = "native") -> nn.Module:
    """Build a randomly initialised model; the same seed gives the same weights whatever the activation.

    Args:
        architecture: sizes, in the names of the family's own configuration class.
        vocabulary: the number of rows of the embedding.
    """
    known = FAMILIES[family]
    if known.reader == "transformers":
        from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForMaskedLM

        torch.manual_seed(seed)
        kind = AutoModelForMaskedLM if known.predicts == "hidden" else AutoModelForCausalLM
        return kind.from_config(AutoConfig.for_model(known.in_config_json, vocab_size=vocabulary, **architecture))
    from transformer_lens.model_bridge import TransformerBridge

    config = {**architecture, "d_vocab": vocabulary, "seed": seed}
    bridge = TransformerBridge.boot_native(config, device="cpu", dtype=torch.float32)
    return without_hooks(bridge.original_model).train().requires_grad_(True)


def read_mini(place: str, device: torch.device, dtype: torch.dtype) -> Checkpoint:
    """Read a folder that `save_mini` wrote for the family `native`."""
    from safetensors.torch import load_file
    from transformers import PreTrainedTokenizerFast

    config = json.loads(Path(place, "config.json").read_text())
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_file=f"{place}/tokenizer.json", bos_token=END, eos_token=END, pad_token=END
    )
    module: Any = build_mini(config["architecture"], len(tokenizer), config["seed"])
    module.load_state_dict({name: weight.float() for name, weight in load_file(f"{place}/model.safetensors").items()})
    return Checkpoint(module.to(device=device, dtype=dtype), tokenizer, module.cfg.n_ctx)


def without_hooks(module: nn.Module) -> nn.Module:
    """Take TransformerLens's wrappers off in place, and let attention run fused; loading proves that numbers agree.

    TransformerLens's native attention computes every attention pattern, which is 40 % of a pass.
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
    elif isinstance(module, NativeAttention) and _is_ordinary(module):
        module.__class__ = _fused()  # the weights stay where they are
    return module


def _is_ordinary(attention: Any) -> bool:
    capped = attention.attn_scores_soft_cap > 0
    return attention.causal and attention.rotary is None and attention.kv_repeats == 1 and not capped


@functools.cache
def _fused() -> type[nn.Module]:
    """Return the class of a NativeAttention that runs through the fused kernel.

    It is a class, as compiled blocks share a graph only if their code refers to no object of one of them.
    """
    from transformer_lens.model_bridge.sources.native.model import NativeAttention

    class FusedAttention(NativeAttention):
        def forward(self, hidden_states: Any, attention_mask: Any = None, **_: Any) -> tuple[Any, Any]:
            if attention_mask is not None:
                return super().forward(hidden_states, attention_mask=attention_mask)
            shape = (*hidden_states.shape[:2], self.n_heads, self.d_head)
            q, k, v = (part(hidden_states).view(shape).transpose(1, 2) for part in (self.q, self.k, self.v))
            mixed = scaled_dot_product_attention(q, k, v, is_causal=True, scale=1 / self.scale)
            return self.o(mixed.transpose(1, 2).flatten(2)), None

    return FusedAttention
