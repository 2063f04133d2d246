"""measure=diff before any pass: settings, ties, rows of tokens, and what was done to which weights."""

import json
import math
import shutil

import pandas as pd
import pytest
import torch
from safetensors.torch import load_file, save_file

import tiny
from conftest import every_second, results_in
from thinkalike.errors import StitchError
from thinkalike.instruments.diff.differing_settings import settings_that_differ
from thinkalike.instruments.diff.edits import edits_of
from thinkalike.instruments.diff.weights_screen import EditedTensor, _tensors_in_words, weights_in_words
from thinkalike.models.load import load_model
from thinkalike.models.parts import give_same_ties_and_vocabulary
from thinkalike.stitches.stitch_map import Site

EMBEDDING = "transformer.wte.weight"
NO_MODULES = pd.DataFrame(columns=["component", "layer", "mean_effect"])


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    return tiny.write_checkpoint("gpt2", tmp_path_factory.mktemp("exact") / "base")


@pytest.fixture
def changed(base, tmp_path):
    """Makes a copy of the base with other tensors and entries of its configuration."""

    def make(change=lambda state: None, name="changed", source=base, **settings):
        folder = shutil.copytree(source, tmp_path / name)
        state = load_file(folder / "model.safetensors")
        change(state)
        save_file(state, folder / "model.safetensors", metadata={"format": "pt"})
        shape = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps(shape | settings))
        return folder

    return make


def job(first, second, text_files, *more):
    data = ["data=text", f"data.files=[{text_files}/*.txt]", "data.evaluation_share=0.4", "data.context=32"]
    sizes = ["measure.tokens=512", "measure.tokens_per_part=256", "measure.outputs=0", "measure.taught=false"]
    models = [f"model={first}", f"model@target={second}"]
    return ["analyze.py", "measure=diff", *models, *data, *sizes, "logger=none", *more]


def said(base, folder):
    models = load_model(base), load_model(folder)
    give_same_ties_and_vocabulary(*models)
    table, tokens = edits_of(*models)
    return weights_in_words(table, NO_MODULES), tokens


def set_places(name, places, value, axis=0):
    def change(state):
        state[name].index_fill_(axis, torch.tensor(places), value)

    return change


def swap(first, second):
    def change(state):
        state[EMBEDDING][[first, second]] = state[EMBEDDING][[second, first]]

    return change


def noise(state):
    for name, weight in state.items():
        if weight.dim() == 2:
            size = 0.15 if ".2." in name else 0.02
            state[name] = weight + size * weight.std() * torch.randn(weight.shape)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (set_places("transformer.h.1.attn.c_attn.weight", range(32 + 8, 32 + 16), 0.0, 1), "key head 1 zeroed"),
        (set_places("transformer.h.1.attn.c_proj.weight", range(8, 24), 0.0), "heads 1 to 2 zeroed"),
        (set_places("transformer.h.1.attn.c_attn.weight", range(3, 9), 0.0, 1), "columns 3 to 8 zeroed"),
        (set_places("transformer.h.3.mlp.c_fc.weight", [5, 9], 0.0, 1), "neurons 5, 9 zeroed"),
        (swap(70, 90), f"tokens {tiny.tokenizer().decode([70])!r}, {tiny.tokenizer().decode([90])!r} swapped"),
        (noise, "block 2 0.15, 7."),
    ],
)
def test_heads_neurons_and_tokens_are_named(base, changed, change, words):
    found, tokens = said(base, changed(change))
    assert words in found
    assert (tokens == [70, 90]) == ("swapped" in words)


@pytest.mark.parametrize(
    ("factor", "words"),
    every_second(
        [(1.000001, "scaled by 1.000001"), (0.99998, "scaled by 0.99998"), (-1, "scaled by -1"), (1.5, "scaled by 1.5")]
    ),
)
def test_a_factor_near_one_is_not_said_to_be_one(base, changed, factor, words):
    def scaled(state):
        state["transformer.h.1.mlp.c_fc.weight"] *= factor

    assert f"({words})" in said(base, changed(scaled))[0]


@pytest.mark.parametrize("name", every_second(["bfloat16", "float16", "float8_e4m3fn", "float8_e5m2"]))
def test_a_cast_is_called_by_its_dtype(base, changed, name):
    def cast(state):
        for weight in state.values():
            weight.copy_(weight.to(getattr(torch, name)))

    assert f"(cast to {name})" in said(base, changed(cast))[0]


