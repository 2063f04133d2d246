"""Reports read the beginnings of documents, so that they hold many documents of about one length."""

import json

import pytest
import torch

import tiny
from thinkalike.config import DataConfig
from thinkalike.data.corpus import read_corpus
from thinkalike.data.documents import DOCUMENTS, beginning, beginning_bytes
from thinkalike.data.paired import SourceText

WORDS = "one two three four five six seven"


def test_a_beginning_has_no_more_bytes_and_ends_with_a_word():
    for most in range(14, 34):
        kept = beginning(WORDS, most)
        assert most / 2 - 1 < len(kept.encode()) <= most
        assert WORDS.startswith(kept + " ") or kept == WORDS


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
    settings = {"field": "text", "report_share": 0.5, "cache": str(tmp_path / "cache"), "report_tokens": 40_000}
    return DataConfig(name="text", source="text", files=[str(path)], **settings)


def read(data, whole=False, fit_tokens=2048, source=None, tokenizer=None):
    tokenizer = tokenizer or tiny.tokenizer()
    return read_corpus(data, tokenizer, 32, bos=False, fit_tokens=fit_tokens, whole=whole, source=source)


def documents_of(rows, tokenizer):
    """The texts of a report's documents, of which the last may be cut by the end of the report."""
    owners, tokens = rows.documents.flatten(), rows.tokens.flatten()
    return [tokenizer.decode(tokens[owners == number][:-1].tolist()) for number in owners.unique()[:-1]]


def test_a_report_reads_beginnings_of_many_documents(data, texts, caplog):
    corpus, whole, again = read(data), read(data, whole=True), read(data)
    assert torch.equal(corpus.report.tokens, again.report.tokens), "from the cache, which tells both apart"
    most = beginning_bytes(data.report_tokens)
    found = documents_of(corpus.report, tiny.tokenizer())
    assert len(found) >= DOCUMENTS > whole.counts["report_documents"]
    assert set(found) <= {beginning(text, most) for text in texts}
    assert any(text not in texts for text in found), "some are cut"
    assert set(documents_of(whole.report, tiny.tokenizer())) <= set(texts)
    assert "fewer than" not in caplog.text


def test_rows_to_fit_on_are_the_same_to_the_bit(data):
    for fit_tokens in (2048, None):
        corpus, whole = read(data, fit_tokens=fit_tokens), read(data, whole=True, fit_tokens=fit_tokens)
        assert torch.equal(corpus.fit.tokens, whole.fit.tokens)
        assert torch.equal(corpus.fit.documents, whole.fit.documents)


def test_on_the_same_split_whole_documents_are_fitted_on(data, texts):
    data.same_split = True
    corpus = read(data, fit_tokens=20_000)
    assert set(documents_of(corpus.fit, tiny.tokenizer())) <= set(texts)
    assert not set(documents_of(corpus.report, tiny.tokenizer())) <= set(texts)


def test_two_tokenizers_read_the_same_beginnings_both_ways(data, texts):
    parts = tiny.tokenizer(), tiny.other_tokenizer()
    names = []
    for target, source in (parts, parts[::-1]):
        corpus = read(data, tokenizer=target, source=SourceText("source", source, bos=False, context=64))
        layout, rows = corpus.report.layout, corpus.report
        mine = (
            documents_of(rows, target)
            if not layout.source
            else [
                target.decode(layout.target_tokens(rows.tokens)[rows.documents == number][:-1].tolist())
                for number in range(int(rows.documents.max()))
            ]
        )
        assert set(mine) <= {beginning(text, beginning_bytes(data.report_tokens)) for text in texts}
        assert abs(int(rows.source_bytes.sum()) / int(rows.target_bytes.sum()) - 1) < 0.05
        names.append(rows.names.tolist())
    fewer = min(map(len, names)) - 1
    assert names[0][:fewer] == names[1][:fewer], "so that both directions can be compared by document"
