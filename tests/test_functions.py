"""The functions for notebooks: the same tables as commands, of models, text and stimuli in memory; and the examples."""

import collections
import contextlib
import copy
import doctest
import functools
import inspect
import json
import os
import pickle
import shutil
import subprocess
import sys
import threading
import traceback
import weakref
from dataclasses import fields
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import safetensors
import torch
import transformers
from safetensors.torch import save_file
from torch.utils.hooks import RemovableHandle
from transformer_lens.patching import layer_pos_patch_setter
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, AttentionMaskInterface, sdpa_mask
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.models.llama.modeling_llama import LlamaRMSNorm
from transformers.utils.deprecation import deprecate_kwarg

import thinkalike
import tiny
from conftest import every_second, with_ci_slow, with_slow
from function_calls import (  # noqa: F401
    ALIKE,
    FEW,
    FRAME,
    JOBS,
    PAIR,
    PROFILES,
    SETTINGS,
    TEXTS,
    _own_cache,
    bridged,
    check_table_of_command,
    files,
)
from llamas import hooked, replaced_forward, small_llama
from thinkalike import jobs, load_model, measures, open_result
from thinkalike.code_text import runs_code_of_user
from thinkalike.config import AnalyzeConfig, DataConfig, ModelConfig, StimuliConfig, measure_schema
from thinkalike.config.schema import initial_of
from thinkalike.digests import tokenizer_fingerprint
from thinkalike.errors import (
    ConfigError,
    DataError,
    ModelError,
    PluginError,
    ResourceError,
    ResultError,
    StoreError,
    ThinkalikeError,
)
from thinkalike.inputs import config_of, model_configs, stimuli_config
from thinkalike.job.lookup import instrument_of_measure, instrument_of_task
from thinkalike.jobs.configuration import setting_of
from thinkalike.jobs.plain_values import plain_setting
from thinkalike.models import identity
from thinkalike.models.checkpoints import ASSETS
from thinkalike.models.description import Description
from thinkalike.models.identity import identity_of, sample_digest
from thinkalike.models.labels import distinct_labels
from thinkalike.models.patched_libraries import patched_names
from thinkalike.models.proof import may_change_states
from thinkalike.models.traits import described_traits, traits_of, traits_that_differ
from thinkalike.store import Result
from thinkalike.training.recipe import StitchConfig, StitchJob

SAME_CALL = "0"  # stands for the random text that all models of one call of a function share


# others than mutual_knn go the same way, and the ruler, which takes longest, as R² does
@pytest.mark.parametrize("kind", with_ci_slow(SETTINGS, *(set(SETTINGS) - {*ALIKE})))
def test_a_function_gives_the_table_of_its_command(kind, files, cli, tmp_path):  # noqa: F811
    check_table_of_command(kind, files, cli, tmp_path)


COMMON = {each.name for part in (DataConfig, StimuliConfig, AnalyzeConfig) for each in fields(part)} | {"site", "head"}


@pytest.mark.parametrize("name", JOBS)
def test_keywords_are_settings_with_their_defaults(name):
    """None stands for what is left open, for lists, and for settings whose default depends on the measure."""
    wrong = []
    for keyword, default in getattr(jobs, name.capitalize()).defaults().items():
        found = []
        for kind in JOBS[name]:
            if name == "compare" and keyword not in {each.name for each in fields(measure_schema(kind))} | COMMON:
                continue  # of another measure
            instrument = instrument_of_task("stitch") if kind == "stitch" else instrument_of_measure(kind)
            part, _, setting = setting_of(keyword, kind, instrument).rpartition(".")
            root = StitchJob if kind == "stitch" else AnalyzeConfig
            own = {"model": ModelConfig, "stitch": StitchConfig, "data": DataConfig, "stimuli": StimuliConfig, "": root}
            schema = measure_schema(kind) if part == "measure" else own[part]
            found += [item for item in fields(schema) if item.name == setting]
        usual = [initial_of(item) for item in found]
        value = plain_setting(default)
        differ = any(each != usual[0] for each in usual)
        fits = [value == each or (default is None and (differ or isinstance(each, list | dict))) for each in usual]
        wrong += [] if fits and all(fits) else [(keyword, default, usual)]
    assert wrong == []
    assert setting_of("steps", "stitch", instrument_of_task("stitch")) == "stitch.steps", "control"


@pytest.mark.parametrize(
    ("measure", "keyword", "value"),
    [
        ("rsa", "permutations", 99),
        ("rsa", "permutations", 98),
        ("mlem", "permutations", 99),
        ("mlem", "permutations", 7),
    ],
)
def test_a_keyword_counts_whatever_the_default_of_another_measure_is(measure, keyword, value, monkeypatch):
    asked = []

    def run_job(config, shown):
        asked.append(config)
        raise DataError("no job is run here")

    monkeypatch.setattr("thinkalike.jobs.running.run_job", run_job)
    for settings in ({keyword: value}, {}):
        with pytest.raises(DataError):
            thinkalike.compare("gpt2-mini", "gpt2-mini-s1", measure=measure, stimuli="crossed", **settings)
    given, usual = (getattr(config.measure, keyword) for config in asked)
    assert given == value
    assert usual == getattr(measure_schema(measure)(), keyword)


def test_a_keyword_is_refused_by_a_measure_that_takes_no_such_value():
    with pytest.raises(ConfigError, match="null"):
        thinkalike.compare("gpt2-mini", "gpt2-mini-s1", measure="diff", null=False)


@pytest.mark.ci_slow
def test_a_bridge_is_the_model_that_it_wraps():
    bridge, tokens = bridged(), torch.randint(1000, (2, 16))
    before, (_, cache) = bridge(tokens), bridge.run_with_cache(tokens)
    ours, named = load_model(bridge), load_model("gpt2-mini")
    assert (ours.fingerprint(), ours.settings()) == (named.fingerprint(), named.settings())
    for layer in range(ours.n_layers):
        state = cache[f"blocks.{layer}.hook_resid_post"]
        torch.testing.assert_close(ours.head(tokens, layer), state, atol=1e-4, rtol=1e-4)
    assert torch.equal(bridge(tokens), before), "the bridge is as it was"
    assert thinkalike.diff(bridge, "gpt2-mini", texts=TEXTS).scalars["kl"] == 0
    bridge.cfg.eps, eps = 1.0, bridge.cfg.eps  # which its wrappers of norms read
    with pytest.raises(ModelError, match=r"the logits of this TransformerBridge differ by .* give the model"):
        load_model(bridge)
    bridge.cfg.eps = eps
    bridge.enable_compatibility_mode()
    with pytest.raises(ModelError, match="compatibility mode, which changes weights"):
        load_model(bridge)


@pytest.mark.ci_slow
def test_hooks_of_a_bridge_are_refused_even_if_sample_tokens_do_not_show_them():
    bridge = bridged("bert-mini")  # which has hooks of its own
    load_model(bridge)
    block, point = bridge.blocks[0], bridge.blocks[0].hook_out
    late = functools.partial(lambda state, hook, start: None, start=20)
    patch = functools.partial(layer_pos_patch_setter, index=20, clean_activation=None)
    for add, hook in [(point.add_hook, late), (point.add_perma_hook, late), (point.add_hook, patch),
                      (point.register_forward_hook, print), (block.register_forward_pre_hook, print),
                      (bridge.register_forward_hook, print)]:  # fmt: skip
        handle = add(hook)
        with pytest.raises(ModelError, match=r"has hooks .* on (blocks\.0.*|the bridge itself), which a copy"):
            load_model(bridge)
        bridge.reset_hooks(including_permanent=True)
        if isinstance(handle, RemovableHandle):
            handle.remove()
    load_model(bridge)


OF_A_BRIDGE = ["", "blocks.0", "ln_final", "ln_final._original_component"]


@pytest.mark.parametrize("path", with_slow(OF_A_BRIDGE, "blocks.0", "ln_final._original_component"))
def test_a_replaced_forward_that_a_copy_of_a_bridge_would_lose_is_refused(path):
    """Nor does a bridge run the forward of a norm that it wraps, which its copy would run."""
    bridge = bridged()
    part = bridge.get_submodule(path)
    vars(part)["forward"] = functools.partial(lambda *given, forward: forward(*given), forward=part.forward)
    with pytest.raises(ModelError, match=rf"code of your own on {path or 'the bridge itself'}, which a copy"):
        load_model(bridge)


@pytest.mark.ci_slow
def test_what_a_wrapped_module_of_a_bridge_runs_is_in_its_copy():
    bridge, tokens = bridged(), torch.randint(1000, (2, 40))
    block = bridge.blocks[0].original_component

    def doubled_when_late(_, __, output):
        return torch.cat([output[:, :30], 2 * output[:, 30:]], 1)

    before = bridge(tokens)
    with block.register_forward_hook(doubled_when_late):
        expected = bridge(tokens)
        torch.testing.assert_close(load_model(bridge).full(tokens), expected, atol=1e-4, rtol=1e-4)
    assert (expected - before).abs().max() > 1e-2, "control"
    weight = weakref.ref(bridge.ln_final.weight)
    block.register_forward_hook(lambda _, __, output: output + weight())
    with pytest.raises(ModelError, match=r"computes with weights of the original from transformer\.h\.0 on"):
        load_model(bridge)


def test_a_hook_in_a_bridge_that_holds_a_weight_holds_that_of_the_copy():
    bridge, tokens = bridged(), torch.randint(1000, (2, 16))
    part = bridge.blocks[0].mlp.original_component
    weight = next(part.parameters())
    part.register_forward_hook(lambda _, __, output: output * (1 + weight.flatten()[0].abs()))
    part.register_forward_hook(lambda _, __, output, held=weight: output * (1 + held.flatten()[0].abs()))
    model = load_model(bridge)
    expected = model.full(tokens).clone()
    torch.testing.assert_close(expected, bridge(tokens), atol=1e-4, rtol=1e-4)
    with torch.no_grad():
        weight.zero_()
    assert torch.equal(model.full(tokens), expected)


@pytest.mark.ci_slow
def test_a_model_in_memory_is_keyed_by_what_it_is():
    module = transformers.AutoModelForCausalLM.from_pretrained(ASSETS / "gpt2-mini", dtype=torch.float32)
    given = (module, load_model("gpt2-mini").tokenizer)
    first = thinkalike.compare(given, store="kept", texts=TEXTS, **FEW)
    assert thinkalike.compare(given, store="kept", texts=TEXTS, **FEW).key == first.key
    changed = copy.deepcopy(module)
    with torch.no_grad():
        changed.transformer.h[0].mlp.c_fc.weight[0, 0] += 1
    other = thinkalike.compare((changed, given[1]), store="kept", texts=TEXTS, **FEW)
    assert other.key != first.key
    both = thinkalike.compare(given, (changed, given[1]), texts=TEXTS, **FEW)
    assert list(dict.fromkeys(both.details["target"])) == ["gpt2-mini (2)", "gpt2-mini"]


def test_a_model_on_meta_has_no_weights():
    with pytest.raises(ModelError, match="has no weights, as it is on the device meta"):
        load_model(small_llama().to("meta"), tiny.tokenizer())


def longer_rotation(model):
    model.model.rotary_emb.inv_freq = model.model.rotary_emb.inv_freq / 8


def larger_scale(model):
    for layer in model.model.layers:
        layer.self_attn.scaling *= 3


def another_activation(model):
    model.model.layers[1].mlp.act_fn = torch.nn.ReLU()


def larger_epsilon(model):
    model.model.layers[0].input_layernorm.variance_epsilon = 0.1


def steered_by_a_global(model):
    model.model.layers[0].mlp.register_forward_hook(lambda _, __, output: output + STEERING)


def parametrized(model):
    torch.nn.utils.parametrize.register_parametrization(model.model.layers[0].mlp.up_proj, "weight", torch.nn.ReLU())


STEERING = torch.ones(32)
CHANGES = [longer_rotation, larger_scale, another_activation, larger_epsilon, replaced_forward, hooked,
           steered_by_a_global, parametrized]  # fmt: skip


FEW_TEXTS = [tiny.document(seed, 60) for seed in range(60)]
SMALL_DIFF = {"tokens": 512, "tokens_per_part": 64, "outputs": 0, "taught": False}


@pytest.fixture(scope="module")
def kept_base(tmp_path_factory):
    """A store with a job of the unchanged model, and its key."""
    store = tmp_path_factory.mktemp("kept")
    return store, thinkalike.compare((small_llama(), tiny.tokenizer()), store=store, texts=FEW_TEXTS, **FEW).key


