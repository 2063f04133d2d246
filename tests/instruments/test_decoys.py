"""The benchmark of decoys compares as the ruler does; decoys know what they should."""

from importlib import import_module

import pytest
import torch

from conftest import ROOT
from thinkalike.instruments.ruler.calibration_points import MIXING, difference_interval, greatest_at_each_pair
from thinkalike.instruments.ruler.words import WordComparison, Words
from thinkalike.models.load import load_model

SOURCE, TARGET = "solu-3l-mini", "gelu-3l-mini"


@pytest.fixture
def decoys(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    return import_module("decoys")


@pytest.fixture
def text(decoys):
    models = {name: load_model(name) for name in (SOURCE, TARGET)}
    words = Words(decoys.job_of(TARGET, None).data, list(models.values()), 1500)
    return decoys.Text(words, models)


@pytest.mark.ci_slow
def test_trained_pairs_are_compared_as_the_ruler_does(decoys, text):
    layers = [0, 2]
    target = decoys.Side(text.states(TARGET, layers), TARGET)
    source = decoys.Side(text.states(SOURCE, layers), SOURCE)
    values = decoys.RulerBesideTarget(text, target).compare(source)
    ruler = WordComparison(text.words, [text.models[SOURCE], text.models[TARGET]], [layers, layers])
    value = ruler.similarity_of_models()
    mixing = greatest_at_each_pair(
        [ruler.similarity_to_point(side, MIXING, ruler.calibration_states(side, MIXING)) for side in (0, 1)]
    )
    beyond = difference_interval((value - mixing).mean(1))
    assert [pair["r2"] for pair in values] == pytest.approx(value[..., 0].mean(1).tolist())
    assert [pair["mixing"] for pair in values] == pytest.approx(mixing[..., 0].mean(1).tolist())
    assert [pair["beyond low"] for pair in values] == pytest.approx(beyond.low.tolist(), nan_ok=True)
    assert values[0]["r2 beyond word and position"] > values[0]["r2"] > 0


def test_a_measure_of_prepared_layers_is_the_measure(decoys):
    forms = torch.arange(240) % 10
    target = [torch.randn(240, 6), torch.randn(240, 5)]
    source = [0.5 * target[0] + torch.randn(240, 6)] * 2
    rows = torch.randperm(240)[:200]
    measures = decoys.OtherMeasures(decoys.Side(target, ""), rows, forms)
    values = measures.compare(decoys.Side(source, ""))
    assert len(measures.measures) > 8
    for name, measure in measures.measures.items():
        sign = 1 if measure.higher_is_closer else -1
        for pair, ours, other in zip(values, source, target, strict=True):
            assert pair[name] == pytest.approx(sign * float(measure.of(ours[rows], other[rows])))


def test_decoys_know_the_tokens_so_far_and_none_that_follows(decoys):
    model = load_model(TARGET)
    counted = decoys.n_gram_model(model, ["import os, sys\nimport re\n" * 20])
    kinds = list(decoys.OF_TOKENS)
    tokens = torch.randint(model.vocabulary, (2, 12), generator=torch.Generator().manual_seed(0))
    later = tokens.clone()
    later[:, 8] = (later[:, 8] + 1) % model.vocabulary
    reader = decoys.TokenDecoys(model, counted)
    states, changed = reader.residuals(tokens, kinds), reader.residuals(later, kinds)
    for kind, before, after in zip(kinds, states, changed, strict=True):
        assert torch.allclose(before[:, :8], after[:, :8], atol=1e-5), kind
        if kind != decoys.N_GRAMS:  # which may never have seen this token
            assert not torch.allclose(before[:, 8], after[:, 8], atol=1e-3), kind


def test_filler_rows_are_the_model_on_filler_words(decoys):
    model = load_model(TARGET)
    filler = decoys.filler_of(model)
    tokens = torch.tensor([[5, 9, 70, 300]])
    states = decoys.FillerRows(model, filler, 4).residuals(tokens, [2])[0]
    row = torch.tensor([[filler, filler, 70, filler]])
    assert torch.allclose(states[0, 2], model.residuals(row, [2])[0][0, 2], atol=1e-5)
    assert not torch.allclose(states[0, 2], model.residuals(tokens, [2])[0][0, 2], atol=1e-2)


@pytest.mark.ci_slow
def test_the_ruler_reads_all_decoys(decoys, text):
    counted = decoys.counted_text(TARGET, None)
    words = len(text.states(TARGET, [0])[0])
    sources = [*decoys.sources_of(text, TARGET, [], [TARGET], 4, counted)]
    assert len(sources) == 12
    for source in sources:
        assert len(source.states()[0]) == words, source.name


def test_auc_counts_pairs_and_halves_ties(decoys):
    assert decoys.auc([3.0, 1.0], [2.0, 1.0, 0.0]) == pytest.approx((3 + 1.5) / 6)
