"""Checkpoints by step, and what forms between them."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file

import hub
import tiny
from conftest import composed
from thinkalike.config import ModelConfig, PretrainConfig
from thinkalike.errors import ConfigError, ModelError
from thinkalike.models.load import load_model
from thinkalike.models.places import checkpoint_fingerprint, steps_of

SMALL = ["model.architecture.d_model=16", "model.architecture.n_heads=2", "model.architecture.d_head=8",
         "model.architecture.d_mlp=32", "model.architecture.n_ctx=64", "model.context=64",
         "pretrain.tokens_per_step=256", "pretrain.vocabulary=280", "pretrain.warmup=2"]  # fmt: skip


@pytest.fixture(scope="session")
def text(text_files, tmp_path_factory):
    """The words of a small text, its cache, and a store."""
    folder = tmp_path_factory.mktemp("trajectories")
    return ["data=text", f"data.files=[{text_files}/*.txt]", "data.report_share=0.3", f"data.cache={folder}/cache",
            f"store={folder}/results"]  # fmt: skip


@pytest.fixture
def root(tmp_path):
    return tmp_path / "root"


# ---- checkpoints


@pytest.mark.parametrize(
    ("keep", "steps"),
    [([3, 1], [3, 1]), ("log2", [0, 1, 2, 4, 8, 10]), ("every=4", [0, 4, 8, 10]), ("every=5", [0, 5, 10]), ([], [])],
)
def test_checkpoints_are_kept_at_these_steps(keep, steps):
    assert PretrainConfig(tokens=1000, tokens_per_step=100, keep=keep).kept == steps


@pytest.mark.parametrize("word", ["log3", "every=0", "[11]", "[-1]"])
def test_steps_that_never_come_are_refused(word):
    with pytest.raises(ConfigError, match=r"pretrain\.keep"):
        composed("task=pretrain", "pretrain.tokens=1000", "pretrain.tokens_per_step=100", f"pretrain.keep={word}")


def test_pretraining_keeps_checkpoints_that_load_by_their_step(door, text):
    """A run that breaks off and goes on keeps those that it had."""
    words = ["task=pretrain", *SMALL, *text, "pretrain.tokens=2048", "pretrain.keep=every=3"]
    folder = door("train.py", *words).result.folder / "gelu-3l-mini"
    assert list(steps_of(ModelConfig(name="m", path=str(folder)))) == [0, 3, 6, 8]
    models = {step: load_model(folder, revision=f"step{step}") for step in (0, 3, 8)}
    assert [model.name for model in models.values()] == [f"gelu-3l-mini@step{step}" for step in (0, 3, 8)]
    assert json.loads((folder / "step3" / "config.json").read_text())["step"] == 3
    last, whole = (load_file(place / "model.safetensors") for place in (folder / "step8", folder))
    assert all(torch.equal(last[name], whole[name]) for name in whole)
    assert (
        len(
            {checkpoint_fingerprint(ModelConfig(name="m", path=str(folder), revision=f"step{step}")) for step in (0, 3)}
        )
        == 2
    )


def test_checkpoints_of_a_trainer_sort_as_numbers_and_take_the_tokenizer_beside_them(tmp_path):
    config = ModelConfig(name="local", path=str(tmp_path))
    for step in (1000, 500, 64):
        tiny.write_checkpoint("gpt2", tmp_path / f"checkpoint-{step}", seed=step)
    before = checkpoint_fingerprint(replace(config, revision="checkpoint-64"))
    tiny.write_checkpoint("gpt2", tmp_path)
    whole = checkpoint_fingerprint(config)
    assert steps_of(config) == {64: "checkpoint-64", 500: "checkpoint-500", 1000: "checkpoint-1000"}
    assert load_model(tmp_path, revision="checkpoint-500").n_layers == tiny.LAYERS
    for file in (tmp_path / "checkpoint-500").glob("*token*"):
        file.unlink()
    assert load_model(tmp_path, revision="checkpoint-500").tokenizer.vocab_size == tiny.tokenizer().vocab_size
    assert checkpoint_fingerprint(config) == whole, "the model in the folder is none of its checkpoints"
    assert checkpoint_fingerprint(replace(config, revision="checkpoint-64")) == before


def test_a_revision_that_a_folder_lacks_is_one_line_that_names_those_that_are_there(tmp_path):
    tiny.write_checkpoint("gpt2", tmp_path / "checkpoint-500")
    with pytest.raises(ConfigError, match=r"model\.revision=step5 is not in .*, whose revisions are: checkpoint-500$"):
        load_model(tmp_path, revision="step5")


def test_revisions_of_the_hub_are_found_by_their_steps(served, root):
    for step in (0, 8, 64):
        tiny.write_checkpoint("gpt2", root / "someone" / f"m@step{step}", seed=step + 1)
    tiny.write_checkpoint("gpt2", root / "someone" / "m")
    served()
    config = ModelConfig(name="hub", hub_id="someone/m")
    assert steps_of(config) == {0: "step0", 8: "step8", 64: "step64"}
    assert len({load_model(replace(config, revision=f"step{step}")).fingerprint() for step in (0, 8, 64)}) == 3
    with pytest.raises(ModelError, match=r"has no revision step9; .* there are: main, step0, step8, step64") as caught:
        load_model(replace(config, revision="step9"))
    assert "\n" not in str(caught.value)


def test_without_a_hub_the_revisions_are_those_of_the_cache(served, root, monkeypatch, tmp_path):
    for name in ("m", "m@step8"):
        tiny.write_checkpoint("gpt2", root / "someone" / name)
    served()
    config = ModelConfig(name="hub", hub_id="someone/m")
    load_model(replace(config, revision="step8"))
    hub.redirect(monkeypatch, hub.NOWHERE, tmp_path / "cache")
    assert steps_of(config) == {8: "step8"}
