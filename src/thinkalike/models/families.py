"""What is known of a model before its weights are read: its family, its depth, its label, and what it cannot be asked.

A family says what an architecture predicts, where its blocks are, and how its checkpoints are read. Any architecture of
transformers has one. The table has those with another reader, and some more; for all others, `readers.blocks_of` finds
the blocks.
"""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

from thinkalike.config import ModelConfig
from thinkalike.config.in_memory import LoadedModelConfig
from thinkalike.config.recorded import RecordedArrays
from thinkalike.errors import ConfigError, ModelError, nearest, one_of
from thinkalike.models.places import base_of, known_shape, named_folder

EMBED: Final = "embed"  # the site before block 0, in the place of a layer's number


class Place(NamedTuple):
    """A site of a layer, or one head of it, other than the residual stream after a block; see `models.sites`."""

    site: str
    layer: int  # -1 before the blocks, and their number after them
    head: int | None = None

    def __int__(self) -> int:
        return self.layer

    def __str__(self) -> str:
        return f"{self.layer}.{self.site}" if self.head is None else f"{self.layer}.{self.site}.{self.head}"


Layer = int | Literal["embed"] | Place

# the next token, hidden tokens, the class of a whole text, or nothing: without a head, states alone
Predicts = Literal["next", "hidden", "class", "states"]
Reader = Literal["transformers", "legacy", "native"]  # how `thinkalike.models.load` reads a checkpoint

LONGEST = 1024  # tokens per row, of models that can take more
CLASSIFIER = "bert_classifier"  # the family of fine-tuned BERTs
DEPTHS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")  # names of the number of blocks in configurations

AUTO_CLASSES: dict[Predicts, str] = {
    "next": "AutoModelForCausalLM",
    "hidden": "AutoModelForMaskedLM",
    "class": "AutoModelForSequenceClassification",
    "states": "AutoModelForSeq2SeqLM",
}

# settings by which no two models are told apart, and what says nothing to a reader
UNNAMED = ("name", "family", "mini", "corpus", "loaded", "digest")


@dataclass(frozen=True)
class Family:
    """The facts about one architecture that the rest of the code needs."""

    name: str  # in configurations, and the `model_type` in config.json unless that is given
    blocks: str = ""  # the path from the module to its list of blocks; "": to be found when it is read
    predicts: Predicts = "next"  # what the logits are of
    reader: Reader = "transformers"  # how a checkpoint becomes a module and a tokenizer
    model_type: str = ""  # in config.json, where it is not the name
    architecture: str = ""  # in config.json, of a family that shares its `model_type` with others
    read_as: str = ""  # the class of transformers that reads its weights; "": that of `AUTO_CLASSES`
    has_sides: bool = False  # whether it is an encoder-decoder, so that `model.side` applies

    @property
    def reading_class(self) -> str:
        """The name of the class of transformers that reads its weights."""
        return self.read_as or AUTO_CLASSES[self.predicts]

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
        Family("mamba", "backbone.layers"),
        Family("bert", "bert.encoder.layer", predicts="hidden"),
        Family(
            CLASSIFIER, "bert.encoder.layer", "class", model_type="bert", architecture="BertForSequenceClassification"
        ),
    )
}


def after(layer: Layer) -> int:
    """Return how many blocks run before a site."""
    return 0 if layer == EMBED else int(layer) + 1


def family_in(shape: Mapping[str, Any], path: str) -> Family:
    """Return the family of a checkpoint by the contents of its config.json, which was read at `path`."""
    if "model_type" not in shape and "architecture" in shape:  # as `save_mini` writes it
        return FAMILIES["native"]
    stated = [str(name) for name in shape.get("architectures") or []]
    for family in FAMILIES.values():
        if family.architecture and family.architecture in stated:
            return family
    model_type = str(shape.get("model_type"))
    heads = heads_of(model_type)
    head = next((head for head in heads if head.class_name in stated), None)
    has_sides = any(each.predicts == "states" for each in heads)
    if head is None and (body := _class_without_head(model_type, heads, stated)):
        return Family(model_type, predicts="states", model_type=model_type, read_as=body, has_sides=has_sides)
    in_table = {
        family.in_config_json: family
        for family in FAMILIES.values()
        if family.in_config_json and not family.architecture
    }
    if model_type in in_table and (head is None or head.predicts != "class"):
        return in_table[model_type]
    # An unknown class runs as the first kind of head that its architecture has, other than a classifier.
    head = head or next((head for head in heads if head.predicts != "class"), None)
    if head is None:
        raise ModelError(f"{path} says model_type={shape.get('model_type')}, {_unknown(shape, model_type)}")
    name = f"{model_type}_classifier" if head.predicts == "class" else model_type
    read_as = "" if head.auto_class == AUTO_CLASSES[head.predicts] else head.auto_class
    has_sides = head.predicts == "states"
    return Family(name, predicts=head.predicts, model_type=model_type, read_as=read_as, has_sides=has_sides)


