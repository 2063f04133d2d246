"""Sites of models by TransformerLens's names: found, proved and refused; and components that tell where a change is."""

import contextlib
import math
import random

import pandas as pd
import pytest
import torch
import transformers
import yaml

import thinkalike
from architectures import KNOWN, PAGE, make_models
from conftest import composed, with_slow
from function_calls import FEW, TEXTS, bridged
from pages import DOCS
from thinkalike import load_model
from thinkalike.errors import ConfigError, ModelError
from thinkalike.instruments import run_job
from thinkalike.instruments.layer_pairs import components
from thinkalike.models.checkpoints import ASSETS
from thinkalike.models.middle import MiddleModel

TUNED = {"gpt2", "llama", "gemma2", "gpt_neox", "mamba", "bert", "bloom"}  # on which the rule was made
GROUPS = [  # of which so many are drawn: parallel blocks, sandwich norms, experts, state spaces
    (3, "codegen cohere cohere2 falcon gptj phi"),
    (1, "gemma3_text gemma4_text glm4"),
    (1, "mixtral qwen2_moe qwen3_moe olmoe deepseek_v3 dots1 gpt_oss granitemoe llama4_text jetmoe"),
    (1, "mamba2 falcon_mamba"),
]
LLAMA = (
    "model.layers embed=model.embed_tokens z<self_attn.o_proj resid_mid<post_attention_layernorm ln_final=model.norm"
)
DRAWN = {  # blocks, and the module that gives (=) or reads (<) each site, as transformers' own code has it
    "phi": "model.layers embed=model.embed_tokens z<self_attn.dense attn_out=self_attn mlp_post<mlp.fc2 mlp_out=mlp "
    "ln_final=model.final_layernorm",
    "gptj": "transformer.h embed=transformer.wte z<attn.out_proj attn_out=attn mlp_post<mlp.fc_out mlp_out=mlp "
    "ln_final=transformer.ln_f",
    "falcon": "transformer.h embed=transformer.word_embeddings z<self_attention.dense attn_out=self_attention "
    "mlp_post<mlp.dense_4h_to_h mlp_out=mlp ln_final=transformer.ln_f",
    "gemma4_text": "model.layers embed=model.embed_tokens z<self_attn.o_proj attn_out=post_attention_layernorm "
    "resid_mid<pre_feedforward_layernorm mlp_post<mlp.down_proj mlp_out=post_feedforward_layernorm ln_final=model.norm",
    "mixtral": f"{LLAMA} attn_out=self_attn mlp_out=mlp",
    "falcon_mamba": "backbone.layers embed=backbone.embeddings ln_final=backbone.norm_f",
    "nemotron_h": "model.layers embed=model.embeddings ln_final=model.norm_f",
    "deberta-v2": "deberta.encoder.layer embed=deberta.embeddings.word_embeddings z<attention.output.dense "
    "attn_out=attention.output.dense resid_mid=attention.output.LayerNorm mlp_post<output.dense mlp_out=output.dense",
    "mpt": "transformer.blocks embed=transformer.wte z<attn.out_proj attn_out=attn resid_mid<norm_2 "
    "mlp_post<ffn.down_proj mlp_out=ffn.down_proj ln_final=transformer.norm_f",
    "opt": "model.decoder.layers embed=model.decoder.embed_tokens z<self_attn.out_proj attn_out=self_attn "
    "resid_mid<final_layer_norm mlp_post<fc2 mlp_out=fc2 ln_final=model.decoder.final_layer_norm",
    "granite": f"{LLAMA} attn_out=self_attn mlp_post<mlp.down_proj mlp_out=mlp",
    "granitemoe": f"{LLAMA} attn_out=self_attn mlp_out=block_sparse_moe",
}
ORDER = ["embed", "resid_pre", "z", "attn_out", "resid_mid", "mlp_post", "mlp_out", "resid_post", "ln_final"]


def test_the_architectures_were_drawn():
    listed = yaml.safe_load((DOCS / "architectures.yaml").read_text())
    names = [*listed["decoders"], *listed["encoders"]]
    random.Random(48).shuffle(names)
    right = {line.split("|")[1].strip() for line in PAGE if line.endswith("right |")}
    left, drawn = [name for name in names if name in right - TUNED], []
    for count, group in GROUPS:
        drawn += [name for name in left if name in group.split()][:count]
    drawn += [name for name in left if name not in drawn][: 12 - len(drawn)]
    assert drawn == [*DRAWN]


