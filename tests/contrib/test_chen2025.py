"""The experiments on what is carried: planted claims of probes, steering vectors and autoencoders, and their jobs."""

from fractions import Fraction
from functools import cache

import numpy as np
import pandas as pd
import pytest
from test_sae import course

from conftest import composed
from stores import finish
from thinkalike.contrib import papers
from thinkalike.contrib.papers import chen2025
from thinkalike.contrib.papers.chen2025 import TRANSFERS, Pair
from thinkalike.contrib.papers.experiment import Case, Model, job_of
from thinkalike.contrib.sae.fitting import break_even_table, savings_table
from thinkalike.contrib.transfer import steering as vectors
from thinkalike.contrib.transfer.probes import CARRIED, NATIVE, RANDOM, REFITTED
from thinkalike.job import Outcome


def probed(tmp_path, accuracies):
    """A layer pair with these accuracies, by feature, split and condition; each has four levels and little noise."""
    rows, replicates = [], []
    for (feature, split, condition), accuracy in accuracies.items():
        rows.append({"feature": feature, "split": split, "condition": condition, "accuracy": accuracy, "levels": 4})
        replicates.append(accuracy + np.random.default_rng(len(rows)).normal(0, 0.01 / 3, 10))
    table = pd.DataFrame(rows).assign(source_layer=2, target_layer=2, sentences=90)
    result = finish(tmp_path, "probes", "k", {"table": table}, arrays={"replicates": np.stack(replicates)})
    return chen2025.Probed("a into b", result, result.table)


def accuracies(feature, native=0.95, carried=0.9, refitted=0.95, random=0.25, words=0.9):
    by_sentence = {NATIVE: native, CARRIED: carried, REFITTED: refitted, RANDOM: random}
    found = {(feature, "sentence", name): each for name, each in by_sentence.items()}
    return found | {(feature, "word", NATIVE): words}


def test_carried_probes_are_told_from_those_that_are_not(tmp_path):
    planted = accuracies("PoS", carried=0.93) | accuracies("Number", carried=0.6) | accuracies("Question", carried=0.74)
    claims = list(chen2025._kept(probed(tmp_path, planted | accuracies("Tense", native=0.25))))
    assert [claim.verdict for claim in claims] == ["holds", "does not hold", "undecided", "not testable here"]
    assert "share 0.97 [" in claims[0].numbers
    assert claims[3].numbers == "Word position is not among these stimuli's features"
    assert claims[0].units == "90 sentences"


def test_features_of_single_words_are_unknown_of_other_words(tmp_path):
    planted = accuracies("Gender", carried=0.3, words=0.27) | accuracies("Person", carried=0.8, words=0.8)
    planted |= accuracies("Tense", native=0.25)
    del planted["Tense", "word", NATIVE]
    claims = list(chen2025._lexical(probed(tmp_path, planted)))
    verdicts = ["holds", "holds", "does not hold", "does not hold", *["not testable here"] * 4]
    assert [claim.verdict for claim in claims] == verdicts
    assert claims[6].numbers == "Tense is not judged on held-out words"
    assert claims[7].numbers == "Tense is not above chance"


def test_controls_of_all_features_are_judged_together(tmp_path):
    good = probed(tmp_path / "good", accuracies("PoS") | accuracies("Number"))
    bad = probed(tmp_path / "bad", accuracies("PoS") | accuracies("Number", random=0.5, refitted=0.6))
    for claim in (chen2025._random, chen2025._refitted):
        assert (claim(good).verdict, claim(bad).verdict) == ("holds", "does not hold")
        assert "hold for all 2 together (Bonferroni)" in claim(good).numbers


@cache
def model(name):
    return Model(composed(f"model={name}").model)


def steered(tmp_path, **shares):
    """Effects of 40 pairs of 10 words, by (layer, position, strength, condition); the natural one is 10 nats."""
    rows, effects = [], []
    noise = np.random.default_rng(0).normal(0, 0.3, 40)
    conditions = (vectors.NATIVE, vectors.CARRIED, vectors.MATCHED, vectors.NEGATED, vectors.RANDOM)
    for position, strength in (("word", 1.0), ("word", 2.0), ("later", 4.0)):
        for layer in range(6):  # as many as the models have
            for condition in conditions:
                share = shares.get(condition.split(",")[0].split()[0], 0.0) if layer < 3 else 0.0
                row = {"position": position, "strength": strength, "condition": condition, "share": share}
                rows.append({"source_layer": layer, "target_layer": layer, **row})
                effects.append(10 * share + noise)
    arrays = {"effects": np.stack(effects), "natural": np.full(40, 10.0), "groups": np.arange(40) % 10}
    result = finish(tmp_path, "steering", "k", {"table": pd.DataFrame(rows)}, scalars={"pairs": 40.0}, arrays=arrays)
    return chen2025.Steered(Pair(*map(model, ("gpt2-mini", "gpt2-mini-s1"))), result)


