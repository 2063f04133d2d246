"""The list of bad command lines is long and of many kinds, and each of them is refused in one line."""

from __future__ import annotations

from collections import Counter

import bad_inputs
import pytest
from bad_inputs import Case

GROUPS = [*bad_inputs.BAD, "right"]


def test_there_are_many_of_each_kind():
    counts = Counter(case.group for case in bad_inputs.cases() if case.bad)
    assert set(counts) == set(GROUPS) - {"right"}
    assert sum(counts.values()) > 300
    assert all(counts[group] >= 9 for group in bad_inputs.BAD)


def test_the_runner_sees_what_is_wrong(tmp_path):
    """The positive control: a job that runs, and a right line that is refused, are both problems."""
    bad_inputs.write_files(tmp_path)
    (tmp_path / "store").mkdir()
    assert bad_inputs.run(Case("control", "train.py --help"), tmp_path).problem == "accepted: exit 0"
    assert "refused, but right" in bad_inputs.run(Case("control", "train.py seed=-1", bad=False), tmp_path).problem
    assert bad_inputs.run(Case("control", "train.py seed=-1"), tmp_path).problem == ""
    assert bad_inputs._problem(1, "error: a\nerror: b\n", 0, []).startswith("not one line")
    assert bad_inputs._problem("KeyError: 3", "", 0, []) == "no refusal: KeyError: 3"
    assert bad_inputs._problem(1, "error: a\n", 0, [tmp_path]).startswith("left in the store")
    assert bad_inputs._problem(1, "error: a\n", 99, []) == "took 99 s"


@pytest.mark.slow
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("group", GROUPS)
def test_bad_lines_are_refused_in_one_line_and_right_ones_are_not(group):
    chosen = [case for case in bad_inputs.cases() if case.group == group]
    problems = [f"{ended.case.line}: {ended.problem}" for ended in bad_inputs.run_all(chosen) if ended.problem]
    assert problems == []
