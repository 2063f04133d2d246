"""Any architecture of transformers, cut at its blocks, as docs/reference/architectures.md says."""

import pytest
import torch
import transformers

import tiny
from architectures import KNOWN, PAGE, make_models
from conftest import composed, every_second, with_slow
from thinkalike.config import ModelConfig
from thinkalike.errors import ConfigError, ModelError
from thinkalike.instruments import run_job
from thinkalike.models.frozen import FrozenModel
from thinkalike.models.load import load_model
from thinkalike.models.operations import operations
from thinkalike.models.shapes import shape_of

SAMPLE = (  # other attention in every second layer, capped logits, states between the blocks, each kind, and refusals
    "gemma3_text", "gpt_oss", "gemma2", "olmo3", "rwkv", "mamba2", "modernbert", "roberta (classifier)", "t5 (encoder)",
    "bart (decoder)", "bart", "zamba2", "albert", "xlnet",
)  # fmt: skip


@pytest.mark.parametrize(
    "name", [*every_second(SAMPLE), *(pytest.param(n, marks=pytest.mark.slow) for n in KNOWN.keys() - {*SAMPLE})]
)
def test_the_page_of_models_is_true(name, tmp_path):
    assert make_models.row(KNOWN[name], tmp_path / "m") in PAGE


def test_the_page_lists_all_architectures_and_most_of_them_load():
    listed = [line.split("|")[1].strip() for line in PAGE if line.startswith("| ")][1:]
    assert listed == list(KNOWN)
    assert sum(line.endswith("| right |") for line in PAGE) >= 100


def test_a_wrong_state_is_found_by_the_script(tmp_path, monkeypatch):
    right = FrozenModel.residuals
    monkeypatch.setattr(FrozenModel, "residuals", lambda self, *args: [1.01 * state for state in right(self, *args)])
    with pytest.raises(ModelError, match="cannot be cut at its blocks"):  # at load
        make_models.load_model(ModelConfig(name="tiny", path=str(tiny.write_checkpoint("gpt2", tmp_path / "m"))))
    monkeypatch.setattr("thinkalike.models.frozen.prove", lambda _: None)
    with pytest.raises(AssertionError, match=r"layer 0 differs by 1\.0e-02"):
        make_models.row(KNOWN["llama"], tmp_path / "llama")


def test_blocks_that_run_twice_have_no_stream_to_cut(monkeypatch, checkpoints):
    import transformers

    plain = transformers.GPT2Model.forward

    def twice(self, *args, **kwargs):
        plain(self, *args, **kwargs)
        return plain(self, *args, **kwargs)

    monkeypatch.setattr(transformers.GPT2Model, "forward", twice)
    with pytest.raises(ModelError, match="once each"):
        load_model(ModelConfig(name="local", path=str(checkpoints["gpt2"])))


@pytest.mark.parametrize("name", ["gemma3_text", "qwen2", "gpt_oss"])
def test_blocks_that_change_places_are_found_at_load(name, tmp_path, monkeypatch):
    """The shift of indices that a shortened list brings: the proof sees it, on rows longer than the window."""
    make_models.write(KNOWN[name], tmp_path)
    right = FrozenModel._continued

    def shortened(self, residual, start, mask):
        if start in (0, self.n_layers):
            return right(self, residual, start, mask)
        owner, _, attribute = self.family.blocks.rpartition(".")
        parent, whole = self.module.get_submodule(owner), self.module.get_submodule(self.family.blocks)
        setattr(parent, attribute, torch.nn.ModuleList(list(whole)[start:]))
        count, shape = self.module.config.num_hidden_layers, self.module.config
        try:
            shape.num_hidden_layers = count - start
            hook = whole[start].register_forward_pre_hook(lambda _, args: (residual, *args[1:]))
            return self._run(torch.zeros(residual.shape[:2], dtype=torch.long), mask)
        finally:
            hook.remove()
            shape.num_hidden_layers = count
            setattr(parent, attribute, whole)

    monkeypatch.setattr(FrozenModel, "_continued", shortened)
    with pytest.raises(ModelError, match="cannot be cut at its blocks"):
        load_model(ModelConfig(name="m", path=str(tmp_path)))


def halves(model):
    """A map that keeps every second block on disk, and the rest in memory."""
    path = model.family.blocks
    blocks = {f"{path}.{layer}": "disk" if layer % 2 else "cpu" for layer in range(model.n_layers)}
    others = {name.rpartition(".")[0] for name, _ in model.module.named_parameters() if not name.startswith(f"{path}.")}
    return blocks | dict.fromkeys([*others, "lm_head"], "cpu")


