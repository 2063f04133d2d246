"""Maps in both directions from moments: closed forms, invariances, scikit-learn's R², and a planted rotation."""

import pytest
import torch
from sklearn.linear_model import Ridge
from sklearn.metrics import r2_score

from thinkalike.measures import AffineMap, PairMoments, both_directions, least_squares, unexplained_by

N, D, E = 400, 64, 48


def drawn(n=N, width=D, other=E, noise=0.3):
    """States x, and y = a linear map of x with noise, of unequal scales and large means, float64."""
    mixing = torch.randn(width, other, dtype=torch.float64, generator=torch.Generator().manual_seed(1)) / width**0.5
    x = torch.randn(n, width, dtype=torch.float64) * torch.linspace(0.3, 3, width)
    y = x @ mixing + noise * torch.randn(n, other, dtype=torch.float64)
    return x + 5, 40 * y - 300


def gathered(x, y, chunk=N):
    moments = PairMoments()
    for part, to in zip(x.split(chunk), y.split(chunk), strict=True):
        moments.update(part, to)
    return moments


def rotation(width):
    return torch.linalg.qr(torch.randn(width, width, dtype=torch.float64)).Q


def same(found, expected, tolerance=1e-9):
    for got, wanted in zip(found, expected, strict=True):
        torch.testing.assert_close(got.weight, wanted.weight, rtol=tolerance, atol=tolerance)
        torch.testing.assert_close(got.bias, wanted.bias, rtol=tolerance, atol=tolerance * 300)


@pytest.mark.parametrize("chunk", [1, 7, 399])
def test_any_chunking_gives_the_same(chunk):
    x, y = drawn()
    whole = both_directions(gathered(x, y))
    same(both_directions(gathered(x, y, chunk)), whole)
    same(both_directions(gathered(x, y, chunk).statistics), whole)


@pytest.mark.parametrize("ridge", [0.0, 0.1])
def test_both_maps_are_the_ridge_regressions_of_scikit_learn(ridge):
    x, y = drawn()
    for found, given, wanted in zip(both_directions(gathered(x, y), ridge), (x, y), (y, x), strict=True):
        strength = ridge * float((given - given.mean(0)).square().sum(0).mean())
        reference = Ridge(alpha=strength, solver="cholesky").fit(given.numpy(), wanted.numpy())
        expected = AffineMap(torch.from_numpy(reference.coef_), torch.from_numpy(reference.intercept_))
        same([found], [expected], 1e-7)


def test_a_relative_ridge_is_equivariant_to_scales_and_means():
    x, y = drawn()
    phi, psi = both_directions(gathered(x, y), 0.1)
    scaled, back = both_directions(gathered(1000 * x - 7, y / 50 + 3), 0.1)
    torch.testing.assert_close(scaled.weight * 1000 * 50, phi.weight)
    torch.testing.assert_close(back.weight / 1000 / 50, psi.weight)
    torch.testing.assert_close(scaled(1000 * x - 7), phi(x) / 50 + 3)
    plain = least_squares(gathered(1000 * x, y), (0, 0), 10.0)
    assert (plain.weight * 1000 - least_squares(gathered(x, y), (0, 0), 10.0).weight).abs().max() > 0.1, "control"


def test_unexplained_variance_is_one_minus_scikit_learns_r2():
    x, y = drawn()
    maps, (other_x, other_y) = both_directions(gathered(x, y)), drawn(150)
    for left, right in ((x, y), (other_x, other_y)):
        found = maps.unexplained(gathered(left, right, 31))
        reached = (maps.phi(left), maps.psi(right), maps.psi(maps.phi(left)), maps.phi(maps.psi(right)))
        for got, wanted, given in zip(found, (right, left, left, right), reached, strict=True):
            score = r2_score(wanted.numpy(), given.numpy(), multioutput="variance_weighted")
            assert got == pytest.approx(1 - score, abs=1e-9)
    statistics = gathered(x, y).statistics
    narrow = AffineMap(maps.phi.weight.float(), maps.phi.bias.float())
    assert unexplained_by(narrow, statistics) == pytest.approx(unexplained_by(maps.phi, statistics), rel=1e-5)
    assert maps.unexplained(statistics).phi < maps.unexplained(gathered(other_x, other_y)).phi


def test_a_rotation_is_found_and_its_round_trips_lose_nothing():
    x, q = torch.randn(N, D, dtype=torch.float64), rotation(D)
    maps = both_directions(gathered(x, 3 * x @ q.T + 2))
    torch.testing.assert_close(maps.phi.weight, 3 * q, atol=1e-7, rtol=0)
    torch.testing.assert_close(maps.psi.weight, q.T / 3, atol=1e-7, rtol=0)
    assert max(map(abs, maps.unexplained(gathered(x, 3 * x @ q.T + 2)))) < 1e-12
    wrong = maps._replace(phi=AffineMap(3 * rotation(D), maps.phi.bias))
    assert wrong.unexplained(gathered(x, 3 * x @ q.T + 2)).phi > 1.5, "control: the rotation matters"


def test_what_one_side_lacks_is_unexplained():
    x = torch.randn(4000, D, dtype=torch.float64)
    y = x[:, :16] + 0.5 * torch.randn(4000, 16, dtype=torch.float64)
    maps = both_directions(gathered(x, y))
    found = maps.unexplained(gathered(x, y))
    assert found.phi == pytest.approx(0.2, abs=0.02)  # the noise's share of y's variance
    assert found.psi == pytest.approx(1 - 0.25 * 0.8, abs=0.02)  # a quarter of x, of which y explains 0.8
    assert found.psi_phi > found.psi - 0.05


def test_a_constant_side_and_a_single_row_are_refused():
    x, y = drawn()
    with pytest.raises(ValueError, match="not 1"):
        both_directions(gathered(x[:1], y[:1]))
    still = gathered(x, torch.full_like(y, 1 / 3))
    assert both_directions(still).phi(x).sub(1 / 3).abs().max() < 1e-6
    with pytest.raises(ValueError, match="do not vary"):
        both_directions(still).unexplained(still)
