"""MLEM of pairs of levels against least squares on explicit pairs."""

import itertools

import numpy as np
import pytest
import scipy.optimize
import scipy.stats
import torch
from scipy.spatial.distance import pdist

from thinkalike.measures import MLEM, feature_importance, splits, stimulus_folds
from thinkalike.measures.mlem.features import distinct_patterns

LEVELS = (4, 3, 5, 6)
KINDS = ["nominal", "nominal", "numeric", "nominal"]
PARAMS = {"difference": "levels", "kinds": KINDS, "unknown": "new"}


def drawn(n=60, d=8, missing=0.0, levels=LEVELS):
    """A table of categories, and states in which some levels are nearer to each other than others."""
    table = torch.stack([torch.randint(size, (n,)) for size in levels], 1).double()
    states = torch.randn(n, d, dtype=torch.float64)
    for k, size in enumerate(levels):
        places = torch.randn(size, d, dtype=torch.float64) * torch.linspace(0.2, 2.5, size)[:, None]
        states += places[table[:, k].long()]
    table[torch.rand(n, len(levels)) < missing] = torch.nan
    return table, states


def explicit(table, train=None, kinds=KINDS, missing="own_level"):
    """The columns of all pairs by loops over the definition, (feature, a, b) each, and their ridge n_a + n_b."""
    rows, values = np.triu_indices(len(table), 1), table.numpy()
    train = values if train is None else train.numpy()
    columns = {}
    for f, kind in enumerate(kinds):
        left, right = values[rows[0], f], values[rows[1], f]
        absent = np.isnan(left), np.isnan(right)
        differ = (left != right) & ~(absent[0] & absent[1])
        if missing == "ignore":
            differ &= ~absent[0] & ~absent[1]
        if kind != "nominal":
            columns[f, None, None] = differ.astype(float), 0
            continue
        known = [*np.unique(train[:, f][~np.isnan(train[:, f])])]
        if missing == "own_level" and np.isnan(train[:, f]).any():
            known.append(np.nan)
        place = [[next((k for k, b in enumerate(known) if same(a, b)), -1) for a in side] for side in (left, right)]
        for a, b in itertools.combinations(range(len(known)), 2):
            both = [(x, y) in ((a, b), (b, a)) for x, y in zip(*place, strict=True)]
            number = sum(same(value, known[a]) or same(value, known[b]) for value in train[:, f])
            columns[f, known[a], known[b]] = np.array(both, float), number
        new = np.array([min(pair) < 0 for pair in zip(*place, strict=True)]) & differ
        columns[f, "new", "new"] = new.astype(float), 0
    return columns


def same(a, b):
    return a == b or (np.isnan(a) and np.isnan(b))


def reference(table, y, alpha, kinds=KINDS, missing="own_level", weight=None):
    """The weights by scipy's NNLS on all pairs, with √(α (n_a + n_b)) (w_ab - w_f) as further rows; and b."""
    columns = explicit(table, kinds=kinds, missing=missing)
    x, size = np.stack([column for column, _ in columns.values()], 1), np.array([n for _, n in columns.values()], float)
    size[x.sum(0) == 0] = 0
    pull = []
    for k, (f, *_) in enumerate(columns):
        mean = np.array([size[j] if g == f else 0 for j, (g, *_) in enumerate(columns)])
        row = np.eye(len(size))[k] - mean / max(mean.sum(), 1)
        pull.append(np.sqrt(alpha * size[k]) * row)
    chosen = np.ones(len(x), bool) if weight is None else weight
    z, t = x[chosen] - x[chosen].mean(0), y[chosen] - y[chosen].mean()
    w = scipy.optimize.nnls(np.vstack([z, *pull]), np.append(t, np.zeros(len(pull))), maxiter=10**5)[0]
    for k, (f, a, _) in enumerate(columns):
        mean = np.array([size[j] if g == f else 0 for j, (g, *_) in enumerate(columns)])
        if a == "new":
            w[k] = mean @ w / mean.sum()
    return dict(zip(columns, w, strict=True)), y[chosen].mean() - x[chosen].mean(0) @ w


def found_in(model):
    """The same of a model."""
    weights = {(f, None, None): float(model.weights_[f]) for f, kind in enumerate(model.kinds) if kind != "nominal"}
    for feature, values, matrix, _ in model.level_weights_:
        assert torch.equal(matrix, matrix.mT)
        for a, b in itertools.combinations(range(len(values)), 2):
            weights[feature, float(values[a]), float(values[b])] = float(matrix[a, b])
        weights[feature, "new", "new"] = float(model.weights_[feature])
    return weights


def assert_same(found, expected, atol):
    assert len(found) == len(expected)
    for (f, a, b), value in found.items():
        near = [w for (g, c, d), w in expected.items() if g == f and {str(a), str(b)} == {str(c), str(d)}]
        assert near == [pytest.approx(value, abs=atol)], (f, a, b)


@pytest.mark.parametrize("alpha", [0.0, 0.3, 30.0])
@pytest.mark.parametrize("missing", ["own_level", "ignore"])
def test_the_fit_is_scipys_on_pairs_with_ridge_rows(alpha, missing):
    table, states = drawn(60, missing=0.1)
    model = MLEM(**PARAMS, alpha=alpha, missing=missing, scale="none").fit(table, states)
    expected, intercept = reference(table, pdist(states.numpy(), "sqeuclidean"), alpha, missing=missing)
    assert_same(found_in(model), expected, 1e-6)
    assert float(model.intercept_) == pytest.approx(intercept, abs=1e-6)
    x = np.stack([column for column, _ in explicit(table, missing=missing).values()], 1)
    np.testing.assert_allclose(model.predict(table), x @ [*expected.values()] + intercept, atol=1e-5)
    assert min(expected.values()) == 0 or alpha, "control: without a ridge the constraint binds"


