"""The claims of Salle et al. 2024 hold where they were planted, and table S1 is what the grammar derives."""

import re
from importlib import resources

import numpy as np
import pandas as pd
import pytest
import torch

from conftest import composed
from stores import finish
from thinkalike.contrib.figures.features import Contrast
from thinkalike.contrib.papers import feature_profiles, salle2024_profiles, salle2024_similarity, salle2024_words
from thinkalike.contrib.papers.claims import over_models
from thinkalike.contrib.papers.experiment import ExperimentRun
from thinkalike.contrib.papers.salle2024_words import printed
from thinkalike.data.grammar import derivations
from thinkalike.data.stimuli import Stimuli, from_sentences
from thinkalike.errors import DataError
from thinkalike.measures import jackknife

WORDS = 24


@pytest.fixture
def words(tmp_path):
    """The command line of a small job, models apart."""
    return [f"stimuli.sentences={WORDS}", f"store={tmp_path}/results"]


TABLE_S1 = pd.read_csv(resources.files("thinkalike.contrib.papers") / "table_s1.csv", dtype=str, keep_default_na=False)


SENTENCES = [rows.drop(columns="sentence").to_numpy().tolist() for _, rows in TABLE_S1.groupby("sentence")]


def rows_of(text: str, size="small") -> list[list[str]]:
    """The table of the one derivation of a sentence."""
    (derived,) = derivations(text, size)
    stimuli = from_sentences([derived])
    assert list(stimuli.features) == list(TABLE_S1.columns[2:])
    values = stimuli.features.astype(object).to_numpy().tolist()
    return [[word, *map(printed, row)] for word, row in zip(stimuli.words, values, strict=True)]


@pytest.mark.parametrize("size", ["small", "large"])
def test_every_row_of_table_s1_is_derived_exactly(size):
    assert [len(rows) for rows in SENTENCES] == [3, 3, 2, 2, 3, 3]
    for rows in SENTENCES:
        assert rows_of(" ".join(row[0] for row in rows), size) == rows


def planted(folder, name, importances, noise=0.01, score=0.8) -> feature_profiles.Profiles:
    """A finished job whose folds scatter about these importances (l, f) of PoS, Number and word position."""
    importances = torch.as_tensor(importances, dtype=torch.float64)
    scatter = torch.randn(*importances.shape, 5, generator=torch.Generator().manual_seed(1)).double()
    by_fold = (importances[..., None] + noise * scatter).numpy()
    numbers = [number for number in range(len(importances)) for _ in range(3)]
    features = ["PoS", "Number", "Word position"] * len(importances)
    table = pd.DataFrame({"model": name, "layer": numbers, "feature": features})
    scores = pd.DataFrame({"model": name, "layer": range(len(importances)), "score": score})
    arrays = {"importances": by_fold, "scores": (score + noise * scatter[:, 0]).numpy()}
    result = finish(folder, "mlem", name, {"table": table, "scores": scores}, [{"name": name}], arrays=arrays)
    return feature_profiles.Profiles(name, result)


STEADY = [[0.5, 0.2, 0.1]] * 6


TURNING = [[0.5, 0.2, 0.1], *[[0.1, 0.2, 0.1]], *[[0.1, 0.1, 0.4]] * 3, [0.5, 0.1, 0.4]]


ALTERNATING = [[0.5, 0.2, 0.1], [0.1, 0.2, 0.5]] * 3


CLAIMS = [
    (salle2024_profiles._claim_that_part_of_speech_leads, STEADY, TURNING),
    (salle2024_profiles._claim_that_part_of_speech_leads_at_ends, TURNING, STEADY),
    (salle2024_profiles._claim_that_position_rises, TURNING, TURNING[::-1]),
    (salle2024_profiles._claim_that_number_fades, TURNING, TURNING[::-1]),
    (salle2024_similarity._claim_that_profiles_form_blocks, TURNING, ALTERNATING),
]


@pytest.mark.parametrize(("claim", "so", "otherwise"), CLAIMS, ids=[claim.__name__ for claim, *_ in CLAIMS])
def test_a_claim_holds_where_it_was_planted_and_only_there(claim, so, otherwise, tmp_path):
    found = claim(planted(tmp_path, "a", so))
    assert (found.verdict, found.units) == ("holds", "5 folds of the stimuli")
    assert found.smallest_effect > 0
    assert claim(planted(tmp_path, "b", otherwise)).verdict == "does not hold"
    assert claim(planted(tmp_path, "c", so, noise=2.0)).verdict == "undecided"
    if claim is not salle2024_profiles._claim_that_part_of_speech_leads_at_ends:
        assert re.search(r" \+\d\.\d{3} \[\+\d\.\d{3}, \+\d\.\d{3}\]$", found.numbers)


