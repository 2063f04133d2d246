"""The court: what judges see, the job that goes on source by source, and what follows from its table."""

import itertools
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.linear_model import LinearRegression

import tiny
from conftest import composed
from thinkalike.config import StitchConfig, TrainerConfig, compose_job
from thinkalike.court import job
from thinkalike.court.evidence import KINDS, Bench, Evidence, profile_likeness, token_features
from thinkalike.court.judges import (
    COLUMNS,
    JUDGES,
    doses,
    fitted_thresholds,
    margin,
    sentenced,
    summary,
    thresholds,
    transferred,
    verdicts,
)
from thinkalike.court.source import Setting
from thinkalike.court.table import SOURCES, entries
from thinkalike.data.rows import TokenRows
from thinkalike.evaluation.likeness import likeness_of
from thinkalike.evaluation.maps import state_moments
from thinkalike.evaluation.stitches import document_sums
from thinkalike.evaluation.verdicts import Thresholds
from thinkalike.measures import RowGroups, cka, least_squares, mutual_knn, rsa
from thinkalike.measures.neighbours import chance_share
from thinkalike.models.load import load_model
from thinkalike.models.tokenizers import same_vocabulary
from thinkalike.papers import experiment_named
from thinkalike.papers.experiment import job_of
from thinkalike.papers.validity_court import TARGETS, _sentence_claims
from thinkalike.store import Result
from thinkalike.training.run import Run, fit

LAYER = 1
SEEN = {judge.name: judge for judge in JUDGES}