def expected(module, tokens, written):
    """The states of a plain model by hooks of torch, at the modules that are written."""
    blocks, *sites = f"{written} resid_pre< resid_post=".split()
    depth, found = len(module.get_submodule(blocks)), {}
    with contextlib.ExitStack() as hooks, torch.no_grad():
        for site, sign, path in (each.replace("<", " < ").replace("=", " = ").split(" ") for each in sites):
            once = {"embed": -1, "ln_final": depth}.get(site)
            for layer in range(depth) if once is None else [once]:
                part = module.get_submodule(f"{blocks}.{layer}.{path}".strip(".") if once is None else path)
                if sign == "<":
                    hooks.enter_context(part.register_forward_pre_hook(
                        lambda _, args, named, key=(layer, site): found.update(
                            {key: [*args, *named.values()][0].clone()}), with_kwargs=True))  # fmt: skip
                else:
                    hooks.enter_context(part.register_forward_hook(
                        lambda _, __, out, key=(layer, site): found.update(
                            {key: (out if isinstance(out, torch.Tensor) else out[0]).clone()})))  # fmt: skip
        module(tokens)
    return found


@pytest.mark.usefixtures("command_line")
@pytest.mark.parametrize("name", with_slow(DRAWN, "mixtral", "gptj", "falcon_mamba"))  # as granitemoe, phi, nemotron_h
def test_sites_are_what_hooks_of_transformers_see(name, tmp_path):
    make_models.write(KNOWN[name], tmp_path)
    plain = getattr(transformers, KNOWN[name].kind).from_pretrained(tmp_path).eval()
    tokens = torch.randint(5, 300, (2, 24))
    theirs = expected(plain, tokens, DRAWN[name])
    has = [site for site in ORDER if site in {site for _, site in theirs}]
    model = load_model(tmp_path, site=has)
    places = model.sites.at(range(model.n_layers))
    assert len(places) == len(theirs)
    for place, ours in zip(places, model.residuals(tokens, places), strict=True):
        assert (ours - theirs[place.layer, place.site].view(ours.shape)).abs().max() <= 1e-6, str(place)
    lacks = next((site for site in ORDER if site not in has), None)
    if lacks:
        with pytest.raises(ModelError, match=f"model.site={lacks} is no site of .*, which has {', '.join(has)}($|;)"):
            load_model(tmp_path, site=lacks)


@pytest.mark.ci_slow
def test_sites_and_heads_are_those_of_a_bridge():
    sites = ["z", "attn_out", "resid_mid", "mlp_post", "mlp_out"]
    places = beside_a_bridge(bridged(), torch.randint(1000, (2, 16)), sites)
    assert [str(place) for place in places[:5]] == ["0.z.0", "0.z.1", "0.z.2", "0.z.3", "0.attn_out"]


@pytest.mark.ci_slow
@pytest.mark.parametrize("name", ["llama", "qwen2", "phi", "gpt_neox", "gptj", "bloom", "gemma3_text", "mpt"])
def test_heads_are_those_of_a_bridge(name, tmp_path):
    """Of grouped queries, with and without biases, and of blocks side by side: 4 heads in each of them."""
    make_models.write(KNOWN[name], tmp_path)
    places = beside_a_bridge(bridged(tmp_path), torch.randint(5, 300, (2, 16)), ["z"])
    assert {place.head for place in places} == {0, 1, 2, 3}


def beside_a_bridge(bridge, tokens, sites):
    """The places of sites, all heads among them, whose states from one pass are those of TransformerLens's hooks."""
    model, passes = load_model(bridge, site=sites, head="all"), []
    _, cache = bridge.run_with_cache(tokens)
    places = model.sites.at(range(model.n_layers))
    with model.blocks[0].register_forward_hook(lambda *_: passes.append(1)):
        states = model.residuals(tokens, places)
    assert len(passes) == 1
    for place, state in zip(places, states, strict=True):
        hook = {"z": "attn.hook_z", "mlp_post": "mlp.hook_post"}.get(place.site, f"hook_{place.site}")
        theirs = cache[f"blocks.{place.layer}.{hook}"]
        theirs = theirs if place.head is None else theirs.flatten(2).chunk(4, -1)[place.head]
        torch.testing.assert_close(state, theirs, atol=2e-5, rtol=1e-5)
    return places


def found(model):
    """The paths of the modules of all sites."""
    names = {part: path for path, part in model.module.named_modules()}
    return {place: (names[part], direction) for place, (part, direction) in model.sites.hook_points.items()}


@pytest.mark.parametrize(
    ("name", "site", "attention"),
    [pytest.param("gpt_neox", "z", "attention", marks=pytest.mark.ci_slow), ("llama", "resid_mid", "self_attn")],
)
def test_a_block_that_adds_nothing_has_the_form_of_the_others(name, site, attention, tmp_path):
    make_models.write(KNOWN[name], tmp_path)
    module, tokenizer = transformers.AutoModelForCausalLM.from_pretrained(tmp_path), make_models.tokenizer()
    before = load_model(module, tokenizer, site=site)
    block = module.get_submodule(f"{before.family.blocks}.1")
    with torch.no_grad():
        for weight in block.get_submodule(attention).parameters():
            weight.zero_()
    assert found(load_model(module, tokenizer, site=site)) == found(before)


