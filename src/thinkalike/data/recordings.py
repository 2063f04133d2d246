"""Recorded activations of stimuli that users bring: .npz, .safetensors. Rows find their stimuli by ids.

The ids stand in the file: in an array `ids`, or in the metadata of a .safetensors file, as a JSON list under "ids". So
do the runs, or sessions, in which stimuli were measured several times: in `runs`, with one for each row.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from safetensors import safe_open
from torch import Tensor

from thinkalike.arguments import tensor_of
from thinkalike.config.recorded import IN_ORDER, RecordedArrays
from thinkalike.data.sources import read_with, reading, whole_characters
from thinkalike.data.stimuli import Stimuli, duplicates
from thinkalike.digests import digest_of
from thinkalike.errors import DataError, listed, natural_order

IDS = "ids"  # the array, or the key of the metadata, that says which stimulus a row belongs to
ONLY = "states"  # the name of the layer of an array that was given without one
RUNS = "runs"  # the same for the run in which a row was measured

_Contents = tuple[dict[str, Tensor], Any, Any]  # of a file: arrays by name, and the ids and runs of rows or None


class Recording(NamedTuple):
    """Recorded activations of n stimuli, measured in m runs, which are 1 where the file does not say."""

    layers: dict[str, Float[Tensor, "m n _"]]
    runs: list[str]


def mean_of_runs(layer: Float[Tensor, "m n _"]) -> Float[Tensor, "n _"]:
    return layer.mean(0) if len(layer) > 1 else layer[0]


def read_recording(recorded: str | Path | RecordedArrays, stimuli: Stimuli) -> Recording:
    """Read recorded activations of stimuli in every run: one array per layer of runs x stimuli x width, by name.

    Names are in natural order ("2" comes before "10"), and so are runs; integers become float64.

    Args:
        recorded: arrays in memory, or a file: of one array of layers x rows x width, or of one of rows x width per
            layer; of `ids`, by which its rows are put into the order of the stimuli (ids="order": they are in it);
            and of `runs` if stimuli were measured more than once. Every run has each stimulus once, and every value is
            finite, or it is a DataError.
    """
    path = _called(recorded)
    arrays, ids, runs = _contents(recorded)
    if len(arrays) == 1 and (whole := next(iter(arrays.values()))).ndim == 3:
        arrays = {str(number): layer for number, layer in enumerate(whole)}
    if not arrays or ids is None:
        lacks = "layers" if ids is not None else "`ids`, which say which stimulus a row belongs to"
        raise DataError(
            f"{path} has no {lacks}; add them, one id for each row: an array or, in .safetensors, metadata={{'ids': "
            "json.dumps(ids)}; or ids='order' where rows are in the order of the stimuli"
        )
    texts = stimuli.ids if ids.shape == () and str(ids) == IN_ORDER else _texts(ids, f"{path}: {IDS}")
    names = ["1"] * len(texts) if runs is None else _texts(runs, f"{path}: {RUNS}")
    if len(names) != len(texts):
        raise DataError(f"{path}: runs has {len(names)} rows, but ids has {len(texts)}; give one run for each row")
    order = sorted(set(names), key=natural_order)
    rows = torch.tensor([_rows_of(run, texts, names, stimuli, path) for run in order])
    named = sorted(arrays, key=natural_order)
    return Recording({name: _layer(_called(recorded, name), arrays[name], len(texts))[rows] for name in named}, order)


def _called(recorded: str | Path | RecordedArrays, layer: str | None = None) -> str:
    """Return what errors call recorded states, or a layer of them; the only array of an argument is the argument."""
    if isinstance(recorded, RecordedArrays) and layer == ONLY:
        layer = None
    return f"{recorded}" if layer is None else f"{recorded}: {layer}"


def _contents(recorded: str | Path | RecordedArrays) -> _Contents:
    if isinstance(recorded, RecordedArrays):
        return {**recorded.layers}, np.array(IN_ORDER), None
    contents: _Contents = read_with(Path(recorded), {".npz": _npz, ".safetensors": _safetensors})
    return contents


def _rows_of(run: str, ids: Sequence[str], runs: Sequence[str], stimuli: Stimuli, path: str) -> list[int]:
    """Return the row of each stimulus in a run, which must have each of them once and no others."""
    rows = [row for row, of in enumerate(runs) if of == run]
    place, known = {ids[row]: row for row in rows}, set(stimuli.ids)
    wrong: dict[str, list[str]] = {
        "has {} more than once": duplicates(ids[row] for row in rows),
        "lacks {}": [each for each in stimuli.ids if each not in place],
        "also has {}": [each for each in place if each not in known],
    }
    for problem, strange in wrong.items():
        if strange:
            found = problem.format(listed(strange))
            raise DataError(
                f"{path}, run {run}: ids {found}, and {stimuli.source} has {len(stimuli)} stimuli; give each stimulus "
                "one row, or say in an array `runs` in which run each was measured"
            )
    return [place[each] for each in stimuli.ids]


def _npz(path: Path) -> _Contents:
    named: dict[str, np.ndarray] = {}
    with np.load(path) as file:
        # By its name in the archive: NumPy itself gives the array `a` where `a.npy` is asked for.
        for member in file.zip.namelist():
            name = member.removesuffix(".npy")
            if name in named:
                raise DataError(f"{path} has two arrays of the name {name!r}; rename one of them")
            named[name] = file[member]
            if not isinstance(named[name], np.ndarray):
                raise DataError(f"{path}: {member} is no array of NumPy; leave it out")
    ids, runs = (named.pop(name, None) for name in (IDS, RUNS))
    arrays = {name: torch.from_numpy(each.astype(each.dtype.newbyteorder("="))) for name, each in named.items()}
    return arrays, ids, runs


def _safetensors(path: Path) -> _Contents:
    with safe_open(path, framework="pt") as file:
        arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (it is not a dictionary)
        written = file.metadata() or {}
    said = {name: arrays.pop(name).numpy() for name in (IDS, RUNS) if name in arrays}
    if twice := said.keys() & written.keys():
        raise DataError(f"{path} has {min(twice)} in an array and in its metadata; leave one of them out")
    texts = {name: written[name] for name in (IDS, RUNS) if name in written}
    said |= {name: np.array(text if text == IN_ORDER else json.loads(text)) for name, text in texts.items()}
    return arrays, said.get(IDS), said.get(RUNS)


def _texts(ids: Any, place: str) -> list[str]:
    if ids.ndim != 1 or ids.dtype.kind not in "USiu":
        raise DataError(f"{place} is {ids.dtype} of shape {ids.shape}; give a text or whole number for each row")
    try:
        texts = [each.decode() if isinstance(each, bytes) else str(each) for each in ids.tolist()]
    except UnicodeDecodeError as error:
        raise DataError(f"{place} holds bytes that are no UTF-8 ({error}); give texts or whole numbers") from None
    return [whole_characters(text, f"{place}, row {row}") for row, text in enumerate(texts, 1)]


def _layer(place: str, array: Tensor, count: int) -> Tensor:
    """Return the states of one layer as real numbers; a DataError of others, or of whole ones that float64 has not."""
    try:
        array = tensor_of(array, Float, place)
    except ValueError as error:
        raise DataError(error) from None
    if array.ndim != 2 or not array.numel() or len(array) != count:
        raise DataError(
            f"{place} is {array.dtype} of shape {tuple(array.shape)}; give real numbers with a row for each of the "
            f"{count} ids, as one array of layers x stimuli x width or one of stimuli x width per layer"
        )
    if not array.isfinite().all():
        row, column = (~array.isfinite()).nonzero()[0].tolist()
        raise DataError(f"{place} is {array[row, column]} in row {row + 1}, column {column + 1}; leave the row out")
    return array


def recording_fingerprint(path: str | RecordedArrays) -> str:
    """Return the name of a file of recorded states, by which tables call it, and the first digits of its SHA-256."""
    if isinstance(path, RecordedArrays):
        return path.fingerprint
    with reading(Path(path)):
        return f"{Path(path).stem} {digest_of(Path(path))[:16]}"
