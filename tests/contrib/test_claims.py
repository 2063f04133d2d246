"""Claims: verdicts where they are planted, what a claim says that it rests on, and the tables of all claims."""

import importlib.util
import math
from dataclasses import astuple
from pathlib import Path

import pandas as pd
import pytest
import torch

from thinkalike.contrib.papers.claims import (
    VERDICTS,
    Bound,
    Claim,
    claims_table,
    counted,
    counts_of,
    joined,
    judged,
    level_of_each,
    together,
    untestable,
)
from thinkalike.measures import Estimate
from thinkalike.store import Job

HOLDS, FAILS, UNDECIDED, UNTESTABLE = VERDICTS


def estimate(*ends):
    """Estimates with these ends, their values in the middle."""
    low, high = torch.tensor(ends, dtype=torch.float64).T
    return Estimate((low + high) / 2, low, high)


@pytest.mark.parametrize(
    ("bound", "low", "high", "verdict"),
    [
        (Bound("above"), 0.1, 0.3, HOLDS),
        (Bound("above"), -0.3, -0.1, FAILS),
        (Bound("above"), -0.1, 0.3, UNDECIDED),
        (Bound("above"), 0.0, 0.3, UNDECIDED),
        (Bound("above", 0.7), 0.3, 0.6, FAILS),
        (Bound("above", 0.7), 0.6, 0.8, UNDECIDED),
        (Bound("below", 0.02), -0.5, 0.01, HOLDS),
        (Bound("below", 0.02), 0.03, 0.05, FAILS),
        (Bound("below", 0.02), 0.01, 0.03, UNDECIDED),
        (Bound("within", 0.01), -0.005, 0.009, HOLDS),
        (Bound("within", 0.01), -0.03, -0.02, FAILS),
        (Bound("within", 0.01), -0.03, 0.03, UNDECIDED),
        (Bound("above"), 1e-17, 2e-17, UNDECIDED),  # rounding
        (Bound("below"), 1e-17, 2e-17, UNDECIDED),
        (Bound("above"), -math.inf, math.inf, UNDECIDED),
        (Bound("above"), math.nan, math.nan, UNDECIDED),
    ],
)
def test_ends_of_an_interval_decide(bound, low, high, verdict):
    assert bound.verdict(low, high) == verdict


@pytest.mark.parametrize(
    ("verdicts", "whole"),
    [
        ([HOLDS, HOLDS], HOLDS),
        ([HOLDS, UNDECIDED], UNDECIDED),
        ([HOLDS, FAILS, UNDECIDED, UNTESTABLE], FAILS),
        ([UNDECIDED, UNTESTABLE], UNTESTABLE),
    ],
)
def test_of_several_statements_the_worst_decides(verdicts, whole):
    assert joined(verdicts) == joined(reversed(verdicts)) == whole


def test_a_claim_says_what_it_rests_on():
    parts = [(Bound("above"), estimate((0.1, 0.3), (0.2, 0.8))), (Bound("below", 0.5), estimate((0.0, 0.1)))]
    claim = judged("it is so", parts, "numbers", "20 models")
    said = ("it is so", HOLDS, "numbers", "20 models", "above 0, below 0.5", pytest.approx(0.3))
    assert astuple(claim) == said


@pytest.mark.parametrize(
    ("ends", "verdict"),
    [
        ([(-0.1, 5.0)], UNDECIDED),  # the value itself, 2.45, never counts
        ([(0.1, 0.3), (-0.1, 0.3), (0.2, 0.3)], UNDECIDED),
        ([(0.1, 0.3), (-0.3, -0.1), (-0.1, 0.3)], FAILS),
        ([(-math.inf, math.inf)], UNDECIDED),
    ],
)
def test_the_worst_number_decides(ends, verdict):
    claim = judged("", [(Bound("above"), estimate(*ends))], "", "")
    assert claim.verdict == verdict
    assert (claim.smallest_effect is None) == (ends[0][1] == math.inf)


def test_the_table_and_the_counts_have_all_verdicts():
    ends = [(0.1, 0.2), (-0.2, -0.1), (-0.1, 0.2)]
    claims = [judged(str(end), [(Bound("above"), estimate(end))], "", "3 sites") for end in ends]
    claims.append(untestable("none", "why"))
    assert [counted("", so, "16 of 16", "16 rows").verdict for so in (True, False)] == [HOLDS, FAILS]
    table = claims_table(claims)
    assert list(table) == ["claim", "verdict", "numbers", "units", "tolerance", "smallest_effect"]
    assert list(table["verdict"]) == list(VERDICTS)
    assert table["smallest_effect"].tolist()[:3] == pytest.approx([0.05, 0.05, 0.15])
    assert math.isnan(table["smallest_effect"][3])
    names = ["claims_that_hold", "claims_that_do_not_hold", "claims_undecided", "claims_not_testable"]
    assert counts_of(claims) == {"claims": 4.0, **dict.fromkeys(names, 1.0)}
    assert math.isnan(claims_table([counted("", True, "", "")])["smallest_effect"][0])


