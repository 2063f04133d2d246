"""FrozenModel: cut anywhere, it is the model that was loaded, from a folder, a hub or memory."""

import contextlib
import functools
import json
import math
import shutil
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file
from transformers import LlamaConfig, LlamaForCausalLM, MixtralConfig, MixtralForCausalLM, masking_utils

import hub
import tiny
from conftest import composed, with_slow
from thinkalike.config import ModelConfig
from thinkalike.errors import ConfigError, ModelError
from thinkalike.inputs import config_of
from thinkalike.models.families import EMBED, FAMILIES, Family, n_blocks_until
from thinkalike.models.fingerprints import checkpoint_fingerprint
from thinkalike.models.frozen import FrozenModel
from thinkalike.models.load import load_model
from thinkalike.models.minis import build_mini
from thinkalike.models.module_facts import evaluation_mode, largest_relative_error, longest_row
from thinkalike.models.variants import randomised, untrained_like

NAMES = (*tiny.FAMILIES, "native")
UNEMBEDDINGS = {"gpt_neox": "lm_head", "gpt2": "lm_head", "mamba": "lm_head"}


@pytest.fixture(scope="module")
def models(models):
    return {**models, "native": tiny.frozen()}


@pytest.fixture
def tokens():
    return torch.randint(len(tiny.tokenizer()), (3, 24))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("layer", [EMBED, *range(tiny.LAYERS)])
def test_tail_of_head_is_the_full_pass(models, tokens, name, layer):
    model = models[name]
    state = model.advance(model.head(tokens, layer), n_blocks_until(layer), model.n_layers)
    joined = model.finish(state) if name != "bert" else model.output(state)
    torch.testing.assert_close(joined, model.full(tokens), atol=1e-4, rtol=0)


