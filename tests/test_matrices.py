"""Rows become a matrix, and those of a stranger none that fills the memory."""

import numpy as np
import pandas as pd
import pytest

from thinkalike.errors import ResultError
from thinkalike.matrices import matrix_of

KEYS = {"index": "source_layer", "columns": "target_layer", "values": "value"}


def rows_of(source_layers, target_layers):
    return pd.DataFrame({"source_layer": source_layers, "target_layer": target_layers, "value": 0.5, "model": "a"})


def test_rows_are_the_cells_of_a_matrix():
    first, second = np.indices((3, 4)).reshape(2, -1)
    rows = rows_of(first, second)
    rows["value"] = 10 * first + second
    assert matrix_of(rows, **KEYS).to_numpy().tolist() == [[0, 1, 2, 3], [10, 11, 12, 13], [20, 21, 22, 23]]


def test_a_matrix_that_is_empty_but_for_its_diagonal_has_a_bound():
    layers = range(2000)
    assert matrix_of(rows_of(layers, layers), **KEYS).shape == (2000, 2000), "control"
    with pytest.raises(ResultError, match="30,000 values of source_layer by 30,000 of target_layer is too large"):
        matrix_of(rows_of(range(30_000), range(30_000)), **KEYS)
    rows = rows_of(range(30_000), np.arange(30_000) * 1e12)
    with pytest.raises(ResultError, match="30,000 values of model and source_layer by 30,000"):
        matrix_of(rows, index=["model", "source_layer"], columns="target_layer", values="value")


def test_a_large_matrix_that_its_rows_fill_has_none():
    first, second = np.indices((2100, 2000)).reshape(2, -1)
    assert matrix_of(rows_of(first, second), **KEYS).shape == (2100, 2000)
