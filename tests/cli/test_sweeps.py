"""Sweeps: one job after the other, several at once, on a SLURM cluster of one node; and Hydra's command line."""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
import yaml
from hydra import compose, initialize
from hydra.core.global_hydra import GlobalHydra

import wandb_runs
from conftest import ROOT, every_second, results_in, with_ci_slow
from thinkalike.cli import DRY_RUN, SHARED, as_analysis
from thinkalike.completion import readable_line
from thinkalike.config import MeasureConfig, compose_job
from thinkalike.config.compose import Loader
from thinkalike.errors import ConfigError
from thinkalike.instruments.diff.settings import DiffConfig
from thinkalike.instruments.lineage.instrument import LineageConfig

CLUSTER = ROOT / "tests" / "slurm" / "cluster.sh"
THREE = "layers=[[0,0]],[[9,9]],[[1,1]]"  # the second cannot be done
LAUNCHERS = {"in sequence": [], "two at once, by joblib": ["hydra/launcher=joblib", "hydra.launcher.n_jobs=2"]}


def stamps(store):
    return {result.folder: (result.folder / "result.json").stat().st_mtime_ns for result in results_in(store)}


@pytest.mark.slow
@pytest.mark.parametrize("launcher", ["in sequence", "two at once, by joblib"])
def test_a_failed_job_does_not_stop_the_others_and_is_listed(cli, small_stitching, tmp_path, launcher):
    run = cli.process if "joblib" in launcher else cli
    sweep = ["train.py", "-m", THREE, *LAUNCHERS[launcher], *small_stitching]
    first = run(*sweep)
    assert first.status == 1, first.stderr
    summary = "1 of the sweep's jobs failed:\n  layers=[[9,9]]"
    assert summary in first.stderr
    line = first.stderr[first.stderr.index(summary) :].splitlines()[1]
    assert re.search(r": ConfigError: layers: \[9,9\] is out of range", line)
    assert first.stderr.splitlines()[-1] == line
    assert "Traceback" not in first.stderr
    made = stamps(tmp_path / "results")
    assert len(made) == 2
    table = first.stdout[first.stdout.index("jobs of the sweep: 2") :]
    assert all(f"layers=[[{layer},{layer}]]" in table for layer in (0, 1))
    assert table.count("worst penalty") == 2
    assert [path.name for path in (tmp_path / "results").iterdir()] == ["stitching"]
    assert not list(tmp_path.glob("results/stitching/*.partial"))

    again = run(*sweep)
    assert again.status == 1
    assert again.stderr.count("already done") == 2
    assert again.stdout[again.stdout.index("jobs of the sweep: 2") :] == table
    assert summary in again.stderr
    assert stamps(tmp_path / "results") == made


@pytest.mark.ci_slow
def test_a_searching_sweeper_gets_the_headline_of_each_job(cli, small_stitching, monkeypatch):
    from hydra.core.plugins import Plugins

    (BasicSweeper,) = (each for each in Plugins.instance().discover() if each.__name__ == "BasicSweeper")
    launched, sweep = [], BasicSweeper.sweep
    monkeypatch.setattr(BasicSweeper, "sweep", lambda self, arguments: launched.extend(sweep(self, arguments)))
    words = [word for word in small_stitching if word.startswith(("data", "store", "model.")) and "tokens" not in word]
    assert cli("analyze.py", "-m", "measure=loss", "data.evaluation_tokens=2048,1", *words).status == 1
    found, failed = (job.return_value for batch in launched for job in batch)
    (result,) = results_in(cli.folder / "results")
    assert (found, failed) == (result.headlines[0].value, None)


KILLED = """
import os, signal
import thinkalike.instruments.stitching.instrument as module
run = module.Stitching.run

def killed(self, config, work):
    if config.layers[0][0] == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return run(self, config, work)

module.Stitching.run = killed
"""


@pytest.mark.slow
def test_a_sweep_whose_worker_is_killed_says_so(cli, small_stitching, tmp_path, monkeypatch):
    """Workers import sitecustomize, which kills the one that does the second job."""
    (tmp_path / "sitecustomize.py").write_text(KILLED)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{os.environ['PYTHONPATH']}")
    words = ["layers=[[0,0]],[[1,1]]", *LAUNCHERS["two at once, by joblib"], *small_stitching]
    assert "a worker process of the sweep was killed; rerun the command" in cli.process("train.py", "-m", *words).error
    assert not list((tmp_path / "results").glob(".sweep*"))


