"""What a job says of how far it is: the right numbers, live on a terminal, seldom in a pipe, and never on stdout."""

from __future__ import annotations

import functools
import io
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import termios
import threading
import time
from fcntl import ioctl

import pytest

from conftest import ROOT
from thinkalike import progress
from thinkalike.progress import Activity, counted, doing, under_way
from thinkalike.screen import aside, watched
from thinkalike.screen.progress import PROGRESS

HIDES, SHOWS = b"\x1b[?25l", b"\x1b[?25h"  # the cursor


def names() -> list[str]:
    return [each.name for each in under_way()]


def test_activities_are_inside_one_another_and_end_also_by_an_error():
    assert names() == []
    with doing("outer"):
        with doing("inner", 3) as inner:
            assert names() == ["outer", "inner"]
            assert inner.total == 3
        assert names() == ["outer"]
    with pytest.raises(KeyError), doing("outer"), doing("inner"):
        raise KeyError
    assert names() == []


def test_items_are_counted_when_they_are_done_and_are_the_same_items():
    seen = []
    for item in counted("abc", "letter"):
        (activity,) = under_way()
        seen.append((item, activity.done, activity.total))
    assert seen == [("a", 0, 3), ("b", 1, 3), ("c", 2, 3)]
    assert names() == []
    assert list(counted(iter("ab"), "letter", 5)) == ["a", "b"]


def test_rate_and_rest_are_of_this_run(monkeypatch):
    now = 100.0
    monkeypatch.setattr(progress.time, "monotonic", lambda: now)
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
    assert set(lines) == {"0:00 loading"}


def test_a_stderr_that_is_closed_or_missing_stops_nothing(monkeypatch):
    monkeypatch.setenv(PROGRESS, "0.02")
    stream, errors, reached = io.StringIO(), [], []
    monkeypatch.setattr(threading, "excepthook", errors.append)
    monkeypatch.setattr(sys, "stderr", stream)
    with watched(), doing("loading"):
        stream.close()
        time.sleep(0.1)
        reached.append("closed")
    monkeypatch.setattr(sys, "stderr", None)
    with watched(), doing("loading"), aside():
        reached.append("missing")
    assert (reached, errors) == (["closed", "missing"], [])


SCRIPT = """
import logging, sys, time, os, signal
from thinkalike.interrupts import heeded
from thinkalike.config import own_process
from thinkalike.progress import doing, counted
from thinkalike.screen import aside, show_text, watched
logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(message)s")
with own_process(), watched():
    with doing("report"):
        for number in counted(range({count}), "batch"):
            time.sleep(0.3)
            if number == 0:
                logging.info("a warning that is %s and is whole", "long " * 20)
            if number == 1:
                print("said by a library", file=sys.stderr)
    with aside():
        show_text("the table")
print("results: here", flush=True)
"""


class Terminal:
    """A process on a terminal of its own; `rest` reads to its end."""

    def __init__(self, code: str):
        self.ours, theirs = pty.openpty()
        self.resize(80)
        env = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", PROGRESS)}
        env |= {"TERM": "xterm", "PYTHONPATH": str(ROOT / "src")}
        command = [sys.executable, "-c", code]
        streams = dict.fromkeys(("stdin", "stdout", "stderr"), theirs)
        heed = functools.partial(signal.signal, signal.SIGINT, signal.SIG_DFL)  # which a shell's background jobs ignore
        self.process = subprocess.Popen(command, env=env, start_new_session=True, preexec_fn=heed, **streams)
        os.close(theirs)
        self.seen = b""

    def resize(self, columns: int) -> None:
        ioctl(self.ours, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))

    def until(self, text: bytes) -> None:
        while text not in self.seen:
            self.seen += os.read(self.ours, 4096)

    def rest(self) -> tuple[int, bytes]:
        try:
            while data := os.read(self.ours, 4096):
                self.seen += data
        except OSError:  # the other end is closed
            pass
        os.close(self.ours)
        return self.process.wait(30), self.seen


def test_on_a_terminal_it_is_live_and_gone_at_the_end():
    status, seen = Terminal(SCRIPT.format(count=4)).rest()
    assert status == 0
    assert b"report" in seen
    assert b"of 4" in seen
    text = re.sub(rb"\x1b\[[\d;?]*[A-Za-z]", b"", seen).decode()
    words = ["a warning that is", *["long"] * 20, "and is whole", "said by a library"]
    assert all(word in " ".join(text.split()) for word in (" ".join(words[:-1]), words[-1]))
    assert text.split()[-4:] == ["the", "table", "results:", "here"]
    assert seen.rfind(SHOWS) > seen.rfind(HIDES), "the cursor is back"


def test_ctrl_c_leaves_the_terminal_as_it_was():
    terminal = Terminal(SCRIPT.format(count=1000))
    terminal.until(b"of 1,000")
    terminal.resize(60)
    os.killpg(terminal.process.pid, signal.SIGINT)
    status, seen = terminal.rest()
    assert status == 128 + signal.SIGINT
    assert seen.rfind(SHOWS) > seen.rfind(HIDES)
    assert b"Traceback" not in seen
    assert re.sub(rb"\x1b\[[\d;?]*[A-Za-z]", b"", seen).decode().splitlines()[-1].strip().startswith("interrupted; ")


def test_a_job_says_its_phases_and_steps_and_no_bar_of_a_library_leaks(door, small_stitching, monkeypatch):
    said = []

    class Listener(list):
        def append(self, activity):
            said.append(activity.name)
            super().append(activity)

    monkeypatch.setattr(progress, "_open", Listener())
    ended = door("train.py", *small_stitching, "stitch.controls=true", "layers=[[0,0],[1,1]]")
    assert ended.status == 0, ended.stderr
    expected = ["starting", "loading", "likeness", "batch of token means", "fit", "training step", "report"]
    assert [name for name in dict.fromkeys(said) if name in expected] == expected
    assert {"tokenising, token", "batch of closed forms", "drawing", "map"} <= set(said)
    assert not re.search(r"Epoch|it/s|%\|", ended.stderr + ended.stdout)
    assert "training step" not in ended.stderr, "it took less than half a minute"
    assert names() == []
