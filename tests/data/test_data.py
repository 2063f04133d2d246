"""Documents are read alike from every format, packed without loss, kept on one side, and cached safely."""

import errno
import gzip
import json
import os
import re
import shlex
import sysconfig
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import pytest
import torch

import tiny
from letters import BOS, CONTEXT, EOS, Letters, texts
from thinkalike.config import DataConfig
from thinkalike.data import splits
from thinkalike.data.corpus import read_corpus
from thinkalike.data.documents import (
    PIECE_CHARACTERS,
    cut_into_pieces,
    document_fingerprint,
    documents_of,
    files_of,
    group_of,
    text_fingerprint,
)
from thinkalike.data.grammar import derivations
from thinkalike.data.marks import divide_at_marks
from thinkalike.data.packing import TextLimits, TokenizerReader, pack
from thinkalike.data.rows import Corpus, TokenRows
from thinkalike.data.sources import parquet_rows
from thinkalike.data.splits import estimated_token_count, training_texts
from thinkalike.data.tables import read_table
from thinkalike.errors import DataError
from thinkalike.hub import resolved
from thinkalike.processes import Activity

ALL = 10**9  # more report tokens than there are


def write_jsonl(path: Path, rows: list[str], field: str = "text") -> Path:
    path.write_text("".join(json.dumps({field: row, "n": 1}) + "\n" for row in rows))
    return path


@pytest.fixture
def config(tmp_path):
    """A configuration that reads the given files, or 60 short documents."""

    def make(*files, **changes) -> DataConfig:
        files = files or (write_jsonl(tmp_path / "default.jsonl", texts()),)
        settings = {"field": "text", "evaluation_share": 0.3, "cache": str(tmp_path / "cache")}
        return DataConfig(name="text", source="text", files=[str(file) for file in files], **{**settings, **changes})

    return make


def read(
    data: DataConfig, tokenizer=None, *, bos=False, fit_tokens=None, evaluation_tokens=ALL, context=CONTEXT
) -> Corpus:
    data = replace(data, evaluation_tokens=evaluation_tokens)
    return read_corpus(data, tokenizer or Letters(), context, bos=bos, fit_tokens=fit_tokens, whole=True)


def stream(rows: list[str]) -> list[int]:
    return [token for row in rows for token in [*map(ord, row), EOS]]


def sides(data: DataConfig) -> tuple[list[str], list[str]]:
    fit = list(training_texts(data))
    return fit, [text for text in documents_of(data) if text not in set(fit)]


def write(path: Path, rows: list[str], field: str = "text") -> list[Path]:
    """The same documents in the format of the suffix."""
    if path.suffix == ".txt":
        for number, row in enumerate(rows):
            path.with_name(f"{number:03}.txt").write_text(row, encoding="utf-8")
        return [path.with_name("*.txt")]
    if path.suffix == ".parquet":
        import pyarrow
        import pyarrow.parquet

        table = pyarrow.table({field: rows, "n": list(range(len(rows)))})
        pyarrow.parquet.write_table(table, path, row_group_size=7)
        return [path]
    raw = "".join(json.dumps({"n": 1, field: row}) + "\n\n" for row in rows).encode()  # blank lines are no documents
    if path.suffix == ".gz":
        raw = gzip.compress(raw)
    if path.suffix == ".zst":
        import zstandard

        half = len(raw) // 2  # two frames, as parallel compressors write them
        raw = b"".join(zstandard.ZstdCompressor().compress(part) for part in (raw[:half], raw[half:]))
    path.write_bytes(raw)
    return [path]


@pytest.mark.parametrize("line", ['[["text", "a b"]]', '["te"]', '"text"', "3", "null", "[]"])
def test_a_line_that_is_no_object_is_no_record(line, tmp_path, config):
    path = write_jsonl(tmp_path / "x.jsonl", texts(3))
    path.write_text(path.read_text() + line + "\n")
    with pytest.raises(DataError, match=r"x\.jsonl line 4 is not a JSON object"):
        list(documents_of(config(path)))


FORMATS = ["x.txt", "x.jsonl", "x.JSONL", "x.jsonl.gz", "x.jsonl.zst", "x.parquet"]


def test_pythons_manual_is_english_in_pieces():
    pydoc = DataConfig(name="pydoc", source="pydoc", evaluation_share=0.3)
    found = list(documents_of(pydoc))
    assert sum(map(len, found)) > 300_000
    assert max(map(len, found)) <= PIECE_CHARACTERS
    assert "\n*****" not in "".join(found)
    assert sum(text.count(" the ") for text in found) > 2000
    grammar = replace(pydoc, name="grammar", source="grammar")
    assert text_fingerprint(pydoc) == text_fingerprint(pydoc) != text_fingerprint(grammar)


@pytest.mark.parametrize("name", FORMATS)
def test_every_format_gives_the_same_documents_of_the_field(name, tmp_path, config):
    rows = [*texts(20), "ä → é\n\nsecond paragraph", '"quoted"\t\\']
    files = write(tmp_path / name, rows, field="content")
    assert list(documents_of(config(*files, field="content"))) == rows
    if name != "x.txt":
        with pytest.raises(DataError, match=str(tmp_path / name)):
            list(documents_of(config(*files, field="contnet")))


@pytest.mark.parametrize("name", ["notes [v2].jsonl", "a[0-9].jsonl", "what?*.jsonl", "[draft]/x.jsonl"])
def test_a_name_with_brackets_is_a_file_that_is_there(name, tmp_path, config):
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    write_jsonl(path, texts(3))
    assert files_of(config(path)) == [path]
    write_jsonl(tmp_path / "a7.jsonl", texts(3))
    assert files_of(config(tmp_path / "a[7-9].jsonl")) == [tmp_path / "a7.jsonl"], "control: a glob"


CHATS = "<|user|>\na\n<|bot|>\nb\n<|eot_id|>\n<|user|>\nc\n<|bot|>\nd"
TURNS = "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\nho<|im_end|>\n"


def turn(speaker: str, text: str) -> str:
    """A turn of a chat of Llama 3."""
    return f"<|start_header_id|>{speaker}<|end_header_id|>\n\n{text}<|eot_id|>"


