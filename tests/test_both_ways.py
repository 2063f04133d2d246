"""Stitches by least squares in both directions: what the table says is what the maps that are kept do."""

import pytest
import torch

import tiny
from conftest import composed
from thinkalike.data.corpus import TokenRows
from thinkalike.evaluation.language import state_moments
from thinkalike.instruments.stitching.directions import residual_sums
from thinkalike.instruments.stitching.fitting import load_setting
from thinkalike.measures import both_directions
from thinkalike.stitches.results import load_stitch

PAIRS = [(0, 1), (2, 2)]


@pytest.fixture
def small(minis, text_files, tmp_path):
    """The command line of a small job between models of two widths."""
    data = ["data=text", f"data.files=[{text_files}/*.txt]", "data.report_tokens=4096", "data.report_share=0.4"]
    store = [f"store={tmp_path}/results", f"data.cache={tmp_path}/cache", "model.context=32", "target.context=32"]
    kind = ["stitch=least_squares", "stitch.both=true", "stitch.steps=24", "stitch.tokens_per_step=256"]
    return [*kind, "layers=[[0,1],[2,2]]", f"model.path={minis}/a", f"target.path={minis}/wide", *data, *store]


def left(states, reached, mean):
    return ((states - reached).square().sum() / (states - mean).square().sum()).item()


@pytest.mark.slow
@pytest.mark.ci_slow
def test_what_is_left_unexplained_is_what_the_kept_maps_leave(cli, small):
    result = cli("train.py", *small).result
    table, stitches, setting = result.table, load_stitch(result), load_setting(composed(*small))
    fit, report = (rows.tokens.long() for rows in (setting.corpus.fit, setting.corpus.report))
    for place, (layer, depth) in enumerate(PAIRS):
        x, y = setting.source.head(report, layer), setting.target.head(report, depth)
        means = setting.source.head(fit, layer).mean((0, 1)), setting.target.head(fit, depth).mean((0, 1))
        phi, psi = stitches[layer, depth], stitches.back[layer, depth]
        expected = {
            (place, "unexplained"): left(y, phi(x), means[1]),
            (place, "round_trip_unexplained"): left(x, psi(phi(x)), means[0]),
            (place + 2, "unexplained"): left(x, psi(y), means[0]),
            (place + 2, "round_trip_unexplained"): left(y, phi(psi(y)), means[1]),
        }
        for (row, column), value in expected.items():
            assert table[column][row] == pytest.approx(value, rel=1e-3, abs=1e-5), (row, column)
            assert table[f"{column}_low"][row] < table[column][row] < table[f"{column}_high"][row]


@pytest.mark.parametrize("batch", [1, 5, 12])
def test_sums_by_document_are_those_of_the_closed_form(batch):
    source, target = tiny.frozen(0), tiny.frozen(1, d_model=48, d_head=12)
    owners = torch.arange(12 * 16).view(12, 16) * 5 // (12 * 16)
    rows = TokenRows(torch.randint(len(tiny.tokenizer()), (12, 16)), owners)
    moments = state_moments(source, target, PAIRS, rows.tokens, batch=4)
    maps = [both_directions(moments.of(pair)) for pair in PAIRS]
    sums = residual_sums(source, target, PAIRS, maps, moments, rows, batch)
    for pair, both, part, whole in zip(PAIRS, maps, sums["left"].sum(-1), sums["whole"].sum(-1), strict=True):
        found = both.unexplained(moments.of(pair))
        assert (part / whole).tolist() == pytest.approx(list(found), abs=1e-7)
    owners[0, :3] = -1  # of no document
    without = residual_sums(source, target, PAIRS, maps, moments, rows, batch)
    assert (without["whole"][..., 0] < sums["whole"][..., 0]).all()
