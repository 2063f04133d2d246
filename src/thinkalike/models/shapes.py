"""Sizes of models that are known before any weights are read, and what their passes take."""

from __future__ import annotations

import contextlib
import json
import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import NamedTuple, cast

import torch
import yaml

from thinkalike.config import ModelConfig
from thinkalike.config.in_memory import LoadedModelConfig
from thinkalike.models.bounds import check_claimed_size
from thinkalike.models.checkpoints import base_of, folder_of, named_folder
from thinkalike.models.config_json import known_config_json
from thinkalike.models.families import DEFAULT_CONTEXT
from thinkalike.models.labels import label
from thinkalike.models.meta_models import meta_model
from thinkalike.models.module_facts import config_of_text_model, embedding_of
from thinkalike.models.operations import Operations, counted_operations
from thinkalike.models.pass_times import seconds_of_output, seconds_per_operation
from thinkalike.shards.index import read_index

log = logging.getLogger(__name__)

# The config.json of published models, so that jobs on them can be planned without a download.
PUBLISHED = Path(__file__).parent / "published.yaml"

# The bytes of a number of a state, for what has no weights.
BYTES_OF_FLOAT32 = 4.0


@dataclass(frozen=True)
class Shape:
    """The sizes of a model.

    Attributes:
        name: Its name.
        layers: The number of blocks.
        width: That of the residual stream.
        vocabulary: The rows of the embedding.
        parameters: The number of weights; shared weights count once.
        bytes: Their size in the dtype that the configuration asks for.
        context: The most tokens of a row that a job gives the model.
        operations: Those of its passes.
        sizes: The config.json from which it is built without weights; "" if that is unknown.
    """

    name: str
    layers: int
    width: int
    vocabulary: int
    parameters: int
    bytes: float
    context: int
    operations: Operations
    sizes: str = field(default="", repr=False, compare=False)

    @property
    def bytes_of_number(self) -> float:
        """The bytes of a weight, and of a number of a state; a folder of states has no weights."""
        if not self.parameters:
            return BYTES_OF_FLOAT32
        return self.bytes / self.parameters

    def passes(
        self,
        phase: str,
        tokens: int | float,
        row: int,
        times: int | float = 1,
        full: bool = True,
        is_shared: bool = False,
    ) -> Passes:
        """Return passes of this model, with the arguments as `Passes` explains them."""
        return Passes(phase, self, tokens, row, times, full, is_shared)


# Shapes by the part of the configuration: model, target, or the name of a member.
Shapes = Mapping[str, Shape]


@dataclass(frozen=True)
class Passes:
    """The passes of one model in one phase of a job: what `dry_run` counts.

    A step of training is three passes: forward, and the gradients of states and of weights.
    Through frozen weights it is two.

    Attributes:
        phase: The phase, such as forward passes, training or report.
        model: The model.
        tokens: How many tokens it reads.
        row: The tokens of a row of text.
        times: How often it reads them.
        full: Whether the passes go through the unembedding, too.
        is_shared: Whether jobs of one pass that read the same do it once.
    """

    phase: str
    model: Shape
    tokens: int | float
    row: int
    times: int | float
    full: bool
    is_shared: bool

    @property
    def flops(self) -> float:
        """The operations, two for each product of a multiplication and an addition."""
        operations = self.model.operations
        if self.full:
            per_token = operations.full(self.row)
        else:
            per_token = operations.forward(0, self.model.layers, self.row)
        return float(self.times * self.tokens * per_token)

    @property
    def seconds(self) -> float:
        """How long they take on this machine, at the speed of the blocks of this very model.

        The loss of logits is timed by itself: with a vocabulary of 262,144 entries it takes as
        long as the products.
        """
        if not self.flops:
            return 0.0
        seconds = self.flops * seconds_per_operation(self.model, self.row)
        if self.full:
            seconds += self.times * self.tokens * seconds_of_output(self.model.vocabulary)
        return seconds


def shape_of(config: ModelConfig, name: str | None = None) -> Shape | None:
    """Return the shape of a model without its weights and without any download.

    The sizes are those of config.json in a folder or in the hub's cache, or those of the table of
    published sizes; for a model in memory, those of its settings. None means that the sizes are
    not known, or that no model can be built of them.

    Args:
        config: The model.
        name: The name of the shape, by default the label of the model.

    Raises:
        ConfigError, ModelError: Its folder cannot be read, or states more than its files hold.
    """
    if config.holds_states:
        return _shape_of_states(config, name)
    if isinstance(config, LoadedModelConfig):
        return shape_from(config, _config_json_in_memory(config), name)
    if config.path:
        folder_of(config)  # raises the error of a folder that cannot be read
    source = base_of(config) or config  # whose config.json has the sizes
    folder = named_folder(source)
    if folder is None:
        return shape_from(config, _config_json_of_hub(source), name)
    config_json: Mapping[str, object] = known_config_json(folder)
    if "architecture" in config_json:
        config_json = _with_vocabulary(config_json, folder)
    shape = shape_from(config, config_json, name)
    if shape is not None:
        check_claimed_size(shape.parameters, folder)
    return shape


def _config_json_in_memory(config: LoadedModelConfig) -> Mapping[str, object]:
    """Return the config.json of a model of transformers in memory; it is empty for any other."""
    from transformers import PretrainedConfig

    module = config.loaded.module
    settings = getattr(module, "config", None)
    if not isinstance(settings, PretrainedConfig):
        return {}
    config_json: dict[str, object] = json.loads(settings.to_json_string(use_diff=False))
    return {**config_json, "architectures": [type(module).__name__]}