@pytest.mark.parametrize(("share", "words"), [(0.01, "less than 5% zeroed"), (0.99, "more than 95% zeroed")])
def test_some_zeros_are_neither_none_nor_all(base, changed, share, words):
    def masked(state):
        weight = state["transformer.h.1.mlp.c_fc.weight"]
        weight[torch.rand(weight.shape, generator=torch.Generator().manual_seed(0)) < share] = 0

    assert words in said(base, changed(masked))[0]


@pytest.mark.ci_slow
def test_a_bias_that_was_zero_has_its_norm_and_no_share(base, changed, cli, text_files):
    bias = "transformer.h.1.mlp.c_proj.bias"

    def zeroed(state):
        state[bias].zero_()

    def trained(state):
        state[bias] += torch.arange(32) / 32

    at_start = changed(zeroed)
    later = changed(trained, "later", at_start)
    run = cli(*job(at_start, later, text_files))
    assert run.status == 0, run.stderr
    (row,) = run.result.tables["weights"].itertuples()
    assert math.isnan(row.size)
    assert row.norm_of_change == pytest.approx(float((torch.arange(32) / 32).norm()))
    assert "mlp.c_proj.bias of block 1, now of norm 3.2 (all zero in the base)." in " ".join(run.stdout.split())


@pytest.mark.ci_slow
def test_only_a_setting_differs_and_is_named(base, changed, cli, text_files):
    folder = changed(scale_attn_by_inverse_layer_idx=True, attn_pdrop=0.5)
    run = cli(*job(base, folder, text_files, "measure.margin.kl=1e-9"))
    assert run.status == 1, run.stderr
    screen = " ".join(run.stdout.split())
    assert "How much? KL(base" in screen
    assert "Which settings? scale_attn_by_inverse_layer_idx False → True." in screen
    assert "Where?" not in screen
    (result,) = results_in(cli.folder / "results", "diff")
    (row,) = result.tables["settings"].itertuples()
    assert (row.base, row.changed) == ("False", "True"), "dropout is off"


def test_a_stitch_is_of_a_model_with_its_settings(base, changed):
    site = Site.of(load_model(base).describe(), 1)
    site.check_model(load_model(base, dtype="float32"))
    with pytest.raises(StitchError, match="but other settings in its config"):
        site.check_model(load_model(changed(activation_function="relu")))


def test_settings_of_equal_models_do_not_differ(base, changed):
    folder = changed(_name_or_path="elsewhere", transformers_version="4.0", training={"steps": 3})
    assert settings_that_differ(load_model(base), load_model(folder)).empty


@pytest.mark.ci_slow
def test_only_a_tokenizer_or_its_marks_differ_and_are_named(base, changed, cli, text_files):
    folder = changed()
    whole = json.loads((folder / "tokenizer.json").read_text())
    (folder / "tokenizer.json").write_text(json.dumps(whole | {"normalizer": {"type": "Lowercase"}}))
    run = cli(*job(base, folder, text_files, "target.bos=true"))
    screen = " ".join(run.stdout.split())
    assert "only settings changed, and no prediction differs; text: " in screen
    assert "marks 'text: None; row: ... <|endoftext|>' → 'text: None; row: <|endoftext|> ... <|endoftext|>'" in screen
    assert "tokenizer.normaliser none → {'type': 'Lowercase'}." in screen
    first, second = run.result.provenance["models"]
    assert first["tokenizer"] != second["tokenizer"]
    assert first["weights"] == second["weights"]
    other = {"type": "Replace", "pattern": {"String": "a"}, "content": "b"}
    (folder / "tokenizer.json").write_text(json.dumps(whole | {"normalizer": other}))
    assert "cut a text into different tokens" in cli(*job(base, folder, text_files)).error


@pytest.mark.ci_slow
@pytest.mark.parametrize("tied_first", [True, False])
def test_an_embedding_tied_on_one_side_is_untied(base, changed, cli, text_files, tied_first):
    def apart(state):
        weight = state[EMBEDDING]
        state["lm_head.weight"] = weight + 0.3 * weight.std() * torch.randn(weight.shape)

    folder = changed(apart, tie_word_embeddings=False)
    pair = (base, folder) if tied_first else (folder, base)
    run = cli(*job(*pair, text_files))
    table = run.result.table.set_index("component")
    assert table.loc["unembedding", "relative_weight_change"] > 0.1
    assert table.loc["embedding", "relative_weight_change"] == 0
    assert list(run.result.tables["weights"]["operation"]) == ["noise" if tied_first else "changed"]
    nulls = run.result.tables["nulls"]["kl"]
    assert 0.3 < nulls.median() / run.result.scalars["kl_of_compared_tokens"] < 3, "the null is as large as the change"
    assert "are compared untied" in run.stderr


