"""Recorded activations of stimuli that users bring: .npz, .safetensors. Rows find their stimuli by ids, never by order.

The ids stand in the file: in an array `ids`, or in the metadata of a .safetensors file, as a JSON list under "ids".
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from safetensors import safe_open
from torch import Tensor

from thinkalike.data.files import read_with
from thinkalike.data.stimuli.columns import duplicates, natural_order
from thinkalike.data.stimuli.stimuli import Stimuli
from thinkalike.errors import DataError, listed

IDS = "ids"  # the array, or the key of the metadata, that says which stimulus a row belongs to
ADD = {
    ".npz": "np.savez(FILE, ids=[...], **layers)",
    ".safetensors": 'save_file(layers, FILE, metadata={"ids": json.dumps([...])})',
}


class _File(NamedTuple):
    """What a file holds: its arrays by name, and the ids of their rows, if it has any."""

    arrays: dict[str, Tensor]
    ids: Any = None


def read_arrays(path: str | Path, stimuli: Stimuli) -> dict[str, Float[Tensor, "n _"]]:
    """Read recorded activations of stimuli: one array per layer, with a row for each stimulus in their order, by name.

    Names are in natural order ("2" comes before "10"), and integers become float64.

    Args:
        path: a file of one array of layers x stimuli x width, or of one of stimuli x width per layer, and of `ids`, by
            which its rows are put into the order of the stimuli.

    Raises:
        DataError: the file cannot be read, its ids are not those of the stimuli, its arrays have another shape or
            number of rows, or a value is not finite.
    """
    arrays, ids = read_with(Path(path), {".npz": _npz, ".safetensors": _safetensors})
    if not arrays:
        raise DataError(f"{path} is empty: it has no arrays")
    rows = _rows_of(stimuli, _texts(ids, Path(path)), str(path))
    if len(arrays) == 1 and (whole := next(iter(arrays.values()))).ndim == 3:
        arrays = {str(number): layer for number, layer in enumerate(whole)}
    return {
        name: _layer(f"{path}: {name}", arrays[name], len(rows))[rows] for name in sorted(arrays, key=natural_order)
    }


def _npz(path: Path) -> _File:
    with np.load(path) as file:
        arrays = {name: torch.from_numpy(file[name]) for name in file.files if name != IDS}
        try:
            return _File(arrays, file[IDS] if IDS in file.files else None)
        except ValueError as error:
            if "Object arrays" not in str(error):
                raise
            raise DataError(
                f"{path}: its ids are Python objects, which are not read; save np.array(ids, dtype=str)"
            ) from None


def _safetensors(path: Path) -> _File:
    with safe_open(path, framework="pt") as file:
        arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (it is no dictionary)
        written = (file.metadata() or {}).get(IDS)
    own = arrays.pop(IDS, None)
    if written is None:
        return _File(arrays, None if own is None else own.numpy())
    try:
        return _File(arrays, np.array(json.loads(written)))
    except ValueError:
        raise DataError(f"{path}: the metadata under {IDS!r} is no JSON list; write {ADD['.safetensors']}") from None


def _texts(ids: Any, path: Path) -> list[str]:
    """Return the ids of the rows as text."""
    if ids is None:
        raise DataError(
            f"{path} does not say which stimulus a row belongs to, and order alone is not trusted; add the stimuli's "
            f"ids, one for each row: {ADD[path.suffix]}"
        )
    if ids.ndim != 1 or ids.dtype.kind not in "USiu":
        raise DataError(f"{path}: ids is {ids.dtype} of shape {ids.shape}; give one text or whole number for each row")
    return [each.decode() if isinstance(each, bytes) else str(each) for each in ids.tolist()]


def _rows_of(stimuli: Stimuli, ids: Sequence[str], path: str) -> Int[Tensor, " n"]:
    """Return the row of each stimulus.

    Raises:
        DataError: an id is there twice, or ids and stimuli are not the same.
    """
    if repeated := duplicates(ids):
        raise DataError(f"{path}: ids has {listed(repeated)} more than once; give each stimulus one row")
    place = {each: row for row, each in enumerate(ids)}
    if missing := [each for each in stimuli.ids if each not in place]:
        raise DataError(
            f"{path}: ids lacks {listed(missing)} of the {len(stimuli)} stimuli of {stimuli.source}; "
            "add their rows, or leave these stimuli out"
        )
    if extra := sorted(place.keys() - set(stimuli.ids), key=natural_order):
        raise DataError(
            f"{path}: ids has {listed(extra)}, which {stimuli.source} has not; leave these rows out, or add the stimuli"
        )
    return torch.tensor([place[each] for each in stimuli.ids])


def _layer(place: str, array: Tensor, count: int) -> Tensor:
    if array.ndim != 2 or not array.numel() or array.is_complex():
        raise DataError(
            f"{place} is {array.dtype} of shape {tuple(array.shape)}; give real numbers, as one array of "
            "layers x stimuli x width or one of stimuli x width per layer"
        )
    if len(array) != count:
        raise DataError(f"{place} has {len(array)} rows, but its file has {count} ids; give one row for each")
    if not array.isfinite().all():
        row, column = (~array.isfinite()).nonzero()[0].tolist()
        raise DataError(f"{place} is {array[row, column]} in row {row + 1}, column {column + 1}; leave the row out")
    return array if array.is_floating_point() else array.double()
