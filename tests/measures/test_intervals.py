"""Intervals: over documents by their own definition, coverage, edges, folds, the jackknife; means over batches."""

import contextlib
import math
from dataclasses import dataclass, field

import numpy as np
import pytest
import scipy.stats
import torch

from conftest import ROOT
from thinkalike.measures import (
    CKA,
    DistanceCorrelation,
    Estimate,
    LayerMeans,
    LayerMeasure,
    MutualKNN,
    bootstrap_interval,
    documents_and_seeds_interval,
    effective_number,
    fold_interval,
    jackknife,
    rsa,
    rsa_estimate,
    stimulus_folds,
    student_t,
)
from thinkalike.measures.folds import JACKKNIFE_PARTS, numbered_by_part
from thinkalike.measures.sample_size import freedom_of_groups
from thinkalike.measures.shifts import LayerShifts

pytestmark = pytest.mark.usefixtures("float64")


def report(documents, layers=(), seed=0, chance=None):
    """Sums of skewed per-document means of 0, and unequal counts."""
    chance = chance or np.random.default_rng(seed)
    counts = torch.from_numpy(np.exp(0.6 * chance.normal(size=documents)) * 100).ceil()
    means = torch.from_numpy(chance.exponential(size=(*layers, documents)) - 1)
    return means * counts, counts


@pytest.mark.parametrize("together", [False, True])
def test_ends_are_within_the_bounds_of_what_they_are_of(together):
    """Means of skewed values that cannot be negative, as KL, and of rare ones that are 0 or 1, as flips."""
    generator = np.random.default_rng(0)
    below, right = 0, []
    for _ in range(100):
        counts = torch.from_numpy(generator.integers(20, 200, 10)).double()
        sums = torch.from_numpy(generator.lognormal(0, 1.5, (3, 10))) * counts
        below += bool((bootstrap_interval(sums, counts, together=together).low < 0).any())
        found = bootstrap_interval(sums, counts, together=together, bounds=(0.0, math.inf))
        assert ((found.low > 0) & (found.low < found.value) & (found.value < found.high)).all()
        right.append(bool((found.low <= math.exp(1.5**2 / 2)).all()))
        flips = torch.from_numpy(generator.binomial(counts.long(), generator.beta(0.5, 2.0, 10))).double()
        found = bootstrap_interval(flips, counts, together=together, bounds=(0.0, 1.0))
        assert 0 <= found.low <= found.value <= found.high <= 1
    assert below > 20, "control: without bounds"
    assert np.mean(right) >= 0.94
    none = bootstrap_interval(torch.zeros(10), torch.ones(10), bounds=(0.0, 1.0))
    assert (none.value, none.low, none.high) == (0, 0, 0)


def covered(estimate, truth=0.0):
    return ((estimate.low <= truth) & (truth <= estimate.high)).double()


def studentised(sums, counts, draws, level=0.95):
    """The interval of a ratio, from its definition, with these draws of documents (r, n)."""

    def both(chosen, unbiased=False):
        mean = sums[chosen].sum(-1) / counts[chosen].sum(-1)
        weights = counts[chosen] / counts[chosen].sum(-1, keepdims=True)
        scale = np.sqrt(1 - 2 * weights + (weights**2).sum()) if unbiased else 1
        beyond = weights * (sums[chosen] / counts[chosen] - mean[..., None]) / scale
        return mean, np.sqrt((beyond**2).sum(-1))

    n = len(counts)
    least = scipy.stats.t.ppf((1 + level) / 2, int(counts.sum() ** 2 / (counts**2).sum() - 1))
    wider = least / scipy.stats.t.ppf((1 + level) / 2, n - 1)
    value, error = both(np.arange(n), unbiased=True)
    means, errors = both(draws)
    upper, lower = np.quantile((means - value) / errors, [(1 + level) / 2, (1 - level) / 2]) * wider
    return value - max(upper, least) * error, value - min(lower, -least) * error


@pytest.mark.parametrize("level", [0.95, 0.5])
def test_an_interval_is_that_of_its_definition_with_other_draws(level):
    """Ends of 20,000 resamples scatter by about 1 % of the width."""
    sums, counts = report(40)
    found = bootstrap_interval(sums, counts, level=level, resamples=20000)
    draws = np.random.default_rng(1).integers(40, size=(20000, 40))
    ends = studentised(sums.numpy(), counts.numpy(), draws, level)
    np.testing.assert_allclose([found.low, found.high], ends, rtol=0, atol=0.05 * (ends[1] - ends[0]))


