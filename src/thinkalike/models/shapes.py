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
        operations: The floating-point operations that its passes take for each token.
        config_json: The config.json from which it is built without weights, as text; "" if that is
            unknown.
    """

    name: str
    layers: int
    width: int
    vocabulary: int
    parameters: int
    bytes: float
    context: int
    operations: Operations
    config_json: str = field(default="", repr=False, compare=False)

    @property
    def bytes_of_number(self) -> float:
        """The bytes of one number of a weight or a state, in the dtype of the model."""
        if not self.parameters:  # a folder of stored states, which has no weights
            return BYTES_OF_FLOAT32
        return self.bytes / self.parameters

    def passes(
        self,
        phase: str,
        tokens: int | float,
        row_length: int,
        times: int | float = 1,
        with_logits: bool = True,
        is_shared: bool = False,
    ) -> Passes:
        """Return a description of forward passes of this model, from which their cost is forecast.

        Args:
            phase: The phase of the job in which they run, such as "training".
            tokens: How many tokens of text the model reads.
            row_length: The number of tokens in a row of text.
            times: How often it reads them.
            with_logits: Whether passes go through the unembedding, too, and make logits.
            is_shared: Whether jobs that run together and read the same text share the passes.
        """
        return Passes(
            phase,
            self,
            tokens,
            row_length,
            times=times,
            with_logits=with_logits,
            is_shared=is_shared,
        )


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
        row_length: The number of tokens in a row of text.
        times: How often it reads them.
        with_logits: Whether the passes go through the unembedding, too, and make logits.
        is_shared: Whether jobs that run together and read the same text share the passes.
    """

    phase: str
    model: Shape
    tokens: int | float
    row_length: int
    times: int | float
    with_logits: bool
    is_shared: bool

    @property
    def flops(self) -> float:
        """The floating-point operations of all passes; a multiply-add counts as two."""
        operations = self.model.operations
        if self.with_logits:
            operations_per_token = operations.full(self.row_length)
        else:
            operations_per_token = operations.forward(0, self.model.layers, self.row_length)
        return float(self.times * self.tokens * operations_per_token)

    @property
    def seconds(self) -> float:
        """How long all passes take on this machine, forecast from a timing of the model's blocks.

        If passes make logits, the time of comparing these with other logits is added. It is not
        part of the floating-point operations: with a vocabulary of 262,144 tokens it takes as long
        as the matrix products.
        """
        if not self.flops:
            return 0.0
        seconds = self.flops * seconds_per_operation(self.model, self.row_length)
        if self.with_logits:
            # The model reads its tokens `times` times. `seconds_of_output` is for one token.
            seconds += self.times * self.tokens * seconds_of_output(self.model.vocabulary)
        return seconds


def shape_of(config: ModelConfig, name: str | None = None) -> Shape | None:
    """Return the sizes of a model without reading its weights and without a download.

    They come from config.json in the model's folder or in the hub's cache, from a bundled table of
    published models, or from the configuration of a model in memory. None means that the sizes are
    not known, or that no model can be built with them.

    Args:
        config: The configuration of the model.
        name: The name of the model in the result; None: its label.

    Raises:
        ConfigError, ModelError: The model's folder cannot be read, or its config.json claims a
            model that is larger than its files.
    """
    if config.holds_states:
        return _shape_of_states(config, name)
    if isinstance(config, LoadedModelConfig):
        return shape_from(config, _config_json_in_memory(config), name)
    if config.path:
        folder_of(config)  # called for its checks of the folder
    source = base_of(config) or config  # an adapter has the sizes of its base
    folder = named_folder(source)
    if folder is None:
        return shape_from(config, _config_json_of_hub(source), name)
    config_json: Mapping[str, object] = known_config_json(folder)  # {} if it is missing
    if "architecture" in config_json:  # a bundled model
        config_json = _with_vocabulary(config_json, folder)
    shape = shape_from(config, config_json, name)
    if shape is not None:
        check_claimed_size(shape.parameters, folder)
    return shape


def _config_json_in_memory(config: LoadedModelConfig) -> Mapping[str, object]:
    """Return the config.json of a model in memory; {} if the model is not of transformers."""
    from transformers import PretrainedConfig

    module = config.loaded.module
    settings = getattr(module, "config", None)
    if not isinstance(settings, PretrainedConfig):
        return {}
    # All entries, also those with their defaults. The class may be another than the one stated.
    config_json: dict[str, object] = json.loads(settings.to_json_string(use_diff=False))
    return {**config_json, "architectures": [type(module).__name__]}


def _config_json_of_hub(config: ModelConfig) -> Mapping[str, object]:
    """Return the config.json of a model of the hub without a download; {} if it is not known.

    It is read from the hub's cache, or else from a bundled table of published models. A checkpoint
    in TransformerLens's old layout has a config.json of another format, without a model_type: its
    sizes are those of the table.
    """
    from huggingface_hub import try_to_load_from_cache

    repository = str(config.hub_id)
    cached = try_to_load_from_cache(repository, "config.json", revision=config.revision)
    if isinstance(cached, str):
        config_json = known_config_json(Path(cached).parent)
        if "model_type" in config_json:
            return config_json
    return _published_sizes(repository)