MARKED = {  # a text file, and its documents
    "a line": ("one\n<|endoftext|>\ntwo\n\nmore\n<|endoftext|>\n", ["one", "two\n\nmore"]),
    "Windows": ("one\r\n</s>\r\ntwo\r\n</s>\r\n", ["one", "two"]),
    "attached": ("The end.<|end_of_text|>Once<|end_of_text|>\n", ["The end.", "Once"]),
    "both ends": ("<|bos|>\none\n<|eos|>\n<|bos|>\ntwo\n<|eos|>", ["one", "two"]),
    "of chats": (CHATS, ["<|user|>\na\n<|bot|>\nb", "<|user|>\nc\n<|bot|>\nd"]),
    "pairs attached": ("<|startoftext|>one<|endoftext|>\n<|startoftext|>two<|endoftext|>\n", ["one", "two"]),
    "pairs without lines": ("<|begin_of_text|>one<|end_of_text|><|begin_of_text|>two<|end_of_text|>", ["one", "two"]),
    "wide pairs": (2 * "<｜begin▁of▁sentence｜>a b.<｜end▁of▁sentence｜>", ["a b.", "a b."]),
    "begun attached, ended by a line": (2 * "<|bos|>a b\n<|eos|>\n", ["a b", "a b"]),
    "a blank between": ("<|bos|>one<|eos|> <|bos|>two<|eos|>", ["one", "two"]),
    "before text": ("<|endoftext|>one. <|endoftext|>two.", ["one. ", "two."]),
    "titles": (
        "".join(f"<|bos|>A title {number}\na b<|eos|>\n" for number in range(2)),
        ["A title 0\na b", "A title 1\na b"],
    ),
    "beside a mention": ("one<|endoftext|>two <|pad|> fills<|endoftext|>", ["one", "two <|pad|> fills"]),
    "lines beside a mention": ("one\n<|story|>\ntwo <|pad|> fills\n<|story|>\n", ["one", "two <|pad|> fills"]),
    "bare beside a mention": ("one\n</s>\nor <|endoftext|> too\n</s>\n", ["one", "or <|endoftext|> too"]),
    "a chat of Llama 3": (
        2 * f"<|begin_of_text|>{turn('user', 'a')}{turn('assistant', 'b')}",
        2 * [turn("user", "a") + turn("assistant", "b")],
    ),
    "single turns of Llama 3": (
        2 * f"<|begin_of_text|>{turn('user', 'a b')}",
        2 * [turn("user", "a b").removesuffix("<|eot_id|>")],
    ),
    "chats with an end": (2 * (TURNS + "<|endoftext|>\n"), 2 * [TURNS.strip("\n")]),
    "chats with an attached end": (2 * (TURNS.strip("\n") + "<|endoftext|>"), 2 * [TURNS.strip("\n")]),
    "wide": ("一\n<｜end▁of▁sentence｜>\n二", ["一", "二"]),
    "brackets": ("one\n[SEP]\ntwo\n[SEP]\n", ["one", "two"]),
}
ORDINARY = {
    "about the mark": 'Use <|endoftext|> or "<|endoftext|>" (<|endoftext|>), `<|endoftext|>`.\n',
    "HTML": "<p>\n<s>\nold\n</s>\n</p>\n<p>\n<s>\nolder\n</s>\n</p>\n",
    "Markdown": "Write `</s>`:\n```\n</s>\n```\nand\n</s>\n",
    "lines of tags": "one\n<br>\ntwo\n<br>\nthree",
    "sections": "[start]\na=1\n[end]\nb=2\n[rest]\nc=3\n[end]\n",
    "turns": TURNS,
    "turns of Phi": "<|user|>\na<|end|>\n<|assistant|>\nb<|end|>\n<|user|>\nc<|end|>\n<|assistant|>\nd<|end|>\n",
    "turns that end as texts do": 2
    * "<|start_of_role|>user<|end_of_role|>a<|end_of_text|>\n<|start_of_role|>bot<|end_of_role|>b<|end_of_text|>\n",
    "three speakers": 2
    * "<|start|>system<|message|>a<|end|><|start|>user<|message|>b<|end|><|start|>assistant<|message|>c<|return|>",
    "about several marks": "Use <|bos|>, <|eos|> and <|pad|>.\nThe mark <|eos|> ends a text, or <|eot_id|> does.\n",
    "code": 'a = "<|bos|>" + x\nb = f"<|bos|>{x}<|eos|>"\nif t == "<|im_start|>user": pass\n',
    "mostly mentioned": 9 * "The mark <|eos|> ends it. " + "a<|eos|>b<|eos|>c, and <|bos|>",
    "bare and attached": "one</s>two</s>three",
    "at the ends of lines": "one two <|eos|>\nthree four <|eos|>\n",
}
UNCLEAR = {  # a text file, its number of documents, and the marks that a warning names
    "turns": (TURNS, 1, "<|im_start|> (2), <|im_end|> (2)"),
    "bare and attached": (ORDINARY["bare and attached"], 1, "</s> (2)"),
    "at the ends of lines": (ORDINARY["at the ends of lines"], 1, "<|eos|> (2)"),
    "unnamed": ("a\n<|story|>\nb\n<|title|>\nc\n<|story|>\nd\n<|title|>\ne", 1, "<|story|> (2), <|title|> (2)"),
    "one text shows an end": ("<|endoftext|>".join(["a"] * 9 + ["b<|eot_id|>c<|eot_id|>"]), 10, "<|eot_id|> (2)"),
    "one text shows a line": ("<|endoftext|>".join(["a"] * 9 + ["b\n<|im_end|>\nc"]), 10, "<|im_end|> (1)"),
    "many marks": (
        "".join(f"a\n<|m{number % 6}|>\n" for number in range(12)),
        1,
        "<|m0|> (2), <|m1|> (2), <|m2|> (2), <|m3|> (2) and 2 more",
    ),
}


