"""Attention heads in lineage: their exact test, heads that are too few, and models of known origin."""

from __future__ import annotations

import math
from pathlib import Path

import pandas as pd
import pytest
import torch
from scipy.stats import kstest

import thinkalike
import tiny
from stores import made
from thinkalike.instruments.lineage.screen import heads_in_words
from thinkalike.measures import lineage
from thinkalike.measures.seeds import seeded
from thinkalike.models.heads import exchangeable_heads
from thinkalike.models.model_config import configured
from thinkalike.models.units import open_units, units_of_model

HEADS = 8
LAYERS = 3


def write(folder: Path, seed: int, heads: int = HEADS) -> Path:
    """A GPT-2 with random weights."""
    import transformers

    torch.manual_seed(seed)
    sizes = {"n_embd": 48, "n_head": heads, "n_layer": LAYERS, "n_positions": 64}
    config = transformers.GPT2Config(**sizes, vocab_size=len(tiny.tokenizer()))
    transformers.GPT2LMHeadModel(config).save_pretrained(folder)
    tiny.tokenizer().save_pretrained(folder)
    return folder


def heads_of(seed: int, heads: int = HEADS) -> torch.Tensor:
    return torch.randn(heads, 6, 48, generator=seeded(seed))


def test_a_copy_has_every_head_in_place_whatever_rotates_inside_a_head():
    source = heads_of(0)
    rotation = torch.linalg.qr(torch.randn(HEADS, 6, 6, generator=seeded(1))).Q
    test = lineage.compare_heads(source, rotation @ source + 0.2 * heads_of(2))
    assert (test.compared, test.matched, test.in_place) == (HEADS, HEADS, HEADS)
    assert test.p == pytest.approx(1 / math.factorial(HEADS))
    reordered = lineage.compare_heads(source, source.roll(1, 0))
    assert (reordered.matched, reordered.in_place, reordered.p) == (HEADS, 0, 1)


def test_heads_that_were_taken_out_leave_the_others_in_order():
    source = heads_of(0, 12)
    test = lineage.compare_heads(source, source[[0, 2, 3, 5, 8, 9, 11]])
    assert (test.by, test.compared, test.in_place) == ("order", 7, 7)
    assert test.p == pytest.approx(1 / math.factorial(7))


def test_p_values_of_random_heads_are_uniform():
    randomised = []
    for seed in range(400):
        test = lineage.compare_heads(heads_of(2 * seed), heads_of(2 * seed + 1))
        randomised.append(test.randomised_p(float(torch.rand(1, generator=seeded(seed)))))
    assert kstest(randomised, "uniform").pvalue > 0.05


def test_few_heads_or_units_cannot_say_anything():
    """With n heads, no p-value is below 1/n!."""
    assert lineage.too_few_to_test(3, 900, 0.01)
    assert lineage.too_few_to_test(8, 900, 0.01)
    assert not lineage.too_few_to_test(9, 900, 0.01)
    assert lineage.too_few_to_test(5, 2, 0.01)
    assert not lineage.too_few_to_test(5, 1, 0.01)
    assert lineage.too_few_to_test(1, 1, 0.01)
    assert lineage.too_few_to_test(0, 1, 0.01)


@pytest.mark.parametrize(
    ("heads", "settings"),
    [
        (12, {"num_attention_heads": 12}),
        (4, {"num_attention_heads": 12, "num_key_value_heads": 4}),  # whole groups trade places
        (12, {"num_attention_heads": 12, "num_key_value_heads": 1}),  # all share one
        (0, {"num_attention_heads": 12, "alibi": True}),  # each head has its slope
        (0, {"n_head": 12, "model_type": "bloom"}),
        (0, {}),
    ],
)
def test_the_heads_that_may_trade_places_are_counted(heads, settings):
    from types import SimpleNamespace

    assert exchangeable_heads(SimpleNamespace(**settings)) == heads


@pytest.mark.parametrize("name", ["gelu-3l-mini", "gpt2-mini", "bert-mini", "neox-5l-odd-mini"])
def test_heads_are_the_same_in_files_and_in_memory(name):
    from thinkalike.models.load import load_model

    stored = open_units(configured(name, {}), name)
    held = units_of_model(load_model(name), name)
    assert len(stored.heads) == len(held.heads) == len({units.block for units in stored.units})
    for of_files, in_memory in zip(stored.heads, held.heads, strict=True):
        assert of_files.heads == in_memory.heads
        assert torch.equal(stored.heads_writing(of_files), held.heads_writing(in_memory))


