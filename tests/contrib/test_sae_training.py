"""Training of autoencoders: each has the bits that it has alone, interrupted or not, and its operations are counted."""

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

import tiny
from conftest import break_off
from thinkalike.config import TrainerConfig
from thinkalike.contrib.sae import fitting as formulas
from thinkalike.contrib.sae.config import SAEConfig
from thinkalike.contrib.sae.measures import Dead, SparseAutoencoder, carried, sae_loss, with_fitted_decoder
from thinkalike.contrib.sae.training import (
    SAEFit,
    SAETraining,
    SiteStates,
    kept_by_document,
    site_states,
    spliced_losses,
    spread_by_document,
    states_after,
)
from thinkalike.data.corpus import TokenRows
from thinkalike.errors import DataError, TrainingError
from thinkalike.evaluation.language import next_token_losses
from thinkalike.measures import PairMoments, both_directions
from thinkalike.models.shapes import operations
from thinkalike.training.run import Run, fit

CONTEXT = 16
SIZES = {"layer": 1, "width": 40, "k": 4, "tokens": 1024, "tokens_per_step": 32, "steps_per_buffer": 4}


def training(fits, model=None, **changes) -> SAETraining:
    config = SAEConfig(**SIZES | changes)
    report = SiteStates(torch.randn(50, 32, generator=torch.Generator().manual_seed(2)), torch.arange(50) // 10)
    mean, scale = torch.linspace(-1, 1, 32), 0.7
    return SAETraining(model or tiny.frozen(), fits, config, mean, scale, report)


ROWS = torch.randint(300, (40, CONTEXT), generator=torch.Generator().manual_seed(1))


def fits_of(seeds, factors=(1.0,), k=4) -> list[SAEFit]:
    return [SAEFit(SparseAutoencoder.random(32, 40, k, seed), factor, seed) for factor in factors for seed in seeds]


def run(module, folder, every=50) -> SAETraining:
    fit(module, module.data(ROWS), Run(folder, torch.device("cpu"), TrainerConfig(checkpoint_every=every)))
    module.look(len(module.config.looks) - 1)
    return module


def same(one: SparseAutoencoder, other: SparseAutoencoder) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters(), strict=True))


@pytest.mark.parametrize(("activation", "k"), [("topk", 4), ("relu", None)])
def test_each_sae_has_its_bits_whatever_trains_beside_it(tmp_path, activation, k):
    together = run(training(fits_of([3, 5, 8], [1.0, 0.25], k), activation=activation), tmp_path / "all")
    for number, seed, factor in ((1, 5, 1.0), (5, 8, 0.25)):
        alone = run(training(fits_of([seed], [factor], k), activation=activation), tmp_path / str(number))
        assert same(alone.trained()[0], together.trained()[number])
        for name in ("errors", "active", "dead"):
            assert torch.equal(getattr(alone, name)[:, 0], getattr(together, name)[:, number])
    assert not same(together.trained()[0], together.trained()[1]), "control"


@pytest.mark.parametrize("at", [8, 14])  # between two buffers, in one
def test_an_interrupted_training_resumes_to_the_same_bits(tmp_path, at, caplog):
    whole = run(training(fits_of([0, 1], [1.0, 2.0])), tmp_path / "whole")
    broken = training(fits_of([0, 1], [1.0, 2.0]))
    break_off(broken, at)
    with pytest.raises(DataError, match="broken off"):
        run(broken, tmp_path / "broken", every=1)
    with caplog.at_level("INFO", logger="thinkalike"):
        again = run(training(fits_of([0, 1], [1.0, 2.0])), tmp_path / "broken")
    assert f"resuming from {tmp_path / 'broken' / 'checkpoints' / 'training'}-{at}-" in caplog.text
    for name, value in whole.state_dict().items():
        assert torch.equal(value, again.state_dict()[name]), name


