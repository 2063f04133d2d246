"""Where an architecture keeps its blocks: as TransformerLens's adapter says, or else as the module itself shows."""

from __future__ import annotations

import contextlib
from typing import Any

from torch import nn

from thinkalike.errors import ModelError
from thinkalike.models.checkpoints.sides import DecoderSide

DEPTHS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")  # what configurations call the number of blocks
DEPTHS_OF_SIDES = {True: ("encoder_layers", *DEPTHS), False: ("decoder_layers", *DEPTHS)}  # of an encoder, or not


def blocks_of(module: Any, name: str) -> str:
    """Return the path from a module of transformers to its list of blocks.

    The proof at load shows whether it is right.

    Raises:
        ModelError: there is none, such as where one block is used again and again.
    """
    path = _of_adapter(module)
    return path if path is not None else _of_depth(module, name)


def _of_adapter(module: Any) -> str | None:
    """Return what TransformerLens's adapter of this architecture calls the blocks, or None if it has no adapter."""
    from transformer_lens.factories.architecture_adapter_factory import ArchitectureAdapterFactory
    from transformer_lens.model_bridge.sources._bridge_builder import build_bridge_config_from_hf

    architecture = type(module).__name__
    with contextlib.suppress(Exception):  # an adapter may ask the configuration for what this one does not have
        shape = build_bridge_config_from_hf(module.config, architecture, architecture, module.dtype)
        adapter = ArchitectureAdapterFactory.select_architecture_adapter(shape)
        path = (adapter.component_mapping or {})["blocks"].name
        if isinstance(module.get_submodule(str(path)), nn.ModuleList):
            return str(path)
    return None


def _of_depth(module: Any, name: str) -> str:
    """Return the list with as many entries as the configuration has layers; of several, the one with most weights."""
    root = module.both.get_decoder() if isinstance(module, DecoderSide) else module
    shape = root.config.get_text_config()
    names = DEPTHS_OF_SIDES["Encoder" in type(root).__name__]
    depth = next((number for key in names if isinstance(number := getattr(shape, key, None), int)), None)
    lists = {path: part for path, part in module.named_modules() if isinstance(part, nn.ModuleList)}
    fitting = {
        path: sum(weight.numel() for weight in part.parameters())
        for path, part in lists.items()
        if len(part) == depth and any(part is own for own in root.modules())
    }
    if not fitting:
        raise ModelError(
            f"{name}: {type(root).__name__} of {depth} layers has no list of as many blocks, so there is no residual "
            "stream to cut; choose a model whose blocks have weights of their own"
        )
    return max(fitting, key=lambda path: fitting[path])
