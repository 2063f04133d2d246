"""GGUF files load as the dequantised folder of the same weights does."""

import re
import shutil
import struct
import sys
import time

import pytest
import torch
import transformers

import tiny
from conftest import composed
from thinkalike.errors import ModelError
from thinkalike.instruments import run_job
from thinkalike.models.config_json import known_config_json
from thinkalike.models.fingerprints import checkpoint_fingerprint
from thinkalike.models.gguf import _fill_in, gguf_config
from thinkalike.models.gguf_header import read_header
from thinkalike.models.load import load_model
from thinkalike.models.shapes import shape_of

gguf = pytest.importorskip("gguf")
KINDS = ["F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "TQ1_0", "TQ2_0", "MXFP4"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tiny.write_llama(tmp_path_factory.mktemp("llama") / "plain")


@pytest.fixture
def file(folder, tmp_path):
    return tiny.write_gguf(folder, tmp_path / "tiny.Q8_0.gguf", "Q8_0")


def can_write(kind):
    try:
        gguf.quants.quantize(torch.zeros(1, 256).numpy(), gguf.GGMLQuantizationType[kind])
    except NotImplementedError:
        return False
    return True


def test_every_type_that_the_package_writes_is_tested():
    assert {kind.name for kind in gguf.GGMLQuantizationType if can_write(kind.name)} == {*KINDS}


@pytest.mark.parametrize("kind", KINDS)
def test_states_are_those_of_the_dequantised_folder(kind, folder, tmp_path):
    file = tiny.write_gguf(folder, tmp_path / f"tiny.{kind}.gguf", kind)
    model, plain = load_model(file), load_model(tiny.write_llama(tmp_path / "dequantised", kind))
    tokens = torch.randint(len(tiny.tokenizer()), (3, 24))
    for ours, theirs in zip(model.residuals(tokens, [0, 1]), plain.residuals(tokens, [0, 1]), strict=True):
        assert (ours - theirs).abs().max() <= 1e-6 * theirs.abs().max()
    assert (model.full(tokens) - plain.full(tokens)).abs().max() <= 1e-5
    assert model.describe()["quantization"] == (f"{kind} x 16, F32 x 5" if kind != "F32" else "F32 x 21")
    assert "quantization" not in plain.describe()
    text = tiny.document(99) + " É 漢字 1½"
    assert model.tokenizer(text)["input_ids"] == plain.tokenizer(text)["input_ids"]


def test_a_token_that_transformers_adds_and_no_text_has_is_no_fault(folder, tmp_path):
    """It adds <|endoftext|>, which has no row, to a tokenizer that marks ends otherwise, as that of Llama 3 does."""
    marked = shutil.copytree(folder, tmp_path / "marked")
    tokenizer = marked / "tokenizer.json"
    tokenizer.write_text(tokenizer.read_text().replace("<|endoftext|>", "<|end_of_text|>"))
    model, plain = load_model(tiny.write_gguf(marked, tmp_path / "tiny.gguf")), load_model(folder)
    assert len(model.tokenizer) == model.vocabulary + 1
    tokens = torch.tensor(model.tokenizer(tiny.document(3))["input_ids"])[None, :32]
    torch.testing.assert_close(model.full(tokens), plain.full(tokens), atol=1e-5, rtol=0)
    with pytest.raises(ModelError, match=r"the token '<\|endoftext\|>' \(id 300\)"):
        model.full(torch.tensor(model.tokenizer("a<|endoftext|>b")["input_ids"])[None])


def test_a_folder_that_holds_one_is_the_same_checkpoint(file):
    one, other = tiny.local(file), tiny.local(file.parent)
    assert checkpoint_fingerprint(one) == checkpoint_fingerprint(other)
    assert load_model(one).fingerprint() == load_model(other).fingerprint()
    assert load_model(one).name == "tiny.Q8_0"
    before = checkpoint_fingerprint(one)
    tiny.write_gguf(tiny.write_llama(file.parent / "other", rope_theta=1e4), file, "Q8_0")
    assert checkpoint_fingerprint(one) != before


def test_a_job_runs_on_it_and_knows_its_shape(file, tmp_path):
    words = [f"model={file}", "model.context=16", "data=text", f"data.files=[{tmp_path}/*.txt]", "logger=none"]
    for seed in range(8):
        (tmp_path / f"{seed}.txt").write_text(tiny.document(seed))
    words += ["data.evaluation_tokens=8192", "data.evaluation_share=0.5", f"store={tmp_path}/store"]
    result = run_job(composed("measure=loss", *words, entry="analyze"))
    assert result.provenance["models"][0]["quantization"] == "Q8_0 x 16, F32 x 5"
    shape = shape_of(tiny.local(file))
    assert (shape.layers, shape.width, shape.vocabulary, shape.name) == (2, 256, len(tiny.tokenizer()), "tiny.Q8_0")


@pytest.mark.parametrize("dtype", ["float64", "bfloat16"])
def test_it_is_cast_as_any_other(file, dtype):
    model = load_model(file, dtype=dtype)
    assert model.dtype == getattr(torch, dtype)
    assert {weight.dtype for weight in model.module.parameters()} == {model.dtype}


REFUSED = {
    "of one is a part": ({"split.count": 2}, r"one of 2 parts; join them"),
    "scaled positions": ({"llama.rope.scaling.type": "linear"}, r"rope\.scaling\.type=linear.*take the model's own"),
    "an unknown cut": ({"tokenizer.ggml.pre": "deepseek-llm"}, r"cuts texts by tokenizer\.ggml\.pre=deepseek-llm"),
    "a cut that is not stated": ({"tokenizer.ggml.pre": None}, r"states no tokenizer\.ggml\.pre, the rule"),
    "a cut called default": ({"tokenizer.ggml.pre": "default"}, r"cuts texts by tokenizer\.ggml\.pre=default"),
    "a field without a place": ({"llama.attention.scale": 3}, r"states llama\.attention\.scale=3, which"),
    "a tensor is missing": ({"leave_out": "model.layers.1.mlp.up_proj.weight"}, r"missing: model\.layers\.1\.mlp\.up"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_would_be_read_wrongly_is_refused_in_one_line(case, folder, tmp_path):
    fields, said = REFUSED[case]
    with pytest.raises(ModelError, match=said):
        load_model(tiny.write_gguf(folder, tmp_path / "m.gguf", **fields))


UNREAD_FIELDS = {
    "rope.scaling.factor": 4.0,
    "rope.scaling.attn_factor": 3.0,
    "rope.scaling.yarn_beta_fast": 16.0,
    "rope.scale_linear": 2.0,
    "attention.causal": False,
    "use_parallel_residual": True,
    "expert_count": 4,
    "expert_gating_func": 2,
    "nextn_predict_layers": 1,
    "attention.sliding_window_pattern": [1, 0],
    "attention.shared_kv_layers": 1,
    "swin_norm": True,
    "a_setting_of_next_year": "x",
}
HARMLESS_FIELDS = {
    "rope.scaling.factor": 1.0,
    "rope.scaling.type": "none",
    "rope.scaling.finetuned": True,
    "rope.scaling.original_context_length": 64,
    "rope.scale_linear": 1.0,
    "attention.causal": True,
    "attention.value_length": 64,
    "use_parallel_residual": False,
    "expert_count": 0,
    "pooling_type": 1,
    "logit_scale": 1.0,
    "tensor_data_layout": "Meta AI original pth",
}


@pytest.mark.parametrize("name", UNREAD_FIELDS)
def test_a_field_that_nothing_reads_and_that_may_change_a_pass_is_refused(name, folder, tmp_path):
    fields = {f"llama.{name}": UNREAD_FIELDS[name]}
    with pytest.raises(ModelError, match=rf"{name}.*take the model's own"):
        load_model(tiny.write_gguf(folder, tmp_path / "m.gguf", **fields))


def test_fields_that_change_nothing_are_no_fault(folder, tmp_path):
    fields = {f"llama.{name}": value for name, value in HARMLESS_FIELDS.items()}
    fields |= {"general.type": "model", "someone.note": "x", "tokenizer.ggml.add_bos_token": True}
    model = load_model(tiny.write_gguf(folder, tmp_path / "m.gguf", **fields))
    tokens = torch.randint(len(tiny.tokenizer()), (2, 16))
    torch.testing.assert_close(model.full(tokens), load_model(folder).full(tokens), atol=1e-5, rtol=0)


UNREAD_TENSORS = [
    "blk.0.attn_q_norm.weight", "blk.0.attn_q.bias", "blk.7.attn_q.weight", "output_norm.bias", "direction.1",
    "blk.0.attn_q.scale", "blk.0.attn_q.weight.lora_a", "mm.0.weight", "x",
]  # fmt: skip


@pytest.mark.parametrize("name", UNREAD_TENSORS)
def test_a_tensor_that_the_model_does_not_have_is_refused(name, folder, tmp_path):
    with pytest.raises(ModelError, match=rf"m\.gguf has tensors that its model does not have: {name}; take the"):
        load_model(tiny.write_gguf(folder, tmp_path / "m.gguf", tensors={name: (256,)}))


def test_the_tensors_of_further_blocks_are_refused_and_known_ones_are_not(folder, tmp_path):
    with pytest.raises(ModelError, match=r"does not have: blk\.1\.attn_k\.weight, "):
        load_model(tiny.write_gguf(folder, tmp_path / "m.gguf", **{"llama.block_count": 1}))
    known = {"blk.0.attn_rot_embd.weight": (32,), "cls.output.weight": (2, 256)}
    assert load_model(tiny.write_gguf(folder, tmp_path / "n.gguf", tensors=known)).n_layers == 2


NOT_WHOLE = {
    "a LoRA": ({"adapter.type": "lora"}, r"no whole model, as it states adapter\.type"),
    "an adapter": ({"general.type": "adapter"}, r"states general\.type=adapter"),
    "a projector": ({"general.type": "mmproj"}, r"states general\.type=mmproj"),
    "no epsilon": ({"llama.attention.layer_norm_rms_epsilon": None}, r"does not state llama\.\*epsilon"),
    "no heads": ({"llama.attention.head_count": None}, r"not state llama\.\*attention\.head_count"),
    "no rotary part": ({"llama.rope.dimension_count": 0}, r"llama\.rope\.dimension_count=0, a size"),
    "no width": ({"llama.embedding_length": 0}, r"llama\.embedding_length=0, a size"),
    "no tokens": ({"tokenizer.ggml.tokens": []}, r"has no tokens"),
    "BOS beyond the tokens": ({"tokenizer.ggml.bos_token_id": 99999}, r"bos_token_id=99999, and has \d+ tokens"),
    "padding beyond the tokens": ({"tokenizer.ggml.padding_token_id": 99999}, r"padding_token_id=99999, and has"),
}


@pytest.mark.parametrize("case", NOT_WHOLE)
def test_what_is_no_whole_model_is_refused_in_its_own_words(case, folder, tmp_path):
    fields, words = NOT_WHOLE[case]
    with pytest.raises(ModelError, match=words):
        load_model(tiny.write_gguf(folder, tmp_path / "m.gguf", **fields))


OTHER_TYPES = {
    "split.count": "x",
    "llama.rope.freq_base": "x",
    "llama.rope.dimension_count": "x",
    "llama.attention.layer_norm_rms_epsilon": "x",
    "llama.block_count": 2.5,
    "llama.attention.key_length": "x",
    "general.type": 3,
}


@pytest.mark.parametrize("name", OTHER_TYPES)
def test_a_field_of_another_type_is_one_line(name, folder, tmp_path):
    file = tiny.write_gguf(folder, tmp_path / "m.gguf", **{name: OTHER_TYPES[name]})
    assert isinstance(known_config_json(file), dict)
    with pytest.raises(ModelError, match=r"m\.gguf|not finite") as caught:
        load_model(file)
    assert "\n" not in str(caught.value)


WRONG_TYPES = {
    "tokenizer.ggml.add_bos_token": "false",
    "tokenizer.ggml.add_eos_token": [False],
    "tokenizer.ggml.add_space_prefix": [False, True],
    "tokenizer.ggml.pre": 1,
    "llama.rope.freq_base": True,
}


@pytest.mark.parametrize("name", WRONG_TYPES)
def test_a_field_that_python_would_take_for_another_value_is_refused(name, folder, tmp_path):
    """Any text is true to Python, and true is 1; the format has one type for each field."""
    file = tiny.write_gguf(folder, tmp_path / "m.gguf", **{name: WRONG_TYPES[name]})
    with pytest.raises(ModelError, match=rf"states {re.escape(name)}=.*, which is not (true or false|a text|a number)"):
        gguf_config(file)


def begins(file, name):
    """Return where in a file the offset of a tensor of two dimensions is."""
    return file.read_bytes().index(name.encode()) + len(name) + 4 + 16 + 4


@pytest.mark.parametrize("moved", [-32, 4, 32, "to that of the gate"])
def test_tensors_that_do_not_follow_one_another_are_refused(moved, file):
    """llama.cpp reads a file only if each tensor begins where the padding of that before it ends."""
    content = bytearray(file.read_bytes())
    at = begins(file, "blk.0.ffn_up.weight")
    start = int.from_bytes(content[at : at + 8], "little")
    if isinstance(moved, int):
        start += moved
    else:
        of_gate = begins(file, "blk.0.ffn_gate.weight")
        start = int.from_bytes(content[of_gate : of_gate + 8], "little")
    content[at : at + 8] = start.to_bytes(8, "little")
    file.write_bytes(bytes(content))
    with pytest.raises(ModelError, match=r"blk\.0\.ffn_up\.weight is stated to begin at byte .*, and those before it"):
        read_header(file)


def test_tensors_are_aligned_as_the_file_states(folder, tmp_path):
    for alignment in (64, 8):
        file = tmp_path / "m.gguf"
        writer = gguf.GGUFWriter(file, "llama")
        writer.add_custom_alignment(alignment)
        for name in ("a", "b"):
            writer.add_tensor(name, torch.ones(3).numpy())
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        assert list(read_header(file).types) == ["a", "b"]


@pytest.mark.parametrize("kind", ["F32", "Q8_0"])
def test_a_file_that_is_not_quantised_is_no_reason_to_warn(kind, folder, tmp_path, caplog):
    load_model(tiny.write_gguf(folder, tmp_path / "m.gguf", kind))
    assert caplog.text == ""


def test_fields_that_transformers_passes_over_are_read(folder, tmp_path):
    """Digits stand alone in texts of SmolLM and StarCoder, and the latter states a base of its own."""
    file = tiny.write_gguf(folder, tmp_path / "m.gguf", **{"tokenizer.ggml.pre": "smollm"})
    cut = load_model(file).tokenizer.backend_tokenizer.pre_tokenizer.pre_tokenize_str("in 2023")
    assert [piece for piece, _ in cut] == ["in", "Ġ", *"2023"]
    shape = transformers.Starcoder2Config(num_attention_heads=4, hidden_size=32)
    facts = {"s.rope.freq_base": 1e6, "s.rope.dimension_count": 8, "s.attention.layer_norm_epsilon": 0.5}
    assert _fill_in(shape, {**facts, "s.attention.sliding_window": 7, "s.logit_scale": 2.0}, "s.") == [
        "s.logit_scale=2.0"
    ]
    assert (shape.rope_parameters["rope_theta"], shape.norm_epsilon, shape.sliding_window) == (1e6, 0.5, 7)
    assert shape.rope_parameters.get("partial_rotary_factor", 1.0) == 1.0
    _fill_in(shape, {"s.rope.dimension_count": 2}, "s.")
    assert shape.rope_parameters["partial_rotary_factor"] == 0.25
    shape = transformers.Qwen3Config()
    assert not _fill_in(shape, {"q.rope.dimension_count": 24, "q.attention.key_length": 24}, "q.")
    assert (shape.head_dim, shape.rope_parameters.get("partial_rotary_factor", 1.0)) == (24, 1.0)


def test_an_unknown_architecture_is_refused_in_one_line(tmp_path):
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "rwkv7")
    writer.add_tensor("output.weight", torch.ones(2, 32).numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(ModelError, match=r"architecture rwkv7 is not supported yet.*take the model's own folder"):
        load_model(tmp_path / "m.gguf")
    (tmp_path / "m.gguf").write_bytes(b"GGUF")
    with pytest.raises(ModelError, match=r"m\.gguf"):
        load_model(tmp_path / "m.gguf")


def field(name, kind, value):
    """A field of the format: its name, the number of its type, and its value in bytes."""
    return struct.pack("<Q", len(name)) + name.encode() + struct.pack("<I", kind) + value


ARCHITECTURE = field("general.architecture", 8, struct.pack("<Q", 5) + b"llama")
STATED = {  # what follows the numbers of tensors and of fields
    "2^60 numbers": (0, 2, ARCHITECTURE + field("a", 9, struct.pack("<IQ", 4, 2**60))),
    "2^60 texts": (0, 2, ARCHITECTURE + field("a", 9, struct.pack("<IQ", 8, 2**60))),
    "lists inside one another": (0, 2, ARCHITECTURE + field("a", 9, struct.pack("<IQ", 9, 1) * 5000)),
    "a text of 2^60 letters": (0, 1, field("general.architecture", 8, struct.pack("<Q", 2**60))),
    "2^60 fields": (0, 2**60, ARCHITECTURE),
    "5,000 fields": (0, 5000, ARCHITECTURE + b"".join(field(f"n{i}", 0, b"1") for i in range(4999))),
    "2^60 tensors": (2**60, 1, ARCHITECTURE),
    "2^31 dimensions": (1, 1, ARCHITECTURE + struct.pack("<Q", 1) + b"a" + struct.pack("<I", 2**31)),
    "a tensor of 2^80 numbers": (
        1, 1, ARCHITECTURE + struct.pack("<Q", 1) + b"a" + struct.pack("<IQQIQ", 2, 2**40, 2**40, 0, 0)
    ),
    "no architecture": (0, 0, b""),
}  # fmt: skip


@pytest.mark.parametrize("case", STATED)
def test_a_file_that_states_more_than_it_holds_is_refused_at_once(case, tmp_path):
    tensors, fields, rest = STATED[case]
    file = tmp_path / "m.gguf"
    file.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, tensors, fields) + rest + bytes(64))
    began = time.monotonic()
    with pytest.raises(ModelError, match=r"m\.gguf"):
        load_model(file)
    assert known_config_json(file) == {}
    assert time.monotonic() - began < 5


def test_a_text_that_is_no_utf_8_is_told_as_that(folder, tmp_path):
    for field_name, value in [("abcd", 1), ("general.description", "abcd")]:
        file = tiny.write_gguf(folder, tmp_path / "m.gguf", **{field_name: value})
        file.write_bytes(file.read_bytes().replace(b"abcd", b"ab\xe9d"))
        with pytest.raises(ModelError, match=r"it has the text ab.d, which is no UTF-8"):
            read_header(file)


@pytest.mark.parametrize("count", [300, 10**9])
def test_a_file_with_more_blocks_than_tensors_is_refused_at_once(count, file):
    content = file.read_bytes()
    place = content.index(b"llama.block_count") + len(b"llama.block_count") + 4
    file.write_bytes(content[:place] + struct.pack("<I", count) + content[place + 4 :])
    with pytest.raises(ModelError, match=rf"llama\.block_count={count}"):
        load_model(file)


def test_the_header_is_read_as_the_package_reads_it(file):
    reader = gguf.GGUFReader(file)
    header = read_header(file)
    assert header.types == {tensor.name: tensor.tensor_type.name for tensor in reader.tensors}
    single = {name: field.contents() for name, field in reader.fields.items() if len(field.data) == 1}
    assert header.fields == pytest.approx({name: each for name, each in single.items() if not name.startswith("GGUF.")})


def test_a_missing_extra_is_named(file, monkeypatch):
    monkeypatch.setitem(sys.modules, "gguf", None)
    with pytest.raises(ModelError, match=r"GGUF file, which needs gguf: pip install 'thinkalike\[gguf\]'"):
        load_model(file)


def test_quantising_once_more_is_refused(file):
    with pytest.raises(ModelError, match="quantised already"):
        load_model(tiny.local(file, quantization="8bit"))


def test_a_folder_of_several_asks_for_one(file):
    (file.parent / "b.gguf").write_bytes(file.read_bytes())
    with pytest.raises(ModelError, match=r"2 GGUF files.*name one: model=.*b\.gguf"):
        load_model(file.parent)
