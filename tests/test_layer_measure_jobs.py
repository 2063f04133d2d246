"""Measures of layer pairs that are declared: the jobs, their nulls, what is refused, and one line for a new one."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from thinkalike.config import MEASURES, ModelConfig
from thinkalike.instruments import instrument
from thinkalike.instruments.layer_pairs.declared import DECLARED, OUTPUTS, Declared, declare
from thinkalike.measures import DISTANCE_CORRELATION, jensen_shannon, procrustes_distance
from thinkalike.models.load import load_model
from thinkalike.states.tokens import Pieces, pieces, word_documents


@pytest.fixture
def words(minis, text_files, tmp_path):
    """The command line of a small job of two models."""
    data = ["data=text", f"data.files=[{text_files}/*.txt]", "data.report_share=0.4"]
    size = ["measure.batches=5", "measure.tokens_per_batch=256", "model.context=32"]
    source = ["model=local", f"model.path={minis}/a", "model.family=native", "model.mini=true", "model.name=a"]
    target = [word.replace("model", "target", 1).replace("=a", "=b").replace("/a", "/b") for word in source[1:]]
    models = [*source, "model@target=local", *target, "target.context=32"]
    return [*models, *data, *size, f"store={tmp_path}/results", f"data.cache={tmp_path}/cache"]


def models(minis):
    configs = [ModelConfig(name=name, family="native", mini=True, path=f"{minis}/{name}") for name in "ab"]
    return [load_model(config) for config in configs]


def rows_of_text(tmp_path):
    """The report's rows of tokens, as the job read them, and the document of each token."""
    from safetensors.torch import load_file

    (cache,) = (tmp_path / "cache" / "tokens").iterdir()
    kept = load_file(cache)
    return kept["report.tokens"].long(), kept["report.documents"]


def test_a_job_leaves_the_measure_of_the_models_states_and_its_chance(door, words, minis, tmp_path):
    null = ["measure.null=true", "measure.permutations=4"]
    done = door("analyze.py", "measure=procrustes", *words, *null)
    table, scalars = done.result.table, done.result.scalars
    across = table[(table["source"] == "a") & (table["target"] == "b")]
    tokens, documents = rows_of_text(tmp_path)
    source, target = models(minis)
    batches = list(zip(tokens.split(8), documents.split(8), strict=True))
    states = [[[model.head(part, layer).flatten(0, 1) for layer in (0, 3)] for model in (source, target)]
              for part, _ in batches]  # fmt: skip
    for layer, place in ((0, 0), (3, 1)):
        expected = np.mean([float(procrustes_distance(first[place], second[place])) for first, second in states])
        cell = across[(across["source_layer"] == layer) & (across["target_layer"] == layer)].iloc[0]
        assert cell["value"] == pytest.approx(expected, abs=1e-6)
        assert cell["low"] <= cell["value"] <= cell["high"]
        assert 0.2 <= cell["p"] <= cell["p_of_largest"] <= 1
        assert cell["calibrated"] == pytest.approx((cell["value"] - cell["null"]) / (0 - cell["null"]), abs=1e-9)
    assert scalars["documents"] == min(len(owners.unique()) for _, owners in batches)
    assert table[table["source"] == table["target"]]["null"].isna().all(), "there is none within a model"
    assert "closest layers:" in done.stdout
    assert "different documents at least, which have few orders" in done.stderr
    plain = door("analyze.py", "measure=procrustes", *words).result.table
    assert (plain["value"] == table["value"]).all()
    assert "p" not in plain


def test_a_job_of_outputs_compares_logits(door, words, minis, tmp_path):
    done = door("analyze.py", "measure=jsd", *words, "measure.null=true", "measure.permutations=4")
    across = done.result.table.iloc[0]
    tokens, _ = rows_of_text(tmp_path)
    first, second = ([model.full(part).flatten(0, 1) for part in tokens.split(8)] for model in models(minis))
    expected = np.mean([float(jensen_shannon(x, y)) for x, y in zip(first, second, strict=True)])
    assert across["value"] == pytest.approx(expected, abs=1e-6)
    assert (across["source_layer"], across["target_layer"]) == ("logits", "logits")
    assert 0 < across["value"] < across["null"] < math.log(2)
    assert len(done.result.table) == 3


@pytest.mark.parametrize(
    ("measure", "setting"),
    [
        ("distance_correlation", "measure.given=token"),
        ("jaccard", "measure.neighbours=255"),
        ("jsd", "measure.level=word"),
        ("mutual_knn", "measure.given=token measure.null=true"),
    ],
)
def test_settings_that_a_measure_has_no_value_for_are_refused(measure, setting, door, words):
    assert setting.split()[-1] in door("analyze.py", *words, f"measure={measure}", *setting.split()).error


def test_stimuli_are_compared_and_their_sentences_permuted(door, tmp_path):
    n = 60
    texts = [f"a{sentence} b{sentence}" for sentence in range(n // 2)]
    rows = [f"{s}-{p},{text},{word},{p}" for s, text in enumerate(texts) for p, word in enumerate(text.split())]
    (tmp_path / "words.csv").write_text("\n".join(["id,text,word,place", *rows]))
    states = np.random.default_rng(0).normal(size=(n, 5))
    ids = np.array([row.split(",")[0] for row in rows])
    np.savez(tmp_path / "x.npz", l0=states, ids=ids)
    np.savez(tmp_path / "y.npz", l0=states @ np.linalg.qr(np.random.default_rng(1).normal(size=(5, 5)))[0], ids=ids)
    sides = [f"activations=[{tmp_path}/x.npz,{tmp_path}/y.npz]", "stimuli=table", f"stimuli.path={tmp_path}/words.csv"]
    null = ["measure.null=true", "measure.permutations=19", f"store={tmp_path}/results"]
    result = door("analyze.py", "measure=distance_correlation", *sides, *null).result
    across = result.table.iloc[0]
    assert across["value"] == pytest.approx(1, abs=1e-9)
    assert across["p"] == pytest.approx(1 / 20)
    assert result.scalars["documents"] == n // 2


def test_words_know_their_documents():
    assert word_documents(Pieces(["a b", "c"], [[(0, 1), (2, 3)], [(0, 1)]], [4, 7])).tolist() == [4, 4, 7]
    first, second = pieces(["a b c", "d e", "f", "g h i"], [], 4)
    assert (first.documents, second.documents) == ([0, 1], [2, 3])
    assert len(word_documents(first)) == first.count == 5


def test_every_declared_measure_has_its_place_and_its_properties():
    names = {kind for kind, module in MEASURES.items() if ":" in module}
    assert set(DECLARED) | set(OUTPUTS) == names
    for kind in names:
        assert instrument(MEASURES[kind]).kind == kind


def test_a_new_measure_is_one_declaration():
    new = {"mine": Declared("my measure", lambda measure: DISTANCE_CORRELATION)}
    (schema,) = declare(new, "somewhere").values()
    made = instrument_of("somewhere:mine")
    metric = made.metric(schema(null=True, permutations=3), 1, 1, False)
    metric.update([torch.randn(20, 3)], [torch.randn(20, 4)])
    assert set(made.columns(metric.compute())) >= {"null", "calibrated", "p", "p_of_largest"}
    assert (made.kind, made.name, schema().kind) == ("mine", "my measure", "mine")


def instrument_of(name):
    from thinkalike.job import Instrument

    return Instrument.known.pop(name)()
