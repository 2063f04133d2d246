"""Noise ceilings, random effects and the two-factor bootstrap against rsatoolbox, simulations and planted answers."""

import warnings

import numpy as np
import pytest
import scipy.stats
import torch

from thinkalike.contrib.subjects.measures import (
    Draws,
    draw,
    dual_variance,
    model_scores,
    noise_ceiling,
    random_effects,
    two_factor,
)
from thinkalike.measures import compare
from thinkalike.measures.estimates import two_sided
from toolbox import THEIRS, every

N, S = 10, 5
P = N * (N - 1) // 2


def drawn(models=3, subjects=S, noise=1.0):
    """Distances of models and of subjects; the first model is what all subjects share."""
    shared = torch.rand(P, dtype=torch.float64) + 0.2
    others = torch.rand(models - 1, P, dtype=torch.float64) + 0.2
    return torch.cat([shared[None], others]), shared + noise * (torch.rand(subjects, P, dtype=torch.float64) - 0.5)


@every
def test_noise_ceilings_are_rsatoolboxs(comparator, toolbox):
    from rsatoolbox.inference import boot_noise_ceiling, cv_noise_ceiling
    from rsatoolbox.inference.crossvalsets import sets_leave_one_out_rdm

    _, subjects = drawn()
    rdms, found = toolbox.rdm.RDMs(subjects.numpy()), noise_ceiling(subjects, comparator)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of averaged ranks
        expected = boot_noise_ceiling(rdms, THEIRS[comparator])
        _, tests, rest = sets_leave_one_out_rdm(rdms)
        crossed = cv_noise_ceiling(rdms, rest, tests, THEIRS[comparator])
    for theirs in (expected, crossed):
        np.testing.assert_allclose([found.lower.mean(), found.upper.mean()], theirs, atol=1e-8)


@every
def test_the_lower_ceiling_does_not_see_the_subject(comparator):
    _, subjects = drawn()
    found = noise_ceiling(subjects, comparator)
    assert (found.lower < found.upper).all()
    changed = subjects.clone()
    changed[0] = torch.rand(P)
    again = noise_ceiling(changed, comparator)
    torch.testing.assert_close(again.without[0], found.without[0])
    assert (again.without[1] != found.without[1]).any(), "control"


def test_random_effects_are_scipys_t():
    values = torch.randn(3, 7, dtype=torch.float64) + 0.3
    found = random_effects(values, level=0.9)
    theirs = scipy.stats.ttest_1samp(values.numpy(), 0, axis=1)
    low, high = theirs.confidence_interval(0.9)
    np.testing.assert_allclose([found.value, found.low, found.high], [values.mean(1), low, high], rtol=1e-9)
    errors = values.std(1) / 7**0.5
    np.testing.assert_allclose(two_sided(values.mean(1), errors, 6), theirs.pvalue, rtol=1e-9)


def test_without_spread_p_is_1_at_difference_0_and_else_0():
    assert two_sided(torch.tensor([0.0, 1.0, -1.0]), torch.zeros(3), 4).tolist() == [1, 0, 0]


@pytest.mark.parametrize("comparator", ["cosine", "spearman", "corr_cov"])
def test_the_two_factor_bootstrap_is_rsatoolboxs(comparator, toolbox, monkeypatch):
    """With its own draws: scores of every resample, and the corrected variances of models and of their differences."""
    from rsatoolbox.inference import evaluate
    from rsatoolbox.model import ModelFixed

    models, subjects = drawn()
    taken = []

    def noted(*words, sample=evaluate.bootstrap_sample, **more):
        found = sample(*words, **more)
        taken.append(found[1:])
        return found

    monkeypatch.setattr(evaluate, "bootstrap_sample", noted)
    monkeypatch.setattr(evaluate.tqdm, "trange", range)
    np.random.seed(0)
    fixed = [ModelFixed(str(number), each) for number, each in enumerate(models.numpy())]
    theirs = evaluate.eval_dual_bootstrap(fixed, toolbox.rdm.RDMs(subjects.numpy()), THEIRS[comparator], N=25)
    counts = [
        torch.tensor(np.array([np.bincount(each[side], minlength=m) for each in taken])).double()
        for side, m in ((0, S), (1, N))
    ]
    draws = Draws(*counts, N)
    values, replicates = compare(models, subjects, comparator), compare(models, subjects, comparator, counts[1])
    expected = torch.from_numpy(theirs.evaluations[:, :, 0, 0])
    weights = counts[0] / S
    torch.testing.assert_close(torch.einsum("rms,rs->rm", replicates, weights), expected[:, :, 0], atol=1e-8, rtol=0)
    torch.testing.assert_close(torch.einsum("ms,rs->rm", values, weights), expected[:, :, 1], atol=1e-8, rtol=0)
    torch.testing.assert_close(replicates.mean(2), expected[:, :, 2], atol=1e-8, rtol=0)
    found = two_factor(values, replicates, draws)
    np.testing.assert_allclose(found.error.square(), theirs.model_var, atol=1e-8)
    pairs = [(0, 1), (0, 2), (1, 2)]
    difference = two_factor(
        *(torch.stack([each[..., a, :] - each[..., b, :] for a, b in pairs], -2) for each in (values, replicates)),
        draws,
    )
    np.testing.assert_allclose(difference.error.square(), theirs.diff_var, atol=1e-8)
    assert theirs.dof == min(N, S) - 1


