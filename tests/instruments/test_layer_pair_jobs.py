"""Measures of all layer pairs as jobs: the numbers of the models' states, their options, nulls, states and warnings."""

import itertools
import math
import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from safetensors.torch import load_file, save_file

import thinkalike
import tiny
from conftest import ROOT, composed, kill_and_resume, with_slow
from thinkalike.config import ModelConfig
from thinkalike.errors import ConfigError, DataError, PluginError
from thinkalike.instruments import instrument
from thinkalike.instruments.cka import CKAConfig
from thinkalike.instruments.layer_pairs import screen
from thinkalike.instruments.layer_pairs.equal_depth import rows_at_equal_depth, rows_between_models
from thinkalike.job.lookup import instrument_of
from thinkalike.measures import (
    CKA,
    DistanceCorrelation,
    LayerMeans,
    LayerMeasure,
    MutualKNN,
    Procrustes,
    jensen_shannon,
    kernel_alignment,
)
from thinkalike.measures.contract import BAD_INPUT
from thinkalike.measures.folds import numbered_by_part
from thinkalike.models.load import load_model
from thinkalike.ranges import parameter
from thinkalike.registry import OF_STATES, KindEntry
from thinkalike.states.batches import ModelRuns
from thinkalike.states.pieces import Pieces, pieces_of_texts
from thinkalike.store import Result

ASSETS = ROOT / "src" / "thinkalike" / "assets"


@pytest.fixture
def words(text_files, tmp_path):
    """The command line of a small job, measure and models apart."""
    rows = ["model.context=32", "target.context=32", "measure.tokens_per_batch=256", "measure.batches=5"]
    data = [
        "data=text",
        f"data.files=[{text_files}/*.txt]",
        "data.evaluation_share=0.5",
        f"data.cache={tmp_path}/cache",
    ]
    return [*rows, *data, f"store={tmp_path}/results"]


@pytest.fixture
def pair(minis):
    return [f"model.path={minis}/a", f"target.path={minis}/wide", "model.name=a", "target.name=wide"]


def batches(minis, folder, count=40):
    """The models of the pair, and the states, tokens and documents of each batch of a job, from the text in its cache.

    It draws so many rows. Every 40 are a pool, whose 1280 tokens are drawn into 5 batches.
    """
    (cache,) = (folder / "cache" / "tokens").iterdir()
    rows = load_file(cache)
    chosen = (
        torch.randperm(len(rows["report.tokens"]), generator=torch.Generator().manual_seed(0))[:count].sort().values
    )
    owners = numbered_by_part(rows["report.documents"][chosen].flatten().long()).view(count, -1)
    configs = [ModelConfig(name="x", family="native", mini=True, path=f"{minis}/{name}") for name in ("a", "wide")]
    models, found = [load_model(config) for config in configs], []
    parts = zip(rows["report.tokens"][chosen].long().split(40), owners.split(40), strict=True)
    for place, (tokens, documents) in enumerate(parts):
        pool = [[model.head(tokens, layer).flatten(0, 1) for layer in range(4)] for model in models]
        order = torch.randperm(1280, generator=torch.Generator().manual_seed(5 * place))
        for own in (part.sort().values for part in order.split(256)):
            states = [[layer[own] for layer in layers] for layers in pool]
            found.append((states, tokens.flatten()[own], documents.flatten()[own]))
    return models, found


NULL = ["measure.null=true", "measure.permutations=4"]
METRICS = {  # the words of a measure, and what it computes from batches
    "cka": (["measure=cka"], lambda: CKA(4, 4)),
    "cka given": (["measure=cka", "measure.conditional_on=token"], lambda: CKA(4, 4, conditional_on="token")),
    "mutual_knn given": (
        ["measure=mutual_knn", "measure.conditional_on=token", "measure.neighbours=3"],
        lambda: LayerMeans(4, 4, MutualKNN(3), conditional_on="token"),
    ),
    "procrustes": (["measure=procrustes", *NULL], lambda: LayerMeans(4, 4, Procrustes(), 4)),
}


