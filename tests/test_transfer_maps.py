"""The job of maps in both directions: its table is what the maps that it keeps do, and its sums are those of rows."""

import numpy as np
import pandas as pd
import pytest
import torch

import tiny
from conftest import composed
from thinkalike.data.rows import TokenRows
from thinkalike.errors import ModelError
from thinkalike.evaluation.maps import residual_sums, state_moments, unexplained_variance
from thinkalike.instruments.stitching.setting import shared_text
from thinkalike.instruments.transfer_maps import _warn_of_overfitting
from thinkalike.measures import Moments, both_directions
from thinkalike.models.load import load_models
from thinkalike.stitches.results import load_stitch

PAIRS = [(0, 1), (2, 2)]


@pytest.fixture
def small(minis, text_files, tmp_path):
    """The command line of a small job between models of two widths."""
    data = ["data=text", f"data.files=[{text_files}/*.txt]", "data.report_tokens=4096", "data.report_share=0.4"]
    store = [f"store={tmp_path}/results", f"data.cache={tmp_path}/cache", "model.context=32", "target.context=32"]
    measure = ["measure=transfer_maps", "layers=[[0,1],[2,2]]", "measure.fit_tokens=6144"]
    return [*measure, f"model.path={minis}/a", f"target.path={minis}/wide", *data, *store]


@pytest.fixture(scope="module")
def models():
    return tiny.frozen(0), tiny.frozen(1, d_model=48, d_head=12)


def rows_of(count, context=16, documents=5):
    owners = torch.arange(count * context).view(count, context) * documents // (count * context)
    owners[0, :3] = -1  # of no document
    return TokenRows(torch.randint(len(tiny.tokenizer()), (count, context)), owners)


def test_a_job_reports_what_the_maps_that_it_keeps_do(door, small):
    done = door("analyze.py", *small)
    result, table = done.result, done.result.table
    assert list(zip(table["source_layer"], table["target_layer"], strict=True)) == PAIRS
    stitches, config = load_stitch(result), composed(*small, door="analyze")
    source, target = load_models(config.model, config.target)
    corpus = shared_text(config.data, source, target, 6144)
    fit, report = (rows.tokens.long() for rows in (corpus.fit, corpus.report))
    for place, (layer, depth) in enumerate(PAIRS):
        x, y = source.head(report, layer), target.head(report, depth)
        means = source.head(fit, layer).mean((0, 1)), target.head(fit, depth).mean((0, 1))
        phi, psi = stitches[layer, depth], stitches.back[layer, depth]
        expected = {
            "unexplained": left(y, phi(x), means[1]),
            "unexplained_back": left(x, psi(y), means[0]),
            "round_trip_unexplained": left(x, psi(phi(x)), means[0]),
            "round_trip_unexplained_back": left(y, phi(psi(y)), means[1]),
            "penalty": loss(phi.stitched(source, target), report) - loss(target.full, report),
            "penalty_back": loss(psi.stitched(target, source), report) - loss(source.full, report),
            "condition": torch.linalg.cond(phi.weight.double()).item(),
        }
        for column, value in expected.items():
            assert table[column][place] == pytest.approx(value, rel=1e-3, abs=1e-5), column
            if column != "condition":
                assert table[f"{column}_low"][place] < table[column][place] < table[f"{column}_high"][place]
    assert (table["fitted_unexplained"] < table["unexplained"]).all()
    assert "by φ and back by ψ, fitted on" in done.stdout
    assert [path.name for path in result.figures] == ["transfer_maps.png", "transfer_maps.svg"]
    names = ["unexplained", "unexplained_back", "penalty", "penalty_back"]
    means = [(f"mean_{name}", pytest.approx(table[name].mean())) for name in names]
    assert [each[:2] for each in result.headlines] == means


def left(states, reached, mean):
    return ((states - reached).square().sum() / (states - mean).square().sum()).item()


def loss(model, rows):
    logits = model(rows)[:, :-1].log_softmax(-1)
    return -logits.gather(-1, rows[:, 1:, None]).double().mean().item()


@pytest.mark.parametrize("batch", [1, 5, 12])
def test_sums_by_document_are_those_of_the_closed_form_for_any_batch(models, batch):
    source, target = models
    rows = rows_of(12)
    moments = state_moments(source, target, PAIRS, rows.tokens, batch=4)
    maps = [both_directions(moments.of(pair)) for pair in PAIRS]
    kept = TokenRows(rows.tokens, rows.documents.clamp(min=0))
    sums = residual_sums(source, target, PAIRS, maps, moments, kept, batch)
    for pair, both, part, whole in zip(PAIRS, maps, sums.left.sum(-1), sums.whole.sum(-1), strict=True):
        found = both.unexplained(moments.of(pair))
        assert (part / whole).tolist() == pytest.approx(list(found), abs=1e-7)
    without = residual_sums(source, target, PAIRS, maps, moments, rows, batch)
    assert (without.whole[..., 0] < sums.whole[..., 0]).all(), "tokens of no document are left out"
    torch.testing.assert_close(without.whole[..., 1:], sums.whole[..., 1:])
    still = Moments([(0, 1)])
    still.update({0: torch.randn(9, 4)}, {1: torch.ones(9, 3)})
    with pytest.raises(ModelError, match="layer 0 of a and layer 1 of b"):
        unexplained_variance(both_directions(still.of((0, 1))), still, (0, 1), ("a", "b"))


def test_overfitting_is_warned_of(caplog):
    table = pd.DataFrame({"source_layer": [0, 1], "target_layer": [0, 2]})
    table = table.assign(unexplained=[0.3, 0.5], fitted_unexplained=[0.29, 0.1])
    table = table.assign(unexplained_back=0.2, fitted_unexplained_back=0.19)
    with caplog.at_level("WARNING", logger="thinkalike"):
        _warn_of_overfitting(table)
    (record,) = caplog.records
    assert "1→2" in record.message


@pytest.mark.slow
def test_models_of_two_tokenizers_are_mapped_and_stitched_both_ways(door, small, minis, tmp_path):
    tiny.write_mini(tmp_path / "other", 3, cutter=tiny.other_tokenizer())
    words = [word for word in small if not word.startswith("target.")]
    words += ["model@target=gelu-3l-mini", f"target.path={tmp_path}/other", "target.context=32"]
    result = door("analyze.py", *words).result
    for column in ("unexplained", "unexplained_back", "penalty", "penalty_back"):
        assert np.isfinite(result.table[column]).all()
    assert not np.array_equal(result.arrays["tokens"], result.arrays["back_tokens"]), "each direction counts its own"
