"""An adapter of PEFT loads as the model that it is merged into."""

import json
import shutil
import sys
import time

import pytest
import torch
from safetensors.torch import load_file, save_file

import thinkalike
import tiny
from thinkalike.errors import ConfigError, ModelError
from thinkalike.models.adapters import with_adapter
from thinkalike.models.checkpoints import base_of
from thinkalike.models.families import outline
from thinkalike.models.fingerprints import checkpoint_fingerprint
from thinkalike.models.labels import distinct_labels
from thinkalike.models.load import load_model, load_models
from thinkalike.models.shapes import shape_of

peft = pytest.importorskip("peft")


def write_adapter(base, folder, spread=0.1, kind=None, rename=""):
    """An adapter of LoRA for the attention of a tiny Llama, and the states of both together by PEFT itself."""
    import transformers as hf

    plain = hf.AutoModelForCausalLM.from_pretrained(base)
    settings = kind or peft.LoraConfig(r=2, target_modules=["q_proj", "down_proj"], lora_alpha=4)
    whole = peft.get_peft_model(plain, settings)
    torch.manual_seed(3)
    with torch.no_grad():
        for name, weight in whole.named_parameters():
            if "lora_B" in name:
                weight.normal_(std=spread)
    whole.save_pretrained(folder)
    return whole.eval()


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    return tiny.write_llama(tmp_path_factory.mktemp("bases") / "base")


@pytest.fixture
def adapter(base, tmp_path):
    write_adapter(base, tmp_path / "tuned")
    return tmp_path / "tuned"


def test_states_are_those_of_peft(base, tmp_path):
    whole = write_adapter(base, tmp_path / "tuned")
    model, plain = load_model(tmp_path / "tuned"), load_model(base)
    tokens = torch.randint(len(tiny.tokenizer()), (3, 24))
    with torch.no_grad():
        expected = whole(tokens, output_hidden_states=True)
    torch.testing.assert_close(model.head(tokens, 0), expected.hidden_states[1], atol=1e-4, rtol=1e-5)
    torch.testing.assert_close(model.full(tokens), expected.logits, atol=1e-3, rtol=1e-5)
    assert (plain.head(tokens, 0) - expected.hidden_states[1]).abs().max() > 1e-2
    assert model.name == "tuned"
    assert not any("lora" in name for name, _ in model.module.named_parameters())


def test_a_second_file_of_weights_is_said(adapter, caplog):
    load_model(adapter)
    assert not caplog.text
    torch.save({}, adapter / "adapter_model.bin")
    load_model(adapter)
    assert f"weights that are not read lie in {adapter}: adapter_model.bin" in caplog.text


def test_its_fingerprint_covers_itself_and_its_base(adapter, base, tmp_path):
    found = {checkpoint_fingerprint(tiny.local(adapter)), checkpoint_fingerprint(tiny.local(base))}
    other = tiny.write_llama(tmp_path / "other", rope_theta=1e4)
    found.add(checkpoint_fingerprint(tiny.local(adapter, base=str(other))))
    write_adapter(base, adapter, spread=0.2)
    found.add(checkpoint_fingerprint(tiny.local(adapter)))
    assert len(found) == 4


def test_its_sizes_are_known_before_it_is_read(adapter):
    assert outline(tiny.local(adapter)) == ("next", 2)
    shape = shape_of(tiny.local(adapter))
    assert (shape.name, shape.layers, shape.width) == ("tuned", 2, 256)


