"""Distances, ranks, RSA, profiles and their map against SciPy, scikit-learn and their definitions."""

import itertools

import numpy as np
import pytest
import scipy.stats
import torch
from scipy.spatial.distance import pdist, squareform

from drawn_states import D, N, drawn
from thinkalike.measures import (
    jackknife,
    mantel,
    permuted_rows,
    rsa,
    rsa_estimate,
    spearman,
    splits,
    stimulus_folds,
    weighted_tau,
)
from thinkalike.measures.distances.crossnobis import crossnobis, noise_covariance
from thinkalike.measures.distances.neural import NeuralDistances, upper_triangle_indices
from thinkalike.measures.distances.ranks import levels_of


@pytest.mark.parametrize(
    ("distance", "reference"),
    [
        ("euclidean", lambda x: pdist(x) ** 2),
        ("cosine", lambda x: 2 * pdist(x, "cosine")),
        ("manhattan", lambda x: pdist(x, "cityblock") ** 2),
        ("norm_difference", lambda x: pdist(np.linalg.norm(x, axis=1)[:, None]) ** 2),
        ("correlation", lambda x: 2 * pdist(x, "correlation")),
        ("precomputed", lambda x: x[np.triu_indices(N, 1)] ** 2),
    ],
    ids=["euclidean", "cosine", "manhattan", "norm_difference", "correlation", "precomputed"],
)
def test_squared_distances_are_scipys(distance, reference, device):
    (states,) = drawn(1, device=device)
    if distance == "precomputed":
        states = torch.from_numpy(squareform(pdist(states.cpu().numpy(), "chebyshev"))).to(device)
    layer = NeuralDistances.of(states, distance)
    expected = reference(states.cpu().numpy())
    np.testing.assert_allclose(squareform(layer.squared().cpu(), checks=False), expected, rtol=1e-10)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_identical_rows_have_distance_exactly_0(dtype):
    states = torch.randn(301, 77).to(dtype)
    states[:150] = states[150:300]
    squared = NeuralDistances.of(states + 100).squared()
    assert (squared.diagonal() == 0).all()
    assert (squared[range(150), range(150, 300)] == 0).all()
    assert torch.equal(squared[:150], squared[150:300])
    assert (squared == 0).sum() == 301 + 300, "control: others are apart"


def test_close_rows_keep_their_digits():
    """‖x‖² + ‖y‖² - 2 x·y would leave two digits of a distance of 1e-7."""
    states = torch.randn(50, 20, dtype=torch.float64)
    states[25:] = states[:25] + 1e-7 * torch.randn(25, 20, dtype=torch.float64)
    squared = NeuralDistances.of(states).squared()
    np.testing.assert_allclose(squareform(squared, checks=False), pdist(states.numpy(), "sqeuclidean"), rtol=1e-8)


