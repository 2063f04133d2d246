"""What is known of a model before its weights are read: its family, its depth, and its device.

A family says what an architecture predicts, where its blocks are, and how its checkpoints are
read.
Any architecture of transformers has one. The table has those with another reader, and some more;
for all others, `blocks.blocks_of` finds the blocks.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Final, Literal, NamedTuple, cast

from thinkalike.advice import named_setting
from thinkalike.config import ModelConfig
from thinkalike.config.in_memory import LoadedModelConfig
from thinkalike.errors import ConfigError, ModelError, nearest, one_of
from thinkalike.models.checkpoints import base_of, named_folder
from thinkalike.models.config_json import known_config_json

# The site before block 0, in the place of a layer's number.
EMBED: Final = "embed"


class Place(NamedTuple):
    """A site of a layer, or one head of it, other than the residual stream after a block.

    As a number it is its layer, and as text "layer.site" or "layer.site.head".

    Attributes:
        site: The name of the site.
        layer: The layer; -1 before the blocks, and their number after them.
        head: The head; None: all heads together.
    """

    site: str
    layer: int
    head: int | None = None

    def __int__(self) -> int:
        return self.layer

    def __str__(self) -> str:
        name = f"{self.layer}.{self.site}"
        if self.head is None:
            return name
        return f"{name}.{self.head}"


Layer = int | Literal["embed"] | Place

# What a model outputs logits of: the next token, hidden tokens, the class of a whole text, or
# nothing: without a head, it has states alone.
Predicts = Literal["next", "hidden", "class", "states"]

# How `thinkalike.models.load` reads a checkpoint.
Reader = Literal["transformers", "legacy", "native"]

# The tokens per row of models that can take more.
DEFAULT_CONTEXT = 1024

# The family of fine-tuned BERTs.
CLASSIFIER = "bert_classifier"

# Names of the number of blocks in configurations.
DEPTHS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")

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
        name: In configurations, and the `model_type` in config.json unless that is given.
        blocks: The path from the module to its list of blocks; "": found when the model is read.
        predicts: What the logits are of.
        reader: How a checkpoint becomes a module and a tokenizer.
        model_type: The `model_type` in config.json, where it is not the name.
        architecture: The class in config.json, of a family that shares its `model_type`.
        read_as: The class of transformers that reads its weights; "": that of `AUTO_CLASSES`.
        is_encoder_decoder: Whether it is an encoder-decoder, so that `model.side` applies.
    """

    name: str
    blocks: str = ""
    predicts: Predicts = "next"
    reader: Reader = "transformers"
    model_type: str = ""
    architecture: str = ""
    read_as: str = ""
    is_encoder_decoder: bool = False

    @property
    def reading_class(self) -> str:
        """The name of the class of transformers that reads its weights."""
        return self.read_as or AUTO_CLASSES[self.predicts]

    @property
    def in_config_json(self) -> str:
        """The `model_type` that config.json gives; "" if transformers does not know the family.

        It is the family's name, unless the family states another one.
        """
        if self.reader != "transformers":
            return ""
        return self.model_type or self.name


FAMILIES = {
    family.name: family
    for family in (
        Family("native", "layers", reader="native"),
        Family("legacy", "layers", reader="legacy"),
        Family("gpt_neox", "gpt_neox.layers"),
        Family("gpt2", "transformer.h"),
        Family("mamba", "backbone.layers"),
        Family("bert", "bert.encoder.layer", predicts="hidden"),
        Family(
            CLASSIFIER,
            "bert.encoder.layer",
            "class",
            model_type="bert",
            architecture="BertForSequenceClassification",
        ),
    )
}


def n_blocks_until(layer: Layer) -> int:
    """Return how many blocks of a model must run until the states of a layer are known.

    It is 0 for EMBED, the stream before block 0, and l + 1 for block l. For a `Place`, a hook
    point inside block l, it is l + 1 as well.
    """
    if layer == EMBED:
        return 0
    return int(layer) + 1


