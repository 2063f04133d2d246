"""Copies of fewer bits: they depend on what a model computes, and not on how its weights are written."""

from copy import deepcopy

import pytest
import torch

import tiny
from thinkalike.models.load import balanced_sizes, load_model, rounded, variant


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
@pytest.mark.parametrize("bits", [3, 5])
def test_copies_do_not_depend_on_how_weights_are_written(rewrite, bits):
    model = load_model("gelu-3l-mini")
    module = deepcopy(model.module)
    rewrite(module)
    rewritten = variant(model, module, "rewritten", is_proved=True)
    lost = difference(model, rounded(model, bits))
    assert difference(model, rewritten) < 1e-3 * lost, "control: the same function"
    assert difference(rounded(model, bits), rounded(rewritten, bits)) < 0.05 * lost


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
    lost = [difference(model, rounded(model, bits)) for bits in (2, 3, 4, 5, 6, 8)]
    assert lost == sorted(lost, reverse=True)
    assert lost[-1] < 0.05 * lost[0]


@torch.no_grad()
def test_weights_may_lie_in_memory_in_any_order():
    model = tiny.frozen()
    weight = torch.randn(3, 4, 5, generator=torch.Generator().manual_seed(0))
    model.module.plain = torch.nn.Parameter(weight)
    model.module.transposed = torch.nn.Parameter(weight.transpose(1, 2).contiguous().transpose(1, 2))
    assert not model.module.transposed.is_contiguous()
    module = rounded(model, 3).module
    assert not torch.equal(module.plain, weight)
    assert torch.equal(module.plain, module.transposed)
