"""Words of a command line, or names given to a function, that no option, file or folder has: one plain line each."""

from __future__ import annotations

import os
import socket

import numpy as np
import pandas as pd
import pytest

import thinkalike
from conftest import every_second
from stores import finish
from thinkalike.cli.words import options_first
from thinkalike.errors import ConfigError, ModelError, StoreError
from thinkalike.files import is_folder, is_there

LONG = "a" * 300  # names of files have at most 255 bytes
ESCAPE = "\x1b[31m"

REFUSED_WORDS = {
    "a number for an option": ("analyze.py", ["stimuli=1"], "stimuli=1 is not the name of an option"),
    "another number": ("analyze.py", ["model=1e9"], "model=1e9 is not the name of an option"),
    "a number that may be a name": ("train.py", ["model=3"], "read as a number; write \"model='3'\" for an option of"),
    "a truth value that may be a name": (
        "train.py",
        ["model=TRUE"],
        "read as a truth value; write \"model='true'\" for",
    ),
    "a bare null": ("train.py", ["model=null"], "without quotes it is read as no value; write \"model='null'\" for an"),
    "a repository of no form": (
        "train.py",
        ["model.hub_id=a/b/c"],
        "model.hub_id=a/b/c must be ORG/NAME or NAME, as on",
    ),
    "a switch for an option": ("train.py", ["stitch=true"], "stitch=true is not the name of an option"),
    "nothing for an option": ("train.py", ["stitch=null"], "stitch=null is not the name of an option"),
    "an unknown option": ("train.py", ["--foo"], "--foo is not an option; did you mean '--info'?"),
    "an option with escape codes": ("train.py", [f"--{ESCAPE}foo"], "-- [31mfoo is not an option"),
    "an option without a value": ("train.py", ["--config-dir"], "expected one argument; --help shows all options"),
    "a very long list": ("train.py", [f"data.files=[{','.join(map(str, range(3000)))}"], "no viable alternative"),
    "a launcher that is not installed": (
        "train.py",
        ["-m", "hydra/launcher=slurm", "seed=1,2"],
        "hydra/launcher=slurm needs hydra-submitit-launcher: pip install 'thinkalike[slurm]'",
    ),
    "a run in no folder": ("train.py", ["hydra.run.dir=/proc/x"], "choose hydra.run.dir=DIR"),
    "a long model": ("analyze.py", [f"model=./{LONG}"], "the folder "),
    "a long file": ("analyze.py", ["data=text", f"data.files=[{LONG}]"], "data.files: nothing matches"),
    "a long store": ("train.py", [f"store={LONG}"], "cannot be read: File name too long; choose store=DIR"),
}


@pytest.mark.parametrize("what", every_second(REFUSED_WORDS))
def test_words_that_name_nothing_are_one_line(what, cli):
    script, words, message = REFUSED_WORDS[what]
    done = cli(script, *words)
    lines = done.stderr.strip().splitlines()
    assert (done.status, len(lines)) == (1, 1), done.stderr
    assert message in lines[0]
    assert lines[0].isprintable()
    assert len(lines[0]) < 2000


@pytest.mark.parametrize(
    "words",
    [
        ["-m", "stitch=affine", "seed=1,2"],
        ["stitch=affine", "-m", "seed=1,2"],
        ["stitch=affine", "seed=1,2", "-m"],
        ["stitch=affine", "--multirun", "seed=1,2"],
    ],
)
def test_an_option_may_stand_anywhere(words):
    ordered = options_first(words)
    assert ordered[0] in ("-m", "--multirun")
    assert ordered[1:] == ["stitch=affine", "seed=1,2"]


@pytest.mark.parametrize("script", ["train.py", "analyze.py"])
@pytest.mark.parametrize("words", [["--version"], ["seed=1", "--vers"]])
def test_the_version_is_that_of_this_program(script, words, cli):
    done = cli(script, *words)
    assert done.status == 0
    assert done.stdout.startswith("thinkalike ")


@pytest.mark.parametrize("name", [".rank", "stitch.rank"])
def test_a_setting_may_stand_for_the_one_beside_it(name, cli):
    assert "store=null" in cli("train.py", f"stitch.lr=${{{name}}}", "store=null").error, "all before that is read"


def test_the_value_of_an_option_stays_with_it():
    words = ["seed=1", "--config-dir", "conf", "--config-name", "mine", "data=grammar"]
    assert options_first(words) == ["--config-dir", "conf", "--config-name", "mine", "seed=1", "data=grammar"]


@pytest.mark.parametrize("ending", ["", ".gguf", ".ckpt", "/x"])
def test_a_model_whose_name_no_file_can_have_is_one_line(ending):
    with pytest.raises((ModelError, ConfigError), match=r"^[^\n]*$"):
        thinkalike.load_model(f"./{LONG}{ending}")


def test_other_places_whose_name_no_file_can_have_are_one_line(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    few = {"batches": 1, "tokens_per_batch": 128}
    with pytest.raises(ConfigError, match=r"store=a.* has a name of more than 255 bytes"):
        thinkalike.compare("gelu-3l-mini", store=LONG, **few)
    with pytest.raises(ConfigError, match=r"folder=a.* has a name of more than 255 bytes"):
        thinkalike.open_result(LONG)
    with pytest.raises(ConfigError, match=r"stimuli=/.* has a name of more than 255 bytes"):
        thinkalike.mlem("gelu-3l-mini", stimuli=tmp_path / f"{LONG}.csv")
    with pytest.raises(ConfigError):
        thinkalike.diff("gelu-3l-mini", LONG)


def test_what_is_there_is_asked_in_one_place(tmp_path, monkeypatch):
    assert is_there(tmp_path)
    assert is_folder(tmp_path)
    for name in (LONG, f"{LONG}/{LONG}", "a\0b", "nothing"):
        assert not is_there(tmp_path / name)
        assert not is_folder(tmp_path / name)

    def denied(path):
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr("pathlib.Path.exists", denied)
    monkeypatch.setattr("pathlib.Path.is_dir", denied)
    for question in (is_there, is_folder):
        with pytest.raises(ConfigError, match="cannot be looked at: Permission denied"):
            question(tmp_path)


def test_a_dry_run_of_recorded_states_names_no_model(cli):
    states = np.random.default_rng(0).normal(size=(40, 6)).astype(np.float32)
    np.savez(cli.folder / "a.npz", layer_0=states, layer_1=2 * states)
    done = cli("analyze.py", "measure=cka", "activations=a.npz", "dry_run=true")
    assert "Traceback" not in done.stderr
    assert done.status == 0, done.stderr


def test_a_socket_in_the_place_of_a_manifest_is_one_line(tmp_path, monkeypatch):
    result = finish(tmp_path, "stitching", "abc", {"table": pd.DataFrame({"loss": [1.0]})})
    monkeypatch.chdir(result.folder)
    os.remove("manifest.json")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind("manifest.json")
        with pytest.raises(StoreError, match=r"manifest\.json is damaged \(is not a regular file\)"):
            result.fingerprint()
