"""Measures of shape, neighbours, distances and outputs against scipy, published formulas and planted answers."""

import math
from collections import deque
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from scipy.optimize import linprog
from scipy.spatial.distance import cdist, cosine, jensenshannon

import thinkalike
from neighbours_of_sklearn import by_sklearn
from thinkalike.measures import (
    SVCCA,
    CKAMeasure,
    Disagreement,
    Jaccard,
    JensenShannon,
    SecondOrderCosine,
    SoftMatching,
    disagreement,
    distance_correlation,
    jaccard,
    jensen_shannon,
    mutual_knn,
    procrustes_distance,
    second_order_cosine,
    soft_matching,
    svcca,
    unit_matching,
)
from thinkalike.measures.contract import LayerMeasure, ModelPairs, joint_matrix
from thinkalike.measures.distances.of_layers import DistanceCorrelation, TokenRSA
from thinkalike.measures.layer_means import LayerMeans
from thinkalike.measures.neighbours import MutualKNN
from thinkalike.measures.permutations import permuted_within
from thinkalike.measures.row_groups import RowGroups
from thinkalike.measures.shape import Procrustes

N = 40


def in_blocks(measure, sources, targets):
    """The likenesses of two lists of prepared layers; ratios are taken of relative likenesses."""
    layers = [*sources, *targets]
    model_pairs = ModelPairs([range(len(sources)), range(len(sources), len(layers))], [(0, 0), (0, 1), (1, 1)])
    found = joint_matrix(measure.compare_all(layers, model_pairs), (0, 1))
    found = measure.ratios(found) if measure.is_ratio else found
    return found[: len(sources), len(sources) :]


MEASURES = {
    "procrustes": Procrustes(),
    "svcca": SVCCA(),
    "soft matching": SoftMatching(),
    "distance correlation": DistanceCorrelation(),
    "cka": CKAMeasure(is_relative=True),
    "rsa": TokenRSA(),
    "jensen-shannon": JensenShannon(),
    "disagreement": Disagreement(),
    "mutual": MutualKNN(5),
    "jaccard": Jaccard(5),
    "second order cosine": SecondOrderCosine(5),
}
every = pytest.mark.parametrize("measure", MEASURES.values(), ids=MEASURES)


def pair(n=N, d=6, e=9, noise=0.5):
    base = torch.randn(n, 4, dtype=torch.float64)
    return [base @ torch.randn(4, width, dtype=torch.float64) + noise * torch.randn(n, width, dtype=torch.float64)
            for width in (d, e)]  # fmt: skip


def centred(x):
    return x.numpy() - x.numpy().mean(0)


@every
def test_layers_are_prepared_once_for_a_matrix_of_pairs(measure, monkeypatch):
    layers = [*pair(e=6), *pair(e=6)]
    seen = []
    prepare = measure.prepare
    with monkeypatch.context() as patch:
        patch.setattr(type(measure), "prepares_together", False)
        patch.setattr(type(measure), "prepare", lambda _, x, name: seen.append(name) or prepare(x, name))
        matrix = measure.matrix(layers[:3], layers[1:])
    assert len(seen) == 4, "layers 1 and 2 stand on both sides"
    assert matrix.shape == (3, 3)
    assert matrix.dtype == torch.float64
    for i, x in enumerate(layers[:3]):
        for j, y in enumerate(layers[1:]):
            assert float(matrix[i, j]) == pytest.approx(float(measure.of(x, y)), abs=1e-7)
    prepared = measure.prepared(layers, "abcd")
    square = in_blocks(measure, prepared, prepared)
    torch.testing.assert_close(square, measure.matrix(layers, [x.clone() for x in layers]), rtol=0, atol=1e-6)


@every
def test_rows_of_a_prepared_layer_move_as_rows_do(measure):
    x, y = pair(e=6)
    order = torch.randperm(N)
    first, second = measure.prepared([x, y], "xy")
    moved = in_blocks(measure, [first], [measure.reordered(second, order)])[0, 0]
    assert float(moved) == pytest.approx(float(measure.of(x, y[order])), abs=1e-9)
    assert float(moved) != pytest.approx(float(measure.of(x, y)), abs=1e-4), "control"


