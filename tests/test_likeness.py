"""Likeness of the states of two models: by other code, planted sources, and what it takes."""

from __future__ import annotations

import argparse
import inspect
import types
import typing

import numpy as np
import pytest
import torch
from sklearn.linear_model import LinearRegression
from torch.nn.functional import pad

import tiny
from conftest import composed
from thinkalike.data.rows import PairedRows, TokenRows
from thinkalike.errors import DataError
from thinkalike.evaluation.likeness import likeness_of
from thinkalike.measures import CKA, Estimate, surprises, token_codes
from thinkalike.memory import Budget
from thinkalike.models.load import load_model

PAIRS = [(0, 1), (3, 2), (0, 0)]
BATCH = 16  # rows of 64 tokens: 1024 tokens


def text(rows, context=64, seed=0, vocabulary=290):
    """Rows of random tokens, of which some are rare."""
    generator = torch.Generator().manual_seed(seed)
    tokens = (torch.rand(rows, context, generator=generator) ** 2 * vocabulary).to(torch.int32)
    return TokenRows(tokens, torch.zeros_like(tokens))


@pytest.fixture(scope="module")
def models():
    return tiny.frozen(1), tiny.frozen(2)


def inner(model, part, layer):
    return model.head(part.long(), layer)[:, 1:-1].flatten(0, 1)


def centred(states, tokens):
    """States less the mean of their token in their batch, by numpy, of tokens that stand 4 times there."""
    states, tokens, kept = states.double().numpy(), tokens.numpy(), []
    for token in np.unique(tokens):
        if (rows := tokens == token).sum() >= 4:
            kept.append(states[rows] - states[rows].mean(0))
    return np.concatenate(kept)


def explained(fit, judged, grouped=False):
    """Held-out R² of scikit-learn."""
    fitted = LinearRegression(fit_intercept=not grouped).fit(*fit)
    mean = 0 if grouped else fit[1].mean(0)
    return 1 - ((judged[1] - fitted.predict(judged[0])) ** 2).sum() / ((judged[1] - mean) ** 2).sum()


def by_hand(source, target, pair, fit, report):
    """All measures of one layer pair from other code."""
    sides, given, errors, metric, used = {}, {}, {}, CKA(1, 1, given="token"), []
    codes = token_codes(target.vocabulary)
    for name, rows in (("fit", fit), ("report", report)):
        x, y, xs, ys, es = [], [], [], [], []
        for part in rows.tokens.split(BATCH):
            mine, theirs = inner(source, part, pair[0]), inner(target, part, pair[1])
            tokens = part[:, 1:-1].flatten()
            xs.append(centred(mine, tokens))
            ys.append(centred(theirs, tokens))
            last = inner(target, part, target.n_layers - 1)
            es.append(surprises(last, target.finish, part[:, 2:].flatten().long(), codes))
            x.append(mine)
            y.append(theirs)
            if name == "report":
                metric.update([mine], [theirs], groups=tokens)
                used.append(len(xs[-1]) / len(tokens))
        sides[name] = torch.cat(x).double().numpy(), torch.cat(y).double().numpy()
        given[name] = np.concatenate(xs), np.concatenate(ys)
        errors[name] = sides[name][0], torch.cat(es).double().numpy()
    return {
        "r2": explained(sides["fit"], sides["report"]),
        "r2_back": explained(sides["fit"][::-1], sides["report"][::-1]),
        "r2_given_token": explained(given["fit"], given["report"], True),
        "r2_given_token_back": explained(given["fit"][::-1], given["report"][::-1], True),
        "cka_given_token": float(metric.compute().value[0, 0]),
        "future": explained(errors["fit"], errors["report"]),
    }, np.mean(used)


def test_every_measure_is_that_of_other_code(models):
    fit, report = text(64), text(64, seed=1)
    found = likeness_of(*models, PAIRS, fit, report)
    for place, pair in enumerate(PAIRS[:2]):
        expected, used = by_hand(*models, pair, fit, report)
        assert found.measures.keys() == expected.keys()
        for name, value in expected.items():
            estimate = found.measures[name][place]
            assert float(estimate.value) == pytest.approx(value, abs=1e-5), name
            assert estimate.low < estimate.value < estimate.high
        assert found.rows_used == pytest.approx(used)
    columns = found.columns()
    assert len(columns) == 18
    assert columns["r2_back_low"] == found.measures["r2_back"].low.tolist()
    assert 0.5 < found.rows_used < 1, "control: rare tokens stand alone"


