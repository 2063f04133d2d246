"""What a job says of its progress and of its making: numbers, phases, seldom in a pipe, and never on stdout."""

import io
import re
import socket
import sys
import time
from datetime import UTC, datetime, timedelta

import pytest

from test_job import Toy, config
from thinkalike import processes
from thinkalike.job import Phases, perform
from thinkalike.processes import Activity, counted, doing, under_way
from thinkalike.screen import PROGRESS, watched


def names() -> list[str]:
    return [each.name for each in under_way()]


def test_activities_nest_and_end_on_errors_too():
    assert names() == []
    with doing("outer"):
        with doing("inner", 3) as inner:
            assert names() == ["outer", "inner"]
            assert inner.total == 3
        assert names() == ["outer"]
    with pytest.raises(KeyError), doing("outer"), doing("inner"):
        raise KeyError
    assert names() == []


def test_items_are_counted_when_done():
    seen = []
    for item in counted("abc", "letter"):
        (activity,) = under_way()
        seen.append((item, activity.done, activity.total))
    assert seen == [("a", 0, 3), ("b", 1, 3), ("c", 2, 3)]
    assert names() == []
    assert list(counted(iter("ab"), "letter", 5)) == ["a", "b"]


def test_rate_and_rest_are_of_this_run(monkeypatch):
    now = 100.0
    monkeypatch.setattr(processes.time, "monotonic", lambda: now)
    activity = Activity("step", 170)
    assert (activity.rate, activity.left(now)) == (None, None)
    activity.begin(50)  # an earlier run did
    now = 110.0
    activity.reach(70)
    assert activity.rate == 2.0
    assert activity.left(110.0) == 50.0
    assert activity.left(115.0) == 45.0, "the rest gets shorter between steps, too"
    assert activity.left(999.0) == 0.0
    assert Activity("batch", None, 3).left(now) is None


def lines_of(monkeypatch, every: str, seconds: float) -> list[str]:
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setenv(PROGRESS, every)
    with watched(), doing("loading"):
        time.sleep(seconds)
    return stream.getvalue().splitlines()


def test_in_a_pipe_there_is_a_plain_line_now_and_then(monkeypatch):
    lines = lines_of(monkeypatch, "0.05", 0.4)
    assert 1 <= len(lines) <= 8
    assert set(lines) == {"0:00:00 loading"}


def test_a_job_shows_its_phases_and_no_librarys_progress_bar(cli, small_stitching, monkeypatch):
    said = []

    class Listener(list):
        def append(self, activity):
            said.append(activity.name)
            super().append(activity)

    monkeypatch.setattr(processes, "_open", Listener())
    ended = cli("train.py", *small_stitching, "stitch.controls=true", "layers=[[0,0],[1,1]]")
    assert ended.status == 0, ended.stderr
    expected = ["starting", "loading", "likeness", "batch of token means", "fit", "training step", "report"]
    assert [name for name in dict.fromkeys(said) if name in expected] == expected
    assert {"tokenising, token", "batch of closed forms", "drawing", "map"} <= set(said)
    assert not re.search(r"Epoch|it/s|%\|", ended.stderr + ended.stdout)
    assert "training step" not in ended.stderr, "it took less than half a minute"
    assert names() == []


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
