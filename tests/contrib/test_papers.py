"""Experiments of papers: their models and jobs, the check of their claims, and the tables of all claims."""

import itertools
import math
import zlib
from dataclasses import astuple
from importlib import import_module

import numpy as np
import pandas as pd
import pytest
import torch

from conftest import composed
from pages import script
from stores import finish
from thinkalike.config import options
from thinkalike.contrib.papers import PAPERS, brown2023_stitching, paper_experiment
from thinkalike.contrib.papers.brown2023_stitching import FigureDirection
from thinkalike.contrib.papers.claims import (
    VERDICTS,
    Bound,
    Claim,
    bonferroni_level,
    bonferroni_note,
    claims_table,
    counts_of,
    exact_claim,
    judged_claim,
    untestable_claim,
    verdict_on_all,
)
from thinkalike.contrib.papers.experiment import ExperimentRun, inner_job_config
from thinkalike.contrib.populations.population import with_run_settings
from thinkalike.errors import StoreError, ThinkalikeError
from thinkalike.instruments import run_job
from thinkalike.measures import Estimate


def stitched(folder, source, target, penalties, tokens=None):
    """A finished stitching job with these penalties in nats per token, alike in all of 40 documents but for noise."""
    name, tokens = f"{source}-{target}", np.full(40, 1000.0) if tokens is None else tokens
    noise = np.random.default_rng(zlib.crc32(name.encode())).normal(0, 0.01, (len(penalties), 40))
    own = np.full(40, 3.0) * tokens
    stitch = own + (np.array(penalties)[:, None] + noise) * tokens
    layers = range(len(penalties))
    columns = {"source": source, "target": target, "source_layer": layers, "target_layer": layers}
    arrays = {"stitch": stitch, "target": own, "tokens": tokens}
    return finish(folder, "stitching", name, {"table": pd.DataFrame({**columns, "penalty": penalties})}, arrays=arrays)


def case(results):
    config = composed("experiment=brown2023/figure1", entry="analyze")
    return ExperimentRun(config, {}, {f"{source} → {target}": result for (source, target), result in results.items()})


@pytest.fixture
def claims(monkeypatch, tmp_path):
    """The claims on four directions; `seeds`: between models of one activation with independent seeds."""

    def run(*penalties, seeds=True):
        made, directions = {}, []
        for ends, values in zip(itertools.permutations(("solu", "gelu")), penalties[:2], strict=True):
            directions.append((ends, f"{ends[0]}-3l", f"{ends[1]}-3l", values))
        for name, values in zip(("solu", "gelu"), penalties[2:], strict=True):
            directions.append(((name, name), f"{name}-3l", f"{name}-3l-s1" if seeds else f"{name}-3l", values))
        for _, source, target, values in directions:
            made[source, target] = stitched(tmp_path, source, target, values)
        known = [FigureDirection("g", ends, source, target) for ends, source, target, _ in directions]
        monkeypatch.setitem(brown2023_stitching.DIRECTIONS, "paper", known)
        return brown2023_stitching._claims_about_activations(case(made), "g")

    return run


@pytest.mark.parametrize(
    ("penalties", "verdict"),
    [
        (([0.4, 0.3], [0.2, 0.1], [0.0, 0.0], [0.05, 0.04]), "holds"),
        (([0.4, 0.05], [0.2, 0.1], [0.15, 0.0], [0.05, 0.14]), "does not hold"),  # at one layer
        (([0.4, 0.1], [0.2, 0.1], [0.1, 0.1], [0.1, 0.1]), "undecided"),  # an interval covers zero
    ],
)
def test_claims_hold_where_they_are_planted(penalties, verdict, claims):
    found = claims(*penalties)
    assert [claim.verdict for claim in found] == [verdict] * 3
    assert all("hold for all together (max-t)" in claim.numbers for claim in found)
    assert {claim.units for claim in found} == {"40 documents (effective sample size 40.0)"}
    assert all(0 < claim.smallest_effect < 0.02 for claim in found)
    assert verdict != "holds" or "+0.200 [" in found[0].numbers


def test_a_self_stitch_says_nothing_about_the_activation(claims):
    found = claims([0.4, 0.3], [0.2, 0.1], [0.0, 0.0], [0.05, 0.04], seeds=False)
    assert [claim.verdict for claim in found] == ["holds", "not testable here", "holds"]