def test_what_a_killed_sweep_left_is_removed_by_the_next(cli, small_stitching, tmp_path):
    store = tmp_path / "results"
    store.mkdir()
    (store / ".sweep-killed").write_text("{}")
    (store / ".sweep-link").symlink_to(tmp_path / "mine.txt")
    (tmp_path / "mine.txt").write_text("mine")
    with (store / ".sweep-running").open("w") as running:
        fcntl.flock(running, fcntl.LOCK_EX)  # as its process does
        assert cli("train.py", "-m", *small_stitching, "stitch.steps=0,-1").status == 1
    left = sorted(path.name for path in store.glob(".sweep-*"))
    assert left == [".sweep-link", ".sweep-running"]
    assert (tmp_path / "mine.txt").read_text() == "mine"


@pytest.mark.ci_slow
def test_measures_of_a_sweep_take_settings_they_share(cli):
    """Hydra composes a sweep once before its jobs, with another measure, so a setting of theirs needs ++."""
    small = ["++measure.tokens_per_batch=256", "model=gelu-3l-mini", "model@target=solu-3l-mini", "dry_run=true"]
    told = cli("analyze.py", "-m", "measure=cka,mutual_knn", "++measure.batches=2", *small, "logger=none").stdout
    assert told.count("forward passes, gelu-3l-mini") == 2
    few_refits = ["++measure.folds=2", "++measure.permutations=1", "++measure.references=1"]  # of mlem alone
    foreign = cli("analyze.py", "-m", "measure=cka,mlem", *few_refits, "model=gelu-3l-mini", "dry_run=true")
    assert foreign.stderr.count("failed: measure=cka") == 1


@pytest.mark.ci_slow
def test_processes_that_share_a_job_are_refused_in_a_sweep(cli, small_stitching, tmp_path):
    both = ["layers=[[0,0]],[[1,1]]", "trainer=ddp", "trainer.devices=2"]
    refused = cli("train.py", "-m", *both, *small_stitching)
    assert refused.status == 1
    assert refused.stderr.count("ConfigError: trainer=ddp does not go with -m") == 4  # as they fail, and in the end
    assert not results_in(tmp_path / "results")


@pytest.mark.ci_slow
def test_a_sweep_finishes_a_wandb_run_for_each_job(cli, small_stitching, tmp_path):
    diverging = ["stitch.lr=1,1e37,0.5", "stitch.optimizer=sgd", "stitch.clip=0", "stitch.weight_decay=0"]
    overrides = ["-m", *diverging, *small_stitching, "logger=wandb"]
    sweep = cli.process("train.py", *overrides, env=wandb_runs.without_key(tmp_path))
    assert sweep.status == 1
    assert "1 of the sweep's jobs failed:\n  stitch.lr=1e37" in sweep.stderr
    logs = sorted(tmp_path.glob("results/wandb/offline-run-*/run-*.wandb"), key=lambda path: path.stat().st_mtime)
    runs = [wandb_runs.records(log) for log in logs]
    codes = [[record.exit.exit_code for record in run if record.HasField("exit")] for run in runs]
    assert codes == [[0], [1], [0]]
    groups = {record.run.run_group for run in runs for record in run if record.HasField("run")}
    assert len(groups) == 1
    assert groups != {""}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    """A SLURM cluster of one node; returns the variables that its commands need."""
    if os.geteuid() != 0 or not shutil.which("slurmctld") or not shutil.which("munged"):
        pytest.skip("needs root, and Debian's slurm-wlm and munge")
    pytest.importorskip("submitit")
    folder = tmp_path_factory.mktemp("slurm")
    try:
        subprocess.run([CLUSTER, "up", folder], check=True, timeout=120)
        yield {**os.environ, "SLURM_CONF": str(folder / "slurm.conf")}
    finally:
        subprocess.run([CLUSTER, "down", folder], check=True, timeout=120)
        assert not running(folder)


