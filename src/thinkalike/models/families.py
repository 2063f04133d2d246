"""The table of families: where each architecture keeps its residual stream, and how its checkpoints are read.

A new family is one line of this table and nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from thinkalike.errors import ModelError, nearest, one_of

Predicts = Literal["next", "hidden", "class"]  # the next token, hidden tokens, or the class of a whole text
Reader = Literal["transformers", "legacy", "native", "classifier"]  # a key of `thinkalike.models.load.READERS`

CLASSIFIER = "bert_classifier"  # the family of fine-tuned BERTs

# The other site of a BERT is what its last residual addition adds (Brown et al. 2023, appendix C.2).
BERT_SITES = {"resid_post": "", "update": "output.dense"}


@dataclass(frozen=True)
class Family:
    """The facts about one architecture that the rest of the code needs.

    Paths lead from the module that the reader builds to a part of it; "" is the module itself, and None stands for a
    part that it does not have.

    Attributes:
        name: the name in configurations, and the `model_type` in config.json unless that is given.
        body: what maps tokens to final states: embedding, blocks and final norm.
        blocks: the list of blocks.
        norm: the final norm, or a classifier's pooler.
        unembed: the map from normed states to logits.
        body_holds_unembed: whether the body applies the unembedding as well.
        predicts: what the logits are of.
        sites: the sites of a block by the path of the module in it whose output they are.
        reader: how a checkpoint becomes a module and a tokenizer.
        model_type: the `model_type` in config.json where it is not the name.
        architecture: the class in config.json that tells this family from others with the same `model_type`.
        kernels: the packages that run its blocks faster where all of them are installed and CUDA is available.
    """

    name: str
    body: str
    blocks: str
    norm: str | None
    unembed: str | None
    body_holds_unembed: bool = False
    predicts: Predicts = "next"
    sites: Mapping[str, str] = field(default_factory=lambda: {"resid_post": ""})
    reader: Reader = "transformers"
    model_type: str = ""
    architecture: str = ""
    kernels: tuple[str, ...] = ()

    @property
    def in_config_json(self) -> str:
        """The `model_type` that config.json gives, or "" for a family that transformers does not know."""
        return (self.model_type or self.name) if self.reader in ("transformers", "classifier") else ""


FAMILIES = {
    family.name: family
    for family in (
        Family("native", "", "layers", "ln_out", "head", body_holds_unembed=True, reader="native"),
        Family("legacy", "", "layers", "ln_out", "head", body_holds_unembed=True, reader="legacy"),
        Family("gpt_neox", "gpt_neox", "gpt_neox.layers", "gpt_neox.final_layer_norm", "lm_head"),
        Family("gpt2", "transformer", "transformer.h", "transformer.ln_f", "lm_head"),
        Family(
            "mamba", "backbone", "backbone.layers", "backbone.norm_f", "lm_head", kernels=("mamba_ssm", "causal_conv1d")
        ),
        Family("bert", "bert", "bert.encoder.layer", None, None, predicts="hidden", sites=BERT_SITES),
        Family(
            CLASSIFIER, "bert", "bert.encoder.layer", "bert.pooler", "classifier", predicts="class",
            sites=BERT_SITES, reader="classifier", model_type="bert", architecture="BertForSequenceClassification",
        ),
    )
}  # fmt: skip


def family_named(name: str) -> Family:
    """Return the family of this name.

    Raises:
        ConfigError: the table has no such family.
    """
    one_of("model.family", name, FAMILIES)
    return FAMILIES[name]


def family_in(shape: Mapping[str, Any], path: str) -> Family:
    """Return the family that a checkpoint's config.json names.

    Args:
        shape: the contents of config.json.
        path: where it was read, for the message.

    Raises:
        ModelError: config.json names no family of the table.
    """
    for family in FAMILIES.values():
        if family.architecture and family.architecture in (shape.get("architectures") or []):
            return family
    model_type = str(shape.get("model_type"))
    own = {each.in_config_json: each for each in FAMILIES.values() if each.in_config_json and not each.architecture}
    if model_type not in own:
        raise ModelError(f"{path} says model_type={model_type}, which is no known family; {nearest(model_type, own)}")
    return own[model_type]


def classifier_on(model_type: str) -> Family | None:
    """Return the family of classifiers whose body is that of this `model_type`, or None."""
    for family in FAMILIES.values():
        if family.predicts == "class" and family.in_config_json == model_type:
            return family
    return None
