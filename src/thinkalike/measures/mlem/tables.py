"""The data of a fit, checked: a table of features, and the pairs of its stimuli with their neural distances."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from thinkalike.measures.distances.neural import DistanceChoice, NeuralDistances
from thinkalike.measures.mlem.stimulus_pairs import StimulusPairs


class Table(NamedTuple):
    """Checked data."""

    values: Float[Tensor, "n f"]
    stimulus_pairs: StimulusPairs
    groups: Int[Tensor, " n"] | None
    single: bool  # Y was one layer, not a sequence of them


def read(X: Any, Y: Any, groups: Any, distance: DistanceChoice, drop: bool, by_pair: bool) -> Table:
    """Check the data of a fit, see `MLEM.fit`.

    Args:
        drop: Whether stimuli that lack a value are left out.
        by_pair: Whether folds divide pairs, not stimuli.

    Raises:
        ValueError: X is no table, a layer is no matrix, they differ in the number of stimuli, or groups are given
            although folds divide pairs.
    """
    single = getattr(Y, "ndim", 3) == 2
    states = [torch.as_tensor(layer) for layer in ([Y] if single else Y)]
    values, kept = read_values(X, drop, states[0].device)
    for index, layer in enumerate(states):
        if layer.dim() != 2 or len(layer) != len(X):
            raise ValueError(f"layer {index} has shape {tuple(layer.shape)}; X has {len(X)} stimuli")
    if by_pair and groups is not None:
        raise ValueError("recipe='paper' divides pairs into folds and cannot keep groups together")
    layers = [NeuralDistances.of(layer, distance, f"layer {i}") for i, layer in enumerate(states)]
    if len(kept) < len(states[0]):
        layers = [layer.take(kept) for layer in layers]
    stimulus_pairs = StimulusPairs(layers)
    if by_pair:
        stimulus_pairs = StimulusPairs(layers, chosen=stimulus_pairs.flat, targets=stimulus_pairs.targets())
    owners = None if groups is None else torch.as_tensor(groups, device=kept.device)[kept]
    return Table(values, stimulus_pairs, owners, single)


def read_values(X: Any, drop: bool, device: torch.device) -> tuple[Float[Tensor, "k f"], Int[Tensor, " k"]]:
    """Return the table in float64 on this device, and which rows it keeps: with `drop` those that lack no value.

    Raises:
        ValueError: X is no table.
    """
    values = torch.as_tensor(X, device=device).double()
    if values.dim() != 2:
        raise ValueError(f"X has shape {tuple(values.shape)}, not (stimuli, features)")
    kept = (~values.isnan().any(1) | (not drop)).nonzero()[:, 0]
    return values[kept], kept
