"""Lineage as jobs: commands, checkpoints of every form, families, and models that it cannot test."""

from __future__ import annotations

import math
import shutil
from pathlib import Path

import pandas as pd
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

import thinkalike
import tiny
import tuned_minis
from pages import script
from stores import made
from thinkalike.cli import as_analysis
from thinkalike.errors import ConfigError, ModelError
from thinkalike.instruments.lineage.comparison import (
    comparable_streams,
    compare_models,
    table_of_origins,
    table_of_pairs,
)
from thinkalike.instruments.lineage.family import groups_of_related_models
from thinkalike.instruments.lineage.screen import runs_of_blocks, streams_in_words, with_tested
from thinkalike.measures.lineage import compare_units
from thinkalike.measures.seeds import seeded
from thinkalike.models.units import LoadedWeights, open_units, unit_model


@pytest.fixture(scope="module")
def llama(tmp_path_factory) -> Path:
    return tiny.write_llama(tmp_path_factory.mktemp("lineage") / "base")


def origins(result) -> dict[int, float]:
    found = result.tables["origins"]
    return dict(zip(found["target_layer"], found["source_layer"], strict=True))


def test_the_command_is_short_for_an_analysis():
    assert as_analysis(["a", "./b", "similar_units=false"], "lineage") == [
        "measure=lineage",
        "model=a",
        "model@target=./b",
        "measure.similar_units=false",
    ]
    with pytest.raises(ConfigError, match="thinkalike lineage A B"):
        as_analysis(["a"], "lineage")


@pytest.mark.drawn
def test_a_tuned_model_is_found_and_drawn(cli, tmp_path):
    done = cli("analyze.py", "measure=lineage", "model=bert-mini", "model@target=bert-mini-nli", f"store={tmp_path}")
    assert origins(done.result) == {block: block for block in range(6)}
    assert done.result.scalars["blocks_with_origin"] == 6
    said = " ".join(done.stdout.split())
    assert "Blocks 0 to 5 of bert-mini-nli are those of bert-mini: of each, all units in place" in said
    assert "share a residual stream: 64 of 64 coordinates in place" in said
    assert [path.suffix for path in done.result.figures] == [".png", ".svg"]


def test_independent_models_are_told_apart_and_their_likeness_is_no_descent(cli, tmp_path):
    done = cli("analyze.py", "measure=lineage", "model=gpt2-mini", "model@target=gpt2-mini-s1", f"store={tmp_path}")
    assert all(math.isnan(origin) for origin in origins(done.result).values())
    said = " ".join(done.stdout.split())
    assert "No block of gpt2-mini-s1 is shown to come from a block of gpt2-mini" in said
    assert "Similarity: " in said
    assert "were aligned by 1,280 tokens" in said


@pytest.mark.ci_slow
@pytest.mark.drawn
def test_a_family_is_grouped_as_it_was_trained(cli, tmp_path):
    """gelu-3l-mini and solu-3l-mini began with the same weights; the variant with 2k tokens shares the embedding."""
    names = ["gelu-3l-mini", "solu-3l-mini", "gelu-3l-mini-v2k", "gpt2-mini"]
    done = cli("analyze.py", "measure=lineage", f"models=[{','.join(names)}]", f"store={tmp_path}")
    relations = done.result.tables["relations"]
    assert len(relations) == 6
    assert groups_of_related_models(relations, names, "shared_blocks") == [names[:2]]
    assert groups_of_related_models(relations, names, "same_stream") == [names[:3]]
    assert "Blocks are shared by: gelu-3l-mini, solu-3l-mini." in " ".join(done.stdout.split())
    assert done.result.figures


