"""Recordings in measures of layer pairs: model against array, array against array, with known answers."""

import json

import numpy as np
import pandas as pd
import pytest
import torch
from safetensors.torch import save_file

import thinkalike
from thinkalike.errors import DataError
from thinkalike.measures import LayerMeasure, hsic1
from thinkalike.measures.folds import stimulus_folds

SENTENCES, WORDS = 60, 4
COUNT = SENTENCES * WORDS
MEASURE = "cka"


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    """Words of sentences, with ids of their own that are in no order."""
    rows, letters = [], "abcdefgh"
    for sentence in range(SENTENCES):
        words = [letters[sentence % 8] * 2 + letters[sentence // 8] + letters[place] for place in range(WORDS)]
        rows += [f"w{sentence}-{place},{' '.join(words)},{word},{place}" for place, word in enumerate(words)]
    path = tmp_path_factory.mktemp("table") / "words.csv"
    path.write_text("\n".join(["id,text,word,place", *rows]) + "\n")
    return path


def write(path, layers, ids, order=None):
    """Write layers of states with their ids, with rows in another order if one is given."""
    order = range(len(ids)) if order is None else order
    path.parent.mkdir(exist_ok=True)
    np.savez(path, **{name: np.asarray(layer)[list(order)] for name, layer in layers.items()}, ids=np.array(ids)[order])
    return path


def rotated(layers):
    """Layers under an orthogonal map each, scaled, in float64."""
    turns = [torch.linalg.qr(torch.randn(layer.shape[1], layer.shape[1]).double()).Q for layer in layers]
    return {str(number): 3 * layer.double() @ turns[number] for number, layer in enumerate(layers)}


def across(result, source, target, column="value"):
    table = result.details[(result.details["source"] == source) & (result.details["target"] == target)]
    return table[column].to_numpy().reshape(table["source_layer"].nunique(), -1)


@pytest.mark.ci_slow
def test_a_rotated_copy_is_the_model_and_permuted_rows_are_not(measured, states, stimuli, checkpoints, tmp_path):
    copy = write(tmp_path / "copy.npz", rotated(states), stimuli.ids, torch.randperm(COUNT).tolist())
    target = ["model@target=local", f"target.path={checkpoints['gpt2']}"]
    done = measured(f"activations={copy}", *target)
    result = done.result
    assert list(dict.fromkeys(result.details["source"])) == ["copy", "gpt2"]
    cells = across(result, "copy", "gpt2")
    assert cells.shape == (4, 4)
    np.testing.assert_allclose(cells.diagonal(), 1, atol=1e-5)
    np.testing.assert_allclose(cells, across(result, "gpt2", "gpt2"), atol=1e-5)
    assert "CKA of copy (rows) and gpt2 (columns)" in done.stdout
    assert f"{COUNT} stimuli" in done.stdout
    wrong = write(tmp_path / "wrong.npz", rotated(states), np.array(stimuli.ids)[torch.randperm(COUNT)])
    cells, low, high = (
        across(measured(f"activations={wrong}", *target).result, "wrong", "gpt2", column)
        for column in ("value", "low", "high")
    )
    assert np.abs(cells).max() < 0.05
    assert ((low < 0) & (high > 0)).mean() > 0.5


@pytest.mark.ci_slow
def test_the_order_of_the_rows_of_a_file_changes_no_bit(measured, stimuli, tmp_path):
    layers, tables = {"a": torch.randn(COUNT, 5).double(), "b": torch.randn(COUNT, 3).double()}, []
    for folder, rows in (("a", None), ("b", torch.randperm(COUNT).tolist())):
        copy = write(tmp_path / folder / "copy.npz", layers, stimuli.ids, rows)
        result = measured(f"activations={copy}", store=folder).result
        tables.append((result.folder / "table.csv").read_bytes())
    assert tables[0] == tables[1]


@pytest.fixture
def two(stimuli, tmp_path):
    """Two recordings that share something, with rows in different orders, and their layers."""
    chance = np.random.default_rng(0)
    shared = chance.normal(size=(COUNT, 6))
    first = {"V2": shared, "V10": chance.normal(size=(COUNT, 5))}
    second = {"IT": shared @ chance.normal(size=(6, 9)) + chance.normal(size=(COUNT, 9))}
    files = [
        write(tmp_path / "one.npz", first, stimuli.ids),
        write(tmp_path / "two.npz", second, stimuli.ids, chance.permutation(COUNT)),
    ]
    return first, second, f"activations=[{files[0]},{files[1]}]"


def cka_by_hand(first, second, parts):
    """CKA of every two layers, with HSICs that are means over parts of the rows."""

    def hsic(X, Y):
        centred = ([torch.from_numpy(Z[part] - Z[part].mean(0)) for Z in (X, Y)] for part in parts)
        return np.mean([hsic1(K @ K.T, L @ L.T) for K, L in centred])

    return [[hsic(X, Y) / np.sqrt(hsic(X, X) * hsic(Y, Y)) for Y in second.values()] for X in first.values()]


@pytest.mark.ci_slow
@pytest.mark.drawn
def test_two_recordings_have_the_cka_computed_by_hand(measured, two, stimuli):
    first, second, activations = two
    result = measured(activations).result
    assert result.scalars["batches"] == 1
    np.testing.assert_allclose(
        across(result, "one", "two", "uncorrected"), cka_by_hand(first, second, [slice(None)]), atol=1e-10
    )
    assert list(result.details["source_layer"][:2]) == ["V2", "V10"]
    assert result.provenance["data"] == {"rows": COUNT, "batches": 1}
    assert result.provenance["stimuli"]["count"] == COUNT
    assert [model["name"] for model in result.provenance["models"]] == ["one.npz", "two.npz"]
    assert all(len(model["fingerprint"].split()[-1]) == 16 for model in result.provenance["models"])
    assert [path.name for path in result.figures] == ["cka.png", "cka.svg"]
    assert (result.config["model"], result.config["target"], result.config["data"]) == (None, None, None)
    assert result.config["stimuli"]["kind"] == "table"
    folds = stimulus_folds(COUNT, 10, groups=torch.from_numpy(stimuli.sentence)).numpy()
    without = np.array([cka_by_hand(first, second, [folds != part]) for part in range(10)])
    spread = np.sqrt(9 / 10 * ((without - without.mean(0)) ** 2).sum(0))
    half = (across(result, "one", "two", "high") - across(result, "one", "two", "low")) / 2
    np.testing.assert_allclose(half, 2.262157 * spread, rtol=0.05)


def test_many_stimuli_are_drawn_one_by_one_into_batches(measured, two):
    first, second, activations = two
    result = measured(activations, "measure.tokens_per_batch=16").result
    assert result.scalars["batches"] == 15
    drawn = torch.randperm(COUNT, generator=torch.Generator().manual_seed(0)).numpy()
    expected = cka_by_hand(first, second, np.array_split(drawn, 15))
    np.testing.assert_allclose(across(result, "one", "two", "uncorrected"), expected, atol=1e-10)


@pytest.mark.ci_slow
def test_a_lone_recording_is_compared_with_itself(measured, stimuli, tmp_path):
    layers = {name: np.random.default_rng(width).normal(size=(COUNT, width)) for name, width in (("a", 5), ("b", 3))}
    path = write(tmp_path / "x.npz", layers, stimuli.ids)
    first = measured(f"activations={path}", measure="mutual_knn").result
    assert len(first.details) == 4
    assert (across(first, "x", "x").diagonal() == 1).all()
    assert "already done" in measured(f"activations=[{path},{path}]", measure="mutual_knn").stderr
    save_file({name: torch.tensor(layer) for name, layer in layers.items()}, tmp_path / "x.safetensors",
              {"ids": json.dumps(stimuli.ids)})  # fmt: skip
    other = measured(f"activations={tmp_path}/x.safetensors", measure="mutual_knn").result
    assert other.key != first.key
    assert np.array_equal(other.arrays["value"], first.arrays["value"])
    layers["a"][0, 0] += 1
    write(path, layers, stimuli.ids)
    assert measured(f"activations={path}", measure="mutual_knn").result.key not in (first.key, other.key)


@pytest.mark.ci_slow
def test_the_model_that_is_the_default_can_be_the_other_side(measured, stimuli, tmp_path):
    path = write(tmp_path / "x.npz", {"a": np.random.default_rng(0).normal(size=(COUNT, 5))}, stimuli.ids)
    table = measured(f"activations={path}", "model@target=gelu-3l-mini").result.details
    assert list(dict.fromkeys(table["target"])) == ["gelu-3l-mini", "x"]
    assert list(table["target_layer"][:3]) == ["0", "1", "2"]


@pytest.mark.parametrize(("shape", "units"), [((40, 6), "stimuli"), ((20, 2, 6), "groups of stimuli")])
def test_intervals_are_over_stimuli_unless_several_belong_together(shape, units):
    states = np.random.default_rng(0).normal(size=shape)
    noise = np.random.default_rng(1).normal(size=shape)
    result = thinkalike.compare([states], [states + noise])
    assert result.details["low"].notna().all(), "control: there are intervals"
    assert result.summary.endswith(f"95 % intervals are over {units}.")


class RefusesZeroRows(LayerMeasure):
    """A user's own measure, which names a row in its own words."""

    def prepare(self, layer, name):
        for row, state in enumerate(layer):
            if not state.any():
                raise ValueError(f"row {row} of {name} is silent, unlike row 5000")
        return layer

    def compare(self, first, second):
        return (first.T @ second).norm()


REFUSALS = {
    "in one batch": ("mutual_knn", {}, "states: row '10' is zero and has no direction"),
    "in one of two": ("jaccard", {"tokens_per_batch": 30}, "states: row '10' is zero and has no direction"),
    "by a user's measure": (RefusesZeroRows(), {}, "row '10' of target layer states is silent, unlike row 5000"),
}


@pytest.mark.parametrize(("measure", "settings", "message"), REFUSALS.values(), ids=REFUSALS)
def test_an_error_names_the_row_of_the_array_and_not_of_the_batch(measure, settings, message):
    draw = np.random.default_rng(0)
    source, target = draw.normal(size=(60, 5)), draw.normal(size=(60, 4))
    target[10] = 0
    with pytest.raises(DataError, match=message):
        thinkalike.compare(source, target, measure=measure, **settings)


def test_an_error_names_the_stimulus_of_a_row():
    draw = np.random.default_rng(0)
    states = draw.normal(size=(60, 5))
    states[10] = 0
    words = {"text": [f"{row % 59} words" for row in range(60)], "id": [f"s{row}" for row in range(60)]}
    table = pd.DataFrame({**words, "length": draw.normal(size=60)})
    with pytest.raises(DataError, match=r"row '10 words' of .* is zero and has no cosine"):
        thinkalike.rsa([states, draw.normal(size=(60, 4))], stimuli=table, distance="cosine")
    states[10], states[59] = 1, 0
    with pytest.raises(DataError, match=r"row '0 words' \(id s59\) is zero and has no direction"):
        thinkalike.compare(states, draw.normal(size=(60, 4)), stimuli=table, measure="mutual_knn")