@pytest.mark.parametrize("device_map", with_slow(["auto", "cpu", "disk", "halves"], "auto", "cpu"))
def test_offloaded_weights_give_the_same_bits(device_map, checkpoints):
    config = {"name": "local", "path": str(checkpoints["gpt_neox"])}
    plain = load_model(ModelConfig(**config))
    device_map = halves(plain) if device_map == "halves" else device_map
    model, tokens = load_model(ModelConfig(**config, device_map=device_map)), torch.randint(300, (2, 20))
    assert any(weight.is_meta for weight in model.module.parameters()) == (device_map not in ("auto", "cpu"))
    gradients = []
    for each in (plain, model):
        state = each.head(tokens, 1).requires_grad_()
        each.tail(state, 1).logsumexp(-1).sum().backward()
        gradients.append(state.grad)
    assert torch.equal(*gradients)
    assert torch.equal(plain.full(tokens), model.full(tokens))
    assert (model.fingerprint(), model.device) == (plain.fingerprint(), plain.device)


@pytest.mark.parametrize("setting", [{"device_map": "auto"}, {"quantization": "8bit"}, {"side": "encoder"}])
def test_settings_of_other_families_are_one_line(setting):
    config = composed("model=gelu-3l-mini").model
    for key, value in setting.items():
        setattr(config, key, value)
    with pytest.raises(ConfigError, match=f"{next(iter(setting))}=.* no effect for gelu-3l-mini, a native"):
        load_model(config)


@pytest.mark.ci_slow
def test_a_side_must_be_chosen_and_has_no_tail(tmp_path):
    make_models.write(KNOWN["t5 (encoder)"], tmp_path)
    config = {"name": "t5", "path": str(tmp_path)}
    with pytest.raises(ModelError, match="side="):
        load_model(ModelConfig(**config))
    model = load_model(ModelConfig(**config, side="decoder"))
    assert (model.n_layers, model.predicts) == (3, "states")
    with pytest.raises(ModelError, match="no next token"):
        model.tail(torch.randn(1, 3, 32), 0)
    module = transformers.T5ForConditionalGeneration.from_pretrained(tmp_path)  # in memory
    assert [load_model(module, model.tokenizer, side=side).n_layers for side in ("encoder", "decoder")] == [4, 3]
    with pytest.raises(ModelError, match=r"is an encoder-decoder: choose load_model\(\.\.\., side="):
        load_model(module, model.tokenizer)


@pytest.mark.ci_slow
@pytest.mark.parametrize(
    "name", ["llama", "t5 (encoder)", *(pytest.param(n, marks=pytest.mark.slow) for n in ("gemma3_text", "roberta"))]
)
def test_jobs_run_on_architectures_without_a_line_in_the_table(name, cli, tmp_path, text_files):
    make_models.write(KNOWN[name], tmp_path / "m")
    side = [f"model.side={KNOWN[name].side}"] if KNOWN[name].side else []
    words = [
        "measure=cka", "model=local", f"model.path={tmp_path}/m", *side, "measure.batches=2", "data=text",
        f"data.files=[{text_files}/*.txt]", "measure.tokens_per_batch=2048", "data.context=32",
        "data.evaluation_share=0.4",
    ]  # fmt: skip
    result = cli("analyze.py", *words).result
    assert len(result.details) == 16
    assert result.details["value"].between(0, 1.001).all()


@pytest.mark.ci_slow
def test_alternating_head_widths_are_counted_and_compared(tmp_path):
    import transformers

    kinds = {"layer_types": ["sliding_attention", "full_attention"] * 2, "head_dim": 8, "global_head_dim": 16}
    sizes = {"vocab_size": len(tiny.tokenizer()), "hidden_size": 32, "num_hidden_layers": 4, "intermediate_size": 64}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "hidden_size_per_layer_input": 0}
    shape = transformers.AutoConfig.for_model("gemma4_text", **sizes, **heads, **kinds)
    module = transformers.AutoModelForCausalLM.from_config(shape)
    tiny.enlarge(module)
    module.save_pretrained(tmp_path / "m")
    tiny.tokenizer().save_pretrained(tmp_path / "m")
    counted = operations(load_model(tmp_path / "m"))
    assert shape_of(ModelConfig(name="local", path=str(tmp_path / "m"))).operations == counted
    assert counted.attention[1] == 2 * counted.attention[0] > 0
    for seed in range(8):
        (tmp_path / f"{seed}.txt").write_text(tiny.document(seed))
    words = [f"model={tmp_path}/m", "target.dtype=float64", "model.context=16", f"store={tmp_path}/store"]
    words += ["data=text", f"data.files=[{tmp_path}/*.txt]", "data.evaluation_share=0.5", "logger=none"]
    words += ["measure=cka", "measure.batches=4", "measure.tokens_per_batch=64"]
    result = run_job(composed(*words, entry="analyze"))
    assert result.provenance["models"][0]["family"] == "gemma4_text"
    assert (result.details["value"] > 0.999).sum() >= 4


