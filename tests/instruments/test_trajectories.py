"""Checkpoints by step, and what forms between them."""

import json
import math
import re
from dataclasses import replace

import numpy as np
import pytest
import pytorch_lightning as pl
import torch
from omegaconf import OmegaConf
from scipy import integrate, optimize, stats

import thinkalike
import tiny
from conftest import kill_and_resume
from thinkalike.config import ModelConfig
from thinkalike.errors import ConfigError, ModelError
from thinkalike.instruments.trajectory import reader
from thinkalike.instruments.trajectory.accuracies import (
    accuracy_curve,
    balanced_accuracies_of_labellings,
    correct_held_out_answers,
    onset_index,
    percentile_interval,
    permuted_labels,
    simultaneous_t,
)
from thinkalike.instruments.trajectory.checkpoints import checkpoints_of, revision_by_step
from thinkalike.instruments.trajectory.settings import TrajectoryConfig
from thinkalike.measures.estimates import jackknife, student_t
from thinkalike.measures.mlem.importance import fold_interval
from thinkalike.models.fingerprints import checkpoint_fingerprint
from thinkalike.models.load import load_model


@pytest.fixture(scope="session")
def text(text_files, tmp_path_factory):
    """The words of a small text, its cache, and a store."""
    folder = tmp_path_factory.mktemp("trajectories")
    return ["data=text", f"data.files=[{text_files}/*.txt]", "data.evaluation_share=0.5", f"data.cache={folder}/cache",
            f"store={folder}/results"]  # fmt: skip


# ---- checkpoints


@pytest.mark.ci_slow
def test_a_model_in_memory_has_no_checkpoints(tmp_path, checkpoints):
    """The hub was asked for the repository "None", and an error said that it does not answer."""
    from transformers import AutoModelForCausalLM

    tiny.write_mini(tmp_path / "mini")
    model = load_model(tmp_path / "mini")
    module = AutoModelForCausalLM.from_pretrained(checkpoints["gpt2"])
    with pytest.raises(ConfigError, match="mini is a model in memory, which has no checkpoints: give the name or"):
        thinkalike.trajectory(model)
    with pytest.raises(ConfigError, match="which has no checkpoints"):
        thinkalike.trajectory(load_model(module, tiny.tokenizer(), name="live"))


def test_trainer_checkpoints_sort_as_numbers(tmp_path):
    config = ModelConfig(name="local", path=str(tmp_path))
    for step in (1000, 500, 64):
        tiny.write_checkpoint("gpt2", tmp_path / f"checkpoint-{step}", seed=step)
    before = checkpoint_fingerprint(replace(config, revision="checkpoint-64"))
    tiny.write_checkpoint("gpt2", tmp_path)
    whole = checkpoint_fingerprint(config)
    assert revision_by_step(config) == {64: "checkpoint-64", 500: "checkpoint-500", 1000: "checkpoint-1000"}
    assert load_model(tmp_path, revision="checkpoint-500").n_layers == tiny.LAYERS
    for file in (tmp_path / "checkpoint-500").glob("*token*"):
        file.unlink()
    assert load_model(tmp_path, revision="checkpoint-500").tokenizer.vocab_size == tiny.tokenizer().vocab_size
    assert checkpoint_fingerprint(config) == whole, "the model in the folder is none of its checkpoints"
    assert checkpoint_fingerprint(replace(config, revision="checkpoint-64")) == before


@pytest.mark.parametrize(
    ("names", "only", "steps"),
    [
        (["step500", "step1k", "step10k", "step1.5k", "main"], "*", [500, 1000, 10_000]),
        (["s-1M_step2M", "s-1M_step10M"], "*", [2 * 10**6, 10**7]),
        (["epoch=0-step=5", "epoch=1-step=10"], "*", [5, 10]),
        (["stage1-step1000-tokens4B", "stage1-step3000-tokens12B", "stage2-step1000"], "stage1-*", [1000, 3000]),
        (
            ["stage1-step1000-tokens4B", "stage2-step1000"],
            "*",
            "stage1-step1000-tokens4B and stage2-step1000 are named",
        ),
        (["checkpoint-500", "tmp-checkpoint-500"], "*", "checkpoint-500 and tmp-checkpoint-500 are named differently"),
        (["step1000-a", "step1k"], "*", "have the same step 1000"),
        (["checkpoint-64", "global_step128"], "*", "order is not known"),
    ],
)
def test_names_of_checkpoints_are_ordered_or_refused(names, only, steps, tmp_path):
    for name in names:
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text("{}")
    config = ModelConfig(name="local", path=str(tmp_path))
    if isinstance(steps, str):
        with pytest.raises(ConfigError, match=steps):
            revision_by_step(config, only)
    else:
        assert list(revision_by_step(config, only)) == steps