@pytest.mark.parametrize("change", with_ci_slow(CHANGES, *CHANGES[::2]), ids=lambda change: change.__name__)
def test_models_that_differ_in_no_weight_and_no_setting_are_two(change, kept_base):
    """The numbers are those of both models by hand, and neither takes the other's place in a store."""
    base, cutter, texts = small_llama(), tiny.tokenizer(), FEW_TEXTS
    changed = copy.deepcopy(base)
    change(changed)
    tokens = torch.randint(len(cutter), (2, 40), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        before, after = (model(tokens).logits.log_softmax(-1) for model in (base, changed))
    assert (before.exp() * (before - after)).sum(-1).mean() > 1e-4, "by hand"
    torch.testing.assert_close(load_model(changed, cutter).full(tokens).log_softmax(-1), after)
    found = thinkalike.diff((base, cutter), (changed, cutter), texts=texts, **SMALL_DIFF)
    assert found.scalars["kl"] > 1e-5
    assert found.scalars["settings"] + found.scalars["modules"] > 0, "it is named"
    compared = thinkalike.compare((base, cutter), (changed, cutter), measure="distance", texts=texts, **FEW)
    assert compared.table["value"].max() > 1e-3
    store, key_of_base = kept_base
    assert thinkalike.compare((changed, cutter), store=store, texts=texts, **FEW).key != key_of_base


@pytest.mark.ci_slow
def test_models_that_do_not_differ_are_one(kept_base):
    base, cutter = small_llama(), tiny.tokenizer()
    store, key_of_base = kept_base
    assert thinkalike.compare((base, cutter), store=store, texts=FEW_TEXTS, **FEW).key == key_of_base
    same = thinkalike.diff((base, cutter), (copy.deepcopy(base), cutter), texts=FEW_TEXTS, **SMALL_DIFF)
    assert not any(same.scalars[name] for name in ("kl", "settings", "modules", "tokens"))


def test_a_replaced_forward_of_a_copy_computes_with_the_copy():
    model = small_llama()
    replaced_forward(model)
    frozen, tokens = load_model(model, tiny.tokenizer()), torch.randint(len(tiny.tokenizer()), (2, 9))
    before = frozen.full(tokens)
    with torch.no_grad():
        torch.testing.assert_close(model(tokens).logits, before)
        for weight in model.parameters():
            weight.zero_()
    assert torch.equal(frozen.full(tokens), before)


def late_change(model, factor=2.0):
    def doubled_beyond_the_sample(_, __, output, start=10_000, factor=factor):
        return torch.cat([output[:, :start], factor * output[:, start:]], 1)

    model.model.layers[0].register_forward_hook(doubled_beyond_the_sample)


@pytest.mark.ci_slow
def test_a_change_that_no_sample_shows_is_in_the_code_of_a_function():
    base, cutter = small_llama(), tiny.tokenizer()
    models = [copy.deepcopy(base) for _ in range(4)]
    for model, factor in zip(models[1:], (2.0, 2.0, 3.0), strict=True):
        late_change(model, factor)
    frozen = [load_model(model, cutter) for model in models]
    assert len({sample_digest(model) for model in frozen}) == 1, "the sample is too short for it"
    paths = [config_of(model, SAME_CALL).digest for model in frozen]
    assert paths[1] == paths[2]
    assert len(set(paths)) == 3
    found = thinkalike.diff((models[1], cutter), (models[3], cutter), texts=TEXTS, tokens=256)
    assert found.scalars["settings"] == 1
    configs = model_configs({"base": (models[1], cutter), "changed": (models[2], cutter)}, {})
    assert configs[0].digest != configs[1].digest, "two objects, however alike, are two models"


@pytest.mark.ci_slow
def test_a_patch_of_a_library_enters_the_key(monkeypatch):
    from transformers.models.llama import modeling_llama

    original = small_llama()

    def digest():
        return config_of(load_model(original, tiny.tokenizer()), SAME_CALL).digest

    before = digest()
    with monkeypatch.context() as patch:
        patch.setattr(modeling_llama, "rotate_half", lambda states: states.flip(-1))
        assert digest() != before
    with monkeypatch.context() as patch:
        patch.setattr(modeling_llama.LlamaMLP, "forward", lambda self, states: self.down_proj(self.up_proj(states)))
        assert digest() != before
    assert digest() == before


USES = {
    "hidden states": lambda model, tokens: model(tokens, output_hidden_states=True),
    "some hidden states": lambda model, tokens: model(tokens, output_hidden_states=[0]),
    "generated": lambda model, tokens: model.generate(tokens, max_new_tokens=2, do_sample=False),
    "compiled": lambda model, tokens: torch.compile(model, backend="eager")(tokens, output_hidden_states=True),
    "compiled in place": lambda model, tokens: model.compile(backend="eager"),
    "made ready for training": lambda model, tokens: model.enable_input_require_grads(),
    "checkpoints of activations": lambda model, tokens: model.model.layers[0].__setattr__("gradient_checkpointing", 1),
}


@pytest.fixture(scope="module")
def digest_of_llama():
    """The digest of the model as it is made."""
    return config_of(load_model(small_llama(), tiny.tokenizer()), SAME_CALL).digest


@pytest.mark.ci_slow
@pytest.mark.parametrize("use", USES.values(), ids=USES)
def test_what_a_user_did_with_a_model_before_is_no_part_of_its_key(use, digest_of_llama):
    """Nor of that of another model: compiled functions stay among the globals of transformers, without a module."""
    tokens = torch.arange(5)[None]
    model = small_llama()
    with torch.no_grad():
        use(model, tokens)
    assert config_of(load_model(model, tiny.tokenizer()), SAME_CALL).digest == digest_of_llama
    assert config_of(load_model(small_llama(), tiny.tokenizer()), SAME_CALL).digest == digest_of_llama


@pytest.mark.ci_slow
def test_a_patch_that_was_made_from_text_enters_the_key(monkeypatch):
    """Its function has no module, as what torch.compile leaves in a library, but takes the place of another one."""
    from transformers.models.llama import modeling_llama

    original = small_llama()

    def digest():
        return config_of(load_model(original, tiny.tokenizer()), SAME_CALL).digest

    before = digest()
    namespace: dict = {}
    exec("def rotate_half(states): return states.flip(-1)", {}, namespace)
    assert namespace["rotate_half"].__module__ is None
    with monkeypatch.context() as patch:
        patch.setattr(modeling_llama, "rotate_half", namespace["rotate_half"])
        assert digest() != before
    with monkeypatch.context() as patch:
        patch.setattr(modeling_llama, "a_name_that_nothing_reads", namespace["rotate_half"], raising=False)
        assert digest() == before


@pytest.mark.ci_slow
def test_a_model_in_memory_has_one_key_in_every_process(tmp_path):
    program = (
        "import llamas, tiny\n"
        "from thinkalike import load_model\n"
        "from thinkalike.inputs import config_of\n"
        "model = llamas.small_llama(); llamas.hooked(model); llamas.replaced_forward(model)\n"
        f"print(config_of(load_model(model, tiny.tokenizer()), {SAME_CALL!r}).digest)"
    )
    model = small_llama()
    hooked(model)
    replaced_forward(model)
    digest = config_of(load_model(model, tiny.tokenizer()), SAME_CALL).digest
    own_seed = os.environ.get("PYTHONHASHSEED", "random")
    environment = {**os.environ, "PYTHONHASHSEED": "2" if own_seed == "1" else "1", "OMP_NUM_THREADS": "2"}
    environment["PYTHONPATH"] = os.pathsep.join(sys.path)
    printed = subprocess.check_output([sys.executable, "-c", program], env=environment, text=True)
    assert printed.strip() == digest


class Strength:
    """The strength of a steering hook, in places that cannot be read from outside."""

    __slots__ = ("in_a_slot",)
    of_all = 1.0

    def __init__(self):
        self.in_a_slot = 1.0


STRENGTH = Strength()
STRENGTHS = collections.deque([1.0])
OWN_CODE = {  # what a hook reads, and what changes it
    "an attribute of a class": (lambda: Strength.of_all, lambda: setattr(Strength, "of_all", 9.0)),
    "a slot": (lambda: STRENGTH.in_a_slot, lambda: setattr(STRENGTH, "in_a_slot", 9.0)),
    "a queue": (lambda: STRENGTHS[0], lambda: STRENGTHS.__setitem__(0, 9.0)),
    "the environment": (lambda: float(os.environ.get("STRENGTH", "1")), lambda: os.environ.update(STRENGTH="9")),
    "a module": (lambda: getattr(sys.modules["tiny"], "strength", 1.0), lambda: setattr(tiny, "strength", 9.0)),
}


@pytest.mark.ci_slow
@pytest.mark.parametrize(("read", "change"), OWN_CODE.values(), ids=OWN_CODE)
def test_what_own_code_reads_is_read_at_each_call(read, change, tmp_path, monkeypatch):
    """Whatever the hook reads, the second call gives what it would give alone."""
    monkeypatch.setenv("STRENGTH", "1")
    monkeypatch.setattr(tiny, "strength", 1.0, raising=False)
    model = small_llama()

    def strengthen_long_batches(_, __, output):  # which no sample of tokens at loading shows
        return output * (read() if len(output) > 3 else 1.0)

    model.model.layers[0].mlp.register_forward_hook(strengthen_long_batches)
    pair = ((model, tiny.tokenizer()), (small_llama(), tiny.tokenizer()))
    before = thinkalike.compare(*pair, store=tmp_path / "kept", texts=FEW_TEXTS, context=32, **FEW)
    change()
    after = thinkalike.compare(*pair, store=tmp_path / "kept", texts=FEW_TEXTS, context=32, **FEW)
    alone = thinkalike.compare(*pair, texts=FEW_TEXTS, context=32, **FEW)
    values = [result.table["value"].tolist() for result in (before, after, alone)]
    assert values[1] == values[2]
    assert values[0] != values[1], "the change has no effect, and the test could not fail"


def in_the_place_of(original):
    """A function that does the same, under the name and the module that the original has."""

    @functools.wraps(original)
    def own(*args, **kwargs):
        return original(*args, **kwargs)

    return own


def put_wrapped_forward_on(model, patch):
    module = model.model.layers[0].mlp
    module.forward = in_the_place_of(type(module).forward).__get__(module)


def put_wrapped_forward_into_class(model, patch):
    kind = type(model.model.layers[0].mlp)
    patch.setattr(kind, "forward", in_the_place_of(kind.forward))


def put_wrapped_hook(model, patch):
    hook = functools.wraps(transformers.activations.get_activation)(lambda _, __, output: output)
    model.model.layers[0].mlp.register_forward_hook(hook)


def replace_function_of_torch(model, patch):
    patch.setattr(torch.nn.functional, "embedding", in_the_place_of(torch.nn.functional.embedding))


def replace_method_of_tensors(model, patch):
    patch.setattr(torch.Tensor, "transpose", lambda tensor, *axes: torch.transpose(tensor, *axes))


def put_decorated_hook(model, patch):
    model.model.layers[0].mlp.register_forward_hook(torch.no_grad()(lambda _, __, output: output))


def put_cached_hook(model, patch):
    model.model.layers[0].mlp.register_forward_hook(functools.lru_cache(lambda _, __, output: output))


def put_decorated_forward_into_class(model, patch):
    kind = type(model.model.layers[0].mlp)
    original = kind.forward
    patch.setattr(kind, "forward", torch.inference_mode(False)(lambda self, states: original(self, states)))


def put_partial_method_into_class(model, patch):
    kind = type(model.model.layers[0].mlp)
    original = kind.forward
    forward = functools.partialmethod(lambda self, states, factor: factor * original(self, states), factor=1)
    patch.setattr(kind, "forward", forward)


def replace_function_of_torch_by_partial(model, patch):
    embedding = torch.nn.functional.embedding
    own = functools.partial(lambda function, *args, **kwargs: function(*args, **kwargs), embedding)
    patch.setattr(torch.nn.functional, "embedding", own)


def replace_function_of_torch_by_object(model, patch):
    patch.setattr(torch.nn.functional, "embedding", Calls(torch.nn.functional.embedding))


class Calls:
    """An object of the user's own that calls a function."""

    def __init__(self, function):
        self.function = function

    def __call__(self, *args, **kwargs):
        return self.function(*args, **kwargs)


def replace_compiled_function(model, patch):
    patch.setattr(torch, "matmul", lambda *factors: factors[0].matmul(factors[1]))


def test_a_model_that_runs_code_of_libraries_alone_is_known_by_it():
    """The control of the test below."""
    assert identity_of(load_model(small_llama(), tiny.tokenizer())).is_complete


@pytest.mark.parametrize(
    "disguise",
    every_second(
        [
            put_wrapped_forward_on,
            put_wrapped_forward_into_class,
            put_wrapped_hook,
            replace_function_of_torch,
            replace_method_of_tensors,
            replace_compiled_function,
            put_decorated_hook,
            put_cached_hook,
            put_decorated_forward_into_class,
            put_partial_method_into_class,
            replace_function_of_torch_by_partial,
            replace_function_of_torch_by_object,
        ]
    ),
)
def test_whose_code_a_model_runs_is_not_known_by_its_name(disguise, monkeypatch):
    """Results of such a model are computed anew in each call, as its code can read anything."""
    model = small_llama()
    disguise(model, monkeypatch)
    assert not identity_of(load_model(model, tiny.tokenizer())).is_complete


def windowed_mask(*args, **kwargs):
    mask = sdpa_mask(*args, **{**kwargs, "allow_is_causal_skip": False})
    positions = torch.arange(mask.shape[-1])
    return mask & (positions[:, None] - positions < 4)


TABLES = {
    "masks": (AttentionMaskInterface._global_mapping, "sdpa", windowed_mask),
    "masks of one place": (ALL_MASK_ATTENTION_FUNCTIONS._local_mapping, "sdpa", windowed_mask),
    "attention": (ALL_ATTENTION_FUNCTIONS._local_mapping, "sdpa", lambda *args, **kwargs: None),
    "rotation": (ROPE_INIT_FUNCTIONS, "yarn", lambda config, device: None),
    "activations": (transformers.activations.ACT2FN, "mine", type("Mine", (torch.nn.ReLU,), {})),
    "activations with arguments": (transformers.activations.ACT2FN, "mine", (type("Mine", (torch.nn.ReLU,), {}), {})),
    "classes of models": (
        transformers.AutoModelForCausalLM._model_mapping._extra_content,
        transformers.LlamaConfig,
        type("Mine", (transformers.LlamaForCausalLM,), {}),
    ),
    "module with names of another": (vars(torch.nn), "Linear", type("Mine", (torch.nn.Linear,), {})),
}


@pytest.mark.parametrize(("table", "name", "code"), every_second(TABLES.values()), ids=TABLES)
def test_code_in_a_table_of_a_library_is_known_of_models_in_memory_and_by_name(table, name, code, monkeypatch):
    model = load_model(small_llama(), tiny.tokenizer())
    assert not patched_names(), "control"
    monkeypatch.setitem(table, name, code)
    assert any(str(name) in patched for patched in patched_names())
    described_traits(model.module, description := Description(model.module))
    assert not description.is_complete
    monkeypatch.undo()
    assert not patched_names()


def strengthened(factor):
    return lambda *args, **kwargs: (sdpa_attention_forward(*args, **kwargs)[0] * factor, None)


def register_attention(factor, patch):
    patch.setitem(ALL_ATTENTION_FUNCTIONS._global_mapping, "mine", strengthened(factor))
    model = small_llama()
    model.set_attn_implementation("mine")
    return model


def replace_attention(factor, patch):
    if factor > 1:
        patch.setitem(ALL_ATTENTION_FUNCTIONS._local_mapping, "sdpa", strengthened(factor))
    return small_llama()


def replace_norm(factor, patch):
    forward = LlamaRMSNorm.forward
    if factor > 1:
        patch.setattr(LlamaRMSNorm, "forward", lambda norm, states: forward(norm, states) * factor)
    return small_llama()


def put_hook_around_all_modules(factor, patch):
    def scaled(module, args, output):
        return output * factor if isinstance(module, torch.nn.Linear) else None

    patch.setitem(torch.nn.modules.module._global_forward_hooks, -1, scaled)
    return small_llama()


@pytest.mark.ci_slow
@pytest.mark.parametrize("change", [register_attention, replace_attention, replace_norm, put_hook_around_all_modules])
def test_a_frozen_model_whose_libraries_changed_since_is_refused(change, monkeypatch):
    """It would compute with the code of another model, and both would be called equal."""
    first = load_model(change(1.0, monkeypatch), tiny.tokenizer(), name="first")
    tokens = torch.arange(3, 35)[None]
    before = first.full(tokens)
    with monkeypatch.context() as patch:
        second = load_model(change(5.0, patch), tiny.tokenizer(), name="second")
        assert not torch.allclose(second.full(tokens), before), "control"
        config_of(second, "call")
        with pytest.raises(ModelError, match="first: libraries hold other code of your own than when it was loaded"):
            config_of(first, "call")
    config_of(first, "call")
    assert torch.equal(first.full(tokens), before)
    with pytest.raises(ModelError, match="second: libraries hold other code of your own"):
        config_of(second, "call")


def test_a_frozen_model_keeps_its_output_when_code_is_registered_for_another(monkeypatch):
    model = load_model(register_attention(1.0, monkeypatch), tiny.tokenizer())
    tokens = torch.arange(3, 35)[None]
    before = model.full(tokens)
    monkeypatch.setitem(ALL_ATTENTION_FUNCTIONS._global_mapping, "another", strengthened(2.0))
    monkeypatch.setitem(ALL_ATTENTION_FUNCTIONS._global_mapping, "sdpa", strengthened(3.0))
    config_of(model, "call")
    assert torch.equal(model.full(tokens), before)


@pytest.mark.parametrize(
    ("owner", "name"),
    [
        (transformers.PreTrainedTokenizerBase, "__call__"),
        (transformers.PreTrainedTokenizerFast, "_encode_plus"),
        (transformers.core_model_loading, "convert_and_load_state_dict_in_model"),
        (safetensors, "safe_open"),
    ],
)
def test_replaced_code_that_reads_models_and_texts_is_known(owner, name, monkeypatch):
    monkeypatch.setattr(owner, name, lambda *args, **kwargs: None)
    assert [patched.rpartition(".")[2] for patched in patched_names()] == [name]


def test_a_partial_of_a_function_of_a_library_in_its_place_is_known(monkeypatch):
    gelu = torch.nn.functional.gelu
    monkeypatch.setattr(torch.nn.functional, "gelu", functools.partial(gelu, approximate="tanh"))
    assert patched_names() == ["torch.nn.functional.gelu"]


@pytest.mark.parametrize("owner", [transformers.cache_utils.DynamicLayer, transformers.masking_utils])
def test_a_replaced_function_is_known_of_models_that_import_it_from_elsewhere(owner, monkeypatch):
    name = "update" if isinstance(owner, type) else "sdpa_mask"
    original = getattr(owner, name)
    model = load_model(small_llama(), tiny.tokenizer())
    monkeypatch.setattr(owner, name, lambda *args, **kwargs: original(*args, **kwargs))
    assert [patched.rpartition(".")[2] for patched in patched_names()] == [name]
    assert not identity_of(model).is_complete


def small_gpt2():
    settings = {"vocab_size": 32, "n_positions": 8, "n_embd": 8, "n_layer": 1, "n_head": 2}
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(**settings)).eval()


