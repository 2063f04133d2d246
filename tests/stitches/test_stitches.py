"""Stitches: kinds of φ and their starts, what they compose to, the models they make, and their files."""

import dataclasses
import inspect
import json
import os
import pickle

import numpy as np
import pandas as pd
import pytest
import torch
from safetensors.torch import save_file
from torch import nn

import hub
import stores
import tiny
from thinkalike import StitchModule
from thinkalike.errors import StitchError, StoreError
from thinkalike.measures import AffineMap, compare_outputs, token_kl, token_loss
from thinkalike.models.families import FAMILIES
from thinkalike.models.frozen import FrozenModel
from thinkalike.stitches import results
from thinkalike.stitches.results import load_stitch, stitch_modules
from thinkalike.stitches.stitch_map import Site, StitchMap

PAIRS = [(0, 1), (2, 2)]
MODELS = [
    {"name": name, "revision": "main", "weights": name * 16, "dtype": "float32", "family": "native"} for name in "ab"
]


@pytest.fixture
def finish(tmp_path):
    """Put a result with these tensors into a store."""

    def finished(tensors, kind="linear", norm="none", job_kind="stitching", without=(), layers=None, **more):
        def beside(folder):
            if tensors:
                told = {"pairs": PAIRS, "kind": kind, "norm": norm, **more}
                facts = json.dumps({name: fact for name, fact in told.items() if name not in without})
                save_file(tensors, folder / "stitch.safetensors", metadata={"stitch": facts})

        table = pd.DataFrame({"penalty": [0.0]})
        models = [{**model, "layers": str(layers)} for model in MODELS] if layers else MODELS
        return stores.finish(tmp_path, job_kind, "0123456789ab", {"table": table}, models, config={}, beside=beside)

    return finished


def plain(**options):
    return [StitchModule("linear", 6, 6, **options) for _ in PAIRS]


def tensors_of(phis, prefix=""):
    return {f"{prefix}{name}": weight for name, weight in nn.ModuleList(phis).state_dict().items()}


def site(name="a", layer=0, **changes):
    facts = {"model": name, "revision": "main", "fingerprint": name * 16, "dtype": "float32"}
    return Site(**{**facts, **changes}, layer=layer)


def random_map(source, target, widths=(6, 6)):
    return StitchMap(torch.randn(widths[1], widths[0]), torch.randn(widths[1]), source, target)


@pytest.mark.parametrize(
    ("kind", "widths"), [("linear", (8, 8)), ("affine", (8, 6)), ("low_rank", (8, 6)), ("orthogonal", (8, 8))]
)
def test_a_stitch_of_a_result_is_the_map_that_was_trained(finish, kind, widths):
    phis = [tiny.jiggled(StitchModule(kind, *widths, rank=3, seed=seed)) for seed in range(2)]
    stitches, states = load_stitch(finish(tensors_of(phis), kind)), torch.randn(3, 5, 8)
    assert list(stitches) == PAIRS
    for pair, phi in zip(PAIRS, phis, strict=True):
        found = stitches[pair]
        torch.testing.assert_close(found(states), phi(states), atol=1e-5, rtol=1e-5)
        assert (found.weight.shape, found.weight.dtype) == ((widths[1], 8), torch.float32)
        torch.testing.assert_close(states @ found.weight.T + found.bias, phi(states), atol=1e-5, rtol=1e-5)
        assert (str(found.source), str(found.target)) == (f"a:{pair[0]}", f"b:{pair[1]}")
    assert torch.equal(stitches[2].weight, stitches[2, 2].weight)
    assert (phis[0](states) - phis[1](states)).abs().max() > 0.1, "control: the pairs differ"


def test_a_closed_form_in_float64_is_a_map_in_float32(finish):
    fit = {"0.map.weight": torch.randn(6, 8).double(), "0.map.bias": torch.randn(6).double()}
    fit |= {name.replace("0.", "1.", 1): tensor + 1 for name, tensor in fit.items()}
    stitches = load_stitch(finish(fit, "least_squares").folder)
    assert torch.equal(stitches[2].weight, fit["1.map.weight"].float())
    assert torch.equal(stitches[0, 1].bias, fit["0.map.bias"].float())


