"""Layers and matrices of layers as tidy rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Shaped
from torch import Tensor


def layer_rows(model: str, layers: Sequence[Any]) -> pd.DataFrame:
    """Return one row per layer of a model: model, layer; a layer of -1 is the embedding."""
    return pd.DataFrame({"model": model, "layer": list(layers)})


def matrix_rows(rows: pd.DataFrame, columns: pd.DataFrame, **values: Shaped[Tensor, "l m"]) -> pd.DataFrame:
    """Return one row per cell of matrices of layers: source, target, source_layer, target_layer, and each value."""
    first, second = np.indices((len(rows), len(columns))).reshape(2, -1)
    sides = {"source": (rows, first), "target": (columns, second)}
    table = {side: own["model"].to_numpy()[place] for side, (own, place) in sides.items()}
    table |= {f"{side}_layer": own["layer"].to_numpy()[place] for side, (own, place) in sides.items()}
    return pd.DataFrame(table).assign(**{name: cells.cpu().flatten().numpy() for name, cells in values.items()})


def repeated_rows(rows: pd.DataFrame, what: str, names: Sequence[str], **values: Shaped[Tensor, "l f"]) -> pd.DataFrame:
    """Return one row per layer and name, such as a feature's: model, layer, the name in column `what`, each value."""
    table = rows.loc[rows.index.repeat(len(names))].reset_index(drop=True)
    columns = {name: cells.cpu().flatten().numpy() for name, cells in values.items()}
    return table.assign(**{what: list(names) * len(rows)}, **columns)
