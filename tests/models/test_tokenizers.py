"""Tokenizers are the same if and only if they cut alike, and others are aligned without a look ahead."""

import base64
import dataclasses
import json
import random
import shutil
import unicodedata
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from tokenizers import Tokenizer

import cutters
import tiny
from conftest import composed
from thinkalike.config import ModelConfig
from thinkalike.data.alignment import TokenisedText, align, check_same_tokenizer
from thinkalike.data.paired import backend_with_untrimmed_offsets, tokenised_texts
from thinkalike.digests import BYTE_OF, tokenizer_fingerprint
from thinkalike.errors import ModelError
from thinkalike.instruments import run_job
from thinkalike.models.checkpoints import ASSETS
from thinkalike.models.fingerprints import checkpoint_fingerprint
from thinkalike.models.load import load_model
from thinkalike.models.module_facts import puts_bos
from thinkalike.models.tokenizer_growth import check_growth_of_texts
from thinkalike.models.tokenizer_reading import read_tokenizer


def fast(change=lambda whole: None, **options):
    """The tiny tokenizer after a change of its description."""
    from transformers import PreTrainedTokenizerFast

    whole = json.loads(tiny.tokenizer().backend_tokenizer.to_str())
    change(whole)
    mark = "<|endoftext|>"
    options = {"bos_token": mark, "eos_token": mark, "pad_token": mark, **options}
    return PreTrainedTokenizerFast(tokenizer_object=Tokenizer.from_str(json.dumps(whole)), **options)


CHANGES = {
    "merges": (lambda whole: whole["model"]["merges"].reverse(), {}),
    "normaliser": (lambda whole: whole.update(normalizer={"type": "Lowercase"}), {}),
    "pre-tokeniser": (lambda whole: whole["pre_tokenizer"].update(add_prefix_space=True), {}),
    "post-processor": (
        lambda whole: whole.update(
            post_processor={"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": False, "use_regex": True}
        ),
        {},
    ),
    "added tokens": (lambda whole: whole["added_tokens"][0].update(lstrip=True), {}),
    "model": (lambda whole: whole["model"].update(ignore_merges=True), {}),
    "special tokens": (lambda whole: None, {"bos_token": "a"}),
    "treatment of special tokens": (lambda whole: None, {"split_special_tokens": True}),
}


@pytest.mark.parametrize("part", CHANGES)
def test_tokenizers_that_differ_are_refused_by_the_difference(part):
    change, options = CHANGES[part]
    first, second = (SimpleNamespace(name=n, tokenizer=t) for n, t in (("a", fast()), ("b", fast(change, **options))))
    assert first.tokenizer.get_vocab() == second.tokenizer.get_vocab()
    assert tokenizer_fingerprint(first.tokenizer) != tokenizer_fingerprint(second.tokenizer)
    check_same_tokenizer(first, first)
    with pytest.raises(ModelError, match=rf"a and b have different tokenizers \(.*{part}\)"):
        check_same_tokenizer(first, second)


def test_use_saving_padding_and_decoding_change_nothing(tmp_path):
    from transformers import AutoTokenizer

    first = fast()
    name = tokenizer_fingerprint(first)
    first(["a b", "a"], padding="max_length", truncation=True, max_length=7)
    assert json.loads(first.backend_tokenizer.to_str())["padding"] is not None, "control"
    assert tokenizer_fingerprint(first) == name
    first.save_pretrained(tmp_path)
    assert tokenizer_fingerprint(AutoTokenizer.from_pretrained(tmp_path)) == name
    assert tokenizer_fingerprint(fast(lambda whole: whole.update(decoder=None))) == name
    assert tokenizer_fingerprint(fast(pad_token=None)) == name


@pytest.mark.slow
def test_python_tokenizers_differ_by_class_settings_and_files(tmp_path):
    from transformers import ByT5Tokenizer, CanineTokenizer

    names = [tokenizer_fingerprint(ByT5Tokenizer(extra_ids=count)) for count in (0, 0, 5)]
    assert names[0] == names[1] != names[2]
    assert tokenizer_fingerprint(CanineTokenizer()) not in names
    files = [tmp_path / "a.model", tmp_path / "b.model"]
    for number, path in enumerate(files):
        path.write_bytes(bytes([number]))
    slow = [SimpleNamespace(get_vocab=dict, vocab_files_names={"vocab_file": "x"}, vocab_file=str(f)) for f in files]
    assert tokenizer_fingerprint(slow[0]) == tokenizer_fingerprint(slow[0]) != tokenizer_fingerprint(slow[1])


