"""The rows and the arrays of a folder of states. Arrays stay on the disk: each row is read when it is asked for."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from thinkalike.errors import DataError, ThinkalikeError, listed, one_line, short
from thinkalike.shards.index import (
    HIDDEN_STATES,
    INDEX,
    REWRITE,
    TOKEN_IDS,
    Index,
    ListedShard,
    checked_file,
    read_index,
)

if TYPE_CHECKING:
    import pyarrow

OPEN_SHARDS = 32  # that stay open for further rows; a mapped file takes no memory of its own
LARGEST_UNPACKED = 2**34  # bytes of a compressed file, which is of one prompt
LARGEST_LINE = 2**24  # bytes of a row's text
DTYPES = {
    "float64": torch.float64,
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}
IDS = "iu"  # kinds of NumPy's dtypes that token ids have


class StoredArray(ABC):
    """An array of a file, whose parts are read when they are asked for."""

    shape: Sequence[int]

    @abstractmethod
    def part(self, start: int, stop: int) -> Tensor:
        """Return these rows of the first axis."""

    def whole(self) -> Tensor:
        return self.part(0, self.shape[0])


class _OfSafetensors(StoredArray):
    def __init__(self, path: Path, name: str):
        from safetensors import safe_open

        self._file = safe_open(path, framework="pt")
        self._slice = self._file.get_slice(name)
        self.shape = self._slice.get_shape()

    def part(self, start: int, stop: int) -> Tensor:
        part: Tensor = self._slice[start:stop]
        return part


class _InMemory(StoredArray):
    def __init__(self, tensor: Tensor):
        self._tensor = tensor
        self.shape = tensor.shape

    def part(self, start: int, stop: int) -> Tensor:
        return self._tensor[start:stop]


class _OfNumpy(StoredArray):
    def __init__(self, array: NDArray[np.generic], is_bfloat16: bool):
        self._array = array
        self._is_bfloat16 = is_bfloat16
        self.shape = array.shape

    def part(self, start: int, stop: int) -> Tensor:
        rows = np.array(self._array[start:stop])  # a copy: torch has no tensors that cannot be written
        if self._is_bfloat16:  # which NumPy lacks, so that its files hold the bits
            return torch.from_numpy(rows.view(np.int16)).view(torch.bfloat16)
        return torch.from_numpy(rows.astype(rows.dtype.newbyteorder("="), copy=False))


class _OfArrow(StoredArray):
    """A column of lists, or of lists of lists, of equal lengths: one array for each batch of records."""

    def __init__(self, column: pyarrow.ChunkedArray, place: str):
        parts = [_unnested(chunk, place) for chunk in column.chunks if len(chunk)]
        inner = {part.shape[1:] for part in parts}
        if len(inner) != 1:
            raise DataError(f"{place} has no rows, or rows of different lengths: write rows of one length")
        self._parts = parts
        self._ends = np.cumsum([len(part) for part in parts])
        self.shape = (int(self._ends[-1]), *inner.pop())

    def part(self, start: int, stop: int) -> Tensor:
        chosen = []
        for part, end in zip(self._parts, self._ends.tolist(), strict=True):
            first = end - len(part)
            if start < end and first < stop:
                chosen.append(part[max(start - first, 0) : stop - first])
        return torch.from_numpy(np.concatenate(chosen))


def _unnested(chunk: pyarrow.Array, place: str) -> NDArray[np.generic]:
    """Return an array of lists of numbers as one of NumPy, in the same memory."""
    import pyarrow

    sizes: list[int] = [len(chunk)]
    values = chunk
    while True:
        if isinstance(values, pyarrow.ExtensionArray):  # of `datasets`, for arrays of a fixed shape
            values = values.storage
        if values.null_count:
            raise DataError(f"{place} has empty cells: write a value into each")
        if not hasattr(values, "flatten") or not pyarrow.types.is_nested(values.type):
            break
        count = len(values)
        values = values.flatten()
        sizes.append(len(values) // max(count, 1))
    try:
        return values.to_numpy(zero_copy_only=True).reshape(sizes)  # type: ignore[no-any-return]
    except (ValueError, NotImplementedError, pyarrow.ArrowInvalid) as error:
        raise DataError(f"{place} holds no numbers in rows of one length ({one_line(error)})") from error


class Row(NamedTuple):
    """Where a row of text lies, and what is known of it."""

    shard: int
    start: int  # the first token, or the place of the row, in its shard
    length: int
    document: int
    text: str | None


class StoredRows:
    """The rows of text of a folder of states, with the token ids, the document and the states of each.

    Attributes:
        index: What `states.json` says.
        rows: The rows, in the order of the shards.
        has_token_ids: Whether the files have token ids; without them, tokens are numbered through all rows.
        has_documents: Whether it is known which document a row is of; without that, each row is one.
    """

    def __init__(self, folder: str | Path):
        self.index: Index = read_index(folder)
        self._open: OrderedDict[int, Mapping[str, StoredArray]] = OrderedDict()
        self._paths = [[checked_file(self.index, file) for file in shard.files] for shard in self.index.shards]
        self._ids: list[NDArray[np.int64]] = []
        self._numbered = 0  # tokens so far, where the files have no token ids
        described = list(self._described())
        self.has_documents = bool(described)
        self.rows: list[Row] = []
        numbers: dict[str, int] = {}
        for shard, listed_shard in enumerate(self.index.shards):
            for start, ids in self._rows_of(shard, listed_shard, described):
                place = len(self.rows)
                line = described[place] if described else _Described(str(place), None, None)
                document = numbers.setdefault(line.document, len(numbers))
                self.rows.append(Row(shard, start, len(ids), document, line.text))
                self._ids.append(ids)
        if described and len(described) != len(self.rows):
            raise self._wrong("rows", f"{len(described)} lines, and the shards have {len(self.rows)} rows")
        self.has_token_ids = TOKEN_IDS in self._arrays(0)

    def __len__(self) -> int:
        return len(self.rows)

    def token_ids(self, row: int) -> NDArray[np.int64]:
        return self._ids[row]

    def states(self, row: int, hooks: Sequence[str]) -> list[Tensor]:
        """Return the states of a row at some hook points, each (tokens, width).

        Raises:
            DataError: A state is not finite.
        """
        shard, start, length, _, _ = self.rows[row]
        arrays = self._arrays(shard)
        states = self._read(arrays, start, length, hooks)
        for hook, state in zip(hooks, states, strict=True):
            if not state.isfinite().all():
                token, channel = (~state.isfinite()).nonzero()[0].tolist()
                raise DataError(
                    f"{self._name(shard)}: {hook} is {float(state[token, channel])} in row {row}, token {token}, "
                    f"channel {channel}: compute the states in a wider dtype, or leave the row out"
                )
        return states

    def embedding(self) -> tuple[Tensor, Tensor] | None:
        """Return tokens, (v,), and what enters block 0 for each of them alone, (v, width); None: it is not known."""
        if self.index.embedding is None:
            return None
        path = checked_file(self.index, self.index.embedding)
        arrays = _opened([path], self.index)
        if not {TOKEN_IDS, "embedding"} <= arrays.keys():
            raise DataError(f"{path} must have the arrays {TOKEN_IDS} and embedding; {REWRITE}")
        return arrays[TOKEN_IDS].whole().long(), arrays["embedding"].whole()

    # ---- what lies where

    def _read(self, arrays: Mapping[str, StoredArray], start: int, length: int, hooks: Sequence[str]) -> list[Tensor]:
        if self.index.layout == "flat":
            return [arrays[hook].part(start, start + length) for hook in hooks]
        if self.index.layout == "padded":
            return [arrays[hook].part(start, start + 1)[0, :length] for hook in hooks]
        stacked = arrays[HIDDEN_STATES].whole()
        axis = 1 if self.index.layout == "vllm" else 0
        places = [list(self.index.hooks).index(hook) for hook in hooks]
        return [stacked.select(axis, place)[:length] for place in places]

    def _rows_of(
        self, shard: int, listed_shard: ListedShard, described: Sequence[_Described]
    ) -> Iterator[tuple[int, NDArray[np.int64]]]:
        """Yield where each row of a shard begins, and its token ids."""
        arrays = self._arrays(shard)
        self._check_shapes(shard, listed_shard, arrays)
        first = len(self.rows)
        rows = listed_shard.rows
        if described and first + rows > len(described):
            raise self._wrong("rows", f"{len(described)} lines, and the shards have more rows")
        lengths = [described[first + place].tokens for place in range(rows)] if described else [None] * rows
        sizes = self._states_shape(arrays)
        whole = sizes[1] if self.index.layout == "padded" else sizes[0]
        if self.index.layout == "flat":
            if None in lengths:
                raise self._wrong("layout=flat", "no length of each row: give tokens in the lines of rows.jsonl")
            counts = [length for length in lengths if length is not None]
            if sum(counts) != whole:
                found = f"{whole} tokens in {self._name(shard)}, and rows.jsonl has {sum(counts)}"
                raise self._wrong("tokens", found)
            starts = np.cumsum([0, *counts]).tolist()
        else:
            counts = [whole if length is None else length for length in lengths]
            if any(not 0 < count <= whole for count in counts):
                raise self._wrong("tokens", f"a row of {max(counts)} tokens, and {self._name(shard)} has {whole}")
            starts = list(range(rows))
        ids = self._ids_in(shard, arrays)
        for start, count in zip(starts, counts, strict=False):
            if ids is None:  # tokens are numbered, so that those of another such folder are in the same places
                yield start, np.arange(self._numbered, self._numbered + count)
                self._numbered += count
            elif self.index.layout == "padded":
                yield start, ids[start, :count]
            else:
                yield start, ids[start : start + count]

    def _ids_in(self, shard: int, arrays: Mapping[str, StoredArray]) -> NDArray[np.int64] | None:
        if TOKEN_IDS not in arrays:
            return None
        ids = arrays[TOKEN_IDS].whole()
        if ids.is_floating_point() or ids.is_complex() or ids.dtype == torch.bool:
            raise DataError(f"{self._name(shard)}: {TOKEN_IDS} is {_called(ids.dtype)}: write whole numbers")
        low, high = (int(end) for end in ids.aminmax())
        most = self.index.vocabulary or 2**31
        if low < 0 or high >= most:
            wrong = low if low < 0 else high
            raise DataError(f"{self._name(shard)}: {TOKEN_IDS} has {wrong}, which is no id from 0 to {most - 1}")
        return ids.to(torch.int64).numpy()

    def _check_shapes(self, shard: int, listed_shard: ListedShard, arrays: Mapping[str, StoredArray]) -> None:
        """Check that a shard has each hook point, at its width and dtype, for the rows that the index says."""
        index = self.index
        is_of_vllm = index.layout.startswith("vllm")
        needed = [HIDDEN_STATES, TOKEN_IDS] if is_of_vllm else list(index.hooks)
        if missing := [name for name in needed if name not in arrays]:
            has = f"has {listed(sorted(arrays))}" if arrays else "is empty"
            raise DataError(f"{self._name(shard)} {has}, and lacks {listed(missing)}, which {INDEX} lists; {REWRITE}")
        ids = arrays.get(TOKEN_IDS)
        ids_shape = None if ids is None else tuple(ids.shape)
        for name in needed:
            if name == TOKEN_IDS:
                continue
            shape = tuple(arrays[name].shape)
            if is_of_vllm:
                expected: tuple[int, ...] = (len(index.hooks), next(iter(index.hooks.values())))
                tokens = -1 if ids_shape is None else ids_shape[0]
                before = (tokens, expected[0]) if index.layout == "vllm" else (expected[0], tokens)
                wanted: tuple[int | None, ...] = (*before, expected[1])
            elif index.layout == "padded":
                context = None if ids_shape is None or len(ids_shape) != 2 else ids_shape[1]
                wanted = (listed_shard.rows, context, index.hooks[name])
            else:
                wanted = (None if ids_shape is None else ids_shape[0], index.hooks[name])
            is_right = len(shape) == len(wanted) and all(
                size == asked or asked is None for size, asked in zip(shape, wanted, strict=True)
            )
            if not is_right:
                asked = " x ".join("any" if size is None else str(size) for size in wanted)
                found = " x ".join(map(str, shape))
                raise DataError(f"{self._name(shard)}: {name} has the shape {found}, not {asked} as {INDEX} says")
            dtype = arrays[name].part(0, 1).dtype
            if dtype != DTYPES[index.dtype]:
                raise DataError(
                    f"{self._name(shard)}: {name} is {_called(dtype)}, and {INDEX} says {index.dtype}; {REWRITE}"
                )
        dimensions = 2 if index.layout == "padded" else 1
        if ids_shape is not None and (
            len(ids_shape) != dimensions or (dimensions == 2 and ids_shape[0] != listed_shard.rows)
        ):
            found = " x ".join(map(str, ids_shape))
            raise DataError(
                f"{self._name(shard)}: {TOKEN_IDS} has the shape {found}, which layout={index.layout} has not"
            )

    def _states_shape(self, arrays: Mapping[str, StoredArray]) -> Sequence[int]:
        """Return the shape of the states of a shard, whose tokens come first, after its rows if there are several."""
        if self.index.layout.startswith("vllm"):
            return arrays[TOKEN_IDS].shape
        return arrays[next(iter(self.index.hooks))].shape

    def _arrays(self, shard: int) -> Mapping[str, StoredArray]:
        if shard in self._open:
            self._open.move_to_end(shard)
            return self._open[shard]
        arrays = _opened(self._paths[shard], self.index)
        is_unpacked = any(path.suffix == ".zst" for path in self._paths[shard])
        while len(self._open) >= (1 if is_unpacked else OPEN_SHARDS):
            self._open.popitem(last=False)
        self._open[shard] = arrays
        return arrays

    def _name(self, shard: int) -> str:
        return str(self._paths[shard][0])

    def _wrong(self, entry: str, problem: str) -> DataError:
        return DataError(f"{self.index.path}: {entry} has {problem}; {REWRITE}")

    def _described(self) -> Iterator[_Described]:
        if self.index.rows is None:
            return
        path = checked_file(self.index, self.index.rows)
        with path.open("rb") as lines:
            for number, line in enumerate(iter(lambda: lines.readline(LARGEST_LINE + 1), b""), 1):
                yield _described(line, f"{path} line {number}")


class _Described(NamedTuple):
    """A line of rows.jsonl."""

    document: str
    tokens: int | None
    text: str | None


def _described(line: bytes, place: str) -> _Described:
    if len(line) > LARGEST_LINE:
        raise DataError(f"{place} has more than {LARGEST_LINE:,} bytes: divide the row")
    try:
        record = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{place} is no JSON object ({one_line(error)})") from error
    if not isinstance(record, dict):
        raise DataError(f'{place} is no JSON object: write {{"document": ..., "tokens": ...}}')
    document = record.get("document")
    tokens = record.get("tokens")
    text = record.get("text")
    if not isinstance(document, str | int) or isinstance(document, bool):
        raise DataError(f"{place}: document={short(document)} must be a text or a whole number")
    if tokens is not None and (not isinstance(tokens, int) or isinstance(tokens, bool) or tokens < 1):
        raise DataError(f"{place}: tokens={short(tokens)} must be a whole number of at least 1")
    if text is not None and not isinstance(text, str):
        raise DataError(f"{place}: text={short(text)} must be a text")
    return _Described(str(document), tokens, text)


def _opened(paths: Sequence[Path], index: Index) -> dict[str, StoredArray]:
    """Return the arrays of some files by their names, none of which is read yet."""
    arrays: dict[str, StoredArray] = {}
    for path in paths:
        for name, array in arrays_of(path, is_bfloat16=index.dtype == "bfloat16").items():
            if name in arrays:
                raise DataError(f"{path} has the array {name}, and so has a file beside it: leave one of them out")
            arrays[name] = array
    return arrays


def arrays_of(path: Path, is_bfloat16: bool = False) -> dict[str, StoredArray]:
    """Return the arrays of a file by their names.

    Args:
        is_bfloat16: Whether 16 bits in a .npy file are those of a bfloat16, which NumPy does not know.

    Raises:
        DataError: The file is damaged, or holds something else than arrays of numbers.
    """
    try:
        if path.name.endswith(".safetensors"):
            from safetensors import safe_open

            with safe_open(path, framework="pt") as file:
                names = list(file.keys())
            return {name: _OfSafetensors(path, name) for name in names}
        if path.name.endswith(".safetensors.zst"):
            return {name: _InMemory(tensor) for name, tensor in _unpacked(path).items()}
        if path.suffix == ".npy":
            array = np.load(path, mmap_mode="r", allow_pickle=False)
            is_bits = is_bfloat16 and array.dtype.itemsize == 2 and array.dtype.kind in "uV"
            if array.dtype.kind not in "fiu" and not is_bits:
                raise DataError(f"{path} holds {array.dtype}: write numbers")
            return {path.stem: _OfNumpy(array, is_bits)}
        return _of_arrow(path)
    except ThinkalikeError:
        raise
    except Exception as error:  # whatever the libraries raise for damaged files
        raise DataError(f"cannot read {path}: {type(error).__name__}: {one_line(error)}") from error


def _unpacked(path: Path) -> dict[str, Tensor]:
    import pyarrow
    from safetensors.torch import load

    with pyarrow.input_stream(str(path), compression="zstd") as stream:
        content = stream.read(LARGEST_UNPACKED + 1)
    if len(content) > LARGEST_UNPACKED:
        raise DataError(f"{path} has more than {LARGEST_UNPACKED:,} bytes when it is unpacked: send shorter prompts")
    return load(content)


def _of_arrow(path: Path) -> dict[str, StoredArray]:
    import pyarrow

    source = pyarrow.memory_map(str(path))
    try:
        table = pyarrow.ipc.open_stream(source).read_all()
    except pyarrow.ArrowInvalid:
        table = pyarrow.ipc.open_file(source).read_all()
    return {name: _OfArrow(table.column(name), f"{path}: {name}") for name in table.column_names}


def _called(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
