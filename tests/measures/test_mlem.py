"""The closed form of MLEM against scikit-learn, explicit pairs, other solvers, and what was planted."""

import itertools
import re
import warnings

import numpy as np
import pandas as pd
import pytest
import scipy.optimize
import scipy.stats
import torch
from scipy.spatial.distance import pdist, squareform
from sklearn.base import clone
from sklearn.linear_model import Ridge
from sklearn.model_selection import GridSearchCV, KFold, cross_val_score

from thinkalike.measures import MLEM, FeatureEncoder, splits, stimulus_folds
from thinkalike.measures.distances.neural import NeuralDistances
from thinkalike.measures.mlem.cone_solvers import nnls, psd_least_squares, to_entries, to_matrix
from thinkalike.measures.mlem.features import terms_of
from thinkalike.measures.mlem.sums import normal_equations

LEVELS = (2, 3, 3, 5, 2, 4, 12, 7)


def drawn(n=60, f=4, d=10, missing=0.0):
    """A table of categories, and states that depend on them, each less than the one before."""
    table = torch.stack([torch.randint(LEVELS[k], (n,)) for k in range(f)], 1).double()
    states = torch.randn(n, d, dtype=torch.float64)
    for k in range(f):
        states += torch.randn(LEVELS[k], d, dtype=torch.float64)[table[:, k].long()] * 1.5 / (1 + k)
    table[torch.rand(n, f) < missing] = torch.nan
    return table, states


def explicit(table, missing="own_level"):
    """Δ of all pairs, by loops over the definition."""
    rows, columns = np.triu_indices(len(table), 1)
    left, right = table.numpy()[rows], table.numpy()[columns]
    differ = (left != right) & ~(np.isnan(left) & np.isnan(right))
    if missing == "ignore":
        differ &= ~np.isnan(left) & ~np.isnan(right)
    return differ.astype(float)


def scaled(values):
    return (values - values.min()) / (values.max() - values.min())


def target(states):
    return scaled(pdist(states.numpy(), "sqeuclidean"))


def with_products(delta):
    f = delta.shape[1]
    return np.stack([*delta.T, *(2 * delta[:, a] * delta[:, b] for a, b in itertools.combinations(range(f), 2))], 1)


def upper(matrix):
    f = len(matrix)
    return np.array([*np.diag(matrix), *(matrix[a, b] for a, b in itertools.combinations(range(f), 2))])


@pytest.mark.parametrize("missing", ["own_level", "ignore"])
@pytest.mark.parametrize("kinds", ["nominal", "ordinal", "numeric"])
def test_an_indicator_is_whether_values_differ(missing, kinds, device):
    table, _ = drawn(missing=0.2)
    table[3] = torch.nan
    features = FeatureEncoder.fit(table.to(device), kinds, missing=missing).encode(table.to(device))
    pairs = torch.triu_indices(60, 60, 1, device=device)
    expected = torch.from_numpy(explicit(table, missing))
    assert torch.equal(features.differences(pairs).cpu(), expected)
    rows, columns = torch.tensor([3, 7], device=device), torch.tensor([0, 3, 59], device=device)
    assert torch.equal(features.difference(2, rows, columns), features.difference(2)[rows][:, columns])
    assert explicit(table, "own_level").sum() > explicit(table, "ignore").sum(), "control: the policies differ"


