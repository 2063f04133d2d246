"""Feature importance against explicit loops, its null and its intervals."""

import itertools
import warnings

import numpy as np
import pandas as pd
import pytest
import scipy.stats
import torch
from scipy.spatial.distance import pdist
from sklearn.linear_model import Ridge

from conftest import every_second
from thinkalike.measures import MLEM, feature_importance, jackknife, split_half_reference, splits, stimulus_folds
from thinkalike.measures.distances.neural import upper_triangle_indices
from thinkalike.measures.mlem import importance as importance_of_features
from thinkalike.measures.mlem.importance import regrouped

WEIGHTS = (2.0, 1.0, 0.5, 0.0)
FAST = {"folds": 3, "permutations": 2}


def drawn(n=60, weights=WEIGHTS, d=12, noise=1.0, seed=0):
    """Features of three levels, of which the last has no effect."""
    g = torch.Generator().manual_seed(seed)
    table = torch.randint(3, (n, len(weights)), generator=g).double()
    states = noise * torch.randn(n, d, generator=g, dtype=torch.float64)
    for k, weight in enumerate(weights):
        states += weight * torch.randn(3, d, generator=g, dtype=torch.float64)[table[:, k].long()]
    return table, states


def moved(table, features, order):
    table = table.clone()
    table[:, features] = table[order][:, features]
    return table


def rho(model, table, states):
    y = pdist(states.numpy(), "cityblock" if model.distance == "manhattan" else "euclidean")
    return scipy.stats.spearmanr(model.predict(table).numpy(), y).statistic


@pytest.mark.parametrize(
    "params",
    [
        {},
        pytest.param({"difference": "scaled", "kinds": "ordinal"}, marks=pytest.mark.ci_slow),
        {"distance": "manhattan", "difference": "scaled", "kinds": "numeric"},
        {"difference": "levels", "kinds": ["nominal", "nominal", "numeric"]},
        pytest.param({"weights": "full"}, marks=pytest.mark.slow),
    ],
)
def test_importance_is_the_loss_of_held_out_spearman(params):
    table, states = drawn(weights=WEIGHTS[:3])
    table[4, 1] = torch.nan
    table[7, 0] = 0.5  # a level that some training sets do not have
    model = MLEM(alpha=(0.1, 10.0), folds=3, unknown="new", **params)
    found = feature_importance(model, table, states, folds=3, permutations=2, interactions=[(0, 2)], seed=7)
    assert found.sets == ((0,), (1,), (2,), (0, 2))
    generator = torch.Generator().manual_seed(7)
    for fold, (train, test) in enumerate(splits(stimulus_folds(60, 3, 7))):
        fitted = MLEM(**model.get_params()).fit(table[train], states[train])
        score = rho(fitted, table[test], states[test])
        assert found.scores[0, fold] == pytest.approx(score, abs=1e-9)
        for repeat in range(2):
            order = torch.randperm(len(test), generator=generator)
            for k, features in enumerate(found.sets):
                lost = score - rho(fitted, moved(table[test], list(features), order), states[test])
                assert found.drops[0, fold, repeat, k] == pytest.approx(lost, abs=1e-9)


def test_profiles_are_means_over_folds_and_permutations():
    found = feature_importance(MLEM(alpha=1.0), *drawn(), folds=5, permutations=3, interactions=[(0, 1), (2, 0)])
    drops = found.drops.numpy()
    mean, low, high = (part.numpy() for part in found.profile())
    np.testing.assert_allclose(mean, drops[..., :4].mean((1, 2)))
    half = scipy.stats.t.ppf(0.975, 4) * np.sqrt((1 / 5 + 1 / 4) * drops[..., :4].mean(2).var(1, ddof=1))
    np.testing.assert_allclose(high - mean, half)
    np.testing.assert_allclose(mean - low, half)
    score = found.scores.numpy()[:, :, None]
    a, b, ab = (score - drops[..., k] for k in (2, 0, 5))
    np.testing.assert_allclose(found.pair_effects().value[:, 1], (a + b - ab - score).mean((1, 2)))
    np.testing.assert_allclose(found.score().value, score[..., 0].mean(1))


