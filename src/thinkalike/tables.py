"""Layers and matrices of layers as tidy rows."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
from jaxtyping import Shaped
from torch import Tensor


def layer_rows(model: str, layers: Sequence[object]) -> pd.DataFrame:
    """Return one row per layer of a model: model, layer; a layer of -1 is the embedding."""
    return pd.DataFrame({"model": model, "layer": list(layers)})


def matrix_rows(rows: pd.DataFrame, columns: pd.DataFrame, **values: Shaped[Tensor, "l m"]) -> pd.DataFrame:
    """Return one row per cell of matrices of layers.

    Its columns are source, target, source_layer, target_layer, and one for each of `values`.

    Args:
        rows: the layers of the source, see `layer_rows`.
        columns: the layers of the target.
        values: the matrices by the name of their column.
    """
    row_numbers, column_numbers = np.indices((len(rows), len(columns))).reshape(2, -1)
    table = pd.DataFrame(
        {
            "source": rows["model"].to_numpy()[row_numbers],
            "target": columns["model"].to_numpy()[column_numbers],
            "source_layer": rows["layer"].to_numpy()[row_numbers],
            "target_layer": columns["layer"].to_numpy()[column_numbers],
        }
    )
    return table.assign(**_cells(values))


def repeated_rows(
    rows: pd.DataFrame,
    name_column: str,
    names: Sequence[str],
    **values: Shaped[Tensor, "l f"],
) -> pd.DataFrame:
    """Return one row per layer and name, such as that of a feature.

    Its columns are model, layer, `name_column`, and one for each of `values`.

    Args:
        rows: the layers, see `layer_rows`.
        values: for each layer and each name a number, by the name of their column.
    """
    table = rows.loc[rows.index.repeat(len(names))].reset_index(drop=True)
    return table.assign(**{name_column: list(names) * len(rows)}, **_cells(values))


def _cells(values: dict[str, Tensor]) -> dict[str, np.ndarray]:
    """Return matrices as columns, row after row."""
    return {name: matrix.cpu().flatten().numpy() for name, matrix in values.items()}