def test_a_mixture_names_the_model_that_was_mixed_in(base):
    first, second, third = (load_model(base) for _ in range(3))
    third.name = "third"
    for own, mixed, other in zip(*(each.module.parameters() for each in (first, second, third)), strict=True):
        other.data = own + 0.05 * torch.randn(own.shape)
        mixed.data = 0.75 * own + 0.25 * other
    table, _ = edits_of(first, second, third)
    assert {*table["operation"]} == {"linear mixture"}
    assert "(third mixed in linearly, 0.25 of it)" in weights_in_words(table, NO_MODULES)
    without = weights_in_words(edits_of(first, second)[0], NO_MODULES)
    assert "mixed" not in without, "control"
    assert "). other=MODEL also tests mixtures with that model." in without


@pytest.mark.ci_slow
def test_rows_that_one_model_lacks_are_left_out(base, changed, cli, text_files):
    def longer(state):
        state[EMBEDDING] = torch.cat([state[EMBEDDING], torch.randn(4, 32)])

    folder = changed(longer, vocab_size=len(tiny.tokenizer()) + 4)
    fresh = type(tiny.tokenizer()).from_pretrained(folder)
    fresh.add_special_tokens({"pad_token": "<more>"})
    fresh.save_pretrained(folder)
    run = cli(*job(base, folder, text_files, "measure.margin.kl=1e-6"))
    assert run.status == 0, run.stderr
    assert "the first 300" in run.stderr
    assert run.result.scalars["kl"] < 1e-9


@pytest.mark.ci_slow
def test_a_certificate_tries_changed_tokens_that_the_text_lacks(base, changed, cli, text_files):
    cutter = tiny.tokenizer()
    text = " ".join(path.read_text() for path in text_files.glob("*.txt"))
    held = set(cutter(text, add_special_tokens=False)["input_ids"])
    first, second = [token for token in range(len(cutter)) if token not in held][-2:]
    run = cli(*job(base, changed(swap(first, second)), text_files, "measure.margin.flips=0.2"))
    (result,) = results_in(cli.folder / "results", "diff")
    numbers = result.scalars
    assert (numbers["tokens_changed"], numbers["tokens_unread"]) == (2, 2)
    assert numbers["flips_high"] < 0.2 < numbers["unread_flips_low"]
    assert run.status == 1
    assert "The text lacks 2 of the 2 tokens" in " ".join(run.stdout.split())


def tensors_of_module(names, component, layer):
    rest = ("scaled", 1.0, 1.0, 1.0, 2.0, "")
    return [EditedTensor(f"blocks.{layer}.{name}", component, layer, *rest) for name in names]


def modules(**columns):
    layers = range(len(columns["mean_effect"]))
    return pd.DataFrame({"component": "MLP", "layer": layers, "relative_weight_change": 0.1, **columns})


@pytest.mark.parametrize(("count", "said"), [(3, "c of block 0"), (4, " and 1 more name"), (5, " and 2 more names")])
def test_names_of_tensors_that_are_not_listed_are_counted(count, said):
    tensors = tensors_of_module("abcde"[:count], "MLP", 0)
    assert _tensors_in_words(tensors, NO_MODULES).endswith(said)


def test_the_modules_of_tensors_that_are_not_listed_are_named():
    """The names of block 8 are listed, and those of block 20 would not say which module changed."""
    table = pd.DataFrame({"component": ["attention", "MLP", "MLP"], "layer": [8, 20, 21], "mean_effect": 0.5})
    tensors = [*tensors_of_module("abcd", "attention", 8), *tensors_of_module("efg", "MLP", 20)]
    said = _tensors_in_words(tensors, table.assign(relative_weight_change=0.1))
    assert said.endswith("c of block 8 and 4 more names in attention 8 and MLP 20")


def test_of_many_modules_those_with_the_largest_effects_are_named():
    """Every second block changed: their effects order them, or how far they moved if none was exchanged."""
    tensors = []
    for layer in range(0, 12, 2):
        tensors += tensors_of_module("abcd", "MLP", layer)
    effects = [0.0, 9.0, 0.2, 9.0, 0.5, 9.0, 0.1, 9.0, math.nan, 9.0, 0.3, 9.0]
    said = _tensors_in_words(tensors, modules(mean_effect=effects))
    assert said.endswith(" and 1 more name in 6 modules (those with the largest effects: MLP 4, 10, 2)")
    moved = modules(mean_effect=[math.nan] * 12).assign(relative_weight_change=range(12))
    said = _tensors_in_words(tensors, moved)
    assert said.endswith(" in 6 modules (those whose weights moved farthest: MLP 10, 8, 6)")
