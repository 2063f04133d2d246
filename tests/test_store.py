"""A result appears whole or not at all, under a name that is what could change its numbers."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from thinkalike import open_result
from thinkalike.config import DataConfig, ModelConfig, TrainConfig, as_dict
from thinkalike.errors import DataError, ModelError, StoreError, TrainingError
from thinkalike.store import Job, environment, key_of

TABLE = pd.DataFrame({"layer": [0, 1], "penalty": [0.5, 0.25]})


def job(store: Path, key: str = "abc", kind: str = "stitching") -> Job:
    return Job(str(store), kind, key, {"model": {"name": "tiny"}, "seed": 3, "layers": [[0, 0]], "nothing": None})


def done(store: Path, key: str = "abc", penalty: float = 0.5, **more) -> Path:
    work = job(store, key)
    with work.running():
        return work.finish({"penalty": penalty}, TABLE, {"seed": 3}, **more)


def everything(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


# -------------------------------------------------------------------------------------------------------------- key_of

UNIMPORTANT = {
    "store", "force", "logger.kind", "logger.project", "logger.entity", "logger.group", "data.cache", "data.files",
    "model.path", "target.path", "model.device", "target.device", "trainer.checkpoint_every", "trainer.threads",
    "pretrain.ship",
}  # fmt: skip


def settings() -> dict:
    models = {name: ModelConfig(name=name, architecture={"d_model": 8}) for name in ("model", "target")}
    return as_dict(TrainConfig(**models, data=DataConfig(name="stdlib")))


def leaves(value, prefix=""):
    for key, item in value.items():
        yield from leaves(item, f"{prefix}{key}.") if isinstance(item, dict) else [f"{prefix}{key}"]


def test_a_name_changes_with_every_setting_that_could_change_the_numbers_and_no_other():
    plain, ignored = key_of(settings(), {"data": "1"}), set()
    for leaf in leaves(settings()):
        changed = settings()
        *way, last = leaf.split(".")
        inner = changed
        for part in way:
            inner = inner[part]
        inner[last] = "something else"
        if key_of(changed, {"data": "1"}) == plain:
            ignored.add(leaf)
    assert ignored == UNIMPORTANT


def test_a_name_changes_with_the_content_of_local_files():
    names = {key_of(settings(), content) for content in ({"data": "1"}, {"data": "2"}, {"model": "1"}, {})}
    assert len(names) == 4


def test_a_name_does_not_depend_on_the_order_of_settings():
    turned = dict(reversed(settings().items()))
    assert list(turned) != list(settings())
    assert key_of(turned, {"a": "1", "b": "2"}) == key_of(settings(), {"b": "2", "a": "1"})


# -------------------------------------------------------------------------------------------------------------- finish


def test_a_result_appears_whole_and_only_when_it_is_complete(tmp_path):
    work = job(tmp_path)
    with work.running() as partial:
        assert partial == work.partial
        assert not work.folder.exists()
        assert not work.done
        (work.out() / "own.txt").write_text("a job's own file")
        (partial / "curves").mkdir()
        (partial / "curves" / "metrics.csv").write_text("step,loss")
        assert not work.folder.exists(), "what is written aside is not there yet"
        folder = work.finish({"penalty": 0.5}, TABLE, {"seed": 3}, {"curve": np.arange(3.0)})
    assert folder == work.folder == tmp_path / "stitching" / "abc"
    assert work.done
    assert not work.partial.exists()
    files = ["arrays.npz", "config.yaml", "curves", "curves/metrics.csv", "own.txt", "result.json", "table.csv"]
    assert everything(folder) == files
    assert everything(tmp_path) == ["stitching", "stitching/abc", *(f"stitching/abc/{name}" for name in files)]


def test_what_was_put_in_comes_out(tmp_path):
    result = open_result(done(tmp_path, arrays={"curve": np.arange(3.0), "sums": np.ones((2, 2))}))
    assert (result.kind, result.key, result.scalars) == ("stitching", "abc", {"penalty": 0.5})
    assert result.config == job(tmp_path).config
    pd.testing.assert_frame_equal(result.table, TABLE)
    assert set(result.arrays) == {"curve", "sums"}
    np.testing.assert_array_equal(result.arrays["curve"], np.arange(3.0))
    assert (result.tables, result.figures) == ({}, [])


def test_without_arrays_there_is_no_file_of_them(tmp_path):
    assert everything(done(tmp_path)) == ["config.yaml", "result.json", "table.csv"]


def test_the_provenance_says_what_computed_it(tmp_path):
    record = open_result(done(tmp_path)).provenance
    assert record["seed"] == 3
    assert {"thinkalike", "torch", "transformers", "numpy"} <= set(record["versions"])
    assert record["versions"]["numpy"] == np.__version__
    assert 1e7 < record["peak_memory_bytes"] < 1e13
    assert 0 <= record["wall_seconds"] < 60
    assert record["threads"] >= 1
    described = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=Path(__file__).parent, capture_output=True, text=True
    )
    assert described.returncode != 0 or described.stdout.strip()[:7] in record["git_commit"]


def test_a_checkout_without_git_has_an_unknown_commit(tmp_path, monkeypatch):
    monkeypatch.setattr("thinkalike.store.__file__", str(tmp_path / "store.py"))
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert environment()["git_commit"] == "unknown"


def test_doing_a_job_again_replaces_all_of_the_old_result(tmp_path):
    folder = done(tmp_path, arrays={"curve": np.arange(3.0)})
    assert done(tmp_path, penalty=0.75) == folder
    assert open_result(folder).scalars == {"penalty": 0.75}
    assert not (folder / "arrays.npz").exists()


# ------------------------------------------------------------------------------------------------------------- failures


def fail(work: Job, error: BaseException, state: bool) -> None:
    """Break off a running job, before or after it has kept a state to go on from."""
    with work.running() as partial:
        (partial / "curves").mkdir()
        if state:
            (partial / "checkpoints").mkdir()
            (partial / "checkpoints" / "last.ckpt").write_text("state")
        raise error


BROKEN_OFF = [StoreError("disk full"), ModelError("no hub today"), ValueError("a bug"), KeyboardInterrupt()]


@pytest.mark.parametrize("error", [TrainingError("diverged"), *BROKEN_OFF])
def test_a_failure_without_a_state_leaves_nothing(error, tmp_path):
    with pytest.raises(type(error)):
        fail(job(tmp_path / "store"), error, state=False)
    assert everything(tmp_path) == []


def test_a_job_that_diverged_leaves_nothing_even_with_a_state(tmp_path):
    with pytest.raises(TrainingError):
        fail(job(tmp_path / "store"), TrainingError("the loss is not finite"), state=True)
    assert everything(tmp_path) == []


@pytest.mark.parametrize("error", BROKEN_OFF)
def test_an_interrupted_job_keeps_its_state(error, tmp_path):
    with pytest.raises(type(error)):
        fail(job(tmp_path), error, state=True)
    assert not job(tmp_path).done
    with job(tmp_path).running() as partial:
        assert (partial / "checkpoints" / "last.ckpt").read_text() == "state", "the same command goes on from it"


def test_a_failure_leaves_other_results_and_an_older_one_of_its_own(tmp_path):
    for key in ("abc", "other"):
        done(tmp_path, key)
    before = everything(tmp_path)
    with pytest.raises(DataError):
        fail(job(tmp_path), DataError("none"), state=False)
    assert everything(tmp_path) == before


def test_a_store_that_cannot_be_written_is_one_line_with_a_remedy(tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(
        StoreError, match=r"the store .*file/store/stitching cannot be written: .*; choose store=DIR"
    ) as e:
        job(tmp_path / "file" / "store").running().__enter__()
    assert "\n" not in str(e.value)


# ---------------------------------------------------------------------------------------------------------------- lock


def test_two_of_the_same_job_are_refused_and_the_first_is_not_harmed(tmp_path):
    first = job(tmp_path)
    with first.running() as partial:
        with pytest.raises(StoreError, match=r"another process is computing .*abc; wait for it, or stop it"):
            job(tmp_path).running().__enter__()
        assert partial.exists()
        first.finish({"penalty": 0.5}, TABLE, {})
    assert first.done


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
            job(tmp_path).running().__enter__()
        other.kill()
    assert done(tmp_path).exists()


def test_different_jobs_share_a_store_at_once(tmp_path):
    one, two = job(tmp_path, "one"), job(tmp_path, "two")
    with one.running(), two.running():
        one.finish({"penalty": 1.0}, TABLE, {})
        two.finish({"penalty": 2.0}, TABLE, {})
    assert [open_result(work.folder).scalars["penalty"] for work in (one, two)] == [1.0, 2.0]


def test_a_failing_job_does_not_disturb_its_neighbour(tmp_path):
    one = job(tmp_path, "one")
    with one.running():
        with pytest.raises(DataError):
            fail(job(tmp_path, "two"), DataError("none"), state=False)
        one.finish({"penalty": 1.0}, TABLE, {})
    assert one.done
    assert not job(tmp_path, "two").partial.exists()


def test_a_home_folder_may_be_written_with_a_tilde(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    assert done(Path("~/results")) == tmp_path / "results" / "stitching" / "abc"
