"""When, where, by which command and in which phases a result was made."""

import socket
import sys
import time
from datetime import UTC, datetime, timedelta

from test_job import Toy, config
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
