"""Damage is noticed and named: a bit of a result, of a state, of a cache; what dead processes leave is cleared away."""

import errno
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from filelock import FileLock

from thinkalike import open_result
from thinkalike.errors import StoreError
from thinkalike.store import Job, newest_state, read_state, write_state

TABLE = pd.DataFrame({"layer": [0, 1], "penalty": [0.5, 0.25]})


def result_in(store: Path, key: str = "abc", penalty: float = 0.5, table: pd.DataFrame = TABLE) -> Path:
    """The folder of a finished job with a table, arrays, a figure and curves."""
    job = Job(str(store), "stitching", key)
    with job.running() as partial:
        (partial / "curves").mkdir()
        (partial / "curves" / "metrics.csv").write_text("step,loss\n0,1\n")
        record = {"scalars": {"penalty": penalty}, "settings": {}, "provenance": {}}
        job.write({"seed": 0}, record, {"table": table}, {"map": np.arange(4.0)})
        (job.aside / "figures").mkdir()
        (job.aside / "figures" / "map.svg").write_text("<svg/>")
        return job.appear().folder


FILES = ["table.csv", "arrays.npz", "result.json", "config.yaml", "curves/metrics.csv", "figures/map.svg"]


def flip(path: Path, place: int = -2) -> None:
    """Change one bit of a file."""
    content = bytearray(path.read_bytes())
    content[place] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize("name", [*FILES, "manifest.json"])
@pytest.mark.parametrize("harm", ["flip", "cut", "remove"])
def test_a_damaged_file_is_named_whichever_it_is(name, harm, tmp_path):
    folder = result_in(tmp_path)
    assert open_result(folder).scalars == {"penalty": 0.5}
    path = folder / name
    if harm == "flip":
        flip(path, len(path.read_bytes()) // 2)
    elif harm == "cut":
        path.write_bytes(path.read_bytes()[:-3])
    else:
        path.unlink()
    with pytest.raises(StoreError, match=rf"{name} (is missing|is damaged|holds)|would have a {name}"):
        open_result(folder)


def test_a_file_that_may_not_be_read_is_not_called_damaged(tmp_path, monkeypatch):
    folder = result_in(tmp_path)

    def denied(path):  # root may read all
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr("thinkalike.store.digest_of", denied)
    with pytest.raises(StoreError, match=r"cannot be read: Permission denied\Z"):
        open_result(folder)


def test_a_finished_job_names_a_damaged_file_and_force_mends_it(tmp_path):
    folder = result_in(tmp_path)
    flip(folder / "table.csv")
    with pytest.raises(StoreError, match=r"table\.csv is damaged: its checksum .*; delete .* with force=true"):
        Job(str(tmp_path), "stitching", "abc").result()
    assert result_in(tmp_path) == folder
    assert Job(str(tmp_path), "stitching", "abc").result().scalars == {"penalty": 0.5}


def test_the_content_of_a_result_is_its_numbers(tmp_path):
    same = open_result(result_in(tmp_path, "one")), open_result(result_in(tmp_path, "two", penalty=0.75))
    assert same[0].fingerprint() == same[1].fingerprint(), "result.json also holds times"
    other = open_result(result_in(tmp_path, "three", table=TABLE * 2))
    assert other.fingerprint() != same[0].fingerprint()


def test_a_state_is_read_as_written_and_replaced_by_the_next(tmp_path):
    first = write_state(tmp_path, "half", {"step": 1, "weights": torch.arange(3.0)})
    assert read_state(first)["weights"].tolist() == [0, 1, 2]
    for step in range(2, 12):  # ten is after nine, though not in the alphabet
        write_state(tmp_path, "half", {"step": step})
    write_state(tmp_path, "half-life", {"step": 99})
    assert read_state(newest_state(tmp_path, "half"))["step"] == 11
    assert len(list(tmp_path.iterdir())) == 2
    assert newest_state(tmp_path, "other") is None


@pytest.mark.parametrize("place", [0, 100, -1])
def test_a_state_with_a_flipped_bit_is_put_aside(place, tmp_path, caplog):
    path = write_state(tmp_path, "half", {"weights": torch.arange(300.0)})
    flip(path, place)
    assert newest_state(tmp_path, "half") is None
    assert f"{path} is damaged" in caplog.text
    assert [each.suffix for each in tmp_path.iterdir()] == [".damaged"]
    assert read_state(write_state(tmp_path, "half", {"step": 1})) == {"step": 1}


def test_a_state_that_cannot_be_written_leaves_the_one_before(tmp_path, monkeypatch):
    before = write_state(tmp_path, "half", {"step": 1})

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    for step in ("torch.save", "os.fsync", "os.replace"):
        with monkeypatch.context() as patch:
            patch.setattr(step, full)
            with pytest.raises(OSError, match="No space"):
                write_state(tmp_path, "half", {"step": 2})
        assert read_state(newest_state(tmp_path, "half")) == {"step": 1}
        assert newest_state(tmp_path, "half") == before
    write_state(tmp_path, "half", {"step": 3})
    assert len(list(tmp_path.iterdir())) == 1, "the file that was not finished is gone"


def test_leftovers_beside_a_finished_result_are_cleared_away(tmp_path):
    result_in(tmp_path)
    job = Job(str(tmp_path), "stitching", "abc")
    write_state(job.states, "half", {"step": 1})
    (job.partial / "lock").touch()
    assert job.result() is not None
    assert not job.partial.exists()


def test_what_another_process_is_using_is_left_alone(tmp_path):
    result_in(tmp_path)
    job = Job(str(tmp_path), "stitching", "abc")
    job.partial.mkdir()
    with FileLock(job.partial / "lock"):  # it does the job again
        assert job.result() is not None
        assert job.partial.exists()


def test_a_new_result_replaces_all_of_an_old_one(tmp_path):
    folder = result_in(tmp_path)
    (folder / "old").touch()
    assert open_result(result_in(tmp_path)).folder == folder
    assert not (folder / "old").exists()


def test_a_process_that_dies_leaves_all_its_curves(tmp_path, monkeypatch):
    def killed(*_):
        raise KeyboardInterrupt

    write_state(Job(str(tmp_path), "stitching", "abc").states, "half", {"step": 1})
    monkeypatch.setattr("thinkalike.store.seal", killed)
    with pytest.raises(KeyboardInterrupt):
        result_in(tmp_path)
    partial = Job(str(tmp_path), "stitching", "abc").partial
    assert (partial / "curves" / "metrics.csv").read_text() == "step,loss\n0,1\n"
