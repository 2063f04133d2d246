"""The area under the ROC curve: that of scikit-learn, what is planted, and intervals that cover it."""

import pytest
import torch
from sklearn.metrics import roc_auc_score

from thinkalike.measures import auc


@pytest.fixture
def groups():
    generator = torch.Generator().manual_seed(3)
    upper = torch.randn(4, 9, generator=generator, dtype=torch.float64) + 1
    lower = torch.randn(4, 14, generator=generator, dtype=torch.float64)
    return upper.round(decimals=1), lower.round(decimals=1)  # with ties


def test_it_is_the_mean_of_scikit_learns_area_over_the_repetitions(groups):
    upper, lower = groups
    labels = [1] * 9 + [0] * 14
    areas = [roc_auc_score(labels, torch.cat([a, b]).numpy()) for a, b in zip(upper, lower, strict=True)]
    found = auc(upper, lower)
    assert float(found.value) == pytest.approx(sum(areas) / 4, abs=1e-12)
    assert found.low < found.value < found.high
    assert float(auc(lower, upper).value) == pytest.approx(1 - sum(areas) / 4, abs=1e-12)


def test_a_monotone_change_of_one_repetition_leaves_it_as_it_is(groups):
    upper, lower = groups
    changed = upper.clone(), lower.clone()
    for side in changed:
        side[2] = side[2].exp() * 100
    assert auc(*changed).value == auc(*groups).value


def test_groups_that_are_apart_have_one_and_no_doubt():
    found = auc(torch.ones(2, 3), torch.zeros(2, 4))
    assert [float(each) for each in found] == [1, 1, 1]
    assert float(auc(torch.ones(2, 3), torch.ones(2, 4)).value) == 0.5


def test_intervals_cover_the_area_of_the_population():
    """Of two normals one standard deviation apart: Φ(1 / √2)."""
    truth, covered = float(torch.special.ndtr(torch.tensor(0.5**0.5))), 0
    for seed in range(100):
        generator = torch.Generator().manual_seed(seed)
        upper, lower = torch.randn(1, 20, generator=generator) + 1, torch.randn(1, 30, generator=generator)
        found = auc(upper, lower, resamples=400)
        covered += bool(found.low <= truth <= found.high)
    assert 85 <= covered <= 100


@pytest.mark.parametrize(
    ("upper", "lower", "message"),
    [
        (torch.ones(1, 0), torch.ones(1, 2), "groups of 0 and 2 members: each needs one"),
        (torch.ones(1, 2), torch.full((1, 2), torch.nan), "a value is not a number"),
    ],
)
def test_what_has_no_rank_is_refused(upper, lower, message):
    with pytest.raises(ValueError, match=message):
        auc(upper, lower)
