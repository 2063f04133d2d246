"""What a machine runs out of or takes away: one line with the remedy, no traceback, and a state where there was one."""

import os
import subprocess

import pytest

from conftest import results_in
from faulty_commands import ended, one_line

pytestmark = pytest.mark.slow


@pytest.mark.ci_slow
def test_a_full_disk_is_one_line_and_the_state_is_kept(small_stitching, tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=100k", "tmpfs", str(disk)], capture_output=True)
    if mounted.returncode:
        pytest.skip("needs the right to mount a small file system")
    replaced = ("store=", "stitch.steps=")
    words = [*(word for word in small_stitching if not word.startswith(replaced)), "stitch.kind=affine"]
    words += [f"store={disk}/results", "stitch.steps=40", "trainer.checkpoint_every=5"]
    try:
        (disk / "ballast").write_bytes(bytes(60_000))
        line = one_line(*ended(words, tmp_path))
        assert "No space left on device" in line
        assert "free some space" in line
        (disk / "ballast").unlink()
        subprocess.run(["mount", "-o", "remount,size=20m", str(disk)], check=True)
        assert ended(words, tmp_path)[0] == 0
        assert len(results_in(disk / "results")) == 1
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def test_a_full_or_closed_stdout_does_not_lose_the_result(small_stitching, tmp_path):
    with open("/dev/full", "w") as full:
        assert ended(small_stitching, tmp_path, stdout=full)[0] == 0
    assert len(results_in(tmp_path / "results")) == 1
    assert ended([*small_stitching, "seed=1"], tmp_path, lambda: os.close(1))[0] == 0
    assert len(results_in(tmp_path / "results")) == 2


def test_two_processes_of_one_job_compute_it_once(cli, small_stitching, tmp_path):
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    both = [cli.start("train.py", *small_stitching, **pipes) for _ in range(2)]
    said = [process.communicate(timeout=240) for process in both]
    assert [process.returncode for process in both] == [0, 0], said
    assert sum("already done" in err for _, err in said) == 1
    assert len({out.splitlines()[-1] for out, _ in said}) == 1
    assert len(results_in(tmp_path / "results")) == 1