def test_of_two_documents_it_is_students():
    rates = torch.tensor([1.0, 4.0])
    found = bootstrap_interval(rates * 7, torch.full((2,), 7.0))
    ends = scipy.stats.t.interval(0.95, 1, rates.mean(), scipy.stats.sem(rates))
    np.testing.assert_allclose([found.low, found.high], ends, rtol=1e-9)


def test_it_covers_what_percentiles_do_not():
    """800 reports of 20 documents with skewed means; 2000 give a share to within 0.7 %."""
    chance, ours, percentiles = np.random.default_rng(0), [], []
    draws = torch.randint(20, (1000, 20), generator=torch.Generator().manual_seed(0))
    for seed in range(40):
        sums, counts = report(20, (20,), chance=chance)
        ours.append(covered(bootstrap_interval(sums, counts, resamples=1000, seed=seed)))
        ratios = sums[:, draws].sum(-1) / counts[draws].sum(-1)
        low, high = ratios.quantile(torch.tensor([0.025, 0.975]), dim=-1)
        percentiles.append(((low <= 0) & (high >= 0)).double())
    assert 0.925 < torch.cat(ours).mean() < 0.975
    assert torch.cat(percentiles).mean() < 0.92, "control"


def test_equal_documents_have_intervals_of_width_0():
    counts = torch.tensor([3.0, 1, 7, 20])
    found = bootstrap_interval(torch.stack([0 * counts, 0.1 * counts]), counts)
    assert torch.equal(found.low, found.value)
    assert torch.equal(found.high, found.value)
    together = bootstrap_interval(torch.stack([0.1 * counts, counts.square()]), counts, together=True)
    alone = bootstrap_interval(counts.square(), counts)
    assert torch.equal(together.high[0], together.value[0])
    assert torch.equal(together.high[1], alone.high), "rounding in one does not widen the other"


def test_one_document_apart_from_all_others_gives_finite_ends():
    """Without it a resample has no spread at all."""
    sums = torch.zeros(30)
    sums[4] = 5.0
    value, low, high = bootstrap_interval(sums, torch.ones(30))
    assert low.isfinite()
    assert high.isfinite()
    assert low <= value < high


def test_the_effective_number_is_that_of_equal_documents():
    assert effective_number(torch.full((17,), 30)) == pytest.approx(17)
    assert effective_number(torch.tensor([1000.0, 0, 0])) == 1
    assert effective_number(torch.tensor([3, 1])) == pytest.approx(16 / 10)


def test_intervals_of_several_layers_hold_together():
    chance, held = np.random.default_rng(0), {True: [], False: []}
    for seed in range(200):
        sums, counts = report(40, (5,), chance=chance)
        for together, each in held.items():
            found = bootstrap_interval(sums, counts, resamples=300, seed=seed, together=together)
            each.append(covered(found).all().double())
    assert 0.92 < torch.stack(held[True]).mean() < 0.985
    assert torch.stack(held[False]).mean() < 0.9, "control"


@pytest.mark.parametrize("seeds", [1, 3])
def test_seeds_that_agree_do_not_widen_the_interval(seeds):
    sums, counts = report(30, (4, 1))
    found = documents_and_seeds_interval(sums.expand(4, seeds, 30), counts)
    for left, right in zip(found, bootstrap_interval(sums[:, 0], counts), strict=True):
        torch.testing.assert_close(left, right)


def test_where_seeds_alone_differ_the_interval_is_students():
    counts = report(30)[1]
    means = torch.tensor([1.0, 2.0, 4.5])
    found = documents_and_seeds_interval(means[:, None] * counts, counts)
    ends = scipy.stats.t.interval(0.95, 2, means.mean(), scipy.stats.sem(means))
    np.testing.assert_allclose([found.low, found.high], ends, rtol=1e-9)