def test_scaled_differences_use_the_range_of_training():
    train = torch.tensor([[0.0, 1.0, 1.0], [10, 10, 2], [2, 100, 2]])
    encoder = FeatureEncoder.fit(train, ["numeric", "ordinal", "nominal"], "scaled")
    test = torch.tensor([[0.0, 1, 7], [5, 100, 1], [20, 50, 7], [torch.nan, torch.nan, torch.nan]])
    numeric, ordinal, nominal = (encoder.encode(test).difference(k).double() for k in range(3))
    # 50 lies between the known 10 and 100, whose ranks are 1 and 2 of 0..2
    expected = {(0, 1): (0.5, 1, 1), (0, 2): (2, 0.75, 0), (1, 2): (1.5, 0.25, 1), (0, 3): (1, 1, 1), (2, 3): (1, 1, 1)}
    for (i, j), values in expected.items():
        assert (numeric[i, j], ordinal[i, j], nominal[i, j]) == values
        assert numeric[i, j] == numeric[j, i]
    assert (numeric[3, 3], ordinal[3, 3]) == (0, 0)
    assert (FeatureEncoder.fit(torch.ones(3, 3), "numeric", "scaled").encode(test).difference(0)[:3, :3] == 0).all()
    ignoring = FeatureEncoder.fit(train, "numeric", "scaled", "ignore").encode(test)
    assert (ignoring.difference(0)[3] == 0).all()
    assert ignoring.difference(0)[0, 2] == 2


def test_equal_differences_have_equal_bits():
    """3/11 - 2/11 is not 7/11 - 6/11 to the bit: pairs that the model holds equal would be ranked by rounding."""
    places = torch.tensor([0.0, 1, 2, 3, 6, 7, 11])
    for kind in ("numeric", "ordinal", "continuous"):
        encoder = FeatureEncoder.fit(torch.arange(12.0)[:, None], kind, "scaled")
        found = encoder.encode(places[:, None]).difference(0)
        apart = (places[:, None] - places).abs()
        assert all(len(found[apart == step].unique()) == 1 for step in apart.unique()), kind
    assert 3 / 11 - 2 / 11 != 7 / 11 - 6 / 11, "control"


def squared(table, kinds, missing):
    """The regressors of all pairs by loops over the definition: Δ² of numbers and ranks, indicators of the others."""
    rows, columns = np.triu_indices(len(table), 1)
    found = explicit(table, missing)
    for k, (kind, column) in enumerate(zip(kinds, table.numpy().T, strict=True)):
        places = column if kind != "ordinal" else scipy.stats.rankdata(column, "dense", nan_policy="omit")
        if kind != "nominal":
            apart = (places[rows] - places[columns]) / (np.nanmax(places) - np.nanmin(places))
            found[:, k] = np.where(np.isnan(apart), found[:, k], apart**2)
    return found


@pytest.mark.parametrize("missing", ["own_level", "ignore"])
@pytest.mark.parametrize(
    ("kinds", "difference", "interactions"),
    [
        (["nominal"] * 4, "indicator", False),
        (["nominal"] * 4, "indicator", True),
        (["numeric", "nominal", "ordinal", "nominal"], "scaled", False),
        (["numeric"] * 4, "scaled", False),
        (["nominal", "numeric", "nominal", "nominal"], "levels", False),
        (["continuous", "nominal", "continuous", "nominal"], "levels", False),
    ],
)
def test_sums_of_items_are_those_of_pairs(missing, kinds, difference, interactions, device):
    table, states = drawn(55, f=4, missing=0.2)
    if kinds[0] in ("numeric", "continuous"):
        table[:, 0] += 1000 + torch.rand(55)
    table[50:, 3] = 17.0  # a level that is known, and no stimulus has it in the end
    encoder, table, states = FeatureEncoder.fit(table.to(device), kinds, difference, missing), table[:50], states[:50]
    features = encoder.encode(table.to(device))
    layers = [NeuralDistances.of(states.to(device) + 100), NeuralDistances.of(states[:, :3].to(device), "cosine")]
    cells, terms = torch.randint(3, (50,), device=device), terms_of(features.weighted_level_counts, interactions)
    found = normal_equations(features, layers, terms, cells)
    precomputed = [NeuralDistances(layer.squared(), "given") for layer in layers]
    torch.testing.assert_close(normal_equations(features, precomputed, terms, cells), found, rtol=1e-10, atol=1e-9)
    for cell, (train, _) in enumerate(splits(cells)):
        parts = features.take(train), [layer.take(train) for layer in layers]
        one = normal_equations(*parts, terms, torch.zeros_like(train))
        torch.testing.assert_close(found[1 + cell], one[0], rtol=1e-10, atol=1e-8)
    if difference == "indicator":
        x, y = explicit(table, missing), pdist(states.numpy(), "sqeuclidean")
        products = [x[:, a] * x[:, b] for a, b in itertools.combinations(range(4), 2)] if interactions else []
        x = np.column_stack([np.ones(1225), x, *products])
        np.testing.assert_allclose(found[0, :, :-2].cpu(), x.T @ x, rtol=1e-10)
        np.testing.assert_allclose(found[0, :, -2].cpu(), x.T @ y, rtol=1e-10)