@pytest.mark.parametrize("name", with_slow(METRICS, "cka given", "mutual_knn given", "procrustes"))
def test_a_job_leaves_the_measure_of_the_states_of_both_models(name, cli, words, pair, minis, tmp_path):
    more, new = METRICS[name]
    done, metric = cli("analyze.py", *words, *pair, *more), new()
    for number, (states, tokens, owners) in enumerate(batches(minis, tmp_path)[1]):
        groups = {"groups": tokens} if "given" in name else {}
        metric.update(*states, number=number, documents=owners, **groups)
    result, expected = done.result, metric.compute()
    across = result.details[(result.details["source"] == "a") & (result.details["target"] == "wide")]
    assert len(result.details) == 3 * 16
    for column in ("value", "low", "high"):
        ends = getattr(expected, column).flatten()
        ends = ends.where(ends.isfinite(), math.nan)  # a table has nothing there
        np.testing.assert_allclose(across[column], ends, rtol=0, atol=1e-5)
    assert result.scalars["documents"] == expected.documents
    within = result.details[(result.details["source"] == "wide") & (result.details["target"] == "wide")]
    assert np.abs(within["value"].to_numpy() - expected.within_target.value.flatten().numpy()).max() < 1e-5
    assert [model["name"] for model in result.provenance["models"]] == ["a", "wide"]
    if name == "cka":
        assert result.scalars["distance"] == pytest.approx(float(expected.distance().value), abs=1e-5)
    if name == "procrustes":
        distance, chance = across["value"] - across["null_mean"], expected.chance
        assert (across["calibrated"] + distance / across["null_mean"]).abs().max() < 1e-9
        np.testing.assert_allclose(across["p"], chance.p.flatten(), atol=1e-12)
        assert result.details.iloc[16:]["null_mean"].isna().all(), "there is none within a model"
        assert ("closest layers are" in done.stdout) == bool(chance.p.isfinite().all())
        assert ("no intervals: effective sample size" in done.stderr) == bool(across["low"].isna().any())
    if "given" in name:
        assert result.scalars["rows_used"] == pytest.approx(expected.rows_used)
        assert (result.details["conditional_on"] == "token").all()
        assert "conditional on the token of a (rows) and wide (columns)" in done.stdout


@pytest.mark.ci_slow
def test_a_job_of_outputs_compares_logits(cli, words, pair, minis, tmp_path):
    done = cli("analyze.py", "measure=jsd", *words, *pair, *NULL)
    assert "(rows)" not in done.stdout, "there is one cell"
    table = done.result.details
    models, parts = batches(minis, tmp_path)
    logits = ([model.finish(own[-1]) for model, own in zip(models, states, strict=True)] for states, *_ in parts)
    across = table.iloc[0]
    assert across["value"] == pytest.approx(np.mean([float(jensen_shannon(*both)) for both in logits]), abs=1e-6)
    assert (across["source_layer"], across["target_layer"]) == ("logits", "logits")
    assert 0 < across["value"] < across["null_mean"] < math.log(2)
    assert len(table) == 3


@pytest.mark.ci_slow
@pytest.mark.parametrize(("both", "models"), [(("a", "a"), 1), (("a", "b"), 2)])
def test_a_model_with_itself_runs_once_per_batch(both, models, cli, words, minis, forwards, monkeypatch):
    layers, hsics = [], kernel_alignment.left_out_statistics

    def compared(rows, *rest):
        layers.append(len(rows))
        return hsics(rows, *rest)

    monkeypatch.setattr(kernel_alignment, "left_out_statistics", compared)
    paths = [f"model.path={minis}/{both[0]}", f"target.path={minis}/{both[1]}"]
    names = [f"model.name={both[0]}", f"target.name={both[1]}"]
    table = cli("analyze.py", "measure=cka", "measure.embed=true", *words, *paths, *names).result.details
    assert [shape for _, shape, _ in forwards].count((8, 32)) == 5 * models
    assert layers[-5:] == [(tiny.LAYERS + 1) * models] * 5, "those before are the speed of this machine"
    if models == 1:
        diagonal = table[table["source_layer"] == table["target_layer"]]
        assert sorted(diagonal["source_layer"]) == [-1, 0, 1, 2, 3]
        assert (diagonal["value"] - 1).abs().max() < 1e-6


@pytest.mark.ci_slow
def test_a_job_ends_with_the_text(cli, words, pair, text_files):
    files = ",".join(f"{text_files}/{first}*.txt" for first in range(3))
    more = ["measure=cka", "measure.tokens_per_batch=128", "measure.batches=100", f"data.files=[{files}]"]
    message = "of the 100 batches asked for: too little text is left for another"
    assert message in cli("analyze.py", *words, *pair, *more).stderr


