"""Shared by all tests: checked shapes, float64 and a seed, tiny random checkpoints, and the commands.

`cli` runs train.py or analyze.py inside the test's process, which saves seconds of imports for each call;
`cli.process` runs a process of its own, for what only a process shows: signals, several ranks, launchers.
"""

import contextlib
import gc
import io
import logging
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from functools import cache, cached_property
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

import pytest

ROOT = Path(__file__).resolve().parents[1]

gc.disable()  # until all tests are collected: what imports make stays, and looking through it takes seconds
os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch is imported: tiny models, where a second thread only waits
os.environ["PYTHONPATH"] = os.pathsep.join(  # processes of tests import the code of this checkout
    [str(ROOT / "src"), *filter(None, [os.environ.get("PYTHONPATH")])]
)

import huggingface_hub.constants  # noqa: E402, F401 (before a command sets HF_ENDPOINT, which it reads at import)
import matplotlib.figure  # noqa: E402
import torch  # noqa: E402

import checked  # noqa: E402, F401 (before anything imports thinkalike)
import hub  # noqa: E402
import tiny  # noqa: E402

if TYPE_CHECKING:
    from thinkalike.registry import KindEntry

DRAWN = {name: getattr(matplotlib.figure.Figure, name) for name in ("savefig", "draw_without_rendering")}


def of_core(entries: "Mapping[str, KindEntry]") -> list[str]:
    """The names of those tasks, measures and the like that are not of contrib, which has tests of its own."""
    return [kind for kind, entry in entries.items() if not entry.module.startswith("thinkalike.contrib.")]


def smallest_words(kind: str) -> list[str]:
    """The words of a command line that make a job of a measure, or of a task, as small as a test wants it."""
    from thinkalike.config import MEASURES, TASKS, instrument

    small = instrument((MEASURES | TASKS)[kind]).smallest
    return [f"{name}={str(value).lower() if isinstance(value, bool) else value}" for name, value in small.items()]


def core_options(group: str) -> list[str]:
    """The options of a group that are not of contrib."""
    from thinkalike.config import CONF, MEASURES

    if group == "measure":
        return of_core(MEASURES)
    return sorted(str(path.relative_to(CONF / group).with_suffix("")) for path in (CONF / group).rglob("*.yaml"))


def composed(*overrides: str, entry: str = "train"):
    """The configuration dataclass of a command line, which many tests share."""
    return deepcopy(_composed(entry, overrides))


@cache
def _composed(entry: str, overrides: tuple[str, ...]):
    from thinkalike.config import compose_job

    return compose_job(entry, list(overrides))


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item):
    """Make figures in every test, but draw and save them only where the test is marked `drawn`: it takes a second."""
    for name, method in DRAWN.items():
        is_drawn = item.get_closest_marker("drawn")
        setattr(matplotlib.figure.Figure, name, method if is_drawn else lambda *_, **__: None)


def pytest_collection_finish(session):
    """Collect garbage again, and never look at what imports made, which is millions of objects."""
    gc.freeze()
    gc.enable()


def pytest_itemcollected(item):
    """Let a test of `ci_slow` be slow."""
    if item.get_closest_marker("ci_slow"):
        item.add_marker("slow")


def with_slow(names, *slow):
    """Return the names for `parametrize`, of which some are slow."""
    return [pytest.param(name, marks=pytest.mark.ci_slow) if name in slow else name for name in names]


def every_second(cases):
    """Return the cases for `parametrize`; every second one is slow, as all of them show one mechanism."""
    slow = pytest.mark.ci_slow
    return [marked(case, slow) if place % 2 else marked(case) for place, case in enumerate(cases)]


def with_ci_slow(cases, *ci_slow):
    """Return the cases for `parametrize`: all are slow, and those of `ci_slow` run in continuous integration."""
    return [marked(case, pytest.mark.ci_slow if case in ci_slow else pytest.mark.slow) for case in cases]


def marked(case, *marks):
    """Return a case for `parametrize`, one value or a tuple of several, with marks."""
    values = case if isinstance(case, tuple) else (case,)
    return pytest.param(*values, marks=marks)


