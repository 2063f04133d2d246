"""The rules of a verdict: each is reached, and fails where one number disagrees; planted sources and leaks."""

import argparse
import inspect
import types
import typing

import pandas as pd
import pytest
import torch

import tiny
from conftest import composed
from thinkalike.contrib.court.evidence import Evidence
from thinkalike.contrib.court.judges import judge_source as judged
from thinkalike.contrib.court.materials import Materials
from thinkalike.contrib.court.source import Source
from thinkalike.contrib.court.target_results import TargetResults
from thinkalike.contrib.court.verdict_tables import verdict_table
from thinkalike.contrib.court.verdicts import COLUMNS, ESTIMATES, NUMBERS, VERDICTS, verdict
from thinkalike.measures import Predictor
from thinkalike.measures.folds import numbered_by_part
from thinkalike.models.families import EMBED
from thinkalike.models.load import load_model

WIDTH = 0.01


def row(plain=(0.6, 0.6), residual=(0.3, 0.3), beyond=0.2, later=0.0, penalty=0.3, width=WIDTH):
    """A row of a court's table with these values; every interval has half this width.

    Args:
        plain, residual: R² of the target from the source, and back.
        beyond: How much more source and target share than the target and local mixing do.
        later: How much the source's states move with later tokens.
    """
    values = dict(zip(ESTIMATES, (*plain, *residual, beyond), strict=True))
    ends = {f"{name}_low": value - width for name, value in values.items()}
    ends |= {f"{name}_high": value + width for name, value in values.items()}
    return {**values, **ends, "later": later, "penalty": penalty}


# values as trials on minis found them
CASES = {
    "leak": row(beyond=0.0, later=0.2),
    "same": row((1, 1), (1, 1), 0.95, penalty=0.0),
    "superset of": row((1, 0.1), (0.98, 0.02), 0.45, penalty=0.0),
    "part of": row((0.9, 1), (0.8, 1), 0.85),
    "same beyond the token": row((0.4, 0.4), (1, 1), 0.95, penalty=2.99),
    "similar": row(),
    "no more than local mixing": row(residual=(0.03, 0.03), beyond=-0.02),
    "undecided": row((0.95, 0), (0.95, 0)),
}


def test_a_case_has_all_that_is_read():
    assert set(row()) == set(COLUMNS)
    assert len(COLUMNS) == len(NUMBERS) + 3 * len(ESTIMATES)


@pytest.mark.parametrize("name", VERDICTS)
def test_each_verdict_is_reached(name):
    assert verdict(CASES[name]) == name


@pytest.mark.parametrize("name", VERDICTS[1:-1])
def test_a_rule_that_holds_does_so_at_both_ends(name):
    """With intervals as wide as the range nothing is decided; a leak has a number without ends."""
    wide = dict(CASES[name])
    for column in ESTIMATES:
        wide[f"{column}_low"] = -float("inf")
        wide[f"{column}_high"] = float("inf")
    assert verdict(wide) == "undecided"


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"plain": (0.9, 1)}, "part of"),
        ({"plain": (1, 0.9)}, "superset of"),
        ({"residual": (0.9, 1)}, "part of"),
        ({"residual": (1, 0.9)}, "superset of"),
        ({"plain": (0.9, 0.9)}, "same beyond the token"),
        ({"residual": (0.9, 0.9)}, "similar"),
        ({"residual": (0.9, 0.9), "beyond": -0.1}, "no more than local mixing"),
        ({"plain": (0.95, 1)}, "undecided"),
        ({"residual": (1, 0.955)}, "undecided"),
        ({"penalty": 0.5}, "undecided"),
        ({"penalty": -0.2}, "undecided"),
        ({"later": float("nan")}, "undecided"),
        ({"later": 0.01}, "leak"),
    ],
)
def test_what_is_the_same_fails_where_one_number_disagrees(changes, word):
    same = {"plain": (1, 1), "residual": (1, 1), "beyond": 0.95, "penalty": 0.0}
    assert verdict(row(**same)) == "same", "control"
    assert verdict(row(**same | changes)) == word


# ---- planted sources of a real mini, whose text is source code