class Slots:
    __slots__ = ("inner",)

    def __init__(self, inner):
        self.inner = inner


class Changing(LayerMeasure):
    """The product of the sums of two layers, and a change of what it got."""

    def __init__(self, form, found, change=lambda prepared: None):
        vars(self).update(form=form, found=found, change=change)

    def prepare(self, layer, name):
        layer -= layer.mean(0)  # a layer in memory stays as it is
        return self.form(layer * 1)

    def compare(self, first, second):
        value = torch.as_tensor(self.found(first))[0].sum() * torch.as_tensor(self.found(second))[0].sum()
        self.change(first)
        self.change(second)
        return value


def by_data(tensor):
    tensor.data[:3] *= -1


def by_numpy(tensor):
    tensor.numpy()[:3] *= -1


def by_storage(tensor):
    tensor.untyped_storage().copy_((tensor * 0 + 1).contiguous().untyped_storage())


def by_dlpack(tensor):
    torch.from_dlpack(tensor)[:3].mul_(-1)


def by_replacing(box):
    box.inner = -box.inner


def by_cache(box):
    box.gram = box.inner @ box.inner.T


def by_lists(rows):
    rows[0][0] += 1


def same(prepared):
    return prepared


def inner_of(box):
    return box.inner


CHANGES = {
    "in place": (same, same, by_lists),
    "by data": (same, same, by_data),
    "by an array": (same, same, by_numpy),
    "by the storage": (same, same, by_storage),
    "by dlpack": (same, same, by_dlpack),
    "an array": (torch.Tensor.numpy, same, by_lists),
    "a slot": (Slots, inner_of, by_replacing),
    "an attribute": (lambda x: SimpleNamespace(inner=x), inner_of, by_replacing),
    "a cache": (lambda x: SimpleNamespace(inner=x), inner_of, by_cache),
    "a deque": (lambda x: deque([x]), lambda x: x[0], lambda x: by_lists(x[0])),
    "an array of objects": (lambda x: np.array([x, None], dtype=object), lambda x: x[0], lambda x: by_lists(x[0])),
    "lists of numbers": (torch.Tensor.tolist, same, by_lists),
}


@pytest.mark.parametrize("case", CHANGES)
def test_a_measure_may_change_what_it_gets(case):
    form, found, change = CHANGES[case]
    layers = [*pair(e=6), *pair(e=6)]
    before = [layer.clone() for layer in layers]
    values = Changing(form, found, change).matrix(layers[:2], layers[2:])
    assert torch.equal(values, Changing(form, found).matrix(layers[:2], layers[2:]))
    assert all(map(torch.equal, layers, before))
    changed = form(layers[0].clone())
    change(changed)
    is_same = torch.equal(torch.as_tensor(found(changed)), layers[0])
    assert is_same == (case == "a cache"), "control"


def test_what_cannot_be_copied_for_each_pair_is_refused_in_one_line():
    x, y = pair(e=6)
    for form in (lambda x: lambda: x, lambda x: SimpleNamespace(inner=[lambda: x]), lambda x: (each for each in [x])):
        with pytest.raises(
            ValueError, match=r"what Changing\.prepare returns cannot be copied .*__deepcopy__"
        ) as raised:
            Changing(form, lambda prepared: x).of(x, y)
        assert "\n" not in str(raised.value)
    assert Changing(lambda x: (math.sqrt, pair, x), lambda prepared: prepared[2]).of(x, y).isfinite(), "control"


def test_gradients_pass_the_copies():
    x, y = pair(e=6)
    x.requires_grad_()
    (given,) = torch.autograd.grad(Changing(Slots, inner_of, by_replacing).of(x, y), x)
    centred_x, centred_y = x - x.mean(0), y - y.mean(0)
    (expected,) = torch.autograd.grad(centred_x[0].sum() * centred_y[0].sum(), x)
    assert torch.allclose(given, expected)