def test_documents_without_tokens_do_not_matter():
    sums, counts = report(30, (2, 3))
    more = torch.cat([sums, torch.full((2, 3, 5), 9.0)], -1), torch.cat([counts, torch.zeros(5)])
    for left, right in zip(
        documents_and_seeds_interval(*more), documents_and_seeds_interval(sums, counts), strict=True
    ):
        torch.testing.assert_close(left, right)


@pytest.mark.parametrize("seeds", [2, 3])
def test_intervals_over_documents_and_seeds_cover(seeds):
    chance, ours, documents = np.random.default_rng(0), [], []
    for seed in range(30):
        sums, counts = report(45, (20, 1), chance=chance)
        spread = torch.from_numpy(chance.normal(size=(20, seeds, 1))) * 0.4
        sums = sums + spread * counts
        ours.append(covered(documents_and_seeds_interval(sums, counts, resamples=400, seed=seed)))
        documents.append(covered(bootstrap_interval(sums.mean(-2), counts, resamples=400, seed=seed)))
    assert torch.cat(ours).mean() > 0.925
    assert torch.cat(documents).mean() < 0.85, "control"


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
    torch.testing.assert_close(tuple(found), (unbiased, unbiased - half, torch.maximum(unbiased + half, value)))
    torch.testing.assert_close(tuple(both), (value, unbiased - half, value + half))
    assert found.uncorrected is value
    assert both.uncorrected is None
    torch.testing.assert_close(tuple(jackknife(value, replicates)), (value, value - half, value + half))


@pytest.mark.parametrize("count", [1, 7, 10, 60])
def test_groups_are_drawn_whole_into_parts_of_about_equal_size(count):
    groups = torch.randint(count, (4000,), generator=torch.Generator().manual_seed(0)).square() + 5
    numbers = numbered_by_part(groups)
    pairs = torch.stack([groups, numbers]).unique(dim=1)
    assert pairs.shape[1] == len(groups.unique()) == len(numbers.unique()), "a number is a group"
    sizes = (numbers % JACKKNIFE_PARTS).bincount()
    assert len(sizes) == min(JACKKNIFE_PARTS, count)
    assert int(sizes.max() - sizes.min()) <= int(groups.unique(return_counts=True)[1].max())


@dataclass(frozen=True)
class Dots(LayerMeasure):
    """The mean product of the rows of two layers."""

    seen: list = field(default_factory=list)  # the names of the layers that were prepared

    fewest = 1

    def prepare(self, layer, name):
        self.seen.append(name)
        return layer.double()

    def compare(self, first, second):
        return (first * second).sum(1).mean()


def dots(layers):
    """Mean products of the rows of all layers: a measure that is easy to do by hand."""
    return torch.stack([torch.stack([(a * b).sum(1).mean() for b in layers]) for a in layers])


def batch(layers, n=6, d=3):
    return [torch.randn(n, d, dtype=torch.float64) for _ in range(layers)]


def test_mknn_is_a_mean_over_batches_jackknifed_by_document():
    """The documents of one part lie in several batches, and no part has the same share of each."""
    pairs = [(batch(2, 12), batch(3, 12)) for _ in range(5)]
    owners = [torch.randint(30, (12,)) for _ in pairs]
    means = LayerMeans(2, 3, Dots())
    for number, (source, target) in enumerate(pairs):
        means.update(source, target, None, number, documents=owners[number])

    def mean(kept, chosen=range(5)):
        return torch.stack([dots([x[kept(owners[n])] for x in [*pairs[n][0], *pairs[n][1]]]) for n in chosen]).mean(0)

    def scattered(own, part):  # as many rows as the part has, whatever their documents
        home = (own % 10).argsort(stable=True)
        moved = (own % 10)[home][torch.randperm(len(own), generator=torch.Generator().manual_seed(0))]
        return torch.empty_like(own).scatter_(0, home, moved) != part

    every = mean(lambda own: own >= 0)
    without = torch.stack([mean(lambda own, part=part: own % 10 != part) for part in range(10)])
    by_documents = [mean(lambda own, part=part: own % 10 != part, [0, 4]) for part in range(10)]
    by_rows = [mean(lambda own, part=part: scattered(own, part), [0, 4]) for part in range(10)]
    dependence = (torch.stack(by_documents) - torch.stack(by_rows)).mean(0)
    expected = jackknife(every, without, without.mean(0) - dependence, is_drawn=True)
    result = means.compute()
    assert (result.batches, result.documents) == (5, len(torch.cat(owners).unique()))
    for part, rows, columns in (
        (result, slice(2), slice(2, None)),
        (result.within_source, slice(2), slice(2)),
        (result.within_target, slice(2, None), slice(2, None)),
    ):
        for own, other in zip(part, expected[rows, columns], strict=True):
            torch.testing.assert_close(own, other, rtol=0, atol=1e-13)
    assert result.widest_interval() == pytest.approx(float((expected.high - expected.low).max()))


