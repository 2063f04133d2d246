"""The weights of pairs of levels that measure=mlem leaves, and the levels in a plane."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor

from thinkalike.data import Stimuli
from thinkalike.measures import MLEM, mds
from thinkalike.tables import repeated_rows

COLUMNS = ["model", "layer", "feature", "level", "other", "weight"]


def level_table(model: MLEM, stimuli: Stimuli, rows: pd.DataFrame) -> pd.DataFrame:
    """Return one row per layer and pair of levels: feature, level, other, weight; of difference=levels and points.

    Args:
        rows: The model and the layer of each layer of the fit.
    """
    tables, named = [], stimuli.codes().levels
    for feature, values, weights, _ in model.level_weights_:
        name = stimuli.names[feature]
        levels = ["missing" if value != value else named[name][int(value)] for value in values.tolist()]
        first, second = np.triu_indices(len(levels), 1)
        pairs = [f"{levels[a]} {levels[b]}" for a, b in zip(first, second, strict=True)]
        table = repeated_rows(rows, "pair", pairs, weight=weights[:, first, second])
        ends = {"level": [levels[a] for a in first] * len(rows), "other": [levels[b] for b in second] * len(rows)}
        tables.append(table.assign(feature=name, **ends))
    return pd.concat(tables, ignore_index=True)[COLUMNS] if tables else pd.DataFrame()


def level_planes(table: pd.DataFrame) -> pd.DataFrame:
    """Return the levels of features with three or more as points: model, layer, feature, level, x, y.

    Distances in the plane are near the roots of the weights, see `mds`; each layer is turned towards the one before it.
    """
    planes, before = [], dict[Any, Tensor]()
    for (model, layer, feature), part in table.groupby(["model", "layer", "feature"], sort=False):
        levels = list(dict.fromkeys([*part["level"], *part["other"]]))
        if len(levels) < 3:
            continue
        first, second = np.triu_indices(len(levels), 1)
        matrix = torch.zeros(len(levels), len(levels), dtype=torch.float64)
        matrix[first, second] = matrix[second, first] = torch.tensor([*part["weight"]]).double().clamp(min=0).sqrt()
        points = mds(matrix)[0] if matrix.any() else torch.zeros(len(levels), 2, dtype=torch.float64)
        points = before[model, feature] = _turned(points, before.get((model, feature), points))
        found = {"model": model, "layer": layer, "feature": feature, "level": levels}
        planes.append(pd.DataFrame(found | {"x": points[:, 0].numpy(), "y": points[:, 1].numpy()}))
    return pd.concat(planes, ignore_index=True) if planes else pd.DataFrame()


def _turned(points: Float[Tensor, "k 2"], towards: Float[Tensor, "k 2"]) -> Float[Tensor, "k 2"]:
    """Return the points, turned or mirrored to be as near as they can to others."""
    left, _, right = torch.linalg.svd(points.T @ towards)
    return points @ left @ right