def squares_of(table, truth):
    """Squared distances of stimuli, 1 + Σ of the weights of their levels."""
    squared = 1 + sum(part[code][:, code] for part, code in zip(truth, table.long().T, strict=True))
    return squared.fill_diagonal_(0)


def random_weights(levels):
    parts = [torch.rand(size, size, dtype=torch.float64) for size in levels]
    return [(part + part.T) * (1 - torch.eye(len(part))) for part in parts]


@pytest.mark.parametrize("least", [0.0, 1.0])
def test_planted_weights_are_recovered_without_noise(least):
    """Any non-negative weights, also of no metric, and also 0."""
    table, _ = drawn(80, levels=(4, 3, 6))
    truth = random_weights((4, 3, 6))
    truth[1] *= 0
    truth[2][truth[2] < least] = 0
    model = MLEM(difference="levels", distance="precomputed", alpha=0.0, scale="none")
    model.fit(table, squares_of(table, truth).sqrt())
    for found, expected in zip(model.level_weights_, truth, strict=True):
        assert (found.weights - expected).abs().max() < 1e-8
    assert float(model.intercept_) == pytest.approx(1, abs=1e-8)


def test_alpha_leads_from_free_weights_to_one_weight_per_feature():
    table, states = drawn(80, levels=(4, 3, 6))
    spread, error = [], []
    for alpha in (0.0, 1.0, 100.0, 1e10, float("inf")):
        model = MLEM(difference="levels", alpha=alpha).fit(table, states)
        spread.append(max(float(torch.pdist(upper(each.weights)[:, None]).max()) for each in model.level_weights_))
        y = pdist(states.numpy(), "sqeuclidean")
        y = y / y.mean()
        error.append(float((model.predict(table) - torch.from_numpy(y)).square().mean()))
    single = MLEM(alpha=0.0).fit(table, states)
    assert spread[-1] == 0
    assert len(model.predict(table).unique()) <= 8, "ties stay ties"
    assert spread == sorted(spread, reverse=True)
    assert np.diff(error).min() > -1e-9
    assert error[-1] > 1.2 * error[0], "control: levels are at different distances"
    torch.testing.assert_close(model.weights_, single.weights_, rtol=1e-5, atol=1e-7)
    torch.testing.assert_close(model.predict(table), single.predict(table), rtol=1e-5, atol=1e-7)


def upper(matrix):
    return matrix[tuple(torch.triu_indices(len(matrix), len(matrix), 1))]


@pytest.mark.parametrize("recipe", ["stimuli", "paper"])
def test_alpha_is_the_best_over_folds(recipe):
    table, states = drawn(50)
    states += 2 * torch.randn_like(states)
    table[3, 3] = 17.0  # a level that one of the training sets does not have
    alphas, y, scores = (0.1, 10.0, 1e3, 1e6), pdist(states.numpy(), "sqeuclidean"), []
    for train, test in splits(stimulus_folds(50 if recipe == "stimuli" else 1225, 2, 1)):
        if recipe == "paper":
            predicted = [held_out(table, y, alpha, train.numpy(), test.numpy()) for alpha in alphas]
            fold = [scipy.stats.spearmanr(each, y[test]).statistic for each in predicted]
        else:
            models = [MLEM(**PARAMS, alpha=alpha).fit(table[train], states[train]) for alpha in alphas]
            fold = [model.score(table[test], states[test]) for model in models]
        scores.append(fold)
    model = MLEM(**PARAMS, alpha=alphas, folds=2, seed=1, recipe=recipe).fit(table, states)
    assert float(model.alpha_) == alphas[int(np.mean(scores, 0).argmax())]
    assert np.ptp(np.mean(scores, 0)) > 1e-3, "control: there is a choice"


def held_out(table, y, alpha, train, test):
    chosen = np.isin(np.arange(len(y)), train)
    weights, _ = reference(table, y, alpha, weight=chosen)
    return (np.stack([column for column, _ in explicit(table).values()], 1)[test] @ [*weights.values()]).round(10)


@pytest.mark.parametrize(
    "params", [{"alpha": (0.1, 10.0)}, {"alpha": float("inf")}, {"difference": "scaled", "kinds": "numeric"}]
)
def test_scores_of_all_pairs_are_those_of_patterns(params, monkeypatch):
    table, states = drawn(40, missing=0.05)
    model, found = MLEM(**PARAMS | params, folds=2), []
    for way in (distinct_patterns, lambda all_pairs: (list(all_pairs), torch.arange(len(all_pairs[0])))):
        monkeypatch.setattr("thinkalike.measures.mlem.stimulus_pairs.distinct_patterns", way)
        options = {"folds": 2, "permutations": 1, "interactions": [(0, 2)]}
        found.append(feature_importance(model, table, [states, states**2], **options))
    torch.testing.assert_close(found[0].drops, found[1].drops, rtol=0, atol=1e-12)
    torch.testing.assert_close(found[0].scores, found[1].scores, rtol=0, atol=1e-12)


def test_a_feature_that_lies_within_another_is_no_trouble():
    """Its columns are sums of the other's: without a ridge their weights are not unique, and the prediction is."""
    table, states = drawn(80, levels=(4, 3, 6))
    nested = torch.cat([table, table[:, 2:] // 2], 1)
    found = MLEM(difference="levels", alpha=0.0).fit(nested, states)
    free = MLEM(difference="levels", alpha=0.0).fit(table, states)
    torch.testing.assert_close(found.predict(nested), free.predict(table), rtol=1e-6, atol=1e-8)
    assert all(each.weights.max() < 10 for each in found.level_weights_)
