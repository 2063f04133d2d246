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

NF4_STATE = "quant_state.bitsandbytes__"
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
        self._stored = stored
        self._method = str(settings["quant_method"])
        self._zeros_are_less_one = settings.get("checkpoint_format", "gptq") == "gptq"
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
        with self._damage_of("its packed weights"):
            self._shapes = dict(self._shapes_of_matrices())

    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        return self._shapes

    def read(self, name: str) -> Tensor:
        with self._damage_of(name):
            return self._decoded(name)

    @contextlib.contextmanager
    def _damage_of(self, name: str) -> Iterator[None]:
        """Turn what damaged files cause into a ModelError that names what is read."""
        try:
            yield
        except (LookupError, TypeError, ValueError, ArithmeticError, RuntimeError) as error:
            raise ModelError(
                f"{name} cannot be decoded as {self._method} ({type(error).__name__}: "
                f"{one_line(error)}); give the checkpoint before it was quantised"
            ) from error

    def _decoded(self, name: str) -> Tensor:
        """Return a matrix of (out, in), or a tensor that is not packed as it is stored."""
        tensors = self._stored.shapes()
        path = name.removesuffix(".weight")
        if f"{path}.qweight" in tensors:
            if self._method == "awq":
                return self._read_awq(path)
            return self._read_gptq(path)
        if self._state_of(name):
            return self._read_four_bits(name)
        if f"{path}.SCB" in tensors:
            largest_of_row = self._stored.read(f"{path}.SCB").float()
            return self._stored.read(name).float() * largest_of_row[:, None] / LARGEST_INT8
        return self._stored.read(name)

    def _shapes_of_matrices(self) -> Mapping[str, tuple[int, ...]]:
        """Return the shape of each weight after decoding."""
        shapes: dict[str, tuple[int, ...]] = {}
        for name, shape in self._stored.shapes().items():
            path, _, last = name.rpartition(".")
            if last == "qweight":
                shapes[f"{path}.weight"] = self._shape_of_words(shape)
            elif last in ("weight", "bias"):
                shapes[name] = shape
                if self._state_of(name):
                    shapes[name] = tuple(self._settings_of(name)["shape"])
        return shapes

    def _shape_of_words(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Return (out, in) of a matrix that is packed in words.

        GPTQ packs numbers of one column, and AWQ those of one row, of a matrix of (in, out).
        """
        rows, columns = shape
        numbers_of_word = BITS_OF_WORD // self._bits
        if self._method == "awq":
            return columns * numbers_of_word, rows
        return columns, rows * numbers_of_word

    def _read_gptq(self, path: str) -> Float[Tensor, "out in"]:
        """Return a matrix of GPTQ: scale (number - zero), with a scale and a zero for each group.

        Its first format stores the zero less one.
        """
        numbers = self._unpacked(self._stored.read(f"{path}.qweight").T).T  # (in, out)
        zeros = self._unpacked(self._stored.read(f"{path}.qzeros"))  # (groups, out)
        if self._zeros_are_less_one:
            zeros = (zeros + 1) & (2**self._bits - 1)
        scales = self._stored.read(f"{path}.scales").float()  # (groups, out)
        if f"{path}.g_idx" in self._stored.shapes():
            group = self._stored.read(f"{path}.g_idx").long()
            if group.min() < 0:  # which would count from the last group
                raise ValueError("g_idx has a negative group")
        else:
            group = torch.arange(len(numbers)) * len(scales) // len(numbers)
        return (scales[group] * (numbers - zeros[group])).T

    def _read_awq(self, path: str) -> Float[Tensor, "out in"]:
        """Return a matrix of AWQ, which has an order of its own inside each word."""
        numbers = self._unpacked(self._stored.read(f"{path}.qweight"))  # (in, out)
        zeros = self._unpacked(self._stored.read(f"{path}.qzeros"))  # (groups, out)
        scales = self._stored.read(f"{path}.scales").float()  # (groups, out)
        group = torch.arange(len(numbers)) * len(scales) // len(numbers)
        matrix = scales[group] * (_columns_in_order(numbers) - _columns_in_order(zeros)[group])
        return matrix.T

    def _unpacked(self, words: Int[Tensor, "n w"]) -> Int[Tensor, "n m"]:
        """Return the numbers that the words of each row hold, the lowest bits first."""
        shifts = torch.arange(0, BITS_OF_WORD, self._bits, dtype=torch.int32)
        numbers = (words[:, :, None] >> shifts) & (2**self._bits - 1)
        return numbers.flatten(1)

    def _state_of(self, name: str) -> str:
        """Return the name of the settings of a matrix of bitsandbytes with 4 bits, or ""."""
        for code in ("nf4", "fp4"):
            state = f"{name}.{NF4_STATE}{code}"
            if state in self._stored.shapes():
                return state
        return ""

    def _settings_of(self, name: str) -> FourBitSettings:
        """Return the settings of a matrix of bitsandbytes, which are JSON in a tensor of bytes."""
        text = bytes(self._stored.read(self._state_of(name)).tolist())
        settings: FourBitSettings = json.loads(text)
        return settings

    def _read_four_bits(self, name: str) -> Float[Tensor, "out in"]:
        """Return a matrix of bitsandbytes: a code of 16 values, times the largest of each block.

        The high bits of a byte come first. The largest values may be coded themselves, in bytes,
        with an offset.
        """
        settings = self._settings_of(name)
        packed = self._stored.read(name).view(torch.uint8).flatten().long()
        numbers = torch.stack([packed >> 4, packed & 15], dim=1).flatten()
        code = self._stored.read(f"{name}.quant_map").float()

        largest = self._stored.read(f"{name}.absmax")
        if f"{name}.nested_absmax" in self._stored.shapes():
            nested_code = self._stored.read(f"{name}.nested_quant_map").float()
            nested_largest = self._stored.read(f"{name}.nested_absmax").float()
            nested_block = torch.arange(len(largest)) // settings["nested_blocksize"]
            largest = nested_code[largest.long()] * nested_largest[nested_block]
            largest = largest + settings["nested_offset"]

        rows, columns = settings["shape"]
        numbers = numbers[: rows * columns]
        block = torch.arange(len(numbers)) // settings["blocksize"]
        matrix = code[numbers] * largest.float()[block]
        return matrix.view(rows, columns)


def _columns_in_order(numbers: Int[Tensor, "n m"]) -> Int[Tensor, "n m"]:
    """Return the columns of a matrix of AWQ in order."""
    words = numbers.view(len(numbers), -1, len(AWQ_ORDER))
    ordered = torch.empty_like(words)
    ordered[:, :, list(AWQ_ORDER)] = words
    return ordered.flatten(1)


def packed_settings(config_json: Mapping[str, object]) -> Mapping[str, object] | None:
    """Return the settings of packed weights that can be decoded, or None."""
    for section in (config_json, config_json.get("text_config")):
        if isinstance(section, Mapping):
            settings = section.get("quantization_config")
            if isinstance(settings, Mapping) and settings.get("quant_method") in METHODS:
                return settings
    return None