def test_variances_are_corrected_within_bounds():
    """Means of subjects plus stimuli plus noise, whose true variance is known."""
    s, n, found, crude = 8, 12, [], []
    parts = (0.5, 0.7, 1.0)
    for seed in range(100):
        generator = torch.Generator().manual_seed(seed)
        scores = sum(
            size * torch.randn(*shape, generator=generator, dtype=torch.float64)
            for size, shape in zip(parts, ((s, 1), (1, n), (s, n)), strict=True)
        )
        draws = draw(s, n, 200, seed)
        replicates = draws.stimuli / n @ scores.T
        found.append(float(two_factor(scores.mean(1), replicates, draws).error.square()))
        crude.append(float(torch.einsum("rs,rs->r", replicates, draws.subjects / s).var()))
    truth = parts[0] ** 2 / s + parts[1] ** 2 / n + parts[2] ** 2 / (s * n)
    assert abs(np.mean(found) / truth - 1) < 0.1
    assert np.mean(crude) > 1.08 * truth, "control: both at once count noise three times"
    v = torch.tensor([1.0, 5.0]), torch.tensor([2.0, 1.0]), torch.tensor([0.5, 1.0])
    assert dual_variance(*v, s, n).tolist() == pytest.approx([1.0, s / (s - 1)]), "bounds"


def test_a_better_model_is_found_and_equal_ones_are_not():
    models, subjects = drawn(2, 8, noise=0.5)
    found = model_scores(models, subjects, resamples=100)
    difference = two_factor(*found.of(0).minus(found.of(1)), found.draws)
    assert difference.estimate.low > 0
    assert difference.p < 0.02
    same = model_scores(torch.stack([subjects.mean(0), subjects.mean(0)]), subjects, resamples=20)
    none = two_factor(*same.of(0).minus(same.of(1)), same.draws)
    assert abs(none.estimate.value) < 1e-15
    assert none.p == 1


def test_scores_and_ceiling_are_those_of_copied_stimuli(device):
    models, subjects = drawn()
    found = model_scores(models.to(device), subjects.to(device), "corr", resamples=7, seed=3)
    torch.testing.assert_close(found.values, compare(models, subjects, "corr"))
    torch.testing.assert_close(found.replicates, compare(models, subjects, "corr", found.draws.stimuli))
    ceiling = noise_ceiling(subjects, "corr")
    expected = compare(ceiling.without, subjects, "corr", found.draws.stimuli).diagonal(dim1=1, dim2=2)
    torch.testing.assert_close(found.of_ceiling().replicates, expected)
    torch.testing.assert_close(found.of_ceiling().values, ceiling.lower)


def test_without_resamples_there_is_no_interval_over_stimuli():
    found = model_scores(*drawn(), resamples=0)
    assert found.replicates.shape == (0, 3, S)
    assert random_effects(found.best([0, 1])[0].minus(found.of_ceiling()).values).low.isfinite()
    assert two_factor(*found.of(0), found.draws).error.isnan()


def test_the_best_is_chosen_on_other_subjects():
    found = model_scores(torch.rand(3, P), torch.rand(3, P), resamples=2)
    values = torch.tensor([[0.9, 0.1, 0.1], [0.0, 0.6, 0.0], [0.2, 0.2, 0.2]], dtype=torch.float64)
    planted = type(found)(values, values.expand(2, 3, 3), found.ceiling, found.lower, found.draws)
    scored, chosen = planted.best([0, 1, 2])
    assert chosen.tolist() == [1, 0, 0]
    assert scored.values.tolist() == [0.0, 0.1, 0.1]
    assert scored.replicates.tolist() == [[0.0, 0.1, 0.1]] * 2
    assert planted.best([1, 2])[1].tolist() == [1, 2, 1]


def test_stimuli_of_a_group_are_drawn_together():
    groups = torch.tensor([5, 5, 2, 2, 9, 9, 9, 1, 1, 1])
    found = draw(3, N, 50, seed=1, groups=groups)
    assert found.units == 4
    for group in groups.unique():
        inside = found.stimuli[:, groups == group]
        assert (inside == inside[:, :1]).all()
    assert ((found.stimuli > 0)[:, [0, 2, 4, 7]].sum(1) >= 3).all()
    assert (found.subjects.sum(1) == 3).all()
    assert torch.equal(draw(3, N, 50, seed=1, groups=groups).stimuli, found.stimuli)
    assert (draw(3, N, 50, seed=1).stimuli.sum(1) == N).all()


def test_empty_resamples_are_dropped_and_too_many_refused():
    one = torch.zeros(1, P, dtype=torch.float64)
    one[0, :3] = 1  # stimulus 0 and 1, 2, 3
    subjects = drawn()[1]
    found = model_scores(one, subjects, resamples=40)
    assert 20 <= len(found.replicates) == len(found.draws.subjects) < 40


THREE = torch.tensor([[1.0, 2, 3], [3, 2, 1], [2, 1, 3]])
REFUSED = {
    "one subject": lambda: noise_ceiling(torch.rand(1, P), "corr"),
    "a constant subject": lambda: noise_ceiling(torch.ones(2, P), "corr"),
    "a constant mean": lambda: noise_ceiling(THREE[:2], "tau_a"),
    "a constant mean of the others": lambda: noise_ceiling(THREE, "spearman"),
    "two groups": lambda: draw(3, 4, 5, groups=torch.tensor([0, 0, 1, 1])),
    "resamples that are constant": lambda: model_scores(torch.eye(P)[:1], drawn()[1], resamples=40),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_has_no_ceiling_or_resamples_is_refused(case):
    with pytest.raises(ValueError):
        REFUSED[case]()
