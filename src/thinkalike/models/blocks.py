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
    """Return the path from a module of transformers to the blocks of its text model.

    It is the list with as many entries as the configuration of the text model has layers; of
    several, the one with most weights. The proof at load checks it.

    Args:
        module: The module.
        name: What an error calls the model.

    Raises:
        ModelError: There is no such list.
    """
    root = module.both.get_decoder() if isinstance(module, DecoderSide) else module
    side = "encoder" if "Encoder" in type(root).__name__ else "decoder"
    depth = number_in(root.config.get_text_config(), (f"{side}_layers", *DEPTHS))
    # The search is in the text model, which transformers declares as the decoder, since a tower
    # for images may be as deep. Where the decoder of a class is something else, such as an
    # unembedding, it holds no list of blocks, and the whole module is searched.
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
    """Return the path of each list of `length` modules in an inner module, and its weight count.

    Args:
        module: The module that paths begin at.
        inner: The inner module.
        length: The length of the lists; None: no list has it.
    """
    inside = set(inner.modules())
    lists = {}
    for path, submodule in module.named_modules():
        if submodule not in inside or not isinstance(submodule, nn.ModuleList):
            continue
        if len(submodule) == length:
            lists[path] = sum(weight.numel() for weight in submodule.parameters())
    return lists