def hook_of_accelerate(factor):
    hooks = pytest.importorskip("accelerate.hooks")

    class Strengthen(hooks.ModelHook):
        def __init__(self):
            self.factor = factor

        def post_forward(self, module, output):
            return output * self.factor

    return hooks, Strengthen()


def put_hook_of_accelerate(model, factor):
    hooks, strengthen = hook_of_accelerate(factor)
    hooks.add_hook_to_module(model.transformer.wte, strengthen)


def put_hook_among_those_of_accelerate(model, factor):
    hooks, strengthen = hook_of_accelerate(factor)
    for hook in (strengthen, hooks.AlignDevicesHook(), hooks.AlignDevicesHook()):
        hooks.add_hook_to_module(model.transformer.wte, hook, append=True)


def put_function_into_hook_of_accelerate(model, factor):
    hooks = pytest.importorskip("accelerate.hooks")
    hook = hooks.AlignDevicesHook()
    hook.post_forward = lambda module, output: output * factor
    hooks.add_hook_to_module(model.transformer.wte, hooks.SequentialHook(hook))


def put_hook_decorated_by_transformers(model, factor):
    @deprecate_kwarg("old", version="99.0")
    def hook(module, args, output):
        return output * factor

    model.transformer.wte.register_forward_hook(hook)


def put_hook_decorated_by_accelerate(model, factor):
    accelerate = pytest.importorskip("accelerate")
    hook = accelerate.utils.convert_outputs_to_fp32(lambda module, args, output: output * factor)
    model.transformer.wte.register_forward_hook(hook)


def put_forward_into_dropout(model, factor):
    model.transformer.drop.forward = lambda states: states * factor


def put_forward_of_torch_into_dropout(model, factor):
    model.transformer.drop.forward = torch.relu if factor == 2 else torch.tanh


def put_dropout_of_user(model, factor):
    class Strengthen(torch.nn.Dropout):
        def forward(self, states):
            return states * self.p

    model.transformer.drop = Strengthen(1 / factor).eval()


@pytest.mark.parametrize(
    "change",
    every_second(
        [
            put_hook_of_accelerate,
            put_hook_among_those_of_accelerate,
            put_function_into_hook_of_accelerate,
            put_hook_decorated_by_transformers,
            put_hook_decorated_by_accelerate,
            put_forward_into_dropout,
            put_forward_of_torch_into_dropout,
            put_dropout_of_user,
        ]
    ),
)
def test_code_that_a_library_wraps_or_holds_tells_two_models_apart(change):
    model, other = small_gpt2(), small_gpt2()
    assert not traits_that_differ(model, other), "control"
    change(model, 2)
    change(other, 9)
    assert traits_that_differ(model, other)
    description = Description(model)
    described_traits(model, description)
    assert description.is_complete == (change is put_forward_of_torch_into_dropout)


def test_hooks_that_move_states_between_devices_are_no_traits():
    hooks = pytest.importorskip("accelerate.hooks")
    hook = hooks.SequentialHook(hooks.AlignDevicesHook(), hooks.AlignDevicesHook("cpu"))
    assert not may_change_states(hook)
    model = small_gpt2()
    hooks.add_hook_to_module(model.transformer.wte, hook)
    assert ("transformer.wte", "_hf_hook") not in traits_of(model)


@contextlib.contextmanager
def patched_class(patch):
    forward = torch.nn.LayerNorm.forward
    with patch.context() as inner:
        inner.setattr(torch.nn.LayerNorm, "forward", lambda self, states: 1.5 * forward(self, states))
        yield


@contextlib.contextmanager
def replaced_mask(patch):
    with patch.context() as inner:
        inner.setitem(AttentionMaskInterface._global_mapping, "sdpa", windowed_mask)
        yield


@contextlib.contextmanager
def hook_around_all_modules(patch):
    def halved(module, _, output):
        return 0.5 * output if isinstance(module, torch.nn.Embedding) else None

    handle = torch.nn.modules.module.register_module_forward_hook(halved)
    yield
    handle.remove()


@contextlib.contextmanager
def replaced_function(patch):
    gelu = torch.nn.functional.gelu
    with patch.context() as inner:
        inner.setattr(torch.nn.functional, "gelu", torch.no_grad()(lambda *args, **kwargs: 2 * gelu(*args, **kwargs)))
        yield


class Halving(torch.overrides.TorchFunctionMode):
    def __torch_function__(self, function, types, args=(), kwargs=None):
        output = function(*args, **(kwargs or {}))
        return 0.5 * output if function is torch.nn.functional.linear else output


@contextlib.contextmanager
def mode_of_torch(patch):
    with Halving():
        yield


@pytest.mark.ci_slow
@pytest.mark.parametrize(
    "change", [patched_class, hook_around_all_modules, replaced_function, replaced_mask, mode_of_torch]
)
def test_a_result_of_changed_libraries_is_not_that_of_a_name(change, tmp_path, monkeypatch):
    """A name, or a folder, says nothing of functions that somebody replaced in this process."""

    def loss(store=None):
        return thinkalike.loss("neox-3l-mini", texts=TEXTS, context=32, store=store).scalars["loss"]

    plain = loss()
    with change(monkeypatch):
        changed = loss(tmp_path / "kept")
    assert loss(tmp_path / "kept") == plain
    assert changed != plain, "control"
    with change(monkeypatch):
        assert loss(tmp_path / "kept") == changed


def test_autocast_of_the_caller_changes_no_result():
    plain = thinkalike.loss("gelu-3l-mini", texts=TEXTS, context=32).scalars["loss"]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert thinkalike.loss("gelu-3l-mini", texts=TEXTS, context=32).scalars["loss"] == plain
        assert torch.is_autocast_enabled("cpu")


@pytest.mark.ci_slow
def test_inference_mode_of_the_caller_is_no_fault_of_a_model():
    plain = thinkalike.loss("gelu-3l-mini", texts=TEXTS, context=32).scalars["loss"]
    with torch.inference_mode():
        made_here = (small_llama(), tiny.tokenizer())
        assert thinkalike.loss("gelu-3l-mini", texts=TEXTS, context=32).scalars["loss"] == plain
        assert thinkalike.loss(made_here, texts=TEXTS, context=32).scalars["loss"] > 0
        assert torch.is_inference_mode_enabled()


@pytest.mark.ci_slow
def test_a_forward_that_runs_no_hooks_is_refused_for_that():
    model = small_llama()
    model.forward = torch.compile(model.forward, backend="eager")
    with pytest.raises(ModelError, match=r"run without their hooks, as in a forward of torch\.compile"):
        load_model(model, tiny.tokenizer())


@pytest.mark.ci_slow
def test_a_model_of_from_pretrained_is_the_model_that_was_saved(tmp_path):
    model, cutter = small_llama(), tiny.tokenizer()
    model.save_pretrained(tmp_path / "saved")
    again = type(model).from_pretrained(tmp_path / "saved", dtype=torch.float32)
    frozen = [load_model(module, cutter, "one") for module in (model, again)]
    digests = [config_of(loaded, "").digest for loaded in frozen]
    assert digests[0] == digests[1]
    assert "saved equals LlamaForCausalLM" in str(thinkalike.diff((model, cutter), (again, cutter), texts=TEXTS))


@pytest.mark.ci_slow
def test_output_that_code_outside_of_the_blocks_changes_for_a_token_is_refused():
    """The head makes other logits of the last states; the samples at loading lack the token."""
    model = small_llama()
    text = tiny.tokenizer()(TEXTS[0], add_special_tokens=False)["input_ids"]
    forward = model.forward

    def adds_to_logits_after_a_token(input_ids, **kwargs):
        output = forward(input_ids, **kwargs)
        output.logits = output.logits + 9.0 * (input_ids == text[0])[..., None] * torch.arange(output.logits.shape[-1])
        return output

    model.forward = adds_to_logits_after_a_token
    in_memory = (model, tiny.tokenizer())
    with pytest.raises(ModelError, match="not what its head makes of its last states"):
        thinkalike.loss(in_memory, texts=TEXTS, context=32)
    states = thinkalike.compare(in_memory, (small_llama(), tiny.tokenizer()), texts=TEXTS, context=32, **FEW)
    assert states.table["value"].max() == pytest.approx(1.0), "its states are those of the model as it was"


LATE = 30  # a position that the sample at loading lacks


def late_in_the_head(model):
    model.lm_head.register_forward_hook(lambda _, __, logits: torch.cat([logits[:, :LATE], 3 * logits[:, LATE:]], 1))


def late_before_the_head(model):
    model.lm_head.register_forward_pre_hook(
        lambda _, given: given[0] * (torch.arange(given[0].shape[1]) < LATE)[:, None]
    )


