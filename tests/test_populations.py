"""Populations: clusters as scikit-learn finds them, intervals that cover, and steps where they were put."""

import pytest
import scipy.stats
import torch
from sklearn.cluster import AgglomerativeClustering
from sklearn.metrics import adjusted_rand_score

from thinkalike.measures import agreement, change_point, cluster, grouped, parting, symmetric

TEN = ["generalizing"] * 10 + ["heuristic"] * 10
PAIR = ["a", "a", "b", "b"]

pytestmark = pytest.mark.usefixtures("float64")


def distances(points):
    return torch.cdist(points, points)


def ends(estimate):
    return [part.tolist() for part in (estimate.value, estimate.low, estimate.high)]


# ------------------------------------------------------------------------------------------------------------- clusters


@pytest.mark.parametrize("k", [1, 2, 5, 12])
@pytest.mark.parametrize("seed", range(4))
def test_clusters_are_those_of_scikit_learn(k, seed):
    points = torch.randn(12, 2, generator=torch.Generator().manual_seed(seed))
    ours = cluster(distances(points), k)
    theirs = AgglomerativeClustering(k, metric="precomputed", linkage="average").fit_predict(distances(points).numpy())
    assert adjusted_rand_score(ours, theirs) == 1
    assert sorted(set(ours.tolist())) == list(range(k))


def test_average_linkage_is_not_single_linkage():
    """A chain with short links falls apart where average linkage says so."""
    points = torch.tensor([[0.0], [1], [2.1], [3.3], [4.6], [6]])
    single = AgglomerativeClustering(2, metric="precomputed", linkage="single").fit_predict(distances(points).numpy())
    assert adjusted_rand_score(cluster(distances(points), 2), single) < 1


def test_order_and_unit_of_models_do_not_matter():
    points, order = torch.randn(9, 3), torch.randperm(9)
    labels = cluster(distances(points), 3)
    assert agreement(cluster(distances(points[order]) * 7, 3), labels[order].tolist()) == 1


def test_planted_groups_are_found_from_directed_penalties():
    penalties = torch.rand(20, 20) + 2 * torch.block_diag(torch.ones(10, 10), torch.ones(10, 10)).logical_not()
    with pytest.raises(ValueError, match="`symmetric` gives the mean of two directions"):
        cluster(penalties, 2)
    labels = cluster(symmetric(penalties), 2)
    assert agreement(labels, TEN) == 1
    assert agreement(labels, TEN[5:] + TEN[:5]) < 0.1  # control: other groups are not found


@pytest.mark.parametrize("seed", range(3))
def test_agreement_is_the_adjusted_rand_index(seed):
    draw = torch.Generator().manual_seed(seed)
    ours, groups = torch.randint(3, (15,), generator=draw), torch.randint(4, (15,), generator=draw).tolist()
    assert agreement(ours, groups) == pytest.approx(adjusted_rand_score(groups, ours), abs=1e-12)


@pytest.mark.parametrize(("labels", "groups"), [([0, 0, 0], "aaa"), ([0, 1, 2], "abc"), ([0, 0, 0], "abc")])
def test_agreement_of_trivial_partitions(labels, groups):
    assert agreement(torch.tensor(labels), groups) == adjusted_rand_score(list(groups), labels)


def test_symmetric_is_the_mean_of_both_directions():
    penalties = torch.randn(4, 4, 3)
    found = symmetric(penalties)
    assert torch.equal(found, found.transpose(0, 1))
    assert found[1, 2, 0] == (penalties[1, 2, 0] + penalties[2, 1, 0]) / 2
    assert (found != penalties).any()


@pytest.mark.parametrize("k", [0, 5])
def test_as_many_clusters_as_models_at_most(k):
    with pytest.raises(ValueError, match=f"4 models cannot form {k} clusters"):
        cluster(torch.zeros(4, 4), k)


def test_distances_that_are_not_finite():
    with pytest.raises(ValueError, match="finite and symmetric"):
        cluster(torch.full((3, 3), torch.nan), 2)


@pytest.mark.parametrize(("measure", "what"), [(agreement, torch.tensor([0, 1])), (grouped, torch.ones(2, 2))])
def test_every_model_has_a_group(measure, what):
    with pytest.raises(ValueError, match="there are groups of 3 models, but 2 models"):
        measure(what, "abc")


# ------------------------------------------------------------------------------------------------------------ intervals


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


def test_what_a_model_has_with_itself_does_not_count():
    values = torch.randn(6, 6, 2)
    other = values.clone()
    other.diagonal().fill_(torch.nan)
    for ours, theirs in zip(grouped(values, "aaabbb"), grouped(other, "aaabbb"), strict=True):
        assert ends(ours) == ends(theirs)


