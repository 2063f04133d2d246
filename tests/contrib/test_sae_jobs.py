"""task=sae: what a job leaves, where starts come from, and what cannot be done."""

from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
import torch

from conftest import CLI, composed
from stores import finish
from thinkalike.contrib.sae.fitting import Fitted
from thinkalike.contrib.sae.saelens import load_sae
from thinkalike.contrib.sae.setting import check_source, source_model, source_result
from thinkalike.errors import ConfigError, ModelError, StoreError
from thinkalike.forecast import forecast
from thinkalike.models.load import load_model
from thinkalike.store import Result

BESIDE = "sae.beside=[random,least_squares]"


def job_in(folder, minis, text_files):
    """The command line of a small job."""
    sizes = ["sae.layer=1", "sae.width=48", "sae.k=4", "sae.tokens=1024", "sae.tokens_per_step=64"]
    sizes += ["sae.steps_per_buffer=4", "sae.map_tokens=512", "model.context=32"]
    data = ["data=text", f"data.files=[{text_files}/*.txt]", "data.report_tokens=2048", "data.report_share=0.4"]
    store = [f"store={folder}/results", f"data.cache={folder}/cache"]
    return ["task=sae", f"model.path={minis}/a", *sizes, *data, *store]


@pytest.fixture
def small(minis, text_files, tmp_path):
    return job_in(tmp_path, minis, text_files)


@pytest.fixture(scope="module")
def made(minis, text_files, tmp_path_factory):
    """A finished job with two seeds."""
    folder = tmp_path_factory.mktemp("made")
    return CLI(folder)("train.py", *job_in(folder, minis, text_files), "sae.seeds=2").result


@pytest.mark.drawn
def test_an_sae_job_writes_saelens_files_and_prints_its_table(cli, small):
    done = cli("train.py", *small, "sae.seeds=2", "sae.lr_multiples=[0.5]", "sae.beside=[least_squares]")
    result = done.result
    files = {"cfg.json", "sae_weights.safetensors", "seed-1", "curves.csv", "savings.csv", "break_even.csv"}
    assert files <= {path.name for path in result.folder.iterdir()}
    assert [path.name for path in result.figures] == ["explained_variance.png", "explained_variance.svg"]
    table, curves = result.table, result.tables["curves"]
    assert list(table["start"]) == ["random"] * 2 + ["least_squares"] * 2
    assert list(table["tokens"]) == [0, 1024] * 2
    for name in ("explained_variance", "penalty"):
        assert table[name].between(table[f"{name}_low"], table[f"{name}_high"]).all()
    assert len(curves) == 2 * 2 * 2 * len(composed(*small).sae.looks)
    first = load_sae(result.folder)
    assert (first.sae.d, first.sae.f, first.sae.k) == (32, 48, 4)
    assert first.metadata["hook_name"] == "blocks.1.hook_resid_post"
    assert all(word in done.stdout for word in ("explained", "extra loss", "least_squares", "it saves"))
    costs = table["ablated_loss"] > table["clean_loss"]
    assert table.loc[~costs, "loss_recovered"].isna().all(), "where there is nothing to recover"
    assert (table["loss_recovered_low"] <= table["loss_recovered"])[costs].all()
    assert {"explained_variance", "dead_latents"} <= {each.name for each in result.headlines}


def test_a_seed_has_the_same_autoencoder_alone_and_among_others(cli, small, made):
    alone = cli("train.py", *small, "seed=1").result
    both = (load_sae(folder).sae.parameters() for folder in (alone.folder, made.folder / "seed-1"))
    for a, b in zip(*both, strict=True):
        assert torch.equal(a, b)


def test_an_sae_carried_into_its_own_model_is_the_native_one(cli, small, made):
    """The positive control: maps of a model's states to themselves are the identity."""
    again = cli("train.py", *small, "sae.seeds=2", "sae.start=transferred", f"sae.source={made.folder}", "sae.tokens=0")
    native, carried = made.table.iloc[-1], again.result.table.iloc[0]
    assert carried["tokens"] == 0
    for name in ("explained_variance", "penalty"):
        assert carried[name] == pytest.approx(native[name], abs=1e-4)
    states = torch.randn(40, 32)
    ours, theirs = (load_sae(each.folder).sae for each in (again.result, made))
    torch.testing.assert_close(ours.encode(states), theirs.encode(states), rtol=0, atol=1e-4)


@pytest.mark.slow
@pytest.mark.ci_slow
def test_an_sae_is_carried_by_maps_and_trained(cli, small, made, minis):
    words = [word.replace(f"{minis}/a", f"{minis}/wide") for word in small]
    start = ["sae.start=transferred", f"sae.source={made.folder}", BESIDE, "sae.seeds=2"]
    result = cli("train.py", *words, *start).result
    assert [model["name"] for model in result.provenance["models"]] == [
        "gelu-3l-mini[path=wide]",
        "gelu-3l-mini[path=a]",
    ]
    savings = result.tables["savings"]
    assert set(zip(savings["start"], savings["against"], strict=True)) == {
        ("least_squares", "random"), ("transferred", "random"), ("transferred", "least_squares")
    }  # fmt: skip
    before = result.table[result.table["tokens"] == 0].set_index("start")
    assert (
        before.loc["transferred", "flops"] > before.loc["least_squares", "flops"] > before.loc["random", "flops"] == 0
    )


