"""What the rows and columns of a weight are, in words: heads, neurons, experts or tokens."""

from __future__ import annotations

import re
from collections.abc import Sequence

from torch import Tensor

from thinkalike.instruments.diff.ranges import ranges_in_words
from thinkalike.measures.edits import Edit
from thinkalike.models.frozen import FrozenModel
from thinkalike.models.module_facts import HEADS, config_of_text_model, number_in

MOST_NAMED = 4
"""At most so many tokens, or ranges of neurons and the like, are named."""

WRITES_TO_STREAM = re.compile(
    r"o_proj|out_proj|c_proj|down_proj|fc_out|dense_4h_to_h|(^|\.)o$|output\.dense|"
    r"attention\.dense|wo$|w2$"
)
"""Matches the paths of modules that write to the residual stream. Their inputs are neurons."""

INSIDE_MLP = re.compile(r"mlp|ffn|feed_forward")

READS_FOR = {
    "query": r"(^|\.)(q|q_proj|query|q_lin|wq)$",
    "key": r"(^|\.)(k|k_proj|key|k_lin|wk)$",
    "value": r"(^|\.)(v|v_proj|value|v_lin|wv)$",
}
"""The paths of modules that make only queries, keys or values."""

KEYS_IN_TURN = re.compile(r"c_attn|qkv_proj|Wqkv")
"""Matches the paths of modules that make all queries, then all keys, then all values."""

NAMES_OF_KEY_HEADS = ("num_key_value_heads", "n_key_value_heads")
NAMES_OF_HEAD_WIDTH = ("head_dim", "d_head")


def changed_indices_in_words(model: FrozenModel, name: str, tensor: Tensor, change: Edit) -> str:
    """Return in words which rows or columns of a tensor an edit changed; "" if it changed all.

    They are called tokens, experts, heads or neurons where that is what they stand for.

    Args:
        model: The base, whose modules say what rows and columns stand for.
        name: The name of the tensor.
        tensor: The tensor in the base.
        change: The edit, which knows the axis and the indices that differ.
    """
    if change.axis is None or not change.indices:
        return ""
    indices = change.indices
    # Embeddings and unembeddings have a row for each token, and lie outside the blocks.
    is_of_vocabulary = len(tensor) == model.vocabulary and model.family.blocks not in name
    if change.axis == 0 and is_of_vocabulary:
        tokens = [repr(model.tokenizer.decode([token])) for token in indices]
        return _first_few("token", tokens)
    if change.axis == 0 and tensor.dim() == 3:  # a matrix for each expert of an MLP
        return _first_few("expert", [str(expert) for expert in indices])

    path, _, _ = name.rpartition(".")
    is_of_outputs = change.axis == _output_axis(model, path, tensor)
    heads = _heads_in_words(model, path, tensor.shape[change.axis], indices, is_of_outputs)
    if heads:
        return heads
    unit = "row" if change.axis == 0 else "column"
    # The neurons of an MLP are the inputs of its last map and the outputs of its other maps.
    is_last_map = bool(WRITES_TO_STREAM.search(path))
    is_of_neurons = not is_of_outputs if is_last_map else is_of_outputs
    if INSIDE_MLP.search(path) and is_of_neurons:
        unit = "neuron"
    return _first_few(unit, ranges_in_words(indices), len(indices))


def _output_axis(model: FrozenModel, path: str, tensor: Tensor) -> int:
    """Return which axis of a weight is that of the module's outputs.

    It is 0, as in `nn.Linear`, but 1 for the Conv1D of GPT-2, whose weight is transposed.

    Args:
        model: The model.
        path: The path of the module.
        tensor: The weight, or the bias, of the module.
    """
    module = model.module.get_submodule(path)
    if type(module).__name__ == "Conv1D" and tensor.dim() == 2:
        return 1
    return 0


def _first_few(unit: str, names: Sequence[str], count: int | None = None) -> str:
    """Return at most `MOST_NAMED` names in words: "neurons 3 to 5, 8 and 2 more".

    Args:
        unit: What the names are of, in the singular.
        names: The names, of which some may be ranges such as "3 to 5".
        count: How many units all names stand for; None: each name is of one unit.
    """
    if count is None:
        count = len(names)
    plural = "" if count == 1 else "s"
    in_words = f"{unit}{plural} {', '.join(names[:MOST_NAMED])}"
    if len(names) > MOST_NAMED:
        in_words += f" and {len(names) - MOST_NAMED} more"
    return in_words


def _heads_in_words(
    model: FrozenModel, path: str, length: int, indices: Sequence[int], is_of_outputs: bool
) -> str:
    """Return which attention heads some indices of a weight belong to: "query heads 0 to 2".

    It is "" if the module does not belong to attention, or if the indices are not whole heads.

    Args:
        model: The model.
        path: The path of the module.
        length: How many indices the axis of the weight has.
        indices: The indices that differ.
        is_of_outputs: Whether the axis is that of the module's outputs, and not of its inputs.
    """
    config = config_of_text_model(model.module)
    query_heads = number_in(config, HEADS) or 0
    if not query_heads or "att" not in path:
        return ""
    key_heads = number_in(config, NAMES_OF_KEY_HEADS) or query_heads
    head_width = number_in(config, NAMES_OF_HEAD_WIDTH) or model.d_model // query_heads
    if length % head_width:
        return ""

    heads = _heads_in_order(path, length // head_width, query_heads, key_heads, is_of_outputs)
    # A head's numbers are consecutive along the axis, so this is its position among the heads.
    head_positions = sorted({index // head_width for index in indices})
    are_whole_heads = len(indices) == len(head_positions) * head_width
    if length != len(heads) * head_width or not are_whole_heads:
        return ""
    numbers_by_kind: dict[str, list[int]] = {}
    for position in head_positions:
        kind, number = heads[position]
        numbers_by_kind.setdefault(kind, []).append(number)
    in_words = []
    for kind, numbers in numbers_by_kind.items():
        in_words.append(_first_few(kind, ranges_in_words(numbers), len(numbers)))
    return " and ".join(in_words)


def _heads_in_order(
    path: str, count: int, query_heads: int, key_heads: int, is_of_outputs: bool
) -> list[tuple[str, int]]:
    """Return the kind and number of each attention head along an axis of a weight.

    The order follows from the name of the module. It may be all queries, then all keys, then all
    values; or query, key and value of head 0, then of head 1, and so on; or only one of the three.
    The list is empty if the order is not known.

    Args:
        path: The path of the module.
        count: How many heads the axis has, for a module that computes queries, keys or values
            alone. Other axes have as many as the model's heads say.
        query_heads, key_heads: How many heads of queries the model has, and how many of keys and
            of values.
        is_of_outputs: Whether the axis is that of the module's outputs. If not, the module is
            taken for the last map of attention, whose inputs are the outputs of all heads.
    """
    if not is_of_outputs:
        return [("head", number) for number in range(query_heads)]

    if KEYS_IN_TURN.search(path):
        heads = [("query head", number) for number in range(query_heads)]
        heads += [("key head", number) for number in range(key_heads)]
        heads += [("value head", number) for number in range(key_heads)]
        return heads

    # If queries share keys, the order in such a module is not known.
    if "query_key_value" in path and query_heads == key_heads:
        heads = []
        for number in range(query_heads):
            heads += [("query head", number), ("key head", number), ("value head", number)]
        return heads

    # A module of one kind, such as q_proj, is known by its name.
    for kind, pattern in READS_FOR.items():
        if re.search(pattern, path):
            return [(f"{kind} head", number) for number in range(count)]
    return []