def test_a_pattern_chooses_one_of_several_runs_and_what_is_left_out_is_said_once(tmp_path, caplog):
    caplog.set_level("INFO")
    for name in ("stage1-step1000", "stage1-step3000", "stage2-step1000", "final"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text("{}")
    config = ModelConfig(name="local", path=str(tmp_path))
    for _ in range(2):  # a job asks several times
        assert list(checkpoints_of(config, TrajectoryConfig(checkpoints="stage1-*"))) == [1000, 3000]
    assert [record.message for record in caplog.records] == [f"{config.called}: left out are final, stage2-step1000"]
    with pytest.raises(ConfigError, match="choose 1 checkpoints, and a trajectory needs two; choose more"):
        checkpoints_of(config, TrajectoryConfig(checkpoints="stage2-*"))


def test_a_run_of_one_model_twice_is_said(tmp_path, caplog):
    for step in (1, 2):
        tiny.write_checkpoint("gpt2", tmp_path / "run" / f"step{step}", seed=1)
    measure = TrajectoryConfig()
    found = checkpoints_of(ModelConfig(name="local", path=str(tmp_path)), measure)
    assert list(found) == [1, 2], "the folder around a run stands for it"
    found.fingerprint()
    assert "steps 1 and 2 are equal" in caplog.text


def test_a_step_without_a_checkpoint_is_said_and_a_link_to_itself_is_no_step(tmp_path, caplog):
    for step in (1, 2):
        tiny.write_checkpoint("gpt2", tmp_path / f"step{step}", seed=step)
    config = ModelConfig(name="local", path=str(tmp_path))
    assert list(checkpoints_of(config, TrajectoryConfig())) == [1, 2]
    assert "left out" not in caplog.text, "control"
    tiny.write_checkpoint("gpt2", tmp_path / "step3")
    (tmp_path / "step3" / "config.json").unlink()
    assert list(checkpoints_of(config, TrajectoryConfig())) == [1, 2]
    assert f"{tmp_path}: step3 left out, as no config.json is there" in caplog.text
    (tmp_path / "step4").symlink_to(tmp_path / "step4")
    assert list(checkpoints_of(config, TrajectoryConfig())) == [1, 2]


def test_too_few_chosen_checkpoints_are_not_said_to_be_too_few_in_the_run(tmp_path):
    for step in (1, 2, 3):
        tiny.write_checkpoint("gpt2", tmp_path / f"step{step}", seed=step)
    config = ModelConfig(name="local", path=str(tmp_path))
    for measure in (TrajectoryConfig(steps=[1, 1]), TrajectoryConfig(checkpoints="step1*")):
        with pytest.raises(ConfigError, match="choose 1 checkpoints, and a trajectory needs two"):
            checkpoints_of(config, measure)


class Trained(pl.LightningModule):
    """A model inside a module of Lightning, as users write them."""

    def __init__(self, model):
        super().__init__()
        self.model = model


def test_checkpoints_of_lightning_are_the_models_that_they_hold(tmp_path):
    """The files are Lightning's own; configuration and tokenizer stand beside them."""
    for step in (1000, 500):
        whole = tiny.write_checkpoint("gpt2", tmp_path / f"whole{step}", seed=step)
        model = load_model(whole).module
        trainer = pl.Trainer(logger=False, enable_checkpointing=False, accelerator="cpu")
        trainer.strategy.connect(Trained(model))
        file = tmp_path / "run" / f"epoch=0-step={step}.ckpt"
        trainer.save_checkpoint(file)
        torch.save({**torch.load(file), "hyper_parameters": OmegaConf.create({"lr": {"peak": 0.1}})}, file)
    config = ModelConfig(name="local", path=str(tmp_path / "run"))
    assert revision_by_step(config) == {500: "epoch=0-step=500.ckpt", 1000: "epoch=0-step=1000.ckpt"}
    first, last = (replace(config, revision=name) for name in revision_by_step(config).values())
    with pytest.raises(ModelError, match=r"run has no config\.json; save_pretrained writes one$"):
        load_model(first)
    for path in whole.glob("*.json"):
        (tmp_path / "run" / path.name).write_bytes(path.read_bytes())
    tokens = torch.arange(5)[None]
    states = [load_model(each).residuals(tokens, [tiny.LAYERS - 1])[0] for each in (first, last, whole)]
    assert torch.equal(states[0], states[2])
    assert not torch.allclose(states[1], states[2]), "control"
    before = checkpoint_fingerprint(first)
    assert before != checkpoint_fingerprint(last)
    shape = json.loads((tmp_path / "run" / "config.json").read_text())
    (tmp_path / "run" / "config.json").write_text(json.dumps({**shape, "layer_norm_epsilon": 0.1}))
    assert checkpoint_fingerprint(first) != before, "the configuration is part of it"


def test_revisions_of_the_hub_are_found_by_their_steps(served, root):
    for step in (0, 8, 64):
        tiny.write_checkpoint("gpt2", root / "someone" / f"m@step{step}", seed=step + 1)
    tiny.write_checkpoint("gpt2", root / "someone" / "m")
    served()
    config = ModelConfig(name="hub", hub_id="someone/m")
    assert revision_by_step(config) == {0: "step0", 8: "step8", 64: "step64"}
    assert len({load_model(replace(config, revision=f"step{step}")).fingerprint() for step in (0, 8, 64)}) == 3


# ---- bands, probes and onsets


def test_the_joint_t_is_students_of_one_and_exact_of_several():
    replicates = torch.linalg.qr(torch.cat([torch.ones(10, 1), torch.randn(10, 5)], 1).double())[0][:, 1:]  # centred
    assert float(simultaneous_t(replicates[:, :1])) == pytest.approx(student_t(0.95, 9), rel=0.03)
    found = simultaneous_t(torch.stack([replicates, replicates[:, :1].expand(-1, 5)], 2))

    def below(t: float) -> float:
        chi = stats.chi(9)
        return integrate.quad(lambda w: (2 * stats.norm.cdf(t * w / 3) - 1) ** 5 * chi.pdf(w), 0, 12)[0]

    exact = optimize.brentq(lambda t: below(t) - 0.95, 1, 9)
    assert float(found[0]) == pytest.approx(exact, rel=0.03)
    assert float(found[1]) == pytest.approx(student_t(0.95, 9), rel=0.03), "five times the same value is one"


@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6])
def test_a_value_whose_replicates_differ_by_rounding_alone_does_not_widen_the_others(scale):
    """So is the similarity of the last checkpoint to itself, whose last bits differ between machines."""
    replicates = torch.randn(10, 3).double()
    ones = 1 + torch.randint(-2, 3, (10, 2)).double() * torch.finfo(torch.float64).eps
    assert ones.std(0).min() > 0, "control"
    expected = simultaneous_t(scale * replicates)
    assert simultaneous_t(scale * torch.cat([replicates, ones], 1)) == expected
    assert simultaneous_t(scale * ones) == 0
    barely = 1 + 1e-6 * torch.randn(10, 2).double()
    assert simultaneous_t(scale * torch.cat([replicates, barely], 1)) > 1.01 * expected, "control"


