"""What tables call models: no two models of a result have one name."""

from dataclasses import replace

import pytest

from thinkalike.config import ModelConfig
from thinkalike.models.families import label, told_apart
from thinkalike.models.load import load_models

MODEL = ModelConfig(name="pythia")


@pytest.mark.parametrize(
    ("changes", "labels"),
    [
        ({}, ["pythia", "pythia"]),
        ({"revision": "step1"}, ["pythia", "pythia@step1"]),
        ({"name": "other"}, ["pythia", "other"]),
        ({"dtype": "bfloat16"}, ["pythia[dtype=float32]", "pythia[dtype=bfloat16]"]),
        ({"seed": 1, "processing": "compat"}, ["pythia[processing=raw,seed=0]", "pythia[processing=compat,seed=1]"]),
    ],
)
def test_models_of_one_label_are_called_by_what_differs(changes, labels):
    assert told_apart([MODEL, replace(MODEL, **changes)]) == labels


def test_whatever_two_models_differ_in_is_named():
    assert told_apart([MODEL, replace(MODEL, path="/a")]) == ["pythia[path=None]", "pythia[path=/a]"]
    assert told_apart([MODEL, replace(MODEL, bos=True)]) == ["pythia[bos=False]", "pythia[bos=True]"]
    assert told_apart([MODEL, replace(MODEL, corpus="stdlib")]) == ["pythia", "pythia"], "what text it suits is no part"


def test_folders_of_one_name_are_told_apart_by_those_above_them():
    paths = ["/runs/a/final/checkpoint", "/runs/b/final/checkpoint", "/runs/c/other"]
    folders = [ModelConfig(name="local", path=path) for path in paths]
    assert told_apart(folders) == ["a/final/checkpoint", "b/final/checkpoint", "other"]
    typed = replace(folders[0], dtype="bfloat16")
    assert told_apart([folders[0], typed]) == ["checkpoint[dtype=float32]", "checkpoint[dtype=bfloat16]"]


def test_a_folders_label_is_its_name_however_written(tmp_path, monkeypatch):
    (tmp_path / "my-model").mkdir()
    monkeypatch.chdir(tmp_path / "my-model")
    for path in (".", "./", "../my-model", "../my-model/", "../my-model.gguf"):
        assert label(ModelConfig(name="local", path=path)) == "my-model"
    assert told_apart([ModelConfig(name="local", path=path) for path in (".", "b/my-model")]) == [
        f"{tmp_path.name}/my-model",
        "b/my-model",
    ]


def test_a_model_that_is_named_twice_is_loaded_once(minis):
    config = ModelConfig(name="gelu-3l-mini", family="native", path=str(minis / "a"), mini=True)
    one, two, other = load_models(config, replace(config), replace(config, dtype="float64"))
    assert one is two
    assert one is not other
    assert {one.name, other.name} == {"gelu-3l-mini[dtype=float32]", "gelu-3l-mini[dtype=float64]"}