LINES, EIGHT = torch.eye(N)[:, :1], torch.randn(8, 3)


@pytest.mark.parametrize(
    ("measure", "x", "y", "message"),
    [
        (Procrustes().of, torch.randn(40, 3), torch.randn(39, 3), "the same rows, but X has 40 and Y has 39"),
        (SoftMatching().of, torch.randn(1, 3), torch.randn(1, 3), "1 rows are too few to compare: give at least 2"),
        (DistanceCorrelation().of, torch.randn(N, 3), LINES, "Y: all distances are equal, or all but those of one row"),
        (
            DistanceCorrelation().of,
            torch.linalg.qr(torch.randn(N, N)).Q,
            torch.randn(N, 3),
            "X: all distances are equal",
        ),
        (partial(svcca, kept=1.1), LINES, LINES, "kept=1.1 is no share of the variance"),
        (jensen_shannon, torch.randn(3, 5), torch.randn(3, 6), "5 and 6 entries are not of one vocabulary"),
        (disagreement, torch.randn(3, 5), torch.randn(3, 6), "5 and 6 entries are not of one vocabulary"),
        (disagreement, torch.tensor([[0.0, torch.nan]]), torch.randn(1, 2), "X: a logit is NaN"),
        (jensen_shannon, torch.full((1, 2), -torch.inf), torch.randn(1, 2), "X: a logit is NaN"),
        (partial(mutual_knn, k=7), EIGHT, EIGHT, "k=7 neighbours of a row need 9 rows, and X has 8"),
        (partial(mutual_knn, k=2), EIGHT, torch.full((8, 3), torch.nan), "Y: a value is not finite"),
        (partial(mutual_knn, k=2), EIGHT.index_fill(0, torch.tensor(4), 0), EIGHT, "X: row 4 is zero"),
        (partial(mutual_knn, k=2), EIGHT, torch.ones(8, 3), "Y: all rows"),
    ],
)
def test_what_cannot_be_compared_is_refused(measure, x, y, message):
    with pytest.raises(ValueError, match=message):
        measure(x, y)


@pytest.mark.parametrize(("n", "d", "e"), [(N, 6, 9), (8, 20, 5), (8, 20, 30), (2, 3, 3)])
def test_procrustes_is_the_angle_of_the_best_rotation(n, d, e):
    x, y = pair(n, d, e)
    a, b = (centred(z) / np.linalg.norm(centred(z)) for z in (x, y))
    assert float(procrustes_distance(x, y)) == pytest.approx(
        math.acos(min(np.linalg.norm(a.T @ b, "nuc"), 1)), abs=1e-7
    )


def by_formula_svcca(x, y, kept):
    """Raghu et al.: SVD of both sides, then CCA through whitened covariances."""
    parts = []
    for z in (x, y):
        u, s, _ = np.linalg.svd(centred(z), full_matrices=False)
        count = int(np.searchsorted(np.cumsum(s**2) / np.sum(s**2), kept) + 1)
        parts.append(u[:, :count] * s[:count])
    sxx, syy, sxy = parts[0].T @ parts[0], parts[1].T @ parts[1], parts[0].T @ parts[1]
    roots = [np.linalg.inv(np.linalg.cholesky(s)) for s in (sxx, syy)]
    return np.linalg.svd(roots[0] @ sxy @ roots[1].T, compute_uv=False).mean()


@pytest.mark.parametrize(("n", "d", "e"), [(N, 6, 9), (20, 40, 7), (20, 40, 50)])
@pytest.mark.parametrize("kept", [0.5, 0.9, 0.99])
def test_svcca_is_the_published_formula(n, d, e, kept):
    x, y = pair(n, d, e)
    assert float(svcca(x, y, kept)) == pytest.approx(by_formula_svcca(x, y, kept), abs=1e-9)


