"""The experiments on Brown et al. 2023: jobs, claims where they are planted, and classifiers that are fetched."""

import re

import numpy as np
import pandas as pd
import pytest
import torch
from classifiers import THREE, loaded, of_the_hub, relabelled, write_base, write_sibling

import hub
import tiny
from conftest import composed, results_in
from stores import finish
from thinkalike.config import ModelConfig
from thinkalike.contrib import papers
from thinkalike.contrib.papers import brown2023_cka as experiments
from thinkalike.contrib.papers import experiment as frame
from thinkalike.contrib.papers.brown2023_population import claim_that_null_flips_fewer_predictions
from thinkalike.contrib.papers.claims import VERDICTS, claims_table
from thinkalike.contrib.papers.experiment import ExperimentRun
from thinkalike.contrib.papers.population_result import PopulationResult
from thinkalike.contrib.populations.pair_templates import nli_challenge, nli_training
from thinkalike.instruments import run_job
from thinkalike.store import Result


@pytest.fixture
def small(text_files, tmp_path):
    """The words of a small experiment."""
    data = [
        "data=text",
        f"data.files=[{text_files}/*.txt]",
        "data.evaluation_share=0.5",
        f"data.cache={tmp_path}/cache",
    ]
    return ["measure.batches=20", "measure.tokens_per_batch=128", *data, f"store={tmp_path}/results"]


def planted(folder, cells, noise=0.01) -> Result:
    """A finished job whose CKA cells (l, m) have this noise, and scatter without each part of the documents."""
    cells = torch.as_tensor(cells, dtype=torch.float64)
    scatter = torch.randn(10, *cells.shape, generator=torch.Generator().manual_seed(1)).double()
    without = cells + noise / 20**0.5 * scatter / 3
    arrays = {"value": cells.numpy(), "without": without.numpy()}
    return finish(folder, "cka", f"{len(results_in(folder))}", {}, arrays=arrays)


def case(folder, **cells) -> ExperimentRun:
    """An experiment whose jobs are planted; a pair of models is called by the names of both."""
    jobs = {f"{pair[0]}, {pair[1]}": planted(folder, values) for pair, values in cells.items()}
    return ExperimentRun(composed("experiment=brown2023/figure9", entry="analyze"), {}, jobs)


def test_a_statistic_is_that_of_the_cells_with_an_interval(tmp_path):
    cells = torch.rand(4, 4, dtype=torch.float64)
    found = experiments.jackknifed(lambda parts: parts[0].mean((-2, -1)), [planted(tmp_path, cells)])
    assert found.low < cells.mean() < found.high
    assert found.high - found.low < 0.02


def test_blocks_that_are_planted_are_found(tmp_path):
    block = torch.tensor([0, 1, 1, 1, 1, 1, 1, 2])
    cells = torch.where(block[:, None] == block, 0.9, 0.3)
    assert float(experiments.block_structure(cells)) == pytest.approx(0.6)
    both = case(tmp_path, aa=cells, bb=torch.full((8, 8), 0.5))
    assert experiments._claim_that_layers_form_blocks(both, "a").verdict == "holds"
    assert experiments._claim_that_layers_form_blocks(both, "b").verdict == "undecided"
    reversed_ = case(tmp_path, cc=torch.where(block[:, None] == block, 0.3, 0.9))
    assert experiments._claim_that_layers_form_blocks(reversed_, "c").verdict == "does not hold"


def test_an_odd_one_out_that_is_planted_is_found(tmp_path):
    high, low = torch.full((4, 6), 0.8), torch.full((4, 6), 0.8)
    low[1:3, 1:5] = 0.5
    both, alike, odd = case(tmp_path, ab=high, cb=low), [("a", "b")], [("c", "b")]
    claim = experiments._claim_that_model_is_odd("", both, alike, odd)
    assert (claim.verdict, claim.units, claim.tolerance) == ("holds", "10 parts of the documents", "above 0")
    assert 0 < claim.smallest_effect < 0.05
    assert "+0.3" in claim.numbers
    assert re.search(r"minus that of \(c, b\): \+0\.\d{4} \[\+0\.\d{4}, \+0\.\d{4}\]$", claim.numbers)
    assert experiments._claim_that_model_is_odd("", both, odd, alike).verdict == "does not hold"