def test_scores_are_judged_by_the_worst_layer(tmp_path):
    first, second = (planted(tmp_path, name, STEADY) for name in "ab")
    found = salle2024_profiles._claim_that_distances_are_predicted([first, second])
    assert (found.verdict, found.tolerance) == ("holds", "above 0")
    assert "a 0.80, b 0.80" in found.numbers, "of no known reference"
    assert "all 12 together" in found.numbers
    kept = vars(second.result)  # each reader gets a copy of what is kept
    scores = kept["tables"]["scores"]
    scores["share_of_reference"] = [0.4, 0.5, 0.6, 0.5, 0.5, None]
    assert (
        "b 0.80 (50% of its split-half reference)"
        in salle2024_profiles._claim_that_distances_are_predicted([first, second]).numbers
    )
    kept["arrays"]["scores"][3] -= 1.0
    assert salle2024_profiles._claim_that_distances_are_predicted([first, second]).verdict == "does not hold"
    assert (
        salle2024_profiles._claim_that_distances_are_predicted(
            [first, planted(tmp_path, "d", STEADY, noise=0.5)]
        ).verdict
        == "undecided"
    )


MODELS_OF_LAYERS = [name for name in "abcd" for _ in range(3)]


@pytest.mark.ci_slow
def test_matrices_agree_with_themselves_and_not_with_noise():
    points = torch.randn(12, 3, dtype=torch.float64)
    likeness = 1 - torch.cdist(points, points) / 10
    likeness = (likeness + likeness.T) / 2
    claim = salle2024_similarity._claim_that_matrices_agree(likeness, likeness.square(), MODELS_OF_LAYERS)
    assert (claim.verdict, claim.units) == ("holds", "4 models")
    assert (
        salle2024_similarity._claim_that_matrices_agree(likeness, 1 - likeness, MODELS_OF_LAYERS).verdict
        == "does not hold"
    )
    noise = torch.rand(12, 12, dtype=torch.float64)
    noise = ((noise + noise.T) / 2).fill_diagonal_(1)
    assert salle2024_similarity._claim_that_matrices_agree(likeness, noise, MODELS_OF_LAYERS).verdict == "undecided"


def test_seeds_and_architectures_are_told_apart():
    rows = pd.DataFrame({"model": ["a-mini", "b-mini", "a-mini-s1", "b-mini-s1"], "layer": [0] * 4})
    families = torch.tensor([0, 1, 0, 1])
    found = salle2024_similarity.Layers(rows, torch.zeros(5, 4, 3), families[:, None] == families)
    alike = torch.tensor([[1, 0.1, 0.9, 0.1], [0.1, 1, 0.1, 0.9], [0.9, 0.1, 1, 0.1], [0.1, 0.9, 0.1, 1]])
    assert salle2024_similarity._claim_that_seeds_are_alike({"A": alike}, found).verdict == "holds"
    assert salle2024_similarity._claim_that_seeds_are_alike({"A": 1 - alike}, found).verdict == "does not hold"
    assert (
        salle2024_similarity._claim_that_seeds_are_alike(
            {"A": alike, "B": alike.where(alike != 0.9, torch.rand(4, 4))}, found
        ).verdict
        == "undecided"
    )


def test_intervals_over_models_leave_out_whole_models():
    values = torch.tensor([1.0, 2.0, 5.0, 6.0, 9.0], dtype=torch.float64)
    found = over_models(lambda places: values[places].mean(), ["a", "a", "b", "c", "c"])
    without = torch.stack([values[2:].mean(), values[[0, 1, 3, 4]].mean(), values[:3].mean()])
    expected = jackknife(values.mean(), without)
    torch.testing.assert_close([*found], [*expected])


def test_a_statistic_that_needs_every_model_has_no_interval():
    def spread(places):
        if len(places) < 3:
            raise ValueError("too few")
        return torch.tensor(1.0)

    for statistic in (spread, lambda places: torch.tensor(1.0 if len(places) == 3 else torch.nan)):
        value, low, high = over_models(statistic, ["a", "b", "c"])
        assert (float(value), float(low), float(high)) == (1, -torch.inf, torch.inf)