def running(folder):
    """The command lines of processes that name a folder."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            found.append(path.read_bytes().replace(b"\0", b" ").decode(errors="replace"))
    return [line for line in found if str(folder) in line]


@pytest.fixture
def sweep(cluster, cli, tmp_path):
    """Start a sweep on the cluster; jobs take one CPU of its two."""
    started = []

    def start(*overrides, folder="sweep"):
        small = ["hydra/launcher=slurm", "hydra.launcher.cpus_per_task=1", "hydra.launcher.mem_gb=1"]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        words = ["-m", *overrides, *small, f"hydra.sweep.dir={tmp_path}/{folder}"]
        started.append(cli.start("train.py", *words, env=cluster, **pipes))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.communicate()


# how a cluster takes its node from a job: at once (preemption, an administrator), or with a warning (the time limit)
INTERRUPTIONS = {"requeued": ["scontrol", "requeue"], "at its time limit": ["scancel", "--signal=USR2"]}


@pytest.mark.slow
@pytest.mark.parametrize("how", INTERRUPTIONS)
def test_an_interrupted_slurm_job_goes_on_to_the_same_table(sweep, cluster, cli, small_stitching, tmp_path, how):
    long = [*small_stitching, "stitch.steps=60", "trainer.checkpoint_every=5", "threads=1"]
    process = sweep(*long, f"store={tmp_path}/interrupted")
    deadline = time.monotonic() + 120
    while not list(tmp_path.glob("interrupted/stitching/*.partial/checkpoints/training-*.pt")):
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.02)
    (number,) = (path.name for path in (tmp_path / "sweep" / ".submitit").iterdir() if path.name.isdigit())
    subprocess.run([*INTERRUPTIONS[how], number], check=True, env=cluster)
    _, err = process.communicate(timeout=200)
    assert process.returncode == 0, err
    log = next(tmp_path.glob("sweep/.submitit/*/*_log.err")).read_text()
    assert "resuming from" in log, log
    (resumed,) = results_in(tmp_path / "interrupted")
    whole = cli("train.py", *long, f"store={tmp_path}/whole").result
    assert (resumed.folder / "table.csv").read_bytes() == (whole.folder / "table.csv").read_bytes()


FILES = {
    "own/model/ours.yaml": "defaults: [gelu-3l-mini, _self_]\nname: ours\ncontext: 64\n",
    "own/data/notes.yaml": "defaults: [text, _self_]\nname: notes\nfiles: [~/notes/*.txt]\n",
    "own/hydra/launcher/mine.yaml": "defaults: [joblib, _self_]\nn_jobs: 2\n",
    "own/mine.yaml": "defaults: [train, {override stitch: affine}, _self_]\n"
    "layers: [[1, 1]]\nstitch: {steps: 6, warmup: 1, tokens_per_step: 512}\ndata: {evaluation_tokens: 4096}\n",
}


@pytest.fixture
def own(cli):
    for name, text in FILES.items():
        (cli.folder / name).parent.mkdir(parents=True, exist_ok=True)
        (cli.folder / name).write_text(text)
    return cli


@pytest.mark.ci_slow
def test_a_sweep_of_own_files_by_an_own_launcher(own):
    words = ["--config-dir=own", "--config-name=mine", "hydra/launcher=mine", "hydra.sweep.dir=there", "seed=0,1"]
    done = own.process("train.py", "-m", *words)
    assert done.status == 0, done.stderr
    assert len(re.findall(r"results: \S*results/stitching/", done.stdout)) == 2
    assert "jobs of the sweep: 2" in done.stdout
    assert (own.folder / "there" / "multirun.yaml").is_file()
    again = own("train.py", "--config-dir=own", "--config-name=mine", "seed=1")
    assert "already done" in again.stderr, "it is one of these jobs"
    assert again.result.config["layers"] == [[1, 1]]
    assert again.result.provenance["command"].endswith(f"--config-dir={own.folder}/own --config-name=mine seed=1")


def test_a_command_composes_once_and_may_set_the_mode_of_hydra(cli, monkeypatch):
    """Hydra composes everything once more to find `hydra.mode`, which the command line alone may set."""
    composed, compose = [], Loader.load_configuration

    def counted(loader, config_name, overrides, *more, **named):
        composed.append(overrides)
        return compose(loader, config_name, overrides, *more, **named)

    monkeypatch.setattr(Loader, "load_configuration", counted)
    assert "is out of range" in cli("train.py", "layers=[99]").error
    assert len(composed) == 1
    done = cli("train.py", "hydra.mode=MULTIRUN", "seed=0,1", "layers=[99]")
    assert "2 of the sweep's jobs failed" in done.stderr


@pytest.mark.parametrize("launcher", with_ci_slow(["basic", "joblib"], "basic"))
def test_a_sweep_leaves_the_working_folder_as_it_was(launcher, cli, tmp_path_factory, monkeypatch):
    """Hydra writes what it composed for a sweep to multirun.yaml, which may be the name of a user's file."""
    mine = cli.folder / "multirun.yaml"
    mine.write_text("mine")
    of_this_test = tmp_path_factory.mktemp("temporary")
    monkeypatch.setenv("TMPDIR", str(of_this_test))  # other tests sweep at the same time
    monkeypatch.setattr(tempfile, "tempdir", None)
    temporary = set(Path(tempfile.gettempdir()).glob(f"{DRY_RUN}*"))
    run = cli.process if launcher == "joblib" else cli
    done = run("train.py", "-m", "seed=0,1", f"hydra/launcher={launcher}", "dry_run=true", "layers=[1]")
    assert done.status == 0, done.stderr
    assert sorted(path.name for path in cli.folder.iterdir() if path.name not in ("cache", "hf")) == ["multirun.yaml"]
    assert set(Path(tempfile.gettempdir()).glob(f"{DRY_RUN}*")) == temporary
    done = cli("train.py", "-m", "seed=0,1", f"hydra/launcher={launcher}", "layers=[99]")
    assert "2 of the sweep's jobs failed" in done.stderr, "control: it is a sweep"
    assert len(list(cli.folder.glob("multirun/*/*/multirun.yaml"))) == 1
    assert mine.read_text() == "mine"