def pytest_addoption(parser):
    parser.addoption("--device", default="cpu", help="where the measures run: cpu or cuda")
    parser.addoption("--figures", help="a folder into which test_figures.py saves its figures, to look at")


@pytest.fixture
def device(request) -> torch.device:
    return torch.device(request.config.getoption("--device"))


@pytest.fixture(autouse=True)
def _same_start():
    torch.set_num_threads(1)
    torch.manual_seed(0)
    torch.set_default_dtype(torch.float32)


@pytest.fixture
def command_line():
    """Let messages have the words of a command line, for tests of what commands call."""
    from thinkalike.advice import at_command_line

    with at_command_line():
        yield


@pytest.fixture
def float64():
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


@pytest.fixture
def forwards(monkeypatch):
    """The forward passes through the blocks, those of the proof at load apart: the model, and its tokens."""
    from thinkalike.models.frozen import FrozenModel

    counted, residuals = [], FrozenModel.residuals

    def run(self, tokens, *rest):
        if tokens.shape != (2, 16):
            counted.append((id(self.module), tuple(tokens.shape), tokens.cpu().numpy().tobytes()))
        return residuals(self, tokens, *rest)

    monkeypatch.setattr(FrozenModel, "residuals", run)
    return counted


@pytest.fixture
def served(root, monkeypatch, tmp_path):
    """Serve the repositories of the test's own `root`, also with faults, to this process alone.

    The function that it gives starts a hub, one after another, and returns the list of what is asked.
    """
    with contextlib.ExitStack() as servers:

        def serve(faults=None, cache="cache", **options):
            endpoint, asked = servers.enter_context(hub.serve(root, faults=faults, **options))
            hub.redirect(monkeypatch, endpoint, tmp_path / cache)
            return asked

        yield serve


def step_data(rows, module, seed=0):
    """The rows of a training, as many a step as its configuration says."""
    from thinkalike.training.data import StepData

    return StepData(rows, module.config.tokens_per_step, module.steps, seed)


def break_off(module, at):
    """Let the training of a module fail at a step, with an error that a user may meet; None: it never does."""
    from thinkalike.errors import DataError

    one_step = module.training_step

    def step(*batch):
        if module.global_step == at:
            raise DataError("broken off")
        return one_step(*batch)

    module.training_step = step


@pytest.fixture(scope="session")
def checkpoints(tmp_path_factory) -> dict[str, Path]:
    """A tiny random checkpoint of every Hugging Face family, by family."""
    root = tmp_path_factory.mktemp("checkpoints")
    return {family: tiny.write_checkpoint(family, root / family) for family in tiny.FAMILIES}


@pytest.fixture(scope="module")
def models(checkpoints):
    """The models of these checkpoints, by family."""
    from thinkalike.models.load import load_model

    return {family: load_model(folder, name="local") for family, folder in checkpoints.items()}


@pytest.fixture
def root(tmp_path):
    """An empty folder for the repositories of a hub."""
    (tmp_path / "hub").mkdir()
    return tmp_path / "hub"


@pytest.fixture
def measured(request, cli, table, tmp_path):
    """Run a measure, by default the module's own, of the words of its table."""

    def run(*words, measure="", store="results"):
        own = ["stimuli=table", f"stimuli.path={table}", f"store={tmp_path}/{store}"]
        return cli("analyze.py", f"measure={measure or request.module.MEASURE}", *own, *words)

    return run


@pytest.fixture(scope="module")
def stimuli(table):
    """The stimuli of a module's own table."""
    from thinkalike.data.tables import read_table

    return read_table(table)


@pytest.fixture(scope="module")
def states(checkpoints, stimuli):
    """The states of all stimuli in the layers of a model."""
    from thinkalike.config import ModelConfig
    from thinkalike.models.load import load_model
    from thinkalike.states.stimuli import stimulus_states

    return stimulus_states(load_model(ModelConfig(name="local", path=str(checkpoints["gpt2"]))), stimuli)


@pytest.fixture(scope="session")
def toolbox():
    """The package of which the names and values of comparators and noise ceilings are; it is in the extra `bench`."""
    return pytest.importorskip("rsatoolbox")


