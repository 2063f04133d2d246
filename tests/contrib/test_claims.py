"""Claims: verdicts where they are planted, what a claim says that it rests on, and the tables of all claims."""

import math
from dataclasses import astuple

import pytest
import torch

from thinkalike.contrib.papers.claims import (
    VERDICTS,
    Bound,
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
