"""The court: what judges see, the job that goes on source by source, and what follows from its table."""

import itertools
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.metrics import roc_auc_score

import tiny
from conftest import composed, with_slow
from stores import made
from thinkalike.config import TrainerConfig, compose_job
from thinkalike.contrib.court import job
from thinkalike.contrib.court.catalogue import SOURCES, source_recipes
from thinkalike.contrib.court.evidence import Evidence
from thinkalike.contrib.court.judges import JUDGES, judge_source
from thinkalike.contrib.court.materials import Materials
from thinkalike.contrib.court.ranking import auc, dose_table, margin_above_decoys, summary_of_judges
from thinkalike.contrib.court.target_results import TargetResults
from thinkalike.contrib.court.token_profile import KINDS, features_of_inner_tokens, profile_similarity
from thinkalike.contrib.court.verdict_tables import shares_by_kind, verdict_table
from thinkalike.contrib.court.verdicts import COLUMNS
from thinkalike.contrib.papers import paper_experiment
from thinkalike.contrib.papers.experiment import inner_job_config
from thinkalike.contrib.papers.validity_court import TARGETS
from thinkalike.data.alignment import check_same_tokenizer
from thinkalike.data.rows import TokenRows
from thinkalike.measures import ResidualStates, cka, mutual_knn, rsa
from thinkalike.measures.folds import numbered_by_part
from thinkalike.measures.halved_moments import HalvedMoments
from thinkalike.measures.ridge import both_ways
from thinkalike.models.load import load_model
from thinkalike.states.mixing import BAGS, TokenMixing
from thinkalike.training.run import TrainingRun
from thinkalike.training.trainer import fit

LAYER = 1
SEEN = {judge.name: judge for judge in JUDGES}


