"""Packed weights: small files in the formats of GPTQ, AWQ and bitsandbytes, written number by number."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

import thinkalike
import tiny
from in_memory_weights import InMemory
from thinkalike.errors import ModelError
from thinkalike.measures.seeds import seeded
from thinkalike.models.packed_weights import DecodedWeights, packed_settings

GROUP = 16
WRITTEN_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)  # of the columns in a word of AWQ
Tensors = dict[str, Tensor]


def signed(word: int) -> int:
    """A word of 32 bits as the signed integer that files hold."""
    return word - 2**32 if word >= 2**31 else word


def word_of(numbers: list[int], bits: int) -> int:
    return signed(sum(number << (bits * position) for position, number in enumerate(numbers)))


def rounded(matrix: Tensor, bits: int, group: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Numbers (in, out), zeros and scales (groups, out) of (out, in), and the matrix that they stand for."""
    values = matrix.T
    groups = int(group.max()) + 1
    zeros = torch.empty(groups, values.shape[1], dtype=torch.long)
    scales = torch.empty(groups, values.shape[1], dtype=torch.float16)
    for number in range(groups):
        rows = values[group == number]
        low, high = rows.amin(0).clamp(max=0), rows.amax(0).clamp(min=0)
        scales[number] = ((high - low) / (2**bits - 1)).half()
        zeros[number] = (-low / scales[number].float()).round().long().clamp(0, 2**bits - 1)
    numbers = (values / scales.float()[group]).round().long() + zeros[group]
    numbers = numbers.clamp(0, 2**bits - 1)
    return numbers, zeros, scales, (scales.float()[group] * (numbers - zeros[group])).T


def packed_rows(numbers: Tensor, bits: int) -> Tensor:
    """Words with consecutive numbers of a row, the lowest bits first."""
    count = 32 // bits
    rows = []
    for row in numbers.tolist():
        rows.append([word_of(row[start : start + count], bits) for start in range(0, len(row), count)])
    return torch.tensor(rows, dtype=torch.int32)


def gptq(
    name: str, matrix: Tensor, bits: int = 4, less_one: bool = True, order: Tensor | None = None
) -> tuple[Tensors, Tensor]:
    """As AutoGPTQ saves a linear map; `order` is the group of each input (act-order)."""
    group = torch.arange(matrix.shape[1]) // GROUP if order is None else order
    numbers, zeros, scales, decoded = rounded(matrix, bits, group)
    stored_zeros = (zeros - 1) % 2**bits if less_one else zeros
    tensors = {
        f"{name}.qweight": packed_rows(numbers.T, bits).T.contiguous(),
        f"{name}.qzeros": packed_rows(stored_zeros, bits),
        f"{name}.scales": scales,
        f"{name}.g_idx": group.int(),
    }
    return tensors, decoded