WEIGHTS = ["a.safetensors", "a.bin", "a.pt", "a.pth"]
CUTTING = ["tokenizer.json", "vocab.txt", "spiece.model", "source.spm", "qwen.tiktoken", "bpe.codes"]


@pytest.mark.parametrize("name", ["config.json", *WEIGHTS, *CUTTING])
def test_a_folders_fingerprint_covers_every_file_loaded(name, tmp_path):
    config = ModelConfig(name="m", path=str(tmp_path))
    (tmp_path / "config.json").write_text("{}")
    before = checkpoint_fingerprint(config)
    (tmp_path / name).write_text("one")
    one = checkpoint_fingerprint(config)
    (tmp_path / name).write_text("two")
    assert len({before, one, checkpoint_fingerprint(config)}) == 3
    (tmp_path / "README.md").write_text("read by people alone")
    (tmp_path / name).write_text("one")
    assert checkpoint_fingerprint(config) == one


def test_the_tokenizer_of_a_run_is_in_the_fingerprint_of_its_steps(checkpoints, tmp_path):
    shutil.copytree(checkpoints["gpt2"], tmp_path / "step64")
    (tmp_path / "step64" / "tokenizer.json").rename(tmp_path / "tokenizer.json")
    config = ModelConfig(name="local", path=str(tmp_path), revision="step64")
    before = checkpoint_fingerprint(config), load_model(config).describe()["tokenizer"]
    fast(lambda whole: whole.update(normalizer={"type": "Lowercase"})).save_pretrained(tmp_path)
    after = checkpoint_fingerprint(config), load_model(config).describe()["tokenizer"]
    assert not {*before} & {*after}