def _config_json_of_hub(config: ModelConfig) -> Mapping[str, object]:
    """Return the config.json in the hub's cache, or the published one; it is empty if unknown."""
    from huggingface_hub import try_to_load_from_cache

    repository = str(config.hub_id)
    cached = try_to_load_from_cache(repository, "config.json", revision=config.revision)
    if isinstance(cached, str):
        config_json = known_config_json(Path(cached).parent)
        if config_json:
            return config_json
    return _published_sizes(repository)


def _with_vocabulary(config_json: Mapping[str, object], folder: Path) -> Mapping[str, object]:
    """Return the config.json of a mini with the size of its vocabulary, which its head tells.

    The header of the file of weights is read alone. If it is damaged or missing, the config.json
    is returned as it is.
    """
    architecture = cast(Mapping[str, object], config_json["architecture"])
    with contextlib.suppress(OSError, ValueError, KeyError):
        # The format: the length of the header in 8 bytes, then the header as JSON.
        with (folder / "model.safetensors").open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            header = json.loads(file.read(length))
        vocabulary = header["head.weight"]["shape"][0]
        return {**config_json, "architecture": {**architecture, "d_vocab": vocabulary}}
    return config_json


def _shape_of_states(config: ModelConfig, name: str | None) -> Shape:
    """Return the shape of a folder of states, which runs no operations and holds no weights."""
    index = read_index(str(config.path))
    no_operations = (0.0,) * index.blocks
    return Shape(
        name=name or label(config),
        layers=index.blocks,
        width=max(index.hooks.values()),
        vocabulary=0,
        parameters=0,
        bytes=0.0,
        context=DEFAULT_CONTEXT,
        operations=Operations(no_operations, no_operations, 0.0),
    )


def shape_from(
    config: ModelConfig, config_json: Mapping[str, object], name: str | None = None
) -> Shape | None:
    """Return the shape of a model that a config.json describes; None if it cannot be built.

    Args:
        config: The model.
        config_json: Its sizes, in the names of its config.json.
        name: The name of the shape, by default the label of the model.
    """
    sizes_as_text = json.dumps(config_json, sort_keys=True)
    sizes = _sizes_on_meta_device(sizes_as_text)
    if sizes is None:
        return None
    dtype = getattr(torch, config.dtype)
    return Shape(
        name=name or label(config),
        layers=sizes.layers,
        width=sizes.width,
        vocabulary=sizes.vocabulary,
        parameters=sizes.parameters,
        bytes=float(sizes.parameters * dtype.itemsize),
        context=min(sizes.longest or DEFAULT_CONTEXT, config.context or DEFAULT_CONTEXT),
        operations=sizes.operations,
        sizes=sizes_as_text,
    )


@cache
def _published_sizes(name: str) -> dict[str, object]:
    """Return the config.json of a published model; it is empty if the table does not have it.

    A tuned model, such as NAME-Instruct, and one of another seed have that of their base.
    """
    base = re.sub(r"-(?:Base|Instruct)(?=$|-v)|(?<=feather_berts)_\d+$", "", name)
    base = re.sub(r"(?<=/pythia-)(\d+m)-seed\d$", r"\1-deduped", base)
    table = yaml.safe_load(PUBLISHED.read_text())
    return cast(dict[str, object], table["models"].get(base, {}))


class _ModelSizes(NamedTuple):
    """The sizes of a model that was built without weights.

    Attributes:
        layers: The number of blocks.
        width: The width of the residual stream.
        vocabulary: The rows of the embedding.
        parameters: The number of weights; shared weights count once.
        longest: The longest row of tokens; None: any.
        operations: The operations of its passes.
    """

    layers: int
    width: int
    vocabulary: int
    parameters: int
    longest: int | None
    operations: Operations


@cache
def _sizes_on_meta_device(config_json: str) -> _ModelSizes | None:
    """Return the sizes of a model and the operations of a pass, or None if it cannot be built.

    It is built and run on the meta device, which holds no weights.

    Args:
        config_json: The content of its config.json.
    """
    try:
        model = meta_model(json.loads(config_json))
    except Exception as error:  # whatever the libraries raise for sizes that they do not know
        log.debug("no shape of %s: %s", config_json, error)
        return None
    module = model.module
    blocks = model.blocks
    embedding = embedding_of(module)
    config = config_of_text_model(module)
    # The embedding of some models is narrower than the stream.
    width = getattr(config, "hidden_size", None) or getattr(config, "d_model", None)
    width = int(width or embedding.shape[1])
    weights_of_blocks = []
    for block in blocks:
        weights_of_blocks.append(sum(weight.numel() for weight in block.parameters()))
    try:
        operations = counted_operations(module, blocks, torch.device("meta"))
    except Exception as error:  # such as routing between experts, which reads values
        log.debug("no count of %s: %s", config_json, error)
        # Two operations for each weight, and none that grow with the row.
        of_blocks = tuple(2.0 * count for count in weights_of_blocks)
        operations = Operations(of_blocks, (0.0,) * len(blocks), 2.0 * len(embedding) * width)
    return _ModelSizes(
        layers=len(blocks),
        width=width,
        vocabulary=len(embedding),
        parameters=sum(weight.numel() for weight in module.parameters()),
        longest=model.longest,
        operations=operations,
    )