def test_a_feature_of_weight_0_has_importance_exactly_0():
    table, states = drawn(weights=(2.0, 0.0, 0.0, 0.0))
    zero = [
        MLEM(alpha=1.0).fit(table[train], states[train]).weights_ == 0 for train, _ in splits(stimulus_folds(60, 3))
    ]
    drops = feature_importance(MLEM(alpha=1.0), table, states, **FAST).drops[0]
    assert torch.stack(zero).any()
    assert torch.equal(drops.eq(0).all(1), torch.stack(zero))


def test_groups_stay_on_one_side_of_both_kinds_of_folds():
    """Each stimulus is there four times, almost: folds that part the copies choose another α."""
    table, states = drawn(30, weights=(1.0, 0.3, 0.1, 0.0))
    table[:, 3] = torch.arange(30) // 2
    table, states, groups = table.repeat(4, 1), states.repeat(4, 1), torch.arange(30).repeat(4)
    states += 0.3 * torch.randn_like(states)
    model, alphas = MLEM(alpha=(0.1, 1e2, 1e3, 1e4), unknown="new"), []
    found = feature_importance(model, table, states, groups=groups, **FAST).scores[0]
    for fold, (train, test) in enumerate(splits(stimulus_folds(120, 3, 0, groups))):
        apart = MLEM(**model.get_params()).fit(table[train], states[train])
        model.fit(table[train], states[train], groups[train])
        assert found[fold] == pytest.approx(model.score(table[test], states[test]), abs=1e-9)
        alphas.append((float(model.alpha_), float(apart.alpha_)))
    assert any(grouped != parted for grouped, parted in alphas), "control: the inner folds matter"


def test_the_papers_recipe_divides_and_permutes_pairs():
    table, states = drawn(30, weights=WEIGHTS[:2])
    found = feature_importance(MLEM(recipe="paper", alpha=1.0), table, states, folds=4, permutations=2, seed=2)
    rows, columns = np.triu_indices(30, 1)
    x = (table.numpy()[rows] != table.numpy()[columns]).astype(float)
    y, generator = pdist(states.numpy(), "sqeuclidean"), torch.Generator().manual_seed(2)
    unit = np.ptp(y)
    for fold, (train, test) in enumerate(splits(stimulus_folds(435, 4, 2))):
        fitted = Ridge(alpha=1.0, positive=True, tol=1e-12).fit(x[train], y[train] / unit)
        score = scipy.stats.spearmanr(fitted.predict(x[test]), y[test]).statistic
        assert found.scores[0, fold] == pytest.approx(score, abs=1e-9)
        for repeat in range(2):
            order = torch.randperm(len(test), generator=generator).numpy()
            for k in range(2):
                part = x[test]
                part[:, k] = part[order, k]
                lost = score - scipy.stats.spearmanr(fitted.predict(part), y[test]).statistic
                assert found.drops[0, fold, repeat, k] == pytest.approx(lost, abs=1e-9)


def test_what_is_shared_with_the_given_feature_does_not_count():
    table, states = drawn(120, weights=(2.0, 2.0))
    table[:, 1] = torch.where(torch.rand(120) < 0.85, table[:, 0], table[:, 1])
    states[:, :] += 2 * torch.randn(3, 12, dtype=torch.float64)[table[:, 1].long()]
    free = feature_importance(MLEM(alpha=1.0), table, states, **FAST).profile().value[0]
    given = feature_importance(MLEM(alpha=1.0), table, states, conditional_on=0, **FAST).profile().value[0]
    assert given[0].isnan(), "it is constant within its own levels"
    assert 0 < given[1] < free[1] / 2


def nested(kind):
    """A condition of six levels, a feature that is constant in each held-out level, one that varies, and the groups."""
    table, states = drawn(120, weights=(1.0, 2.0, 2.0))
    table[:, 0] = torch.arange(120) % 6
    groups = None
    if kind == "constant within each level":
        table[:, 1] = table[:, 0] % 2
    elif kind == "missing in some levels":
        table[:, 1] = torch.where(table[:, 0] < 3, torch.nan, 1.0)
    elif kind == "a number that a level decides":
        table[:, 1] = table[:, 0] ** 2 / 7
    else:
        assert kind == "varies between folds alone"
        groups = torch.arange(120) // 40
        table[:, 1] = (groups + table[:, 0]) % 2
    return table, states, groups


