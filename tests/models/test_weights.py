"""Loading proves that all weights came, that they are finite, and that there is a tokenizer that fits them."""

import json
import os
import pickle
import shutil
import time
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch.nn.utils import parametrizations

import tiny
from conftest import every_second
from damaged_weights import DAMAGES, rewrite
from thinkalike.config import ModelConfig
from thinkalike.errors import ModelError
from thinkalike.files import LARGEST_READ_WHOLE
from thinkalike.models.families import stated_quantization
from thinkalike.models.fingerprints import checkpoint_fingerprint
from thinkalike.models.load import load_model
from thinkalike.models.plausible import architectures_that_read, check_plausible
from thinkalike.models.shapes import shape_of

KINDS = (*tiny.FAMILIES, "classifier", "native")
CLASSES = ["contradiction", "entailment", "neutral"]
BLOCK = {"gpt2": ".h.1.", "gpt_neox": ".layers.1.", "mamba": ".layers.1.", "native": "layers.1."}
MATRIX = {"gpt2": "transformer.wte.weight", "gpt_neox": "gpt_neox.embed_in.weight", "native": "tok_embed.weight",
          "mamba": "backbone.embeddings.weight"}  # fmt: skip
BERTS = "bert.embeddings.word_embeddings.weight"


@pytest.fixture
def whole(tmp_path, checkpoints):
    """Copy a checkpoint of a kind into a folder of its own."""

    def copy(kind):
        if kind == "classifier":
            return tiny.write_classifier(tmp_path / "whole", CLASSES)
        if kind == "native":
            return tiny.write_mini(tmp_path / "whole")
        return shutil.copytree(checkpoints[kind], tmp_path / "whole")

    return copy


def load(kind, folder, **changes):
    """The state dict of what is loaded."""
    native = {"family": "native", "mini": True} if kind == "native" else {}
    config = ModelConfig(**{"name": "local", "path": str(folder), **native, **changes})
    return load_model(config).module.state_dict()


def line_of(kind, folder, **changes):
    with pytest.raises(ModelError) as caught:
        load(kind, folder, **changes)
    return str(caught.value)


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("kind", KINDS)
def test_weights_that_are_not_those_of_config_json_are_refused(whole, kind, damage):
    """A block too many tells that config.json has too few: else the model would be cut short in silence."""
    folder, (change, said, said_of_mini) = whole(kind), DAMAGES[damage]
    rewrite(folder, lambda weights: change(weights, BLOCK.get(kind, ".layer.1."), MATRIX.get(kind, BERTS)))
    assert (said_of_mini if kind == "native" else said) in line_of(kind, folder)


def test_buffers_poolers_and_heads_of_other_classes_are_no_fault(whole):
    """As bert-base-uncased has them."""
    folder = whole("bert")
    expected = load("bert", folder)
    others = {
        "bert.pooler.dense.weight": torch.ones(32, 32),
        "cls.seq_relationship.weight": torch.ones(2, 32),
        "bert.embeddings.position_ids": torch.arange(64)[None],
    }
    rewrite(folder, lambda weights: weights | others)
    loaded = load("bert", folder)
    assert all(torch.equal(loaded[name], weight) for name, weight in expected.items())


def test_a_head_may_be_missing_if_nothing_reads_it(whole, tmp_path):
    folder = whole("bert")
    rewrite(folder, lambda weights: {n: w for n, w in weights.items() if not n.startswith("cls.")})
    first, second = load("bert", folder), load("bert", folder)
    assert all(torch.equal(first[name], second[name]) for name in first)
    folder.rename(tmp_path / "other")
    folder = whole("gpt_neox")
    rewrite(folder, lambda weights: {n: w for n, w in weights.items() if n.startswith("gpt_neox.")})
    assert "(missing: lm_head.weight)" in line_of("gpt_neox", folder)


def test_a_body_alone_is_enough_where_the_head_is_tied(whole):
    folder = whole("gpt2")
    expected = load("gpt2", folder)
    rewrite(folder, lambda weights: {n.removeprefix("transformer."): w for n, w in weights.items()})
    loaded = load("gpt2", folder)
    assert all(torch.equal(loaded[name], weight) for name, weight in expected.items())


def test_older_files_and_several_files_are_read_alike(whole, caplog):
    import transformers

    folder = whole("gpt2")
    expected = load("gpt2", folder)
    weights = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    torch.save(weights, folder / "pytorch_model.bin")
    assert all(torch.equal(each, expected[name]) for name, each in load("gpt2", folder).items())
    (folder / "pytorch_model.bin").unlink()
    model = transformers.GPT2LMHeadModel(transformers.AutoConfig.from_pretrained(folder))
    model.load_state_dict(weights, strict=False)
    model.save_pretrained(folder, max_shard_size="60KB")
    assert len(list(folder.glob("model-*.safetensors"))) > 2
    torch.save(weights, folder / "pytorch_model.bin")
    assert not caplog.text
    assert all(torch.equal(each, expected[name]) for name, each in load("gpt2", folder).items())
    assert f"weights that are not read lie in {folder}: pytorch_model.bin" in caplog.text


@pytest.mark.parametrize(("kind", "value"), [*((kind, torch.nan) for kind in KINDS), ("gpt2", torch.inf)])
def test_a_row_that_is_not_finite_is_refused_by_name(whole, kind, value):
    folder, name = whole(kind), MATRIX.get(kind, BERTS)

    def change(weights):
        weights[name][299] = value  # a row that the proof's tokens need not touch
        return weights

    rewrite(folder, change)
    assert f"32 of 9,600 values of {name} are not finite" in line_of(kind, folder)


