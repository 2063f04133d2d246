"""Copies and near-duplicates stand on one side only, and reports read the beginnings of many documents."""

import json
import random
from dataclasses import replace
from itertools import count

import numpy as np
import pytest
import torch

import tiny
from letters import Letters
from thinkalike.config import DataConfig
from thinkalike.data.corpus import read_corpus
from thinkalike.data.documents import (
    DOCUMENTS_FOR_INTERVALS,
    beginning,
    beginning_bytes,
    document_fingerprint,
)
from thinkalike.data.near_duplicates import near_duplicates, shingles
from thinkalike.data.paired import SourceTokenizer
from thinkalike.data.splits import DocumentSplit, training_texts
from thinkalike.errors import DataError
from thinkalike.states.pieces import held_out_texts

SHARE = 0.3
ALL = 10**9


def for_report(text: str) -> bool:
    return int(document_fingerprint(text)[:8], 16) / 16**8 < SHARE


def placed(text: str, report: bool) -> str:
    """The text with one more word, chosen so that it falls on this side."""
    return next(each for number in count() if for_report(each := f"{text}\nserial{number}") == report)


def lines(seed: int, number: int = 20) -> list[str]:
    words = tiny.document(seed, words=6 * number).split()
    return ["    " * (place % 3) + " ".join(words[6 * place :][:6]) for place in range(number)]


def other(seed: int, report: bool) -> str:
    """A document that is like no other."""
    return placed("\n".join(lines(1000 + 2 * seed + report)), report)


OTHERS = [other(seed, report) for seed in range(4) for report in (True, False)]


@pytest.fixture
def source(tmp_path, monkeypatch):
    """A configuration whose documents are those given: in a file, or streamed from the hub, where they are counted."""

    def make(texts: list[str], kind: str = "text", **changes) -> DataConfig:
        make.read = 0

        def streamed(*_, **__):
            for text in texts:
                make.read += 1
                yield {"text": text}

        monkeypatch.setattr("thinkalike.data.documents.stream_records", streamed)
        monkeypatch.setattr("thinkalike.data.documents.commit_of", lambda *_: "0" * 40)
        path = tmp_path / f"{len(list(tmp_path.iterdir()))}.jsonl"
        path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
        own = {"files": [str(path)]} if kind == "text" else {"hub_id": "someone/set"}
        cache = tmp_path / f"cache-{path.stem}"
        return DataConfig(
            name=kind, source=kind, field="text", evaluation_share=SHARE, cache=str(cache), **{**own, **changes}
        )

    return make


def read(config, *, fit_tokens=None, evaluation_tokens=ALL):
    tokenizer = Letters()
    tokenizer.eos_token_id = 0
    config = replace(config, evaluation_tokens=evaluation_tokens)
    return read_corpus(config, tokenizer, 16, bos=False, fit_tokens=fit_tokens, whole=True)


def reported(corpus) -> str:
    return "".join(map(chr, corpus.report.tokens.flatten().tolist()))


def held_out(config) -> list[str]:
    """The documents of the report of a job that fits something."""
    sides = DocumentSplit(config)
    report = [text for text, is_for_evaluation in sides if is_for_evaluation]
    if not sides.evaluation_is_provisional:
        return report
    return [text for text, repeats in zip(report, sides.repeats_of_fitting_documents(), strict=True) if not repeats]


both = pytest.mark.parametrize("kind", ["text", "hub"])

CHANGES = {
    "none": lambda text: text,
    "reindented": lambda text: "\n".join("\t\t" + line.strip() for line in text.split("\n")),
    "upper case": str.upper,
    "CRLF": lambda text: text.replace("\n", "\r\n"),
    "joined lines": lambda text: " ".join(text.split()),
    "punctuation": lambda text: text.replace(" ", ", "),
    "quotation marks": lambda text: "\n".join(f'"{line}"' for line in text.split("\n")),
    "wrapped elsewhere": lambda text: "\n".join(" ".join(text.split()[place:][:9]) for place in range(0, 130, 9)),
}


