"""The file arrays.npz of a result, which is checked before any array is made of it."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from thinkalike.errors import short
from thinkalike.files import ForeignFileError, open_regular

if TYPE_CHECKING:
    import numpy as np


def read_arrays(path: Path) -> dict[str, np.ndarray]:
    """Return the arrays of an .npz file by name; a ForeignFileError says why it cannot be read."""
    import numpy as np

    with open_regular(path, follow=False) as opened:
        _check_members(opened)
        opened.seek(0)
        with np.load(opened, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
    for name, array in arrays.items():
        if not isinstance(array, np.ndarray):  # NumPy returns a member without a header as bytes
            raise ForeignFileError(f"{short(name)} in it is not an array")
    return arrays


def _check_members(file: BinaryIO) -> None:
    """Check that an .npz file holds only arrays, with different names, that fit into memory.

    Raises:
        ForeignFileError: It does not; the message says why.
        BadZipFile: It is no archive.
    """
    import torch

    from thinkalike.memory import available_bytes

    members = zipfile.ZipFile(file).infolist()
    array_names = set()
    for member in members:
        name = member.filename
        if not name.endswith(".npy"):
            raise ForeignFileError(f"{short(name)} in it is not an array")
        if name.endswith(".npy.npy"):  # NumPy also calls this array a.npy, and returns it twice
            raise ForeignFileError(f"{short(name)} in it ends in .npy twice")
        array_names.add(name.removesuffix(".npy"))
    if len(array_names) < len(members):
        raise ForeignFileError("two of its arrays have the same name")

    size = sum(member.file_size for member in members)
    free = available_bytes(torch.device("cpu"))
    if size > free:
        raise ForeignFileError(f"its arrays have {size:,} bytes, and {free:,} are free")