def test_a_weight_that_half_precision_cannot_hold_is_named(whole):
    folder = whole("gpt2")
    rewrite(folder, lambda weights: weights | {MATRIX["gpt2"]: weights[MATRIX["gpt2"]] * 1e6})
    assert "are not finite; they may be in float32" in line_of("gpt2", folder, dtype="float16")
    rewrite(folder, lambda weights: weights | {MATRIX["gpt2"]: weights[MATRIX["gpt2"]] / 1e6,
                                               "transformer.ln_f.weight": torch.full((32,), 6e4)})  # fmt: skip
    assert "output on sample tokens is not finite in float16; load" in line_of("gpt2", folder, dtype="float16")


@pytest.mark.parametrize("stored", [torch.float16, torch.bfloat16])
def test_weights_of_half_precision_are_widened_to_the_bit(whole, stored):
    folder = whole("gpt2")
    rewrite(folder, lambda weights: {name: weight.to(stored) for name, weight in weights.items()})
    loaded = load("gpt2", folder)
    assert all(
        torch.equal(loaded[name], weight.float()) for name, weight in load_file(folder / "model.safetensors").items()
    )


@pytest.mark.parametrize(
    ("kind", "inner"), [("native", "layers.1.mlp.fc_out.weight"), ("gpt2", "transformer.h.1.mlp.c_proj.weight")]
)
def test_a_matrix_of_whole_numbers_is_refused_and_zeros_are_said(whole, kind, inner, caplog):
    folder, name = whole(kind), MATRIX[kind]
    plain = load_file(folder / "model.safetensors")
    rewrite(folder, lambda weights: weights | {name: weights[name].sign()})
    assert f"{name} holds whole numbers alone" in line_of(kind, folder)
    assert load(kind, folder, implausible=True), "and loads where the user knows better"
    rewrite(folder, lambda _: plain | {inner: 0 * plain[inner]})
    assert load(kind, folder)
    assert f"zero everywhere: {inner}" in caplog.text
    rewrite(folder, lambda weights: {name: torch.zeros_like(weight) for name, weight in weights.items()})
    assert "output on sample tokens is zero everywhere" in line_of(kind, folder)


STORED = {"gpt2": "transformer.h.1.mlp.c_fc.bias", "bert": "bert.encoder.layer.1.output.LayerNorm.bias",
          "mamba": "backbone.layers.1.mixer.A_log", "native": "layers.1.mlp.fc_in.bias"}  # fmt: skip


NO_FLOATS = [torch.int64, torch.int32, torch.bool, torch.float8_e4m3fn, torch.complex64]


@pytest.mark.parametrize("dtype", every_second(NO_FLOATS), ids=str)
@pytest.mark.parametrize("kind", STORED)
def test_a_weight_that_is_stored_as_no_floating_number_is_refused(whole, kind, dtype):
    folder, name = whole(kind), STORED[kind]
    rewrite(folder, lambda weights: weights | {name: torch.ones_like(weights[name]).to(dtype)})
    assert f"{name} is stored as" in line_of(kind, folder)


def test_a_pickled_weight_of_whole_numbers_is_refused_and_a_buffer_of_them_is_not(whole):
    folder, name = whole("gpt2"), STORED["gpt2"]
    weights = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    torch.save(weights | {"transformer.h.0.attn.bias": torch.ones(1, 1, 64, 64).bool()}, folder / "pytorch_model.bin")
    assert load("gpt2", folder)
    torch.save(weights | {name: weights[name].short()}, folder / "pytorch_model.bin")
    assert f"{name} is stored as int16" in line_of("gpt2", folder)


def test_a_matrix_of_one_number_is_refused(whole):
    folder, name = whole("gpt2"), "transformer.h.1.mlp.c_fc.weight"
    rewrite(folder, lambda weights: weights | {name: torch.full_like(weights[name], 0.02)})
    assert f"{name} holds 0.02 alone" in line_of("gpt2", folder)
    assert load("gpt2", folder, implausible=True)


@pytest.mark.parametrize(
    ("rows", "columns", "said"), [(slice(16, 32), slice(None), "16 rows"), (slice(None), slice(3, 4), "1 columns")]
)
def test_rows_and_columns_of_zeros_are_said(whole, rows, columns, said, caplog):
    folder, name = whole("gpt2"), "transformer.h.1.mlp.c_fc.weight"
    weights = load_file(folder / "model.safetensors")
    weights[name][rows, columns] = 0
    rewrite(folder, lambda _: weights)
    assert load("gpt2", folder)
    assert f"{said} of {name}" in caplog.text


def test_zeros_that_training_leaves_are_not_said(whole, caplog):
    """Single zeros of pruning, biases and norms that begin so, and rows of padding and of positions."""
    folder = whole("bert")
    weights = load_file(folder / "model.safetensors")
    for name, weight in weights.items():
        if weight.dim() == 1:
            weight.zero_()
        elif "embeddings" not in name:
            weight[torch.rand(weight.shape) < 0.5] = 0
    weights["bert.embeddings.position_embeddings.weight"][-5:] = 0
    weights["bert.embeddings.word_embeddings.weight"][tiny.tokenizer().pad_token_id] = 0
    weights["cls.predictions.bias"][:] = 1
    rewrite(folder, lambda _: weights)
    load("bert", folder)
    assert "zero" not in caplog.text


