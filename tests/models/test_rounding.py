"""Copies of fewer bits: they depend on what a model computes, and not on how its weights are written."""

from copy import deepcopy

import pytest
import torch
import transformers

import tiny
from conftest import with_slow
from thinkalike.models.load import load_model
from thinkalike.models.rounding import balanced_sizes, rounded_copy
from thinkalike.models.stream_basis import stream_basis
from thinkalike.models.variants import variant


def spread(count, seed):
    """Return positive numbers that spread over about two orders of magnitude."""
    return torch.randn(count, generator=torch.Generator().manual_seed(seed)).exp()


@torch.no_grad()
def with_rescaled_values(module):
    """Compute each value dimension larger or smaller, and read it smaller or larger."""
    for layer in module.layers:
        scale = spread(len(layer.attn.v.weight), 1)
        layer.attn.v.weight.mul_(scale[:, None])
        layer.attn.o.weight.div_(scale)
        if layer.attn.v.bias is not None:
            layer.attn.v.bias.mul_(scale)


@torch.no_grad()
def with_other_gains(module):
    """Multiply the gains of a norm, and divide what reads it."""
    for layer in module.layers:
        gain = spread(len(layer.ln1.weight), 2)
        layer.ln1.weight.mul_(gain)
        layer.ln1.bias.mul_(gain)
        for reader in (layer.attn.q, layer.attn.k, layer.attn.v):
            reader.weight.div_(gain)


@torch.no_grad()
def with_other_order(module):
    """Permute the hidden units of each MLP."""
    for layer in module.layers:
        order = torch.randperm(len(layer.mlp.fc_in.weight), generator=torch.Generator().manual_seed(3))
        layer.mlp.fc_in.weight.copy_(layer.mlp.fc_in.weight[order])
        layer.mlp.fc_in.bias.copy_(layer.mlp.fc_in.bias[order])
        layer.mlp.fc_out.weight.copy_(layer.mlp.fc_out.weight[:, order])


def difference(first, second):
    """Return the root mean square difference of the logits of two models."""
    tokens = torch.arange(48).reshape(2, 24)
    return float((first.full(tokens) - second.full(tokens)).square().mean().sqrt())


@pytest.mark.parametrize("rewrite", [with_rescaled_values, with_other_gains, with_other_order])
@pytest.mark.parametrize("bits", with_slow([3, 5], 5))
def test_copies_do_not_depend_on_how_weights_are_written(rewrite, bits):
    model = load_model("gelu-3l-mini")
    module = deepcopy(model.module)
    rewrite(module)
    rewritten = variant(model, module, "rewritten", is_proved=True)
    lost = difference(model, rounded_copy(model, bits))
    assert difference(model, rewritten) < 1e-3 * lost, "control: the same function"
    assert difference(rounded_copy(model, bits), rounded_copy(rewritten, bits)) < 0.05 * lost


@pytest.mark.parametrize("shape", [(40, 30), (30, 40), (5, 1), (1, 5), (9000, 4)])
def test_rows_and_columns_of_balanced_matrices_are_of_one_size(shape):
    matrix = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    matrix = matrix * spread(shape[0], 1)[:, None] * spread(shape[1], 2)
    rows, columns = balanced_sizes(matrix)
    squares = (matrix / rows[:, None] / columns).double().square()
    assert squares.mean(0).sqrt() == pytest.approx(torch.ones(shape[1]).numpy(), rel=1e-3)
    assert squares.mean(1).sqrt() == pytest.approx(torch.ones(shape[0]).numpy(), rel=1e-3)


def test_rows_and_columns_of_zeros_stay():
    matrix = torch.randn(6, 5, generator=torch.Generator().manual_seed(0))
    matrix[2] = 0
    matrix[:, 3] = 0
    rows, columns = balanced_sizes(matrix)
    assert rows[2] == columns[3] == 1
    assert rows.isfinite().all()
    assert columns.isfinite().all()


def test_fewer_bits_lose_more():
    model = tiny.frozen()
    lost = [difference(model, rounded_copy(model, bits)) for bits in (2, 3, 4, 5, 6, 8)]
    assert lost == sorted(lost, reverse=True)
    assert lost[-1] < 0.05 * lost[0]


