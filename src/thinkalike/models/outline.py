"""Models before their weights are read: their labels in tables and figures, and what cannot be asked of them."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from thinkalike.config import ModelConfig, pairs_of_layers
from thinkalike.errors import ModelError, one_of
from thinkalike.models.families import DEPTHS, FAMILIES, Predicts, family_in
from thinkalike.models.formats import base_of
from thinkalike.models.places import known_shape, named_folder, pick_device, stated_in

# the settings by which models of one name are told apart
IDENTIFYING = (
    "hub_id", "revision", "path", "base", "index", "side", "processing", "dtype", "quantization", "context", "seed",
    "device",
)  # fmt: skip
THREE = ["entailment", "neutral", "contradiction"]  # classes of pairs of sentences
TWO = ["entailment", "non-entailment"]


class Outline(NamedTuple):
    """What a model predicts, and how many blocks it has; None where only its weights or the hub would say."""

    predicts: Predicts | None
    layers: int | None


def check_models(models: Mapping[str, ModelConfig | None]) -> None:
    """Check the devices and the families of models, by the part of the configuration, model or target.

    Raises:
        ConfigError: this machine has no such device, or the table no such family.
    """
    for part, config in models.items():
        if config is not None:
            pick_device(config.device, f"{part}.device")
            one_of(f"{part}.family", config.family, ("auto", *FAMILIES))


def check_stitchable(source: ModelConfig, target: ModelConfig, layers: Any, asked: str) -> None:
    """Refuse what is seen without any weights: a model that predicts no next token, or layers that do not exist.

    Args:
        asked: what stitches them, for the message.

    Raises:
        ConfigError: layers do not exist.
        ModelError: a model predicts no next token.
    """
    for each in (source, target):
        if outline(each).predicts not in (None, "next"):
            raise ModelError(
                f"{each.called} predicts no next token, and {asked} stitches models that do; choose one of them, or "
                "compare representations: python analyze.py measure=cka"
            )
    check_layer_pairs(source, target, layers)


def check_layer_pairs(source: ModelConfig, target: ModelConfig, layers: Any) -> None:
    """Refuse layers that do not exist before any weights are loaded, where configurations tell.

    Raises:
        ConfigError: there is no such layer.
    """
    mine, theirs = outline(source).layers, outline(target).layers
    if mine and theirs:
        pairs_of_layers(layers, mine, theirs)


def outline(config: ModelConfig) -> Outline:
    """Return what the configuration says of a model, and its config.json if that is in a folder."""
    config = base_of(config) or config
    folder = named_folder(config)
    shape = known_shape(stated_in(folder)) if folder else {}
    family = FAMILIES.get(config.family)
    with contextlib.suppress(ModelError):
        family = family or family_in(shape, "config.json")
    sizes = shape.get("architecture", shape)
    layers = next((sizes[name] for name in DEPTHS if isinstance(sizes.get(name), int)), None)
    return Outline(family.predicts if family else None, layers)


def label(config: ModelConfig) -> str:
    """Return the everyday name of a model, or of its folder or repository, with the revision if one is asked for."""
    return f"{config.called}@{config.revision}" if config.revision else config.called


def told_apart(configs: Sequence[ModelConfig]) -> list[str]:
    """Return the labels of models; where different ones share a label, with the settings in which they differ.

    Folders of one name are called by as much of their paths as tells them apart. Where none of the settings that
    identify a model differs, they are numbered.
    """
    labels = [label(config) for config in configs]
    whole = []
    for own, config in zip(labels, configs, strict=True):
        sharing = [each for name, each in zip(labels, configs, strict=True) if name == own]
        whole.append(_whole(own, config, sharing))
    for place, config in enumerate(configs):
        if any(name == whole[place] and each != config for name, each in zip(whole, configs, strict=True)):
            labels[place] = f"{whole[place]}#{configs.index(config) + 1}"
        else:
            labels[place] = whole[place]
    return labels


def names_of(sides: Sequence[str | ModelConfig]) -> list[str]:
    """Return the names of models and recordings in tables: of a recording its file, with as much path as it takes."""
    models = iter(told_apart([side for side in sides if not isinstance(side, str)]))
    labels = [side if isinstance(side, str) else next(models) for side in sides]
    for parts in range(max(len(Path(side).parts) for side in labels) + 1):  # 0: the name of the file without its ending
        names = [_last(side, parts) if isinstance(side, str) else own for side, own in zip(sides, labels, strict=True)]
        if len(set(names)) == len(names):
            break
    return names


def _last(path: str, parts: int) -> str:
    return "/".join(Path(path).parts[-parts:]) if parts else Path(path).stem


def _whole(own: str, config: ModelConfig, others: Sequence[ModelConfig]) -> str:
    """Return a label with the settings by which a model differs from others of the same label, in brackets."""
    differing = [name for name in IDENTIFYING if any(getattr(each, name) != getattr(config, name) for each in others)]
    if "path" in differing and all(each.name == "local" for each in others):
        own = _short("path", config, others)
        differing.remove("path")
    shown = [f"{name}={_short(name, config, others)}" for name in differing]
    return f"{own}[{','.join(shown)}]" if shown else own


def _short(name: str, config: ModelConfig, others: Sequence[ModelConfig]) -> str:
    """Return a setting as text; of a path, as many of its last parts as tell it from those of the others."""
    if name != "path" or not all(each.path for each in others):
        return str(getattr(config, name))
    paths = {Path(os.path.abspath(str(each.path))) for each in others}
    count = next((n for n in range(1, 99) if len({path.parts[-n:] for path in paths}) == len(paths)), 99)
    return "/".join(Path(os.path.abspath(str(config.path))).parts[-count:]).removesuffix(".gguf")


def class_names(config: ModelConfig, module: Any) -> list[str]:
    """Return the classes in the order of the logits: those of the configuration, or else those of the checkpoint.

    Raises:
        ModelError: nothing names them, their number or their names are wrong, or the checkpoint has another order.
    """
    own = [_ours(module.config.id2label[number]) for number in range(module.config.num_labels)]
    classes = list(config.classes or own)
    if len(classes) != len(own) or sorted(classes) not in (sorted(THREE), sorted(TWO)):
        raise ModelError(
            f"{config.called}: its {len(own)} classes are {classes}; name them in the order of its logits as in "
            f"{THREE} or {TWO}: model.classes=[{','.join(THREE)}]"
        )
    if sorted(own) == sorted(classes) and own != classes:
        raise ModelError(f"{config.called}: model.classes={classes}, but its config.json says {own}; leave it out")
    return classes


def _ours(name: str) -> str:
    """Spell the name of a class as this project does."""
    name = name.lower().replace("_", "-")
    return "non-entailment" if name == "not-entailment" else name
