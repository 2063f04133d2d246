"""Populations: clusters as scikit-learn finds them, intervals that cover, and onsets."""

import itertools

import pytest
import scipy.stats
import torch
from scipy.cluster.hierarchy import fcluster, linkage
from scipy.spatial.distance import pdist
from sklearn.metrics import adjusted_rand_score

from thinkalike.contrib.populations.clusters import adjusted_rand_index, adjusted_rand_index_p, cluster
from thinkalike.contrib.populations.group_means import (
    flips,
    grouped,
    onset_of_difference,
    population_penalties,
    symmetric,
)
from thinkalike.measures import Estimate

TEN = ["generalizing"] * 10 + ["heuristic"] * 10
PAIR = ["a", "a", "b", "b"]

pytestmark = pytest.mark.usefixtures("float64")


def distances(points):
    return torch.cdist(points, points)


def ends(estimate):
    return [part.tolist() for part in (estimate.value, estimate.low, estimate.high)]


@pytest.mark.parametrize("k", [1, 2, 5, 12])
def test_clusters_are_those_of_scipys_average_linkage(k):
    points = torch.randn(12, 2)
    theirs = fcluster(linkage(pdist(points.numpy()), "average"), k, "maxclust")
    assert adjusted_rand_score(cluster(distances(points), k), theirs) == 1


def test_planted_groups_are_found_from_directed_penalties():
    penalties = torch.rand(20, 20) + 2 * torch.block_diag(torch.ones(10, 10), torch.ones(10, 10)).logical_not()
    with pytest.raises(ValueError, match="`symmetric` gives the mean of two directions"):
        cluster(penalties, 2)
    assert symmetric(penalties)[1, 2] == penalties[[1, 2], [2, 1]].mean()
    labels = cluster(symmetric(penalties), 2)
    assert adjusted_rand_index(labels, TEN) == 1
    assert adjusted_rand_index(labels, TEN[5:] + TEN[:5]) < 0.1  # control: other groups are not found


def p_by_loop(labels, groups):
    """The share of the distinct orders of the groups whose index is as high as that of the groups."""
    known = adjusted_rand_score(groups, labels)
    indices = [adjusted_rand_score(order, labels) for order in {*itertools.permutations(groups)}]
    return sum(index > known - 1e-9 for index in indices) / len(indices)


P_CASES = [
    ([0, 0, 0, 1, 1, 1], "aaabbb"),
    ([0, 0, 1, 1, 1, 1], "aaabbb"),
    ([5, 5, 2, 2, 7, 7], "abbccc"),
    ([0, 0, 0, 0, 0, 0], "aaabbb"),
    ([1, 0, 0, 0, 0], "baaaa"),
]


@pytest.mark.parametrize(("labels", "groups"), P_CASES)
def test_an_agreements_p_is_over_all_orders_of_groups(labels, groups):
    assert adjusted_rand_index_p(torch.tensor(labels), groups) == pytest.approx(
        p_by_loop(labels, list(groups)), abs=1e-12
    )


def test_of_many_assignments_random_ones_are_tried():
    """Of 10 and 10 there are 184,756, of which 2 are perfect and 200 more have one model of each group exchanged."""
    perfect = torch.arange(20) // 10
    assert adjusted_rand_index_p(perfect, TEN) < 1e-3
    assert adjusted_rand_index_p(perfect, TEN) >= 1 / 20_001
    four = perfect[[0, 1, 2, 3, 4, 5, 10, 11, 12, 13, 6, 7, 8, 9, 14, 15, 16, 17, 18, 19]]  # four of each are exchanged
    exact = 2 * sum(scipy.special.comb(10, k) ** 2 for k in range(5)) / scipy.special.comb(20, 10)
    found = [adjusted_rand_index_p(four, TEN, seed=seed) for seed in (0, 0, 1)]
    assert found == pytest.approx([exact] * 3, abs=4 * (exact * (1 - exact) / 20_000) ** 0.5)
    assert found[0] == found[1] != found[2]