def test_a_head_is_what_it_adds_to_the_stream():
    """The output of attention is the sum over heads of their values times these vectors."""
    import transformers

    from thinkalike.models.load import load_model

    model = load_model("bert-mini")
    attention = model.module.bert.encoder.layer[0].attention
    assert isinstance(model.module, transformers.BertForMaskedLM)
    units = units_of_model(model, "bert-mini")
    vectors = units.heads_writing(units.heads[0])
    z = torch.randn(5, 64, generator=seeded(0))
    by_head = torch.einsum("tnh,nhd->td", z.view(5, 4, 16), vectors)
    expected = attention.output.dense(z) - attention.output.dense.bias
    assert torch.allclose(by_head, expected, atol=1e-5)


def test_a_tuned_copy_has_the_heads_of_its_origin_and_another_seed_has_not(tmp_path, capsys):
    source = write(tmp_path / "source", seed=1)
    other = write(tmp_path / "other", seed=2)
    copy = thinkalike.lineage(source, source).tables["heads"]
    for row in copy.itertuples():
        is_same_block = row.source_layer == row.target_layer
        assert (row.in_place == HEADS) == is_same_block, row
        assert (row.p_corrected < 0.01) == is_same_block, row
    assert copy["p_corrected"].min() == pytest.approx(LAYERS**2 / math.factorial(HEADS))

    independent = thinkalike.lineage(source, other)
    assert len(independent.tables["heads"]) == LAYERS**2
    assert independent.tables["heads"]["p_corrected"].min() > 0.01


@pytest.mark.ci_slow
def test_the_screen_says_which_heads_are_in_place_or_that_they_are_too_few(cli, tmp_path):
    source = write(tmp_path / "source", seed=1)
    other = write(tmp_path / "other", seed=2)
    words = {
        other: "Attention: no block of other has heads in the positions of those of a block of source",
        source: "8 of 8 heads in place, p = 2e-04.",
        write(tmp_path / "few", seed=3, heads=4): (
            "Attention heads are not tested: 4 heads (or groups that share keys) have 24 orders, too few for p < 0.01 "
            "over 9 pairs of blocks."
        ),
    }
    for target, sentence in words.items():
        arguments = ["measure=lineage", f"model={source}", f"model@target={target}", f"store={tmp_path / 'store'}"]
        done = cli("analyze.py", *arguments)
        assert sentence in " ".join(done.stdout.split())


@pytest.mark.timeout(20)
@pytest.mark.parametrize("heads", [7, 2000, 10**8, 2**63, float("inf"), float("nan"), -3])
def test_a_foreign_number_of_heads_asks_for_no_endless_work(heads):
    """The orders of 10^8 heads are a number of 760 million digits."""
    streams = pd.DataFrame({"heads": [heads], "pairs_of_heads": [9]})
    with pytest.raises((ValueError, OverflowError)):
        list(heads_in_words(made(pd.DataFrame(), streams=streams), "a", "b"))
    few = made(pd.DataFrame(), streams=streams.assign(heads=6))
    (sentence,) = heads_in_words(few, "a", "b")
    assert "6 heads (or groups that share keys) have 720 orders, too few for p < 0.01 over 9 pairs" in sentence


@pytest.mark.ci_slow
def test_heads_of_independent_models_are_uniform_after_alignment():
    """Those of the bundled models of four heads, which are too few for one pair and enough for all."""
    from thinkalike.instruments.lineage.comparison import comparable_streams

    generator = seeded(0)
    names = (
        "gpt2-mini",
        "gpt2-mini-s1",
        "bert-mini",
        "bert-mini-s1",
        "neox-6l-mini",
        "gelu-4l-mini",
        "solu-3l-mini-s1",
    )
    models = [open_units(configured(name, {}), name) for name in names]
    randomised = []
    for number, source in enumerate(models):
        for target in models[number + 1 :]:
            streams = comparable_streams(source, target)
            for source_heads in source.heads:
                vectors = streams.in_target_stream(source.heads_writing(source_heads))
                for target_heads in target.heads:
                    test = lineage.compare_heads(vectors, target.heads_writing(target_heads))
                    randomised.append(test.randomised_p(float(torch.rand(1, generator=generator))))
    assert len(randomised) > 500
    assert kstest(randomised, "uniform").pvalue > 0.05