@pytest.mark.parametrize("levels", [2, 3])
def test_probes_answer_the_nearest_mean_under_shrinkage(levels):
    labels, fold_of = torch.randint(levels, (90,)), torch.arange(90) % 3
    states = torch.randn(90, 6).double() + 2 * torch.nn.functional.one_hot(labels, 6)
    both = torch.stack([labels, labels[torch.randperm(90)]])
    right = correct_held_out_answers(states, both, levels, fold_of, 0.3)
    for own, each in zip(right, both, strict=True):
        for train, test in ((fold_of != fold, fold_of == fold) for fold in range(3)):
            spread = np.cov(states[train].numpy().T, bias=True)
            inverse = np.linalg.inv(0.7 * spread + 0.3 * np.trace(spread) / 6 * np.eye(6))
            apart = [(states[test] - states[train][each[train] == level].mean(0)).numpy() for level in range(levels)]
            answers = np.argmin([np.einsum("nd,de,ne->n", rows, inverse, rows) for rows in apart], 0)
            assert torch.equal(own[test], torch.from_numpy(answers) == each[test])
    assert right[0].double().mean() > 0.6 > right[1].double().mean(), "control"


def test_accuracies_are_balanced_over_the_levels_that_occur():
    labels = torch.tensor([[0, 0, 0, 1], [0, 0, 2, 2]])
    right = torch.tensor([[True, True, False, True], [True, False, True, True]])
    assert balanced_accuracies_of_labellings(right, labels, 3).tolist() == pytest.approx(
        [(2 / 3 + 1) / 2, (1 / 2 + 1) / 2]
    )


def test_labels_move_between_groups_and_not_within():
    groups = torch.arange(40).repeat_interleave(3)
    labels = (torch.arange(40) % 2).repeat_interleave(3)
    moved = permuted_labels(labels, groups, 20)
    assert moved.shape == (21, 120)
    assert torch.equal(moved[0], labels)
    assert all((each.view(40, 3) == each.view(40, 3)[:, :1]).all() for each in moved)
    assert (moved[1:] != labels).any(1).all()


