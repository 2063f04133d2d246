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
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

from thinkalike.config import ModelConfig
from thinkalike.errors import ConfigError, ModelError, nearest, one_of
from thinkalike.models.places import base_of, held, known_shape, named_folder

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

# the next token, hidden tokens, the class of a whole text, or nothing: states of one side of an encoder-decoder
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

IN_MEMORY = "memory:"  # the beginning of the path of a model in memory, which says nothing to a reader
UNNAMED = ("name", "family", "mini", "corpus", "members")  # settings by which no two models are told apart


@dataclass(frozen=True)
class Family:
    """The facts about one architecture that the rest of the code needs."""

    name: str  # in configurations, and the `model_type` in config.json unless that is given
    blocks: str = ""  # the path from the module to its list of blocks; "": to be found when it is read
    predicts: Predicts = "next"  # what the logits are of
    reader: Reader = "transformers"  # how a checkpoint becomes a module and a tokenizer
    model_type: str = ""  # in config.json, where it is not the name
    architecture: str = ""  # in config.json, of a family that shares its `model_type` with others

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
    own = {each.in_config_json: each for each in FAMILIES.values() if each.in_config_json and not each.architecture}
    if model_type in own and not any(name.endswith("ForSequenceClassification") for name in stated):
        return own[model_type]
    classes = heads_of(model_type)  # it predicts what its own class does, or else the first of what its kind can
    own_class = (predicts for predicts, name in classes.items() if name in stated)
    possible = (predicts for predicts, name in classes.items() if name and predicts != "class")
    predicts = next(own_class, None) or next(possible, None)
    if predicts is None:
        raise ModelError(f"{path} says model_type={shape.get('model_type')}, {_unknown(shape, model_type)}")
    name = f"{model_type}_classifier" if predicts == "class" else model_type
    return Family(name, predicts=predicts, model_type=model_type)


def heads_of(model_type: str) -> dict[Predicts, Any]:
    """Return the classes of transformers for an architecture by what they predict; None where there is none."""
    from transformers.models.auto import modeling_auto as auto

    return {
        "class": auto.MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES.get(model_type),
        "states": auto.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES.get(model_type),
        "hidden": auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES.get(model_type),
        "next": auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.get(model_type),
    }


def _unknown(shape: Mapping[str, Any], model_type: str) -> str:
    from transformers import __version__
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES

    if model_type in CONFIG_MAPPING_NAMES:
        return "which predicts neither tokens nor classes of texts; choose a language model"
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
    if model := held(config):
        return Outline(model.predicts, model.n_layers)
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


def names_of(sides: Sequence[str | ModelConfig]) -> list[str]:
    """Return the names of models and recordings in tables: of a recording its file, with as much path as it takes."""
    models = iter(told_apart([side for side in sides if not isinstance(side, str)]))
    names = [Path(side).stem if isinstance(side, str) else next(models) for side in sides]
    if len(set(names)) == len(names):
        return names
    ends = _ends({Path(side) for side in sides if isinstance(side, str)})
    return [ends[Path(side)] if isinstance(side, str) else name for side, name in zip(sides, names, strict=True)]


def _with_settings(config: ModelConfig, sharing: Sequence[ModelConfig]) -> str:
    """Return a label with the settings by which a model differs from others of the same label, in brackets."""
    values = {name: str(value) for name, value in vars(config).items()  # a site without heads says enough
              if name not in UNNAMED and any(getattr(each, name) != value for each in sharing)
              and (name, value) != ("head", None) and not str(value).startswith(IN_MEMORY)}  # fmt: skip
    own = label(config)
    if "path" in values and all(each.path for each in sharing):
        ends = _ends({Path(os.path.abspath(str(each.path))) for each in sharing})
        values["path"] = ends[Path(os.path.abspath(str(config.path)))].removesuffix(".gguf")
        if all(each.name == "local" for each in sharing):
            own = values.pop("path")
    return f"{own}[{','.join(f'{name}={value}' for name, value in values.items())}]" if values else own


def _ends(paths: Collection[Path]) -> dict[Path, str]:
    """Return of each of several paths as many of its last parts as tell all of them apart."""
    most = max((len(path.parts) for path in paths), default=1)
    count = next(n for n in range(1, most + 1) if len({path.parts[-n:] for path in paths}) == len(paths))
    return {path: "/".join(path.parts[-count:]) for path in paths}
