"""Measures of a change: divergences, random changes of the same size, equivalence, tokens and directions."""

import math

import pytest
import scipy.special
import scipy.stats
import torch

from thinkalike.measures.changes import (
    beyond_null,
    directions_of_change,
    divergence,
    equivalence,
    excess,
    false_discovery_rates,
    rank_p,
    signed_permutation,
    token_changes,
)

F64 = torch.float64


def drawn(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=F64)


def test_changes_of_predictions_are_those_of_scipy_and_torch():
    before, after = drawn(40, 9), drawn(40, 9, seed=1)
    targets = torch.arange(40) % 9
    found = token_changes(before.log_softmax(1), after.log_softmax(1), targets)
    p, q = before.softmax(1).numpy(), after.softmax(1).numpy()
    assert torch.allclose(found.kl, torch.from_numpy(scipy.special.rel_entr(p, q).sum(1)))
    assert torch.allclose(found.reverse, torch.from_numpy(scipy.special.rel_entr(q, p).sum(1)))
    assert not torch.allclose(found.kl, found.reverse), "control"
    losses = [torch.nn.functional.cross_entropy(each, targets, reduction="none") for each in (before, after)]
    assert torch.allclose(found.loss_base, losses[0])
    assert torch.allclose(found.loss_changed, losses[1])
    assert found.flip.tolist() == (before.argmax(1) != after.argmax(1)).tolist()


def test_the_divergence_of_equal_predictions_is_exactly_zero():
    logs = drawn(20, 7).float().log_softmax(1)
    assert divergence(logs, logs).tolist() == [0.0] * 20


def test_a_random_change_keeps_norm_spectrum_and_entries():
    change = drawn(12, 7)
    moved = signed_permutation(change, torch.Generator().manual_seed(3))
    assert torch.allclose(torch.linalg.svdvals(moved), torch.linalg.svdvals(change))
    assert torch.equal(moved.abs().flatten().sort().values, change.abs().flatten().sort().values)
    assert torch.nn.functional.cosine_similarity(moved.flatten(), change.flatten(), 0).abs() < 0.5
    vector = drawn(30)
    assert torch.isclose(signed_permutation(vector, torch.Generator().manual_seed(3)).norm(), vector.norm())


def test_the_rank_among_random_changes_is_an_exact_test():
    runs = drawn(20, 4000)
    rejected = (rank_p(runs[0], runs[1:]) <= 0.05).double().mean()
    assert 0.04 < rejected < 0.06
    assert rank_p(torch.tensor(5.0), torch.arange(19.0)).item() == 15 / 20
    assert rank_p(torch.tensor(99.0), torch.arange(19.0)).item() == 1 / 20


@pytest.mark.parametrize(
    ("low", "high", "verdict"),
    [
        (0.001, 0.004, "equivalent"),
        (-0.004, 0.004, "equivalent"),
        (0.0, 0.0, "equivalent"),
        (0.02, 0.03, "not equivalent"),
        (-0.03, -0.02, "not equivalent"),
        (0.004, 0.03, "undecided"),
        (-0.02, 0.001, "undecided"),
        (-math.inf, math.inf, "undecided"),
    ],
)
def test_two_one_sided_tests_decide_or_do_not(low, high, verdict):
    assert equivalence(low, high, 0.01) == verdict


def test_false_discovery_rates_are_those_of_scipy():
    p = torch.rand(50, generator=torch.Generator().manual_seed(1), dtype=F64) ** 2
    assert torch.allclose(false_discovery_rates(p), torch.from_numpy(scipy.stats.false_discovery_control(p.numpy())))


def test_an_excess_of_few_groups_is_that_of_scipy():
    runs = drawn(20, 7) * 3
    beyond, t, p = excess(runs[0], runs[1:])
    wide = runs[1:].std(0) >= runs[1:].std(0).median()
    reference = scipy.stats.ttest_ind(runs[:1].numpy(), runs[1:].numpy())
    assert torch.allclose(beyond, runs[0] - runs[1:].mean(0))
    assert torch.allclose(t[wide], torch.from_numpy(reference.statistic)[wide])
    assert torch.allclose(p[wide], torch.from_numpy(reference.pvalue)[wide])
    assert (t[~wide].abs() < torch.from_numpy(reference.statistic)[~wide].abs()).all()


def test_only_groups_changed_beyond_the_null_are_found():
    """Groups of unequal spread, in a change that is three times as large as the null everywhere."""
    spread = torch.linspace(0.1, 0.6, 60, dtype=F64)
    single, any_of_all, factors = [], [], []
    for seed in range(100):
        runs = drawn(20, 60, seed=seed) * spread
        runs[0] += math.log(3)
        p = excess(runs[0], runs[1:])[2]
        single.append((p <= 0.05).double().mean())
        any_of_all.append(false_discovery_rates(p).min() <= 0.05)
        runs[0, 20] += math.log(20)
        beyond, t, p = excess(runs[0], runs[1:])
        assert false_discovery_rates(p).argmin() == 20
        assert false_discovery_rates(p)[20] < 0.05
        assert t[20] > 0
        factors.append(beyond[20].exp())
    assert 0.015 < torch.stack(single).mean() < 0.055
    assert torch.stack(any_of_all).double().mean() <= 0.05
    assert 16 < torch.stack(factors).median() < 25


def test_what_most_groups_do_is_an_excess_of_none():
    """A change that moves every group four times as far as the null does, in either direction, and one group more."""
    false, few = [], []
    for seed in range(100):
        runs = drawn(20, 60, seed=seed)
        runs[0] *= 4
        few.append(max((excess(part[0], part[1:])[2] <= 0.05).double().mean() for part in runs.split(6, 1)))
        false.append(false_discovery_rates(excess(runs[0], runs[1:])[2]).min() <= 0.05)
        runs[0, 7] = -60
        _, t, p = excess(runs[0], runs[1:])
        assert (p.argmin(), false_discovery_rates(p)[7] < 0.05, t[7] < -5) == (7, True, True)
    assert torch.stack(false).double().mean() <= 0.1
    assert torch.stack(few).mean() > 0.5, "control: of few groups nothing is known of the others"


def test_beyond_the_null_is_an_exact_test_over_groups():
    """Groups that depend on each other, with heavy tails."""
    draws = torch.distributions.StudentT(3.0).sample((2000, 20, 8)).double()
    draws = draws + draws[..., :1]
    found = [beyond_null(runs[0], runs[1:]) for runs in draws]
    assert 0.035 < torch.stack([p <= 0.05 for _, p in found]).double().mean() < 0.065
    runs = draws[0].clone()
    runs[0, 5] += 100
    beyond, p = beyond_null(runs[0], runs[1:])
    assert (beyond.argmax(), p) == (5, 0.05)
    null = runs[1:, 5]
    assert torch.isclose(beyond[5], (runs[0, 5] - null.mean()) / (null.std() * (1 + 1 / 19) ** 0.5))


def test_directions_of_a_planted_change_are_found_and_stable():
    direction = torch.nn.functional.normalize(drawn(16), dim=0)
    along = 3 + drawn(400, seed=1)
    half = torch.arange(400) % 2 == 0
    found = directions_of_change(along[:, None] * direction + 0.05 * drawn(400, 16, seed=2), half, 2)
    assert found.directions[0] @ direction > 0.999
    assert found.share[0] == pytest.approx(10 / (10 + 16 * 0.05**2), abs=0.002)
    assert found.stability[0] > 0.999
    assert directions_of_change(drawn(400, 16, seed=2), half, 2).stability[0] < 0.9, "control: noise has no direction"