class Head(NamedTuple):
    """A class of transformers for one architecture, and what its head predicts."""

    predicts: Predicts
    class_name: str
    auto_class: str  # that reads it


@cache
def heads_of(model_type: str) -> list[Head]:
    """Return the classes of an architecture whose heads predict tokens or the class of a text."""
    from transformers import AutoConfig
    from transformers.models.auto import modeling_auto as auto

    sequence_to_sequence: Mapping[str, Any] = auto.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES
    # Language models that also hear are listed as sequence to sequence, and have no encoder of text.
    has_sides = model_type in sequence_to_sequence and AutoConfig.for_model(model_type).is_encoder_decoder
    # A classifier of an encoder-decoder reads the text on both sides, so it can be cut on neither.
    classifiers: Mapping[str, Any] = {} if has_sides else auto.MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES
    mappings: list[tuple[Predicts, str, Mapping[str, Any]]] = [
        ("class", AUTO_CLASSES["class"], classifiers),
        ("states" if has_sides else "next", AUTO_CLASSES["states"], sequence_to_sequence),
        ("hidden", AUTO_CLASSES["hidden"], auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES),
        ("next", AUTO_CLASSES["next"], auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES),
        # Models of text and images predict the next token of a text, and transformers lists most of them only here.
        ("next", "AutoModelForMultimodalLM", auto.MODEL_FOR_MULTIMODAL_LM_MAPPING_NAMES),
    ]
    return [
        Head(predicts, str(names[model_type]), auto_class)
        for predicts, auto_class, names in mappings
        if model_type in names
    ]


def is_known(model_type: str, class_names: Collection[str]) -> bool:
    """Return whether one of these classes is known for an architecture, with a head or without."""
    heads = heads_of(model_type)
    return any(head.class_name in class_names for head in heads) or bool(
        _class_without_head(model_type, heads, class_names)
    )


def _class_without_head(model_type: str, heads: Sequence[Head], stated: Collection[str]) -> str:
    """Return the stated class of a checkpoint if it predicts neither tokens nor the class of a text.

    "" means that no stated class is known to be such.

    It is the body alone, an encoder, or a body with a head that is not read: for single tokens, spans or choices.
    """
    from transformers.models.auto import modeling_auto as auto

    without_head = (
        auto.MODEL_MAPPING_NAMES,
        auto.MODEL_FOR_TEXT_ENCODING_MAPPING_NAMES,
        auto.MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES,  # of an encoder-decoder, see `heads_of`
        auto.MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING_NAMES,
        auto.MODEL_FOR_QUESTION_ANSWERING_MAPPING_NAMES,
        auto.MODEL_FOR_MULTIPLE_CHOICE_MAPPING_NAMES,
        auto.MODEL_FOR_NEXT_SENTENCE_PREDICTION_MAPPING_NAMES,
    )
    if not heads and model_type not in auto.MODEL_FOR_TEXT_ENCODING_MAPPING_NAMES:
        return ""  # it reads no text
    known: list[str] = []
    for mapping in without_head:
        names = mapping.get(model_type, ())
        known += [names] if isinstance(names, str) else names
    return next((name for name in stated if name in known), "")


def stated_quantization(shape: Mapping[str, Any]) -> str:
    """Return how config.json says that weights are quantised, such as "gptq 4bit"; "": it says nothing."""
    parts = [shape, *(part for part in shape.values() if isinstance(part, Mapping))]  # a text model has a part
    stated = next((part["quantization_config"] for part in parts if part.get("quantization_config")), None)
    if not isinstance(stated, Mapping):
        return ""
    method = stated.get("quant_method") or "quantised"
    method = str(getattr(method, "value", method))
    bits = _bits_in(stated)
    return f"{method} {bits}bit" if bits else method


