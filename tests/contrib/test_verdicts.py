"""The rules of a verdict: each is reached, and fails where one number disagrees; what is a leak."""

import pandas as pd
import pytest
import torch

import tiny
from thinkalike.contrib.court.evidence import Bench, Evidence
from thinkalike.contrib.court.judges import sentenced
from thinkalike.contrib.court.judges import verdicts as judged
from thinkalike.contrib.court.source import Setting, Source
from thinkalike.contrib.court.verdicts import VERDICTS, verdict
from thinkalike.models.families import EMBED

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
    """A row of a court's table with these values; every interval has half this width.

    Args:
        least: Of the columns `LEAST`.
        output, beyond: Output-weighted R² of the states as they are, and beyond the tokens and
            untrained networks.
        later: How much the source's states move with later tokens.
        source: The source's own loss; the target's is 3.2.
        bare: The share of the source's variance that is beyond the tokens; of the target's it is
            .2.
    """
    values = dict(zip(LEAST, least, strict=True)) | {
        "future": future,
        "foresight": foresight,
        "penalty": penalty,
    }
    values |= {"r2_output": output, "r2_output_learnt": beyond}
    ends = {f"{name}_low": each - width for name, each in values.items()}
    ends |= {f"{name}_high": each + width for name, each in values.items()}
    losses = {"stitching_loss": 3.2 + penalty, "target_loss": 3.2, "source_loss": source}
    return {**values, **ends, **losses, "context": 0.2, "context_back": bare, "later": later}


# values as trials on minis found them
CASES = {
    "leak": row(beyond=0.0, future=0.35, later=0.2),
    "better model": row(foresight=0.1, source=2.9, penalty=-0.2),
    "same up to an affine map": row((1, 1, 1, 1), 1.0, 1.0, penalty=0.0),
    "superset of": row((1, 0, 1, 0), 1.0, 1.0),
    "part of": row((0, 1, 0, 1), 0.95, 0.9),
    "alike beyond the tokens": row((0, 0, 1, 1), 0.4, 1.0, penalty=2.99),
    "related": row(),
    "tokens only": row(beyond=-0.02),
    "undecided": row((0.95, 0, 0.95, 0)),
}


@pytest.mark.parametrize("name", VERDICTS)
def test_each_verdict_is_reached(name):
    assert verdict(CASES[name]) == name


@pytest.mark.parametrize("name", VERDICTS[1:-1])
def test_a_rule_that_holds_does_so_at_both_ends(name):
    """With intervals as wide as the range nothing is decided; a leak has a number without ends."""
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
        ({"penalty": -0.2}, "undecided"),
        ({"penalty": -0.2, "source": float("nan")}, "undecided"),
        ({"penalty": -0.2, "source": 2.8}, "same up to an affine map"),
        ({"future": 0.2}, "same up to an affine map"),
        ({"future": 0.4, "foresight": 0.4, "source": 2.0}, "better model"),
        ({"later": float("nan")}, "undecided"),
        ({"later": 0.01}, "leak"),
        ({"later": 0.01, "foresight": 0.4, "source": 2.0}, "leak"),
        ({"foresight": 0.2}, "same up to an affine map"),
        ({"foresight": 0.2, "source": 2.8}, "better model"),
    ],
)
def test_affine_likeness_fails_where_one_number_disagrees(changes, found):
    same = {"least": (1, 1, 1, 1), "output": 1.0, "beyond": 1.0, "penalty": 0.0}
    assert verdict(row(**same)) == "same up to an affine map", "control"
    assert verdict(row(**same | changes)) == found


PERIOD = 8
ABOUT = {"target": "x", "layer": 1, "seed": 0, "source": "a", "kind": "real"}


def repeated(rows, seed):
    """Rows of 32 tokens that repeat their first eight, so that all others copy an earlier one."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(40, (rows, PERIOD), generator=generator).repeat(1, 4)


@pytest.fixture(scope="module")
def bench():
    report = repeated(60, 2)
    documents = (torch.arange(len(report))[:, None] // 2).expand_as(report)
    texts = repeated(120, 1), report, documents, repeated(40, 3)
    return Bench(Setting(tiny.frozen(0), 1, *texts, 0, lambda *_: None))


def before(values, steps):
    """Values of some tokens earlier, or later where `steps` are negative; zeros where there are none."""
    zeros = torch.zeros_like(values[:, : abs(steps)])
    if steps > 0:
        return torch.cat([zeros, values[:, :-steps]], 1)
    return torch.cat([values[:, -steps:], zeros], 1)


def after_its_last_occurrence(tokens):
    """The token that followed the last occurrence of each token; the token itself where none did."""
    found = tokens.clone()
    for row, copied in zip(tokens.tolist(), found, strict=True):
        following = {}
        for place, token in enumerate(row):
            copied[place] = following.get(token, token)
            if place + 1 < len(row):
                following[token] = row[place + 1]
    return found


def fading(values):
    """A sum of the values of the last seven tokens, whose weights fall with the distance."""
    return sum(before(values, step) / (PERIOD - step) for step in range(1, PERIOD))


def at_one_place_in_four(values):
    return values * (torch.arange(values.shape[1]) % 4 == 3)[:, None]


# what is added to the target's own states: by the embedding e, the states s, and the tokens t
COPIES = {
    "what came next before": lambda e, s, t: before(e(t), PERIOD - 1),
    "that beside little of the own state": lambda e, s, t: before(e(t), PERIOD - 1) - 0.9 * s,
    "what followed the last occurrence": lambda e, s, t: e(after_its_last_occurrence(t)),
    "the state at what came next before": lambda e, s, t: before(s, PERIOD - 1),
    "a bag of the last tokens": lambda e, s, t: fading(e(t)),
}
LEAKS = {
    "the next token": lambda e, s, t: before(e(t), -1),
    "the token five places later": lambda e, s, t: before(e(t), -5),
    "the next token at some places": lambda e, s, t: at_one_place_in_four(before(e(t), -1)),
    "a tenth of the next token": lambda e, s, t: 0.1 * before(e(t), -1),
    "the state at the next token": lambda e, s, t: before(s, -1),
}


@pytest.mark.parametrize("name", [*COPIES, *LEAKS])
def test_a_leak_reads_later_tokens_and_a_copy_of_earlier_text_does_not(name, bench):
    """In text that repeats itself copies foresee what comes next, by more than some leaks do."""
    setting = bench.setting
    table = setting.target.residuals(torch.arange(40)[:, None], [EMBED])[0][:, 0]
    scale = float(setting.spread.mean() / table.std())
    added = (COPIES | LEAKS)[name]

    def states(rows):
        own = setting.own(rows)
        return own + added(lambda tokens: scale * table[tokens.long()], own, rows)

    found = judged(Evidence(Source(name, "real", states, setting.target), bench))
    assert sentenced(pd.DataFrame([found | ABOUT]))["verdict"].eq("leak").item() == (name in LEAKS)
    if name in COPIES:
        assert found["future_low"] > 0.05, "control: it foresees what comes next"
