"""Experiments of papers: their models and jobs, and the check of their claims."""

import itertools
import zlib
from importlib import import_module

import numpy as np
import pandas as pd
import pytest
from hydra.core.global_hydra import GlobalHydra

from conftest import composed
from thinkalike import Result
from thinkalike.config import compose_job, options
from thinkalike.contrib.papers import PAPERS, brown2023_stitching, experiment_named
from thinkalike.contrib.papers.brown2023_stitching import Direction
from thinkalike.contrib.papers.experiment import Case, job_of
from thinkalike.contrib.populations.population import as_chosen
from thinkalike.errors import StoreError, ThinkalikeError
from thinkalike.instruments import run_job


def stitched(folder, source, target, penalties, tokens=None):
    """A finished stitching job with these penalties in nats per token, alike in all of 40 documents but for noise."""
    place = folder / f"{source}-{target}"
    place.mkdir()
    tokens = np.full(40, 1000.0) if tokens is None else tokens
    noise = np.random.default_rng(zlib.crc32(place.name.encode())).normal(0, 0.01, (len(penalties), 40))
    own = np.full(40, 3.0) * tokens
    stitch = own + (np.array(penalties)[:, None] + noise) * tokens
    np.savez(place / "arrays.npz", stitch=stitch, target=own, tokens=tokens)
    layers = range(len(penalties))
    columns = {"source": source, "target": target, "source_layer": layers, "target_layer": layers}
    pd.DataFrame({**columns, "penalty": penalties}).to_csv(place / "table.csv", index=False)
    return Result(place)


def case(results):
    config = composed("experiment=brown2023/figure1", entry="analyze")
    return Case(config, [], {f"{source} → {target}": result for (source, target), result in results.items()})


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
        known = [Direction("g", ends, source, target) for ends, source, target, _ in directions]
        monkeypatch.setitem(brown2023_stitching.DIRECTIONS, "paper", known)
        return brown2023_stitching._claims(case(made), "g")

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
    assert {claim.units for claim in found} == {"40 documents (as 40.0 of equal length)"}
    assert all(0 < claim.smallest_effect < 0.02 for claim in found)
    assert verdict != "holds" or "+0.200 [" in found[0].numbers


def test_a_self_stitch_says_nothing_about_the_activation(claims):
    found = claims([0.4, 0.3], [0.2, 0.1], [0.0, 0.0], [0.05, 0.04], seeds=False)
    assert [claim.verdict for claim in found] == ["holds", "not testable here", "holds"]


@pytest.mark.parametrize(("scale", "testable"), [("paper", set()), ("mini", {"3 layers, other seed"})])
def test_only_independent_seeds_test_the_same_activation(scale, testable):
    same = [each for each in brown2023_stitching.DIRECTIONS[scale] if len(set(each.activations)) == 1]
    assert {each.group for each in same if each.source != each.target} == testable


def test_stitches_that_learn_and_that_do_not():
    noise = np.random.default_rng(0).normal(0, 0.01, (60, 2))
    falling, level = np.linspace(3, 2, 60)[:, None] + noise, 3 + noise
    rising = np.stack([falling[:, 0], level[:, 0] + np.linspace(0, 1, 60)], 1)
    forth, back = Direction("g", ("solu", "gelu"), "a", "b"), Direction("g", ("gelu", "solu"), "b", "a")
    verdicts = [brown2023_stitching._learn({forth: curve}).verdict for curve in (falling, level, rising)]
    assert verdicts == ["holds", "undecided", "does not hold"]
    claim = brown2023_stitching._learn({forth: falling, back: falling})
    assert "all 4 together (Bonferroni)" in claim.numbers
    assert claim.units == "10 first and 30 last steps"


def test_directions_on_other_documents_are_not_judged_together(tmp_path):
    tokens = np.full(40, 900.0)
    ends = [("a", "b"), ("b", "a"), ("c", "d"), ("d", "c")]
    made = {each: stitched(tmp_path, *each, [0.1], tokens if "c" in each else None) for each in ends}
    a, b, c, d = (Direction("g", ("solu", "gelu"), *each) for each in ends)
    for pairs in ([(a, c)], [(a, b), (c, d)]):
        with pytest.raises(StoreError, match="report on different documents"):
            brown2023_stitching._greater(case(made), "", pairs)