@pytest.mark.ci_slow
@pytest.mark.parametrize("measure", ["cka", "distance"])
def test_the_screen_says_how_many_rows_were_compared(measure, cli, minis, tmp_path):
    """Of short text batches hold fewer words than are asked for."""
    (tmp_path / "t.jsonl").write_text("".join(f'{{"text": "{tiny.document(n, words=12)}"}}\n' for n in range(60)))
    models = [f"model.path={minis}/a", f"target.path={minis}/b", "model.name=a", "target.name=b"]
    data = [
        "data=text",
        f"data.files=[{tmp_path}/t.jsonl]",
        "data.evaluation_share=0.4",
        f"data.cache={tmp_path}/cache",
    ]
    more = ["measure.unit=word", "measure.batches=1", f"store={tmp_path}/results"]
    more += [] if measure == "distance" else ["measure.massive=keep"]  # which leaves nothing out
    done = cli("analyze.py", f"measure={measure}", *models, *data, *more)
    scalars = done.result.scalars
    assert scalars["rows"] <= 12 * scalars["documents"] < 1024
    assert scalars["rows"] == 12 * scalars["documents"], "control: it is all of them"
    assert screen.amount_compared_in_words(done.result).startswith(f"1 batch of {scalars['rows']:.0f} words, ")


@pytest.mark.ci_slow
def test_models_of_different_tokenizers_are_compared_by_words(cli, words, checkpoints, minis, tmp_path):
    other = tiny.recut(checkpoints["gpt2"], tmp_path / "gpt2", tiny.tokenizer(290))
    both = ["measure=cka", f"model.path={minis}/a", "target.name=local", "target.mini=false", "target.family=auto"]
    both.append(f"target.path={other}")
    done = cli("analyze.py", *words, *both)
    assert "have different tokenizers: compared word by word" in done.stderr
    assert done.result.details["value"].between(-1, 1 + 1e-6).all()
    given = cli("analyze.py", *words, *both, "measure.conditional_on=token", "measure.tokens_per_batch=512")
    assert 0 < given.result.scalars["rows_used"] < 0.5
    assert "of the words occur often enough in a batch to be compared" in given.stderr
    for setting in ("unit=token", "skip_first=1", "flatten=mean"):
        assert cli("analyze.py", *words, *both, f"measure.{setting}").status == 1


@pytest.mark.ci_slow
def test_a_layer_without_variance_is_named_with_its_model(cli, words, minis, tmp_path):
    flat = tiny.flat(tmp_path / "flat")
    models = [f"model.path={minis}/a", f"target.path={flat}", "target.name=flat"]
    refused = cli("analyze.py", "measure=cka", *words, *models)
    assert "flat (target): target layer 0: all rows are the same" in refused.error
    assert not (tmp_path / "results").exists()


@pytest.mark.ci_slow
def test_one_massive_token_is_warned_of(cli, words, tmp_path):
    massive = tiny.massive(tmp_path / "massive")
    itself = [*words, "measure=cka", f"model.path={massive}", f"target.path={massive}", "model.context=64"]
    itself += ["target.context=64"]
    done = cli("analyze.py", *itself, "measure.tokens_per_batch=32", "measure.batches=40")
    assert re.search(
        r"excluded .* with massive activations, whose norm is over 3 times the median .* layer: .* times", done.stderr
    )
    assert "carries" not in done.stderr
    kept = cli("analyze.py", *itself, "measure.tokens_per_batch=32", "measure.batches=40", "measure.massive=keep")
    assert "of gelu-3l-mini: in some batch one token carries" in kept.stderr
    assert kept.stderr.count("carries") == 1, "one line for all layers"
    assert "including_massive_activations" not in kept.result.details
    table, every = done.result.details, kept.result.arrays["hsics"][:4].mean(0)
    across = table["source"].eq(table["source"][0]) & table["target"].eq(table["target"][0])
    every = every[:4, :4] / np.sqrt(np.outer(np.diag(every)[:4], np.diag(every)[:4]))
    np.testing.assert_allclose(table["including_massive_activations"][across], every.flatten(), atol=1e-6)
    assert np.abs(every.flatten() - table["value"][across]).max() > 0.1
    distance = [word.replace("measure=cka", "measure=distance") for word in itself]
    beside_its_copy = cli("analyze.py", *distance, "measure.tokens_per_batch=32", "measure.batches=40")
    assert "massive activations" not in beside_its_copy.stderr
    assert "including_massive_activations" not in beside_its_copy.result.details