LAYERS = drawn()
REFUSED = {
    "NaN": lambda: NeuralDistances.of(torch.tensor([[1.0, torch.nan], [1, 2]])),
    "a state of zeros": lambda: NeuralDistances.of(torch.tensor([[1.0, 2], [0, 0]]), "cosine"),
    "a constant state": lambda: NeuralDistances.of(torch.full((4, 3), 0.1), "correlation"),
    "a diagonal of distances": lambda: NeuralDistances.of(torch.ones(2, 2), "precomputed"),
    "distances with a direction": lambda: NeuralDistances.of(torch.tensor([[0.0, 1], [2, 0]]), "precomputed"),
    "squares with a direction": lambda: NeuralDistances.given(torch.tensor([[0.0, 1], [2, 0]])),
    "a constant": lambda: spearman(torch.tensor([0.0, -0.0, 0.0]), torch.arange(3.0)),
    "layers of other stimuli": lambda: rsa(LAYERS, [LAYERS[1][1:]]),
    "a constant layer": lambda: rsa([LAYERS[0], torch.ones(N, 3)]),
    "a constant profile": lambda: weighted_tau(torch.tensor([[1.0, 2.0], [3.0, 3.0]])),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_has_no_distances_or_ranks_is_refused(case):
    with pytest.raises(ValueError):
        REFUSED[case]()


VALUED = {
    "all different": lambda x: x,
    "ties": lambda x: x.round(decimals=1),
    "two values": lambda x: (x > 1).double(),
    "zeros of both signs": lambda x: torch.where(x > 0, 0.0, -0.0) + (x > 1.5),
    "float32": lambda x: x.float(),
    "infinite": lambda x: torch.where(x > 2, torch.inf, x),
}


@pytest.mark.parametrize("kinds", itertools.product(VALUED, ["all different", "ties"]), ids="-".join)
def test_spearman_is_scipys(kinds):
    x, y = (VALUED[kind](torch.randn(500, dtype=torch.float64)) for kind in kinds)
    expected = scipy.stats.spearmanr(x.numpy(), y.numpy()).statistic
    assert spearman(x, y.to(x.dtype)) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_rsa_is_scipys_spearman_of_scipys_distances(dtype, device):
    layers = drawn(4, dtype=dtype, device=device)
    layers.append(layers[0][:, :5].contiguous())
    layers[2][1:9] = layers[2][0]
    distances = [pdist(layer.double().cpu().numpy()) for layer in layers]
    found = rsa(layers).cpu()
    for (a, x), (b, y) in itertools.product(enumerate(distances), repeat=2):
        assert found[a, b] == pytest.approx(scipy.stats.spearmanr(x, y).statistic, abs=1e-7)
    torch.testing.assert_close(rsa(layers[:2], layers[2:]).cpu(), found[:2, 2:])


@pytest.mark.ci_slow
def test_mantel_finds_likeness_and_is_uniform_without_it():
    (states,) = drawn(1)
    assert mantel([states, states + torch.randn(N, D)], permutations=99)[1].max() == 0.01
    p = torch.cat([mantel(*torch.randn(2, 20, 10, 4), permutations=19, seed=k)[1].diagonal() for k in range(10)])
    assert scipy.stats.kstest(p.numpy() - np.random.default_rng(0).random(len(p)) / 20, "uniform").pvalue > 0.01


def test_mantel_permutes_groups_and_compares_pairs_across():
    """Correlation over the pairs between groups, of as many words each, by explicit loops; words of one are near."""
    draw, groups = torch.Generator().manual_seed(0), torch.arange(10).repeat_interleave(torch.tensor([4, 2] * 5))
    sides = [[torch.randn(10, 4, generator=draw)[groups] + torch.randn(30, 4, generator=draw)] for _ in range(2)]
    found = mantel(*sides, permutations=19, groups=groups)
    x, y = (squareform(scipy.stats.rankdata(pdist(layer.double().numpy()))) for (layer,) in sides)
    kept = np.flatnonzero(np.concatenate([np.arange(4), np.arange(2)] * 5) < 2)
    rows, columns = np.triu_indices(20, 1)
    between = (groups[kept][rows] != groups[kept][columns]).numpy()
    centred, y = x[kept][:, kept][rows, columns][between], y[kept][:, kept]
    centred -= centred.mean()
    chance = []
    for number in range(19):
        order = permuted_rows(groups[kept], number).numpy()
        chance.append(centred @ y[order[rows], order[columns]][between])
    assert float(found.p) == pytest.approx((1 + sum(np.array(chance) >= centred @ y[rows, columns][between])) / 20)
    torch.testing.assert_close(found.value, rsa(*sides))
    with pytest.warns(UserWarning, match="7 groups"):
        assert mantel(*sides, permutations=9, groups=groups % 7).p.isnan().all()


def test_groups_and_the_largest_pair_keep_mantels_false_alarms():
    """Twenty pairs of layers with nothing in common but that sentences hold together."""
    draw, groups = torch.Generator().manual_seed(0), torch.arange(20).repeat_interleave(6)
    sides = [[2 * torch.randn(20, 6, generator=draw)[groups] + torch.randn(120, 6, generator=draw) for _ in range(n)]
             for n in (4, 5)]  # fmt: skip
    told, not_told = (mantel(*sides, permutations=39, groups=each) for each in (groups, None))
    assert (told.p <= 0.05).double().mean() < 0.2
    assert (not_told.p <= 0.05).double().mean() > 0.3, "control"
    assert (told.p_of_largest >= told.p).all()
    assert told.p_of_largest.min() > 0.05


def test_weighted_tau_sees_the_top_more_than_the_bottom():
    profile = torch.arange(8.0)[None]
    top, bottom = profile.clone(), profile.clone()
    top[0, [7, 6]], bottom[0, [1, 0]] = profile[0, [6, 7]], profile[0, [0, 1]]
    assert weighted_tau(profile) == pytest.approx(1)
    assert weighted_tau(profile, -profile) == pytest.approx(-1)
    assert weighted_tau(profile, top) < weighted_tau(profile, bottom) < 1


@pytest.mark.parametrize("other", [False, True])
@pytest.mark.parametrize("comparator", ["spearman", "corr"])
def test_intervals_leave_stimuli_out_with_all_their_pairs(other, comparator):
    draw, groups = torch.Generator().manual_seed(0), torch.arange(40) // 2
    layers = [torch.randint(4, (40, 5), generator=draw).double() for _ in range(3)]
    others = [torch.randn(40, 6, generator=draw) for _ in range(2)] if other else None
    found = rsa_estimate(layers, others, folds=4, groups=groups, comparator=comparator)
    replicates = []
    for train, _ in splits(stimulus_folds(40, 4, 0, groups)):
        sides = [None if side is None else [layer[train] for layer in side] for side in (layers, others)]
        replicates.append(rsa(*sides, comparator=comparator))
    expected = jackknife(rsa(layers, others, comparator=comparator), torch.stack(replicates))
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-12, rtol=0)


