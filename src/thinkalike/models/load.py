"""Loading: from a configuration to a FrozenModel, whether it is on the hub, in a local folder, or an embedded mini."""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import logging
import os
import re
import threading
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from thinkalike.config import ModelConfig, model_named, options
from thinkalike.digests import remembered_digest
from thinkalike.errors import ConfigError, ModelError, one_of
from thinkalike.models.checkpoints.blocks import blocks_of
from thinkalike.models.checkpoints.bridges import Checkpoint, Where, read_legacy, read_transformers
from thinkalike.models.checkpoints.classifiers import class_names, read_classifier
from thinkalike.models.checkpoints.minis import ASSETS, folder_of, read_mini
from thinkalike.models.checkpoints.placement import device_of
from thinkalike.models.checkpoints.places import commit_of, explained, hub, reached, read_shape
from thinkalike.models.checkpoints.tokenizers import check_tokenizer, puts_bos
from thinkalike.models.families import FAMILIES, Family, family_in
from thinkalike.models.frozen import FrozenModel
from thinkalike.models.labels import label, told_apart
from thinkalike.progress import doing

log = logging.getLogger(__name__)

_LOADING = threading.RLock()  # transformers changes classes of its own while it loads, so threads load one by one

READ = {".json", ".safetensors", ".bin", ".pt", ".pth", ".txt", ".model"}  # configuration, weights, tokenizer
LONGEST = 1024  # tokens per row, of models that can take more


def load_models(*configs: ModelConfig) -> list[FrozenModel]:
    """Load several models, each different one once, under labels that tell them apart.

    Raises:
        ConfigError, ModelError: see `load_model`.
    """
    return load_groups([configs])[0]


def load_groups(groups: Sequence[Sequence[ModelConfig]]) -> list[list[FrozenModel]]:
    """Load the models of several groups, each different one once, under labels that tell those of a group apart.

    A model that two groups call differently has one module.

    Raises:
        ConfigError, ModelError: see `load_model`.
    """
    loaded: list[tuple[ModelConfig, FrozenModel]] = []

    def called(config: ModelConfig, name: str) -> FrozenModel:
        known = [model for each, model in loaded if each == config]
        for model in known:
            if model.name == name:
                return model
        model = renamed(known[0], name) if known else load_model(config, name)
        loaded.append((config, model))
        return model

    return [[called(*each) for each in zip(group, told_apart(group), strict=True)] for group in groups]


def renamed(model: FrozenModel, name: str) -> FrozenModel:
    """Return the same model under another name."""
    other = copy(model)
    other.name = name
    return other


def load_model(model: ModelConfig | str | os.PathLike[str], name: str | None = None, **settings: Any) -> FrozenModel:
    """Load a model onto its device and in its dtype, and prove that it can be cut at its blocks.

        load_model("gpt2", dtype="bfloat16", device="cuda")

    Args:
        model: Its everyday name, such as "gelu-3l-mini"; the name of its repository on the hub, ORG/NAME; a folder with
            a checkpoint; or a configuration.
        name: What to call it, where its own label would not tell it from another.
        settings: Settings of `model=` by their names, such as dtype, device, revision and context.

    Raises:
        ConfigError: the model, its family or a setting is not known.
        TypeError: the model is given as something else.
        ModelError: weights cannot be had or read, are of another architecture, or fail the proof.
    """
    config = configured(model, settings)
    one_of("model.family", config.family, ("auto", *FAMILIES))
    own_label = label(config)
    with _LOADING, explained(config), doing(f"model {name or own_label}"):
        device, dtype = torch.device(pick_device(config.device)), getattr(torch, config.dtype)
        config = replace(config, path=str(folder_of(config))) if config.mini else config
        with reached(config) as (place, revision):
            config = config if config.path else replace(config, revision=revision)  # all files are of one commit
            named = FAMILIES.get(config.family)
            family = named or family_in(read_shape(config, place), f"{place}/config.json")
            _check_laid_out(config, family)
            module, tokenizer, context = READERS[family.reader](config, family, Where(place, device, dtype))
        if config.classes and family.predicts != "class":
            raise ModelError(
                f"{config.name}: model.classes={config.classes} is for classifiers, and this is a {family.name}"
            )
        if config.context and context and config.context > context:
            log.warning("%s reads %d tokens at once, so that its rows are no longer", own_label, context)
        family = family if family.blocks else replace(family, blocks=blocks_of(module, config.name))
        frozen = FrozenModel(
            module,
            family,
            tokenizer,
            name=name or own_label,
            context=min(context or LONGEST, config.context or LONGEST),
            bos_each_row=puts_bos(tokenizer) if config.bos is None else config.bos,
            device=device_of(module, device),
            revision=revision,
            kernels=kernels_of(family),
            classes=class_names(config, module) if family.predicts == "class" else (),
        )
        check_tokenizer(tokenizer, frozen.vocabulary, frozen.name)
        return frozen


