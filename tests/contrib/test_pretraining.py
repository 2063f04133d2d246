"""Pretraining learns, with the rates and the decay that it is said to have."""

import json
import math
import re

import pytest
import torch
from safetensors.torch import load_file

import tiny
from conftest import step_data
from thinkalike.config import ModelConfig, TrainerConfig
from thinkalike.contrib.pretraining.config import PretrainConfig
from thinkalike.contrib.pretraining.training import MaskedPretraining, Pretraining, warmup_then_cosine
from thinkalike.evaluation.held_out import masked_losses
from thinkalike.instruments.trajectory.checkpoints import revision_by_step
from thinkalike.models.fingerprints import checkpoint_fingerprint
from thinkalike.models.load import load_model
from thinkalike.models.minis import build_mini, train_tokenizer
from thinkalike.training.run import TrainingRun
from thinkalike.training.trainer import fit

SMALL = ["model.architecture.d_model=16", "model.architecture.n_heads=2", "model.architecture.d_head=8",
         "model.architecture.d_mlp=32", "model.architecture.n_ctx=64", "model.context=64",
         "pretrain.tokens_per_step=256", "pretrain.vocabulary=280", "pretrain.warmup=2"]  # fmt: skip


@pytest.fixture
def run(tmp_path):
    return TrainingRun(tmp_path, torch.device("cpu"), TrainerConfig(checkpoint_every=2))


@pytest.fixture(scope="module")
def tokenizer():
    return train_tokenizer([tiny.document(seed) for seed in range(20)], 290, cls_sep=True)


@pytest.fixture
def text(text_files, tmp_path):
    """The words of a small text, its cache, and a store."""
    return ["data=text", f"data.files=[{text_files}/*.txt]", "data.evaluation_share=0.5",
            f"data.cache={tmp_path}/cache", f"store={tmp_path}/results"]  # fmt: skip


def test_cosine_rises_falls_and_keeps_a_tenth():
    values = [warmup_then_cosine(step, 100, 10) for step in range(100)]
    assert [values[step] for step in (0, 9, 10, 55, 99)] == pytest.approx([0.1, 1, 1, 0.1 + 0.9 / 2, 0.1], abs=2e-3)


@pytest.mark.ci_slow
def test_pretraining_learns_and_decays_matrices_only(run):
    fixed = torch.arange(32, dtype=torch.int32).repeat(40, 1)
    config = PretrainConfig(tokens=40 * 128, tokens_per_step=128, lr=3e-3, warmup=5)
    module = Pretraining(tiny.native(), config)
    groups = module.configure_optimizers()["optimizer"].param_groups
    assert [group["weight_decay"] for group in groups] == [0.1, 0.0]
    assert {weight.dim() for weight in groups[1]["params"]} == {1}
    fit(module, step_data(fixed, module), run)
    assert module.latest < 1 < math.log(300)


@pytest.mark.ci_slow
def test_bert_learns_hidden_tokens(run, tokenizer):
    architecture = {"num_hidden_layers": 2, "hidden_size": 32, "num_attention_heads": 2, "intermediate_size": 64}
    model = build_mini(architecture, len(tokenizer), 0, "bert")
    fixed = torch.arange(10, 42, dtype=torch.int32).repeat(60, 1)
    config = PretrainConfig(tokens=60 * 128, tokens_per_step=128, lr=1e-2, warmup=5)
    before = masked_losses(model, fixed.long(), tokenizer, torch.Generator().manual_seed(0))[0].mean()
    module = MaskedPretraining(model, config, 0, tokenizer)
    fit(module, step_data(fixed, module), run)
    after = masked_losses(model.eval(), fixed.long(), tokenizer, torch.Generator().manual_seed(0))[0].mean()
    assert after < before - 2


@pytest.mark.parametrize(
    ("keep", "steps"),
    [([3, 1], [3, 1]), ("log2", [0, 1, 2, 4, 8, 10]), ("every=4", [0, 4, 8, 10]), ("every=5", [0, 5, 10]), ([], [])],
)
def test_checkpoints_are_kept_at_these_steps(keep, steps):
    assert PretrainConfig(tokens=1000, tokens_per_step=100, keep=keep).kept_steps == steps


def test_pretraining_shows_no_librarys_progress_bar_or_advice(cli, text, monkeypatch):
    monkeypatch.delenv("TRANSFORMERS_VERBOSITY", raising=False)
    small = ["model.architecture.n_layer=1", "model.architecture.n_embd=16", *SMALL[-3:], "pretrain.keep=[0]"]
    ended = cli("train.py", "task=pretrain", "model=gpt2-mini", *small, *text, "pretrain.tokens=1024")
    assert ended.status == 0, ended.stderr
    assert not re.search(r"it/s|%\||\[transformers\]", ended.stderr + ended.stdout)


@pytest.mark.ci_slow
def test_pretraining_keeps_checkpoints_that_load_by_their_step(cli, text):
    """A run that breaks off and goes on keeps those that it had."""
    words = ["task=pretrain", "model=gelu-3l-mini", *SMALL, *text, "pretrain.tokens=2048", "pretrain.keep='every=3'"]
    folder = cli("train.py", *words).result.folder / "gelu-3l-mini"
    assert list(revision_by_step(ModelConfig(name="m", path=str(folder)))) == [0, 3, 6, 8]
    models = {step: load_model(folder, revision=f"step{step}") for step in (0, 3, 8)}
    assert [model.name for model in models.values()] == [f"gelu-3l-mini@step{step}" for step in (0, 3, 8)]
    assert json.loads((folder / "step3" / "config.json").read_text())["step"] == 3
    last, whole = (load_file(place / "model.safetensors") for place in (folder / "step8", folder))
    assert all(torch.equal(last[name], whole[name]) for name in whole)
    first, third = (ModelConfig(name="m", path=str(folder), revision=f"step{step}") for step in (0, 3))
    assert checkpoint_fingerprint(first) != checkpoint_fingerprint(third)


@pytest.mark.ci_slow
def test_pretraining_makes_a_mini_that_loads(cli, text_files, tmp_path):
    architecture = {"d_model": 16, "n_heads": 2, "d_head": 8, "d_mlp": 32}
    shape = [f"model.architecture.{key}={value}" for key, value in architecture.items()]
    small = ["pretrain.tokens=4096", "pretrain.tokens_per_step=512", "pretrain.vocabulary=280", "pretrain.warmup=2"]
    data = ["data=text", f"data.files=[{text_files}/*.txt]", "data.evaluation_tokens=2048"]
    data += ["data.context=64", "data.evaluation_share=0.3"]
    store = [f"store={tmp_path}/results", f"data.cache={tmp_path}/cache"]
    result = cli("train.py", "task=pretrain", "model=gelu-3l-mini", *shape, *small, *data, *store).result
    folder = result.folder / "gelu-3l-mini"
    files = {"config.json", "model.safetensors", "tokenizer.json"}
    assert {path.name for path in folder.iterdir()} == files
    card = json.loads((folder / "config.json").read_text())
    measured = cli("analyze.py", "measure=loss", f"model.path={folder}", *data, *store)
    assert f"{card['heldout']['loss']:.4f} [" in measured.stdout
    assert measured.result.table["loss"][0] == pytest.approx(card["heldout"]["loss"], abs=1e-3)
