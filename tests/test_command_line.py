"""The command line is Hydra's: its own options, groups and errors, as its documentation has them, in a real process."""

from __future__ import annotations

import pytest
import yaml
from hydra import compose, initialize
from hydra.core.global_hydra import GlobalHydra

from conftest import ROOT
from thinkalike.config import compose_job
from thinkalike.errors import ConfigError

FILES = {
    "own/model/ours.yaml": "defaults: [gelu-3l-mini, _self_]\nname: ours\ncontext: 64\n",
    "own/data/notes.yaml": "defaults: [text, _self_]\nname: notes\nfiles: [~/notes/*.txt]\n",
    "own/hydra/launcher/mine.yaml": "defaults: [joblib, _self_]\nn_jobs: 2\n",
    "own/mine.yaml": "defaults: [train, {override stitch: affine}, _self_]\n"
    "layers: [[1, 1]]\nstitch: {steps: 6, warmup: 1, tokens_per_step: 512}\ndata: {report_tokens: 4096}\n",
}


@pytest.fixture
def own(cli):
    for name, text in FILES.items():
        (cli.folder / name).parent.mkdir(parents=True, exist_ok=True)
        (cli.folder / name).write_text(text)
    return cli


@pytest.mark.slow
@pytest.mark.ci_slow
def test_a_sweep_of_own_files_by_an_own_launcher(own):
    words = ["--config-dir=own", "--config-name=mine", "hydra/launcher=mine", "hydra.sweep.dir=there", "seed=0,1"]
    done = own.process("train.py", "-m", *words)
    assert done.status == 0, done.stderr
    assert done.stdout.count("results: results/stitching/") == 2
    assert "jobs of the sweep: 2" in done.stdout
    assert (own.folder / "there" / "multirun.yaml").is_file()
    again = own("train.py", "--config-dir=own", "--config-name=mine", "seed=1")
    assert "already done" in again.stderr, "it is one of these jobs"
    assert again.result.config["layers"] == [[1, 1]]
    assert again.result.provenance["command"].endswith(f"--config-dir={own.folder}/own --config-name=mine seed=1")


def shown(cli, *words):
    return yaml.safe_load(cli("train.py", *words, "--cfg", "job").stdout)


def test_cfg_shows_the_composed_configuration(own):
    config = shown(own, "-cd", "own", "-cn", "mine", "model=ours", "+model.architecture.new=1", "~logger")
    assert (config["model"]["context"], config["model"]["architecture"]["new"]) == (64, 1)
    assert (config["stitch"]["steps"], config["stitch"]["loss"], config["target"]["name"]) == (6, None, None)
    assert config["logger"]["kind"] == "csv", "the default"


def test_hydra_says_where_it_looks_and_completes_words(own):
    assert "thinkalike://" in own("train.py", "--info", "searchpath").stdout
    query = {"COMP_LINE": "train.py stitch=l", "COMP_POINT": "17"}
    said = own.process("train.py", "-sc", "query=bash", env=query).stdout.split()
    assert said == ["stitch=least_squares", "stitch=linear", "stitch=low_rank"]


REFUSED = {
    "-cd nowhere": "Additional config directory",
    "-cd own -cn mime": "Cannot find primary config 'mime'",
    "stitch.momentum=1": "stitch.momentum=1 must be less than 1",
    "stitch=low_rank stitch.whiten=true": "stitch.whiten=true is for sgd",
    "stitch.floor=true": "stitch.floor=true is for stitch.loss=cross_entropy",
}


@pytest.mark.parametrize("line", REFUSED)
def test_what_is_wrong_is_one_line(own, line):
    assert REFUSED[line] in own("train.py", *line.split()).error


def test_composing_works_inside_another_hydra_application(tmp_path, monkeypatch):
    """Hydra has one global state, which another application, or a notebook, may be using."""
    (tmp_path / "other.yaml").write_text("a: 1\n")
    monkeypatch.chdir(ROOT / "tests")
    with initialize("../conf", version_base=None):
        before = GlobalHydra.instance().hydra
        assert compose_job("train", ["model=./here"]).model.path == "./here"
        with pytest.raises(ConfigError):
            compose_job("train", ["sede=1"])
        assert GlobalHydra.instance().hydra is before
        assert "linear" in str(compose("stitch/linear"))