def test_a_sweep_without_a_folder_of_its_own_is_one_line(cli):
    (cli.folder / "multirun").write_text("a file")
    assert "choose hydra.sweep.dir=DIR" in cli("train.py", "-m", "seed=0,1").error
    assert "the store" in cli("train.py", "-m", "seed=0,1", "store=multirun").error


REFUSED_BY_LAUNCHER = {  # settings of a launcher, and what is said of it
    "n_jobs=0": "ValueError: n_jobs == 0 in Parallel has no meaning",
    "batch_size=0": "batch_size must be 'auto' or a positive integer",
    "pre_dispatch=x": "is not a valid or supported arithmetic expression",
    "backend=evil": "hydra.launcher.backend=evil has no effect",
    "backend=threading": "hydra.launcher.backend=threading has no effect",
    "prefer=threads": "hydra.launcher.prefer=threads has no effect",
}


@pytest.mark.parametrize("setting", every_second(REFUSED_BY_LAUNCHER))
def test_what_a_launcher_cannot_do_is_one_line(setting, cli):
    words = ["-m", "seed=0,1", "hydra/launcher=joblib", f"hydra.launcher.{setting}", "dry_run=true"]
    assert REFUSED_BY_LAUNCHER[setting] in cli("train.py", *words).error


@pytest.mark.ci_slow
def test_a_dry_run_of_a_sweep_refuses_the_folder_that_the_sweep_would(cli):
    (cli.folder / "afile").touch()
    words = ["-m", "seed=0", "dry_run=true"]
    for folder in ("afile/x", "afile", "/proc/x"):
        assert "choose hydra.sweep.dir=DIR" in cli("train.py", *words, f"hydra.sweep.dir={folder}").error
    (cli.folder / "there").mkdir()
    for folder in ("a/b/c", "there", "there/x"):
        assert cli("train.py", *words, f"hydra.sweep.dir={folder}").status == 0
    assert not (cli.folder / "a").exists()
    assert not list((cli.folder / "there").iterdir())


@pytest.mark.parametrize("path", ["/gone/x", "", "."])
def test_a_variable_of_a_sweep_that_ended_is_ignored(path, cli):
    done = cli("analyze.py", "model=gelu-3l-mini", "data.evaluation_tokens=1024", "dry_run=true", env={SHARED: path})
    assert (done.status, "dry run" in done.stderr + done.stdout) == (0, True), done.stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--resolve"], "--resolve goes with --cfg"),
        (["-m", "--resolve", "seed=1,2"], "--resolve goes with --cfg"),
        (["-m", "--cfg", "job", "seed=1,2"], "--multirun and --cfg do not go together; leave --cfg out"),
        (["--run", "-m"], "--run and --multirun do not go together"),
        (["--shell-completion", "x"], "--shell-completion takes one word"),
        (["--shell-completion", "install=tcsh"], "--shell-completion takes one word"),
        (["--shell-completion"], "--shell-completion takes one word"),
        (["--experimental-rerun", "config.pickle"], "--experimental-rerun is not available"),
    ],
)
def test_options_that_do_not_go_together_are_one_line(words, said, cli):
    assert said in cli("train.py", *words).error