def test_flips_show_what_signed_penalties_cancel():
    """Stitched to the other group, the good become bad and the bad good; within a group nothing changes."""
    good, labels = torch.tensor([1] * 5 + [0] * 5), torch.ones(40, dtype=torch.int8)
    predicted = good[None, :].expand(10, 10).clone().to(torch.int8)
    predicted[:5, 5:], predicted[5:, :5] = 1, 0
    predicted = predicted[..., None, None].expand(10, 10, 1, 40)
    groups = ["a"] * 5 + ["b"] * 5
    penalties = population_penalties((predicted == labels).double())
    signed, directed, share = (grouped(values.mean(-1), groups) for values in (penalties, penalties, flips(predicted)))
    assert signed.between.value.item() == signed.difference.value.item() == 0
    assert directed.beyond_own_group.value[..., 0].tolist() == [[0, -1], [1, 0]]
    assert share.between.value.item() == 1
    assert share.within.value.item() == 0


def directed_by_loop(values, groups, names=None):
    names, m = names or list(dict.fromkeys(groups)), len(groups)
    found = torch.zeros(len(names), len(names), *values.shape[2:])
    for (a, source), (b, target) in itertools.product(enumerate(names), repeat=2):
        pairs = [(i, j) for i in range(m) for j in range(m) if i != j and groups[j] == target]
        into = [values[i, j] for i, j in pairs if groups[i] == source]
        own = [values[i, j] for i, j in pairs if groups[i] == target]
        found[a, b] = torch.stack(into).mean(0) - torch.stack(own).mean(0)
    return found


def left_out(values, groups, model):
    kept = [other for other in range(len(groups)) if other != model]
    return values[kept][:, kept], [groups[other] for other in kept]


@pytest.mark.parametrize("groups", ["aaaabbb", "abcabcabc", "babbaa"])
def test_directions_and_intervals_match_a_plain_loop(groups):
    values = torch.randn(len(groups), len(groups), 2)
    found = grouped(values, groups).beyond_own_group
    expected = directed_by_loop(values, groups)
    torch.testing.assert_close(found.value, expected)
    assert expected.abs().max() > 0.1
    variance = torch.zeros_like(expected)
    names = list(dict.fromkeys(groups))
    for name in names:
        own = [model for model in range(len(groups)) if groups[model] == name]
        without = [directed_by_loop(*left_out(values, groups, model), names) for model in own]
        variance += (len(own) - 1) * torch.stack(without).var(0, correction=0)
    t = scipy.stats.t.ppf(0.975, min(map(groups.count, groups)) - 1)
    torch.testing.assert_close(found.high - found.value, t * variance.sqrt(), rtol=1e-6, atol=1e-9)
    diagonal = torch.stack([end.diagonal() for end in found])
    assert (diagonal == 0).all()


def test_directions_that_compare_with_a_single_pair_are_open():
    found = grouped(torch.randn(5, 5), "aabbb").beyond_own_group
    assert found.low.isinf().tolist() == [[False, False], [True, False]]
    assert found.value.diagonal().tolist() == found.low.diagonal().tolist() == [0, 0]


def test_means_are_those_of_ordered_pairs_of_two_models():
    values = torch.randn(4, 4)
    found = grouped(values, PAIR)
    within = (values[0, 1] + values[1, 0] + values[2, 3] + values[3, 2]) / 4
    between = (values[:2, 2:].sum() + values[2:, :2].sum()) / 8
    torch.testing.assert_close(found.within.value, within)
    torch.testing.assert_close(found.between.value, between)
    torch.testing.assert_close(found.difference.value, within - between)
    torch.testing.assert_close(found.cells.value[0, 1], values[:2, 2:].mean())
    torch.testing.assert_close(found.cells.value[1, 0], values[2:, :2].mean())
    torch.testing.assert_close(found.cells.value[1, 1], (values[2, 3] + values[3, 2]) / 2)


def population(m, own, seed):
    """Values of pairs whose two models each bring an effect of their own: what makes pairs depend on each other."""
    draw = torch.Generator().manual_seed(seed)
    effects, noise = torch.randn(m, generator=draw), torch.randn(m, m, generator=draw)
    return own * (effects[:, None] + effects) + noise


@pytest.mark.parametrize(("m", "own"), [(5, 1.0), (10, 0.3)])
def test_intervals_over_models_cover_and_over_pairs_do_not(m, own):
    draws = [population(2 * m, own, seed) for seed in range(200)]
    found = [grouped(values, ["a"] * m + ["b"] * m) for values in draws]
    for name in ("within", "between", "difference"):
        parts = [getattr(each, name) for each in found]
        assert sum(part.low <= 0 <= part.high for part in parts) / 200 > 0.91
    pairs = [values[:m, :m][~torch.eye(m, dtype=torch.bool)] for values in draws]
    narrow = sum(part.mean().abs() < 1.96 * part.std() / len(part) ** 0.5 for part in pairs) / 200
    assert narrow < {0.3: 0.9, 1.0: 0.6}[own]


