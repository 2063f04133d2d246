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
from thinkalike.processes import counted
from thinkalike.shards.index import (
    HIDDEN_STATES,
    INDEX,
    REWRITE,
    TOKEN_IDS,
    Index,
    Layout,
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


class RowLayout(ABC):
    """How rows of text lie in the arrays of a shard."""

    def __init__(self, index: Index):
        self.index = index

    @property
    def needed(self) -> Sequence[str]:
        """The arrays that a shard must have."""
        return list(self.index.hooks)

    @abstractmethod
    def shapes(self, rows: int, ids: Sequence[int] | None) -> dict[str, Sequence[int | None]]:
        """Return the shape that each array of so many rows must have, given that of the token ids.

        None stands for any size.
        """

    @abstractmethod
    def starts(self, rows: int, lengths: Sequence[int | None], size: Sequence[int]) -> list[tuple[int, int]]:
        """Return where each row begins and how long it is, given the shape of the states.

        Raises:
            ValueError: The lengths are not known, or do not fit; the message says how.
        """

    @abstractmethod
    def of_row(self, array: Tensor, start: int, length: int) -> Tensor:
        """Return the token ids of a row."""

    @abstractmethod
    def read(self, arrays: Mapping[str, StoredArray], start: int, length: int, hooks: Sequence[str]) -> list[Tensor]:
        """Return the states of a row at some hook points, each (tokens, width)."""


class _Flat(RowLayout):
    """Rows one after another."""

    def shapes(self, rows: int, ids: Sequence[int] | None) -> dict[str, Sequence[int | None]]:
        tokens = None if ids is None else ids[0]
        return {TOKEN_IDS: (None,)} | {hook: (tokens, width) for hook, width in self.index.hooks.items()}

    def starts(self, rows: int, lengths: Sequence[int | None], size: Sequence[int]) -> list[tuple[int, int]]:
        known = [length for length in lengths if length is not None]
        if len(known) < rows:
            raise ValueError("no length of each row: give tokens in the lines of rows.jsonl")
        if sum(known) != size[0]:
            raise ValueError(f"{sum(known)} tokens in rows.jsonl, and {size[0]} in the shard")
        begins = np.cumsum([0, *known[:-1]]).tolist()
        return list(zip(begins, known, strict=True))

    def of_row(self, array: Tensor, start: int, length: int) -> Tensor:
        return array[start : start + length]

    def read(self, arrays: Mapping[str, StoredArray], start: int, length: int, hooks: Sequence[str]) -> list[Tensor]:
        return [arrays[hook].part(start, start + length) for hook in hooks]


class _Padded(RowLayout):
    """Rows of one length, the end of which may be padding."""

    def shapes(self, rows: int, ids: Sequence[int] | None) -> dict[str, Sequence[int | None]]:
        context = None if ids is None or len(ids) != 2 else ids[1]
        expected: dict[str, Sequence[int | None]] = {TOKEN_IDS: (rows, None)}
        for hook, width in self.index.hooks.items():
            expected[hook] = (rows, context, width)
        return expected

    def starts(self, rows: int, lengths: Sequence[int | None], size: Sequence[int]) -> list[tuple[int, int]]:
        known = [size[1] if length is None else length for length in lengths]
        if max(known) > size[1]:
            raise ValueError(f"a row of {max(known)} tokens, and the shard has {size[1]} in a row")
        return list(enumerate(known))

    def of_row(self, array: Tensor, start: int, length: int) -> Tensor:
        return array[start, :length]

    def read(self, arrays: Mapping[str, StoredArray], start: int, length: int, hooks: Sequence[str]) -> list[Tensor]:
        return [arrays[hook].part(start, start + 1)[0, :length] for hook in hooks]


class _OfPrompts(RowLayout):
    """One row a shard, with all hook points in one array, as vLLM writes it."""

    @property
    def needed(self) -> Sequence[str]:
        return [TOKEN_IDS, HIDDEN_STATES]

    def shapes(self, rows: int, ids: Sequence[int] | None) -> dict[str, Sequence[int | None]]:
        tokens = None if ids is None else ids[0]
        count, width = len(self.index.hooks), next(iter(self.index.hooks.values()))
        is_usual = self.index.layout == "vllm"
        states = (tokens, count, width) if is_usual else (count, tokens, width)
        return {TOKEN_IDS: (None,), HIDDEN_STATES: states}

    def starts(self, rows: int, lengths: Sequence[int | None], size: Sequence[int]) -> list[tuple[int, int]]:
        tokens = size[0] if self.index.layout == "vllm" else size[1]
        (length,) = lengths
        if length not in (None, tokens):
            raise ValueError(f"a row of {length} tokens, and the file has {tokens}")
        return [(0, tokens)]

    def of_row(self, array: Tensor, start: int, length: int) -> Tensor:
        return array

    def read(self, arrays: Mapping[str, StoredArray], start: int, length: int, hooks: Sequence[str]) -> list[Tensor]:
        stacked = arrays[HIDDEN_STATES].whole()
        axis = 1 if self.index.layout == "vllm" else 0
        places = [list(self.index.hooks).index(hook) for hook in hooks]
        return [stacked.select(axis, place) for place in places]


LAYOUTS: Mapping[Layout, type[RowLayout]] = {
    "flat": _Flat,
    "padded": _Padded,
    "vllm": _OfPrompts,
    "vllm_layers_first": _OfPrompts,
}


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
        self._layout = LAYOUTS[self.index.layout](self.index)
        self._open: OrderedDict[int, Mapping[str, StoredArray]] = OrderedDict()
        self._paths = [
            [checked_file(self.index, file) for file in shard.files] for shard in counted(self.index.shards, "shard")
        ]
        self.rows: list[Row] = []
        self._ids: list[NDArray[np.int64]] = []
        self.has_token_ids = TOKEN_IDS in self._arrays(0)
        described = list(self._described())
        self.has_documents = bool(described)
        expected = sum(shard.rows for shard in self.index.shards)
        if described and len(described) != expected:
            raise self._wrong("rows", f"{len(described)} lines, and the shards have {expected} rows")
        numbers: dict[str, int] = {}
        for shard, listed_shard in enumerate(self.index.shards):
            first = len(self.rows)
            lines = described[first : first + listed_shard.rows]
            if not lines:
                lines = [_Described(str(first + place), None, None) for place in range(listed_shard.rows)]
            self._add_rows(shard, lines, numbers)

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
        states = self._layout.read(self._arrays(shard), start, length, hooks)
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

    def _add_rows(self, shard: int, lines: Sequence[_Described], numbers: dict[str, int]) -> None:
        """Add the rows of a shard; `numbers` has those of documents, by their names."""
        arrays = self._arrays(shard)
        self._check_arrays(shard, len(lines), arrays)
        states = arrays[self._layout.needed[-1]]
        lengths = [line.tokens for line in lines]
        try:
            places = self._layout.starts(len(lines), lengths, states.shape)
        except ValueError as error:
            raise self._wrong(f"{self._name(shard)}: rows", str(error)) from error
        ids = self._ids_in(shard, arrays)
        for line, (start, length) in zip(lines, places, strict=True):
            document = numbers.setdefault(line.document, len(numbers))
            if ids is None:  # tokens are numbered, so that those of another such folder are in the same places
                before = int(self._ids[-1][-1]) + 1 if self._ids else 0
                own = np.arange(before, before + length)
            else:
                own = self._layout.of_row(ids, start, length).numpy()
            self.rows.append(Row(shard, start, length, document, line.text))
            self._ids.append(own)

    def _ids_in(self, shard: int, arrays: Mapping[str, StoredArray]) -> Tensor | None:
        """Return the token ids of a shard, which must be ids of a vocabulary; None: it has none."""
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
        return ids.to(torch.int64)

    def _check_arrays(self, shard: int, rows: int, arrays: Mapping[str, StoredArray]) -> None:
        """Check that a shard has what the index says: each array, its shape, and the dtype of states."""
        needed = self._layout.needed
        if missing := [name for name in needed if name not in arrays]:
            has = f"has {listed(sorted(arrays))}" if arrays else "is empty"
            raise DataError(f"{self._name(shard)} {has}, and lacks {listed(missing)}, which {INDEX} lists; {REWRITE}")
        ids = arrays[TOKEN_IDS].shape if TOKEN_IDS in arrays else None
        for name, expected in self._layout.shapes(rows, ids).items():
            if name not in arrays:  # token ids, which may be missing
                continue
            shape = arrays[name].shape
            if not _fits(shape, expected):
                asked = " x ".join("any" if size is None else str(size) for size in expected)
                found = " x ".join(map(str, shape))
                raise DataError(f"{self._name(shard)}: {name} has the shape {found}, not {asked} as {INDEX} says")
            if name == TOKEN_IDS:
                continue
            dtype = arrays[name].part(0, 1).dtype
            if dtype != DTYPES[self.index.dtype]:
                raise DataError(
                    f"{self._name(shard)}: {name} is {_called(dtype)}, and {INDEX} says {self.index.dtype}; {REWRITE}"
                )

    def _arrays(self, shard: int) -> Mapping[str, StoredArray]:
        """Return the arrays of a shard, which stays open for a while; of unpacked ones, no more than one does."""
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
        """Yield the lines of rows.jsonl."""
        if self.index.rows is None:
            return
        path = checked_file(self.index, self.index.rows)
        with path.open("rb") as lines:
            for number, line in enumerate(iter(lambda: lines.readline(LARGEST_LINE + 1), b""), 1):
                yield _described(line, f"{path} line {number}")


def _fits(shape: Sequence[int], expected: Sequence[int | None]) -> bool:
    """Return whether a shape is as expected, where None stands for any size."""
    if len(shape) != len(expected):
        return False
    return all(asked in (None, size) for size, asked in zip(shape, expected, strict=True))


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