def with_mark(mark="<|endoftext|>", **options):
    """One that puts a mark before a text, as Llama's puts BOS and BERT's [CLS]."""
    number = tiny.tokenizer().convert_tokens_to_ids("<|endoftext|>")
    template = {
        "type": "TemplateProcessing",
        "single": [{"SpecialToken": {"id": mark, "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 0}}],
        "special_tokens": {mark: {"id": mark, "ids": [number], "tokens": [mark]}},
    }
    return fast(lambda whole: whole.update(post_processor=template), **options)


@pytest.mark.usefixtures("command_line")
def test_texts_are_cut_as_tokenizer_json_says(tmp_path, caplog):
    """Llama's class puts a space before a text, and a file of its model type may say that there is none."""
    import transformers as hf

    whole = json.loads(tiny.tokenizer().backend_tokenizer.to_str().replace("Ġ", "▁"))
    whole |= dict.fromkeys(["pre_tokenizer", "post_processor", "decoder"])
    whole["normalizer"] = {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}
    hf.PreTrainedTokenizerFast(tokenizer_object=Tokenizer.from_str(json.dumps(whole))).save_pretrained(tmp_path)
    hf.LlamaConfig().save_pretrained(tmp_path)
    settings = json.loads((tmp_path / "tokenizer_config.json").read_text())
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({**settings, "tokenizer_class": "LlamaTokenizer"}))
    own = Tokenizer.from_file(str(tmp_path / "tokenizer.json")).encode("abc abd", add_special_tokens=False).ids
    overruled = hf.AutoTokenizer.from_pretrained(tmp_path)
    assert overruled("abc abd", add_special_tokens=False)["input_ids"] != own, "control"
    read = read_tokenizer(ModelConfig(name="local", path=str(tmp_path), bos=None), str(tmp_path))
    assert read("abc abd", add_special_tokens=False)["input_ids"] == own
    assert "LlamaTokenizer cuts texts otherwise than tokenizer.json" in caplog.text
    assert "add_bos_token" not in caplog.text
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({**settings, "add_bos_token": True}))
    read_tokenizer(ModelConfig(name="local", path=str(tmp_path), bos=True), str(tmp_path))
    assert "add_bos_token" not in caplog.text
    read_tokenizer(ModelConfig(name="local", path=str(tmp_path), bos=None), str(tmp_path))
    assert "add_bos_token=True has no effect on its tokenizer; set model.bos to decide" in caplog.text


EXPLODES = {"on any text": r"(\w+\s?)+\d", "on long words": r"([a-z]+)*\d"}


@pytest.mark.parametrize("when", EXPLODES)
def test_a_pattern_that_takes_too_many_steps_is_an_error_like_others(when, checkpoints, tmp_path):
    """The library panics, which is no Exception of Python, so that nobody would handle it."""
    folder = shutil.copytree(checkpoints["gpt2"], tmp_path / "tuned")
    path = folder / "tokenizer.json"
    pattern = {"type": "Split", "pattern": {"Regex": EXPLODES[when]}, "behavior": "Isolated", "invert": False}
    path.write_text(json.dumps({**json.loads(path.read_text()), "pre_tokenizer": pattern}))
    for number in range(4):
        (tmp_path / f"{number}.txt").write_text(tiny.document(number) + " " + "abcd" * 20)
    words = [
        "measure=loss",
        f"model={folder}",
        "data=text",
        f"data.files=[{tmp_path}/*.txt]",
        "data.evaluation_share=0.7",
    ]
    words += ["logger=none"]
    with pytest.raises(ModelError, match="retry-limit"):
        run_job(composed(*words, f"store={tmp_path}/store", entry="analyze"))


def test_a_tokenizer_shows_whether_it_adds_bos():
    assert puts_bos(with_mark())
    assert not puts_bos(fast())
    assert not puts_bos(with_mark(bos_token=None, cls_token="<|endoftext|>"))
    assert not puts_bos(with_mark(bos_token="a"))


@pytest.mark.parametrize(("own", "expected"), [(with_mark, True), (fast, False)])
def test_rows_begin_with_bos_as_the_tokenizer_has_it(own, expected, checkpoints, tmp_path):
    shutil.copytree(checkpoints["gpt2"], tmp_path / "m")
    own().save_pretrained(tmp_path / "m")
    config = ModelConfig(name="local", path=str(tmp_path / "m"), bos=None)
    assert load_model(config).bos_each_row is expected
    for stated in (True, False):
        assert load_model(dataclasses.replace(config, bos=stated)).bos_each_row is stated


@pytest.mark.parametrize(
    ("words", "stated"),
    [(["model=a/b"], None), (["model=local", "model.path=/tmp", "model.bos=true"], True), (["model=solu-3l"], True)],
)
def test_bos_is_the_tokenizers_unless_it_is_stated(words, stated):
    assert composed(*words).model.bos is stated


KINDS = list(cutters.MAKERS)


def cut(kind: str, text: str) -> tuple[TokenisedText, list[bytes]]:
    """The tokens of a text, and for each of them what it and those before it stand for."""
    tokenizer = backend_with_untrimmed_offsets(cutters.cutter(kind))
    (found,) = tokenised_texts(tokenizer, [text])
    tokens = tokenizer.encode(text, add_special_tokens=False).tokens
    return found, [cutters.stands_for(kind, tokens[: number + 1], text) for number in range(len(tokens))]


def aligned(target: str, source: str, text: str):
    """The alignment of a text without its end, and what tokens of both stand for."""
    (mine, held), (theirs, seen) = cut(target, text), cut(source, text)
    found = align(text, mine, theirs)
    assert (found.aligned[-1], found.is_exact[-1]) == (len(seen), True), "the end of a document is that of the other"
    return found, held, seen


def check_causal(target: str, source: str, text: str) -> None:
    found, held, seen = aligned(target, source, text)
    for number, last in enumerate(found.aligned[:-1]):
        if last >= 0:
            assert cutters.precedes(seen[last], held[number]), (text, number, held[number], seen[last])
        if {target, source} <= set(cutters.LOSSLESS):
            following = seen[last + 1] if last + 1 < len(seen) else held[number] + b"!"
            assert last < 0 or held[number].startswith(seen[last])
            assert not held[number].startswith(following), (text, number, "a later state could be used")
            assert found.is_exact[number] == (last >= 0 and seen[last] == held[number])


WRITTEN = [
    "the cat sat on the mats",
    "  two   spaces,\n\n\ta tab\t \r\n and    runs   \n   of them  ",
    "naïve café, cafe\u0301s and x\u0323 y\u0308\u0323z",  # composed, to be composed, and not to be
    "a\u0308\u0323b and a\u0323\u0308b",  # accents in two orders
    "ﬁne oﬃces ½ … ｶﾞ",  # one character becomes several, or two become one
    "\u1112\u1161\u11ab 한국어",  # letters of one syllable
    "漢字とかな, 中文字",
    "👩\u200d👩\u200d👧 👍🏽🇩🇪!",
    " 漢 é the\u00a0end\u3000of",
    "x",
    "\n",
]


@pytest.mark.parametrize("source", KINDS)
@pytest.mark.parametrize("target", KINDS)
def test_no_state_has_seen_what_its_token_does_not_hold(target, source):
    for text in WRITTEN:
        check_causal(target, source, text)


@pytest.mark.slow
def test_nor_in_random_text():
    chance = random.Random(0)
    letters = [each for each in cutters.TEXT if unicodedata.normalize("NFKC", each) == each]  # parts can be compared
    for _ in range(300):
        text = "".join(chance.choices([*letters, *"     aaatttheee"], k=chance.randint(1, 30)))
        for _ in range(3):
            check_causal(chance.choice(KINDS), chance.choice(KINDS), text)


@pytest.mark.parametrize(
    ("target", "source", "text"),
    [
        ("bytes", "composed bytes", "cafe\u0301s"),  # the offsets of é leave its accent out
        ("bytes after a space", "bytes", "Привет"),  # the space in front has those of П
        ("bytes", "bytes", "🇩🇪"),  # the first byte has those of the whole
    ],
)
def test_a_later_character_would_be_found(target, source, text):
    """The control: with the offsets as they are given, states see what comes later."""
    (mine, held), (theirs, seen) = cut(target, text), cut(source, text)
    ends = np.maximum.accumulate(theirs.offsets[:, 1])
    last = np.searchsorted(ends, np.maximum.accumulate(mine.offsets[:, 1]), "right") - 1
    assert not all(cutters.precedes(seen[place], held[number]) for number, place in enumerate(last))


@pytest.mark.parametrize("kind", KINDS)
def test_tokenizers_that_cut_alike_are_aligned_token_by_token(kind):
    texts = ["the cat sat on the mats", " a  b\n\n\tc ", "naïve café", "漢字とかな", "Привет, 👍🏽!"]
    for text in [*texts, *(["👩\u200d👩\u200d👧"] if kind != "words" else [])]:  # which drops what joins them
        found, held, _ = aligned(kind, kind, text)
        assert found.is_exact.all(), (text, held)
        assert found.aligned.tolist() == list(range(len(held) + 1))


@pytest.mark.parametrize("kind", KINDS)
def test_the_ids_are_those_that_packing_gives(kind):
    tokenizer = cutters.cutter(kind)
    texts = [*WRITTEN, cutters.TEXT, f"a{cutters.END} b"]
    usual = tokenizer(texts, add_special_tokens=False)["input_ids"]
    assert [list(each.ids) for each in tokenised_texts(backend_with_untrimmed_offsets(tokenizer), texts)] == usual


@pytest.mark.parametrize("kind", KINDS)
def test_bytes_add_up_to_those_of_the_text(kind):
    for text in ["the cat", "漢字とかな, x", "naïve  café ok"]:
        found, *_ = aligned(kind, "bytes", text)
        assert found.target_bytes.sum() == found.source_bytes.sum() == len(text.encode())
        assert (found.target_bytes >= 0).all()


def test_what_is_known_by_hand():
    text = "the cats"
    parts = {"t": 1, "he": 3, " cat": 7, "s": 8}, {"the": 3, " ca": 6, "ts": 8}
    both = []
    for part in parts:
        ends = list(part.values())
        offsets = np.array([*zip([0, *ends], ends, strict=False)])
        both.append(TokenisedText(range(len(part)), offsets, list(part).__getitem__, composes=False))
    there, back = align(text, *both), align(text, *reversed(both))
    assert there.aligned.tolist() == [-1, 0, 1, 2, 3]
    assert there.is_exact.tolist() == [False, True, False, True, True]
    assert there.target_bytes.tolist() == [1, 2, 4, 1, 0]
    assert back.aligned.tolist() == [1, 1, 3, 4]
    assert back.is_exact.tolist() == [True, False, True, True]


@pytest.mark.parametrize("letters", ["fi", "ffi"])
def test_a_token_gets_the_state_of_the_last_of_several_that_end_with_it(letters):
    """A ligature is one token of the target, and one for each of its letters of the source."""
    text = "\ufb01s" if letters == "fi" else "\ufb03s"
    whole = TokenisedText(range(2), np.array([(0, 1), (1, 2)]), [text[0], "s"].__getitem__, composes=True)
    offsets = np.array([*[(0, 1)] * len(letters), (1, 2)])
    apart = TokenisedText(range(len(offsets)), offsets, [*letters, "s"].__getitem__, composes=True)
    found = align(text, whole, apart)
    count = len(letters)
    assert found.aligned.tolist() == [count - 1, count, count + 1]
    assert found.is_exact.all()


def test_bytes_are_written_as_the_library_writes_them():
    assert cutters._letter_of_byte().items() <= BYTE_OF.items()
    assert sorted(BYTE_OF.values()) == list(range(256))


def sequence(*normalizers):
    return {"type": "Sequence", "normalizers": [*normalizers]}


def replaced(content, **pattern):
    return {"type": "Replace", "pattern": pattern, "content": content}


def charsmap(*texts):
    """A map of characters of SentencePiece with an empty trie."""
    held = (8).to_bytes(4, "little") + bytes(8) + b"".join(text.encode() + b"\0" for text in texts)
    return {"type": "Precompiled", "precompiled_charsmap": base64.b64encode(held).decode()}


MANY, LETTER = replaced("e" * 40, String="e"), replaced("e" * 40, Regex="[a-z]")
FRONT = {"type": "Prepend", "prepend": "x" * 100}
EXPLODING = {
    "four replacements": {"normalizer": sequence(*[replaced("e" * 1000, String="e")] * 4)},
    "sequences in sequences": {"normalizer": sequence(sequence(LETTER), MANY)},
    "expressions that match nothing": {"normalizer": sequence(*[replaced("ab", Regex="x*")] * 30)},
    "an expression that Python does not know": {"normalizer": sequence(*[replaced("ab", Regex="(?=\\p{L})")] * 30)},
    "what is put in front": {"normalizer": sequence(FRONT, replaced("x" * 100, String="x"))},
    "maps of characters": {"normalizer": sequence(charsmap("a" * 40), charsmap("b" * 40))},
    "a decoder": {"decoder": {"type": "Sequence", "decoders": [replaced("e" * 1000, String="e")] * 4}},
}


@pytest.mark.parametrize("what", EXPLODING)
def test_replacements_that_multiply_are_refused_before_they_run(what, tmp_path):
    """Four replacements of a letter by a thousand end the process, as Rust cannot allocate their text."""
    folder = changed_mini(tmp_path, EXPLODING[what])
    with pytest.raises(ModelError, match=r"replacements of its (normalizer|decoder) may make a text .* times as long"):
        load_model(folder)


def test_replacements_of_real_tokenizers_are_read(tmp_path):
    signs = {"&": " and ", "%": " percent ", "@": " at ", "#": " hash ", "+": " plus "}
    words = [replaced(word, String=sign) for sign, word in signs.items()]
    letters = [replaced(letter, Regex=f"[{letter}]") for letter in "abcdefghijklmnopq"]
    spaces = [replaced(" ", Regex=" {2,}"), replaced(" ", Regex="\\p{Zs}"), {"type": "NFKC"}]
    for normalizer in (
        sequence(*words, *spaces),
        sequence(*letters),
        sequence({"type": "Prepend", "prepend": "\u2581"}),
    ):
        check_growth_of_texts(Path(changed_mini(tmp_path, {"normalizer": normalizer}), "tokenizer.json"))


def test_a_text_has_one_list_of_ids_where_training_left_merges_out(tmp_path, caplog):
    text = "the dog barks at midnight"
    expected = load_model("gpt2-mini").tokenizer(text)["input_ids"]
    folder = changed_mini(tmp_path, {}, dropout=0.5)
    raw = Tokenizer.from_file(f"{folder}/tokenizer.json")
    assert len({tuple(raw.encode(text).ids) for _ in range(20)}) > 1, "control"
    model = load_model(folder)
    assert {tuple(model.tokenizer(text)["input_ids"]) for _ in range(20)} == {tuple(expected)}
    assert "dropout=0.5 of its tokenizer is left out" in caplog.text
    assert "as other files of the tokenizer add to it" not in caplog.text


def test_a_tokenizer_in_memory_with_dropout_is_refused(tmp_path):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder = changed_mini(tmp_path, {}, dropout=0.5)
    with pytest.raises(ModelError, match=r"the tokenizer has dropout=0\.5"):
        load_model(AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder))


def changed_mini(folder, changes, **of_model):
    """A copy of a model whose tokenizer.json has these entries."""
    copied = folder / "copied"
    shutil.copytree(ASSETS / "gpt2-mini", copied, dirs_exist_ok=True)
    whole = json.loads((copied / "tokenizer.json").read_text()) | changes
    whole["model"] |= of_model
    (copied / "tokenizer.json").write_text(json.dumps(whole))
    return copied
