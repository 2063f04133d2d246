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
    """Raise a ModelError for a weight that is stored as whole numbers, or as floats of 8 bits.

    Such numbers have a meaning only with the scales of a quantisation. If no quantisation is
    stated, a loader would use the numbers as they are, and the model would be a different one.

    Args:
        stored: Tensors, or tensors in a file of safetensors that are not read yet, by name.
        place: Where they are stored, for the message.
        last_names: The last components of the names of parameters, such as "weight". Any other
            tensor is a buffer, and may be whole numbers.
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
    """Return the name of the dtype of a tensor, which may not be read from its file yet.

    It is the name of safetensors, such as "BF16". For a tensor in memory that is not of a usual
    floating dtype, it is the name of torch, such as "int8".
    """
    if isinstance(tensor, TensorSlice):
        return str(tensor.get_dtype())
    name_in_torch = str(tensor.dtype).removeprefix("torch.")
    return FLOATING.get(name_in_torch, name_in_torch)  # from names of torch to safetensors'


def check_weight_files_agree(folder: Path) -> None:
    """Raise an error if the files of weights in a folder contradict each other.

    A set of weights is a single file, or an index with the files that it lists. A folder may hold
    several; transformers reads the first. Any other set must have the same values. Files of
    weights that are not part of the first set are logged. Nothing is checked if no file of weights
    has a usual name.

    Raises:
        ModelError: Two sets differ by more than a dtype; two files of one index hold a tensor with
            different values, of which either may be read; or a file lacks a tensor that the index
            says it holds.
    """
    # For each set, by the name of its file or index: the file that holds each tensor. The sets are
    # in the order in which libraries look for them.
    files_of_sets = {}
    for name in IN_TURN:
        if (folder / name).is_file():
            files_of_sets[name] = _file_of_tensors(folder / name)
    if not files_of_sets:
        return
    (first_name, files_of_first), *other_sets = files_of_sets.items()
    tensors = _tensors_of_index(folder, first_name, files_of_first)
    for name, file_of_tensors in other_sets:
        if _has_other_values(tensors, folder, file_of_tensors):
            raise ModelError(
                f"{folder} holds two sets of weights that differ, {first_name} and {name}; remove "
                "one of them"
            )
    weight_files = set()
    for pattern in (*WEIGHTS, "adapter_model.*"):
        weight_files |= {path.name for path in folder.glob(pattern)}
    unread = weight_files - set(files_of_first.values())
    if unread:
        log.warning("weights that are not read lie in %s: %s", folder, listed(sorted(unread)))


def _tensors_of_index(folder: Path, name: str, index: Mapping[str, str]) -> dict[str, Tensor]:
    """Return the tensors of all files that an index of weights lists, by name.

    Args:
        folder: The folder of the files.
        name: The file name of the index, for messages.
        index: The file of each tensor. {"": FILE} means all tensors of this file.

    Raises:
        ModelError: A file lacks a tensor that it should hold, or two files hold a tensor with
            different values.
    """
    tensors: dict[str, Tensor] = {}
    for file_name in sorted(set(index.values())):
        tensors_of_file = tensors_in_file(folder / file_name)
        missing = []
        for tensor_name, stated_file in index.items():
            if stated_file == file_name and tensor_name and tensor_name not in tensors_of_file:
                missing.append(tensor_name)
        if missing:
            raise ModelError(
                f"{folder}: {name} says that {file_name} holds {listed(sorted(missing))}, and it "
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


def _has_other_values(
    used_tensors: Mapping[str, Tensor], folder: Path, files_of_second_set: Mapping[str, str]
) -> bool:
    """Return whether a second set of weights contradicts the set that the model is made from.

    Tensors with the same name are compared, up to the rounding of their dtypes; tensors in only
    one set do not count. A second set with a file that cannot be read contradicts nothing: it may
    be a pointer of Git LFS, whose weights were never downloaded.

    Args:
        used_tensors: The tensors that the model is made from, by name.
        folder: The folder of both sets.
        files_of_second_set: For each tensor of the second set, the name of its file.
    """
    other_tensors: dict[str, Tensor] = {}
    try:
        for file_name in set(files_of_second_set.values()):
            other_tensors |= tensors_in_file(folder / file_name)
    except Exception:  # torch raises various errors for a file that does not hold weights
        return False
    for name in used_tensors.keys() & other_tensors.keys():
        if not _are_equal_up_to_rounding(used_tensors[name], other_tensors[name]):
            return True
    return False


def _are_equal_up_to_rounding(first: Tensor, second: Tensor) -> bool:
    """Return whether one of two tensors is the other one cast to a different dtype.

    Neither float16 nor bfloat16 can hold all values of the other, so both directions are tried.
    """
    is_cast_of_first = torch.equal(first.to(second.dtype), second)
    return is_cast_of_first or torch.equal(second.to(first.dtype), first)


def _file_of_tensors(path: Path) -> dict[str, str]:
    """Return the name of the file that holds each tensor, for a file of weights or an index.

    For a file of weights it is {"": its name}, which means all tensors of this file.
    """
    if path.suffix == ".json":
        return weight_map(path)
    return {"": path.name}


def tensors_in_file(path: Path) -> Mapping[str, Tensor]:
    """Return the tensors of a file of weights by name; their values are memory-mapped, not read.

    No code in the file can run. An old file of torch that is no archive is read as a whole.
    """
    if path.suffix == ".safetensors":
        with safe_open(path, framework="pt") as file:
            return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    tensors = torch.load(path, map_location="cpu", weights_only=True, mmap=is_zipfile(path))
    return cast(Mapping[str, Tensor], tensors)