def test_stitches_that_learn_and_that_do_not():
    noise = np.random.default_rng(0).normal(0, 0.01, (60, 2))
    falling, level = np.linspace(3, 2, 60)[:, None] + noise, 3 + noise
    rising = np.stack([falling[:, 0], level[:, 0] + np.linspace(0, 1, 60)], 1)
    forth, back = FigureDirection("g", ("solu", "gelu"), "a", "b"), FigureDirection("g", ("gelu", "solu"), "b", "a")
    verdicts = [
        brown2023_stitching._claim_that_stitches_learn({forth: curve}).verdict for curve in (falling, level, rising)
    ]
    assert verdicts == ["holds", "undecided", "does not hold"]
    claim = brown2023_stitching._claim_that_stitches_learn({forth: falling, back: falling})
    assert "all 4 together (Bonferroni)" in claim.numbers
    assert claim.units == "10 first and 30 last steps"


def test_directions_on_other_documents_are_not_judged_together(tmp_path):
    tokens = np.full(40, 900.0)
    ends = [("a", "b"), ("b", "a"), ("c", "d"), ("d", "c")]
    made = {each: stitched(tmp_path, *each, [0.1], tokens if "c" in each else None) for each in ends}
    a, b, c, d = (FigureDirection("g", ("solu", "gelu"), *each) for each in ends)
    for pairs in ([(a, c)], [(a, b), (c, d)]):
        with pytest.raises(StoreError, match="report on different documents"):
            brown2023_stitching._claim_that_first_costs_more(case(made), "", pairs)


@pytest.mark.ci_slow
@pytest.mark.parametrize("name", options("experiment"))
@pytest.mark.parametrize("scale", ["paper", "mini"])
def test_every_experiments_jobs_compose(name, scale):
    figure, config = paper_experiment(name), composed(f"experiment={name}", f"scale={scale}", entry="analyze")
    assert (figure.name, figure.kind, config.experiment) == (name, name.replace("/", "-"), name)
    jobs = [inner_job_config(config, part) for part in figure.inner_jobs(figure.experiment_run(config))]
    assert all(job.store == config.store for job in jobs)
    if figure.measure == "mlem" and jobs:
        assert {job.stimuli.sample for job in jobs} == {1500}


def test_every_experiment_has_a_configuration():
    modules = [import_module(f"thinkalike.contrib.papers.{module}") for each in PAPERS.values() for module in each]
    assert sorted(each.name for module in modules for each in module.EXPERIMENTS) == options("experiment")


def test_a_model_of_the_command_line_replaces_an_experiments_own():
    config = composed("experiment=salle2024/figure3", "model=gpt2-mini", "scale=mini", entry="analyze")
    assert paper_experiment(config.experiment).experiment_run(config).names == ["gpt2-mini"]


def test_a_setting_of_a_model_reaches_the_jobs(checkpoints):
    words = ["model=local", f"model.path={checkpoints['gpt2']}", "model@target=mamba-mini", "target.dtype=float64"]
    config = composed("experiment=salle2024/figure2", *words, "scale=mini", entry="analyze")
    figure = paper_experiment("salle2024/figure2")
    jobs = [inner_job_config(config, part) for part in figure.inner_jobs(figure.experiment_run(config))]
    assert [job.model.path for job in jobs] == [str(checkpoints["gpt2"]), None, str(checkpoints["gpt2"])]
    assert [job.target.dtype for job in jobs] == ["float32", "float64", "float64"]


@pytest.mark.parametrize("name", ["brown2023/figure2", pytest.param("brown2023/figure1", marks=pytest.mark.slow)])
def test_dtype_and_device_reach_all_models_of_an_experiment(name):
    figure, words = paper_experiment(name), [f"experiment={name}", "scale=mini"]
    configs = [composed(*words, *more, entry="analyze") for more in ((), ("model.dtype=float64", "model.device=cpu"))]
    plain, jobs = (
        [inner_job_config(each, part) for part in figure.inner_jobs(figure.experiment_run(each))] for each in configs
    )
    assert [(job.model.dtype, job.target.dtype) for job in jobs] == [("float64", "float64")] * len(plain)
    assert [(job.model.name, job.target.name) for job in jobs] == [(job.model.name, job.target.name) for job in plain]
    if name == "brown2023/figure2":
        member = with_run_settings(composed("model=bert-mini").model, jobs[0])
        assert (member.name, member.dtype) == ("bert-mini", "float64")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["experiment=brown2023/figure1", "model=gpt2"], "brown2023/figure1"),
        (["experiment=brown2023/figure3", "model.path=somewhere"], "takes no others"),
        (["experiment=brown2023/figure10", "model=gelu-3l-mini"], "model@target="),
        (["experiment=salle2024/figure2", "model=gpt2"], "it takes 2"),
        (["experiment=salle2024/figure2", "model=gpt2-mini", "model@target=gpt2-mini"], "gpt2-mini"),
        pytest.param(
            ["experiment=salle2024/figure3", "measure.conditional_on=Nmber"],
            "did you mean 'Number'",
            marks=pytest.mark.ci_slow,  # it reads the stimuli
        ),
        (["experiment=brown2023/figure1", "measure=cka"], "measure="),
        (["experiment=brown2023/figure9", "measure=rsa"], "is about measure=cka"),
        (["experiment=brown2023/figure77"], "did you mean 'brown2023/figure"),
    ],
)
def test_what_an_experiment_cannot_take_is_refused(words, message):
    with pytest.raises(ThinkalikeError, match=message):
        run_job(composed(*words, "scale=mini", entry="analyze"))


