"""Recorded activations of stimuli that users bring: .npz, .safetensors."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float
from safetensors.torch import load_file
from torch import Tensor

from thinkalike.data.files import read_with
from thinkalike.data.stimuli.columns import natural_order
from thinkalike.data.stimuli.stimuli import Stimuli
from thinkalike.errors import DataError


def read_arrays(path: str | Path, stimuli: Stimuli) -> dict[str, Float[Tensor, "n _"]]:
    """Read recorded activations of stimuli: one array per layer, whose rows are the stimuli, by the name of the layer.

    Names are in natural order ("2" comes before "10"), and integers become float64.

    Args:
        path: a file of one array of layers x stimuli x width, or of one of stimuli x width per layer.

    Raises:
        DataError: the file cannot be read, its arrays have another shape or number of rows, or a value is not finite.
    """
    arrays = read_with(Path(path), {".npz": _npz, ".safetensors": load_file})
    if not arrays:
        raise DataError(f"{path} is empty: it has no arrays")
    if len(arrays) == 1 and (whole := next(iter(arrays.values()))).ndim == 3:
        arrays = {str(number): layer for number, layer in enumerate(whole)}
    return {name: _layer(f"{path}: {name}", arrays[name], stimuli) for name in sorted(arrays, key=natural_order)}


def _npz(path: Path) -> dict[str, Tensor]:
    with np.load(path) as file:
        return {name: torch.from_numpy(file[name]) for name in file.files}


def _layer(place: str, array: Tensor, stimuli: Stimuli) -> Tensor:
    if array.ndim != 2 or not array.numel() or array.is_complex():
        raise DataError(
            f"{place} is {array.dtype} of shape {tuple(array.shape)}; give real numbers, as one array of "
            "layers x stimuli x width or one of stimuli x width per layer"
        )
    if len(array) != len(stimuli):
        raise DataError(
            f"{place} has {len(array)} rows, but {stimuli.source} has {len(stimuli)}; give one row for each"
        )
    if not array.isfinite().all():
        row, column = (~array.isfinite()).nonzero()[0].tolist()
        raise DataError(f"{place} is {array[row, column]} in row {row + 1}, column {column + 1}; leave the row out")
    return array if array.is_floating_point() else array.double()
