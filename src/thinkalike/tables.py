"""Layers and matrices of layers as tidy rows."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
import pandas as pd
from jaxtyping import Shaped
from torch import Tensor

WHOLE_NUMBER = re.compile("0|[1-9][0-9]{0,17}")  # as it is written; 007 is a name


def layer_rows(model: str, layers: Sequence[object]) -> pd.DataFrame:
    """Return one row per layer of a model: model, layer; a layer of -1 is the embedding.

    Recorded layers have names. Where all of them are whole numbers, such as "2" and "10", they are numbers
    in the table, as the layers of models are; "0.1" and "0.10" stay names.
    """
    is_numbered = all(isinstance(layer, str) and WHOLE_NUMBER.fullmatch(layer) for layer in layers)
    if is_numbered:
        return pd.DataFrame({"model": model, "layer": [int(str(layer)) for layer in layers]})
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
