"""Configurations of the user's own: folders whose files come first, and files that stand for words."""

import os
import re
import shlex
from pathlib import Path

import pytest
import yaml

from conftest import ROOT
from thinkalike.config import TrainConfig, compose_job, entry_points, options
from thinkalike.config.compose import check_overrides
from thinkalike.config.own_files import FOLDER, OWN, with_own
from thinkalike.errors import ConfigError

FILES = {
    "model/ours": "defaults: [schema, _self_]\nname: ours\npath: ~/checkpoints/ours\ncontext: 64\n",
    "model/bare": "name: bare\npath: there\n",  # no defaults
    "model/broken": "name: [\n",
    "stitch/linear": "defaults: [schema, _self_]\nkind: linear\nsteps: 3\nwarmup: 1\n",  # in the place of what ships
    "data/notes": "defaults: [text, _self_]\nfiles: [~/notes/*.txt]\n",
    "mine": "defaults: [train, {model: solu-3l-mini}, {override /stitch: affine}, _self_]\n"
    "seed: 7\nlayers: [[0, 0]]\nstitch: {steps: 30, rates: [0.5, 2]}\nmodel: {architecture: {new: 1}}\n",
    "more": "defaults: [mine, _self_]\nseed: 8\nstitch: {init: identity}\nhydra: {output_subdir: .hydra}\n",
    "plain": "model: solu-3l-mini\nmodel@target: gelu-3l-mini\nstore: ~/it's 5 %\n",
    "grid": "hydra: {sweeper: {params: {seed: '1,2'}}}\nstitch: affine\n",
    "empty": "",
    "torn": "seed: [1\n",
    "list": "[1, 2]\n",
    "words": "defaults: model\n",
    "loop": "defaults: [round]\n",
    "round": "defaults: [loop]\n",
    "lost": "defaults: [nowhere]\n",
}


@pytest.fixture
def own(tmp_path, monkeypatch) -> Path:
    """A folder of configurations of a user's own."""
    monkeypatch.setenv(OWN, "")
    monkeypatch.setenv("HOME", "/home/me")
    for name, text in FILES.items():
        path = tmp_path / "own" / f"{name}.yaml"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path / "own"


def words_of(own: Path, *words: str, door: str = "train") -> list[str]:
    return with_own(door, [f"--config-dir={own}", *words])[0]


def composed(*words: str) -> TrainConfig:
    """The configuration of a command line, which depends on the folders of the test."""
    return compose_job("train", words)


@pytest.mark.parametrize("option", FOLDER)
def test_a_folder_is_given_by_any_of_hydras_options_from_where_one_is(own, monkeypatch, option):
    monkeypatch.chdir(own.parent)
    for words in ([f"{option}=own"], [option, "own"]):
        monkeypatch.setenv(OWN, "")
        assert with_own("train", ["-m", *words, "seed=1"]) == (["-m", "seed=1"], [f"--config-dir={own}"])
        assert os.environ[OWN] == str(own), "which the workers of a sweep have, too"


def test_an_option_of_the_users_is_like_any_other(own):
    words_of(own)
    assert "ours" in options("model")
    check_overrides(["model=ours"], TrainConfig)
    config = composed("model=ours", "model@target=gelu-3l-mini")
    assert (config.model.name, config.model.path, config.model.context) == ("ours", "/home/me/checkpoints/ours", 64)
    assert composed("model=bare", "model@target=gelu-3l-mini").model.path == "there", "a file needs no defaults"
    assert composed("data=notes").data.files == ["/home/me/notes/*.txt"]
    assert composed("model.corpus=notes").data.files == ["/home/me/notes/*.txt"], "data=auto finds it, too"