@pytest.mark.parametrize("name", MARKED)
def test_a_text_file_is_divided_at_its_marks(name, tmp_path, config, caplog):
    text, expected = MARKED[name]
    (tmp_path / "all.txt").write_bytes(text.encode())
    with caplog.at_level("INFO"):
        assert sorted(documents_of(config(tmp_path / "all.txt"))) == sorted(expected)
    assert f"{tmp_path}/all.txt: 2 documents, divided at " in caplog.text


@pytest.mark.parametrize("name", ORDINARY)
def test_ordinary_text_is_not_divided(name):
    assert divide_at_marks(ORDINARY[name])[:2] == ([ORDINARY[name]], [])


@pytest.mark.parametrize(
    "around",
    ["<code>{}</code>", "**{}**", "~~{}~~", "«{}»", "„{}“", "”{}”", "「{}」", "（{}）", "，{}，", "—{}—", "EOS={}",
     "f({}, 1)", "token:{}", "x+{}", "#{}", "${}$", r"\texttt[{}]", r'\"{}\"', "&quot;{}&quot;",
     "the {}, which", "an {}."],
)  # fmt: skip
def test_a_text_that_mentions_a_mark_again_and_again_is_not_divided(around):
    mention = around.format("<|endoftext|>")
    text = f"The tokenizer has {mention} as a mark.\nLater lines use {mention} again, and {mention} is last.\n"
    assert divide_at_marks(text)[:2] == ([text], [])


BEGINNINGS = ("Once", '"Once', "“Once", " Once", "# Once", "- once", "(once", "<p>once", "¿once", "\nonce")


@pytest.mark.parametrize("ends", [".", "!", '."', ".”", ")", "}", "**", "。", " }", "…", "`", "</p>", "word", ";"])
def test_a_mark_between_two_texts_divides_whatever_these_end_and_begin_with(ends):
    for begins in BEGINNINGS:
        if ends[-1] in '"”`' and begins[0] in '"“':
            continue  # a mark between quotes is a mention
        documents = [f"{begins} upon a time {number}, the end{ends}" for number in range(4)]
        divided = divide_at_marks("<|endoftext|>".join(documents)).documents
        assert divided == [text.strip("\n") for text in documents], begins


def test_an_end_that_is_rarer_than_the_marks_that_divide_is_named():
    """The single words behind a mark look like speakers of a chat, at whose turns the end of a text stands."""
    repositories = [
        f"<|repo_name|>r{number}\n<|file_sep|>a.py\nx\n<|file_sep|>b.py\ny\n<|endoftext|>\n" for number in range(3)
    ]
    divided = divide_at_marks("".join(repositories))
    assert divided.marks == ["<|endoftext|>"] or divided.unused_marks == {"<|endoftext|>": 3}


@pytest.mark.parametrize("name", UNCLEAR)
def test_a_warning_names_marks_at_which_a_text_file_is_not_divided(name, tmp_path, config, caplog):
    text, count, names = UNCLEAR[name]
    (tmp_path / "all.txt").write_text(text)
    with caplog.at_level("WARNING"):
        assert len(list(documents_of(config(tmp_path / "all.txt")))) == count
    assert f"although it also has {names}" in caplog.text
    assert f"warning: {tmp_path}/all.txt" in caplog.text, "so that results have it"
    assert "a line of a .jsonl file" in caplog.text


@pytest.mark.parametrize("name", ["about several marks", "code", "about the mark", "HTML", "Markdown", "sections"])
def test_a_text_about_marks_has_no_warning(name):
    assert not divide_at_marks(ORDINARY[name]).unused_marks


def test_a_mark_in_one_document_does_not_divide_a_file():
    """The rarest mark divided, even if a single document showed it."""
    documents = [f"Story {number}." for number in range(100)]
    for shown in (TURNS, "foo<|eot_id|> bar<|eot_id|> x", "see\n```\n<|im_end|>\n```\nx", "a<|bos|>b<|bos|>c"):
        documents[50] = shown.strip("\n")
        assert divide_at_marks("<|endoftext|>".join(documents)).documents == documents
    shelves = "<|end_of_shelf|>".join(["<|end_of_book|>".join(["a", "b", "c"])] * 9)
    assert len(divide_at_marks(shelves).documents) == 9, "control: a rare mark all through the file"


def test_files_are_read_in_order_and_globs_sorted(tmp_path, config):
    for name in ("c.txt", "a.txt", "B.TXT"):
        (tmp_path / name).write_text(name)
    (tmp_path / "c.txt").write_text("c.txt", encoding="utf-8-sig")  # a mark of the encoding is no text
    found = documents_of(config(tmp_path / "c.txt", tmp_path / "[aB].*"))
    assert list(found) == ["c.txt", "B.TXT", "a.txt"]


@pytest.mark.parametrize("name", FORMATS[1:])
@pytest.mark.parametrize("harm", [lambda raw: raw[:-5], lambda raw: b"\x00garbage" + raw], ids=["cut", "garbage"])
def test_a_damaged_file_is_named(name, harm, tmp_path, config):
    (file,) = write(tmp_path / name, texts(20))
    file.write_bytes(harm(file.read_bytes()))
    with pytest.raises(DataError, match=str(file)):
        list(documents_of(config(file)))


@pytest.mark.parametrize("line", ['{"text": 3}', '{"texts": "a"}', "[1]", "{oops"])
def test_a_line_without_text_is_named(line, tmp_path, config):
    (tmp_path / "x.jsonl").write_text('{"text": "fine"}\n' + line + "\n", encoding="utf-8-sig")
    with pytest.raises(DataError, match=r"x\.jsonl line 2"):
        list(documents_of(config(tmp_path / "x.jsonl")))


@pytest.mark.parametrize(
    "line",
    ['{"text": "a", "text": "b"}', '{"text": "a", "n": 1, "n": 1}', '{"text": "a", "more": [{"x": 1, "x": 2}]}'],
)
def test_a_line_with_a_name_twice_is_no_record(line, tmp_path, config):
    """Readers of JSON drop all values but one."""
    (tmp_path / "x.jsonl").write_text('{"text": "fine"}\n' + line + "\n")
    with pytest.raises(DataError, match=r"x\.jsonl line 2 is not a JSON object \(it has the name \w+ twice"):
        list(documents_of(config(tmp_path / "x.jsonl")))


