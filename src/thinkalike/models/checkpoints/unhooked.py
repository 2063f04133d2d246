"""The module inside a TransformerLens bridge, without its hooks: the same weights and numbers, fused attention."""

from __future__ import annotations

import functools
from typing import Any

from torch import nn
from torch.nn.functional import scaled_dot_product_attention


def without_hooks(module: nn.Module) -> nn.Module:
    """Take TransformerLens's wrappers off in place, and let attention run fused; loading proves that numbers agree."""
    from transformer_lens.model_bridge.generalized_components.base import GeneralizedComponent

    for name, child in list(module._modules.items()):
        while isinstance(child, GeneralizedComponent):
            child = child.original_component
        module._modules[name] = child
        if child is not None:
            without_hooks(child)
    _fuse_attention(module)
    return module


def _fuse_attention(module: nn.Module) -> None:
    """Choose fused attention: transformers' models have a switch for it, and TransformerLens's native ones do not.

    The native ones compute every attention pattern, which is 40 % of a pass.
    """
    from transformer_lens.model_bridge.sources.native.model import NativeAttention

    if getattr(module, "_supports_sdpa", False):
        module.set_attn_implementation("sdpa")  # type: ignore[operator]
    elif isinstance(module, NativeAttention) and _is_ordinary(module):
        module.__class__ = _fused()  # the weights stay where they are


def _is_ordinary(attention: Any) -> bool:
    capped = attention.attn_scores_soft_cap > 0
    return attention.causal and attention.rotary is None and attention.kv_repeats == 1 and not capped


@functools.cache
def _fused() -> type[nn.Module]:
    """Return the class of a NativeAttention that runs through the fused kernel, which keeps no pattern.

    A class, because compiled blocks share a graph only if no object of one of them stands in their code.
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