@pytest.mark.parametrize("place", ["folder", "gguf", "name"])
def test_a_base_is_a_folder_a_gguf_file_or_a_name(place, base, adapter, tmp_path):
    if place == "name":
        write_adapter(f"{tiny.MINIS}/gpt2-mini", adapter, kind=peft.LoraConfig(r=2, target_modules=["c_attn"]))
    places = {
        "folder": shutil.copytree(base, tmp_path / "moved"),
        "gguf": tiny.write_gguf(base, tmp_path / "m.gguf"),
        "name": "gpt2-mini",
    }
    stated = json.loads((adapter / "adapter_config.json").read_text())
    (adapter / "adapter_config.json").write_text(json.dumps(stated | {"base_model_name_or_path": None}))
    with pytest.raises(ModelError, match=r"names no base_model_name_or_path; give load_model\(\.\.\., base="):
        load_model(adapter)
    model = load_model(adapter, base=str(places[place]))
    assert model.n_layers == (6 if place == "name" else 2)
    assert model.fingerprint() != load_model(str(places[place])).fingerprint()


OTHERS = {
    "wider": {"hidden_size": 128, "intermediate_size": 128},
    "fewer layers": {"num_hidden_layers": 1},
    "more layers": {"num_hidden_layers": 3},
    "another architecture": {},
}


@pytest.mark.parametrize("case", OTHERS)
def test_another_base_is_refused_in_one_line(case, adapter, tmp_path):
    other = tmp_path / "other"
    if case == "another architecture":
        tiny.write_checkpoint("gpt_neox", other)
    else:
        tiny.write_llama(other, **OTHERS[case])
    with pytest.raises(ModelError, match=r"tuned: the adapter .* give load_model\(\.\.\., base="):
        load_model(adapter, base=str(other))


NO_BASES = {  # and what is said of them
    "/nowhere/base": "its base /nowhere/base is not .*here; give model.base=",
    "nowhere": "its base nowhere is not .*here; give model.base=",
    "itself": "is an adapter itself; give model.base=",
    "gelu-3l-mini": "whose base is a model of transformers; gelu-3l-mini is none",
}


@pytest.mark.parametrize("name", NO_BASES)
def test_what_is_no_base_is_refused(name, adapter, base):
    with pytest.raises(ModelError, match=NO_BASES[name]):
        load_model(adapter, base=str(adapter) if name == "itself" else name)
    with pytest.raises(ConfigError, match="base is no adapter; leave it out"):
        load_model(base, base="gpt2-mini")


def test_a_prompt_cannot_be_merged(base, adapter):
    write_adapter(base, adapter, kind=peft.PromptTuningConfig(num_virtual_tokens=2, task_type="CAUSAL_LM"))
    with pytest.raises(ModelError, match="cannot be merged"):
        load_model(adapter)


def test_a_start_that_took_a_random_part_of_the_base_is_refused(base, adapter, tmp_path):
    write_adapter(
        base, adapter, kind=peft.LoraConfig(r=2, target_modules=["q_proj"], init_lora_weights="pissa_niter_2")
    )
    with pytest.raises(ModelError, match="init_lora_weights=pissa_niter_2 its training took a part out of the base"):
        load_model(adapter)
    kind = peft.LoraConfig(r=2, target_modules=["q_proj"], init_lora_weights="pissa", modules_to_save=["lm_head"])
    whole = write_adapter(base, tmp_path / "whole", kind=kind)  # with a head of its own, and no tokenizer
    tokens = torch.randint(len(tiny.tokenizer()), (2, 9))
    with torch.no_grad():
        torch.testing.assert_close(
            load_model(tmp_path / "whole").full(tokens), whole(tokens).logits, atol=1e-3, rtol=1e-4
        )


def test_its_base_is_of_the_revision_that_it_names(adapter):
    settings = json.loads((adapter / "adapter_config.json").read_text())
    settings |= {"base_model_name_or_path": "gpt2", "revision": "v1"}
    (adapter / "adapter_config.json").write_text(json.dumps(settings))
    assert base_of(tiny.local(adapter)).revision == "v1"
    assert base_of(tiny.local(adapter, base="gpt2")).revision is None


@pytest.mark.parametrize("revision", ["../../../../w/x", "/abs", "a/../b", ".", 5, 0, True, ["main"], {"a": 1}])
def test_a_revision_that_a_stranger_states_is_no_path(revision, adapter):
    settings = json.loads((adapter / "adapter_config.json").read_text())
    settings |= {"base_model_name_or_path": "org/x", "revision": revision}
    (adapter / "adapter_config.json").write_text(json.dumps(settings))
    with pytest.raises(ModelError, match=r"adapter_config\.json: revision=.* of org/x can be no branch, tag or commit"):
        load_model(adapter)


