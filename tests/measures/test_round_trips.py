"""Maps of one pair of sites in both directions against scikit-learn, and what their round trips lose."""

import pytest
import torch
from sklearn.linear_model import Ridge
from sklearn.metrics import r2_score

from thinkalike.measures import AffineMap, Moments
from thinkalike.measures.round_trips import both_directions, unexplained_by

MANY, WIDE, NARROW = 400, 64, 48


def related(n=MANY, width=WIDE, other=NARROW, noise=0.3):
    """States x, and y = a linear map of x with noise, of unequal scales and large means, float64."""
    mixing = torch.randn(width, other, dtype=torch.float64, generator=torch.Generator().manual_seed(1)) / width**0.5
    x = torch.randn(n, width, dtype=torch.float64) * torch.linspace(0.3, 3, width)
    y = x @ mixing + noise * torch.randn(n, other, dtype=torch.float64)
    return x + 5, 40 * y - 300


def pair_moments(x, y, chunk=MANY):
    moments = Moments([(0, 0)])
    for part, to in zip(x.split(chunk), y.split(chunk), strict=True):
        moments.update([part], [to])
    return moments.of((0, 0))


def alike(found, expected, tolerance=1e-9):
    for got, wanted in zip(found, expected, strict=True):
        torch.testing.assert_close(got.weight, wanted.weight, rtol=tolerance, atol=tolerance)
        torch.testing.assert_close(got.bias, wanted.bias, rtol=tolerance, atol=tolerance * 300)


@pytest.mark.parametrize("ridge", [0.0, 0.1])
def test_both_maps_are_the_ridge_regressions_of_scikit_learn(ridge):
    x, y = related()
    for found, given, wanted in zip(both_directions(pair_moments(x, y), ridge), (x, y), (y, x), strict=True):
        strength = ridge * float((given - given.mean(0)).square().sum(0).mean())
        reference = Ridge(alpha=strength, solver="cholesky").fit(given.numpy(), wanted.numpy())
        expected = AffineMap(torch.from_numpy(reference.coef_), torch.from_numpy(reference.intercept_))
        alike([found], [expected], 1e-7)


def test_unexplained_variance_is_one_minus_scikit_learns_r2():
    x, y = related()
    maps, (other_x, other_y) = both_directions(pair_moments(x, y)), related(150)
    for left, right in ((x, y), (other_x, other_y)):
        found = maps.unexplained(pair_moments(left, right, 31))
        reached = (maps.phi(left), maps.psi(right), maps.psi(maps.phi(left)), maps.phi(maps.psi(right)))
        for got, wanted, given in zip(found, (right, left, left, right), reached, strict=True):
            score = r2_score(wanted.numpy(), given.numpy(), multioutput="variance_weighted")
            assert got == pytest.approx(1 - score, abs=1e-9)
    statistics = pair_moments(x, y)
    narrow = AffineMap(maps.phi.weight.float(), maps.phi.bias.float())
    assert unexplained_by(narrow, statistics) == pytest.approx(unexplained_by(maps.phi, statistics), rel=1e-5)
    assert maps.unexplained(statistics).phi < maps.unexplained(pair_moments(other_x, other_y)).phi


def test_a_constant_side_and_a_single_row_are_refused():
    x, y = related()
    with pytest.raises(ValueError, match="not 1"):
        both_directions(pair_moments(x[:1], y[:1]))
    still = pair_moments(x, torch.full_like(y, 1 / 3))
    assert both_directions(still).phi(x).sub(1 / 3).abs().max() < 1e-6
    with pytest.raises(ValueError, match="do not vary"):
        both_directions(still).unexplained(still)
