"""Processes: several share one job as one would do it, signals leave a state, and progress is told but on stdout."""

import io
import re
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from conftest import with_ci_slow
from thinkalike import processes
from thinkalike.errors import ConfigError, ShareDone
from thinkalike.job.phases import Phases
from thinkalike.measures import LayerMeans, MutualKNN
from thinkalike.measures.accumulator import without_empty
from thinkalike.measures.metric import CKA
from thinkalike.processes import (
    Activity,
    Interrupted,
    ProcessGroup,
    asked,
    at_boundaries,
    counted,
    doing,
    heeded,
    stop,
    under_way,
)
from thinkalike.screen import PROGRESS, progress, watched


class Threads(ProcessGroup):
    """A member of a process group of threads, which stand in for processes."""

    def __init__(self, rank, size, table, barrier):
        super().__init__(rank, size)
        self.__dict__.update(table=table, barrier=barrier)

    def everyone(self, value):
        self.table[self.rank] = value
        self.barrier.wait(20)
        values = list(self.table)
        self.barrier.wait(20)
        return values


def by_threads(size, work):
    """What `work(shared)` returns in each member of a process group."""
    table, barrier = [None] * size, threading.Barrier(size)
    with ThreadPoolExecutor(size) as pool:
        return list(pool.map(lambda rank: work(Threads(rank, size, table, barrier)), range(size)))


def metrics():
    return {
        "cka": lambda: CKA(2, 3, permutations=1),
        "mutual_knn": lambda: LayerMeans(2, 3, MutualKNN(5), permutations=5),
        "mutual_knn given the token": lambda: LayerMeans(2, 3, MutualKNN(2), conditional_on="token"),
    }


@pytest.mark.ci_slow
@pytest.mark.parametrize("name", list(metrics()))
@pytest.mark.parametrize("size", [2, 3, 8])
def test_any_process_can_keep_what_one_would_have(name, size):
    """Of eight processes one has no batch."""
    new, draw = metrics()[name], torch.Generator().manual_seed(0)
    states = [[torch.randn(40, 6, generator=draw) for _ in range(5)] for _ in range(7)]
    groups = {"groups": torch.arange(40) // 8} if "given" in name else {}

    def work(shared):
        metric, resumed = new(), new()
        for number in range(shared.rank, 7, shared.size):
            metric.update(states[number][:2], states[number][2:], None, number, **groups)
        own = len(metric.numbers)
        everyone = {"dist_sync_fn": lambda state, group: without_empty(shared.everyone(state))}
        with metric.sync_context(**everyone, distributed_available=lambda: True):
            resumed.load_state_dict(metric.state_dict())
        assert len(metric.numbers) == own, "each goes on with its own"
        return resumed.compute()

    (alone,) = by_threads(1, work)
    for found in by_threads(size, work):
        assert found.batches == alone.batches == 7
        assert all(torch.equal(a, b) for a, b in zip(found, alone, strict=True))
        assert torch.equal(found.within_target.value, alone.within_target.value)
        assert alone.chance is None or torch.equal(found.chance.calibrated.low, alone.chance.calibrated.low)


def test_all_but_the_first_end_with_their_share():
    ProcessGroup().end_of_share()
    with pytest.raises(ShareDone):
        ProcessGroup(1, 2).end_of_share()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["measure=loss"], "loss is done by one process; leave trainer=ddp out"),
        (["measure=rsa", "model=gpt2-mini"], "rsa is done by one process"),
        (["measure=cka", "trainer.precision=bf16-mixed"], "trainer.precision= is not read by cka"),
        (["measure=cka", "trainer.devices=0"], "trainer.devices=0 must be"),
    ],
)
def test_what_processes_cannot_share_is_refused(words, message, cli):
    assert message in cli("analyze.py", *words, "trainer=ddp").error


STATUS = {signal.SIGTERM: 143, signal.SIGINT: 130}