@pytest.fixture(scope="session")
def text_files(tmp_path_factory) -> Path:
    """A folder of documents of random words, enough for small jobs."""
    folder = tmp_path_factory.mktemp("texts")
    for number in range(60):
        (folder / f"{number:02}.txt").write_text(tiny.document(number))
    return folder


@pytest.fixture(scope="session")
def minis(tmp_path_factory):
    """A folder of tiny untrained minis: a, b with another activation, wide."""
    root = tmp_path_factory.mktemp("minis")
    for name, changes in {"a": {}, "b": {"act_fn": "gelu"}, "wide": {"d_model": 48, "d_head": 12}}.items():
        tiny.write_mini(root / name, **changes)
    return root


@pytest.fixture
def small_stitching(minis, text_files, tmp_path):
    """The command line of a small stitching job."""
    small = ["stitch.steps=4", "stitch.warmup=1", "stitch.tokens_per_step=256", "model.context=32"]
    data = ["data=text", f"data.files=[{text_files}/*.txt]", "data.evaluation_tokens=4096", "data.evaluation_share=0.4"]
    store = [f"store={tmp_path}/results", f"data.cache={tmp_path}/cache"]
    return [f"model.path={minis}/a", f"target.path={minis}/b", "target.context=32", *small, *data, *store]


def untrained(words: list[str], kind: str = "least_squares") -> list[str]:
    """The command line of a small stitching job for a kind of map that is not trained."""
    unused = "stitch." if kind == "identity" else "stitch.warmup="
    return [word for word in words if not word.startswith(unused)]


def results_in(store: Path, kind: str = "*") -> list:
    """All finished jobs of a kind in a store, sorted by folder."""
    from stores import finished

    return list(finished(store, kind))


@dataclass(frozen=True)
class Finished:
    """A command that came to its end: what the user sees, and what is in the store.

    Attributes:
        status: the exit status.
        folder: where the command was called from.
    """

    status: int
    stdout: str
    stderr: str
    folder: Path

    @cached_property
    def result(self):
        """The result that the only line `results: PATH` of stdout names; an error of the test if the command failed."""
        assert self.status == 0, self.stderr
        (line,) = (line for line in self.stdout.splitlines() if line.startswith("results: "))
        from thinkalike import open_result

        return open_result(self.folder / line.removeprefix("results: "))

    @property
    def error(self) -> str:
        """The one line that a refusal consists of; an error of the test if the command did anything else."""
        assert self.status == 1, self.stdout + self.stderr
        assert "Traceback" not in self.stderr, self.stderr
        assert self.stderr.count("error: ") == 1, self.stderr
        line = self.stderr.splitlines()[-1]
        assert line.startswith("error: "), self.stderr
        return line


def _without_earlier(words: Sequence[str]) -> list[str]:
    """Return the words of a command line in which each setting has its last value alone.

    A test so changes a setting of a fixture; of a user, a setting that is given twice is refused.
    """
    keys = [re.sub(r"^\++", "", word.partition("=")[0]) if "=" in word else None for word in words]
    return [word for place, word in enumerate(words) if keys[place] is None or keys[place] not in keys[place + 1 :]]


