"""Training of autoencoders: each has the bits that it has alone, its operations are counted; and task=sae."""

import json
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
import torch

import tiny
from conftest import CLI, break_off, composed
from counted_work import counted
from stores import finish
from thinkalike.config import TrainerConfig
from thinkalike.contrib.sae import costs as formulas
from thinkalike.contrib.sae.autoencoder import DeadCandidates, SparseAutoencoder, sae_loss
from thinkalike.contrib.sae.carrying import mapped_autoencoder, with_fitted_decoder
from thinkalike.contrib.sae.config import SAEConfig
from thinkalike.contrib.sae.fitting import FittedAutoencoders
from thinkalike.contrib.sae.saelens import load_sae
from thinkalike.contrib.sae.site_states import (
    SiteStates,
    reconstruction_by_document,
    spliced_losses,
    spread_by_document,
    states_after,
)
from thinkalike.contrib.sae.source import check_source, source_jobs, source_model, source_result
from thinkalike.contrib.sae.training import SAEFit, SAETraining
from thinkalike.data.rows import TokenRows
from thinkalike.errors import ConfigError, DataError, ModelError, StoreError
from thinkalike.evaluation.forward import next_token_losses
from thinkalike.forecast import forecast
from thinkalike.measures import Moments
from thinkalike.measures.round_trips import both_directions
from thinkalike.models.load import load_model
from thinkalike.models.operations import operations
from thinkalike.store import Result
from thinkalike.training.run import TrainingRun
from thinkalike.training.trainer import fit

CONTEXT = 16
SIZES = {"layer": 1, "width": 40, "k": 4, "tokens": 1024, "tokens_per_step": 32, "steps_per_buffer": 4}


def training(fits, model=None, **changes) -> SAETraining:
    config = SAEConfig(**SIZES | changes)
    report = SiteStates(torch.randn(50, 32, generator=torch.Generator().manual_seed(2)), torch.arange(50) // 10)
    mean, scale = torch.linspace(-1, 1, 32), 0.7
    return SAETraining(model or tiny.frozen(), fits, config, mean, scale, report)


ROWS = torch.randint(300, (40, CONTEXT), generator=torch.Generator().manual_seed(1))


def fits_of(seeds, factors=(1.0,), k=4) -> list[SAEFit]:
    return [SAEFit(SparseAutoencoder.random(32, 40, k, seed), factor, seed) for factor in factors for seed in seeds]


def run(module, folder, every=50) -> SAETraining:
    fit(module, module.data(ROWS), TrainingRun(folder, torch.device("cpu"), TrainerConfig(checkpoint_every=every)))
    module.evaluate(len(module.config.evaluation_steps) - 1)
    return module


def same(one: SparseAutoencoder, other: SparseAutoencoder) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters(), strict=True))


@pytest.mark.ci_slow
@pytest.mark.parametrize(("activation", "k"), [("topk", 4), ("relu", None)])
def test_each_sae_has_its_bits_whatever_trains_beside_it(tmp_path, activation, k):
    together = run(training(fits_of([3, 5, 8], [1.0, 0.25], k), activation=activation), tmp_path / "all")
    for number, seed, factor in ((1, 5, 1.0), (5, 8, 0.25)):
        alone = run(training(fits_of([seed], [factor], k), activation=activation), tmp_path / str(number))
        assert same(alone.trained()[0], together.trained()[number])
        for name in ("errors", "active", "dead"):
            assert torch.equal(getattr(alone, name)[:, 0], getattr(together, name)[:, number])
    assert not same(together.trained()[0], together.trained()[1]), "control"


@pytest.mark.ci_slow
@pytest.mark.parametrize("at", [8, 14])  # between two buffers, in one
def test_an_interrupted_training_resumes_to_the_same_bits(tmp_path, at, caplog):
    whole = run(training(fits_of([0, 1], [1.0, 2.0])), tmp_path / "whole")
    broken = training(fits_of([0, 1], [1.0, 2.0]))
    break_off(broken, at)
    with pytest.raises(DataError, match="broken off"):
        run(broken, tmp_path / "broken", every=1)
    with caplog.at_level("INFO", logger="thinkalike"):
        again = run(training(fits_of([0, 1], [1.0, 2.0])), tmp_path / "broken")
    assert f"resuming from {tmp_path / 'broken' / 'checkpoints' / 'training'}-{at}-" in caplog.text
    for name, value in whole.state_dict().items():
        assert torch.equal(value, again.state_dict()[name]), name


