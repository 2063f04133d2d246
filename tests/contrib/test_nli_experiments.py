"""Figures 2, 7 and 8 of Brown et al. 2023: claims where they are planted, classifiers that are made and fetched."""

import numpy as np
import pandas as pd
import pytest
import torch

import hub
from classifiers import THREE, loaded, of_the_hub, relabelled, write_base, write_sibling
from conftest import composed, results_in
from stores import finish
from thinkalike.contrib import papers
from thinkalike.contrib.papers import experiment as frame
from thinkalike.contrib.papers.brown2023_population import Population, null_flips_less
from thinkalike.contrib.papers.claims import VERDICTS, claims_table
from thinkalike.contrib.papers.experiment import Case
from thinkalike.contrib.populations.pairs import nli_challenge, nli_training
from thinkalike.instruments import run_job
from thinkalike.store import Result

BLOCKS, EACH, TEXTS = 6, 6, 1000
GROUPS = ["generalizing"] * EACH + ["heuristic"] * EACH


def planted(
    folder, *, early=0.0, within=0.0, between=0.3, cka=0.5, gap=0.5, noise=0.003, groups=GROUPS, blocks=BLOCKS
) -> Result:
    """A finished job where stitches lose these shares of the texts, in late cuts; `early` in all.

    Args:
        cka: of late blocks of two groups; it is 0.95 of all others.
        gap: by how much the second group is worse on its own.
        groups: where penalties and CKA part; the stated groups are always the first and last half.
    """
    m = len(GROUPS)
    same = np.array([[a == b for b in groups] for a in groups])
    lost = np.full((m, m, blocks + 1), early)
    lost[..., blocks // 2 + 1 :] = np.where(same, within, between)[..., None]
    lost[range(m), range(m)] = 0
    own = np.array([1 if group == "generalizing" else 1 - gap for group in GROUPS])
    places = (np.arange(TEXTS) + 0.5) / TEXTS
    correct = places < (own[None, :, None] * (1 - lost))[..., None]
    likeness = np.full((m, m, blocks), 0.95)
    likeness[..., blocks // 2 :] = np.where(same, 0.95, cka)[..., None]
    scatter = np.random.default_rng(1).normal(0, noise, likeness.shape)
    likeness += scatter + scatter.transpose(1, 0, 2)
    likeness[range(m), range(m)] = 1
    names = [f"x-{number}" for number in range(m)]
    rows = [(names[a], names[b], GROUPS[a], GROUPS[b], cut, correct[a, b, cut + 1].mean())
            for a in range(m) for b in range(m) for cut in range(-1, blocks)]  # fmt: skip
    columns = ["source", "target", "group_of_source", "group_of_target", "cut", "accuracy"]
    predicted = (~correct).astype(np.int8)  # every label is 0
    arrays = {"correct": correct, "predicted": predicted, "losses": lost, "cka": likeness}
    return finish(folder, "population", "planted", {"table": pd.DataFrame(rows, columns=columns)}, arrays=arrays)


@pytest.fixture
def verdicts(tmp_path):
    """The claims of an experiment on a planted job of two groups and no null."""

    def run(figure, *words, **changes):
        own = (f"experiment=brown2023/{figure}", "scale=mini", "population=natural", *words)
        case = Case(
            composed(*own, entry="analyze"), [], dict.fromkeys(("report", "challenge"), planted(tmp_path, **changes))
        )
        return claims_table(papers.experiment_named(f"brown2023/{figure}").conclude(case).claims).set_index("claim")

    return run


@pytest.mark.drawn
def test_an_experiment_is_drawn_from_a_job_that_is_finished(monkeypatch, tmp_path):
    finished = planted(tmp_path)
    monkeypatch.setattr(frame, "run_jobs", lambda jobs, shown: [finished] * len(jobs))
    words = ("experiment=brown2023/figure2", "scale=mini", "population=natural", f"store={tmp_path}/r")
    result = run_job(composed(*words, entry="analyze"))
    assert any(path.suffix == ".png" for path in result.figures)
    assert set(result.tables["claims"]["verdict"]) == {"holds"}


EARLY, CHEAP = "stitches at early cuts", "late stitches within a group"
LATE, FLIP = (f"late stitches between the groups {what}" for what in ("cost more", "flip more"))
PART, STITCHED, DISTANT = "CKA tells the groups apart", "clusters from flipped", "clusters from CKA"
GAP, NEARER = "the two groups differ", "models of one group are nearer"
OF = {
    "figure2": (EARLY, LATE, FLIP, CHEAP, PART, STITCHED, DISTANT),
    "figure7": (GAP, EARLY, LATE, FLIP, CHEAP),
    "figure8": (NEARER, STITCHED, DISTANT),
}
MIXED = ["generalizing", "heuristic"] * EACH
FAILS, UNDECIDED = "does not hold", "undecided"
CASES = [
    ("figure2", {}, {}),
    ("figure7", {}, {}),
    ("figure2", {"early": 0.1}, {EARLY: FAILS}),
    ("figure2", {"early": 0.025}, {EARLY: UNDECIDED}),
    ("figure2", {"within": 0.3}, {LATE: UNDECIDED, FLIP: UNDECIDED, CHEAP: FAILS, STITCHED: FAILS}),
    ("figure7", {"within": 0.1}, {CHEAP: FAILS}),
    ("figure2", {"cka": 0.95}, {PART: UNDECIDED, DISTANT: FAILS}),
    ("figure2", {"cka": 0.99}, {PART: FAILS, DISTANT: FAILS}),
    ("figure7", {"gap": 0.05}, {GAP: FAILS}),
    ("figure7", {"gap": 0.1}, {GAP: UNDECIDED}),
    ("figure8", {"cka": 0.95}, {NEARER: UNDECIDED, DISTANT: FAILS}),
    ("figure8", {"groups": MIXED}, {NEARER: FAILS, STITCHED: FAILS, DISTANT: FAILS}),
    ("figure2", {"groups": MIXED}, dict.fromkeys((LATE, FLIP, CHEAP, PART, STITCHED, DISTANT), FAILS)),
]


@pytest.mark.parametrize(("figure", "changes", "failing"), CASES)
def test_a_claim_holds_where_it_was_planted_and_only_there(figure, changes, failing, verdicts):
    claims = verdicts(figure, **changes)["verdict"]
    found = {begin: verdict for begin in OF[figure] for claim, verdict in claims.items() if claim.startswith(begin)}
    assert found == dict.fromkeys(OF[figure], "holds") | failing
    assert len(claims) == len(found)


def numbers(claims, begin):
    return next(text for claim, text in claims["numbers"].items() if claim.startswith(begin))


X = [  # members that are called x-0 to x-11, of two groups
    *("population.members=x", "population.base=null", "population.size=null"),
    *("population.generalizing=[0,1,2,3,4,5]", "population.heuristic=[6,7,8,9,10,11]"),
]


def test_the_numbers_are_those_that_were_planted(verdicts):
    claims = verdicts("figure2", *X, "population.cluster=[6,7,8,9,10,11]", noise=0)
    late = numbers(claims, LATE)  # 0.3 of 1 and of 0.5
    assert "generalizing into heuristic 4: +0.150 [" in late
    assert "heuristic into generalizing 4: +0.300 [" in late
    assert "the first cut that shows a difference is 3, one of more than 0.02 3, and the step is at 3 (3 to 3)" in late
    assert numbers(claims, PART).endswith(
        "the first layer that shows a difference is 3, one of more than 0.02 3, and the step is at 3 (3 to 3)"
    )
    assert "5: +0.450 [" in numbers(claims, PART)
    for begin in (STITCHED, DISTANT):
        assert numbers(claims, begin).endswith("the published cluster 1.00 [1.00, 1.00], p = 0.0022")
    of_models = "12 models in groups of 6 and 6"
    assert set(claims["units"]) == {of_models, f"{of_models}, {TEXTS} pairs of texts"}
    assert numbers(claims, EARLY).endswith("intervals hold for all 16 together (Bonferroni)")
    assert claims["smallest_effect"].ge(0).all()


def test_a_published_cluster_of_other_models_does_not_agree(verdicts):
    claims = verdicts("figure8", *X, "population.cluster=[0,2,4,6,8,10]")
    assert numbers(claims, DISTANT).endswith("the published cluster -0.10 [-0.10, -0.10], p = 1.0000")


def test_distances_are_those_of_equation_2(tmp_path):
    config = composed("experiment=brown2023/figure8", "scale=mini", entry="analyze").population
    found = Population(planted(tmp_path, noise=0), config).distances
    assert found[0, 1].item() == pytest.approx((BLOCKS * np.arccos(0.95) ** 2) ** 0.5)
    assert found[0, -1].item() == pytest.approx((3 * np.arccos(0.95) ** 2 + 3 * np.arccos(0.5) ** 2) ** 0.5)
    assert (found.diagonal() == 0).all()


def of_parents(folder, null, strategy, each) -> Population:
    """The population of a finished job whose stitches flip these shares of the texts between H and H2, and G and H."""
    groups = [group for group in ("G", "H", "H2") for _ in range(each)]
    places = (np.arange(TEXTS) + 0.5) / TEXTS
    share = {frozenset((group,)): 0.01 for group in groups} | {frozenset(("H", "H2")): null}
    flipped = np.array([[places < share.get(frozenset((a, b)), strategy) for b in groups] for a in groups])
    flipped[range(len(groups)), range(len(groups))] = False
    predicted = np.repeat(flipped[:, :, None], BLOCKS + 1, 2).astype(np.int8)
    known = [(f"x-{number}", group) for number, group in enumerate(groups)]
    rows = [(a, b, own, other) for a, own in known for b, other in known]
    table = pd.DataFrame(rows, columns=["source", "target", "group_of_source", "group_of_target"])
    arrays = {"correct": predicted == 0, "predicted": predicted}
    result = finish(folder, "population", "parents", {"table": table}, arrays=arrays)
    return Population(result, composed("measure=population", "population=planted", entry="analyze").population)


@pytest.mark.parametrize(
    ("null", "strategy", "each", "verdict"),
    [(0.05, 0.3, 4, "holds"), (0.15, 0.3, 4, "does not hold"), (0.05, 0.3, 2, "not testable here")],
)
def test_the_null_flips_less_than_a_third_where_that_was_planted(null, strategy, each, verdict, tmp_path):
    claim = null_flips_less(of_parents(tmp_path, null, strategy, each))
    assert claim.verdict == verdict
    if each > 2:
        assert f"{null - strategy / 3:+.3f}" in claim.numbers


@pytest.fixture(scope="module")
def published(tmp_path_factory):
    """Four classifiers, MNLI and HANS under the names and in the formats of the paper's."""
    root = tmp_path_factory.mktemp("hub")
    base = write_base(tmp_path_factory.mktemp("base"), THREE)
    for number in range(4):
        folder = write_sibling(root / f"connectivity/feather_berts_{number}", base, number)
        torch.save(loaded(folder).state_dict(), folder / "pytorch_model.bin")
        (folder / "model.safetensors").unlink()
    training = nli_training(90)
    for path, pairs in {
        "nyu-mll/multi_nli/data/train-00000-of-00001.parquet": training.take(range(60, 90)),
        "nyu-mll/multi_nli/data/validation_matched-00000-of-00001.parquet": training.take(range(60)),
        "jhu-cogsci/hans/plain_text/validation/0000.parquet": nli_challenge(120),
    }.items():
        right = relabelled(pairs, loaded(base)) if len(pairs.classes) == 3 else pairs
        columns = [right.premises, right.hypotheses, [right.classes[label] for label in right.labels.tolist()]]
        columns += [right.heuristics, right.subcases] if len(pairs.classes) == 2 else []
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        of_the_hub(list(zip(*columns, strict=True))).to_parquet(root / path)
    return root


@pytest.mark.slow
@pytest.mark.drawn
def test_experiments_run_at_paper_scale_against_a_hub(published, cli, tmp_path):
    words = ["experiment=brown2023/figure2,brown2023/figure7,brown2023/figure8", "population=feather-berts"]
    words += ["population.generalizing=[0,1]", "population.heuristic=[2,3]", "population.cluster=[2]"]
    words += ["measure=population", "measure.tokens_per_batch=256"]  # named: a sweep reads settings without experiments
    with hub.serve(published) as (endpoint, asked):
        done = cli("analyze.py", "-m", *words, endpoint=endpoint)
    assert done.status == 0, done.stderr
    for figure in (2, 7, 8):
        (result,) = results_in(tmp_path / "results", f"brown2023-figure{figure}")
        claims = result.tables["claims"]
        assert set(claims["verdict"]) <= set(VERDICTS)
        assert any(path.suffix == ".png" for path in result.figures)
        assert (figure != 7) == any("the published cluster" in text for text in claims["numbers"])
    models = [list(dict.fromkeys(each.table["source"])) for each in results_in(tmp_path / "results", "population")]
    assert models == [[f"feather-bert-{n}" for n in range(4)]] * 2
    assert any("feather_berts_3" in path and path.endswith("pytorch_model.bin") for path in asked)