def test_a_missing_extra_is_named(adapter, monkeypatch):
    monkeypatch.setitem(sys.modules, "peft", None)
    with pytest.raises(ModelError, match=r"is an adapter, which needs peft: pip install 'thinkalike\[peft\]'"):
        load_model(adapter)


def test_one_adapter_of_two_bases_has_two_names(adapter, base, tmp_path):
    moved = shutil.copytree(base, tmp_path / "moved")
    one, two = load_models(tiny.local(adapter), tiny.local(adapter, base=str(moved)))
    assert one.name != two.name
    assert distinct_labels([tiny.local(adapter), tiny.local(adapter, base="b")]) == [
        "tuned[base=None]",
        "tuned[base=b]",
    ]


@pytest.mark.parametrize("given", [{"target_modules": ["dt_proj"]}, {"target_modules": ["in_proj"], "lora_bias": True}])
def test_an_adapter_that_cannot_be_merged_runs_as_it_is(given, tmp_path, caplog):
    """Mamba reads the weight of dt_proj and never calls it, so PEFT leaves that change out; in_proj has no bias."""
    folder = tiny.write_checkpoint("mamba", tmp_path / "base")
    kind = peft.LoraConfig(r=2, init_lora_weights=False, **given)
    whole = write_adapter(folder, tmp_path / "tuned", spread=0.5, kind=kind)
    tokens = torch.randint(len(tiny.tokenizer()), (2, 9))
    with torch.no_grad():
        expected = whole(tokens).logits
    torch.testing.assert_close(load_model(tmp_path / "tuned").full(tokens), expected, atol=1e-4, rtol=1e-4)
    assert "tuned is not merged" in caplog.text


@pytest.mark.parametrize("saved", [None, ["wte"]])
def test_an_adapter_with_added_tokens_brings_their_rows(saved, tmp_path):
    import transformers as hf

    folder = tiny.write_checkpoint("gpt2", tmp_path / "base")
    plain, cutter = hf.AutoModelForCausalLM.from_pretrained(folder), tiny.tokenizer()
    names = type(cutter).from_pretrained(folder)
    names.add_special_tokens({"additional_special_tokens": ["<|user|>"]})
    plain.resize_token_embeddings(len(names))
    kind = peft.LoraConfig(r=2, target_modules=["c_attn"], init_lora_weights=False, modules_to_save=saved)
    whole = peft.get_peft_model(plain, kind).eval()
    whole.save_pretrained(tmp_path / "tuned")
    names.save_pretrained(tmp_path / "tuned")
    model = load_model(tmp_path / "tuned")
    tokens = torch.tensor([model.tokenizer("abc <|user|> abd")["input_ids"]])
    assert tokens.max() == len(cutter) == model.vocabulary - 1
    with torch.no_grad():
        torch.testing.assert_close(model.full(tokens), whole(tokens).logits, atol=1e-4, rtol=1e-4)


T = {"target_modules": ["q_proj", "v_proj"], "task_type": "CAUSAL_LM"}
CONDITIONS = {  # adapters that act beyond their layers, and what is said of them
    "invoked by tokens": (peft.LoraConfig(r=2, alora_invocation_tokens=[5, 6], **T), "alora_invocation_tokens does mo"),
    "of tasks": (peft.PolyConfig(r=2, n_tasks=2, n_skills=2, **T), "task_ids should not be None"),
}


def jiggled(whole):
    """The adapter moved away from where it starts, at which most do nothing."""
    torch.manual_seed(3)
    with torch.no_grad():
        for weight in whole.parameters():
            if weight.requires_grad:
                weight.add_(0.1 * torch.randn_like(weight))
    return whole.eval()