@pytest.mark.parametrize(
    ("stated", "said"),
    [
        ({"architectures": ["GemmaForCausalLM"]}, "architectures=GemmaForCausalLM"),
        ({"architectures": ["GraniteForCausalLM"]}, "architectures=GraniteForCausalLM"),
        ({"residual_multiplier": 0.22}, "residual_multiplier=0.22"),
        ({"final_logit_softcapping": 30.0}, "final_logit_softcapping=30.0"),
    ],
    ids=str,
)
def test_a_configuration_of_another_architecture_is_refused(stated, said, tmp_path):
    """The weights of Granite and Gemma have the names and shapes of Llama's."""
    folder = tiny.write_llama(tmp_path / "llama")
    edit(folder, **stated)
    assert said in line_of("llama", folder)
    assert load("llama", folder, implausible=True)


def test_settings_that_change_nothing_are_accepted(tmp_path):
    folder = tiny.write_llama(tmp_path / "llama")
    edit(folder, architectures=["LlamaModel"], residual_multiplier=1.0, logit_scale=None, scale_attn_weights=True)
    assert load("llama", folder)


def edit(folder, **stated):
    """Change entries of a config.json."""
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **stated}))


@pytest.mark.parametrize(
    ("kind", "stated"),
    [
        ("gpt2", {"n_layer": 10**7}),
        ("gpt2", {"n_layer": 300}),
        ("gpt2", {"n_positions": 10**9}),
        ("gpt2", {"vocab_size": 10**9}),
        ("gpt_neox", {"num_hidden_layers": 2**31}),
        ("bert", {"intermediate_size": 10**10}),
        ("mamba", {"num_hidden_layers": 10**6}),
        ("native", {"architecture": {**tiny.ARCHITECTURE, "n_layers": 10**7}}),
        ("classifier", {"num_labels": 10**9}),
    ],
    ids=str,
)
def test_what_a_configuration_states_is_bounded_by_what_its_weights_hold(whole, kind, stated):
    folder = whole(kind)
    edit(folder, **stated)
    began = time.monotonic()
    assert "states" in line_of(kind, folder)
    assert time.monotonic() - began < 20


@pytest.mark.parametrize("nested", ["[" * 10**5, '{"a":' * 300 + "1" + "}" * 300], ids=["lists", "objects"])
def test_a_configuration_that_is_nested_too_deeply_is_refused(whole, nested):
    folder = whole("gpt2")
    (folder / "config.json").write_text(nested)
    assert "inside one another" in line_of("gpt2", folder)


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "model.safetensors", "generation_config.json"])
@pytest.mark.parametrize("kind", ["pipe", "device", "folder"])
def test_what_is_no_regular_file_is_refused(whole, name, kind):
    folder = whole("gpt2")
    place = folder / name
    place.unlink()
    {"pipe": lambda: os.mkfifo(place), "device": lambda: place.symlink_to("/dev/zero"), "folder": place.mkdir}[kind]()
    assert f"{name} is not a regular file" in line_of("gpt2", folder)
    with pytest.raises(ModelError, match="is not a regular file"):
        shape_of(tiny.local(folder))


@pytest.mark.parametrize("stated", [[], {"a": 1}, {"a": "nowhere.safetensors"}, {"a": "folder/x.safetensors"}, None])
def test_an_index_names_the_files_that_are_there(whole, stated):
    folder = whole("gpt2")
    (folder / "model.safetensors").rename(folder / "one.safetensors")
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": stated}))
    assert "model.safetensors.index.json" in line_of("gpt2", folder)


def test_an_index_that_is_left_over_is_not_read(whole):
    folder = whole("gpt2")
    stale = {f"weight {number}": f"part-{number}.safetensors" for number in range(1000)}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": stale}))
    assert load("gpt2", folder)


class RunsCode:
    def __reduce__(self):
        return print, ("this must never run",)


@pytest.mark.parametrize("save", [torch.save, lambda held, path: path.write_bytes(pickle.dumps(held))])
def test_a_file_that_would_run_code_is_refused_without_advice_to_run_it(whole, save, capsys):
    folder = whole("gpt2")
    (folder / "model.safetensors").unlink()
    save({"transformer.wte.weight": RunsCode()}, folder / "pytorch_model.bin")
    said = line_of("gpt2", folder)
    assert "never run" in said
    assert "weights_only" not in said
    assert "this must never run" not in capsys.readouterr().out


def test_a_loss_far_above_that_of_a_guess_is_refused(whole):
    """As after a few flipped bits in exponents."""
    folder = whole("gpt2")
    rewrite(folder, lambda weights: weights | {"transformer.ln_f.weight": 3000 * weights["transformer.ln_f.weight"]})
    assert "its loss on an English sentence" in line_of("gpt2", folder)
    assert load("gpt2", folder, implausible=True), "and loads where the user knows better"


@pytest.mark.parametrize("name", ["rest.th", "rest", "rest.npz"])
def test_an_index_that_names_what_no_key_covers_is_refused(whole, name):
    folder = whole("gpt2")
    weights = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    torch.save(weights, folder / name)
    (folder / "pytorch_model.bin.index.json").write_text(json.dumps({"weight_map": dict.fromkeys(weights, name)}))
    assert f"names {name}, and files of weights end in" in line_of("gpt2", folder)