def compressed(name: str, content: bytes) -> bytes:
    if name.endswith(".gz"):
        return gzip.compress(content)
    import zstandard

    return zstandard.ZstdCompressor().compress(content)


EXPANDING = {  # what a small file repeats, what is always allowed, and what is said of it
    "one line.jsonl.zst": (b"a", 0, "expands to more than"),
    "one line.jsonl.gz": (b"a", 0, "line 1 has more than 65,536 characters"),
    "empty lines.jsonl.zst": (b"\n", 0, "expands to more than"),
    "records.jsonl.gz": (b'{"text": "a"}\n', 0, "expands to more than"),
    "allowed.jsonl.zst": (b'{"text": "a b"}\n' * 1000, 2**26, ""),
    "a long line.jsonl": (b"a", 2**26, "line 1 has more than 65,536 characters"),
    "a long line.jsonl.zst": (b"a", 2**26, "line 1 has more than 65,536 characters"),
    "a long document.txt": (b"a", 2**26, "and a file that is read at once has at most 1,048,576"),
}


def test_an_estimate_reads_a_built_in_text_once_and_files_again(config, tmp_path, monkeypatch):
    """A forecast of a job of each of dozens of sizes read the standard library each time."""
    manual, asked_for = DataConfig(name="pydoc", source="pydoc", evaluation_share=0.3), []
    held_out = sum(len(text.encode()) for text in sides(manual)[1])

    def documents(data):
        asked_for.append(data.source)
        return documents_of(data)

    monkeypatch.setattr(splits, "documents_of", documents)
    splits._sizes_of_built_in_text.cache_clear()
    estimates = [estimated_token_count(replace(manual, evaluation_tokens=most), most, 2048) for most in (1024, ALL)]
    assert estimates == [1024, pytest.approx(held_out / 2.75, rel=0.02)]
    assert asked_for == ["pydoc"]

    files = config()
    before = estimated_token_count(files, ALL, 2048)
    write_jsonl(tmp_path / "default.jsonl", 2 * texts())
    assert estimated_token_count(files, ALL, 2048) == pytest.approx(2 * before, abs=1)
    assert asked_for == ["pydoc", "text", "text"]


@pytest.mark.parametrize("name", EXPANDING)
def test_a_small_file_does_not_fill_the_memory(name, tmp_path, config, monkeypatch):
    unit, allowed, message = EXPANDING[name]
    monkeypatch.setattr("thinkalike.data.sources.LONGEST_LINE", 2**16)
    monkeypatch.setattr("thinkalike.data.sources.MOST_TEXT_BYTES", 2**20)
    monkeypatch.setattr("thinkalike.data.sources.ALWAYS_EXPANDED", allowed)
    count = (2**20 if len(unit) > 1 else 2**22) // len(unit)
    content = unit * count
    if name.endswith((".gz", ".zst")):
        content = compressed(name, content)
    (tmp_path / name).write_bytes(content)
    data = config(tmp_path / name)
    if not message:
        assert len(list(documents_of(data))) == count * 1000
        return
    with pytest.raises(DataError, match=message):
        list(documents_of(data))


@pytest.mark.timeout(60)
def test_thousands_of_different_marks_are_no_marks():
    """Each was looked for at each place, which took minutes for a megabyte."""
    lines = [f"<|end{number}|>\nfoo\n" for number in range(50_000)]
    assert divide_at_marks("".join(lines)).marks == []
    assert len(divide_at_marks("".join(lines[:3] * 2)).marks) == 3, "control"


def test_a_parquet_file_that_repeats_a_long_text_does_not_fill_the_memory(tmp_path, config):
    """Two kilobytes stood for ten gigabytes: each row holds the number of a text in a dictionary."""
    import pyarrow
    import pyarrow.parquet

    texts = pyarrow.DictionaryArray.from_arrays([0] * 200, ["a" * 2**20])
    pyarrow.parquet.write_table(pyarrow.table({"text": texts}), tmp_path / "x.parquet", compression="zstd")
    with pytest.raises(DataError, match="expands to more than"):
        next(iter(documents_of(config(tmp_path / "x.parquet"))))


NESTED = {
    "struct": [{"a.b": "x", "inner": {"deep": "y"}}, None],
    "list": [["u", None], []],
    "messages": [[{"role": "user", "content": "hi"}], None],
    "lists of lists": [[["u"], ["v", "w"]], [[]]],
    "no texts": [{"n": [1, 2]}, {"n": None}],
}


@pytest.mark.parametrize("values", NESTED.values(), ids=NESTED)
@pytest.mark.parametrize("field", ["text", None])
def test_a_parquet_file_may_have_nested_columns(tmp_path, values, field):
    import pyarrow
    import pyarrow.parquet

    table = pyarrow.table({"text": ["a", "b"], "meta.data": values})
    pyarrow.parquet.write_table(table, tmp_path / "x.parquet")
    rows = [row for _, row in parquet_rows(tmp_path / "x.parquet", field)]
    assert [row["text"] for row in rows] == ["a", "b"]
    if field is None:
        assert [row["meta.data"] for row in rows] == values


@pytest.mark.parametrize("kind", ["struct", "list"])
def test_a_long_text_that_a_nested_column_repeats_does_not_fill_the_memory(tmp_path, kind):
    import pyarrow
    import pyarrow.parquet

    texts = pyarrow.DictionaryArray.from_arrays([0] * 200, ["a" * 2**20])
    column = pyarrow.ListArray.from_arrays(range(201), texts)
    if kind == "struct":
        column = pyarrow.StructArray.from_arrays([texts], ["content"])
    pyarrow.parquet.write_table(pyarrow.table({"text": column}), tmp_path / "x.parquet", compression="zstd")
    with pytest.raises(DataError, match="expands to more than"):
        list(parquet_rows(tmp_path / "x.parquet"))