@pytest.mark.parametrize(
    "words",
    [
        ["seed=1", "seed=2"],
        ["seed=1", "++seed=2"],
        ["stitch=affine", "stitch=linear"],
        ["-m", "seed=1,2", "seed=3"],
        ["model@target=gelu-3l-mini", "model@target=solu-3l-mini"],
        ["-cd", "a", "--config-dir=b"],
        ["--cfg", "job", "-c", "all"],
    ],
)
def test_what_is_given_twice_is_refused(words, cli):
    """Hydra takes the last one without a word."""
    assert " twice" in cli("train.py", *words, is_literal=True).error


def test_one_value_given_again_and_values_of_a_sweep_are_no_contradiction(cli):
    words = ["seed=1", "seed=1", "stitch=affine", "stitch.steps=3", "--cfg", "job"]
    assert yaml.safe_load(cli("train.py", *words, is_literal=True).stdout)["seed"] == 1


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("override hydra/launcher: joblib", []),
        pytest.param("_self_", ["hydra.launcher=1"], marks=pytest.mark.ci_slow),
        pytest.param("_self_", ["hydra/launcher=joblib"], marks=pytest.mark.ci_slow),
    ],
)
def test_a_launcher_is_said_to_need_a_sweep(setting, words, cli):
    (cli.folder / "mine.yaml").write_text(f"defaults: [analyze, {setting}]")
    said = cli("analyze.py", "-cd", ".", "-cn", "mine", "dry_run=true", *words).stderr
    assert "hydra.launcher is read with -m alone" in said
    assert "hydra.launcher" not in cli("analyze.py", "dry_run=true").stderr, "control"


def test_a_configuration_without_its_name_is_not_ignored(cli):
    (cli.folder / "config.yaml").write_text("defaults: [train, _self_]")
    assert "add --config-name config" in cli("train.py", "-cd", ".").error


@pytest.mark.parametrize(
    ("file", "words", "remedy"),
    [
        ("own/mine.yml", "-cd own -cn mine", "rename it to mine.yaml"),
        ("own/mine.yml", "-cd own -cn mine.yml", "rename it to mine.yaml"),
        ("own/stitch/mine.yml", "-cd own stitch=mine", "rename it to mine.yaml"),
        ("mine.yml", "-cn mine.yml", "rename it to mine.yaml and give --config-dir={here} --config-name=mine"),
        ("mine.yaml", "-cn mine.yaml", "folder of configurations; give --config-dir={here} --config-name=mine"),
        ("stitch/mine.yaml", "stitch=mine", "folder of configurations; give --config-dir={here}"),
    ],
)
def test_a_configuration_that_hydra_does_not_find_is_named_with_the_remedy(file, words, remedy, cli):
    path = cli.folder / file
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("defaults: [train, _self_]")
    error = cli("train.py", *words.split()).error
    assert error.startswith(f"error: {path} is not read, because ")
    assert error.endswith(remedy.format(here=cli.folder))


@pytest.mark.parametrize("option", ["--config-dir", "--config-name", "--config-path"])
def test_an_empty_option_is_refused(option, cli):
    assert f"{option} has an empty value" in cli("train.py", option, "", "dry_run=true").error


def test_values_to_try_of_a_file_are_said_to_need_a_sweep(cli):
    (cli.folder / "mine.yaml").write_text("defaults: [analyze, _self_]\nhydra: {sweeper: {params: {seed: '0,1'}}}")
    said = cli("analyze.py", "-cd", ".", "-cn", "mine", "dry_run=true").stderr
    assert "hydra.sweeper.params is read with -m alone" in said


def shown(cli, *words):
    return yaml.safe_load(cli("train.py", *words, "--cfg", "job").stdout)


def test_cfg_shows_the_composed_configuration(own):
    config = shown(own, "-cd", "own", "-cn", "mine", "model=ours", "model.device_map={new: 1}")
    assert (config["model"]["context"], config["model"]["device_map"]["new"]) == (64, 1)
    assert (config["stitch"]["steps"], config["stitch"]["loss"], config["target"]["name"]) == (6, None, None)
    assert config["logger"]["kind"] == "csv", "the default"


