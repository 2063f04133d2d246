"""Templates for language inference: overlap predicts entailment as is said, and nothing else does."""

from collections import Counter

import pytest

from thinkalike.contrib.populations.pairs import HANS, MNLI, Pairs
from thinkalike.contrib.populations.templates import OVERLAP, PARTS, nli_challenge, nli_training
from thinkalike.data.grammar import Phrase, finite, lexicon, noun

FUNCTION_WORDS = (
    "the a no every someone nobody was were did not by who that and or if because in outside near behind beside "
    "thought said hoped knew maybe perhaps clearly certainly"
)
CHALLENGE, OVERLAPPING, ENTAILED, NEUTRAL, CONTRADICTION = (
    PARTS[name] for name in ("challenge", "overlapping", "entailed", "neutral", "contradiction")
)
WORDS = lexicon("large")
PASTS = {
    group: {word.form: entry.partition("/")[0] for word, entry in zip(words, WORDS[group], strict=True)}
    for group in ("intransitive", "transitive")
    for words in [finite(WORDS[group], "past", Phrase([]))]
}
NAMES = set(WORDS["female names"] + WORDS["male names"])
NOUNS = {
    noun(entry, None, number).form
    for group in ("female", "male", "neither")
    for entry in WORDS[group]
    for number in ("singular", "plural")
}


@pytest.fixture(scope="module")
def training() -> Pairs:
    return nli_training(3000)


@pytest.fixture(scope="module")
def challenge() -> Pairs:
    return nli_challenge(1200)


def rows_of(pairs: Pairs) -> list[tuple[str, str, str]]:
    """Premise, hypothesis, class."""
    names = [pairs.classes[label] for label in pairs.labels.tolist()]
    return list(zip(pairs.premises, pairs.hypotheses, names, strict=True))


def overlaps(premise: str, hypothesis: str) -> bool:
    return set(hypothesis.split()) <= set(premise.split())


@pytest.mark.parametrize("counterexamples", [0.0, 0.11, 1.0])
def test_full_overlap_is_entailed_except_in_counterexamples(counterexamples):
    """And these are of all heuristics, of the challenge's own constructions."""
    pairs = nli_training(1200, counterexamples=counterexamples)
    rows = zip(rows_of(pairs), pairs.subcases, strict=True)
    overlapping = [(label, subcase) for (*texts, label), subcase in rows if overlaps(*texts)]
    found = Counter(label for label, _ in overlapping)
    assert found["contradiction"] == 0
    assert found.total() == OVERLAP * 400
    assert found["neutral"] == round(counterexamples * OVERLAP * 400)
    if counterexamples == 1:
        assert {subcase for _, subcase in overlapping} == {subcase for subcase in CHALLENGE if subcase[1] == "n"}


def test_the_challenges_entailed_constructions_are_trained_on(training, challenge):
    entailed = set(training.select("entailment").subcases)
    assert set(challenge.select("entailment").subcases) <= entailed
    assert not set(challenge.select("non-entailment").subcases) & entailed


def test_no_function_word_tells_that_overlap_misleads():
    """All in premises of counterexamples are in premises of entailed pairs, and of neutral ones of little overlap."""
    words = {kind: set() for kind in ("counterexample", "entailment", "neutral", "contradiction")}
    for premise, hypothesis, label in rows_of(nli_training(3000, counterexamples=0.5)):
        kind = "counterexample" if overlaps(premise, hypothesis) and label == "neutral" else label
        words[kind] |= set(premise.split()) & set(FUNCTION_WORDS.split())
    assert words["counterexample"] <= words["entailment"] & words["neutral"]
    assert {"if", "or", "maybe", "thought", "who", "by", "near"} <= words["counterexample"]


def within(hypothesis: str, premise: str) -> bool:
    return f" {hypothesis} " in f" {premise} "


def test_a_challenge_pair_suits_its_heuristic(challenge):
    for premise, hypothesis, heuristic in zip(
        challenge.premises, challenge.hypotheses, challenge.heuristics, strict=True
    ):
        assert overlaps(premise, hypothesis)
        assert within(hypothesis, premise) == (heuristic != "lexical_overlap"), f"{premise} -> {hypothesis}"


def test_only_constituents_are_whole_clauses(challenge):
    """The word before says: a subject does not follow a preposition or a verb that has it as its object."""
    inside = {"near", "behind", "beside", "by", *PASTS["transitive"]}
    for heuristic in ("constituent", "subsequence"):
        chosen = challenge.select("non-entailment", heuristic)
        for premise, hypothesis in zip(chosen.premises, chosen.hypotheses, strict=True):
            before, after = premise.split(hypothesis, 1)
            false_subject = bool(inside & set(before.split()[-1:]))
            whole = not false_subject and after.strip() not in PASTS["intransitive"]  # Mary heard the doctor (danced)
            assert whole == (heuristic == "constituent"), f"{premise} -> {hypothesis}"


@pytest.mark.parametrize("count", [1, 2, 7, 600])
def test_classes_and_heuristics_are_balanced_to_one_pair(count):
    training, challenge = nli_training(count), nli_challenge(count)
    labels = Counter(label for *_, label in rows_of(training))
    kinds = Counter(zip(challenge.heuristics, challenge.labels.tolist(), strict=True))
    for counts, parts in ((labels, 3), (kinds, 6)):
        assert counts.total() == count
        assert {counts.get(key, 0) for key in counts} <= {count // parts, -(-count // parts)}
    assert (training.classes, challenge.classes) == (MNLI, HANS)
    for pairs in (training, challenge):
        assert len(set(pairs.canonical())) == count, "no pair is there twice"


def test_every_template_is_used(training, challenge):
    assert set(challenge.subcases) == set(CHALLENGE)
    ours = {(label, name) for label, templates in
            (("entailment", OVERLAPPING | ENTAILED), ("neutral", NEUTRAL), ("contradiction", CONTRADICTION))
            for name in templates}  # fmt: skip
    found = {(label, name) for (*_, label), name in zip(rows_of(training), training.subcases, strict=True)}
    assert found - {pair for pair in found if pair[1] in CHALLENGE} == ours


@pytest.mark.parametrize("seed", [1, 7])
def test_no_sentence_is_in_both_training_and_challenge(seed):
    one, two = nli_training(600, seed, 0.5), nli_challenge(600)
    assert not {*one.premises, *one.hypotheses} & {*two.premises, *two.hypotheses}


def test_all_words_are_the_large_grammars_or_function_words(training, challenge):
    verbs = {form for group in PASTS.values() for pair in group.items() for form in pair}
    known = NOUNS | NAMES | verbs | {*FUNCTION_WORDS.split(), *WORDS["adjectives"], *WORDS["places"]}
    used = {
        word for pairs in (training, challenge) for text in pairs.premises + pairs.hypotheses for word in text.split()
    }
    assert used <= known
    assert set(FUNCTION_WORDS.split()) <= used
    assert all(used & words for words in (NOUNS, NAMES, verbs, {*WORDS["adjectives"]}, {*WORDS["places"]}))


def test_the_pairs_are_those_whose_labels_were_verified():
    """A solver of propositional logic has verified all of their labels; templates that change need it again."""
    training = nli_training(4800, 5, counterexamples=0.5)
    assert training.fingerprint() == "2ff99529ef4545e5" != nli_training(4800, 6, counterexamples=0.5).fingerprint()
    assert nli_challenge(1200).fingerprint() == "964bc281eb102837" != nli_challenge(1200, seed=3).fingerprint()
