"""Pairs for language inference: labels of templates follow from the meaning, and published formats are read alike."""

from collections import Counter
from functools import reduce
from operator import and_, or_
from pathlib import Path

import pytest
import torch
from published_pairs import write

from thinkalike.contrib.populations.config import PairsConfig
from thinkalike.contrib.populations.encoding import encode_pairs, padded_batches
from thinkalike.contrib.populations.pair_files import pairs_in
from thinkalike.contrib.populations.pair_sets import _training_pairs, read_pairs
from thinkalike.contrib.populations.pair_templates import OVERLAP, TEMPLATES, nli_challenge, nli_training
from thinkalike.contrib.populations.pairs import HANS_CLASSES, MNLI_CLASSES, Pairs
from thinkalike.data.grammar import Phrase, finite_verbs, lexicon, noun
from thinkalike.errors import DataError

FUNCTION_WORDS = (
    "the a no every someone nobody was were did not by who that and or if because in outside near behind beside "
    "thought said hoped knew maybe perhaps clearly certainly"
)
CHALLENGE, OVERLAPPING, ENTAILED, NEUTRAL, CONTRADICTION = (
    TEMPLATES[name] for name in ("challenge", "overlapping", "entailed", "neutral", "contradiction")
)
WORDS = lexicon("large")
PASTS = {
    group: {word.form: entry.partition("/")[0] for word, entry in zip(words, WORDS[group], strict=True)}
    for group in ("intransitive", "transitive")
    for words in [finite_verbs(WORDS[group], "past", Phrase([]))]
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


class Logic:
    """What sentences of the templates say, as propositions: the set of the worlds where they are true, as bits.

    A verb with its subject and object is an atom. What is thought, hoped, heard or possible is true in worlds of its
    own, where it follows the same logic, and says nothing of ours. `someone` is one of the people mentioned or another.
    """

    SIZE = 12  # at most so many atoms are in a pair

    def __init__(self, *sentences: str):
        self.everywhere = (1 << (1 << self.SIZE)) - 1
        self.atoms: dict[tuple[str, ...], int] = {}
        words = " ".join(sentences).split()
        self.people = [word for word in dict.fromkeys(words) if word in NAMES | NOUNS] + ["another"]

    def atom(self, *key: str) -> int:
        if key not in self.atoms:
            width = 1 << len(self.atoms)
            assert len(self.atoms) < self.SIZE
            period = ((1 << width) - 1) << width
            self.atoms[key] = sum(period << shift for shift in range(0, 1 << self.SIZE, 2 * width))
        return self.atoms[key]

    def no(self, worlds: int) -> int:
        return self.everywhere & ~worlds

    def possible(self) -> int:
        """The worlds where nobody is both tall and short."""
        opposites = dict(pair.split("/") for pair in TEMPLATES["opposites"].split())
        keys = [(key, (key[0], "is", opposites[key[2]], key[3])) for key in list(self.atoms) if key[2] in opposites]
        return reduce(and_, (self.no(self.atom(*key) & self.atom(*other)) for key, other in keys), self.everywhere)

    def sentence(self, words: list[str], world: str = "") -> int:
        if words[0] in ("maybe", "perhaps"):
            return self.sentence(words[1:], world + "possibly ")
        if words[0] in ("clearly", "certainly"):
            return self.sentence(words[1:], world)
        if "that" in words:
            return self.thought(words[: words.index("that")], words[words.index("that") + 1 :], world)
        if words[0] in ("if", "because"):
            end = next(place for place, word in enumerate(words) if word in PASTS["intransitive"]) + 1
            return self.joined(words[0], words[1:end], words[end:], world)
        for place, word in enumerate(words):
            if word in ("if", "because"):
                return self.joined(word, words[place + 1 :], words[:place], world)
            if word in ("and", "or") and words[place - 1] in PASTS["intransitive"]:
                return self.joined(word, words[:place], words[place + 1 :], world)
        return self.clause(words, world)

    def joined(self, word: str, first: list[str], second: list[str], world: str) -> int:
        one, other = self.sentence(first, world), self.sentence(second, world)
        return {"if": self.no(one) | other, "or": one | other}.get(word, one & other)

    def thought(self, start: list[str], content: list[str], world: str) -> int:
        people, said, rest = self.phrase(start, world)
        (verb,) = rest
        worlds = [self.sentence(content, f"{world}{person} {verb} ") for person in people]
        return reduce(and_, [*worlds, said, self.sentence(content, world) if verb == "knew" else self.everywhere])

    def clause(self, words: list[str], world: str) -> int:
        denied = words[0] in ("no", "nobody")
        either = words[0] in ("someone", "nobody")
        people, said, rest = (self.people, self.everywhere, words[1:]) if either else self.phrase(words, world)
        each = [self.predicate(person, rest, world) for person in people]
        worlds = reduce(or_ if either else and_, each)
        return said & (self.no(worlds) if denied else worlds)

    def predicate(self, person: str, words: list[str], world: str) -> int:
        verb, *rest = words
        if verb in ("was", "were") and rest[-1] in WORDS["adjectives"]:
            worlds = self.atom(world, "is", rest[-1], person)
            return self.no(worlds) if rest[0] == "not" else worlds
        if verb in ("was", "were"):
            (agent,), said, nothing = self.phrase(rest[2:], world)
            assert (rest[1], nothing) == ("by", [])
            return said & self.atom(world, PASTS["transitive"][rest[0]], agent, person)
        if verb == "did":
            assert rest[0] == "not"
            return self.no(self.event(person, rest[1], rest[2:], world))
        base = PASTS["transitive"].get(verb) or PASTS["intransitive"][verb]
        return self.event(person, base, rest, world)

    def event(self, person: str, base: str, rest: list[str], world: str) -> int:
        """dance; help Mary; help Mary in the park; hear Mary danced"""
        where = rest[-3:] if rest[-3:-2] in (["in"], ["outside"]) else []
        rest = rest[: len(rest) - len(where)]
        objects, said, after = [""], self.everywhere, list[str]()
        if rest == ["someone"]:
            return reduce(or_, (self.atom(world, base, person, other) for other in self.people))
        if rest and rest[-1] in PASTS["intransitive"]:
            return self.sentence(rest, f"{world}{person} {base} ")
        if rest:
            objects, said, after = self.phrase(rest, world)
        assert after == []
        worlds = [self.atom(world, base, person, other) for other in objects]
        places = [self.atom(world, base, person, other, *where) for other in objects] if where else []
        return reduce(and_, [said, *worlds, *places])

    def phrase(self, words: list[str], world: str) -> tuple[list[str], int, list[str]]:
        """The people of a noun phrase, what is said of them, and the words after it."""
        person, said, words = self.person(words, world)
        people = [person]
        while words and words[0] == "and":
            person, more, words = self.person(words[1:], world)
            people.append(person)
            said &= more
        return people, said, words

    def person(self, words: list[str], world: str) -> tuple[str, int, list[str]]:
        said = self.everywhere
        words = words[1:] if words[0] in ("the", "a", "every", "no") else words
        adjective, words = (words[0], words[1:]) if words[0] in WORDS["adjectives"] else ("", words)
        person, *words = words
        assert person in NOUNS | NAMES, person
        if adjective:
            said &= self.atom(world, "is", adjective, person)
        if words and words[0] in ("near", "behind", "beside"):
            other, more, after = self.person(words[1:], world)
            return person, said & more & self.atom(world, words[0], person, other), after
        if words and words[0] == "who":
            other, more, after = self.person(words[2:], world)
            return person, said & more & self.atom(world, PASTS["transitive"][words[1]], person, other), after
        if words[1:] and words[1] == "by":
            other, more, after = self.person(words[2:], world)
            return person, said & more & self.atom(world, PASTS["transitive"][words[0]], other, person), after
        return person, said, words


def follows(premise: str, hypothesis: str) -> str:
    """The class of a pair by its meaning."""
    logic = Logic(premise, hypothesis)
    first, second = (logic.sentence(text.split()) for text in (premise, hypothesis))
    first &= logic.possible()
    assert first, f"can never be: {premise}"
    return "entailment" if not first & ~second else "neutral" if first & second else "contradiction"


@pytest.mark.parametrize(
    ("premise", "hypothesis", "label"),
    [
        ("Mary danced", "Mary danced", "entailment"),
        ("Mary danced", "Mary did not dance", "contradiction"),
        ("Mary danced", "John danced", "neutral"),
        ("Mary and John danced", "John danced", "entailment"),
        ("Mary danced or John played", "John played", "neutral"),
        ("if Mary danced John played", "John played", "neutral"),
        ("if Mary danced John played", "John played if Mary danced", "entailment"),
        ("if Mary danced John played", "Mary danced if John played", "neutral"),
        ("John played because Mary danced", "Mary danced", "entailment"),
        ("Mary knew that John danced", "John did not dance", "contradiction"),
        ("Mary thought that John danced", "John did not dance", "neutral"),
        ("maybe Mary and John danced", "maybe John danced", "entailment"),
        ("maybe Mary danced", "Mary danced", "neutral"),
        ("the poet was helped by Mary", "Mary helped the poet", "entailment"),
        ("the poet was helped by Mary", "the poet helped Mary", "neutral"),
        ("the poet helped by Mary danced", "Mary danced", "neutral"),
        ("the poet who helped Mary danced", "the poet helped Mary", "entailment"),
        ("Mary heard the doctor danced", "Mary heard the doctor", "neutral"),
        ("Mary did not dance", "Mary did not dance in the park", "entailment"),
        ("Mary danced in the park", "Mary danced in the farm", "neutral"),
        ("nobody helped Mary", "John did not help Mary", "entailment"),
        ("the poet was tall", "the poet was short", "contradiction"),
        ("the poet was short", "the poet was not tall", "entailment"),
        ("the poet was tall", "the poet was brave", "neutral"),
    ],
)
def test_the_logic_says_what_a_reader_says(premise, hypothesis, label):
    assert follows(premise, hypothesis) == label


@pytest.mark.parametrize("count", [800, pytest.param(4800, marks=pytest.mark.slow)])
def test_every_label_of_the_training_follows_from_the_meaning(count):
    for premise, hypothesis, label in rows_of(nli_training(count, 5, counterexamples=0.5)):
        assert follows(premise, hypothesis) == label, f"{premise} -> {hypothesis}"


def test_every_label_of_the_challenge_follows_from_the_meaning(challenge):
    for premise, hypothesis, label in rows_of(challenge):
        assert (follows(premise, hypothesis) == "entailment") == (label == "entailment"), f"{premise} -> {hypothesis}"


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


def test_a_challenge_pair_suits_its_heuristic(challenge):
    for premise, hypothesis, heuristic in zip(
        challenge.premises, challenge.hypotheses, challenge.heuristics, strict=True
    ):
        assert overlaps(premise, hypothesis)
        within = f" {hypothesis} " in f" {premise} "
        assert within == (heuristic != "lexical_overlap"), f"{premise} -> {hypothesis}"


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
    assert (training.classes, challenge.classes) == (MNLI_CLASSES, HANS_CLASSES)
    for pairs in (training, challenge):
        assert len(set(pairs.normalised_texts())) == count, "no pair is there twice"


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


def test_the_pairs_are_the_same_in_every_process():
    """Values of another one: sets, whose order differs between processes, decide nothing."""
    assert nli_training(300).fingerprint() == "fb5fb5076fdd9c26" != nli_training(300, seed=3).fingerprint()
    assert nli_challenge(300).fingerprint() == "0172a5f2fc223fcd" != nli_challenge(300, seed=3).fingerprint()


# premise, hypothesis, class; one has a quotation mark that is never closed, one a line separator, one no agreed label
ROWS = [
    ("The doctor danced.", "A doctor moved.", "entailment"),
    ('He said "no.', "He said\u2028yes.", "contradiction"),
    ("The new rights are nice enough", "Everyone likes them", "neutral"),
    ("One of our number", "A member of my team", "-"),
    ("Ça va, 100%?", "NULL", "entailment"),
]
HARD = [
    ("The doctor saw the actor .", "The actor saw the doctor .", "non-entailment", "lexical_overlap", "ln_swap"),
    ("The doctor and the actor danced .", "The actor danced .", "entailment", "subsequence", "se_conjunction"),
    ("If the actor slept , the judge ran .", "The judge ran .", "non-entailment", "constituent", "cn_after_if_clause"),
]


def pairs_of(rows) -> Pairs:
    """By another way than files."""
    classes = HANS_CLASSES if len(rows[0]) > 3 else MNLI_CLASSES
    columns = [list(column) for column in zip(*(row for row in rows if row[2] in classes), strict=True)]
    labels = torch.tensor([classes.index(label) for label in columns[2]])
    return Pairs(columns[0], columns[1], labels, classes, *columns[3:])


@pytest.mark.parametrize("ending", [".jsonl", ".tsv", ".txt", ".parquet"])
@pytest.mark.parametrize(("name", "rows"), [("mnli", ROWS), ("hans", HARD)])
def test_every_format_gives_the_same_labelled_pairs(name, rows, ending, tmp_path):
    path, wanted = write(rows, tmp_path / f"set{ending}"), [row for row in rows if row[2] != "-"]
    pairs = pairs_in(path, name)
    labels = [pairs.classes[label] for label in pairs.labels]
    found = zip(pairs.premises, pairs.hypotheses, labels, pairs.heuristics, pairs.subcases, strict=True)
    assert list(found) == [(*row, "", "")[:5] for row in wanted]
    assert pairs.fingerprint() == pairs_of(rows).fingerprint()
    if ending == ".txt":  # lines may end as on Windows
        path.write_bytes(path.read_bytes().replace(b"\n", b"\r\n"))
        assert pairs_in(path, name).fingerprint() == pairs.fingerprint()


def harmed(rows, path: Path, old: str, new: str) -> Path:
    text = write(rows, path).read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new, 1), encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("ending", "old", "new", "place"),
    [
        (".tsv", "\tneutral", "\t3", "row 3"),
        (".jsonl", '"neutral"', "null", "row 3"),
        (".jsonl", '"One of our number"', "7.5", "row 4"),
        (".jsonl", '{"sentence1": "One', '{"sentence1: "One', "line 4"),
        (".tsv", "One of our number\t", "One of our number ", "line 5"),
        (".tsv", "sentence2", "sentence1", "two columns sentence1"),
        (".tsv", "sentence2", "sentnce2", "sentence2"),
    ],
)
def test_a_file_that_is_wrong_is_named_with_its_place(ending, old, new, place, tmp_path):
    with pytest.raises(DataError, match=f"bad{ending}.*{place}"):
        pairs_in(harmed(ROWS, tmp_path / f"bad{ending}", old, new), "mnli")