def test_weights_in_the_folder_of_a_step_are_in_the_fingerprint(whole):
    folder = whole("gpt2")
    weights = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    name = "checkpoint-500/part.safetensors"
    (folder / "checkpoint-500").mkdir()
    shutil.copy(folder / "config.json", folder / "checkpoint-500")
    index = {"metadata": {}, "weight_map": dict.fromkeys(weights, name)}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    fingerprints = set()
    for factor in (1.0, 1.5):
        save_file({key: factor * weight for key, weight in weights.items()}, folder / name, metadata={"format": "pt"})
        fingerprints.add(checkpoint_fingerprint(ModelConfig(name="local", path=str(folder))))
    assert len(fingerprints) == 2


def test_an_index_and_its_files_must_agree(whole):
    folder, name = whole("gpt2"), MATRIX["gpt2"]
    weights = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").rename(folder / "one.safetensors")
    index = {"metadata": {}, "weight_map": dict.fromkeys(weights, "one.safetensors") | {name: "two.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    for more in (0, 1):
        save_file({name: weights[name] + more}, folder / "two.safetensors", metadata={"format": "pt"})
        assert more or load("gpt2", folder)
    assert f"two files of model.safetensors.index.json hold {name}" in line_of("gpt2", folder)
    index["weight_map"]["lost"] = "two.safetensors"
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    assert "json says that two.safetensors holds lost, and it does not" in line_of("gpt2", folder)


def test_two_sets_of_weights_must_be_equal(whole):
    folder = whole("gpt2")
    weights = load_file(folder / "model.safetensors")
    (folder / "pytorch_model.bin").write_text("version https://git-lfs.github.com/spec/v1")
    expected = load("gpt2", folder)
    torch.save({name: weight.half() for name, weight in weights.items()}, folder / "pytorch_model.bin")
    assert all(torch.equal(weight, expected[name]) for name, weight in load("gpt2", folder).items())
    weights[MATRIX["gpt2"]][7, 3] += 1
    torch.save(weights, folder / "pytorch_model.bin", _use_new_zipfile_serialization=False)
    assert "two sets of weights that differ, model.safetensors and pytorch_model.bin" in line_of("gpt2", folder)


def test_two_sets_in_both_halves_of_precision_are_one(whole):
    folder = whole("gpt2")
    weights = load_file(folder / "model.safetensors")
    weights[MATRIX["gpt2"]][7, 3] = 1e-10  # 0 in float16
    brain_floats = {name: weight.bfloat16() for name, weight in weights.items()}
    save_file(brain_floats, folder / "model.safetensors", metadata={"format": "pt"})
    halves = {name: weight.half() for name, weight in brain_floats.items()}
    torch.save(halves, folder / "pytorch_model.bin")
    expected = load("gpt2", folder)[MATRIX["gpt2"]]
    assert torch.equal(expected, brain_floats[MATRIX["gpt2"]].float())


def test_a_class_that_transformers_lacks_is_said(whole, caplog):
    folder = whole("gpt2")
    shape = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**shape, "architectures": ["GPT2EncoderModel"]}))
    load("gpt2", folder)
    assert "is a GPT2EncoderModel, which transformers lacks, and runs as a GPT2LMHeadModel" in caplog.text


@pytest.mark.parametrize("is_in_list", [False, True])
def test_code_of_the_hub_that_config_json_names_is_refused(whole, is_in_list):
    folder = whole("gpt2")
    shape = json.loads((folder / "config.json").read_text())
    kernel = {"_attn_implementation_internal": "someone/kernel"}
    extra = {"sections": [{}, kernel]} if is_in_list else kernel
    (folder / "config.json").write_text(json.dumps({**shape, **extra}))
    assert "someone/kernel" in line_of("gpt2", folder)


@pytest.mark.parametrize("dtype", ["bfloat16", pytest.param("float16", marks=pytest.mark.slow)])
@pytest.mark.parametrize("kind", KINDS)
def test_every_family_loads_in_half_precision(whole, kind, dtype):
    loaded = load(kind, whole(kind), dtype=dtype)
    assert loaded[MATRIX.get(kind, BERTS)].dtype == getattr(torch, dtype)


@pytest.mark.parametrize("kind", ["gpt2", "native"])
def test_a_folder_without_a_tokenizer_is_refused(whole, kind):
    """transformers would make up one that knows no words."""
    folder = whole(kind)
    for path in folder.glob("tokenizer*"):
        path.unlink()
    assert ("cannot load" if kind == "native" else "has no tokenizer that transformers reads (") in line_of(
        kind, folder
    )


@pytest.mark.parametrize("kind", ["gpt2", "classifier"])
def test_a_tokenizer_larger_than_the_embedding_is_refused(whole, kind):
    folder = whole(kind)
    tiny.tokenizer(320).save_pretrained(folder)
    assert "ids up to 319, but its embedding only 300 rows" in line_of(kind, folder)