def test_pairs_without_a_value_have_no_interval_to_be_wide():
    """Distances are of each layer with itself, and other pairs are NaN; a warning said that no interval was there."""
    means = LayerShifts(2, 2)
    for number in range(2):
        means.update(batch(2, 90), batch(2, 90), None, number, documents=torch.arange(90) % 30)
    found = means.compute()
    assert found.value.isnan().sum() == 2, "control"
    assert found.widest_interval() == float((found.high - found.low).diagonal().max())
    few = LayerShifts(2, 2)
    few.update(batch(2, 90), batch(2, 90), None, 0, documents=torch.arange(90) % 3)
    assert few.compute().widest_interval() == math.inf


@pytest.mark.parametrize("accumulator", [CKA, LayerShifts])
def test_fewer_than_eight_documents_have_no_interval(accumulator):
    for count in (7, 8):
        means = accumulator(1, 1)
        for number in range(2):
            means.update(batch(1, 40), batch(1, 40), None, number, documents=torch.arange(40) % count)
        found = means.compute()
        assert found.value.isfinite().all()
        assert found.documents == count
        assert bool(found.low.isinf().all()) == bool(found.high.isinf().all()) == (count < 8)


@pytest.mark.parametrize("accumulator", [CKA, LayerShifts])
def test_without_documents_each_row_is_its_own(accumulator):
    """The shifts ended in an assertion without them."""
    states = batch(2, 40), batch(2, 40)
    alone, numbered = accumulator(2, 2), accumulator(2, 2)
    alone.update(*states)
    numbered.update(*states, documents=torch.arange(40))
    assert alone.compute().documents == 40
    for own, other in zip(alone.compute(), numbered.compute(), strict=True):
        torch.testing.assert_close(own, other, rtol=0, atol=0, equal_nan=True)


UNEQUAL = {  # numbers of documents of 290 rows
    "one has half": ([145] + [5] * 29, False),
    "two have 80 %": ([116, 116] + [2] * 29, False),
    "all rows": ([290], False),
    "worth ten": ([76] + [40, 28, 20, 16, 14, 12, 10] + [4] * 18 + [2], True),
    "equal": ([29] * 10, True),
}


@pytest.mark.parametrize("case", UNEQUAL)
@pytest.mark.parametrize("accumulator", [CKA, LayerShifts])
def test_documents_need_to_be_worth_eight_of_equal_length(accumulator, case):
    counts, is_enough = UNEQUAL[case]
    counts = torch.tensor(counts)
    documents = torch.arange(len(counts)).repeat_interleave(counts)
    documents = documents[torch.randperm(len(documents))]
    means = accumulator(1, 1)
    for number in range(2):
        rows = len(documents)
        means.update(batch(1, rows), batch(1, rows), None, number, documents=documents)
    found = means.compute()
    assert bool(found.low.isfinite().all()) == bool(found.high.isfinite().all()) == is_enough
    assert found.effective == pytest.approx(effective_number(counts))
    assert (found.why_no_interval is None) == is_enough
    if not is_enough:
        assert f"{found.effective:.1f} documents" in found.why_no_interval


@pytest.mark.parametrize("case", UNEQUAL)
def test_rsa_needs_sentences_worth_eight_of_equal_length(case):
    counts, is_enough = UNEQUAL[case]
    groups = torch.arange(len(counts)).repeat_interleave(torch.tensor(counts))
    layers = [torch.randn(len(groups), 4) for _ in range(2)]
    expected = contextlib.nullcontext() if is_enough else pytest.warns(UserWarning, match=r"no intervals: .* groups")
    with expected:
        found = rsa_estimate(layers, groups=groups)
    assert bool(found.low.isfinite().all()) == is_enough
    torch.testing.assert_close(found.value, rsa(layers))