@both
@pytest.mark.parametrize("first", ["fit", "report"])
@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("kept", [0.4, 0.6])
def test_a_report_document_gives_way_to_its_near_duplicate(kept, change, first, kind, source):
    """With 40 % of its lines in the other one it stays, so that the test could fail."""
    mine = lines(1)
    theirs = mine[: int(kept * len(mine))] + lines(2)[int(kept * len(mine)) :]
    report, fit = placed("\n".join(mine), True), placed(CHANGES[change]("\n".join(theirs)), False)
    planted = [fit, report] if first == "fit" else [report, fit]
    config = source([planted[0], *OTHERS, planted[1]], kind)
    corpus = read(config)
    assert (report[:50] in reported(corpus)) == (kept < 0.5)
    assert corpus.counts["near_duplicates"] == (kept > 0.5)
    assert held_out(config).count(report) == (kept < 0.5)
    assert fit in list(training_texts(config)), "the side to fit on never gives way"


@pytest.mark.parametrize(
    ("mine", "theirs", "near"),
    [
        ("part", "whole", True),  # all of a small one stands in a large one
        ("whole", "part", False),  # but what is new in the large one is most of it
        ("whole", "scattered", False),  # no single document has half of it
    ],
)
def test_near_duplicates_are_by_the_share_of_one_document(mine, theirs, near):
    whole = lines(1, 60)
    texts = {
        "whole": ["\n".join(whole)],
        "part": ["\n".join(whole[:20])],
        "scattered": ["\n".join(whole[start : start + 20] + lines(9, 20)) for start in (0, 20, 40)],
    }
    (found,) = near_duplicates([shingles(texts[mine][0])], map(shingles, texts[theirs]))
    assert found == near


@pytest.mark.parametrize(
    "script", ["".join(map(chr, range(0x4E00, 0x4E40))), "".join(map(chr, range(0x0E01, 0x0E2F)))], ids=["Han", "Thai"]
)
def test_scripts_without_spaces_are_compared_as_well(script):
    chance = random.Random(0)
    first, second, third = ("".join(chance.choices(script, k=200)) for _ in range(3))
    found = near_duplicates([shingles(first + second[:60]), shingles(third)], [shingles(first)])
    assert found.tolist() == [True, False]


def test_shingles_are_the_same_in_every_process():
    """Else one job would keep a document that the next leaves out."""
    assert shingles(" ".join(map(str, range(40)))).sum() == np.uint64(16643284410672951850)
    assert shingles("A short  one.").tolist() == [12280674782606817776]
    assert len(shingles(" ".join(map(str, range(40))))) == 33


@both
def test_documents_that_differ_in_case_and_space_are_copies(kind, source):
    copies = [
        next(c for n in count() if for_report(c := text.upper() + "\r\n" * n) == for_report(text)) for text in OTHERS
    ]
    once, twice = source(OTHERS, kind), None
    expected = list(training_texts(once)), held_out(once), read(once)
    twice = source([*OTHERS, *copies], kind)
    assert (list(training_texts(twice)), held_out(twice)) == expected[:2]
    corpus = read(twice)
    assert torch.equal(corpus.report.tokens, expected[2].report.tokens)
    assert (expected[2].counts["duplicate_documents"], corpus.counts["duplicate_documents"]) == (0, len(OTHERS))


def mixed(seed: int) -> list[str]:
    """Documents that hold much of one another: their parts are drawn from a few texts, in blocks."""
    chance = random.Random(seed)
    blocks = [lines(100 * seed + number, 4) for number in range(12)]
    texts = []
    for number in range(40):
        own = [lines(10_000 + 100 * seed + number, 4) for _ in range(chance.randint(0, 2))]
        parts = chance.sample(blocks, chance.randint(1, 5)) + own
        text = "\n".join(line for part in parts for line in part)
        texts.append(chance.choice(list(CHANGES.values()))(text) if number % 3 else " ".join(text.split()[:20]))
    return texts


def slow_shingles(text: str) -> set:
    """The same set by another way: character by character, without hashes."""
    words = "".join(c if c.isalnum() or c == "_" else " " for c in text.casefold()).split()
    runs = {tuple(words[place : place + 8]) for place in range(len(words) - 7)}
    return runs if len(runs) >= 16 else {" ".join(text.casefold().split())}