def test_svcca_of_half_a_shared_subspace_is_one_half():
    q = torch.linalg.qr(torch.cat([torch.ones(N, 1), torch.randn(N, 6)], 1).double()).Q
    assert float(svcca(q[:, 1:5], 7 * q[:, 3:7])) == pytest.approx(0.5, abs=1e-12)
    mixed = (q[:, 1:5] @ torch.randn(4, 20, dtype=q.dtype)).float()
    assert float(svcca(mixed, 7 * q[:, 3:7], kept=1.0)) == pytest.approx(0.5, abs=1e-6), "no direction is of rounding"


def by_linprog(correlations):
    d, e = correlations.shape
    sums = np.vstack([np.kron(np.eye(d), np.ones(e)), np.kron(np.ones(d), np.eye(e))])
    weights = np.r_[np.full(d, 1 / d), np.full(e, 1 / e)]
    return -linprog(-correlations.ravel(), A_eq=sums, b_eq=weights).fun


@pytest.mark.parametrize(("d", "e"), [(6, 6), (6, 9), (7, 5), (1, 4)])
@pytest.mark.parametrize("copies", [unit_matching.MOST_COPIES, 0], ids=["assignment", "linear program"])
def test_soft_matching_is_the_optimal_transport_of_correlations(d, e, copies, monkeypatch):
    monkeypatch.setattr(unit_matching, "MOST_COPIES", copies)
    x, y = pair(d=d, e=e)
    expected = by_linprog(np.corrcoef(x.numpy(), y.numpy(), rowvar=False)[:d, d:])
    assert float(soft_matching(x, y)) == pytest.approx(expected, abs=1e-9)


def test_soft_matching_skips_dead_units():
    x = pair()[0]
    dead = x.clone()
    dead[:, 2] = 1
    assert float(soft_matching(x, dead)) == pytest.approx(5 / 6, abs=1e-2)
    assert soft_matching(x, dead).isfinite()


def by_formula_dcor(x, y):
    n, parts = len(x), []
    for z in (x, y):
        a = cdist(z, z)
        u = a - a.sum(0) / (n - 2) - a.sum(1)[:, None] / (n - 2) + a.sum() / ((n - 1) * (n - 2))
        np.fill_diagonal(u, 0)
        parts.append(u)
    (a, b), norm = parts, n * (n - 3)
    return (a * b).sum() / norm / math.sqrt((a * a).sum() / norm * (b * b).sum() / norm)


def test_distance_correlation_is_the_published_formula():
    x, y = pair()
    assert float(distance_correlation(x, y)) == pytest.approx(by_formula_dcor(x, y), abs=1e-10)


def by_formula_neighbours(x, y, k):
    """Jaccard and second-order cosine as ReSi and Hamilton et al. state them, row by row."""
    likeness = [1 - cdist(z, z, "cosine") for z in (x, y)]
    overlaps, cosines = [], []
    for i in range(len(x)):
        near = [set(np.argsort(-np.where(np.arange(len(x)) == i, -9, s[i]), kind="stable")[:k]) for s in likeness]
        union = sorted(near[0] | near[1])
        overlaps.append(len(near[0] & near[1]) / len(union))
        cosines.append(1 - cosine(likeness[0][i, union], likeness[1][i, union]))
    return np.mean(overlaps), np.mean(cosines)


@pytest.mark.parametrize("k", [1, 5, N - 2])
def test_sets_of_neighbours_are_compared_as_published(k):
    x, y = pair()
    expected = by_formula_neighbours(x, y, k)
    assert float(jaccard(x, y, k)) == pytest.approx(expected[0], abs=1e-12)
    assert float(second_order_cosine(x, y, k)) == pytest.approx(expected[1], abs=1e-10)