HOLDS, FAILS, UNDECIDED, UNTESTABLE = VERDICTS


def estimate(*ends):
    """Estimates with these ends, their values in the middle."""
    low, high = torch.tensor(ends, dtype=torch.float64).T
    return Estimate((low + high) / 2, low, high)


@pytest.mark.parametrize(
    ("bound", "low", "high", "verdict"),
    [
        (Bound("above"), 0.1, 0.3, HOLDS),
        (Bound("above"), -0.3, -0.1, FAILS),
        (Bound("above"), -0.1, 0.3, UNDECIDED),
        (Bound("above"), 0.0, 0.3, UNDECIDED),
        (Bound("above", 0.7), 0.3, 0.6, FAILS),
        (Bound("above", 0.7), 0.6, 0.8, UNDECIDED),
        (Bound("below", 0.02), -0.5, 0.01, HOLDS),
        (Bound("below", 0.02), 0.03, 0.05, FAILS),
        (Bound("below", 0.02), 0.01, 0.03, UNDECIDED),
        (Bound("within", 0.01), -0.005, 0.009, HOLDS),
        (Bound("within", 0.01), -0.03, -0.02, FAILS),
        (Bound("within", 0.01), -0.03, 0.03, UNDECIDED),
        (Bound("above"), 1e-17, 2e-17, UNDECIDED),  # rounding
        (Bound("below"), 1e-17, 2e-17, UNDECIDED),
        (Bound("above"), -math.inf, math.inf, UNDECIDED),
        (Bound("above"), math.nan, math.nan, UNDECIDED),
    ],
)
def test_ends_of_an_interval_decide(bound, low, high, verdict):
    assert bound.verdict(low, high) == verdict


@pytest.mark.parametrize(
    ("verdicts", "whole"),
    [
        ([HOLDS, HOLDS], HOLDS),
        ([HOLDS, UNDECIDED], UNDECIDED),
        ([HOLDS, FAILS, UNDECIDED, UNTESTABLE], FAILS),
        ([UNDECIDED, UNTESTABLE], UNTESTABLE),
    ],
)
def test_of_several_statements_the_worst_decides(verdicts, whole):
    assert verdict_on_all(verdicts) == verdict_on_all(reversed(verdicts)) == whole


def test_a_claim_says_what_it_rests_on():
    parts = [(Bound("above"), estimate((0.1, 0.3), (0.2, 0.8))), (Bound("below", 0.5), estimate((0.0, 0.1)))]
    claim = judged_claim("it is so", parts, "numbers", "20 models")
    said = ("it is so", HOLDS, "numbers", "20 models", "above 0, below 0.5", pytest.approx(0.3))
    assert astuple(claim) == said


def test_the_table_and_the_counts_have_all_verdicts():
    ends = [(0.1, 0.2), (-0.2, -0.1), (-0.1, 0.2)]
    claims = [judged_claim(str(end), [(Bound("above"), estimate(end))], "", "3 sites") for end in ends]
    claims.append(untestable_claim("none", "why"))
    assert [exact_claim("", so, "16 of 16", "16 rows").verdict for so in (True, False)] == [HOLDS, FAILS]
    table = claims_table(claims)
    assert list(table) == ["claim", "verdict", "numbers", "units", "tolerance", "smallest_effect"]
    assert list(table["verdict"]) == list(VERDICTS)
    assert table["smallest_effect"].tolist()[:3] == pytest.approx([0.05, 0.05, 0.15])
    assert math.isnan(table["smallest_effect"][3])
    names = ["claims_that_hold", "claims_that_do_not_hold", "claims_undecided", "claims_not_testable"]
    assert counts_of(claims) == {"claims": 4.0, **dict.fromkeys(names, 1.0)}
    open_ended = judged_claim("", [(Bound("above"), estimate((-math.inf, math.inf)))], "", "")
    assert (open_ended.verdict, open_ended.smallest_effect) == (UNDECIDED, None)
    assert math.isnan(claims_table([exact_claim("", True, "", "")])["smallest_effect"][0])