@torch.no_grad()
def test_weights_may_lie_in_memory_in_any_order():
    model = tiny.frozen()
    weight = torch.randn(3, 4, 5, generator=torch.Generator().manual_seed(0))
    model.module.plain = torch.nn.Parameter(weight)
    model.module.transposed = torch.nn.Parameter(weight.transpose(1, 2).contiguous().transpose(1, 2))
    assert not model.module.transposed.is_contiguous()
    module = rounded_copy(model, 3).module
    assert not torch.equal(module.plain, weight)
    assert torch.equal(module.plain, module.transposed)


@torch.no_grad()
def rms_norm_model(**settings):
    """Return a random Llama with gains, and a stream of which some directions are much larger than others."""
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=len(tiny.tokenizer()), hidden_size=32, intermediate_size=64, num_hidden_layers=3,
        num_attention_heads=4, num_key_value_heads=2, **settings
    )  # fmt: skip
    module = transformers.LlamaForCausalLM(config)
    sizes = spread(32, 4)
    module.model.embed_tokens.weight.mul_(sizes * 50)
    for layer in module.model.layers:
        layer.input_layernorm.weight.copy_(spread(32, 5))
        layer.post_attention_layernorm.weight.copy_(spread(32, 6))
        layer.self_attn.o_proj.weight.mul_(sizes[:, None] * 5)
        layer.mlp.down_proj.weight.mul_(sizes[:, None] * 5)
    module.model.norm.weight.copy_(0.01 * spread(32, 8))  # logits stay small
    return frozen(module)


def frozen(module):
    return load_model(module, tiny.tokenizer())


@torch.no_grad()
def with_rotated_stream(model):
    """Return a Llama whose gains are folded into what reads them, and whose stream is rotated; and the rotation."""
    module = deepcopy(model.module)
    width = model.d_model
    random = torch.randn(width, width, generator=torch.Generator().manual_seed(7), dtype=torch.float64)
    rotation = torch.linalg.qr(random).Q
    for layer in module.model.layers:
        readers = {
            layer.input_layernorm: (layer.self_attn.q_proj, layer.self_attn.k_proj, layer.self_attn.v_proj),
            layer.post_attention_layernorm: (layer.mlp.gate_proj, layer.mlp.up_proj),
        }
        for norm, maps in readers.items():
            for reader in maps:
                reader.weight.copy_((reader.weight * norm.weight).double() @ rotation)
            norm.weight.fill_(1)
        for writer in (layer.self_attn.o_proj, layer.mlp.down_proj):
            writer.weight.copy_(rotation.T @ writer.weight.double())
    head = (module.lm_head.weight * module.model.norm.weight).double() @ rotation
    module.lm_head.weight = torch.nn.Parameter(head.float())
    module.model.norm.weight.fill_(1)
    embedding = module.model.embed_tokens.weight
    embedding.copy_(embedding.double() @ rotation)
    return frozen(module), rotation.float()


@pytest.mark.parametrize("bits", with_slow([3, 5], 5))
@pytest.mark.parametrize("tied", [False, True])
def test_copies_do_not_depend_on_the_basis_of_the_stream(bits, tied):
    model = rms_norm_model(tie_word_embeddings=tied)
    rotated, rotation = with_rotated_stream(model)
    tokens = torch.arange(48).reshape(2, 24)
    states = model.head(tokens, 2)
    size = states.norm()
    lost = (rounded_copy(model, bits).head(tokens, 2) - states).norm()
    assert (rotated.head(tokens, 2) - states @ rotation).norm() < 1e-4 * size, "control: the same function"
    copies = rounded_copy(rotated, bits).head(tokens, 2) - rounded_copy(model, bits).head(tokens, 2) @ rotation
    assert copies.norm() < 0.05 * lost


@torch.no_grad()
def test_gains_of_zero_read_nothing():
    model = rms_norm_model()
    for layer in model.module.model.layers:
        layer.input_layernorm.weight[3] = 0
    assert stream_basis(model) is not None
    tokens = torch.arange(48).reshape(2, 24)
    states = model.head(tokens, 2)
    lost = (rounded_copy(model, 8).head(tokens, 2) - states).norm()
    assert lost < 0.05 * states.norm()


@torch.no_grad()
def test_a_stream_that_cannot_be_rotated_has_no_basis():
    model = rms_norm_model()
    direction = torch.zeros(32)
    direction[5] = 10
    model.module.model.layers[1].register_forward_hook(
        lambda block, inputs, output: output + direction * output[..., 4:5].abs()
    )
    assert stream_basis(model) is None
    assert stream_basis(load_model("gelu-3l-mini")) is None, "its norms subtract a mean"