def test_jensen_shannon_is_that_of_scipy(monkeypatch):
    x, y = (3 * torch.randn(N, 11, dtype=torch.float64) for _ in range(2))
    x[0, :3] = -torch.inf
    expected = np.mean([jensenshannon(p, q) ** 2 for p, q in zip(x.softmax(1), y.softmax(1), strict=True)])
    assert float(jensen_shannon(x, y)) == pytest.approx(expected, abs=1e-12)
    monkeypatch.setattr("thinkalike.measures.outputs.AT_ONCE", 50)
    assert float(jensen_shannon(x, y)) == pytest.approx(expected, abs=1e-12), "some rows at a time"
    near = x[1:].float(), x[1:].float() + torch.randn(N - 1, 11) / 1000 + 5
    expected = [jensenshannon(*pq) ** 2 for pq in zip(*(each.double().softmax(1) for each in near), strict=True)]
    assert float(jensen_shannon(*near)) == pytest.approx(np.mean(expected), abs=2e-8), "in float32"


def test_exclusive_outputs_are_ln_2_apart_and_disagree():
    x = torch.full((4, 4), -torch.inf).fill_diagonal_(0)
    assert float(jensen_shannon(x, x.flip(0))) == pytest.approx(math.log(2))
    assert float(disagreement(x, x.flip(0))) == 1
    assert float(disagreement(x, torch.cat([x[:3], x[:1]]))) == 0.25


@pytest.mark.parametrize("k", [1, 5, 20])
def test_mknn_is_its_definition_with_scikit_learns_neighbours(k):
    x = torch.randn(N, 8, dtype=torch.float64)
    y = x[:, :5] + 0.5 * torch.randn(N, 5, dtype=torch.float64)
    value = float(mutual_knn(x, y, k))
    assert value == pytest.approx(by_sklearn(x, y, torch.zeros(N), k)[0], abs=1e-12)
    assert k / (N - 1) < value < 1, "control: neither chance nor sameness"


@pytest.mark.parametrize("measure", [MutualKNN, Jaccard, SecondOrderCosine])
def test_autocast_changes_nothing(measure):
    x = torch.randn(200, 64)
    y = x + torch.randn(200, 64) + 8
    plain = measure().of(x + 3, y), mutual_knn(x + 3, y)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        cast = measure().of(x + 3, y), mutual_knn(x + 3, y)
    assert plain == cast


def test_rows_in_nearly_one_direction_keep_their_neighbours():
    """Their cosines are 1 up to the last digits of float32."""
    base = torch.randn(N, 8)
    X, Y = base @ torch.randn(8, 32) + 1e5, base @ torch.randn(8, 32)
    for measure in (mutual_knn, SecondOrderCosine().of):
        assert float(measure(X, Y)) == pytest.approx(float(measure(X.double(), Y.double())), abs=1e-4)
    with pytest.raises(ValueError, match="Y: all rows"):
        mutual_knn(X, torch.ones(N, 32) * torch.rand(N, 1))


def neighbours_by_numpy(signs, k):
    """The k nearest rows of each; of equally near ones those of the smallest splitmix64 code of their number."""
    products = signs @ signs.T
    np.fill_diagonal(products, -np.inf)
    codes = np.arange(len(signs), dtype=np.uint64) + np.uint64(0x9E3779B97F4A7C15 & 2**63 - 1)
    codes = (codes ^ codes >> np.uint64(30)) * np.uint64(0xBF58476D1CE4E5B9)
    codes = (codes ^ codes >> np.uint64(27)) * np.uint64(0x94D049BB133111EB)
    codes = (codes ^ codes >> np.uint64(31)).astype(np.int64)
    return [set(np.lexsort([codes, -of_row])[:k]) for of_row in products]


@pytest.mark.parametrize("k", [10, 30, 100])
def test_equally_near_rows_are_those_that_another_program_takes(k):
    """Rows of four signs have five cosines, which are exact."""
    X, Y = (torch.randint(2, (400, 4)).double() * 2 - 1 for _ in range(2))
    both = zip(neighbours_by_numpy(X.numpy(), k), neighbours_by_numpy(Y.numpy(), k), strict=True)
    expected = np.mean([len(x & y) / k for x, y in both])
    assert float(mutual_knn(X, Y, k)) == pytest.approx(expected, abs=1e-12)
    assert expected < 0.6, "control: unrelated rows"


