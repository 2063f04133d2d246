"""measure=cka|mutual_knn measure.given=token: what the door leaves, words and tokens, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import tiny
from conftest import composed
from thinkalike.config import ModelConfig
from thinkalike.config.schema import relevant
from thinkalike.measures import CKA, LayerMeans, LayerPredictions, LinearPrediction, RowGroups, mutual_measure
from thinkalike.models.load import load_model
from thinkalike.states.tokens import Pieces, word_forms


@pytest.fixture
def words(minis, text_files, tmp_path):
    """The command line of a small job of two models, without the measure."""
    data = ["data=text", f"data.files=[{text_files}/*.txt]", "data.report_share=0.5", f"data.cache={tmp_path}/cache"]
    rows = ["model.context=32", "target.context=32", "measure.batches=6", "measure.tokens_per_batch=512"]
    pair = [f"model.path={minis}/a", f"target.path={minis}/wide", "model.name=a", "target.name=wide"]
    return [*rows, *data, *pair, "measure.given=token", f"store={tmp_path}/results"]


def states_and_tokens(minis, tmp_path):
    """The batches of the job, from the cache of its tokens."""
    (cache,) = (tmp_path / "cache" / "tokens").iterdir()
    configs = [ModelConfig(name="x", family="native", mini=True, path=f"{minis}/{name}") for name in ("a", "wide")]
    models = [load_model(config) for config in configs]
    for part in load_file(cache)["report.tokens"].long().split(16):
        yield [[model.head(part, layer) for layer in range(4)] for model in models], part


@pytest.mark.drawn
@pytest.mark.parametrize("measure", ["cka", "mutual_knn"])
def test_a_job_leaves_the_measure_given_the_token(measure, door, words, minis, tmp_path):
    more = ["measure.null=true", "measure.permutations=1"] if measure == "cka" else ["measure.neighbours=3"]
    done = door("analyze.py", f"measure={measure}", *words, *more)
    result, table = done.result, done.result.table
    metric = (
        CKA(4, 4, given="token", permutations=1)
        if measure == "cka"
        else LayerMeans(4, 4, mutual_measure(3), given="token")
    )
    for number, (states, tokens) in enumerate(states_and_tokens(minis, tmp_path)):
        metric.update(*states, None, number, tokens)
    expected = metric.compute()
    across = table[(table["source"] == "a") & (table["target"] == "wide")]
    for column in ("value", "low", "high"):
        assert np.abs(across[column].to_numpy() - getattr(expected, column).flatten().numpy()).max() < 1e-5
    calibrated = expected.chance.calibrated if measure == "cka" else expected.calibrated
    assert np.abs(across["calibrated"].to_numpy() - calibrated.value.flatten().numpy()).max() < 1e-5
    assert result.scalars["rows_used"] == pytest.approx(expected.rows_used)
    assert (table["given"] == "token").all()
    assert "given the token of a and wide" in done.stdout
    assert "of the rows stood in large enough groups" in done.stdout
    svg = next(path for path in result.figures if path.suffix == ".svg").read_text()
    assert "given the token" in svg
    if measure == "mutual_knn":
        assert result.scalars["chance"] == pytest.approx(expected.by_chance)


def test_a_default_stays_out_of_the_key():
    assert "given" not in relevant(composed("measure=cka", "measure.given=none", door="analyze").measure)
    assert relevant(composed("measure=cka", "measure.given=token", door="analyze").measure)["given"] == "token"


@pytest.mark.slow
def test_models_of_different_tokenizers_are_compared_given_the_form_of_the_word(door, words, checkpoints, tmp_path):
    folder = tmp_path / "gpt2"
    folder.mkdir()
    for path in checkpoints["gpt2"].iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    tiny.tokenizer(290).save_pretrained(folder)
    other = ["target.name=local", "target.mini=false", "target.family=auto", f"target.path={folder}"]
    kept = [word for word in words if not word.startswith("target.")]
    done = door("analyze.py", "measure=cka", *kept, *other, "measure.batches=2")
    assert "compared word by word" in done.stderr
    assert 0 < done.result.scalars["rows_used"] < 0.5
    assert "of the words stand in groups of one that are large enough" in done.stderr
    assert "raise measure.tokens_per_batch" in done.stderr


def test_equal_words_have_equal_numbers():
    batch = Pieces(["a bc a", "bc  d"], [[(0, 1), (2, 4), (5, 6)], [(0, 2), (4, 5)]])
    assert word_forms(batch).tolist() == [0, 1, 0, 1, 2]


# ----------------------------------------------------------------------------------------------------------------- R²


@pytest.mark.parametrize("given", ["token", pytest.param("none", marks=pytest.mark.slow)])
def test_a_job_leaves_r2_both_ways(given, door, words, minis, tmp_path):
    own = [word for word in words if "given" not in word]
    more = [f"measure.given={given}", "measure.fit_batches=4", "measure.batches=2"]
    done = door("analyze.py", "measure=r2", *own, *more)
    result, table = done.result, done.result.table
    sides = [[], []]
    for states, tokens in states_and_tokens(minis, tmp_path):
        rows = [[layer.flatten(0, 1) for layer in side] for side in states]
        if given == "token":
            groups = RowGroups.of(tokens.flatten(), 4)
            rows = [[groups.without_means(layer) for layer in side] for side in rows]
        sides[len(sides[0]) >= 4].append(rows)
    pairs = [(i, j) for i in range(4) for j in range(4)]
    across, within = LinearPrediction(pairs), LinearPrediction(pairs)
    for rows in sides[0]:
        across.fit(*rows)
        within.fit(rows[0], rows[0])
    for rows in sides[1]:
        across.judge(*rows)
        within.judge(rows[0], rows[0])
    cells = table[(table["source"] == "a") & (table["target"] == "wide")]
    onward, back = across.compute()
    for column, expected in (
        ("value", onward.value),
        ("low", onward.low),
        ("back", back.value),
        ("back_high", back.high),
    ):
        assert np.abs(cells[column].to_numpy() - expected.numpy()).max() < 1e-6
    own_cells = table[(table["source"] == "a") & (table["target"] == "a")]
    assert np.abs(own_cells["value"].to_numpy() - within.compute()[0].value.numpy()).max() < 1e-6
    assert own_cells["back"].isna().all()
    assert ("rows_used" in result.scalars) == (given == "token")
    assert result.scalars["batches"] == 2
    assert "R² given the token of a" in done.stdout if given == "token" else "R² of a and wide" in done.stdout


@pytest.mark.slow
def test_r2_of_a_model_with_itself_is_one_on_the_diagonal(door, words, minis):
    table = door(
        "analyze.py", "measure=r2", *words, f"target.path={minis}/a", "target.name=a", "measure.fit_batches=4"
    ).result.table
    assert len(table) == 16
    assert (table[table["source_layer"] == table["target_layer"]]["value"] > 0.9999).all()


def test_predictions_go_on_from_a_state():
    batches = [([torch.randn(60, 5)], [torch.randn(60, 3), torch.randn(60, 4)]) for _ in range(6)]
    whole = LayerPredictions(1, 2, fit_batches=3)
    for number, batch in enumerate(batches):
        whole.update(*batch, None, number)
    for cut in (0, 2, 4):
        first, second = (LayerPredictions(1, 2, fit_batches=3) for _ in range(2))
        for number, batch in enumerate(batches[:cut]):
            first.update(*batch, None, number)
        second.load_state_dict(first.state_dict())
        for number, batch in enumerate(batches[cut:], cut):
            second.update(*batch, None, number)
        assert torch.equal(second.compute().value, whole.compute().value)
        assert torch.equal(second.compute().back.high, whole.compute().back.high)