def test_hydra_says_where_it_looks_and_completes_words(own):
    assert "thinkalike://" in own("train.py", "--info", "searchpath").stdout
    query = {"COMP_LINE": "train.py stitch=l", "COMP_POINT": "17"}
    said = own.process("train.py", "-sc", "query=bash", env=query).stdout.split()
    assert said == ["stitch=least_squares", "stitch=linear", "stitch=low_rank"]


REFUSED = {
    "-cd nowhere": "Additional config directory",
    "-cd own -cn mime": "there is no configuration mime",
    "hydra/sweeper=nope": "hydra/sweeper=nope is not known",
    "hydra=1": "hydra=1 is not a setting",
    "=1": "=1 names no setting",
    "@=1": "@=1 names no setting",
    "~seed": "~seed removes a setting, and a job needs all of them; leave it out, or give seed=value",
    "~model@target": "or give model@target=value",
    "-m hydra.sweeper.params.seed='1,2'": "give -m seed=VALUES",
    "hydra.sweeper.params={seed:'1,2'}": "hydra.sweeper.params.seed is a setting of files; give -m seed=VALUES",
    "-m hydra/sweeper=optuna seed=1,2": "hydra/sweeper=optuna needs hydra-optuna-sweeper: pip install",
    "-m hydra/launcher=ray seed=1,2": "hydra/launcher=ray needs hydra-ray-launcher: pip install",
    "--package nonsense": "--package=nonsense goes with --cfg job|hydra|all; add it, or leave --package out",
    "-m hydra.launcher.n_jobs=2 seed=1,2": "is not a setting of this launcher",
    "model.name=gpt2-mini": "give model=gpt2-mini",
    "model=gelu-3l-mini target.name=gpt2-mini": "give model@target=gpt2-mini",
    "stitch.momentum=1": "stitch.momentum=1 must be less than 1",
    "seed=true": "seed=True must be a number",
    "stitch.steps=true": "stitch.steps=True must be a number",
    "stitch.lr_multiples=[true]": "stitch.lr_multiples",
    "stitch=low_rank stitch.whiten=true": "stitch.whiten=true is for sgd",
    "trainer.memory=8-GB": "trainer.memory=8-GB must be a number and a unit",
    "model=[gelu-3l-mini,solu-3l-mini]": "model=['gelu-3l-mini', 'solu-3l-mini'] chooses several options",
    "trainer={devices:2,devices:3}": "{devices:2,devices:3} has one key twice",
    "+target.site=3": "target.site=3 must be",
    f"seed={'9' * 4400}": "cannot be read",
    "-m seed=glob(*)": "seed has no values, so the sweep has no jobs",
    "-m seed=range(5,1)": "seed has no values, so the sweep has no jobs",
    "-m seed=1,2 hydra.sweeper.max_batch_size=0": "max_batch_size=0 must be at least 1",
    "stitch.floor=true": "stitch.floor=true needs stitch.loss=cross_entropy",
}


@pytest.mark.parametrize("line", every_second(REFUSED))
def test_what_is_wrong_is_one_line(own, line):
    assert REFUSED[line] in own("train.py", *line.split()).error


def test_composing_works_inside_another_hydra_application(tmp_path, monkeypatch):
    """Hydra has one global state, which another application, or a notebook, may be using."""
    (tmp_path / "other.yaml").write_text("a: 1\n")
    monkeypatch.chdir(ROOT / "tests")
    with initialize("../../conf", version_base=None):
        before = GlobalHydra.instance().hydra
        assert compose_job("train", ["model=./here"]).model.path == "./here"
        with pytest.raises(ConfigError):
            compose_job("train", ["sede=1"])
        assert GlobalHydra.instance().hydra is before
        assert "linear" in str(compose("stitch/linear"))


MANY = ",".join(map(str, range(1, 99)))


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    "params",
    every_second(
        [
            "trainer.log_every: range(1000000000)",
            "stitch.lr: 'range(0.0,1.0,0.0000001)'",
            "stitch.lr: 'range(0.5,1.0,0)'",
            "seed: 'range(0,inf)'",
            "seed: 'range(0,-1000000000,-1)'",
            "seed: 'shuffle(range(1000000000))'",
            f"seed: '{MANY}', trainer.log_every: '{MANY}', stitch.steps: '{MANY}'",
        ]
    ),
)
def test_the_number_of_jobs_has_a_bound(params, cli):
    (cli.folder / "mine.yaml").write_text(f"defaults: [train, _self_]\nhydra: {{sweeper: {{params: {{{params}}}}}}}\n")
    run = cli("train.py", "-m", "-cd", ".", "-cn", "mine", "dry_run=true")
    assert run.status == 1
    assert "more than 10,000 jobs" in run.stderr
    assert "Traceback" not in run.stderr