@pytest.mark.ci_slow
def test_a_killed_job_goes_on_to_the_same_values(cli, words, pair):
    long = ["measure=cka", "measure.batches=560", "measure.tokens_per_batch=32"]
    killed, whole = kill_and_resume(cli, "analyze.py", *words, *pair, *long, state="metrics")
    assert (killed.folder / "table.csv").read_bytes() == (whole.folder / "table.csv").read_bytes()


def test_stimuli_are_compared_and_their_sentences_permuted(cli, tmp_path):
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
    result = cli("analyze.py", "measure=distance_correlation", *sides, *null).result
    across = result.details.iloc[0]
    assert across["value"] == pytest.approx(1, abs=1e-9)
    assert across["p"] == pytest.approx(1 / 20)
    assert result.scalars["documents"] == n // 2


def test_words_know_their_documents_and_forms():
    assert Pieces(["a b", "c"], [[(0, 1), (2, 3)], [(0, 1)]], [4, 7]).owners.tolist() == [4, 4, 7]
    found = pieces_of_texts(["a b c", "d e", "f", "g h i"], [], 6)
    assert found.documents == [0, 1, 2]
    assert found.select(torch.tensor([2, 0])) == Pieces(["f", "a b c"], [[(0, 1)], [(0, 1), (2, 3), (4, 5)]], [2, 0])
    batch = Pieces(["a bc a", "bc  d"], [[(0, 1), (2, 4), (5, 6)], [(0, 2), (4, 5)]])
    assert batch.forms.tolist() == [0, 1, 0, 1, 2]


@dataclass(frozen=True)
class Mine(DistanceCorrelation):
    """A measure with a setting of its own."""

    power: float = parameter(1.0, above=0)


def test_a_new_measure_is_one_class():
    entry = KindEntry(__name__, "Mine", "mine", "my measure", OF_STATES)
    made = instrument(entry)
    settings = made.settings(null=True, permutations=3, power=2)
    assert made.layer_measure(settings) == Mine(2)
    with pytest.raises(ConfigError, match="power=-1"):
        made.settings(power=-1)
    metric = made.metric(settings, 1, 1)
    metric.update([torch.randn(20, 3)], [torch.randn(20, 4)])
    assert set(made.columns(metric.compute())) >= {"null_mean", "calibrated", "p", "p_corrected"}
    assert (made.kind, made.version, made.settings().kind) == ("mine", 13, "mine")


@dataclass(frozen=True)
class CosineOfMeans(LayerMeasure[torch.Tensor]):
    """The cosine of the mean rows, which pairs no rows and needs equal widths."""

    formula = "cosine of the mean rows"
    invariances = frozenset({"isotropic_scaling", "row_permutation", "row_permutation_of_one"})
    refuses = BAD_INPUT - {"constant"} | {"unequal_widths"}
    fewest = 1

    def prepare(self, layer, name):
        return layer.double()

    def compare(self, first, second):
        return torch.cosine_similarity(first.mean(0), second.mean(0), dim=0)


OF_MEANS = KindEntry(__name__, "CosineOfMeans", "of_means", "cosine of means", OF_STATES)
ROWS = torch.randn(4, 30, 6, generator=torch.Generator().manual_seed(0))
UNEQUAL = "only layers of equal width can be compared, but .* has width 6 and .* has width 5"


def test_unequal_widths_are_refused_where_a_measure_says_so():
    x, y = ROWS[0], ROWS[1, :, :5]
    metric = instrument(OF_MEANS).metric(instrument(OF_MEANS).settings(), 1, 1)
    metric.update([x], [ROWS[1]])
    refused = [
        lambda: CosineOfMeans().of(x, y),
        lambda: CosineOfMeans().matrix([x], [ROWS[1], y]),
        lambda: metric.update([x], [y]),
        lambda: thinkalike.compare([x], [y], measure=CosineOfMeans),
    ]
    for call in refused:
        with pytest.raises((ValueError, DataError), match=UNEQUAL):
            call()