class CLI:
    """Runs commands from a folder of its own, with caches in there."""

    def __init__(self, folder: Path):
        self.folder = folder

    def _settings(self, endpoint: str | None, env: dict[str, str] | None) -> dict[str, str]:
        caches = {"THINKALIKE_CACHE": str(self.folder / "cache"), "HF_HOME": str(self.folder / "hf")}
        hub = {"HF_ENDPOINT": endpoint, "HF_HUB_DOWNLOAD_TIMEOUT": "5"} if endpoint else {}
        return {**caches, **hub, "COLUMNS": "140", **(env or {})}

    def __call__(
        self,
        script: str,
        *words: str,
        endpoint: str | None = None,
        env: dict[str, str] | None = None,
        is_literal: bool = False,
    ) -> Finished:
        """Run `script` with these words inside this process.

        Args:
            endpoint: address of the hub, as `hub.serve` yields it.
            env: more environment variables.
            is_literal: whether settings stay that are given twice.
        """
        given = words if is_literal else _without_earlier(words)
        out, err, status = io.StringIO(), io.StringIO(), 0
        with (
            mock.patch.dict(os.environ, self._settings(endpoint, env)),
            pytest.MonkeyPatch.context() as patch,
            _same_handlers(),
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(err),
        ):
            patch.chdir(self.folder)
            patch.setattr(sys, "argv", [script, *given])
            if endpoint:
                _ask(endpoint, self.folder / "hf", patch)
            try:
                import_module(script.removesuffix(".py")).main()
            except SystemExit as end:
                status = end.code or 0
        return Finished(status, out.getvalue(), err.getvalue(), self.folder)

    def start(self, script: str, *words: str, env: dict[str, str] | None = None, **pipes: Any) -> subprocess.Popen:
        """Start a process of its own, as a user would."""
        command = [sys.executable, str(ROOT / script), *_without_earlier(words)]
        return subprocess.Popen(command, cwd=self.folder, env={**os.environ, **(env or {})}, text=True, **pipes)

    def process(
        self,
        script: str,
        *words: str,
        endpoint: str | None = None,
        env: dict[str, str] | None = None,
        timeout: float = 240,
    ) -> Finished:
        """Run a process of its own to its end."""
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        with self.start(script, *words, env=self._settings(endpoint, env), **pipes) as process:
            try:
                out, err = process.communicate(timeout=timeout)
            except subprocess.TimeoutExpired:
                process.kill()
                raise
        return Finished(process.returncode, out, err, self.folder)


@contextlib.contextmanager
def _same_handlers() -> Iterator[None]:
    """Put the root logger's handlers back, which a command replaces by one that writes to its stderr."""
    before = logging.root.handlers[:]
    try:
        yield
    finally:
        logging.root.handlers[:] = before


def _ask(endpoint: str, home: Path, patch: pytest.MonkeyPatch) -> None:
    """Let the libraries of this process ask another hub; they read the environment at import."""
    hub.redirect(patch, endpoint, home / "hub")
    patch.setattr("huggingface_hub.constants.HF_HUB_DOWNLOAD_TIMEOUT", 5)
    patch.setattr("datasets.config.HF_DATASETS_CACHE", home / "datasets")


@cache
def _speeds() -> dict[str, float]:
    """What commands of this process timed, by the kind of work."""
    return {}


@pytest.fixture
def cli(tmp_path, monkeypatch) -> CLI:
    """Runs train.py and analyze.py from this test's folder, with caches that are new but for the machine's speed.

    Each kind of work is timed once, whatever its sizes: these tests read no forecast of seconds.
    """
    from thinkalike import timing
    from thinkalike.models import pass_times

    def timed_once(name, find):
        kind_of_work = re.sub("[0-9a-f]{8,}|[0-9]+", "", name)
        if kind_of_work not in _speeds():
            _speeds()[kind_of_work] = find()
        return _speeds()[kind_of_work]

    monkeypatch.setattr(timing, "remembered", timed_once)
    monkeypatch.setattr(pass_times, "timed_once", timed_once)
    return CLI(tmp_path)


def wait_for_state(process: subprocess.Popen, store: Path, state: str) -> None:
    """Wait until a process has left a state in a store."""
    deadline = time.monotonic() + 120
    while not list(store.glob(f"*/*.partial/checkpoints/{state}-*.pt")):
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.01)


def kill_and_resume(cli: CLI, script: str, *words: str, state: str, endpoint: str | None = None) -> tuple:
    """Kill a job when its state is there, run it again, and run another whole: the results of the last two.

    Args:
        words: the command line; stores are added.
        state: the name of the state that it goes on from.
        endpoint: as `cli` takes it.
    """
    stores = [cli.folder / name for name in ("killed", "whole")]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    with cli.start(script, *words, f"store={stores[0]}", env=cli._settings(endpoint, None), **quiet) as process:
        wait_for_state(process, stores[0], state)
        process.kill()
        assert process.wait() == -signal.SIGKILL
    assert not results_in(stores[0])
    resumed, whole = (cli(script, *words, f"store={store}", endpoint=endpoint) for store in stores)
    assert "resuming from" in resumed.stderr, resumed.stderr
    assert "resuming from" not in whole.stderr
    return resumed.result, whole.result
