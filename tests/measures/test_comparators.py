"""Comparators of distances, crossnobis and correlation distances against their definitions and rsatoolbox."""

import itertools

import numpy as np
import pytest
import torch
from scipy.spatial.distance import pdist, squareform

from measure_tester import THEIRS, every
from thinkalike.measures import (
    NOISES,
    compare,
    crossnobis,
    distance_vectors,
    mantel,
    noise_covariance,
    permuted_rows,
    rsa,
)
from thinkalike.measures.distances.comparators import pair_counts

N = 12
P = N * (N - 1) // 2


def drawn(ties=False):
    """Three vectors of distances that share something with four others; some are negative."""
    shared = torch.randn(P, dtype=torch.float64)
    x, y = (shared + torch.randn(k, P, dtype=torch.float64) + 0.5 for k in (3, 4))
    return (x.round(), y.round(decimals=1)) if ties else (x, y)


def covariance(n):
    """V, the covariance of squared distances, written out."""
    rows, columns = np.triu_indices(n, 1)
    contrasts = np.eye(n)[rows] - np.eye(n)[columns]
    return (contrasts @ contrasts.T) ** 2


def by_definition(x, y, comparator):
    """One value, slowly."""
    x, y = np.asarray(x), np.asarray(y)
    if comparator == "tau_a":
        signs = (np.sign(each[:, None] - each)[np.triu_indices(len(each), 1)] for each in (x, y))
        return np.mean(np.prod([*signs], 0))
    if comparator == "spearman":
        x, y = (np.array([(v < e).sum() + (v == e).sum() / 2 for e in v]) for v in (x, y))
    if comparator in ("spearman", "corr", "corr_cov"):
        x, y = x - x.mean(), y - y.mean()
    inverse = np.linalg.inv(covariance(N)) if comparator.endswith("_cov") else np.eye(len(x))
    return x @ inverse @ y / np.sqrt((x @ inverse @ x) * (y @ inverse @ y))


@pytest.mark.parametrize("ties", [False, True])
@every
def test_a_comparator_is_its_definition(comparator, ties, device):
    x, y = drawn(ties)
    found = compare(x.to(device), y.to(device), comparator).cpu()
    expected = [[by_definition(a, b, comparator) for b in y] for a in x]
    np.testing.assert_allclose(found, expected, atol=1e-10)


def resample():
    counts = torch.randint(N, (2, N)).sort(1).values
    return counts, torch.nn.functional.one_hot(counts, N).sum(1).double()


@every
def test_counts_are_copies_whose_own_pairs_are_left_out(comparator, toolbox):
    x, y = drawn(ties=True)
    indices, counts = resample()
    found = compare(x, y, comparator, counts)
    for index, values in zip(indices.numpy(), found, strict=True):
        copied = [toolbox.rdm.RDMs(each.numpy()).subsample_pattern("index", index) for each in (x, y)]
        np.testing.assert_allclose(values, toolbox.rdm.compare(*copied, THEIRS[comparator]), atol=1e-8)


@pytest.mark.parametrize("comparator", ["spearman", "tau_a", "corr", "cosine"])
def test_counts_are_copies_without_the_package(comparator):
    x, y = drawn(ties=True)
    _, counts = resample()
    times = pair_counts(counts[0]).long()
    expected = [
        [by_definition(a.repeat_interleave(times), b.repeat_interleave(times), comparator) for b in y] for a in x
    ]
    np.testing.assert_allclose(compare(x, y, comparator, counts)[0], expected, atol=1e-10)


def test_a_resample_without_anything_to_compare_is_nan():
    x = torch.zeros(1, 6)
    x[0, 0] = 1  # stimuli 0 and 1
    assert compare(x, x, "corr", torch.tensor([[0.0, 0, 2, 2]])).isnan().all()


def layers_of(count=3, n=N):
    shared = torch.randn(n, 5, dtype=torch.float64)
    return [shared + torch.randn(n, 5, dtype=torch.float64) for _ in range(count)]


@every
def test_rsa_compares_squared_distances_by_any_comparator(comparator):
    layers = layers_of()
    vectors = torch.stack([torch.from_numpy(pdist(layer.numpy(), "sqeuclidean")) for layer in layers])
    torch.testing.assert_close(rsa(layers, comparator=comparator), compare(vectors, vectors, comparator))
    torch.testing.assert_close(
        rsa(layers[:1], layers[1:], "euclidean", comparator), rsa(layers, comparator=comparator)[:1, 1:]
    )
    torch.testing.assert_close(distance_vectors(layers), vectors)