@pytest.mark.parametrize("f", [1, 3, 8, 20])
def test_nnls_is_scipys(f):
    designs, targets = torch.randn(30, 25, f, dtype=torch.float64), torch.randn(30, 25, dtype=torch.float64)
    found = nnls(designs.mT @ designs, (designs.mT @ targets[..., None])[..., 0])
    for x, y, w in zip(designs, targets, found, strict=True):
        np.testing.assert_allclose(w, scipy.optimize.nnls(x.numpy(), y.numpy())[0], atol=1e-10)
    assert (found >= 0).all()
    assert (found == 0).any(), "control: the constraint binds"


def test_nnls_gives_0_to_columns_that_add_nothing():
    x, y = torch.rand(200, 40, 8, dtype=torch.float64), torch.rand(200, 40, dtype=torch.float64)
    x[..., 3], x[..., 4:] = 0, x[..., :3] @ torch.rand(3, 4, dtype=torch.float64)
    found = nnls(x.mT @ x, (x.mT @ y[..., None])[..., 0])
    assert (found[:, 3] == 0).all()
    assert ((found > 0).sum(1) <= 3).all(), "the others depend on three"
    assert found.max() < 10
    for design, target, w in zip(x.numpy(), y.numpy(), found.numpy(), strict=True):
        np.testing.assert_allclose(design @ w, design @ scipy.optimize.nnls(design, target)[0], atol=1e-9)
    assert torch.equal(nnls(x[0].T @ x[0], -x[0].T @ y[0]), torch.zeros(8, dtype=torch.float64))


def constrained(f=4, rows=40, binding=True):
    """A least-squares problem over matrices, whose free solution is not semidefinite, or is."""
    r = f * (f + 1) // 2
    x = torch.randn(rows, r, dtype=torch.float64) * torch.logspace(0, -1, r, dtype=torch.float64)
    truth = torch.randn(f, f, dtype=torch.float64)
    truth = truth + truth.T if binding else truth @ truth.T + torch.eye(f)
    y = x @ to_entries(truth) + 0.1 * torch.randn(rows, dtype=torch.float64)
    return x.T @ x, x.T @ y


@pytest.mark.parametrize("binding", [True, False])
def test_the_semidefinite_solution_is_optimal(binding):
    """W ⪰ 0, slope ⪰ 0, <slope, W> = 0 (Karush-Kuhn-Tucker): sufficient, as the problem is convex."""
    gram, target = constrained(binding=binding)
    found = psd_least_squares(gram, target)
    matrix, slope = to_matrix(found), to_matrix(gram @ found - target)
    size = target.abs().max()
    assert torch.linalg.eigvalsh(matrix)[0] >= -1e-12
    assert torch.linalg.eigvalsh(slope)[0] >= -1e-6 * size
    assert abs(float((slope * matrix).sum())) <= 1e-6 * float(size * matrix.norm())
    free = torch.linalg.solve(gram, target)
    assert ((free - found).norm() > 1e-2) == binding, "control"


@pytest.mark.parametrize("alpha", [0.0, 1.0, 1000.0])
def test_the_fit_is_scikit_learns_positive_ridge_on_pairs(alpha):
    table, states = drawn(300, f=8, d=20)
    model = MLEM(alpha=alpha, scale="minmax").fit(table, states)
    x, y = explicit(table), target(states)
    reference = Ridge(alpha=alpha, positive=True, tol=1e-12, max_iter=100000).fit(x, y)
    np.testing.assert_allclose(model.weights_, reference.coef_, atol=1e-6)
    assert float(model.intercept_) == pytest.approx(reference.intercept_, abs=1e-6)
    np.testing.assert_allclose(model.predict(table), reference.predict(x), atol=1e-6)
    assert model.score(table, states) == pytest.approx(
        scipy.stats.spearmanr(model.predict(table), y).statistic, abs=1e-12
    )


