"""Copies of fewer bits: they depend on what a model computes, and not on how its weights are written."""

from copy import deepcopy
from dataclasses import replace

import pytest
import torch
import transformers

import tiny
from conftest import with_slow
from fake_device import FakeDevice
from thinkalike.errors import ModelError
from thinkalike.models.load import load_model
from thinkalike.models.rounding import balanced_sizes, can_be_rounded, rounded_copy
from thinkalike.models.stream_basis import StreamBasis, _principal_axes, stream_basis
from thinkalike.models.variants import is_spread, untrained_with_embedding, variant
from two_gpus import GPU, OTHER


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


@pytest.fixture
def spread_model(tmp_path):
    """The same model twice: on one device, and with the hooks by which accelerate spreads a model over several."""
    from accelerate import dispatch_model

    torch.manual_seed(0)
    size = {"vocab_size": len(tiny.tokenizer()), "num_hidden_layers": 2, "hidden_size": 32, "intermediate_size": 48}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64}
    module = transformers.LlamaForCausalLM(transformers.LlamaConfig(**size, **heads))
    tiny.enlarge(module)
    module.save_pretrained(tmp_path)
    tiny.tokenizer().save_pretrained(tmp_path)
    plain, spread = load_model(tmp_path), load_model(tmp_path)
    places = ["model.embed_tokens", "model.layers.0", "model.layers.1", "model.norm", "model.rotary_emb", "lm_head"]
    dispatch_model(spread.module, dict.fromkeys(places, "cpu"), force_hooks=True)
    assert spread.module.hf_device_map
    assert hasattr(spread.module.model.layers[0], "_hf_hook")
    return plain, spread


def test_a_model_that_is_spread_over_devices_has_the_same_copies(spread_model):
    plain, spread = spread_model
    assert is_spread(spread)
    assert not is_spread(plain)
    assert stream_basis(spread) is not None
    untrained = untrained_with_embedding(spread, 1)
    copy = rounded_copy(spread, 3)
    assert hasattr(copy.module.model.layers[0], "_hf_hook")
    with torch.no_grad():
        for weight in spread.module.parameters():
            if weight is not spread.module.model.embed_tokens.weight:  # which the untrained copy shares
                weight.zero_()
    assert difference(copy, rounded_copy(plain, 3)) == 0
    assert difference(copy, plain) > 0.01, "control"
    assert difference(untrained, untrained_with_embedding(plain, 1)) == 0


def test_offloaded_weights_are_not_rounded(spread_model):
    plain, _ = spread_model
    assert can_be_rounded(plain)
    plain.module.lm_head.to("meta")
    assert not can_be_rounded(plain)
    with pytest.raises(ModelError, match=r"device_map.* if it offloads weights"):
        rounded_copy(plain, 3)


def test_weights_of_two_gpus_are_expressed_in_one_basis():
    """Mixing devices is an error of the fake GPUs, as it is on two that are there."""
    generator = torch.Generator().manual_seed(0)
    first, second = (torch.randn(8, 8, generator=generator) for _ in range(2))
    basis = StreamBasis(_principal_axes([first, second]), {"reads": second[0]}, frozenset(), frozenset(["writes"]), "e")
    with FakeDevice():
        axes = _principal_axes([first.to(GPU), second.to(OTHER)])
        on_gpus = replace(basis, axes=axes, gains={"reads": second[0].to(GPU)})
        for name in ("reads", "writes", "e"):
            expressed = on_gpus.expressed(name, first.to(OTHER))
            restored = on_gpus.restored(name, expressed)
            assert expressed.device == restored.device == torch.device(OTHER)
            assert torch.equal(expressed.cpu(), basis.expressed(name, first))