def test_a_step_is_adams_on_a_shuffled_buffer_of_states(tmp_path):
    """The same in a few lines, for one autoencoder."""
    module = training(fits_of([7]), tokens=128, lr=1e-3)
    run(module, tmp_path)
    model, config = tiny.frozen(), module.config
    rows = module.data(ROWS).batch(0)
    states = (states_after(model, 1, rows, config.skip_first_tokens) - module.mean) / module.scale
    assert len(states) == 128 // CONTEXT * (CONTEXT - 1)
    order = torch.randperm(len(states), generator=torch.Generator().manual_seed(7 * 1_000_003))
    sae = training(fits_of([7])).stacks[0]
    optimizer = torch.optim.Adam(sae.parameters(), lr=1e-3, betas=(0.9, 0.99), foreach=False)
    means = [weight.detach().clone() for weight in sae.parameters()]
    for step, batch in enumerate(states[order].split(len(states) // 4), 1):
        optimizer.zero_grad()
        (sae(batch) - batch).square().mean().backward()
        optimizer.step()
        means = [
            mean + 9 / (step + 8) * (own.detach() - mean) for mean, own in zip(means, sae.parameters(), strict=True)
        ]
    for a, b in zip(sae.parameters(), module.stacks[0].parameters(), strict=True):
        torch.testing.assert_close(a, b)
    for a, b in zip(means, module.averages[0].parameters(), strict=True):
        torch.testing.assert_close(a, b)


def test_looks_are_at_the_report_before_their_steps(tmp_path):
    module = training(fits_of([0, 1]))
    assert module.config.looks == [0, 1, 2, 3, 4, 6, 8, 11, 16, 23, 32]
    begins = SparseAutoencoder.stacked([each.begins for each in fits_of([0, 1])])
    report = SiteStates(module.report.states * module.scale + module.mean, module.report.documents)
    run(module, tmp_path)
    torch.testing.assert_close(module.errors[0], kept_by_document(begins, report, 5).errors.float(), rtol=1e-4, atol=0)
    ended = SparseAutoencoder.stacked(module.trained())
    torch.testing.assert_close(module.errors[-1], kept_by_document(ended, report, 5).errors.float(), rtol=1e-4, atol=0)
    assert module.errors.isfinite().all()
    assert (module.errors[-1] != module.errors[0]).all(), "control"


def test_latents_that_are_inactive_for_long_are_given_a_gradient(tmp_path):
    """Those that a bias keeps from being among the largest stay as they are, unless they are revived."""
    (own,) = fits_of([0])
    with torch.no_grad():
        own.begins.b_enc[:20] -= 1.5
    start = training([own]).stacks[0].W_enc[0]
    changed = {}
    for after in (0, 100):
        module = run(training([own], dead_after=after), tmp_path / str(after))
        changed[after] = int(((module.stacks[0].W_enc[0] - start).abs().amax(0)[:20] > 0.01).sum())
    assert changed[100] > changed[0] + 5


def test_what_is_kept_is_summed_by_document_in_any_batches(monkeypatch):
    stack = SparseAutoencoder.stacked([each.begins for each in fits_of([0, 1, 2])])
    own = SiteStates(torch.randn(60, 32), torch.arange(60) // 7)
    kept = kept_by_document(stack, own, 9)
    monkeypatch.setattr("thinkalike.contrib.sae.training.LATENTS", 1)
    for one, other in zip(kept, kept_by_document(stack, own, 9), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-6, atol=0)
    errors = sae_loss(stack, own.states).errors
    torch.testing.assert_close(kept.errors[:, 2].float(), errors[:, 14:21].sum(-1))
    latents = stack.encode(own.states)
    torch.testing.assert_close(kept.active.float(), (latents > 0).float().sum(-1).mean(-1))
    torch.testing.assert_close(kept.dead.float(), (latents <= 0).all(-2).float().mean(-1))
    whole = (own.states - own.states.mean(0)).square().sum()
    torch.testing.assert_close(spread_by_document(own, 9).sum().float(), whole)


def test_one_that_diverges_is_one_line(tmp_path):
    with pytest.raises(TrainingError, match=r"^the loss is .* at step .* of 32; lower sae\.lr="):
        run(training(fits_of([0]), lr=1e30), tmp_path)


class Same(SparseAutoencoder):
    """One without any error."""

    def forward(self, states):
        return states


@torch.no_grad()
def test_splicing_in_the_states_changes_no_loss():
    model, skip = tiny.frozen(), 2
    rows = TokenRows(torch.randint(300, (6, CONTEXT)), torch.arange(6).repeat_interleave(CONTEXT).view(6, CONTEXT) // 2)
    own = site_states(model, 1, rows, skip)
    mean = own.states.mean(0)
    constant = SparseAutoencoder(torch.zeros(32, 5), torch.zeros(5), torch.zeros(5, 32), mean)
    losses = spliced_losses(model, 1, [Same.random(32, 5), constant], mean, rows, skip)
    torch.testing.assert_close(losses.spliced[0], losses.clean)
    torch.testing.assert_close(losses.spliced[1], losses.ablated)
    assert losses.tokens.tolist() == [2.0 * (CONTEXT - 1)] * 3
    assert (losses.ablated - losses.clean).abs().min() > 1e-3, "control"
    states = model.head(rows.tokens, 1)
    states[:, skip:] = mean
    ends = model.advance(states, 2, model.n_layers)
    expected = next_token_losses(model, [ends], rows.tokens)[0].view(3, -1).sum(-1)
    torch.testing.assert_close(losses.ablated, expected.double(), rtol=1e-5, atol=0)


def counted(work) -> int:
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        work()
    return counter.get_total_flops()


def test_a_step_takes_what_the_counter_of_torch_counts():
    stack, states = SparseAutoencoder.stacked([each.begins for each in fits_of(range(3))]), torch.randn(50, 32)
    settings = [SAEConfig(**{**SIZES, "activation": "topk", "dead_after": dead}) for dead in (0, 100)]
    alone, looked_after = (150.0 * formulas.of_token(each, 1.0, formulas.Site(32, 0.0)) for each in settings)
    assert counted(lambda: sae_loss(stack, states).loss.sum().backward()) == alone
    count = settings[1].revived
    dead = Dead(torch.arange(count).expand(3, count), torch.ones(3, count, dtype=torch.bool))
    assert counted(lambda: sae_loss(stack, states, dead=dead).loss.sum().backward()) == looked_after


def test_a_starts_operations_are_those_that_torch_counts():
    model, source = tiny.frozen(), tiny.frozen(1, d_model=48, d_head=12)
    rows = torch.randint(300, (4, CONTEXT))
    config = SAEConfig(**SIZES, map_tokens=rows.numel(), start="transferred", source="a")
    own, other = (Site(each) for each in (model, source))
    seen = (CONTEXT - 1) / CONTEXT

    def transferred():
        moments = PairMoments()
        moments.update(states_after(source, 1, rows, 1), states_after(model, 1, rows, 1))
        carried(SparseAutoencoder.random(48, 40, 4), *both_directions(moments))

    def fitted():
        with_fitted_decoder(SparseAutoencoder.random(32, 40, 4), states_after(model, 1, rows, 1))

    solved = formulas.EIGEN * (32**3 + 48**3)
    assert formulas.of_start("transferred", config, seen, own, other) == counted(transferred) + solved
    assert formulas.of_start("least_squares", config, seen, own) == counted(fitted) + formulas.EIGEN * 40**3
    assert formulas.of_start("random", config, seen, own) == 0


def test_a_training_token_costs_a_head_pass_and_part_of_a_step():
    model = tiny.frozen()
    rows = torch.randint(300, (4, CONTEXT))
    states = states_after(model, 1, rows, 1)

    def step():
        states_after(model, 1, rows, 1)
        sae_loss(SparseAutoencoder.random(32, 40, 4), states).loss.backward()

    whole = rows.numel() * formulas.of_token(SAEConfig(**SIZES, dead_after=0), (CONTEXT - 1) / CONTEXT, Site(model))
    assert whole == pytest.approx(counted(step), rel=1e-12)


def Site(model) -> formulas.Site:
    return formulas.Site(model.d_model, operations(model).forward(0, 2, CONTEXT))
