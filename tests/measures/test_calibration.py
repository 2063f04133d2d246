"""Nulls of permuted documents: which rows move, p-values against scipy, planted likeness, and any function of users."""

import math
import warnings

import numpy as np
import pytest
import torch
from scipy.stats import kstest, permutation_test, t

import thinkalike
from thinkalike.measures import (
    SVCCA,
    CKAMeasure,
    Jaccard,
    LayerMeans,
    MutualKNN,
    permuted_rows,
)
from thinkalike.measures.chance import chance_of
from thinkalike.measures.distances.of_layers import DistanceCorrelation
from thinkalike.measures.estimates import Estimate
from thinkalike.measures.folds import numbered_by_part
from thinkalike.measures.permutations import balanced_rows
from thinkalike.measures.shape import Procrustes
from thinkalike.measures.wild_bootstrap import signed_similarities

N, LAYERS, DRAWS = 24, 2, 100


def layers(count=LAYERS, n=N, d=6):
    return [torch.randn(n, d, dtype=torch.float64) for _ in range(count)]


def compared(measure, batches, permutations=0, documents=None, **options):
    means = LayerMeans(len(batches[0][0]), len(batches[0][1]), measure, permutations, **options)
    for number, (source, target) in enumerate(batches):
        means.update(source, target, None, number, documents)
    return means.compute()


def test_rows_of_one_document_stay_together_and_in_order():
    documents = torch.arange(6).repeat_interleave(4)
    seen = set()
    for seed in range(50):
        order = permuted_rows(documents, seed)
        assert order.sort().values.tolist() == list(range(24))
        blocks = order.view(6, 4)
        assert (blocks.diff(dim=1) == 1).all()
        assert (blocks[:, 0] % 4 == 0).all()
        seen.add(tuple(blocks[:, 0].tolist()))
    assert len(seen) > 40


def test_rows_of_a_single_document_are_shifted_round():
    starts = set()
    for seed in range(60):
        order = permuted_rows(torch.zeros(5, dtype=torch.long), seed)
        assert ((order.diff() % 5) == 1).all()
        starts.add(int(order[0]))
    assert starts == set(range(5))


@pytest.mark.parametrize("measure", [DistanceCorrelation(), Procrustes()], ids=["likeness", "distance"])
def test_p_is_that_of_a_permutation_test_of_scipy(measure):
    x = torch.randn(20, 3, dtype=torch.float64)
    y = 0.6 * x + torch.randn(20, 3, dtype=torch.float64)
    chance = compared(measure, [([x], [y])], DRAWS).chance

    def statistic(order):
        return float(measure.of(x, y[torch.as_tensor(order)]))

    expected = permutation_test(
        (np.arange(20),), statistic, permutation_type="pairings", n_resamples=DRAWS, random_state=0,
        alternative="greater" if measure.higher_is_closer else "less",
    )  # fmt: skip
    assert 0.001 < expected.pvalue < 0.9, "control"
    assert float(chance.p) == pytest.approx(expected.pvalue, abs=4 * np.sqrt(2 * expected.pvalue / DRAWS))
    assert float(chance.null) == pytest.approx(expected.null_distribution.mean(), abs=0.02)


@pytest.mark.ci_slow
def test_calibrated_is_0_by_chance_and_1_of_itself_at_any_width():
    for measure in (Procrustes(), Jaccard(5), DistanceCorrelation()):
        for d in (4, 60):
            pairs = [(layers(1, d=d), layers(1, d=d)) for _ in range(16)]
            independent = compared(measure, pairs, 60).chance
            assert abs(float(independent.calibrated.value)) < 0.05
            same = compared(measure, [(x, [3 * x[0]]) for x, _ in pairs[:3]], 9).chance
            assert float(same.calibrated.value) == pytest.approx(1, abs=1e-6)
            assert float(same.p) == pytest.approx(1 / 10)
    raw = [float(Procrustes().of(*(torch.randn(N, d) for _ in range(2)))) for d in (4, 60)]
    assert raw[0] > raw[1] + 0.3, "control: uncalibrated, width alone brings independent layers near"


