"""Sweeps: one job after the other, several at once, and as jobs of a real SLURM cluster of one node."""

import contextlib
import os
import re
import shutil
import subprocess
import time
from pathlib import Path

import pytest

import wandb_runs
from conftest import results_in

CLUSTER = Path(__file__).parent / "slurm" / "cluster.sh"
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


def test_a_searching_sweeper_gets_the_headline_of_each_job(cli, small_stitching, monkeypatch):
    from hydra.core.plugins import Plugins

    (BasicSweeper,) = (each for each in Plugins.instance().discover() if each.__name__ == "BasicSweeper")
    launched, sweep = [], BasicSweeper.sweep
    monkeypatch.setattr(BasicSweeper, "sweep", lambda self, arguments: launched.extend(sweep(self, arguments)))
    words = [word for word in small_stitching if word.startswith(("data", "store", "model.")) and "tokens" not in word]
    assert cli("analyze.py", "-m", "measure=loss", "data.report_tokens=2048,1", *words).status == 1
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


def test_measures_of_a_sweep_take_settings_they_share(cli):
    """Hydra composes a sweep once before its jobs, with another measure, so a setting of theirs needs ++."""
    small = ["++measure.tokens_per_batch=256", "model=gelu-3l-mini", "model@target=solu-3l-mini", "dry_run=true"]
    told = cli("analyze.py", "-m", "measure=cka,mutual_knn", "++measure.batches=2", *small, "logger=none").stdout
    assert told.count("forward passes, gelu-3l-mini") == 2
    foreign = cli("analyze.py", "-m", "measure=cka,mlem", "++measure.folds=2", "model=gelu-3l-mini", "dry_run=true")
    assert foreign.stderr.count("failed: measure=cka") == 1


def test_processes_that_share_a_job_are_refused_in_a_sweep(cli, small_stitching, tmp_path):
    both = ["layers=[[0,0]],[[1,1]]", "trainer=ddp", "trainer.devices=2"]
    refused = cli("train.py", "-m", *both, *small_stitching)
    assert refused.status == 1
    assert refused.stderr.count("ConfigError: trainer=ddp does not go with -m") == 4  # as they fail, and in the end
    assert not results_in(tmp_path / "results")


@pytest.mark.slow
@pytest.mark.ci_slow
def test_a_sweep_finishes_a_wandb_run_for_each_job(cli, small_stitching, tmp_path):
    diverging = ["stitch.lr=1,1e37,0.5", "stitch.optimizer=sgd", "stitch.clip=0", "stitch.weight_decay=0"]
    overrides = ["-m", *diverging, *small_stitching, "logger=wandb"]
    sweep = cli.process("train.py", *overrides, env=wandb_runs.without_key(tmp_path))
    assert sweep.status == 1
    assert "1 of the sweep's jobs failed:\n  stitch.lr=1e+37" in sweep.stderr
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
