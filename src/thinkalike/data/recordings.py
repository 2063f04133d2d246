"""Recorded activations of stimuli that users bring in .npz or .safetensors files.

Rows find their stimuli by ids, which stand in the file: in an array `ids`, or as a JSON list under
"ids" in the metadata of a .safetensors file. So do the runs, or sessions, in which stimuli were
measured several times: `runs` has one for each row.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from safetensors import safe_open
from torch import Tensor

from thinkalike.arguments import tensor_of
from thinkalike.config.recorded import IN_ORDER, RecordedArrays
from thinkalike.data.sources import errors_name_file, read_by_ending, whole_characters
from thinkalike.data.stimuli import Stimuli, duplicates
from thinkalike.digests import digest_of
from thinkalike.errors import DataError, listed, natural_order, plain_name

IDS = "ids"
"""The array, or the key of the metadata, that says which stimulus a row belongs to."""

RUNS = "runs"
"""The array, or the key of the metadata, that says in which run a row was measured."""

UNNAMED_LAYER = "states"
"""The name of the layer of an array that was given without one."""


@dataclass(frozen=True)
class FileContents:
    """The arrays of a file by name, and the ids and runs of its rows if it has them."""

    arrays: dict[str, Tensor]
    ids: np.ndarray | None
    runs: np.ndarray | None


class Recording(NamedTuple):
    """Recorded activations of n stimuli, measured in m runs: one if the file does not say."""

    layers: dict[str, Float[Tensor, "m n _"]]
    runs: list[str]


def mean_of_runs(layer: Float[Tensor, "m n _"]) -> Float[Tensor, "n _"]:
    """Return the mean over the m runs; one run is returned as it is, without rounding."""
    if len(layer) == 1:
        return layer[0]
    return layer.mean(0)


def read_recording(recorded: str | Path | RecordedArrays, stimuli: Stimuli) -> Recording:
    """Read recorded activations of stimuli in every run.

    Names of layers are in natural order ("2" comes before "10"), and so are runs; integers become
    float64.

    Args:
        recorded: Arrays in memory, or a file of one array of layers x rows x width, or of one
            array of rows x width for each layer. Its `ids` put the rows into the order of the
            stimuli; ids="order" says that they are in it. `runs` is needed if stimuli were
            measured more than once.
        stimuli: The stimuli; every run has each of them once.

    Raises:
        DataError: The file lacks layers or ids, a run lacks a stimulus or has one twice, or a
            value is not finite.
    """
    path = _name_in_errors(recorded)
    contents = _contents_of(recorded)
    arrays = _split_layers(contents.arrays)
    if not arrays or contents.ids is None:
        lack = "layers"
        if contents.ids is None:
            lack = "`ids`, which say which stimulus a row belongs to"
        raise DataError(
            f"{path} has no {lack}; add them, one id for each row: an array or, in .safetensors, "
            "metadata={'ids': json.dumps(ids)}; or ids='order' where rows are in the order of the "
            "stimuli"
        )

    is_in_order = contents.ids.shape == () and str(contents.ids) == IN_ORDER
    row_ids = stimuli.ids if is_in_order else _labels_as_text(contents.ids, f"{path}: {IDS}")
    row_runs = ["1"] * len(row_ids)
    if contents.runs is not None:
        row_runs = _labels_as_text(contents.runs, f"{path}: {RUNS}")
    if len(row_runs) != len(row_ids):
        raise DataError(
            f"{path}: runs has {len(row_runs)} rows, but ids has {len(row_ids)}; give one run for "
            "each row"
        )

    runs = sorted(set(row_runs), key=natural_order)
    rows_of_runs = [_rows_of_run(run, row_ids, row_runs, stimuli, path) for run in runs]
    rows = torch.tensor(rows_of_runs)  # (runs, stimuli)
    layers = {}
    for name in sorted(arrays, key=natural_order):
        location = _name_in_errors(recorded, name)
        layer = _checked_layer(location, arrays[name], len(row_ids))
        layers[name] = layer[rows]
    return Recording(layers, runs)


def _name_in_errors(recorded: str | Path | RecordedArrays, layer: str | None = None) -> str:
    """Return the name of recorded states in messages of errors: "a.npz", or "a.npz: layer1".

    As text, recorded states are the path of their file or, for arrays in memory, the name of the
    user's argument. A single array in memory has no names of layers, so its argument is enough.
    """
    source = str(recorded)
    is_single_array = isinstance(recorded, RecordedArrays) and layer == UNNAMED_LAYER
    if layer is None or is_single_array:
        return source
    return f"{source}: {layer}"


def _contents_of(recorded: str | Path | RecordedArrays) -> FileContents:
    """Return the arrays of a recording with the ids and runs of their rows.

    Arrays in memory have the word "order" in place of ids: their rows are in the order of the
    stimuli.
    """
    if isinstance(recorded, RecordedArrays):
        return FileContents(dict(recorded.layers), np.array(IN_ORDER), None)
    return contents_of_path(Path(recorded))


def contents_of_path(path: Path) -> FileContents:
    """Return the arrays of an .npz, .npy or .safetensors file, or of a folder of .npy files.

    Raises:
        DataError: The path cannot be read, or has another ending.
    """
    if path.is_dir():
        return _read_folder(path)
    readers = {".npz": _read_npz, ".safetensors": _read_safetensors, ".npy": _read_npy}
    contents: FileContents = read_by_ending(path, readers)
    return contents


def _split_layers(arrays: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return one array for each layer by its name.

    If there is only one array and it has three axes, (layers, rows, width), it is divided into
    layers called "0", "1" and so on. Otherwise each array is a layer already.
    """
    if len(arrays) != 1:
        return arrays
    (array,) = arrays.values()
    if array.ndim != 3:
        return arrays
    return {str(number): layer for number, layer in enumerate(array)}