@pytest.fixture(scope="module")
def bench(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bench")
    fit_rows, report, other = (
        torch.randint(40, (count, 32), generator=torch.Generator().manual_seed(count)) for count in (60, 20, 40)
    )

    def train(module, name):
        fit(module, Run(folder / name, torch.device("cpu"), TrainerConfig()))

    siblings = {"other seed": tiny.frozen(4)}
    setting = Setting(tiny.frozen(0), LAYER, fit_rows, report, other, 0, train, siblings)
    return Bench(setting, StitchConfig(steps=8, warmup=2, tokens_per_step=256, lr=0.1, weight_decay=0.0))


@pytest.fixture(scope="module")
def heard(bench):
    table = {entry.name: entry for entry in entries(bench.setting)}
    names = ("rotated", "rescaled and permuted", "affine", "other seed", "token code", "superset")
    return {name: Evidence(table[name].made(bench.setting), bench) for name in names}


@pytest.mark.parametrize("name", ["rotated", "rescaled and permuted", "affine"])
def test_what_is_the_same_loses_nothing_and_is_trained_alike_in_all_coordinates(name, heard):
    start, trained, first = heard[name].start, heard[name].trained, heard["rotated"].trained
    assert abs(start.penalty) < 1e-4
    assert start.kl < 1e-5
    assert max(start.distances) < 1e-3
    assert SEEN["R², both ways"].value(heard[name]) > 1 - 1e-5
    assert trained.penalty == pytest.approx(first.penalty, abs=2e-3)
    assert trained.distances == pytest.approx(first.distances, abs=2e-2)
    assert first.distances[0] > 1e-4, "control: training moves the map"


def test_penalty_kl_and_distances_are_those_of_a_stitching_report(bench, heard):
    setting, source, pair = bench.setting, bench.setting.siblings["other seed"], (LAYER, LAYER)
    phi = least_squares(state_moments(source, setting.target, [pair], setting.fit, 8), pair)
    documents = torch.zeros_like(setting.report)
    sums = document_sums(source, setting.target, [pair], {"stitch": [phi]}, setting.report, documents, 8)
    sums["penalty"] = sums["stitch"] - sums["target"]
    penalty, kl, distance = (float(sums[name].sum() / sums["tokens"].sum()) for name in ("penalty", "kl", "distance"))
    start = bench.course(heard["other seed"].source, phi)
    assert start.penalty == pytest.approx(penalty, abs=1e-5)
    assert (start.kl, start.distances[0]) == pytest.approx((kl, distance), rel=1e-4)
    stitched = setting.target.advance(phi(source.head(setting.report, LAYER)), LAYER + 1, 4)
    own = setting.target.head(setting.report, 3)
    last = ((stitched - own).norm(dim=-1) / own.norm(dim=-1))[:, :-1].mean()
    assert start.distances[-1] == pytest.approx(float(last), rel=1e-4)
    assert len(start.distances) == 3


@pytest.mark.parametrize("name", ["other seed", "superset", "token code"])
def test_r2_is_that_of_scikit_learn_at_tokens_with_others_on_both_sides(name, bench, heard):
    evidence, setting = heard[name], bench.setting

    def of(rows):
        both = evidence.source.residuals(rows, [0])[0], setting.target.head(rows, LAYER)
        return [side[:, 1:-1].flatten(0, 1).double().numpy() for side in both]

    fitted, shown = of(setting.fit), of(setting.report)
    for judge, order in {"R² to the target": (0, 1), "R² to the source": (1, 0)}.items():
        model = LinearRegression().fit(fitted[order[0]], fitted[order[1]])
        left = np.square(shown[order[1]] - model.predict(shown[order[0]])).sum()
        whole = np.square(shown[order[1]] - fitted[order[1]].mean(0)).sum()
        assert SEEN[judge].value(evidence) == pytest.approx(1 - left / whole, abs=1e-5)
    both = [SEEN[judge].value(evidence) for judge in ("R² to the target", "R² to the source")]
    assert SEEN["R², both ways"].value(evidence) == min(both)


def test_likeness_is_that_of_a_stitching_report(bench, heard):
    """Which reads the rows in one batch here, as the bench does."""
    setting = bench.setting
    rows = [TokenRows(each, torch.zeros_like(each)) for each in (setting.fit, setting.report)]
    source = setting.siblings["other seed"]
    expected = likeness_of(source, setting.target, [(LAYER, LAYER)], *rows)
    for name, value in heard["other seed"].likeness.items():
        if "given" not in name:  # which depends on the batches
            assert value == pytest.approx(float(expected.measures[name].value[0]), abs=1e-6)
    shuffled = expected.measures["cka_given_token"].value[0]
    assert heard["other seed"].likeness["cka_given_token"] == pytest.approx(float(shuffled), abs=0.2)


def test_other_judges_are_the_measures_of_the_same_name(heard):
    evidence = heard["other seed"]
    assert SEEN["CKA"].value(evidence) == pytest.approx(float(cka(*evidence.states)), abs=1e-5)
    (sample,) = evidence.bench.samples
    sides = [side[sample] for side in evidence.states]
    assert SEEN["mutual neighbours"].value(evidence) == pytest.approx(float(mutual_knn(*sides)), abs=1e-6)
    assert SEEN["RSA"].value(evidence) == pytest.approx(float(rsa(*([side] for side in sides))), abs=1e-6)
    (part,) = evidence.bench.report
    share = mutual_knn(*evidence.states, groups=part.tokens)
    chance = chance_share(RowGroups.of(part.tokens, 12), 10)
    beyond = (float(share) - chance) / (1 - chance)
    assert SEEN["mutual neighbours given the token"].value(evidence) == pytest.approx(beyond, abs=1e-6)


def test_every_judge_says_a_number_and_the_planted_order(heard):
    """Given the token there is nothing in a code of it."""
    said = {name: verdicts(heard[name]) for name in ("rotated", "token code")}
    assert set(said["rotated"]) == set(SEEN)
    for name, judge in SEEN.items():
        alike, decoy = said["rotated"][name], said["token code"][name]
        assert np.isfinite([alike, decoy]).all()
        if "penalty" not in name and "token" in judge.against:  # an untrained target loses nothing by other states
            assert (alike > decoy) == judge.higher, name
        if "given the token" in name:
            assert abs(decoy) < 1e-6 < 0.99 < alike, name


@pytest.fixture
def words(text_files, minis, tmp_path):
    rows = ["model.context=32", "measure.fit_tokens=2048", "measure.report_tokens=1024", "measure.other_tokens=1024"]
    data = ["data=text", f"data.files=[{text_files}/*.txt]", "data.report_share=0.3", f"data.cache={tmp_path}/cache"]
    small = ["measure=court", "measure.steps=3", "measure.tokens_per_step=128"]
    return [*small, *rows, *data, f"model.path={minis}/a", "model.name=a", f"store={tmp_path}/results"]


@pytest.mark.slow
def test_a_court_goes_on_source_by_source(door, words, monkeypatch):
    judged, heard = [], job.verdicts

    def verdicts(evidence):
        judged.append(evidence.source.name)
        if len(judged) == 2:
            raise ValueError("broken off")
        return heard(evidence)

    monkeypatch.setattr(job, "verdicts", verdicts)
    words = [*words, "measure.sources=[rotated,next token]"]
    assert "the source 'next token' of a: broken off" in door("analyze.py", *words).error
    table = door("analyze.py", *words).result.table
    assert judged == ["rotated", "next token", "next token"]
    assert table[["source", "kind"]].to_numpy().tolist() == [["rotated", "same"], ["next token", "leak"]]
    assert set(SEEN) <= set(table)
    whole = door("analyze.py", *words, "force=true").result.table
    pd.testing.assert_frame_equal(whole, table, check_exact=True)
    assert judged[3:] == ["rotated", "next token"]
    assert table["KL, least squares"][0] < 1e-4 < table["KL, least squares"][1]


@pytest.mark.slow
def test_given_the_token_and_both_ways_real_minis_are_told_from_what_misleads(door):
    words = [
        "measure=court",
        "model=gelu-3l-mini",
        "measure.siblings={other seed: gelu-3l-mini-s1}",
        "measure.steps=20",
    ]
    chosen = "measure.sources=[rotated,noisy states,superset,bigram mean,next token,other seed]"
    table = door("analyze.py", *words, chosen).result.table.set_index("source")
    both = table["R² given the token, both ways"]
    assert both[["rotated", "noisy states"]].min() > 0.9
    assert both[["superset", "bigram mean", "next token"]].max() < 0.3 < both["other seed"] < 0.9
    assert table.loc["next token", "future"] > 0.1 > table["future"].drop("next token").max()
    assert table.loc["next token", "KL"] > 2 > table.loc["bigram mean", "KL"], "no answer of the target's own"


@pytest.mark.parametrize("word", ["measure.layer=3", "measure.fit_tokens=10000000", "measure.siblings=[a]"])
def test_what_cannot_be_judged_is_refused(word, door, words):
    assert word.partition("=")[0] in door("analyze.py", *words, word).error


def test_no_document_is_both_fitted_on_and_learnt_from():
    documents = torch.tensor([[0, 0], [0, 1], [1, 2], [3, 3], [3, 4], [4, 4]])
    tokens = torch.arange(12).view(6, 2)
    mine, other = job._apart(TokenRows(tokens, documents), 4, 100)
    assert mine.tolist() == [[0, 1], [2, 3]]
    assert other.tolist() == [[6, 7], [8, 9], [10, 11]]
    assert job._spread(TokenRows(tokens, documents), 4).tolist() == [[0, 1], [6, 7]]


def test_features_of_tokens_are_those_of_their_text_and_place():
    words = {0: " ab", 1: "7", 2: " ", 3: "(", 4: "x1"}
    rows = torch.tensor([[0, 1, 2, 1, 3, 4]])
    found = token_features(rows, words, torch.tensor([9, 0, 0, 0, 0]))
    assert list(KINDS)[:2] == ["length", "class"]
    expected = [  # length, class, begins a word, log frequency, place, classes of the last two, seen before
        [1, 1, 0, 0, 1, 0, -1, 0],
        [1, 2, 1, 0, 2, 1, 0, 0],
        [1, 1, 0, 0, 3, 2, 1, 1],
        [1, 4, 0, 0, 4, 1, 2, 0],
    ]
    assert found.tolist() == expected


def test_profiles_are_alike_where_the_same_features_matter_and_only_there():
    generator = torch.Generator().manual_seed(0)
    levels = torch.randint(4, (120, len(KINDS)), generator=generator)
    columns = torch.nn.functional.one_hot(levels, 4).float()
    scales = torch.tensor([8.0, 7, 6, 5, 4, 3, 2, 1])[:, None]
    first, turned = ((columns * order).flatten(1) for order in (scales, scales.flip(0)))
    rotation = torch.linalg.qr(torch.randn(32, 32, generator=generator))[0]
    assert profile_likeness(levels.float(), first @ rotation, first, 0) > 0.9
    assert profile_likeness(levels.float(), turned, first, 0) < 0


def test_a_profile_that_explains_nothing_is_like_no_other(monkeypatch):
    def constant(*args, **given):
        raise ValueError("the prediction of layer 0 is constant and has no ranks")

    monkeypatch.setattr("thinkalike.court.evidence.feature_importance", constant)
    assert profile_likeness(torch.zeros(9, 8), torch.zeros(9, 2), torch.zeros(9, 2), 0) == 0


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
    table = planted().assign(future=0.0)
    table["future"] = (table["source"] == "next token") * 0.5 + (table["source"] == "token code") * -1.0
    found = summary(table).set_index("judge")
    assert found.loc["CKA", ["auc", "auc_low", "auc_high", "real_auc"]].tolist() == [1, 1, 1, 1]
    assert found.loc["CKA", "margin"] == pytest.approx(0.7)
    assert found.loc["CKA", "real_margin"] == pytest.approx(0.4)
    assert found.loc["CKA", "fooled_by"] == ""
    assert found.loc["KL", "auc"] == 0.75, "rotated is above both, affine above one of two"
    assert found.loc["KL", "margin"] == pytest.approx(0.05 - 0.1)
    assert found.loc["KL", "fooled_by"] == found.loc["KL", "real_fooled_by"] == "token code"
    meant = found.loc["future", ["auc", "fooled_by", "decoys"]].tolist()
    assert meant == [1, "", "every decoy of kind leak"], "token code is no decoy of this judge"


def test_courts_are_not_compared_with_each_other():
    shifted = planted()
    shifted.loc[shifted["target"] == "y", "CKA"] += 5
    assert margin(shifted, SEEN["CKA"], ["same"]) == (pytest.approx(0.7), [])


def test_doses_follow_the_share_of_the_targets_own():
    found = doses(planted()).set_index(["judge", "own_share"])
    assert found.loc[("CKA", 0.4), "value"] == pytest.approx(0.21)
    assert found.loc[("KL", 0.4), "value"] == pytest.approx(0.81)
    assert found["rank_correlation"].to_numpy() == pytest.approx(1)


def test_thresholds_of_one_target_are_tested_on_another():
    table = planted()
    limits = thresholds(table[table["target"] == "x"])
    assert limits["CKA"] == pytest.approx((0.9 + 0.22) / 2)
    right = transferred(table[table["target"] == "y"], limits).set_index("judge")
    assert right.loc["CKA", ["alike", "decoys"]].tolist() == [1, 1]
    assert right.loc["KL", ["alike", "decoys"]].min() < 1


SEEN_OF_KIND = {  # R² given the token both ways, which is R² of the whole states here, CKA given it, future, KL
    "same": (1.0, 1.0, 0.4, 0.0, 0.03),
    "answers": (0.7, 0.6, 0.37, 0.0, 0.1),
    "part": (0.8, 1.0, 0.9, 0.0, 0.1),
    "superset": (1.0, 0.1, 0.2, 0.0, 0.04),
    "token": (0.0, 0.0, 0.0, 0.0, 1.5),
    "leak": (0.0, 0.0, 0.2, 0.3, 3.0),
    "untrained": (0.1, 0.1, 0.2, 0.0, 2.0),
    "real": (0.6, 0.5, 0.8, 0.0, 0.5),
}


def seen_of_kinds(target="x"):
    names = [*COLUMNS.values(), "KL"]
    rows = [
        {"target": target, "layer": 1, "seed": 0, "source": f"a {kind}", "kind": kind}
        | dict(zip(names, (*seen[:2], *seen[:4], 1.1, seen[4]), strict=True))
        for kind, seen in SEEN_OF_KIND.items()
    ]
    return [*rows, {**rows[4], "source": "token mean"}]


def test_thresholds_of_verdicts_lie_between_what_a_rule_is_meant_for_and_the_nearest_others():
    table = pd.DataFrame(seen_of_kinds())
    ends = (0.3, 0), (1, 0.8), (0.4, 0.222), (0, 0.2), (0.1 / 1.1, 1.5 / 1.1)
    assert fitted_thresholds(table)[:5] == pytest.approx(tuple(sum(pair) / 2 for pair in ends))
    assert fitted_thresholds(table.query("kind != 'leak'")).leak == Thresholds().leak


@pytest.fixture(scope="module")
def experiment():
    """The experiment on the minis, and its case."""
    found = experiment_named("validity/court")
    return found, found.case(composed("experiment=validity/court", "scale=mini", door="analyze"))


def concluded(experiment, table, folder):
    """What the experiment concludes from a table."""
    table.to_csv(folder / "table.csv", index=False)
    found, case = experiment
    return found.conclude(replace(case, results={"all": Result(folder)}))


def test_verdicts_by_thresholds_from_other_targets_are_among_the_claims(experiment, tmp_path):
    strange = [{**row, "future": row["future"] / 2 + 0.16} for row in seen_of_kinds("y")]
    found = concluded(experiment, pd.DataFrame([*seen_of_kinds(), *strange]), tmp_path)
    others = found.tables["sentences_of_others"].set_index(["target", "source"])
    assert others.loc[("y", "a same"), "verdict"] == "leak", "x's threshold of .15 is too low for y"
    assert others.loc[("y", "a same"), "leak"] == pytest.approx(0.15)
    assert others.loc[("x", "a leak"), "right"]
    verdicts = {claim.claim: claim.verdict for claim in found.claims}
    assert verdicts["the verdict is right for every source of kind leak"] == "holds"
    ending = "by thresholds from the other half of the targets"
    assert verdicts[f"the verdict is right for every source of kind same {ending}"] == "does not hold"
    assert verdicts[f"the verdict is right for every source of kind leak {ending}"] == "holds"


def test_sentences_are_right_where_rules_were_followed_and_only_there():
    table = pd.DataFrame(seen_of_kinds())
    found = sentenced(table).set_index("source")
    assert found["right"].drop("a real").all()
    assert found.loc["a real", ["right", "verdict"]].tolist() == [None, "related"]
    assert not sentenced(table, Thresholds(leak=0.5)).set_index("source").loc["a leak", "right"]
    (claim,) = _sentence_claims(sentenced(table).query("kind == 'leak'"), "1 court")
    assert (claim.verdict, claim.numbers) == ("holds", "a leak: leak")


@pytest.mark.slow
def test_the_experiment_has_a_court_for_each_target_layer_and_seed():
    words, experiment = (
        ["experiment=validity/court", "scale=mini", "measure.seeds=2"],
        experiment_named("validity/court"),
    )

    def jobs(*more):
        config = composed(*words, *more, door="analyze")
        return [job_of(config, part) for part in experiment.parts(experiment.case(config))]

    found = jobs()
    places = [(name, layer) for name, (layers, _) in TARGETS["mini"].items() for layer in layers]
    assert len(places) >= 6
    assert [(each.model.name, each.measure.layer, each.seed) for each in found] == [
        (*place, seed) for place in places for seed in (0, 1)
    ]
    assert all(each.measure.siblings == TARGETS["mini"][each.model.name][1] for each in found)
    (first, _) = jobs("model=gelu-3l-mini", "measure.siblings={mine: gelu-4l-mini}", "measure.layer=1")
    assert (first.measure.layer, first.measure.siblings) == (1, {"mine": "gelu-4l-mini"})


@pytest.mark.parametrize("name", TARGETS["mini"])
def test_siblings_of_a_target_have_its_tokenizer_and_its_layers_have_a_block_after_them(name):
    layers, siblings = TARGETS["mini"][name]
    target, *others = (
        load_model(compose_job("analyze", [f"model={each}"]).model) for each in (name, *siblings.values())
    )
    assert max(layers) < target.n_layers - 1
    for other in others:
        same_vocabulary(target, other)
        assert other.fingerprint() != target.fingerprint()


def test_the_experiment_says_who_is_fooled(experiment, tmp_path):
    verdicts = {claim.claim: claim for claim in concluded(experiment, planted(), tmp_path).claims}
    assert verdicts["CKA ranks everything that is the same above every decoy"].verdict == "holds"
    by = verdicts["KL ranks every other trained model above every decoy"]
    assert by.verdict == "does not hold"
    assert "fooled by token code" in by.numbers
    assert verdicts["a threshold of CKA from half of the targets is right on the other half"].verdict == "holds"


@pytest.mark.parametrize("names", [["rotated", "affine"], ["token code"], ["rotated", "token code"], ["40 % own"]])
def test_a_court_that_heard_some_sources_concludes_what_it_can(names, experiment, tmp_path):
    found = concluded(experiment, planted().query("source in @names"), tmp_path)
    assert bool(found.claims) == (names == ["rotated", "token code"])


def test_a_court_is_drawn(experiment, tmp_path):
    concluded(experiment, planted(), tmp_path).draw(tmp_path)
    assert {path.stem for path in tmp_path.glob("*.svg")} == {"court", "doses"}
