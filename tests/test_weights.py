"""Loading proves that all weights came, that they are finite, and that there is a tokenizer that fits them."""

import json
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file

import tiny
from classifiers import THREE
from thinkalike.config import ModelConfig
from thinkalike.contrib.populations.finetuning import new_classifier
from thinkalike.errors import ModelError
from thinkalike.models.load import load_model

KINDS = (*tiny.FAMILIES, "classifier", "native", "new classifier")
ONE_EACH = KINDS[:-1]  # a new classifier is no model yet
BLOCK = {"gpt2": ".h.1.", "gpt_neox": ".layers.1.", "mamba": ".layers.1.", "native": "layers.1."}
MATRIX = {"gpt2": "transformer.wte.weight", "gpt_neox": "gpt_neox.embed_in.weight", "native": "tok_embed.weight",
          "mamba": "backbone.embeddings.weight"}  # fmt: skip
BERTS = "bert.embeddings.word_embeddings.weight"


@pytest.fixture
def whole(tmp_path, checkpoints):
    """Copy a checkpoint of a kind into a folder of its own."""

    def copy(kind):
        if kind == "classifier":
            return tiny.write_classifier(tmp_path / "whole", THREE)
        if kind == "native":
            return tiny.write_mini(tmp_path / "whole")
        return shutil.copytree(checkpoints["bert" if kind == "new classifier" else kind], tmp_path / "whole")

    return copy


def load(kind, folder, **changes):
    """The state dict of what is loaded."""
    native = {"family": "native", "mini": True} if kind == "native" else {}
    config = ModelConfig(**{"name": "local", "path": str(folder), **native, **changes})
    if kind == "new classifier":
        torch.manual_seed(3)
        return new_classifier(config, THREE)[0].state_dict()
    return load_model(config).module.state_dict()


def rewrite(folder, change):
    """Change the weights of a checkpoint."""
    path = folder / "model.safetensors"
    weights = {name: weight.contiguous() for name, weight in change(load_file(path)).items()}
    save_file(weights, path, metadata={"format": "pt"})


def line_of(kind, folder, **changes):
    with pytest.raises(ModelError) as caught:
        load(kind, folder, **changes)
    return str(caught.value)


def without_a_block(weights, block, _):
    return {name: weight for name, weight in weights.items() if block not in name}


def with_a_block_too_many(weights, block, _):
    return weights | {n.replace(block, block.replace("1", "4")): w.clone() for n, w in weights.items()}


DAMAGES = {  # with what is said, by PyTorch of a mini
    "missing": (without_a_block, "(missing: ", "Missing key(s)"),
    "a block too many": (with_a_block_too_many, "(not expected: ", "Unexpected key(s)"),
    "another shape": (lambda w, _, name: w | {name: w[name][:-1]}, "(of another shape: ", "size mismatch"),
    "a further weight": (lambda w, *_: w | {"extra.weight": torch.ones(2)}, "(not expected: extra", "extra.weight"),
}


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


@pytest.mark.parametrize(("kind", "value"), [*((kind, torch.nan) for kind in ONE_EACH), ("gpt2", torch.inf)])
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


def test_a_loss_far_above_that_of_a_guess_is_refused(whole):
    """As after a few flipped bits in exponents."""
    folder = whole("gpt2")
    rewrite(folder, lambda weights: weights | {"transformer.ln_f.weight": 3000 * weights["transformer.ln_f.weight"]})
    assert "its loss on an English sentence" in line_of("gpt2", folder)
    assert load("gpt2", folder, implausible=True), "and loads where the user knows better"


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


def test_a_class_that_transformers_lacks_is_said(whole, caplog):
    folder = whole("gpt2")
    shape = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**shape, "architectures": ["GPT2EncoderModel"]}))
    load("gpt2", folder)
    assert "is a GPT2EncoderModel, which transformers lacks, and runs as a GPT2LMHeadModel" in caplog.text


def test_code_of_the_hub_that_config_json_names_is_refused(whole):
    folder = whole("gpt2")
    shape = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**shape, "_attn_implementation_internal": "someone/kernel"}))
    assert "someone/kernel" in line_of("gpt2", folder)


@pytest.mark.parametrize("dtype", ["bfloat16", pytest.param("float16", marks=pytest.mark.slow)])
@pytest.mark.parametrize("kind", ONE_EACH)
def test_every_family_loads_in_half_precision(whole, kind, dtype):
    loaded = load(kind, whole(kind), dtype=dtype)
    assert loaded[MATRIX.get(kind, BERTS)].dtype == getattr(torch, dtype)


@pytest.mark.parametrize("kind", ["gpt2", "native", "new classifier"])
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
    [("ernie4_5_moe", "bfloat16", 4), ("ernie4_5_moe", "float16", 4), ("gpt_oss", "float16", 5), ("t5", "float16", 4),
     ("gpt_oss", "bfloat16", 0), ("llama", "bfloat16", 0)],
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