def test_examples_widen_intervals_by_what_they_vary():
    models, examples = population(8, 0.1, 0), torch.randn(40)
    values = models[..., None] + 3 * examples
    fixed, drawn = grouped(values.mean(-1), "aaaabbbb"), grouped(values, "aaaabbbb", examples=True)
    torch.testing.assert_close(fixed.within.value, drawn.within.value)
    t = scipy.stats.t.ppf(0.975, 3)
    squares = [float((found.within.high - found.within.low) / (2 * t)) ** 2 for found in (fixed, drawn)]
    assert squares[1] - squares[0] == pytest.approx(9 * float(examples.var()) / 40, rel=1e-4)
    ours, theirs = drawn.difference, fixed.difference  # what all pairs share falls out of it
    torch.testing.assert_close(torch.stack([ours.low, ours.high]), torch.stack([theirs.low, theirs.high]))


REFUSED = {
    "more clusters than models": lambda: cluster(torch.zeros(4, 4), 5),
    "distances without a value": lambda: cluster(torch.full((3, 3), torch.nan), 2),
    "a group of one model": lambda: grouped(torch.randn(4, 4, 3), "aaab"),
    "an interval without a value": lambda: onset_of_difference(curve([0.1, torch.nan], 0.0)),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_would_give_a_wrong_number_is_refused(case):
    with pytest.raises(ValueError):
        REFUSED[case]()


def curve(value, half):
    value, half = torch.tensor(value), torch.tensor(half)
    return Estimate(value, value - half, value + half)


@pytest.mark.parametrize(
    ("value", "half", "least", "place"),
    [
        ([0.0, 0.01, -0.02, 0.5, 0.6], 0.05, 0.0, 3),  # a step
        ([0.0, 0.1, 0.2, 0.3, 0.4], 0.15, 0.0, 2),  # a ramp, seen where it has left the noise
        ([0.0, -0.1, -0.2, -0.3, -0.4], 0.15, 0.0, 2),
        ([0.1, 0.2], [0.1, torch.inf], 0.0, None),  # an end at 0 does not exclude it
        ([0.0, 0.03, -0.2, 0.5], 0.02, 0.05, 2),
        ([0.0, 0.03, -0.2, 0.5], 0.02, 0.3, 3),
    ],
)
def test_an_onset_is_the_first_place_without_zero(value, half, least, place):
    assert onset_of_difference(curve(value, half), least) == place


def onset_of(shape, seed):
    """Values of 12 models whose two groups part by a curve: its onset, and that with intervals of single places."""
    draw, m = torch.Generator().manual_seed(seed), 12
    groups = ["a"] * 6 + ["b"] * 6
    other = torch.block_diag(torch.ones(6, 6), torch.ones(6, 6)).logical_not()[..., None]
    own = torch.randn(m, len(shape), generator=draw)  # how much each model differs from those of the other group
    values = torch.randn(m, m, len(shape), generator=draw) + other * (2 * own[:, None] + 2 * own + shape)
    return [
        onset_of_difference(grouped(values, groups, level=level).difference) for level in (1 - 0.05 / len(shape), 0.95)
    ]


def test_a_false_onset_is_found_in_at_most_one_draw_of_twenty():
    found = [onset_of(torch.zeros(8), seed) for seed in range(150)]
    together, alone = (sum(place is not None for place in places) / 150 for places in zip(*found, strict=True))
    assert together < 0.05 + 2 * (0.05 * 0.95 / 150) ** 0.5
    assert alone > 0.1, "control: intervals of single places find more"


def test_within_groups_of_three_models_there_is_no_interval():
    """They held the mean in 89 % of simulations, and groups of four in 93 %."""
    values = torch.randn(7, 7, 1, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    found = grouped(values, list("aaabbbb"))
    assert found.within.high.isinf().all()
    assert found.cells.high[0, 0].isinf().all()
    assert found.cells.high[1, 1].isfinite().all()
    assert found.between.high.isfinite().all()
    assert found.difference.high.isfinite().all()
    assert grouped(values.new_ones(8, 8, 1), list("aaaabbbb")).within.high.isfinite().all()
