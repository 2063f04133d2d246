"""Steering vectors: pairs of texts, what a vector does to them, a known rotation; and claims on what is carried."""

from fractions import Fraction
from functools import cache
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch
from sae_courses import course

import tiny
from conftest import composed
from rotated_models import rotate, rotation
from stores import finish
from thinkalike.contrib import papers
from thinkalike.contrib.papers import chen2025_probes, chen2025_saes, chen2025_steering
from thinkalike.contrib.papers.chen2025_saes import TRANSFERS
from thinkalike.contrib.papers.experiment import ExperimentRun, inner_job_config
from thinkalike.contrib.papers.model_pairs import Pair
from thinkalike.contrib.sae.courses import savings_table
from thinkalike.contrib.subjects.random_effects import random_effects
from thinkalike.contrib.transfer import probing
from thinkalike.contrib.transfer.maps import PairMap
from thinkalike.contrib.transfer.random_maps import turned_at_random
from thinkalike.contrib.transfer.steering_trial import (
    CARRIED,
    LATER,
    MATCHED,
    NATIVE,
    NEGATED,
    RANDOM,
    SteeringTrial,
    states_at_words,
    steered_gaps,
)
from thinkalike.contrib.transfer.steering_vectors import (
    held_out_differences,
    jackknifed_mean_effects,
    random_directions,
    with_norms_of,
)
from thinkalike.errors import DataError
from thinkalike.evaluation.moments import state_moments
from thinkalike.job import Outcome
from thinkalike.measures.round_trips import Unexplained, both_directions
from thinkalike.memory import Budget
from thinkalike.models.frozen import FrozenModel
from thinkalike.models.load import load_model
from thinkalike.states.contrasts import (
    BOUNDARY,
    Contrasts,
    Prompt,
    boundary_tokens,
    continuations,
    encode_prompts,
    gaps,
    grammar_contrasts,
    ids_of,
    prompt_with_word,
    read_contrasts,
)

D, N = 6, 12
FOLDS = torch.arange(N) % 3


def test_a_vector_is_the_difference_of_means_over_other_folds():
    before, after = torch.randn(2, N, D).double()
    vectors = held_out_differences(before, after, FOLDS)
    for place in range(N):
        others = FOLDS[place] != FOLDS
        torch.testing.assert_close(vectors[place], after[others].mean(0) - before[others].mean(0))


def test_norms_and_random_directions():
    vectors, others = torch.randn(N, D), torch.randn(N, 9)
    matched = with_norms_of(vectors, others)
    torch.testing.assert_close(matched.norm(dim=1), others.norm(dim=1))
    torch.testing.assert_close(torch.cosine_similarity(matched, vectors), torch.ones(N))
    assert not with_norms_of(torch.zeros(N, D), others).any()
    drawn = random_directions(3, vectors, torch.Generator().manual_seed(0))
    torch.testing.assert_close(drawn.norm(dim=-1), vectors.norm(dim=1).expand(3, -1))
    torch.testing.assert_close(torch.cosine_similarity(drawn[:, :1], drawn, dim=-1), torch.ones(3, N))
    assert (drawn[0, 0] - drawn[1, 0]).norm() > 0.1


def test_effects_are_shares_of_the_natural_one_over_words():
    natural = 10 + torch.randn(N)
    effects = torch.stack([natural, natural / 2, torch.randn(N)])
    found, whole = jackknifed_mean_effects(effects, natural, torch.arange(N))
    shares = found.share_of(whole)
    torch.testing.assert_close(shares.value[:2], torch.tensor([1.0, 0.5]).double())
    torch.testing.assert_close(shares.low[:2], shares.high[:2])
    assert shares.low[2] < shares.value[2] < shares.high[2]
    torch.testing.assert_close(found.interval().value, effects.double().mean(1))
    nothing = torch.tensor([1.0, -1] * 6)
    insignificant, none = jackknifed_mean_effects(nothing[None], nothing, torch.arange(N))
    assert insignificant.share_of(none).value.isnan().all()
    assert insignificant.interval().value.isfinite().all()