def test_a_source_that_is_a_model_is_trained_by_the_same_recipe(monkeypatch):
    asked = []
    place = "thinkalike.contrib.sae.setting"
    monkeypatch.setattr(f"{place}.is_stored", lambda kind, job: False)
    monkeypatch.setattr(f"{place}.run_job", lambda job, shown: asked.append(job) or Result(Path()))
    words = ["sae.layer=2", "sae.source_layer=1", "sae.start=transferred", "sae.source=neox-3l-mini", BESIDE]
    config = composed("task=sae", "model=neox-6l-mini", *words, "sae.lr_multiples=[0.5]", "sae.seeds=3", "sae.k=16")
    assert source_model(config).name == "neox-3l-mini"
    source_result(config)
    (job,) = asked
    assert (job.model.name, job.sae.layer, job.sae.start) == ("neox-3l-mini", 1, "random")
    assert (job.sae.k, job.sae.seeds) == (16, 3)
    assert (job.sae.beside, job.sae.lr_multiples, job.sae.source, job.sae.source_layer) == ([], [], None, None)


def test_a_source_of_other_weights_is_refused(made, minis):
    check_source(made, load_model(str(minis / "a")))
    with pytest.raises(ModelError, match="holds autoencoders of b with the weights"):
        check_source(made, load_model(str(minis / "b")))


def test_rates_are_chosen_and_judged_on_different_documents():
    errors = torch.tensor([[3.0, 1, 3, 1], [2, 5, 2, 5]]).view(1, 1, 2, 1, 4)
    ones = torch.ones(1, 1, 2, 1)
    made = Fitted(errors, torch.arange(4.0), ones, ones, began=[], ended=[])
    assert made.best_rate(0) == 1, "by 3 + 3 and 2 + 2"
    assert made.judged[0][0, 0, :, 0].tolist() == [[1, 1], [5, 5]]
    assert made.judged[1].tolist() == [1, 3]
    alone = Fitted(errors[:, :, :1], torch.arange(4.0), ones[:, :, :1], ones[:, :, :1], began=[], ended=[])
    assert alone.judged[1].tolist() == [0, 1, 2, 3], "one rate needs no choice"
    assert [made.place(0, rate, 0) for rate in (0, 1)] == [0, 1]


@pytest.mark.parametrize(("word", "message"), [("sae.layer=4", "no layer 4"), ("sae.lr=1e30", "sae.lr=1e+30")])
def test_what_cannot_be_done_is_one_line(cli, small, word, message):
    assert message in cli("train.py", *small, word).error


def test_a_source_that_does_not_fit_is_one_line(small, made, minis, tmp_path):
    config = composed(*small, "sae.start=transferred", f"sae.source={made.folder}")
    finish(tmp_path, "loss", "l1", {"table": pd.DataFrame({"loss": [1.0]})})
    for setting, value, error, message in (
        ("width", 64, ConfigError, "has sae.width=48, not 64"),
        ("k", 5, ConfigError, "has sae.k=4, not 5"),
        ("activation", "relu", ConfigError, "has sae.activation=topk, not relu"),
        ("source_layer", 2, ConfigError, "has sae.layer=1, not 2"),
        ("source", str(tmp_path / "loss" / "l1"), ConfigError, "is a result of loss; give one of task=sae"),
        ("source", str(minis), StoreError, "holds no finished result"),
    ):
        with pytest.raises(error, match=message):
            source_result(replace(config, sae=replace(config.sae, **{setting: value})))


def test_a_dry_run_says_what_it_will_take_and_makes_no_source(cli, tmp_path):
    words = ["task=sae", "model=neox-6l-mini", "sae.layer=2", "sae.source_layer=1", "sae.start=transferred"]
    words += ["sae.source=neox-3l-mini", BESIDE, f"store={tmp_path}/none"]
    config = composed(*words)
    source, job = forecast(config).jobs
    assert [each.phase for each in source.passes] == ["training", "report"]
    assert (source.label, job.label) == ("sae: neox-3l-mini", "sae: neox-6l-mini, neox-3l-mini")
    read = [(each.phase, each.model.name, each.tokens) for each in job.passes]
    assert read[:2] == [("starts", "neox-6l-mini", 4096.0), ("starts", "neox-3l-mini", 4096.0)]
    assert read[2] == ("training", "neox-6l-mini", 327680.0)
    alone = forecast(composed(*words[:3])).jobs[0].passes
    assert [each.phase for each in alone] == ["training", "report"], "a random start takes nothing"
    assert not (tmp_path / "none").exists()
