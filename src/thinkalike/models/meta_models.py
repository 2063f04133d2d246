"""Models on the meta device, which have sizes and no weights."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, cast

import torch
from torch import nn

from thinkalike.models.families import family_in
from thinkalike.models.loading_errors import quieten_libraries
from thinkalike.models.module_facts import longest_row
from thinkalike.models.survey import without_hooks


class MetaModel(NamedTuple):
    """A module without weights.

    Attributes:
        module: The module.
        path_of_blocks: The path to its list of blocks.
        longest: Its longest row; None: any.
    """

    module: nn.Module
    path_of_blocks: str
    longest: int | None

    @property
    def blocks(self) -> list[nn.Module]:
        """The blocks in their order."""
        return list(self.module.get_submodule(self.path_of_blocks).children())


def meta_model(config_json: Mapping[str, object]) -> MetaModel:
    """Build the model that a config.json describes on the meta device, where it has no weights.

    It is in evaluation mode. The libraries are kept from writing to the screen, which shows the
    forecast that the model is built for.

    Raises:
        Exception: Whatever the libraries raise for settings that they do not know.
    """
    quieten_libraries()
    if "architecture" in config_json:  # of a small model that is bundled with this package
        return _meta_native(cast(Mapping[str, object], config_json["architecture"]))
    import transformers

    from thinkalike.models.blocks import blocks_of

    family = family_in(config_json, "config.json")
    model_type = str(config_json["model_type"])
    settings = {name: value for name, value in config_json.items() if name != "model_type"}
    config = transformers.AutoConfig.for_model(model_type, **settings)
    reading_class = getattr(transformers, family.reading_class)
    # Auto classes have `from_config`, and the classes of architectures `_from_config`.
    build = getattr(reading_class, "from_config", None) or reading_class._from_config
    with torch.device("meta"):
        module = build(config)
    path_of_blocks = family.blocks or blocks_of(module, model_type)
    return MetaModel(module.eval(), path_of_blocks, longest_row(module))


def _meta_native(architecture: Mapping[str, object]) -> MetaModel:
    """Build a model of TransformerLens's own classes on the meta device, without weights.

    Args:
        architecture: The sizes, from the section "architecture" of a bundled model's config.json.
    """
    from transformer_lens.model_bridge import TransformerBridge

    with torch.device("meta"):
        bridge = TransformerBridge.boot_native(
            dict(architecture), device="meta", dtype=torch.float32
        )
    # A job removes TransformerLens's hooks from such a model as well, when it loads the weights.
    module = without_hooks(bridge.original_model)
    longest = bridge.original_model.cfg.n_ctx
    return MetaModel(module.eval(), path_of_blocks="layers", longest=longest)
