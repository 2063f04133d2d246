"""Packed weights of GPTQ, AWQ and bitsandbytes, decoded from their files one matrix at a time.

The libraries that run such models are not needed, and no GPU.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping
from typing import TypedDict

import torch
from jaxtyping import Float, Int
from torch import Tensor

from thinkalike.errors import ModelError, one_line
from thinkalike.models.stored_weights import Weights

METHODS = ("gptq", "awq", "bitsandbytes")
"""The methods whose files can be decoded, as config.json names them."""

BITS_OF_WORD = 32
BITS_PACKED = (2, 4, 8)
"""So many bits divide a word of 32, so that no number lies across two words."""

AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
"""The column, of eight, that each four bits of a word of AWQ hold, the lowest bits first."""

QUANT_STATE = "quant_state.bitsandbytes__"
"""What the name of the settings of a matrix of bitsandbytes holds, before nf4 or fp4."""

LARGEST_INT8 = 127


class FourBitSettings(TypedDict):
    """The settings of a matrix of bitsandbytes with 4 bits."""

    shape: tuple[int, int]
    blocksize: int
    nested_blocksize: int
    nested_offset: float


class DecodedWeights:
    """The weights of a folder in which linear maps are packed, as matrices of (out, in).

    Args:
        stored: The tensors of the files.
        settings: `quantization_config` of config.json.
    """

    def __init__(self, stored: Weights, settings: Mapping[str, object]) -> None:
        """Check that weights of this quantisation can be decoded, and compute their shapes.

        `stored` reads the tensors of the files, and `settings` are "quantization_config" of
        config.json. Weights are decoded only when they are read.

        Raises:
            ModelError: They have an unusual number of bits or version, or the files are damaged.
        """
        self._stored = stored
        self._method = str(settings["quant_method"])
        # The first format of GPTQ stores each zero point minus 1; "gptq_v2" stores it as it is.
        self._zeros_are_less_one = settings.get("checkpoint_format", "gptq") == "gptq"
        # Settings of AWQ may state the bits as "w_bit". Those of bitsandbytes need not state them.
        self._bits = int(str(settings.get("bits", settings.get("w_bit", 4))))
        if self._method != "bitsandbytes" and self._bits not in BITS_PACKED:
            raise ModelError(
                f"weights of {self._method} with {self._bits} bits cannot be decoded, only those "
                f"with {', '.join(str(bits) for bits in BITS_PACKED)} bits; give the checkpoint "
                "before it was quantised"
            )
        if self._method == "awq" and settings.get("version", "gemm") != "gemm":
            raise ModelError(
                f"weights of awq of the version {settings['version']} cannot be decoded, only "
                "those of gemm; give the checkpoint before it was quantised"
            )
        with self._explaining_damage("its packed weights"):
            self._shapes = dict(self._decoded_shapes())

    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """Return the shape of each weight after decoding, by name."""
        return self._shapes

    def read(self, name: str) -> Tensor:
        """Return a weight by its name, decoded to floats if it is packed."""
        with self._explaining_damage(name):
            return self._decoded(name)

    @contextlib.contextmanager
    def _explaining_damage(self, name: str) -> Iterator[None]:
        """Turn an error that damaged files cause into a ModelError.

        `name` is what is decoded while the context is open, for the message.
        """
        try:
            yield
        except (LookupError, TypeError, ValueError, ArithmeticError, RuntimeError) as error:
            raise ModelError(
                f"{name} cannot be decoded as {self._method} ({type(error).__name__}: "
                f"{one_line(error)}); give the checkpoint before it was quantised"
            ) from error

    def _decoded(self, name: str) -> Tensor:
        """Return a packed weight as a matrix (out, in) of floats, and any other one as stored.

        The names of the tensors beside a weight tell how it is packed.
        """
        tensors = self._stored.shapes()
        path = name.removesuffix(".weight")
        if f"{path}.qweight" in tensors:
            if self._method == "awq":
                return self._read_awq(path)
            return self._read_gptq(path)
        if self._name_of_settings(name):
            return self._read_four_bits(name)
        # bitsandbytes with 8 bits: int8 numbers, and the largest absolute value of each row.
        if f"{path}.SCB" in tensors:
            largest_of_row = self._stored.read(f"{path}.SCB").float()
            return self._stored.read(name).float() * largest_of_row[:, None] / LARGEST_INT8
        return self._stored.read(name)

    def _decoded_shapes(self) -> Mapping[str, tuple[int, ...]]:
        """Return the shape that each weight and bias has after decoding, by its name.

        GPTQ and AWQ pack a matrix under the name "qweight"; decoded, it has the name "weight".
        bitsandbytes keeps the name. Tensors that only serve to decode others, such as scales, are
        left out.
        """
        shapes: dict[str, tuple[int, ...]] = {}
        for name, shape in self._stored.shapes().items():
            path, _, last = name.rpartition(".")
            if last == "qweight":
                shapes[f"{path}.weight"] = self._shape_of_unpacked(shape)
            elif last in ("weight", "bias"):
                shapes[name] = shape
                # Packed in 4 bits, it is a flat row of bytes, whose settings state its own shape.
                is_packed_in_four_bits = bool(self._name_of_settings(name))
                if is_packed_in_four_bits:
                    shapes[name] = tuple(self._settings_of(name)["shape"])
        return shapes

    def _shape_of_unpacked(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Return the shape (out, in) of a matrix, given that of its packed 32-bit words.

        The files hold the matrix as (in, out). GPTQ packs several numbers of one column into a
        word, and AWQ several numbers of one row.
        """
        rows, columns = shape
        numbers_per_word = BITS_OF_WORD // self._bits
        if self._method == "awq":
            return columns * numbers_per_word, rows
        return columns, rows * numbers_per_word

    def _read_gptq(self, path: str) -> Float[Tensor, "out in"]:
        """Decode a matrix of GPTQ: weight = scale * (number - zero point).

        Each input belongs to a group, and each group has a scale and a zero point for each output.
        The tensor "g_idx" has the group of each input. Without it, consecutive inputs are divided
        into groups of equal size.
        """
        # GPTQ packs along the inputs, and `_unpacked` unpacks along the last axis.
        numbers = self._unpacked(self._stored.read(f"{path}.qweight").T).T  # (in, out)
        zeros = self._unpacked(self._stored.read(f"{path}.qzeros"))  # (groups, out)
        if self._zeros_are_less_one:
            largest_number = 2**self._bits - 1
            zeros = (zeros + 1) & largest_number  # the sum wraps around
        scales = self._stored.read(f"{path}.scales").float()  # (groups, out)
        if f"{path}.g_idx" in self._stored.shapes():
            group_of_input = self._stored.read(f"{path}.g_idx").long()
            if group_of_input.min() < 0:  # an index that Python would count from the end
                raise ValueError("g_idx has a negative group")
        else:
            group_of_input = torch.arange(len(numbers)) * len(scales) // len(numbers)
        matrix = scales[group_of_input] * (numbers - zeros[group_of_input])  # (in, out)
        return matrix.T

    def _read_awq(self, path: str) -> Float[Tensor, "out in"]:
        """Decode a matrix of AWQ: weight = scale * (number - zero point).

        Consecutive inputs are divided into groups of equal size, and each group has a scale and a
        zero point for each output. Inside each 32-bit word, AWQ stores numbers in its own order.
        """
        numbers = self._unpacked(self._stored.read(f"{path}.qweight"))
        numbers = _columns_in_order(numbers)  # (in, out)
        zeros = self._unpacked(self._stored.read(f"{path}.qzeros"))
        zeros = _columns_in_order(zeros)  # (groups, out)
        scales = self._stored.read(f"{path}.scales").float()  # (groups, out)
        group_of_input = torch.arange(len(numbers)) * len(scales) // len(numbers)
        matrix = scales[group_of_input] * (numbers - zeros[group_of_input])  # (in, out)
        return matrix.T

    def _unpacked(self, words: Int[Tensor, "n w"]) -> Int[Tensor, "n m"]:
        """Unpack 32-bit words into the numbers of few bits that they hold, the lowest bits first.

        A word has 32 / bits numbers, so n rows of w words become n rows of m = w * 32 / bits
        numbers.
        """
        shifts = torch.arange(0, BITS_OF_WORD, self._bits, dtype=torch.int32)
        lowest_bits = 2**self._bits - 1  # a mask
        numbers = (words[:, :, None] >> shifts) & lowest_bits  # (n, w, numbers of a word)
        return numbers.flatten(1)

    def _name_of_settings(self, name: str) -> str:
        """Return the name of the tensor that tells how a weight was quantised to 4 bits, or "".

        bitsandbytes stores such a tensor, with settings as JSON, beside each weight of 4 bits.
        """
        for code_name in ("nf4", "fp4"):
            name_of_settings = f"{name}.{QUANT_STATE}{code_name}"
            if name_of_settings in self._stored.shapes():
                return name_of_settings
        return ""

    def _settings_of(self, name: str) -> FourBitSettings:
        """Return the settings of a weight that bitsandbytes packs in 4 bits.

        They are stored as JSON in a tensor of bytes.
        """
        json_bytes = bytes(self._stored.read(self._name_of_settings(name)).tolist())
        settings: FourBitSettings = json.loads(json_bytes)
        return settings

    def _read_four_bits(self, name: str) -> Float[Tensor, "out in"]:
        """Decode a weight that bitsandbytes packs in 4 bits.

        Its entries, row by row, are divided into blocks of equal length. An entry is one of the 16
        values of a table, times the largest absolute value (absmax) of its block. With "double
        quantisation" the absmax values are packed in the same way, as bytes, with a table of 256
        values, and with an offset.
        """
        settings = self._settings_of(name)
        packed = self._stored.read(name).view(torch.uint8).flatten().long()
        # A byte holds two numbers of 4 bits, the high bits first.
        numbers = torch.stack([packed >> 4, packed & 15], dim=1).flatten()
        table = self._stored.read(f"{name}.quant_map").float()

        absmax = self._stored.read(f"{name}.absmax")  # of each block
        if f"{name}.nested_absmax" in self._stored.shapes():
            nested_table = self._stored.read(f"{name}.nested_quant_map").float()
            nested_absmax = self._stored.read(f"{name}.nested_absmax").float()
            nested_block = torch.arange(len(absmax)) // settings["nested_blocksize"]
            absmax = nested_table[absmax.long()] * nested_absmax[nested_block]
            absmax = absmax + settings["nested_offset"]

        rows, columns = settings["shape"]
        numbers = numbers[: rows * columns]  # the last byte may be half used
        block_of_entry = torch.arange(len(numbers)) // settings["blocksize"]
        entries = table[numbers] * absmax.float()[block_of_entry]
        return entries.view(rows, columns)


def _columns_in_order(numbers: Int[Tensor, "n m"]) -> Int[Tensor, "n m"]:
    """Return the columns of a matrix of AWQ in order.

    AWQ shuffles each eight consecutive columns, which share a 32-bit word, in the same way. The
    entries are whole numbers of 4 bits.
    """
    words = numbers.view(len(numbers), -1, len(AWQ_ORDER))  # (n, words, 8)
    ordered = torch.empty_like(words)
    ordered[:, :, list(AWQ_ORDER)] = words  # stored column i is column AWQ_ORDER[i] of the matrix
    return ordered.flatten(1)


def packed_settings(config_json: Mapping[str, object]) -> Mapping[str, object] | None:
    """Return the settings of a quantisation whose packed weights can be decoded here, or None.

    Those of GPTQ, AWQ and bitsandbytes can be. The settings are the section "quantization_config"
    of config.json, or of its section about the text model.
    """
    for section in (config_json, config_json.get("text_config")):
        if isinstance(section, Mapping):
            settings = section.get("quantization_config")
            if isinstance(settings, Mapping) and settings.get("quant_method") in METHODS:
                return settings
    return None