def test_blocks_of_a_merge_that_are_of_the_first_parent_are_named(tmp_path):
    """One half of the blocks is of each parent; the stream is that of the first."""
    for name, seed in (("first", 1), ("second", 2)):
        tiny.write_checkpoint("gpt2", tmp_path / name, seed=seed)
    shutil.copytree(tmp_path / "first", tmp_path / "merged")
    weights = load_file(tmp_path / "first" / "model.safetensors")
    for name, weight in load_file(tmp_path / "second" / "model.safetensors").items():
        if ".h.2." in name or ".h.3." in name:
            weights[name] = weight
    save_file(weights, tmp_path / "merged" / "model.safetensors", metadata={"format": "pt"})
    first = origins(thinkalike.lineage(tmp_path / "first", tmp_path / "merged"))
    second = origins(thinkalike.lineage(tmp_path / "second", tmp_path / "merged"))
    assert [block for block, origin in first.items() if origin == block] == [0, 1]
    # The tokens are those of the first parent, so the second one's blocks are not seen in its own stream.
    assert all(origin != block for block, origin in second.items() if block < 2)


def test_the_same_initial_weights_are_dependence(tmp_path):
    for name in ("one", "other"):
        tiny.write_checkpoint("mamba", tmp_path / name, seed=5)
    assert origins(thinkalike.lineage(tmp_path / "one", tmp_path / "other")) == {block: block for block in range(4)}


def test_an_adapter_comes_from_its_base(llama, tmp_path):
    peft = pytest.importorskip("peft")
    import transformers

    settings = peft.LoraConfig(r=2, target_modules=["gate_proj", "down_proj"], lora_alpha=4)
    whole = peft.get_peft_model(transformers.AutoModelForCausalLM.from_pretrained(llama), settings)
    with torch.no_grad():
        for name, weight in whole.named_parameters():
            if "lora_B" in name:
                weight.copy_(0.05 * torch.randn(weight.shape, generator=seeded(0)))
    whole.save_pretrained(tmp_path / "tuned")
    result = thinkalike.lineage(llama, tmp_path / "tuned")
    assert origins(result) == {0: 0, 1: 1}
    assert result.table["p_corrected"].min() < 1e-6


def test_an_adapter_that_was_trained_comes_from_its_base(tmp_path):
    """An ordinary folder of PEFT, whose matrices were tuned on narrow text."""
    peft = pytest.importorskip("peft")
    settings = peft.LoraConfig(r=4, target_modules=list(tuned_minis.ADAPTED), fan_in_fan_out=True)
    whole = peft.get_peft_model(tuned_minis.mini(), settings)
    matrices = [weight for weight in whole.parameters() if weight.requires_grad]
    assert tuned_minis.train(whole, matrices, tuned_minis.RATE_OF_LOW_RANK, seed=1) > 2
    whole.save_pretrained(tmp_path / "tuned")
    result = thinkalike.lineage(tuned_minis.MODEL, tmp_path / "tuned")
    assert origins(result) == {block: block for block in range(6)}
    of_blocks = result.table[result.table["target_module"] != "embedding"]
    is_origin = of_blocks["source_layer"] == of_blocks["target_layer"]
    assert (of_blocks.loc[is_origin, "p_corrected"] < 1e-6).all()
    assert (of_blocks.loc[~is_origin, "p_corrected"] > 0.01).all()


def test_a_gguf_file_of_four_bits_comes_from_its_folder(llama, tmp_path):
    pytest.importorskip("gguf")
    file = tiny.write_gguf(llama, tmp_path / "tiny.gguf", "Q4_0")
    assert origins(thinkalike.lineage(llama, file, similar_units=False)) == {0: 0, 1: 1}


def test_models_in_memory_are_those_of_their_folders(llama):
    import transformers

    module = transformers.AutoModelForCausalLM.from_pretrained(llama)
    held = (module, tiny.tokenizer())
    result = thinkalike.lineage(llama, held)
    assert origins(result) == {0: 0, 1: 1}
    stored = thinkalike.lineage(llama, llama)
    assert list(result.table["in_place"]) == list(stored.table["in_place"])


def test_similar_units_are_left_out_when_asked(llama, tmp_path):
    other = tiny.write_checkpoint("gpt2", tmp_path / "other", hidden_size=32)
    assert thinkalike.lineage(llama, other).table["similar_units"].notna().any()
    assert thinkalike.lineage(llama, other, similar_units=False).table["similar_units"].isna().all()