def test_leaders_of_a_contrast():
    table = pd.DataFrame({"feature": ["PoS", "Number"], "x": [0.5, 0.1], "y": [0.4, 0.1]})
    contrast = Contrast("most similar, τ = +1.00", ("bert layer 1", "mamba layer 2"), table, (), "PoS")
    scatter = 0.01 * torch.randn(5, 2, generator=torch.Generator().manual_seed(0)).double()

    def shared(*leads, noise=1.0):
        return salle2024_similarity._claim_that_leader_is_shared(
            contrast, torch.tensor(leads, dtype=torch.float64) + noise * scatter
        ).verdict

    assert [shared(0.4, 0.3), shared(0.4, -0.3), shared(0.4, 0.3, noise=100)] == ["holds", "does not hold", "undecided"]

    def split(lead, *recurrent, noise=1.0):
        return salle2024_similarity._claim_that_pos_differs(contrast, lead + noise * scatter[:, 0], recurrent).verdict

    assert [split(0.4, "mamba"), split(-0.4, "mamba"), split(0.4, "bert-mini")] == ["holds"] + ["does not hold"] * 2
    assert split(0.4, "mamba", noise=100) == "undecided"


def test_the_lead_of_pos_is_over_the_strongest_of_the_others():
    importances = torch.tensor([[[0.5, 0.4, 0.1], [0.1, 0.2, 0.6]], [[0.7, 0.2, 0.3], [0.3, 0.0, 0.4]]])
    found = feature_profiles.lead_over_others(importances, ["PoS", "Number", "Word position"])
    torch.testing.assert_close(found, torch.tensor([[0.1, -0.5], [0.5, -0.1]]))
    with pytest.raises(DataError, match="claims are about PoS, which these stimuli do not have"):
        feature_profiles.lead_over_others(importances, ["Tense", "Number", "Word position"])


@pytest.mark.parametrize(("share", "verdict"), [(0.0, "holds"), (1.0, "does not hold"), (0.94, "undecided")])
def test_features_that_are_nearly_the_same_are_found(share, verdict, monkeypatch):
    chance = np.random.default_rng(0)
    first = chance.integers(3, size=60)
    second = np.where(chance.random(60) < share, first, chance.integers(3, size=60))
    features = pd.DataFrame({"first": first.astype(str), "second": second.astype(str)})
    texts = [f"t{number}" for number in range(60)]
    stimuli = Stimuli(texts, np.arange(60), [(0, len(text)) for text in texts], texts, features)
    monkeypatch.setattr(salle2024_words, "read_stimuli", lambda _: stimuli)
    config = composed("experiment=salle2024/figure_s5", entry="analyze")
    (claim,) = salle2024_words._conclude_figure_s5(ExperimentRun(config, {})).claims
    assert (claim.verdict, claim.units) == (verdict, "10 parts of 60 words")


@pytest.mark.ci_slow
@pytest.mark.parametrize("experiment", ["table_s1", "figure_s5"])
def test_experiments_without_a_model(experiment, cli, words):
    result = cli("analyze.py", f"experiment=salle2024/{experiment}", *words[1:], "stimuli.sample=100").result
    assert list(result.tables["claims"]["verdict"]) == ["holds"]


def test_table_s1_says_how_many_rows_differ(cli, words, monkeypatch):
    monkeypatch.setattr(salle2024_words, "printed", lambda value: "NaN" if pd.isna(value) else str(value).lower())
    claims = cli("analyze.py", "experiment=salle2024/table_s1", *words).result.tables["claims"]
    assert list(claims["verdict"]) == ["does not hold"]
    assert claims["numbers"][0] != "16 of 16 rows"


def test_rows_of_table_s1_are_compared_by_sentence_wherever_they_stand(monkeypatch):
    apart = TABLE_S1.sort_values("Word position", kind="stable", ignore_index=True)
    monkeypatch.setattr(salle2024_words.pd, "read_csv", lambda *_, **__: apart)
    config = composed("experiment=salle2024/table_s1", entry="analyze")
    (claim,) = salle2024_words._conclude_table_s1(ExperimentRun(config, {})).claims
    assert (claim.verdict, claim.numbers) == ("holds", "16 of 16 rows")