@pytest.mark.slow
@pytest.mark.ci_slow
@pytest.mark.parametrize("name", options("experiment"))
@pytest.mark.parametrize("scale", ["paper", "mini"])
def test_every_experiments_jobs_compose(name, scale):
    figure, config = experiment_named(name), composed(f"experiment={name}", f"scale={scale}", entry="analyze")
    assert (figure.name, figure.kind, config.experiment) == (name, name.replace("/", "-"), name)
    jobs = [job_of(config, part) for part in figure.parts(figure.case(config))]
    assert all(job.store == config.store for job in jobs)
    if figure.measure == "mlem" and jobs:
        assert {job.stimuli.sample for job in jobs} == {1500}


def test_every_experiment_has_a_configuration():
    modules = [import_module(f"thinkalike.contrib.papers.{module}") for each in PAPERS.values() for module in each]
    assert sorted(each.name for module in modules for each in module.EXPERIMENTS) == options("experiment")


@pytest.mark.parametrize(
    ("words", "names"),
    [
        (["experiment=salle2024/figure3", "model=gpt2-mini"], ["gpt2-mini"]),
        (["experiment=salle2024/figure2", "model=gpt2-mini", "model@target=mamba-mini"], ["gpt2-mini", "mamba-mini"]),
    ],
)
def test_models_of_the_command_line_replace_an_experiments_own(words, names):
    config = composed(*words, "scale=mini", entry="analyze")
    assert [model.name for model in experiment_named(config.experiment).case(config).models] == names


def test_a_setting_of_a_model_reaches_the_jobs(checkpoints):
    words = ["model=local", f"model.path={checkpoints['gpt2']}", "model@target=mamba-mini", "target.dtype=float64"]
    config = composed("experiment=salle2024/figure2", *words, "scale=mini", entry="analyze")
    figure = experiment_named("salle2024/figure2")
    jobs = [job_of(config, part) for part in figure.parts(figure.case(config))]
    assert [job.model.path for job in jobs] == [str(checkpoints["gpt2"]), None, str(checkpoints["gpt2"])]
    assert [job.target.dtype for job in jobs] == ["float32", "float64", "float64"]


@pytest.mark.parametrize("name", ["brown2023/figure2", pytest.param("brown2023/figure1", marks=pytest.mark.slow)])
def test_dtype_and_device_reach_all_models_of_an_experiment(name):
    figure, words = experiment_named(name), [f"experiment={name}", "scale=mini"]
    configs = [composed(*words, *more, entry="analyze") for more in ((), ("model.dtype=float64", "model.device=cpu"))]
    plain, jobs = ([job_of(each, part) for part in figure.parts(figure.case(each))] for each in configs)
    assert [(job.model.dtype, job.target.dtype) for job in jobs] == [("float64", "float64")] * len(plain)
    assert [(job.model.name, job.target.name) for job in jobs] == [(job.model.name, job.target.name) for job in plain]
    if name == "brown2023/figure2":
        member = as_chosen(composed("model=bert-mini").model, jobs[0])
        assert (member.name, member.dtype) == ("bert-mini", "float64")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["experiment=brown2023/figure1", "model=gpt2"], "brown2023/figure1"),
        (["experiment=brown2023/figure3", "model.path=somewhere"], "takes no others"),
        (["experiment=brown2023/figure10", "model=gelu-3l-mini"], "model@target="),
        (["experiment=salle2024/figure2", "model=gpt2"], "it takes 2"),
        (["experiment=salle2024/figure2", "model=gpt2-mini", "model@target=gpt2-mini"], "gpt2-mini"),
        (["experiment=salle2024/figure3", "measure.given=Nmber"], "did you mean 'Number'"),
        (["experiment=brown2023/figure1", "measure=cka"], "measure="),
        (["experiment=brown2023/figure9", "measure=rsa"], "is about measure=cka"),
        (["experiment=brown2023/figure77"], "did you mean 'brown2023/figure"),
    ],
)
def test_what_an_experiment_cannot_take_is_refused(words, message):
    with pytest.raises(ThinkalikeError, match=message):
        run_job(composed(*words, "scale=mini", entry="analyze"))


def test_a_job_composed_inside_a_job_leaves_hydra_as_it_was():
    before = GlobalHydra.instance().hydra
    assert compose_job("train", ["model=gpt2"]).model.hub_id == "openai-community/gpt2"
    assert GlobalHydra.instance().hydra is before