def test_a_step_is_adams_on_a_shuffled_buffer_of_states(tmp_path):
    """The same in a few lines, for one autoencoder."""
    module = training(fits_of([7]), tokens=128, lr=1e-3)
    run(module, tmp_path)
    model, config = tiny.frozen(), module.config
    rows = module.data(ROWS).batch(0)
    states = (states_after(model, 1, rows, config.skip_first_tokens) - module.mean) / module.scale
    assert len(states) == 128 // CONTEXT * (CONTEXT - 1)
    order = torch.randperm(len(states), generator=torch.Generator().manual_seed(7 * 1_000_003))
    sae = training(fits_of([7])).stacks[0]
    optimizer = torch.optim.Adam(sae.parameters(), lr=1e-3, betas=(0.9, 0.99), foreach=False)
    means = [weight.detach().clone() for weight in sae.parameters()]
    for step, batch in enumerate(states[order].split(len(states) // 4), 1):
        optimizer.zero_grad()
        (sae(batch) - batch).square().mean().backward()
        optimizer.step()
        means = [
            mean + 9 / (step + 8) * (own.detach() - mean) for mean, own in zip(means, sae.parameters(), strict=True)
        ]
    for a, b in zip(sae.parameters(), module.stacks[0].parameters(), strict=True):
        torch.testing.assert_close(a, b)
    for a, b in zip(means, module.averages[0].parameters(), strict=True):
        torch.testing.assert_close(a, b)


def test_looks_are_at_the_report_before_their_steps(tmp_path):
    module = training(fits_of([0, 1]))
    assert module.config.evaluation_steps == [0, 1, 2, 3, 4, 6, 8, 11, 16, 23, 32]
    begins = SparseAutoencoder.stacked([each.start for each in fits_of([0, 1])])
    report = SiteStates(
        module.evaluation_states.states * module.scale + module.mean, module.evaluation_states.documents
    )
    run(module, tmp_path)
    torch.testing.assert_close(
        module.errors[0], reconstruction_by_document(begins, report, 5).errors.float(), rtol=1e-4, atol=0
    )
    ended = SparseAutoencoder.stacked(module.trained())
    torch.testing.assert_close(
        module.errors[-1], reconstruction_by_document(ended, report, 5).errors.float(), rtol=1e-4, atol=0
    )
    assert module.errors.isfinite().all()
    assert (module.errors[-1] != module.errors[0]).all(), "control"


def test_latents_that_are_inactive_for_long_are_given_a_gradient(tmp_path):
    """Those that a bias keeps from being among the largest stay as they are, unless they are revived."""
    (own,) = fits_of([0])
    with torch.no_grad():
        own.start.b_enc[:20] -= 1.5
    start = training([own]).stacks[0].W_enc[0]
    changed = {}
    for after in (0, 100):
        module = run(training([own], dead_after=after), tmp_path / str(after))
        changed[after] = int(((module.stacks[0].W_enc[0] - start).abs().amax(0)[:20] > 0.01).sum())
    assert changed[100] > changed[0] + 5


def test_what_is_kept_is_summed_by_document_in_any_batches(monkeypatch):
    stack = SparseAutoencoder.stacked([each.start for each in fits_of([0, 1, 2])])
    own = SiteStates(torch.randn(60, 32), torch.arange(60) // 7)
    kept = reconstruction_by_document(stack, own, 9)
    monkeypatch.setattr("thinkalike.contrib.sae.site_states.LATENTS_AT_ONCE", 1)
    for one, other in zip(kept, reconstruction_by_document(stack, own, 9), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-6, atol=0)
    errors = sae_loss(stack, own.states).errors
    torch.testing.assert_close(kept.errors[:, 2].float(), errors[:, 14:21].sum(-1))
    latents = stack.encode(own.states)
    torch.testing.assert_close(kept.active.float(), (latents > 0).float().sum(-1).mean(-1))
    torch.testing.assert_close(kept.dead.float(), (latents <= 0).all(-2).float().mean(-1))
    whole = (own.states - own.states.mean(0)).square().sum()
    torch.testing.assert_close(spread_by_document(own, 9).sum().float(), whole)


class Same(SparseAutoencoder):
    """One without any error."""

    def forward(self, states):
        return states


@torch.no_grad()
def test_splicing_in_the_states_changes_no_loss():
    model, skip = tiny.frozen(), 2
    rows = TokenRows(torch.randint(300, (6, CONTEXT)), torch.arange(6).repeat_interleave(CONTEXT).view(6, CONTEXT) // 2)
    mean = states_after(model, 1, rows.tokens, skip).mean(0)
    constant = SparseAutoencoder(torch.zeros(32, 5), torch.zeros(5), torch.zeros(5, 32), mean)
    losses = spliced_losses(model, 1, [Same.random(32, 5), constant], mean, rows, skip)
    torch.testing.assert_close(losses.spliced[0], losses.clean)
    torch.testing.assert_close(losses.spliced[1], losses.ablated)
    assert losses.tokens.tolist() == [2.0 * (CONTEXT - 1)] * 3
    assert (losses.ablated - losses.clean).abs().min() > 1e-3, "control"
    states = model.head(rows.tokens, 1)
    states[:, skip:] = mean
    ends = model.advance(states, 2, model.n_layers)
    expected = next_token_losses(model, [ends], rows.tokens)[0].view(3, -1).sum(-1)
    torch.testing.assert_close(losses.ablated, expected.double(), rtol=1e-5, atol=0)


def test_a_starts_operations_are_those_that_torch_counts():
    model, source = tiny.frozen(), tiny.frozen(1, d_model=48, d_head=12)
    rows = torch.randint(300, (4, CONTEXT))
    config = SAEConfig(**SIZES, map_tokens=rows.numel(), start="transferred", source="a")
    own, other = (Site(each) for each in (model, source))
    seen = (CONTEXT - 1) / CONTEXT

    def transferred():
        moments = Moments([(0, 0)])
        moments.update([states_after(source, 1, rows, 1)], [states_after(model, 1, rows, 1)])
        mapped_autoencoder(SparseAutoencoder.random(48, 40, 4), *both_directions(moments.of((0, 0))))

    def fitted():
        with_fitted_decoder(SparseAutoencoder.random(32, 40, 4), states_after(model, 1, rows, 1))

    solved = formulas.EIGEN * (32**3 + 48**3)
    assert formulas.operations_of_start("transferred", config, seen, own, other) == counted(transferred) + solved
    assert formulas.operations_of_start("least_squares", config, seen, own) == counted(fitted) + formulas.EIGEN * 40**3
    assert formulas.operations_of_start("random", config, seen, own) == 0


@pytest.mark.parametrize("dead_after", [0, 100])
def test_a_training_token_costs_a_head_pass_and_part_of_a_step(dead_after):
    model, config = tiny.frozen(), SAEConfig(**SIZES, dead_after=dead_after)
    rows, sae = torch.randint(300, (4, CONTEXT)), SparseAutoencoder.random(32, 40, 4)
    states, count = states_after(model, 1, rows, 1), config.revived
    dead = DeadCandidates(torch.arange(count), torch.ones(count, dtype=torch.bool)) if dead_after else None

    def step():
        states_after(model, 1, rows, 1)
        sae_loss(sae, states, dead=dead).loss.backward()

    whole = rows.numel() * formulas.operations_per_token(config, (CONTEXT - 1) / CONTEXT, Site(model))
    assert whole == pytest.approx(counted(step), rel=1e-12)


def Site(model) -> formulas.SiteCost:
    return formulas.SiteCost(model.d_model, operations(model).forward(0, 2, CONTEXT))


BESIDE = "sae.beside=[random,least_squares]"


def job_in(folder, minis, text_files):
    """The command line of a small job."""
    sizes = ["sae.layer=1", "sae.width=48", "sae.k=4", "sae.tokens=1024", "sae.tokens_per_step=64"]
    sizes += ["sae.steps_per_buffer=4", "sae.map_tokens=512", "model.context=32"]
    data = ["data=text", f"data.files=[{text_files}/*.txt]", "data.evaluation_tokens=2048", "data.evaluation_share=0.4"]
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


@pytest.mark.ci_slow
@pytest.mark.drawn
def test_an_sae_job_writes_saelens_files_and_prints_its_table(cli, small):
    done = cli("train.py", *small, "sae.seeds=2", "sae.lr_multiples=[0.5]", "sae.beside=[least_squares]")
    result = done.result
    files = {"cfg.json", "sae_weights.safetensors", "seed-1", "curves.csv", "savings.csv"}
    assert files <= {path.name for path in result.folder.iterdir()}
    assert [path.name for path in result.figures] == ["explained_variance.png", "explained_variance.svg"]
    table, details, curves = result.table, result.details, result.tables["curves"]
    assert list(table["start"]) == ["random"] * 2 + ["least_squares"] * 2
    assert list(table["tokens"]) == [0, 1024] * 2
    for name in ("explained_variance", "penalty"):
        assert details[name].between(details[f"{name}_low"], details[f"{name}_high"]).all()
    assert len(curves) == 2 * 2 * 2 * len(composed(*small).sae.evaluation_steps)
    first = load_sae(result.folder)
    assert (first.d, first.f, first.k) == (32, 48, 4)
    about = json.loads((result.folder / "cfg.json").read_text())["metadata"]
    assert about["hook_name"] == "blocks.1.hook_resid_post"
    assert all(word in done.stdout for word in ("explained", "extra loss", "least_squares", "saves"))
    costs = table["ablated_loss"] > table["clean_loss"]
    assert table.loc[~costs, "loss_recovered"].isna().all(), "where there is nothing to recover"
    assert (details["loss_recovered_low"] <= details["loss_recovered"])[costs].all()
    assert {"explained_variance", "dead_latents"} <= {each.name for each in result.headlines}


@pytest.mark.ci_slow
def test_an_sae_carried_into_its_own_model_is_the_native_one(cli, small, made):
    """The positive control: maps of a model's states to themselves are the identity."""
    again = cli("train.py", *small, "sae.seeds=2", "sae.start=transferred", f"sae.source={made.folder}", "sae.tokens=0")
    native, carried = made.table.iloc[-1], again.result.table.iloc[0]
    assert carried["tokens"] == 0
    for name in ("explained_variance", "penalty"):
        assert carried[name] == pytest.approx(native[name], abs=1e-4)
    states = torch.randn(40, 32)
    ours, theirs = (load_sae(each.folder) for each in (again.result, made))
    torch.testing.assert_close(ours.encode(states), theirs.encode(states), rtol=0, atol=1e-4)


@pytest.mark.ci_slow
def test_an_sae_is_carried_by_maps_and_trained(cli, small, made, minis):
    words = [word.replace(f"{minis}/a", f"{minis}/wide") for word in small]
    start = ["sae.start=transferred", f"sae.source={made.folder}", BESIDE, "sae.seeds=2"]
    result = cli("train.py", *words, *start).result
    names = [model["name"] for model in result.provenance["models"]]
    assert names == ["gelu-3l-mini[path=wide]", "gelu-3l-mini[path=a]"]
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
    place = "thinkalike.contrib.sae.source"
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


def test_a_source_that_is_a_model_is_not_mapped_untrained():
    words = ["sae.layer=2", "sae.start=transferred", "sae.source=gpt2-mini", "sae.tokens=0"]
    config = composed("task=sae", "model=gpt2-mini-s1", *words)
    with pytest.raises(ConfigError, match=r"sae\.tokens=0 trains nothing"):
        source_jobs(config)
    assert source_jobs(replace(config, sae=replace(config.sae, tokens=4096)))[0].sae.tokens == 4096


def test_a_source_of_other_weights_is_refused(made, minis):
    check_source(made, load_model(str(minis / "a")))
    with pytest.raises(ModelError, match="holds autoencoders of b with the weights"):
        check_source(made, load_model(str(minis / "b")))


def test_rates_are_chosen_and_judged_on_different_documents():
    errors = torch.tensor([[3.0, 1, 3, 1], [2, 5, 2, 5]]).view(1, 1, 2, 1, 4)
    ones = torch.ones(1, 1, 2, 1)
    made = FittedAutoencoders(errors, torch.arange(4.0), ones, ones, before_training=[], after_training=[])
    assert made.best_rate_index(0) == 1, "by 3 + 3 and 2 + 2"
    assert made.judged[0][0, 0, :, 0].tolist() == [[1, 1], [5, 5]]
    assert made.judged[1].tolist() == [1, 3]
    alone = FittedAutoencoders(
        errors[:, :, :1], torch.arange(4.0), ones[:, :, :1], ones[:, :, :1], before_training=[], after_training=[]
    )
    assert alone.judged[1].tolist() == [0, 1, 2, 3], "one rate needs no choice"
    assert [made.index(0, rate, 0) for rate in (0, 1)] == [0, 1]


@pytest.mark.parametrize(
    ("word", "message"),
    [("sae.layer=4", "no layer 4"), pytest.param("sae.lr=1e30", "sae.lr=1e+30", marks=pytest.mark.ci_slow)],
)
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
