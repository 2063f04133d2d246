"""When, where, by which command and in which phases a result was made."""

import json
import socket
import sys
import time
from datetime import UTC, datetime, timedelta

import pytest

from test_job import Toy, config
from thinkalike.errors import DataError
from thinkalike.job import Phases, perform


class Clock:
    """A clock that moves when it is told to."""

    def __init__(self, monkeypatch):
        self.now = 0.0
        monkeypatch.setattr(time, "monotonic", lambda: self.now)


def test_a_phase_inside_another_takes_its_time_from_it(monkeypatch):
    clock, phase = Clock(monkeypatch), Phases()
    with phase("computing"):
        clock.now = 2.0
        with phase("loading"):
            clock.now = 5.0
        clock.now = 6.0
    clock.now = 60.0  # between phases
    with phase("loading"):
        clock.now = 60.5
    assert phase.seconds == {"loading": 3.5, "computing": 3.0}


def test_the_phases_of_an_interrupted_job_add_up(tmp_path, monkeypatch):
    clock = Clock(monkeypatch)

    def broken_off():
        with Phases(tmp_path)("fit"):
            clock.now += 3.0
            raise DataError("broken off")

    with pytest.raises(DataError):
        broken_off()
    again = Phases(tmp_path)
    with again("fit"):
        clock.now += 4.0
    with again("report"):
        clock.now += 1.0
    assert again.seconds == {"fit": 7.0, "report": 1.0}


def test_a_result_says_when_where_and_how_it_was_made(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["some script.py", "a=b c"])
    before = datetime.now(UTC)
    record = perform(Toy(), config(tmp_path)).provenance
    made = datetime.fromisoformat(record["date"])
    assert before - timedelta(seconds=1) <= made <= datetime.now(UTC)
    assert made.utcoffset() == timedelta(0)
    assert record["host"] == socket.gethostname()
    assert list(record["phases"]) == ["computing", "drawing"]
    assert sum(record["phases"].values()) <= record["wall_seconds"] + 0.1


def test_seconds_of_an_interrupted_job_are_kept_without_force(tmp_path):
    with pytest.raises(DataError):
        perform(Toy(break_off=DataError("broken off")), config(tmp_path))
    (kept,) = tmp_path.glob("toy/*.partial/checkpoints/phases.json")
    kept.write_text(json.dumps({"computing": 100.0}))
    assert 100 <= perform(Toy(), config(tmp_path)).provenance["phases"]["computing"] < 110
    assert perform(Toy(), config(tmp_path, force=True)).provenance["phases"]["computing"] < 10