def late_in_the_norm(model):
    model.model.norm.register_forward_hook(lambda _, __, state: torch.cat([state[:, :LATE], -state[:, LATE:]], 1))


def late_in_the_model(model):
    forward = model.forward

    def flatter(*given, **named):
        output = forward(*given, **named)
        output.logits[:, LATE:] /= 3
        return output

    model.forward = flatter


@pytest.mark.parametrize(
    "change",
    with_slow(
        [late_in_the_head, late_before_the_head, late_in_the_norm, late_in_the_model],
        late_in_the_head,
        late_in_the_norm,
    ),
    ids=lambda change: change.__name__,
)
def test_output_that_code_outside_of_the_blocks_changes_by_position_is_refused(change):
    """The head is given each state alone, so that it cannot know the position."""
    model, tokens = small_llama(), torch.randint(len(tiny.tokenizer()), (2, 40))
    change(model)
    frozen = load_model(model, tiny.tokenizer())
    for text in (tokens[:, :LATE], tokens[:, :20]):
        states = frozen.head(text, 0)
        torch.testing.assert_close(frozen.tail(states, 0), frozen.full(text), atol=1e-3, rtol=1e-3)
    for _ in range(2):
        last_states = frozen.head(tokens, 1)  # states are right all the same
        with pytest.raises(ModelError, match="not what its head makes of its last states"):
            frozen.finish(last_states)
        config_of(frozen, SAME_CALL)  # which has the output proved anew


def by_default(mlp):
    mlp.forward = lambda states, forward=mlp.forward: 0.5 * forward(states)


def by_keyword(mlp):
    def halved(states, *, forward=mlp.forward):
        return 0.5 * forward(states)

    mlp.forward = halved


def by_list(mlp):
    kept = [mlp.forward]
    mlp.forward = lambda states: 0.5 * kept[0](states)


def by_dictionary(mlp):
    kept = {"inside": {"forward": mlp.forward}}
    mlp.forward = lambda states: 0.5 * kept["inside"]["forward"](states)


def by_view(mlp):
    weight = mlp.down_proj.weight.detach()[2:]
    mlp.register_forward_hook(
        lambda _, __, output: output + output[..., 2:] @ weight[:, :1].expand(-1, output.shape[-1])
    )


class Kept:
    """Holds what a copy cannot find."""


def by_attribute_of_an_object(mlp):
    kept = Kept()
    kept.forward = mlp.forward
    mlp.forward = lambda states: 0.5 * kept.forward(states)


def by_weak_reference(mlp):
    weight = weakref.ref(mlp.down_proj.weight)
    mlp.register_forward_hook(lambda _, __, output: output + output @ weight()[:, :1].expand(-1, output.shape[-1]))


def by_array_of_numpy(mlp):
    weight = mlp.down_proj.weight.detach().numpy()
    mlp.register_forward_hook(lambda _, __, output: output * float(weight[0, 0]))


def by_decorated_list(mlp):
    kept = [mlp.forward]
    mlp.forward = functools.lru_cache(maxsize=0)(torch.no_grad()(lambda states: 0.5 * kept[0](states)))


@pytest.mark.parametrize("patch", [by_attribute_of_an_object, by_weak_reference, by_array_of_numpy, by_decorated_list])
def test_a_copy_that_would_compute_with_the_original_is_refused(patch):
    original = small_llama()
    patch(original.model.layers[0].mlp)
    before = {name: weight.clone() for name, weight in original.state_dict().items()}
    with pytest.raises(ModelError, match=r"with weights of the original from model\.layers\.0\.mlp on"):
        load_model(original, tiny.tokenizer())
    assert all(torch.equal(weight, before[name]) for name, weight in original.state_dict().items())


def when_late(mlp):
    weight = weakref.ref(mlp.down_proj.weight)
    mlp.register_forward_hook(
        lambda _, __, output: output + (torch.arange(output.shape[1]) > 40)[:, None] * weight().sum()
    )


def where_a_norm_removes_it(mlp):
    weight = weakref.ref(mlp.down_proj.weight)
    mlp.register_forward_pre_hook(lambda _, given: given[0] * 0.0)
    mlp.down_proj.register_forward_hook(lambda _, __, output: output + weight().sum())
    mlp.register_forward_hook(lambda _, __, output: output * 0.0)


OTHER_LOADS = {
    "states": (transformers.LlamaModel, {}),
    "class": (transformers.LlamaForSequenceClassification, {}),
    "another dtype": (transformers.LlamaForCausalLM, {"dtype": "float64"}),
    "its own dtype": (transformers.LlamaForCausalLM, {"dtype": "float32"}),
}


@pytest.mark.parametrize("patch", [by_array_of_numpy, when_late, where_a_norm_removes_it])
@pytest.mark.parametrize(("kind", "settings"), every_second(OTHER_LOADS.values()), ids=OTHER_LOADS)
def test_a_copy_whose_logits_do_not_show_that_it_computes_with_the_original_is_refused(kind, settings, patch):
    config = small_llama().config
    config.pad_token_id = 0
    original = kind(config).eval()
    load_model(original, tiny.tokenizer(), **settings)
    patch(original.base_model.layers[0].mlp)
    with pytest.raises(ModelError, match=r"computes with weights of the original from .*layers\.0\.mlp"):
        load_model(original, tiny.tokenizer(), **settings)


def test_a_copy_that_would_compute_with_a_buffer_of_the_original_is_refused():
    original = small_llama()
    original.model.register_buffer("direction", torch.ones(32))
    direction = weakref.ref(original.model.direction)
    original.model.layers[1].register_forward_hook(lambda _, __, output: output + direction())
    with pytest.raises(ModelError, match=r"computes with weights of the original from model\.layers\.1 on"):
        load_model(original, tiny.tokenizer())
    assert torch.equal(original.model.direction, torch.ones(32))


def by_function_of_a_library(original, patch):
    weight = original.model.layers[0].mlp.down_proj.weight

    def scaled(*args, **kwargs):
        output, pattern = sdpa_attention_forward(*args, **kwargs)
        return output * (1 + weight[0, 0].abs()), pattern

    patch.setitem(ALL_ATTENTION_FUNCTIONS._global_mapping, "sdpa", scaled)


def by_hook_around_all_modules(original, patch):
    weight = original.model.layers[0].mlp.down_proj.weight

    def scaled(module, args, output):
        return output * (1 + weight[0, 0].abs()) if isinstance(module, torch.nn.Linear) else None

    patch.setitem(torch.nn.modules.module._global_forward_hooks, -1, scaled)


def by_function_of_autograd(original, patch):
    weight = original.model.layers[0].mlp.down_proj.weight

    class Scaled(torch.autograd.Function):
        @staticmethod
        def forward(ctx, states):
            return torch.relu(states) * (1 + weight[0, 0].abs())

    original.model.layers[0].mlp.act_fn = transformers.activations.GELUActivation()
    original.model.layers[0].mlp.act_fn.act = Scaled.apply


def by_plain_tensor(original, patch):
    original.settings = {"strength": [torch.ones(1)]}
    model = weakref.ref(original)
    original.model.layers[0].register_forward_hook(lambda _, __, output: output * model().settings["strength"][0])


def by_plain_array(original, patch):
    original.strength = np.ones(1)
    model = weakref.ref(original)
    original.model.layers[0].register_forward_hook(lambda _, __, output: output * float(model().strength[0]))


class CopiedAsItself(torch.nn.Linear):
    def __deepcopy__(self, copies):
        return self


def by_module_that_is_its_own_copy(original, patch):
    layer = original.model.layers[0]
    layer.extra = CopiedAsItself(32, 32)
    layer.register_forward_hook(lambda module, _, output: output + module.extra(output))


def by_number_that_divides(original, patch):
    """Whose copy fails, and does not give another output, when the weight is zero."""
    weight = original.model.layers[0].mlp.down_proj.weight.detach().numpy()
    original.model.layers[0].register_forward_hook(lambda _, __, output: output * (1 / weight[0, 0].item()))


@pytest.mark.parametrize(
    "change",
    [
        by_function_of_a_library,
        by_hook_around_all_modules,
        by_function_of_autograd,
        by_plain_tensor,
        by_plain_array,
        by_module_that_is_its_own_copy,
        by_number_that_divides,
    ],
)
def test_a_copy_is_refused_wherever_the_code_is_that_holds_tensors_of_the_original(change, monkeypatch):
    original = small_llama()
    change(original, monkeypatch)
    with pytest.raises(ModelError, match=r"computes with weights of the original from model\.layers\.0"):
        load_model(original, tiny.tokenizer())


@pytest.mark.parametrize("held", ["weight", "half of a weight", "other dtype", "beside the weights"])
def test_weights_in_one_buffer_are_copied_each_for_itself(held):
    """A hook may hold a view of any of them, or of numbers in the buffer that are no weight."""
    original, start = small_llama(), 0
    buffer = torch.cat([weight.data.flatten() for weight in original.parameters()] + [torch.ones(32)])
    for weight in original.parameters():
        weight.data = buffer[start : start + weight.numel()].view(weight.shape)
        start += weight.numel()
    mlp = original.model.layers[1].mlp
    row = mlp.down_proj.weight.detach()[1]
    views = {
        "weight": row,
        "half of a weight": mlp.down_proj.weight.detach()[:, 1],
        "other dtype": row.view(torch.int32),
        "beside the weights": buffer[-32:],
    }
    view = views[held]
    mlp.register_forward_hook(lambda _, __, output, view=view: output + view.view(torch.float32)[:32].sum())
    tokens = torch.arange(3, 35)[None]
    with torch.no_grad():
        expected = original(tokens).logits
    model = load_model(original, tiny.tokenizer())
    torch.testing.assert_close(model.full(tokens), expected)
    buffer[:-32].zero_()
    torch.testing.assert_close(model.full(tokens), expected)


def test_a_weight_in_memory_that_cannot_be_written_may_have_hooks_beside_it(tmp_path):
    """To write it would end the process."""
    original = small_llama()
    weight = original.model.layers[0].mlp.down_proj.weight
    np.save(tmp_path / "weight.npy", weight.detach().numpy())
    weight.data = torch.from_numpy(np.load(tmp_path / "weight.npy", mmap_mode="r"))
    original.model.layers[0].mlp.register_forward_hook(lambda _, __, output: 2 * output)
    before = weight.clone()
    load_model(original, tiny.tokenizer())
    assert torch.equal(weight, before)
    by_weak_reference(original.model.layers[0].mlp)
    with pytest.raises(ModelError, match=r"with weights of the original from model\.layers\.0\.mlp on"):
        load_model(original, tiny.tokenizer())


@pytest.mark.parametrize("shared_with", ["file", "processes"])
def test_the_check_of_a_copy_writes_nothing_that_others_see(shared_with, tmp_path):
    """Else a weight file would hold zeros for a moment, or for ever if the process ends."""
    original = small_llama()
    mlp = original.model.layers[0].mlp
    weight = mlp.down_proj.weight
    if shared_with == "file":
        np.save(tmp_path / "weight.npy", weight.detach().numpy())
        weight.data = torch.from_numpy(np.load(tmp_path / "weight.npy", mmap_mode="r+"))
    else:
        weight.data.share_memory_()
    elsewhere, seen = Profiler(weight.data), []  # an object, since a copied hook has views of the copy
    expected = weight.data.clone()
    mlp.register_forward_hook(lambda *_: seen.append(torch.equal(elsewhere.backend, expected)))
    mlp.register_forward_hook(lambda _, __, output: 2 * output)
    load_model(original, tiny.tokenizer())
    assert all(seen)
    assert torch.equal(weight, expected)
    assert weight.data_ptr() == elsewhere.backend.data_ptr()
    by_weak_reference(mlp)
    with pytest.raises(ModelError, match=r"with weights of the original from model\.layers\.0\.mlp on"):
        load_model(original, tiny.tokenizer())


def scale_of_a_weight(mlp, _, output):
    return output * mlp.down_proj.weight.scale


def gradient_of_a_weight(mlp, _, output):
    return output * (1 + mlp.down_proj.weight.grad[0, 0])


@pytest.mark.parametrize("dtype", [None, "float64"])
@pytest.mark.parametrize("hook", [scale_of_a_weight, gradient_of_a_weight])
def test_a_copy_that_lost_what_hooks_read_is_told_from_a_model_that_fails(hook, dtype):
    original = small_llama()
    mlp = original.model.layers[0].mlp
    mlp.down_proj.weight.scale = 3.0
    tokens = torch.arange(3, 20)[None]
    original(tokens, labels=tokens).loss.backward()
    mlp.register_forward_hook(hook)
    original(tokens)
    with pytest.raises(ModelError, match=r"it runs, but a copy of it fails on sample tokens \(.*gradient of a weight"):
        load_model(original, tiny.tokenizer(), **({"dtype": dtype} if dtype else {}))
    mlp.register_forward_hook(lambda *_: [][0])
    with pytest.raises(ModelError, match=r"its forward pass fails on sample tokens \(IndexError"):
        load_model(original, tiny.tokenizer(), **({"dtype": dtype} if dtype else {}))


def test_blocks_that_share_keys_and_values_are_refused_for_that():
    """The copy of a block has the number of the original, under which both keep keys and values."""
    model, cutter = small_llama(), tiny.tokenizer()
    model.model.layers.append(copy.deepcopy(model.model.layers[0]))
    model.config.num_hidden_layers = 3
    with pytest.raises(ModelError, match=r"with its cache of keys and values than without, .* the same layer_idx"):
        load_model(model, cutter)
    assert model.config.use_cache
    tokens = torch.arange(20)[None]
    with torch.no_grad():
        expected = model(tokens, use_cache=False).logits
    model.config.use_cache = False
    torch.testing.assert_close(load_model(model, cutter).full(tokens), expected)
    model.config.use_cache = True
    model.model.layers[2].self_attn.layer_idx = 2
    torch.testing.assert_close(load_model(model, cutter).full(tokens), expected)