def test_effect_intervals_are_students_over_words():
    effects, words = torch.randn(2, 40), torch.arange(40) // 5
    found, _ = jackknifed_mean_effects(effects, 10 + torch.randn(40), words)
    means = effects.double().view(2, 8, 5).mean(2)
    expected = random_effects(means)
    for ours, theirs in zip(found.interval(), expected, strict=True):
        torch.testing.assert_close(ours, theirs)
    few, natural = jackknifed_mean_effects(effects, 10 + torch.randn(40), torch.arange(40) // 6)
    assert few.interval().low.isnan().all(), "seven words"
    assert few.share_of(natural).value.isfinite().all()


@pytest.fixture(scope="module")
def gpt2():
    return load_model(composed("model=gpt2-mini").model)


def test_a_word_of_a_text_is_found_once_or_refused():
    assert prompt_with_word("x", "the girls and the girl", "girl") == Prompt("the girls and the girl", (18, 22))
    assert prompt_with_word("x", "the girl", "girl").word == "girl"
    for text, times in (("the girls", 0), ("the girl sees the girl", 2)):
        with pytest.raises(DataError, match=f"x: the word 'girl' must occur once, not {times} times"):
            prompt_with_word("x", text, "girl")


def test_a_character_of_a_text_of_a_contrast_is_not_cut():
    assert prompt_with_word("x", "cafe\u0301 or cafe", "cafe").span == (9, 13)
    with pytest.raises(DataError, match="not 0 times"):
        prompt_with_word("x", "cafe\u0301", "cafe")


HEADER = "text,counterpart,word,counterpart_word,up,down\n"


def test_pairs_of_a_table(tmp_path):
    path = tmp_path / "pairs.csv"
    path.write_text(
        f"{HEADER}the girl,the girls,girl,girls, are, is\nthe boy sing,does the boy sing,boy,,<boundary>,s\n"
    )
    found = read_contrasts(path)
    assert [each.word for each in found.texts] == ["girl", "boy"]
    assert [each.word for each in found.counterparts] == ["girls", "boy"]
    assert (found.up, found.down) == ([" are", BOUNDARY], [" is", "s"])
    assert found.groups.tolist() == [0, 1]
    path.write_text(path.read_text().replace(" is", " was"))
    assert read_contrasts(path).fingerprint() != found.fingerprint()


def test_the_grammar_asks_for_the_form_of_the_verb(gpt2):
    number = grammar_contrasts("number", gpt2.tokenizer, 60)
    assert len(number) == 60
    for text, counterpart, up, down in zip(number.texts, number.counterparts, number.up, number.down, strict=True):
        determiner, singular, stem = text.text.split()
        assert text.word == singular
        assert counterpart.text.split() == [determiner, counterpart.word, stem]
        assert counterpart.word != singular
        assert (up, down) in {(BOUNDARY, "s"), (BOUNDARY, "es")}
    question = grammar_contrasts("question", gpt2.tokenizer, 10)
    assert [other.text for other in question.counterparts] == [f"does {text.text}" for text in question.texts]
    assert grammar_contrasts("number", gpt2.tokenizer, 60, seed=1).fingerprint() != number.fingerprint()


def pairs_of(up, down):
    return Contrasts(
        [prompt_with_word("", "the girl sing", "girl")], [prompt_with_word("", "the girls sing", "girls")], [up], [down]
    )


def test_a_continuation_is_one_token_or_the_end_of_the_word(gpt2):
    up, down = continuations(pairs_of(BOUNDARY, "s"), gpt2.tokenizer, gpt2.vocabulary)
    (letter,) = down[0].nonzero()[:, 0].tolist()
    assert gpt2.tokenizer.convert_ids_to_tokens(letter) == "s"
    ends = set(gpt2.tokenizer.convert_ids_to_tokens(up[0].nonzero()[:, 0].tolist()))
    assert {"Ġthe", "Ġin", "[SEP]"} < ends
    assert not {"s", "es", "ing"} & ends
    assert torch.equal(up[0], boundary_tokens(gpt2.tokenizer, gpt2.vocabulary))


@pytest.mark.parametrize(("up", "down", "message"), [(" princesses", "s", "row 1"), (BOUNDARY, " the", "in common")])
def test_continuations_are_single_tokens_that_exclude_each_other(up, down, message, gpt2):
    with pytest.raises(DataError, match=message):
        continuations(pairs_of(up, down), gpt2.tokenizer, gpt2.vocabulary)


@pytest.fixture(scope="module")
def number(gpt2):
    return grammar_contrasts("number", gpt2.tokenizer, 70)


def test_a_gap_is_that_of_the_whole_model_on_each_text_alone(gpt2, number):
    texts, _ = encode_prompts(gpt2, number)
    found = gaps(gpt2, texts)
    for place in (0, 33, 69):
        row = torch.tensor([[1, *ids_of(gpt2.tokenizer, number.texts[place].text)]])
        chances = gpt2.full(row)[0, -1].double().softmax(0)
        expected = (chances[texts.up[place]].sum() / chances[texts.down[place]].sum()).log()
        assert float(found[place]) == pytest.approx(float(expected), abs=1e-4)


def test_states_are_those_of_the_last_token_of_the_word(gpt2, number):
    texts, counterparts = encode_prompts(gpt2, number)
    for prompts, side in ((texts, number.texts), (counterparts, number.counterparts)):
        found = states_at_words(gpt2, prompts, 2)
        for place in (0, 69):
            text, (_, stop) = side[place]
            before = torch.tensor([[1, *ids_of(gpt2.tokenizer, text[:stop])]])
            torch.testing.assert_close(found[place], gpt2.head(before, 2)[0, -1], atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("later", [False, True])
def test_a_steered_gap_is_that_of_a_model_with_a_hook(gpt2, number, later):
    texts, _ = encode_prompts(gpt2, number)
    vector = torch.randn(gpt2.d_model)
    found = steered_gaps(gpt2, texts, 1, vector.expand(1, 70, -1), later)[0]
    for place in (5, 66):
        row = texts.tokens[place : place + 1, : texts.ends[place] + 1]
        chosen = slice(texts.words[place], None if later else texts.words[place] + 1)

        def add(module, given, output, chosen=chosen):
            whole = output if isinstance(output, tuple) else (output,)
            whole[0][:, chosen] += vector

        hook = gpt2.blocks[1].register_forward_hook(add)
        logits = gpt2.full(row)[0, -1].double()
        hook.remove()
        expected = logits[texts.up[place]].logsumexp(0) - logits[texts.down[place]].logsumexp(0)
        assert float(found[place]) == pytest.approx(float(expected), abs=1e-4)
    assert (found - gaps(gpt2, texts)).abs().max() > 0.1


def test_no_vector_does_nothing_nor_does_one_that_comes_too_late(gpt2, number):
    texts, _ = encode_prompts(gpt2, number)
    before, last = gaps(gpt2, texts), gpt2.n_layers - 1
    vectors = 5 * torch.randn(1, 70, gpt2.d_model)
    torch.testing.assert_close(steered_gaps(gpt2, texts, 1, 0 * vectors)[0], before, atol=1e-4, rtol=0)
    torch.testing.assert_close(steered_gaps(gpt2, texts, last, vectors)[0], before, atol=1e-4, rtol=0)
    assert (steered_gaps(gpt2, texts, last, vectors, also_later=True)[0] - before).abs().max() > 1, "control"


CODE = [(name, f"{name}s") for name in ("value", "item", "key", "name", "line", "path", "file", "node", "part", "list")]


@pytest.fixture(scope="module")
def planted():
    """A model of width 128 and the same one rotated, pairs of lines of Python, and maps that rows of tokens fit."""
    torch.manual_seed(0)
    config = composed("model=gelu-3l-mini").model
    source, other = load_model(config), load_model(config)
    target = FrozenModel(rotate(other.module, rotation(128)), other.family, other.tokenizer, name="turned", context=256)
    texts = [prompt_with_word("", f"for x in self.{one}", one) for one, _ in CODE]
    counterparts = [prompt_with_word("", f"for x in self.{many}", many) for _, many in CODE]
    contrasts = Contrasts(texts, counterparts, [":"] * len(CODE), ["."] * len(CODE))
    rows = torch.randint(source.vocabulary, (32, 64), generator=torch.Generator().manual_seed(1))
    moments = state_moments(source, target, [(0, 0), (1, 1)], tiny.token_rows(rows), Budget(1e9, 0.0))
    maps = {pair: both_directions(moments.of(pair)) for pair in ((0, 0), (1, 1))}
    return SteeringTrial(source, target, contrasts, MEASURE, 0), maps


MEASURE = SimpleNamespace(folds=5, draws=3, positions=["word", LATER], strengths=[1.0, 3.0])


def shares(trial, pair, phi, psi):
    pair_map = PairMap(phi, psi, Unexplained(0.0, 0.0, 0.0, 0.0), torch.zeros(128))
    rows = [row for row, _ in trial.conditions(pair, pair_map)]
    return {(row["position"], row["strength"], row["condition"]): row for row in rows}


@pytest.mark.parametrize("pair", [(0, 0), (1, 1)])
def test_a_carried_vector_acts_as_the_native_one_under_rotation(planted, pair):
    trial, maps = planted
    found = shares(trial, pair, *maps[pair])
    for position in MEASURE.positions:
        for strength in MEASURE.strengths:
            at = {name: found[position, strength, name] for name in (NATIVE, CARRIED, MATCHED, NEGATED, RANDOM)}
            assert abs(at[CARRIED]["effect"] - at[NATIVE]["effect"]) < 1e-4
            assert abs(at[MATCHED]["effect"] - at[NATIVE]["effect"]) < 1e-4
            assert at[CARRIED]["cosine"] == pytest.approx(1, abs=1e-5)
            assert at[NEGATED]["cosine"] == pytest.approx(-1, abs=1e-5)
            assert at[RANDOM]["norm"] == pytest.approx(at[NATIVE]["norm"], rel=1e-6)
    assert abs(found[LATER, 3.0, NATIVE]["effect"]) > 0.3, "control: the vector does something"


@pytest.mark.ci_slow
def test_a_wrong_rotation_makes_a_vector_random(planted):
    trial, maps = planted
    right = shares(trial, (1, 1), *maps[1, 1])[LATER, 3.0, CARRIED]
    generator, wrong = torch.Generator().manual_seed(0), []
    for _ in range(5):
        turned = turned_at_random(maps[1, 1].phi, torch.zeros(128), generator)
        wrong.append(shares(trial, (1, 1), turned, maps[1, 1].psi)[LATER, 3.0, CARRIED])
    assert max(abs(row["cosine"]) for row in wrong) < 0.35
    assert abs(sum(row["effect"] for row in wrong)) / 5 < 0.4 * abs(right["effect"])


def test_a_row_begins_with_bos_where_the_model_expects_it():
    first = tiny.frozen()
    contrasts = Contrasts([Prompt("abc de", (4, 6))], [Prompt("abc d", (4, 5))], [" a"], [" b"])
    without, _ = encode_prompts(first, contrasts)
    first.bos_each_row = True
    with_it, _ = encode_prompts(first, contrasts)
    assert with_it.tokens[0, 0] == first.tokenizer.bos_token_id
    assert torch.equal(with_it.tokens[0, 1:], without.tokens[0])
    assert (with_it.words - without.words, with_it.ends - without.ends) == (1, 1)


def probed(tmp_path, accuracies):
    """A layer pair with these accuracies, by feature, split and condition; each has four levels and little noise."""
    rows, replicates = [], []
    for (feature, split, condition), accuracy in accuracies.items():
        rows.append({"feature": feature, "split": split, "condition": condition, "accuracy": accuracy, "levels": 4})
        replicates.append(accuracy + np.random.default_rng(len(rows)).normal(0, 0.01 / 3, 10))
    table = pd.DataFrame(rows).assign(source_layer=2, target_layer=2, sentences=90, effective_parts=10.0)
    result = finish(tmp_path, "probes", "k", {"table": table}, arrays={"replicates": np.stack(replicates)})
    return chen2025_probes.ProbedLayers("a into b", result, result.table)


def accuracies(feature, native=0.95, carried=0.9, refitted=0.95, random=0.25, words=0.9):
    by_sentence = {probing.NATIVE: native, probing.CARRIED: carried, probing.REFITTED: refitted, probing.RANDOM: random}
    found = {(feature, "sentence", name): each for name, each in by_sentence.items()}
    return found | {(feature, "word", probing.NATIVE): words}


def test_carried_probes_are_told_from_those_that_are_not(tmp_path):
    planted = accuracies("PoS", carried=0.93) | accuracies("Number", carried=0.6) | accuracies("Question", carried=0.74)
    claims = list(
        chen2025_probes._claims_about_context_features(probed(tmp_path, planted | accuracies("Tense", native=0.25)))
    )
    assert [claim.verdict for claim in claims] == ["holds", "does not hold", "undecided", "not testable here"]
    assert "share 0.97 [" in claims[0].numbers
    assert claims[3].numbers == "Word position is not among these stimuli's features"
    assert claims[0].units == "90 sentences"


def test_features_of_single_words_are_unknown_of_other_words(tmp_path):
    planted = accuracies("Gender", carried=0.3, words=0.27) | accuracies("Person", carried=0.8, words=0.8)
    planted |= accuracies("Tense", native=0.25)
    del planted["Tense", "word", probing.NATIVE]
    claims = list(chen2025_probes._claims_about_word_features(probed(tmp_path, planted)))
    verdicts = ["holds", "holds", "does not hold", "does not hold", *["not testable here"] * 4]
    assert [claim.verdict for claim in claims] == verdicts
    assert claims[6].numbers == "Tense is not judged on held-out words"
    assert claims[7].numbers == "Tense is not above chance"


def test_controls_of_all_features_are_judged_together(tmp_path):
    good = probed(tmp_path / "good", accuracies("PoS") | accuracies("Number"))
    bad = probed(tmp_path / "bad", accuracies("PoS") | accuracies("Number", random=0.5, refitted=0.6))
    for claim in (chen2025_probes._claim_about_random_maps, chen2025_probes._claim_about_refitted_probes):
        assert (claim(good).verdict, claim(bad).verdict) == ("holds", "does not hold")
        assert "hold for all 2 together (Bonferroni)" in claim(good).numbers


@cache
def model(name):
    return composed(f"model={name}").model


def steered(tmp_path, **shares):
    """Effects of 40 pairs of 10 words, by (layer, position, strength, condition); the natural one is 10 nats."""
    rows, effects = [], []
    noise = np.random.default_rng(0).normal(0, 0.3, 40)
    conditions = (NATIVE, CARRIED, MATCHED, NEGATED, RANDOM)
    for position, strength in (("word", 1.0), ("word", 2.0), ("later", 4.0)):
        for layer in range(6):  # as many as the models have
            for condition in conditions:
                share = shares.get(condition.split(",")[0].split()[0], 0.0) if layer < 3 else 0.0
                row = {"position": position, "strength": strength, "condition": condition, "share": share}
                rows.append({"source_layer": layer, "target_layer": layer, **row})
                effects.append(10 * share + noise)
    arrays = {"effects": np.stack(effects), "natural": np.full(40, 10.0), "groups": np.arange(40) % 10}
    result = finish(tmp_path, "steering", "k", {"table": pd.DataFrame(rows)}, scalars={"pairs": 40.0}, arrays=arrays)
    return chen2025_steering.SteeringEffects(Pair(*map(model, ("gpt2-mini", "gpt2-mini-s1"))), result)


def test_vectors_that_steer_are_told_from_those_that_do_not(tmp_path):
    good = steered(tmp_path / "good", native=0.95, carried=0.93)
    bad = steered(tmp_path / "bad", native=0.2, carried=0.2, random=0.4)
    number, question = (
        list(chen2025_steering._claims_about_number(good)),
        list(chen2025_steering._claims_about_questions(good)),
    )
    # the negated direction has the share of the carried one here, whose name it begins with
    assert [claim.verdict for claim in number] == ["holds"] * 4 + ["does not hold", "holds"]
    assert [claim.verdict for claim in (*question, chen2025_steering._claim_about_late_layers(good))] == ["holds"] * 5
    assert "gpt2-mini into gpt2-mini-s1, layer 1 → 1, strength 1: the carried" in number[0].claim
    assert number[0].units == "40 pairs of texts with 10 words"
    wrong = [
        claim.verdict
        for claim in (*chen2025_steering._claims_about_number(bad), *chen2025_steering._claims_about_questions(bad))
    ]
    assert set(wrong) == {"does not hold"}


@pytest.mark.ci_slow
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
        results[transfer.label] = finish(tmp_path, "sae", str(number), tables, arrays={"saved": saved.numpy()})
    config = composed("experiment=chen2025/sae", "scale=mini", entry="analyze")
    return chen2025_saes._conclude(ExperimentRun(config, {}, results))


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
    Outcome(found.table, {}, tables=found.tables, blank=found.blank).checked_for_storing()


@pytest.mark.slow
def test_it_rests_on_a_job_for_each_transfer():
    config = composed("experiment=chen2025/sae", "scale=mini", entry="analyze")
    experiment = papers.paper_experiment("chen2025/sae")
    jobs = [inner_job_config(config, part) for part in experiment.inner_jobs(experiment.experiment_run(config))]
    assert [(job.model.name, job.sae.layer, job.sae.source) for job in jobs] == [
        ("gpt2-mini-s1", 2, "gpt2-mini"),
        ("neox-6l-mini", 2, "neox-5l-mini"),
        ("neox-6l-mini", 2, "neox-3l-mini"),
    ]
    assert {job.sae.seeds for job in jobs} == {5}
