"""Any function of two sets of features with an interval and a p-value over groups."""

import math

import numpy as np
import pytest
import torch
from scipy.stats import t

import thinkalike
from thinkalike.measures.estimates import numbered_by_part

GROUPS = torch.arange(20).repeat_interleave(torch.arange(20) % 10 + 1)


def correlation(x, y):
    """The correlation of the first columns."""
    return torch.corrcoef(torch.stack([x[:, 0], y[:, 0]]))[0, 1]


def of_groups(share, groups):
    own, shared = torch.randn(len(groups)), torch.randn(int(groups.max()) + 1)[groups]
    return (math.sqrt(1 - share) * own + math.sqrt(share) * shared)[:, None].double()


def test_the_interval_leaves_out_whole_groups():
    x = torch.randn(len(GROUPS), 1).double()
    y = x + torch.randn(len(GROUPS), 1).double()
    found = thinkalike.calibrate(correlation, x, y, GROUPS, 9)
    parts = numbered_by_part(GROUPS) % 10
    rest = np.array([np.corrcoef(x[parts != part, 0], y[parts != part, 0])[0, 1] for part in range(10)])
    half = t.ppf(0.975, 9) * np.sqrt(0.9 * np.square(rest - rest.mean()).sum())
    assert found.value == pytest.approx(np.corrcoef(x[:, 0], y[:, 0])[0, 1])
    assert found.low <= found.value - half + 1e-12
    assert found.high >= found.value + half - 1e-12
    assert found.high - found.low < 2.25 * half, "rows of a group do not depend on each other here"
    assert (found.p, found.groups) == (1 / 10, 20)


def test_groups_keep_the_level_of_rows_that_depend_on_each_other():
    """The share of p ≤ .05 of unrelated features, by groups of unequal length and by single rows."""

    def rate(owners):
        found = [
            thinkalike.calibrate(correlation, of_groups(0.9, GROUPS), of_groups(0.9, GROUPS), owners, 19, seed)
            for seed in range(100)
        ]
        return np.mean([each.p <= 0.05 + 1e-9 for each in found]), np.mean([each.low < 0 < each.high for each in found])

    false, covered = rate(GROUPS)
    assert false < 0.12
    assert covered > 0.85
    false, covered = rate(torch.arange(len(GROUPS)))
    assert false > 0.12, "control"
    assert covered < 0.85, "control"


def test_ties_with_chance_count_as_often_as_drawn():
    """Half of the permutations have the sign of the value, so that p would never be below .2 if all of them counted."""
    groups, features = torch.arange(16), torch.randn(30, 2, 16, 1)
    p = [thinkalike.calibrate(lambda x, y: (x * y).sum() > 0, *each, groups, 19).p for each in features]
    assert min(p) < 0.15
    assert max(p) > 0.85


def test_few_groups_have_no_interval_and_no_p():
    x = torch.randn(30, 2)
    for count in (7, 8, 14, 15):
        found = thinkalike.calibrate(lambda a, b: float((a * b).mean()), x, x, torch.arange(30) % count, 9)
        assert math.isfinite(found.low) == (count == 15)
        assert math.isnan(found.p) == (count == 7)
        assert found.null < found.value
    with pytest.raises(ValueError, match=r"groups has shape \(3,\)"):
        thinkalike.calibrate(correlation, x, x, torch.arange(3))
    with pytest.raises(ValueError, match="Y has shape"):
        thinkalike.calibrate(correlation, x, x[1:], torch.arange(30))