def _rows_of_run(
    run: str, row_ids: Sequence[str], row_runs: Sequence[str], stimuli: Stimuli, path: str
) -> list[int]:
    """Return the row that each stimulus has in a run, in the order of the stimuli.

    Args:
        run: The name of the run, one of several measurements of all stimuli.
        row_ids, row_runs: The id and the run of each row.
        stimuli: The stimuli.
        path: What errors call the recording.

    Raises:
        DataError: The run does not have exactly one row for each stimulus.
    """
    rows = [row for row, run_of_row in enumerate(row_runs) if run_of_row == run]
    row_of_id = {row_ids[row]: row for row in rows}
    known_ids = set(stimuli.ids)
    problems: dict[str, list[str]] = {
        "has {} more than once": duplicates(row_ids[row] for row in rows),
        "lacks {}": [stimulus for stimulus in stimuli.ids if stimulus not in row_of_id],
        "also has {}": [row_id for row_id in row_of_id if row_id not in known_ids],
    }
    for problem, ids in problems.items():
        if ids:
            raise DataError(
                f"{path}, run {run}: ids {problem.format(listed(ids))}, and {stimuli.source} has "
                f"{len(stimuli)} stimuli; give each stimulus one row, or say in an array `runs` "
                "in which run each was measured"
            )
    return [row_of_id[stimulus] for stimulus in stimuli.ids]


def _read_folder(folder: Path) -> FileContents:
    """Return the array of each .npy file of a folder, by the name of the file without its ending.

    The files "ids.npy" and "runs.npy", if they are there, hold the ids and runs of the rows.
    """
    labels: dict[str, np.ndarray] = {}
    arrays: dict[str, Tensor] = {}
    for path in sorted(folder.glob("*.npy"), key=lambda path: natural_order(path.stem)):
        with errors_name_file(path):
            array = np.load(path)  # by default it loads no pickles, which could run code
            if path.stem in (IDS, RUNS):
                labels[path.stem] = array
            else:
                arrays[path.stem] = _native(array)
    return FileContents(arrays, labels.get(IDS), labels.get(RUNS))


def _read_npy(path: Path) -> FileContents:
    """Return the array of an .npy file, which has no ids and no runs."""
    return FileContents({UNNAMED_LAYER: _native(np.load(path))}, None, None)


def _native(array: np.ndarray) -> Tensor:
    """Return an array as a tensor; torch needs the byte order of the machine."""
    return torch.from_numpy(array.astype(array.dtype.newbyteorder("=")))