@pytest.mark.parametrize("place", ["nowhere", "a/b", "afile"])
def test_a_folder_of_configurations_that_is_none_is_named(place, cli):
    (cli.folder / "afile").touch()
    said = cli("analyze.py", "-cp", f"{cli.folder}/{place}", "-cn", "x").error
    assert f"--config-path={cli.folder}/{place} is no folder" in said or "is no folder" in said


@pytest.mark.parametrize("place", ["own", "./own", "nowhere", "own/../own"])
def test_a_folder_in_place_of_the_packages_needs_its_whole_path(place, cli):
    (cli.folder / "own").mkdir()
    error = cli("train.py", "-cp", place, "-cn", "x").error
    assert f"--config-path={place} must be a whole path, {os.path.abspath(cli.folder / place)}" in error


@pytest.mark.parametrize("words", [[], ["stitch=mine"], ["-cn", "mine"], ["-cn", "nope"]])
def test_a_folder_in_place_of_the_packages_is_said_to_be_that(words, cli):
    (cli.folder / "own/stitch").mkdir(parents=True)
    (cli.folder / "own/stitch/mine.yaml").write_text("defaults: [linear, _self_]")
    (cli.folder / "own/mine.yaml").write_text("defaults: [train, _self_]")
    error = cli("train.py", "-cp", str(cli.folder / "own"), *words).error
    assert "by which --config-path replaces the folder of this package; give it as --config-dir" in error


@pytest.mark.parametrize(
    ("entry", "word", "command"),
    every_second(
        [
            ("analyze", "stitch=linear", "train"),
            ("analyze", "task=stitch", "train"),
            ("analyze", "stitch.steps=3", "train"),
            ("train", "measure=cka", "analyze"),
            ("train", "stimuli=crossed", "analyze"),
            ("train", "stimuli.path=x.csv", "analyze"),
        ]
    ),
)
def test_a_setting_of_the_other_command_is_said_to_be_of_that(entry, word, command, cli):
    said = cli(f"{entry}.py", word, "dry_run=true").error
    assert f"is a setting of {command}; leave it out, or run thinkalike {command}" in said
    assert "append" not in said


@pytest.mark.parametrize("place", ["pkg://nope", "file://nope", "nope"])
@pytest.mark.parametrize("sweep", [["-m", "threads=1,2"], ["threads=1"]])
def test_a_place_to_search_that_is_not_there_is_one_line(place, sweep, cli):
    said = cli("analyze.py", *sweep, f"hydra.searchpath=[{place}]", "dry_run=true").error
    assert "nope is not available; name a folder" in said
    assert "UserWarning" not in said


@pytest.mark.parametrize("word", ["model@target={a:1}", "model@target={path: ./x}"])
def test_settings_of_the_second_model_have_its_name(word, cli):
    assert "give target={name: value} for settings" in cli("train.py", word, is_literal=True).error


@pytest.mark.parametrize(("command", "schema"), [("diff", DiffConfig), ("lineage", LineageConfig)])
def test_each_setting_of_a_command_of_two_models_may_be_short(command, schema):
    common = {field.name for field in dataclasses.fields(MeasureConfig)}
    own = {field.name for field in dataclasses.fields(schema)} - common
    assert own >= {"diff": {"margin", "other"}, "lineage": {"similar_units"}}[command]
    for name in own:
        assert as_analysis(["a", "b", f"{name}=1"], command)[-1] == f"measure.{name}=1"
    for word in ("seed=1", "layers=all", "kind=x", "data.tokens=5", "measure.tokens=5", "nope=1"):
        assert as_analysis(["a", "b", word], command)[-1] == word


def test_a_setting_of_the_whole_job_keeps_its_short_name(monkeypatch):
    @dataclasses.dataclass
    class Seeded(DiffConfig):
        seed: int = 0
        fresh: int = 1

    monkeypatch.setattr("thinkalike.config.measure_schema", {"diff": Seeded}.get)
    assert as_analysis(["a", "b", "seed=1", "fresh=2"])[-2:] == ["seed=1", "measure.fresh=2"]


@pytest.mark.parametrize("name", ["{a:1}", "{", "{a}"])
def test_what_stands_in_braces_is_no_model(name):
    assert as_analysis([".", name])[2] == f"model@target='{name}'"