def test_seeds_and_directions_are_chosen(finish):
    fits = {prefix: [tiny.jiggled(StitchModule("linear", 6, 6)) for _ in PAIRS] for prefix in ("", "seed_1.", "back.")}
    tensors = {name: each for prefix, phis in fits.items() for name, each in tensors_of(phis, prefix).items()}
    result = finish(tensors)
    stitches, states = load_stitch(result), torch.randn(4, 6)
    torch.testing.assert_close(stitches[0, 1](states), fits[""][0](states))
    torch.testing.assert_close(load_stitch(result, seed=1)[0, 1](states), fits["seed_1."][0](states))
    psi = stitches.back[0, 1]
    torch.testing.assert_close(psi(states), fits["back."][0](states))
    assert (psi.source, psi.target) == (stitches[0, 1].target, stitches[0, 1].source)
    assert repr(stitches) == "Stitches(a into b, linear, 2 layer pairs)"
    assert repr(stitches.back) == "Stitches(b into a, linear, 2 layer pairs)"
    assert torch.equal(stitches.back.back[2].weight, stitches[2].weight)
    assert str(stitches[2]) == "StitchMap(a:2 (6) → b:2 (6))"
    with pytest.raises(StitchError, match="both=True"):
        _ = load_stitch(result, seed=1).back
    with pytest.raises(StitchError, match="seeds=3"):
        load_stitch(result, seed=2)


def test_a_missing_layer_pair_is_a_key_error_naming_the_others(finish):
    stitches = load_stitch(finish(tensors_of(plain())))
    assert torch.equal(stitches.__getitem__(np.int64(2)).weight, stitches[2].weight)
    with pytest.raises(StitchError, match=r"\(1, 1\)"):
        _ = stitches[1]
    assert (0, 1) in stitches
    assert (1, 1) not in stitches
    assert stitches.get((5, 5)) is None


def test_a_result_without_affine_maps_is_refused(finish, tmp_path):
    with pytest.raises(StitchError, match="keeps no stitches"):
        load_stitch(finish({}, job_kind="cka"))
    with pytest.raises(StoreError):
        load_stitch(tmp_path)
    with pytest.raises(StitchError, match='norm="pre"'):
        load_stitch(finish(tensors_of(plain(norm="pre")), norm="pre"))


@pytest.mark.parametrize("name", ["kind", "norm", "rank", "pairs"])
def test_a_file_of_stitches_without_a_fact_is_one_line(finish, name):
    facts = {"widths": [6, 6], "rank": 8}
    assert list(stitch_modules(finish(tensors_of(plain()), **facts))) == PAIRS
    with pytest.raises(StitchError, match=name):
        stitch_modules(finish(tensors_of(plain()), without=[name], **facts))


def test_a_map_takes_any_dtype_and_passes_gradients():
    phi, states = random_map(site("a"), site("b"), (6, 9)), torch.randn(2, 3, 6, requires_grad=True)
    phi(states).sum().backward()
    torch.testing.assert_close(states.grad, phi.weight.sum(0).expand(2, 3, 6))
    assert [phi(states.to(dtype)).dtype for dtype in (torch.bfloat16, torch.float64)] == [torch.bfloat16, torch.float64]
    assert not any(weight.requires_grad for weight in phi.parameters())
    assert torch.equal(pickle.loads(pickle.dumps(phi)).weight, phi.weight)


WHOLE, SHIFT = torch.eye(3), torch.ones(3)
NO_MAPS = {  # by what is wrong: the arguments of a map, and what the error says
    "no weight": ((None, SHIFT), "the weight of a stitch"),
    "a weight without values": ((WHOLE.to("meta"), SHIFT), "the weight of a stitch is a tensor .* on the device meta"),
    "a bias of text": ((WHOLE, ["a", "b", "c"]), "the bias of a stitch holds"),
    "complex weights": ((1j * WHOLE, SHIFT), "the weight of a stitch is a tensor that is complex"),
    "an infinite weight": ((WHOLE / 0, SHIFT), "the weight of a stitch is not of finite numbers"),
    "a name as a site": ((WHOLE, SHIFT, "gelu"), "the source of a stitch is 'gelu'"),
}


