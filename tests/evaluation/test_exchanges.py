"""Exchanges of outputs of single heads, between a model and a copy in which one head was tuned."""

from copy import deepcopy

import pytest
import torch
import transformers as hf

import thinkalike
import tiny
from conftest import with_slow
from thinkalike.data.rows import TokenRows
from thinkalike.evaluation.changes import compare_batches
from thinkalike.evaluation.exchanges import exchange_outputs, output_at
from thinkalike.models.families import Place
from thinkalike.models.sites import Sites

D, HEADS, D_HEAD, LAYER, TUNED = 32, 4, 8, 1, 2
TOKENS = torch.randint(200, (8, 16), generator=torch.Generator().manual_seed(0))
ROWS = TokenRows(TOKENS, torch.arange(8)[:, None].expand(8, 16))
LLAMA = {
    "vocab_size": 300, "num_hidden_layers": 3, "hidden_size": D, "intermediate_size": 64,
    "num_attention_heads": HEADS, "max_position_embeddings": 64,
}  # fmt: skip


def module_of(family):
    """A random model: GPT-2 with one map for q, k and v, or a Llama of grouped queries or with biases."""
    torch.manual_seed(1)
    if family == "gpt2":
        size = {"vocab_size": 300, "n_layer": 3, "n_embd": D, "n_head": HEADS, "n_positions": 64}
        module = hf.GPT2LMHeadModel(hf.GPT2Config(**size))
    elif family == "gpt_neox":
        module = hf.GPTNeoXForCausalLM(hf.GPTNeoXConfig(**LLAMA))
    elif family == "llama_with_biases":
        module = hf.LlamaForCausalLM(hf.LlamaConfig(**LLAMA, attention_bias=True))
    else:
        module = hf.LlamaForCausalLM(hf.LlamaConfig(**LLAMA, num_key_value_heads=HEADS // 2))
    tiny.enlarge(module)
    return tiny.jiggled(module, 0.05).eval()


def weights_of_head(module, family, part, head):
    """The part of a weight (q, k, v or o) that belongs to one head, as a view, output first."""
    of_head = slice(D_HEAD * head, D_HEAD * (head + 1))
    if family == "gpt2":
        attention = module.transformer.h[LAYER].attn
        if part == "o":
            return attention.c_proj.weight.T[:, of_head]  # a Conv1D has the transpose of a Linear's weight
        return attention.c_attn.weight.T.view(3, D, D)["qkv".index(part), of_head]
    if family == "gpt_neox":
        attention = module.gpt_neox.layers[LAYER].attention
        if part == "o":
            return attention.dense.weight[:, of_head]
        return attention.query_key_value.weight.view(HEADS, 3, D_HEAD, D)[head, "qkv".index(part)]
    weight = getattr(module.model.layers[LAYER].self_attn, f"{part}_proj").weight
    if part == "o":
        return weight[:, of_head]
    queries_per_head = D // len(weight)  # several heads read one key and one value
    return weight.view(-1, D_HEAD, D)[head // queries_per_head]


def pair_tuned_in_one_head(family, part):
    module = module_of(family)
    tuned = deepcopy(module)
    with torch.no_grad():
        weights = weights_of_head(tuned, family, part, TUNED)
        weights += torch.randn(weights.shape, generator=torch.Generator().manual_seed(2))
    cutter = tiny.tokenizer()
    return thinkalike.load_model(module, cutter, "base"), thinkalike.load_model(tuned, cutter, "tuned")


OTHER_FAMILIES = ("llama_with_biases", "gpt2", "gpt_neox")


@pytest.mark.parametrize("family", with_slow(["llama", "llama_with_biases", "gpt2", "gpt_neox"], *OTHER_FAMILIES))
@pytest.mark.parametrize("part", ["q", "k", "v", "o"])
def test_a_tuning_of_any_weight_of_one_head_is_found_in_that_head(family, part):
    base, tuned = pair_tuned_in_one_head(family, part)
    batches, changes = zip(*compare_batches(base, tuned, ROWS, 8), strict=True)
    kl = torch.cat([change.tokens.kl for change in changes])
    outputs = exchange_outputs(base, tuned, batches, 1)
    assert kl.mean() > 1e-3
    heads = {point.head: exchange for point, exchange in outputs.items() if point.site == "z"}
    reached = {TUNED}
    if family == "llama" and part in "kv":
        reached = {2, 3}  # both read the key and the value that were tuned
    assert set(heads) == set(range(HEADS)), "all heads of a small attention are exchanged"
    assert {point.layer for point in outputs if point.site in ("attn_out", "z")} == {LAYER}
    for head, exchange in heads.items():
        restored = 1 - exchange.without.mean() / kl.mean()
        transplanted = exchange.alone.mean() / kl.mean()
        if head not in reached:
            assert abs(restored) < 1e-3
            assert abs(transplanted) < 1e-3
        elif len(reached) == 1:
            assert restored == pytest.approx(1, abs=1e-3)
            assert transplanted == pytest.approx(1, rel=1e-2)
        else:
            assert restored > 0.05 or transplanted > 0.05


@pytest.mark.parametrize("family", ["llama", "llama_with_biases", "gpt2", "gpt_neox"])
def test_contributions_of_heads_and_the_bias_add_up_to_the_output_of_attention(family):
    model, _ = pair_tuned_in_one_head(family, "o")
    sites = Sites(model, [], None)
    states = next(iter(compare_batches(model, model, ROWS, 8)))[0].base
    output = output_at(model, sites, Place("attn_out", LAYER), states)
    of_heads = torch.stack([output_at(model, sites, Place("z", LAYER, head), states) for head in range(HEADS)])
    projection = sites.hook_points["z", LAYER].module
    bias = getattr(projection, "bias", None)
    total = of_heads.sum(0) + (0 if bias is None else bias)
    assert torch.allclose(total, output, atol=1e-5)
    assert (of_heads.flatten(1).norm(dim=1) > 0.01 * output.norm()).all(), "control: every head adds something"