@both
@pytest.mark.parametrize("seed", range(2))
def test_no_report_document_has_half_its_shingles_in_a_fit_one(seed, kind, source):
    texts = mixed(seed)
    config = source(texts, kind)
    fit, kept = [slow_shingles(text) for text in training_texts(config)], set(held_out(config))

    def near(text: str) -> bool:
        own = slow_shingles(text)
        return any(2 * len(own & theirs) > len(own) for theirs in fit)

    candidates = list(dict.fromkeys(text for text in texts if for_report(text)))
    assert not any(near(text) for text in kept)
    canonical = {" ".join(text.casefold().split()) for text in kept}
    left_out = [text for text in candidates if " ".join(text.casefold().split()) not in canonical]
    assert all(near(text) for text in left_out), "and no other is left out"
    assert 0 < len(left_out) < len(candidates)


@both
def test_the_side_to_fit_on_does_not_depend_on_the_report(kind, source):
    texts = mixed(7)
    whole, alone = source(texts, kind), [text for text in texts if not for_report(text)]
    rows, fitted = read(whole).fit.tokens, list(training_texts(whole))
    assert fitted == list(training_texts(source(alone, kind)))
    assert torch.equal(rows, read(source(alone + [each for each in OTHERS if for_report(each)], kind)).fit.tokens)


def test_on_the_same_split_no_document_gives_way(source):
    report = placed("\n".join(lines(1)), True)
    texts = [report, placed("\n".join(lines(1)), False), *OTHERS]
    corpus = read(source(texts, same_split=True))
    assert report in reported(corpus)
    assert torch.equal(corpus.fit.tokens, corpus.report.tokens)
    assert corpus.counts["near_duplicates"] == 0
    assert report not in reported(read(source(texts)))


FILLING = [other(seed, seed % 3 == 0) for seed in range(10, 400)]


@both
def test_where_nothing_is_fitted_near_duplicates_stay(kind, source):
    """As in a set of instructions that a model was tuned on, whose documents are all filled into one template."""
    template = "\n".join(lines(1))
    texts = [f"{template} {number}" for number in range(200)]
    config = source(texts, kind)
    with pytest.raises(DataError, match="0 documents"):
        read(config, fit_tokens=16, evaluation_tokens=2**16)
    corpus = read(config, fit_tokens=0, evaluation_tokens=2**16)
    expected = [text for text in texts if for_report(text)]
    assert corpus.counts["report_documents"] == len(expected) > 20
    assert list(held_out_texts(config)) == expected
    assert corpus.fit.tokens.numel() == 0


@pytest.mark.parametrize("texts", [FILLING[:2], FILLING[:5], FILLING], ids=len)
def test_where_nothing_is_fitted_nothing_is_held_out(texts, source):
    config = replace(source(texts), evaluation_share=None)
    assert list(held_out_texts(config)) == texts
    assert read(config, fit_tokens=0, evaluation_tokens=2**20).counts["report_documents"] == len(texts)
    assert len(held_out(config)) < len(texts), "control: a job that fits something"
    assert len(list(held_out_texts(replace(config, evaluation_share=0.5)))) < len(texts), (
        "a share that is set is the share"
    )


def test_unread_documents_of_local_files_count_as_well(source):
    report, fit = placed("\n".join(lines(1)), True), placed("\n".join(lines(1)), False)
    near, far = source([report, *FILLING, fit]), source([report, *FILLING])
    assert report in reported(read(far, fit_tokens=16, evaluation_tokens=2048))
    assert report not in reported(read(near, fit_tokens=16, evaluation_tokens=2048))