def mixed_models(folder):
    """Checkpoints of architectures of which transformers keeps some weights in float32."""
    import transformers as hf

    size = {"vocab_size": len(tiny.tokenizer()), "num_hidden_layers": 2, "hidden_size": 32}
    heads = {"num_attention_heads": 4, "intermediate_size": 64, "num_key_value_heads": 2, "head_dim": 8}
    experts = {"moe_num_experts": 4, "moe_k": 2, "moe_intermediate_size": 32, "moe_layer_start_index": 0}
    encoder = {"d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_heads": 4, "decoder_start_token_id": 0}
    built = {
        "ernie4_5_moe": lambda: hf.Ernie4_5_MoeForCausalLM(hf.Ernie4_5_MoeConfig(**size, **heads, **experts)),
        "gpt_oss": lambda: hf.GptOssForCausalLM(hf.GptOssConfig(**size, **heads, num_local_experts=4)),
        "t5": lambda: hf.T5ForConditionalGeneration(hf.T5Config(vocab_size=len(tiny.tokenizer()), **encoder)),
        "llama": lambda: hf.LlamaForCausalLM(hf.LlamaConfig(**size, **heads)),
    }
    torch.manual_seed(1)
    model = built[folder.name]()
    tiny.enlarge(tiny.jiggled(model, 0.01))
    model.save_pretrained(folder)
    tiny.tokenizer().save_pretrained(folder)
    return model.eval()


@pytest.mark.parametrize(
    ("name", "dtype", "count"),
    [pytest.param("ernie4_5_moe", "bfloat16", 4, marks=pytest.mark.ci_slow), ("ernie4_5_moe", "float16", 4),
     ("gpt_oss", "float16", 5), ("t5", "float16", 4),
     pytest.param("gpt_oss", "bfloat16", 0, marks=pytest.mark.ci_slow), ("llama", "bfloat16", 0)],
)  # fmt: skip
def test_weights_that_transformers_keeps_in_float32_stay_so(name, dtype, count, tmp_path):
    """States are to the bit those of `from_pretrained` with this dtype, and the provenance counts such weights."""
    given = mixed_models(tmp_path / name)
    plain = type(given).from_pretrained(tmp_path / name, dtype=getattr(torch, dtype)).eval()
    tokens = torch.randint(len(tiny.tokenizer()), (2, 20), generator=torch.Generator().manual_seed(0))
    is_pair, cutter = name == "t5", tiny.tokenizer()
    side = {"side": "decoder"} if is_pair else {}
    with torch.no_grad():
        output = plain(tokens, output_hidden_states=True, **({"decoder_input_ids": tokens} if is_pair else {}))
    expected = (output.decoder_hidden_states if is_pair else output.hidden_states)[1]
    read = load_model(tmp_path / name, dtype=dtype, **side)
    for model in (read, load_model(plain, cutter, **side), load_model(given, cutter, dtype=dtype, **side)):
        assert torch.equal(model.head(tokens, 0), expected)
        assert model.describe().get("other_dtypes", "float32 x 0") == f"float32 x {count}"
    rounded = plain.to(getattr(torch, dtype))  # one dtype for all, the control
    with torch.no_grad():
        output = rounded(tokens, output_hidden_states=True, **({"decoder_input_ids": tokens} if is_pair else {}))
    states = (output.decoder_hidden_states if is_pair else output.hidden_states)[1]
    assert not count or not torch.equal(states.to(expected), expected)


class Repacked(torch.nn.Linear):
    """Repacks its weight when it is saved, and reads it as if it were not packed."""

    how = "weight"

    def _save_to_state_dict(self, *given):
        if self.how == "weight":
            self.weight.data = self.weight.data.flip(0)
        elif self.how == "scale":
            self.scale *= 2
        super()._save_to_state_dict(*given)

    def forward(self, states):
        return self.scale * super().forward(states)


@pytest.mark.parametrize("how", ["weight", "scale", "nothing"])
def test_a_model_that_reading_changes_is_refused(how, checkpoints):
    import transformers as hf

    module = hf.AutoModelForCausalLM.from_pretrained(checkpoints["gpt_neox"], dtype=torch.float32)
    part = module.gpt_neox.layers[1].mlp.dense_h_to_4h
    part.__class__, part.how = Repacked, how
    part.register_buffer("scale", torch.ones(()), persistent=False)
    if how == "nothing":
        tokens = torch.randint(len(tiny.tokenizer()), (2, 9))
        with torch.no_grad():
            torch.testing.assert_close(load_model(module, tiny.tokenizer()).full(tokens), module(tokens).logits)
        return
    with pytest.raises(ModelError, match=rf"state_dict\(\) changes .*dense_h_to_4h\.{how} of Repacked"):
        load_model(module, tiny.tokenizer())


def test_a_model_that_draws_at_random_is_refused(checkpoints):
    import transformers as hf

    module = hf.AutoModelForCausalLM.from_pretrained(checkpoints["gpt_neox"], dtype=torch.float32)
    module.gpt_neox.layers[1].register_forward_hook(lambda _, __, output: torch.nn.functional.dropout(output, 0.1))
    with pytest.raises(ModelError, match="two passes over the same tokens give different outputs"):
        load_model(module, tiny.tokenizer())


POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:" + "4d7a" * 16 + "\nsize 1234567\n"


@pytest.mark.parametrize("name", ["model.safetensors", "tokenizer.json", "config.json"])
def test_a_pointer_of_git_lfs_is_called_so(whole, name):
    folder = whole("gpt2")
    (folder / name).write_text(POINTER)
    assert f"{folder / name} is a pointer of Git LFS" in line_of("gpt2", folder)
    assert f"cd {folder} && git lfs pull" in line_of("gpt2", folder)


def test_a_pointer_among_shards_is_found_and_one_that_is_not_read_is_no_fault(whole):
    folder = whole("gpt2")
    expected = load("gpt2", folder)
    (folder / "pytorch_model.bin").write_text(POINTER)
    (folder / "tokenizer.model").write_text(POINTER)
    assert all(torch.equal(weight, expected[name]) for name, weight in load("gpt2", folder).items())
    (folder / "model.safetensors").unlink()
    index = {"weight_map": dict.fromkeys(expected, "model-00001-of-00001.safetensors")}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    (folder / "model-00001-of-00001.safetensors").write_text(POINTER)
    assert "model-00001-of-00001.safetensors is a pointer" in line_of("gpt2", folder)