def by_list_of_functions(mlp):
    forward = mlp.forward
    mlp.steps = [lambda states: 0.5 * forward(states)]
    mlp.forward = lambda states, mlp=mlp: mlp.steps[0](states)


@pytest.mark.parametrize("patch", [by_default, by_keyword, by_list, by_dictionary, by_view, by_list_of_functions])
def test_a_loaded_model_computes_with_nothing_of_the_original(patch):
    """Else training that goes on would change the base, and both would be equal."""
    original = small_llama()
    patch(original.model.layers[0].mlp)
    model = load_model(original, tiny.tokenizer())
    tokens = torch.arange(3, 35)[None]
    before = model.full(tokens).clone()
    with torch.no_grad():
        for weight in original.model.layers[0].mlp.parameters():
            weight.mul_(-2)
    assert torch.equal(model.full(tokens), before)
    assert not torch.allclose(load_model(original, tiny.tokenizer()).full(tokens), before), "control"


def test_a_global_that_is_part_of_the_model_is_refused(monkeypatch):
    original = small_llama()
    mlp = original.model.layers[0].mlp
    monkeypatch.setattr(sys.modules[__name__], "KEPT_FORWARD", mlp.forward, raising=False)
    mlp.forward = lambda states: 0.5 * KEPT_FORWARD(states)  # noqa: F821
    with pytest.raises(ModelError, match=r"reads the global KEPT_FORWARD.*make it a default argument"):
        load_model(original, tiny.tokenizer())


class Profiler:
    """Stands in for the backend of a tokenizer."""

    def __init__(self, backend):
        self.__dict__["backend"] = backend

    def __getattr__(self, name):
        return getattr(self.backend, name)


def by_partial(tokenizer):
    tokenizer._encode_plus = functools.partial(lambda own, *args, **kwargs: None, tokenizer)


def by_object(tokenizer):
    tokenizer._tokenizer = Profiler(tokenizer._tokenizer)


def by_method_of_another(tokenizer):
    tokenizer._encode_plus = Profiler(tokenizer).__getattr__


def by_decorated_method(tokenizer):
    encode = tokenizer._encode_plus
    tokenizer._encode_plus = torch.no_grad()(lambda *args, **kwargs: encode(*args, **kwargs))


@pytest.mark.parametrize("patch", [by_partial, by_object, by_method_of_another, by_decorated_method])
def test_a_tokenizer_that_calls_own_code_is_known_to(patch):
    """Else its tokens are cached, and taken for those of the tokenizer as it was."""
    tokenizer = copy.deepcopy(tiny.tokenizer())
    assert not runs_code_of_user(tokenizer), "control"
    patch(tokenizer)
    assert runs_code_of_user(tokenizer)


def test_a_loaded_model_keeps_the_tokenizer_that_it_was_given():
    tokenizer = copy.deepcopy(tiny.tokenizer())
    model = load_model(small_llama(), tokenizer)
    before = model.encoded(TEXTS[0])
    tokenizer.backend_tokenizer.model.dropout = 0.9
    assert all(model.encoded(TEXTS[0]) == before for _ in range(5))
    assert tokenizer.backend_tokenizer.model.dropout is not None, "control"


def test_a_tokenizer_with_a_method_of_its_own_is_another_one(tmp_path):
    class Capitals(type(tiny.tokenizer())):
        def __call__(self, text, *args, **kwargs):
            capitals = text.upper() if isinstance(text, str) else [entry.upper() for entry in text]
            return super().__call__(capitals, *args, **kwargs)

    plain = tiny.tokenizer()
    capitals = copy.deepcopy(plain)
    capitals.__class__ = Capitals
    assert tokenizer_fingerprint(plain) != tokenizer_fingerprint(capitals)
    assert tokenizer_fingerprint(plain) == tokenizer_fingerprint(tiny.tokenizer())


def test_a_list_that_a_hook_fills_is_no_part_of_the_key():
    model, rows = small_llama(), []
    model.model.layers[0].register_forward_hook(lambda _, __, output: rows.append(output[0, 0]))
    paths = {config_of(load_model(model, tiny.tokenizer()), SAME_CALL).digest for _ in range(2)}
    assert rows
    assert len(paths) == 1


class Counter:
    """Counts the calls of a hook and holds its factor."""

    def __init__(self, factor):
        self.calls, self.factor = 0, factor

    def scaled(self, late):
        self.calls += 1
        return self.factor * late


def counts_in_a_dictionary(factor):
    state = {"calls": 0, "factor": factor}

    def scaled(late):
        state["calls"] += 1
        return state["factor"] * late

    return scaled


def counts_in_a_list(factor):
    state = [0, factor]

    def scaled(late):
        state[0] += 1
        return state[1] * late

    return scaled


def keeps_rows_beside_a_factor(factor):
    rows = []

    def scaled(late):
        rows.append(late.shape)
        return factor * late

    return scaled


HOLDERS = [lambda factor: Counter(factor).scaled, counts_in_a_dictionary, counts_in_a_list, keeps_rows_beside_a_factor]


@pytest.mark.parametrize(("holder", "times"), [(None, 2), (counts_in_a_list, 3)])
def test_only_a_model_that_a_pass_changes_is_described_once_more(holder, times, monkeypatch):
    described = []

    def counted(module, description):
        described.append(module)
        return described_traits(module, description)

    model = small_llama()
    if holder:
        scaled = holder(2.0)
        model.model.layers[0].register_forward_hook(lambda _, __, output: scaled(output))
    monkeypatch.setattr(identity, "described_traits", counted)
    identity_of(load_model(model, tiny.tokenizer()))
    assert len(described) == times


@pytest.mark.ci_slow
@pytest.mark.parametrize("holder", HOLDERS)
def test_a_factor_beside_a_count_of_calls_is_part_of_the_key(holder):
    def path(factor):
        model, scaled = small_llama(), holder(factor)
        model.model.layers[0].register_forward_hook(
            lambda _, __, output: torch.cat([output[:, :10_000], scaled(output[:, 10_000:])], 1)
        )
        frozen = load_model(model, tiny.tokenizer())
        first, second = (config_of(frozen, SAME_CALL).digest for _ in range(2))
        assert first == second, "the count alone makes no other model"
        return first

    paths = [path(factor) for factor in (2.0, 2.0, 5.0)]
    assert paths[0] == paths[1]
    assert paths[1] != paths[2]


def test_a_result_in_memory_is_in_no_folder_until_it_is_saved(tmp_path):
    result = thinkalike.compare(PAIR[0], texts=[{"text": text} for text in TEXTS], **FEW)
    assert (result.is_kept, "not kept" in repr(result)) == (False, True)
    with pytest.raises(StoreError, match=r"^this result is in memory and has no folder; save it by result.save"):
        _ = result.folder
    saved = result.save(tmp_path / "mine")
    opened = open_result(tmp_path / "mine")
    assert (opened.kind, opened.key, opened.provenance) == (result.kind, result.key, result.provenance)
    assert opened.headlines == saved.headlines == result.headlines
    assert opened.config == result.config
    pd.testing.assert_frame_equal(opened.table, result.table, check_exact=True)
    assert opened.summary == result.summary


@pytest.mark.ci_slow
def test_layers_and_recordings_may_be_called_by_numbers(tmp_path):
    """Modules within nn.Sequential are called 0.1 and 0.10, and checkpoints by their steps."""
    drawn = np.random.default_rng(0).normal(size=(6, 40, 3))
    layers = dict(zip(("0.1", "0.2", "0.10"), drawn, strict=False))
    result = thinkalike.compare(layers, dict(zip(layers, drawn[3:], strict=True)))
    assert set(result.details["source_layer"]) == set(layers)
    paths = [tmp_path / name for name in ("1.10.npy", "1.1.npy")]
    for path, states in zip(paths, drawn, strict=False):
        np.save(path, states)
    stored = thinkalike.compare(*paths, store=tmp_path / "store")
    assert stored.summary.startswith("CKA of 1.10 and 1.1 is ")
    assert set(stored.details["target"]) == {"1.10", "1.1"}


@pytest.mark.ci_slow
def test_stitches_in_memory_are_those_of_the_saved_result(tmp_path):
    result = thinkalike.stitch(PAIR[0], layers=[1], kind="least_squares", steps=1, evaluation_tokens=2048)
    saved = result.save(tmp_path / "mine")
    here, there = (thinkalike.load_stitch(each)[1] for each in (result, saved))
    assert torch.equal(here.weight, there.weight)
    assert saved.files == result.files


@pytest.mark.ci_slow
def test_a_figure_goes_into_axes_of_the_user():
    import matplotlib.pyplot as plt

    figure, (left, right) = plt.subplots(1, 2)
    panels = thinkalike.compare(*PAIR, texts=TEXTS, **FEW).plot(ax=right)
    assert len(panels) == 4, "that on the left, and the matrices across and within both models"
    assert all(axes.figure is figure for axes in panels)
    assert left.get_images() == []
    assert thinkalike.rsa(["gpt2-mini"], stimuli=FRAME).plot(ax=left)[0].figure is figure
    plt.close("all")


def likeness(x, y):
    return float(torch.cosine_similarity(x.mean(0), y.mean(0), dim=0)) if x.shape[1] == y.shape[1] else 0.0


def test_a_function_of_your_own_is_a_measure():
    result = thinkalike.compare(*PAIR, measure=likeness, texts=TEXTS, **FEW)
    assert result.kind == "likeness"
    assert result.instrument.name == "likeness"
    within = result.table[result.table["source"] == result.table["target"]]
    same = within[within["source_layer"] == within["target_layer"]]["value"]
    assert same.to_numpy() == pytest.approx(1.0)


def test_a_function_may_change_what_it_gets_in_place():
    def in_place(x, y):
        return float(x.abs_().mean() + y.pow_(2).mean())

    def out_of_place(x, y):
        return float(x.abs().mean() + y.pow(2).mean())

    changing = thinkalike.compare(STATES, OTHERS, measure=in_place)
    leaving = thinkalike.compare(STATES, OTHERS, measure=out_of_place)
    pd.testing.assert_frame_equal(changing.details, leaving.details)


@pytest.mark.parametrize("measure", ["cka", "mutual_knn"])
def test_files_of_one_name_in_two_folders_are_two_models(measure, tmp_path):
    arrays = {"a": STATES, "b": OTHERS}
    paths = []
    for folder, states in arrays.items():
        (tmp_path / folder).mkdir()
        paths.append(tmp_path / folder / "acts.npz")
        np.savez(paths[-1], **{folder: np.asarray(states)})
    result = thinkalike.compare(*paths, measure=measure)
    assert set(result.details["source"]) | set(result.details["target"]) == {"a/acts.npz", "b/acts.npz"}

    itself = thinkalike.compare(paths[0], str(paths[0]), measure=measure)
    assert set(itself.details["source"]) == {"acts"}


def test_arrays_beside_a_file_that_is_called_like_them(tmp_path):
    np.save(tmp_path / "arrays.npy", np.asarray(STATES))
    result = thinkalike.compare(tmp_path / "arrays.npy", OTHERS)
    assert result.details["source"].nunique() == 2


class _OfMyLibrary(Exception):
    """An error whose message has several lines."""


ERRORS = [KeyError("no such layer"), ValueError("first line\nsecond"), ZeroDivisionError(), IndexError("7"),
          RuntimeError("mat1 and mat2"), AssertionError(), _OfMyLibrary("a\tb\rc\x1b[31m"),
          UnicodeDecodeError("utf-8", b"a", 0, 1, "x")]  # fmt: skip


@pytest.mark.parametrize(
    ("error", "is_of_models"),
    [
        *((error, False) for error in ERRORS),
        (ERRORS[0], True),
        pytest.param(ERRORS[-2], True, marks=pytest.mark.ci_slow),
    ],
)
def test_what_a_measure_of_ones_own_raises_is_said_in_one_line(error, is_of_models):
    """States of models and arrays go to a measure in the same way."""

    def fragile(x, y):
        raise error

    sides = PAIR if is_of_models else (STATES, OTHERS)
    more = {"texts": TEXTS, **FEW} if is_of_models else {}
    with pytest.raises(PluginError, match=f"^measure fragile raised {type(error).__name__}") as caught:
        thinkalike.compare(*sides, measure=fragile, **more)
    assert str(caught.value).isprintable()
    assert caught.value.__cause__ is error
    assert [frame.name for frame in caught.traceback][-1] != "fragile"
    assert traceback.extract_tb(error.__traceback__)[-1].name == "fragile", "its own traceback is kept"


def test_no_memory_is_no_fault_of_a_measure():
    def greedy(x, y):
        raise torch.OutOfMemoryError("CUDA out of memory")

    with pytest.raises((ResourceError, torch.OutOfMemoryError)):
        thinkalike.compare(STATES, OTHERS, measure=greedy)


def test_an_error_of_a_measure_that_says_what_is_wrong_stays_as_it_is():
    def strict(x, y):
        raise DataError("give states of one width")

    with pytest.raises(DataError, match=r"^give states of one width$"):
        thinkalike.compare(STATES, OTHERS, measure=strict)


