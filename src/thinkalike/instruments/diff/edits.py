"""The table `weights`: the tensors that differ between two models, and what was done to each."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import pandas as pd
from torch import Tensor

from thinkalike.instruments.diff.places import changed_indices_in_words
from thinkalike.measures.edits import edit
from thinkalike.models.frozen import FrozenModel
from thinkalike.models.module_facts import embedding_of
from thinkalike.models.parts import Part, comparable_tensors, parts_of
from thinkalike.processes import counted

MIXTURES = ("linear mixture", "spherical mixture", "weighted sum")
"""The operations that mix weights of another model into the base."""

COLUMNS = [
    "tensor",
    "component",
    "layer",
    "operation",
    "size",
    "spread",
    "norm_of_change",
    "amount",
    "places",
]


def edits_of(
    base: FrozenModel, changed: FrozenModel, other: FrozenModel | None = None
) -> tuple[pd.DataFrame, Sequence[int]]:
    """Return a row for each tensor that differs, and the tokens whose embedding differs.

    A row says how the tensor was changed: the operation, such as "scaled", with its amount, and
    the size, spread and places of the change. Tensors that are tied have one row.

    Args:
        base, changed: The models.
        other: A model that may have been mixed in. In rows of such a change, its name takes the
            place of the indices that changed.
    """
    tensors_of_base = comparable_tensors(base.module)
    tensors_of_changed = comparable_tensors(changed.module)
    tensors_of_other: Mapping[str, Tensor] = {}
    if other:
        tensors_of_other = comparable_tensors(other.module)
    parts = parts_of(base)
    embedding = embedding_of(base.module)

    rows = []
    changed_tokens: list[int] = []
    seen_addresses: set[int] = set()
    for name, tensor in counted(list(tensors_of_base.items()), "tensor"):
        is_tied = tensor.numel() > 0 and tensor.data_ptr() in seen_addresses
        if is_tied or name not in tensors_of_changed:
            continue
        seen_addresses.add(tensor.data_ptr())
        mixed_in = None
        if name in tensors_of_other:
            mixed_in = tensors_of_other[name].float().cpu()
        change = edit(tensor.float().cpu(), tensors_of_changed[name].float().cpu(), mixed_in)
        if change is None:
            continue

        location = changed_indices_in_words(base, name, tensor, change)
        if other and change.operation in MIXTURES:
            location = other.name
        if tensor.data_ptr() == embedding.data_ptr():
            changed_tokens = list(range(base.vocabulary))
            if change.axis == 0:
                changed_tokens = list(change.indices)
        rows.append(
            {
                **_columns_of_tensor_and_module(name, parts),
                "operation": change.operation,
                "size": change.size,
                "spread": change.spread,
                "norm_of_change": change.norm,
                "amount": change.amount,
                "places": location,
            }
        )
    rows += _removed_and_added(tensors_of_base, tensors_of_changed, parts)
    return pd.DataFrame(rows, columns=COLUMNS), changed_tokens


def _columns_of_tensor_and_module(name: str, parts: Sequence[Part]) -> dict[str, object]:
    """Return the columns `tensor`, `component` and `layer` of a tensor.

    Args:
        name: The name of the tensor. A tensor outside all modules has the component "" and the
            layer -1.
        parts: The modules of the model, which know how the names of their tensors begin.
    """
    for part in parts:
        if name.startswith(part.prefixes):
            return {"tensor": name, "component": part.component, "layer": part.layer}
    return {"tensor": name, "component": "", "layer": -1}


def _removed_and_added(
    tensors_of_base: Mapping[str, Tensor],
    tensors_of_changed: Mapping[str, Tensor],
    parts: Sequence[Part],
) -> list[dict[str, object]]:
    """Return a row for each tensor that only one of the models has.

    Tensors that only the base has come first, with the operation "removed". Then follow tensors
    that only the changed model has, with the operation "added". Numbers about the change are NaN.

    Args:
        tensors_of_base: The tensors of the base, by name.
        tensors_of_changed: The tensors of the changed model, by name.
        parts: The modules of the base, which say where a tensor belongs.
    """
    operation_of_tensor = {}
    for name in tensors_of_base:
        if name not in tensors_of_changed:
            operation_of_tensor[name] = "removed"
    for name in tensors_of_changed:
        if name not in tensors_of_base:
            operation_of_tensor[name] = "added"
    rows = []
    for name, operation in operation_of_tensor.items():
        rows.append(
            {
                **_columns_of_tensor_and_module(name, parts),
                "operation": operation,
                "size": math.nan,
                "spread": math.nan,
                "norm_of_change": math.nan,
                "amount": math.nan,
                "places": "",
            }
        )
    return rows
