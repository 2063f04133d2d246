"""Tokenizers are the same if and only if they cut every text into the same ids."""

import dataclasses
import json
import shutil
from types import SimpleNamespace

import pytest
from tokenizers import Tokenizer

import tiny
from conftest import composed
from thinkalike.config import ModelConfig
from thinkalike.digests import tokenizer_fingerprint
from thinkalike.errors import ModelError
from thinkalike.models.load import load_model
from thinkalike.models.places import checkpoint_fingerprint
from thinkalike.models.readers import read_tokenizer
from thinkalike.models.survey import puts_bos, same_vocabulary


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
    same_vocabulary(first, first)
    with pytest.raises(ModelError, match=rf"a and b have different tokenizers \(.*{part}\)"):
        same_vocabulary(first, second)


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


@pytest.mark.parametrize(
    "name", ["config.json", "a.safetensors", "a.bin", "a.pt", "a.pth", "tokenizer.json", "vocab.txt", "spiece.model"]
)
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
    assert "add_bos_token=True has no effect on its tokenizer; model.bos decides" in caplog.text


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