def test_the_users_files_come_before_those_that_ship(own, monkeypatch):
    assert composed("stitch=linear").stitch.steps == 300, "control"
    words_of(own)
    assert composed("stitch=linear").stitch.steps == 3
    assert composed("stitch=linear", "stitch.steps=5").stitch.steps == 5
    second = own.parent / "second" / "stitch"
    second.mkdir(parents=True)
    (second / "linear.yaml").write_text("defaults: [schema, _self_]\nkind: linear\nsteps: 4\nwarmup: 1\n")
    words_of(second.parent, f"--config-dir={own}")
    assert composed("stitch=linear").stitch.steps == 4, "the folder that is given first comes first"
    assert "ours" in options("model")


def test_a_configuration_stands_for_its_words_and_those_given_win(own):
    words = words_of(own, "-cn=mine", "seed=9")
    assert words == words_of(own, "--config-name=mine", "seed=9")
    assert words == [
        "model=solu-3l-mini",
        "stitch=affine",
        "layers=[[0,0]]",
        "stitch.steps=30",
        "stitch.lr_multiples=[0.5,2]",
        "++model.architecture={new:1}",
        "seed=9",
    ]
    config = composed(*words)
    assert config == composed(*words[:5], "+model.architecture.new=1", "seed=9")
    assert (config.target.name, config.seed) == ("solu-3l-mini", 9), "it names a model, so the target is that, too"


def test_a_configuration_may_rest_on_another_one(own):
    words = words_of(own, "-cn", "more.yaml")
    assert "seed=8" in words
    assert "seed=7" not in words
    assert "++hydra.output_subdir='.hydra'" in words
    assert composed(*words[:-1]).stitch.steps == 30


def test_a_configuration_may_be_a_sweep(own):
    assert words_of(own, "-m", "-cn", "grid") == ["-m", "seed=1,2", "stitch=affine"]
    with pytest.raises(ConfigError, match="seed=1,2 has several values; sweep over them with -m"):
        check_overrides(words_of(own, "-cn", "grid"), TrainConfig, sweeps=False)


REFUSED = {  # a line, and what the message names
    "-cn mime": "'mine'",
    "-cn": "--config-name=",
    "-cp seed=1": "seed=1",
    "-cp nowhere": "nowhere",
    "-cn analyze": "analyze",
    "-cn list": "list.yaml",
    "-cn words": "words.yaml",
    "-cn loop": "loop",
    "-cn lost": "nowhere",
}


@pytest.mark.parametrize("line", REFUSED)
def test_what_is_wrong_with_own_configurations_is_said(own, line):
    with pytest.raises(ConfigError) as caught:
        words_of(own, *line.split(" "))
    assert REFUSED[line] in str(caught.value)


def test_a_file_with_the_name_of_an_entry_point_is_refused(own):
    (own / "train.yaml").write_text("seed: 3\n")
    with pytest.raises(ConfigError, match=r"train\.yaml"):
        words_of(own)
    assert words_of(own, door="analyze") == []


def test_the_command_line_of_a_result_names_the_folders(monkeypatch):
    monkeypatch.setattr("sys.argv", ["train.py"])
    monkeypatch.setenv(entry_points.PROGRAM, "")
    monkeypatch.setattr(entry_points, "_overrides", None)
    entry_points.called("train", ["--config-dir=/my own"])
    entry_points.begin(["seed=1"])
    assert entry_points.command_line() == "python train.py '--config-dir=/my own' seed=1"


def test_the_example_of_the_documentation_runs(door):
    page = (ROOT / "docs" / "reference" / "commands.md").read_text()
    for name, text in re.findall(r'```yaml title="(.*?)"\n(.*?)```', page, re.DOTALL):
        (door.folder / name).parent.mkdir(parents=True, exist_ok=True)
        (door.folder / name).write_text(text)
    (line,) = re.findall(r"^    python (train\.py -cp .*)$", page, re.MULTILINE)
    script, *words = shlex.split(line)
    shown = yaml.safe_load(door(script, *words, "--cfg", "job", "--resolve", env={OWN: ""}).stdout)
    assert (shown["stitch"]["steps"], shown["layers"], shown["seed"]) == (40, [[1, 1]], 1)
    assert (shown["target"]["name"], shown["data"]["report_tokens"]) == ("solu-3l-mini", 8192)