def test_unequal_widths_are_refused_before_states_are_read(minis, monkeypatch):
    configs = [ModelConfig(name=name, family="native", mini=True, path=f"{minis}/{name}") for name in ("a", "wide")]
    models = [load_model(config) for config in configs]
    monkeypatch.setattr(ModelRuns, "once", lambda *_, **__: pytest.fail("states were read"))
    with pytest.raises(DataError, match="layer 0 of a has width 32 and layer 0 of wide has width 48"):
        thinkalike.compare(*models, measure=CosineOfMeans, texts="grammar", batches=1)
    with pytest.raises(pytest.fail.Exception, match="states were read"):
        thinkalike.compare(models[0], models[0], measure=CosineOfMeans, texts="grammar", batches=1)


def test_a_measure_that_pairs_no_rows_has_no_null():
    with pytest.raises(ConfigError, match=r"of_means.* has no null: omit null=True$"):
        instrument(OF_MEANS).settings(null=True)
    with pytest.raises(ValueError, match="CosineOfMeans does not depend on which rows"):
        LayerMeans(1, 1, CosineOfMeans(), permutations=3)
    for measure in (CosineOfMeans, CosineOfMeans()):
        with pytest.raises(ConfigError, match="has no null: omit null=True"):
            thinkalike.compare([ROWS[0]], [ROWS[1]], measure=measure, null=True)
    assert "null=True" not in screen_of(CosineOfMeans)
    assert "by chance (null=True)" in screen_of(Mine), "control"


def screen_of(measure):
    return " ".join(str(thinkalike.compare([*ROWS[:2]], [*ROWS[2:]], measure=measure)).split())


@pytest.mark.parametrize(
    ("options", "contrary"),
    [
        ({"kernel": "rbf"}, "kernel=.rbf.,"),
        ({"flatten": "mean"}, "flatten=.mean.,"),
        ({"flatten": "sample", "kernel": "rbf"}, "kernel=.rbf. and flatten=.sample.,"),
    ],
)
def test_only_the_settings_that_stand_against_a_condition_are_to_be_left_out(options, contrary):
    with pytest.raises(ConfigError, match=f"by the linear kernel: leave out {contrary} or conditional_on$"):
        CKAConfig(conditional_on="token", **options)


def test_the_screen_says_what_a_value_of_a_users_measure_is():
    @dataclass(frozen=True)
    class Said(CosineOfMeans):
        power: float = parameter(1.0, above=0)

        @property
        def meaning(self):
            return f"A value is the cosine of the means to the power of {self.power:g}."

        def compare(self, first, second):
            return super().compare(first, second) ** self.power

    class Unsaid(Said):
        def compare(self, first, second):
            return super().compare(first, second) / 2

    class Wrong(CosineOfMeans):
        meaning = 3

    assert "Formula: cosine of the mean rows." in screen_of(CosineOfMeans)
    assert "A value is the cosine of the means to the power of 1." in screen_of(Said)
    assert "A value is the cosine of the means to the power of 5." in screen_of(Said(5.0))
    for of_another in ("A value is", "Formula"):
        assert of_another not in screen_of(Unsaid), "a subclass that computes something else"
    with pytest.raises(PluginError, match="measure Wrong: meaning=3 must be a text"):
        screen_of(Wrong)


@pytest.mark.ci_slow
def test_distances_begin_at_the_block_that_was_changed(cli, words, tmp_path):
    base, changed = (tiny.write_mini(tmp_path / name) for name in ("base", "changed"))
    weights = load_file(changed / "model.safetensors")
    weights["layers.2.attn.o.weight"] += 0.1 * torch.randn(32, 32)
    save_file(weights, changed / "model.safetensors")
    both = [*words, f"model.path={base}", f"target.path={changed}"]
    done = cli("analyze.py", "measure=distance", *both)
    table = done.result.details
    assert table["source_layer"].tolist() == [0, 1, 2, 3]
    assert (table["value"][:2] == 0).all()
    assert (table["value"][2:] > 0.001).all()
    assert "begin to differ at layer 2" in done.stdout
    (cache,) = (tmp_path / "cache" / "tokens").iterdir()
    rows = load_file(cache)["report.tokens"]
    chosen = torch.randperm(len(rows), generator=torch.Generator().manual_seed(0))[:40]
    models = [load_model(ModelConfig(name="x", family="native", mini=True, path=str(each))) for each in (base, changed)]
    x, y = (model.head(rows[chosen].long(), 3).flatten(0, 1) for model in models)
    assert table["value"][3] == pytest.approx(float(((x - y).norm(dim=1) / x.norm(dim=1)).mean()), abs=1e-6)
    assert table["cosine"][3] == pytest.approx(float(torch.cosine_similarity(x, y).mean()), abs=1e-6)
    some = cli("analyze.py", "measure=distance", "layers=[1,3]", *both).result.details
    assert some["source_layer"].tolist() == [1, 3]
    np.testing.assert_array_equal(some["value"], table["value"][[1, 3]])
    wide = tiny.write_mini(tmp_path / "wide", d_model=24)
    refused = cli("analyze.py", "measure=distance", *words, f"model.path={base}", f"target.path={wide}")
    assert "measure=cka compares any two models" in refused.error


