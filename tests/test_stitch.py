"""The kinds of φ, their starts from closed forms, and how outputs are compared."""

import pytest
import torch
from torch import nn

from thinkalike import Stitch
from thinkalike.measures import compare_outputs, token_kl, token_loss


def jiggled(phi):
    with torch.no_grad():
        for weight in phi.parameters():
            weight.add_(0.3 * torch.randn_like(weight))
    return phi


def affine_of(phi, width):
    """Weight and bias of a map that is affine, read off its values."""
    shift = phi(torch.zeros(width))
    return (phi(torch.eye(width)) - shift).T, shift


def test_maps_keep_their_rank_or_lengths(float64):
    for kind in ("low_rank", "orthogonal"):
        torch.testing.assert_close(affine_of(Stitch(kind, 8, 8, rank=3), 8)[0], torch.eye(8))
    weight, _ = affine_of(jiggled(Stitch("low_rank", 8, 8, rank=3)), 8)
    assert torch.linalg.matrix_rank(weight - torch.eye(8)).item() == 3
    assert torch.linalg.matrix_rank(weight).item() == 8
    weight, shift = affine_of(jiggled(Stitch("orthogonal", 8, 8)), 8)
    torch.testing.assert_close(weight @ weight.T, torch.eye(8))
    assert shift.abs().max() > 0.01
    assert (weight - torch.eye(8)).abs().max() > 0.1


@pytest.mark.parametrize(("kind", "keeps_bias"), [("linear", False), ("affine", True), ("low_rank", True)])
@pytest.mark.parametrize("widths", [(8, 8), (8, 6)])
def test_a_start_is_the_map_that_was_given(float64, kind, keeps_bias, widths):
    goal, bias = torch.randn(widths[1], widths[0]), torch.randn(widths[1])
    phi = Stitch(kind, *widths, rank=min(widths))
    phi.start_from(goal, bias)
    weight, shift = affine_of(phi, widths[0])
    torch.testing.assert_close(weight, goal)
    torch.testing.assert_close(shift, bias if keeps_bias else torch.zeros(widths[1]))
    rotation, phi = torch.linalg.qr(torch.randn(8, 8)).Q, Stitch("orthogonal", 8, 8)
    phi.start_from(rotation, torch.ones(8))
    torch.testing.assert_close(affine_of(phi, 8)[0], rotation)


def test_a_low_rank_start_is_the_nearest_of_its_rank(float64):
    goal = torch.eye(8) + torch.randn(8, 8)
    phi = Stitch("low_rank", 8, 8, rank=2)
    phi.start_from(goal, torch.zeros(8))
    left, singular, right = torch.linalg.svd(goal - torch.eye(8))
    wanted = torch.eye(8) + left[:, :2] * singular[:2] @ right[:2]
    torch.testing.assert_close(affine_of(phi, 8)[0], wanted)


def test_unequal_widths_and_unknown_kinds_are_refused():
    for kind in ("orthogonal", "identity", "liner"):
        with pytest.raises(ValueError, match=kind):
            Stitch(kind, 4, 5)


@pytest.mark.parametrize("chunk", [1, 7, 100])
def test_kl_is_that_of_torch_distributions(float64, chunk):
    finish, states, reference = nn.Linear(6, 20), torch.randn(30, 6, requires_grad=True), torch.randn(30, 6)
    p, q = (torch.distributions.Categorical(logits=finish(rows)) for rows in (reference, states))
    wanted = torch.distributions.kl_divergence(p, q)
    ours = token_kl(states, finish, reference, chunk)
    torch.testing.assert_close(ours, wanted)
    outer = torch.randn(30)
    (mine,) = torch.autograd.grad(ours, states, outer)
    (theirs,) = torch.autograd.grad(wanted, states, outer)
    torch.testing.assert_close(mine, theirs)
    assert token_kl(reference, finish, reference).abs().max() < 1e-14


@pytest.mark.parametrize("chunk", [1, 7, 100])
def test_outputs_are_compared_by_loss_kl_and_top_token(float64, chunk):
    finish, reference, targets = nn.Linear(6, 20), torch.randn(30, 6), torch.randint(20, (30,))
    ways = torch.stack([reference, reference + 0.2 * torch.randn(30, 6), torch.randn(30, 6)])
    loss, kl, top = compare_outputs(ways, finish, reference, targets, chunk)
    for number, way in enumerate(ways):
        torch.testing.assert_close(loss[number], token_loss(way, finish, targets))
        torch.testing.assert_close(kl[number], token_kl(way, finish, reference))
    assert torch.equal(top, finish(ways).argmax(-1) == finish(reference).argmax(-1))
    assert top[0].all()
    assert 0 < top[1].double().mean() < 1


@pytest.mark.parametrize("kind", ["identity", "linear", "affine", "low_rank", "orthogonal"])
@pytest.mark.parametrize("widths", [(8, 8), (8, 6), (6, 9)])
def test_every_kind_folds_into_one_affine_map(float64, kind, widths):
    if kind in ("identity", "orthogonal") and widths != (8, 8):
        return
    phi, states = jiggled(Stitch(kind, *widths, rank=3)), torch.randn(7, widths[0])
    torch.testing.assert_close(phi.affine()(states), phi(states))


@pytest.mark.parametrize("norm", ["pre", "post"])
def test_a_layer_norm_cannot_be_folded(norm):
    with pytest.raises(ValueError, match=f"norm={norm}"):
        Stitch("linear", 8, 8, norm=norm).affine()
