"""Which weights differ, in words: tensors to which the same was done together."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import NamedTuple

import pandas as pd

from thinkalike.advice import named_setting
from thinkalike.instruments.diff.ranges import MOST_RANGES, blocks_in_words, module_names
from thinkalike.screen import number_text, range_text

MOST_OPERATIONS = 4
"""At most so many operations are named."""

MOST_NAMES = 3
"""At most so many names of tensors are named for each operation."""

MOST_MODULES = 3
"""At most so many modules are named that hold the remaining tensors, if they have many ranges."""

TIMES_THE_MEDIAN = 3
"""Blocks are named whose weights moved more than so many times as far as the median block's."""

MOST_FAR_BLOCKS = 2

UNRECOGNISED_OPERATIONS = ("noise", "changed")
"""The operations that stand for a change that no simple edit gives."""

OPERATIONS_WITHOUT_SIZE = ("added", "removed", "resized")
"""The operations for which the size of the change is not known."""

MOST_DIGITS = 12
"""A factor is written with at most so many digits."""

LEAST_SHARE = 0.05
"""A smaller share would be rounded to 0 %."""


class EditedTensor(NamedTuple):
    """A row of the table of weights.

    Two of its columns are sizes of the change: `size` is relative to the norm of the weights, and
    `spread` to their standard deviation.
    """

    tensor: str
    component: str
    layer: int
    operation: str
    size: float
    spread: float
    norm_of_change: float
    amount: float
    places: str

    @property
    def was_zero(self) -> bool:
        """Whether all entries were 0 in the base, so that the change has no relative size."""
        return math.isnan(self.size) and self.operation not in OPERATIONS_WITHOUT_SIZE


def weights_in_words(table: pd.DataFrame, modules: pd.DataFrame) -> str:
    """Return in words which operation changed which tensors, the most widespread operation first.

    Tensors that the same operation changed are named together, for `MOST_OPERATIONS` operations at
    most. If the operation on some tensor was not recognised, a last sentence advises the user to
    name a third model: then mixtures of base and third model are tried as well.

    Args:
        table: A row for each tensor that differs, with the operation that changed it.
        modules: A row for each module, with its effect on predictions if it was exchanged.
    """
    tensors_by_operation: dict[str, list[EditedTensor]] = {}
    # Tables of earlier versions have no column `norm_of_change`.
    for row in table.reindex(columns=list(EditedTensor._fields)).itertuples(index=False):
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
        clauses.append(f"{_tensors_in_words(tensors, modules)} {operation}")
    in_words = "; ".join(clauses)
    remaining = 0
    for operation in most_widespread_first[MOST_OPERATIONS:]:
        remaining += len(tensors_by_operation[operation])
    if remaining:
        in_words += f"; {remaining} more in weights.csv"
    in_words += "."
    # The size of a change is missing for tensors that only one of the models has: no operation on
    # the base's tensor could have made them.
    is_in_both_models = table["size"].notna()
    is_unrecognised = table["operation"].isin(UNRECOGNISED_OPERATIONS) & is_in_both_models
    if is_unrecognised.any():
        setting_of_third_model = named_setting("measure.other", like="MODEL")
        in_words += f" {setting_of_third_model} also tests mixtures with that model."
    return in_words


def _operation_in_words(tensor: EditedTensor) -> str:
    """Return in brackets how a tensor was changed, such as "(head 3 rounded to 4 bits)".

    The rows, heads or other units that changed (`places`) come first, if not all of the tensor
    changed. An operation without a phrase of its own is called by its name.

    A tensor that was all zero in the base has no weights that an edit could be relative to:

    - If no simple edit explains the change, but it is in certain places: "no longer zero".
    - If no simple edit explains the change, which is everywhere: "all zero in the base".
    - Otherwise the operation is named, followed by "from zeros in the base".
    """
    amount = tensor.amount  # its meaning depends on the operation: bits, a rank, a factor
    phrase_by_operation = {
        "low rank": f"changed by a matrix of rank {amount:.0f}",
        "rounded": f"rounded to {amount:.0f} bits",
        "scaled": f"scaled by {_amount_in_words(amount)}",
        "masked": f"{_share_in_words(amount)} zeroed",
        "scaled by row": "scaled row by row",
        "scaled by column": "scaled column by column",
        "noise": "as by added noise",
        "changed": "by no simple edit, such as scaling, rounding or low rank",
        "linear mixture": f"mixed in linearly, {_amount_in_words(amount)} of it",
        "weighted sum": f"added {_amount_in_words(amount)} times",
        "spherical mixture": f"mixed in spherically, {_amount_in_words(amount)} of it",
    }
    operation = phrase_by_operation.get(tensor.operation, tensor.operation)  # "cast to bfloat16"
    if tensor.was_zero and tensor.operation in UNRECOGNISED_OPERATIONS:
        operation = "no longer zero" if tensor.places else "all zero in the base"
    elif tensor.was_zero:
        operation += ", from zeros in the base"
    if tensor.places:
        return f"({tensor.places} {operation})"
    return f"({operation})"


def _amount_in_words(amount: float) -> str:
    """Return a factor as text, with four digits, or more if it would be rounded to 0, 1 or -1."""
    for digits in range(4, MOST_DIGITS):
        written = f"{amount:.{digits}g}"
        if float(written) not in (0, 1, -1):
            return written
    return f"{amount:.{MOST_DIGITS}g}"


