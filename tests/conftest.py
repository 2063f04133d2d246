"""Shared by all tests: checked shapes, float64 and a seed, tiny random checkpoints, and doors run as subprocesses."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from jaxtyping import install_import_hook

HOOK = install_import_hook("thinkalike", "beartype.beartype")  # before anything imports thinkalike

import torch  # noqa: E402

import tiny  # noqa: E402

ROOT = Path(__file__).resolve().parents[1]


def composed(*overrides: str, door: str = "train"):
    """The configuration dataclass of a command line."""
    from thinkalike.config import compose_job

    return compose_job(door, list(overrides))


def pytest_addoption(parser):
    parser.addoption("--device", default="cpu", help="where the measures run: cpu or cuda")


@pytest.fixture
def device(request) -> torch.device:
    return torch.device(request.config.getoption("--device"))


@pytest.fixture(autouse=True)
def _same_start():
    torch.set_num_threads(1)  # tiny models: a second thread only waits
    torch.manual_seed(0)
    torch.set_default_dtype(torch.float32)


@pytest.fixture
def float64():
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


@pytest.fixture(scope="session")
def checkpoints(tmp_path_factory) -> dict[str, Path]:
    """A tiny random checkpoint of every Hugging Face family, by family."""
    root = tmp_path_factory.mktemp("checkpoints")
    return {family: tiny.write_checkpoint(family, root / family) for family in tiny.FAMILIES}


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
def call(monkeypatch, capsys):
    """Call a door inside this process; returns (exit status, stdout, stderr)."""

    def run(script, *words):
        monkeypatch.setattr(sys, "argv", [script, *words])
        monkeypatch.syspath_prepend(str(ROOT))
        status = 0
        try:
            __import__(script.removesuffix(".py")).main()
        except SystemExit as end:
            status = end.code or 0
        return status, *capsys.readouterr()

    return run


def kill_and_resume(command: Callable[[str], list[str]], folder: Path, kind: str, state: str) -> tuple[Path, Path]:
    """Kill a job when its state is there, run it again, and run another whole: the folders of both results.

    Args:
        command: the command line, given the name of a store in `folder`.
        kind: of the job in its store.
        state: the file in its checkpoints that it goes on from.
    """
    process = subprocess.Popen(command("killed"), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 120
    while not list(folder.glob(f"killed/{kind}/*.partial/checkpoints/{state}")):
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.01)
    os.kill(process.pid, signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    assert not list(folder.glob(f"killed/{kind}/*/result.json"))
    resumed = subprocess.run(command("killed"), capture_output=True, text=True, timeout=240)
    assert "going on from" in resumed.stderr, resumed.stderr
    subprocess.run(command("whole"), check=True, capture_output=True, timeout=240)
    killed, whole = (next(folder.glob(f"{store}/{kind}/*/table.csv")).parent for store in ("killed", "whole"))
    return killed, whole


@pytest.fixture
def run_door(tmp_path):
    """Run a door as a user would, from another folder; returns the finished process."""

    def run(script: str, *words: str, env: dict[str, str] | None = None, timeout: float = 240):
        settings = {
            "THINKALIKE_CACHE": str(tmp_path / "cache"),
            "HF_HOME": str(tmp_path / "hf"),
            "COLUMNS": "140",
            "OMP_NUM_THREADS": "1",
        }
        return subprocess.run(
            [sys.executable, str(ROOT / script), *words],
            cwd=tmp_path,
            env={**os.environ, **settings, **(env or {})},
            capture_output=True,
            text=True,
            timeout=timeout,
        )

    return run