@every
def test_mantel_permutes_stimuli_under_any_comparator(comparator):
    layers = layers_of(2, 6)
    found, p, _ = mantel(layers, permutations=9, seed=5, comparator=comparator)
    reached = torch.ones(2, 2)
    for number in range(9):
        order = permuted_rows(torch.arange(6), 5 * 9 + number)
        reached += rsa(layers, [x[order] for x in layers], comparator=comparator) >= found - 1e-12
    assert (p - reached.double() / 10).abs().max() < 0.11, "ties of symmetric pairs may round either way"
    torch.testing.assert_close(found, rsa(layers, comparator=comparator))


def runs_of(m=4, n=N, d=5, seed=0):
    """Measurements of stimuli in runs, with noise that is correlated between units."""
    draw = np.random.default_rng(seed)
    mixing = draw.normal(size=(d, d))
    return torch.from_numpy(draw.normal(size=(n, d)) + draw.normal(size=(m, n, d)) @ mixing + 50)


@pytest.mark.parametrize("noise", NOISES)
def test_crossnobis_is_rsatoolboxs(noise, toolbox):
    runs = runs_of()
    m, n, d = runs.shape
    descriptors = {"stimulus": np.tile(np.arange(n), m), "run": np.repeat(np.arange(m), n)}
    data = toolbox.data.Dataset(runs.reshape(m * n, d).numpy(), obs_descriptors=descriptors)
    precision = None
    if noise != "none":
        residuals = (runs - runs.mean(0)).reshape(m * n, d).numpy()
        method = {"shrinkage": "shrinkage_diag", "diagonal": "diag"}[noise]
        precision = toolbox.data.noise.prec_from_residuals(residuals, dof=n * (m - 1), method=method)
    theirs = toolbox.rdm.calc_rdm(data, "crossnobis", descriptor="stimulus", noise=precision, cv_descriptor="run")
    np.testing.assert_allclose(squareform(crossnobis(runs, noise), checks=False), theirs.dissimilarities[0], atol=1e-8)


def test_crossnobis_is_its_definition():
    runs = runs_of()
    m, n, d = runs.shape
    residuals = (runs - runs.mean(0)).reshape(-1, d)
    precision = noise_covariance(residuals, n * (m - 1)).inverse()
    expected = torch.zeros(n, n, dtype=torch.float64)
    for i, j in itertools.product(range(n), repeat=2):
        for a, b in itertools.permutations(range(m), 2):
            expected[i, j] += (runs[a, i] - runs[a, j]) @ precision @ (runs[b, i] - runs[b, j]) / (m * (m - 1) * d)
    torch.testing.assert_close(crossnobis(runs), expected)


def test_shrinkage_inverts_many_units_and_fades_with_residuals():
    wide = torch.randn(30, 200, dtype=torch.float64)
    assert torch.linalg.eigvalsh(noise_covariance(wide, 29)).min() > 0
    mixing = torch.randn(4, 4, dtype=torch.float64)
    long = torch.randn(50_000, 4, dtype=torch.float64) @ mixing
    long -= long.mean(0)
    torch.testing.assert_close(noise_covariance(long, 49_999), long.T.cov(), rtol=1e-2, atol=1e-2)
    assert torch.equal(noise_covariance(long[:, :1], 49_999), long[:, :1].T @ long[:, :1] / 49_999), "one unit"


def singular():
    signs = torch.tensor([1.0, -1])[:, None, None].double()
    return torch.randn(40, 3, dtype=torch.float64) + signs * torch.tensor([1.0, 2, 4])


REFUSED = {
    "vectors of no stimuli": lambda: compare(torch.rand(2, 7), torch.rand(2, 7), "corr"),
    "a constant": lambda: compare(torch.ones(2, 6), torch.rand(2, 6), "corr"),
    "a constant of ranks": lambda: compare(torch.ones(2, 6), torch.rand(2, 6), "tau_a"),
    "zeros": lambda: compare(torch.zeros(2, 6), torch.rand(2, 6), "cosine_cov"),
    "NaN": lambda: compare(torch.tensor([[1.0, 2, torch.nan]]), torch.rand(2, 3), "cosine"),
    "a unit without noise": lambda: crossnobis(runs_of() * torch.tensor([1.0, 1, 0, 1, 1]), "diagonal"),
    "noise without an inverse": lambda: crossnobis(singular()),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_compared_is_refused(case):
    with pytest.raises((ValueError, torch.linalg.LinAlgError)):
        REFUSED[case]()
