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
    """Return how many heads each block has of which any order is as likely before training.

    Queries that share keys and values stay together, so their groups are counted. Where all
    queries share them, any order of heads is possible. 0 means that the number is not known, or
    that heads have fixed positions.

    Args:
        config: The configuration of a language model.
    """
    has_slopes = getattr(config, "alibi", False) or (
        getattr(config, "model_type", "") in POSITIONS_BY_HEAD
    )
    if has_slopes:
        return 0
    heads = number_in(config, HEADS) or 0
    key_heads = number_in(config, KEY_HEADS) or heads
    if key_heads > 1:
        return key_heads
    return heads


def heads_of_weight(
    name: str, shape: tuple[int, ...], block: int, inside: str, heads: int, width: int
) -> Heads | None:
    """Return the heads that write by a weight, or None if it is not the output of attention.

    Args:
        name: The name of the weight.
        shape: Its shape.
        block: The number of its block.
        inside: Its name inside the block.
        heads: The number of heads.
        width: The width of the residual stream.
    """
    if not OUTPUT_OF_ATTENTION.search(inside) or len(shape) != 2 or width not in shape:
        return None
    outputs_of_heads = shape[0] * shape[1] // width
    if heads < 1 or outputs_of_heads % heads:
        return None
    module = inside.removesuffix(".weight").rpartition(".")[0]
    return Heads(block, module, name, heads, width)


def text_section(config_json: Mapping[str, object]) -> Mapping[str, object]:
    """Return the part of a config.json that is about the language model."""
    for name in ("text_config", "architecture"):
        section = config_json.get(name)
        if isinstance(section, Mapping):
            return section
    return config_json
