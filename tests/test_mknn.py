"""Mutual nearest neighbours against a plain count, planted likeness, and scikit-learn; and the job."""

import numpy as np
import pytest
import torch

from test_given_token import by_sklearn
from thinkalike.measures import mutual_knn
from thinkalike.measures.neighbours import jaccard_measure, mutual_measure, second_order_measure

N, K = 60, 5


@pytest.mark.parametrize("k", [1, 5, 20])
def test_mknn_is_its_definition_with_scikit_learns_neighbours(k):
    x = torch.randn(N, 8, dtype=torch.float64)
    y = x[:, :5] + 0.5 * torch.randn(N, 5, dtype=torch.float64)
    value = float(mutual_knn(x, y, k))
    assert value == pytest.approx(by_sklearn(x, y, torch.zeros(N), k)[0], abs=1e-12)
    assert k / (N - 1) < value < 1, "control: neither chance nor sameness"


def test_planted_neighbours_are_counted():
    """Six pairs of twins on a circle: in Y half of the twins have changed places with a neighbour's."""
    angles = torch.arange(6).repeat_interleave(2) + torch.tensor([0.0, 0.01] * 6)
    circle = torch.stack([angles.cos(), angles.sin()], 1).double()
    moved = circle.clone()
    moved[[1, 3]] = circle[[3, 1]]
    assert float(mutual_knn(circle, moved, 1)) == pytest.approx(8 / 12)
    assert float(mutual_knn(circle, circle, 1)) == 1


def test_features_with_nothing_in_common_share_what_chance_gives():
    values = [float(mutual_knn(torch.randn(N, 8), torch.randn(N, 8), K)) for _ in range(60)]
    error = np.std(values) / np.sqrt(len(values))
    assert abs(np.mean(values) - K / (N - 1)) < 4 * error


@pytest.mark.parametrize(
    ("x", "y", "k", "message"),
    [
        (torch.randn(8, 3), torch.randn(8, 3), 7, "8 rows are too few to compare: give at least 9"),
        (torch.randn(8, 3), torch.full((8, 3), torch.nan), 2, "Y: a value is not finite"),
        (torch.randn(8, 3).index_fill(0, torch.tensor(4), 0), torch.randn(8, 3), 2, "X: row 4 is zero"),
        (torch.randn(8, 3), torch.ones(8, 3), 2, "Y: all rows"),
    ],
)
def test_what_has_no_neighbours_is_refused(x, y, k, message):
    with pytest.raises(ValueError, match=message):
        mutual_knn(x, y, k)


@pytest.mark.parametrize("measure", [mutual_measure, jaccard_measure, second_order_measure])
def test_autocast_changes_nothing(measure):
    x = torch.randn(200, 64)
    y = x + torch.randn(200, 64) + 8
    plain = measure().of(x + 3, y), mutual_knn(x + 3, y)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        cast = measure().of(x + 3, y), mutual_knn(x + 3, y)
    assert plain == cast


def test_rows_in_nearly_one_direction_keep_their_neighbours():
    """Their cosines are 1 up to the last digits of float32."""
    base = torch.randn(N, 8)
    X, Y = base @ torch.randn(8, 32) + 1e5, base @ torch.randn(8, 32)
    for measure in (mutual_knn, second_order_measure().of):
        assert float(measure(X, Y)) == pytest.approx(float(measure(X.double(), Y.double())), abs=1e-4)
    with pytest.raises(ValueError, match="Y: all rows"):
        mutual_knn(X, torch.ones(N, 32) * torch.rand(N, 1))


def test_equally_near_rows_are_chosen_by_chance():
    """Unrelated codes of the token share the token alone: of the 19 other copies each chooses 10 by chance."""
    tokens = torch.arange(400) % 20
    X, Y = (torch.randn(20, 8, dtype=torch.float64)[tokens] for _ in range(2))
    assert float(mutual_knn(X, Y)) == pytest.approx(10 / 19, abs=0.03)
    assert float(mutual_knn(X, X.clone())) == 1
