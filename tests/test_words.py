"""The words of a command line: what is read, what is said of the rest, and what other frameworks call a setting."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser

from conftest import composed
from thinkalike.config import AnalyzeConfig, DataConfig, ModelConfig, TrainConfig, compose_job
from thinkalike.config.doors import sweeps
from thinkalike.config.doors.sweeps import jobs_of_sweep
from thinkalike.config.overrides import at_home, parse_overrides, quoted, values_of
from thinkalike.errors import ConfigError, ResourceError, nearest

DOORS = {"train.py": TrainConfig, "analyze.py": AnalyzeConfig}

# ------------------------------------------------------------------------------------------------------ the home folder


@pytest.fixture
def home(monkeypatch):
    monkeypatch.setenv("HOME", "/home/me")


@pytest.mark.parametrize(
    ("word", "read"),
    [
        ("store=~/x", "/home/me/x"),
        ("store=~", "/home/me"),
        ("store='~/x'", "/home/me/x"),
        ("data.files=[~/a.txt,~/b/*.txt]", ["/home/me/a.txt", "/home/me/b/*.txt"]),
        ("data.files=[a.txt, ~/b.txt]", ["a.txt", "/home/me/b.txt"]),
        ("models=[{model:~/run,revision:main}]", [{"model": "/home/me/run", "revision": "main"}]),
        ("store='a~b'", "a~b"),
        ("store='x/~/y'", "x/~/y"),
        ("model.name='~ is about'", "~ is about"),
    ],
)
def test_a_tilde_is_the_home_folder_where_a_path_may_begin(home, word, read):
    (override,) = parse_overrides(at_home([word]))
    value = override.value()
    assert (values_of(override)[0] if not isinstance(value, list) else value) == read


def test_a_tilde_before_a_key_leaves_it_out():
    assert at_home(["~model.architecture.d_mlp", "~seed"]) == ["~model.architecture.d_mlp", "~seed"]


def test_a_user_has_a_home_and_no_one_has_none():
    assert at_home(["store=~root/x"]) == [f"store={os.path.expanduser('~root')}/x"]
    with pytest.raises(ConfigError, match="nobodyatall"):
        parse_overrides(at_home(["store=~nobodyatall/x"]))


def test_a_tilde_of_a_file_or_of_python_is_the_home_folder_too(home):
    assert ModelConfig(name="x", path="~/run").path == "/home/me/run"
    data = DataConfig(name="x", files=["~/a", "b"], cache="~/c")
    assert (data.files, data.cache) == (["/home/me/a", "b"], "/home/me/c")
    assert compose_job("train", ["store=~/x"]).store == "/home/me/x"


# -------------------------------------------------------------------------------------------------- what cannot be read

UNREADABLE = ["", "  ", "seed =1", "größe=1", "seed", "layers=[[0,0]", "layers=[[0,0]]]", "store='it", "seed=cast(x)"]


@pytest.mark.parametrize("word", UNREADABLE)
def test_what_cannot_be_read_is_refused_by_its_word(word):
    with pytest.raises(ConfigError) as caught:
        parse_overrides(at_home(["scale=mini", word]))
    assert repr(word) in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("word", ["model=./größe", "store=naïve path", "model.name=日本"])
def test_a_plain_value_needs_no_quotes(word):
    (override,) = parse_overrides(at_home([word]))
    assert values_of(override) == [word.partition("=")[2]]


@pytest.mark.parametrize("value", [None, True, 3, 1e-3, "a b", "it's", "null", "größe", ["a", 1], {"a": "b c"}, "a\\"])
def test_a_value_is_quoted_so_that_it_is_read_again(value):
    (override,) = OverridesParser.create().parse_overrides([f"key={quoted(value)}"])
    assert values_of(override)[0] == value


# ----------------------------------------------------------------------------------------- what Hydra and OmegaConf say

REFUSED = {  # by what the message must name
    "other": ["+model@other=gpt2"],
    "stitch": [
        "+stitch=affine",
        "~stitch",
        "stitch=Linear",
        "stitch.stepz=3",
        "+stitch.stepz=3",
        "stitch.steps.more=3",
    ],
    "NOPE": ["seed=${NOPE}", "seed=${oc.env:NOPE}"],
    "seed": ["+seed=1", "seed=${seed}", "seed=1,2", "seed=abc"],
    "submitit_slum": ["hydra/launcher=submitit_slum"],
    "stitch.rates' or 'sae.rates": ["rates=[1]"],
    "target": ["target=gpt2", "target.nope=1"],
    "model": ["model=gpt2@main", "model=GPT2", "model=https://huggingface.co/org/name", "model=", "model=null"],
    "measure": ["measure=cka"],
    "chosen": ["chosen=[a]"],
    "foo": ["foo=1", "+foo=1", "++foo=1"],
}


@pytest.mark.parametrize(("said", "word"), [(said, word) for said, words in REFUSED.items() for word in words])
def test_what_does_not_exist_is_refused_in_one_line_that_names_it(said, word, monkeypatch):
    monkeypatch.delenv("NOPE", raising=False)
    with pytest.raises(ConfigError) as caught:
        composed(word)
    assert said in str(caught.value)
    assert str(caught.value).isprintable()


def test_slurm_that_takes_no_jobs_is_one_line(tmp_path):
    def run():
        raise RuntimeError('Could not detect "srun", are you indeed on a slurm cluster?\nmore')

    def other():
        raise RuntimeError("another thing")

    words = ["-m", "hydra/launcher=slurm", f"store={tmp_path}"]
    with pytest.raises(ResourceError, match='SLURM does not take the jobs: Could not detect "srun", are you indeed'):
        sweeps.sweep(run, words, print)
    with pytest.raises(RuntimeError, match="another thing"):
        sweeps.sweep(other, words, print)


# ----------------------------------------------------------------------------------------------- misspelt and misplaced


def test_names_are_near_whatever_their_case():
    assert nearest("LINEAR", ["linear", "Affine"]) == "did you mean 'linear'?"
    assert nearest("affin", ["linear", "Affine"]) == "did you mean 'Affine'?"


# ----------------------------------------------------------------------------------------------- options, sweeps, Hydra

REFUSED = {
    "--seed=3": "unrecognized arguments: --seed=3; settings are given as key=value, without dashes",
    "--cfg nope": "argument --cfg/-c: invalid choice: 'nope'",
    "seed": "'seed'",
    "data.context=${model.contxt}": "data.context: ",
    "data.context=${model.context} seed=-1": "error: seed=-1 must be",
    "seed=${nope}": "nope",
    "stitch.steps=${stitch.warmup} stitch.warmup=${stitch.steps}": "stitch.steps",
    "hydra/launcher=joblib": "hydra/launcher=joblib is for the jobs of a sweep; add -m, also for a single job",
    "hydra/launcher=slurm seed=1": "hydra/launcher=slurm is for the jobs of a sweep",
    "-m hydra.output_subdir=.hydra seed=1,2": "hydra.output_subdir= of a sweep needs a folder for each of its jobs",
    "hydra.searchpath=[x]": "hydra.searchpath=[x] is said by --config-dir DIR here",
    "hydra.mode=MULTIRUN": "hydra.mode=MULTIRUN is said by -m here",
    "hydra.verbose=3": "hydra.verbose=3 must be true, the name of a logger, or a list of such names",
    "seed=range(5,1,0) -m": "seed=range(5,1,0) stands for no values: range() arg 3 must not be zero",
    "-m seed=range(5,1)": "seed=range(5,1) stands for no values; there would be no job",
    "-m model=glob(nope*)": "model=glob(nope*) stands for no values",
    "-m seed=interval(0,1)": "INTERVAL_SWEEP",
}


@pytest.mark.parametrize("line", REFUSED)
def test_what_hydra_would_pass_over_or_say_in_its_own_way_is_one_line(door, line):
    assert REFUSED[line] in door("train.py", *line.split(" ")).error


def test_options_may_stand_between_and_behind_overrides(door):
    shown = door("train.py", "seed=3", "--cfg", "job", "--package", "stitch", "stitch.steps=7", "stitch.warmup=1")
    assert shown.status == 0, shown.stderr
    assert "steps: 7" in shown.stdout
    assert "has several values" not in door("train.py", "seed=-1,-2", "-m", "store=x").stderr


@pytest.mark.parametrize(
    ("words", "count"),
    [
        (["seed=1,2", "stitch.lr=1,2,3"], "6"),
        (["seed=range(5)"], "5"),
        (["model=glob(solu-*-mini)"], "2"),
        (["stitch.lr=interval(0,1)", "seed=1,2"], "?"),
        ([], "1"),
    ],
)
def test_the_jobs_of_a_sweep_are_counted(words, count):
    assert jobs_of_sweep(parse_overrides(words)) == count


def test_hydras_own_record_of_a_job_is_kept_where_it_is_asked_for(door):
    refused = door("train.py", "hydra.output_subdir=.hydra", "stitch.momentum=1", "seed=3")
    assert "stitch.momentum=1 must be" in refused.error, "the record is written before the job begins"
    written = {path.name for path in (door.folder / ".hydra").iterdir()}
    assert written == {"config.yaml", "hydra.yaml", "overrides.yaml"}
    assert "seed: 3" in Path(door.folder, ".hydra", "config.yaml").read_text()
