"""Estimates with their intervals, Student's t, and the facade of the measures."""

import importlib
import math
import pkgutil

import pytest
import scipy.stats
import torch

from thinkalike import measures
from thinkalike.measures import Estimate, fold_interval, student_t
from thinkalike.measures.estimates import PARTS, jackknife, numbered_by_part

F64 = torch.float64


def estimate(*ends):
    return Estimate(*torch.tensor(ends, dtype=F64))


def test_an_estimate_iterates_as_its_value_and_ends():
    value, low, high = whole = estimate([1.0, 4], [0, 3], [2, 5])
    assert [part.tolist() for part in (value, low, high)] == [[1, 4], [0, 3], [2, 5]]
    assert [part.tolist() for part in whole[1]] == [4, 3, 5]
    assert whole[:, None].value.shape == (2, 1)


@pytest.mark.parametrize(
    ("ends", "spec", "expected"),
    [
        ((0.0371, 0.0319, 0.0432), "+.3f", "+0.037 [+0.032, +0.043]"),
        ((-0.5, -1, 0), ".1f", "-0.5 [-1.0, 0.0]"),
        ((0.5, -math.inf, math.inf), "+.2f", "+0.50 [-inf, +inf]"),
        ((math.nan, math.nan, 1), ".2f", "nan"),
        (([3.0], [2], [4]), ".0f", "3 [2, 4]"),
    ],
)
def test_a_single_number_is_written_with_its_interval(ends, spec, expected):
    assert format(estimate(*ends), spec) == expected
    assert f"{Estimate(*torch.tensor([9, 8, 12])):d}" == "9 [8, 12]"


@pytest.mark.parametrize("level", [0.2, 0.95, 0.999])
def test_quantiles_of_student_t_are_those_of_scipy(level):
    for freedom in (1, 2, 11, 100, 10_001):
        assert student_t(level, freedom) == pytest.approx(scipy.stats.t.ppf((1 + level) / 2, freedom), rel=1e-10)


def test_the_interval_over_folds_is_nadeau_and_bengios():
    values = torch.randn(3, 5, dtype=F64)
    half = scipy.stats.t.ppf(0.95, 4) * ((1 / 5 + 1 / 4) * values.var(1)).sqrt()
    expected = values.mean(1), values.mean(1) - half, values.mean(1) + half
    torch.testing.assert_close(tuple(fold_interval(values, 0.9)), expected)


def test_a_jackknife_removes_bias_and_covers_drawn_values():
    """Of squared means, whose bias is σ² / n: the middle is Quenouille's estimate, that of unbiased squares."""
    x = torch.randn(12, generator=torch.Generator().manual_seed(0), dtype=F64) + 3
    value, replicates = x.mean().square(), ((x.sum() - x) / 11).square()
    half = scipy.stats.t.ppf(0.975, 11) * (replicates.var(correction=0) * 11).sqrt()
    unbiased = value - x.var() / 12
    found, both = jackknife(value, replicates, value), jackknife(value, replicates, value, is_drawn=True)
    torch.testing.assert_close(tuple(found), (value, unbiased - half, torch.maximum(unbiased + half, value)))
    torch.testing.assert_close(tuple(both), (value, unbiased - half, value + half))
    torch.testing.assert_close(tuple(jackknife(value, replicates)), (value, value - half, value + half))


@pytest.mark.parametrize("count", [1, 7, 10, 60])
def test_groups_are_drawn_whole_into_parts_of_about_equal_size(count):
    groups = torch.randint(count, (4000,), generator=torch.Generator().manual_seed(0)).square() + 5
    numbers = numbered_by_part(groups)
    pairs = torch.stack([groups, numbers]).unique(dim=1)
    assert pairs.shape[1] == len(groups.unique()) == len(numbers.unique()), "a number is a group"
    sizes = (numbers % PARTS).bincount()
    assert len(sizes) == min(PARTS, count)
    assert int(sizes.max() - sizes.min()) <= int(groups.unique(return_counts=True)[1].max())


def test_no_module_is_hidden_behind_a_function_of_its_name():
    for found in pkgutil.walk_packages(measures.__path__, measures.__name__ + "."):
        module, (parent, _, last) = importlib.import_module(found.name), found.name.rpartition(".")
        assert getattr(importlib.import_module(parent), last) is module