def test_intervals_for_several_numbers_are_wider():
    assert level_of_each(1) == pytest.approx(0.95)
    assert level_of_each(5) == pytest.approx(0.99)
    assert together(1) == ""
    assert "all 5 together" in together(5)


@pytest.fixture
def make_results():
    path = Path(__file__).resolve().parents[2] / "docs" / "make_results.py"
    spec = importlib.util.spec_from_file_location("make_results", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def planted(store, name, verdicts, scale="mini", key="a", **config):
    ends = {HOLDS: (0.1, 0.2), FAILS: (-0.2, -0.1), UNDECIDED: (-0.1, 0.2)}
    claims = [
        judged(f"{name} {verdict}", [(Bound("above"), estimate(ends[verdict]))], "+1 [0, 2]", "6 models")
        if verdict in ends
        else untestable("no", "why")
        for verdict in verdicts
    ]
    tables = {"table": pd.DataFrame({"a": [1]}), "claims": claims_table(claims)}
    job = Job(str(store), name.replace("/", "-"), key)
    with job.running():
        job.write({"experiment": name, "scale": scale, **config}, {}, tables, {})
        job.appear()


@pytest.fixture
def overview(make_results, tmp_path, capsys):
    """The lines of the page that is made of a store."""

    def made():
        make_results.main(str(tmp_path))
        return capsys.readouterr().out.splitlines()

    return made


def test_the_overview_has_all_claims_of_both_papers(overview, tmp_path):
    assert "No experiment is finished." in "".join(overview())
    planted(tmp_path, "brown2023/figure1", [HOLDS, UNDECIDED, UNTESTABLE])
    planted(tmp_path, "salle2024/figure3", [FAILS, HOLDS, HOLDS])
    lines = overview()
    counts = [line for line in lines if line.startswith(("| brown2023 ", "| salle2024 "))]
    assert counts == ["| brown2023 | mini | 1 | 0 | 1 | 1 |", "| salle2024 | mini | 2 | 1 | 0 | 0 |"]
    assert "| brown2023/figure1 holds | holds: +1 [0, 2] |" in lines
    assert "| no | not testable here: why |" in lines
    place = lines.index("## salle2024/figure3")
    assert lines[place + 1] == "- `python analyze.py experiment=salle2024/figure3 scale=mini`"


def test_only_the_newest_result_of_an_experiment_is_told(overview, tmp_path):
    planted(tmp_path, "brown2023/figure1", [HOLDS], key="old")
    planted(tmp_path, "brown2023/figure1", [FAILS], key="new")
    assert "| brown2023 | mini | 0 | 1 | 0 | 0 |" in overview()
    planted(tmp_path, "brown2023/figure1", [UNDECIDED], key="paper", recipe="paper")
    lines = overview()
    assert "| brown2023 | mini | 0 | 1 | 1 | 0 |" in lines, "another recipe is another command"
    assert any("`python analyze.py experiment=brown2023/figure1 scale=mini recipe=paper`" in line for line in lines)


def test_an_experiment_made_in_several_ways_has_a_column_for_each(overview, tmp_path):
    name, levels = "salle2024/figure3", {"measure": {"difference": "levels"}, "stimuli": {"kind": "crossed"}}
    planted(tmp_path, name, [HOLDS, UNTESTABLE], key="own")
    planted(tmp_path, name, [UNTESTABLE], key="other", **levels)
    planted(tmp_path, "brown2023/figure1", [HOLDS], population={"name": "planted"}, measure=None)
    lines = overview()
    assert "| claim | verdict (1) | verdict (2) |" in lines
    assert f"| {name} holds | holds: +1 [0, 2] |  |" in lines
    assert "| no | not testable here: why | not testable here: why |" in lines
    assert f"- `python analyze.py experiment={name} scale=mini stimuli=crossed measure.difference=levels` (2)" in lines
    assert "| brown2023/figure1 holds | holds: +1 [0, 2] |" in lines


@pytest.mark.parametrize(
    ("numbers", "shown"),
    [
        ("+1 [0, 2], p = 0.01; intervals hold for all 3 together", "holds: +1 [0, 2], p = 0.01"),
        ("by layer: " + ", ".join(["+1 [0, 2]"] * 9), "holds: ±0.5"),
    ],
)
def test_a_claim_on_many_numbers_shows_its_smallest_effect(make_results, numbers, shown):
    assert make_results.cell(Claim("a", HOLDS, numbers, "6 models", "above 0", 0.5)) == shown