def test_the_largest_of_many_layers_has_a_null_of_its_own():
    batches = [(layers(6), layers(6)) for _ in range(3)]
    chance = compared(DistanceCorrelation(), batches[:1], 50).chance
    assert (chance.p_of_largest >= chance.p).all()
    assert float(chance.p_of_largest.min()) > float(chance.p.min()), "control: the search is paid for"
    assert chance.largest < float(chance.calibrated.value.max())


@pytest.mark.ci_slow
def test_p_is_exact_where_values_tie():
    """Of measures of four values p is uniform on 1/20, ..., 1 by chance; with every tie counted it is never .05."""

    def found(tested):
        return chance_of(Estimate(*tested[:1].expand(3, -1, -1)), tested.mean(0), tested, 8)

    tested = torch.randint(4, (20, 2000, 6)).double()
    p = found(tested).p
    assert 0.04 < (p <= 0.05).double().mean() < 0.06
    spread = p.flatten() - np.random.default_rng(0).uniform(0, 0.05, p.numel())
    assert kstest(spread, "uniform").pvalue > 0.01
    assert ((tested >= tested[0]).double().mean(0) <= 0.05).double().mean() < 0.005, "control: every tie counts"
    assert torch.equal(found(tested[:, :3, 1:4]).p, p[:3, 1:4]), "the same with other layers"
    largest = torch.stack([found(each).p_of_largest[0] for each in tested[:, :1000].split(1, 1)])
    assert (largest >= p[:1000]).all()
    assert (largest <= 0.05).any(1).double().mean() < 0.06
    assert (found(torch.full((20, 1, 2), 0.5)).p == 1).all(), "nothing is found where all tie"


def test_the_null_is_that_of_the_first_batch():
    parts = [(layers(3), layers(3)) for _ in range(3)]
    result, alone = (compared(DistanceCorrelation(), each, 9).chance for each in (parts, parts[:1]))
    torch.testing.assert_close(result.null, alone.null)
    assert torch.equal(result.p, alone.p)


def test_documents_are_tested_with_equally_many_rows():
    counts = torch.tensor([9, 5, 5, 5, 5, 5, 5, 5, 5, 1, 1])
    documents = torch.arange(11).repeat_interleave(counts)
    chosen = balanced_rows(documents)
    assert chosen.shape == (9, 5)
    assert torch.equal(documents[chosen], torch.arange(9)[:, None].expand(9, 5))
    assert balanced_rows(torch.arange(6)).shape == (6, 1)
    assert balanced_rows(torch.arange(3).repeat_interleave(torch.tensor([9, 1, 2]))).shape[0] == 3


def test_a_mask_leaves_rows_and_their_documents_out():
    states = [torch.randn(2, 6, 3), torch.randn(2, 6, 4)]
    mask = torch.tensor([[True] * 5 + [False], [False] + [True] * 5])
    owners = torch.tensor([[0, 0, 0, 1, 1, 9], [9, 1, 1, 2, 2, 2]])
    masked, plain = (LayerMeans(1, 1, DistanceCorrelation(), 5) for _ in range(2))
    masked.update(states[:1], states[1:], mask, 0, documents=owners)
    plain.update([states[0][mask]], [states[1][mask]], None, 0, documents=owners[mask])
    assert torch.equal(masked.compute().chance.null, plain.compute().chance.null)
    assert masked.compute().chance.documents == 3
    with pytest.raises(ValueError, match=r"documents of shape \(12,\) do not fit states of shape \(2, 6, 3\)"):
        masked.update(states[:1], states[1:], mask, 0, documents=owners.flatten())


def test_where_chance_is_as_close_as_can_be_nothing_is_reported():
    with pytest.raises(ValueError, match="by chance alone two layers are as close as can be, at 1: give more rows"):
        compared(SVCCA(), [(layers(1, 8, 30), layers(1, 8, 30))], 3)


def clustered(owners, d=8):
    """Rows that depend on each other within a document only, drawn for each model alone."""
    return torch.randn(int(owners.max()) + 1, d)[owners].add(0.5 * torch.randn(len(owners), d)).double()


def p_values(measure, drawn, runs=15, count=4, single=False, **options):
    """Those of pairs of layers, each drawn alone, some in each run."""
    found = []
    for _ in range(runs):
        owners = drawn()
        means = LayerMeans(count, count, measure, 19, **options)
        tokens = {"groups": torch.randint(4, owners.shape)} if options else {}
        sides = [[clustered(owners) for _ in range(count)] for _ in range(2)]
        means.update(*sides, documents=None if single else owners, **tokens)
        found.append(means.compute().chance.p.diagonal())
    return torch.cat(found).numpy()