@pytest.mark.ci_slow
def test_experts_are_compared_each_with_each(tmp_path):
    import transformers

    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "vocab_size": len(tiny.tokenizer())}
    experts = {"num_local_experts": 3, "num_attention_heads": 4, "num_key_value_heads": 2}
    torch.manual_seed(0)
    model = transformers.MixtralForCausalLM(transformers.MixtralConfig(**sizes, **experts))
    model.save_pretrained(tmp_path / "experts")
    tiny.tokenizer().save_pretrained(tmp_path / "experts")
    stored = thinkalike.lineage(tmp_path / "experts", tmp_path / "experts")
    held = thinkalike.lineage(tmp_path / "experts", (model, tiny.tokenizer()))
    for result in (stored, held):
        found = result.tables["origins"]
        assert len(found) == 6
        assert len(result.table) == 1 + 36
        assert (found["source_layer"] == found["target_layer"]).all()
        assert (found["in_place"] == 48).all()
        assert found["source_module"].nunique() == 3


class Packed(nn.Module):
    """A linear map whose weight is no matrix of floats, as quantised ones are."""

    def __init__(self, weight: Tensor):
        super().__init__()
        self.out_features, self.in_features = weight.shape
        self.register_buffer("packed", (weight * 100).to(torch.int8))

    def forward(self, states: Tensor) -> Tensor:
        return states @ (self.packed.to(states.dtype) / 100).T + 7


def test_a_packed_linear_map_is_read_by_what_it_makes_of_unit_vectors():
    from thinkalike.models.load import load_model

    model = load_model("gelu-3l-mini")
    weight = model.module.layers[0].mlp.fc_in.weight.detach()
    model.module.layers[0].mlp.fc_in = Packed(weight)
    weights = LoadedWeights(model)
    name = "layers.0.mlp.fc_in.weight"
    assert weights.shapes()[name] == tuple(weight.shape)
    assert torch.allclose(weights.read(name), weight, atol=0.011)


def test_what_cannot_be_tested_is_one_line(llama, tmp_path):
    embedding = {"embed_tokens.weight": torch.zeros(10, 4)}
    with pytest.raises(ModelError, match="no block with an MLP or mixer of a known form"):
        unit_model("attention alone", InMemory(embedding | {"layers.0.attn.q.weight": torch.zeros(4, 4)}), {}, {})
    with pytest.raises(ModelError, match="no embedding of tokens"):
        unit_model("nothing", InMemory({"head.weight": torch.zeros(10, 4)}), {}, {})

    weights = load_file(llama / "model.safetensors")
    weights["model.layers.1.mlp.gate_proj.weight"][3, 3] = math.nan
    shutil.copytree(llama, tmp_path / "damaged")
    save_file(weights, tmp_path / "damaged" / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ModelError, match=r"layers\.1\.mlp\.gate_proj\.weight holds numbers that are not finite"):
        thinkalike.lineage(llama, tmp_path / "damaged")


class InMemory:
    """Weights in a dictionary."""

    def __init__(self, tensors: dict[str, Tensor]):
        self.tensors = tensors

    def shapes(self) -> dict[str, tuple[int, ...]]:
        return {name: tuple(tensor.shape) for name, tensor in self.tensors.items()}

    def read(self, name: str) -> Tensor:
        return self.tensors[name]


def block(width: int, units: int, rows: int = 50) -> dict[str, Tensor]:
    generator = seeded(width + units)
    return {
        "embed_tokens.weight": torch.randn(rows, width, generator=generator),
        "layers.0.mlp.up_proj.weight": torch.randn(units, width, generator=generator),
        "layers.0.mlp.down_proj.weight": torch.randn(width, units, generator=generator),
    }


def test_other_widths_need_shared_tokens():
    first = unit_model("narrow", InMemory(block(8, 30)), {f"a{row}": row for row in range(50)}, {})
    second = unit_model("wide", InMemory(block(16, 30)), {f"b{row}": row for row in range(50)}, {})
    with pytest.raises(ModelError, match="widths 8 and 16, which their embeddings cannot align, as the vocab"):
        comparable_streams(first, second)
    same_width = unit_model("other", InMemory(block(8, 30)), {f"b{row}": row for row in range(50)}, {})
    streams = comparable_streams(first, same_width)
    assert (streams.basis, streams.reason) == ("as stored", "the vocabularies share too few tokens")
    assert compare_models(first, same_width, 1).pairs[0].test.in_place == 30