def test_whole_numbers_have_whole_ends_that_hold_the_share():
    draws = torch.arange(10)
    found = percentile_interval(torch.tensor(5), draws, 0.5)
    assert [(part.tolist(), part.dtype) for part in found] == [(end, torch.long) for end in (5, 2, 7)]


@pytest.mark.parametrize(
    ("above", "place"), [([0, 1, 0, 1, 1], 3), ([1, 1, 1], 0), ([1, 1, 0], 3), ([0, 0, 1], 2), ([0], 1)]
)
def test_the_onset_is_the_first_step_from_which_all_are_above(above, place):
    assert int(onset_index(torch.tensor(above).bool())) == place


def simulated(start: int | None, seed: int, steps: int = 10, groups: int = 60, size: int = 5):
    """A feature with two levels that is there from a step on, to .8 after three steps, in groups that share luck."""
    generator = torch.Generator().manual_seed(seed)
    labels = (torch.arange(groups) % 2).repeat_interleave(size)
    owners = torch.arange(groups).repeat_interleave(size)

    def drawn(rate):
        luck = 0.1 * torch.randn(groups, generator=generator)[owners]
        return torch.rand(steps, len(labels), generator=generator) < rate[:, None] + luck

    rise = torch.zeros(steps)
    if start is not None:
        rise[start:] = torch.tensor([0.2, 0.25] + [0.3] * steps)[: steps - start]
    null = torch.stack([drawn(torch.full((steps,), 0.5)).double().mean(1) for _ in range(99)], 1)
    return accuracy_curve(drawn(0.5 + rise), labels, owners, null), 0.5 + rise


@pytest.mark.ci_slow
def test_onsets_are_found_within_a_checkpoint():
    """Of 200 features each: planted at a quarter, half or three quarters, and never."""
    near = held = covered = 0
    for seed in range(200):
        start = (2, 5, 7)[seed % 3]
        curve, truth = simulated(start, seed)
        _, low, high = curve.accuracy
        covered += bool(((low <= truth) & (truth <= high)).all())
        near += abs(curve.onset_index - start) <= 1
        _, low, high = percentile_interval(torch.tensor(curve.onset_index), curve.draws, 0.95)
        held += bool(low <= start <= high)
    never = sum(simulated(None, 1000 + seed)[0].onset_index < 10 for seed in range(200))
    assert near >= 180
    assert never <= 14  # of 200, the 95 % quantile of a share of 5 %
    assert held >= 180
    assert covered >= 0.92 * 200, "bands of accuracies cover whole curves"


# ---- jobs

ASKED = ["measure=trajectory", "measure.tokens=1024", "measure.least=5", "measure.folds=3", "measure.permutations=19",
         "measure.importance=false", "stimuli.sentences=40", "stimuli.features=[PoS,Question]"]  # fmt: skip


@pytest.fixture(scope="session")
def run_of_a_trainer(tmp_path_factory):
    """A folder of three checkpoints, untrained."""
    folder = tmp_path_factory.mktemp("run")
    for step in (0, 10, 100):
        tiny.write_checkpoint("gpt2", folder / f"checkpoint-{step}", seed=step + 1)
    return folder


@pytest.fixture
def loads(monkeypatch):
    """The names of the models that are loaded."""
    names, own = [], reader.load_model
    monkeypatch.setattr(reader, "load_model", lambda model: names.append(model.revision) or own(model))
    return names


@pytest.mark.ci_slow
def test_a_trajectory_of_own_checkpoints_reads_each_once(cli, text, run_of_a_trainer, loads):
    done = cli("analyze.py", *ASKED, f"model={run_of_a_trainer}", *text, env={"COLUMNS": "80"})
    result = done.result
    assert loads == ["checkpoint-0", "checkpoint-10", "checkpoint-100"]
    table, tables = result.table, result.tables
    assert table["step"].unique().tolist() == [0, 10, 100]
    assert len(table) == 3 * tiny.LAYERS
    assert (table.loc[table["step"] == 100, "similarity_to_last"] - 1).abs().max() < 1e-6
    assert table.loc[table["step"] < 100, "similarity_to_last"].max() < 0.9, (
        "control: these have nothing to do with each other"
    )
    assert (table["similarity_to_last_low"] <= table["similarity_to_last"]).all()
    assert table.loc[table["step"] == 0, "similarity_to_previous"].isna().all()
    angle = math.acos(table.loc[table["step"] == 10, "similarity_to_previous_uncorrected"].iloc[0])
    assert table.loc[table["step"] == 10, "speed_uncorrected"].iloc[0] == pytest.approx(angle / math.log2(11))
    matrix = tables["similarity"].query("layer == 0").pivot(index="step", columns="other_step", values="value")
    assert np.allclose(matrix, matrix.T)
    assert matrix.loc[10, 100] == pytest.approx(table.query("layer == 0 and step == 10")["similarity_to_last"].iloc[0])
    assert set(tables["onsets"]["feature"]) == {"PoS", "Question"}
    losses = cli("analyze.py", "measure=loss", f"model={run_of_a_trainer}", "model.revision=checkpoint-10", *text)
    assert tables["losses"]["loss"][1] == pytest.approx(losses.result.scalars["loss"], rel=0.02)
    *shown, _ = done.stdout.splitlines()
    assert max(map(len, shown)) <= 80
    assert len(shown) < 30


