"""The header of a GGUF file, read without trust in what it states.

The format is described in docs/gguf.md of github.com/ggml-org/ggml.
"""

from __future__ import annotations

import math
import mmap
import struct
from pathlib import Path
from typing import NamedTuple, cast

from thinkalike.errors import ModelError, one_line, short

Scalar = int | float | bool | str

# A field of a GGUF file.
Value = Scalar | list[Scalar]

# The remedy for a file that cannot be read.
TAKE_ORIGINAL = "take the model's own folder or repository"

# The types of numbers by their codes in the format, as `struct` writes them.
NUMBERS = {
    0: "B",
    1: "b",
    2: "H",
    3: "h",
    4: "I",
    5: "i",
    6: "f",
    7: "?",
    10: "Q",
    11: "q",
    12: "d",
}

# The codes of a text and of an array.
TEXT = 8
ARRAY = 9

# The first version counted in 32 bits, and has no files that are still used.
VERSIONS = (2, 3)

# The fewest bytes of a field or a tensor: 8 for the length of its name and 4 for a type.
SMALLEST_FIELD = 12

# The most fields. A model's file has some dozens, and transformers takes minutes for 45,000.
MOST_FIELDS = 2**12

# The bytes of which every tensor begins at a multiple, where a file states no other number.
USUAL_ALIGNMENT = 32

# The bytes of the length of a text, which come before it.
LENGTH_OF_TEXT = 8

# The most dimensions of a tensor.
MOST_DIMENSIONS = 4


class Header(NamedTuple):
    """What a GGUF file states of itself.

    Attributes:
        fields: Its fields of one value, by name; an array of one entry is a list.
        types: The type of each tensor, such as Q4_1, by the name of the tensor.
        lengths: The lengths of its fields that are arrays, by name.
    """

    fields: dict[str, Value]
    types: dict[str, str]
    lengths: dict[str, int]


class _Array(NamedTuple):
    """An array of which only the length is read."""

    length: int


def read_header(path: Path) -> Header:
    """Return the fields and the types of tensors that the header of a GGUF file states.

    Raises:
        ModelError: The file is damaged, or too short for what it states.
    """
    try:
        return _header(path)
    except (ValueError, OSError) as error:
        raise ModelError(
            f"{path}: this GGUF file cannot be read ({one_line(error)}); {TAKE_ORIGINAL}"
        ) from error


def _header(path: Path) -> Header:
    """Return the fields and the types of tensors that the header of a GGUF file states.

    Raises:
        ValueError: The file is damaged; the message says how.
    """
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        cursor = _Cursor(content)
        if cursor.take(4) != b"GGUF":
            raise ValueError("it does not begin with GGUF")
        version = cursor.number("I")
        if version not in VERSIONS:
            raise ValueError(f"its version is {version}")
        tensor_count = cursor.count(SMALLEST_FIELD)
        field_count = cursor.count(SMALLEST_FIELD)
        if field_count > MOST_FIELDS:
            raise ValueError(
                f"it has {field_count:,} fields, and no model needs more than {MOST_FIELDS:,}"
            )

        fields: dict[str, Value] = {}
        lengths: dict[str, int] = {}
        for _ in range(field_count):
            name = cursor.text()
            type_code = cursor.integer("I")
            value = cursor.value(type_code)
            if isinstance(value, _Array):
                lengths[name] = value.length
                continue
            fields[name] = value
            if isinstance(value, list):
                lengths[name] = len(value)
        types: dict[str, str] = {}
        alignment = _alignment(fields)
        start = 0
        for _ in range(tensor_count):
            name, type_name, stop = _read_tensor_description(cursor, start)
            if name in types:
                raise ValueError(f"it has two tensors of the name {name}")
            types[name] = type_name
            start = math.ceil(stop / alignment) * alignment
    return Header(fields, types, lengths)


def _alignment(fields: dict[str, Value]) -> int:
    """Return the alignment of a GGUF file: each tensor begins at a multiple of this many bytes.

    Raises:
        ValueError: It is stated, and is no power of two.
    """
    alignment = fields.get("general.alignment", USUAL_ALIGNMENT)
    # A power of two has a single bit, so it has none in common with the number below it.
    if type(alignment) is not int or alignment < 1 or alignment & (alignment - 1):
        raise ValueError(f"its general.alignment={short(alignment)} is no power of two")
    return alignment


