"""What a job can know of a model before its weights are there: its sizes, its parameters, and its operations."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import torch
import yaml
from torch import nn

from thinkalike.config import ModelConfig
from thinkalike.models.checkpoints.blocks import blocks_of
from thinkalike.models.checkpoints.minis import ASSETS
from thinkalike.models.checkpoints.places import check_folder
from thinkalike.models.families import AUTO_CLASSES, FAMILIES, family_in
from thinkalike.models.flops import Operations, operations_of
from thinkalike.models.labels import label

log = logging.getLogger(__name__)

PUBLISHED = Path(__file__).parent / "published.yaml"
LONGEST = 1024  # tokens of a row, of models that can take more
LENGTHS = ("n_ctx", "n_positions", "max_position_embeddings")


@dataclass(frozen=True)
class Shape:
    """The sizes of a model.

    Attributes:
        layers: how many blocks it has.
        width: of its residual stream.
        vocabulary: the rows of its embedding.
        parameters: all weights; those that two places share count once.
        bytes: of these, in the dtype that the configuration asks for.
        context: the most tokens of a row that a job gives it.
        operations: of its passes.
    """

    name: str
    layers: int
    width: int
    vocabulary: int
    parameters: int
    bytes: float
    context: int
    operations: Operations

    def forward(self, tokens: float, context: int | None = None, full: bool = False) -> float:
        """Return the operations of so many tokens through all blocks.

        Args:
            context: tokens of a row; None: the model's own.
            full: also through the unembedding.
        """
        row = context or self.context
        return tokens * (self.operations.full(row) if full else self.operations.forward(0, self.layers, row))


class _Empty(NamedTuple):
    """What a module on the meta device says; `context` is None where rows can be of any length."""

    layers: int
    width: int
    vocabulary: int
    parameters: int
    context: int | None
    operations: Operations


def shape_of(config: ModelConfig) -> Shape | None:
    """Return the shape of a model without its weights and without any download; None where nothing here tells it.

    What task=pretrain builds, config.json of a folder or of the hub's cache tells it, or the table of published sizes.

    Raises:
        ModelError: a folder is given that has no config.json.
    """
    check_folder(config)
    sizes = _sizes(config)
    known = _empty(json.dumps(sizes, sort_keys=True)) if sizes else None
    if known is None:
        return None
    row = min(known.context or LONGEST, config.context or LONGEST)
    weights = float(known.parameters * getattr(torch, config.dtype).itemsize)
    return Shape(label(config), *known[:4], weights, row, known.operations)


def new_shape(config: ModelConfig, vocabulary: int) -> Shape | None:
    """Return the shape of what task=pretrain builds, with a vocabulary of so many entries."""
    family, own = FAMILIES.get(config.family), config.architecture
    is_native = family is None or family.reader == "native"
    sizes: dict[str, Any] = {"architecture": {**own, "d_vocab": vocabulary}}
    if not is_native and family:
        sizes = {"model_type": family.in_config_json, "vocab_size": vocabulary, **own}
    known = _empty(json.dumps(sizes, sort_keys=True))
    if known is None:
        return None
    row = min(known.context or LONGEST, config.context or LONGEST)
    return Shape(label(config), *known[:4], 4.0 * known.parameters, row, known.operations)


def _sizes(config: ModelConfig) -> dict[str, Any] | None:
    """Return the contents of config.json, or what stands in its place."""
    if not (config.path or config.mini):
        repository = re.sub(r"(?<=feather_berts)_\d+$", "", str(config.hub_id))
        return _cached(config) or _published().get(repository)
    folder = Path(config.path) if config.path else ASSETS / config.name
    sizes = _read(folder / "config.json")
    if sizes and "architecture" in sizes:
        vocabulary = _entries(folder / "model.safetensors")
        return {"architecture": {**sizes["architecture"], "d_vocab": vocabulary}} if vocabulary else None
    return sizes


def _cached(config: ModelConfig) -> dict[str, Any] | None:
    """Return config.json of a repository that the hub's cache has."""
    from huggingface_hub import try_to_load_from_cache

    path = try_to_load_from_cache(str(config.hub_id), "config.json", revision=config.revision)
    return _read(Path(path)) if isinstance(path, str) else None


@cache
def _published() -> Mapping[str, dict[str, Any]]:
    return yaml.safe_load(PUBLISHED.read_text())["models"]  # type: ignore[no-any-return]


def _read(path: Path) -> dict[str, Any] | None:
    """Return what a file of JSON holds; None where it is not there or damaged, which loading says better."""
    try:
        sizes = json.loads(path.read_text())
    except (OSError, ValueError):
        return None
    return sizes if isinstance(sizes, dict) else None


def _entries(path: Path) -> int | None:
    """Return the rows of the unembedding that the header of a safetensors file states."""
    try:
        with path.open("rb") as file:
            header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
        return int(header["head.weight"]["shape"][0])
    except (OSError, ValueError, KeyError):
        return None


@cache
def _empty(sizes: str) -> _Empty | None:
    """Build a module of these sizes on the meta device, which holds no weights; None where that cannot be done."""
    shape = json.loads(sizes)
    try:
        module, blocks = _native(shape["architecture"]) if "architecture" in shape else _of_transformers(shape)
        embedding = _embedding_of(module)
    except Exception as error:  # whatever the libraries raise for sizes that they do not know
        log.debug("no shape of %s: %s", shape, error)
        return None
    parameters = sum(weight.numel() for weight in module.parameters())
    own: Any = getattr(module, "config", None) or getattr(module, "cfg", None)
    own = own.get_text_config() if hasattr(own, "get_text_config") else own
    row = next((size for name in LENGTHS if isinstance(size := getattr(own, name, None), int) and size > 0), None)
    width = getattr(own, "hidden_size", None) or getattr(own, "d_model", None) or embedding.shape[1]
    return _Empty(len(blocks), int(width), len(embedding), parameters, row, operations_of(module, blocks, int(width)))


def _native(sizes: Mapping[str, Any]) -> tuple[nn.Module, list[nn.Module]]:
    from transformer_lens.model_bridge import TransformerBridge

    with torch.device("meta"):
        module = TransformerBridge.boot_native(dict(sizes), device="meta", dtype=torch.float32).original_model
    return module, list(module.get_submodule("layers").children())


def _of_transformers(sizes: Mapping[str, Any]) -> tuple[nn.Module, list[nn.Module]]:
    import transformers

    family, kind = family_in(sizes, "config.json"), str(sizes["model_type"])
    shape = transformers.AutoConfig.for_model(kind, **{key: each for key, each in sizes.items() if key != "model_type"})
    with torch.device("meta"):
        module = getattr(transformers, AUTO_CLASSES[family.predicts]).from_config(shape)
    return module, list(module.get_submodule(family.blocks or blocks_of(module, kind)).children())


def _embedding_of(module: nn.Module) -> torch.Tensor:
    """Return the table of the first embedding, that of tokens."""
    return next(part.weight for part in module.modules() if isinstance(part, nn.Embedding))
