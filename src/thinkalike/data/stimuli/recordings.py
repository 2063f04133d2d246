"""Recorded activations of stimuli that users bring: .npz, .safetensors. Rows find their stimuli by ids, never by order.

The ids stand in the file: in an array `ids`, or in the metadata of a .safetensors file, as a JSON list under "ids". So
do the runs, or sessions, in which stimuli were measured several times: in `runs`, with one for each row.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
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
RUNS = "runs"  # and the one that says in which run it was measured
ONCE = "give each stimulus one row, or say in an array `runs` in which run each was measured"
ADD = {
    ".npz": "np.savez(FILE, ids=[...], **layers)",
    ".safetensors": 'save_file(layers, FILE, metadata={"ids": json.dumps([...])})',
}


class _File(NamedTuple):
    """What a file holds: its arrays by name, and the ids and runs of their rows, if it has any."""

    arrays: dict[str, Tensor]
    ids: Any = None
    runs: Any = None


class Recording(NamedTuple):
    """Recorded activations of n stimuli, measured in m runs, which are 1 where the file does not say."""

    layers: dict[str, Float[Tensor, "m n _"]]
    runs: list[str]


def read_arrays(path: str | Path, stimuli: Stimuli) -> dict[str, Float[Tensor, "n _"]]:
    """Read recorded activations of stimuli: one array per layer, with a row for each stimulus in their order, by name.

    Of several runs it is the mean. See `read_recording`.
    """
    layers, runs = read_recording(path, stimuli)
    return {name: layer.mean(0) if len(runs) > 1 else layer[0] for name, layer in layers.items()}


def read_recording(path: str | Path, stimuli: Stimuli) -> Recording:
    """Read recorded activations of stimuli in every run: one array per layer of runs x stimuli x width, by name.

    Names are in natural order ("2" comes before "10"), and so are runs; integers become float64.

    Args:
        path: a file of one array of layers x rows x width, or of one of rows x width per layer, of `ids`, by which its
            rows are put into the order of the stimuli, and of `runs` if stimuli were measured more than once.

    Raises:
        DataError: the file cannot be read, its ids are not those of the stimuli in every run, its arrays have another
            shape or number of rows, or a value is not finite.
    """
    arrays, ids, runs = read_with(Path(path), {".npz": _npz, ".safetensors": _safetensors})
    if not arrays:
        raise DataError(f"{path} is empty: it has no arrays")
    texts = _texts(ids, Path(path), IDS)
    names, rows = _rows_by_run(stimuli, texts, None if runs is None else _texts(runs, Path(path), RUNS), str(path))
    if len(arrays) == 1 and (whole := next(iter(arrays.values()))).ndim == 3:
        arrays = {str(number): layer for number, layer in enumerate(whole)}
    layers = {
        name: _layer(f"{path}: {name}", arrays[name], len(texts))[rows] for name in sorted(arrays, key=natural_order)
    }
    return Recording(layers, names)


def _rows_by_run(
    stimuli: Stimuli, ids: Sequence[str], runs: Sequence[str] | None, path: str
) -> tuple[list[str], Int[Tensor, "m n"]]:
    """Return the names of the runs, and the row of each stimulus in each.

    Raises:
        DataError: there are other numbers of runs than of ids, or a run has other stimuli.
    """
    if runs is None:
        return ["1"], _rows_of(stimuli, ids, path)[None]
    if len(runs) != len(ids):
        raise DataError(f"{path}: runs has {len(runs)} rows, but ids has {len(ids)}; give one run for each row")
    names, found = sorted(set(runs), key=natural_order), []
    for run in names:
        inside = torch.tensor([row for row, each in enumerate(runs) if each == run])
        rows = _rows_of(
            stimuli, [ids[row] for row in inside.tolist()], f"{path}, run {run}", "average them, or give each a run"
        )
        found.append(inside[rows])
    return names, torch.stack(found)


def _npz(path: Path) -> _File:
    with np.load(path) as file:
        named = {name: file[name] for name in file.files if name not in (IDS, RUNS)}
        arrays = {name: torch.from_numpy(each.astype(each.dtype.newbyteorder("="))) for name, each in named.items()}
        try:
            return _File(arrays, *(file[name] if name in file.files else None for name in (IDS, RUNS)))
        except ValueError as error:
            if "Object arrays" not in str(error):
                raise
            raise DataError(
                f"{path}: its ids or runs are Python objects, which are not read; save np.array(ids, dtype=str)"
            ) from None


def _safetensors(path: Path) -> _File:
    with safe_open(path, framework="pt") as file:
        arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (it is no dictionary)
        written = file.metadata() or {}
    return _File(arrays, *(_said(name, arrays, written, path) for name in (IDS, RUNS)))


def _said(name: str, arrays: dict[str, Tensor], written: Mapping[str, str], path: Path) -> Any:
    """Return what the metadata say of the rows, or else an array, which is then no layer."""
    own = arrays.pop(name, None)
    if name not in written:
        return None if own is None else own.numpy()
    try:
        return np.array(json.loads(written[name]))
    except ValueError:
        raise DataError(f"{path}: the metadata under {name!r} is no JSON list; write {ADD['.safetensors']}") from None


def _texts(ids: Any, path: Path, what: str) -> list[str]:
    """Return the ids or the runs of the rows as text."""
    if ids is None:
        raise DataError(
            f"{path} does not say which stimulus a row belongs to, and order alone is not trusted; add the stimuli's "
            f"ids, one for each row: {ADD[path.suffix]}"
        )
    if ids.ndim != 1 or ids.dtype.kind not in "USiu":
        raise DataError(f"{path}: {what} is {ids.dtype} of shape {ids.shape}; give a text or whole number for each row")
    return [each.decode() if isinstance(each, bytes) else str(each) for each in ids.tolist()]


def _rows_of(stimuli: Stimuli, ids: Sequence[str], path: str, remedy: str = ONCE) -> Int[Tensor, " n"]:
    """Return the row of each stimulus.

    Raises:
        DataError: an id is there twice, or ids and stimuli are not the same.
    """
    if repeated := duplicates(ids):
        raise DataError(f"{path}: ids has {listed(repeated)} more than once; {remedy}")
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