def on(base, settings):
    import transformers as hf

    return jiggled(peft.get_peft_model(hf.AutoModelForCausalLM.from_pretrained(base), settings))


@pytest.mark.parametrize("case", CONDITIONS)
def test_an_adapter_that_acts_on_a_condition_is_refused_by_name(case, base, tmp_path):
    settings, said = CONDITIONS[case]
    whole = on(base, settings)
    whole.save_pretrained(tmp_path / "tuned")
    with pytest.raises(ModelError, match=rf"tuned: .*{said}"):
        load_model(tmp_path / "tuned")
    with pytest.raises(ModelError, match=said):
        load_model(whole, tiny.tokenizer())


def test_gates_over_adapters_are_refused(base, tmp_path):
    import transformers as hf

    for name in "01":
        on(base, peft.LoraConfig(r=2, **T)).save_pretrained(tmp_path / name)
    adapters = {name: str(tmp_path / name) for name in "01"}
    plain = hf.AutoModelForCausalLM.from_pretrained(base)
    plain.config.use_cache = False
    whole = peft.get_peft_model(plain, peft.XLoraConfig(hidden_size=256, adapters=adapters, task_type="CAUSAL_LM"))
    with pytest.raises(ModelError, match="XLORA does more in PEFT than its layers do"):
        load_model(jiggled(whole), tiny.tokenizer())


UNMERGED = {
    "bias": peft.LoraConfig(r=2, lora_bias=True, **T),
    "bias and a head": peft.LoraConfig(r=2, lora_bias=True, modules_to_save=["lm_head"], **T),
    "bias and tokens": peft.LoraConfig(r=2, lora_bias=True, trainable_token_indices=[5, 6], **T),
    "prompt in attention": peft.AdaptionPromptConfig(adapter_len=2, adapter_layers=1, task_type="CAUSAL_LM"),
}


@pytest.mark.parametrize("case", UNMERGED)
@pytest.mark.parametrize("where", ["folder", "memory"])
def test_the_diff_of_an_adapter_that_stays_unmerged(where, case, base, tmp_path):
    """Its KL is that by hand, its weights are added to those of its base, and the base's are equal."""
    texts, cutter = [tiny.document(seed, 60) for seed in range(60)], tiny.tokenizer()
    whole = on(base, UNMERGED[case])
    whole.save_pretrained(tmp_path / "tuned")
    given = tmp_path / "tuned" if where == "folder" else (whole, cutter)
    found = thinkalike.diff(base, given, texts=texts, tokens=256)
    tokens = torch.randint(len(cutter), (8, 32), generator=torch.Generator().manual_seed(0))
    plain = load_model(base)
    with torch.no_grad():
        after = whole(tokens).logits
    used = load_model(given) if where == "folder" else load_model(*given)
    torch.testing.assert_close(used.full(tokens), after, atol=1e-4, rtol=1e-4)
    before, after = plain.full(tokens).log_softmax(-1), after.log_softmax(-1)
    by_hand = float((before.exp() * (before - after)).sum(-1).mean())
    assert found.scalars["kl"] == pytest.approx(by_hand, rel=0.5)
    weights = found.tables["weights"]
    added = weights[weights["operation"] == "added"]["tensor"]
    assert len(added)
    assert all("lora_" in name or "trainable_tokens" in name or "adaption_" in name for name in added), "of the adapter"
    rest = set(weights["tensor"]) - set(added)
    assert rest == ({"lm_head.weight"} if case == "bias and a head" else set()), "all others are those of the base"
    assert "attention" in set(found.table.loc[found.table["relative_weight_change"] != 0, "component"])