def test_an_unbounded_interval_of_few_stimuli_comes_with_its_reason():
    with pytest.warns(UserWarning, match=r"no intervals: effective sample size 6\.0 stimuli"):
        found = rsa_estimate([torch.randn(6, 4), torch.randn(6, 4)])
    assert bool(found.high.isinf().all())


def test_one_long_sentence_leaves_rsa_few_degrees_of_freedom():
    assert freedom_of_groups(torch.full((12,), 5)) == pytest.approx(12)
    assert freedom_of_groups(torch.tensor([1000, 1, 1, 1])) == pytest.approx(1, abs=1e-3)
    layers = [torch.randn(294, 4, dtype=torch.float64) for _ in range(2)]
    widths = {}
    for long in (60, 6):
        sizes = torch.tensor([long] + [6] * 39)
        groups = torch.arange(40).repeat_interleave(sizes)
        some = [layer[: len(groups)] for layer in layers]
        found = rsa_estimate(some, groups=groups)[0, 1]
        fold_of = stimulus_folds(len(groups), 10, 0, groups)
        rest = torch.stack([rsa([layer[fold_of != fold] for layer in some])[0, 1] for fold in range(10)])
        widths[long] = float((found.high - found.value) / (rest.var(correction=0) * 9).sqrt())
    assert widths[6] == pytest.approx(student_t(0.95, 9)), "equal sentences keep their interval"
    assert widths[60] == pytest.approx(student_t(0.95, freedom_of_groups(torch.tensor([60] + [6] * 39))))


UNEQUAL_DOCUMENTS = [
    (name, law)
    for name in ("cka", "rsa", "mlem", "loss", "KL")
    for law in ("one has half", "one of 60 words", "8 equal")
]
# Half a minute each. The fast tests above hold the degrees of freedom of RSA's and the reasons of lacking intervals.
THOROUGH = {(name, law) for name in ("rsa", "mlem") for law in ("one has half", "8 equal")}