@pytest.mark.parametrize("alpha", [0.0, 10.0])
@pytest.mark.parametrize("difference", ["indicator", "scaled"])
def test_the_full_fit_is_ridge_on_explicit_products(alpha, difference):
    """Where the free solution is semidefinite; an off-diagonal entry counts twice in Δᵀ W Δ, and in ‖W‖²."""
    table, states = drawn(300, f=3, d=20)
    model = MLEM(weights="full", alpha=alpha, scale="minmax", difference=difference).fit(table, states)
    x = with_products(explicit(table))
    x, y = x - x.mean(0), target(states)
    entries = np.linalg.solve(x.T @ x + alpha * np.diag([1, 1, 1, 2, 2, 2]), x.T @ (y - y.mean()))
    weights = model.weights_.numpy()
    assert np.linalg.eigvalsh(weights)[0] > 0
    np.testing.assert_allclose(weights, weights.T)
    np.testing.assert_allclose(upper(weights), entries, atol=1e-10)
    np.testing.assert_allclose(model.predict(table), x @ entries + y.mean(), atol=1e-10)
    quadratic = np.einsum("pf,fg,pg->p", explicit(table), weights, explicit(table)) + float(model.intercept_)
    np.testing.assert_allclose(model.predict(table), quadratic, atol=1e-12)


@pytest.mark.parametrize("missing", ["own_level", "ignore", "drop"])
def test_the_scaled_fit_is_least_squares_on_explicit_pairs(missing):
    kinds = ["numeric", "ordinal", "nominal", "numeric"]
    table, states = drawn(200, f=4, d=20, missing=0.1)
    table[:, 0] = torch.randn(200)
    states[:, :2] += 3 * table[:, [0, 3]].nan_to_num()
    model = MLEM(kinds=kinds, difference="scaled", alpha=0.0, missing=missing, scale="none").fit(table, states)
    kept = ~table.isnan().any(1) | (missing != "drop")
    x, y = squared(table[kept], kinds, missing), pdist(states[kept].numpy(), "sqeuclidean")
    x = np.column_stack([x, np.ones(len(x))])
    solution = np.linalg.lstsq(x, y, rcond=None)[0]
    assert (solution[:-1] > 0).all(), "so that the constraint does not bind"
    np.testing.assert_allclose(model.weights_, solution[:-1], rtol=1e-9)
    np.testing.assert_allclose(model.predict(table), x @ solution, rtol=1e-9)


@pytest.mark.parametrize(
    ("distance", "metric"), [("cosine", None), ("norm_difference", None), ("manhattan", "cityblock")]
)
def test_the_fit_to_a_distance_is_that_to_its_matrix(distance, metric):
    table, states = drawn(60, f=3)
    given = (
        squareform(pdist(states.numpy(), metric)) if metric else NeuralDistances.of(states, distance).squared().sqrt()
    )
    model = MLEM(distance=distance).fit(table, states)
    other = MLEM(distance="precomputed").fit(table, torch.as_tensor(given))
    torch.testing.assert_close(model.weights_, other.weights_, rtol=1e-9, atol=1e-9)
    assert model.score(table, states) == pytest.approx(other.score(table, given), abs=1e-9)
    assert (model.weights_ - MLEM().fit(table, states).weights_).abs().max() > 1e-3, "control: not Euclidean"


