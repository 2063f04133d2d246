"""The data of a fit, checked: a table of features, and the pairs of its stimuli with their neural distances."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float, Int
from torch import Tensor

from thinkalike.arguments import check_rows, tensor_of
from thinkalike.measures.distances.neural import DistanceChoice, NeuralDistances
from thinkalike.measures.mlem.columns import Columns, Level
from thinkalike.measures.mlem.stimulus_pairs import StimulusPairs
from thinkalike.measures.statistics.folds import check_groups


class Table(NamedTuple):
    """Checked data."""

    values: Float[Tensor, "n f"]
    levels: list[list[Level] | None]  # see `Columns.read`
    columns: Columns
    stimulus_pairs: StimulusPairs
    groups: Int[Tensor, " n"] | None
    single: bool  # Y was one layer, not a sequence of them


def read(X: Any, Y: Any, groups: Any, columns: Columns, distance: DistanceChoice, drop: bool, by_pair: bool) -> Table:
    """Check the data of a fit, see `MLEM.fit`.

    Args:
        columns: What the table of features is read by.
        drop: Whether stimuli that lack a value are left out.
        by_pair: Whether folds divide pairs, not stimuli.

    Raises:
        ValueError: Y is no layer and no list of layers, a layer is no matrix, tables have the same rows in another
            order (`check_rows`), layers and X differ in the number of stimuli, or groups are given although folds
            divide pairs; see `Columns.read`.
    """
    if isinstance(Y, Mapping):
        raise ValueError(f"Y is a {type(Y).__name__}: give a list of layers, such as list(Y.values())")
    if isinstance(Y, Sequence) and not Y:
        raise ValueError("Y is empty: give a layer, or a list of layers")
    check_rows([("X", X), ("Y", Y), ("groups", groups)])
    single = _is_matrix(Y)
    states = [tensor_of(layer, Float, f"layer {index}") for index, layer in enumerate([Y] if single else Y)]
    values, levels = columns.read(X, states[0].device)
    for index, layer in enumerate(states):
        if layer.dim() != 2 or len(layer) != len(values):
            raise ValueError(f"layer {index} has shape {tuple(layer.shape)}; X has {len(values)} stimuli")
    kept = kept_rows(values, drop)
    if by_pair and groups is not None:
        raise ValueError("recipe='paper' divides pairs into folds and cannot keep groups together")
    layers = [NeuralDistances.of(layer, distance, f"layer {i}") for i, layer in enumerate(states)]
    if len(kept) < len(states[0]):
        layers = [layer.take(kept) for layer in layers]
    stimulus_pairs = StimulusPairs(layers)
    if by_pair:
        stimulus_pairs = StimulusPairs(layers, chosen=stimulus_pairs.flat, targets=stimulus_pairs.targets())
    owners = None if groups is None else _owners(groups, len(values)).to(kept.device)[kept]
    return Table(values[kept], levels, columns, stimulus_pairs, owners, single)


def _owners(groups: Any, n: int) -> Int[Tensor, " n"]:
    """Return the group of each stimulus, as a number."""
    owners = tensor_of(groups, Int, "groups", named=True)
    check_groups(owners, n)
    return owners


def kept_rows(values: Float[Tensor, "n f"], drop: bool) -> Int[Tensor, " k"]:
    """Return which stimuli stay: with `drop` those that lack no value."""
    return (~values.isnan().any(1) | (not drop)).nonzero()[:, 0]


def _is_matrix(Y: Any) -> bool:
    """Return whether this is one layer, also as a list of lists of numbers, and no sequence of layers."""
    rows = Y if isinstance(Y, list | tuple) else None
    return getattr(Y, "ndim", 3) == 2 or bool(rows and isinstance(rows[0], list | tuple) and np.ndim(rows[0][0]) == 0)