@pytest.fixture(scope="module")
def bench(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bench")
    fit_rows, report, other = (
        torch.randint(40, (count, 32), generator=torch.Generator().manual_seed(count)) for count in (60, 20, 40)
    )

    def train(module, data, name):
        fit(module, data, TrainingRun(folder / name, torch.device("cpu"), TrainerConfig()))

    siblings = {"other seed": tiny.frozen(4)}
    documents = (torch.arange(len(report))[:, None] // 2).expand_as(report)
    return TargetResults(Materials(tiny.frozen(0), LAYER, fit_rows, report, documents, other, 0, train, siblings))


@pytest.fixture(scope="module")
def heard(bench):
    table = {entry.name: entry for entry in source_recipes(bench.materials)}
    names = ("rotated", "rescaled and permuted", "affine", "other seed", "token code", "superset")
    return {name: Evidence(table[name].make_source(bench.materials), bench) for name in names}


@pytest.mark.parametrize("name", ["rotated", "rescaled and permuted", "affine"])
def test_what_is_the_same_loses_nothing(name, heard):
    course = heard[name].stitched_run
    assert abs(course.penalty) < 1e-4
    assert course.kl < 1e-5
    assert max(course.distances) < 1e-3
    assert min(heard[name].columns["r2"], heard[name].columns["r2_back"]) > 1 - 1e-3
    assert heard["other seed"].stitched_run.kl > 1e-4, "control"


def test_penalty_kl_and_distances_are_those_of_other_code(bench, heard):
    setting, source = bench.materials, bench.materials.siblings["other seed"]
    x, y = (model.head(setting.fit_rows, LAYER)[:, 1:-1].flatten(0, 1).double() for model in (source, setting.target))
    apart = x - x.mean(0)
    moments = HalvedMoments([(0, 0)])
    moments.update([x], [y], torch.arange(len(x)) * 2 // len(x))
    penalty = moments.penalty((0, 0))
    weight = torch.linalg.solve(apart.T @ apart + penalty * torch.eye(x.shape[1]).double(), apart.T @ (y - y.mean(0)))
    own, states = (model.head(setting.evaluation_rows, LAYER) for model in (setting.target, source))
    mapped = states @ weight.float() + (y.mean(0) - x.mean(0) @ weight).float()
    mapped[:, 0] = own[:, 0]  # the first token keeps the target's own state
    ends = [setting.target.advance(state, LAYER + 1, 4) for state in (mapped, own)]
    logs = [setting.target.finish(end)[:, :-1].log_softmax(-1) for end in ends]
    losses = [-each.gather(-1, setting.evaluation_rows[:, 1:, None]).mean() for each in logs]
    course = heard["other seed"].stitched_run
    assert course.penalty == pytest.approx(float(losses[0] - losses[1]), abs=1e-5)
    assert course.kl == pytest.approx(float((logs[1].exp() * (logs[1] - logs[0])).sum(-1).mean()), rel=1e-3)
    for found, (stitched, goal) in zip((course.distances[0], course.distances[-1]), ((mapped, own), ends), strict=True):
        apart = ((stitched - goal).norm(dim=-1) / goal.norm(dim=-1))[:, :-1].mean()
        assert found == pytest.approx(float(apart), rel=1e-3)
    assert len(course.distances) == 3


def test_residual_r2_is_that_of_the_ruler(bench, heard):
    """A rotation keeps all, maps of a high condition nearly all, and tokens alone nothing."""
    assert heard["rotated"].residual_r2 == pytest.approx(1, abs=1e-3)
    for name in ("rescaled and permuted", "affine"):
        assert 0.95 < heard[name].residual_r2 < 1 + 1e-9
    assert abs(heard["token code"].residual_r2) < 0.02
    rows = bench.materials.evaluation_rows.long()
    inside = slice(1, -1)
    positions = torch.arange(rows.shape[1]).expand_as(rows)[:, inside].flatten()
    bags = [each[:, inside].flatten(0, 1) for each in TokenMixing(bench.materials.target).residuals(rows, [*BAGS])]
    documents = numbered_by_part(bench.materials.evaluation_documents[:, inside].flatten())
    residual = ResidualStates(rows[:, inside].flatten(), documents, [positions], bags)
    other, own = (
        residual.predictor(model.residuals(rows, [LAYER])[0][:, inside].flatten(0, 1))
        for model in (bench.materials.siblings["other seed"], bench.materials.target)
    )
    assert heard["other seed"].residual_r2 == pytest.approx(float(both_ways(other, own)[:, 0].mean()), abs=1e-9)


def test_other_judges_are_the_measures_of_the_same_name(heard):
    evidence = heard["other seed"]
    assert SEEN["CKA"].value(evidence) == pytest.approx(float(cka(*evidence.states)), abs=1e-5)
    (sample,) = evidence.samples
    sides = [side[sample] for side in evidence.states]
    assert SEEN["mutual neighbours"].value(evidence) == pytest.approx(float(mutual_knn(*sides)), abs=1e-6)
    assert SEEN["RSA"].value(evidence) == pytest.approx(float(rsa(*([side] for side in sides))), abs=1e-6)


@pytest.mark.ci_slow
def test_every_judge_says_a_number_and_the_planted_order(heard):
    """Beyond the token there is nothing in a code of it."""
    said = {name: judge_source(heard[name]) for name in ("rotated", "token code")}
    assert set(said["rotated"]) >= {*SEEN, *COLUMNS}
    for name, judge in SEEN.items():
        alike, decoy = said["rotated"][name], said["token code"][name]
        assert np.isfinite([alike, decoy]).all()
        if "penalty" not in name and "token" in judge.against:  # an untrained target loses nothing by other states
            assert (alike > decoy) == judge.higher, name
    assert abs(said["token code"]["residual R²"]) < 0.02 < 0.99 < said["rotated"]["residual R²"]


@pytest.fixture
def words(text_files, minis, tmp_path):
    rows = [
        "model.context=32",
        "measure.fit_tokens=2048",
        "measure.evaluation_tokens=1024",
        "measure.other_tokens=1024",
    ]
    data = [
        "data=text",
        f"data.files=[{text_files}/*.txt]",
        "data.evaluation_share=0.3",
        f"data.cache={tmp_path}/cache",
    ]
    return ["measure=court", *rows, *data, f"model.path={minis}/a", "model.name=a", f"store={tmp_path}/results"]


@pytest.mark.ci_slow
def test_a_court_goes_on_source_by_source(cli, words, monkeypatch):
    judged, heard = [], job.judge_source

    def judge(evidence):
        judged.append(evidence.source.name)
        if len(judged) == 2:
            raise ValueError("broken off")
        return heard(evidence)

    monkeypatch.setattr(job, "judge_source", judge)
    words = [*words, "measure.sources=[rotated,next token]"]
    assert "the source 'next token' of a: broken off" in cli("analyze.py", *words).error
    table = cli("analyze.py", *words).result.details
    assert judged == ["rotated", "next token", "next token"]
    assert table[["source", "kind"]].to_numpy().tolist() == [["rotated", "same"], ["next token", "leak"]]
    assert set(SEEN) <= set(table)
    whole = cli("analyze.py", *words, "force=true").result.details
    pd.testing.assert_frame_equal(whole, table, check_exact=True)
    assert judged[3:] == ["rotated", "next token"]
    assert table["KL"][0] < 1e-4 < table["KL"][1]


@pytest.mark.slow
def test_real_minis_are_told_from_misleading_sources(cli):
    words = ["measure=court", "model=gelu-3l-mini", "measure.siblings={other seed: gelu-3l-mini-s1}"]
    chosen = "measure.sources=[rotated,noise of 30 %,beside a stranger,bag of all,next token,other seed]"
    table = cli("analyze.py", *words, chosen).result.table
    residual = table.set_index("source")["residual R²"]
    assert residual["rotated"] > 0.99 > residual["noise of 30 %"] > 0.6
    assert residual[["bag of all", "next token"]].max() < 0.1 < residual["other seed"] < 0.9
    said = ["same", "similar", "superset of", "no more than local mixing", "leak", "similar"]
    assert verdict_table(table)["verdict"].tolist() == said


WITH_MODELS = ["measure.layer=3", "measure.fit_tokens=10000000"]  # which are loaded first


@pytest.mark.parametrize("word", with_slow([*WITH_MODELS, "measure.siblings=[a]"], *WITH_MODELS))
def test_what_cannot_be_judged_is_refused(word, cli, words):
    assert word.partition("=")[0] in cli("analyze.py", *words, word).error


def test_no_document_is_both_fitted_on_and_learnt_from():
    documents = torch.tensor([[0, 0], [0, 1], [1, 2], [3, 3], [3, 4], [4, 4]])
    tokens = torch.arange(12).view(6, 2)
    mine, other = job._rows_of_different_documents(TokenRows(tokens, documents), 4, 100)
    assert mine.tolist() == [[0, 1], [2, 3]]
    assert other.tolist() == [[6, 7], [8, 9], [10, 11]]
    assert job._spread_rows(TokenRows(tokens, documents), 4).tokens.tolist() == [[0, 1], [6, 7]]


def test_features_of_tokens_are_those_of_their_text_and_place():
    words = {0: " ab", 1: "7", 2: " ", 3: "(", 4: "x1"}
    rows = torch.tensor([[0, 1, 2, 1, 3, 4]])
    found = features_of_inner_tokens(rows, words, torch.tensor([9, 0, 0, 0, 0]))
    expected = [  # length, class, begins a word, log frequency, place, classes of the last two, seen before
        [1, 1, 0, 0, 1, 0, -1, 0],
        [1, 2, 1, 0, 2, 1, 0, 0],
        [1, 1, 0, 0, 3, 2, 1, 1],
        [1, 4, 0, 0, 4, 1, 2, 0],
    ]
    assert found.tolist() == expected


def test_profiles_are_alike_only_where_the_same_features_matter():
    generator = torch.Generator().manual_seed(0)
    levels = torch.randint(4, (120, len(KINDS)), generator=generator)
    columns = torch.nn.functional.one_hot(levels, 4).float()
    scales = torch.tensor([8.0, 7, 6, 5, 4, 3, 2, 1])[:, None]
    first, turned = ((columns * order).flatten(1) for order in (scales, scales.flip(0)))
    rotation = torch.linalg.qr(torch.randn(32, 32, generator=generator))[0]
    assert profile_similarity(levels.float(), first @ rotation, first, 0) > 0.9
    assert profile_similarity(levels.float(), turned, first, 0) < 0


def planted():
    """Two targets with three seeds: CKA tells all apart, KL (less is alike) is fooled by the token code."""
    values = {"rotated": 1.0, "affine": 0.9, "other seed": 0.6, "token code": 0.1, "next token": 0.2}
    values |= {f"{share} % own": share / 200 for share in (0, 20, 40, 60, 80, 100)}
    kinds, rows = {entry.name: entry.kind for entry in SOURCES} | {"other seed": "real"}, []
    for target, seed, (name, value) in itertools.product("xy", range(3), values.items()):
        kl = 0.05 if name == "token code" else 1 - value
        row = {"target": target, "layer": 1, "seed": seed, "source": name, "kind": kinds[name]}
        rows.append({**row, "CKA": value + 0.01 * seed, "KL": kl + 0.01 * seed})
    return pd.DataFrame(rows)


def test_a_summary_says_what_was_planted():
    table = planted().assign(later=0.0)
    table["later"] = (table["source"] == "next token") * 0.5 + (table["source"] == "token code") * -1.0
    found = summary_of_judges(table).set_index("judge")
    assert found.loc["CKA", ["auc", "real_auc"]].tolist() == [1, 1]
    assert found.loc["CKA", "margin"] == pytest.approx(0.7)
    assert found.loc["CKA", "real_margin"] == pytest.approx(0.4)
    assert found.loc["CKA", "fooled_by"] == ""
    assert found.loc["KL", "auc"] == 0.75, "rotated is above both, affine above one of two"
    assert found.loc["KL", "margin"] == pytest.approx(0.05 - 0.1)
    assert found.loc["KL", "fooled_by"] == found.loc["KL", "real_fooled_by"] == "token code"
    meant = found.loc["later", ["auc", "fooled_by", "decoys"]].tolist()
    assert meant == [1, "", "every decoy of kind leak"], "token code is no decoy of this judge"


def test_courts_are_not_compared_with_each_other():
    shifted = planted()
    shifted.loc[shifted["target"] == "y", "CKA"] += 5
    assert margin_above_decoys(shifted, SEEN["CKA"], ["same"]) == (pytest.approx(0.7), [])


def test_doses_follow_the_share_of_the_targets_own():
    found = dose_table(planted()).set_index(["judge", "own_share"])
    assert found.loc[("CKA", 0.4), "value"] == pytest.approx(0.21)
    assert found.loc[("KL", 0.4), "value"] == pytest.approx(0.81)
    assert found["rank_correlation"].to_numpy() == pytest.approx(1)


# of a kind: R² both ways, as the states are and beyond token, position and mixing; how much that is above local mixing
SEEN_OF_KIND = {
    "same": (1.0, 1.0, 1.0, 1.0, 0.9),
    "part": (0.6, 1.0, 0.6, 1.0, 0.7),
    "superset": (1.0, 0.2, 1.0, 0.2, 0.5),
    "distorted": (0.8, 0.8, 0.6, 0.6, 0.5),
    "wrong tokens": (0.4, 0.4, 1.0, 1.0, 0.9),
    "token": (0.5, 0.5, 0.0, 0.0, -0.1),
    "bag": (0.4, 0.4, 0.05, 0.05, -0.05),
    "leak": (0.9, 0.9, 0.9, 0.9, 0.8),
    "real": (0.6, 0.6, 0.3, 0.3, 0.2),
}


def seen_of_kinds(target="x"):
    names = ("r2", "r2_back", "residual_r2", "residual_r2_back", "beyond_mixing")
    rows = []
    for kind, seen in SEEN_OF_KIND.items():
        values = dict(zip(names, seen, strict=True))
        ends = {f"{name}_{end}": value for name, value in values.items() for end in ("low", "high")}
        about = {"target": target, "layer": 1, "seed": 0, "source": f"a {kind}", "kind": kind}
        later = 0.3 if kind == "leak" else 0.0
        rows.append({**about, **values, **ends, "penalty": 0.0, "later": later})
    return rows


@pytest.fixture(scope="module")
def experiment():
    """The experiment on the minis, and its case."""
    found = paper_experiment("validity/court")
    return found, found.experiment_run(composed("experiment=validity/court", "scale=mini", entry="analyze"))


def concluded(experiment, table):
    """What the experiment concludes from a table."""
    found, case = experiment
    return found.conclude(replace(case, results={"all": made(table)}))


def test_an_experiment_claims_that_verdicts_are_right(experiment):
    table = pd.DataFrame([*seen_of_kinds(), *seen_of_kinds("y")])
    claims = {claim.claim: claim for claim in concluded(experiment, table).claims}
    claim = claims["verdicts are right for sources of kind bag"]
    numbers = "100% of 100% decided are right: no more than local mixing 2"
    assert (claim.verdict, claim.numbers) == ("holds", numbers)
    table.loc[(table["target"] == "y") & (table["kind"] == "bag"), "beyond_mixing_low"] = 0.01
    wrong = {claim.claim: claim for claim in concluded(experiment, table).claims}
    assert wrong[claim.claim].verdict == "does not hold"


def test_a_table_of_earlier_rules_has_no_verdicts(experiment):
    earlier = pd.DataFrame(seen_of_kinds()).drop(columns="residual_r2_low")
    assert not [claim for claim in concluded(experiment, earlier).claims if "verdicts" in claim.claim]


def test_verdicts_are_right_only_where_rules_were_followed():
    table = pd.DataFrame(seen_of_kinds())
    found = verdict_table(table).set_index("source")
    assert found["right"].drop("a real").all()
    assert found.loc["a real", ["right", "verdict"]].tolist() == [None, "similar"]
    causal = verdict_table(table.assign(later=0.0)).set_index("source")
    assert not causal.loc["a leak", "right"], "control: without what later tokens move, a leak is not told"
    open_ = verdict_table(table.assign(later=np.nan))
    assert set(open_["verdict"]) == {"undecided"}
    assert set(open_["right"]) == {None}
    kinds = shares_by_kind(pd.concat([found.reset_index(), open_])).set_index("kind")
    assert kinds.loc["bag", ["sources", "decided", "right"]].tolist() == [2, 0.5, 1.0]


@pytest.mark.slow
def test_the_court_experiment_has_a_job_per_target_and_seed():
    words = ["experiment=validity/court", "scale=mini", "measure.seeds=2"]
    experiment = paper_experiment("validity/court")

    def jobs(*more):
        config = composed(*words, *more, entry="analyze")
        return [inner_job_config(config, part) for part in experiment.inner_jobs(experiment.experiment_run(config))]

    found = jobs()
    places = [(name, layer) for name, (layers, _) in TARGETS["mini"].items() for layer in layers]
    assert len(places) >= 6
    assert [(each.model.name, each.measure.layer, each.seed) for each in found] == [
        (*place, seed) for place in places for seed in (0, 1)
    ]
    assert all(each.measure.siblings == TARGETS["mini"][each.model.name][1] for each in found)
    (first, _) = jobs("model=gelu-3l-mini", "measure.siblings={mine: gelu-4l-mini}", "measure.layer=1")
    assert (first.measure.layer, first.measure.siblings) == (1, {"mine": "gelu-4l-mini"})


@pytest.mark.ci_slow
@pytest.mark.parametrize("name", TARGETS["mini"])
def test_siblings_share_the_tokenizer_and_layers_are_not_last(name):
    layers, siblings = TARGETS["mini"][name]
    target, *others = (
        load_model(compose_job("analyze", [f"model={each}"]).model) for each in (name, *siblings.values())
    )
    assert max(layers) < target.n_layers - 1
    for other in others:
        check_same_tokenizer(target, other)
        assert other.fingerprint() != target.fingerprint()


def test_the_experiment_says_who_is_fooled(experiment):
    verdicts = {claim.claim: claim for claim in concluded(experiment, planted()).claims}
    assert verdicts["CKA ranks everything that is the same above every decoy"].verdict == "holds"
    by = verdicts["KL ranks every other trained model above every decoy"]
    assert by.verdict == "does not hold"
    assert "fooled by token code" in by.numbers


@pytest.mark.parametrize("names", [["rotated", "affine"], ["token code"], ["rotated", "token code"], ["40 % own"]])
def test_a_court_that_heard_some_sources_concludes_what_it_can(names, experiment):
    found = concluded(experiment, planted().query("source in @names"))
    assert bool(found.claims) == (names == ["rotated", "token code"])


@pytest.mark.drawn
def test_a_court_is_drawn(experiment, tmp_path):
    concluded(experiment, planted()).draw(tmp_path)
    assert {path.stem for path in tmp_path.glob("*.svg")} == {"court", "doses"}


def test_the_area_is_the_mean_of_scikit_learns():
    drawn = (torch.randn(4, 9) + 1, torch.randn(4, 14))
    upper, lower = (each.round(decimals=1).double().numpy() for each in drawn)  # with ties
    labels = [1] * 9 + [0] * 14
    areas = [roc_auc_score(labels, np.concatenate([a, b])) for a, b in zip(upper, lower, strict=True)]
    assert auc(upper, lower) == pytest.approx(sum(areas) / 4, abs=1e-12)
    assert auc(lower, upper) == pytest.approx(1 - sum(areas) / 4, abs=1e-12)
    with pytest.raises(ValueError, match="nan"):
        auc(upper, np.full((4, 2), np.nan))