FORMATS = {
    "DeepSpeed": (["zero_to_fp32.py", "global_step5/zero_pp_rank_0_mp_rank_00_optim_states.pt"], "zero_to_fp32.py . "),
    "DeepSpeed without its script": (["mp_rank_00_model_states.pt"], "python -m deepspeed.utils.zero_to_fp32 . . "),
    "FSDP": (["pytorch_model_fsdp_0/__0_0.distcp"], "accelerate merge-weights "),
    "DCP": (["__0_0.distcp", ".metadata"], "python -m torch.distributed.checkpoint.format_utils dcp_to_torch "),
    "Megatron": (["latest_checkpointed_iteration.txt", "iter_0000100/mp_rank_00/model_optim_rng.pt"], "export "),
    "TensorFlow": (["tf_model.h5"], "GPT2LMHeadModel as M; M.from_pretrained('.', from_tf=True)"),
    "Flax": (["flax_model.msgpack"], "from_flax=True"),
}


@pytest.mark.parametrize("kind", FORMATS)
def test_weights_in_another_format_are_named_with_what_converts_them(whole, kind):
    folder, (files, command) = whole("gpt2"), FORMATS[kind]
    (folder / "model.safetensors").unlink()
    for name in files:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()
    assert command in line_of("gpt2", folder)
    (folder / "config.json").unlink()  # as in a folder of these weights alone
    assert command.split("GPT2")[0] in line_of("gpt2", folder)


def test_nothing_of_a_checkpoint_but_a_name_gets_into_a_command(whole):
    folder = whole("gpt2")
    (folder / "model.safetensors").rename(folder / "flax_model.msgpack")
    shape = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**shape, "architectures": ["M; import os"]}))
    assert "import os" not in line_of("gpt2", folder)


def test_the_command_for_distributed_checkpoints_converts_them(whole):
    import shlex

    import torch.distributed.checkpoint as distributed
    from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

    folder = whole("gpt2")
    expected = load("gpt2", folder)
    (folder / "model.safetensors").unlink()
    distributed.save(dict(expected), checkpoint_id=folder, no_dist=True)
    *_, source, target = shlex.split(line_of("gpt2", folder))
    dcp_to_torch_save(source, target)
    assert all(torch.equal(weight, expected[name]) for name, weight in load("gpt2", folder).items())


STATED = {  # as config.json of published checkpoints has it
    "gptq 4bit": {"quant_method": "gptq", "bits": 4, "group_size": 128},
    "awq 4bit": {"quant_method": "awq", "bits": 4},
    "fp8": {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [128, 128]},
    "bitsandbytes 4bit": {"quant_method": "bitsandbytes", "load_in_4bit": True, "load_in_8bit": False},
    "compressed-tensors 4bit": {
        "quant_method": "compressed-tensors",
        "format": "pack-quantized",
        "config_groups": {"group_0": {"input_activations": {"num_bits": 8}, "weights": {"num_bits": 4}}},
    },
    "mxfp4": {"quant_method": "mxfp4", "modules_to_not_convert": ["lm_head"]},
}


def test_quantisation_is_what_config_json_states():
    for label, stated in STATED.items():
        assert stated_quantization({"model_type": "llama", "quantization_config": stated}) == label
        assert stated_quantization({"text_config": {"quantization_config": stated}}) == label
    assert stated_quantization({"model_type": "llama"}) == ""


def test_a_folder_of_fp8_weights_says_so(tmp_path):
    folder = tiny.write_llama(tmp_path / "m")
    plain, weights = load("llama", folder), {}
    for name, weight in load_file(folder / "model.safetensors").items():
        weights[name] = weight
        if weight.dim() == 2 and "layers" in name:
            blocks = weight.view(weight.shape[0] // 32, 32, -1, 32)
            scale = blocks.abs().amax((1, 3)) / 448
            scaled = weight / scale.repeat_interleave(32, 0).repeat_interleave(32, 1)
            weights |= {name: scaled.to(torch.float8_e4m3fn), f"{name}_scale_inv": scale}
    rewrite(folder, lambda _: weights)
    shape = json.loads((folder / "config.json").read_text())
    settings = {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [32, 32]}
    (folder / "config.json").write_text(json.dumps({**shape, "quantization_config": settings}))
    model = load_model(folder)
    assert (model.quantization, model.describe()["quantization"]) == ("fp8", "fp8")
    name = "model.layers.0.mlp.up_proj.weight"
    torch.testing.assert_close(model.module.state_dict()[name], plain[name], atol=0.05, rtol=0.1)
    refused = r"quantised already \(fp8\); remove load_model\(\.\.\., quantization=.8bit.\)"
    with pytest.raises(ModelError, match=refused):
        load_model(folder, quantization="8bit")


def restate(folder, **changes):
    """Change the settings of a checkpoint; None takes one out."""
    path = folder / "config.json"
    settings = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({name: value for name, value in settings.items() if value is not None}))


