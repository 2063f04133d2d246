"""A result appears whole or not at all, and is read in one way."""

import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from thinkalike import open_result, results
from thinkalike.errors import DataError, StoreError, TrainingError
from thinkalike.store import Job, locked, newest_state, read_state, write_state

TABLE = pd.DataFrame({"layer": [0, 1], "penalty": [0.5, 0.25]})
CONFIG = {"model": {"name": "tiny"}, "seed": 3, "layers": [[0, 0]], "nothing": None}


def job(store: Path, key: str = "abc", kind: str = "stitching") -> Job:
    return Job(str(store), kind, key)


def write(work: Job, penalty: float = 0.5, tables=None, arrays=None) -> None:
    provenance = {"seed": 3, "models": [{"name": "tiny"}]}
    record = {"scalars": {"penalty": penalty}, "settings": {"seed": 3}, "provenance": provenance}
    record["headlines"] = [{"name": "penalty", "value": penalty}]
    work.write(CONFIG, record, {"table": TABLE, **(tables or {})}, arrays or {})


def done(store: Path, key: str = "abc", penalty: float = 0.5, **more) -> Path:
    work = job(store, key)
    with work.running():
        write(work, penalty, **more)
        return work.appear().folder


def everything(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


def test_a_result_appears_whole_and_only_when_it_is_complete(tmp_path):
    work = job(tmp_path)
    with work.running() as partial:
        assert partial == work.partial
        assert not work.folder.exists()
        assert not work.done
        (work.aside / "own.txt").write_text("a job's own file")
        (partial / "curves").mkdir()
        (partial / "curves" / "metrics.csv").write_text("step,loss")
        assert not work.folder.exists(), "what is written aside is not there yet"
        write(work, arrays={"curve": np.arange(3.0)})
        assert not work.folder.exists(), "what is written aside is not there yet"
        folder = work.appear().folder
    assert folder == work.folder == tmp_path / "stitching" / "abc"
    assert work.done
    assert not work.partial.exists()
    files = ["arrays.npz", "config.yaml", "curves", "curves/metrics.csv", "manifest.json", "own.txt", "result.json"]
    files += ["table.csv"]
    assert everything(folder) == files
    assert everything(tmp_path) == ["stitching", "stitching/abc", *(f"stitching/abc/{name}" for name in files)]


def test_what_was_put_in_comes_out(tmp_path):
    arrays = {"curve": np.arange(3.0), "sums": np.ones((2, 2))}
    result = open_result(done(tmp_path, arrays=arrays, tables={"scores": TABLE[:1]}))
    assert (result.kind, result.key, result.scalars) == ("stitching", "abc", {"penalty": 0.5})
    assert (result.config, result.settings, result.provenance["seed"]) == (CONFIG, {"seed": 3}, 3)
    pd.testing.assert_frame_equal(result.table, TABLE)
    assert list(result.tables) == ["scores", "table"]
    pd.testing.assert_frame_equal(result.tables["scores"], TABLE[:1])
    assert set(result.arrays) == {"curve", "sums"}
    np.testing.assert_array_equal(result.arrays["curve"], np.arange(3.0))
    assert result.figures == []


def test_all_results_of_a_store_are_one_table(tmp_path):
    assert len(results(tmp_path)) == 0
    for key, penalty in (("a", 0.5), ("b", 0.25)):
        done(tmp_path, key, penalty)
    with job(tmp_path, "c").running():
        write(job(tmp_path, "c"))
        table = results(tmp_path)
    assert table[["kind", "key", "models", "penalty"]].values.tolist() == [
        ["stitching", "a", "tiny", 0.5],
        ["stitching", "b", "tiny", 0.25],
    ]
    assert open_result(table["folder"][1]).key == "b"


def fail(work: Job, error: BaseException, state: bool) -> None:
    """Break off a running job, before or after it has kept a state to go on from."""
    with work.running() as partial:
        (partial / "curves").mkdir()
        if state:
            write_state(work.states, "half", {"done": 2})
        raise error


BROKEN_OFF = [StoreError("disk full"), ValueError("a bug"), KeyboardInterrupt()]


@pytest.mark.parametrize(
    ("error", "state"), [(TrainingError("diverged"), True), *((error, False) for error in BROKEN_OFF)]
)
def test_a_failure_without_a_state_leaves_nothing(error, state, tmp_path):
    with pytest.raises(type(error)):
        fail(job(tmp_path / "store"), error, state)
    assert everything(tmp_path) == []


@pytest.mark.parametrize("error", BROKEN_OFF)
def test_an_interrupted_job_keeps_its_state(error, tmp_path):
    with pytest.raises(type(error)):
        fail(job(tmp_path), error, state=True)
    assert not job(tmp_path).done
    with job(tmp_path).running():
        assert read_state(newest_state(job(tmp_path).states, "half")) == {"done": 2}, "the same command goes on from it"


def test_a_failure_leaves_all_earlier_results(tmp_path):
    for key in ("abc", "other"):
        done(tmp_path, key)
    before = everything(tmp_path)
    with pytest.raises(DataError):
        fail(job(tmp_path), DataError("none"), state=False)
    assert everything(tmp_path) == before


def test_an_unwritable_store_is_one_line_with_a_remedy(tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(StoreError, match=r"the store .*file/store/stitching cannot be written: .*; choose store=DIR$"):
        job(tmp_path / "file" / "store").running().__enter__()


def test_a_lock_of_this_thread_is_refused_and_anothers_awaited(tmp_path):
    """As of a script that is imported again while its job runs, which would wait for itself without an end."""
    path, order = tmp_path / "job" / "lock", []

    def other():
        with locked(path, "computing x"):
            order.append("other")

    with locked(path, "computing x"):
        with pytest.raises(RuntimeError, match="Deadlock"):
            locked(path, "computing x").__enter__()
        waiting = threading.Thread(target=other)
        waiting.start()
        time.sleep(0.2)
        order.append("first")
    waiting.join()
    assert order == ["first", "other"]
    with locked(path, "computing x"):
        pass


def test_a_lock_ends_with_its_process_however_that_ends(tmp_path):
    hold = "import fcntl, sys; f = open(sys.argv[1], 'w'); fcntl.flock(f, 2); print('held', flush=True); input()"
    partial = job(tmp_path).partial
    partial.mkdir(parents=True)
    other = subprocess.Popen(
        [sys.executable, "-S", "-c", hold, partial / "lock"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with other:
        assert other.stdout.readline() == "held\n"
        with pytest.raises(StoreError, match="another process"):
            job(tmp_path).running(wait=False).__enter__()
        other.kill()
    assert done(tmp_path).exists()
