"""Modules of TransformerLens without its wrappers, whose attention runs fused."""

from __future__ import annotations

import functools
from typing import Any

from torch import nn
from torch.nn.functional import scaled_dot_product_attention


def without_hooks(module: nn.Module) -> nn.Module:
    """Take TransformerLens's wrappers off in place, and let attention run fused.

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
    if is_plain and module.kv_repeats == 1 and not module.attn_scores_soft_cap > 0:  # type: ignore[operator]
        module.__class__ = _fused_attention()  # the weights stay where they are
    return module


@functools.cache
def _fused_attention() -> type[nn.Module]:
    """Return the class of a NativeAttention that runs through the fused kernel.

    It is a class, as compiled blocks share a graph only if their code refers to no object of one of them.
    """
    from transformer_lens.model_bridge.sources.native.model import NativeAttention

    class FusedAttention(NativeAttention):
        def forward(self, hidden_states: Any, attention_mask: Any = None, **_: Any) -> tuple[Any, Any]:
            if attention_mask is not None:
                return super().forward(hidden_states, attention_mask=attention_mask)
            shape = (*hidden_states.shape[:2], self.n_heads, self.d_head)
            q, k, v = (projection(hidden_states).view(shape).transpose(1, 2) for projection in (self.q, self.k, self.v))
            mixed = scaled_dot_product_attention(q, k, v, is_causal=True, scale=1 / self.scale)
            return self.o(mixed.transpose(1, 2).flatten(2)), None

    return FusedAttention