def family_in(config_json: Mapping[str, object], path: str) -> Family:
    """Return the family of a checkpoint.

    A class that config.json states decides what the model predicts; of a class that is not known,
    the `model_type` does.

    Args:
        config_json: The contents of its config.json.
        path: Where that was read.

    Raises:
        ModelError: No class of transformers reads the architecture.
    """
    # The config.json of a mini has its own form.
    is_mini = "architecture" in config_json and "model_type" not in config_json
    if is_mini:
        return FAMILIES["native"]
    stated_classes = cast(Iterable[object], config_json.get("architectures") or [])
    class_names = [str(name) for name in stated_classes]
    for family in FAMILIES.values():
        if family.architecture and family.architecture in class_names:
            return family

    model_type = str(config_json.get("model_type"))
    heads = heads_of(model_type)
    head = _first_or_none(head for head in heads if head.class_name in class_names)
    if head is None:
        body = _class_without_head(model_type, heads, class_names)
        if body:
            return Family(
                model_type,
                predicts="states",
                model_type=model_type,
                read_as=body,
                is_encoder_decoder=any(head.predicts == "states" for head in heads),
            )
    # A classifier predicts something else than the family in the table of the same `model_type`.
    if head is None or head.predicts != "class":
        for family in FAMILIES.values():
            is_whole_model_type = family.in_config_json and not family.architecture
            if is_whole_model_type and family.in_config_json == model_type:
                return family

    # An unknown class runs as the first kind of head that its architecture has, other than a
    # classifier.
    if head is None:
        head = _first_or_none(head for head in heads if head.predicts != "class")
    if head is None:
        reason = _why_unknown(config_json, model_type)
        raise ModelError(f"{path} says model_type={config_json.get('model_type')}, {reason}")
    is_usual_class = head.auto_class == AUTO_CLASSES[head.predicts]
    return Family(
        f"{model_type}_classifier" if head.predicts == "class" else model_type,
        predicts=head.predicts,
        model_type=model_type,
        read_as="" if is_usual_class else head.auto_class,
        is_encoder_decoder=head.predicts == "states",
    )


def _first_or_none(heads: Iterable[Head]) -> Head | None:
    """Return the first of some heads, or None if there is none."""
    return next(iter(heads), None)


class Head(NamedTuple):
    """A class of transformers for one architecture, and what its head predicts.

    Attributes:
        predicts: What the head predicts.
        class_name: The name of the class.
        auto_class: The name of the class that reads its weights, such as AutoModelForCausalLM.
    """

    predicts: Predicts
    class_name: str
    auto_class: str


@cache
def heads_of(model_type: str) -> list[Head]:
    """Return the classes of transformers for an architecture, with what the head of each predicts.

    The order is: classifier, sequence to sequence, masked tokens, next token. A checkpoint that
    does not state its class is read as the first of these that is not a classifier. The list is
    empty for a `model_type` that transformers does not know.
    """
    from transformers import AutoConfig
    from transformers.models.auto import modeling_auto as auto

    sequence_to_sequence: Mapping[str, object] = auto.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES
    # Language models that also read audio are listed as sequence to sequence, too, though they
    # have no encoder of text. Their configuration tells the difference.
    is_encoder_decoder = False
    if model_type in sequence_to_sequence:
        is_encoder_decoder = AutoConfig.for_model(model_type).is_encoder_decoder
    # A classifier of an encoder-decoder reads the text with both sides, so neither side can be
    # cut: it has no entry here.
    classifiers: Mapping[str, object] = {}
    if not is_encoder_decoder:
        classifiers = auto.MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES
    mappings: list[tuple[Predicts, str, Mapping[str, object]]] = [
        ("class", AUTO_CLASSES["class"], classifiers),
        # The class that reads an encoder-decoder; its states are compared, and not its logits.
        ("states" if is_encoder_decoder else "next", AUTO_CLASSES["states"], sequence_to_sequence),
        ("hidden", AUTO_CLASSES["hidden"], auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES),
        ("next", AUTO_CLASSES["next"], auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES),
        # Models of text and images predict the next token of a text, and transformers lists most
        # of them only here.
        ("next", "AutoModelForMultimodalLM", auto.MODEL_FOR_MULTIMODAL_LM_MAPPING_NAMES),
    ]
    heads = []
    for predicts, auto_class, class_names in mappings:
        if model_type in class_names:
            heads.append(Head(predicts, str(class_names[model_type]), auto_class))
    return heads