def _share_in_words(share: float) -> str:
    """Return a share in steps of 10 %, such as "about 30%".

    Tensors are named together if the texts of their changes are equal; exact shares would differ.
    """
    if 0 < share < LEAST_SHARE:
        return f"less than {LEAST_SHARE:.0%}"
    if 1 - LEAST_SHARE < share < 1:
        return f"more than {1 - LEAST_SHARE:.0%}"
    return f"about {round(share, 1):.0%}"


def _tensors_in_words(tensors: Sequence[EditedTensor], modules: pd.DataFrame) -> str:
    """Return the names of tensors that one operation changed, those of several blocks together.

    Such as "attn.c_proj.weight of blocks 0 to 3". Where there are more than `MOST_NAMES` names,
    the modules of the remaining tensors are named instead. If no simple edit was recognised, the
    text ends with how far the tensors moved.

    Args:
        tensors: The tensors.
        modules: A row for each module, with its effect on predictions if it was exchanged.
    """
    layers_by_name: dict[str, list[int]] = {}
    tensors_by_name: dict[str, list[EditedTensor]] = {}
    for tensor in tensors:
        # "h.3.attn.c_proj.weight" becomes "*.attn.c_proj.weight" in every block.
        name_in_block = re.sub(r"^.*?\.(\d+)\.", "*.", tensor.tensor)
        layers_by_name.setdefault(name_in_block, []).append(tensor.layer)
        tensors_by_name.setdefault(name_in_block, []).append(tensor)
    names = []
    for name, layers in layers_by_name.items():
        if name.startswith("*"):
            names.append(f"{name.removeprefix('*.')} of {blocks_in_words(layers)}")
        else:
            names.append(name)
    in_words = ", ".join(names[:MOST_NAMES])
    if len(names) > MOST_NAMES:
        more = len(names) - MOST_NAMES
        in_words += " and 1 more name" if more == 1 else f" and {more} more names"
        remaining: list[EditedTensor] = []
        for name in list(layers_by_name)[MOST_NAMES:]:
            remaining += tensors_by_name[name]
        in_words += _modules_of(remaining, modules)
    if tensors[0].operation in UNRECOGNISED_OPERATIONS:
        if tensors[0].was_zero:
            in_words += _norm_in_words(tensors)
        else:
            in_words += _distance_in_words(tensors)
    return in_words


def _modules_of(tensors: Sequence[EditedTensor], modules: pd.DataFrame) -> str:
    """Return in words which modules hold some tensors: " in attention 8 and MLP 20".

    If their names have more than `MOST_RANGES` ranges, their number is given, with the names of
    the `MOST_MODULES` that have the largest effect on predictions, or whose weights moved farthest
    if the effects are not known. The text is "" for tensors outside of all modules.

    Args:
        tensors: The tensors.
        modules: A row for each module.
    """
    places = {(tensor.component, tensor.layer) for tensor in tensors}
    is_holder = [
        place in places for place in zip(modules["component"], modules["layer"], strict=True)
    ]
    holders = modules[is_holder]
    if holders.empty:
        return ""
    names = module_names([row for _, row in holders.iterrows()])
    n_ranges = 1 + names.count(",") + names.count(" and ")
    if n_ranges <= MOST_RANGES:
        return f" in {names}"
    criterion = "with the largest effects"
    order = holders["mean_effect"]
    if order.isna().all():
        criterion = "whose weights moved farthest"
        order = holders["relative_weight_change"]
    first = order.dropna().sort_values(ascending=False, kind="stable").index[:MOST_MODULES]
    if first.empty:
        return f" in {len(holders)} modules"
    largest = module_names([holders.loc[index] for index in first])
    return f" in {len(holders)} modules (those {criterion}: {largest})"


def _norm_in_words(tensors: Sequence[EditedTensor]) -> str:
    """Return in words the norms of tensors that were zero; "" if they are not known."""
    norms = [tensor.norm_of_change for tensor in tensors]
    if any(math.isnan(norm) for norm in norms):
        return ""
    return f", now of norm {range_text(min(norms), max(norms), '.2g')}"


def _distance_in_words(tensors: Sequence[EditedTensor]) -> str:
    """Return in words how far tensors moved, in standard deviations of their weights.

    The number is the median over blocks. Blocks that moved more than `TIMES_THE_MEDIAN` times as
    far are named, at most `MOST_FAR_BLOCKS` of them. The text is "" if no distance is known.
    """
    distances = pd.DataFrame(
        {
            "layer": [tensor.layer for tensor in tensors],
            "distance": [tensor.spread for tensor in tensors],
        }
    )
    distance_of_block = distances.groupby("layer")["distance"].median().dropna()
    if distance_of_block.empty:
        return ""
    median = distance_of_block.median()
    in_words = f" moved by {number_text(median, '.2g')} standard deviations of the weights"
    if len(distance_of_block) > 1:
        in_words += ", the median over blocks"
    is_far = distance_of_block > TIMES_THE_MEDIAN * median
    farthest_first = distance_of_block[is_far].sort_values(ascending=False)
    for block, distance in farthest_first[:MOST_FAR_BLOCKS].items():
        times = number_text(distance / median, ".1f")
        in_words += f"; block {block} {number_text(distance, '.2g')}, {times} times that"
    return in_words