def _bits_in(settings: Mapping[str, Any]) -> int | None:
    """Return the bits of a weight that settings of a quantisation state, or an inner part of them does."""
    for name in ("bits", "num_bits", "w_bit", "nbits"):
        if isinstance(settings.get(name), int):
            return int(settings[name])
    for bits in (4, 8):  # bitsandbytes has a switch for each
        if settings.get(f"load_in_{bits}bit") is True:
            return bits
    # compressed-tensors has groups of layers, each with settings for weights and for activations
    inner = [settings[name] for name in settings if name not in ("input_activations", "output_activations")]
    found = (_bits_in(part) for part in inner if isinstance(part, Mapping))
    return next((bits for bits in found if bits), None)


def _unknown(shape: Mapping[str, Any], model_type: str) -> str:
    from transformers import __version__
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES

    if model_type in CONFIG_MAPPING_NAMES:
        return "for which transformers has no model that reads text alone; choose a language model"
    if "auto_map" in shape:
        return "which needs code of its own repository (trust_remote_code), and that is never run"
    remedy = nearest(model_type, CONFIG_MAPPING_NAMES) if "model_type" in shape else "give the checkpoint's own file"
    return f"which transformers {__version__} does not know; {remedy}"


class Outline(NamedTuple):
    """What a model predicts, and how many blocks it has; None where only its weights or the hub would say."""

    predicts: Predicts | None
    layers: int | None


def outline(config: ModelConfig) -> Outline:
    """Return what the configuration says of a model, and its config.json if that is in a folder."""
    if isinstance(config, LoadedModelConfig):
        return Outline(config.loaded.predicts, config.loaded.n_layers)
    config = base_of(config) or config
    folder = named_folder(config)
    shape = known_shape(folder) if folder else {}
    family = FAMILIES.get(config.family)
    with contextlib.suppress(ModelError):
        family = family or family_in(shape, "config.json")
    sizes = shape.get("architecture", shape)
    layers = next((sizes[name] for name in DEPTHS if isinstance(sizes.get(name), int)), None)
    return Outline(family.predicts if family else None, layers)


def pick_device(name: str, key: str = "model.device") -> str:
    """Return the device that `auto` or another name stands for; one that this machine lacks is a ConfigError."""
    if name in ("cpu", "cpu:0"):
        return "cpu"
    import torch

    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    gpus = [f"cuda:{number}" for number in range(torch.cuda.device_count())]
    there = ["cpu", *["cuda"][: len(gpus)], *gpus, *["mps"][: torch.backends.mps.is_available()]]
    if name not in there:
        raise ConfigError(f"{key}={name} is not on this machine; it has: auto, {', '.join(there)}")
    return name


def check_models(models: Mapping[str, ModelConfig | None]) -> None:
    """Raise a ConfigError for a device or a family that is not there, of models by the part of the configuration."""
    for part, config in models.items():
        if config is not None:
            pick_device(config.device, f"{part}.device")
            one_of(f"{part}.family", config.family, ("auto", *FAMILIES))


def check_stitchable(source: ModelConfig, target: ModelConfig, layers: Any, asked: str) -> None:
    """Refuse for `asked` what is seen without any weights: a model that predicts no next token, layers beyond it."""
    for each in (source, target):
        if outline(each).predicts not in (None, "next"):
            found = f"{each.called} predicts no next token, and {asked} stitches models that do"
            raise ModelError(f"{found}; choose one of them, or compare representations: python analyze.py measure=cka")
    check_layer_pairs(source, target, layers)


def check_layer_pairs(source: ModelConfig, target: ModelConfig, layers: Any) -> None:
    """Raise a ConfigError for layers that do not exist, where configurations tell, before any weights are loaded."""
    mine, theirs = outline(source).layers, outline(target).layers
    if mine and theirs:
        pairs_of_layers(layers, mine, theirs)


