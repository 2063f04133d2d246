"""Where the blocks of a model are."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import nn

from thinkalike.errors import ModelError
from thinkalike.models.families import DEPTHS
from thinkalike.models.module_facts import number_in
from thinkalike.models.readers import DecoderSide

if TYPE_CHECKING:
    from transformers import PreTrainedModel


def blocks_of(module: PreTrainedModel | DecoderSide, name: str) -> str:
    """Return the path of the list of blocks in a model of transformers, such as "model.layers".

    It is the nn.ModuleList whose length is the number of layers in the configuration. If there are
    several, it is the one with most weights.

    Args:
        module: The model, or the decoder's side of an encoder-decoder.
        name: The model's name in an error.

    Raises:
        ModelError: There is no such list.
    """
    if isinstance(module, DecoderSide):
        root = module.both.get_decoder()  # `both` is the whole encoder-decoder
    else:
        root = module
    # Configurations of encoder-decoders state the depth of each side as SIDE_layers, and all
    # others under one of the names in DEPTHS.
    side = "encoder" if "Encoder" in type(root).__name__ else "decoder"
    depth = number_in(root.config.get_text_config(), (f"{side}_layers", *DEPTHS))
    # The text model is searched first, since an encoder of images may have as many blocks.
    # `get_decoder` returns it in most classes. In some it returns something without a list of
    # blocks, such as the unembedding; then the whole model is searched.
    text_model = root.get_decoder() if hasattr(root, "get_decoder") else root
    weights_of_lists = _lists_within(module, text_model, depth)
    if not weights_of_lists:
        weights_of_lists = _lists_within(module, root, depth)
    if not weights_of_lists:
        raise ModelError(
            f"{name}: {type(root).__name__} has no list of {depth} blocks, so it cannot be cut at "
            "them"
        )
    return max(weights_of_lists, key=lambda path: weights_of_lists[path])


def _lists_within(module: nn.Module, inner: nn.Module, length: int | None) -> dict[str, int]:
    """Return the number of weights of each nn.ModuleList of `length` modules, by path.

    Args:
        module: The module at which the paths start.
        inner: A submodule of it; only lists inside this one are returned.
        length: The length of the lists; None: it is not known, and no list is found.
    """
    modules_inside = set(inner.modules())
    weight_counts = {}
    for path, submodule in module.named_modules():
        if submodule not in modules_inside or not isinstance(submodule, nn.ModuleList):
            continue
        if len(submodule) == length:
            weight_counts[path] = sum(weight.numel() for weight in submodule.parameters())
    return weight_counts