@pytest.mark.parametrize(
    ("line", "command", "readable"),
    [
        ("thinkalike train stitch=l", "train", "thinkalike stitch=l"),
        ("python train.py stitch=l", "train", "python train.py stitch=l"),
        ("/usr/bin/python3 x/analyze.py seed=1 ", "analyze", "/usr/bin/python3 x/analyze.py seed=1 "),
        ("./train.py train", "train", "./train.py"),
        ("thinkalike train seed=1 -m -cd mine stitch=l", "train", "thinkalike -cd mine seed=1 stitch=l"),
        ("thinkalike train --config-dir=mine -c job stitch=l", "train", "thinkalike --config-dir=mine stitch=l"),
        ("thinkalike train --help stitch=l", "train", "thinkalike stitch=l"),
        ("thinkalike train --cfg ", "train", None),
        ("thinkalike train --cfg jo", "train", None),
        ("thinkalike train seed=1 --nope", "train", None),
        ("thinkalike train -cd mi", "train", None),
        ("thinkalike diff a b measure.m", "diff", "thinkalike measure=diff measure.m"),
        ("thinkalike diff a b", "diff", None),
        ("thinkalike diff a b ", "diff", "thinkalike measure=diff "),
    ],
)
def test_a_line_that_is_completed_is_read_without_its_options(line, command, readable):
    assert readable_line(line, command) == readable


SHELL = """
eval "$({command} -sc install=bash)"
COMP_LINE={line}; COMP_POINT=${{#COMP_LINE}}; words=($COMP_LINE); COMP_CWORD=$(( ${{#words[@]}} - 1 ))
hydra_bash_completion
echo "${{COMPREPLY[*]}}"
"""


@pytest.mark.ci_slow
@pytest.mark.parametrize(
    ("command", "line", "completed"),
    [
        ("thinkalike train", "thinkalike train seed=1 stitch=l", "stitch=least_squares stitch=linear stitch=low_rank"),
        ("thinkalike", "thinkalike analyze -m measure=mut", "measure=mutual_knn"),
        ("thinkalike", "thinkalike tr", "train"),
        ("thinkalike", "thinkalike train --cf", ""),
        ("python train.py", "python train.py stitch=l", "stitch=least_squares stitch=linear stitch=low_rank"),
        ("python analyze.py", "python analyze.py seed=1 measure=mut", "measure=mutual_knn"),
    ],
)
def test_bash_completes_words_as_the_function_that_it_installs_says(command, line, completed, tmp_path):
    for script in ("train.py", "analyze.py"):
        (tmp_path / script).write_text((ROOT / script).read_text())
    programs = {
        "thinkalike": f"#!{sys.executable}\nfrom thinkalike.cli import main\nmain()\n",
        "python": f'#!/bin/sh\nexec {sys.executable} "$@"\n',
    }
    for name, text in programs.items():
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    script = SHELL.format(command=command, line=shlex.quote(line))
    done = subprocess.run(
        ["bash", "-c", script], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120
    )
    assert done.stderr == ""
    assert done.stdout.strip() == completed


@pytest.mark.ci_slow
@pytest.mark.parametrize("name", ["$(touch PWNED)", "`touch PWNED`", "a$(touch PWNED)b"])
def test_the_name_of_a_file_that_is_completed_is_not_run(name, tmp_path):
    """Bash expands the candidates that it is given, which are names of files of strangers."""
    (tmp_path / "d").mkdir()
    for file in (name, "mine"):
        (tmp_path / "d" / file).touch()
    program = tmp_path / "thinkalike"
    program.write_text(f"#!{sys.executable}\nfrom thinkalike.cli import main\nmain()\n")
    program.chmod(0o755)
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    script = SHELL.format(command="thinkalike train", line="'thinkalike train model=./d/'")
    done = subprocess.run(
        ["bash", "-c", script], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120
    )
    assert "model=./d/mine" in done.stdout
    assert not list(tmp_path.rglob("PWNED"))


def test_scripts_have_the_mark_that_shells_look_for():
    """Fish completes the words of a script only where this is in its text."""
    assert all("@hydra.main" in (ROOT / script).read_text() for script in ("train.py", "analyze.py"))


def test_what_a_shell_asks_is_answered_to_a_shell_alone(cli):
    assert "with the line in COMP_LINE" in cli("train.py", "-sc", "query=bash").error
