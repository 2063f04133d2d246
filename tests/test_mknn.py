"""Mutual nearest neighbours against a plain count, planted likeness, and scikit-learn; and the job."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.neighbors import NearestNeighbors

from thinkalike.measures import mutual_knn
from thinkalike.measures.neighbours import jaccard_measure, mutual_measure, second_order_measure

N, K = 60, 5


def by_sklearn(x, y, k):
    """The definition, with neighbours from scikit-learn in float64."""
    sets = []
    for features in (x, y):
        found = NearestNeighbors(n_neighbors=k, metric="cosine", algorithm="brute").fit(features.numpy())
        sets.append([set(row) for row in found.kneighbors(return_distance=False)])
    return np.mean([len(a & b) / k for a, b in zip(*sets, strict=True)])


@pytest.mark.parametrize("k", [1, 5, 20])
def test_it_is_the_definition_with_the_neighbours_of_scikit_learn(k):
    x = torch.randn(N, 8, dtype=torch.float64)
    y = x[:, :5] + 0.5 * torch.randn(N, 5, dtype=torch.float64)
    value = float(mutual_knn(x, y, k))
    assert value == pytest.approx(by_sklearn(x, y, k), abs=1e-12)
    assert k / (N - 1) < value < 1, "control: neither chance nor sameness"


def test_planted_neighbours_are_counted():
    """Six pairs of twins on a circle: in Y half of the twins have changed places with a neighbour's."""
    angles = torch.arange(6).repeat_interleave(2) + torch.tensor([0.0, 0.01] * 6)
    circle = torch.stack([angles.cos(), angles.sin()], 1).double()
    moved = circle.clone()
    moved[[1, 3]] = circle[[3, 1]]
    assert float(mutual_knn(circle, moved, 1)) == pytest.approx(8 / 12)
    assert float(mutual_knn(circle, circle, 1)) == 1


def test_features_with_nothing_in_common_share_what_chance_gives():
    values = [float(mutual_knn(torch.randn(N, 8), torch.randn(N, 8), K)) for _ in range(200)]
    error = np.std(values) / np.sqrt(len(values))
    assert abs(np.mean(values) - K / (N - 1)) < 4 * error


def test_a_matrix_of_layers_is_that_of_its_pairs():
    layers = [torch.randn(N, width) for width in (4, 8, 3)]
    matrix = mutual_measure(K).matrix(layers, layers)
    for i, x in enumerate(layers):
        for j, y in enumerate(layers):
            assert float(matrix[i, j]) == pytest.approx(float(mutual_knn(x, y, K)), abs=1e-12)


@pytest.mark.parametrize(
    ("x", "y", "k", "message"),
    [
        (torch.randn(8, 3), torch.randn(8, 3), 7, "8 rows are too few to compare: give at least 9"),
        (torch.randn(8, 3), torch.randn(7, 3), 2, "X has 8 and Y has 7"),
        (torch.randn(8, 3), torch.full((8, 3), torch.nan), 2, "Y: a value is not finite"),
        (torch.randn(8, 3).index_fill(0, torch.tensor(4), 0), torch.randn(8, 3), 2, "X: row 4 is zero"),
        (torch.randn(8, 3), torch.ones(8, 3), 2, "Y: all rows"),
    ],
)
def test_what_has_no_neighbours_is_refused(x, y, k, message):
    with pytest.raises(ValueError, match=message):
        mutual_knn(x, y, k)


@pytest.mark.parametrize("measure", [mutual_measure, jaccard_measure, second_order_measure])
def test_autocast_changes_nothing(measure):
    x = torch.randn(200, 64)
    y = x + torch.randn(200, 64) + 8
    plain = measure().of(x + 3, y), mutual_knn(x + 3, y)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        cast = measure().of(x + 3, y), mutual_knn(x + 3, y)
    assert plain == cast


@pytest.fixture
def words(minis, text_files, tmp_path):
    """The command line of a small job of two models."""
    data = ["data=text", f"data.files=[{text_files}/*.txt]", "data.report_share=0.4"]
    size = ["measure.batches=4", "measure.tokens_per_batch=256", "measure.neighbours=5", "model.context=32"]
    source = ["model=local", f"model.path={minis}/a", "model.family=native", "model.mini=true"]
    target = [word.replace("model", "target", 1).replace("/a", "/wide") for word in source[1:]]
    models = [*source, "model@target=local", *target, "target.context=32"]
    return ["measure=mutual_knn", *models, *data, *size, f"store={tmp_path}/results", f"data.cache={tmp_path}/cache"]


def test_the_job_leaves_every_layer_pair_with_its_interval(door, words):
    done = door("analyze.py", *words)
    table = done.result.table
    assert len(table) == 3 * 16
    assert (done.result.kind, done.result.scalars["batches"]) == ("mutual_knn", 4)
    assert ((table["low"] <= table["value"]) & (table["value"] <= table["high"])).all()
    within = table[(table["source"] == table["target"]) & (table["source_layer"] == table["target_layer"])]
    assert (within["value"] == 1).all()
    assert done.result.arrays["value"].shape == (4, 4)
    assert {path.suffix for path in done.result.figures} == {".png", ".svg"}
    assert "mutual nearest neighbours of" in done.stdout
    assert "already done" in door("analyze.py", *words).stderr


def test_too_many_neighbours_are_one_line(door, words):
    assert "measure.neighbours=255" in door("analyze.py", *words, "measure.neighbours=255").error
