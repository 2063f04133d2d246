"""The families of models: what an architecture predicts, where its blocks are, and how its checkpoints are read.

Any architecture of transformers has a family. The table has those with another reader or more sites; for all others,
`readers.blocks_of` finds the blocks.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from thinkalike.errors import ModelError, nearest, one_of

EMBED: Final = "embed"  # the site before block 0, in the place of a layer's number
Layer = int | Literal["embed"]

# the next token, hidden tokens, the class of a whole text, or nothing: states of one side of an encoder-decoder
Predicts = Literal["next", "hidden", "class", "states"]
Reader = Literal["transformers", "legacy", "native"]  # how `thinkalike.models.load` reads a checkpoint

LONGEST = 1024  # tokens per row, of models that can take more
CLASSIFIER = "bert_classifier"  # the family of fine-tuned BERTs
DEPTHS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")  # names of the number of blocks in configurations
RECURRENT = ("mamba_ssm", "causal_conv1d")  # the packages that run state-space blocks faster

# The other site of a BERT is what its last residual addition adds (Brown et al. 2023, appendix C.2).
BERT_SITES = {"resid_post": "", "update": "output.dense"}

AUTO_CLASSES: dict[Predicts, str] = {
    "next": "AutoModelForCausalLM",
    "hidden": "AutoModelForMaskedLM",
    "class": "AutoModelForSequenceClassification",
    "states": "AutoModelForSeq2SeqLM",
}


@dataclass(frozen=True)
class Family:
    """The facts about one architecture that the rest of the code needs.

    Attributes:
        name: the name in configurations, and the `model_type` in config.json unless that is given.
        blocks: the path from the module that the reader builds to its list of blocks; "": to be found when it is read.
        predicts: what the logits are of.
        sites: the sites of a block by the path of the module in it whose output they are; "" is the block itself.
        reader: how a checkpoint becomes a module and a tokenizer.
        model_type: the `model_type` in config.json where it is not the name.
        architecture: the class in config.json that tells this family from others with the same `model_type`.
        kernels: the packages that run its blocks faster on CUDA, if all of them are installed.
    """

    name: str
    blocks: str = ""
    predicts: Predicts = "next"
    sites: Mapping[str, str] = field(default_factory=lambda: {"resid_post": ""})
    reader: Reader = "transformers"
    model_type: str = ""
    architecture: str = ""
    kernels: tuple[str, ...] = ()

    @property
    def in_config_json(self) -> str:
        """The `model_type` that config.json gives, or "" for a family that transformers does not know."""
        return (self.model_type or self.name) if self.reader == "transformers" else ""


FAMILIES = {
    family.name: family
    for family in (
        Family("native", "layers", reader="native"),
        Family("legacy", "layers", reader="legacy"),
        Family("gpt_neox", "gpt_neox.layers"),
        Family("gpt2", "transformer.h"),
        Family("mamba", "backbone.layers", kernels=RECURRENT),
        Family("bert", "bert.encoder.layer", predicts="hidden", sites=BERT_SITES),
        Family(
            CLASSIFIER, "bert.encoder.layer", predicts="class", sites=BERT_SITES, model_type="bert",
            architecture="BertForSequenceClassification",
        ),
    )
}  # fmt: skip


def after(layer: Layer) -> int:
    """Return how many blocks run before a site."""
    return 0 if layer == EMBED else int(layer) + 1


def family_named(name: str) -> Family:
    """Return the family of this name.

    Raises:
        ConfigError: the table has no such family.
    """
    one_of("model.family", name, FAMILIES)
    return FAMILIES[name]


def family_in(shape: Mapping[str, Any], path: str) -> Family:
    """Return the family of a checkpoint by its config.json.

    Args:
        shape: the contents of config.json.
        path: where it was read, for the message.

    Raises:
        ModelError: transformers has no such architecture, or none that predicts tokens or classes.
    """
    if "model_type" not in shape and "architecture" in shape:  # as `save_mini` writes it
        return FAMILIES["native"]
    stated = [str(name) for name in shape.get("architectures") or []]
    for family in FAMILIES.values():
        if family.architecture and family.architecture in stated:
            return family
    model_type = str(shape.get("model_type"))
    own = {each.in_config_json: each for each in FAMILIES.values() if each.in_config_json and not each.architecture}
    if model_type in own and not any(name.endswith("ForSequenceClassification") for name in stated):
        return own[model_type]
    predicts = _predicts(model_type, stated)
    if predicts is None:
        raise ModelError(_unknown(shape, model_type, path))
    state_space = "mamba" in model_type or model_type in ("falcon_h1", "jamba", "bamba", "zamba", "zamba2")
    kernels = RECURRENT if state_space else ()
    name = f"{model_type}_classifier" if predicts == "class" else model_type
    return Family(name, predicts=predicts, model_type=model_type, kernels=kernels)


def heads_of(model_type: str) -> dict[Predicts, Any]:
    """Return the classes of transformers for an architecture by what they predict; None where there is none."""
    from transformers.models.auto import modeling_auto as auto

    return {
        "class": auto.MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES.get(model_type),
        "states": auto.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES.get(model_type),
        "hidden": auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES.get(model_type),
        "next": auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.get(model_type),
    }


def _predicts(model_type: str, stated: list[str]) -> Predicts | None:
    """Return what a checkpoint predicts: what its own class does, or else the first of what its architecture can."""
    classes = heads_of(model_type)
    for predicts, name in classes.items():
        if name in stated:
            return predicts
    return next((predicts for predicts, name in classes.items() if name and predicts != "class"), None)


def _unknown(shape: Mapping[str, Any], model_type: str, path: str) -> str:
    from transformers import __version__
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES

    said = f"{path} says model_type={shape.get('model_type')}"
    if model_type in CONFIG_MAPPING_NAMES:
        return f"{said}, which predicts neither tokens nor classes of texts; choose a language model"
    if "auto_map" in shape:
        return f"{said}, which needs code of its own repository (trust_remote_code), and that is never run"
    return f"{said}, which transformers {__version__} does not know; {nearest(model_type, CONFIG_MAPPING_NAMES)}"