def test_each_layer_is_as_it_is_alone():
    values = torch.randn(6, 6, 3)
    every, one = grouped(values, "aabbbb"), grouped(values[..., 1], "aabbbb")
    for ours, theirs in zip(every, one, strict=True):
        torch.testing.assert_close(ours.value[..., 1], theirs.value)
        torch.testing.assert_close(ours.low[..., 1], theirs.low)


def population(m, own, seed):
    """Values of pairs whose two models each bring an effect of their own: what makes pairs depend on each other."""
    draw = torch.Generator().manual_seed(seed)
    effects, noise = torch.randn(m, generator=draw), torch.randn(m, m, generator=draw)
    return own * (effects[:, None] + effects) + noise


@pytest.mark.parametrize("m", [5, 10])
@pytest.mark.parametrize("own", [0.3, 1.0])
def test_intervals_over_models_cover_where_those_over_pairs_do_not(m, own):
    draws = [population(2 * m, own, seed) for seed in range(200)]
    found = [grouped(values, ["a"] * m + ["b"] * m) for values in draws]
    for name in ("within", "between", "difference"):
        parts = [getattr(each, name) for each in found]
        assert sum(part.low <= 0 <= part.high for part in parts) / 200 > 0.91
    pairs = [values[:m, :m][~torch.eye(m, dtype=torch.bool)] for values in draws]
    narrow = sum(part.mean().abs() < 1.96 * part.std() / len(part) ** 0.5 for part in pairs) / 200
    assert narrow < {0.3: 0.9, 1.0: 0.6}[own]


def test_without_pairs_to_leave_out_an_interval_is_open():
    cells = grouped(torch.randn(5, 5), "aabbb").cells
    assert cells.low.isinf().tolist() == [[True, False], [False, False]]
    assert (cells.high[0, 0], cells.low[0, 0]) == (torch.inf, -torch.inf)


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


@pytest.mark.parametrize("groups", ["aaab", "aaaa", "abcd"])
@pytest.mark.parametrize("measure", [grouped, parting])
def test_two_groups_of_two_are_the_least(measure, groups):
    with pytest.raises(ValueError, match=r"groups of \[.*\] models: there must be two groups, and two models in each"):
        measure(torch.randn(4, 4, 3), groups)


def test_a_pair_that_is_not_finite():
    values = torch.randn(4, 4)
    values[1, 2] = torch.nan
    with pytest.raises(ValueError, match="a value of a pair of models is not finite"):
        grouped(values, PAIR)


# ---------------------------------------------------------------------------------------------------------------- steps


@pytest.mark.parametrize("step", [1, 5, 12])
@pytest.mark.parametrize("height", [2.0, -0.01])
def test_a_step_is_found_where_it_is(step, height):
    curve = 3 + height * (torch.arange(13) >= step)
    assert change_point(curve) == step
    assert change_point(-7 * curve + 1) == step


def test_the_change_point_has_the_least_squares():
    def error(curve, k):
        return sum(part.var(correction=0) * len(part) for part in curve.split([k, 9 - k]))

    curves = torch.randn(20, 9)
    best = [min(range(1, 9), key=lambda k, curve=curve: error(curve, k)) for curve in curves]
    assert change_point(curves).tolist() == best


@pytest.mark.parametrize("curve", [torch.ones(5), torch.ones(1), torch.stack([torch.arange(3.0), torch.zeros(3)])])
def test_a_curve_without_change_has_no_step(curve):
    with pytest.raises(ValueError, match=r"a curve of \d places without any change has no step"):
        change_point(curve)


def planted(step, noise):
    """Penalties over 13 cuts that groups have for each other from one cut on."""
    other = torch.block_diag(torch.ones(10, 10), torch.ones(10, 10)).logical_not()
    values = noise * torch.randn(20, 20, 13)
    return values + other[..., None] * (torch.arange(13) >= step)


def test_groups_part_where_they_were_parted():
    assert ends(parting(planted(9, noise=0.5), TEN)) == [9, 9, 9]
    value, low, high = ends(parting(planted(9, noise=8.0), TEN))
    assert 1 <= low <= value <= high <= 12
    assert high - low > 3  # control: noise is seen


def test_the_same_seed_gives_the_same_interval():
    values = planted(6, noise=4.0)
    first, again, *others = (ends(parting(values, TEN, resamples=10, seed=seed)) for seed in (0, 0, 1, 2, 3))
    assert first == again
    assert any(first != other for other in others)