@pytest.mark.parametrize(
    ("name", "law"),
    [
        pytest.param(*each, marks=pytest.mark.slow if each in THOROUGH else pytest.mark.ci_slow)
        for each in UNEQUAL_DOCUMENTS
    ],
)
def test_unequal_documents_have_intervals_that_cover_or_none(name, law, monkeypatch, tmp_path):
    """40 data sets give a share to within 7 %."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import unequal_coverage as simulated
    from dependence import Records

    records = Records(tmp_path / "runs.jsonl")
    runs = torch.tensor(simulated.runs_of(name, law, 0.3, 40, records), dtype=torch.float64)
    if not runs[:, 2].isfinite().any():
        assert law == "one has half" or (name, law) == ("mlem", "8 equal"), "importance needs two in each fold"
        return
    truth = torch.tensor(simulated.truth_of(name, 0.3, 40, records))
    held = (runs[:, 1] <= truth) & (truth <= runs[:, 2])
    assert held.double().mean() >= 0.85


def test_absent_parts_are_not_left_out_and_few_rows_have_no_ends():
    source, target = batch(1, 16), batch(1, 16)
    unequal = torch.arange(16).clamp(min=3)  # 13 documents, worth 9 of equal length
    for documents, finite in ((torch.arange(16) + 10, True), (torch.arange(16) // 2, False), (unequal, False)):
        means = LayerMeans(1, 1, Dots())
        means.update(source, target, documents=documents)
        assert bool(means.compute().low.isfinite()) == finite
    few = LayerMeans(1, 1, DistanceCorrelation())
    few.update([x[:9] for x in source], [x[:9] for x in target], documents=torch.tensor([0] * 6 + [1, 2, 3]))
    few.update(source, target, documents=torch.arange(16))
    assert few.compute().low == -torch.inf


def test_a_model_with_itself_is_prepared_once():
    seen, source = [], batch(2)
    alone, copied = (LayerMeans(2, 2, Dots(seen), permutations=3) for _ in range(2))
    alone.update(source, source)
    assert sorted(seen[:2]) == ["source layer 0", "source layer 1"]
    alone_count = len(seen)
    copied.update(source, [layer.clone() for layer in source])
    assert len(seen) == 3 * alone_count
    torch.testing.assert_close(alone.compute().value, copied.compute().value, rtol=0, atol=1e-14)
    torch.testing.assert_close(alone.compute().within_target.value, copied.compute().within_target.value)
    torch.testing.assert_close(alone.compute().chance.null, copied.compute().chance.null)


@pytest.mark.parametrize(
    "new",
    [
        lambda: LayerMeans(1, 1, Dots()),
        lambda: LayerMeans(1, 1, DistanceCorrelation(), permutations=3),
        lambda: LayerMeans(1, 1, MutualKNN(2), conditional_on="token"),
    ],
)
def test_batches_without_a_number_are_numbered_as_they_come(new):
    counted, numbered = new(), new()
    for number in range(4):
        pair = batch(1, 20), batch(1, 20)
        more = {"groups": torch.arange(20) // 10} if counted.conditional_on == "token" else {}
        counted.update(*pair, **more)
        numbered.update(*pair, number=number, **more)
    assert torch.equal(counted.compute().value, numbered.compute().value)


@pytest.mark.filterwarnings("ignore:The ``compute`` method")
def test_no_batch_and_two_of_one_number_have_no_mean():
    first, second = (LayerMeans(1, 1, Dots()) for _ in range(2))
    with pytest.raises(ValueError, match="there is no mean of no batches"):
        first.compute()
    for means in (first, second):
        means.update(batch(1), batch(1))
    first.merge_state(second)
    with pytest.raises(ValueError, match=r"two batches have number 0: number those of one run"):
        first.compute()


@pytest.mark.parametrize("unit", [1e-170, 2.0**-1000, 1e200])
def test_an_interval_scales_with_its_unit(unit):
    """Squares of such numbers are 0 or infinite in float64."""
    sums, counts = torch.tensor([1.0, 3.0, 2.0, 5.0]), torch.tensor([1.0, 2.0, 1.0, 2.0])
    for bounds in ((-math.inf, math.inf), (0.0, math.inf)):
        expected = bootstrap_interval(sums, counts, bounds=bounds)
        assert expected.low < expected.value < expected.high
        scaled = bootstrap_interval(sums.double() * unit, counts, bounds=bounds)
        counted = bootstrap_interval(sums.double() * unit, counts.double() * unit, bounds=bounds)
        for found, same, end in zip(scaled, counted, expected, strict=True):
            assert float(found / unit) == pytest.approx(float(end), rel=1e-9)
            assert float(same) == pytest.approx(float(end), rel=1e-9)


@pytest.mark.parametrize("unit", [1e-170, 1e200])
def test_an_interval_over_seeds_scales_with_its_unit(unit):
    sums, counts = torch.tensor([[1.0, 3.0, 2.0, 5.0], [2.0, 9.0, 1.0, 4.0]]).double(), torch.ones(4)
    expected = documents_and_seeds_interval(sums, counts)
    for found, end in zip(documents_and_seeds_interval(sums * unit, counts), expected, strict=True):
        assert float(found / unit) == pytest.approx(float(end), rel=1e-9)
    assert effective_number(counts * unit) == pytest.approx(4)


@pytest.mark.parametrize("unit", [1e-200, 2.0**-1000, 1e200])
def test_a_jackknife_scales_with_its_unit(unit):
    replicates = torch.tensor([1.0, 3.0, 2.0, 5.0, 4.5]).double()
    expected = jackknife(torch.tensor(3.0), replicates, torch.tensor(3.1))
    assert expected.low < expected.value < expected.high
    scaled = jackknife(torch.tensor(3.0).double() * unit, replicates * unit, torch.tensor(3.1).double() * unit)
    for found, end in zip(scaled, expected, strict=True):
        assert float(found / unit) == pytest.approx(float(end), rel=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("size", [1e-4, 2.0**12])
def test_a_jackknife_of_short_numbers_is_that_of_the_numbers_that_they_are(dtype, size):
    """Their squares are 0 or infinite in float16, and a spread of their last digits is lost."""
    replicates = (torch.tensor([1.0, 3.0, 2.0, 5.0, 4.5]) * size).to(dtype)
    expected = jackknife(replicates[0].double(), replicates.double())
    for found, end in zip(jackknife(replicates[0], replicates), expected, strict=True):
        assert float(found) == float(end)
    assert expected.low < expected.value < expected.high
