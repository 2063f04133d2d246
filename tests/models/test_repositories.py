"""Models by the name of their repository: they compose, load and are told apart; and what a repository may lack."""

import json
import os
import re
import shutil
from dataclasses import replace

import pytest
from safetensors.torch import load_file, save_file

import hub
from conftest import composed
from thinkalike.config import ModelConfig, compose_job, options
from thinkalike.errors import ModelError
from thinkalike.models.fingerprints import checkpoint_fingerprint
from thinkalike.models.labels import distinct_labels, label
from thinkalike.models.load import load_model, load_models


@pytest.mark.parametrize("entry", ["train", "analyze"])
def test_a_repository_is_a_model_of_both_commands(entry):
    name = "Some-Org/A.b_c-1.2B"
    config = composed(f"model={name}", entry=entry)
    assert config.model == config.target == composed("model=hub", f"model.hub_id={name}").model
    model = config.model
    assert (model.hub_id, model.family, model.corpus, model.context) == (name, "auto", "pile-val", None)
    assert (label(model), config.data.name) == ("A.b_c-1.2B", "pile-val")


@pytest.mark.parametrize(
    ("words", "model", "target"),
    [
        (["model=a/b", "model.revision=r", "target.revision=s"], ("a/b", "r"), ("a/b", "s")),
        (["model=a/b", "model.revision=r", "model@target=c/d"], ("a/b", "r"), ("c/d", None)),
        (["model=a/b", "model.revision=r", "target.hub_id=c/d"], ("a/b", "r"), ("c/d", None)),
        (["model=a/b", "model@target=gpt2"], ("a/b", None), ("openai-community/gpt2", None)),
    ],
)
def test_the_target_is_the_named_repository_or_the_source(words, model, target):
    config = composed(*words)
    assert (config.model.hub_id, config.model.revision) == model
    assert (config.target.hub_id, config.target.revision) == target


def test_a_repository_takes_the_settings_of_any_model():
    words = ["model.dtype=bfloat16", "model.context=64", "model.corpus=c4-code", "model.family=llama"]
    config = composed("model=a/b", *words, "model@target=c/d")
    assert (config.model.dtype, config.model.context, config.model.family) == ("bfloat16", 64, "llama")
    assert config.data.name == "c4-code"
    assert (config.target.dtype, config.target.context, config.target.family) == ("bfloat16", 64, "auto")


@pytest.mark.parametrize(
    ("word", "side", "path"),
    [
        ("model=./run", "model", "./run"),
        ("model=runs/here", "model", "runs/here"),
        ("model='/run/my last'", "model", "/run/my last"),
        ("model@target=../a/b", "target", "../a/b"),
        ("model=a.gguf", "model", "a.gguf"),
    ],
)
def test_a_model_may_be_given_by_its_folder(word, side, path, monkeypatch, tmp_path):
    (tmp_path / "runs" / "here").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    model = getattr(compose_job("train", [word]), side)
    assert (model.name, model.path, model.bos) == ("local", path, None)


def test_the_guide_names_every_model():
    from conftest import ROOT

    text = (ROOT / "docs/guide/models.md").read_text()
    listed = text[text.index("`conf/model/` lists") :].split("\n- **")[0]
    spelt = set()
    for word in re.findall(r"`([^`]+)`", listed):
        stem, _, rest = word.partition("{")
        inside, _, after = rest.partition("}")
        spelt |= {f"{stem}{each}{after}" for each in inside.split(",")}
    unnamed = [
        name for name in options("model") if name not in spelt and not re.search(r"-mini|^pythia-|^hub$|^local$", name)
    ]
    assert unnamed == []


@pytest.fixture
def root(tmp_path, checkpoints):
    """Repositories of small models."""
    for owner, family in (("someone", "gpt2"), ("other", "gpt_neox")):
        shutil.copytree(checkpoints[family], tmp_path / "hub" / owner / "m")
    return tmp_path / "hub"


MODEL = ModelConfig(name="hub", hub_id="someone/m")


def line_of(call):
    with pytest.raises(ModelError) as caught:
        call()
    return str(caught.value)


def test_a_folder_is_not_taken_for_a_repository_of_its_name(served, monkeypatch, tmp_path):
    served()
    (tmp_path / "someone" / "m").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    assert "someone/m is also a folder here" in line_of(lambda: load_model(MODEL))


def test_a_revision_that_is_not_there_is_refused(served):
    served(revisions=("step1000",))
    for call in (load_model, checkpoint_fingerprint):
        config = ModelConfig(name="hub", hub_id="someone/m", revision="step100")
        assert "someone/m has no revision step100" in line_of(lambda call=call, config=config: call(config))
    assert load_model(ModelConfig(name="hub", hub_id="someone/m", revision="step1000")).revision == hub.COMMIT


def test_a_repository_is_loaded_by_its_name(served):
    served()
    named = load_model("someone/m", revision=hub.COMMIT)
    assert (named.name, named.revision) == (f"m@{hub.COMMIT}", hub.COMMIT)
    assert named.fingerprint() == load_model(MODEL).fingerprint()