def test_a_hub_sets_report_is_refilled_from_what_was_read(source):
    report, fit = placed("\n".join(lines(1)), True), placed("\n".join(lines(1)), False)
    texts = [report, *FILLING[:40], fit, *FILLING[40:]]
    size = 16 * (sum(len(text) + 1 for text in [report, *FILLING[:40]] if for_report(text)) // 16)
    corpus = read(source(texts, "hub"), fit_tokens=16, evaluation_tokens=size)
    assert corpus.report.tokens.numel() == size, "another document stands in for the one that gave way"
    assert report not in reported(corpus)
    assert corpus.counts["near_duplicates"] == 1
    assert source.read < len(texts), "and no more is read than that takes"
    late = read(source([report, *FILLING, fit], "hub"), fit_tokens=16, evaluation_tokens=2048)
    assert report in reported(late)
    assert source.read < len(FILLING)
    assert report not in reported(read(source([report, *FILLING, fit], "hub"), evaluation_tokens=2048))


WORDS = "one two three four five six seven"


@pytest.mark.parametrize(
    ("text", "most", "expected"),
    [
        (WORDS, None, WORDS),
        ("short", 100, "short"),
        ("abcdefghij", 4, "abcd"),
        ("ab cdefghij", 8, "ab cdefg"),  # its last space is too far back
        ("ééééé", 5, "éé"),  # no half characters
        ("a\nb\nc  \nd", 8, "a\nb\nc"),
        (" " * 20, 8, " " * 8),
    ],
)
def test_the_end_of_a_beginning(text, most, expected):
    assert beginning(text, most) == expected


@pytest.fixture(scope="module")
def texts():
    """280 documents, some of them of hundreds of words, and some very short."""
    return [tiny.document(number, words=(10, 200, 700)[number % 3]) for number in range(280)]


@pytest.fixture
def data(texts, tmp_path):
    path = tmp_path / "x.jsonl"
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    settings = {"field": "text", "evaluation_share": 0.5, "cache": str(tmp_path / "cache"), "evaluation_tokens": 40_000}
    return DataConfig(name="text", source="text", files=[str(path)], **settings)


def corpus_of(data, whole=False, fit_tokens=2048, source=None, tokenizer=None):
    tokenizer = tokenizer or tiny.tokenizer()
    return read_corpus(data, tokenizer, 32, bos=False, fit_tokens=fit_tokens, whole=whole, source=source)


def documents_of(rows, tokenizer):
    """The texts of a report's documents, of which the last may be cut by the end of the report."""
    owners, tokens = rows.documents.flatten(), rows.tokens.flatten()
    return [tokenizer.decode(tokens[owners == number][:-1].tolist()) for number in owners.unique()[:-1]]


def test_a_report_reads_beginnings_of_many_documents(data, texts, caplog):
    corpus, whole, again = corpus_of(data), corpus_of(data, whole=True), corpus_of(data)
    assert torch.equal(corpus.report.tokens, again.report.tokens), "from the cache, which tells both apart"
    most = beginning_bytes(data.evaluation_tokens)
    found = documents_of(corpus.report, tiny.tokenizer())
    assert len(found) >= DOCUMENTS_FOR_INTERVALS > whole.counts["report_documents"]
    assert set(found) <= {beginning(text, most) for text in texts}
    assert any(text not in texts for text in found), "some are cut"
    assert set(documents_of(whole.report, tiny.tokenizer())) <= set(texts)
    assert "fewer than" not in caplog.text


@pytest.mark.ci_slow
def test_rows_to_fit_on_are_the_same_to_the_bit(data):
    for fit_tokens in (2048, None):
        corpus, whole = corpus_of(data, fit_tokens=fit_tokens), corpus_of(data, whole=True, fit_tokens=fit_tokens)
        assert torch.equal(corpus.fit.tokens, whole.fit.tokens)
        assert torch.equal(corpus.fit.documents, whole.fit.documents)


def test_on_the_same_split_whole_documents_are_fitted_on(data, texts):
    data.same_split = True
    corpus = corpus_of(data, fit_tokens=20_000)
    assert set(documents_of(corpus.fit, tiny.tokenizer())) <= set(texts)
    assert not set(documents_of(corpus.report, tiny.tokenizer())) <= set(texts)


@pytest.mark.ci_slow
def test_two_tokenizers_read_the_same_beginnings_both_ways(data, texts):
    parts = tiny.tokenizer(), tiny.other_tokenizer()
    names = []
    for target, source in (parts, parts[::-1]):
        corpus = corpus_of(data, tokenizer=target, source=SourceTokenizer("source", source, bos=False, context=64))
        rows = corpus.report
        mine = documents_of(rows, target) if rows.source is None else []
        for number in range(int(rows.documents.max()) if rows.source is not None else 0):
            mine.append(target.decode(rows.tokens[rows.documents == number][:-1].tolist()))
        assert set(mine) <= {beginning(text, beginning_bytes(data.evaluation_tokens)) for text in texts}
        assert abs(int(rows.source_bytes.sum()) / int(rows.target_bytes.sum()) - 1) < 0.05
        names.append(rows.document_hashes.tolist())
    fewer = min(map(len, names)) - 1
    assert names[0][:fewer] == names[1][:fewer], "so that both directions can be compared by document"