@pytest.mark.ci_slow
def test_the_importance_of_features_is_that_of_mlem(cli, text, run_of_a_trainer):
    asked = [word for word in ASKED if "importance" not in word]
    features = cli("analyze.py", *asked, f"model={run_of_a_trainer}", *text).result.tables["features"]
    words = ["measure=mlem", "measure.folds=3", "measure.references=0", *ASKED[-2:], "model.revision=checkpoint-10"]
    wanted = cli("analyze.py", *words, f"model={run_of_a_trainer}", text[-1]).result.table
    found = features.query("step == 10").merge(wanted, on=["layer", "feature"])
    assert len(found) == 2 * tiny.LAYERS
    assert np.allclose(found["importance_x"], found["importance_y"])


@pytest.mark.ci_slow
def test_a_killed_trajectory_resumes_to_the_same_bits(cli, text, run_of_a_trainer, loads):
    words = [*ASKED, f"model={run_of_a_trainer}", *text[:-1]]
    resumed, whole = kill_and_resume(cli, "analyze.py", *words, state="step0")
    assert "checkpoint-0" not in loads[:-3], "the whole run is the second one"
    assert loads[-3:] == ["checkpoint-0", "checkpoint-10", "checkpoint-100"]
    for path in whole.folder.glob("*.csv"):
        assert (resumed.folder / path.name).read_bytes() == path.read_bytes()
    assert resumed.provenance["warnings"] == whole.provenance["warnings"]


@pytest.mark.ci_slow
def test_a_run_that_repeats_its_first_half_is_seen_to(cli, text, run_of_a_trainer, tmp_path):
    for step, copied in {0: 0, 10: 10, 20: 0, 30: 10}.items():
        (tmp_path / f"checkpoint-{step}").symlink_to(run_of_a_trainer / f"checkpoint-{copied}")
    result = cli("analyze.py", *ASKED, f"model={tmp_path}", *text).result
    cells = result.tables["similarity"].pivot(index=["layer", "step"], columns="other_step", values="value")
    first, second = cells.xs(0, level="step"), cells.xs(10, level="step")
    assert np.allclose(first[20], 1)
    assert np.allclose(second[30], 1)
    assert first[[10, 30]].max(axis=None) < 0.9, "control"
    assert np.allclose(result.table.query("step == 10")["similarity_to_last"], 1)
    features = result.tables["features"].set_index(["layer", "feature", "step"])["accuracy"].unstack("step")
    assert np.allclose(features[[0, 10]], features[[20, 30]])


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["measure.steps=[0,7]"], r"measure.steps=7: run.* has checkpoints of these steps: 0, 10, 100"),
        pytest.param(["measure.steps=[10]"], "a trajectory needs two", marks=pytest.mark.ci_slow),
        (["model.revision=checkpoint-10"], "model.revision= has no effect"),
    ],
)
def test_what_cannot_be_followed_is_one_line(cli, text, run_of_a_trainer, words, said):
    assert re.search(said, cli("analyze.py", *ASKED, f"model={run_of_a_trainer}", *words, *text).error)


def test_joint_fold_intervals_are_of_means_without_each_fold():
    folds = torch.randn(6, 3, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    mean, spread = folds.mean(-1), math.sqrt((1 / 5 + 1 / 4) * 5)  # of the variance of folds, over that of their mean
    replicates = mean + spread * (mean - folds.movedim(-1, 0)) / 4
    expected = jackknife(mean, replicates, t=simultaneous_t(replicates))
    found = fold_interval(folds, t=simultaneous_t(folds.movedim(-1, 0)))
    torch.testing.assert_close([*found], [*expected])
    assert (found.high > fold_interval(folds).high).all()