@pytest.mark.slow
def test_nearly_all_architectures_have_units(tmp_path):
    """Every unit of a model is in place beside itself, whatever its weights are called."""
    make_models = script("make_models")
    without_units = []
    for name, architecture in make_models.architectures().items():
        if architecture.kind.endswith("Classification") or architecture.side == "decoder":
            continue  # the same bodies
        make_models.write(architecture, tmp_path / name)
        try:
            model = open_units(tiny.local(tmp_path / name, side=architecture.side), name)
        except ModelError:
            without_units.append(name)
            continue
        for units in model.units:
            reading = model.reading(units)
            assert reading.shape == model.writing(units).shape == (units.units, units.width), name
            assert compare_units(reading, reading).in_place > 0.9 * units.units, name
    assert set(without_units) <= {"ctrl"}


def write_model(folder: Path, architecture: str, seed: int = 0, **sizes) -> Path:
    """A model of random weights whose configuration has these sizes."""
    import transformers

    configuration = transformers.AutoConfig.for_model(architecture, vocab_size=len(tiny.tokenizer()), **sizes)
    torch.manual_seed(seed)
    head = transformers.AutoModelForMaskedLM if architecture == "albert" else transformers.AutoModelForCausalLM
    head.from_config(configuration).save_pretrained(folder)
    tiny.tokenizer().save_pretrained(folder)
    return folder


def on_screen(cli, source: object, target: object, store: Path) -> str:
    done = cli("analyze.py", "measure=lineage", f"model={source}", f"model@target={target}", f"store={store}")
    return " ".join(done.stdout.split())


@pytest.mark.ci_slow
@pytest.mark.parametrize(
    ("units", "counts"), [(1, "1 unit has 1 order"), (3, "3 units have 6 orders"), (0, "0 units have 1 order")]
)
@pytest.mark.filterwarnings("ignore:Initializing zero-element tensors")
def test_blocks_of_too_few_units_are_not_tested(units, counts, cli, tmp_path):
    """Neither "no more units in place than by chance" nor "a reordered copy" would be true of them."""
    sizes = {"hidden_size": 32, "num_attention_heads": 4, "num_hidden_layers": 2}
    model = write_model(tmp_path / "few", "llama", intermediate_size=units, **sizes)
    wide = write_model(tmp_path / "wide", "llama", seed=1, intermediate_size=64, **sizes)
    said = on_screen(cli, model, model, tmp_path / "store")
    assert f"Blocks 0 to 1 of few are not tested: {counts}, too few for p < 0.01 over 4 pairs of blocks." in said
    assert "than by chance" not in said.split("A unit of a block")[0]
    assert "Similarity" not in said
    beside_wide = thinkalike.lineage(model, wide)
    assert beside_wide.table["similar_units"].isna().all()
    assert thinkalike.lineage(wide, model).scalars["blocks_with_origin"] == 0
    assert thinkalike.lineage(wide, wide).scalars["blocks_with_origin"] == 2, "control"


def test_a_block_of_too_few_units_is_told_from_one_without_origin():
    """The screen has a run of blocks for each."""
    tokens = {f"a{row}": row for row in range(50)}
    weights = block(8, 30)
    for name, size in (("up_proj", (1, 8)), ("down_proj", (8, 1))):
        weights[f"layers.1.mlp.{name}.weight"] = torch.randn(size, generator=seeded(1))
        weights[f"layers.2.mlp.{name}.weight"] = torch.randn([30 if n == 1 else n for n in size], generator=seeded(2))
    model = unit_model("mixed", InMemory(weights), tokens, {})
    source = unit_model("source", InMemory(block(8, 30)), tokens, {})
    comparison = compare_models(source, model, 3)
    assert [pair.similar_share is None for pair in comparison.pairs] == [True, True, False]
    pairs = table_of_pairs(comparison).query("target_module != 'embedding'")
    runs = runs_of_blocks(with_tested(table_of_origins(comparison), pairs))
    assert [(run.blocks, run.source, run.units) for run in runs] == [
        ("block 0", "0", "30 of 30"),
        ("block 1", "not tested", "1 of 1"),
        ("block 2", "none", runs[2].units),
    ]