@pytest.mark.parametrize(
    ("kind", "words"), [("gated", "someone/m is gated: .*/someone/m, and set HF_TOKEN"), ("private", "it is private")]
)
def test_a_gated_repository_needs_a_token_and_says_so(served, monkeypatch, kind, words):
    for token in (None, "hf_stranger", hub.READER):
        served(cache=str(token), **{kind: ("someone/m",)})
        monkeypatch.setattr("huggingface_hub.utils._headers.get_token", lambda token=token: token)
        if token == hub.READER:
            assert load_model(MODEL).revision == hub.COMMIT
        else:
            assert re.search(words, line_of(lambda: load_model(MODEL)))


def with_index(folder, name="model.safetensors"):
    """Divide the weights of a checkpoint in two, with an index; returns the names of the shards."""
    weights = sorted(load_file(folder / "model.safetensors").items())
    (folder / "model.safetensors").unlink()
    shards = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]
    for number, shard in enumerate(shards):
        save_file(dict(weights[number::2]), folder / shard, {"format": "pt"})
    places = {key: shards[number % 2] for number, (key, _) in enumerate(weights)}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": places}))
    return shards


def only(*files):
    def change(folder):
        (folder / "model.safetensors").unlink()
        for file in files:
            (folder / file).write_bytes(b"weights")

    return change


def emptied(folder):
    for path in folder.iterdir():
        path.unlink()
    (folder / ".gitattributes").write_text("")


def without_a_shard(folder):
    (folder / with_index(folder)[1]).unlink()


def piped(folder):
    (folder / "tokenizer_config.json").unlink()
    os.mkfifo(folder / "tokenizer_config.json")


LACKING = {
    "empty": (emptied, "config.json"),
    "no weights": (only("training_args.bin", "optimizer.pt"), "model.safetensors"),
    "a pipe": (piped, "tokenizer_config.json is not a regular file"),
    "an adapter": (only("adapter_model.safetensors", "adapter_config.json"), "adapter_config.json"),
    "a base with an adapter": (lambda folder: (folder / "adapter_config.json").touch(), "adapter_config.json"),
    "a shard": (without_a_shard, "model-00002-of-00002"),
}


@pytest.mark.parametrize("case", LACKING)
def test_a_repository_or_folder_that_lacks_weights_says_so(case, served, root):
    change, words = LACKING[case]
    change(root / "someone" / "m")
    served()
    local = ModelConfig(name="local", path=str(root / "someone" / "m"))
    for config in (MODEL, local)[case == "a pipe" :]:
        line = line_of(lambda config=config: load_model(config))
        assert words in line
        assert "someone/m" in line


PYTHIA = ModelConfig(name="pythia")


@pytest.mark.parametrize(
    ("changes", "labels"),
    [
        ({}, ["pythia", "pythia"]),
        ({"revision": "step1"}, ["pythia", "pythia@step1"]),
        ({"name": "other"}, ["pythia", "other"]),
        ({"dtype": "bfloat16"}, ["pythia[dtype=float32]", "pythia[dtype=bfloat16]"]),
        ({"context": 64, "side": "encoder"}, ["pythia[side=None,context=None]", "pythia[side=encoder,context=64]"]),
    ],
)
def test_models_of_one_label_are_called_by_what_differs(changes, labels):
    assert distinct_labels([PYTHIA, replace(PYTHIA, **changes)]) == labels


def test_whatever_two_models_differ_in_is_named():
    assert distinct_labels([PYTHIA, replace(PYTHIA, path="/a")]) == ["pythia[path=None]", "pythia[path=/a]"]
    assert distinct_labels([PYTHIA, replace(PYTHIA, bos=True)]) == ["pythia[bos=False]", "pythia[bos=True]"]
    assert distinct_labels([PYTHIA, replace(PYTHIA, corpus="stdlib")]) == ["pythia"] * 2, (
        "what text it suits is no part"
    )
    owned = [composed(f"model={name}").model for name in ("a/m", "b/m", "a/n")]
    assert distinct_labels(owned) == ["m[hub_id=a/m]", "m[hub_id=b/m]", "n"]


def test_folders_of_one_name_are_told_apart_by_those_above_them():
    paths = ["/runs/a/final/checkpoint", "/runs/b/final/checkpoint", "/runs/c/other"]
    folders = [ModelConfig(name="local", path=path) for path in paths]
    assert distinct_labels(folders) == ["a/final/checkpoint", "b/final/checkpoint", "other"]
    typed = replace(folders[0], dtype="bfloat16")
    assert distinct_labels([folders[0], typed]) == ["checkpoint[dtype=float32]", "checkpoint[dtype=bfloat16]"]


def test_a_folders_label_is_its_name_however_written(tmp_path, monkeypatch):
    (tmp_path / "my-model").mkdir()
    monkeypatch.chdir(tmp_path / "my-model")
    for path in (".", "./", "../my-model", "../my-model/", "../my-model.gguf"):
        assert label(ModelConfig(name="local", path=path)) == "my-model"
    both = [ModelConfig(name="local", path=path) for path in (".", "b/my-model")]
    assert distinct_labels(both) == [f"{tmp_path.name}/my-model", "b/my-model"]


def test_a_model_that_is_named_twice_is_loaded_once(minis):
    config = ModelConfig(name="gelu-3l-mini", family="native", path=str(minis / "a"), mini=True)
    one, two, other = load_models(config, replace(config), replace(config, dtype="float64"))
    assert one is two
    assert one is not other
    assert {one.name, other.name} == {"gelu-3l-mini[dtype=float32]", "gelu-3l-mini[dtype=float64]"}