def test_early_layers_that_are_alike_are_found(tmp_path):
    cells = torch.full((4, 4), 0.5)
    assert experiments._claim_that_early_layers_are_alike(case(tmp_path, ab=cells), [("a", "b")]).verdict == "undecided"
    cells[0, 0] = 0.9
    assert experiments._claim_that_early_layers_are_alike(case(tmp_path, cd=cells), [("c", "d")]).verdict == "holds"


TILTED = torch.full((4, 4), 0.5) + 0.1 * (torch.ones(4, 4).triu(1) - torch.ones(4, 4).tril(-1))


@pytest.mark.parametrize(
    ("cells", "noise", "verdict"),
    [
        (torch.full((4, 4), 0.5), 0.001, "holds"),
        (TILTED, 0.001, "does not hold"),
        (torch.full((4, 4), 0.5), 0.1, "undecided"),
    ],
)
def test_a_direction_of_cka_is_judged_by_its_interval(cells, noise, verdict, tmp_path):
    result = planted(tmp_path, cells, noise)
    models = {name: ModelConfig(name=name) for name in "ab"}
    config = composed("experiment=brown2023/figure4", entry="analyze")
    claim = experiments._claim_that_cka_is_symmetric(ExperimentRun(config, models, {"a, b": result}))
    assert claim.verdict == verdict
    assert claim.tolerance == "within 0.01 of 0"


def test_similarity_that_grows_is_judged_by_all_steps_together(tmp_path):
    def likeness(value):
        return torch.eye(4) + value * (1 - torch.eye(4))

    def verdict(folder, *values):
        names = "xyz"[: len(values)]
        cells = zip(names, values, strict=True)
        made = {f"{name}, {name}": planted(tmp_path / folder, likeness(value)) for name, value in cells}
        models = {name: ModelConfig(name=name) for name in names}
        return experiments._claim_that_similarity_grows(
            ExperimentRun(composed("experiment=brown2023/figure10", entry="analyze"), models, made)
        )

    growing = verdict("a", 0.3, 0.5, 0.7)
    assert growing.verdict == "holds"
    assert "all 2 together (Bonferroni)" in growing.numbers
    assert verdict("b", 0.3, 0.5, 0.4).verdict == "does not hold"
    assert verdict("c", 0.3, 0.5, 0.5).verdict == "undecided"


def test_statistics_of_cells_are_what_their_names_say():
    cells = torch.rand(4, 4, dtype=torch.float64)
    assert float(experiments.one_sidedness(cells + cells.T)) == pytest.approx(0)
    assert float(experiments.one_sidedness(cells)) == pytest.approx(-float(experiments.one_sidedness(cells.T)))
    assert float(experiments.one_sidedness(torch.ones(4, 4).triu(1))) == 1
    assert float(experiments.mean_of_different_layers(torch.eye(5))) == 0
    assert float(experiments.mean_of_different_layers(1 - torch.eye(5))) == 1


@pytest.fixture(scope="module")
def repositories(tmp_path_factory):
    """Tiny models under the names and in the formats of the paper's, with widths of their own."""
    root = tmp_path_factory.mktemp("hub")
    for number, size in enumerate(("70m", "160m", "410m", "1b", "1.4b", "2.8b", "6.9b", "12b")):
        width = 32 if number % 2 else 48
        tiny.write_checkpoint("gpt_neox", root / f"EleutherAI/pythia-{size}-deduped", hidden_size=width, seed=number)
    tiny.tokenizer().save_pretrained(root / "NeelNanda" / "tokenizer")
    for number, (name, activation) in enumerate((("SoLU", "solu_ln"), ("GELU", "gelu"))):
        for depth in (3, 4):
            folder = root / f"NeelNanda/{name}_{depth}L512W_C4_Code"
            tiny.write_legacy(folder, "NeelNanda/tokenizer", seed=number, n_layers=depth, act_fn=activation)
    return root