WORDS_OF_TEN = ["dog", "cat", "house", "tree", "river", "sun", "book", "bird", "road", "door"] * 4
TEN_WORDS = pd.DataFrame(
    {
        "text": [f"The {word} number {place} runs" for place, word in enumerate(WORDS_OF_TEN)],
        "word": WORDS_OF_TEN,
        "seventh": np.arange(len(WORDS_OF_TEN)) % 7,
    }
)


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    ("function", "keyword"),
    [
        ("compare", "layers"),
        ("mlem", "alphas"),
        ("stitch", "lr_multiples"),
        ("trajectory", "steps"),
        ("mlem", "features"),
    ],
)
@pytest.mark.parametrize("values", [range(2**40), np.broadcast_to(1, 2**40), torch.zeros(1).expand(2**20, 2**20)])
def test_a_list_without_end_is_refused_by_its_keyword(function, keyword, values):
    with pytest.raises(ConfigError, match=f"^{keyword} holds 1,099,511,627,776 values: give at most 1,000,000$"):
        inspect.unwrap(getattr(thinkalike, function))("gelu-3l-mini", **{keyword: values})


@pytest.mark.timeout(60)
@pytest.mark.parametrize("shape", [(3, 2**40), (2**40, 3), (2**20, 2**20), (2**20, 3, 2**20)])
@pytest.mark.parametrize("as_numpy", [False, True])
def test_states_that_memory_cannot_hold_are_refused_by_name(shape, as_numpy):
    huge = np.broadcast_to(0.0, shape) if as_numpy else torch.zeros(1).expand(shape)
    calls = {
        "source": lambda: thinkalike.compare(huge, OTHERS),
        r"target\['a'\]": lambda: thinkalike.compare(STATES, {"a": huge}),
        r"models\[0\]": lambda: thinkalike.rsa([huge, STATES], stimuli=FRAME),
        r"others\[0\]": lambda: thinkalike.rsa([STATES], [huge]),
        "model": lambda: thinkalike.mlem(huge, stimuli=FRAME),
    }
    for name, call in calls.items():
        with pytest.raises(
            (ConfigError, ValueError), match=f"^{name} has shape .* which takes .* give fewer rows or columns$"
        ):
            call()


def _names_in(provenance):
    return [model["name"].removesuffix(".safetensors") for model in provenance["models"]]


OTHER_MEASURES = [
    pytest.param({"measure": "mutual_knn", "neighbours": 3}, marks=pytest.mark.ci_slow),
    pytest.param({"measure": "distance_correlation"}, marks=pytest.mark.ci_slow),
]


@pytest.mark.parametrize("more", [{}, *OTHER_MEASURES])
@pytest.mark.parametrize("is_loaded", [False, True])
def test_sides_are_named_in_the_order_in_which_they_are_given(more, is_loaded):
    states = np.random.default_rng(0).normal(size=(len(TEN_WORDS), 6))
    model = load_model("gelu-3l-mini") if is_loaded else "gelu-3l-mini"
    first = thinkalike.compare(model, states, stimuli=TEN_WORDS, **more)
    second = thinkalike.compare(states, model, stimuli=TEN_WORDS, **more)
    assert first.table[["source", "target"]].iloc[0].tolist() == ["gelu-3l-mini", "arrays"]
    assert second.table[["source", "target"]].iloc[0].tolist() == ["arrays", "gelu-3l-mini"]
    assert _names_in(first.provenance) == ["gelu-3l-mini", "arrays"]
    assert _names_in(second.provenance) == ["arrays", "gelu-3l-mini"]
    assert first.arrays["value"].shape == (3, 1)
    assert first.arrays["value"] == pytest.approx(second.arrays["value"].T)
    assert first.key != second.key


@pytest.mark.ci_slow
def test_profiles_and_matrices_of_distances_are_in_the_order_in_which_sides_are_given():
    states = np.random.default_rng(0).normal(size=(len(FRAME), 5))
    for sides in ([states, "gelu-3l-mini"], ["gelu-3l-mini", states]):
        names = ["gelu-3l-mini" if side is not states else "arrays" for side in sides]
        assert _names_in(thinkalike.rsa(sides, stimuli=FRAME).provenance) == names
        assert list(dict.fromkeys(thinkalike.mlem(*sides, stimuli=FRAME, **PROFILES).details["model"])) == names


def test_the_name_of_a_measure_in_a_file_is_the_word_of_a_person():
    Path("half.py").write_text("def half(x, y):\n    return 0.5\n")
    assert thinkalike.compare(STATES, OTHERS, measure="half.py:half").details["value"].tolist()[-1] == 0.5


@pytest.mark.ci_slow
def test_fields_of_records_that_are_not_read_may_hold_anything():
    records = [{"text": text, "group": np.int64(place), "raw": object()} for place, text in enumerate(TEXTS)]
    records[0]["raw"] = records[0]
    found, expected = (thinkalike.compare(*PAIR, texts=texts, **FEW).arrays["value"] for texts in (records, TEXTS))
    assert np.array_equal(found, expected)
    assert len(thinkalike.compare(PAIR[0], texts=records, group="group", **FEW).table)


@pytest.mark.ci_slow
def test_arrays_take_the_place_of_models():
    states = {"low": np.random.default_rng(0).normal(size=(len(FRAME), 5)), "high": torch.randn(len(FRAME), 4)}
    table = thinkalike.rsa([states, "gpt2-mini"], stimuli=FRAME).table
    assert {"low", "high"} < set(table["source_layer"])
    assert set(table["source"]) == {"arrays", "gpt2-mini"}
    found = thinkalike.mlem(states["low"], stimuli=FRAME, **PROFILES).table
    assert set(found["feature"]) == {"many", "kind"}
    assert thinkalike.rsa([states["low"]]).shape == (1, 1)
    x, y = {"model.layers.0": states["low"]}, {"model.layers.1": states["high"]}
    assert thinkalike.compare(x, y).table["value"].iloc[0] < 0.9
    turned = {"model.layers.1": 3 * states["low"] @ np.linalg.qr(np.random.default_rng(1).normal(size=(5, 5)))[0]}
    assert thinkalike.compare(x, turned).table["value"].iloc[0] == pytest.approx(1.0)


def test_states_that_a_hook_of_transformers_wrote_are_those_of_the_model():
    model, rows = transformers.AutoModelForCausalLM.from_pretrained(ASSETS / "gpt2-mini", dtype=torch.float32), []
    tokenizer, table = load_model("gpt2-mini").tokenizer, FRAME.drop(columns="word")
    mlp = model.transformer.h[3].mlp
    mlp.register_forward_hook(lambda _, __, out: rows.append(out[0, -2].detach()))  # before [SEP]
    for text in table["text"]:
        model(**tokenizer(text, return_tensors="pt"))
    save_file({"model.layers.3": torch.stack(rows)}, "own.safetensors", metadata={"ids": "order"})
    likeness = thinkalike.compare("own.safetensors", "gpt2-mini", stimuli=table, site="mlp_out").arrays["value"][0]
    assert likeness[3] == pytest.approx(1.0, abs=1e-5)
    assert np.delete(likeness, 3).max() < 0.999


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: thinkalike.stitch(PAIR[0], steps=-1), "^steps=-1 must be"),
        (lambda: thinkalike.stitch(PAIR[0], texts=[{"body": "a"}]), "^texts line 1 has no text in field text"),
        (lambda: thinkalike.stitch("states.npz"), "^stitch runs models, which arrays of states cannot re"),
        (lambda: thinkalike.compare(PAIR[0], neighbours=3), "^neighbours is no setting of cka"),
        (lambda: thinkalike.compare(PAIR[0], stimuli=FRAME), "^stimuli= has no effect on cka"),
        (lambda: thinkalike.compare(np.eye(9), "gpt2-mini"), "^stimuli is missing: a table that has a row for each"),
        (lambda: thinkalike.compare(np.eye(9), {"0": np.eye(8)}), "^target: 0 is .* with a row for each of the 9 ids"),
        (lambda: thinkalike.rsa([np.eye(9)], stimuli=FRAME), r"^models\[0\] is torch.float64 of shape \(9, 9\)"),
        (lambda: thinkalike.compare(*PAIR, measure="loss"), "^target= is not read by loss"),
        (lambda: thinkalike.compare(PAIR[0], texts="The dog ran."), "^texts is one string, and neither a data set n"),
        (lambda: thinkalike.compare(PAIR[0], texts=iter([None])), "^texts holds a NoneType: give strings, or records"),
        (lambda: thinkalike.rsa([None], stimuli=FRAME), r"^models\[0\] is NoneType: give a name, \(model, tokenizer"),
        (lambda: thinkalike.compare(PAIR[0], texts={"train": TEXTS}), "^texts has the parts train: give one"),
        (lambda: thinkalike.compare(PAIR[0], measure=likeness, store="x"), "^measure is a function in memory"),
        (lambda: thinkalike.rsa(["gpt2-mini"]), "^rsa of models needs stimuli"),
        (lambda: thinkalike.mlem([STATES, STATES], STATES, stimuli=FRAME), "^target= has no effect beside a list"),
        (lambda: thinkalike.compare(*PAIR, texts=TEXTS, field="body"), "^field=body has no effect on strings"),
        (lambda: thinkalike.compare(*PAIR, texts=[{"text": b"a"}]), r"^texts\[0\]\['text'\] is bytes, and neither"),
        (lambda: thinkalike.compare(*PAIR, texts=[{"text": {}}]), r"^texts\[0\]\['text'\] is dict, and neither"),
        (lambda: thinkalike.compare(*PAIR, texts=[{"text": "a", (1, 2): 3}]), r"^texts\[0\] has the key \(1, 2\)"),
        (lambda: compare(*PAIR, texts=TEXTS, field=["text"]), r"^field=\['text'\] must be text"),
        (lambda: compare(*PAIR, texts=TEXTS, field={"a": 1}), r"^field=\{'a': 1\} must be text"),
        (lambda: compare(*PAIR, texts=TEXTS, group=pd.Series([0, 1])), r"^group=\[0, 1\] must be text"),
        (lambda: thinkalike.compare("nope", PAIR[0]), '^source="nope" is not known'),
        (lambda: thinkalike.compare(PAIR[0], "nope"), '^target="nope" is not known'),
        (lambda: thinkalike.diff("nope", PAIR[0]), '^base="nope" is not known'),
        (lambda: thinkalike.diff(PAIR[0], "nope"), '^changed="nope" is not known'),
        (lambda: compare(PAIR[0], layers=0), "^layers=0 must be a valid list or be 'same' or 'all'$"),
        (lambda: compare(PAIR[0], layers=[]), "^layers=.* must have at least 1 item, not 0$"),
        (lambda: compare(PAIR[0], site="z", head="x"), "^head=.x. must be a valid integer or be 'all'$"),
        (lambda: thinkalike.diff(*PAIR, other="nope"), '^other="nope" is not known'),
        (lambda: thinkalike.diff(*PAIR, margin={"kI": 1.0}), "^margin=.kI. is not known; there is"),
        (lambda: run(None), "^job is NoneType: give one"),
        (lambda: run("cka"), "^job is str: give one"),
        (lambda: run(thinkalike.Job), "^job is type: give one"),
        (lambda: thinkalike.rsa([STATES, "nope"], stimuli=FRAME), r'^models\[1\]="nope" is not known'),
        (lambda: thinkalike.stitch(PAIR[0], steps=0), "^steps=0 must be at least 1 for a linear stitch"),
        (lambda: thinkalike.rsa([*PAIR, "gpt2-mini"], stimuli=FRAME), "^rsa compares two models at most, and not 3"),
    ],
)
def test_errors_name_the_argument(call, said):
    with pytest.raises((ConfigError, DataError), match=said):
        call()


def test_the_home_of_an_unknown_user_is_a_folder_that_is_not_there():
    with pytest.raises(StoreError, match="~no-such-user/x holds no finished result"):
        thinkalike.open_result("~no-such-user/x")


compare = inspect.unwrap(thinkalike.compare)  # users have no checks of types before it
run = inspect.unwrap(thinkalike.run)
STATES, OTHERS = (np.random.default_rng(seed).normal(size=(12, 4)) for seed in range(2))
MASKED = np.ma.masked_less(STATES, -1)


class Labelled:
    """An array of another library, which NumPy can read."""

    def __array__(self, dtype=None, copy=None):
        return STATES


