"""The rows and the arrays of a folder of states.

Arrays stay on the disk: each row is read when it is asked for.
"""

from __future__ import annotations

import json
import math
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from thinkalike.digests import with_unique_names
from thinkalike.errors import DataError, ThinkalikeError, listed, one_line, reason_in_words, short
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

# How many shards stay open for further rows. A mapped file takes no memory of its own.
OPEN_SHARDS = 32

# The most bytes that a compressed file, which is of one prompt, may have when it is unpacked.
LARGEST_UNPACKED = 2**34

# The most tokens of a vocabulary whose size is not known.
MOST_TOKENS = 2**31

# The most bytes of a line of rows.jsonl, which has the text of a row.
LARGEST_LINE = 2**24

# The dtypes of states by the names that an index has for them.
DTYPES = {
    "float64": torch.float64,
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}


class StoredArray(ABC):
    """An array of a file, whose parts are read when they are asked for.

    Attributes:
        shape: Its shape.
        path: The file, where it is one of a shard.
    """

    shape: Sequence[int]
    path: Path

    @abstractmethod
    def part(self, start: int, stop: int) -> Tensor:
        """Return these rows of the first axis."""

    def whole(self) -> Tensor:
        """Return all of the array."""
        return self.part(0, self.shape[0])


class _SafetensorsArray(StoredArray):
    """A tensor of a file of safetensors, which stays open."""

    def __init__(self, path: Path, name: str):
        from safetensors import safe_open

        self._file = safe_open(path, framework="pt")
        self._slice = self._file.get_slice(name)
        self.shape = self._slice.get_shape()

    def part(self, start: int, stop: int) -> Tensor:
        rows: Tensor = self._slice[start:stop]
        return rows


class _ArrayInMemory(StoredArray):
    """A tensor in memory, such as one of a file that was unpacked."""

    def __init__(self, tensor: Tensor):
        self._tensor = tensor
        self.shape = tensor.shape

    def part(self, start: int, stop: int) -> Tensor:
        return self._tensor[start:stop]


class _NumpyArray(StoredArray):
    """An array of an .npy file, which is mapped into memory.

    Args:
        array: The array.
        is_bfloat16: Whether its 16 bits are those of a bfloat16, which NumPy lacks.
    """

    def __init__(self, array: NDArray[np.generic], is_bfloat16: bool):
        self._array = array
        self._is_bfloat16 = is_bfloat16
        self.shape = array.shape

    def part(self, start: int, stop: int) -> Tensor:
        # A copy, since torch has no tensors that cannot be written to.
        rows = np.array(self._array[start:stop])
        if self._is_bfloat16:
            return torch.from_numpy(rows.view(np.int16)).view(torch.bfloat16)
        # In the byte order of this machine, as torch needs it.
        return torch.from_numpy(rows.astype(rows.dtype.newbyteorder("="), copy=False))


class _ArrowArray(StoredArray):
    """A column of nested lists of equal lengths: an array for each batch of records.

    Args:
        column: The column.
        place: What errors call it.

    Raises:
        DataError: It has no rows, empty cells, rows of several lengths, or no numbers.
    """

    def __init__(self, column: pyarrow.ChunkedArray, place: str):
        blocks = [_unnested(chunk, place) for chunk in column.chunks if len(chunk)]
        row_shapes = {block.shape[1:] for block in blocks}
        if len(row_shapes) != 1:
            raise DataError(
                f"{place} has no rows, or rows of different lengths: write rows of one length"
            )
        self._blocks = blocks
        self._ends = np.cumsum([len(block) for block in blocks])  # in rows of the column
        self.shape = (int(self._ends[-1]), *row_shapes.pop())

    def part(self, start: int, stop: int) -> Tensor:
        parts_of_blocks = []
        for block, end in zip(self._blocks, self._ends.tolist(), strict=True):
            first = end - len(block)  # the number of the block's first row in the column
            if start < end and first < stop:
                parts_of_blocks.append(block[max(start - first, 0) : stop - first])
        return torch.from_numpy(np.concatenate(parts_of_blocks))