def made_of(weight, bias, source):
    """A map as users make it, without checks of types by the tests."""
    phi = StitchMap.__new__(StitchMap)
    inspect.unwrap(StitchMap.__init__)(phi, weight, bias, source, site("b"))
    return phi


@pytest.mark.parametrize("what", NO_MAPS)
def test_what_is_no_map_is_refused_by_name(what):
    (weight, bias, *source), message = NO_MAPS[what]
    with pytest.raises(StitchError, match=message):
        made_of(weight, bias, source[0] if source else site("a"))


def test_a_map_is_made_of_arrays_and_takes_them():
    expected = StitchMap(2 * WHOLE, SHIFT, site("a"), site("b"))(torch.ones(2, 3))
    called = inspect.unwrap(StitchMap.forward)
    for sort in (torch.Tensor.numpy, torch.Tensor.tolist):
        phi = made_of(sort(2 * WHOLE), sort(SHIFT), site("a"))
        assert torch.equal(called(phi, sort(torch.ones(2, 3))).float(), expected)
    assert torch.equal(called(phi, torch.ones(2, 3).int()).float(), expected)
    for wrong in (torch.ones(2), torch.tensor(1.0), [1.0], "abc", None):
        with pytest.raises(StitchError, match=r"^states "):
            called(phi, wrong)
    with pytest.raises(TypeError):
        phi @ WHOLE


def test_composition_applies_the_right_map_first():
    a, b = random_map(site("b", 1), site("c", 2), (9, 4)), random_map(site("a"), site("b", 1), (6, 9))
    states = torch.randn(5, 6)
    torch.testing.assert_close((a @ b)(states), a(b(states)), atol=1e-5, rtol=1e-5)
    assert ((a @ b).source, (a @ b).target) == (b.source, a.target)
    renamed = random_map(site("a"), site("b", 1, model="another name"), (6, 9))
    assert (a @ renamed).target == a.target
    for other in (site("b", 2), site("b", 1, fingerprint="0" * 16), site("c", 1)):
        with pytest.raises(StitchError, match=str(other)):
            a @ random_map(site("a"), other, (6, 9))