def test_intervals_for_several_numbers_are_wider():
    assert bonferroni_level(1) == pytest.approx(0.95)
    assert bonferroni_level(5) == pytest.approx(0.99)
    assert bonferroni_note(1) == ""
    assert "all 5 together" in bonferroni_note(5)


def planted(store, name, verdicts, scale="mini", key="a", **config):
    ends = {HOLDS: (0.1, 0.2), FAILS: (-0.2, -0.1), UNDECIDED: (-0.1, 0.2)}
    claims = [
        judged_claim(f"{name} {verdict}", [(Bound("above"), estimate(ends[verdict]))], "+1 [0, 2]", "6 models")
        if verdict in ends
        else untestable_claim("no", "why")
        for verdict in verdicts
    ]
    tables = {"table": pd.DataFrame({"a": [1]}), "claims": claims_table(claims)}
    finish(store, name.replace("/", "-"), key, tables, config={"experiment": name, "scale": scale, **config})


@pytest.fixture
def overview(tmp_path, capsys):
    """The lines of the page that is made of a store."""

    def made():
        script("contrib/make_results").main(str(tmp_path))
        return capsys.readouterr().out.splitlines()

    return made


def test_the_overview_has_all_claims_of_both_papers(overview, tmp_path):
    assert "No experiment is finished." in "".join(overview())
    planted(tmp_path, "brown2023/figure1", [HOLDS, UNDECIDED, UNTESTABLE])
    planted(tmp_path, "salle2024/figure3", [FAILS, HOLDS, HOLDS])
    lines = overview()
    counts = [line for line in lines if line.startswith(("| brown2023 ", "| salle2024 "))]
    assert counts == ["| brown2023 | mini | 1 | 0 | 1 | 1 |", "| salle2024 | mini | 2 | 1 | 0 | 0 |"]
    assert "| brown2023/figure1 holds | holds: +1 [0, 2] |" in lines
    assert "| no | not testable here: why |" in lines
    place = lines.index("## salle2024/figure3")
    assert lines[place + 1] == "- `python analyze.py experiment=salle2024/figure3 scale=mini`"


def test_only_the_newest_result_of_an_experiment_is_told(overview, tmp_path):
    planted(tmp_path, "brown2023/figure1", [HOLDS], key="old")
    planted(tmp_path, "brown2023/figure1", [FAILS], key="new")
    assert "| brown2023 | mini | 0 | 1 | 0 | 0 |" in overview()
    planted(tmp_path, "brown2023/figure1", [UNDECIDED], key="paper", recipe="paper")
    lines = overview()
    assert "| brown2023 | mini | 0 | 1 | 1 | 0 |" in lines, "another recipe is another command"
    assert any("`python analyze.py experiment=brown2023/figure1 scale=mini recipe=paper`" in line for line in lines)


def test_an_experiment_made_in_several_ways_has_a_column_for_each(overview, tmp_path):
    name, levels = "salle2024/figure3", {"measure": {"difference": "levels"}, "stimuli": {"kind": "crossed"}}
    planted(tmp_path, name, [HOLDS, UNTESTABLE], key="own")
    planted(tmp_path, name, [UNTESTABLE], key="other", **levels)
    planted(tmp_path, "brown2023/figure1", [HOLDS], population={"name": "planted"}, measure=None)
    lines = overview()
    assert "| claim | verdict (1) | verdict (2) |" in lines
    assert f"| {name} holds | holds: +1 [0, 2] |  |" in lines
    assert "| no | not testable here: why | not testable here: why |" in lines
    assert f"- `python analyze.py experiment={name} scale=mini stimuli=crossed measure.difference=levels` (2)" in lines
    assert "| brown2023/figure1 holds | holds: +1 [0, 2] |" in lines


@pytest.mark.parametrize(
    ("numbers", "shown"),
    [
        ("+1 [0, 2], p = 0.01; intervals hold for all 3 together", "holds: +1 [0, 2], p = 0.01"),
        ("by layer: " + ", ".join(["+1 [0, 2]"] * 9), "holds: ±0.5"),
    ],
)
def test_a_claim_on_many_numbers_shows_its_smallest_effect(numbers, shown):
    assert script("contrib/make_results").cell(Claim("a", HOLDS, numbers, "6 models", "above 0", 0.5)) == shown
