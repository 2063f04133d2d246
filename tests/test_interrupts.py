"""Signals: a job leaves a state where it can go on from one, says one line, and ends with the signal's status."""

import signal
import subprocess
import sys
import time

import pytest

from thinkalike.processes import Interrupted, asked, at_boundaries, heeded, stop

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


@pytest.mark.slow
@pytest.mark.ci_slow
@pytest.mark.parametrize("number", STATUS)
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


@pytest.mark.slow
@pytest.mark.ci_slow
def test_an_interrupted_analysis_resumes_to_the_same_bytes(cli, minis, text_files, tmp_path):
    words = ["analyze.py", "measure=cka", f"model.path={minis}/a", f"target.path={minis}/b", "model.context=32"]
    words += ["target.context=32", "data=text", f"data.files=[{text_files}/*.txt]", "data.report_share=0.9"]
    words += ["measure.batches=260", "measure.tokens_per_batch=64", f"data.cache={tmp_path}/cache"]
    status, said = interrupted(cli, signal.SIGTERM, *words, f"store={tmp_path}/s", until="pool 1")
    assert status == 143, said
    assert "interrupted at pool" in said
    again, whole = cli(*words, f"store={tmp_path}/s"), cli(*words, f"store={tmp_path}/whole")
    assert "resuming from" in again.stderr
    assert again.result.fingerprint() == whole.result.fingerprint()
