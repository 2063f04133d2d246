"""Sparse autoencoders: what they keep, how maps carry them, what a start saves, and the files of SAELens."""

import importlib.util
import json
import math
import os
import subprocess
import sys

import pytest
import torch
from sae_courses import TOKENS, course
from safetensors.torch import load_file, save_file

import tiny
from thinkalike.contrib.sae.autoencoder import DeadCandidates, SparseAutoencoder, sae_loss
from thinkalike.contrib.sae.carrying import (
    for_original_states,
    for_standardised_states,
    mapped_autoencoder,
    with_fitted_decoder,
)
from thinkalike.contrib.sae.courses import StartCurve, savings, savings_table
from thinkalike.contrib.sae.saelens import load_sae, save_sae
from thinkalike.errors import ModelError
from thinkalike.measures import AffineMap, Moments
from thinkalike.measures.round_trips import both_directions

KINDS = [5, None]  # k, and None: a ReLU


def random_map(e: int, d: int) -> AffineMap:
    return AffineMap(torch.randn(e, d, dtype=torch.float64), torch.randn(e, dtype=torch.float64))


def explained(sae: SparseAutoencoder, states: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        return 1 - sae_loss(sae, states).errors.sum(-1) / (states - states.mean(0)).square().sum()


def test_topk_keeps_the_largest_latents_that_are_positive(float64):
    sae = tiny.jiggled(SparseAutoencoder.random(6, 12, k=5).double())
    with torch.no_grad():
        sae.b_enc.sub_(1.0)  # so that not all of the five are positive
    states = torch.randn(40, 6)
    before = states @ sae.W_enc + sae.b_enc
    latents = sae.encode(states)
    for row, kept in zip(before, latents, strict=True):
        largest = set(row.argsort(descending=True)[:5].tolist())
        expected = torch.tensor([value if i in largest and value > 0 else 0.0 for i, value in enumerate(row.tolist())])
        torch.testing.assert_close(kept.detach(), expected)
    assert (latents > 0).sum(-1).unique().tolist() == [0, 1, 2, 3, 4, 5], "control"
    torch.testing.assert_close(sae(states), latents @ sae.W_dec + sae.b_dec)


def test_one_without_any_error_explains_all_and_the_mean_nothing(float64):
    states = torch.randn(50, 6) + 3
    eye = torch.eye(6)
    both = SparseAutoencoder(torch.cat([eye, -eye], 1), torch.zeros(12), torch.cat([eye, -eye]), torch.zeros(6))
    assert explained(both, states) == 1
    nothing = SparseAutoencoder(torch.zeros(6, 12), torch.zeros(12), torch.zeros(12, 6), states.mean(0))
    assert explained(nothing, states).abs() < 1e-12
    assert explained(SparseAutoencoder.random(6, 12), states) < 0, "which knows nothing of the mean"
    assert (nothing.encode(states) <= 0).all()
    assert (both.encode(states - states.mean(0)) > 0).any(-2).all()


def test_the_loss_is_by_dimension_and_the_penalty_scale_free(float64):
    sae, states = tiny.jiggled(SparseAutoencoder.random(6, 12).double()), torch.randn(30, 6)
    plain, errors, active = sae_loss(sae, states)
    assert torch.equal(active, (sae.encode(states) > 0).sum(0))
    torch.testing.assert_close(plain, (sae(states) - states).square().mean())
    torch.testing.assert_close(errors, (sae(states) - states).square().sum(-1).detach())
    norms = sae.W_dec.norm(dim=-1)
    penalty = (sae.encode(states) * norms).sum(-1).mean() / 6
    torch.testing.assert_close(sae_loss(sae, states, 0.5).loss, plain + 0.5 * penalty)
    scale = torch.rand(12) + 0.5
    parts = sae.W_enc * scale, sae.b_enc * scale, sae.W_dec / scale[:, None], sae.b_dec
    other = SparseAutoencoder(*(part.detach() for part in parts))
    torch.testing.assert_close(sae_loss(other, states, 0.5).loss, sae_loss(sae, states, 0.5).loss)


def test_only_dead_latents_learn_to_explain_the_residual(float64):
    """The gradient is that of the latents that are dead alone, of what the others leave."""
    sae, states = tiny.jiggled(SparseAutoencoder.random(6, 12, k=2).double()), torch.randn(30, 6)
    plain = sae_loss(sae, states)
    none = DeadCandidates(torch.tensor([3, 5, 7]), torch.tensor([False, False, False]))
    assert sae_loss(sae, states, dead=none).loss == plain.loss
    found = sae_loss(sae, states, dead=DeadCandidates(none.latents, torch.tensor([True, False, True])))
    left = (states - sae(states)).detach()
    values = sae.pre_activations(states)[:, [3, 7]].relu()
    expected = (left - values @ sae.W_dec[[3, 7]]).square().mean() / 32
    torch.testing.assert_close(found.loss - plain.loss, expected)
    encoder, decoder = torch.autograd.grad(found.loss - plain.loss, [sae.W_enc, sae.W_dec])
    assert (
        encoder.abs().sum(0).nonzero().flatten().tolist() == decoder.abs().sum(1).nonzero().flatten().tolist() == [3, 7]
    )
    relu = SparseAutoencoder.random(6, 12).double()
    assert sae_loss(relu, states, dead=DeadCandidates(none.latents, ~none.is_dead)).loss == sae_loss(relu, states).loss


def test_a_fitted_decoder_is_that_of_least_squares(float64):
    sae, states = SparseAutoencoder.random(6, 12, k=5).double(), torch.randn(200, 6)
    fitted = with_fitted_decoder(sae, states, ridge=0.0)
    latents = torch.cat([sae.encode(states), torch.ones(200, 1)], 1).detach()
    solution = torch.linalg.lstsq(latents, states).solution
    torch.testing.assert_close(fitted.W_dec.detach(), solution[:-1])
    torch.testing.assert_close(fitted.b_dec.detach(), solution[-1])
    assert explained(fitted, states) > explained(sae, states)


def test_each_of_a_stack_reads_the_same_states_or_its_own(float64):
    several = [tiny.jiggled(SparseAutoencoder.random(6, 12, 3, seed).double()) for seed in range(3)]
    stack, states = SparseAutoencoder.stacked(several), torch.randn(3, 20, 6)
    torch.testing.assert_close(stack(states), torch.stack([own(h) for own, h in zip(several, states, strict=True)]))
    torch.testing.assert_close(stack(states[0]), torch.stack([own(states[0]) for own in several]))
    with pytest.raises(ValueError, match="same k"):
        SparseAutoencoder.stacked([SparseAutoencoder.random(8, 12, k=k) for k in (2, 4)])


@pytest.mark.parametrize("k", KINDS)
def test_a_carried_sae_encodes_and_decodes_through_the_maps(float64, k):
    sae, up, down = tiny.jiggled(SparseAutoencoder.random(6, 12, k).double()), random_map(9, 6), random_map(6, 9)
    other, states = mapped_autoencoder(sae, up, down), torch.randn(30, 9)
    torch.testing.assert_close(other.encode(states), sae.encode(down(states)))
    torch.testing.assert_close(other(states), up(sae(down(states))))
    assert (other.d, other.f, other.k) == (9, 12, k)


def test_a_change_of_units_keeps_the_latents_and_can_be_undone(float64):
    sae, mean = tiny.jiggled(SparseAutoencoder.random(6, 12, 5).double()), torch.randn(6)
    states, other = torch.randn(30, 6), for_standardised_states(sae, mean, 2.5)
    torch.testing.assert_close(other.encode((states - mean) / 2.5), sae.encode(states))
    torch.testing.assert_close(other((states - mean) / 2.5) * 2.5 + mean, sae(states))
    for a, b in zip(for_original_states(other, mean, 2.5).parameters(), sae.parameters(), strict=True):
        torch.testing.assert_close(a, b)


def planted(n: int, d: int, k: int = 2) -> tuple[torch.Tensor, SparseAutoencoder]:
    """States that are sparse sums of 2 d directions, with an offset, and the autoencoder of these directions."""
    directions, offset = torch.nn.functional.normalize(torch.randn(2 * d, d), dim=-1), torch.randn(d)
    active = torch.zeros(n, 2 * d).scatter(1, torch.rand(n, 2 * d).topk(k).indices, torch.rand(n, k) + 0.5)
    known = SparseAutoencoder(directions.T, -offset @ directions.T, directions, offset, k)
    states = active @ directions + offset
    return states, with_fitted_decoder(known, states)


def rotation_of(d: int) -> torch.Tensor:
    return torch.linalg.qr(torch.randn(d, d)).Q


def test_a_fitted_rotation_carries_an_sae_and_a_wrong_one_not():
    """Chance is what the autoencoder explains of states that are rotated at random: not 0, and .27 at width 32."""
    d, chance = 96, 0.126
    source, sae = planted(6_000, d)
    target = 1.7 * source @ rotation_of(d).T + torch.randn(d)
    native = explained(sae, source[4_000:])
    moments = Moments([(0, 0)])
    moments.update([source[:4_000]], [target[:4_000]])
    other = mapped_autoencoder(sae, *both_directions(moments.of((0, 0))))
    torch.testing.assert_close(other.encode(target[4_000:]), sae.encode(source[4_000:]), rtol=0, atol=1e-4)
    torch.testing.assert_close(explained(other, target[4_000:]), native, rtol=0, atol=1e-4)

    mean_x, mean_y, wrong = source.mean(0), target.mean(0), rotation_of(d)
    up = AffineMap(1.7 * wrong, mean_y - 1.7 * wrong @ mean_x)
    down = AffineMap(wrong.T / 1.7, mean_x - wrong.T @ mean_y / 1.7)
    astray = explained(mapped_autoencoder(sae, up, down), target[4_000:])
    others = [explained(sae, (source - mean_x) @ rotation_of(d).T + mean_x) for _ in range(5)]
    assert native > 0.98
    assert astray == pytest.approx(chance, abs=0.005)
    assert torch.stack(others).mean() == pytest.approx(chance, abs=0.005)


def test_a_start_twice_as_fast_saves_half():
    plain, fast = course("a", 1.0), course("b", 2.0, fixed=1000.0)
    saved = savings(fast, plain)
    budget = torch.tensor(TOKENS[1:]).double()
    expected = 1 - (1000 + 2 * budget / 2) / (2 * budget)
    torch.testing.assert_close(saved[2:], expected[2:, None].expand(6, 3), rtol=0, atol=0.02)


def test_between_two_looks_it_is_a_line_over_the_logarithm():
    one = StartCurve("a", [0, 1000, 4000], torch.tensor([[0.0], [0.5], [0.7]]), 0.0, 1.0)
    goals = torch.tensor([[0.0], [0.25], [0.5], [0.6], [0.7], [0.71]])
    assert one.tokens_to_explain(goals).flatten().tolist() == pytest.approx([0, 500, 1000, 2000, 4000, math.inf])
    falling = StartCurve("a", [0, 1000, 4000, 8000], torch.tensor([[0.0], [0.5], [0.4], [0.7]]), 0.0, 1.0)
    assert falling.tokens_to_explain(torch.tensor([[0.45], [0.5]])).flatten().tolist() == pytest.approx([900, 1000]), (
        "first time"
    )


def test_one_that_never_gets_there_saves_less_than_is_said():
    slow, plain = course("b", 0.1), course("a", 1.0)
    table, _ = savings_table([plain, slow])
    assert table["reached"].tolist() == [1.0] * 4 + [0.0] * 4
    assert (table["saved"] <= 0).all()
    assert table["saved"].iloc[-1] == 0, "all of its tokens cost as much as those of the other"


def test_tables_compare_each_start_with_those_before_it():
    courses = [course("random", 1.0), course("least_squares", 1.5), course("transferred", 3.0)]
    table, by_seed = savings_table(courses)
    pairs = list(dict.fromkeys(zip(table["start"], table["against"], strict=True)))
    assert pairs == [("least_squares", "random"), ("transferred", "random"), ("transferred", "least_squares")]
    assert by_seed.shape == (len(table), 3)
    torch.testing.assert_close(torch.tensor(table["saved"].tolist(), dtype=torch.float64), by_seed.mean(-1))
    assert ((table["saved_low"] <= table["saved"]) & (table["saved"] <= table["saved_high"])).all()


PYTHON = "THINKALIKE_SAELENS"  # environment variable: the interpreter of an environment that has sae_lens


def sae_of(k: int | None) -> SparseAutoencoder:
    """One that was carried over, so that its directions have different norms."""
    up, down = (AffineMap(torch.randn(*shape), torch.randn(shape[0])) for shape in ((9, 6), (6, 9)))
    return mapped_autoencoder(SparseAutoencoder.random(6, 20, k), up, down)


def rewrite(folder, tensors=None, **settings) -> None:
    """Change the files of an autoencoder; None leaves a tensor or a setting out."""
    path = folder / "cfg.json"
    config = {key: value for key, value in (json.loads(path.read_text()) | settings).items() if value is not None}
    path.write_text(json.dumps(config))
    weights = load_file(folder / "sae_weights.safetensors") | (tensors or {})
    save_file({name: each for name, each in weights.items() if each is not None}, folder / "sae_weights.safetensors")


@pytest.mark.parametrize("k", [4, None])
def test_what_was_written_is_read(tmp_path, k):
    sae = sae_of(k)
    save_sae(sae, tmp_path / "here", model_name="gpt2", hook_name="blocks.2.hook_resid_post")
    found = load_sae(tmp_path / "here")
    for a, b in zip(sae.parameters(), found.parameters(), strict=True):
        assert torch.equal(a, b)
    assert found.k == k


def test_what_saelens_computes_in_another_order_is_folded_in(tmp_path):
    sae, states = sae_of(4), torch.randn(30, 9)
    save_sae(sae, tmp_path)
    rewrite(tmp_path, apply_b_dec_to_input=True, rescale_acts_by_decoder_norm=True)
    norms = sae.W_dec.norm(dim=-1)
    before = ((states - sae.b_dec) @ sae.W_enc + sae.b_enc) * norms
    values, places = before.topk(4)
    latents = torch.zeros_like(before).scatter(-1, places, values.relu())
    found = load_sae(tmp_path)
    torch.testing.assert_close(found.encode(states), latents, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(found(states), latents / norms @ sae.W_dec + sae.b_dec, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("tensors", "settings", "message"),
    [
        ({"b_enc": None}, {}, r"'b_dec': \(9,\)}, and"),
        ({"W_gate": torch.zeros(2)}, {}, "W_gate"),
        ({}, {"architecture": "gated"}, "architecture=gated"),
        ({}, {"architecture": "standard", "activation_fn_str": "topk"}, "activation_fn_str=topk"),
        ({}, {"k": None}, "k=None"),
        ({}, {"k": True}, "k=True"),
        ({}, {"d_in": 7}, "shapes"),
        ({"b_enc": torch.zeros(1)}, {}, "shapes"),
        ({"b_dec": torch.full((9,), torch.nan)}, {}, "b_dec has entries that are not finite"),
        ({"W_dec": torch.zeros(20, 9)}, {"rescale_acts_by_decoder_norm": True}, "a direction of zeros"),
        ({"b_dec": torch.zeros(9, dtype=torch.long)}, {}, "float32, torch.int64"),
        ({}, {"apply_b_dec_to_input": "false"}, "neither true nor false"),
    ],
)
def test_autoencoders_of_other_kinds_are_refused(tmp_path, tensors, settings, message):
    save_sae(sae_of(4), tmp_path)
    rewrite(tmp_path, tensors, **settings)
    with pytest.raises(ModelError, match=message):
        load_sae(tmp_path)


SCRIPT = """
import sys
from safetensors.torch import load_file, save_file
from sae_lens import SAE
folder, states, out = sys.argv[1:]
sae = SAE.load_from_disk(folder)
latents = sae.encode(load_file(states)["states"])
save_file({"latents": latents, "rebuilt": sae.decode(latents)}, out)
"""


@pytest.mark.parametrize("k", [4, None])
def test_saelens_opens_a_carried_sae_with_the_same_latents(tmp_path, k):
    python = os.environ.get(PYTHON) or (sys.executable if importlib.util.find_spec("sae_lens") else None)
    if python is None:
        pytest.skip(
            f"SAELens 6 needs TransformerLens 3, not 4: give the python of an environment of its own as {PYTHON}"
        )
    sae, states, out = sae_of(k), torch.randn(50, 9), tmp_path / "out.safetensors"
    save_sae(sae, tmp_path / "sae", model_name="gpt2", hook_name="blocks.2.hook_resid_post")
    save_file({"states": states}, tmp_path / "states.safetensors")
    command = [python, "-c", SCRIPT, str(tmp_path / "sae"), str(tmp_path / "states.safetensors"), str(out)]
    run = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": ""})
    assert run.returncode == 0, run.stderr
    theirs = load_file(out)
    torch.testing.assert_close(theirs["latents"], sae.encode(states).detach(), rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(theirs["rebuilt"], sae(states).detach(), rtol=1e-6, atol=1e-6)
