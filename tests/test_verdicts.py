"""Verdicts of stitching results: every rule by planted rows, and that intervals decide, not points."""

from __future__ import annotations

import pytest

from thinkalike.evaluation.verdicts import VERDICTS, Thresholds, verdict

WIDTH = 0.01


def row(forth=0.55, back=0.56, cka=0.9, future=0.0, kl=0.5, width=WIDTH, whole=None, penalty=0.3, source=3.2):
    """A row of a stitching table with these values; every interval has half this width.

    Args:
        whole: R² of the states as they are, both ways; None: as given the token.
        source: the source's own loss; the target's is 3.2.
    """
    r2, r2_back = whole or (forth, back)
    values = {"r2_given_token": forth, "r2_given_token_back": back, "cka_given_token": cka, "future": future}
    values |= {"r2": r2, "r2_back": r2_back, "penalty": penalty}
    ends = {
        f"{name}_{end}": each + sign * width
        for name, each in values.items()
        for end, sign in (("low", -1), ("high", 1))
    }
    losses = {"stitching_loss": 3.2 + penalty, "target_loss": 3.2, "source_loss": source}
    return {**values, **ends, **losses, "kl": kl, "token_mean_penalty": 1.1}


# values as trials on minis found them
CASES = {
    "leak": row(0.01, 0.01, 0.21, future=0.79, kl=3.5),
    "same up to an affine map": row(1.0, 1.0, 0.38, kl=0.03),
    "part of": row(0.85, 1.0, 0.99, kl=0.1),
    "superset of": row(1.0, 0.05, 0.18, kl=0.04),
    "alike beyond the token": row(1.0, 1.0, 1.0, whole=(0.3, 0.3), penalty=2.99),
    "related": row(),
    "better model": row(0.3, 0.11, 0.04, future=0.1, source=2.9, penalty=-0.2),
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


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        ({"whole": (0.5, 1.0)}, "part of"),
        ({"whole": (1.0, 0.5)}, "superset of"),
        ({"whole": (0.5, 0.5)}, "alike beyond the token"),
        ({"penalty": -0.2}, "leak"),
        ({"penalty": -0.2, "source": float("nan")}, "leak"),
        ({"penalty": -0.2, "source": 2.8}, "same up to an affine map"),
        ({"future": 0.2, "source": 2.8}, "same up to an affine map"),
    ],
)
def test_states_that_are_alike_given_the_token_are_not_the_same_where_another_number_says_otherwise(changes, found):
    assert verdict(row(1.0, 1.0, 1.0)) == "same up to an affine map", "control"
    assert verdict(row(1.0, 1.0, 1.0, **changes)) == found


def test_thresholds_can_be_others():
    assert verdict(CASES["related"], Thresholds(related=0.6, answers=0.2)) == "different"
    assert verdict(CASES["related"], Thresholds(same=0.5)) == "same up to an affine map"
    assert verdict(CASES["different"], Thresholds(related=0.005)) == "related"
