"""HSIC against its definition as a U-statistic, against its formula written out, and over many layers at once."""

import itertools

import pytest
import torch

from thinkalike.measures import hsic0, hsic1, kernel_alignment
from thinkalike.measures.contract import Blocks
from thinkalike.measures.kernel_alignment import Tiling, all_hsics, dense_statistics, linear_statistics

pytestmark = pytest.mark.usefixtures("float64")


def grams(n, *widths):
    """Of centred rows."""
    rows = [torch.randn(n, width) for width in widths]
    return [(x - x.mean(0)) @ (x - x.mean(0)).T for x in rows]


def u_statistic(K, L):
    """Mean of K_ij L_ij + K_ij L_qr - 2 K_ij L_iq over all ordered 4-tuples of different rows (Song et al. 2012)."""
    i, j, q, r = torch.tensor(list(itertools.permutations(range(len(K)), 4))).T
    return (K[i, j] * (L[i, j] + L[q, r] - 2 * L[i, q])).mean()


def song(K, L):
    """Equation 5, term by term."""
    n = len(K)
    K, L = K.clone().fill_diagonal_(0), L.clone().fill_diagonal_(0)
    one = torch.ones(n)
    terms = (K @ L).trace(), (one @ K @ one) * (one @ L @ one) / (n - 1) / (n - 2), -2 / (n - 2) * (one @ K @ L @ one)
    return sum(terms) / (n * (n - 3))


@pytest.mark.parametrize("n", [4, 5, 8])
def test_hsic1_is_the_mean_over_all_quadruples_of_rows(n, device):
    K, L = grams(n, 3, 5)
    found = hsic1(K.to(device), L.to(device)).cpu()
    torch.testing.assert_close(found, u_statistic(K, L), rtol=0, atol=1e-10)
    assert (hsic0(K, L) - found).abs() > 1e-3, "control: the biased one is another number"


@pytest.mark.parametrize("symmetric", [True, False])
def test_hsic1_is_its_formula_written_out(symmetric):
    K, L = grams(30, 3, 50) if symmetric else torch.randn(2, 30, 30)
    torch.testing.assert_close(hsic1(K, L), song(K, L), rtol=0, atol=1e-10)


def test_hsic1_ignores_the_diagonal_and_shifts():
    K, L = grams(12, 3, 5)
    a = torch.randn(12)
    torch.testing.assert_close(hsic1(K + a.diag(), L), hsic1(K, L), rtol=0, atol=1e-10)
    torch.testing.assert_close(hsic1(K + a + a[:, None], L), hsic1(K, L), rtol=0, atol=1e-10)
    assert (hsic0(K + a.diag(), L) - hsic0(K, L)).abs() > 1e-3, "control"


def test_hsic0_is_a_trace_of_centred_grams():
    K, L = grams(12, 3, 5)
    K = K + 3 + torch.randn(12)
    H = torch.eye(12) - 1 / 12
    torch.testing.assert_close(hsic0(K, L), (K @ H @ L @ H).trace() / 11**2, rtol=0, atol=1e-10)


def test_hsic1_is_unbiased_and_hsic0_is_not():
    """Independent features: HSIC of the distribution is 0."""
    found = torch.tensor([[hsic(*grams(6, 2, 2)) for hsic in (hsic1, hsic0)] for _ in range(1000)])
    mean, error = found.mean(0), found.std(0) / 1000**0.5
    assert mean[0].abs() < 4 * error[0]
    assert mean[1] > 10 * error[1]


@pytest.mark.parametrize("hsic", [hsic0, hsic1])
def test_hsic_is_differentiable(hsic):
    assert torch.autograd.gradcheck(hsic, [gram.requires_grad_() for gram in grams(5, 3, 4)])


@pytest.mark.parametrize("estimator", ["unbiased", "biased"])
@pytest.mark.parametrize("n", [4, 9, 40])
@pytest.mark.parametrize("step", [3, 8])
def test_tiles_of_any_shape_give_every_pair_of_layers(n, step, estimator, device, monkeypatch):
    for name in ("CPU_TILE", "GPU_TILE"):
        monkeypatch.setattr(kernel_alignment, name, Tiling(8, 16, step))
    rows = [torch.randn(n, width) + 1 for width in (3, 5, 1)]
    expected = torch.tensor(
        [[(hsic1 if estimator == "unbiased" else hsic0)(x @ x.T, y @ y.T) for y in rows] for x in rows]
    )
    rows = [x.to(device) for x in rows]
    blocks = Blocks([[0, 1, 2]], [(0, 0)])
    dense = dense_statistics([x @ x.T for x in rows], blocks)
    for statistics in (linear_statistics(rows, blocks), dense):
        torch.testing.assert_close(all_hsics(statistics, estimator)[0, 0].cpu(), expected, rtol=0, atol=1e-10)