def test_a_sample_has_distinct_pairs_in_order_fixed_by_its_seed():
    numbers = [str(number) for number in range(50)]
    pairs = Pairs(numbers, numbers, torch.arange(50) % 3, MNLI_CLASSES)
    sample = pairs.sample(20, seed=3)
    assert sorted(set(sample.premises), key=int) == sample.premises
    assert len(sample) == 20
    assert [int(text) % 3 for text in sample.premises] == sample.labels.tolist()
    assert sample.fingerprint() == pairs.sample(20, seed=3).fingerprint() != pairs.sample(20, seed=4).fingerprint()


@pytest.fixture(scope="module")
def tokenizer():
    """Whole words, and pairs as BERT has them."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    words = ["[PAD]", "[CLS]", "[SEP]", "[UNK]", *"abcdefgh"]
    built = Tokenizer(models.WordLevel({word: place for place, word in enumerate(words)}, unk_token="[UNK]"))
    built.pre_tokenizer = pre_tokenizers.Whitespace()
    built.post_processor = processors.BertProcessing(("[SEP]", 2), ("[CLS]", 1))
    special = {"pad_token": "[PAD]", "cls_token": "[CLS]", "sep_token": "[SEP]", "unk_token": "[UNK]"}
    return PreTrainedTokenizerFast(tokenizer_object=built, **special)


@pytest.fixture
def lettered() -> Pairs:
    """Pairs of 1 to 14 letters each."""
    premises = [" ".join("abcdefgh"[: 1 + row % 8]) for row in range(23)]
    hypotheses = [" ".join("hgfedcba"[: 1 + row % 6]) for row in range(23)]
    return Pairs(premises, hypotheses, torch.arange(23) % 3, MNLI_CLASSES)


def test_a_pair_is_cls_premise_sep_hypothesis_sep(tokenizer, lettered):
    encoded = encode_pairs(lettered, tokenizer, context=32)
    for row in range(len(lettered)):
        first, second = (tokenizer.convert_tokens_to_ids(texts[row].split())
                         for texts in (lettered.premises, lettered.hypotheses))  # fmt: skip
        assert encoded.tokens[row] == [1, *first, 2, *second, 2]
        assert encoded.types[row] == [0] * (len(first) + 2) + [1] * (len(second) + 1)
    assert encoded.truncated == 0


def test_the_longer_text_of_a_long_pair_is_cut_and_counted(tokenizer):
    pairs = Pairs(["a b c d e f", "a b", "a"], ["g h", "c d", "a b c d e f g"], torch.tensor([0, 1, 2]), MNLI_CLASSES)
    encoded = encode_pairs(pairs, tokenizer, context=8)
    words = [tokenizer.convert_ids_to_tokens(tokens) for tokens in encoded.tokens]
    assert [" ".join(row) for row in words] == [
        "[CLS] a b c [SEP] g h [SEP]",
        "[CLS] a b [SEP] c d [SEP]",
        "[CLS] a [SEP] a b c d [SEP]",
    ]
    assert encoded.truncated == 2
    assert encode_pairs(pairs, tokenizer, context=11).tokens[1] == encoded.tokens[1]


@pytest.mark.parametrize("size", [4, 100])
def test_batches_hold_each_pair_once_with_what_it_was_encoded_as(size, tokenizer, lettered):
    encoded, seen = encode_pairs(lettered, tokenizer, context=32), []
    for batch in padded_batches(encoded, size):
        lengths = batch.mask.sum(1)
        assert batch.tokens.shape[1] == lengths.max()
        assert len(batch.pair_indices) <= size
        for place, row in enumerate(batch.pair_indices.tolist()):
            length = int(lengths[place])
            assert batch.mask[place, :length].all()
            assert batch.tokens[place].tolist() == encoded.tokens[row] + [0] * (batch.tokens.shape[1] - length)
            assert batch.types[place, :length].tolist() == encoded.types[row]
            seen.append(row)
    assert sorted(seen) == list(range(23))
    sizes = [len(encoded.tokens[row]) for row in seen]
    assert sizes == sorted(sizes, reverse=True), "the longest first, so that little is padded"


FITTED = [(f"The doctor saw poet {n}.", f"Poet {n} danced.", MNLI_CLASSES[n % 3]) for n in range(20)]
OWN = [(f"The judge heard actor {n}.", f"Actor {n} sang.", MNLI_CLASSES[n % 3]) for n in range(10)]
OWN_HARD = [
    (f"Guide {n} met the child .", f"The child met {n} .", HANS_CLASSES[n % 2], "subsequence", "x") for n in range(6)
]
RESPELT = {
    "none": lambda text: text,
    "upper case": str.upper,
    "white space": lambda text: f" {text.replace(' ', '  ')} ",
}


def from_files(tmp_path, report, challenge=OWN_HARD, **changes) -> PairsConfig:
    paths = {"fit": FITTED, "report": report, "challenge": challenge}
    files = {side: str(write(rows, tmp_path / f"{side}.jsonl")) for side, rows in paths.items()}
    counts = {"fit_pairs": 5, "report_pairs": None, "challenge_pairs": None}
    return PairsConfig(source="files", **{**files, **counts, **changes})


@pytest.mark.parametrize("change", RESPELT)
def test_pairs_that_repeat_a_fit_pair_are_dropped_and_counted(change, tmp_path):
    """Also those that repeat one which a job of few pairs does not take, and those of another label."""
    again = [(*map(RESPELT[change], (premise, hypothesis)), "neutral") for premise, hypothesis, _ in FITTED[4:12]]
    hard = [(*pair[:2], "entailment", "subsequence", "x") for pair in again[:2]]
    swapped = [(hypothesis, premise, label) for premise, hypothesis, label in FITTED[:3]]
    config = from_files(tmp_path, [*again, *OWN, *swapped], [*OWN_HARD, *hard])
    report, challenge = read_pairs(config, "report"), read_pairs(config, "challenge")
    assert report.premises == [premise for premise, *_ in [*OWN, *swapped]]
    assert challenge.premises == [premise for premise, *_ in OWN_HARD]
    assert len(read_pairs(config, "fit")) == 5
    write(again, tmp_path / "report.jsonl")
    with pytest.raises(DataError, match=r"report\.jsonl: all 8 pairs are also in"):
        read_pairs(config, "report")


def test_the_sides_of_the_hub_are_apart(monkeypatch):
    _training_pairs.cache_clear()
    sets = {("mnli", "train"): FITTED, ("mnli", None): [*FITTED[:5], *OWN], ("hans", None): OWN_HARD}
    monkeypatch.setattr(
        "thinkalike.contrib.populations.pair_sets.hub_pairs", lambda name, split=None: pairs_of(sets[name, split])
    )
    config = PairsConfig(source="hub", fit_pairs=3, report_pairs=None, challenge_pairs=None)
    assert read_pairs(config, "report").premises == [premise for premise, *_ in OWN]
    assert len(read_pairs(config, "challenge")) == len(OWN_HARD)