def test_equal_distances_of_whole_numbers_tie():
    draw = torch.Generator().manual_seed(0)
    layers = [torch.randint(high, (70, 9), generator=draw) * 3 + 1000 for high in (2, 3, 50)]
    expected = scipy.stats.spearmanr(np.stack([pdist(layer.numpy(), "sqeuclidean") for layer in layers], 1)).statistic
    assert rsa([layer.float() for layer in layers]).numpy() == pytest.approx(expected, abs=1e-14)


def grid_at(place):
    """The points of a grid about a place, whose distances have few values."""
    points = torch.cartesian_prod(*[torch.arange(3.0, dtype=torch.float64)] * 3)
    return 0.1 * points.to(place.dtype) + place


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("distance", ["cosine", "correlation", "euclidean", "manhattan", "precomputed"])
def test_rounding_is_relative_to_what_was_subtracted(distance, dtype):
    """Distances that are 0, or equal, differ by the rounding of the states, which may be much larger than they are."""
    draw = torch.Generator().manual_seed(0)
    patterns = torch.randn(11, 64, generator=draw, dtype=torch.float64)
    patterns = torch.cat([patterns, patterns[-1:].expand(19, -1)]).to(dtype)  # the last one 20 times

    def layer():
        scale, offset = (torch.rand(30, 1, generator=draw, dtype=torch.float64).to(dtype) + 0.5 for _ in range(2))
        if distance in ("euclidean", "manhattan"):
            return grid_at(0.1 / torch.finfo(dtype).eps ** 0.5 * torch.rand(3, generator=draw).to(dtype))
        if distance == "precomputed":
            scaled = (patterns * scale).double().numpy()
            return torch.from_numpy(squareform(pdist(scaled, "cosine"))).to(dtype)
        return patterns * scale + (10 * offset if distance == "correlation" else 0)

    assert rsa([layer()], [layer()], distance=distance).item() == pytest.approx(1, abs=1e-12)


@pytest.mark.parametrize("distance", ["cosine", "correlation", "euclidean", "manhattan"])
def test_near_duplicates_stay_apart(distance):
    states = torch.randn(20, 32, dtype=torch.float64)
    size = 1e-6 * states.norm(dim=1, keepdim=True)
    more = [states + factor * size * torch.randn(20, 32, dtype=torch.float64) for factor in (1, 2)]
    vector = NeuralDistances.of(torch.cat([states, *more]), distance).vector()
    assert len(vector.unique()) == len(vector)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_ranks_of_distances_are_those_of_the_tied_distances(dtype):
    """Of a grid, whose equal distances rounding takes apart, and of states whose distances lie densely."""
    for layer in (grid_at(torch.full((3,), 1000.0, dtype=dtype)), torch.randn(90, 8).to(dtype)):
        distances = NeuralDistances.of(layer)
        pairs = upper_triangle_indices(len(layer))
        expected = scipy.stats.rankdata(distances.at(pairs).numpy())
        assert distances.ranks_at(pairs).numpy() == pytest.approx(expected, abs=1e-9)