def test_a_source_that_reads_the_text_in_tokens_of_its_own(models):
    """With the target's own tokens as the source's: at their places they change nothing, one place off they do."""
    plain = [text(64, context=48), text(64, context=48, seed=1)]
    found = []
    for shift in (0, 1):
        sides = []
        for rows, more in zip(plain, (5, 0), strict=True):  # also where the longest row is that of one side
            places = (torch.arange(48) - shift).clamp(min=0).to(torch.int32).expand(64, -1)
            source, owners = pad(rows.tokens, (0, more)), pad(rows.documents, (0, more), value=-1)
            tokens = torch.cat([rows.tokens, source, places, owners], 1)
            sides.append(PairedRows(tokens, rows.documents, *torch.zeros(3, 1, dtype=torch.long)))
        found.append(likeness_of(*models, PAIRS, *sides).measures)
    for name, expected in likeness_of(*models, PAIRS, *plain).measures.items():
        torch.testing.assert_close(found[0][name].value, expected.value)
    assert (found[0]["r2"].value - found[1]["r2"].value).abs().max() > 0.001


def test_less_memory_means_smaller_groups_and_too_little_text_is_refused(models):
    fit, report = text(64), text(64, seed=1)
    whole, part = (likeness_of(*models, PAIRS, fit, report, budget) for budget in (None, Budget(4e6, 0.0)))
    assert part.rows_used < whole.rows_used
    torch.testing.assert_close(part.measures["r2"].value, whole.measures["r2"].value)
    with pytest.raises(DataError, match="needs 4 rows of one token, and a batch of"):
        likeness_of(*models, PAIRS, fit, text(2, context=8))


class Planted:
    """What can be a source: states of the rows by any function of the tokens and of a model's own states."""

    name, d_model, n_layers, device = "planted", 128, 3, torch.device("cpu")

    def __init__(self, model, states):
        self.model, self.states = model, states

    def residuals(self, tokens, layers):
        return [self.states(tokens, own) for own in self.model.residuals(tokens, layers)]


@pytest.fixture(scope="module")
def minis():
    return [load_model(composed(f"model={name}").model) for name in ("gelu-3l-mini", "gelu-3l-mini-s1")]


@pytest.fixture(scope="module")
def source_text(minis):
    """Rows of the source of some modules, to fit on and to report on."""
    parts = []
    for modules in ((argparse, inspect), (typing, types)):
        tokens = minis[0].tokenizer("".join(map(inspect.getsource, modules)))["input_ids"]
        rows = torch.tensor(tokens[: len(tokens) // 128 * 128], dtype=torch.int32).view(-1, 128)[:64]
        parts.append(TokenRows(rows, torch.zeros_like(rows)))
    return parts


def at_layer_1(source, target, sides) -> dict[str, Estimate]:
    return {name: each[0] for name, each in likeness_of(source, target, [(1, 1)], *sides).measures.items()}


def next_tokens(tokens):
    return torch.cat([tokens[:, 1:], tokens[:, :1]], 1)


@pytest.mark.slow
def test_sources_that_are_alike_and_those_that_are_not_are_told_apart(minis, source_text):
    own, seed = minis
    turn = torch.linalg.qr(torch.randn(128, 128)).Q
    code = torch.randn(own.vocabulary, 128)
    planted = {
        "turned": Planted(own, lambda tokens, states: states @ turn),
        "token": Planted(own, lambda tokens, states: code[tokens]),
        "next token": Planted(own, lambda tokens, states: code[next_tokens(tokens)] + 0.1 * torch.randn_like(states)),
        "other seed": seed,
    }
    found = {name: at_layer_1(source, own, source_text) for name, source in planted.items()}
    values = {name: {key: float(each.value) for key, each in own.items()} for name, own in found.items()}
    turned, token, following, other = values.values()
    assert [turned[key] for key in turned if key != "future"] == pytest.approx([1] * 5, abs=1e-4)
    assert token["r2"] > 0.1
    assert token["r2_given_token"] == token["r2_given_token_back"] == token["cka_given_token"] == 0
    assert following["future"] > 0.1
    assert following["r2_given_token"] < 0.02
    assert all(values[name]["future"] < 0 for name in values if name != "next token")
    for key in ("r2_given_token", "r2_given_token_back", "cka_given_token"):
        assert token[key] + 0.2 < other[key] < turned[key] - 0.05
        assert found["other seed"][key].low < other[key] < found["other seed"][key].high
