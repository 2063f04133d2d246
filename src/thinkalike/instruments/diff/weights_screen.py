"""Which weights differ, in words: tensors to which the same was done together."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

import pandas as pd

from thinkalike.instruments.diff.ranges import blocks_in_words
from thinkalike.screen import number_text

MOST_OPERATIONS = 4
"""At most so many operations are named."""

MOST_NAMES = 3
"""At most so many names of tensors are named for each operation."""

FAR = 3
"""Blocks are named whose weights moved more than so many times as far as the median block's."""

MOST_FAR_BLOCKS = 2

WITHOUT_NAME = ("noise", "changed")
"""The operations of tensors whose change no simple edit gives."""

TRIED = " other=MODEL also tests mixtures with that model."
"""What is said of such tensors."""


class EditedTensor(NamedTuple):
    """A row of the table of weights."""

    tensor: str
    layer: int
    operation: str
    spread: float
    amount: float
    places: str


def weights_in_words(table: pd.DataFrame) -> str:
    """Return in words what was done to which tensors, the most widespread operation first.

    Tensors to which the same was done are named together.

    Args:
        table: A row for each tensor that differs, with the operation that changed it.
    """
    tensors_by_operation: dict[str, list[EditedTensor]] = {}
    for row in table[list(EditedTensor._fields)].itertuples(index=False):
        tensor = EditedTensor(*row)
        if not isinstance(tensor.places, str):  # NaN, in a table that was read from a file
            tensor = tensor._replace(places="")
        tensors_by_operation.setdefault(_operation_in_words(tensor), []).append(tensor)

    most_widespread_first = sorted(
        tensors_by_operation, key=lambda operation: -len(tensors_by_operation[operation])
    )
    clauses = []
    for operation in most_widespread_first[:MOST_OPERATIONS]:
        tensors = tensors_by_operation[operation]
        clauses.append(f"{_tensors_in_words(tensors)} {operation}")
    in_words = "; ".join(clauses)
    remaining = 0
    for operation in most_widespread_first[MOST_OPERATIONS:]:
        remaining += len(tensors_by_operation[operation])
    if remaining:
        in_words += f"; {remaining} more in weights.csv"
    in_words += "."
    if table["operation"].isin(WITHOUT_NAME).any():
        in_words += TRIED
    return in_words


def _operation_in_words(tensor: EditedTensor) -> str:
    """Return in brackets what was done to a tensor, and to which of its rows, heads and so on.

    Such as "(rounded to 4 bits)". An operation that has no amount is called by its name.
    """
    amount = tensor.amount
    phrase_by_operation = {
        "low rank": f"changed by a matrix of rank {amount:.0f}",
        "rounded": f"rounded to {amount:.0f} bits",
        "scaled": f"scaled by {amount:.4g}",
        "masked": f"about {round(amount, 1):.0%} zeroed",
        "cast": f"rounded to {amount:.0f}-bit floats",
        "scaled by row": "scaled row by row",
        "scaled by column": "scaled column by column",
        "noise": "as by added noise",
        "changed": "by no simple edit, such as scaling, rounding or low rank",
        "linear mixture": f"mixed in linearly, {amount:.4g} of it",
        "weighted sum": f"added {amount:.4g} times",
        "spherical mixture": f"mixed in spherically, {amount:.4g} of it",
    }
    operation = phrase_by_operation.get(tensor.operation, tensor.operation)
    if tensor.places:
        return f"({tensor.places} {operation})"
    return f"({operation})"


def _tensors_in_words(tensors: Sequence[EditedTensor]) -> str:
    """Return the names of tensors to which the same was done, those of several blocks together.

    Such as "attn.c_proj.weight of blocks 0 to 3". How far they moved follows where no simple edit
    was recognised.
    """
    layers_by_name: dict[str, list[int]] = {}
    for tensor in tensors:
        # "h.3.attn.c_proj.weight" becomes "*.attn.c_proj.weight" in every block.
        name_in_block = re.sub(r"^.*?\.(\d+)\.", "*.", tensor.tensor)
        layers_by_name.setdefault(name_in_block, []).append(tensor.layer)
    names = []
    for name, layers in layers_by_name.items():
        if name.startswith("*"):
            names.append(f"{name.removeprefix('*.')} of {blocks_in_words(layers)}")
        else:
            names.append(name)
    in_words = ", ".join(names[:MOST_NAMES])
    if len(names) > MOST_NAMES:
        in_words += f" and {len(names) - MOST_NAMES} more names"
    if tensors[0].operation in WITHOUT_NAME:
        in_words += _distance_in_words(tensors)
    return in_words


def _distance_in_words(tensors: Sequence[EditedTensor]) -> str:
    """Return in words how far tensors moved, in standard deviations of their weights.

    It is the median over blocks; at most `MOST_FAR_BLOCKS` blocks that moved more than `FAR` times
    as far are named. It is "" if no distance is known.
    """
    spreads = pd.DataFrame(
        {
            "layer": [tensor.layer for tensor in tensors],
            "spread": [tensor.spread for tensor in tensors],
        }
    )
    spread_of_layer = spreads.groupby("layer")["spread"].median().dropna()
    if spread_of_layer.empty:
        return ""
    median = spread_of_layer.median()
    in_words = f" moved by {number_text(median, '.2g')} standard deviations of the weights"
    if len(spread_of_layer) > 1:
        in_words += ", the median over blocks"
    is_far = spread_of_layer > FAR * median
    farthest_first = spread_of_layer[is_far].sort_values(ascending=False)
    for layer, spread in farthest_first[:MOST_FAR_BLOCKS].items():
        times = number_text(spread / median, ".1f")
        in_words += f"; block {layer} {number_text(spread, '.2g')}, {times} times that"
    return in_words