def reference_alpha(table, states, folds, seed):
    """The same choice by explicit loops."""
    fold_of, scores = stimulus_folds(len(table), folds, seed), []
    alphas = [10.0**k for k in range(-4, 5)]
    for train, test in splits(fold_of):
        x, y = explicit(table[train]), pdist(states[train].numpy(), "sqeuclidean")
        y = scaled(y)
        x, y = x - x.mean(0), y - y.mean()
        rooted = [np.vstack([x, np.sqrt(alpha) * np.eye(x.shape[1])]) for alpha in alphas]
        fits = [scipy.optimize.nnls(z, np.append(y, np.zeros(x.shape[1])))[0] for z in rooted]
        held = explicit(table[test]), pdist(states[test].numpy(), "sqeuclidean")
        scores.append([scipy.stats.spearmanr((held[0] @ fit).round(12), held[1]).statistic for fit in fits])
    return alphas[int(np.mean(scores, 0).argmax())]


@pytest.mark.parametrize("seed", [0, 1])
def test_alpha_is_the_best_over_folds_of_stimuli(seed):
    table, states = drawn(60, f=4)
    states += 3 * torch.randn(60, 10)
    model = MLEM(folds=4, seed=seed).fit(table, states)
    assert model.alpha_ == MLEM(folds=4, seed=seed).fit(table, 100 * states).alpha_, "it has no unit"
    assert float(model.alpha_) == reference_alpha(table, states, 4, seed)
    given = MLEM(alpha=float(model.alpha_)).fit(table, states)
    torch.testing.assert_close(model.weights_, given.weights_, rtol=1e-12, atol=1e-14)


def test_the_scale_is_the_mean_squared_distance():
    table, states = drawn(60)
    raw, scaled = (MLEM(scale=each, alpha=100.0).fit(table, states * 100) for each in ("none", "auto"))
    unit = (pdist(states.numpy() * 100) ** 2).mean()
    np.testing.assert_allclose(scaled.range_, [0, unit], rtol=1e-12)
    torch.testing.assert_close(raw.weights_, scaled.weights_ * unit)
    torch.testing.assert_close(raw.predict(table), scaled.predict(table) * unit)


@pytest.mark.parametrize("difference", ["indicator", "scaled", "levels"])
def test_a_fit_in_closed_form_looks_at_no_pair(difference, monkeypatch):
    """Blocks of distances are what would take N² numbers; only the range of them needs any."""
    table, states = drawn(60)
    blocks = []
    block = NeuralDistances.block
    monkeypatch.setattr(NeuralDistances, "block", lambda *args, **kwargs: blocks.append(1) or block(*args, **kwargs))
    MLEM(alpha=1.0, difference=difference).fit(table, states)
    assert not blocks
    MLEM(alpha=1.0, difference=difference, scale="minmax").fit(table, states)
    assert blocks, "control"


@pytest.mark.parametrize(("weights", "distance"), [("diagonal", "euclidean"), ("full", "manhattan")])
def test_layers_together_are_each_alone(weights, distance):
    table, states = drawn(40, f=3)
    layers = [states, states[:, :4] + torch.randn(40, 4), (states**3).float()]
    together = MLEM(weights=weights, distance=distance).fit(table, layers)
    for k, layer in enumerate(layers):
        alone = MLEM(weights=weights, distance=distance).fit(table, layer)
        torch.testing.assert_close(together.weights_[k], alone.weights_, rtol=1e-7, atol=1e-9)
        torch.testing.assert_close(together.predict(table)[k], alone.predict(table), rtol=1e-7, atol=1e-9)
        assert together.alpha_[k] == alone.alpha_
        assert float(together.score(table, layers)[k]) == pytest.approx(alone.score(table, layer), abs=1e-9)


@pytest.mark.parametrize("f", [1, 8, 12, 18])
def test_the_score_is_scipys_for_few_and_many_features(f):
    """Up to 8, to 12 and beyond, patterns of differences are numbered in different ways."""
    table = torch.randint(2, (40, f)).double()
    states = torch.randn(40, 6) + 2 * table[:, :1]
    model = MLEM(alpha=1.0).fit(table, [states, states**2])
    predicted, found = model.predict(table), model.score(table, [states, states**2])
    for k, layer in enumerate((states, states**2)):
        expected = scipy.stats.spearmanr(predicted[k], pdist(layer.double().numpy(), "sqeuclidean")).statistic
        assert found[k] == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("params", [{"distance": "manhattan"}, {"weights": "full"}, {"recipe": "paper"}])
