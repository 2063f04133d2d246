"""Loss, intervals and the stitch against PyTorch, SciPy and their own definitions."""

import math

import numpy as np
import pytest
import scipy.stats
import torch
from torch import nn
from torch.nn.functional import cross_entropy, layer_norm

from thinkalike import StitchModule
from thinkalike.measures import bootstrap_interval, sum_by_document, token_loss, unigram_entropy
from thinkalike.memory import LiveBytes

N, D, VOCABULARY = 37, 8, 50
CHUNKS = (1, 5, 1024)


class Head(nn.Module):
    """A final norm and an unembedding, as `finish` is."""

    def __init__(self, **where):
        super().__init__()
        self.norm, self.out = nn.LayerNorm(D, **where), nn.Linear(D, VOCABULARY, **where)

    def forward(self, states):
        return self.out(self.norm(states))


def drawn(dtype=torch.float64, device="cpu"):
    states = torch.randn(N, D, dtype=torch.float64).to(device, dtype)
    return states, Head(dtype=torch.float64).to(device, dtype), torch.randint(VOCABULARY, (N,)).to(device)


@pytest.mark.parametrize("chunk", CHUNKS)
def test_the_gradient_is_autograds_for_any_chunk_and_weight(chunk, device):
    states, head, targets = drawn(device=device)
    states.requires_grad_()
    weights = torch.randn(N, dtype=torch.float64, device=device)
    (expected,) = torch.autograd.grad(cross_entropy(head(states), targets, reduction="none") @ weights, states)
    (got,) = torch.autograd.grad(token_loss(states, head, targets, chunk) @ weights, states)
    torch.testing.assert_close(got, expected, rtol=1e-11, atol=1e-12)


def test_a_second_derivative_is_refused_rather_than_wrong():
    """The first one is taken in the forward pass, so nothing could be differentiated again."""
    states, head, targets = drawn()
    states.requires_grad_()
    (first,) = torch.autograd.grad(token_loss(states, head, targets).square().sum(), states, create_graph=True)
    with pytest.raises(RuntimeError):
        first.square().sum().backward()


def test_the_weights_of_finish_get_no_gradient_even_if_they_ask():
    states, head, targets = drawn()
    before = token_loss(states, head, targets)
    assert all(weight.requires_grad for weight in head.parameters())
    assert not before.requires_grad, "without states that need a gradient there is no graph"
    token_loss(states.requires_grad_(), head, targets).sum().backward()
    assert states.grad is not None
    assert all(weight.grad is None for weight in head.parameters())


@pytest.mark.parametrize(
    ("dtype", "out", "tolerance"),
    [
        (torch.float64, torch.float64, 1e-12),
        (torch.float32, torch.float32, 2e-6),
        (torch.bfloat16, torch.float32, 5e-2),  # logits of size 3 in eight bits
    ],
)
@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("chunk", CHUNKS)
def test_the_loss_is_torchs_cross_entropy_for_any_chunk(dtype, out, tolerance, grad, chunk, device):
    states, head, targets = drawn(dtype, device)
    got = token_loss(states.requires_grad_(grad), head, targets, chunk)
    assert (got.dtype, got.requires_grad) == (out, grad)
    exact = cross_entropy(head.double()(states.double()), targets, reduction="none")
    torch.testing.assert_close(got.detach().double(), exact.detach(), rtol=0, atol=tolerance)
    if grad:
        got.sum().backward()
        (reference,) = torch.autograd.grad(exact.sum(), states)
        assert states.grad.dtype == dtype
        torch.testing.assert_close(states.grad, reference.to(dtype), rtol=0, atol=tolerance)


@pytest.mark.parametrize("chunk", [7, 64])
def test_a_chunk_needs_two_logits_of_memory(chunk, device):
    n, d, v = 50, 8, 4000
    head, targets = torch.nn.Linear(d, v, device=device).requires_grad_(False), torch.randint(v, (n,), device=device)
    states = torch.randn(n, d, device=device, requires_grad=True)
    with LiveBytes(torch.device(device)) as live:
        token_loss(states, head, targets, chunk)
    assert live.peak < 2.1 * 4 * min(chunk, n) * v


def test_an_inplace_unsafe_final_map_has_autograds_gradient(float64):
    """A soft cap keeps its output, over which nothing may be written; and the caller's logits stay as they were."""
    head, targets = torch.nn.Linear(4, 30).requires_grad_(False), torch.randint(30, (9,))
    states, seen = torch.randn(9, 4, requires_grad=True), []

    def capped(part):
        seen.append(5 * torch.tanh(head(part) / 5))
        return seen[-1]

    (ours,) = torch.autograd.grad(token_loss(states, capped, targets, 4).sum(), states)
    assert torch.equal(seen[0], 5 * torch.tanh(head(states[:4]) / 5))
    (theirs,) = torch.autograd.grad(cross_entropy(capped(states), targets, reduction="sum"), states)
    torch.testing.assert_close(ours, theirs)