def test_a_continuum_of_distances_has_no_ties():
    """Neighbours are closer than rounding, one after the other, while the ends are far apart."""
    values, rounding = torch.linspace(0, 1, 1001, dtype=torch.float64), torch.full((1001,), 0.01, dtype=torch.float64)
    assert torch.equal(levels_of(values, rounding), torch.arange(1001))
    apart = torch.tensor([5.0, 1.0, 1.005, 3.0, 0.995], dtype=torch.float64)
    assert levels_of(apart, rounding[:5]).tolist() == [2, 0, 0, 1, 0]


def test_distances_that_rounding_alone_takes_apart_tie():
    """Few numbers of shared ones give few cosines, which a product of unit rows has in other last digits."""
    codes, states = torch.randint(2, (60, 8)).double(), torch.randn(60, 5, dtype=torch.float64)
    codes[:, 0] = 1
    cosines, distances = pdist(codes.numpy(), "cosine").round(12), pdist(states.numpy(), "sqeuclidean")
    assert len(NeuralDistances.of(codes, "cosine").squared().unique()) > len(np.unique(cosines)) + 1, "control"
    found = rsa([NeuralDistances.of(codes, "cosine")], [states]).item()
    assert found == pytest.approx(scipy.stats.spearmanr(cosines, distances).statistic, abs=1e-12)
    simplex = torch.linalg.qr(torch.randn(30, 30, dtype=torch.float64)).Q
    for comparator in ("spearman", "corr"):
        with pytest.raises(ValueError, match="layer 0 are constant"):
            rsa([simplex], comparator=comparator)


@pytest.mark.parametrize("unit", [1e-310, 1e-200, 1e-150, 1e150, 1e200, 1e300])
@pytest.mark.parametrize("distance", ["cosine", "correlation"])
def test_distances_that_ignore_sizes_hold_for_states_of_any_size(unit, distance):
    """Squares of such numbers are 0 or infinite in float64."""
    states = torch.randn(12, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    expected = NeuralDistances.of(states, distance).vector()
    assert expected.std() > 0.1
    precision = 1e-9 if unit > 1e-300 else 1e-3  # numbers below 1e-308 have few digits
    torch.testing.assert_close(NeuralDistances.of(states * unit, distance).vector(), expected, rtol=precision, atol=0)


@pytest.mark.parametrize("unit", [1e-310, 1e-163, 1e-150, 1e150, 1e153, 1e200, 1e300])
@pytest.mark.parametrize("distance", ["euclidean", "manhattan", "norm_difference", "precomputed"])
def test_states_whose_squares_leave_float64_are_refused_with_a_remedy_that_works(unit, distance):
    states = torch.randn(12, 12, generator=torch.Generator().manual_seed(0), dtype=torch.float64).abs()
    if distance == "precomputed":
        states = (states + states.T).fill_diagonal_(0)
    with pytest.raises(ValueError, match=r"leave the range of float64: divide them by \d+e[+-]\d+$") as refused:
        NeuralDistances.of(states * unit, distance)
    divided = states * unit / float(str(refused.value).rpartition(" ")[2])
    ratio = NeuralDistances.of(divided, distance).vector() / NeuralDistances.of(states, distance).vector()
    torch.testing.assert_close(ratio, ratio[0].expand_as(ratio), rtol=1e-2, atol=0)


@pytest.mark.parametrize("unit", [1e-200, 1e-160, 1e160, 1e200])
def test_crossnobis_distances_do_not_depend_on_the_unit_of_runs(unit):
    runs = torch.randn(3, 8, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    for noise in ("diagonal", "shrinkage"):
        torch.testing.assert_close(crossnobis(runs * unit, noise), crossnobis(runs, noise), rtol=1e-6, atol=1e-9)
    with pytest.raises(ValueError, match=r"runs are of the size .*: divide them by"):
        crossnobis(runs * unit, "none")
    with pytest.raises(ValueError, match=r"residuals are of the size .*: divide them by"):
        noise_covariance(runs.reshape(24, 4) * unit, 20)