def test_the_diff_of_an_adapter_that_transformers_added(base):
    """It runs unmerged; switched off, it changes no prediction."""
    import transformers as hf

    texts, cutter = [tiny.document(seed, 60) for seed in range(60)], tiny.tokenizer()
    model = hf.AutoModelForCausalLM.from_pretrained(base)
    model.add_adapter(peft.LoraConfig(r=2, target_modules=["q_proj", "v_proj"]))
    jiggled(model)
    merged = on(base, peft.LoraConfig(r=2, **T))
    merged.load_state_dict({f"base_model.model.{name}": each for name, each in model.state_dict().items()})
    found = [thinkalike.diff(base, (each, cutter), texts=texts, tokens=256) for each in (model, merged)]
    assert found[0].scalars["kl"] == pytest.approx(found[1].scalars["kl"], rel=1e-3), "merged or not"
    model.disable_adapters()
    assert thinkalike.diff(base, (model, cutter), texts=texts, tokens=256).scalars["kl"] == 0


@pytest.mark.parametrize(
    "stated",
    [
        {"target_modules": "(.*)*x"},
        {"target_modules": ".*.*.*.*.*.*.*.*.*.*.*.*x"},
        {"exclude_modules": "(.*.*)*="},
        {"rank_pattern": {"(.*.*)*=": 2}},
        {"r": 10**9},
    ],
    ids=str,
)
def test_settings_that_would_never_end_are_refused(stated, adapter):
    """Python's matching of regular expressions cannot be interrupted, and a rank is memory."""
    path = adapter / "adapter_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **stated}))
    began = time.monotonic()
    with pytest.raises(ModelError, match=r"adapter_config\.json"):
        load_model(adapter)
    assert time.monotonic() - began < 20


def test_a_pattern_that_people_write_is_matched(base, tmp_path):
    settings = peft.LoraConfig(r=2, target_modules=r".*\.self_attn\.(q|v)_proj$", rank_pattern={"layers.1.*q_proj": 4})
    write_adapter(base, tmp_path / "tuned", kind=settings)
    assert load_model(tmp_path / "tuned").n_layers == 2


def test_an_adapter_of_whole_numbers_is_refused(adapter):
    path = adapter / "adapter_model.safetensors"
    weights = load_file(path)
    name = next(name for name in weights if "lora_A" in name)
    save_file(weights | {name: (100 * weights[name]).long()}, path, metadata={"format": "pt"})
    with pytest.raises(ModelError, match=f"{name} is stored as int64"):
        load_model(adapter)


def test_indices_of_an_adapter_are_not_quantised_weights(base, tmp_path):
    whole = write_adapter(base, tmp_path / "tuned", kind=peft.ShiraConfig(r=2, target_modules=["q_proj"]))
    with torch.no_grad():
        for name, weight in whole.named_parameters():
            if "shira_weight" in name:
                weight.normal_(std=0.1)
    whole.save_pretrained(tmp_path / "tuned")
    stored = load_file(tmp_path / "tuned" / "adapter_model.safetensors")
    assert any(tensor.dtype == torch.int32 for tensor in stored.values()), "control"
    tokens = torch.randint(len(tiny.tokenizer()), (2, 8))
    logits = load_model(tmp_path / "tuned").full(tokens)
    torch.testing.assert_close(logits, whole(tokens).logits, atol=1e-3, rtol=1e-5)
    assert (logits - load_model(base).full(tokens)).abs().max() > 1e-2, "control"


def test_weights_that_are_whole_only_since_they_are_large_are_not_called_rounded(base, tmp_path):
    settings = peft.LoraConfig(r=2, target_modules=["q_proj"], lora_alpha=1e30)
    whole = write_adapter(base, tmp_path / "tuned", kind=settings)
    tokens = torch.randint(len(tiny.tokenizer()), (2, 8))
    logits = load_model(tmp_path / "tuned").full(tokens)
    torch.testing.assert_close(logits, whole(tokens).logits, atol=1e-3, rtol=1e-5)


@pytest.fixture(scope="module")
def adapted(base):
    """Return a new model with a LoRA, of PEFT, in memory."""
    import transformers as hf

    def make(kind=None):
        torch.manual_seed(3)
        settings = kind or peft.LoraConfig(r=2, target_modules=["up_proj"], init_lora_weights=False)
        return peft.get_peft_model(hf.AutoModelForCausalLM.from_pretrained(base), settings).eval()

    return make


