"""The attention heads of a model's blocks, as what they write to the residual stream.

All forms of attention end in one matrix whose inputs are the outputs of the heads, one head after
the other. Queries, keys and values are stored in many orders, so they are not read.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

from thinkalike.models.module_facts import HEADS, number_in

KEY_HEADS = ("num_key_value_heads", "n_key_value_heads")
"""The names that configurations give to the number of heads of keys and values."""

POSITIONS_BY_HEAD = ("bloom", "mpt")
"""Architectures in which each head has a fixed slope (ALiBi), so that heads have an order."""

OUTPUT_OF_ATTENTION = re.compile(
    r"att[^.]*\.(.*\.)?(o_proj|out_proj|c_proj|dense|out_lin|o|wo|Wo|W_O)\.weight$", re.IGNORECASE
)
"""Matches the names of the weights by which attention writes to the stream."""


class Heads(NamedTuple):
    """Where the output weights of the attention of a block are.

    Attributes:
        block: The number of the block; an encoder's blocks come before a decoder's.
        module: The path inside the block, such as "self_attn".
        writing: The name of the weight by which heads write to the stream.
        heads: The number of heads; of grouped queries, that of groups.
        width: The width of the stream.
    """

    block: int
    module: str
    writing: str
    heads: int
    width: int


def exchangeable_heads(config: object) -> int:
    """Return how many heads of a block can be put in another order without changing the model.

    With grouped queries, heads that share keys and values must stay together, so the number of
    groups is returned. If all heads share keys and values, any order of heads is possible, and the
    number of heads is returned. 0 means that the number is not known, or that the order of heads
    is fixed by slopes (ALiBi).

    Args:
        config: The configuration of a language model.
    """
    has_slopes = getattr(config, "alibi", False) or (
        getattr(config, "model_type", "") in POSITIONS_BY_HEAD
    )
    if has_slopes:
        return 0
    n_heads = number_in(config, HEADS) or 0
    n_groups = number_in(config, KEY_HEADS) or n_heads  # each has its own keys and values
    if n_groups > 1:
        return n_groups
    return n_heads


def heads_of_weight(
    name: str, shape: tuple[int, ...], block: int, inside: str, n_heads: int, width: int
) -> Heads | None:
    """Return the attention heads whose outputs a weight maps to the stream, or None.

    None means that the weight is not the output matrix of attention, that the number of heads is
    not known, or that the heads would not have the same number of outputs each.

    Args:
        name: The full name of the weight.
        shape: The shape of the weight.
        block: The number of the block.
        inside: The name of the weight inside the block, such as "self_attn.o_proj.weight".
        n_heads: The number of heads; 0 if it is not known.
        width: The width of the residual stream, which is one axis of the weight.
    """
    if not OUTPUT_OF_ATTENTION.search(inside) or len(shape) != 2 or width not in shape:
        return None
    n_outputs = shape[0] * shape[1] // width  # of all heads: the length of the other axis
    if n_heads < 1 or n_outputs % n_heads:
        return None
    module = inside.removesuffix(".weight").rpartition(".")[0]
    return Heads(block, module, writing=name, heads=n_heads, width=width)


def text_section(config_json: Mapping[str, object]) -> Mapping[str, object]:
    """Return the section of a config.json that is about the language model.

    It is "text_config" of a model that also reads images, or "architecture" of a bundled model.
    Otherwise it is the whole config.json.
    """
    for name in ("text_config", "architecture"):
        section = config_json.get(name)
        if isinstance(section, Mapping):
            return section
    return config_json
