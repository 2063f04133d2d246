"""The weights of pairs of levels as matrices, one per feature."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from thinkalike.measures.mlem.columns import Level
from thinkalike.measures.mlem.features import FeatureEncoder, Features
from thinkalike.measures.mlem.solver import Fitted
from thinkalike.measures.mlem.terms import grouped


class LevelWeights(NamedTuple):
    """How far apart the levels of one feature are in each layer, in the scale of the fit."""

    feature: int
    values: Float[Tensor, " k"]  # the levels that the training stimuli have, NaN where a value is missing
    weights: Float[Tensor, "*l k k"]  # symmetric, at least 0, with a zero diagonal
    levels: list[Level | None]  # the same in the words of the table, None where a value is missing


def level_weights(fitted: Fitted, encoder: FeatureEncoder, features: Features) -> list[LevelWeights]:
    """Return the weights of all features whose pairs of levels have some."""
    found = []
    for (feature, *_), places in grouped(fitted.terms):
        if size := features.known[feature]:
            rows, columns = torch.triu_indices(size, size, 1)
            matrix = fitted.weights.new_zeros(len(fitted.weights), size, size)
            pairs = fitted.weights[:, places.start : places.stop - 1]
            matrix[:, rows, columns] = matrix[:, columns, rows] = pairs
            lacks = bool((features.levels[:, feature] == 0).any())
            values = torch.cat([pairs.new_tensor([torch.nan]), encoder.known[feature]])
            first = 0 if lacks else 1
            names = [_named(value, encoder.columns.levels[feature]) for value in values[first:].tolist()]
            found.append(LevelWeights(feature, values[first:], matrix[:, first:, first:], names))
    return found


def _named(value: float, levels: Sequence[Level] | None) -> Level | None:
    if value != value:
        return None
    return value if levels is None else levels[int(value)]