@pytest.mark.ci_slow
def test_some_layers_of_both_models_are_compared(cli, words, pair):
    whole, some = (cli("analyze.py", "measure=cka", *words, *pair, *more) for more in ([], ["layers=[[0,1],[3,2]]"]))
    table = some.result.details[some.result.details["target"] == "wide"].query("source == 'a'")
    assert list(zip(table["source_layer"], table["target_layer"], strict=True)) == [(0, 1), (0, 2), (3, 1), (3, 2)]
    keys = ["source", "target", "source_layer", "target_layer"]
    joint = some.result.details.merge(whole.result.details, on=keys)
    np.testing.assert_allclose(joint["value_x"], joint["value_y"], atol=1e-12)
    np.testing.assert_allclose(joint["high_x"], joint["high_y"], atol=1e-12)
    assert len(joint) == 12


@pytest.mark.ci_slow
def test_the_distance_of_several_layers_says_how_it_is_computed(cli, words, pair):
    """That of one layer pair is the arccos of the CKA on the screen, and is not printed."""
    several, one = (
        cli("analyze.py", "measure=cka", *words, *pair, f"layers={layers}") for layers in ("[[0,0],[3,3]]", "[[3,3]]")
    )
    formula = "√Σ arccos²(CKA) over pairs of corresponding layers, is"
    assert formula in " ".join(several.stdout.split())
    assert "radians" not in one.stdout
    assert one.result.scalars["distance"] == pytest.approx(
        math.acos(rows_between_models(one.result.details)["value"].item())
    )


@pytest.mark.parametrize(
    ("sites", "label"),
    [
        (("resid_post", "resid_post"), "CKA"),
        (("mlp_post", "mlp_post"), "CKA at mlp_post"),
        (("mlp_post", "resid_post"), "CKA"),
        (("mlp_post", "attn_out"), "CKA"),
    ],
)
def test_a_label_has_the_hook_point_of_both_models(sites, label, monkeypatch):
    config = {side: {"site": site} for side, site in zip(("model", "target"), sites, strict=True)}
    for name, value in {"config": config, "tables": {}, "details": pd.DataFrame()}.items():
        monkeypatch.setattr(Result, name, value)
    assert instrument_of(composed("measure=cka", entry="analyze")).label(Result(Path("made"))) == label


def test_depth_is_within_the_model_where_a_table_has_some_of_its_layers():
    rows = []
    for source_layer, target_layer in itertools.product([7, 14, 22], range(18)):
        rows.append(("states", "b", source_layer, target_layer, 0.5))
    table = pd.DataFrame(rows, columns=["source", "target", "source_layer", "target_layer", "value"])
    compared = rows_at_equal_depth(table, {"states": 30, "b": 18})
    assert compared["target_layer"].tolist() == [4, 8, 13]
    explicit = compared.assign(target_layer=[3, 9, 17])
    assert rows_at_equal_depth(explicit, {"states": 30, "b": 18})["target_layer"].tolist() == [3, 9, 17]


def test_a_folder_of_a_few_layers_is_compared_at_the_depths_of_its_model(tmp_path):
    thinkalike.write_states("neox-6l-mini", tmp_path / "states", texts="pydoc", layers=[1, 2], words=600)
    result = thinkalike.compare(tmp_path / "states", "neox-4l-mini", batches=1, tokens_per_batch=200)
    said = " ".join(str(result).split())
    assert "layer 2 of states and layer 3 of neox-4l-mini" not in said
    assert "layer 2 of states and layer 1 of neox-4l-mini" in said