def changed(kind, layer, head=1):
    """A copy of gpt2-mini with a change at one place, and its tokenizer."""
    module = transformers.AutoModelForCausalLM.from_pretrained(ASSETS / "gpt2-mini", dtype=torch.float32)
    block, width = module.transformer.h[layer], module.config.n_embd
    with torch.no_grad():
        if kind == "head":  # by a hook, which no weight shows
            scale = torch.ones(4, width // 4)
            scale[head] = 1.5
            block.attn.c_proj.register_forward_pre_hook(lambda _, args: (args[0] * scale.flatten(),))
        elif kind == "attention":
            block.attn.c_proj.weight.zero_()
            block.attn.c_proj.bias.zero_()
        elif kind == "mlp":
            weight = block.mlp.c_proj.weight
            weight += 0.5 * weight.std() * torch.randn_like(weight)
    return module, thinkalike.load_model("gpt2-mini").tokenizer


@pytest.mark.ci_slow
@pytest.mark.parametrize(("kind", "place"), [("attention", "attn_out"), ("mlp", "mlp_out"), ("head", "z.1")])
def test_the_table_of_components_names_the_place_of_a_change(kind, place, tmp_path, monkeypatch):
    monkeypatch.setenv("THINKALIKE_CACHE", str(tmp_path))
    site = {"site": "z", "head": "all"} if kind == "head" else {"site": ["mlp_out", "attn_out"]}
    result = thinkalike.compare("gpt2-mini", changed(kind, 3), measure="distance", **site, **FEW, texts=TEXTS)
    table = result.tables["components"]
    differ = table[table["value"] > 1e-5]
    assert (differ["layer"].iloc[0], differ["component"].iloc[0]) == (3, place)
    assert table["value"].idxmax() == differ.index[0]
    expected = {"attention": 1.0, "head": 0.5}.get(kind)
    assert expected is None or differ["value"].iloc[0] == pytest.approx(expected, abs=1e-5)
    said = str(result)
    assert f"begin to differ at {place} of layer 3" in said
    assert "Distances accumulate" in said
    axes = result.plot()
    assert [each.get_text() for each in axes.get_yticklabels()] == list("012345")
    alike = thinkalike.compare("gpt2-mini", changed(kind, 3), site="z", head="all", **FEW, texts=TEXTS)
    said = " ".join(str(alike).split())
    assert "the least similar in its row" in said, "heads of a copy are read for what differs"
    first = alike.table.iloc[0]
    assert first["source_layer"] == first["target_layer"]
    assert first["value"] == alike.tables["components"]["value"].min()
    assert 'CKA does not change when a component is scaled; measure="distance" does.' in said
    assert "most similar of all" not in said, "a head of a copy is most similar to itself"
    cells = alike.tables["components"].set_index(["layer", "component"])["value"]
    assert (cells.loc[:3] > 0.9999).all(), "CKA does not see a scale, and earlier heads are the same"
    assert (cells.loc[4:] < 0.9999).any()


@pytest.mark.ci_slow
@pytest.mark.parametrize("target", ["solu-3l-mini", "gelu-4l-mini"])
def test_the_screen_names_the_heads_of_both_models(target):
    """Heads of models that were trained separately have no common numbers, whether or not their layers have."""
    settings = {"site": "z", "head": "all", **FEW, "texts": TEXTS}
    result = thinkalike.compare("gelu-3l-mini", target, **settings)
    rows = result.details[(result.details["source"] != result.details["target"])]
    closest = rows.loc[rows["value"].idxmax()]
    assert closest["source_layer"] != closest["target_layer"], "control"
    heads = [
        f"z.{layer.rpartition('.')[2]} of layer {layer[0]} of {model}"
        for layer, model in (
            (closest["source_layer"], "gelu-3l-mini"),
            (closest["target_layer"], target),
        )
    ]
    said = " ".join(str(result).split())
    if target == "solu-3l-mini":
        assert f"in the same places. The most similar of all are {' and '.join(heads)} (CKA " in said
    else:
        assert f"most similar at {' with '.join(heads)} (" in said
        assert "each hook point with the most similar one of the same kind" in said
        assert f"Each hook point of gelu-3l-mini is compared with the most similar one of {target}" in result.summary
        axes = result.plot()
        assert axes.get_ylabel() == "layer of gelu-3l-mini", "the layers of the other model are in no row"


def heads_across(values):
    """The rows of four heads of layer 0 of one model with those of another."""
    names = [f"0.z.{head}" for head in range(4)]
    return pd.DataFrame(
        [("a", "b", source, target, values[i][j]) for i, source in enumerate(names) for j, target in enumerate(names)],
        columns=["source", "target", "source_layer", "target_layer", "value"],
    )


COPY = [[1.0, 0.2, 0.3, 0.1], [0.2, 0.4, 0.3, 0.1], [0.3, 0.2, 0.9, 0.1], [0.1, 0.2, 0.3, 1.0]]


@pytest.mark.parametrize("is_distance", [False, True])
def test_heads_of_a_copy_that_differ_most_come_first_and_of_separate_models_those_that_are_alike(is_distance):
    def table(similarities):
        return heads_across([[1 - each for each in row] if is_distance else row for row in similarities])

    copy, separate = table(COPY), table([COPY[index] for index in (1, 2, 3, 0)])
    assert components.places_correspond(copy, is_distance)
    assert not components.places_correspond(separate, is_distance)
    ranked = components.components_that_differ_first(copy, is_distance)
    assert list(ranked["source_layer"].head(4)) == ["0.z.1", "0.z.2", "0.z.0", "0.z.3"]
    assert sorted(ranked.index) == sorted(copy.index), "no row is lost"
    unlike = copy.assign(target_layer=copy["target_layer"].str.replace("0.", "1."))
    assert not components.places_correspond(unlike, is_distance), "no place is in both models"


def test_components_in_different_places_of_one_layer_are_named():
    table = pd.DataFrame(
        {"source": "a", "target": "b", "layer": 1, "component": ["z.0", "z.1"], "target_layer": 1}
        | {"target_component": ["z.1", "z.1"], "value": [0.25, 0.5], "low": math.nan, "high": math.nan}
    )
    assert not components.are_same_components(table)
    assert components._place_in_words(table.iloc[0]) == "z.0 of layer 1 of a with z.1 of layer 1 of b"
    assert components._place_in_words(table.iloc[1]) == "z.1 of layer 1"


@pytest.mark.ci_slow
def test_two_models_of_different_sites_by_function_and_command(tmp_path, monkeypatch, cli):
    monkeypatch.setenv("THINKALIKE_CACHE", str(tmp_path))
    one, other = load_model("gelu-3l-mini", site="z", head=1), load_model("gelu-3l-mini", site="mlp_out")
    ours = thinkalike.compare(one, other, **FEW).details
    assert list(ours[["source", "target"]].iloc[0]) == ["gelu-3l-mini[site=z,head=1]", "gelu-3l-mini[site=mlp_out]"]
    few = [f"measure.{name}={value}" for name, value in FEW.items()]
    words = ["measure=cka", "model=gelu-3l-mini", "model.site=z", "model.head=1", "target.site=mlp_out", *few]
    theirs = cli("analyze.py", *words).result.details
    assert (ours["value"] == theirs["value"]).all()


@pytest.mark.ci_slow
def test_a_stitch_before_the_mlp(tmp_path):
    few = {"site": "resid_mid", "layers": [1], "evaluation_tokens": 2048, "texts": TEXTS}
    result = thinkalike.stitch("gelu-3l-mini", kind="identity", **few)
    assert (result.details["penalty"] == 0).all()
    assert "before the MLP of a layer: gelu-3l-mini at resid_mid" in str(result)
    with pytest.raises(ModelError, match='site="resid_mid" is no site of neox-3l-mini, which has embed, resid_pre, z'):
        thinkalike.stitch("neox-3l-mini", **few)
    for name in ("openai-gpt", "opt", "gemma4_text", "mixtral"):  # norms behind, rows in one, norms around, experts
        make_models.write(KNOWN[name], tmp_path / name)
        MiddleModel(load_model(tmp_path / name))  # is proved
    make_models.write(KNOWN["jamba"], tmp_path)
    with pytest.raises(ModelError, match=r'site="resid_mid" cannot be cut: not every block of .* has attention'):
        MiddleModel(load_model(tmp_path))


def test_sites_that_mean_nothing_are_refused():
    with pytest.raises(ConfigError, match=r'^site="attn_out" is no place to cut a model: stitch at resid_post'):
        thinkalike.stitch("gelu-3l-mini", site="attn_out")
    with pytest.raises(ConfigError, match=r"^site=: loss reads the stream after each block"):
        run_job(composed("measure=loss", "model=gelu-3l-mini", "model.site=attn_out", entry="analyze"))
    for words, said in (
        ({"site": "resid_mid", "head": 2}, '^head=2 is a head of site="z", and site="resid_mid"'),
        ({"site": "z", "head": 9}, "^head=9: gelu-3l-mini has heads 0 to 3"),
        ({"site": "hook_z"}, '^site="hook_z"'),
    ):
        with pytest.raises((ConfigError, ModelError), match=said):
            thinkalike.compare("gelu-3l-mini", **FEW, **words)
