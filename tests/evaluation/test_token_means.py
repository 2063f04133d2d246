"""Mean states of tokens and of pairs of tokens, against pandas, and those of new tokens."""

import numpy as np
import pandas as pd
import pytest
import torch

import tiny
from thinkalike.evaluation import batch_sizes, token_means
from thinkalike.evaluation.token_means import BigramMeans, TokenMeans, bigrams

LAYERS = [0, 2]


def drawn(rows, seed, tokens=30):
    return torch.randint(tokens, (rows, 16), generator=torch.Generator().manual_seed(seed))


@pytest.fixture(scope="module")
def model():
    return tiny.frozen(0)


FIT, REPORT = drawn(40, 1), drawn(10, 2)


def by_pandas(model, keys, layer):
    """Means over the fit rows in float64 by key, as {key: mean}."""
    states = model.head(FIT, layer).flatten(0, 1).double().numpy()
    frame = pd.DataFrame(states).groupby(np.array(keys)).mean()
    return dict(zip(frame.index.tolist(), frame.to_numpy(), strict=True))


@pytest.mark.parametrize("batch", [48, 8192])
def test_means_are_those_of_pandas_in_any_chunks(batch, model, monkeypatch):
    monkeypatch.setattr(batch_sizes, "BATCH_TOKENS", batch)
    found = BigramMeans(model, LAYERS, FIT, REPORT)
    pairs, tokens = bigrams(FIT, model.vocabulary).flatten().tolist(), FIT.flatten().tolist()
    for layer, by_pair, by_token in zip(
        LAYERS, found.residuals(REPORT, LAYERS), found.of_current_token.residuals(REPORT, LAYERS), strict=True
    ):
        pair_means, means = by_pandas(model, pairs, layer), by_pandas(model, tokens, layer)
        backed = 0
        asked = zip(REPORT.flatten().tolist(), bigrams(REPORT, model.vocabulary).flatten().tolist(), strict=True)
        for (token, pair), a, b in zip(asked, by_pair.flatten(0, 1), by_token.flatten(0, 1), strict=True):
            backed += pair not in pair_means
            assert np.abs(a.numpy() - pair_means.get(pair, means[token])).max() < 1e-5
            assert np.abs(b.numpy() - means[token]).max() < 1e-5
        assert 0 < backed < REPORT.numel(), "control: some pairs are new, and some are not"


def test_a_new_token_gets_the_mean_of_all(model):
    report = torch.full((1, 16), 77)
    expected = model.head(FIT, 0).flatten(0, 1).double().mean(0)
    for kind in (TokenMeans, BigramMeans):
        (found,) = kind(model, [0], FIT, report).residuals(report, [0])
        assert (found.double() - expected).abs().max() < 1e-5


def test_the_first_token_of_a_row_is_a_pair_of_its_own_kind():
    rows = torch.tensor([[1, 2, 2], [2, 2, 1]])
    assert bigrams(rows, 10).tolist() == [[101, 12, 22], [102, 22, 21]]


def test_the_fit_tokens_have_a_limit(model, monkeypatch):
    monkeypatch.setattr(token_means, "MOST_TOKENS", 40)
    limited, whole = TokenMeans(model, [0], FIT, REPORT), TokenMeans(model, [0], FIT[:2], REPORT)
    assert (limited.residuals(REPORT, [0])[0] - whole.residuals(REPORT, [0])[0]).abs().max() == 0