LATE = 30  # a position that the sample at loading lacks


def late(output):
    if isinstance(output, torch.Tensor):
        return torch.cat([output[:, :LATE], 2 * output[:, LATE:]], 1)
    output.logits = late(output.logits)
    return output


def hooked(part):
    part.register_forward_hook(lambda _, __, output: late(output))


def replaced(part):
    part.forward = lambda *given, forward=part.forward, **named: late(forward(*given, **named))


def of_own_class(part):
    class Late(type(part)):
        def forward(self, *given, **named):
            return late(super().forward(*given, **named))

    part.__class__ = Late


LAYER = "base_model.model.model.layers.0.mlp.up_proj"
TOKENS = torch.arange(40)[None]


@pytest.mark.parametrize(
    ("path", "change"),
    [(LAYER, hooked), (LAYER, replaced), (LAYER, of_own_class), (f"{LAYER}.lora_A.default", hooked),
     (f"{LAYER}.base_layer", hooked)],
)  # fmt: skip
def test_code_in_layers_of_peft_is_not_lost_by_merging(path, change, adapted):
    plain, changed = adapted(), adapted()
    change(changed.get_submodule(path))
    with torch.no_grad():
        before, expected = plain(TOKENS).logits, changed(TOKENS).logits
    assert (expected - before).abs().max() > 1e-2, "control"
    torch.testing.assert_close(load_model(changed, tiny.tokenizer()).full(TOKENS), expected, atol=1e-4, rtol=1e-4)


def test_code_outside_of_layers_of_peft_leaves_an_adapter_merged(adapted):
    changed = adapted()
    hooked(changed.get_submodule("base_model.model.model.layers.0.mlp"))
    with torch.no_grad():
        expected = changed(TOKENS).logits
    model = load_model(changed, tiny.tokenizer())
    torch.testing.assert_close(model.full(TOKENS), expected, atol=1e-4, rtol=1e-4)
    assert not any("lora" in name for name, _ in model.module.named_parameters())


@pytest.mark.parametrize(
    ("path", "change"),
    [("", hooked), ("", replaced), ("", of_own_class), ("base_model", hooked), ("base_model", replaced)],
)
def test_code_on_what_peft_wraps_around_a_model_is_refused(path, change, adapted):
    model = adapted()
    change(model.get_submodule(path))
    with pytest.raises(ModelError, match=r"has hooks or code of your own, which would be lost"):
        load_model(model, tiny.tokenizer())
    base = model.get_base_model()
    with torch.no_grad():
        expected = base(TOKENS).logits
    torch.testing.assert_close(load_model(base, tiny.tokenizer()).full(TOKENS), expected, atol=1e-4, rtol=1e-4)


def test_a_hook_of_a_model_with_an_adapter_computes_with_the_copy(adapted):
    original = adapted()
    weight = original.get_submodule(LAYER).base_layer.weight
    original.get_submodule(LAYER).register_forward_hook(lambda _, __, output: output + weight.sum(1))
    model = load_model(original, tiny.tokenizer())
    before = model.full(TOKENS).clone()
    with torch.no_grad():
        weight.mul_(3)
    assert torch.equal(model.full(TOKENS), before)


@pytest.mark.parametrize(
    ("content", "message"),
    [(None, r"but no weights of an adapter"), ("version https://git-lfs.github.com/spec/v1\n", "git lfs pull")],
)
def test_a_copy_of_an_adapter_without_its_weights_says_what_is_missing(tmp_path, content, message):
    (tmp_path / "adapter_config.json").write_text("{}")
    if content is not None:
        content += f"oid sha256:{'a' * 64}\nsize 1234567\n"
        (tmp_path / "adapter_model.safetensors").write_text(content)
    with pytest.raises(ModelError, match=message):
        with_adapter(torch.nn.Linear(2, 2), tmp_path)
