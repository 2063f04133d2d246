"""Where each architecture keeps its residual stream: the one table to extend for a new family.

Every path is relative to the module that transformers or TransformerLens builds. `body` takes tokens and runs
embedding, blocks and final norm (of a classifier: its pooler); the other three are inside it or beside it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Family:
    """Paths of the parts of a model; "" is the model itself and None a part that it does not have.

    Attributes:
        predicts: what its logits are of: "next" tokens, "hidden" tokens, or the "class" of a whole text.
        sites: places in a block that a layer can mean, by the module whose output they are.
    """

    body: str
    blocks: str
    norm: str | None
    unembed: str | None
    body_holds_unembed: bool = False
    predicts: str = "next"
    sites: Mapping[str, str] = field(default_factory=lambda: {"resid_post": ""})


# a block's output after its LayerNorm, and what its last residual addition adds (Brown et al. 2023, appendix C.2)
BERT_SITES = {"resid_post": "", "update": "output.dense"}


FAMILIES = {
    "native": Family("", "layers", "ln_out", "head", body_holds_unembed=True),
    "legacy": Family("", "layers", "ln_out", "head", body_holds_unembed=True),
    "gpt_neox": Family("gpt_neox", "gpt_neox.layers", "gpt_neox.final_layer_norm", "lm_head"),
    "gpt2": Family("transformer", "transformer.h", "transformer.ln_f", "lm_head"),
    "mamba": Family("backbone", "backbone.layers", "backbone.norm_f", "lm_head"),
    "bert": Family("bert", "bert.encoder.layer", None, None, predicts="hidden", sites=BERT_SITES),
    "bert_classifier": Family(
        "bert", "bert.encoder.layer", "bert.pooler", "classifier", predicts="class", sites=BERT_SITES
    ),
}
