"""Loading a model: one of the hub, of a folder, of a GGUF file, of the minis, or in memory."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeVar, cast, runtime_checkable

import torch

from thinkalike.advice import named_setting
from thinkalike.config import ModelConfig
from thinkalike.config.in_memory import LoadedModelConfig
from thinkalike.errors import ModelError, one_of
from thinkalike.global_state import isolated
from thinkalike.models.access import checkpoint_location
from thinkalike.models.assembly import at_sites, check_settings, frozen_model
from thinkalike.models.checkpoints import base_of, named_folder
from thinkalike.models.config_json import read_config_json
from thinkalike.models.families import (
    FAMILIES,
    Family,
    family_in,
    pick_device,
    stated_quantization,
)
from thinkalike.models.frozen import FrozenModel
from thinkalike.models.labels import distinct_labels, label
from thinkalike.models.loading_errors import explaining_loading_errors
from thinkalike.models.minis import mini_tokenizer, read_mini
from thinkalike.models.model_config import configured
from thinkalike.models.module_facts import Checkpoint
from thinkalike.models.plausible import check_rope
from thinkalike.processes import doing

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

# The files of which a folder has one if it holds a tokenizer.
TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json")


@runtime_checkable
class HasName(Protocol):
    """Something that is loaded under a name."""

    @property
    def name(self) -> str: ...


Source = TypeVar("Source", bound=HasName)


def load_models(*configs: ModelConfig) -> list[FrozenModel]:
    """Load several models under names that tell them apart, and return them in the same order.

    Equal configurations are loaded once and give the same object.
    """
    return load_groups([configs], load_model)[0]


def load_groups(
    groups: Sequence[Sequence[ModelConfig]], load: Callable[[ModelConfig, str], Source]
) -> list[list[Source]]:
    """Load the models of several groups, such as the two sides of a comparison, each model once.

    Names tell the models of a group apart. Models that differ only in the hook points at which
    states are taken share their weights.

    Args:
        groups: The configurations of each group.
        load: Loads the model of a configuration under a name, as `load_model` does.

    Returns:
        For each group its models, in the order of the configurations.
    """
    loaded: list[tuple[ModelConfig, Source]] = []  # what was loaded so far

    def find_or_load(config: ModelConfig, name: str) -> Source:
        """Return the model of a configuration, from memory if it was loaded under this name."""
        for earlier_config, source in loaded:
            if earlier_config == config and source.name == name:
                return source
        source = find_at_other_sites(config, name) or load(config, name)
        loaded.append((config, source))
        return source

    def find_at_other_sites(config: ModelConfig, name: str) -> Source | None:
        """Return a model that shares the weights of a loaded one, or None.

        The configuration of the loaded model must be the same except for the hook points.
        """
        for earlier_config, source in loaded:
            if not isinstance(source, FrozenModel):
                continue
            at_same_sites = replace(earlier_config, site=config.site, head=config.head)
            if at_same_sites == config:
                return cast(Source, at_sites(source, config, name))
        return None

    loaded_groups = []
    for group in groups:
        names = distinct_labels(group)
        loaded_groups.append(
            [find_or_load(config, name) for config, name in zip(group, names, strict=True)]
        )
    return loaded_groups


@isolated()
def load_model(
    model: ModelConfig | str | os.PathLike[str] | torch.nn.Module,
    tokenizer: PreTrainedTokenizerBase | str | None = None,
    name: str | None = None,
    **settings: object,
) -> FrozenModel:
    """Load a model onto its device and in its dtype, and prove that it can be cut at its blocks.

        load_model("gpt2", dtype="bfloat16", device="cuda")
        load_model(module, tokenizer, name="after step 1000")

    Args:
        model: Its everyday name, such as "gelu-3l-mini"; the name of its repository on the hub,
            ORG/NAME; a folder with a checkpoint; a GGUF file; a configuration; or a model in
            memory, which is copied: of transformers, or a `TransformerBridge` of TransformerLens.
        tokenizer: The tokenizer of a model in memory, see `check_tokenizer`. For a bridge without
            one, the tokenizer of its checkpoint is read, since a bridge's own puts BOS before
            texts. Of any other model this argument is the name.
        name: The name of the loaded model, by default its label.
        settings: Settings of `model=` by their names, such as dtype, device, revision and context.
            A model in memory keeps its own dtype and device by default, and takes no setting that
            says where weights are.

    Raises:
        ConfigError: The model, its family or a setting is not known.
        TypeError: The model is given as something else.
        ModelError: Weights cannot be read, are of another architecture, or fail the proof.

    >>> load_model("gelu-3l-mini", context=64)
    FrozenModel(gelu-3l-mini: 3 layers of width 128, vocabulary 1024, context 64; native, float32
    on cpu)
    """
    if isinstance(model, torch.nn.Module):
        from thinkalike.models.live import load_live

        return load_live(model, tokenizer, name, settings)
    if not isinstance(tokenizer, str | None):
        raise TypeError(
            f"load_model takes a tokenizer with a model in memory alone, and not with {model}"
        )
    config = configured(model, settings)
    name = name or tokenizer or label(config)
    if isinstance(config, LoadedModelConfig):
        return at_sites(cast(FrozenModel, config.loaded), config, name)
    one_of("model.family", config.family, ("auto", *FAMILIES))
    config.check_has_weights()
    with explaining_loading_errors(config), doing(f"model {name}"):
        return at_sites(_load_checkpoint(config, name), config, name)


def _load_checkpoint(config: ModelConfig, name: str) -> FrozenModel:
    """Load a model from the hub, a folder or a file; an adapter is loaded with its base.

    Raises:
        ConfigError: A setting has no effect on models of this family.
        ModelError: The checkpoint cannot be read, is already quantised although
            `model.quantization` is set, or fails a check.
    """
    device = torch.device(pick_device(config.device))
    dtype = getattr(torch, config.dtype)
    base = base_of(config)  # None: the model is no adapter
    source = base or config  # the model whose weights are read first
    adapter = named_folder(config) if base else None
    with checkpoint_location(source) as (place, revision):
        if named_folder(source) is None:
            source = replace(source, revision=revision)  # so that all files are of one commit
        config_json = read_config_json(source, place)
        # The setting `model.family` comes first; "auto" is no family.
        family = FAMILIES.get(source.family) or family_in(config_json, f"{place}/config.json")
        check_settings(config, family)
        if not config.implausible:  # the setting that accepts a model as it is
            check_rope(config_json, config.called)
        quantization = stated_quantization(config_json)
        if quantization and config.quantization:
            raise ModelError(
                f"{config.called} is quantised already ({quantization}); remove "
                f"{named_setting('model.quantization', config.quantization)}"
            )
        checkpoint = _read_checkpoint(source, family, place, device, dtype, adapter)
        # For a GGUF file, the reader has filled this in from the types of the tensors.
        if not checkpoint.quantization:
            checkpoint = checkpoint._replace(quantization=quantization)
    device_of_states = _device_of_states(checkpoint.module, device)
    return frozen_model(
        config, family, checkpoint, name=name, device=device_of_states, revision=revision
    )


def _read_checkpoint(
    config: ModelConfig,
    family: Family,
    place: str,
    device: torch.device,
    dtype: torch.dtype,
    adapter: Path | None,
) -> Checkpoint:
    """Read a checkpoint in the format of its family.

    The formats are those of transformers, of TransformerLens's old layout ("legacy"), and of the
    bundled small models ("native").

    Args:
        config: The configuration of the model, or of the base of an adapter.
        family: The family of the model, which names the format.
        place: The folder, file or repository of the checkpoint.
        device, dtype: Where weights go, and in which dtype.
        adapter: The folder of an adapter that changes the model; None: there is none.

    Raises:
        ModelError: The checkpoint cannot be read, or its family takes no adapters.
    """
    if adapter and family.reader != "transformers":
        raise ModelError(
            f"{adapter} is an adapter, whose base is a model of transformers; {config.called} is "
            "none"
        )
    if family.reader == "native":
        return read_mini(place, device, dtype)
    from thinkalike.models.readers import read_legacy, read_transformers

    if family.reader == "legacy":
        return read_legacy(config, place, device, dtype)
    return read_transformers(config, family, place, device, dtype, adapter)


def _device_of_states(module: torch.nn.Module, device: torch.device) -> torch.device:
    """Return the device of the states and logits that a loaded model returns.

    It is `device`, unless accelerate has spread the model over several devices. Accelerate brings
    the outputs of such a model back to the device on which the pass began: the first one in its
    map that computes, or the CPU if there is no GPU.
    """
    device_map = getattr(module, "hf_device_map", None)
    if device_map is None:
        return device
    for mapped_device in device_map.values():
        if mapped_device not in ("cpu", "disk"):
            return torch.device(mapped_device)
    return torch.device("cpu")


def _from_folder(path: str, folder: Path) -> str:
    """Return the relative path that leads from a folder to where a path leads from here."""
    return Path(os.path.relpath(path, folder)).as_posix()


@isolated()
def load_tokenizer(name: str, beside: Path) -> PreTrainedTokenizerBase:
    """Load a tokenizer without the weights of its model.

    The exception is a model in TransformerLens's old layout, which is loaded as a whole.

    Args:
        name: The path of a tokenizer's folder, relative to `beside`, or the name, folder or
            repository of a model.
        beside: A folder from which `name` may lead to a tokenizer.

    Raises:
        ModelError: There is no tokenizer that can be read.
    """
    # A folder with a tokenizer alone has no config.json.
    folder = beside / name
    is_model = (folder / "config.json").is_file()
    has_tokenizer = any((folder / file).is_file() for file in TOKENIZER_FILES)
    # Such a path always leads on from `beside`: the current folder may hold another tokenizer.
    is_relative_path = name.split("/")[0] in (".", "..")
    if is_relative_path and not (is_model or has_tokenizer):
        raise ModelError(
            f"tokenizer={name} is a path that begins at {beside}, and {folder.resolve()} has no "
            "files of a tokenizer, such as tokenizer.json; give the path from there, such as "
            f"{_from_folder(name, beside)}, or the name of a model"
        )
    if is_relative_path and is_model:
        name = str(folder.resolve())
    if has_tokenizer and not is_model:
        from thinkalike.models.tokenizer_reading import read_tokenizer

        config = ModelConfig(name="local", path=str(folder))
        with explaining_loading_errors(config):
            return read_tokenizer(config, str(folder))

    config = configured(name, {})
    with explaining_loading_errors(config), checkpoint_location(config) as (place, revision):
        source = config
        is_on_the_hub = named_folder(config) is None
        if is_on_the_hub:  # all files are read at one commit, also if the branch moves on
            source = replace(config, revision=revision)
        family = family_in(read_config_json(source, place), f"{place}/config.json")
        if family.reader == "native":
            return mini_tokenizer(place)
        if family.reader == "transformers":
            from thinkalike.models.tokenizer_reading import read_tokenizer

            return read_tokenizer(source, place)
    return load_model(config).tokenizer