def _unnested(chunk: pyarrow.Array, place: str) -> NDArray[np.generic]:
    """Return an array of nested lists of numbers as one of NumPy, in the same memory.

    Lists of lists of 3 numbers become (rows, lists, 3).

    Args:
        chunk: The array.
        place: What errors call it.

    Raises:
        DataError: A cell is empty, lists of one level have several lengths, or it holds something
            else than numbers.
    """
    import pyarrow

    # The size of each axis; one is added for each level of lists.
    sizes: list[int] = [len(chunk)]
    values = chunk
    while True:
        # `datasets` has a type of its own for arrays of a fixed shape.
        if isinstance(values, pyarrow.ExtensionArray):
            values = values.storage
        if values.null_count:
            raise DataError(f"{place} has empty cells: write a value into each")
        if not hasattr(values, "flatten") or not pyarrow.types.is_nested(values.type):
            break
        list_count = len(values)
        values = values.flatten()
        sizes.append(len(values) // max(list_count, 1))
    # Lists of several lengths do not fit these sizes.
    try:
        numbers: NDArray[np.generic] = values.to_numpy(zero_copy_only=True).reshape(sizes)
    except (ValueError, NotImplementedError, pyarrow.ArrowInvalid) as error:
        raise DataError(
            f"{place} holds no numbers in rows of one length ({one_line(error)})"
        ) from error
    _check_numbers(numbers.dtype, place)
    return numbers


def _check_numbers(dtype: np.dtype[np.generic], place: str) -> None:
    """Raise a DataError unless numbers of this dtype can be made a tensor.

    Args:
        dtype: The dtype, in any byte order.
        place: What the error calls the array.
    """
    try:
        torch.from_numpy(np.empty(0, dtype.newbyteorder("=")))
        is_number = dtype.kind in "fiu"
    except TypeError:  # torch has no such dtype, as for long doubles and dates
        is_number = False
    if not is_number:
        raise DataError(f"{place} holds {dtype}: write real numbers of at most 64 bits")


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
        """Return the shape that each array of a shard must have; None stands for any size.

        Args:
            rows: How many rows the shard has.
            ids: The shape of its token ids; None: it has none.
        """

    @abstractmethod
    def starts(
        self, rows: int, lengths: Sequence[int | None], size: Sequence[int]
    ) -> list[tuple[int, int]]:
        """Return where each row begins in its shard, and how many tokens it has.

        Args:
            rows: How many rows the shard has.
            lengths: The tokens of each row, as far as rows.jsonl has them.
            size: The shape of the states of the shard.

        Raises:
            ValueError: The lengths are not known, or do not fit; the message says how.
        """

    @abstractmethod
    def of_row(self, array: Tensor, start: int, length: int) -> Tensor:
        """Return the token ids of a row.

        Args:
            array: The token ids of its shard.
            start, length: Where it begins and how many tokens it has, as `starts` returns it.
        """

    @abstractmethod
    def read(
        self, arrays: Mapping[str, StoredArray], start: int, length: int, hooks: Sequence[str]
    ) -> list[Tensor]:
        """Return the states of a row at some hook points, each (tokens, width).

        Args:
            arrays: The arrays of its shard.
            start, length: Where it begins and how many tokens it has, as `starts` returns it.
            hooks: The names of the hook points, in the order of the result.
        """


class _FlatLayout(RowLayout):
    """Rows one after another: token ids (tokens,), and states (tokens, width)."""

    def shapes(self, rows: int, ids: Sequence[int] | None) -> dict[str, Sequence[int | None]]:
        tokens = None
        if ids:  # a single number has the shape (), which is refused
            tokens = ids[0]
        expected: dict[str, Sequence[int | None]] = {TOKEN_IDS: (None,)}
        for hook, width in self.index.hooks.items():
            expected[hook] = (tokens, width)
        return expected

    def starts(
        self, rows: int, lengths: Sequence[int | None], size: Sequence[int]
    ) -> list[tuple[int, int]]:
        known_lengths = [length for length in lengths if length is not None]
        if len(known_lengths) < rows:
            raise ValueError("no length of each row: give tokens in the lines of rows.jsonl")
        tokens = sum(known_lengths)
        if tokens != size[0]:
            raise ValueError(f"{tokens} tokens in rows.jsonl, and {size[0]} in the shard")
        starts = np.cumsum([0, *known_lengths[:-1]]).tolist()
        return list(zip(starts, known_lengths, strict=True))

    def of_row(self, array: Tensor, start: int, length: int) -> Tensor:
        return array[start : start + length]

    def read(
        self, arrays: Mapping[str, StoredArray], start: int, length: int, hooks: Sequence[str]
    ) -> list[Tensor]:
        return [arrays[hook].part(start, start + length) for hook in hooks]


class _PaddedLayout(RowLayout):
    """Rows of one length, the end of which may be padding.

    Token ids are (rows, context), and states (rows, context, width).
    """

    def shapes(self, rows: int, ids: Sequence[int] | None) -> dict[str, Sequence[int | None]]:
        context = None
        if ids is not None and len(ids) == 2:
            context = ids[1]
        expected: dict[str, Sequence[int | None]] = {TOKEN_IDS: (rows, None)}
        for hook, width in self.index.hooks.items():
            expected[hook] = (rows, context, width)
        return expected

    def starts(
        self, rows: int, lengths: Sequence[int | None], size: Sequence[int]
    ) -> list[tuple[int, int]]:
        # A row whose length is not known has no padding.
        context = size[1]
        known_lengths = []
        for length in lengths:
            if length is None:
                known_lengths.append(context)
            else:
                known_lengths.append(length)
        longest = max(known_lengths)
        if longest > context:
            raise ValueError(f"a row of {longest} tokens, and the shard has {context} in a row")
        return list(enumerate(known_lengths))

    def of_row(self, array: Tensor, start: int, length: int) -> Tensor:
        return array[start, :length]

    def read(
        self, arrays: Mapping[str, StoredArray], start: int, length: int, hooks: Sequence[str]
    ) -> list[Tensor]:
        return [arrays[hook].part(start, start + 1)[0, :length] for hook in hooks]


class _PromptLayout(RowLayout):
    """One row a shard, with all hook points in one array, as vLLM writes it.

    Token ids are (tokens,), and states (tokens, hook points, width), or with the first two axes
    exchanged.
    """

    @property
    def needed(self) -> Sequence[str]:
        return [TOKEN_IDS, HIDDEN_STATES]

    @property
    def _has_tokens_first(self) -> bool:
        """Whether tokens are the first axis, and hook points the second."""
        return self.index.layout == "vllm"

    def shapes(self, rows: int, ids: Sequence[int] | None) -> dict[str, Sequence[int | None]]:
        tokens = None
        if ids:  # a single number has the shape (), which is refused
            tokens = ids[0]
        hook_count = len(self.index.hooks)
        width = next(iter(self.index.hooks.values()))  # all hook points have the same
        states: tuple[int | None, ...] = (hook_count, tokens, width)
        if self._has_tokens_first:
            states = (tokens, hook_count, width)
        return {TOKEN_IDS: (None,), HIDDEN_STATES: states}

    def starts(
        self, rows: int, lengths: Sequence[int | None], size: Sequence[int]
    ) -> list[tuple[int, int]]:
        tokens = size[1]
        if self._has_tokens_first:
            tokens = size[0]
        (length,) = lengths
        if length not in (None, tokens):
            raise ValueError(f"a row of {length} tokens, and the file has {tokens}")
        return [(0, tokens)]

    def of_row(self, array: Tensor, start: int, length: int) -> Tensor:
        return array

    def read(
        self, arrays: Mapping[str, StoredArray], start: int, length: int, hooks: Sequence[str]
    ) -> list[Tensor]:
        stacked = arrays[HIDDEN_STATES].whole()
        hook_axis = 0
        if self._has_tokens_first:
            hook_axis = 1
        known_hooks = list(self.index.hooks)
        return [stacked.select(hook_axis, known_hooks.index(hook)) for hook in hooks]


LAYOUTS: Mapping[Layout, type[RowLayout]] = {
    "flat": _FlatLayout,
    "padded": _PaddedLayout,
    "vllm": _PromptLayout,
    "vllm_layers_first": _PromptLayout,
}


class Row(NamedTuple):
    """Where a row of text lies, and what is known of it.

    Attributes:
        shard: The number of its shard.
        start: The number of its first token in the shard; in padded shards, that of the row.
        length: How many tokens it has.
        document: The number of its document.
        text: Its text; None: it is not known.
    """

    shard: int
    start: int
    length: int
    document: int
    text: str | None


class StoredRows:
    """The rows of text of a folder of states: the token ids, the document and the states of each.

    Attributes:
        index: What `states.json` says.
        rows: The rows, in the order of the shards.
        has_token_ids: Whether the files have token ids; without them, tokens are numbered through
            all rows.
        has_documents: Whether it is known which document a row is of; without that, each row is
            one.
    """

    def __init__(self, folder: str | Path):
        self.index: Index = read_index(folder)
        self._layout = LAYOUTS[self.index.layout](self.index)
        # The arrays of open shards, the least recently used first.
        self._open: OrderedDict[int, Mapping[str, StoredArray]] = OrderedDict()
        self._paths: list[list[Path]] = []
        for listed_shard in counted(self.index.shards, "shard"):
            self._paths.append([checked_file(self.index, file) for file in listed_shard.files])

        self.rows: list[Row] = []
        self._ids: list[NDArray[np.int64]] = []
        self.has_token_ids = TOKEN_IDS in self._arrays(0)
        lines = list(self._lines_of_rows())
        self.has_documents = bool(lines)
        row_count = sum(shard.rows for shard in self.index.shards)
        if lines and len(lines) != row_count:
            raise self._wrong("rows", f"{len(lines)} lines, and the shards have {row_count} rows")

        document_numbers: dict[str, int] = {}
        for shard, listed_shard in enumerate(self.index.shards):
            # A list of so many rows is made only after the files have shown that they hold them.
            self._check_arrays(shard, listed_shard.rows)
            first = len(self.rows)
            lines_of_shard = lines[first : first + listed_shard.rows]
            if not lines_of_shard:  # each row counts as a document
                for row in range(first, first + listed_shard.rows):
                    lines_of_shard.append(_RowLine(str(row), None, None))
            self._add_rows(shard, lines_of_shard, document_numbers)

    def __len__(self) -> int:
        return len(self.rows)

    def token_ids(self, row: int) -> NDArray[np.int64]:
        """Return the token ids of a row, (tokens,)."""
        return self._ids[row]

    def states(self, row: int, hooks: Sequence[str]) -> list[Tensor]:
        """Return the states of a row at some hook points, each (tokens, width).

        Raises:
            DataError: A state is not finite.
        """
        shard, start, length, _, _ = self.rows[row]
        arrays = self._arrays(shard)
        states = self._layout.read(arrays, start, length, hooks)
        for hook, state in zip(hooks, states, strict=True):
            if not state.isfinite().all():
                token, channel = (~state.isfinite()).nonzero()[0].tolist()
                stored = hook if hook in arrays else HIDDEN_STATES
                raise DataError(
                    f"{arrays[stored].path}: {hook} is {float(state[token, channel])} in row "
                    f"{row}, token {token}, "
                    f"channel {channel}: compute the states in a wider dtype, or leave the row out"
                )
        return states

    def embedding(self) -> tuple[Tensor, Tensor] | None:
        """Return tokens, (v,), and what enters block 0 for each alone, (v, width).

        None means that the folder has no file of them.

        Raises:
            DataError: The file is missing, damaged, or lacks one of the two arrays.
        """
        if self.index.embedding is None:
            return None
        path = checked_file(self.index, self.index.embedding)
        arrays = _opened([path], self.index)
        if not {TOKEN_IDS, "embedding"} <= arrays.keys():
            raise DataError(f"{path} must have the arrays {TOKEN_IDS} and embedding; {REWRITE}")
        ids = arrays[TOKEN_IDS].whole()
        embedding = arrays["embedding"].whole()
        fits = embedding.dim() == 2 and ids.shape == embedding.shape[:1] and len(ids) > 0
        if not fits or embedding.shape[1] not in self.index.hooks.values():
            raise DataError(
                f"{path}: {TOKEN_IDS} and embedding have the shapes {tuple(ids.shape)} and "
                f"{tuple(embedding.shape)}, not (tokens,) and (tokens, width); {REWRITE}"
            )
        self._check_ids(ids, str(path))
        if embedding.dtype not in DTYPES.values() or not embedding.isfinite().all():
            raise DataError(f"{path}: embedding must hold finite floating numbers; {REWRITE}")
        return ids.long(), embedding

    # ---- what lies where

    def _add_rows(
        self, shard: int, lines: Sequence[_RowLine], document_numbers: dict[str, int]
    ) -> None:
        """Add the rows of a shard, and their token ids.

        Args:
            shard: The number of the shard.
            lines: What is known of its rows.
            document_numbers: The number of each document by its name, to which new ones are added.

        Raises:
            DataError: The shard is not what the index and the lines say.
        """
        arrays = self._arrays(shard)
        states = arrays[self._layout.needed[-1]]
        lengths = [line.tokens for line in lines]
        try:
            places = self._layout.starts(len(lines), lengths, states.shape)
        except ValueError as error:
            raise self._wrong(f"{self._name(shard)}: rows", str(error)) from error
        ids = self._ids_in(shard, arrays)
        for line, (start, length) in zip(lines, places, strict=True):
            document = document_numbers.setdefault(line.document, len(document_numbers))
            if ids is None:
                # Tokens are numbered through all rows, so that those of another folder without
                # token ids have the same numbers in the same places.
                first_id = 0
                if self._ids:
                    first_id = int(self._ids[-1][-1]) + 1
                row_ids = np.arange(first_id, first_id + length)
            else:
                row_ids = self._layout.of_row(ids, start, length).numpy()
            self.rows.append(Row(shard, start, length, document, line.text))
            self._ids.append(row_ids)

    def _ids_in(self, shard: int, arrays: Mapping[str, StoredArray]) -> Tensor | None:
        """Return the token ids of a shard, checked against the vocabulary; None: it has none."""
        if TOKEN_IDS not in arrays:
            return None
        ids = arrays[TOKEN_IDS].whole()
        self._check_ids(ids, str(arrays[TOKEN_IDS].path))
        return ids.to(torch.int64)

    def _check_ids(self, ids: Tensor, place: str) -> None:
        """Raise a DataError unless tensors are ids of tokens; `place` is what errors name."""
        if ids.is_floating_point() or ids.is_complex() or ids.dtype == torch.bool:
            raise DataError(f"{place}: {TOKEN_IDS} is {_called(ids.dtype)}: write whole numbers")
        last_id = (self.index.vocabulary or MOST_TOKENS) - 1
        if not ids.numel():
            raise DataError(f"{place}: {TOKEN_IDS} is empty; leave out rows without tokens")
        values = ids.numpy()  # torch finds no minimum of numbers without a sign
        for token_id in (int(values.min()), int(values.max())):
            if not 0 <= token_id <= last_id:
                raise DataError(
                    f"{place}: {TOKEN_IDS} has {token_id}, which is no id from 0 to {last_id}"
                )

    def _check_arrays(self, shard: int, rows: int) -> None:
        """Check that a shard has what the index says: the arrays, their shapes and dtypes.

        Args:
            shard: The number of the shard.
            rows: How many rows it must have.

        Raises:
            DataError: An array is missing, has another shape or dtype, or is too small.
        """
        arrays = self._arrays(shard)
        needed = self._layout.needed
        missing = [name for name in needed if name not in arrays]
        if missing:
            content = "is empty"
            if arrays:
                content = f"has {listed(sorted(arrays))}"
            raise DataError(
                f"{self._name(shard)} {content}, and lacks {listed(missing)}, "
                f"which {INDEX} lists; {REWRITE}"
            )
        ids = None
        if TOKEN_IDS in arrays:
            ids = arrays[TOKEN_IDS].shape
        for name, expected in self._layout.shapes(rows, ids).items():
            if name not in arrays:  # token ids, which may be missing
                continue
            shape = arrays[name].shape
            if not _has_shape(shape, expected):
                raise DataError(
                    f"{arrays[name].path}: {name} has the shape {_shape_in_words(shape)}, "
                    f"not {_shape_in_words(expected)} as {INDEX} says"
                )
            if name == TOKEN_IDS:
                continue
            dtype = arrays[name].part(0, 1).dtype
            if dtype != DTYPES[self.index.dtype]:
                raise DataError(
                    f"{arrays[name].path}: {name} is {_called(dtype)}, and {INDEX} says "
                    f"{self.index.dtype}; {REWRITE}"
                )
        tokens = math.prod(arrays[needed[-1]].shape[:-1])
        if rows > tokens:
            raise self._wrong(
                f"shards[{shard}].rows", f"{rows} rows, and {self._name(shard)} {tokens} tokens"
            )

    def _arrays(self, shard: int) -> Mapping[str, StoredArray]:
        """Return the arrays of a shard, which stays open for further rows.

        Of compressed shards, which are unpacked into memory, only one stays open.
        """
        if shard in self._open:
            self._open.move_to_end(shard)
            return self._open[shard]
        arrays = _opened(self._paths[shard], self.index)
        is_unpacked = any(path.suffix == ".zst" for path in self._paths[shard])
        most_open = OPEN_SHARDS
        if is_unpacked:
            most_open = 1
        while len(self._open) >= most_open:
            self._open.popitem(last=False)
        self._open[shard] = arrays
        return arrays

    def _name(self, shard: int) -> str:
        """Return what errors call a shard: the path of its first file."""
        return str(self._paths[shard][0])

    def _wrong(self, entry: str, problem: str) -> DataError:
        """Return the error for an entry of the index that has a problem."""
        return DataError(f"{self.index.path}: {entry} has {problem}; {REWRITE}")

    def _lines_of_rows(self) -> Iterator[_RowLine]:
        """Yield the lines of rows.jsonl; none if the index lists no such file."""
        if self.index.rows is None:
            return
        path = checked_file(self.index, self.index.rows)
        with path.open("rb") as file:
            # One byte more than allowed shows that a line is too long, without reading all of it.
            lines = iter(lambda: file.readline(LARGEST_LINE + 1), b"")
            for number, line in enumerate(lines, 1):
                yield _parsed_line(line, f"{path} line {number}")


def _has_shape(shape: Sequence[int], expected: Sequence[int | None]) -> bool:
    """Return whether a shape is as expected, where None stands for any size."""
    if len(shape) != len(expected):
        return False
    for size, expected_size in zip(shape, expected, strict=True):
        if expected_size is not None and size != expected_size:
            return False
    return True


def _shape_in_words(shape: Sequence[int | None]) -> str:
    """Return a shape as a message has it: "any x 3 x 768"."""
    sizes = ["any" if size is None else str(size) for size in shape]
    return " x ".join(sizes)


class _RowLine(NamedTuple):
    """A line of rows.jsonl: what is known of a row.

    Attributes:
        document: The name of its document.
        tokens: How many tokens it has; None: the arrays say it.
        text: Its text; None: it is not known.
    """

    document: str
    tokens: int | None
    text: str | None


def _parsed_line(line: bytes, place: str) -> _RowLine:
    """Return what a line of rows.jsonl says.

    Args:
        line: The line.
        place: What errors call it.

    Raises:
        DataError: It is too long, or no JSON object with these entries.
    """
    if len(line) > LARGEST_LINE:
        raise DataError(f"{place} has more than {LARGEST_LINE:,} bytes: divide the row")
    try:
        record = json.loads(line, object_pairs_hook=with_unique_names)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{place} is no JSON object ({one_line(error)})") from error
    if not isinstance(record, dict):
        raise DataError(f'{place} is no JSON object: write {{"document": ..., "tokens": ...}}')
    document = record.get("document")
    tokens = record.get("tokens")
    text = record.get("text")
    # True and False are whole numbers for Python.
    if not isinstance(document, str | int) or isinstance(document, bool):
        raise DataError(f"{place}: document={short(document)} must be a text or a whole number")
    is_whole_number = isinstance(tokens, int) and not isinstance(tokens, bool)
    if tokens is not None and not (is_whole_number and tokens >= 1):
        raise DataError(f"{place}: tokens={short(tokens)} must be a whole number of at least 1")
    if text is not None and not isinstance(text, str):
        raise DataError(f"{place}: text={short(text)} must be a text")
    return _RowLine(str(document), tokens, text)


def _opened(paths: Sequence[Path], index: Index) -> dict[str, StoredArray]:
    """Return the arrays of all files of a shard by their names; none is read yet.

    Raises:
        DataError: A file is damaged, or two files have an array of one name.
    """
    arrays: dict[str, StoredArray] = {}
    for path in paths:
        for name, array in arrays_of(path, is_bfloat16=index.dtype == "bfloat16").items():
            if name in arrays:
                raise DataError(
                    f"{path} has the array {name}, and so has a file beside it: "
                    "leave one of them out"
                )
            array.path = path
            arrays[name] = array
    return arrays


def arrays_of(path: Path, is_bfloat16: bool = False) -> dict[str, StoredArray]:
    """Return the arrays of a file by their names.

    Args:
        path: The file: .safetensors, .safetensors.zst, .npy, or else of Arrow.
        is_bfloat16: Whether 16 bits in a .npy file of states are those of a bfloat16, which NumPy
            does not know.

    Raises:
        DataError: The file is damaged, or holds something else than arrays of numbers.
    """
    try:
        if path.name.endswith(".safetensors"):
            from safetensors import safe_open

            with safe_open(path, framework="pt") as file:
                names = list(file.keys())
            return {name: _SafetensorsArray(path, name) for name in names}
        if path.name.endswith(".safetensors.zst"):
            return {name: _ArrayInMemory(tensor) for name, tensor in _unpacked(path).items()}
        if path.suffix == ".npy":
            array = np.load(path, mmap_mode="r", allow_pickle=False)
            may_be_bits = is_bfloat16 and path.stem != TOKEN_IDS
            is_bits = may_be_bits and array.dtype.itemsize == 2 and array.dtype.kind in "uV"
            if not is_bits:
                _check_numbers(array.dtype, str(path))
            return {path.stem: _NumpyArray(array, is_bits)}
        return _arrow_arrays(path)
    except ThinkalikeError:
        raise
    except Exception as error:  # whatever the libraries raise for damaged files
        raise DataError(f"cannot read {path}: {reason_in_words(error)}") from error


def _unpacked(path: Path) -> dict[str, Tensor]:
    """Return the tensors of a compressed file of safetensors by name, unpacked into memory.

    Raises:
        DataError: They have more than `LARGEST_UNPACKED` bytes.
    """
    import pyarrow
    from safetensors.torch import load

    with pyarrow.input_stream(str(path), compression="zstd") as stream:
        content = stream.read(LARGEST_UNPACKED + 1)
    if len(content) > LARGEST_UNPACKED:
        raise DataError(
            f"{path} has more than {LARGEST_UNPACKED:,} bytes when it is unpacked: "
            "send shorter prompts"
        )
    return load(content)


def _arrow_arrays(path: Path) -> dict[str, StoredArray]:
    """Return each column of a file of Arrow as an array, which is mapped into memory."""
    import pyarrow

    source = pyarrow.memory_map(str(path))
    # Arrow has two formats under one ending.
    try:
        table = pyarrow.ipc.open_stream(source).read_all()
    except pyarrow.ArrowInvalid:
        table = pyarrow.ipc.open_file(source).read_all()
    arrays: dict[str, StoredArray] = {}
    for name in table.column_names:
        arrays[name] = _ArrowArray(table.column(name), f"{path}: {name}")
    return arrays


def _called(dtype: torch.dtype) -> str:
    """Return what messages call a dtype, such as float32."""
    return str(dtype).removeprefix("torch.")