def _read_npz(path: Path) -> FileContents:
    """Return the arrays of an .npz file; those called "ids" and "runs" label the rows.

    Raises:
        DataError: Two arrays have one name, or a member of the archive is no array.
    """
    arrays: dict[str, np.ndarray] = {}
    with np.load(path) as file:
        # `file.files` would hide that an archive has both `a` and `a.npy`, which are one name.
        for member in file.zip.namelist():
            name = member.removesuffix(".npy")
            if name in arrays:
                raise DataError(f"{path} has two arrays of the name {name!r}; rename one of them")
            array = file[member]
            if not isinstance(array, np.ndarray):
                raise DataError(f"{path}: {member} is no array of NumPy; leave it out")
            arrays[name] = array
    ids = arrays.pop(IDS, None)
    runs = arrays.pop(RUNS, None)
    return FileContents({name: _native(array) for name, array in arrays.items()}, ids, runs)


def _read_safetensors(path: Path) -> FileContents:
    """Return the arrays of a .safetensors file with the ids and runs of their rows.

    Ids and runs are arrays, or JSON lists in the metadata. Instead of ids, the metadata may have
    the word "order", which says that the rows are in the order of the stimuli.

    Raises:
        DataError: Ids or runs are both an array and in the metadata.
    """
    with safe_open(path, framework="pt") as file:
        names = file.keys()
        arrays = {name: file.get_tensor(name) for name in names}
        metadata = file.metadata() or {}
    labels: dict[str, np.ndarray] = {}
    for name in (IDS, RUNS):
        if name in arrays and name in metadata:
            raise DataError(
                f"{path} has {name} in an array and in its metadata; leave one of them out"
            )
        if name in arrays:
            labels[name] = arrays.pop(name).numpy()
        elif name in metadata:
            text = metadata[name]
            labels[name] = np.array(text if text == IN_ORDER else json.loads(text))
    return FileContents(arrays, labels.get(IDS), labels.get(RUNS))


def _labels_as_text(labels: np.ndarray, location: str) -> list[str]:
    """Return labels of rows, such as ids, as strings.

    Args:
        labels: An array (rows,) of strings, bytes in UTF-8 or integers.
        location: What errors call the array.

    Raises:
        DataError: The array is anything else, or a string has half of a surrogate pair.
    """
    is_text_or_integer = labels.dtype.kind in "USiu"
    if labels.ndim != 1 or not is_text_or_integer:
        raise DataError(
            f"{location} is {labels.dtype} of shape {labels.shape}; give a text or whole number "
            "for each row"
        )
    texts = []
    for row, label in enumerate(labels.tolist(), 1):
        try:
            text = label.decode() if isinstance(label, bytes) else str(label)
        except UnicodeDecodeError as error:
            raise DataError(
                f"{location} holds bytes that are no UTF-8 ({error}); give texts or whole numbers"
            ) from None
        texts.append(whole_characters(text, f"{location}, row {row}"))
    return texts


def _checked_layer(location: str, array: Tensor, row_count: int) -> Float[Tensor, "n _"]:
    """Return the activations of one layer, after a check of their shape and values.

    Integers become float64.

    Args:
        location: What errors call the layer.
        array: The array, which should have the axes (rows, width).
        row_count: How many rows it should have.

    Raises:
        DataError: The array has another shape or no real numbers, or a value is not finite.
    """
    try:
        array = tensor_of(array, Float, location)
    except ValueError as error:
        raise DataError(error) from None
    if array.ndim != 2 or array.numel() == 0 or len(array) != row_count:
        raise DataError(
            f"{location} is {array.dtype} of shape {tuple(array.shape)}; give real numbers with a "
            f"row for each of the {row_count} ids, as one array of layers x stimuli x width or "
            "one of stimuli x width per layer"
        )
    is_flawed = ~array.isfinite()
    if is_flawed.any():
        row, column = is_flawed.nonzero()[0].tolist()
        raise DataError(
            f"{location} is {array[row, column]} in row {row + 1}, column {column + 1}; leave the "
            "row out"
        )
    return array


def recording_fingerprint(recorded: str | RecordedArrays) -> str:
    """Return the name of a file of recorded states and 16 digits of its SHA-256.

    Arrays in memory have a fingerprint already, which is returned.

    Raises:
        DataError: The file cannot be read.
    """
    if isinstance(recorded, RecordedArrays):
        return recorded.fingerprint
    path = Path(recorded)
    with errors_name_file(path):
        return f"{plain_name(path.stem)} {digest_of(path)[:16]}"
