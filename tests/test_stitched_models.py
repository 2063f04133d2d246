"""The model that a stitch makes of two: head, map and tail, what it generates, and what does not go together."""

import pytest
import torch

import tiny
from thinkalike.errors import ModelError, StitchError
from thinkalike.models.families import FAMILIES
from thinkalike.models.frozen import FrozenModel
from thinkalike.stitches.stitch_map import Site, StitchMap


@pytest.fixture(scope="module")
def models():
    return tiny.frozen(0), tiny.frozen(1, d_model=48, d_head=12)


def made(source, target, layer=1, depth=2, widths=(48, 32)):
    generator = torch.Generator().manual_seed(0)
    parts = torch.randn(widths, generator=generator), torch.randn(widths[0], generator=generator)
    return StitchMap(*parts, Site.of(source.describe(), layer), Site.of(target.describe(), depth))


@pytest.fixture
def tokens():
    return torch.randint(len(tiny.tokenizer()), (2, 10))


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


def test_the_identity_of_a_model_with_itself_is_the_model(tokens):
    model = tiny.frozen(0)
    there = Site.of(model.describe(), 2)
    stitched = StitchMap(torch.eye(32), torch.zeros(32), there, there).stitched(model, model)
    torch.testing.assert_close(stitched(tokens), model.full(tokens), atol=1e-4, rtol=0)


def test_greedy_tokens_are_the_most_likely_and_draws_follow_the_seed_and_the_softmax(models, tokens):
    stitched = made(*models).stitched(*models)
    longer = stitched.generate(tokens, steps=5)
    assert torch.equal(longer[:, :10], tokens)
    assert torch.equal(longer[:, 10:], stitched(longer)[:, 9:-1].argmax(-1))
    cold = stitched.generate(tokens, 5, temperature=1e-4, seed=3)
    warm, again, other = (stitched.generate(tokens, 5, temperature=9.0, seed=seed) for seed in (3, 3, 4))
    assert torch.equal(cold, longer)
    assert torch.equal(warm, again)
    assert not torch.equal(warm, other)
    many = stitched.generate(tokens[:1].expand(4000, -1), 1, temperature=2.0)[:, -1]
    shares = torch.bincount(many, minlength=stitched.target.vocabulary) / 4000
    expected = (stitched(tokens[:1])[0, -1] / 2).softmax(-1)
    assert (shares - expected).abs().max() < 4 * (0.25 / 4000) ** 0.5
    assert torch.equal(stitched.generate(tokens, 0), tokens)


def test_generation_is_refused_at_a_negative_temperature_and_beyond_the_context(models, tokens):
    stitched = made(*models).stitched(*models)
    with pytest.raises(StitchError, match="temperature=-1"):
        stitched.generate(tokens, 1, -1.0)
    with pytest.raises(StitchError, match=r"steps=55 .* 64"):
        stitched.generate(tokens, 55)


def test_models_of_other_weights_are_refused_unless_no_check_is_asked_for(models, tokens):
    stitch, (source, target) = made(*models), models
    later = tiny.frozen(7)
    with pytest.raises(StitchError, match=f"tiny-7 has the weights {later.fingerprint()}.* check=False"):
        stitch.stitched(later, target)
    with pytest.raises(StitchError, match="tiny-0"):
        stitch.stitched(source, tiny.frozen(0, d_model=48, d_head=12))
    assert stitch.stitched(later, target, check=False)(tokens).shape == (2, 10, target.vocabulary)


def test_other_tokenizers_and_layers_that_are_not_there_are_refused(models):
    source, _ = models
    cutter = tiny.other_tokenizer()
    module = tiny.native(3, len(cutter), d_model=48, d_head=12)
    other = FrozenModel(module, FAMILIES["native"], cutter, name="other", context=64)
    with pytest.raises(StitchError, match="tiny-0 and other have different tokenizers"):
        made(source, other).stitched(source, other)
    with pytest.raises(ModelError, match="tiny-1 has no layer 4"):
        made(*models, depth=4).stitched(*models)