REFUSED_SETTINGS = [
    *(("alibi", True), ("final_logit_softcapping", 1.0), ("attn_logit_softcapping", 1.0), ("clip_qkv", 1.0)),
    *(("sliding_window", 1), ("residual_multiplier", 0.5), ("logit_scale", 0.1)),
]
WARNED_SETTINGS = [
    *(("use_qk_norm", True), ("hidden_activation", "relu"), ("no_rope_layers", [0, 0, 0, 0])),
    ("layer_types", ["sliding_attention", "full_attention"] * 2),
    *(("activation_function", "relu"), ("scale_attn_weights", False)),
]
NEUTRAL_SETTINGS = [
    *(("alibi", False), ("residual_multiplier", 1.0), ("logit_scale", 1.0), ("sliding_window", 0)),
    *(("position_embedding_type", "absolute"), ("max_length", 20), ("is_gpt_config", True), ("a_new_name", 7)),
    *(("gradient_checkpointing", True), ("activation_function", "gelu"), ("use_qk_norm", False)),
]


@pytest.mark.parametrize(("name", "value"), every_second(REFUSED_SETTINGS))
def test_a_setting_that_another_architecture_reads_is_refused(whole, name, value):
    folder = whole("gpt_neox")
    restate(folder, **{name: value})
    assert f"config.json says {name}={value}, which GPTNeoXForCausalLM does not read" in line_of("gpt_neox", folder)
    assert load("gpt_neox", folder, implausible=True), "and loads where the user knows better"


READ_WHOLE = [
    *("tokenizer_config.json", "tokenizer.json", "special_tokens_map.json", "added_tokens.json", "vocab.json"),
    *("merges.txt", "spiece.model", "generation_config.json", "chat_template.json", "config.json"),
]


@pytest.mark.parametrize("name", READ_WHOLE)
def test_a_file_that_would_fill_the_memory_is_refused_at_once(name, whole):
    folder = whole("gpt_neox")
    with (folder / name).open("a"):
        os.truncate(folder / name, LARGEST_READ_WHOLE + 1)
    began = time.monotonic()
    assert f"{name} has at least {LARGEST_READ_WHOLE + 1:,} bytes" in line_of("gpt_neox", folder)
    assert time.monotonic() - began < 5


def test_a_long_file_that_loading_does_not_read_is_no_fault(whole):
    folder = whole("gpt_neox")
    for name in ("trainer_state.json", "train.txt"):
        (folder / name).touch()
        os.truncate(folder / name, LARGEST_READ_WHOLE + 1)
    assert load("gpt_neox", folder)


MINI_SETTINGS = {
    "layer_norm_epsilon": 0.01,
    "activation_function": "relu",
    "rope_parameters": {"rope_theta": 77.0},
    "partial_rotary_factor": 0.5,
    "a_new_name": 0,
}


@pytest.mark.parametrize("name", every_second(MINI_SETTINGS))
def test_an_entry_that_a_mini_does_not_read_is_said(name, tmp_path, caplog):
    folder = tiny.write_mini(tmp_path / "mini")
    load_model(folder)
    assert caplog.text == "", "control"
    restate(folder, **{name: MINI_SETTINGS[name]})
    load_model(folder)
    assert f"config.json says {name}, which the family native does not read" in caplog.text


@pytest.mark.parametrize("value", [5, {"quant_method": "bitsandbytes", "load_in_8bit": True}])
def test_a_mini_is_never_quantised(value, tmp_path):
    folder = tiny.write_mini(tmp_path / "mini")
    restate(folder, quantization_config=value)
    with pytest.raises(ModelError, match=r"states a quantization_config, and a model of the family native"):
        load_model(folder)


@pytest.mark.parametrize(("name", "value"), [("d_mlp", ""), ("d_mlp", 0), ("act_fn", ""), ("a_new_name", 3)])
def test_a_mini_is_built_as_its_architecture_states(name, value, tmp_path):
    folder = tiny.write_mini(tmp_path / "mini")
    restate(folder, architecture={**tiny.ARCHITECTURE, name: value})
    with pytest.raises(ModelError, match=rf"config\.json says architecture\.{name}=|cannot load model=mini"):
        load_model(folder)


@pytest.mark.parametrize(("name", "value"), WARNED_SETTINGS)
def test_a_setting_that_may_compute_elsewhere_is_said(whole, name, value, caplog):
    folder = whole("gpt_neox")
    restate(folder, **{name: value})
    assert load("gpt_neox", folder)
    assert f"config.json says {name}=" in caplog.text
    assert "which GPTNeoXForCausalLM does not read, and these architectures do: " in caplog.text


@pytest.mark.parametrize(("name", "value"), every_second(NEUTRAL_SETTINGS))
def test_a_setting_that_changes_nothing_is_not_mentioned(whole, name, value, caplog):
    folder = whole("gpt_neox")
    restate(folder, **{name: value})
    assert load("gpt_neox", folder)
    assert "does not read" not in caplog.text


def test_a_rotation_that_is_stated_twice_is_refused_with_both_values(whole):
    """Of two values one is taken, and nobody says which."""
    folder = whole("gpt_neox")
    rope = {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.25}
    restate(folder, rope_parameters=rope, rope_theta=10000.0)
    assert load("gpt_neox", folder), "control"
    restate(folder, rope_theta=77.0)
    message = line_of("gpt_neox", folder)
    assert "config.json says rope_theta=77.0 and rope_parameters.rope_theta=10000.0, which differ" in message
    restate(folder, rope_theta=None, rope_scaling={"type": "linear", "factor": 4.0})
    message = line_of("gpt_neox", folder)
    assert "config.json says rope_scaling=" in message
    assert "and rope_parameters=" in message
    restate(folder, rope_parameters={**rope, "rope_type": "linear", "factor": 4.0})
    assert load("gpt_neox", folder), "both say the same"