def test_unigram_entropy_is_scipys():
    tokens = torch.multinomial(torch.arange(1.0, 31.0), 4000, replacement=True)
    counts = np.bincount(tokens.numpy())
    assert unigram_entropy(tokens) == pytest.approx(scipy.stats.entropy(counts), rel=1e-12)
    assert unigram_entropy(torch.full((9,), 7, dtype=torch.int32)) == 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_sum_by_document_is_a_loop(dtype, device):
    values, owners = torch.randn(2, 3, 40).to(device, dtype), torch.randint(6, (40,)).to(device)
    got = sum_by_document(values, owners.int(), 8)
    assert got.shape == (2, 3, 8)
    assert got.dtype == torch.float64
    for document in range(8):
        expected = values.double()[..., owners == document].sum(-1)
        torch.testing.assert_close(got[..., document], expected, rtol=1e-13, atol=1e-13)


def per_document(documents=40, layers=(2,)):
    counts = torch.randint(5, 200, (documents,)).double()
    rates = 3 + torch.randn(*layers, documents, dtype=torch.float64)
    return rates * counts, counts


NEEDS_TWO = "an interval over documents needs two of them, not 1"


@pytest.mark.parametrize(
    ("counts", "message"),
    [([], "sums has shape .* without columns"), ([5.0], NEEDS_TWO), ([0.0, 7.0, 0.0], NEEDS_TWO)],
)
def test_fewer_than_two_documents_have_no_interval(counts, message):
    with pytest.raises(ValueError, match=message):
        bootstrap_interval(torch.ones(2, len(counts)), torch.tensor(counts))


def test_one_seed_gives_the_same_bits_and_another_does_not():
    (sums, counts), state = per_document(), torch.get_rng_state()
    first, again, other = (bootstrap_interval(sums, counts, seed=seed) for seed in (3, 3, 4))
    assert all(torch.equal(left, right) for left, right in zip(first, again, strict=True))
    assert not torch.equal(first.low, other.low)
    assert torch.equal(torch.get_rng_state(), state), "the caller's random numbers are not used up"


@pytest.mark.parametrize("kind", ["identity", "linear", "affine"])
def test_a_stitch_of_equal_widths_starts_as_the_identity(kind, float64):
    states = torch.randn(3, 5, D)
    assert torch.equal(StitchModule(kind, D, D)(states), states)


@pytest.mark.parametrize("kind", ["linear", "affine"])
@pytest.mark.parametrize("widths", [(8, 12), (12, 8)])
def test_a_stitch_of_unequal_widths_starts_orthogonal(kind, widths, float64):
    weight = StitchModule(kind, *widths)(torch.eye(widths[0]))  # rows: where each direction goes
    gram = weight @ weight.T if widths[0] < widths[1] else weight.T @ weight
    torch.testing.assert_close(gram, torch.eye(8), rtol=0, atol=1e-12)


def test_the_seed_decides_the_start_and_nothing_else_does():
    state = torch.get_rng_state()
    first = StitchModule("linear", 8, 12, seed=1).map.weight
    torch.manual_seed(99)
    assert torch.equal(StitchModule("linear", 8, 12, seed=1).map.weight, first)
    assert not torch.equal(StitchModule("linear", 8, 12, seed=2).map.weight, first)
    torch.set_rng_state(state)


@pytest.mark.parametrize("kind", ["linear", "affine"])
@pytest.mark.parametrize("norm", ["none", "pre", "post"])
@pytest.mark.parametrize("widths", [(8, 8), (8, 12)])
def test_a_stitch_is_its_formula(kind, norm, widths, float64):
    """h + W h (+ b) or W h (+ b), with torch's LayerNorm before or after it."""
    stitch, states = StitchModule(kind, *widths, norm=norm), torch.randn(3, 5, 8)
    for weight in stitch.parameters():
        nn.init.normal_(weight)
    named = dict(stitch.named_parameters())
    assert ("map.bias" in named) == (kind == "affine")
    h = layer_norm(states, (8,), named["pre.weight"], named["pre.bias"]) if norm == "pre" else states
    expected = h @ named["map.weight"].T + named.get("map.bias", 0) + (h if widths == (8, 8) else 0)
    if norm == "post":
        expected = layer_norm(expected, widths[1:], named["post.weight"], named["post.bias"])
    torch.testing.assert_close(stitch(states), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.ci_slow
def test_fewer_tokens_of_a_large_vocabulary_have_logits_at_once():
    states, seen = torch.randn(40, 4), []

    def finish(rows):
        seen.append(len(rows))
        return rows.new_zeros(len(rows), 1).expand(-1, 2**24)

    losses = token_loss(states, finish, torch.zeros(40, dtype=torch.long))
    assert max(seen) == 2
    torch.testing.assert_close(losses, torch.full((40,), math.log(2**24)))
