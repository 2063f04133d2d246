"""Nulls of permuted documents: which rows move, p-values against scipy, planted likeness, and false positives."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.stats import kstest, permutation_test

from thinkalike.measures import LayerMeans, distance_correlation, permuted_rows
from thinkalike.measures.distances.representational_similarity import DISTANCE_CORRELATION
from thinkalike.measures.neighbours import jaccard_measure
from thinkalike.measures.shape import PROCRUSTES, svcca_measure

N, LAYERS, DRAWS = 24, 2, 100
generator = torch.Generator()


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
    for _ in range(50):
        order = permuted_rows(documents, generator)
        assert order.sort().values.tolist() == list(range(24))
        blocks = order.view(6, 4)
        assert (blocks.diff(dim=1) == 1).all()
        assert (blocks[:, 0] % 4 == 0).all()
        seen.add(tuple(blocks[:, 0].tolist()))
    assert len(seen) > 40


def test_rows_of_a_single_document_are_shifted_round():
    starts = set()
    for _ in range(60):
        order = permuted_rows(torch.zeros(5, dtype=torch.long), generator)
        assert ((order.diff() % 5) == 1).all()
        starts.add(int(order[0]))
    assert starts == set(range(5))


def test_without_a_null_it_is_the_mean_over_batches():
    batches = [(layers(), layers(3)) for _ in range(4)]
    result = compared(DISTANCE_CORRELATION, batches)
    assert result.chance is None
    expected = np.mean(
        [[[float(distance_correlation(x, y)) for y in target] for x in source] for source, target in batches], 0
    )
    np.testing.assert_allclose(result.value, expected, atol=1e-10)
    with_null = compared(DISTANCE_CORRELATION, batches, 3)
    assert torch.equal(with_null.value, result.value)


@pytest.mark.parametrize("measure", [DISTANCE_CORRELATION, PROCRUSTES], ids=["likeness", "distance"])
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
    assert float(chance.null.value) == pytest.approx(expected.null_distribution.mean(), abs=0.02)


def test_calibrated_is_0_by_chance_and_1_of_a_layer_with_itself_whatever_the_width():
    for measure in (PROCRUSTES, jaccard_measure(5), DISTANCE_CORRELATION):
        for d in (4, 60):
            pairs = [(layers(1, d=d), layers(1, d=d)) for _ in range(16)]
            independent = compared(measure, pairs, 9).chance
            assert abs(float(independent.calibrated.value)) < 0.05
            assert float(independent.calibrated.low) < 0.02 < 0.1 + float(independent.calibrated.high)
            same = compared(measure, [(x, [3 * x[0]]) for x, _ in pairs[:3]], 9).chance
            assert float(same.calibrated.value) == pytest.approx(1, abs=1e-6)
            assert float(same.p) == pytest.approx(1 / 10)
    raw = [float(PROCRUSTES.of(*(torch.randn(N, d) for _ in range(2)))) for d in (4, 60)]
    assert raw[0] > raw[1] + 0.3, "control: uncalibrated, width alone brings independent layers near"


def test_the_largest_of_many_layers_has_a_null_of_its_own():
    batches = [(layers(6), layers(6)) for _ in range(3)]
    chance = compared(DISTANCE_CORRELATION, batches, 50).chance
    assert (chance.p_of_largest >= chance.p).all()
    assert float(chance.p_of_largest.min()) > float(chance.p.min()), "control: the search is paid for"
    value = compared(DISTANCE_CORRELATION, batches).value
    assert chance.largest < float(chance.calibrated.value.max())
    assert abs(chance.largest) < 0.1 < float(value.max()) + 0.1


def test_a_model_with_itself_and_batches_that_leave_parts_out_have_a_null():
    x = layers(3)
    itself = LayerMeans(3, 3, DISTANCE_CORRELATION, 9)
    copied = LayerMeans(3, 3, DISTANCE_CORRELATION, 9)
    itself.update(x, x)
    copied.update(x, [layer.clone() for layer in x])
    torch.testing.assert_close(itself.compute().chance.null.value, copied.compute().chance.null.value)
    parts = [(x, layers(3)), *((layers(3, N - 6), layers(3, N - 6)) for _ in range(4))]
    result = compared(DISTANCE_CORRELATION, parts, 9, left_out=True)
    alone = compared(DISTANCE_CORRELATION, parts[:1], 9)
    torch.testing.assert_close(result.chance.null.value, alone.chance.null.value)
    assert torch.equal(result.chance.p, alone.chance.p)


def test_a_run_that_goes_on_or_is_shared_is_that_of_one_go():
    batches = [(layers(), layers()) for _ in range(4)]
    whole, first, second = (LayerMeans(LAYERS, LAYERS, PROCRUSTES, 5) for _ in range(3))
    for number, pair in enumerate(batches):
        whole.update(*pair, None, number)
        (first if number < 2 else second).update(*pair, None, number)
    resumed = LayerMeans(LAYERS, LAYERS, PROCRUSTES, 5)
    resumed.load_state_dict(first.state_dict())
    resumed.merge_state(second)
    expected, found = whole.compute(), resumed.compute()
    assert torch.equal(found.chance.p, expected.chance.p)
    assert torch.equal(found.chance.calibrated.low, expected.chance.calibrated.low)
    assert found.chance.documents == expected.chance.documents == N


def test_a_mask_leaves_rows_and_their_documents_out():
    states = [torch.randn(2, 6, 3), torch.randn(2, 6, 4)]
    mask = torch.tensor([[True] * 5 + [False], [False] + [True] * 5])
    owners = torch.tensor([[0, 0, 0, 1, 1, 9], [9, 1, 1, 2, 2, 2]])
    masked, plain = (LayerMeans(1, 1, DISTANCE_CORRELATION, 5) for _ in range(2))
    masked.update(states[:1], states[1:], mask, 0, documents=owners)
    plain.update([states[0][mask]], [states[1][mask]], None, 0, documents=owners[mask])
    assert torch.equal(masked.compute().chance.null.value, plain.compute().chance.null.value)
    assert masked.compute().chance.documents == 3
    with pytest.raises(ValueError, match=r"documents of shape \(12,\) do not fit states of shape \(2, 6, 3\)"):
        masked.update(states[:1], states[1:], mask, 0, documents=owners.flatten())


def test_where_chance_is_as_close_as_can_be_nothing_is_reported():
    with pytest.raises(ValueError, match="by chance alone two layers are as close as can be, at 1: give more rows"):
        compared(svcca_measure(), [(layers(1, 8, 30), layers(1, 8, 30))], 3)


def clustered(n_documents, length, d=8):
    """Rows that depend on each other within a document only, drawn for each model alone."""
    return torch.randn(n_documents, 1, d).add(0.5 * torch.randn(n_documents, length, d)).flatten(0, 1).double()


def p_values(owners, runs=60):
    found = []
    for _ in range(runs):
        means = LayerMeans(1, 1, DISTANCE_CORRELATION, 19)
        means.update([clustered(10, 6)], [clustered(10, 6)], documents=owners)
        found.append(float(means.compute().chance.p))
    return np.array(found)


def test_permuted_documents_keep_the_level_and_permuted_rows_do_not():
    """p is uniform on 1/20, ..., 1 where documents move as blocks; rows one by one call noise likeness."""
    blocks = p_values(torch.arange(10).repeat_interleave(6))
    assert kstest(blocks - np.random.default_rng(0).uniform(0, 0.05, len(blocks)), "uniform").pvalue > 0.01
    assert (blocks <= 0.05 + 1e-9).mean() < 0.15
    rows = p_values(None)
    assert (rows <= 0.05 + 1e-9).mean() > 0.2
