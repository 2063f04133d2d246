"""Stitching jobs of more than one fit per layer pair, their baselines, and their two tables."""

import numpy as np
import pandas as pd
import pytest
import torch
from safetensors.numpy import load_file

import tiny
from conftest import composed, kill_and_resume, untrained
from stores import finish
from thinkalike.data.rows import TokenRows
from thinkalike.evaluation.moments import state_moments
from thinkalike.instruments.layer_note import LAYER_NOTE
from thinkalike.instruments.stitching.asymmetry import residual_sums
from thinkalike.instruments.stitching.instrument import Stitching
from thinkalike.instruments.stitching.setting import load_setting
from thinkalike.instruments.stitching.table import COLUMNS, improvement_columns, left_to_gain
from thinkalike.measures.round_trips import both_directions
from thinkalike.memory import Budget
from thinkalike.report.reports import gather, report_of
from thinkalike.stitches.results import load_stitch
from thinkalike.stitches.stitch_map import Site
from thinkalike.store import open_result
from thinkalike.training.recipe import StitchConfig, fewest_steps

BY_LABELS = "stitch.loss=cross_entropy"  # which has a floor
MORE = (BY_LABELS, "stitch.both=true", "stitch.seeds=2", "stitch.lr_multiples=[3]", "layers=[[0,1],[2,2]]")


def penalty_of(arrays, name, prefix=""):
    tokens, target = arrays[f"{prefix}tokens"].sum(), arrays[f"{prefix}target"].sum()
    return (arrays[f"{prefix}{name}"].sum(-1) - target) / tokens


@pytest.mark.parametrize("seeds", [1, 2])
def test_a_stitch_is_compared_with_its_baselines_document_by_document(seeds):
    """Documents differ far more from each other than the stitch from the baseline."""
    documents = 10
    generator = torch.Generator().manual_seed(0)
    tokens = torch.full((documents,), 200.0, dtype=torch.float64)
    difficulty = 3 + 2 * torch.randn(documents, generator=generator, dtype=torch.float64)
    planted = 0.9 + 0.1 * torch.randn(documents, generator=generator, dtype=torch.float64)
    losses = (difficulty * tokens).expand(1, seeds, documents)
    baseline = (difficulty + planted) * tokens
    columns = improvement_columns(losses, {"token_mean": baseline[None], "tokens": tokens})
    ends = [columns[f"improvement_over_token_mean{end}"][0] for end in ("_low", "", "_high")]
    assert ends[1] == pytest.approx(planted.mean().item())
    standard_error = planted.std() / documents**0.5
    assert ends[1] - ends[0] == pytest.approx(2.26 * standard_error, rel=0.5)
    assert ends[2] - ends[1] == pytest.approx(2.26 * standard_error, rel=0.5)


@pytest.mark.slow
@pytest.mark.drawn
def test_both_directions_and_seeds_are_fits_of_their_own(cli, small_stitching):
    result = cli("train.py", *small_stitching, *MORE).result
    table, arrays = result.tables["details"], result.arrays
    a, b = table["source"].iloc[0], table["target"].iloc[0]
    assert list(zip(table["source"], table["source_layer"], table["target_layer"], strict=True)) == [
        (a, 0, 1), (a, 2, 2), (b, 1, 0), (b, 2, 2),
    ]  # fmt: skip
    for prefix, rows in (("", table.iloc[:2]), ("back_", table.iloc[2:])):
        both = [penalty_of(arrays, name, prefix) for name in ("stitch", "seed_1")]
        assert np.abs(both[0] - both[1]).max() > 1e-7  # another order of the text
        assert np.allclose(rows["penalty"], np.mean(both, 0), atol=1e-9)
        assert np.allclose(rows["lr_x3_penalty"], penalty_of(arrays, "lr_x3", prefix), atol=1e-9)
        other = table["penalty"].to_numpy().reshape(2, 2)[1 if not prefix else 0]
        assert np.allclose(rows["asymmetry"], rows["penalty"] - other, atol=1e-9)
        assert (rows["asymmetry_low"] < rows["asymmetry"]).all()
        assert (rows["asymmetry"] < rows["asymmetry_high"]).all()
    weights = load_file(result.folder / "stitch.safetensors")
    names = {f"{way}{seed}{i}.map.weight" for way in ("", "back.") for seed in ("", "seed_1.") for i in (0, 1)}
    assert set(weights) == names
    for way, stitches in (("", load_stitch(result, seed=1)), ("back.", load_stitch(result, seed=1).back)):
        for number, (layer, depth) in enumerate([(0, 1), (2, 2)]):
            phi, name = stitches[layer, depth], f"{way}seed_1.{number}.map.weight"
            assert np.allclose(phi.weight, weights[name] + np.eye(32), atol=1e-6)
            sites = [Site.of(*at) for at in zip(result.provenance["models"], (layer, depth), strict=True)]
            assert [phi.source, phi.target] == (sites[::-1] if way else sites)
    assert [path.stem for path in result.figures if path.suffix == ".png"] == ["penalty", "penalty_back"]

    alone = cli("train.py", *small_stitching, "layers=[[0,1],[2,2]]", BY_LABELS, "seed=1").result
    assert np.allclose(penalty_of(alone.arrays, "stitch"), penalty_of(arrays, "seed_1"), atol=1e-6)


@pytest.mark.ci_slow
def test_a_self_stitch_has_one_direction_and_is_its_own_floor(cli, small_stitching, minis):
    itself = [word for word in small_stitching if not word.startswith("target.")]
    failed = cli("train.py", *itself, "stitch.both=true")
    assert failed.status == 1
    assert "stitch.both=true needs two models, and" in failed.stderr
    table = cli("train.py", *itself, BY_LABELS, "layers=[[0,0],[1,2]]").result.tables["details"]
    assert table["floor_penalty"].iloc[0] == table["penalty"].iloc[0]
    assert table["floor_penalty"].iloc[1] != table["penalty"].iloc[1]