def _with_vocabulary(config_json: Mapping[str, object], folder: Path) -> Mapping[str, object]:
    """Return the config.json of a bundled model with the size of its vocabulary added.

    The size is that of the head, whose shape is in the header of the file of weights; the weights
    are not read. If the file is damaged or missing, the config.json is returned as it is.

    Args:
        config_json: The contents of config.json.
        folder: The folder of the model.
    """
    architecture = cast(Mapping[str, object], config_json["architecture"])
    with contextlib.suppress(OSError, ValueError, KeyError):
        # A safetensors file begins with the length of its header in 8 bytes, and then has the
        # header as JSON.
        with (folder / "model.safetensors").open("rb") as file:
            header_length = int.from_bytes(file.read(8), "little")
            header = json.loads(file.read(header_length))
        vocabulary = header["head.weight"]["shape"][0]
        return {**config_json, "architecture": {**architecture, "d_vocab": vocabulary}}
    return config_json


def _shape_of_states(config: ModelConfig, name: str | None) -> Shape:
    """Return the sizes of a folder of stored states, as those of a model without weights.

    The states stand in the place of a model, whose cost is asked for: nothing is to be loaded, and
    reading stored states takes no operations of the processor that would count.

    Args:
        config: The folder.
        name: What the result calls it; None: its label.
    """
    index = read_index(str(config.path))
    widths = index.hooks.values()  # of each hook point
    no_operations = (0.0,) * index.blocks  # 0 for each block
    return Shape(
        name=name or label(config),
        layers=index.blocks,
        width=max(widths),
        vocabulary=0,
        parameters=0,
        bytes=0.0,
        context=DEFAULT_CONTEXT,
        operations=Operations(blocks=no_operations, attention=no_operations, output=0.0),
    )


def shape_from(
    config: ModelConfig, config_json: Mapping[str, object], name: str | None = None
) -> Shape | None:
    """Return the sizes of the model that a config.json describes; None if it cannot be built.

    Args:
        config: The configuration of the model, for its dtype and the length of its rows.
        config_json: The contents of config.json.
        name: What the result calls the model; None: its label.
    """
    config_json_as_text = json.dumps(config_json, sort_keys=True)
    sizes = _sizes_on_meta_device(config_json_as_text)
    if sizes is None:
        return None
    dtype = getattr(torch, config.dtype)
    # The default where a model takes rows of any length, and where the setting is open.
    longest_of_model = sizes.longest or DEFAULT_CONTEXT
    longest_of_setting = config.context or DEFAULT_CONTEXT
    return Shape(
        name=name or label(config),
        layers=sizes.layers,
        width=sizes.width,
        vocabulary=sizes.vocabulary,
        parameters=sizes.parameters,
        bytes=float(sizes.parameters * dtype.itemsize),
        context=min(longest_of_model, longest_of_setting),
        operations=sizes.operations,
        config_json=config_json_as_text,
    )


@cache
def _published_sizes(name: str) -> dict[str, object]:
    """Return the config.json of a published model from a bundled table; {} if it is not there.

    The table has one entry for models with the same config.json, so parts of the repository's name
    that do not matter are removed first: -Base, -Instruct, and the number of a seed. Seeds of
    Pythia have the entry of the deduplicated model.
    """
    listed_name = re.sub(r"-(?:Base|Instruct)(?=$|-v)|(?<=feather_berts)_\d+$", "", name)
    listed_name = re.sub(r"(?<=/pythia-)(\d+m)-seed\d$", r"\1-deduped", listed_name)
    table = yaml.safe_load(PUBLISHED.read_text())
    return cast(dict[str, object], table["models"].get(listed_name, {}))


class _ModelSizes(NamedTuple):
    """The sizes of a model that was built without weights.

    Attributes:
        layers: The number of blocks.
        width: The width of the residual stream.
        vocabulary: The rows of the embedding.
        parameters: The number of weights; shared weights count once.
        longest: The longest row of tokens; None: any.
        operations: The floating-point operations that its passes take for each token.
    """

    layers: int
    width: int
    vocabulary: int
    parameters: int
    longest: int | None
    operations: Operations


@cache
def _sizes_on_meta_device(config_json: str) -> _ModelSizes | None:
    """Return the sizes of a model and the floating-point operations of a pass, or None.

    The model is built and run on the meta device, where tensors have no values. None means that it
    cannot be built. If it can be built but not run, the operations are estimated from the number
    of weights.

    Args:
        config_json: The content of the model's config.json, as text.
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
    # The configuration is asked first, as an embedding may be narrower than the stream.
    width = getattr(config, "hidden_size", None) or getattr(config, "d_model", None)
    width = int(width or embedding.shape[1])
    weights_of_blocks = []
    for block in blocks:
        weights_of_blocks.append(sum(weight.numel() for weight in block.parameters()))
    try:
        operations = counted_operations(module, blocks, torch.device("meta"))
    except Exception as error:  # such as routing between experts, which reads values
        log.debug("no count of %s: %s", config_json, error)
        # A multiplication and an addition for each weight; attention is left out.
        operations = Operations(
            blocks=tuple(2.0 * count for count in weights_of_blocks),
            attention=(0.0,) * len(blocks),
            output=2.0 * len(embedding) * width,
        )
    return _ModelSizes(
        layers=len(blocks),
        width=width,
        vocabulary=len(embedding),
        parameters=sum(weight.numel() for weight in module.parameters()),
        longest=model.longest,
        operations=operations,
    )