def pairs_of_layers(layers: Any, source_layers: int, target_layers: int) -> list[tuple[int, int]]:
    """Return the pairs (source layer, target layer) that `layers=` means; one that does not exist is a ConfigError."""
    if layers == "same":
        return [(layer, layer) for layer in range(min(source_layers, target_layers))]
    if layers == "all":
        return list(itertools.product(range(source_layers), range(target_layers)))
    layers = [each if isinstance(each, list) else [each, each] for each in layers]
    for layer, depth in layers:
        if not (0 <= layer < source_layers and 0 <= depth < target_layers):
            has = f"the source has layers 0 to {source_layers - 1}, the target 0 to {target_layers - 1}"
            raise ConfigError(f"layers: [{layer},{depth}] is out of range; {has}")
    return list(dict.fromkeys((layer, depth) for layer, depth in layers))


def layers_at_depths(count: int, source_layers: int, target_layers: int) -> list[tuple[int, int]]:
    """Return as many pairs of layers of equal relative depth, if there are as many, from the first to the last."""
    count = min(count, source_layers, target_layers)
    depths = [place / max(count - 1, 1) for place in range(count)]
    return [(round(depth * (source_layers - 1)), round(depth * (target_layers - 1))) for depth in depths]


def layers_of_sides(layers: Any, source_layers: int, target_layers: int, *, itself: bool) -> list[list[int]]:
    """Return the layers of each side in the pairs of `layers=`; of one model with itself those of both sides."""
    source, target = map(set, zip(*pairs_of_layers(layers, source_layers, target_layers), strict=True))
    return [sorted(source | target)] * 2 if itself else [sorted(source), sorted(target)]


def label(config: ModelConfig) -> str:
    """Return the everyday name of a model, or of its folder or repository, with the revision if one is asked for."""
    return f"{config.called}@{config.revision}" if config.revision else config.called


def told_apart(configs: Sequence[ModelConfig]) -> list[str]:
    """Return the labels of models; where different ones share a label, with settings or paths in which they differ."""
    return [_with_settings(each, [other for other in configs if label(other) == label(each)]) for each in configs]


def names_of(sides: Sequence[str | RecordedArrays | ModelConfig]) -> list[str]:
    """Return the names of models and recordings in tables: of a recording its file, with as much path as it takes."""
    models = iter(told_apart([side for side in sides if isinstance(side, ModelConfig)]))
    names = [next(models) if isinstance(side, ModelConfig) else recording_name(side) for side in sides]
    if len(set(names)) == len(names):
        return names
    ends = _ends({Path(side) for side in sides if isinstance(side, str)})
    return [ends[Path(side)] if isinstance(side, str) else name for side, name in zip(sides, names, strict=True)]


def recording_name(recording: str | RecordedArrays) -> str:
    """Return what tables call recorded states: their file without its ending, or arrays in memory."""
    return recording.name if isinstance(recording, RecordedArrays) else Path(recording).stem


def _with_settings(config: ModelConfig, sharing: Sequence[ModelConfig]) -> str:
    """Return a label with the settings by which a model differs from others of the same label, in brackets."""
    values = {name: str(value) for name, value in vars(config).items()  # a site without heads says enough
              if name not in UNNAMED and any(_setting(each, name, value) != value for each in sharing)
              and (name, value) != ("head", None)}  # fmt: skip
    own = label(config)
    if isinstance(config, LoadedModelConfig):
        values.pop("path", None)
    if "path" in values and all(_place(each) for each in sharing):
        ends = _ends({Path(os.path.abspath(_place(each))) for each in sharing})
        values["path"] = ends[Path(os.path.abspath(str(config.path)))].removesuffix(".gguf")
        if all(each.name == "local" for each in sharing):
            own = values.pop("path")
    return f"{own}[{','.join(f'{name}={value}' for name, value in values.items())}]" if values else own


def _setting(config: ModelConfig, name: str, default: Any) -> Any:
    """Return a setting of a model, of which one in memory has a digest in place of a path."""
    if name == "path" and isinstance(config, LoadedModelConfig):
        return config.digest
    return getattr(config, name, default)


def _place(config: ModelConfig) -> str:
    """Return the path of a model, or the digest of one in memory; of a model of the hub nothing."""
    return config.digest if isinstance(config, LoadedModelConfig) else config.path or ""


def _ends(paths: Collection[Path]) -> dict[Path, str]:
    """Return of each of several paths as many of its last parts as tell all of them apart."""
    most = max((len(path.parts) for path in paths), default=1)
    count = next(n for n in range(1, most + 1) if len({path.parts[-n:] for path in paths}) == len(paths))
    return {path: "/".join(path.parts[-count:]) for path in paths}