def wrong_sides():
    """What is no array of states, and the words that an error begins with."""
    texts = pd.DataFrame({"a": ["x"] * 12, "b": range(12)})
    return {
        "masked": (MASKED, "source lacks a value at"),
        "masked rows": ({"low": list(MASKED)}, r"source\['low'\]\[\d+\] lacks a value"),
        "text": (texts, "source holds"),
        "objects": (np.array([["a", 1]] * 12, dtype=object), "source holds"),
        "complex": (torch.tensor(STATES) * 1j, "source is a tensor that is complex"),
        "sparse": (torch.tensor(STATES).to_sparse(), "source is a tensor that is sparse"),
        "beyond float64": (torch.arange(48).view(12, 4) + 2**60, "source holds whole numbers beyond 2.53"),
        "beyond float64, unsigned": (np.full((12, 4), 2**60 + 1, np.uint64), "source holds whole numbers beyond 2.53"),
        "beyond int64": (np.full((12, 4), 2**63 + 1, np.uint64), "source holds whole numbers beyond 2.63"),
        "four bits": (torch.ones(12, 4, dtype=torch.uint8).view(torch.uint4), "source is a tensor that is quantised"),
        "meta": (torch.tensor(STATES, device="meta"), "source is a tensor that is on the device meta"),
        "ragged": ({"low": [[1.0, 2.0], [3.0]] * 6}, r"source\['low'\] has rows of unequal lengths"),
        "missing": (STATES.astype(float) * np.nan, "source lacks a value"),
        "one column": (STATES[:, 0], r"source has shape \(12,\)"),
        "one number": (np.float64(1), r"source has shape \(\)"),
        "no rows": (STATES[:0], r"source has shape \(0, 4\)"),
        "no layers": ({}, "source has no layers"),
        "a layer without a name": ({None: STATES}, r"source\[None\]"),
        "two layers of one name": ({1: STATES, "1": OTHERS}, r"source\['1'\]"),
        "a name of the file's": ({"ids": STATES}, r"source\['ids'\]"),
        "a name of the runs": ({"runs": STATES}, r"source\['runs'\]: a layer has a name"),
        "a name of metadata": ({"__metadata__": STATES}, r"source\['__metadata__'\]: a layer has a name"),
        "names cut at NUL": ({"a\0x": STATES, "a\0y": OTHERS}, r"source\['a.x00x'\]: the name of a layer"),
        "half a surrogate pair": ({"\ud800": STATES}, r"source\['.ud800'\]: the name of a layer"),
        "a very long name": ({"n" * 70000: STATES}, r"source\['n*'\]: the name of a layer"),
        "a name too long for a file": ("n" * 300 + ".npz", "source=.* has a name of more than 255 bytes"),
        "a path of half a pair": ("\ud800.npz", "source='.ud800.npz' has half of a surrogate pair"),
        "a name with NUL": ("a\0b", "source='a.x00b' must be a path"),
        "True": (True, "source is bool"),
    }


@pytest.mark.parametrize("what", wrong_sides())
def test_what_is_no_array_of_states_is_refused_by_name(what):
    side, said = wrong_sides()[what]
    with pytest.raises(ConfigError, match=f"^{said}"):
        compare(side, OTHERS)


@pytest.mark.parametrize("names", [("a", "a.npy"), ("allow_pickle", "file"), ("a/b", "arr_0")])
def test_layers_of_any_name_keep_their_states(names):
    """Names of layers must mean nothing to the file that holds them meanwhile."""
    layers = dict(zip(names, (STATES, OTHERS), strict=True))
    found = thinkalike.compare(layers, {"b": OTHERS}).table
    across = found[found["target_layer"] == "b"].set_index("source_layer")["value"]
    plain = thinkalike.compare({"1": STATES, "2": OTHERS}, {"b": OTHERS}).table
    expected = plain[plain["target_layer"] == "b"].set_index("source_layer")["value"]
    assert across[names[1]] == expected["2"] == pytest.approx(1)
    assert across[names[0]] == expected["1"] < 0.9


def test_an_index_with_a_name_is_a_feature():
    frame = pd.DataFrame({"text": [f"text {row}" for row in range(12)], "F": ["pl", "sg"] * 6, "G": [1, 2, 3] * 4})
    for index in ("F", "text", ["F", "G"]):
        found = thinkalike.mlem(STATES, stimuli=frame.set_index(index), folds=2, references=0, alphas=[1.0])
        assert set(found.table["feature"]) == {"F", "G"}


SIZES = ["small", "large"] * 6
TABLES = {
    "text": FRAME.assign(f=SIZES),
    "categories": FRAME.assign(f=pd.Categorical(SIZES)),
    "ordered": FRAME.assign(f=pd.Categorical(SIZES, ["small", "large"], ordered=True)),
    "reversed": FRAME.assign(f=pd.Categorical(SIZES, ["large", "small"], ordered=True)),
    "whole": FRAME.assign(f=[2, 1] * 6),
    "real": FRAME.assign(f=[2.0, 1.0] * 6),
    "next": FRAME.assign(f=[2.0, np.nextafter(1, 2)] * 6),
    "missing": FRAME.assign(f=[2.0, np.nan] * 6),
    "infinite": FRAME.assign(f=[2.0, np.inf] * 6),
}


def test_tables_in_memory_that_are_read_differently_have_digests_of_their_own(tmp_path):
    digests = {stimuli_config(table, {}).table.digest for table in TABLES.values()}
    assert len(digests) == len(TABLES)
    assert stimuli_config(TABLES["real"].copy(), {}).table.digest in digests, "control: a copy is the same table"
    mlem = inspect.unwrap(thinkalike.mlem)
    settings = {"features": ["f"], "store": tmp_path, **PROFILES}
    mlem(STATES, stimuli=TABLES["missing"], **settings)
    with pytest.raises(ThinkalikeError, match=r"^stimuli row 2: f=inf is not a finite number"):
        mlem(STATES, stimuli=TABLES["infinite"], **settings)


def test_a_path_of_half_a_surrogate_pair_is_refused():
    for call in (open_result, thinkalike.results, thinkalike.load_stitch):
        with pytest.raises(ConfigError, match="half of a surrogate pair"):
            call("\ud800")


@pytest.mark.parametrize("what", ["nowhere", None, 3, Path("/tmp")])
def test_what_is_no_result_is_not_drawn(what):
    with pytest.raises(ResultError, match="plot takes a Result"):
        thinkalike.plot(what)


def test_arrays_of_any_library_are_states():
    expected = thinkalike.compare(STATES, OTHERS).table
    whole = np.ma.array(STATES)
    for side in (Labelled(), pd.DataFrame(STATES), torch.tensor(STATES, requires_grad=True), whole, STATES[None]):
        found = compare(side, OTHERS).table
        assert found["value"].tolist() == pytest.approx(expected["value"].tolist(), abs=1e-12)
    assert set(compare({1: STATES, 2: OTHERS}, OTHERS).table["source_layer"].astype(str)) >= {"1", "2"}


LABELS = [f"word {row}" for row in range(12)]
LABELLED, IN_ORDER = (pd.DataFrame(states, LABELS) for states in (STATES, OTHERS))
SHUFFLED = IN_ORDER.sample(frac=1, random_state=0)
LABELLED_WORDS = FRAME.set_axis(LABELS)


@pytest.mark.parametrize(
    "call",
    [
        lambda: thinkalike.compare(LABELLED, SHUFFLED),
        lambda: thinkalike.compare({"low": LABELLED}, {"low": SHUFFLED}),
        lambda: thinkalike.compare({"low": LABELLED, "high": SHUFFLED}, OTHERS),
        lambda: thinkalike.mlem(SHUFFLED, stimuli=LABELLED_WORDS, **PROFILES),
        lambda: thinkalike.mlem([LABELLED, IN_ORDER, SHUFFLED], stimuli=FRAME, **PROFILES),
        lambda: thinkalike.rsa([LABELLED, SHUFFLED], stimuli=FRAME),
        lambda: thinkalike.rsa([SHUFFLED, "gpt2-mini"], stimuli=LABELLED_WORDS),
        lambda: thinkalike.rsa([pd.DataFrame(STATES)], stimuli=FRAME.sample(frac=1, random_state=0)),
    ],
)
def test_tables_whose_rows_are_in_another_order_are_refused(call):
    """Their rows would be paired by order, and labels that say so go with the tables."""
    with pytest.raises(ConfigError, match="rows are paired by their order"):
        call()


def test_tables_in_one_order_are_their_arrays():
    expected = thinkalike.compare(STATES, OTHERS).table["value"]
    for target in (IN_ORDER, SHUFFLED.loc[LABELS], OTHERS):
        assert thinkalike.compare(LABELLED, target).table["value"].equals(expected)


@pytest.mark.ci_slow
def test_a_name_of_a_file_is_meant_as_it_is_written(tmp_path, monkeypatch):
    """A configuration would put other settings in the place of ${...}, and Hydra's grammar reads quotes."""
    monkeypatch.setenv("ELSEWHERE", "elsewhere")
    for name in ("${oc.env:ELSEWHERE}", "${seed}", "é 'of' \\${nobody}"):
        (tmp_path / f"{name}.jsonl").write_text("".join(f"{json.dumps({'text': text})}\n" for text in TEXTS))
        FRAME.to_csv(tmp_path / f"{name}.csv", index=False)
        np.savez(tmp_path / f"{name}.npz", ids=np.array("order"), low=STATES)
        shutil.copytree(ASSETS / "gelu-3l-mini", tmp_path / name)
        assert set(thinkalike.compare(tmp_path / name, texts=f"{name}.jsonl", **FEW).table["source"]) == {name}
        assert set(thinkalike.rsa([f"{name}.npz"], stimuli=f"{name}.csv").table["source"]) == {name}
    with pytest.raises(ConfigError, match=r'^model="\$\{oc.env:ELSEWHERE\}/no" is not known'):
        load_model("${oc.env:ELSEWHERE}/no")


def test_a_text_is_meant_as_it_is_written(monkeypatch):
    monkeypatch.setenv("ELSEWHERE", "token")
    with pytest.raises(ConfigError, match=r'^unit="\$\{oc.env:ELSEWHERE\}" must be'):
        compare(PAIR[0], texts=TEXTS, unit="${oc.env:ELSEWHERE}")


@pytest.mark.parametrize(
    ("name", "value"),
    [("skip_first", 2), ("embed", True), ("features", ["row"]), ("site", "z"), ("head", 1), ("unit", "token"),
     ("massive", "keep"), ("scale", "mini"),
     ("batches", np.int64(2)), ("layers", np.array([0])), ("seed", torch.tensor(1))],
)  # fmt: skip
def test_what_has_no_effect_on_arrays_is_refused(name, value):
    with pytest.raises(ConfigError, match=rf"^{name}=? (has no effect on|is not read by) "):
        compare(STATES, OTHERS, **{name: value})


@pytest.mark.parametrize("function", ["mlem", "rsa"])
@pytest.mark.parametrize(("name", "value"), [("embed", True), ("massive", "keep"), ("layers", [0])])
def test_what_is_of_layers_of_models_has_no_effect_on_recordings(function, name, value):
    with pytest.raises(ConfigError, match=f"^{name}= has no effect on"):
        inspect.unwrap(getattr(thinkalike, function))([STATES], stimuli=FRAME, **{name: value})


@pytest.mark.ci_slow
def test_a_keyword_is_the_same_in_every_library():
    """Arrays of NumPy, torch and pandas are lists, and their numbers those of Python."""
    mlem, rsa = inspect.unwrap(thinkalike.mlem), inspect.unwrap(thinkalike.rsa)
    models = {"layers": [[0, 0], [1, 2]], "site": ["z"], "batches": 2, "tokens_per_batch": 128, "skip_first": 1}
    sorts = [
        {"layers": np.array(models["layers"]), "site": np.array(["z"]), "batches": np.int64(2)},
        {"layers": torch.tensor(models["layers"]), "site": pd.Index(["z"]), "skip_first": torch.tensor(1)},
        {"layers": [[np.int8(0), 0], (1, 2)], "site": pd.Series(["z"]), "tokens_per_batch": np.array(128)},
    ]
    expected = compare(PAIR[0], texts=TEXTS, **models).table
    for sort in sorts:
        pd.testing.assert_frame_equal(compare(PAIR[0], texts=TEXTS, **models | sort).table, expected)
    given = {"features": FRAME.columns[2:], "alphas": np.array([0.1, 1.0]), "distance": np.str_("cosine")}
    plain = {"features": ["many", "kind"], "alphas": [0.1, 1.0], "distance": "cosine"}
    tables = [mlem(STATES, stimuli=FRAME, **PROFILES, **each).table for each in (given, plain)]
    pd.testing.assert_frame_equal(*tables)
    found, expected = (compare(STATES, OTHERS, kernel=kernel).arrays for kernel in (np.array("rbf"), "rbf"))
    assert found["value"] == expected["value"]
    for name, value in {"distance": object(), "features": {"many"}, "comparator": b"pearson"}.items():
        with pytest.raises(ConfigError, match=f"^{name} holds {type(value).__name__}: give text, numbers"):
            rsa([STATES], stimuli=FRAME, **{name: value})


@pytest.mark.parametrize("layers", [0, torch.tensor(0), [0.5], [[0]]])
def test_layers_that_are_no_list_of_numbers_are_refused(layers):
    with pytest.raises(ConfigError, match=r"^layers=.* must (be a valid (list|integer)|have at least 2 items)"):
        compare(PAIR[0], texts=TEXTS, layers=layers, **FEW)


SWITCHES = {
    "force": "yes", "embed": 1, "null": "no", "seed": True, "batches": "2", "tokens_per_batch": 128.0,
    "skip_first": None, "threads": 1.5, "kept": "0.9", "neighbours": True, "store": 3,
}  # fmt: skip


@pytest.mark.parametrize("name", [name for name, value in SWITCHES.items() if value is not None])
def test_a_keyword_of_the_wrong_type_is_refused_by_name(name):
    with pytest.raises(ConfigError, match=rf"^{name}={SWITCHES[name]!r} must be "):
        compare(PAIR[0], texts=TEXTS, **{name: SWITCHES[name]})


def computed_metric():
    metric = measures.CKA(1, 1)
    metric.update([STATES], [OTHERS])
    return metric.compute()


def test_what_has_no_effect_on_rsa_of_arrays_is_refused():
    given = {
        "site": "attn_out", "layers": [0], "store": "kept", "permutations": 9, "seed": 1, "embed": True,
        "features": ["many"], "head": 1, "noise": "none", "force": True,
    }  # fmt: skip
    for name, value in given.items():
        with pytest.raises(ConfigError, match=f"^{name}= has no effect on rsa of arrays"):
            inspect.unwrap(thinkalike.rsa)([STATES], **{name: value})
    assert inspect.unwrap(thinkalike.rsa)([STATES], site="resid_post", store=None).shape == (1, 1), "control: defaults"