@pytest.mark.parametrize("name", ["gpt_neox", "gpt2", "bert"])
def test_residuals_are_the_hidden_states_of_transformers(models, checkpoints, tokens, name):
    import transformers

    kind = transformers.AutoModelForMaskedLM if name == "bert" else transformers.AutoModelForCausalLM
    reference = kind.from_pretrained(checkpoints[name], attn_implementation="eager").eval()
    with torch.no_grad():
        hidden = reference(tokens, output_hidden_states=True).hidden_states
    ours = models[name].residuals(tokens, [EMBED, *range(tiny.LAYERS - 1)])  # the last entry is after the final norm
    for layer, state in enumerate(ours):
        torch.testing.assert_close(state, hidden[layer], atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize("name", NAMES)
def test_only_the_wanted_blocks_run_and_no_unembedding(models, tokens, name):
    model, ran = models[name], []
    inside = [next(part for part in block.modules() if not list(part.children())) for block in model.blocks]
    handles = [part.register_forward_hook(lambda *_, i=i: ran.append(i)) for i, part in enumerate(inside)]
    if model.predicts == "next":
        unembed = model.module.get_submodule("head" if name == "native" else UNEMBEDDINGS[name])
        handles.append(unembed.register_forward_hook(lambda *_: ran.append("unembed")))

    def blocks(function):
        ran.clear()
        function()
        return list(dict.fromkeys(ran))

    assert blocks(lambda: model.head(tokens, 1)) == [0, 1]
    assert blocks(lambda: model.head(tokens, EMBED)) == []
    state = model.head(tokens, EMBED)
    assert blocks(lambda: model.advance(state, 2, 3)) == [2]
    if model.predicts == "next":
        assert blocks(lambda: model.tail(torch.randn(1, 5, model.d_model), 2)) == [3, "unembed"]
        assert blocks(lambda: model.finish(torch.randn(7, model.d_model))) == ["unembed"]
    for handle in handles:
        handle.remove()


def test_single_tokens_may_be_more_than_the_context(models):
    rows = torch.randn(100, 32)
    assert models["gpt2"].finish(rows).shape == (100, 300)  # its context is 64
    few = rows[:4]
    torch.testing.assert_close(models["gpt2"].finish(few.view(2, 2, 32)).flatten(0, 1), models["gpt2"].finish(few))


@pytest.mark.parametrize("name", NAMES)
def test_no_pass_keeps_keys_and_values(models, name):
    for module in models[name].module.modules():
        assert not getattr(getattr(module, "config", None), "use_cache", False)


@pytest.mark.parametrize("name", NAMES)
def test_gradients_reach_the_state_and_no_weight(models, tokens, name):
    model = models[name]
    state = model.head(tokens, 0).clone().requires_grad_()
    last = model.advance(state, 1, model.n_layers)
    model.output(last).square().sum().backward()
    assert state.grad is not None
    assert state.grad.abs().sum() > 0
    assert all(weight.grad is None and not weight.requires_grad for weight in model.module.parameters())
    assert not any(part.training for part in model.module.modules())


def test_padding_does_not_move_the_states_of_words(models, tokens):
    model, mask = models["bert"], torch.ones(3, 24, dtype=torch.long)
    mask[:, 20:] = 0
    other = tokens.clone()
    other[:, 20:] = 1
    first, second = (model.residuals(rows, [2], mask)[0][:, :20] for rows in (tokens, other))
    torch.testing.assert_close(first, second, atol=1e-5, rtol=1e-5)
    assert (model.residuals(other, [2])[0][:, :20] - first).abs().max() > 1e-3  # without the mask it does


def test_a_fault_in_a_tail_is_found_at_load(monkeypatch):
    right = FrozenModel.advance
    monkeypatch.setattr(FrozenModel, "advance", lambda self, h, i, stop, mask: right(self, h, min(i + 1, stop), stop))
    with pytest.raises(ModelError, match="cannot be cut at its blocks"):
        tiny.frozen()


def test_blocks_are_put_back_after_an_error(models, tokens):
    model = models["gpt2"]
    before, full = [vars(block).copy() for block in model.blocks], model.full(tokens)
    with pytest.raises(RuntimeError):
        model.tail(torch.randn(2, 5, 32).double(), 1)  # the model is in single precision
    assert [vars(block) for block in model.blocks] == before
    torch.testing.assert_close(model.full(tokens), full, atol=0, rtol=0)


def test_threads_share_a_model_and_each_gets_its_own_pass(models, tokens):
    """Blocks are passed over, and states put in, by changes to the module that another thread would see."""
    model = models["gpt2"]
    shared = masking_utils.find_packed_sequence_indices
    texts = [tokens, tokens.flip(-1)]
    heads = [model.head(text, 1) for text in texts]
    tails, wrong = [model.tail(head, 1) for head in heads], []

    def ask(text, head, tail):
        try:
            for _ in range(20):
                same = torch.equal(model.head(text, 1), head) and torch.equal(model.tail(head, 1), tail)
                wrong.extend([] if same else ["another's state"])
        except Exception as error:
            wrong.append(error)

    threads = [threading.Thread(target=ask, args=each) for each in zip(texts, heads, tails, strict=True)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert not any("forward" in vars(block) for block in model.blocks)
    assert masking_utils.find_packed_sequence_indices is shared


def test_threads_load_models_one_by_one(checkpoints, models):
    """transformers changes classes of its own meanwhile, and would leave them so."""
    with ThreadPoolExecutor(2) as pool:
        loaded = list(pool.map(lambda _: load_model(checkpoints["gpt2"]), range(2)))
    assert len({model.fingerprint() for model in [*loaded, models["gpt2"]]}) == 1


@pytest.mark.parametrize("layer", [-1, tiny.LAYERS, True])
def test_layers_are_those_that_there_are(models, tokens, layer):
    """-1 is the embedding to nobody, and the last layer to some, so it is refused."""
    model = models["gpt2"]
    with pytest.raises(ModelError, match=f"no layer {layer}"):
        model.head(tokens, layer)
    with pytest.raises(ModelError, match=f"no layer {layer}"):
        model.tail(model.head(tokens, 1), layer)
    for start, stop in ((-1, 2), (1, 9)):
        with pytest.raises(ModelError, match="blocks"):
            model.advance(torch.randn(2, 5, 32), start, stop)


def test_a_forward_pass_that_a_block_was_given_is_put_back():
    model = tiny.frozen()
    model.blocks[0].forward = given = functools.partial(type(model.blocks[0]).forward, model.blocks[0])
    model.tail(torch.randn(2, 5, 32), 1)
    assert vars(model.blocks[0])["forward"] is given


def test_rotary_positions_keep_their_precision(tmp_path):
    """In bfloat16 as transformers has them: frequencies that are rounded as well make late positions wrong."""
    import transformers as hf

    folder = tiny.write_llama(tmp_path)
    plain = hf.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16).eval()
    tokens = torch.randint(300, (1, 60))
    with torch.no_grad():
        expected = plain(tokens).logits
    for model in (load_model(folder, dtype="bfloat16"), load_model(plain.float(), tiny.tokenizer(), dtype="bfloat16")):
        assert torch.equal(model.full(tokens), expected)
        assert untrained_like(model, 1).module.model.rotary_emb.inv_freq.dtype == torch.float32


def test_rows_end_where_states_would_depend_on_longer_rows():
    import transformers as hf

    scaling = {"rope_type": "longrope", "rope_theta": 1e4, "short_factor": [1.0] * 4, "long_factor": [4.0] * 4}
    shape = {"hidden_size": 32, "num_attention_heads": 4, "num_hidden_layers": 1, "vocab_size": 300, "pad_token_id": 0}
    lengths = {"max_position_embeddings": 64, "original_max_position_embeddings": 16}
    module = hf.Phi3ForCausalLM(hf.Phi3Config(**shape, **lengths, rope_parameters=scaling)).eval()
    tiny.enlarge(module)
    rows = torch.randint(300, (1, 17))
    first, longer = (module(rows[:, :length]).logits[:, :8] for length in (16, 17))
    assert (first - longer).abs().max() > 1e-3, "control"
    assert longest_row(module) == 16


def test_same_seed_same_weights_whatever_the_activation():
    solu, gelu, other = tiny.native(3), tiny.native(3, act_fn="gelu"), tiny.native(4)
    assert torch.equal(solu.layers[2].mlp.fc_in.weight, gelu.layers[2].mlp.fc_in.weight)
    assert not torch.equal(solu.head.weight, other.head.weight)


def test_mini_survives_saving_in_half_precision(tmp_path, tokens):
    tiny.write_mini(tmp_path / "m", seed=2)
    model = load_model(ModelConfig(name="m", family="native", mini=True, path=str(tmp_path / "m")))
    reference = tiny.frozen(2).module.half().float()
    torch.testing.assert_close(model.full(tokens), reference(tokens), atol=1e-5, rtol=1e-5)
    assert model.tokenizer.get_vocab() == tiny.tokenizer().get_vocab()


@pytest.mark.parametrize(
    ("fault", "key"),
    [("truncated", "model=m"), ("no config", r"config\.json"), ("wrong architecture", "model_type=gpt22")],
)
def test_a_damaged_checkpoint_is_one_line(tmp_path, checkpoints, fault, key):
    folder = shutil.copytree(checkpoints["gpt2"], tmp_path / "m")
    weights, shape = folder / "model.safetensors", folder / "config.json"
    if fault == "truncated":
        weights.write_bytes(weights.read_bytes()[:5000])
    elif fault == "no config":
        shape.unlink()
    else:
        shape.write_text(json.dumps({**json.loads(shape.read_text()), "model_type": "gpt22"}))
    with pytest.raises(ModelError, match=key):
        load_model(folder)


@pytest.mark.parametrize("elsewhere", ["../weights/a.safetensors", "/tmp/a.safetensors", "link/a.safetensors"])
def test_weights_outside_a_folder_are_refused(elsewhere, tmp_path, checkpoints):
    folder = shutil.copytree(checkpoints["gpt2"], tmp_path / "m")
    (folder / "link").symlink_to(tmp_path)
    names = dict.fromkeys(load_file(folder / "model.safetensors"), elsewhere)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": names}))
    for call in (checkpoint_fingerprint, load_model):
        with pytest.raises(ModelError, match="outside its folder"):
            call(ModelConfig(name="local", path=str(folder)))


@pytest.mark.usefixtures("command_line")
@pytest.mark.parametrize("call", [load_model, checkpoint_fingerprint])
@pytest.mark.parametrize("settings", [{"revision": "step1000"}, {"hub_id": "someone/m"}])
def test_a_setting_that_would_only_change_the_name_is_refused(call, settings):
    config = composed("model=gelu-3l-mini").model
    assert len(checkpoint_fingerprint(config)) == 16
    with pytest.raises(ConfigError, match=rf"model\.{next(iter(settings))}"):
        call(replace(config, **settings))


def test_a_checkpoints_fingerprint_is_of_files_not_its_path(tmp_path):
    for folder in ("a", "b"):
        tiny.write_mini(tmp_path / folder)
    first, second = (checkpoint_fingerprint(ModelConfig(name="x", path=str(tmp_path / f))) for f in ("a", "b"))
    assert first == second
    (tmp_path / "b" / "config.json").write_text("{}")
    assert checkpoint_fingerprint(ModelConfig(name="x", path=str(tmp_path / "b"))) != first
    assert checkpoint_fingerprint(ModelConfig(name="gpt2", hub_id="gpt2", revision=hub.COMMIT)) == hub.COMMIT


@pytest.mark.parametrize("family", ["llama", "auto"])
def test_one_line_of_the_table_adds_a_family(family, monkeypatch, tmp_path):
    monkeypatch.setitem(FAMILIES, "llama", Family("llama", "model.layers"))
    model = load_model(ModelConfig(name="tiny-llama", family=family, path=str(tiny.write_llama(tmp_path))))
    assert (model.family.name, model.predicts) == ("llama", "next")
    sizes = {"num_hidden_layers": 1, "hidden_size": 16, "num_attention_heads": 2, "intermediate_size": 16}
    assert type(build_mini(sizes, 50, 0, "llama")).__name__ == "LlamaForCausalLM"


@pytest.mark.ci_slow
def test_a_model_is_loaded_by_its_name_or_its_folder(checkpoints, minis, tmp_path, monkeypatch):
    named = load_model("gelu-3l-mini", dtype=torch.float64, device=torch.device("cpu"), context=32)
    composed_one = load_model(composed("model=gelu-3l-mini", "model.dtype=float64", "model.context=32").model)
    assert named.fingerprint() == composed_one.fingerprint()
    assert (named.name, named.dtype, named.context) == ("gelu-3l-mini", torch.float64, 32)
    assert named.describe()["dtype"] == "float64"
    assert named.head(torch.ones(1, 3, dtype=torch.long), 0).dtype == torch.float64
    folder = checkpoints["gpt2"]
    config = ModelConfig(name="local", path=str(folder), dtype="bfloat16", bos=None)
    wanted = load_model(config).fingerprint()
    monkeypatch.chdir(folder.parent)
    for place in (folder, "./" + folder.name):
        found = load_model(place, dtype="bfloat16")
        assert (found.name, found.fingerprint()) == (folder.name, wanted)
    assert load_model(config, "mine", dtype="float32").name == "mine"
    assert load_model(config, context=16).context == 16
    assert load_model(minis / "a").n_layers == tiny.LAYERS


def test_a_folder_needs_no_slash_unless_a_model_has_its_name(checkpoints, tmp_path, monkeypatch):
    (tmp_path / "mine").symlink_to(checkpoints["gpt2"])
    (tmp_path / "gelu-3l-mini").mkdir()
    monkeypatch.chdir(tmp_path)
    assert load_model("mine").n_layers == tiny.LAYERS
    assert load_model("gelu-3l-mini").n_layers == 3


def test_the_family_of_a_hub_model_is_read_from_its_config_json(checkpoints, models, served, root):
    shutil.copytree(checkpoints["gpt_neox"], root / "someone" / "neox")
    asked = served()
    model = load_model(ModelConfig(name="neox", hub_id="someone/neox", revision=hub.COMMIT))
    assert (model.family.name, model.revision) == ("gpt_neox", hub.COMMIT)
    assert f"/someone/neox/resolve/{hub.COMMIT}/config.json" in asked
    assert model.fingerprint() == models["gpt_neox"].fingerprint()


@pytest.mark.parametrize(
    ("config_json", "key"),
    [
        ("{", r"config\.json"),
        ('{"model_type": "vit", "num_hidden_layers": 1}', "model_type=vit"),
        ('{"model_type": "llama", "hidden_size": 8}', "states no number of blocks"),
        ('{"model_type": "mine", "auto_map": {"AutoConfig": "mine.Mine"}}', "trust_remote_code"),
    ],
)
def test_a_hub_model_whose_family_cannot_be_read_is_one_line(config_json, key, served, root):
    folder = root / "someone" / "empty"
    folder.mkdir(parents=True)
    (folder / "README.md").write_text("a model")
    (folder / "config.json").write_text(config_json)
    served()
    with pytest.raises(ModelError, match=key):
        load_model(ModelConfig(name="empty", hub_id="someone/empty"))


@pytest.mark.parametrize("auto_map", [["mine.Mine", "mine.Mine"], ["mine.Mine", None], "mine.Mine"])
def test_code_of_a_tokenizers_folder_is_neither_run_nor_asked_about(auto_map, tmp_path, monkeypatch):
    folder = tmp_path / "model"
    sizes = {"vocab_size": 300, "hidden_size": 16, "intermediate_size": 32, "num_attention_heads": 2}
    config = LlamaConfig(num_hidden_layers=2, num_key_value_heads=2, **sizes)
    LlamaForCausalLM(config).save_pretrained(folder)
    tiny.tokenizer().save_pretrained(folder)
    file = folder / "tokenizer_config.json"
    settings = json.loads(file.read_text()) | {"auto_map": {"AutoTokenizer": auto_map}, "tokenizer_class": "Mine"}
    file.write_text(json.dumps(settings))
    (folder / "mine.py").write_text(f"from pathlib import Path\nPath({str(tmp_path / 'ran')!r}).touch()\n")
    questions = []
    monkeypatch.setattr("builtins.input", lambda question="": questions.append(question) or "y")
    with contextlib.suppress(ModelError):  # where transformers has no other class for the tokenizer
        load_model(ModelConfig(name="mine", path=str(folder)))
    assert questions == []
    assert not (tmp_path / "ran").exists()


def test_fused_attention_is_the_native_one(tokens):
    from transformer_lens.model_bridge.sources.native.model import NativeAttention

    module = tiny.native().eval()
    fused = module(tokens)
    attentions = [part for part in module.modules() if isinstance(part, NativeAttention)]
    assert len(attentions) == tiny.LAYERS
    mask = torch.ones(3, 24, dtype=torch.long)
    masked = module(tokens, attention_mask=mask)  # goes the native way
    for attention in attentions:
        assert type(attention).forward is not NativeAttention.forward
        attention.__class__ = NativeAttention
    torch.testing.assert_close(fused, module(tokens), atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(masked, module(tokens, attention_mask=mask))


def test_a_randomised_model_keeps_only_shapes_and_spread(tokens):
    model = tiny.frozen(3)
    random, again = randomised(model, seed=1), randomised(model, seed=1)
    assert random.fingerprint() == again.fingerprint() != model.fingerprint()
    for old, new in zip(model.module.parameters(), random.module.parameters(), strict=True):
        if old.dim() > 1:
            assert not torch.equal(old, new)
            assert new.std().item() == pytest.approx(old.std().item(), rel=0.15)
        else:
            assert torch.equal(old, new)
    assert (random.full(tokens) - model.full(tokens)).abs().max() > 0.1


def module_of(folder, kind="AutoModelForCausalLM"):
    import transformers

    return getattr(transformers, kind).from_pretrained(folder, dtype=torch.float32)


@pytest.mark.parametrize("family", with_slow(tiny.FAMILIES, "bert", "gpt_neox"))
def test_a_model_in_memory_is_that_of_its_folder(family, checkpoints):
    module = module_of(checkpoints[family], "AutoModelForMaskedLM" if family == "bert" else "AutoModelForCausalLM")
    ours, saved = load_model(module, tiny.tokenizer(), name="mine"), load_model(checkpoints[family])
    assert ours.fingerprint() == saved.fingerprint()
    assert (ours.name, ours.revision, ours.context) == ("mine", "in memory", saved.context)
    assert ours.describe()["weights"] == saved.describe()["weights"]
    tokens = torch.randint(len(tiny.tokenizer()), (2, 16))
    torch.testing.assert_close(ours.head(tokens, 1), saved.head(tokens, 1), atol=0, rtol=0)


def test_training_in_memory_changes_only_the_original(checkpoints):
    module = module_of(checkpoints["gpt2"]).train()
    before = load_model(module, tiny.tokenizer())
    fingerprint = before.fingerprint()
    assert module.training
    assert all(weight.requires_grad for weight in module.parameters())
    with torch.no_grad():
        module.transformer.h[0].mlp.c_fc.weight.mul_(2)
    assert before.fingerprint() == fingerprint
    assert load_model(module, tiny.tokenizer()).fingerprint() != fingerprint


def test_a_model_in_memory_has_a_name_and_settings(checkpoints):
    module = module_of(checkpoints["gpt2"])
    assert load_model(module, tiny.tokenizer()).name == checkpoints["gpt2"].name
    model = load_model(module.double(), tiny.tokenizer(), "mine", context=32)
    assert (model.name, model.context, model.dtype) == ("mine", 32, torch.float64)
    assert load_model(module, tiny.tokenizer(), dtype=torch.float32).dtype == torch.float32


def test_what_is_no_language_model_in_memory_is_refused(checkpoints):
    module, cutter = module_of(checkpoints["gpt2"]), tiny.tokenizer()
    with pytest.raises(TypeError, match="its tokenizer, not GPT2LMHeadModel and No"):
        load_model(module)
    with pytest.raises(TypeError, match="not Linear and"):
        load_model(torch.nn.Linear(2, 2), cutter)
    with pytest.raises(ConfigError, match=r"revision of load_model does not apply to a model passed in memory"):
        load_model(module, cutter, revision="main")
    with torch.no_grad():
        module.transformer.h[0].mlp.c_fc.weight[0, 0] = float("nan")
    with pytest.raises(ModelError, match="not finite"):
        load_model(module, cutter)


def test_hooks_of_steering_libraries_run_once(checkpoints, tokens):
    """A hook on a block is part of the model: not passed over with blocks whose states are known."""
    module, steering = module_of(checkpoints["gpt2"]), torch.randn(32)
    plain = load_model(module, tiny.tokenizer())
    module.transformer.h[2].register_forward_hook(lambda _, __, state: state + steering)
    module.transformer.h[1].register_forward_pre_hook(lambda _, given: (given[0] - steering, *given[1:]))
    steered = load_model(module, tiny.tokenizer())
    with torch.no_grad():
        expected = module(tokens).logits
    assert not torch.allclose(plain.full(tokens), expected, atol=1e-2)
    for layer in range(tiny.LAYERS):
        joined = steered.tail(steered.head(tokens, layer), layer)
        torch.testing.assert_close(joined, expected, atol=1e-4, rtol=0)


def test_a_hook_that_no_cut_fits_is_named(checkpoints):
    module, calls = module_of(checkpoints["gpt2"]), []

    def drift(_, __, state):
        calls.append(None)
        return state * len(calls)

    module.transformer.h[2].mlp.register_forward_hook(drift)
    with pytest.raises(ModelError, match=r"hooks on transformer\.h\.2\.mlp.*remove\(\)"):
        load_model(module, tiny.tokenizer())


def test_a_token_without_a_row_is_refused_where_a_text_has_it(models, checkpoints, tmp_path):
    folder = shutil.copytree(checkpoints["gpt2"], tmp_path / "m")
    cutter = tiny.tokenizer.__wrapped__()
    cutter.add_special_tokens({"pad_token": "<pad>"})
    cutter.save_pretrained(folder)
    model = load_model(folder)
    assert len(model.tokenizer) == model.vocabulary + 1
    tokens = torch.tensor(model.tokenizer(["abc", "abc<pad>"][1])["input_ids"])[None]
    with pytest.raises(ModelError, match=r"the token '<pad>' \(id 300\), and the embedding has 300 rows"):
        model.head(tokens, 1)
    assert torch.equal(model.head(tokens[:, :-1], 1), models["gpt2"].head(tokens[:, :-1], 1))


@pytest.mark.parametrize("family", ["gpt2", "bert", "gptj"])
def test_a_configuration_that_promises_more_positions_than_there_are_is_refused_by_name(family, checkpoints):
    import transformers as hf

    if family == "gptj":  # whose table of positions is a buffer
        shape = {"n_embd": 32, "n_layer": 2, "n_head": 4, "rotary_dim": 8, "vocab_size": len(tiny.tokenizer())}
        module = hf.GPTJForCausalLM(hf.GPTJConfig(**shape, n_positions=64))
        tiny.enlarge(module)
    else:
        kind = hf.AutoModelForMaskedLM if family == "bert" else hf.AutoModelForCausalLM
        module = kind.from_pretrained(checkpoints[family])
    entry = "max_position_embeddings" if family == "bert" else "n_positions"
    setattr(module.config, entry, 32)
    assert load_model(module, tiny.tokenizer()).context == 32
    setattr(module.config, entry, 4096)
    with pytest.raises(ModelError, match=rf"config\.{entry}=4096, and .* has 64 rows"):
        load_model(module, tiny.tokenizer())


def test_a_long_row_that_a_model_cannot_read_is_said_in_one_line(checkpoints):
    import transformers as hf

    module = hf.AutoModelForCausalLM.from_pretrained(checkpoints["gpt2"])
    module.transformer.h[1].register_forward_pre_hook(lambda _, args: args[0][:, 40])  # which short rows lack
    with pytest.raises(ModelError, match="its forward pass fails on sample tokens"):
        config_of(load_model(module, tiny.tokenizer()), call="")


def test_the_largest_error_of_outputs_is_nan_wherever_the_nan_is():
    good, bad = torch.ones(2), torch.tensor([1.0, torch.nan])
    assert largest_relative_error([(good * 1.5, good), (good, good)]) == pytest.approx(0.5)
    for pairs in ([(bad, good), (good, good)], [(good, good), (bad, good)]):
        assert math.isnan(largest_relative_error(pairs))


def test_a_module_has_its_modes_back_after_evaluation():
    module = torch.nn.Sequential(torch.nn.Dropout(), torch.nn.Sequential(torch.nn.Dropout()))
    module[1].eval()
    with evaluation_mode(module):
        assert not any(submodule.training for submodule in module.modules())
    assert [submodule.training for submodule in module.modules()] == [True, True, False, False]


def test_logits_are_not_what_comes_first_in_an_output():
    """A mixture of experts may put the loss of its router before them."""
    config = MixtralConfig(
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        num_local_experts=2,
        vocab_size=len(tiny.tokenizer()),
        max_position_embeddings=64,
        output_router_logits=True,
    )
    module = MixtralForCausalLM(config).eval()
    model = load_model(module, tiny.tokenizer())
    tokens = torch.arange(20)[None]
    with torch.no_grad():
        torch.testing.assert_close(model.full(tokens), module(tokens).logits)


@pytest.mark.parametrize("dtype", [torch.qint8, torch.float16])
@pytest.mark.parametrize("layers", [{torch.nn.Linear}, {"gpt_neox.layers.1.mlp.dense_h_to_4h"}])
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
def test_weights_that_torch_has_packed_are_refused_with_the_remedy(dtype, layers, checkpoints):
    from transformers import AutoModelForCausalLM

    module = AutoModelForCausalLM.from_pretrained(checkpoints["gpt_neox"])
    packed = torch.ao.quantization.quantize_dynamic(module, layers, dtype=dtype)
    with pytest.raises(ModelError, match=r"_packed_params\S* of GPTNeoXForCausalLM is a \w+ and not a tensor.*before"):
        load_model(packed, tiny.tokenizer())
