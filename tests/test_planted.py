"""A pair with a known answer: the target computes what the source does, in rotated coordinates."""

import pytest
import torch

from conftest import composed
from thinkalike.config import TrainerConfig
from thinkalike.data.corpus import read_corpus
from thinkalike.evaluation.language import document_sums, state_moments
from thinkalike.instruments.stitching.fitting import ClosedForms, Setting, fitted
from thinkalike.measures import both_directions, procrustes
from thinkalike.models.frozen import FrozenModel
from thinkalike.models.load import load_model
from thinkalike.stitches.stitch_map import Site, StitchMap
from thinkalike.training.run import Run


def rotation(width):
    """A random orthogonal map that keeps the mean over the width, so that a LayerNorm without gain commutes with it."""
    mean = torch.full((width, 1), width**-0.5)
    basis = torch.linalg.qr(torch.cat([mean, torch.randn(width, width - 1)], 1)).Q
    turned = basis.clone()
    turned[:, 1:] = basis[:, 1:] @ torch.linalg.qr(torch.randn(width - 1, width - 1)).Q
    return turned @ basis.T


@torch.no_grad()
def rotate(module, q):
    """Fold every norm into what follows it, then conjugate all blocks with q: the same function of tokens."""

    def fold(norm, *linears):
        for linear in linears:
            if linear.bias is None:
                linear.bias = torch.nn.Parameter(torch.zeros(len(linear.weight)))
            linear.bias += linear.weight @ norm.bias
            linear.weight.copy_(linear.weight * norm.weight @ q.T)
        norm.weight.fill_(1)
        norm.bias.zero_()

    for block in module.layers:
        fold(block.ln1, block.attn.q, block.attn.k, block.attn.v)
        fold(block.ln2, block.mlp.fc_in)
        for linear in (block.attn.o, block.mlp.fc_out):
            linear.weight.copy_(q @ linear.weight)
            linear.bias.copy_(q @ linear.bias)
    fold(module.ln_out, module.head)
    for embedding in (module.tok_embed, module.pos):
        embedding.weight.copy_(embedding.weight @ q.T)
    return module


@pytest.fixture(scope="module")
def planted(tmp_path_factory):
    config = composed("model=gelu-3l-mini").model
    source, other = load_model(config), load_model(config)
    q = rotation(source.d_model)
    target = FrozenModel(rotate(other.module, q), other.family, other.tokenizer, name="rotated", context=256)
    data = composed(f"data.cache={tmp_path_factory.mktemp('cache')}").data
    corpus = read_corpus(data, source.tokenizer, 64, bos=False, fit_tokens=64)
    return source, target, q, corpus.report.tokens[:16]


PAIRS = [(0, 0), (1, 1), (2, 2)]


def penalty(source, target, phis, rows):
    sums = document_sums(source, target, PAIRS, {"stitch": phis}, rows, torch.zeros_like(rows), batch=8)
    return ((sums["stitch"] - sums["target"]) / sums["tokens"]).squeeze(1)


def test_the_planted_target_computes_the_same(planted):
    source, target, _, rows = planted
    torch.testing.assert_close(source.full(rows[:2].long()), target.full(rows[:2].long()), atol=1e-3, rtol=1e-3)


def test_procrustes_recovers_the_rotation_and_the_loss(planted):
    source, target, q, rows = planted
    moments = state_moments(source, target, PAIRS, rows, batch=8)
    maps = [procrustes(moments, pair) for pair in PAIRS]
    for found in maps:
        assert (found.weight - q).abs().max() < 1e-3
    assert penalty(source, target, maps, rows).abs().max() < 1e-4
    assert penalty(source, target, [torch.nn.Identity()] * 3, rows).min() > 1  # what the rotation did


def test_least_squares_recovers_the_rotation_both_ways(planted):
    source, target, q, rows = planted
    moments, held_out = (state_moments(source, target, PAIRS, part, batch=8) for part in (rows[:12], rows[12:]))
    for layer, depth in PAIRS:
        phi, psi = maps = both_directions(moments.of((layer, depth)))
        assert (phi.weight - q).abs().max() < 1e-4
        assert (psi.weight - q.T).abs().max() < 1e-4
        assert max(map(abs, maps.unexplained(held_out.of((layer, depth))))) < 1e-6
        sites = [Site.of(model.describe(), at) for model, at in ((source, layer), (target, depth))]
        stitched = StitchMap(phi.weight, phi.bias, *sites).stitched(source, target)
        back = StitchMap(psi.weight, psi.bias, *sites[::-1]).stitched(target, source)
        tokens = rows[:2].long()
        for model, reached in ((stitched, target), (back, source)):
            torch.testing.assert_close(model(tokens), reached.full(tokens), atol=2e-3, rtol=1e-3)
            greedy = model.generate(tokens[:, :8], steps=4)
            torch.testing.assert_close(greedy[:, 8:], reached.full(greedy[:, :-1]).argmax(-1)[:, 7:])
        unlike = StitchMap(torch.eye(len(q)), phi.bias, *sites).stitched(source, target)
        assert (unlike(tokens) - target.full(tokens)).abs().max() > 1, "control: the rotation matters"


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_the_default_recipe_finds_the_rotation(planted, tmp_path):
    source, target, _, _ = planted
    config = composed(f"data.cache={tmp_path}", "stitch.floor=false", "logger=none")
    recipe = config.stitch
    fit_tokens = recipe.steps * recipe.tokens_per_step
    corpus = read_corpus(config.data, source.tokenizer, 256, bos=False, fit_tokens=fit_tokens)
    setting = Setting(recipe, 0, source, target, PAIRS, corpus)
    run = Run(tmp_path, torch.device("cpu"), TrainerConfig())
    maps = fitted(ClosedForms(setting), run).maps
    assert penalty(source, target, maps, corpus.report.tokens[:128]).abs().max() < 0.005