@pytest.mark.parametrize(
    ("call", "said"),
    every_second(
        [
            (lambda result: result.plot("file.png"), "^ax=file.png must be axes of matplotlib"),
            (lambda result: thinkalike.plot(result, ax=[3]), r"^ax=\[3\] must be axes of matplotlib"),
            (lambda result: thinkalike.plot(computed_metric(), ax=True), "^ax=True must be axes of matplotlib"),
            (lambda result: result.save("there"), "^there exists already"),
            (lambda result: inspect.unwrap(Result.save)(result, 3), "^folder=3 must be a path"),
            (lambda result: open_result("a\0b"), "^folder="),
            (lambda result: inspect.unwrap(thinkalike.results)(3), "^store=3 must be a path"),
            (lambda result: load_model("a\0b"), "^model="),
            (lambda result: thinkalike.rsa([], stimuli=FRAME), "^models is empty"),
            (lambda result: compare(PAIR[0], texts=Path("nope.txt")), "^texts: nothing matches nope.txt"),
            (lambda result: compare(PAIR[0], texts=3), "^texts is int"),
            (lambda result: compare(PAIR[0], texts=b"a text"), "^texts is bytes"),
        ]
    ),
)
def test_errors_of_paths_name_the_argument(call, said, tmp_path):
    (tmp_path / "there").mkdir()
    with pytest.raises(ThinkalikeError, match=said):
        call(thinkalike.compare(STATES, OTHERS))


@pytest.mark.ci_slow
def test_the_tokenizer_of_another_model_is_refused(tmp_path):
    """Its ids would be the states of other words."""
    model = transformers.AutoModelForCausalLM.from_pretrained(ASSETS / "gpt2-mini", dtype=torch.float32)
    tokenizer = load_model("gpt2-mini").tokenizer
    another = load_model("gelu-3l-mini").tokenizer
    with pytest.raises(ModelError, match="the tokenizer is of another vocabulary"):
        thinkalike.compare((model, another), texts=TEXTS, **FEW)
    assert load_model(model, another, implausible=True).n_layers == 6, "control: it would run"
    more = copy.deepcopy(tokenizer)
    assert more.add_tokens(["<|user|>", "<|assistant|>"]) == 2
    model.resize_token_embeddings(len(more), mean_resizing=False)
    assert load_model(model, more).name == "gpt2-mini", "added tokens are no other vocabulary"
    model.resize_token_embeddings(64 * (len(more) // 64 + 2), mean_resizing=False)
    assert load_model(model, more).name == "gpt2-mini", "rows may be padded"
    model.resize_token_embeddings(2 * len(more), mean_resizing=False)
    with pytest.raises(ModelError, match=r"its embedding has \d+ rows, and the tokenizer uses"):
        load_model(model, more)


def names_by_example():
    """The public names by their docstrings: a function has that of the class of its job, which runs once."""
    names = {}
    for name in thinkalike.__all__:
        names.setdefault(inspect.getdoc(getattr(thinkalike, name)), name)
    return names


SLOW_EXAMPLES = ["ruler", "stitch", "compare", "load_stitch", "loss", "trajectory", "run", "rsa", "mlem", "diff"]


@pytest.fixture(scope="module")
def cache_of_examples(tmp_path_factory):
    """One cache for all examples, most of which read the same text."""
    return tmp_path_factory.mktemp("cache")


@pytest.mark.parametrize("name", with_slow(names_by_example().values(), *SLOW_EXAMPLES))
def test_the_example_of_a_public_name_runs(name, cache_of_examples, monkeypatch):
    monkeypatch.setenv("THINKALIKE_CACHE", str(cache_of_examples))
    parsed = doctest.DocTestParser().get_doctest(
        inspect.getdoc(getattr(thinkalike, name)) or "",
        {each: getattr(thinkalike, each) for each in thinkalike.__all__} | {"torch": torch, "np": np},
        name, None, 0,
    )  # fmt: skip
    lines = [line for example in parsed.examples for line in (example.source + example.want).splitlines()]
    assert 0 < len(lines) <= 6
    flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    assert doctest.DocTestRunner(optionflags=flags).run(parsed).failed == 0


PLAIN = {
    "whole numbers": list(range(30)),
    "numbers without a fraction": [float(number**2) for number in range(30)],
    "one is missing": [*range(29), None],
}


@pytest.mark.parametrize("values", with_slow(PLAIN.values(), PLAIN["whole numbers"]), ids=PLAIN)
def test_a_feature_that_differs_between_all_stimuli_is_refused_by_name(values):
    names = [f"p{number}" for number in range(30)]
    states = np.random.default_rng(0).normal(size=(30, 6))
    table = pd.DataFrame({"id": names, "freq": values, "half": ["a", "b"] * 15})
    options = {"columns": {"text": None}, "permutations": 1, "references": 0}
    with pytest.raises(DataError, match=r"freq has another value in every row.*kinds=\{'freq': 'continuous'\}"):
        thinkalike.mlem(states, stimuli=table, **options)
    by_size = thinkalike.mlem(states, stimuli=table, kinds={"freq": "continuous"}, **options)
    assert set(by_size.table["feature"]) == {"freq", "half"}


NEARLY_ENOUGH = [pytest.param(*case, marks=pytest.mark.ci_slow) for case in [(18, 5, 19), (11, 2, 12)]]


@pytest.mark.parametrize(("rows", "folds", "fewest"), [(2, 5, 19), (2, 2, 12), *NEARLY_ENOUGH])
def test_too_few_stimuli_for_folds_are_said_with_their_number(rows, folds, fewest):
    states = np.random.default_rng(0).normal(size=(fewest, 6))
    table = pd.DataFrame({"id": [f"p{number}" for number in range(fewest)], "half": (["a", "b", "b"] * 7)[:fewest]})
    options = {"columns": {"text": None}, "folds": folds, "permutations": 1, "references": 0}
    with pytest.raises(DataError, match=f"has {rows} stimuli, and .*folds={folds} needs at least {fewest}"):
        thinkalike.mlem(states[:rows], stimuli=table[:rows], **options)
    assert len(thinkalike.mlem(states, stimuli=table, **options).table) == 1


@pytest.mark.parametrize("measure", ["cka", "procrustes", "distance"])
def test_tokens_of_a_report_that_a_measure_does_not_read_are_refused(measure):
    with pytest.raises(ConfigError, match=f"evaluation_tokens= has no effect on {measure}; .*batches"):
        thinkalike.compare(*PAIR, measure=measure, evaluation_tokens=2000, texts=TEXTS, **FEW)


@pytest.mark.ci_slow
def test_a_document_that_fills_the_report_is_told_from_too_little_text():
    long = [tiny.document(seed, 4000) for seed in range(3)]
    few = {"texts": long, "batches": 1, "tokens_per_batch": 64, "context": 64}
    with pytest.raises(DataError, match=r"one document fills .*raise batches") as caught:
        thinkalike.compare(PAIR[0], **few)
    assert "evaluation_share" not in str(caught.value)
    assert len(thinkalike.compare(PAIR[0], **few | {"batches": 64}).table)


class Incomparable:
    """An object that equals nothing."""

    __hash__ = None

    def __eq__(self, other):
        raise ValueError("incomparable")


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: compare(PAIR[0], texts={"a text", "another"}), "^texts is a set, which has no order: give a list"),
        (lambda: compare(PAIR[0], texts=frozenset(TEXTS)), "^texts is a frozenset, which has no order"),
        (lambda: compare(PAIR[0], texts={"a": 1}.items()), "^texts is a dict_items, which has no order"),
        (lambda: thinkalike.diff(PAIR[0], PAIR[0], texts=TEXTS, group="a,b"), "^group=a,b has no effect on strings"),
        (
            lambda: thinkalike.diff(PAIR[0], PAIR[0], texts=[{"text": "a"}], group="by"),
            r"^texts\[0\] has no field by; group= is the name",
        ),
        (
            lambda: thinkalike.diff(PAIR[0], PAIR[0], texts=[{"text": "a"}], field="body"),
            r"^texts\[0\] has no field body; field= is the name",
        ),
        (lambda: compare({"a\nb": STATES}, OTHERS), r"^source\['a\\nb'\]: the name of a layer"),
        (lambda: compare({"a\r": STATES}, OTHERS), r"^source\['a\\r'\]: the name of a layer"),
        (lambda: compare({"a\u2028b": STATES}, OTHERS), r"^source\['a\\u2028b'\]: the name of a layer"),
        (lambda: compare(STATES[:1], OTHERS[:1]), "^source has 1 row, and nothing to compare it with: give at least 4"),
        (lambda: compare({"low": STATES[:1]}), "^source has 1 row, and nothing to compare it with"),
        (lambda: compare(np.ones((3, 1, 4))), "^of 3 stimuli, tokens_per_batch=1024 compares 3 at once"),
        (lambda: compare(STATES, measure=pd.NA), "^measure is NAType: give a name"),
        (lambda: compare(STATES, measure=Incomparable()), "^measure is Incomparable: give a name"),
        (lambda: compare(STATES, measure=None), "^measure is NoneType: give a name"),
        (lambda: compare(PAIR[0], unit=Incomparable()), "^unit holds Incomparable"),
        (lambda: inspect.unwrap(thinkalike.rsa)([STATES], site=pd.NA), "^site holds NAType"),
        (lambda: inspect.unwrap(thinkalike.rsa)([STATES], site=Incomparable()), "^site holds Incomparable"),
        (lambda: compare(PAIR[0], texts=(1 / number for number in (1, 0))), "^texts holds a float"),
        (lambda: compare(PAIR[0], texts=(f"{1 / n}" for n in (1, 0))), r"^texts ends in an error after 1 .*ZeroDiv"),
        (
            lambda: compare(PAIR[0], texts=(sys.exit(0) for _ in "a")),
            r"^texts ends in an error after 0 .*SystemExit: 0",
        ),
        (
            lambda: compare(PAIR[0], texts=["same"] * 50),
            r"^texts has too little text .* 49 are empty or a copy of one before, 1 is ",
        ),
    ],
)
def test_inputs_that_say_nothing_for_certain_are_refused_by_name(call, said):
    with pytest.raises((ConfigError, DataError), match=said):
        call()


def test_keys_of_a_dictionary_are_texts_in_order():
    texts = dict.fromkeys(TEXTS)
    assert thinkalike.inputs.text_config(texts.keys(), {}).records.rows == [{"text": text} for text in TEXTS]


class Locked:
    """A callable that cannot be copied."""

    def __init__(self):
        self.lock = threading.Lock()

    def __call__(self, *_):
        return None


def lock_as_attribute(module):
    module.transformer.h[1].lock = threading.Lock()


def generator_as_attribute(module):
    module.rows = (row for row in "ab")


def lock_in_a_hook(module):
    module.transformer.h[0].register_forward_hook(Locked())


def raise_in_a_hook(module):
    module.transformer.h[0].register_forward_hook(lambda *_: 1 / 0)


def exit_in_a_hook(module):
    module.transformer.h[0].register_forward_hook(lambda *_: sys.exit("done"))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lock_as_attribute, r"transformer\.h\.1\.lock of the model in memory cannot be copied \(TypeError"),
        (generator_as_attribute, "rows of the model in memory cannot be copied"),
        (lock_in_a_hook, r"a hook in transformer\.h\.0\._forward_hooks of the model in memory cannot be copied"),
        (raise_in_a_hook, "cannot load gpt2-mini, a model in memory: ZeroDivisionError"),
        (exit_in_a_hook, "cannot load gpt2-mini, a model in memory: SystemExit: done"),
    ],
)
def test_what_is_wrong_with_a_model_in_memory_is_named(change, said):
    model = load_model("gpt2-mini")
    module = copy.deepcopy(model.module)
    module.name_or_path = "gpt2-mini"
    change(module)
    with pytest.raises(ModelError, match=said) as raised:
        thinkalike.compare((module, model.tokenizer), texts=TEXTS)
    assert "None" not in str(raised.value)


def test_a_function_is_no_tokenizer():
    with pytest.raises(TypeError, match="and its tokenizer, not GPT2LMHeadModel and function"):
        load_model(load_model("gpt2-mini").module, lambda text: text)


@pytest.mark.ci_slow
def test_a_model_in_memory_beside_its_namesake_is_told_apart_by_where_it_is():
    model = load_model("gpt2-mini")
    module = copy.deepcopy(model.module)
    module.name_or_path = "gpt2-mini"
    configs = model_configs({"source": (module, model.tokenizer), "target": "gpt2-mini"}, {})
    assert distinct_labels(configs) == ["gpt2-mini (in memory)", "gpt2-mini"]
    turned = model_configs({"source": "gpt2-mini", "target": (module, model.tokenizer)}, {})
    assert distinct_labels(turned)[0] == "gpt2-mini"


@pytest.mark.ci_slow
@pytest.mark.parametrize("name", ["arrays", "texts", "stitches"])
def test_results_in_memory_are_pickled_and_copied(name):
    calls = {
        "arrays": lambda: thinkalike.compare(STATES, OTHERS),
        "texts": lambda: thinkalike.compare(PAIR[0], texts=TEXTS, **FEW),
        "stitches": lambda: thinkalike.stitch(
            PAIR[0], layers=[1], steps=2, tokens_per_step=256, evaluation_tokens=2048
        ),
    }
    result = calls[name]()
    for again in (pickle.loads(pickle.dumps(result)), copy.deepcopy(result)):
        assert again.table.equals(result.table)
        assert again.scalars == result.scalars