def test_vectors_that_steer_are_told_from_those_that_do_not(tmp_path):
    good = steered(tmp_path / "good", native=0.95, carried=0.93)
    bad = steered(tmp_path / "bad", native=0.2, carried=0.2, random=0.4)
    number, question = list(chen2025._number(good)), list(chen2025._question(good))
    # the negated direction has the share of the carried one here, whose name it begins with
    assert [claim.verdict for claim in number] == ["holds"] * 4 + ["does not hold", "holds"]
    assert [claim.verdict for claim in (*question, chen2025._late(good))] == ["holds"] * 5
    assert "gpt2-mini into gpt2-mini-s1, layer 1 → 1, strength 1: the carried" in number[0].claim
    assert number[0].units == "40 pairs of texts with 10 words"
    wrong = [claim.verdict for claim in (*chen2025._number(bad), *chen2025._question(bad))]
    assert set(wrong) == {"does not hold"}


def test_layers_are_paired_at_equal_depth():
    small, large = map(model, ("pythia-70m-deduped", "pythia-160m-deduped"))
    pair = Pair(small, large)
    assert pair.layers([Fraction(1, 3), Fraction(1, 2)]) == [[1, 3], [2, 5]]
    assert pair.layers() == [[0, 1], [1, 3], [2, 5], [3, 7], [4, 9], [5, 11]]
    assert Pair(large, small).layers([Fraction(1, 2)]) == [[5, 2]]
    assert Pair(small, model("some/where")).layers() == []


SLOWER, SAVES_HALF = 0.5, 2.0  # speeds beside that of a random start


def concluded(tmp_path, speed):
    """What the experiment concludes where transferred starts are this much as fast as random ones."""
    courses = [course("random", 1.0), course("least_squares", 1.2), course("transferred", speed)]
    results = {}
    for number, transfer in enumerate(TRANSFERS["mini"]):
        table, saved = savings_table(courses)
        tables = {"table": pd.DataFrame({"start": ["random"]}), "savings": table, "curves": table}
        tables["break_even"] = break_even_table(courses)
        results[transfer.label] = finish(tmp_path, "sae", str(number), tables, arrays={"saved": saved.numpy()})
    config = composed("experiment=chen2025/sae", "scale=mini", entry="analyze")
    return chen2025._sae(Case(config, [], results))


@pytest.mark.parametrize(
    ("speed", "verdicts"),
    [
        (SAVES_HALF, ["holds", "holds", "holds", "holds", "does not hold", "holds"]),
        (SLOWER, ["does not hold"] * 4 + ["holds", "does not hold"]),
    ],
)
def test_starts_that_save_are_told_from_those_that_do_not(tmp_path, speed, verdicts):
    found = concluded(tmp_path, speed)
    assert [claim.verdict for claim in found.claims] == verdicts
    assert found.claims[0].claim.startswith("gpt2-mini:2 → gpt2-mini-s1:2: a transferred start saves more than 35%")
    assert ("never get there" in found.claims[0].numbers) == (speed == SLOWER)
    assert "hold for all 2 together (Bonferroni)" in found.claims[0].numbers
    table = Outcome(found.table, {}, tables=found.tables, blank=found.blank).guarded().tables["break_even"]
    never = table[table["start"] == "transferred"]["break_even_tokens"].isna()
    assert never.all() == (speed == SLOWER), "a start that never breaks even leaves blank cells"


@pytest.mark.slow
def test_it_rests_on_a_job_for_each_transfer():
    config = composed("experiment=chen2025/sae", "scale=mini", entry="analyze")
    experiment = papers.experiment_named("chen2025/sae")
    jobs = [job_of(config, part) for part in experiment.parts(experiment.case(config))]
    assert [(job.model.name, job.sae.layer, job.sae.source) for job in jobs] == [
        ("gpt2-mini-s1", 2, "gpt2-mini"),
        ("neox-6l-mini", 2, "neox-5l-mini"),
        ("neox-6l-mini", 2, "neox-3l-mini"),
    ]
    assert {job.sae.seeds for job in jobs} == {5}