def test_the_size_of_chunks_changes_nothing(params, monkeypatch):
    table, states = drawn(50, f=3)
    expected = MLEM(**params).fit(table, states)
    monkeypatch.setattr("thinkalike.measures.mlem.sums.PAIRS_AT_ONCE", 1)
    monkeypatch.setattr("thinkalike.measures.distances.neural.ROWS_AT_ONCE", 7)
    found = MLEM(**params).fit(table, states)
    torch.testing.assert_close(found.weights_, expected.weights_, rtol=1e-9, atol=1e-12)
    assert found.score(table, states) == pytest.approx(expected.score(table, states), abs=1e-12)


@pytest.mark.parametrize(("weights", "alpha"), [("diagonal", 0.0), ("full", 1.0)])
def test_a_constant_feature_gets_exactly_0_and_a_warning(weights, alpha):
    table, states = drawn(60, f=4)
    table[:, 1], table[:, 3] = 7, torch.arange(60)
    with pytest.warns(
        UserWarning,
        match=r"features \[1, 3\] are equal in all pairs .*, and get weight 0",
    ):
        model = MLEM(weights=weights, alpha=alpha).fit(table, states)
    found = model.weights_[[1, 3]]
    assert (found == 0).all()
    assert model.correlation_[1].isnan().all()
    rest = MLEM(weights=weights, alpha=alpha).fit(table[:, [0, 2]], states).weights_
    both = model.weights_[[0, 2]] if weights == "diagonal" else model.weights_[[0, 2]][:, [0, 2]]
    torch.testing.assert_close(both, rest, rtol=1e-7, atol=1e-9)


def test_features_that_differ_on_the_same_pairs_are_named():
    table, states = drawn(60, f=3)
    table[:, 2] = 5 - table[:, 0]
    with pytest.warns(UserWarning, match=r"features \[\[0, 2\]\] differ on much the same pairs"):
        model = MLEM(alpha=0.0).fit(table, states)
    assert model.condition_number_ > 1e12
    assert min(model.weights_[0], model.weights_[2]) == 0
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model = MLEM().fit(*drawn())
    np.testing.assert_allclose(MLEM().fit(table[:, :2], states).correlation_, np.corrcoef(explicit(table[:, :2]).T))
    assert 1 <= model.condition_number_ < 10


def fitted(changes=(), layers=1, **params):
    """Fit a table in which these values are others."""
    table, states = drawn()
    for place, value in changes:
        table[place] = value
    return MLEM(**params).fit(table, states if layers == 1 else [states] * layers)


