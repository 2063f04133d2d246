"""Pairs for language inference: every published format gives the same pairs, or an error that says what is wrong."""

import json
from pathlib import Path

import pandas as pd
import pytest
import torch

from classifiers import of_the_hub
from thinkalike.contrib.populations.config import PairsConfig
from thinkalike.contrib.populations.pairs import HANS, MNLI, Pairs, _fitted, batches, encode, pairs_in, read_pairs
from thinkalike.errors import DataError

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


def published(rows) -> pd.DataFrame:
    names = ["sentence1", "sentence2", "gold_label", "heuristic", "subcase"]
    frame = pd.DataFrame(rows, columns=names[: len(rows[0])])
    return frame.assign(pairID=[f"ex{row}" for row in range(len(rows))], sentence1_parse='(ROOT (S "))')


def write(rows, path: Path) -> Path:
    """As it is published in the format of the ending."""
    if path.suffix == ".parquet":
        of_the_hub(rows).to_parquet(path)
    elif path.suffix == ".jsonl":
        lines = [json.dumps(record) for record in published(rows).to_dict("records")]
        path.write_text("\n".join(lines) + "\n")
    else:
        frame = published(rows)
        lines = ["\t".join(frame), *("\t".join(row) for row in frame.to_numpy())]
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def pairs_of(rows) -> Pairs:
    """By another way than files."""
    classes = HANS if len(rows[0]) > 3 else MNLI
    columns = [list(column) for column in zip(*(row for row in rows if row[2] in classes), strict=True)]
    labels = torch.tensor([classes.index(label) for label in columns[2]])
    return Pairs(columns[0], columns[1], labels, classes, *columns[3:])


@pytest.mark.parametrize("ending", [".jsonl", ".tsv", ".parquet"])
def test_every_format_of_mnli_gives_the_same_labelled_pairs(ending, tmp_path):
    pairs = pairs_in(write(ROWS, tmp_path / f"dev_matched{ending}"), "mnli")
    assert list(zip(pairs.premises, pairs.hypotheses, strict=True)) == [row[:2] for row in ROWS if row[2] != "-"]
    assert [pairs.classes[label] for label in pairs.labels] == [row[2] for row in ROWS if row[2] != "-"]
    assert pairs.fingerprint() == pairs_of(ROWS).fingerprint()
    assert pairs.heuristics == pairs.subcases == [""] * 4


@pytest.mark.parametrize("ending", [".jsonl", ".txt", ".parquet"])
def test_every_format_of_hans_gives_the_same_pairs(ending, tmp_path):
    pairs = pairs_in(write(HARD, tmp_path / f"heuristics_evaluation_set{ending}"), "hans")
    assert pairs.classes == HANS
    assert pairs.labels.tolist() == [1, 0, 1]
    assert list(zip(pairs.heuristics, pairs.subcases, strict=True)) == [row[3:] for row in HARD]
    assert pairs.fingerprint() == pairs_of(HARD).fingerprint()
    if ending == ".txt":  # lines may end as on Windows
        path = tmp_path / "heuristics_evaluation_set.txt"
        path.write_bytes(path.read_bytes().replace(b"\n", b"\r\n"))
        assert pairs_in(path, "hans").fingerprint() == pairs.fingerprint()


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
        (".tsv", "sentence2", "sentnce2", "sentence2"),
    ],
)
def test_a_file_that_is_wrong_is_named_with_its_place(ending, old, new, place, tmp_path):
    with pytest.raises(DataError, match=f"bad{ending}.*{place}"):
        pairs_in(harmed(ROWS, tmp_path / f"bad{ending}", old, new), "mnli")


def test_a_sample_has_distinct_pairs_in_order_fixed_by_its_seed():
    numbers = [str(number) for number in range(50)]
    pairs = Pairs(numbers, numbers, torch.arange(50) % 3, MNLI)
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
    return Pairs(premises, hypotheses, torch.arange(23) % 3, MNLI)


def test_a_pair_is_cls_premise_sep_hypothesis_sep(tokenizer, lettered):
    encoded = encode(lettered, tokenizer, context=32)
    for row in range(len(lettered)):
        first, second = (tokenizer.convert_tokens_to_ids(texts[row].split())
                         for texts in (lettered.premises, lettered.hypotheses))  # fmt: skip
        assert encoded.tokens[row] == [1, *first, 2, *second, 2]
        assert encoded.types[row] == [0] * (len(first) + 2) + [1] * (len(second) + 1)
    assert encoded.truncated == 0


def test_the_longer_text_of_a_long_pair_is_cut_and_counted(tokenizer):
    pairs = Pairs(["a b c d e f", "a b", "a"], ["g h", "c d", "a b c d e f g"], torch.tensor([0, 1, 2]), MNLI)
    encoded = encode(pairs, tokenizer, context=8)
    words = [tokenizer.convert_ids_to_tokens(tokens) for tokens in encoded.tokens]
    assert [" ".join(row) for row in words] == [
        "[CLS] a b c [SEP] g h [SEP]",
        "[CLS] a b [SEP] c d [SEP]",
        "[CLS] a [SEP] a b c d [SEP]",
    ]
    assert encoded.truncated == 2
    assert encode(pairs, tokenizer, context=11).tokens[1] == encoded.tokens[1]


@pytest.mark.parametrize("size", [4, 100])
def test_batches_hold_each_pair_once_with_what_it_was_encoded_as(size, tokenizer, lettered):
    encoded, seen = encode(lettered, tokenizer, context=32), []
    for batch in batches(encoded, size):
        lengths = batch.mask.sum(1)
        assert batch.tokens.shape[1] == lengths.max()
        assert len(batch.rows) <= size
        for place, row in enumerate(batch.rows.tolist()):
            length = int(lengths[place])
            assert batch.mask[place, :length].all()
            assert batch.tokens[place].tolist() == encoded.tokens[row] + [0] * (batch.tokens.shape[1] - length)
            assert batch.types[place, :length].tolist() == encoded.types[row]
            seen.append(row)
    assert sorted(seen) == list(range(23))
    sizes = [len(encoded.tokens[row]) for row in seen]
    assert sizes == sorted(sizes, reverse=True), "the longest first, so that little is padded"


FITTED = [(f"The doctor saw poet {n}.", f"Poet {n} danced.", MNLI[n % 3]) for n in range(20)]
OWN = [(f"The judge heard actor {n}.", f"Actor {n} sang.", MNLI[n % 3]) for n in range(10)]
OWN_HARD = [(f"Guide {n} met the child .", f"The child met {n} .", HANS[n % 2], "subsequence", "x") for n in range(6)]
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
    _fitted.cache_clear()
    sets = {("mnli", "train"): FITTED, ("mnli", None): [*FITTED[:5], *OWN], ("hans", None): OWN_HARD}
    monkeypatch.setattr(
        "thinkalike.contrib.populations.pairs.hub_pairs", lambda name, split=None: pairs_of(sets[name, split])
    )
    config = PairsConfig(source="hub", fit_pairs=3, report_pairs=None, challenge_pairs=None)
    assert read_pairs(config, "report").premises == [premise for premise, *_ in OWN]
    assert len(read_pairs(config, "challenge")) == len(OWN_HARD)
