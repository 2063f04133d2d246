"""Where each architecture keeps its residual stream: the one table to extend for a new family.

Every path is relative to the module that transformers or TransformerLens builds. `body` takes tokens and runs
embedding, blocks and final norm; the other three are inside it or beside it.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Family:
    """Paths of the parts of a model; "" is the model itself and None a part that it does not have."""

    body: str
    blocks: str
    norm: str | None
    unembed: str | None
    body_holds_unembed: bool = False


FAMILIES = {
    "native": Family("", "layers", "ln_out", "head", body_holds_unembed=True),
    "legacy": Family("", "layers", "ln_out", "head", body_holds_unembed=True),
    "gpt_neox": Family("gpt_neox", "gpt_neox.layers", "gpt_neox.final_layer_norm", "lm_head"),
    "gpt2": Family("transformer", "transformer.h", "transformer.ln_f", "lm_head"),
    "mamba": Family("backbone", "backbone.layers", "backbone.norm_f", "lm_head"),
    "bert": Family("bert", "bert.encoder.layer", None, None),
}