OF_NEIGHBOURS = [MutualKNN(5), MutualKNN(5, RowGroups.of(torch.arange(N) % 3, 7)), Jaccard(5), SecondOrderCosine(5)]


@pytest.mark.parametrize("measure", OF_NEIGHBOURS, ids=["mutual", "given the token", "jaccard", "second order cosine"])
def test_permuted_rows_break_ties_as_rows_that_were_never_permuted(measure):
    """Otherwise independent categories have more neighbours in common than any permutation of them."""
    x, y = (torch.eye(4, dtype=torch.float64)[torch.randint(4, (N,))] for _ in range(2))
    x[: N // 2] += torch.randn(N // 2, 4)  # control: rows without ties
    groups = getattr(measure, "groups", None) or RowGroups.whole(N, x.device)
    order = permuted_within(torch.arange(N), groups, seed=0)
    permuted = y.index_copy(0, groups.order, y[groups.order[order]])
    first, second = measure.prepared([x, y], "xy")
    moved = measure.reordered(second, order)
    _, expected = measure.prepared([x, permuted], "xy")
    assert float(measure.compare(first, moved)) == pytest.approx(float(measure.compare(first, expected)), abs=1e-12)
    assert float(measure.compare(first, moved)) != pytest.approx(float(measure.compare(first, second)), abs=1e-3)


@pytest.mark.ci_slow
def test_independent_categories_are_as_alike_as_chance_says():
    """One-hot rows have more ties than neighbours; with ties at random the value would be k / (n - 1)."""
    more_alike = []
    for _ in range(20):
        x, y = (np.eye(4)[torch.randint(4, (80,)).numpy()] for _ in range(2))
        row = thinkalike.compare(x, y, measure="mutual_knn", null=True, permutations=19).table.iloc[0]
        more_alike.append(row["value"] - row["null_mean"])
    assert abs(np.mean(more_alike)) < 0.01
    assert row["null_mean"] > 1.5 * 10 / 79, "control: ties give more than without them"


def test_unrelated_codes_of_the_token_both_put_its_copies_next_to_each_other():
    tokens = torch.arange(400) % 20
    X, Y = (torch.randn(20, 8, dtype=torch.float64)[tokens] for _ in range(2))
    rotation = torch.linalg.qr(torch.randn(8, 8, dtype=torch.float64)).Q
    assert float(mutual_knn(X, Y)) == pytest.approx(1, abs=0.02), "cosines of copies differ by rounding"
    assert float(mutual_knn(X, X @ rotation)) == pytest.approx(1, abs=0.02)
    assert float(mutual_knn(X, Y[torch.randperm(400)])) < 0.15, "control: codes of other tokens"
    assert float(mutual_knn(X, X.clone())) == 1


@pytest.mark.parametrize("rows", [4, 12])  # of a document; eight documents leave two parts empty
@pytest.mark.parametrize("measure", [JensenShannon(), Disagreement(), DistanceCorrelation(), TokenRSA()])
def test_values_without_parts_are_those_compared_again(measure, rows, monkeypatch):
    generator = torch.Generator().manual_seed(0)
    x, y = (torch.randn(90, 40, generator=generator, dtype=torch.float64) for _ in range(2))
    x[:3], y[:9:4] = x[5], y[5]  # copies, whose distances tie
    documents = torch.arange(90).flip(0) // rows
    at_once, again = (LayerMeans(1, 1, measure) for _ in range(2))
    at_once.update([x], [x + y], documents=documents)
    monkeypatch.setattr(type(measure), "leaves_out_parts", False)
    again.update([x], [x + y], documents=documents)
    found, expected = at_once.compute(), again.compute()
    for name in ("value", "low", "high"):
        torch.testing.assert_close(getattr(found, name), getattr(expected, name), rtol=1e-12, atol=1e-12)
    assert found.low < found.value < found.high
