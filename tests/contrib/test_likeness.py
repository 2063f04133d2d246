"""Likeness of the states of two models by other code, planted sources and changes of basis."""

import argparse
import inspect
import types
import typing

import numpy as np
import pytest
import torch
from sklearn.linear_model import Ridge
from torch.nn.functional import pad

import tiny
from conftest import composed
from test_ruler import chosen_by_scikit_learn
from thinkalike.contrib.court import tokens_alone
from thinkalike.contrib.court.likeness import likeness_of, output_roots
from thinkalike.contrib.court.regression import RegressionMoments
from thinkalike.contrib.court.tokens_alone import (
    AHEAD,
    Beyond,
    Judged,
    TokenAtPlace,
    TokensBefore,
    surprises,
    token_codes,
)
from thinkalike.data.corpus import PairedRows, TokenRows
from thinkalike.errors import DataError
from thinkalike.measures import Predictor
from thinkalike.measures.closed_forms import halves_of
from thinkalike.models.families import EMBED
from thinkalike.models.load import load_model

PAIRS = [(0, 1), (3, 2), (0, 0)]
MEASURES = {"cca", "cca_back", "cca_least", "cca_least_back", "directions_90", "directions_99", "r2_output"}


def text(rows, context=64, seed=0, vocabulary=290):
    """Rows of random tokens, of which some are rare; four rows are a document."""
    generator = torch.Generator().manual_seed(seed)
    tokens = (torch.rand(rows, context, generator=generator) ** 2 * vocabulary).to(torch.int32)
    return TokenRows(tokens, (torch.arange(rows)[:, None] // 4).expand_as(tokens).contiguous())


@pytest.fixture(scope="module")
def models():
    return tiny.frozen(1), tiny.frozen(2)


def inner(states):
    return states[:, 1:-1].flatten(0, 1)


def residuals(states, design):
    return states - design @ np.linalg.lstsq(design, states, rcond=None)[0]


def left_by_numpy(states, rows, before):
    """What is left beside dummies of token and position and the tokens before, of tokens that are there 4 times."""
    tokens, positions = (inner(each).numpy() for each in (rows, torch.arange(rows.shape[1]).expand_as(rows)))
    kept = np.isin(tokens, [token for token in np.unique(tokens) if (tokens == token).sum() >= 4])
    dummies = [(each[kept, None] == np.unique(each[kept])).astype(float) for each in (tokens, positions)]
    covariates = inner(before).double().numpy()[kept][:, : kept.sum() // tokens_alone.ROWS_PER_COVARIATE]
    return residuals(states.double().numpy()[kept], np.concatenate([*dummies, covariates], 1)), kept


def left_in_halves(states, rows, before, of_rows):
    """The same of each half of the rows by itself, as one half judges maps of the other, in the order of rows."""
    flat, kept = states.view(len(rows), -1, states.shape[-1]), np.zeros((len(rows), rows.shape[1] - 2), dtype=bool)
    left = np.zeros(flat.shape)
    for own in (of_rows == number for number in (0, 1)):
        found, mask = left_by_numpy(flat[own].flatten(0, 1), rows[own], before[own])
        kept[own] = mask.reshape(int(own.sum()), -1)
        left[kept & own.numpy()[:, None]] = found
    return left[kept], kept.ravel()


def by_ridge(x, y, halves):
    """A ridge regression by the penalty with which both halves of the documents predict each other best."""
    penalty = chosen_by_scikit_learn(x, y, halves)
    if penalty == np.inf:
        return lambda new: np.tile(y.mean(0), (len(new), 1))
    return Ridge(penalty, solver="svd").fit(x, y).predict


def by_qr(fit, judged, root, halves):
    """Held-out measures of canonical directions, from QR decompositions and ridge regressions."""
    means = [side.mean(0) for side in fit]
    (q, r), (p, s) = (np.linalg.qr(side - mean) for side, mean in zip(fit, means, strict=True))
    left, _, right = np.linalg.svd(q.T @ p)
    reads = np.linalg.solve(r, left), np.linalg.solve(s, right.T)

    def missed(given, wanted, read):
        predicted = by_ridge(fit[given], fit[wanted] @ read, halves)(judged[given])
        whole = (judged[wanted] - means[wanted]) @ read
        return ((judged[wanted] @ read - predicted) ** 2).sum(0), (whole**2).sum(0)

    onward, backward = (1 - np.divide(*missed(*way)) for way in ((0, 1, reads[1]), (1, 0, reads[0])))
    output = missed(0, 1, root)
    values = {"cca": onward.mean(), "cca_back": backward.mean(), "r2_output": 1 - output[0].sum() / output[1].sum()}
    return values | {"cca_least": onward.min(), "cca_least_back": backward.min()}


def foreseen_by_numpy(plain, surprising, halves):
    """What a source's states predict of surprises, both less what the target's own predict of them."""
    own = by_ridge(plain[0][1], surprising[0], halves)
    known = by_ridge(plain[0][1], plain[0][0], halves)
    left = [(x - known(y), each - own(y)) for (x, y), each in zip(plain, surprising, strict=True)]
    predicted = by_ridge(*left[0], halves)(left[1][0])
    return predicted, left[1][1]


def test_every_measure_is_that_of_other_code(models):
    source, target = models
    sides, (layer, depth) = [text(96), text(64, seed=1)], PAIRS[1]
    found = likeness_of(source, target, PAIRS, *sides)
    before = TokensBefore(target, sides[0].tokens)
    at_place = TokenAtPlace(before, [0, 1, 2], sides[0].tokens)
    halves = [(torch.arange(96) >= 48).long(), torch.full((64,), 2)]
    codes, plain, beyond, surprising, used = token_codes(target.vocabulary), [], [], [], []
    of_rows = halves_of(sides[0].documents.flatten()).view_as(sides[0].documents)[:, 0]
    for side, half in zip(sides, halves, strict=True):
        rows, is_fit = side.tokens.long(), side is sides[0]
        explains = torch.cat([before(rows), at_place(rows, half)], -1)
        mine, theirs = inner(source.head(rows, layer)), inner(target.head(rows, depth))
        plain.append((mine.double().numpy(), theirs.double().numpy()))
        alone = (of_rows,) if is_fit else ()
        both = [(left_in_halves if is_fit else left_by_numpy)(e, rows, explains, *alone) for e in (mine, theirs)]
        beyond.append([left for left, _ in both])
        used.append(both[0][1])
        last = inner(target.head(rows, target.n_layers - 1))
        missed = surprises(last, target.finish, rows[:, 2:].flatten(), codes)
        missed = missed.view(len(rows), -1, 64).double()
        later = [pad(missed[:, ahead:], (0, 0, 0, ahead)).flatten(0, 1).numpy() for ahead in range(AHEAD)]
        surprising.append(np.concatenate(later, 1))
    root = output_roots(target, [depth], sides[0].tokens)[depth].numpy()
    parts = inner(halves_of(sides[0].documents.flatten()).view_as(sides[0].documents)).numpy()
    ways = ("", "foresight", plain, parts, surprising), (
        "_beyond", "future", beyond, parts[used[0]], [each[kept] for each, kept in zip(surprising, used, strict=True)]
    )  # fmt: skip
    for suffix, name, states, half, missed in ways:
        for measure, value in by_qr(*states, root, half).items():
            whole = measure + suffix
            assert float(found.measures[whole].value[1]) == pytest.approx(value, abs=1e-3 if suffix else 1e-5), whole
        ahead = (np.split(each, AHEAD, 1) for each in foreseen_by_numpy(states, missed, half))
        of_each = [(a * b).sum() / np.sqrt((a**2).sum() * (b**2).sum()) for a, b in zip(*ahead, strict=True)]
        assert float(found.measures[name].value[1]) == pytest.approx(max(of_each), abs=3e-4), name
    assert found.rows_used == pytest.approx(used[1].mean())
    assert found.measures.keys() == MEASURES | {f"{name}_beyond" for name in MEASURES} | {
        "context", "context_back", "foresight", "future", "later", "r2_output_untrained", "r2_output_learnt"
    }  # fmt: skip
    assert all(0 < float(found.measures[name].value[0]) < 1 for name in ("context", "context_back"))
    estimate = found.measures["cca"][0]
    assert estimate.low < estimate.value < estimate.high


@pytest.mark.ci_slow
def test_a_source_that_reads_the_text_in_tokens_of_its_own(models):
    """With the target's own tokens as the source's: at their places they change nothing, one place off they do."""
    plain = [text(64, context=48), text(64, context=48, seed=1)]
    found = []
    for shift in (0, 1):
        sides = []
        for rows, more in zip(plain, (5, 0), strict=True):  # also where the longest row is that of one side
            places = (torch.arange(48) - shift).clamp(min=0).to(torch.int32).expand(64, -1)
            source, owners = pad(rows.tokens, (0, more)), pad(rows.documents.int(), (0, more), value=-1)
            tokens = torch.cat([rows.tokens, source, places, owners], 1)
            sides.append(PairedRows(tokens, rows.documents, *torch.zeros(3, 1, dtype=torch.long)))
        found.append(likeness_of(*models, PAIRS, *sides).measures)
    for name, expected in likeness_of(*models, PAIRS, *plain).measures.items():
        torch.testing.assert_close(found[0][name].value, expected.value)
    assert (found[0]["cca"].value - found[1]["cca"].value).abs().max() > 0.001


def test_too_little_text_is_refused(models):
    with pytest.raises(DataError, match="needs 4 rows of one token, and a batch of"):
        likeness_of(*models, PAIRS, text(64), text(2, context=8))


def test_nothing_is_left_of_what_a_bag_of_tokens_decides(models):
    target, rows = models[1], text(64, context=48).tokens.long()
    before = TokensBefore(target, rows)(rows)
    assert (before[:, 0] == 0).all(), "there is nothing before the first token"
    changed = rows.clone()
    changed[:, -1] = 3
    assert torch.equal(before, TokensBefore(target, rows)(changed)), "nor does a token describe itself"
    tokens, positions = inner(rows), inner(torch.arange(48).expand_as(rows))
    beyond = Beyond(tokens, positions, inner(before))
    width = beyond.before.shape[1]
    by_place = torch.randn(300, 20)[tokens] + torch.randn(48, 20)[positions]
    bag = inner(before)[:, :width] @ torch.randn(width, 20) + by_place
    other = bag + torch.randn_like(bag)
    assert beyond.of(bag).var() < 1e-4 * bag.var()
    assert beyond.of(other).var() > 0.5, "control: something else is left"


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
        parts.append(TokenRows(rows, (torch.arange(len(rows))[:, None] // 4).expand_as(rows).contiguous()))
    return parts


def at_layer_1(source, target, sides):
    return {name: each[0] for name, each in likeness_of(source, target, [(1, 1)], *sides).measures.items()}


def next_tokens(tokens):
    return torch.cat([tokens[:, 1:], tokens[:, :1]], 1)


@pytest.mark.ci_slow
def test_likeness_tells_sources_that_are_alike_from_others(minis, source_text):
    own, seed = minis
    turn = torch.linalg.qr(torch.randn(128, 128)).Q
    steep = turn * torch.logspace(0, 3, 128) @ turn.flip(0)
    code = torch.randn(own.vocabulary, 128)
    place = torch.arange(1, 129)[:, None]
    ahead = 0.3 * code.std() * code
    fitted, reported = (side.tokens.flatten().bincount(minlength=own.vocabulary) for side in source_text)
    massive = 1e3 * code * ((fitted == 0) & (reported == 5))[:, None]
    planted = {
        "turned": Planted(own, lambda tokens, states: states @ turn),
        "steep": Planted(own, lambda tokens, states: states @ steep),
        "massive": Planted(own, lambda tokens, states: states @ turn + massive[tokens]),
        "token": Planted(own, lambda tokens, states: code[tokens]),
        "next token": Planted(own, lambda tokens, states: code[next_tokens(tokens)] + 0.1 * torch.randn_like(states)),
        "token over place": Planted(own, lambda tokens, states: code[tokens] / place),
        "running mean": Planted(own, lambda tokens, states: code[tokens].cumsum(1) / place),
        "five ahead": Planted(own, lambda tokens, states: states + states.std() * ahead[tokens.roll(-5, 1)]),
        "other seed": seed,
        "other seed, steep": Planted(seed, lambda tokens, states: states @ steep),
    }
    found = {name: at_layer_1(source, own, source_text) for name, source in planted.items()}
    values = {name: {key: float(each.value) for key, each in own.items()} for name, own in found.items()}
    assert massive.any(), "control: a few tokens, none of which maps are fitted on"
    alike = [key for key in values["turned"] if key.startswith("cca") or key in ("r2_output", "r2_output_beyond")]
    for same in ("turned", "steep", "massive"):
        assert [values[same][key] for key in alike] == pytest.approx([1] * len(alike), abs=2e-3)
    for key in values["other seed"]:
        # a ridge shrinks what is small in the source's basis: ten draws moved these by up to 24, .052, and .035
        few = 30 if key.startswith("directions") else 0.06 if "least" in key else 0.03
        assert values["other seed, steep"][key] == pytest.approx(values["other seed"][key], abs=few), key
    assert values["token"]["cca"] > 0.1
    assert values["token"]["r2_output_beyond"] == 0
    assert values["next token"]["future"] > 0.2
    assert values["next token"]["r2_output_beyond"] < 0.03
    leaks = ["next token", "five ahead"]
    assert all((values[name]["future"] > 0.05) == (name in leaks) for name in values)
    assert all((values[name]["later"] > 1e-4) == (name in leaks) for name in values)
    for name in ("token", "token over place", "running mean"):
        assert found[name]["r2_output_learnt"].low <= 0, name
    assert found["other seed"]["r2_output_learnt"].low > 0
    assert 0.05 < values["other seed"]["r2_output_beyond"] < 0.9
    estimate = found["other seed"]["r2_output_beyond"]
    assert estimate.low < estimate.value < estimate.high


def test_a_bag_of_whole_embeddings_has_learnt_nothing(minis, source_text):
    own, places = minis[0], torch.arange(32)[:, None]
    fading = torch.where(places >= places.T, 0.9 ** (places - places.T), 0.0)
    bag = Planted(own, lambda tokens, states: fading @ own.residuals(tokens, [EMBED])[0])
    sides = [TokenRows(*(each.view(-1, 32) for each in (own.tokens, own.documents))) for own in source_text]
    found = at_layer_1(bag, own, sides)
    assert found["r2_output_beyond"].low > 0, "control: the leading components of tokens before do not hold it"
    assert found["r2_output_learnt"].high < 0


@pytest.mark.parametrize(("tokens", "most"), [(100, 1), (300, 0)])
def test_few_rows_share_what_was_planted_or_nothing(tokens, most):
    """Two halves of 1.5 rows of 512 places; means of 300 tokens and covariates leave nothing of them but rounding."""
    torch.manual_seed(3)
    by, to, maps = torch.randn(tokens, 8), torch.randn(512, 8), torch.randn(3, 44, 32)

    def left(n, halves):
        token, place, half = torch.randint(tokens, (n,)), torch.arange(n) % 512, torch.arange(n) * halves // n
        before, own, other = torch.randn(n, 300), torch.randn(n, 8), torch.randn(n, 8)
        each_half = torch.stack([before * (half == number)[:, None] for number in range(halves)], -1).flatten(1)
        beyond = Beyond(token + tokens * half, place + 512 * half, each_half)
        states = (torch.cat([by[token], to[place], before[:, :20], z], 1) for z in (own, own, other))
        return [beyond.of(each @ of) for each, of in zip(states, maps, strict=True)], half[beyond.order]

    (fit, halves), (judged, _) = left(1536, 2), left(3072, 1)
    for y, planted in ((1, most), (2, 0)):
        moments = RegressionMoments([(0, 0)])
        moments.update(fit[:1], fit[y : y + 1], halves)
        found = Judged(moments.ridge((0, 0)))
        found.add(judged[0], judged[y], torch.zeros(len(judged[0]), dtype=torch.long))
        assert float(found.r2(1, whole=True)) == pytest.approx(planted, abs=0.03)


F64 = torch.float64


def test_surprises_are_the_code_less_its_expectation():
    finish, states = torch.nn.Linear(6, 17, dtype=F64), torch.randn(50, 6, dtype=F64)
    targets, codes = torch.randint(17, (50,)), token_codes(17, 5).double()
    shares = finish(states).softmax(-1).detach()
    expected = codes[targets] - shares @ codes
    for chunk in (7, 1024):
        torch.testing.assert_close(surprises(states, finish, targets, codes, chunk), expected)
    assert torch.equal(token_codes(17, 5), token_codes(17, 5))
    assert not torch.equal(token_codes(17, 5), token_codes(17, 5, seed=1))


def test_only_what_later_text_decides_is_predicted_of_the_future():
    """Next tokens are drawn from the model's own distribution: its states say nothing of the draw, a leak does."""
    n, vocabulary = 6000, 40
    states, finish = torch.randn(n, 8, dtype=F64), torch.nn.Linear(8, vocabulary, dtype=F64)
    drawn = torch.multinomial(finish(states).softmax(-1).detach(), 1).squeeze(1)
    codes = token_codes(vocabulary).double()
    surprising = surprises(states, finish, drawn, codes)
    noise = torch.randn(vocabulary, 64, dtype=F64)[drawn]  # clustered by the next token
    half = torch.cat([noise[:, :8] + torch.randn(n, 8, dtype=F64), states], 1)
    documents = torch.arange(n) % 50
    own, leak, weak = (float(Predictor(each, documents).of(surprising).shares[0]) for each in (states, noise, half))
    assert abs(own) < 0.01
    assert leak > 0.8
    assert 0.05 < weak < leak