@pytest.mark.slow
@pytest.mark.parametrize("state", ["training", "training-seed-1", "training-back", "training-back-seed-1"])
def test_a_job_of_several_fits_goes_on_from_each_of_them(cli, small_stitching, state):
    long = ["stitch.steps=60", "trainer.checkpoint_every=5", "threads=1", *MORE[1:3]]
    killed, whole = kill_and_resume(cli, "train.py", *small_stitching, *long, state=state)
    assert killed.fingerprint() == whole.fingerprint()


@pytest.mark.ci_slow
def test_the_table_has_what_one_reads_first_and_the_details_all_of_it(cli, small_stitching):
    more = ["layers=[[0,0],[2,2]]", "stitch.controls=true", "stitch.both=true"]
    done = cli("train.py", *small_stitching, *more)
    table = done.result.table
    details = done.result.tables["details"]
    assert len(COLUMNS) <= 15
    assert list(table) == list(COLUMNS)
    pd.testing.assert_frame_equal(details[list(table)], table.sort_index())
    for name in ("stitching_loss", "bigram_mean_penalty", "kl", "shuffled_penalty", "asymmetry"):
        assert {name, f"{name}_low", f"{name}_high"} <= set(details), name
    assert "floor_penalty" not in details, "it is 0 by KL"
    assert not {"verdict", "cca", "future"} & set(details)
    assert "verdict" not in done.stdout


@pytest.mark.ci_slow
def test_a_job_without_baselines_has_fewer_columns(cli, small_stitching, minis):
    """Widths differ, nothing is trained, and no copies are asked for."""
    words = [*untrained(small_stitching), f"target.path={minis}/wide", "layers=[[0,0]]"]
    words.append("stitch=least_squares")
    table = cli("train.py", *words, "ruler=null").result.table
    left_out = {
        "identity_penalty",
        "equivalent_bits",
        "equivalent_bits_low",
        "equivalent_bits_high",
        "upper_bound_of_gain",
    }
    assert list(table) == [name for name in COLUMNS if name not in left_out]


@pytest.mark.ci_slow
@pytest.mark.drawn
def test_a_result_that_has_one_table_is_shown_and_drawn(cli, small_stitching, tmp_path):
    """Version 18 had all columns in table.csv, and a verdict among them."""
    result = cli("train.py", *small_stitching, "layers=[[0,0],[2,2]]").result
    table = result.tables["details"].assign(verdict="related", cca_beyond=0.1)
    kept = {"scalars": result.scalars, "arrays": result.arrays, "config": result.config}
    old = finish(tmp_path / "old", "stitching", "abc", {"table": table}, **kept)
    assert {"verdict", "kl"} <= set(open_result(old.folder).details)
    instrument = Stitching()
    said = instrument.said(result).replace(f"{LAYER_NOTE}\n", "")  # which models are not known of the old one
    said_words = " ".join(said.split()).replace("fitted on 1,024 tokens; ", "")  # which is not known of the old one
    assert " ".join(instrument.said(old).split()) == said_words
    assert [each.name for each in instrument.headlines(old)] == ["mean_penalty", "worst_penalty"]
    instrument.draw(old, tmp_path)
    assert (tmp_path / "penalty.svg").exists()
    (grid,) = report_of(gather([tmp_path / "old"]))["grids"]
    assert "kl" in [each["name"] for each in grid["numbers"]]


@pytest.mark.ci_slow
def test_a_page_shows_the_details_of_a_result_once(cli, small_stitching, tmp_path):
    result = cli("train.py", *small_stitching, "layers=[[0,0],[2,2]]").result
    report = report_of(gather([result.folder.parents[1]]))
    (grid,) = report["grids"]
    assert {"penalty", "kl"} <= {each["name"] for each in grid["numbers"]}
    assert report["tables"] == []


PAIRS = [(0, 1), (2, 2)]


@pytest.fixture
def small(minis, small_stitching):
    """The command line of a small job between models of two widths."""
    kind = ["stitch=least_squares", "stitch.both=true", "stitch.steps=24", "layers=[[0,1],[2,2]]"]
    return [*untrained(small_stitching), *kind, f"target.path={minis}/wide"]


def left(states, reached, mean):
    return ((states - reached).square().sum() / (states - mean).square().sum()).item()


@pytest.mark.ci_slow
def test_what_is_left_unexplained_is_what_the_kept_maps_leave(cli, small):
    result = cli("train.py", *small).result
    table = result.tables["details"]
    stitches, setting = load_stitch(result), load_setting(composed(*small))
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
    moments = state_moments(source, target, PAIRS, rows, Budget(4e5, 0.0))
    maps = [both_directions(moments.of(pair)) for pair in PAIRS]
    sums = residual_sums(source, target, PAIRS, maps, moments, rows, batch)
    for pair, both, part, whole in zip(PAIRS, maps, sums["left"].sum(-1), sums["whole"].sum(-1), strict=True):
        found = both.unexplained(moments.of(pair))
        assert (part / whole).tolist() == pytest.approx(list(found), abs=1e-7)
    owners[0, :3] = -1  # of no document
    without = residual_sums(source, target, PAIRS, maps, moments, rows, batch)
    assert (without["whole"][..., 0] < sums["whole"][..., 0]).all()


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
    steps = range(10, 400)
    open_ = [each for each in steps if not StitchConfig(steps=each, warmup=each // 10).has_settled]
    assert fewest_steps() == max(open_) + 1 == 32
    assert fewest_steps(warmup=30) == 140
    assert not StitchConfig(steps=139, warmup=30).has_settled