@pytest.mark.ci_slow
def test_permuted_documents_but_not_rows_keep_the_level():
    """p is uniform on 1/20, ..., 1 where documents move as blocks; rows one by one call noise likeness."""

    def equal():
        return torch.arange(10).repeat_interleave(6)

    blocks = p_values(DistanceCorrelation(), equal)
    assert kstest(blocks - np.random.default_rng(0).uniform(0, 0.05, len(blocks)), "uniform").pvalue > 0.01
    assert (blocks <= 0.05 + 1e-9).mean() < 0.15
    assert (p_values(DistanceCorrelation(), equal, single=True) <= 0.05 + 1e-9).mean() > 0.2


@pytest.mark.parametrize(
    "measure",
    [
        pytest.param(CKAMeasure(), id="CKA", marks=pytest.mark.ci_slow),
        pytest.param(MutualKNN(2), id="neighbours", marks=pytest.mark.slow),
    ],
)
def test_given_the_token_documents_but_not_rows_keep_the_level(measure):
    def scattered():
        return torch.randint(20, (96,))

    blocks = p_values(measure, scattered, conditional_on="token")
    assert (blocks <= 0.05 + 1e-9).mean() < 0.2
    assert (p_values(measure, scattered, single=True, conditional_on="token") <= 0.05 + 1e-9).mean() > 0.3


def test_given_the_token_planted_likeness_is_found():
    owners, tokens, x = torch.arange(128) % 16, torch.randint(4, (128,)), torch.randn(128, 6)
    for documents in (owners, owners % 7):
        means = LayerMeans(1, 1, CKAMeasure(), 19, conditional_on="token")
        means.update([x], [x @ torch.randn(6, 6)], groups=tokens, documents=documents)
        p = float(means.compute().chance.p)
        assert p == 1 / 20 if documents is owners else math.isnan(p)


def test_similarities_are_less_what_two_rows_have_on_average():
    """What is a_i + a_j goes, and a matrix that is centred already stays."""
    documents = [torch.arange(24).view(2, 12) // 3]
    additive = torch.randn(2, 12, 1).double()
    random = torch.randn(2, 12, 12).double()
    layers_of = [[random + random.mT], [random + random.mT + additive + additive.mT], [torch.randn(2, 12, 12).double()]]
    found = signed_similarities(layers_of, ([0, 1], [0, 2]), documents, 3)
    assert found.shape == (4, 2, 2)
    torch.testing.assert_close(found[:, 0], found[:, 1])
    assert float(found[0, 0, 0]) == pytest.approx(1)
    assert abs(float(found[0, 0, 1])) < 0.9, "control"


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


@pytest.mark.ci_slow
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


@pytest.mark.ci_slow
def test_ties_with_chance_count_as_often_as_drawn():
    """Half of the permutations have the sign of the value, so that p would never be below .2 if all of them counted."""
    groups, features = torch.arange(16), torch.randn(30, 2, 16, 1)
    p = [thinkalike.calibrate(lambda x, y: (x * y).sum() > 0, *each, groups, 19).p for each in features]
    assert min(p) < 0.15
    assert max(p) > 0.85


def test_few_groups_have_no_interval_and_no_p():
    x = torch.randn(30, 2)
    for count in (7, 8, 14, 15):
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            found = thinkalike.calibrate(lambda a, b: float((a * b).mean()), x, x, torch.arange(30) % count, 9)
        reasons = [str(each.message).partition(":")[0] for each in warned]
        assert reasons == ["no intervals"] * (count < 15) + ["no p-value"] * (count == 7)
        assert math.isfinite(found.low) == (count == 15)
        assert math.isnan(found.p) == (count == 7)
        assert found.null < found.value
    with pytest.raises(ValueError, match=r"groups has shape \(3,\)"):
        thinkalike.calibrate(correlation, x, x, torch.arange(3))
    with pytest.raises(ValueError, match="Y has shape"):
        thinkalike.calibrate(correlation, x, x[1:], torch.arange(30))