def test_a_head_beside_a_tied_embedding_is_said(whole, caplog):
    folder = whole("gpt2")
    embedding = load_file(folder / "model.safetensors")["transformer.wte.weight"]
    rewrite(folder, lambda weights: weights | {"lm_head.weight": embedding.clone()})
    assert load("gpt2", folder)
    assert "tie_word_embeddings" not in caplog.text, "control"
    rewrite(folder, lambda weights: weights | {"lm_head.weight": embedding + 0.1 * torch.randn(embedding.shape)})
    assert load("gpt2", folder)
    assert "config.json says tie_word_embeddings=true, and lm_head.weight is stored with other values" in caplog.text


@pytest.mark.parametrize("method", ["fp8", "one that transformers lacks"])
def test_a_quantisation_that_no_weight_shows_is_said(method, whole, caplog):
    folder = whole("gpt_neox")
    restate(folder, quantization_config={"quant_method": method})
    assert load("gpt_neox", folder)
    assert f"config.json states that weights are quantised ({method}), and all are stored as F32" in caplog.text


@pytest.mark.parametrize(
    ("name", "is_of_this_head"), [("lm_head.bias", True), ("lm_head.other.weight", False), ("score.weight", False)]
)
def test_a_tensor_of_the_head_that_the_model_has_is_not_left_over(name, is_of_this_head, whole):
    """Logits would lack a bias that is stored; heads of other classes are no part of the model."""
    folder = whole("gpt2")
    rewrite(folder, lambda weights: weights | {name: torch.ones(2)})
    if is_of_this_head:
        assert f"not expected: {name}" in line_of("gpt2", folder)
    else:
        assert load("gpt2", folder)


@pytest.mark.parametrize("factor", [1.0, 1.5])
def test_two_tensors_of_one_weight_must_be_equal(factor, whole):
    """transformers takes one of them, and said nothing."""
    folder = whole("gpt2")
    rewrite(folder, lambda weights: weights | {"ln_f.weight": factor * weights["transformer.ln_f.weight"]})
    if factor == 1.0:
        assert load("gpt2", folder)
    else:
        assert "ln_f.weight and transformer.ln_f.weight are one weight" in line_of("gpt2", folder)


@pytest.mark.parametrize(
    ("file", "second"),
    [
        ("config.json", '"activation_function": "relu"'),
        ("tokenizer.json", '"normalizer": {"type": "Lowercase"}'),
        ("tokenizer_config.json", '"add_bos_token": false, "add_bos_token": true'),
    ],
)
def test_a_name_twice_in_a_file_of_a_checkpoint_is_refused(file, second, whole):
    """Readers take the last value, which nobody sees who reads the file from its beginning."""
    folder = whole("gpt2")
    content = (folder / file).read_text().rstrip()
    (folder / file).write_text(f"{content[:-1]}, {second}}}")
    assert "twice in one object" in line_of("gpt2", folder)


@pytest.mark.parametrize(
    "parametrize", [parametrizations.orthogonal, parametrizations.weight_norm, torch.nn.utils.weight_norm]
)
def test_what_a_parametrization_computes_a_weight_from_may_be_whole_numbers(parametrize):
    linear = torch.nn.Linear(8, 8)
    with torch.no_grad():
        linear.weight.div_(linear.weight.norm(dim=1, keepdim=True))
    parametrize(linear)
    with torch.no_grad():
        for name, parameter in linear.named_parameters():
            if name.endswith(("weight_g", "original0", "weight.original")):
                parameter.round_()
    check_plausible(SimpleNamespace(name="model", module=linear, vocabulary=0, predicts="class"))
    plain = torch.nn.Linear(8, 8)
    torch.nn.init.eye_(plain.weight)
    with pytest.raises(ModelError, match="weight holds whole numbers alone"):
        check_plausible(SimpleNamespace(name="model", module=plain, vocabulary=0, predicts="class"))


@pytest.mark.parametrize("rows", [1, -1])
@pytest.mark.parametrize("name", ["lm_head.weight", "transformer.wte.weight"])
def test_tied_weights_of_another_shape_are_refused(name, rows, whole, caplog):
    folder = whole("gpt2")

    def resized(weights):
        embedding = weights["transformer.wte.weight"]
        row_count, width = embedding.shape
        return weights | {"lm_head.weight": embedding.clone(), name: torch.ones(row_count + rows, width)}

    rewrite(folder, resized)
    assert f"(of another shape: {name})" in line_of("gpt2", folder)
    assert "is stored with other values" not in caplog.text


@pytest.mark.parametrize("stated", ["GPT2LMHeadModel", {"a": "GPT2LMHeadModel"}, ["GPT2LMHeadModel", 5], 7])
def test_architectures_that_are_no_list_of_names_are_refused(stated, whole, caplog):
    folder = whole("gpt2")
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"architectures": stated}))
    assert 'which must be a list of names of classes, such as ["GPT2LMHeadModel"]' in line_of("gpt2", folder)
    assert caplog.text == ""


@pytest.mark.parametrize(
    ("setting", "architecture"), [("vocab_size", "data2vec"), ("token_dropout", "esm"), ("vocab_size", "blip")]
)
def test_settings_are_searched_in_all_files_of_an_architecture(setting, architecture):
    assert architecture in architectures_that_read()[setting]