def test_a_parquet_file_with_two_columns_of_one_name_is_refused(tmp_path, config):
    import pyarrow
    import pyarrow.parquet

    table = pyarrow.Table.from_arrays([pyarrow.array(["a"]), pyarrow.array(["b"])], names=["text", "text"])
    pyarrow.parquet.write_table(table, tmp_path / "x.parquet")
    with pytest.raises(DataError, match="the column text occurs more than once"):
        list(documents_of(config(tmp_path / "x.parquet")))


@pytest.mark.parametrize("name", ["x.txt", "x.jsonl", "x.jsonl.zst", "x.parquet"])
@pytest.mark.parametrize("call", [lambda data: list(documents_of(data)), text_fingerprint])
@pytest.mark.parametrize("is_link", [False, True])
def test_a_sparse_file_is_not_read(name, call, is_link, tmp_path, config):
    """It takes no room on the disk, and minutes to read."""
    file = tmp_path / f"real-{name}"
    file.write_text("a text")
    os.truncate(file, 2**40)
    named = tmp_path / name
    if is_link:
        named.symlink_to(file)
    else:
        file.rename(named)
    with pytest.raises(DataError, match="it is a sparse file of 1,099,511,627,776 bytes"):
        call(config(named))


@pytest.mark.parametrize("call", [lambda data: list(documents_of(data)), text_fingerprint])
def test_only_regular_files_are_read(call, tmp_path, config):
    """A pipe or /dev/zero would never end."""
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe.txt")
    for place in (tmp_path / "folder", tmp_path / "pipe.txt", "/dev/zero"):
        with pytest.raises(DataError, match=str(place)):
            call(config(place))


@pytest.mark.parametrize("number", [errno.EACCES, errno.EIO, errno.ESTALE])
def test_a_file_that_the_system_does_not_give_is_one_line_in_words_of_the_system(number, tmp_path, config):
    file = write_jsonl(tmp_path / "secret.jsonl", texts())
    whole_open = os.open

    def refusing_open(path, *arguments, **options):
        if os.fspath(path) == str(file):
            raise OSError(number, os.strerror(number), str(path))
        return whole_open(path, *arguments, **options)

    with mock.patch("os.open", refusing_open), pytest.raises(DataError) as caught:
        read(config(file))
    assert str(caught.value) == f"cannot read {file}: {os.strerror(number)}: '{file}'"


def test_the_standard_library_is_read_in_order_of_content(tmp_path, monkeypatch):
    monkeypatch.setattr(sysconfig, "get_paths", lambda: {"stdlib": str(tmp_path)})
    kept = {"a.py": "x = 1", "json/b.py": "y = 2", "email/c.py": "z = 3", "d.py": "w = 4"}
    left = ["test/e.py", "lib2to3/tests/f.py", "idlelib/idle_test/g.py", "site-packages/h.py", "dist-packages/i.py"]
    for name, text in {**kept, **dict.fromkeys(left, "left out"), "notes.txt": "left out"}.items():
        (tmp_path / name).parent.mkdir(exist_ok=True, parents=True)
        (tmp_path / name).write_text(text)
    stdlib = DataConfig(name="stdlib", source="stdlib")
    read_once, name = list(documents_of(stdlib)), text_fingerprint(stdlib)
    assert read_once == sorted(kept.values(), key=document_fingerprint)
    (tmp_path / "a.py").rename(tmp_path / "zz.py")
    assert list(documents_of(stdlib)) == read_once
    (tmp_path / "zz.py").write_text("changed")
    assert text_fingerprint(stdlib) != name


@pytest.fixture
def hub(monkeypatch):
    """A hub with one data set; returns the mock of the function that loads it."""
    resolved.cache_clear()
    load_dataset = mock.Mock(return_value=({"text": row} for row in texts(5)))
    monkeypatch.setattr("datasets.load_dataset", load_dataset)

    def dataset_info(_, repository, revision, **__):
        commit = COMMIT if revision == "v2" else "6" * 40
        return SimpleNamespace(sha=commit, id=repository, siblings=[])

    monkeypatch.setattr("huggingface_hub.HfApi.dataset_info", dataset_info)
    monkeypatch.setattr("thinkalike.hub._remember_branch", lambda *_: None)
    return load_dataset


COMMIT = "5" * 40
HUB = {"name": "set", "source": "hub", "hub_id": "someone/set", "field": "text"}


def test_a_hub_set_is_streamed(hub):
    config = DataConfig(**HUB, subset="en", split="validation", revision="v2", hub_files=["val.jsonl"])
    assert list(documents_of(config)) == texts(5)
    options = {"split": "validation", "streaming": True, "revision": COMMIT, "data_files": ["val.jsonl"]}
    hub.assert_called_once_with("someone/set", "en", **options)


def test_a_texts_fingerprint_is_of_its_content_not_its_path(tmp_path, config):
    first = write_jsonl(tmp_path / "a.jsonl", texts(5))
    moved = write_jsonl(tmp_path / "moved.jsonl", texts(5))
    other = write_jsonl(tmp_path / "b.jsonl", [*texts(4), "x"])
    as_text = write_jsonl(tmp_path / "a.txt", texts(5))
    name = text_fingerprint(config(first))
    assert name == text_fingerprint(config(moved))
    changed = (config(other), config(first, field="n"), config(first, other), config(as_text))
    assert len({name, *map(text_fingerprint, changed)}) == 5


def test_a_hub_sets_fingerprint_is_of_all_that_chooses_it(hub):
    changes = {"hub_id": "a/other", "subset": "en", "split": "test", "revision": "v2", "hub_files": ["a"], "field": "f"}
    names = {text_fingerprint(DataConfig(**{**HUB, key: value})) for key, value in changes.items()}
    assert len(names | {text_fingerprint(DataConfig(**HUB))}) == 7
    assert text_fingerprint(DataConfig(**HUB, cache="elsewhere")) == text_fingerprint(DataConfig(**HUB))