@pytest.mark.ci_slow
def test_the_blocks_of_an_albert_are_one(cli, tmp_path):
    """Its layers share one block, and its embedding has another width than the stream."""
    sizes = {"hidden_size": 64, "embedding_size": 16, "num_attention_heads": 4, "intermediate_size": 96}
    one = write_model(tmp_path / "one", "albert", num_hidden_layers=4, **sizes)
    other = write_model(tmp_path / "other", "albert", seed=1, num_hidden_layers=4, **sizes)
    said = on_screen(cli, one, one, tmp_path / "store")
    assert "Block 0 of one is that of one: 96 of 96 units in place" in said
    assert "over 1 pair of blocks." in said
    assert "as they are stored, as an embedding has another width than its stream (300 tokens are shared)." in said
    assert "No block of other is shown to come" in on_screen(cli, one, other, tmp_path / "store")


def test_a_result_of_version_1_does_not_say_why_weights_are_compared_as_stored():
    streams = pd.DataFrame([{"source": "model", "target": "model", "basis": "as stored", "tokens": 300}])
    result = made(pd.DataFrame(), {}, {}, config={}, streams=streams)
    assert streams_in_words(result, "model", "model") == (
        "Weights are compared as they are stored, as embeddings cannot align them (300 tokens are shared)."
    )


@pytest.mark.ci_slow
def test_two_models_of_mamba(cli, tmp_path):
    """The channels of a mixer are units, and no heads are counted."""
    independent = on_screen(cli, "mamba-mini", "mamba-mini-s1", tmp_path)
    assert "No block of mamba-mini-s1 is shown to come from a block of mamba-mini" in independent
    assert "Attention" not in independent
    itself = on_screen(cli, "mamba-mini", "mamba-mini", tmp_path)
    assert "Blocks 0 to 5 of mamba-mini are those of mamba-mini: of each, all units in place" in itself
    assert "64 of 64 coordinates in place" in itself


def test_a_folder_without_mlps_is_one_line(llama, tmp_path):
    shutil.copytree(llama, tmp_path / "attention")
    weights = load_file(llama / "model.safetensors")
    attention = {name: weight for name, weight in weights.items() if ".mlp." not in name}
    save_file(attention, tmp_path / "attention" / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ModelError, match="attention has no block with an MLP or mixer of a known form") as raised:
        thinkalike.lineage(tmp_path / "attention", llama)
    assert "\n" not in str(raised.value)


def test_one_unit_proves_nothing():
    tokens = {f"a{row}": row for row in range(50)}
    model = unit_model("one unit", InMemory(block(8, 1)), tokens, {})
    assert compare_models(model, model, 1).pairs[0].test.p == 1


def test_a_square_weight_of_gpt2_is_transposed():
    tokens = {f"a{row}": row for row in range(50)}
    weights = {
        "embed_tokens.weight": torch.randn(50, 6, generator=seeded(0)),
        "h.0.mlp.c_fc.weight": torch.randn(6, 6, generator=seeded(1)),
        "h.0.mlp.c_proj.weight": torch.randn(6, 6, generator=seeded(2)),
    }
    model = unit_model("square", InMemory(weights), tokens, {})
    (units,) = model.units
    assert torch.equal(model.reading(units), weights["h.0.mlp.c_fc.weight"].T)
    assert torch.equal(model.writing(units), weights["h.0.mlp.c_proj.weight"])


def test_weights_are_read_from_files_when_they_are_needed(llama):
    model = open_units(tiny.local(llama), "base")
    assert [units.block for units in model.units] == [0, 1]
    assert type(model.weights).__name__ == "StoredWeights"
    (llama / "model.safetensors").rename(llama / "moved")
    with pytest.raises(FileNotFoundError):
        model.reading(model.units[0])
    (llama / "moved").rename(llama / "model.safetensors")
    assert model.reading(model.units[0]).shape == (256, 256)
