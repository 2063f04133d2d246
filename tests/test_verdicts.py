"""Verdicts of stitching results: every rule by planted rows, and that intervals decide, not points."""

from __future__ import annotations

import pytest

from thinkalike.evaluation.verdicts import VERDICTS, Thresholds, verdict

WIDTH = 0.01


def row(forth=0.55, back=0.56, cka=0.9, future=0.0, kl=0.5, token=1.1, width=WIDTH):
    """A row of a stitching table with these values; every interval has half this width."""
    values = {"r2_given_token": forth, "r2_given_token_back": back, "cka_given_token": cka, "future": future}
    ends = {
        f"{name}_{end}": each + sign * width
        for name, each in values.items()
        for end, sign in (("low", -1), ("high", 1))
    }
    return {**values, **ends, "kl": kl, "token_mean_penalty": token}


# values as a trial on gelu-3l-mini found them
CASES = {
    "leak": row(0.01, 0.01, 0.21, future=0.79, kl=3.5),
    "same up to an affine map": row(1.0, 1.0, 0.38, kl=0.03),
    "part of": row(0.85, 1.0, 0.99, kl=0.1),
    "superset of": row(1.0, 0.05, 0.18, kl=0.04),
    "related": row(),
    "same answers": row(0.69, 0.58, 0.37, kl=0.108),
    "token only": row(0.0, 0.0, 0.001, kl=1.9),
    "different": row(0.08, 0.04, 0.29, kl=2.5),
    "undecided": row(0.91, 0.905, 0.9, width=0.05),
}


@pytest.mark.parametrize("name", VERDICTS)
def test_each_verdict_is_reached(name):
    assert verdict(CASES[name]) == name


@pytest.mark.parametrize("name", VERDICTS[:-1])
def test_a_rule_that_holds_does_so_at_both_ends(name):
    """With intervals as wide as the range nothing is decided, but by what is judged by its upper end or its point."""
    wide = dict(CASES[name])
    for key in list(wide):
        if key.endswith(("_low", "_high")):
            wide[key] = 0.0 if key.endswith("_low") else 1.0
    assert verdict(wide) == "undecided"


def test_thresholds_can_be_others():
    assert verdict(CASES["related"], Thresholds(related=0.6, answers=0.2)) == "different"
    assert verdict(CASES["related"], Thresholds(same=0.5)) == "same up to an affine map"
    assert verdict(CASES["different"], Thresholds(related=0.005)) == "related"
