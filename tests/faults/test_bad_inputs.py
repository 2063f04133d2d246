"""Bad command lines: each is refused in one line, soon, and leaves nothing in the store."""

from __future__ import annotations

import shlex

import pytest
from bad_lines import BAD, RIGHT, write_files

from conftest import composed


@pytest.mark.slow
@pytest.mark.parametrize("line", [f"{script} {words}" for script, lines in BAD.items() for words in lines])
def test_a_bad_line_is_refused_in_one_line(line, door, tmp_path):
    write_files(tmp_path)
    script, *words = shlex.split(line.replace("{here}", str(tmp_path)))
    refused = door(f"{script}.py", *words, *([] if "store=" in line else [f"store={tmp_path}/store"]))
    assert refused.status == 1, refused.stderr
    assert "Traceback" not in refused.stderr
    assert refused.stderr.count("error: ") == 1 or "of the sweep's jobs failed:" in refused.stderr
    assert not [path for path in (tmp_path / "store").rglob("*") if path.is_file()]


@pytest.mark.slow
@pytest.mark.parametrize("line", RIGHT)
def test_a_line_that_is_nearly_bad_composes(line):
    """The positive control."""
    script, *words = shlex.split(line)
    assert composed(*words, door=script)