def is_known_class(model_type: str, class_names: Collection[str]) -> bool:
    """Return whether transformers has one of these classes for an architecture.

    It may be a class with a head, such as `GPT2LMHeadModel`, or that of the model without a head.

    Args:
        model_type: The `model_type` in config.json, which names the architecture.
        class_names: The classes that config.json states.
    """
    heads = heads_of(model_type)
    if any(head.class_name in class_names for head in heads):
        return True
    return bool(_class_without_head(model_type, heads, class_names))


def _class_without_head(
    model_type: str, heads: Sequence[Head], class_names: Collection[str]
) -> str:
    """Return the first class in `class_names` from which only states are read, not predictions.

    It is a body without a head, an encoder, or a class whose head is ignored here, such as one
    that labels single tokens or answers questions. "" means that no class is of these kinds, or
    that the architecture reads no text.

    Args:
        model_type: The `model_type` in config.json, which names the architecture.
        heads: The classes of this architecture that predict tokens or the class of a text.
        class_names: The classes that config.json states.
    """
    from transformers.models.auto import modeling_auto as auto

    if not heads and model_type not in auto.MODEL_FOR_TEXT_ENCODING_MAPPING_NAMES:
        return ""
    mappings = (
        auto.MODEL_MAPPING_NAMES,
        auto.MODEL_FOR_TEXT_ENCODING_MAPPING_NAMES,
        # Only classifiers of encoder-decoders, since any other one is in `heads`.
        auto.MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES,
        auto.MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING_NAMES,
        auto.MODEL_FOR_QUESTION_ANSWERING_MAPPING_NAMES,
        auto.MODEL_FOR_MULTIPLE_CHOICE_MAPPING_NAMES,
        auto.MODEL_FOR_NEXT_SENTENCE_PREDICTION_MAPPING_NAMES,
    )
    classes_read_for_states: list[str] = []
    for mapping in mappings:
        names = mapping.get(model_type, ())  # one name, or several
        classes_read_for_states += [names] if isinstance(names, str) else names
    for class_name in class_names:
        if class_name in classes_read_for_states:
            return class_name
    return ""


def stated_quantization(config_json: Mapping[str, object]) -> str:
    """Return the quantisation that config.json states, such as "gptq 4bit".

    "" means that it states none. Without a method it is called "quantised", and the bits are left
    out if they are not stated.
    """
    # The statement may be in a section, such as that of the text model of a model that also reads
    # images.
    sections = [config_json]
    sections += [value for value in config_json.values() if isinstance(value, Mapping)]
    settings = None
    for section in sections:
        if section.get("quantization_config"):
            settings = section["quantization_config"]
            break
    if not isinstance(settings, Mapping):
        return ""
    stated_method = settings.get("quant_method") or "quantised"
    method = str(getattr(stated_method, "value", stated_method))  # transformers uses an enum
    bits = _bits_in(settings)
    if bits:
        return f"{method} {bits}bit"
    return method


def _bits_in(settings: Mapping[str, object]) -> int | None:
    """Return the bits per weight that the settings of a quantisation state; None: they state none.

    Different libraries state them under different names, at the top or in a section.
    """
    for name in ("bits", "num_bits", "w_bit", "nbits"):
        number = settings.get(name)
        if isinstance(number, int):
            return int(number)
    for bits in (4, 8):
        if settings.get(f"load_in_{bits}bit") is True:  # the form of bitsandbytes
            return bits
    # compressed-tensors has a section for each group of layers, in which weights and activations
    # have sections of their own. The first section that states bits of weights decides.
    for name, section in settings.items():
        if name in ("input_activations", "output_activations") or not isinstance(section, Mapping):
            continue
        bits_of_section = _bits_in(section)
        if bits_of_section:
            return bits_of_section
    return None