TABLE, STATES = drawn()
EQUAL = 1 - torch.eye(60)
TWICE, FAR = (torch.arange(40) // 20)[:, None], (torch.arange(40) % 20)[:, None].double()  # equal where Δ = 1
REFUSED = {
    "weights": lambda: fitted(weights="dense"),
    "alpha=()": lambda: fitted(alpha=()),
    "alpha=(1.0, nan)": lambda: fitted(alpha=(1.0, float("nan"))),
    "1 folds of 60 stimuli": lambda: fitted(folds=1),
    "4 folds of 3 groups": lambda: stimulus_folds(9, 4, 0, torch.arange(9) // 3),
    "feature 2 has an infinite value": lambda: fitted([((5, 2), torch.inf)]),
    "missing='error'": lambda: fitted([((5, 2), torch.nan)], missing="error"),
    "the features 3": lambda: fitted().predict(TABLE[:, :3]),
    "layer 1 has shape (59, 10)": lambda: MLEM().fit(TABLE, [STATES, STATES[1:]]),
    "every feature is equal in all pairs": lambda: fitted([((slice(None), slice(None)), 1)]),
    "all distances of layer 0 are equal": lambda: MLEM(alpha=1.0, distance="precomputed").fit(TABLE, EQUAL),
    "groups together": lambda: MLEM(recipe="paper").fit(TABLE, STATES, groups=range(60)),
    "groups has shape (9,)": lambda: MLEM().fit(TABLE, STATES, groups=np.arange(9)),
    "the prediction of layer 0 is constant": lambda: MLEM(alpha=0.0).fit(TWICE, FAR).score(TWICE, FAR),
    "2 layers": lambda: fitted().score(TABLE, [STATES, STATES]),
    "not fitted": lambda: MLEM().predict(TABLE),
    "weights='full'": lambda: fitted(difference="levels", weights="full"),
    "feature 1 has 60 levels": lambda: fitted([((slice(None), 1), torch.arange(60).double())], difference="levels"),
}


@pytest.mark.parametrize("key", REFUSED)
def test_what_would_give_a_wrong_number_is_refused(key):
    with pytest.raises(ValueError, match=re.escape(key)):
        REFUSED[key]()


def test_no_convergence_is_an_error(monkeypatch):
    monkeypatch.setattr("thinkalike.measures.mlem.cone_solvers.MOST_PSD_STEPS", 3)
    with pytest.raises(ValueError, match="no optimum"):
        psd_least_squares(*constrained())


def test_mlem_is_an_estimator_of_scikit_learn():
    table, states = (x.numpy() for x in drawn(80))
    model = MLEM(alpha=1.0, kinds=["nominal"] * 4)
    assert clone(model).get_params() == model.get_params()
    folds = KFold(3, shuffle=True, random_state=0)
    scores = cross_val_score(model, table, states, cv=folds)
    for score, (train, test) in zip(scores, folds.split(table), strict=True):
        fitted = clone(model).fit(table[train], states[train])
        y = pdist(states[test], "sqeuclidean")
        assert score == pytest.approx(scipy.stats.spearmanr(fitted.predict(table[test]), y).statistic, abs=1e-12)
    search = GridSearchCV(model, {"alpha": [1.0, 1e9]}, cv=folds).fit(table, states)
    assert search.best_params_ == {"alpha": 1.0}


@pytest.mark.parametrize(("n", "folds"), [(10, 10), (23, 2), (200, 5)])
@pytest.mark.parametrize("grouped", [False, True])
def test_no_stimulus_and_no_group_is_on_both_sides(n, folds, grouped):
    groups = torch.randint(n, (n,)) // 2 * 7 if grouped else None
    if grouped and len(groups.unique()) < folds:
        groups = torch.arange(n)
    fold_of = stimulus_folds(n, folds, 0, groups)
    parts = list(splits(fold_of))
    assert torch.cat([test for _, test in parts]).sort().values.tolist() == list(range(n))
    for train, test in parts:
        assert torch.cat([train, test]).sort().values.tolist() == list(range(n))
        assert not grouped or not set(groups[train].tolist()) & set(groups[test].tolist())
    sizes = torch.bincount(fold_of, minlength=folds)
    largest = 1 if groups is None else int(groups.unique(return_counts=True)[1].max())
    assert sizes.max() - sizes.min() <= largest
    assert torch.equal(fold_of, stimulus_folds(n, folds, 0, groups))
    assert grouped or not torch.equal(fold_of, stimulus_folds(n, folds, 1, groups))


@pytest.mark.parametrize("unit", [1e-163, 1e153, 1e155, 1e200])
def test_states_of_sizes_beyond_squares_have_no_weights(unit):
    """Sums of their distances are 0 or infinite, and weights were NaN."""
    with pytest.raises(ValueError, match=r"states of layer 0 .* leave the range of float64: divide them by"):
        MLEM(alpha=1.0).fit(TABLE, STATES * unit)


def test_large_numbers_of_a_feature_are_continuous_as_they_are_in_another_unit():
    """Beyond 2^53 every float is a whole number."""
    values = torch.rand(60, generator=torch.Generator().manual_seed(0), dtype=torch.float64).numpy()
    for unit in (1.0, 1e20, 1e300):
        table = pd.DataFrame({"size": values * unit, "side": np.arange(60) % 2})
        with pytest.warns(UserWarning, match="taken for continuous"):
            weights = MLEM(alpha=1.0).fit(table, STATES).weights_
        if unit == 1.0:
            expected = weights
        torch.testing.assert_close(weights, expected)