@pytest.mark.parametrize("bos", [False, True])
def test_rows_are_documents_joined_by_eos_and_know_them(bos, config):
    data = config()
    corpus = read(data, bos=bos)
    for rows, side in zip((corpus.fit, corpus.report), sides(data), strict=True):
        payload = CONTEXT - bos
        expected = torch.tensor(stream(side))
        owners = torch.tensor([number for number, text in enumerate(side) for _ in [*text, EOS]])
        count = len(expected) // payload
        assert len(rows) == count > 10
        assert torch.equal(rows.tokens[:, bos:].flatten().long(), expected[: count * payload])
        assert torch.equal(rows.documents[:, bos:].flatten().long(), owners[: count * payload])
        if bos:
            assert (rows.tokens[:, 0] == BOS).all()
            assert torch.equal(rows.documents[:, 0], rows.documents[:, 1]), "BOS belongs to the text after it"
    kept = sum(rows.tokens[:, bos:].numel() for rows in (corpus.fit, corpus.report))
    assert kept + corpus.counts["dropped_tokens"] == sum(len(stream(side)) for side in sides(data))
    for side, rows in (("fit", corpus.fit), ("report", corpus.report)):
        assert corpus.counts[f"{side}_tokens"] == rows.tokens.numel()
        assert corpus.counts[f"{side}_documents"] == len(rows.documents.unique())


def test_marks_around_a_text_are_not_doubled():
    cutter = tiny.tokenizer()
    bos, eos = (cutter.convert_ids_to_tokens(mark) for mark in (cutter.bos_token_id, cutter.eos_token_id))
    plain, marked, inside = TokenizerReader(cutter, True)(["abc abd", f"{bos}abc abd{eos}", f"abc{eos}abd"])
    assert plain == marked
    assert list(inside).count(cutter.eos_token_id) == 2, "a mark within a text stays"


def pieces(rows: TokenRows) -> list[str]:
    """The whole documents in rows without BOS."""
    text = "".join(map(chr, rows.tokens.flatten().tolist()))
    return text.split(chr(EOS))[:-1]


@pytest.mark.parametrize("bos", [False, True])
def test_aligned_rows_begin_with_documents_and_cut_the_last(bos, config):
    source = config(aligned=True)
    corpus = read(source, bos=bos)
    whole = {text: [*map(ord, text), EOS] for text in documents_of(source)}
    starts = {tuple(tokens[:5]) for tokens in whole.values()}
    total = 0
    for rows in (corpus.fit, corpus.report):
        payload = rows.tokens[:, int(bos) :]
        assert {tuple(row[:5]) for row in payload.tolist()} <= starts
        total += payload.numel()
        first = [owners[0] for owners in rows.documents.tolist()]
        assert first == sorted(set(first)), "no document is in two rows"
    assert total + corpus.counts["dropped_tokens"] == sum(map(len, whole.values()))


def test_the_grammar_gives_sentences_that_probing_does_not_use():
    source = DataConfig(name="grammar", source="grammar", sentences=400)
    found = list(documents_of(source))
    assert found == list(documents_of(source))
    assert 300 < len(found) < 400
    assert all(derivations(text, "large") and not derivations(text, "small") for text in found)
    assert text_fingerprint(source) != text_fingerprint(replace(source, sentences=500))
    digest = document_fingerprint("\n".join(found))
    assert digest.startswith("13cd4eb959d784e8"), "other sentences need another `GRAMMAR`, which is in the keys of jobs"