def _why_unknown(config_json: Mapping[str, object], model_type: str) -> str:
    """Return why no class of transformers reads an architecture, as the end of an error message.

    The message begins with "PATH says model_type=NAME,".

    Args:
        config_json: The contents of the checkpoint's config.json.
        model_type: Its `model_type`, which names the architecture; "None" if it has none.
    """
    from transformers import __version__
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES

    if model_type in CONFIG_MAPPING_NAMES:
        return "for which transformers has no model that reads text alone; choose a language model"
    if "auto_map" in config_json:
        return "which needs code of its own repository (trust_remote_code), and that is never run"
    remedy = "give the checkpoint's own file"
    if "model_type" in config_json:
        remedy = nearest(model_type, CONFIG_MAPPING_NAMES)
    return f"which transformers {__version__} does not know; {remedy}"


class Outline(NamedTuple):
    """What a model predicts, and how many blocks it has.

    Either is None where only its weights or the hub would say.
    """

    predicts: Predicts | None
    layers: int | None


def outline(config: ModelConfig) -> Outline:
    """Return what a model predicts and how many blocks it has, as far as its settings tell.

    The settings are those in `config` and, for a model in a folder, in its config.json. An adapter
    has the settings of its base model. No weights are read, and the hub is not asked. So both the
    prediction and the number of blocks may be None, which means that it is not known.
    """
    if isinstance(config, LoadedModelConfig):
        return Outline(config.loaded.predicts, config.loaded.n_layers)
    config = base_of(config) or config
    folder = named_folder(config)
    config_json = known_config_json(folder) if folder else {}
    family = FAMILIES.get(config.family)  # that of the setting `model.family`, if it is given
    if family is None:
        # An unknown architecture is not an error here; loading the model will raise it.
        with contextlib.suppress(ModelError):
            family = family_in(config_json, "config.json")
    predicts = family.predicts if family else None
    # The config.json of a bundled model has its sizes in the section "architecture".
    sizes = cast(Mapping[str, object], config_json.get("architecture", config_json))
    for name in DEPTHS:  # the names of this setting in different architectures, such as n_layer
        depth = sizes.get(name)
        if isinstance(depth, int):
            return Outline(predicts, depth)
    return Outline(predicts, None)


def pick_device(name: str, key: str = "model.device") -> str:
    """Check that this machine has a device, and return its name.

    Args:
        name: A device as torch calls it, such as "cuda:1" or "mps", or "auto": CUDA's current GPU
            if there is one, and else the CPU. "auto" never means "mps".
        key: The setting that names the device, for the error.

    Raises:
        ConfigError: This machine has no such device.
    """
    if name in ("cpu", "cpu:0"):
        return "cpu"
    import torch  # takes seconds, and is not needed for the CPU

    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    devices = ["cpu"]
    gpus = [f"cuda:{number}" for number in range(torch.cuda.device_count())]
    if gpus:
        devices += ["cuda", *gpus]
    if torch.backends.mps.is_available():
        devices.append("mps")
    if name not in devices:
        raise ConfigError(
            f"{named_setting(key, name)} is not on this machine; it has: auto, "
            f"{', '.join(devices)}"
        )
    return name


def check_device_and_family(side: str, config: ModelConfig) -> None:
    """Raise a ConfigError if this machine lacks a model's device, or its family is not known.

    Args:
        side: What the settings of the model begin with, "model" or "target", for the message.
        config: The configuration of the model.
    """
    pick_device(config.device, key=f"{side}.device")  # raises the error
    one_of(f"{side}.family", config.family, ("auto", *FAMILIES))