CELLS = {"figure9": 6 * 16, "figure4": 3 * 9, "figure5": 3 * 16, "figure3": 7 * 16, "figure10": 4 * 16}  # of all jobs


@pytest.mark.slow
@pytest.mark.parametrize("figure", CELLS)
@pytest.mark.drawn
def test_an_experiment_runs_at_paper_scale_against_a_hub(figure, repositories, cli, small):
    with hub.serve(repositories) as (endpoint, asked):
        result = cli("analyze.py", f"experiment=brown2023/{figure}", *small, endpoint=endpoint).result
    assert any(path.endswith((".safetensors", ".pth")) for path in asked)
    assert len(result.table) == CELLS[figure]
    assert set(result.tables["claims"]["verdict"]) <= set(VERDICTS)
    assert (result.folder / "figures" / "cka.png").exists()


@pytest.mark.ci_slow
def test_table_1_at_paper_scale_against_a_hub(repositories, cli):
    with hub.serve(repositories) as (endpoint, asked):
        table = cli("analyze.py", "experiment=brown2023/table1", endpoint=endpoint).result.table.set_index("model")
    assert len(table) == 8
    assert table.loc["pythia-1b-deduped", "d_head"] == 32 // 4
    assert not any(path.endswith(".safetensors") for path in asked)


BLOCKS, EACH, TEXTS = 6, 6, 1000
GROUPS = ["generalizing"] * EACH + ["heuristic"] * EACH


def classified(
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
        case = ExperimentRun(
            composed(*own, entry="analyze"), {}, dict.fromkeys(("report", "challenge"), classified(tmp_path, **changes))
        )
        return claims_table(papers.paper_experiment(f"brown2023/{figure}").conclude(case).claims).set_index("claim")

    return run


@pytest.mark.ci_slow
@pytest.mark.drawn
def test_an_experiment_is_drawn_from_a_job_that_is_finished(monkeypatch, tmp_path):
    finished = classified(tmp_path)
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
    assert "the first cut that shows a difference is 3, one of more than 0.02 3; intervals" in late
    assert numbers(claims, PART).endswith("the first layer that shows a difference is 3, one of more than 0.02 3")
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
    found = PopulationResult(classified(tmp_path, noise=0), config).distances
    assert found[0, 1].item() == pytest.approx((BLOCKS * np.arccos(0.95) ** 2) ** 0.5)
    assert found[0, -1].item() == pytest.approx((3 * np.arccos(0.95) ** 2 + 3 * np.arccos(0.5) ** 2) ** 0.5)
    assert (found.diagonal() == 0).all()


def of_parents(folder, null, strategy, each, names=("G", "H", "H2")) -> PopulationResult:
    """The population of a finished job whose stitches flip these shares of the texts between H and H2, and G and H."""
    groups = [group for group in names for _ in range(each)]
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
    return PopulationResult(result, composed("measure=population", "population=planted", entry="analyze").population)


@pytest.mark.parametrize(
    ("null", "strategy", "each", "verdict"),
    [(0.05, 0.3, 4, "holds"), (0.15, 0.3, 4, "does not hold"), (0.05, 0.3, 2, "not testable here")],
)
def test_the_null_flips_less_than_a_third_where_that_was_planted(null, strategy, each, verdict, tmp_path):
    claim = claim_that_null_flips_fewer_predictions(of_parents(tmp_path, null, strategy, each))
    assert claim.verdict == verdict
    if each > 2:
        assert f"{null - strategy / 3:+.3f}" in claim.numbers


def test_the_null_may_be_the_first_two_groups(tmp_path):
    population = of_parents(tmp_path, null=0.05, strategy=0.3, each=4, names=("H", "H2", "G"))
    claim = claim_that_null_flips_fewer_predictions(population)
    assert claim.verdict == "holds"
    assert "minus a third of those between G and H: -0.050" in claim.numbers


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