def configured(model: ModelConfig | str | os.PathLike[str], settings: Mapping[str, Any]) -> ModelConfig:
    """Return the configuration of a model that `load_model` is asked for.

    Raises:
        ConfigError: the model or a setting is not known.
        TypeError: this is neither a name, nor a path, nor a configuration.
    """
    plain = {key: str(value).removeprefix("torch.") if key in ("dtype", "device") else value
             for key, value in settings.items()}  # fmt: skip
    if isinstance(model, ModelConfig):
        return model_named(model, plain)
    if not isinstance(model, str | os.PathLike):
        raise TypeError(
            f"a model is given by its name or folder, and this is a {type(model).__name__}; write it with "
            "model.save_pretrained(DIR) and tokenizer.save_pretrained(DIR), and give DIR"
        )
    called = os.fspath(model)
    is_place = isinstance(model, os.PathLike) or (called not in options("model") and Path(called).is_dir())
    return model_named(str(Path(called).absolute()) if is_place else called, plain)


def read_native(config: ModelConfig, family: Family, where: Where) -> Checkpoint:
    """Read a mini of this project's own layout."""
    module, tokenizer = read_mini(Path(where.place))
    return Checkpoint(module.to(device=where.device, dtype=where.dtype), tokenizer, module.cfg.n_ctx)


READERS: dict[str, Callable[[ModelConfig, Family, Where], Checkpoint]] = {
    "transformers": read_transformers,
    "legacy": read_legacy,
    "native": read_native,
    "classifier": read_classifier,
}


def _check_laid_out(config: ModelConfig, family: Family) -> None:
    """Refuse ways to lay out weights, and sides, that a family does not have."""
    foreign = {"device_map": config.device_map, "quantization": config.quantization}
    for key, value in foreign.items():
        if value is not None and family.reader in ("legacy", "native"):
            raise ConfigError(
                f"model.{key}={value} is for checkpoints of transformers, and {config.name} is a {family.name}; leave "
                "it out"
            )
    if config.side is not None and family.predicts != "states":
        raise ConfigError(
            f"model.side={config.side} is for encoder-decoders, and {config.name} is a {family.name}; leave it out"
        )


def head_dimensions(config: ModelConfig) -> dict[str, int]:
    """Return the sizes of a Hugging Face model from its configuration alone: layers, d_model, heads, d_head, rotary.

    Raises:
        ModelError: the configuration cannot be had.
    """
    from transformers import AutoConfig

    folder = folder_of(config) if config.mini else config.path
    where = contextlib.nullcontext() if folder else hub(config)
    with explained(config), where as commit:
        shape = AutoConfig.from_pretrained(folder or config.hub_id, revision=commit)
    d_head = shape.hidden_size // shape.num_attention_heads
    rotary = int(d_head * (getattr(shape, "rope_parameters", None) or {}).get("partial_rotary_factor", 0))
    sizes = {"layers": shape.num_hidden_layers, "d_model": shape.hidden_size, "heads": shape.num_attention_heads}
    return {**sizes, "d_head": d_head, "rotary": rotary}


def checkpoint_fingerprint(config: ModelConfig) -> str:
    """Return what tells a checkpoint from any other one under the same name.

    It is the commit of a model of the hub, 40 hexadecimal digits, and else the SHA-256 of the files that loading may
    read, 16 hexadecimal digits.

    Raises:
        ModelError: there are no files, or the hub does not say the commit and its cache has no copy.
    """
    if not (config.path or config.mini):
        if config.revision and re.fullmatch(r"[0-9a-f]{40}", config.revision):
            return config.revision
        with explained(config):
            return commit_of(config).sha
    folder = Path(config.path) if config.path else ASSETS / config.name
    files = sorted(path for path in folder.rglob("*") if path.suffix in READ and path.is_file())
    if not files:
        raise ModelError(f"model={config.name}: {folder} holds no checkpoint; give a folder with config.json")
    digest = hashlib.sha256()
    for path in files:
        digest.update(path.name.encode())
        digest.update(bytes.fromhex(remembered_digest(path)))
    return digest.hexdigest()[:16]


def pick_device(name: str, key: str = "model.device") -> str:
    """Return the device that `auto` stands for on this machine, or any other name unchanged.

    Args:
        key: what the message of an error calls it.

    Raises:
        ConfigError: this machine has no such device.
    """
    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    there = ["cpu", *(["cuda"] if count else []), *(f"cuda:{number}" for number in range(count))]
    there += ["mps"] if torch.backends.mps.is_available() else []
    if name not in there:
        raise ConfigError(f"{key}={name} is not on this machine; it has: auto, {', '.join(there)}")
    return name


def kernels_of(family: Family) -> str:
    """Return which code runs the blocks, for the provenance."""
    if not family.kernels:
        return "torch"
    package = family.kernels[0].replace("_", "-")
    fused = all(importlib.util.find_spec(name) for name in family.kernels)
    return package if fused and torch.cuda.is_available() else f"transformers ({package} is not installed)"