@pytest.mark.parametrize("kind", ["roberta", "bert-generation", "electra"])
def test_an_encoder_that_is_to_predict_the_next_token_is_refused(kind, tmp_path):
    import transformers

    def write(folder, **settings):
        sizes = {"vocab_size": len(tiny.tokenizer()), "hidden_size": 32, "num_hidden_layers": 2, "pad_token_id": 0}
        heads = {"num_attention_heads": 4, "intermediate_size": 64, "max_position_embeddings": 64, "bos_token_id": 0}
        shape = transformers.AutoConfig.for_model(kind, **sizes, **heads, **settings)
        module = transformers.AutoModelForCausalLM.from_config(shape)
        tiny.enlarge(module)
        module.save_pretrained(folder)
        tiny.tokenizer().save_pretrained(folder)
        return folder

    with pytest.raises(ModelError, match=r"later tokens.*is_decoder: true.*(MaskedLM|BertGenerationEncoder)"):
        load_model(write(tmp_path / "m"))
    assert load_model(write(tmp_path / "decoder", is_decoder=True)).predicts == "next"


TEXT = {
    "vocab_size": 320, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4,
    "num_key_value_heads": 2, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
IMAGES = {"hidden_size": 48, "intermediate_size": 96, "num_attention_heads": 4, "image_size": 28, "patch_size": 14}


def written(module, folder):
    """The folder of a module with larger weights, and of the tests' tokenizer."""
    tiny.enlarge(module)
    module.eval().save_pretrained(folder)
    tiny.tokenizer().save_pretrained(folder)
    return folder


def assert_states_are_those_of(module, model):
    """Compare states with those that transformers reports, but for the last, which it reports after the last norm."""
    tokens = torch.randint(20, 300, (2, 12))
    with torch.no_grad():
        reported = module(input_ids=tokens, output_hidden_states=True).hidden_states
    assert len(reported) == model.n_layers + 1
    for layer, expected in enumerate(reported[1:-1]):
        torch.testing.assert_close(model.head(tokens, layer), expected, atol=0, rtol=0)


def image_text_models(blocks_for_images):
    """Models of text and images whose text model has three blocks."""
    images = {**IMAGES, "num_hidden_layers": blocks_for_images}
    yield transformers.LlavaConfig(
        text_config={**TEXT, "model_type": "llama"},
        vision_config={**images, "model_type": "clip_vision_model"},
        image_token_index=7,
    )
    yield transformers.Idefics3Config(
        text_config={**TEXT, "model_type": "llama"}, vision_config=images, image_token_id=7
    )
    yield transformers.Gemma3Config(
        text_config={**TEXT, "head_dim": 8},
        vision_config=images,
        mm_tokens_per_image=4,
        image_token_index=7,
        boi_token_index=8,
        eoi_token_index=9,
    )


@pytest.mark.ci_slow
@pytest.mark.parametrize("blocks_for_images", [2, 3])
def test_models_of_text_and_images_are_cut_at_the_blocks_of_their_text_model(blocks_for_images, tmp_path):
    for shape in image_text_models(blocks_for_images):
        torch.manual_seed(0)
        module = transformers.AutoModelForImageTextToText.from_config(shape)
        model = load_model(written(module, tmp_path / shape.model_type))
        assert (model.predicts, model.n_layers, model.d_model) == ("next", 3, 32)
        assert_states_are_those_of(module, model)
        assert_states_are_those_of(module, load_model(module, tiny.tokenizer()))
        assert shape_of(ModelConfig(name="local", path=str(tmp_path / shape.model_type))).layers == 3


T5 = {"vocab_size": 320, "d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 3, "num_heads": 4}
MASKED = {key: size for key, size in TEXT.items() if key != "num_key_value_heads"}
WITHOUT_HEAD = {
    "MistralModel": ("MistralConfig", TEXT),
    "GPT2Model": ("GPT2Config", {"vocab_size": 320, "n_embd": 32, "n_layer": 3, "n_head": 4, "n_positions": 64}),
    "Gemma3TextModel": ("Gemma3TextConfig", {**TEXT, "head_dim": 8, "use_bidirectional_attention": True}),
    "BertModel": ("BertConfig", MASKED),
    "T5EncoderModel": ("T5Config", T5),
    "UMT5EncoderModel": ("UMT5Config", T5),
    "Qwen2ForTokenClassification": ("Qwen2Config", {**TEXT, "tie_word_embeddings": True}),
    "BertForQuestionAnswering": ("BertConfig", MASKED),
    "ElectraForPreTraining": ("ElectraConfig", {**MASKED, "embedding_size": 32}),
    "T5ForTokenClassification": ("T5Config", T5),
}


OF_LIKE_KINDS = ["UMT5EncoderModel", "ElectraForPreTraining", "GPT2Model", "BertForQuestionAnswering"]


@pytest.mark.parametrize("kind", with_slow(WITHOUT_HEAD, *OF_LIKE_KINDS))
def test_a_model_without_a_head_of_tokens_has_states_alone(kind, tmp_path):
    configuration, sizes = WITHOUT_HEAD[kind]
    torch.manual_seed(0)
    module = getattr(transformers, kind)(getattr(transformers, configuration)(**sizes))
    model = load_model(written(module, tmp_path / "m"))
    assert (model.predicts, model.n_layers) == ("states", 3)
    assert_states_are_those_of(module, model)
    in_memory = load_model(module, tiny.tokenizer())
    assert in_memory.fingerprint() == model.fingerprint()
    assert_states_are_those_of(module, in_memory)
    with pytest.raises(ModelError, match="no next token"):
        model.tail(torch.randn(1, 3, 32), 0)


def test_a_side_is_chosen_only_where_there_are_two(tmp_path):
    encoder = written(transformers.T5EncoderModel(transformers.T5Config(**T5)), tmp_path / "t5")
    assert load_model(encoder, side="encoder").fingerprint() == load_model(encoder).fingerprint()
    with pytest.raises(ModelError, match=r"encoder without a decoder.*side=.decoder"):
        load_model(encoder, side="decoder")
    mistral = written(transformers.MistralModel(transformers.MistralConfig(**TEXT)), tmp_path / "mistral")
    with pytest.raises(ConfigError, match=r"side=.encoder.. has no effect"):
        load_model(mistral, side="encoder")


@pytest.mark.ci_slow
def test_measures_of_states_run_on_models_without_a_head(cli, tmp_path, text_files):
    module = transformers.MistralModel(transformers.MistralConfig(**TEXT))
    words = [f"model={written(module, tmp_path / 'm')}", "data=text", f"data.files=[{text_files}/*.txt]"]
    sizes = ["measure.batches=2", "measure.tokens_per_batch=2048", "data.context=32", "data.evaluation_share=0.4"]
    assert len(cli("analyze.py", "measure=cka", *words, *sizes).result.details) == 9
    with pytest.raises(ModelError, match=r'predicts no next token.*measure="cka"'):
        run_job(composed(*words, "data.context=32"))


def test_weights_without_the_head_that_is_stated_are_refused_with_what_is_true(tmp_path):
    folder = written(transformers.MistralModel(transformers.MistralConfig(**TEXT)), tmp_path / "m")
    shape = (folder / "config.json").read_text()
    (folder / "config.json").write_text(shape.replace("MistralModel", "MistralForCausalLM"))
    with pytest.raises(ModelError, match=r"missing: lm_head\.weight.*if it has no head, write MistralModel"):
        load_model(folder)


CLASSIFIERS = {
    "LlamaForSequenceClassification": ("LlamaConfig", TEXT),
    "GemmaForSequenceClassification": ("GemmaConfig", {**TEXT, "head_dim": 8}),
    "GPT2ForSequenceClassification": ("GPT2Config", WITHOUT_HEAD["GPT2Model"][1]),
    "BertForSequenceClassification": ("BertConfig", MASKED),
}


@pytest.mark.parametrize("padding", [0, 2, None])
@pytest.mark.parametrize("kind", CLASSIFIERS)
def test_classifiers_read_the_last_token_that_is_no_padding(kind, padding, tmp_path):
    configuration, sizes = CLASSIFIERS[kind]
    shape = getattr(transformers, configuration)(**{**sizes, "num_labels": 3, "pad_token_id": padding})
    torch.manual_seed(0)
    module = getattr(transformers, kind)(shape)
    model = load_model(written(module, tmp_path / "m"))
    tokens = torch.randint(20, 300, (2, 12))
    mask = torch.ones_like(tokens)
    mask[1, 7:] = 0
    with torch.no_grad():
        alone = torch.cat([module(tokens[:1]).logits, module(tokens[1:, :7]).logits])
    together = model.full(tokens, mask)
    torch.testing.assert_close(together, alone, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(model.tail(model.head(tokens, 1, mask), 1, mask), together, atol=1e-5, rtol=1e-5)