def rows_of_source(tokenizer, *modules, most, length=128):
    """Rows of tokens of the source of modules, and the document of each token: four rows are one."""
    tokens = tokenizer("".join(map(inspect.getsource, modules)))["input_ids"]
    rows = torch.tensor(tokens[: len(tokens) // length * length]).view(-1, length)[:most]
    return rows, (torch.arange(len(rows))[:, None] // 4).expand_as(rows)


def bench_of_source_code(siblings=(), most=96):
    own, *others = (load_model(composed(f"model={name}").model) for name in ("gelu-3l-mini", *siblings))
    fit_rows, _ = rows_of_source(own.tokenizer, typing, most=most)
    report, documents = rows_of_source(own.tokenizer, argparse, inspect, types, most=most)
    named = dict(zip(siblings, others, strict=True))
    return TargetResults(Materials(own, 1, fit_rows, report, documents, fit_rows, 0, lambda *_: None, named))


def at_layer_1(bench, states):
    return Evidence(Source("planted", "real", states, bench.materials.target), bench)


def next_tokens(tokens):
    return torch.cat([tokens[:, 1:], tokens[:, :1]], 1)


def planted_sources(setting):
    """States of the rows by functions of the tokens and of the target's own states, by name."""
    generator = torch.Generator().manual_seed(0)
    own, width, vocabulary = setting.target_states, setting.target.d_model, setting.target.vocabulary
    turn = torch.linalg.qr(torch.randn(width, width, generator=generator)).Q
    steep = turn * torch.logspace(0, 3, width) @ turn.flip(0)
    code = torch.randn(vocabulary, width, generator=generator)
    ahead = 0.3 * float(setting.standard_deviations.mean()) * code

    def place(tokens):
        return torch.arange(1, tokens.shape[1] + 1)[:, None]

    def noise(tokens):
        drawn = torch.Generator().manual_seed(1)
        return torch.randn(*tokens.shape, width, generator=drawn)

    def bag_of_embeddings(tokens):
        embedding = setting.target.residuals(tokens.long(), [EMBED])[0]
        lag = place(tokens) - place(tokens).T
        return torch.where(lag >= 0, 0.9**lag, 0.0) @ embedding

    return {
        "turned": lambda tokens: own(tokens) @ turn,
        "steep": lambda tokens: own(tokens) @ steep,
        "token": lambda tokens: code[tokens.long()],
        "token over place": lambda tokens: code[tokens.long()] / place(tokens),
        "running mean": lambda tokens: code[tokens.long()].cumsum(1) / place(tokens),
        "bag of embeddings": bag_of_embeddings,
        "next token": lambda tokens: code[next_tokens(tokens).long()] + 0.1 * noise(tokens),
        "five ahead": lambda tokens: own(tokens) + ahead[tokens.long().roll(-5, 1)],
        "other seed": lambda tokens: setting.siblings["gelu-3l-mini-s1"].residuals(tokens.long(), [1])[0],
    }


@pytest.mark.ci_slow
def test_verdicts_of_planted_sources():
    """On little text: 96 rows of 128 tokens, of 24 documents."""
    source_code = bench_of_source_code(["gelu-3l-mini-s1"])
    without_context = ("token", "token over place", "running mean", "bag of embeddings")
    words = {
        **dict.fromkeys(("turned", "steep"), "same"),
        **dict.fromkeys(without_context, "no more than local mixing"),
        **dict.fromkeys(("next token", "five ahead"), "leak"),
        "other seed": "similar",
    }
    said = {}
    for name, states in planted_sources(source_code.materials).items():
        evidence = at_layer_1(source_code, states)
        said[name] = evidence.columns | {"penalty": evidence.stitched_run.penalty}
    assert {name: verdict(columns) for name, columns in said.items()} == words
    for name in ("turned", "steep"):
        assert said[name]["residual_r2"] == pytest.approx(1, abs=0.02)
    assert said["bag of embeddings"]["r2"] > 0.2, "control: as they are, states of a bag are shared"
    assert min(said[name]["later"] for name in words if words[name] == "leak") > 0.01
    causal = [said[name]["later"] for name in words if words[name] != "leak"]
    assert max(causal) < 1e-8


@pytest.mark.ci_slow
def test_massive_tokens_of_a_source_are_left_out():
    """One rare token of long states would be all that varies in the source."""
    source_code = bench_of_source_code(most=32)
    setting = source_code.materials
    counts = setting.evaluation_rows.flatten().bincount(minlength=setting.target.vocabulary)
    rare = int((counts == 5).nonzero()[0])
    generator = torch.Generator().manual_seed(0)
    direction = 1e3 * torch.randn(setting.target.d_model, generator=generator)

    def states(tokens):
        return setting.target_states(tokens) + (tokens == rare)[..., None] * direction

    evidence = at_layer_1(source_code, states)
    assert int((~evidence.is_compared).sum()) == int((setting.evaluation_rows[:, 1:-1] == rare).sum()) > 0
    assert evidence.columns["r2_back"] == pytest.approx(1, abs=1e-3)
    assert len(evidence.token_features) == len(evidence.states[0]) == len(evidence.states[1])


# ---- leaks


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
    return TargetResults(Materials(tiny.frozen(0), 1, *texts, 0, lambda *_: None))


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
    "the next token after few tokens": lambda e, s, t: (t % 8 == 3)[..., None] * before(e(t), -1),
    "a tenth of the next token": lambda e, s, t: 0.1 * before(e(t), -1),
    "the state at the next token": lambda e, s, t: before(s, -1),
}


# further examples of the same; those that are always run are the least alike, and the hardest to tell
FURTHER = {"what came next before", "the state at what came next before", "a bag of the last tokens"}
FURTHER |= {"the token five places later", "the next token at some places"}


@pytest.mark.ci_slow
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] * (name in FURTHER)) for name in (*COPIES, *LEAKS)]
)
def test_a_leak_reads_later_tokens_and_a_copy_of_earlier_text_does_not(name, bench):
    """In text that repeats itself copies foresee what comes next, by more than some leaks do."""
    setting = bench.materials
    table = setting.target.residuals(torch.arange(40)[:, None], [EMBED])[0][:, 0]
    scale = float(setting.standard_deviations.mean() / table.std())
    added = (COPIES | LEAKS)[name]

    def states(rows):
        own = setting.target_states(rows)
        return own + added(lambda tokens: scale * table[tokens.long()], own, rows)

    evidence = Evidence(Source(name, "real", states, setting.target), bench)
    found = judged(evidence)
    assert verdict_table(pd.DataFrame([found | ABOUT]))["verdict"].eq("leak").item() == (name in LEAKS)
    if name in COPIES:
        by_copy, by_target = (foreseen(evidence, side) for side in evidence.states)
        assert by_copy > 0.02 > by_target, "control: it foresees what comes next, which the target does not"


def foreseen(evidence, states):
    """R² of a code of the next token from states, on other documents."""
    rows = evidence.materials.evaluation_rows
    following = torch.randn(40, 16, generator=torch.Generator().manual_seed(0))[rows[:, 2:].flatten()]
    documents = numbered_by_part(evidence.materials.evaluation_documents[:, 1:-1].flatten())
    return float(Predictor(states, documents).of(following).shares[0])
