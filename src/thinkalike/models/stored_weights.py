"""Checks of weights as files hold them: their dtypes, and that a folder has one set of them."""

from __future__ import annotations

import logging
import re
from collections.abc import Collection, Mapping
from pathlib import Path
from types import EllipsisType
from typing import Protocol, cast, runtime_checkable
from zipfile import is_zipfile

import torch
from safetensors import safe_open
from torch import Tensor

from thinkalike.errors import ModelError, listed
from thinkalike.models.checkpoints import WEIGHTS, weight_map
from thinkalike.models.formats import IN_TURN

log = logging.getLogger(__name__)

# Buffers that older versions saved and newer ones compute.
BUFFERS = re.compile(
    r"(^|\.)(position_ids|token_type_ids|inv_freq|masked_bias|attn\.bias|attention\.bias)$"
)

# The dtypes of weights, as safetensors calls them, by their names in torch.
FLOATING = {"float64": "F64", "float32": "F32", "float16": "F16", "bfloat16": "BF16"}


@runtime_checkable
class TensorSlice(Protocol):
    """A tensor of a file of safetensors that is not read yet."""

    def get_dtype(self) -> str: ...

    def __getitem__(self, index: EllipsisType) -> Tensor: ...


@runtime_checkable
class Weights(Protocol):
    """The weights of a model by name."""

    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """Return the shape of each weight."""
        ...

    def read(self, name: str) -> Tensor:
        """Return a weight as it is stored."""
        ...


StoredTensor = Tensor | TensorSlice


def check_dtypes(
    stored: Mapping[str, StoredTensor],
    place: object,
    last_names: Collection[str] = ("weight", "bias"),
) -> None:
    """Raise a ModelError for a weight that is stored as whole numbers, or in 8 bits.

    Without a quantisation, it would be cast to an ordinary number of a floating type, and the
    model would be another one.

    Args:
        stored: Tensors, or slices of a file of safetensors.
        place: Where they are stored, for the error.
        last_names: The last parts of the names of parameters, such as "weight"; all else are
            buffers, which may be whole numbers.
    """
    for name, tensor in stored.items():
        is_parameter = name.rpartition(".")[2] in last_names and not BUFFERS.search(name)
        dtype = dtype_name(tensor)
        if is_parameter and dtype not in FLOATING.values():
            raise ModelError(
                f"{place}: {name} is stored as {dtype}, and no quantisation is stated that says "
                "what its numbers mean; give the checkpoint before it was quantised, or its "
                "config.json with quantization_config"
            )


def dtype_name(tensor: StoredTensor) -> str:
    """Return the dtype of a tensor, or of a slice of a file.

    Floating types have the names that safetensors gives them, such as BF16. Others of a tensor
    have torch's, such as int8.
    """
    if isinstance(tensor, TensorSlice):
        return str(tensor.get_dtype())
    name = str(tensor.dtype).removeprefix("torch.")
    return FLOATING.get(name, name)


def check_one_set(folder: Path) -> None:
    """Check that a folder holds one set of weights, and log which files of weights are not read.

    Nothing is checked where no file of weights has a usual name.

    Raises:
        ModelError: Two sets differ by more than a dtype; two files of one index hold a tensor with
            different values, of which either may be read; or a file lacks a tensor that the index
            says it holds.
    """
    # In the order in which they are looked for, so that the first one is read.
    indices = {}
    for name in IN_TURN:
        if (folder / name).is_file():
            indices[name] = _file_of_tensors(folder / name)
    if not indices:
        return
    (first_name, first_index), *other_indices = indices.items()
    tensors = _tensors_of_index(folder, first_name, first_index)
    for name, index in other_indices:
        if not _is_same_set(tensors, folder, index):
            raise ModelError(
                f"{folder} holds two sets of weights that differ, {first_name} and {name}; remove "
                "one of them"
            )
    files = set()
    for pattern in (*WEIGHTS, "adapter_model.*"):
        files |= {path.name for path in folder.glob(pattern)}
    unread = files - set(first_index.values())
    if unread:
        log.warning("weights that are not read lie in %s: %s", folder, listed(sorted(unread)))


def _tensors_of_index(folder: Path, name: str, index: Mapping[str, str]) -> dict[str, Tensor]:
    """Return the tensors of all files of an index, by name.

    Args:
        folder: The folder of the files.
        name: The name of the index, for errors.
        index: The file of each tensor; {"": FILE} stands for all tensors of one file.

    Raises:
        ModelError: Files do not hold what the index says, or differ in a tensor.
    """
    tensors: dict[str, Tensor] = {}
    for file_name in sorted(set(index.values())):
        tensors_of_file = tensors_in_file(folder / file_name)
        lacking = []
        for tensor_name, stated_file in index.items():
            if stated_file == file_name and tensor_name and tensor_name not in tensors_of_file:
                lacking.append(tensor_name)
        if lacking:
            raise ModelError(
                f"{folder}: {name} says that {file_name} holds {listed(sorted(lacking))}, and it "
                "does not; take the index and all of its files from one revision"
            )
        for tensor_name in tensors_of_file.keys() & tensors.keys():
            if not torch.equal(tensors[tensor_name], tensors_of_file[tensor_name]):
                raise ModelError(
                    f"{folder}: two files of {name} hold {tensor_name} with different values; "
                    "remove one"
                )
        tensors |= tensors_of_file
    return tensors


def _is_same_set(tensors: Mapping[str, Tensor], folder: Path, index: Mapping[str, str]) -> bool:
    """Return whether files of another index hold the same values, up to a dtype.

    Only tensors with the same name are compared, in the narrower of their dtypes. Files that
    cannot be read, such as a pointer of Git LFS, say nothing; what is read is checked elsewhere.

    Args:
        tensors: The tensors of the set that is read.
        folder: The folder of both sets.
        index: The file of each tensor of the other set.
    """
    other_tensors: dict[str, Tensor] = {}
    try:
        for file_name in set(index.values()):
            other_tensors |= tensors_in_file(folder / file_name)
    except Exception:  # whatever torch raises for a file that is no file of weights
        return True
    for name in tensors.keys() & other_tensors.keys():
        first = tensors[name]
        second = other_tensors[name]
        narrower = min(first.dtype, second.dtype, key=lambda dtype: dtype.itemsize)
        if not torch.equal(first.to(narrower), second.to(narrower)):
            return False
    return True


def _file_of_tensors(path: Path) -> dict[str, str]:
    """Return the name of the file of each tensor, as an index says.

    Of a file of weights itself it is {"": its name}, which stands for all of its tensors.
    """
    if path.suffix == ".json":
        return weight_map(path)
    return {"": path.name}


def tensors_in_file(path: Path) -> Mapping[str, Tensor]:
    """Return the tensors of a file, which are mapped and not read.

    Nothing in them can run code.
    """
    if path.suffix == ".safetensors":
        with safe_open(path, framework="pt") as file:
            return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    tensors = torch.load(path, map_location="cpu", weights_only=True, mmap=is_zipfile(path))
    return cast(Mapping[str, Tensor], tensors)