@pytest.fixture(autouse=True)
def _in_the_foreground():
    """A shell lets what it starts in the background ignore SIGINT, and the tests may be such."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize("number", STATUS)
def test_a_signal_ends_a_job_with_the_shells_status(number):
    before = signal.getsignal(number)
    with pytest.raises(Interrupted, match=r"^interrupted; rerun the command$") as ended, heeded():
        signal.raise_signal(number)
    assert ended.value.status == STATUS[number]
    assert signal.getsignal(number) == before


def test_the_first_signal_waits_for_a_boundary_not_the_second():
    with heeded(), at_boundaries():
        assert not asked()
        signal.raise_signal(signal.SIGTERM)
        assert asked()
        with pytest.raises(Interrupted, match=r"^interrupted at step 3 of 9; rerun the command to resume$") as ended:
            stop("at step 3 of 9")
        assert ended.value.status == 143
        with pytest.raises(Interrupted):
            signal.raise_signal(signal.SIGINT)
    assert not asked(), "the next job is not asked"


def test_signals_that_another_program_handles_are_left_to_it():
    came = []
    before = signal.signal(signal.SIGTERM, lambda *_: came.append(True))
    try:
        with heeded():
            signal.raise_signal(signal.SIGTERM)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert came == [True]


def test_a_process_ends_with_the_one_that_started_it():
    inner = "from thinkalike.processes import follow_parent; import time; follow_parent(); print('on', flush=True)\n"
    inner += "time.sleep(60)"
    outer = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {inner!r}]).wait()"
    with subprocess.Popen([sys.executable, "-c", outer], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout.readline() == "on\n"
        parent.kill()
        began = time.monotonic()
        assert parent.stdout.read() == "", "the pipe is closed when the child has ended"
    assert time.monotonic() - began < 20


def interrupted(cli, number, *command, until):
    """Send a signal to a command when a line of stderr has these words; returns its status and what it said."""
    said = ""
    pipes = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE}
    with cli.start(*command, env={"THINKALIKE_PROGRESS": "0.02"}, **pipes) as process:
        for line in process.stderr:
            said += line
            if until in line:
                process.send_signal(number)
                break
        said += process.stderr.read()
        return process.wait(60), said


@pytest.mark.parametrize("number", with_ci_slow(STATUS, signal.SIGTERM))
def test_training_leaves_a_state_at_its_step_and_goes_on_from_it(cli, small_stitching, tmp_path, number):
    words = [word for word in small_stitching if not word.startswith(("stitch.steps", "store="))]
    command = ["train.py", *words, "stitch.steps=400", "trainer.checkpoint_every=1000000"]
    status, said = interrupted(cli, number, *command, f"store={tmp_path}/s", until="training step 1")
    assert status == STATUS[number], said
    (line,) = (line for line in said.splitlines() if line.startswith("interrupted"))
    step = int(line.removeprefix("interrupted at step ").split()[0])
    assert line == f"interrupted at step {step} of 400; rerun the command to resume"
    assert "Traceback" not in said
    assert len(list(tmp_path.glob("s/stitching/*.partial/checkpoints/training-1-*.pt"))) == 1
    assert 0 < step < 400


@pytest.mark.ci_slow
def test_an_interrupted_analysis_resumes_to_the_same_bytes(cli, minis, text_files, tmp_path):
    words = ["analyze.py", "measure=cka", f"model.path={minis}/a", f"target.path={minis}/b", "model.context=32"]
    words += ["target.context=32", "data=text", f"data.files=[{text_files}/*.txt]", "data.evaluation_share=0.9"]
    words += ["measure.batches=100", "measure.tokens_per_batch=64", f"data.cache={tmp_path}/cache"]
    status, said = interrupted(cli, signal.SIGTERM, *words, f"store={tmp_path}/s", until="pool 1")
    assert status == 143, said
    assert "interrupted at pool" in said
    again, whole = cli(*words, f"store={tmp_path}/s"), cli(*words, f"store={tmp_path}/whole")
    assert "resuming from" in again.stderr
    assert again.result.fingerprint() == whole.result.fingerprint()


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
    assert (activity.rate, activity.seconds_left(now)) == (None, None)
    activity.begin(50)  # an earlier run did
    now = 110.0
    activity.reach(70)
    assert activity.rate == 2.0
    assert activity.seconds_left(110.0) == 50.0
    assert activity.seconds_left(115.0) == 45.0, "the rest gets shorter between steps, too"
    assert activity.seconds_left(999.0) == 0.0
    assert Activity("batch", None, 3).seconds_left(now) is None


def test_in_a_pipe_there_is_a_plain_line_now_and_then(monkeypatch):
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    monkeypatch.setenv(PROGRESS, "0.05")
    with watched(), doing("loading"):
        time.sleep(0.4)
    lines = sys.stderr.getvalue().splitlines()
    assert 1 <= len(lines) <= 8
    assert set(lines) == {"0:00:00 loading"}


def test_the_first_line_comes_early(monkeypatch):
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    monkeypatch.setattr(progress, "SECONDS_BEFORE_FIRST_LINE", 0.05)
    monkeypatch.setenv(PROGRESS, "30")
    with watched(), doing("loading"):
        time.sleep(0.4)
    assert sys.stderr.getvalue().splitlines() == ["0:00:00 loading"]


@pytest.mark.ci_slow
def test_progress_tells_what_is_left_of_the_whole_job(monkeypatch):
    began = time.monotonic()
    with watched(), doing("batch", 33):
        assert "whole job" not in progress.sentence(under_way(), began)
        progress.expect(300.0)
        line = progress.sentence(under_way(), began)
        assert re.search(r"batch 0 of 33; whole job: about 0:0(5:00|4:59) left$", line)
        progress.expect(300.0, is_least=True)
        assert "whole job: at least 0:0" in progress.sentence(under_way(), began)
        now = time.monotonic()
        monkeypatch.setattr(progress.time, "monotonic", lambda: now + 400)
        line = progress.sentence(under_way(), began)
        assert line.endswith("whole job: longer than the 0:05:00 of its forecast")
    monkeypatch.undo()
    with watched(), doing("batch", 33):
        assert "whole job" not in progress.sentence(under_way(), began), "the next job has none"
    progress.expect(300.0)
    assert "whole job" not in progress.sentence(under_way(), began), "nothing is watched"


@pytest.mark.ci_slow
def test_a_job_shows_its_phases_and_no_librarys_progress_bar(cli, small_stitching, monkeypatch):
    said = []

    class Listener(list):
        def append(self, activity):
            said.append(activity.name)
            super().append(activity)

    monkeypatch.setattr(processes, "_open_activities", Listener())
    monkeypatch.setenv(PROGRESS, "0")
    ended = cli("train.py", *small_stitching, "stitch.controls=true", "layers=[[0,0],[1,1]]")
    assert ended.status == 0, ended.stderr
    expected = ["starting", "loading", "statistics", "batch of token means", "fit", "training step", "report"]
    assert [name for name in dict.fromkeys(said) if name in expected] == expected
    assert {"tokenising, token", "batch of closed forms", "drawing", "map"} <= set(said)
    assert not re.search(r"Epoch|it/s|%\|", ended.stderr + ended.stdout)
    assert "training step" not in ended.stderr, "it shows no progress"
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


@pytest.mark.parametrize("seconds", ["x", "nan", "inf", "-inf", "1e999", "30s"])
def test_seconds_between_lines_of_progress_are_a_number(seconds, monkeypatch):
    monkeypatch.setenv(PROGRESS, seconds)
    with pytest.raises(ConfigError, match=f"{PROGRESS}={seconds} must be a number of seconds"), watched():
        pass


@pytest.mark.parametrize("seconds", ["", "0", "-1", "1e300"])
def test_any_number_of_seconds_between_lines_of_progress_goes(seconds, monkeypatch):
    monkeypatch.setenv(PROGRESS, seconds)
    with watched():
        pass
