"""Jobs of every kind that are killed at any moment end, when they are asked for again, with the same bytes."""

import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest

from stores import finish

KILLS = Path(__file__).with_name("kills.py")
sys.path.insert(0, str(KILLS.parent))
import kills  # noqa: E402


@pytest.mark.slow
@pytest.mark.timeout(3000)
def test_sixty_kills_leave_nothing_wrong():
    ended = subprocess.run([sys.executable, str(KILLS), "60"], capture_output=True, text=True)
    assert ended.returncode == 0, ended.stdout[-4000:] + ended.stderr[-2000:]
    assert ended.stdout.splitlines()[-1].startswith("60 kills")
    assert " 0 problems" in ended.stdout.splitlines()[-1]


@pytest.mark.parametrize("kind", kills.COMMANDS)
def test_every_command_of_the_campaign_is_one_that_its_job_takes(kind, cli, tmp_path):
    """A command that is refused would be killed in no job at all."""
    kills.write_files(tmp_path)
    done = cli(*kills.words_of(kind, tmp_path, tmp_path / "store"), "dry_run=true")
    assert done.status == 0, done.stderr


def test_the_campaign_sees_other_bytes_and_left_overs(tmp_path):
    """The positive control."""
    for name, penalty in (("whole", 0.5), ("same", 0.5), ("other", 0.25)):
        finish(tmp_path / name / "store", "loss", "abc", {"table": pd.DataFrame([penalty])})
    assert kills._problem(0, "", tmp_path / "same", tmp_path / "whole") == ""
    assert kills._problem(0, "", tmp_path / "other", tmp_path / "whole") == "loss: other bytes"
    assert kills._problem(1, "error: no", tmp_path / "same", tmp_path / "whole").startswith("exit 1")
    (tmp_path / "same" / "store" / "loss" / "abc.partial").mkdir()
    assert kills._problem(0, "", tmp_path / "same", tmp_path / "whole").startswith("left behind")