CONSTANT = {
    "constant within each level": "cannot be told from 0: features 1, which are constant",
    "missing in some levels": "cannot be told from 0: features 1, which are constant",
    "a number that a level decides": "cannot be told from 0: features 1, which are constant",
    "varies between folds alone": "cannot be permuted: features 1, in which no held-out stimuli",
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", CONSTANT)
def test_what_cannot_move_within_levels_has_no_importance(kind):
    table, states, groups = nested(kind)
    options = {"groups": groups, "null": 3, "interactions": [(1, 2)], **FAST}
    with pytest.warns(UserWarning, match=CONSTANT[kind]):
        given = feature_importance(MLEM(alpha=1.0), table, states, conditional_on=0, **options)
    assert given.movable.tolist()[:2] == [0, 0]
    for numbers in (*given.profile(), given.by_fold().mean(-1), given.p_values(), given.p_of_largest()):
        assert numbers[0, :2].isnan().all()
    assert given.profile().value[0, 2] > 0
    assert given.pair_effects().value.isnan().all()
    assert given.scores.isfinite().all()
    if groups is None:
        assert given.p_of_largest()[0, 2] >= given.p_values()[0, 2] > 0
    free = feature_importance(MLEM(alpha=1.0), table, states, **options)
    assert free.movable is None
    assert free.profile().value.isfinite().all()


def test_stimuli_that_can_move_are_those_whose_value_some_permutation_changes():
    table, states = drawn(60)
    table[:, 0] = torch.arange(60) // 3  # 20 levels of three stimuli, which folds divide
    table[5, 1] = torch.nan
    found = feature_importance(MLEM(alpha=1.0), table, states, conditional_on=0, **FAST)
    fold_of, codes = stimulus_folds(60, 3, 0), table.nan_to_num(9)
    expected = []
    for feature in range(4):
        differs = codes[:, None, feature] != codes[None, :, feature]
        may_swap = (table[:, None, 0] == table[None, :, 0]) & (fold_of[:, None] == fold_of)
        expected.append(int((differs & may_swap).any(1).sum()))
    assert found.movable.tolist() == expected
    assert 0 < expected[1] < 60, "control: in part"


@pytest.mark.parametrize("levels", [np.arange(60) / 7, np.arange(60), np.arange(60) // 2 * 2])
def test_a_condition_within_which_nothing_moves_is_refused_before_any_fit(levels, monkeypatch):
    table, states = drawn(60)
    table[:, 0] = torch.tensor(levels)
    table[:, 1:] = table[:, 1:][torch.arange(60) // 2]  # the two of a level are alike
    monkeypatch.setattr(MLEM, "fit_weights", lambda *_: pytest.fail("a fit"))
    with pytest.raises(ValueError, match=r"^conditional_on=0: no feature varies .* leave out conditional_on$"):
        feature_importance(MLEM(alpha=1.0), table, states, conditional_on=0, **FAST)


def test_p_is_missing_where_no_draw_moves_a_feature():
    """Whole groups exchange values within levels, and each level has one group."""
    table, states = drawn(96, weights=(1.0, 2.0))
    groups = torch.arange(96) // 8
    table[:, 0] = groups
    found = feature_importance(MLEM(alpha=1.0), table, states, conditional_on=0, groups=groups, null=3, **FAST)
    assert found.profile().value[0, 1] > 0
    assert found.p_values().isnan().all()
    assert found.p_of_largest().isnan().all()
    table[:, 0] = groups // 4
    several = feature_importance(MLEM(alpha=1.0), table, states, conditional_on=0, groups=groups, null=3, **FAST)
    assert several.p_values()[0, 1] == 0.25, "control: four groups of a level exchange values"


def test_p_values_count_what_an_irrelevant_feature_reaches():
    found = feature_importance(MLEM(alpha=1.0), *drawn(weights=(2.0, 0.0)), null=9, **FAST)
    assert found.null.shape == (9, 1, 2)
    p = found.p_values()[0]
    expected = (1 + (found.null[:, 0] >= found.profile().value[0]).sum(0)) / 10
    torch.testing.assert_close(p, expected)
    assert p[0] == 0.1
    assert p[1] > 0.1


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_p_values_of_an_irrelevant_feature_are_uniform():
    """Exactly so once ties, mostly of weights that are 0, are broken at random; as counted they are never too small."""
    generator, p, counted = np.random.default_rng(0), [], []
    for seed in range(200):
        found = feature_importance(MLEM(alpha=1.0), *drawn(45, (1.5, 0.0), seed=seed), null=9, **FAST)
        null, observed = found.null[:, 0, 1].numpy(), float(found.profile().value[0, 1])
        p.append(((null > observed).sum() + generator.random() * (1 + (null == observed).sum())) / 10)
        counted.append(float(found.p_values()[0, 1]))
    assert scipy.stats.kstest(p, "uniform").pvalue > 0.01
    for level in (0.1, 0.2, 0.5):
        assert np.mean(np.array(counted) <= level + 1e-9) <= level + 2.6 * np.sqrt(level * (1 - level) / 200)
    assert np.mean(counted) > 0.4


def test_a_layer_no_feature_explains_scores_0_and_harms_no_other():
    """The same category is far apart: its weight would be negative, so it is 0 and the prediction constant."""
    categories = torch.arange(40) // 20
    near = torch.zeros(40, 3, dtype=torch.float64)
    near[:, 0] = torch.arange(40) % 20
    far = near / 20 + 5 * categories[:, None]
    with pytest.warns(UserWarning, match="layer 1"):
        both = feature_importance(MLEM(alpha=1.0), categories[:, None], [far, near], null=2)
    assert (both.scores[1] == 0).all()
    assert (both.drops[1] == 0).all()
    assert both.scores[0].min() > 0.5


REFUSED = {
    "feature 4": ({}, {"conditional_on": 4}),
    "conditional_on": ({"recipe": "paper"}, {"conditional_on": 0}),
    "folds=61 leaves a fold with fewer than 3 stimuli": ({}, {"folds": 61}),
}


@pytest.mark.parametrize("key", REFUSED)
def test_wrong_requests_are_refused(key):
    params, options = REFUSED[key]
    with pytest.raises(ValueError, match=key):
        feature_importance(MLEM(alpha=1.0, **params), *drawn(), **options)


def planted(noise, each, cells=40, width=16, seed=0):
    """Stimuli of cells whose centres are known: cells, states, and the ρ that knowing the centres gives."""
    draw = torch.Generator().manual_seed(seed)
    centres = torch.randn(cells, width, generator=draw, dtype=torch.float64)
    owners = torch.arange(cells).repeat_interleave(each)
    states = centres[owners] + noise * torch.randn(len(owners), width, generator=draw, dtype=torch.float64)
    pairs = upper_triangle_indices(len(owners))
    best = torch.cdist(centres, centres).square() + 2 * noise**2 * width
    best = best[owners[pairs // len(owners)], owners[pairs % len(owners)]]
    found = torch.cdist(states, states).flatten()[pairs]
    return owners, states, scipy.stats.spearmanr(found, best).statistic


def reference(cells, states, **options):
    return float(split_half_reference(cells, [states], **options).value)


@pytest.mark.parametrize(("noise", "each"), [(0.0, 4), (0.3, 6), (1.0, 12), (1.5, 6)])
def test_a_reference_of_planted_cells_is_what_centres_explain(noise, each):
    owners, states, best = planted(noise, each)
    assert reference(owners.tolist(), states) == pytest.approx(best, abs=0.03)


@pytest.mark.ci_slow
def test_what_a_group_shares_counts_only_where_groups_are_told():
    """Each sentence has a state of its own that all of its words share: no feature knows it."""
    draw = torch.Generator().manual_seed(3)
    sentences = torch.arange(60).repeat_interleave(8)
    states = torch.randn(60, 8, generator=draw, dtype=torch.float64)[sentences] + 0.3 * torch.randn(
        480, 8, generator=draw, dtype=torch.float64
    )
    cells = (sentences // 2).tolist()  # two sentences each
    assert reference(cells, states) < reference([number // 8 for number in range(480)], states)
    with pytest.raises(ValueError):
        reference(sentences.tolist(), states, groups=sentences.tolist())


@pytest.mark.ci_slow
def test_noise_alone_has_no_reference():
    states = torch.randn(40, 8, generator=torch.Generator().manual_seed(0))
    with pytest.raises(ValueError, match="no pairs of cells"):
        reference([number % 10 for number in range(40)], states, splits=50)


def test_of_many_stimuli_some_are_drawn(monkeypatch):
    monkeypatch.setattr("thinkalike.measures.mlem.split_half.MOST_STIMULI", 200)
    owners, states, best = planted(0.5, 20)
    assert reference(owners.tolist(), states) == pytest.approx(best, abs=0.06)


def test_the_interval_of_a_reference_leaves_out_groups():
    """Nine groups: each replicate is the reference without one of them, by explicit loops in scipy."""
    owners, states, _ = planted(0.5, 9, cells=6)
    groups = torch.arange(len(owners)) % 9
    found = split_half_reference(owners.tolist(), [states], groups=groups.tolist(), splits=1)
    draw = torch.Generator().manual_seed(0)
    torch.randperm(len(owners), generator=draw)
    side = (torch.randperm(9, generator=draw)[groups] % 2).numpy()
    distance = torch.cdist(states, states).square().numpy()

    def explicit(kept):
        halves = [[place for place in kept if side[place] == half] for half in (0, 1)]
        pairs = [list(itertools.combinations(half, 2)) for half in halves]
        cell = [[tuple(sorted((int(owners[a]), int(owners[b])))) for a, b in part] for part in pairs]
        values = [[distance[a, b] for a, b in part] for part in pairs]
        means = [pd.Series(value).groupby(pd.Series(name)).mean() for value, name in zip(values, cell, strict=True)]
        scores = []
        for own in (0, 1):
            inside = [place for place, name in enumerate(cell[own]) if name in means[1 - own]]
            predicted = [means[1 - own][cell[own][place]] for place in inside]
            measured = [means[own][cell[own][place]] for place in inside]
            r = scipy.stats.spearmanr(predicted, measured).statistic
            score = scipy.stats.spearmanr([values[own][place] for place in inside], predicted).statistic
            scores.append(min(score / r**0.5, 1.0))
        return np.mean(scores)

    whole = explicit(range(len(owners)))
    without = [explicit([place for place in range(len(owners)) if groups[place] != left]) for left in range(9)]
    expected = jackknife(torch.tensor([whole]), torch.tensor(without)[:, None])
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs)
    with pytest.warns(UserWarning, match=r"^no intervals: effective sample size .* groups \(of 7\); intervals need 8$"):
        few = split_half_reference(owners.tolist(), [states], groups=(groups % 7).tolist())
    assert few.low == -torch.inf
    assert few.high == torch.inf


CELLS = torch.arange(24) % 4
NOISE = torch.randn(24, 4, generator=torch.Generator().manual_seed(0))
FAR_APART = NOISE + 30 * torch.eye(4)[CELLS] * (1 + CELLS[:, None])
WITHOUT_REFERENCE = {
    "constant rows": (CELLS, torch.ones(24, 4), None, r"layers\[1\]: all distances are equal, so no cell"),
    "rows that are 0": (CELLS, torch.zeros(24, 4), None, r"layers\[1\]: all distances are equal"),
    "one group": (CELLS, FAR_APART, [0] * 24, r"layers\[0\]: no pairs of cells in both halves"),
    "one cell": ([0] * 24, FAR_APART, None, r"layers\[0\]: all stimuli are of one cell"),
    "a cell for each stimulus": (range(24), FAR_APART, None, r"layers\[0\]: no pairs of cells in both halves"),
    "mostly constant rows": (
        CELLS,
        FAR_APART * (torch.arange(24) > 20)[:, None],
        None,
        r"layers\[1\]: no pairs of cells",
    ),
}


@pytest.mark.parametrize("what", every_second(WITHOUT_REFERENCE))
def test_a_layer_without_a_split_half_reference_is_refused_by_its_place(what):
    cells, states, groups, message = WITHOUT_REFERENCE[what]
    with pytest.raises(ValueError, match=f"^{message}"):
        split_half_reference(cells, [FAR_APART, states], groups=groups)


FEW = {  # groups of 24 stimuli, and what is said of them
    "three groups": (torch.arange(24) // 8, r"effective sample size 3.0 groups \(of 3\)"),
    "two participants": (torch.arange(24) % 2, "effective sample size 2.0 groups"),
    "seven groups": (torch.arange(24) % 7, "effective sample size 6.9 groups"),
    "one group with half of the stimuli": (
        torch.cat([torch.zeros(12), torch.arange(1, 13)]),
        "effective sample size 3.7",
    ),
}


@pytest.mark.parametrize("what", FEW)
def test_few_groups_have_no_interval_and_a_reason(what):
    groups, reason = FEW[what]
    # so many cells are in both halves that one of two participants is enough
    cells = (torch.arange(24) // 2) % 4
    states = NOISE + 30 * torch.eye(4)[cells] * (1 + cells[:, None])
    with pytest.warns(UserWarning, match=f"^no intervals: {reason}"):
        found = split_half_reference(cells, [states], groups=groups.long())
    assert found.value.isfinite().all()
    assert (found.low, found.high) == (-torch.inf, torch.inf)


def test_a_layer_whose_reference_hangs_on_a_tenth_of_the_stimuli_has_no_interval_and_a_reason():
    """Cells of two stimuli: without one of them the cell is in one half alone."""
    reasons = 0
    for seed in range(12):
        draw = torch.Generator().manual_seed(seed)
        cells = torch.arange(14) % 5
        states = torch.randn(14, 4, generator=draw) + 9 * torch.randn(5, 4, generator=draw)[cells]
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            try:
                found = split_half_reference(cells, [states, states.double() * 2], seed=seed, splits=1)
            except ValueError:
                continue
        assert not torch.stack([*found[:3]]).isnan().any()
        is_unbounded = found.low.isinf()
        assert torch.equal(is_unbounded, found.high.isinf())
        assert bool(is_unbounded.any()) == bool(caught)
        if caught:
            assert str(caught[0].message).startswith("no intervals of layers[0], layers[1]: without some tenth")
        reasons += len(caught)
    assert 0 < reasons < 12, "control: there are both"


@pytest.mark.parametrize("told", [False, True])
def test_a_feature_of_texts_moves_by_text_where_groups_are_words(told, monkeypatch):
    """Here words take values in reverse, and texts keep theirs, so that the null is the importance itself."""
    text, word = torch.arange(12).repeat_interleave(4), torch.arange(48) * 5 % 8
    of_text, of_word = (text // 3 % 2).double(), (word // 4).double()
    states = torch.randn(48, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    states[:, 0] += 4 * of_text
    states[:, 1] += 4 * of_word

    def order_of(strata, groups, generator):
        order = torch.arange(48)
        return order if groups.equal(text) else order.roll(1)

    monkeypatch.setattr(importance_of_features, "regrouped", order_of)
    importance = feature_importance(
        MLEM(alpha=1.0),
        torch.stack([of_text, of_word], 1),
        [states],
        groups=word,
        texts=text if told else None,
        folds=2,
        permutations=1,
        null=1,
    )
    keeps_values = importance.null[0, 0] == importance.profile().value[0]
    assert keeps_values.tolist() == [told, False]


def test_the_texts_of_stimuli_have_as_many_rows():
    features = torch.arange(20)[:, None] % 2
    with pytest.raises(ValueError, match="texts has shape"):
        feature_importance(MLEM(alpha=1.0), features, torch.randn(20, 2), texts=torch.arange(19))


def test_irrelevant_values_move_between_whole_groups():
    generator = torch.Generator().manual_seed(0)
    groups = torch.arange(12).repeat_interleave(torch.tensor([3, 1, 4, 2] * 3))
    for _ in range(20):
        order = regrouped(torch.zeros(30), groups, generator)
        taken = groups[order]
        sources = {int(group): set(taken[groups == group].tolist()) for group in groups.unique()}
        assert all(len(each) == 1 for each in sources.values()), "a group takes the values of one group"
        assert sorted(map(min, sources.values())) == list(range(12)), "and each group's are taken"
        for group, (source,) in sources.items():
            own, theirs = int((groups == group).sum()), int((groups == source).sum())
            assert len(order[groups == group].unique()) == min(own, theirs), "as many different ones as there are"
    strata = torch.arange(30) % 2
    order = regrouped(strata.double(), groups, generator)
    assert torch.equal(strata[order], strata)
    single = regrouped(torch.zeros(30), torch.arange(30), generator)
    assert torch.equal(single.sort().values, torch.arange(30)), "control: single stimuli are permuted"
    assert not torch.equal(single, torch.arange(30))


@pytest.mark.ci_slow
def test_a_sentence_feature_is_not_found_in_sentence_effects():
    """Single words that are moved say that it matters; whole sentences do not."""
    draw = torch.Generator().manual_seed(1)
    groups = torch.arange(30).repeat_interleave(4)
    table = torch.stack([torch.randint(2, (30,), generator=draw)[groups], torch.randint(2, (120,), generator=draw)], 1)
    layers = [torch.randn(30, 6, generator=draw).double()[groups] + 0.5 * torch.randn(120, 6, generator=draw)
              for _ in range(12)]  # fmt: skip
    options = {"folds": 2, "permutations": 1, "null": 19}
    whole = feature_importance(MLEM(alpha=1.0), table, layers, groups=groups, **options)
    words = feature_importance(MLEM(alpha=1.0), table, layers, **options)
    assert words.p_values()[:, 0].mean() < 0.35, "control"
    assert 0.4 < whole.p_values()[:, 0].mean() < 0.6
    assert (whole.p_of_largest() >= whole.p_values()).all()
    expected = (1 + (whole.null.amax((1, 2)) >= whole.profile().value[3, 1]).sum()) / 20
    assert whole.p_of_largest()[3, 1] == expected
    with pytest.warns(UserWarning, match="7 groups"):
        few = feature_importance(MLEM(alpha=1.0), table, layers[:1], groups=groups % 7, **options)
    assert few.p_values().isnan().all()
    assert few.score().high.isinf().all()
    assert few.profile().low.isinf().all()


def stimuli_of_groups(groups, strength, seed=0, each=6):
    """Features of groups and states of stimuli that are alike within groups, as of one word in several sentences."""
    g = torch.Generator().manual_seed(seed)
    of_groups = torch.stack([torch.randperm(groups, generator=g) % 2 for _ in range(2)], 1).double()
    centres = torch.randn(groups, 16, generator=g, dtype=torch.float64)
    centres += strength * of_groups[:, :1] * torch.randn(16, generator=g, dtype=torch.float64)
    group_of = torch.arange(groups).repeat_interleave(each)
    states = centres[group_of] + torch.randn(groups * each, 16, generator=g, dtype=torch.float64)
    return {"X": of_groups[group_of], "Y": [states], "groups": group_of}


@pytest.mark.ci_slow
def test_chance_is_the_score_that_features_of_few_groups_reach_without_any_relation():
    """Such features predict which stimuli are of one group, so that neither ρ nor an importance is 0 by chance."""
    by_groups = {}
    for groups in (12, 48):
        found = feature_importance(MLEM(alpha=1.0), **stimuli_of_groups(groups, 0.0), permutations=2, chance=19)
        assert found.chance.scores.shape == (19, 1)
        assert found.chance.importances.shape == (19, 1, 2)
        assert found.chance.scores.min() < found.score().value[0] < found.chance.scores.max()
        by_groups[groups] = found.chance.scores.mean()
    assert by_groups[12] > by_groups[48] + 0.1
    assert by_groups[48] > 0.1

    related = feature_importance(MLEM(alpha=1.0), **stimuli_of_groups(24, 2.0), permutations=2, chance=19)
    assert related.score().value[0] > related.chance.scores.max() + 0.1, "control"
    assert related.profile().value[0, 0] > related.chance.importances.max()
    assert related.profile().value[0, 1] < related.chance.importances.max()


def test_draws_of_chance_leave_every_other_number_as_it_is():
    planted = stimuli_of_groups(12, 1.0)
    without = feature_importance(MLEM(alpha=1.0), **planted, permutations=2, null=3)
    with_chance = feature_importance(MLEM(alpha=1.0), **planted, permutations=2, null=3, chance=2)
    for name in ("scores", "drops", "null"):
        assert torch.equal(getattr(without, name), getattr(with_chance, name))
    assert without.chance is None


def test_chance_is_not_known_where_groups_are_too_few_or_nothing_moves():
    with pytest.warns(UserWarning, match="groups are too few"):
        few = feature_importance(MLEM(alpha=1.0, folds=2), **stimuli_of_groups(6, 0.0), folds=2, chance=2)
    assert few.chance is None
    planted = stimuli_of_groups(12, 0.0)
    planted["X"] = torch.cat([planted["X"], torch.arange(72)[:, None] % 2], 1).double()
    given = feature_importance(MLEM(alpha=1.0), **planted, permutations=1, chance=2, conditional_on=2)
    assert given.chance.importances.isnan().all((0, 1)).tolist() == [False, False, True]
