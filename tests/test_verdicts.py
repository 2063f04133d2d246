"""Verdicts of stitching results: every rule by planted rows, and that intervals decide, not points."""

import pytest
import torch

from thinkalike.config import StitchConfig
from thinkalike.instruments.stitching.table import TRIED, VERDICTS, WIDEST, held, left_to_gain, untried, verdict

WIDTH = 0.01
LEAST = ("cca_least", "cca_least_back", "cca_least_beyond", "cca_least_back_beyond")


def row(
    least=(0, 0, 0, 0),
    output=0.8,
    beyond=0.2,
    later=0.0,
    future=0.0,
    foresight=0.0,
    width=WIDTH,
    penalty=0.3,
    source=3.2,
    bare=0.2,
):
    """A row of a stitching table with these values; every interval has half this width.

    Args:
        least: Of the columns `LEAST`.
        output, beyond: Output-weighted R² of the states as they are, and beyond the tokens and untrained networks.
        later: How much the source's states move with later tokens.
        source: The source's own loss; the target's is 3.2.
        bare: The share of the source's variance that is beyond the tokens; of the target's it is .2.
    """
    values = dict(zip(LEAST, least, strict=True)) | {"future": future, "foresight": foresight, "penalty": penalty}
    values |= {"r2_output": output, "r2_output_learnt": beyond}
    ends = {
        f"{name}_{end}": each + sign * width
        for name, each in values.items()
        for end, sign in (("low", -1), ("high", 1))
    }
    losses = {"stitching_loss": 3.2 + penalty, "target_loss": 3.2, "source_loss": source}
    return {**values, **ends, **losses, "context": 0.2, "context_back": bare, "later": later}


# values as trials on minis found them
CASES = {
    "leak": row(beyond=0.0, future=0.35),
    "better model": row(foresight=0.1, source=2.9, penalty=-0.2),
    "same up to an affine map": row((1, 1, 1, 1), 1.0, 1.0, penalty=0.0),
    "superset of": row((1, 0, 1, 0), 1.0, 1.0),
    "part of": row((0, 1, 0, 1), 0.95, 0.9),
    "alike beyond the tokens": row((0, 0, 1, 1), 0.4, 1.0, penalty=2.99),
    "related": row(),
    "tokens only": row(beyond=-0.02),
    "undecided": row(future=0.05),
}


@pytest.mark.parametrize("name", VERDICTS)
def test_each_verdict_is_reached(name):
    assert verdict(CASES[name]) == name


@pytest.mark.parametrize("name", VERDICTS[:-1])
def test_a_rule_that_holds_does_so_at_both_ends(name):
    """With intervals as wide as the range nothing is decided."""
    wide = dict(CASES[name])
    for key in list(wide):
        if key.endswith(("_low", "_high")):
            wide[key] = 0.0 if key.endswith("_low") else 1.0
    assert verdict(wide) == "undecided"


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        ({"least": (0.5, 1, 1, 1)}, "part of"),
        ({"least": (1, 0.5, 1, 1)}, "superset of"),
        ({"least": (0.5, 0.5, 1, 1)}, "alike beyond the tokens"),
        ({"least": (0.5, 0.5, 1, 1), "bare": 0.7}, "part of"),
        ({"least": (1, 1, 0.8, 0.8)}, "related"),
        ({"penalty": 0.5}, "undecided"),
        ({"output": 0.7}, "undecided"),
        ({"penalty": -0.2}, "leak"),
        ({"penalty": -0.2, "source": float("nan")}, "leak"),
        ({"penalty": -0.2, "source": 2.8}, "same up to an affine map"),
        ({"future": 0.2}, "leak"),
        ({"future": 0.4, "foresight": 0.4, "source": 2.0}, "better model"),
        ({"future": 0.4, "foresight": 0.4, "source": 2.0, "later": float("nan")}, "leak"),
        ({"later": 0.01, "foresight": 0.4, "source": 2.0}, "leak"),
        ({"foresight": 0.2}, "same up to an affine map"),
        ({"foresight": 0.2, "source": 2.8}, "better model"),
    ],
)
def test_affine_likeness_fails_where_one_number_disagrees(changes, found):
    same = {"least": (1, 1, 1, 1), "output": 1.0, "beyond": 1.0, "penalty": 0.0}
    assert verdict(row(**same)) == "same up to an affine map", "control"
    assert verdict(row(**same | changes)) == found


def test_what_the_rules_were_not_tried_on_is_said():
    assert untried(TRIED, 0.9, WIDEST, -0.1) == ""
    assert untried(TRIED | {"fit_tokens": 256}, 0.9, WIDEST, -0.1) == "256 fit_tokens"
    assert "60% have a token" in untried(TRIED, 0.6, WIDEST, -0.1)
    assert untried(TRIED, 0.9, 4096, -0.1) == "models of width 4,096"
    assert "worse than a guess" in untried(TRIED, 0.9, WIDEST, 2.3)


def test_a_verdict_carries_how_many_cases_were_right():
    assert held("alike beyond the tokens") == "14 of 15"
    assert [name for name in VERDICTS if held(name) == "not tried"][:2] == ["leak", "better model"]


def test_what_is_left_to_gain_is_bounded_once_fits_have_settled():
    """Of four layer pairs: one still falls, one costs nothing, one was returned to its start, one lost."""
    target = torch.tensor([30.0, 10.0])
    cost = torch.tensor([[0.4, 0.0, 0.3, 0.2]]).T * torch.tensor([10.0, 5.0])
    gained = torch.tensor([[0.1, 0.0, 0.0, -0.1]]).T * torch.tensor([10.0, 5.0])
    sums = {"tokens": torch.tensor([10.0, 5.0]), "target": target, "stitch": target + cost}
    sums["half"] = sums["stitch"] + gained
    settled, short = StitchConfig(steps=60, warmup=6), StitchConfig(steps=20, warmup=2)
    bound = left_to_gain(settled, sums).sum(1) / 15
    torch.testing.assert_close(bound, torch.tensor([0.4, 0.0, torch.nan, -0.4]), equal_nan=True, atol=1e-5, rtol=0)
    assert left_to_gain(short, sums).sum(1).isnan().tolist() == [True, False, True, True]