def _read_tensor_description(cursor: _Cursor, expected_start: int) -> tuple[str, str, int]:
    """Read the description of one tensor in the header.

    Args:
        cursor: Reads the header.
        expected_start: The byte at which the tensor must begin, counted from the end of the
            header: behind the previous tensor and the bytes that pad it. llama.cpp reads no file
            in which a tensor begins elsewhere.

    Returns:
        The name of the tensor, its type, and the byte after its end, from the end of the header.

    Raises:
        ValueError: The tensor has too many dimensions, a type that is not known, or begins
            elsewhere, or the whole file is shorter than its tensors.
    """
    from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

    name = cursor.text()
    n_dimensions = cursor.integer("I")
    if n_dimensions > MOST_DIMENSIONS:
        raise ValueError(f"{name} has {n_dimensions} dimensions")
    n_entries = math.prod(cursor.integer("Q") for _ in range(n_dimensions))
    tensor_type = GGMLQuantizationType(cursor.integer("I"))
    start = cursor.integer("Q")
    if start != expected_start:
        raise ValueError(
            f"{name} is stated to begin at byte {start:,} of the tensors, and those before it "
            f"take {expected_start:,} bytes"
        )
    entries_per_block, bytes_per_block = GGML_QUANT_SIZES[tensor_type]
    # It counts from the end of the header, whose length is not known yet. So the tensor ends at
    # this byte of the file or at a later one.
    stop = start + n_entries // entries_per_block * bytes_per_block
    file_length = len(cursor.content)
    if stop > file_length:
        raise ValueError(f"{name} is stated to end at byte {stop:,} of {file_length:,}")
    return name, tensor_type.name, stop


class _Cursor:
    """Reads the header of a GGUF file in order.

    What would go beyond the end of the file is a ValueError. The `gguf` package and transformers
    believe all lengths, and make room for 2^60 numbers that are not there.
    """

    def __init__(self, content: mmap.mmap):
        self.content = content
        self.position = 0

    def take(self, size: int) -> bytes:
        """Return the next `size` bytes, and move behind them."""
        start = self.position
        self.skip(size)
        return self.content[start : self.position]

    def skip(self, size: int) -> None:
        """Move past the next `size` bytes; raise a ValueError if the file has fewer."""
        if size > self._remaining():
            raise ValueError(
                f"it ends within its header: {size:,} bytes are stated at {self.position:,}"
            )
        self.position += size

    def _remaining(self) -> int:
        """Return how many bytes follow."""
        return len(self.content) - self.position

    def number(self, form: str) -> int | float | bool:
        """Read a number of a type that Python's `struct` module calls by a letter, such as "I"."""
        little_endian = f"<{form}"
        (number,) = struct.unpack(little_endian, self.take(struct.calcsize(little_endian)))
        return cast(int | float | bool, number)

    def integer(self, form: str) -> int:
        """Read a whole number of a type that `struct` calls by a letter, such as "I" (32 bits)."""
        return int(self.number(form))

    def count(self, smallest: int) -> int:
        """Read a stated number of entries, and check that the rest of the file can hold them.

        Args:
            smallest: The fewest bytes that an entry takes; 1 for the bytes of a text.

        Raises:
            ValueError: The rest of the file is too short for this number of entries.
        """
        count = self.integer("Q")  # 64 bits
        if count * smallest > self._remaining():
            raise ValueError(f"it states {count:,} entries, for which it is too short")
        return count

    def text(self) -> str:
        """Read a text, which its length in bytes precedes.

        Raises:
            ValueError: The file ends within it, or it is no UTF-8, which transformers needs.
        """
        length_in_bytes = self.count(smallest=1)
        content = self.take(length_in_bytes)
        try:
            return content.decode()
        except UnicodeDecodeError:
            readable = content.decode(errors="replace")
            raise ValueError(f"it has the text {short(readable)}, which is no UTF-8") from None

    def value(self, type_code: int) -> Value | _Array:
        """Read a value of the type with this code in the GGUF format.

        An array with a single entry is returned as a list. Of any other array only the length is
        returned.

        Raises:
            ValueError: The type is not known, or the value goes beyond the end of the file.
        """
        if type_code in NUMBERS:
            return self.number(NUMBERS[type_code])
        if type_code == TEXT:
            return self.text()
        if type_code != ARRAY:
            raise ValueError(f"it has a value of the unknown type {type_code}")
        entry_code = self.integer("I")
        if entry_code == TEXT:
            return self._texts()
        if entry_code in NUMBERS:
            return self._numbers(NUMBERS[entry_code])
        raise ValueError(
            f"it has an array of values of the type {entry_code}, which no model needs"
        )

    def _texts(self) -> list[Scalar] | _Array:
        """Read an array of texts, and return only its length unless it has a single text.

        A single text is returned in a list.
        """
        text_count = self.count(smallest=LENGTH_OF_TEXT)  # an empty text is its length alone
        if text_count == 1:
            return [self.text()]
        for _ in range(text_count):
            length_in_bytes = self.count(smallest=1)
            self.skip(length_in_bytes)
        return _Array(text_count)

    def _numbers(self, form: str) -> list[Scalar] | _Array:
        """Read an array of numbers, and return only its length unless it has a single number.

        A single number is returned in a list. `form` is the type of a number as a letter of
        Python's `struct`, such as "I".
        """
        size = struct.calcsize(f"<{form}")
        count = self.count(smallest=size)
        if count == 1:
            return [self.number(form)]
        self.skip(size * count)
        return _Array(count)