def paragraphs(count, size=300, joint="\n\n"):
    return joint.join(f"{number} " + "words " * (size // 6) for number in range(count))


@pytest.mark.parametrize(("joint", "size"), [("\n\n", 300), ("\n", 300), (" ", 300), ("", 6)])
def test_pieces_of_a_document_are_even_and_end_with_a_unit(joint, size):
    text = paragraphs(20_000 // size, size, joint) if joint else "x" * 20_000
    found = list(cut_into_pieces(text))
    assert "".join(found) == text
    assert all(PIECE_CHARACTERS / 4 < len(piece) <= PIECE_CHARACTERS for piece in found)
    assert all(piece.endswith(joint) for piece in found[:-1])
    assert list(cut_into_pieces(text[:PIECE_CHARACTERS])) == [text[:PIECE_CHARACTERS]]


def test_one_file_is_enough_text_for_both_sides(tmp_path, config):
    (tmp_path / "book.txt").write_text(paragraphs(2000), encoding="utf-8")
    book = config(tmp_path / "book.txt", evaluation_share=0.1)
    for whole in (False, True):
        corpus = read_corpus(book, Letters(), 1024, bos=False, fit_tokens=None, whole=whole)
        size = corpus.counts["fit_tokens"] + corpus.counts["report_tokens"]
        assert abs(corpus.counts["report_tokens"] / size - 0.1) < 0.05
        assert corpus.counts["report_documents"] > 10


def test_the_report_gets_its_share_of_the_documents(tmp_path, config):
    file = write_jsonl(tmp_path / "many.jsonl", [f"document {number}" for number in range(4000)])
    for share in (0.1, 0.3):
        fit = sum(1 for _ in training_texts(config(file, evaluation_share=share)))
        assert abs(1 - fit / 4000 - share) < 4 * (share * (1 - share) / 4000) ** 0.5


@pytest.mark.parametrize(("asked", "rows", "bos"), [(64, 4, False), (79, 4, True), (16, 1, False), (1, 1, True)])
def test_limits_cut_the_same_rows_short(asked, rows, bos, config):
    whole, cut = read(config(), bos=bos), read(config(), bos=bos, fit_tokens=asked, evaluation_tokens=160)
    assert len(cut.fit) == rows
    assert torch.equal(cut.fit.tokens, whole.fit.tokens[:rows])
    assert torch.equal(cut.report.tokens, whole.report.tokens[:10])


def test_reading_stops_when_both_sides_are_full(tmp_path, config):
    file = write_jsonl(tmp_path / "many.jsonl", texts(600))
    tokenizer = Letters()
    read(config(file), tokenizer, fit_tokens=64, evaluation_tokens=640)
    everything = Letters()
    read(config(file), everything)
    assert tokenizer.calls <= 2 < everything.calls


@pytest.mark.parametrize("seconds", [1.0, 100.0])
def test_the_rate_of_tokenising_counts_the_time_of_the_first_documents(seconds, tmp_path, config, monkeypatch):
    now = 0.0
    rates = []

    class SlowLetters(Letters):
        def __call__(self, *words, **options):
            nonlocal now
            now += seconds
            return super().__call__(*words, **options)

    def reach(self, done):
        whole_reach(self, done)
        if done and self.name.startswith("tokenising"):
            rates.append((self.rate, done))

    whole_reach = Activity.reach
    monkeypatch.setattr("thinkalike.processes.time.monotonic", lambda: now)
    monkeypatch.setattr(Activity, "reach", reach)
    read(config(write_jsonl(tmp_path / "many.jsonl", texts(600))), SlowLetters())
    assert rates
    assert all(rate <= done / seconds for rate, done in rates)


def one_sided(report: bool, share: float = 0.3) -> list[str]:
    return [text for text in texts(60) if (int(document_fingerprint(text)[:8], 16) / 16**8 < share) == report]


@pytest.mark.usefixtures("command_line")
@pytest.mark.parametrize(
    ("fit", "report", "key"), [(0, 60, "fit on"), (60, 1, r"data\.evaluation_share"), (0, 0, "text")]
)
def test_too_little_on_one_side_is_refused(fit, report, key, tmp_path, config):
    rows = [*one_sided(report=False)[:fit], *one_sided(report=True)[:report]]
    with pytest.raises(DataError, match=key):
        read(config(write_jsonl(tmp_path / "x.jsonl", rows)), context=16)


@pytest.mark.parametrize("fit_tokens", [None, 64])
def test_without_a_row_to_fit_on_text_to_fit_on_is_asked_for(fit_tokens, tmp_path):
    rows = [*one_sided(report=False)[:1], *one_sided(report=True)]

    class FirstLetters:
        start = None

        def __call__(self, texts):
            for text in texts:
                yield [ord(letter) for letter in text[:10]]

    config = DataConfig(
        name="x", source="text", files=[str(write_jsonl(tmp_path / "x.jsonl", rows))], evaluation_share=0.3
    )
    with pytest.raises(DataError, match="too little text to fit on: not one row of 16 tokens"):
        pack(config, FirstLetters(), 16, TextLimits(fit_tokens, 64, None))


def cache_files(tmp_path) -> list[Path]:
    return sorted((tmp_path / "cache").rglob("*.*"))


@pytest.fixture
def letters_of_a_library(monkeypatch):
    """Let the tokens of `Letters` be cached, as if its class were of an installed package."""
    for module in ("thinkalike.data.corpus", "thinkalike.digests"):
        monkeypatch.setattr(f"{module}.runs_code_of_user", lambda _: False)


def test_tokens_of_a_tokenizer_with_own_code_are_not_cached(tmp_path, config):
    tokenizer = Letters()
    read(config(), tokenizer)
    calls = tokenizer.calls
    read(config(), tokenizer)
    assert tokenizer.calls == 2 * calls > 0
    assert not cache_files(tmp_path)


@pytest.mark.usefixtures("letters_of_a_library")
def test_a_second_read_is_the_same_and_does_not_tokenise(tmp_path, config):
    tokenizer = Letters()
    first, calls = read(config(), tokenizer, bos=True), tokenizer.calls
    again = read(config(), tokenizer, bos=True)
    assert tokenizer.calls == calls > 0
    for rows, same in ((first.fit, again.fit), (first.report, again.report)):
        assert torch.equal(rows.tokens, same.tokens)
        assert torch.equal(rows.documents, same.documents)
        assert rows.tokens.dtype == same.tokens.dtype
    assert first.counts == again.counts
    assert len(cache_files(tmp_path)) == 1, "and nothing half written lies about"


@pytest.mark.usefixtures("letters_of_a_library")
@pytest.mark.parametrize(
    "change", ["bos", "context", "fit_tokens", "evaluation_tokens", "evaluation_share", "vocabulary", "text"]
)
def test_the_cache_is_not_served_for_another_request(change, tmp_path, config):
    read(config())
    other = {"bos": True, "context": 8, "fit_tokens": 64, "evaluation_tokens": 160}
    tokenizer = Letters()
    if change == "vocabulary":
        tokenizer.get_vocab = lambda: {"a": 1}
    data = config(evaluation_share=0.4) if change == "evaluation_share" else config()
    if change == "text":
        write_jsonl(tmp_path / "default.jsonl", texts(61))
    read(data, tokenizer, **{key: value for key, value in other.items() if key == change})
    assert tokenizer.calls > 0


@pytest.mark.usefixtures("letters_of_a_library")
@pytest.mark.parametrize("harm", ["flip", "cut", "empty"])
def test_a_damaged_cache_is_said_and_made_anew(tmp_path, config, caplog, harm):
    first = read(config())
    (file,) = cache_files(tmp_path)
    whole = file.read_bytes()
    flipped = bytes([*whole[:-9], whole[-9] ^ 1, *whole[-8:]])
    file.write_bytes({"flip": flipped, "cut": whole[: len(whole) // 2], "empty": b""}[harm])
    again = read(config())
    assert again.fingerprint() == first.fingerprint()
    assert f"{file} cannot be used" in caplog.text
    assert "made anew" in caplog.text
    assert file.read_bytes() == whole


@pytest.mark.parametrize("group", ["folder", "author"])
def test_documents_of_one_source_are_one_group(group, tmp_path, config, caplog):
    """Four documents of each of 60 authors, who use letters of their own; as folders, or a field of records."""
    records = []
    for author in range(60):
        swap = str.maketrans("abc", "".join(chr(48 + (author * factor) % 64) for factor in (1, 7, 11)))
        records += [{"text": row.translate(swap), "author": author} for row in texts(4, first=4 * author)]
    if group == "folder":
        for number, record in enumerate(records):
            path = tmp_path / "all" / f"{record['author']:02}" / f"{number}.txt"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(record["text"])
        files = tmp_path / "all" / "*" / "*.txt"
    else:
        files = tmp_path / "all.jsonl"
        files.write_text("".join(map("{}\n".format, map(json.dumps, records))))
    own = {record["text"]: record["author"] for record in records}
    corpus = read(config(files, group=group))
    fit, report = ({own[text] for text in pieces(side)} for side in (corpus.fit, corpus.report))
    assert not fit & report
    assert corpus.counts["report_documents"] == len(report) < len(pieces(corpus.report))
    assert "data.group" not in caplog.text
    plain = config(files)
    assert read(plain).counts["report_documents"] > 60
    assert "follow each other are alike" in caplog.text
    caplog.clear()
    read(config(write_jsonl(tmp_path / "mixed.jsonl", sorted(own, key=document_fingerprint))))
    assert "follow each other are alike" not in caplog.text
    assert len({text_fingerprint(each) for each in (plain, config(files, group=group), config(files, group="n"))}) == 3


NO_NAMES = {
    "null": ([None, "a"], "a record has no value in this field"),
    "an empty text": (["a", ""], "a record has no value in this field"),
    "not a number": ([1.5, float("nan")], "a record has no value in this field"),
    "a list": ([["a"], ["b"]], "a record has a list in this field"),
    "a mapping": ([{"a": 1}], "a record has a dict in this field"),
    "null and its text": (["None", None], "a record has no value in this field"),
    "a number and its text": ([1, "1"], "the field has 1, a int, and '1', a str"),
    "a switch and its text": (["True", True], "the field has 'True', a str, and True, a bool"),
    "a switch and a number": ([1, True], "the field has 1, a int, and True, a bool"),
    "numbers of two kinds": ([1, 1.5], "the field has 1, a int, and 1.5, a float"),
}


@pytest.mark.usefixtures("command_line")
@pytest.mark.parametrize("what", NO_NAMES)
def test_groups_are_not_merged_by_their_texts(what, config, tmp_path):
    """The text of null is None and that of 1 is 1, so that documents of two sources would be of one group."""
    values, message = NO_NAMES[what]
    records = [{"text": text, "source": values[row % len(values)]} for row, text in enumerate(texts())]
    path = tmp_path / "grouped.jsonl"
    path.write_text("".join(f"{json.dumps(record)}\n" for record in records))
    with pytest.raises(DataError, match=f"^data.group=source: {re.escape(message)}"):
        list(documents_of(config(path, group="source")))
    for alike in (["a", "b"], [1, 2], [True, False]):
        records = [{"text": text, "source": alike[row % 2]} for row, text in enumerate(texts())]
        path.write_text("".join(f"{json.dumps(record)}\n" for record in records))
        found = {group_of(text) for text in documents_of(config(path, group="source"))}
        assert found == set(map(str, alike)), "control"


@pytest.mark.parametrize("name", ["a.txt", "a.jsonl", "a.parquet"])
def test_a_pointer_of_git_lfs_is_no_text(name, config, tmp_path):
    path = tmp_path / name
    path.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:" + "4d7a" * 16 + "\nsize 1234567\n")
    with pytest.raises(DataError, match=r"is a pointer of Git LFS and not the file itself; run: cd .* && git lfs pull"):
        list(documents_of(config(path)))
    with pytest.raises(DataError, match=r"is a pointer of Git LFS"):
        read_table(path.rename(path.with_suffix(".csv")))


@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be", "utf-32-le"])
@pytest.mark.parametrize(
    ("name", "text"), [("x.txt", "A text.\nof two lines"), ("x.jsonl", '{"text": "a"}\n'), ("x.txt", "a")]
)
def test_utf_16_without_a_mark_is_refused(encoding, name, text, tmp_path, config):
    """Read as UTF-8, it has NUL between its letters."""
    (tmp_path / name).write_bytes(text.encode(encoding))
    with pytest.raises(
        DataError, match=rf"cannot read .*{name}: it has characters NUL, as UTF-(16|32).*: iconv -f UTF-"
    ):
        list(documents_of(config(tmp_path / name)))


ENCODINGS = {  # and what is said of a file in them
    "utf-16": "it is in UTF-16 and not UTF-8; convert it: iconv -f UTF-16 -t UTF-8 {} > NEW_FILE",
    "utf-32": "it is in UTF-32 and not UTF-8; convert it: iconv -f UTF-32 ",
    "utf-16-le": "it seems to be in UTF-16LE and not UTF-8; convert it: iconv -f UTF-16LE ",
    "utf-16-be": "it seems to be in UTF-16BE and not UTF-8; convert it: iconv -f UTF-16BE ",
    "latin-1": "byte 0xe9 is not UTF-8; if the file is in Windows-1252 or Latin-1, convert it: iconv -f WINDOWS-1252 ",
}


@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize("name", ["x.txt", "x.jsonl", "a b.txt"])
def test_a_text_in_another_encoding_names_the_command_that_converts_it(encoding, name, tmp_path, config):
    path = tmp_path / name
    path.write_bytes('{"text": "café"}\n'.encode(encoding))
    with pytest.raises(DataError) as caught:
        list(documents_of(config(path)))
    assert f"cannot read {path}: {ENCODINGS[encoding].format(shlex.quote(str(path)))}" in str(caught.value)


def test_a_compressed_file_under_another_name_is_no_text(tmp_path, config):
    (tmp_path / "x.txt").write_bytes(gzip.compress(b"a text"))
    with pytest.raises(DataError, match="it is no plain text, but perhaps compressed"):
        list(documents_of(config(tmp_path / "x.txt")))


@pytest.mark.parametrize("ends", ["[]", ('{"x":', "}")])
def test_a_line_that_nests_too_deeply_is_named(ends, tmp_path, config):
    opening, closing = ends
    nested = opening * 100_000 + ("1" if closing == "}" else "") + closing * 100_000
    (tmp_path / "x.jsonl").write_text('{"text": "fine"}\n{"text": "a", "more": ' + nested + "}\n")
    with pytest.raises(DataError, match=r"x\.jsonl line 2 has lists or objects inside of each other too many times"):
        list(documents_of(config(tmp_path / "x.jsonl")))


def test_a_few_characters_nul_are_text(tmp_path, config):
    (tmp_path / "x.txt").write_text("a text\0with one")
    assert list(documents_of(config(tmp_path / "x.txt"))) == ["a text\0with one"]
