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
        has_sides: Whether it is an encoder-decoder, so that `model.side` applies.
    """

    name: str
    blocks: str = ""
    predicts: Predicts = "next"
    reader: Reader = "transformers"
    model_type: str = ""
    architecture: str = ""
    read_as: str = ""
    has_sides: bool = False

    @property
    def reading_class(self) -> str:
        """The name of the class of transformers that reads its weights."""
        return self.read_as or AUTO_CLASSES[self.predicts]

    @property
    def in_config_json(self) -> str:
        """The `model_type` that config.json gives; "" if transformers does not know the family."""
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


def after(layer: Layer) -> int:
    """Return how many blocks have run once the states of a layer are known; 0 for EMBED.

    A place within a block counts the block, which must run for it.
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
    head = _first(head for head in heads if head.class_name in class_names)
    if head is None:
        body = _class_without_head(model_type, heads, class_names)
        if body:
            return Family(
                model_type,
                predicts="states",
                model_type=model_type,
                read_as=body,
                has_sides=any(head.predicts == "states" for head in heads),
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
        head = _first(head for head in heads if head.predicts != "class")
    if head is None:
        reason = _why_unknown(config_json, model_type)
        raise ModelError(f"{path} says model_type={config_json.get('model_type')}, {reason}")
    is_usual_class = head.auto_class == AUTO_CLASSES[head.predicts]
    return Family(
        f"{model_type}_classifier" if head.predicts == "class" else model_type,
        predicts=head.predicts,
        model_type=model_type,
        read_as="" if is_usual_class else head.auto_class,
        has_sides=head.predicts == "states",
    )


def _first(heads: Iterable[Head]) -> Head | None:
    """Return the first head, or None if there is none."""
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
    """Return the classes of an architecture whose heads predict tokens or the class of a text.

    After a classifier, as which no unknown class runs, they come in the order in which an unknown
    class of the architecture would run as one of them. The list is empty for a `model_type` that
    transformers does not know.
    """
    from transformers import AutoConfig
    from transformers.models.auto import modeling_auto as auto

    sequence_to_sequence: Mapping[str, object] = auto.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES
    # Language models that also hear are listed as sequence to sequence, and have no encoder of
    # text.
    has_sides = False
    if model_type in sequence_to_sequence:
        has_sides = AutoConfig.for_model(model_type).is_encoder_decoder
    # A classifier of an encoder-decoder reads the text on both sides, so it can be cut on neither.
    classifiers: Mapping[str, object] = {}
    if not has_sides:
        classifiers = auto.MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES
    mappings: list[tuple[Predicts, str, Mapping[str, object]]] = [
        ("class", AUTO_CLASSES["class"], classifiers),
        ("states" if has_sides else "next", AUTO_CLASSES["states"], sequence_to_sequence),
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


def is_known(model_type: str, class_names: Collection[str]) -> bool:
    """Return whether one of these classes is known for an architecture, with a head or without."""
    heads = heads_of(model_type)
    if any(head.class_name in class_names for head in heads):
        return True
    return bool(_class_without_head(model_type, heads, class_names))


def _class_without_head(
    model_type: str, heads: Sequence[Head], class_names: Collection[str]
) -> str:
    """Return the first stated class that predicts neither tokens nor the class of a text.

    It is the body alone, an encoder, or a body with a head that is not read: for single tokens,
    spans or choices. "" means that no stated class is known to be such.

    Args:
        model_type: The `model_type` of the checkpoint.
        heads: The `heads_of` it.
        class_names: The classes that config.json names.
    """
    from transformers.models.auto import modeling_auto as auto

    if not heads and model_type not in auto.MODEL_FOR_TEXT_ENCODING_MAPPING_NAMES:
        return ""  # it reads no text
    mappings = (
        auto.MODEL_MAPPING_NAMES,
        auto.MODEL_FOR_TEXT_ENCODING_MAPPING_NAMES,
        auto.MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES,  # of an encoder-decoder
        auto.MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING_NAMES,
        auto.MODEL_FOR_QUESTION_ANSWERING_MAPPING_NAMES,
        auto.MODEL_FOR_MULTIPLE_CHOICE_MAPPING_NAMES,
        auto.MODEL_FOR_NEXT_SENTENCE_PREDICTION_MAPPING_NAMES,
    )
    without_head: list[str] = []
    for mapping in mappings:
        names = mapping.get(model_type, ())
        without_head += [names] if isinstance(names, str) else names
    for class_name in class_names:
        if class_name in without_head:
            return class_name
    return ""


def stated_quantization(config_json: Mapping[str, object]) -> str:
    """Return how config.json says that weights are quantised, such as "gptq 4bit".

    "" means that it says nothing.
    """
    # Models of text and images have a section for the text model.
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
    method = str(getattr(stated_method, "value", stated_method))
    bits = _bits_in(settings)
    if bits:
        return f"{method} {bits}bit"
    return method


def _bits_in(settings: Mapping[str, object]) -> int | None:
    """Return the bits of a weight that settings of a quantisation, or a section of them, state.

    None means that they state none.
    """
    for name in ("bits", "num_bits", "w_bit", "nbits"):
        number = settings.get(name)
        if isinstance(number, int):
            return int(number)
    for bits in (4, 8):  # bitsandbytes has a switch for each
        if settings.get(f"load_in_{bits}bit") is True:
            return bits
    # compressed-tensors has groups of layers, each with settings for weights and for activations.
    # The first group that states bits decides.
    for name, section in settings.items():
        if name in ("input_activations", "output_activations") or not isinstance(section, Mapping):
            continue
        bits_of_section = _bits_in(section)
        if bits_of_section:
            return bits_of_section
    return None


def _why_unknown(config_json: Mapping[str, object], model_type: str) -> str:
    """Return why an architecture cannot be read, as the rest of a sentence."""
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
    """Return what a model's configuration says, and its config.json if it is in a folder.

    Of an adapter it is what its base says. No weights are read, and the hub is not asked.
    """
    if isinstance(config, LoadedModelConfig):
        return Outline(config.loaded.predicts, config.loaded.n_layers)
    config = base_of(config) or config
    folder = named_folder(config)
    config_json = known_config_json(folder) if folder else {}
    family = FAMILIES.get(config.family)
    if family is None:
        with contextlib.suppress(ModelError):
            family = family_in(config_json, "config.json")
    predicts = family.predicts if family else None
    # A mini's config.json has its sizes in a section.
    sizes = cast(Mapping[str, object], config_json.get("architecture", config_json))
    for name in DEPTHS:
        depth = sizes.get(name)
        if isinstance(depth, int):
            return Outline(predicts, depth)
    return Outline(predicts, None)


def pick_device(name: str, key: str = "model.device") -> str:
    """Return the device that a name stands for: for "auto" the GPU if there is one, else the CPU.

    Args:
        name: "auto", or a device as torch calls it, such as "cuda:1".
        key: The setting that has it, for the error.

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
            f"{key}={name} is not on this machine; it has: auto, {', '.join(devices)}"
        )
    return name


def check_models(models: Mapping[str, ModelConfig | None]) -> None:
    """Raise a ConfigError for a device or a family that does not exist.

    Args:
        models: The models of the sides "model" and "target" of a configuration; None: the side
            has no model.
    """
    for side, config in models.items():
        if config is not None:
            pick_device(config.device, f"{side}.device")
            one_of(f"{side}.family", config.family, ("auto", *FAMILIES))