def test_the_inverse_undoes_the_map_and_warns_of_its_condition():
    phi, states = random_map(site("a"), site("b", 1), (6, 9)), torch.randn(5, 6)
    condition = torch.linalg.cond(phi.weight.double())
    with pytest.warns(UserWarning, match=f"condition number {condition:.3g} multiplies noise by as much"):
        back = phi.inverse()
    torch.testing.assert_close(back(phi(states)), states, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close((back @ phi).weight, torch.eye(6), atol=1e-5, rtol=1e-5)
    assert (back.source, back.target) == (phi.target, phi.source)


def test_the_inverse_of_a_singular_map_undoes_what_can_be_undone():
    turned = torch.linalg.qr(torch.randn(64, 64)).Q  # so that float32 rounds what should be 0
    spread = torch.cat([torch.linspace(2, 1, 48), torch.zeros(16)])
    phi = StitchMap((turned * spread) @ turned.T, torch.ones(64), site("a"), site("b"))
    with pytest.warns(UserWarning, match="condition number 2 "):
        back = phi.inverse()
    states, kept = torch.randn(5, 64), turned[:, :48]
    torch.testing.assert_close(back(phi(states)), states @ kept @ kept.T, atol=1e-4, rtol=0)
    assert torch.linalg.cond(phi.weight.double()) > 1e6, "control"
    assert AffineMap(torch.zeros(3, 3), torch.ones(3)).condition == float("inf")


@pytest.fixture(scope="module")
def models():
    return tiny.frozen(0), tiny.frozen(1, d_model=48, d_head=12)


@pytest.fixture
def tokens():
    return torch.randint(len(tiny.tokenizer()), (2, 10))


def made(source, target, layer=1, depth=2, widths=(48, 32)):
    generator = torch.Generator().manual_seed(0)
    parts = torch.randn(widths, generator=generator), torch.randn(widths[0], generator=generator)
    return StitchMap(*parts, Site.of(source.describe(), layer), Site.of(target.describe(), depth))


def test_a_stitched_model_is_head_map_and_tail(models, tokens):
    stitch, (source, target) = made(*models), models
    stitched = stitch.stitched(source, target)
    expected = target.tail(stitch(source.head(tokens, 1)), 2)
    assert torch.equal(stitched(tokens), expected)
    assert stitched.context == 64
    assert (target.tail(stitch(source.head(tokens, 2)), 2) - expected).abs().max() > 1e-3, "control: the layer matters"


def test_gradients_reach_the_map_and_nothing_else(models, tokens):
    stitched = made(*models).requires_grad_().stitched(*models)
    stitched(tokens).logsumexp(-1).sum().backward()
    assert stitched.phi.weight.grad.abs().max() > 0
    assert not any(weight.requires_grad for model in models for weight in model.module.parameters())


def test_generation_is_greedy(models, tokens):
    stitched = made(*models).stitched(*models)
    longer = stitched.generate(tokens, steps=5)
    assert torch.equal(longer[:, :10], tokens)
    assert torch.equal(longer[:, 10:], stitched(longer)[:, 9:-1].argmax(-1))
    assert torch.equal(stitched.generate(tokens, 0), tokens)


def test_models_of_other_weights_are_refused_unless_unchecked(models, tokens):
    stitch, (source, target) = made(*models), models
    later = tiny.frozen(7)
    with pytest.raises(StitchError, match=f"tiny-7 has the weights {later.fingerprint()}.* check=False"):
        stitch.stitched(later, target)
    with pytest.raises(StitchError, match="tiny-0"):
        stitch.stitched(source, tiny.frozen(0, d_model=48, d_head=12))
    assert stitch.stitched(later, target, check=False)(tokens).shape == (2, 10, target.vocabulary)


def test_other_tokenizers_and_missing_layers_are_refused(models):
    source, _ = models
    cutter = tiny.other_tokenizer()
    module = tiny.native(3, len(cutter), d_model=48, d_head=12)
    other = FrozenModel(module, FAMILIES["native"], cutter, name="other", context=64)
    with pytest.raises(StitchError, match="tiny-0 and other have different tokenizers"):
        made(source, other).stitched(source, other)
    with pytest.raises(StitchError, match="the stitch has layer 4 of tiny-1, which has layers 0 to 3"):
        made(*models, depth=4).stitched(*models)


BEYOND = [(77, 2), (1, 77), (4, 4), (10**30, 0)]  # of models of four layers


@pytest.mark.parametrize(("layer", "depth"), BEYOND)
def test_a_folder_with_a_layer_that_a_model_lacks_is_refused_when_it_is_loaded(layer, depth, models, tmp_path):
    made(*models).save(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    config["source"]["layer"], config["target"]["layer"] = layer, depth
    (tmp_path / "config.json").write_text(json.dumps(config))
    name, wrong = ("tiny-0", layer) if layer > 3 else ("tiny-1", depth)
    said = f"^{tmp_path}/config.json: the stitch has layer {wrong} of {name}, which has layers 0 to 3$"
    with pytest.raises(StitchError, match=said):
        StitchMap.load(tmp_path)


@pytest.mark.parametrize(("layer", "depth"), BEYOND)
@pytest.mark.parametrize("check", [True, False])
def test_an_older_folder_with_a_layer_that_a_model_lacks_is_refused_when_they_are_combined(
    layer, depth, check, models, tmp_path
):
    made(*models).save(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    for side, number in (("source", layer), ("target", depth)):
        config[side]["layer"] = number
        del config[side]["layers"]
    (tmp_path / "config.json").write_text(json.dumps(config))
    stitch = StitchMap.load(tmp_path)
    name, wrong = ("tiny-0", layer) if layer > 3 else ("tiny-1", depth)
    with pytest.raises(
        StitchError, match=f"^{tmp_path}: the stitch has layer {wrong} of {name}, which has layers 0 to 3$"
    ):
        stitch.stitched(*models, check=check)


@pytest.mark.parametrize("pairs", [[[0, 1], [2, 9]], [[7, 0], [2, 2]], [[0, 1], [4, 4]]])
def test_a_result_with_a_layer_pair_that_its_models_lack_is_refused_when_it_is_loaded(pairs, finish):
    wrong = max(map(max, pairs))
    result = finish(tensors_of(plain()), widths=[6, 6], rank=3, pairs=pairs, layers=4)
    for read in (load_stitch, stitch_modules, lambda each: load_stitch(each).back):
        with pytest.raises(
            StitchError, match=rf"stitch\.safetensors: the stitch has layer {wrong} of [ab], which has la"
        ):
            read(result)
    older = finish(tensors_of(plain()), widths=[6, 6], rank=3, pairs=pairs)
    assert list(load_stitch(older)) == list(map(tuple, pairs)), "control: it does not know its layers"


def affine_of(phi, width):
    """Weight and bias of a map that is affine, read off its values."""
    shift = phi(torch.zeros(width))
    return (phi(torch.eye(width)) - shift).T, shift


def test_maps_keep_their_rank_or_lengths(float64):
    for kind in ("low_rank", "orthogonal"):
        torch.testing.assert_close(affine_of(StitchModule(kind, 8, 8, rank=3), 8)[0], torch.eye(8))
    weight, _ = affine_of(tiny.jiggled(StitchModule("low_rank", 8, 8, rank=3)), 8)
    assert torch.linalg.matrix_rank(weight - torch.eye(8)).item() == 3
    assert torch.linalg.matrix_rank(weight).item() == 8
    weight, shift = affine_of(tiny.jiggled(StitchModule("orthogonal", 8, 8)), 8)
    torch.testing.assert_close(weight @ weight.T, torch.eye(8))
    assert shift.abs().max() > 0.01
    assert (weight - torch.eye(8)).abs().max() > 0.1


@pytest.mark.parametrize(("kind", "keeps_bias"), [("linear", False), ("affine", True), ("low_rank", True)])
@pytest.mark.parametrize("widths", [(8, 8), (8, 6)])
def test_a_start_is_the_map_that_was_given(float64, kind, keeps_bias, widths):
    goal, bias = torch.randn(widths[1], widths[0]), torch.randn(widths[1])
    phi = StitchModule(kind, *widths, rank=min(widths))
    phi.start_from(goal, bias)
    weight, shift = affine_of(phi, widths[0])
    torch.testing.assert_close(weight, goal)
    torch.testing.assert_close(shift, bias if keeps_bias else torch.zeros(widths[1]))
    rotation, phi = torch.linalg.qr(torch.randn(8, 8)).Q, StitchModule("orthogonal", 8, 8)
    phi.start_from(rotation, torch.ones(8))
    torch.testing.assert_close(affine_of(phi, 8)[0], rotation)


def test_a_low_rank_start_is_the_nearest_of_its_rank(float64):
    goal = torch.eye(8) + torch.randn(8, 8)
    phi = StitchModule("low_rank", 8, 8, rank=2)
    phi.start_from(goal, torch.zeros(8))
    left, singular, right = torch.linalg.svd(goal - torch.eye(8))
    wanted = torch.eye(8) + left[:, :2] * singular[:2] @ right[:2]
    torch.testing.assert_close(affine_of(phi, 8)[0], wanted)


def test_unequal_widths_and_unknown_kinds_are_refused():
    for kind in ("orthogonal", "identity", "liner"):
        with pytest.raises(ValueError, match=kind):
            StitchModule(kind, 4, 5)


@pytest.mark.parametrize("chunk", [1, 7, 100])
def test_kl_is_that_of_torch_distributions(float64, chunk):
    finish, states, reference = nn.Linear(6, 20), torch.randn(30, 6, requires_grad=True), torch.randn(30, 6)
    p, q = (torch.distributions.Categorical(logits=finish(rows)) for rows in (reference, states))
    wanted = torch.distributions.kl_divergence(p, q)
    ours = token_kl(states, finish, reference, chunk)
    torch.testing.assert_close(ours, wanted)
    outer = torch.randn(30)
    (mine,) = torch.autograd.grad(ours, states, outer)
    (theirs,) = torch.autograd.grad(wanted, states, outer)
    torch.testing.assert_close(mine, theirs)
    assert token_kl(reference, finish, reference).abs().max() < 1e-14


@pytest.mark.parametrize("chunk", [1, 7, 100])
def test_outputs_are_compared_by_loss_kl_and_top_token(float64, chunk):
    finish, reference, targets = nn.Linear(6, 20), torch.randn(30, 6), torch.randint(20, (30,))
    ways = torch.stack([reference, reference + 0.2 * torch.randn(30, 6), torch.randn(30, 6)])
    loss, kl, top = compare_outputs(ways, finish, reference, targets, chunk)
    for number, way in enumerate(ways):
        torch.testing.assert_close(loss[number], token_loss(way, finish, targets))
        torch.testing.assert_close(kl[number], token_kl(way, finish, reference))
    assert torch.equal(top, finish(ways).argmax(-1) == finish(reference).argmax(-1))
    assert top[0].all()
    assert 0 < top[1].double().mean() < 1


@pytest.mark.parametrize("norm", ["pre", "post"])
def test_an_identity_is_a_map_and_a_layer_norm_is_none(norm):
    assert torch.equal(StitchModule("identity", 8, 8).affine().weight, torch.eye(8).double())
    with pytest.raises(ValueError, match=f"norm={norm}"):
        StitchModule("linear", 8, 8, norm=norm).affine()


@pytest.fixture
def stitch():
    sites = [Site(name, "main", layer, 2 * f"{name}1234567", "float32") for name, layer in (("a", 1), ("b", 2))]
    return StitchMap(torch.randn(9, 6), torch.randn(9), *sites)


def same(found, wanted):
    assert found.weight.numpy().tobytes() == wanted.weight.numpy().tobytes()
    assert found.bias.numpy().tobytes() == wanted.bias.numpy().tobytes()
    assert (found.source, found.target) == (wanted.source, wanted.target)


def test_a_folder_and_the_hub_give_the_same_bits(stitch, served, root):
    stitch.save(root / "someone" / "a-to-b")
    same(StitchMap.load(root / "someone" / "a-to-b"), stitch)
    same(StitchMap.from_pretrained(str(root / "someone" / "a-to-b")), stitch)
    served()
    same(StitchMap.from_pretrained("someone/a-to-b"), stitch)
    same(StitchMap.from_pretrained("someone/a-to-b", revision=hub.COMMIT), stitch)


def test_a_name_on_a_card_is_no_markup(stitch, tmp_path):
    evil = "a|b`<img src=x onerror=alert(1)>![x](http://x)\n# c\x1b[31m\u202e"
    site = dataclasses.replace(stitch.source, model=evil, revision="<b>|", fingerprint="`|<b>")
    StitchMap(stitch.weight, stitch.bias, site, stitch.target).save(tmp_path)
    text, code = (tmp_path / "README.md").read_text().split("```python")
    assert "<img" not in text
    assert "<b>" not in text
    assert "\\!\\[x\\](http" in text, "control: the name is there, as text"
    assert [line.count("|") - line.count("\\|") for line in text.splitlines() if line.startswith("|")] == [8] * 4
    assert {"\x1b", "\u202e"}.isdisjoint(text + code)
    assert code.count("```") == 1
    compile(code.partition("```")[0], "the example of the card", "exec")


def test_saving_again_replaces_all_that_was_there(stitch, tmp_path):
    stitch.save(tmp_path)
    with pytest.warns(UserWarning, match="condition number"):
        back = stitch.inverse()
    back.save(tmp_path)
    same(StitchMap.load(tmp_path), back)
    card = (tmp_path / "README.md").read_text()
    assert "# A stitch from b:2 to a:1" in card
    assert f"| source | b | main | 2 | 9 | float32 | `{stitch.target.fingerprint}` |" in card
    assert f"| target | a | main | 1 | 6 | float32 | `{stitch.source.fingerprint}` |" in card


def rewritten(name, **changes):
    def change(folder):
        config = json.loads((folder / name).read_text())
        (folder / name).write_text(json.dumps({**config, **changes}))

    return change


def with_weights(**tensors):
    return lambda folder: save_file(tensors, folder / "model.safetensors")


SITE = {"model": "a", "revision": "r", "layer": 1, "fingerprint": "0", "dtype": "float32"}
NO_STITCH = {
    "no config.json": lambda folder: (folder / "config.json").unlink(),
    "no weights": lambda folder: (folder / "model.safetensors").unlink(),
    "a damaged config.json": lambda folder: (folder / "config.json").write_text("{"),
    "another format": lambda folder: (folder / "config.json").write_text("{}"),
    "another version": rewritten("config.json", version=2),
    "half a site": rewritten("config.json", source={"model": "a"}),
    "no bias": with_weights(weight=torch.ones(9, 6)),
    "more than a map": with_weights(weight=torch.ones(9, 6), bias=torch.ones(9), scale=torch.ones(1)),
    "another shape": with_weights(weight=torch.ones(9, 6), bias=torch.ones(6)),
    "an infinite bias": with_weights(weight=torch.ones(9, 6), bias=torch.full((9,), torch.inf)),
    "whole numbers": with_weights(weight=torch.ones(9, 6, dtype=torch.long), bias=torch.ones(9)),
    "nothing": with_weights(weight=torch.ones(0, 6), bias=torch.ones(0)),
    "a layer that is text": rewritten("config.json", source={**SITE, "layer": "1"}),
    "layers that are text": rewritten("config.json", source={**SITE, "layers": "4"}),
    "fewer layers than none": rewritten("config.json", source={**SITE, "layers": -4}),
    "a layer beyond its layers": rewritten("config.json", source={**SITE, "layers": 1}),
    "a layer that is true": rewritten("config.json", target={**SITE, "layer": True}),
    "a pipe": lambda folder: ((folder / "config.json").unlink(), os.mkfifo(folder / "config.json")),
    "cut weights": lambda folder: os.truncate(folder / "model.safetensors", 200),
}


@pytest.mark.parametrize("case", NO_STITCH)
def test_a_folder_that_is_no_stitch_is_refused(stitch, tmp_path, case):
    stitch.save(tmp_path)
    NO_STITCH[case](tmp_path)
    with pytest.raises(StitchError, match=r"\A.*\Z"):  # one line
        StitchMap.load(tmp_path)


def test_a_repository_without_its_weights_is_refused(stitch, root, served):
    stitch.save(root / "someone" / "s")
    (root / "someone" / "s" / "model.safetensors").unlink()
    served()
    with pytest.raises(StitchError, match=r"model\.safetensors"):
        StitchMap.from_pretrained("someone/s")


@pytest.mark.parametrize("facts", ["null", "[]", "3", '"widths"', "true"])
def test_what_a_file_says_of_its_stitches_is_an_object(facts, tmp_path):
    def beside(folder):
        save_file({"0.map.weight": torch.eye(2)}, folder / "stitch.safetensors", metadata={"stitch": facts})

    result = stores.finish(tmp_path, "stitching", "abc", {"table": pd.DataFrame({"a": [0]})}, MODELS, beside=beside)
    for read in (stitch_modules, load_stitch):
        with pytest.raises(StitchError, match=r"stitch\.safetensors: what it says of its stitches is no JSON object"):
            read(result)


CLAIMED = {
    "kind": [{"kind": "nope"}, {"kind": 3}],
    "norm": [{"norm": "layer"}, {"norm": None}],
    "pairs": [
        {"pairs": pairs} for pairs in ([[1.7, 1.2]], [["1", "1"]], [[1, 1], [1, 1]], [[-1, 0]], [[1]], "ab", None)
    ],
    "widths": [{"widths": widths} for widths in ([6], [6.0, 6], [True, 6], [-1, 6], {"a": 6, "b": 6})],
}  # fmt: skip


@pytest.mark.parametrize(("name", "claim"), [(name, claim) for name, claims in CLAIMED.items() for claim in claims])
def test_what_a_file_says_of_its_stitches_is_possible(name, claim, finish):
    claims = {"kind": "linear", "norm": "none", "widths": [6, 6], "rank": 3, **claim}
    result = finish(tensors_of(plain()), **claims)
    for read in (load_stitch, stitch_modules):
        with pytest.raises(StitchError, match=rf"stitch\.safetensors: its {name} "):
            read(result)


def test_widths_that_are_not_those_of_the_weights_are_refused(finish):
    result = finish(tensors_of(plain()), widths=[6, 10**9])
    with pytest.raises(StitchError, match=r"the widths .6, 6., and the file claims"):
        _ = load_stitch(result)[2]


@pytest.mark.parametrize("dtype", [torch.int64, torch.uint8, torch.bool, torch.complex64])
def test_weights_that_are_no_real_numbers_are_refused(dtype, finish):
    """PyTorch would convert them, and a map of other numbers would come out."""
    tensors = {name: weight.to(dtype) for name, weight in tensors_of(plain()).items()}
    result = finish(tensors, widths=[6, 6], rank=3)
    for read in (lambda: load_stitch(result)[2], lambda: stitch_modules(result)):
        with pytest.raises(StitchError, match=f"map.weight is of dtype {str(dtype).removeprefix('torch.')}"):
            read()


@pytest.mark.parametrize("seed", ["x", -1, 1.0, True, None, 10**30])
def test_a_seed_that_no_fit_has_is_refused_by_its_name(seed, finish):
    result = finish(tensors_of(plain()), widths=[6, 6], rank=3)
    contents = inspect.unwrap(results._stated_facts)  # users have no checks of types before it
    with pytest.raises(ValueError, match=r"seed=.* must be a whole number"):
        contents(result, seed, False)
    with pytest.raises(StitchError, match="seeds are numbered from 0"):
        load_stitch(result, seed=10**6)


def test_stitches_without_widths_are_not_sent_from_one_reader_to_the_other(finish):
    result = finish(tensors_of(plain(norm="pre")), norm="pre")
    for read, remedy in ((load_stitch, "fit them again"), (stitch_modules, "does not say the widths")):
        with pytest.raises(StitchError, match=remedy):
            read(result)


@pytest.mark.timeout(30)
@pytest.mark.parametrize(
    ("kind", "more"),
    [
        ("linear", {"widths": [20_000, 20_000]}),
        ("affine", {"widths": [10**12, 1]}),
        ("orthogonal", {"widths": [30_000, 30_000]}),
        ("low_rank", {"widths": [6, 6], "rank": 10**7}),
        ("low_rank", {"widths": [6, 6], "rank": 10**15}),
        ("identity", {"widths": [10**12, 10**12], "norm": "pre"}),
        ("linear", {"widths": ["a" * 1000, 10**9]}),
        ("linear", {"widths": [6.0, 6]}),
        ("linear", {"widths": [-6, -6]}),
        ("linear", {"widths": [True, 6]}),
        ("linear", {"widths": [6]}),
        ("low_rank", {"widths": [6, 6], "rank": None}),
    ],
)
def test_a_stitch_is_not_made_as_large_as_its_file_claims(kind, more, finish, monkeypatch):
    """The shapes were compared after the weights that the file claims were made: 1.6 GB for a file of a kilobyte."""
    made = []
    monkeypatch.setattr("torch.nn.Linear", lambda *sizes, **options: made.append(sizes))
    claim = {"rank": 3, **more}
    result = finish(tensors_of([StitchModule("identity", 6, 6, norm="pre") for _ in PAIRS]), kind, **claim)
    with pytest.raises(StitchError, match=r"it claims a stitch of|its widths .* must be|its widths or its rank are"):
        stitch_modules(result)
    assert made == []


@pytest.mark.timeout(30)
def test_a_folded_stitch_is_not_made_larger_than_its_tensors(finish):
    """Its widths are those of its first and last matrix, between which a hostile file can leave out the rest."""
    tensors = {"0.a": torch.zeros(1, 150_000), "0.b": torch.zeros(150_000, 1)}
    result = finish(tensors, "affine")
    with pytest.raises(StitchError, match="it claims a stitch of 22,500,000,000 weights or more"):
        _ = load_stitch(result)[0, 1]
