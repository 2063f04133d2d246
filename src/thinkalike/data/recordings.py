"""Recorded activations of stimuli that users bring: .npz, .safetensors. Rows find their stimuli by ids.

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

from thinkalike.data.sources import read_with
from thinkalike.data.stimuli import Stimuli, duplicates, natural_order
from thinkalike.errors import DataError, listed

IDS = "ids"  # the array, or the key of the metadata, that says which stimulus a row belongs to
RUNS = "runs"  # and the one that says in which run it was measured
IN_ORDER = "order"  # in place of the ids: row i is stimulus i
ADD = {
    ".npz": "np.savez(FILE, ids=[...], **layers)",
    ".safetensors": 'save_file(layers, FILE, metadata={"ids": json.dumps([...])})',
}


class _File(NamedTuple):
    """The contents of a file: its arrays by name, and the ids and runs of their rows, if it has any."""

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
            rows are put into the order of the stimuli (ids="order": they are in it), and of `runs` if stimuli were
            measured more than once.

    Raises:
        DataError: the file cannot be read, its ids are not those of the stimuli in every run, its arrays have another
            shape or number of rows, or a value is not finite.
    """
    arrays, ids, runs = read_with(Path(path), {".npz": _npz, ".safetensors": _safetensors})
    if not arrays:
        raise DataError(f"{path} is empty: it has no arrays")
    if ids is None:
        raise DataError(
            f"{path} does not say which stimulus a row belongs to; add the stimuli's ids, one for each row: "
            f"{ADD[Path(path).suffix.lower()]}, or ids='order' where rows are in the order of the stimuli"
        )
    texts = stimuli.ids if ids.shape == () and str(ids) == IN_ORDER else _texts(ids, f"{path}: {IDS}")
    names, rows = _rows_by_run(stimuli, texts, [] if runs is None else _texts(runs, f"{path}: {RUNS}"), str(path))
    if len(arrays) == 1 and (whole := next(iter(arrays.values()))).ndim == 3:
        arrays = {str(number): layer for number, layer in enumerate(whole)}
    layers = {
        name: _layer(f"{path}: {name}", arrays[name], len(texts))[rows] for name in sorted(arrays, key=natural_order)
    }
    return Recording(layers, names)


def _rows_by_run(
    stimuli: Stimuli, ids: Sequence[str], runs: Sequence[str], path: str
) -> tuple[list[str], Int[Tensor, "m n"]]:
    """Return the names of the runs, and the row of each stimulus in each.

    Raises:
        DataError: there are other numbers of runs than of ids, or a run has other stimuli, or one of them twice.
    """
    runs = runs or ["1"] * len(ids)
    if len(runs) != len(ids):
        raise DataError(f"{path}: runs has {len(runs)} rows, but ids has {len(ids)}; give one run for each row")
    names, found = sorted(set(runs), key=natural_order), []
    for run in names:
        own = [(each, row) for row, (each, of) in enumerate(zip(ids, runs, strict=True)) if of == run]
        place, there = dict(own), f"{path}, run {run}" if len(names) > 1 else path
        if repeated := duplicates(each for each, _ in own):
            raise DataError(
                f"{there}: ids has {listed(repeated)} more than once; give each stimulus one row, or say in an array "
                "`runs` in which run each was measured"
            )
        wrong: dict[str, set[str]] = {
            "lacks": set(stimuli.ids) - place.keys(),
            "also has": place.keys() - set(stimuli.ids),
        }
        for kind, strange in wrong.items():
            if strange:
                ordered = sorted(strange, key=natural_order)
                raise DataError(
                    f"{there}: ids {kind} {listed(ordered)}; give a row for each of the "
                    f"{len(stimuli)} stimuli of {stimuli.source}, and no others"
                )
        found.append([place[each] for each in stimuli.ids])
    return names, torch.tensor(found)


def _npz(path: Path) -> _File:
    with np.load(path) as file:
        named = {name: file[name] for name in file.files}
    said = [named.pop(name, None) for name in (IDS, RUNS)]
    arrays = {name: torch.from_numpy(each.astype(each.dtype.newbyteorder("="))) for name, each in named.items()}
    return _File(arrays, *said)


def _safetensors(path: Path) -> _File:
    with safe_open(path, framework="pt") as file:
        arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (it is no dictionary)
        written = file.metadata() or {}
    return _File(arrays, *(_said(name, arrays, written) for name in (IDS, RUNS)))


def _said(name: str, arrays: dict[str, Tensor], written: Mapping[str, str]) -> Any:
    """Return what the metadata say of the rows, or else an array, which is then no layer."""
    own = arrays.pop(name, None)
    if name in written:
        return np.array(json.loads(written[name]))
    return None if own is None else own.numpy()


def _texts(ids: Any, place: str) -> list[str]:
    """Return the ids or the runs of the rows as text."""
    if ids.ndim != 1 or ids.dtype.kind not in "USiu":
        raise DataError(f"{place} is {ids.dtype} of shape {ids.shape}; give a text or whole number for each row")
    return [each.decode() if isinstance(each, bytes) else str(each) for each in ids.tolist()]


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