def awq(name: str, matrix: Tensor) -> tuple[Tensors, Tensor]:
    """As AutoAWQ saves a linear map (version GEMM)."""
    numbers, zeros, scales, decoded = rounded(matrix, 4, torch.arange(matrix.shape[1]) // GROUP)

    def reordered(values: Tensor) -> Tensor:
        columns = [word + column for word in range(0, values.shape[1], 8) for column in WRITTEN_ORDER]
        return packed_rows(values[:, columns], 4)

    tensors = {f"{name}.qweight": reordered(numbers), f"{name}.qzeros": reordered(zeros), f"{name}.scales": scales}
    return tensors, decoded


def four_bits(name: str, matrix: Tensor, nested: bool = True) -> tuple[Tensors, Tensor]:
    """As bitsandbytes saves a Linear4bit, with or without double quantisation."""
    code = torch.linspace(-1, 1, 16) ** 3
    blocks = matrix.reshape(-1, 64)
    largest = blocks.abs().amax(1)
    settings = {"quant_type": "nf4", "blocksize": 64, "dtype": "float16", "shape": list(matrix.shape)}
    tensors: Tensors = {}
    if nested:
        offset = float(largest.mean())
        nested_code = torch.linspace(-1, 1, 256)
        nested_largest = torch.stack([part.abs().max() for part in (largest - offset).split(256)])
        block = torch.arange(len(largest)) // 256
        numbers_of_largest = ((largest - offset) / nested_largest[block])[:, None].sub(nested_code).abs().argmin(1)
        largest = nested_code[numbers_of_largest] * nested_largest[block] + offset
        settings |= {"nested_blocksize": 256, "nested_dtype": "float32", "nested_offset": offset}
        tensors[f"{name}.weight.absmax"] = numbers_of_largest.to(torch.uint8)
        tensors[f"{name}.weight.nested_absmax"] = nested_largest
        tensors[f"{name}.weight.nested_quant_map"] = nested_code
    else:
        tensors[f"{name}.weight.absmax"] = largest
    numbers = (blocks / largest[:, None])[:, :, None].sub(code).abs().argmin(2)
    flat = numbers.flatten().tolist()
    packed = [16 * first + second for first, second in zip(flat[::2], flat[1::2], strict=True)]
    tensors[f"{name}.weight"] = torch.tensor(packed, dtype=torch.uint8)[:, None]
    tensors[f"{name}.weight.quant_map"] = code
    tensors[f"{name}.weight.quant_state.bitsandbytes__nf4"] = torch.tensor(
        list(json.dumps(settings).encode()), dtype=torch.uint8
    )
    return tensors, (code[numbers] * largest[:, None]).view(matrix.shape)


def eight_bits(name: str, matrix: Tensor) -> tuple[Tensors, Tensor]:
    """As bitsandbytes saves a Linear8bitLt."""
    largest = matrix.abs().amax(1)
    numbers = (matrix / largest[:, None] * 127).round()
    tensors = {
        f"{name}.weight": numbers.to(torch.int8),
        f"{name}.SCB": largest,
        f"{name}.weight_format": torch.tensor(0, dtype=torch.uint8),
    }
    return tensors, numbers * largest[:, None] / 127


Writer = Callable[[str, Tensor], tuple[Tensors, Tensor]]
FORMATS: dict[str, tuple[dict[str, object], Writer]] = {
    "gptq": ({"quant_method": "gptq", "bits": 4, "group_size": GROUP}, gptq),
    "gptq of 8 bits": ({"quant_method": "gptq", "bits": 8, "group_size": GROUP}, lambda *args: gptq(*args, bits=8)),
    "gptq of 2 bits": ({"quant_method": "gptq", "bits": 2, "group_size": GROUP}, lambda *args: gptq(*args, bits=2)),
    "gptq, second format": (
        {"quant_method": "gptq", "bits": 4, "checkpoint_format": "gptq_v2"},
        lambda *args: gptq(*args, less_one=False),
    ),
    "awq": ({"quant_method": "awq", "bits": 4, "group_size": GROUP, "version": "gemm"}, awq),
    "bitsandbytes": ({"quant_method": "bitsandbytes", "load_in_4bit": True}, four_bits),
    "bitsandbytes, one step": (
        {"quant_method": "bitsandbytes", "load_in_4bit": True},
        lambda *args: four_bits(*args, nested=False),
    ),
    "bitsandbytes of 8 bits": ({"quant_method": "bitsandbytes", "load_in_8bit": True}, eight_bits),
}


@pytest.mark.parametrize("name", FORMATS)
def test_a_packed_matrix_is_the_one_that_its_numbers_stand_for(name):
    settings, write = FORMATS[name]
    matrix = torch.randn(32, 64, generator=seeded(0))
    tensors, expected = write("map", matrix)
    weights = DecodedWeights(InMemory(tensors | {"norm.weight": torch.ones(4)}), settings)
    assert weights.shapes() == {"map.weight": (32, 64), "norm.weight": (4,)}
    assert torch.allclose(weights.read("map.weight"), expected, atol=1e-5)
    assert torch.equal(weights.read("norm.weight"), torch.ones(4))
    least = 0.8 if "2 bits" in name else 0.95
    assert torch.cosine_similarity(weights.read("map.weight").flatten(), matrix.flatten(), dim=0) > least


def test_inputs_of_gptq_may_be_of_groups_in_any_order():
    order = (torch.arange(64) // GROUP)[torch.randperm(64, generator=seeded(1))]
    tensors, expected = gptq("map", torch.randn(32, 64, generator=seeded(0)), order=order)
    weights = DecodedWeights(InMemory(tensors), {"quant_method": "gptq", "bits": 4})
    assert torch.allclose(weights.read("map.weight"), expected, atol=1e-5)


def test_a_zero_of_gptq_wraps_around():
    """Files of the first format hold 15 for a zero of 0."""
    tensors, expected = gptq("map", torch.rand(8, 16, generator=seeded(0)) + 0.5)
    weights = DecodedWeights(InMemory(tensors), {"quant_method": "gptq", "bits": 4})
    assert torch.allclose(weights.read("map.weight"), expected, atol=1e-5)
    assert expected.min() > 0.4


def test_bits_that_lie_across_words_are_refused_in_one_line():
    with pytest.raises(ModelError, match="weights of gptq with 3 bits cannot be decoded, only those with 2, 4, 8 bits"):
        DecodedWeights(InMemory({}), {"quant_method": "gptq", "bits": 3})


def test_other_methods_are_left_to_their_libraries():
    assert packed_settings({"quantization_config": {"quant_method": "fp8"}}) is None
    assert packed_settings({"model_type": "llama"}) is None
    nested = {"text_config": {"quantization_config": {"quant_method": "gptq"}}}
    assert packed_settings(nested) == {"quant_method": "gptq"}


@pytest.fixture(scope="module")
def llama(tmp_path_factory) -> Path:
    return tiny.write_llama(tmp_path_factory.mktemp("packed") / "base", hidden_size=128)


@pytest.mark.parametrize(
    "name", ["gptq", "awq", pytest.param("bitsandbytes", marks=pytest.mark.ci_slow), "bitsandbytes of 8 bits"]
)
def test_a_packed_copy_comes_from_its_origin(name, llama, tmp_path):
    settings, write = FORMATS[name]
    weights: Tensors = {}
    for tensor_name, tensor in load_file(llama / "model.safetensors").items():
        if tensor.dim() == 2 and ".layers." in tensor_name:
            weights |= write(tensor_name.removesuffix(".weight"), tensor)[0]
        else:
            weights[tensor_name] = tensor
    copy = tmp_path / "packed"
    shutil.copytree(llama, copy)
    save_file({key: value.contiguous() for key, value in weights.items()}, copy / "model.safetensors")
    config = json.loads((copy / "config.json").read_text())
    (copy / "config.json").write_text(json.dumps(config | {"quantization_config": settings}))

    for pair in ((llama, copy), (copy, llama)):
        origins = thinkalike.lineage(*pair, similar_units=False).tables["origins"]
        assert list(origins["source_layer"]) == [0, 1]
        assert (origins["in_place"] >= 250).all()
        assert (origins["p_corrected"] < 1e-6).all()
    assert math.isclose(origins["units"].max(), 256)
