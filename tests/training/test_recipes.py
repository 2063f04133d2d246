"""What is trained beside the stitches of a job: rates, floors, twins, optimisers, starts; and a planted rotation."""

from dataclasses import replace
from functools import partial
from unittest.mock import create_autospec

import pytest
import torch
from torch import nn

import tiny
from conftest import composed, step_data
from rotated_models import rotate, rotation
from thinkalike.config import TrainerConfig
from thinkalike.data.corpus import read_corpus
from thinkalike.evaluation.forward import states_onwards
from thinkalike.evaluation.moments import state_moments
from thinkalike.evaluation.stitched_losses import Control, document_sums
from thinkalike.evaluation.token_means import BigramMeans
from thinkalike.instruments.stitching.closed_forms import ClosedForms
from thinkalike.instruments.stitching.fitting import fit_stitches
from thinkalike.instruments.stitching.setting import StitchSetting
from thinkalike.measures import Moments, least_squares, procrustes, reduced_rank
from thinkalike.measures.closed_forms import AffineMap
from thinkalike.measures.halved_moments import HalvedMoments
from thinkalike.measures.round_trips import both_directions
from thinkalike.memory import Budget
from thinkalike.models.frozen import FrozenModel
from thinkalike.models.load import load_model
from thinkalike.models.middle import MiddleModel
from thinkalike.stitches.stitch_map import Site, StitchMap
from thinkalike.training.optimizers import EPSILON, PulledAdamW, WhitenedSGD, inverse_moments, peak_rate
from thinkalike.training.recipe import StitchConfig
from thinkalike.training.run import TrainingRun
from thinkalike.training.stitching import Fit, StitchAveraging, StitchTraining
from thinkalike.training.trainer import fit

CONFIG = StitchConfig(steps=10, warmup=2, tokens_per_step=128)
PAIRS = [(0, 1), (2, 2)]


@pytest.fixture(scope="module")
def rows():
    return torch.randint(300, (40, 32), generator=torch.Generator().manual_seed(5), dtype=torch.int32)


@pytest.fixture(scope="module")
def models():
    return tiny.frozen(1), tiny.frozen(2, act_fn="gelu")


@pytest.fixture
def trained(rows, models, tmp_path):
    """Train stitches; returns the module."""

    def go(name, pairs=PAIRS, config=CONFIG, both=models, **more):
        module = StitchTraining(*both, pairs, config, 0, **more)
        fit(module, step_data(rows, module), TrainingRun(tmp_path / name, torch.device("cpu"), TrainerConfig()))
        return module

    return go


def same(mine, own):
    for one, other in zip(mine.parameters(), own.parameters(), strict=True):
        assert one.abs().max() > 1e-4  # it moved
        torch.testing.assert_close(one, other, atol=1e-6, rtol=0)


@pytest.mark.ci_slow
@pytest.mark.parametrize(("optimizer", "kind"), [("sgd", "affine"), ("adam", "linear")])
def test_stitches_trained_together_train_as_alone(trained, models, optimizer, kind):
    source, target = models
    twin, config = tiny.frozen(7), replace(CONFIG, optimizer=optimizer, kind=kind, steps=5)
    beside = [Fit(source, 2, 2, 3.0), Fit(target, 1, 1), Fit(twin, 0, 2)]
    together = trained("together", config=config, beside=beside)
    faster = replace(config, lr=3 * config.peak)
    alone = [
        trained("alone 1", [(0, 1)], config),
        trained("alone 2", [(2, 2)], config),
        trained("faster", [(2, 2)], faster),
        trained("floor", [(1, 1)], config, (target, target)),
        trained("twin", [(0, 2)], config, (twin, target)),
    ]
    for number, (phi, module) in enumerate(zip(together.stitches, alone, strict=True)):
        same(phi, module.stitches[0])
        torch.testing.assert_close(together.curve[:, number], module.curve[:, 0], atol=1e-5, rtol=0)
    assert len(together.halfway) == 2


def test_adam_is_torchs_with_decoupled_decay(rows, models, trained):
    config = replace(CONFIG, optimizer="adam", lr=0.01 * 32**0.5, weight_decay=0.1, clip=0.0, schedule="linear")
    module = trained("ours", [(1, 1)], config)
    phi = StitchTraining(*models, [(1, 1)], config)
    optimizer = torch.optim.AdamW(phi.stitches.parameters(), lr=0.01, weight_decay=0.1, eps=EPSILON)
    data = step_data(rows, module)
    for step in range(10):
        optimizer.param_groups[0]["lr"] = 0.01 * ((step + 1) / 3 if step < 2 else (10 - step) / 8)
        optimizer.zero_grad()
        phi.losses(data.batch(step))[0].mean().backward()
        optimizer.step()
    same(module.stitches[0], phi.stitches[0])


def test_averages_are_means_over_a_quarter_and_half_of_steps(trained, monkeypatch):
    seen = []
    average = StitchAveraging.on_train_batch_end

    def watched(self, trainer, module, *rest):
        seen.append([weight.detach().clone() for weight in module.stitches.parameters()])
        average(self, trainer, module, *rest)

    monkeypatch.setattr(StitchAveraging, "on_train_batch_end", watched)
    module = trained("average", config=replace(CONFIG, schedule="average"))
    for phis, steps in ((module.halfway, slice(2, 5)), (module.stitches, slice(5, 10))):
        for number, mean in enumerate(phis.parameters()):
            each = torch.stack([weights[number] for weights in seen[steps]])
            torch.testing.assert_close(mean, each.mean(0), atol=1e-6, rtol=0)
            assert (mean - each[-1]).abs().max() > 1e-4, "control: the last step is another"


def test_a_stitch_that_ends_worse_returns_to_its_start(rows, models, tmp_path):
    model = models[0]
    config = replace(CONFIG, loss="kl", floor=None, schedule="average", lr=1e3)
    module = StitchTraining(model, model, [(1, 1)], config, 0, beside=[Fit(model, 1, 1, 1e-4)])
    start = AffineMap(torch.eye(32) + 0.05 * torch.randn(32, 32), torch.zeros(32))
    module.start_from([(0, start), (1, start)])
    fit(module, step_data(rows, module), TrainingRun(tmp_path, torch.device("cpu"), TrainerConfig()))
    worse, better = module.curve.T
    assert worse[1:].min() > worse[0]
    assert torch.equal(module.stitches[0].map.weight, module.began[0].map.weight)
    assert torch.equal(module.halfway[0].map.weight, module.began[0].map.weight)
    assert better[-1] < better[0]
    assert not torch.equal(module.stitches[1].map.weight, module.began[1].map.weight)


@pytest.mark.parametrize("schedule", ["average", "linear"])
def test_the_mean_of_an_orthogonal_map_keeps_the_matrix_that_it_starts_from(rows, models, tmp_path, schedule):
    """The matrix is no weight, and averages of weights leave it out."""
    model = models[0]
    config = replace(CONFIG, loss="kl", floor=None, kind="orthogonal", schedule=schedule, lr=1e-4)
    module = StitchTraining(model, model, [(1, 1)], config)
    q = rotation(32)
    module.start_from([(0, AffineMap(q, torch.zeros(32)))])
    fit(module, step_data(rows, module), TrainingRun(tmp_path, torch.device("cpu"), TrainerConfig()))
    for phis in (module.stitches, module.halfway):
        torch.testing.assert_close(phis[0].map.weight, q, atol=1e-3, rtol=0)
    assert (module.halfway[0].map.weight - torch.eye(32)).abs().max() > 0.1, "control: the rotation is not the identity"


@pytest.mark.parametrize("clip", [0.0, 0.01])
@pytest.mark.parametrize("bias", [False, True])
def test_whitened_steps_are_torchs_in_whitened_coordinates(bias, clip):
    """W, b in W h + b against SGD of A, c in A R (h - μ) + c, multiplied out; μ is 0 for a map without b."""
    d, e, rows = 5, 4, 200
    states = torch.randn(rows, d).double() @ torch.randn(d, d).double() + 3 * torch.randn(d)
    goal = states @ torch.randn(d, e).double() + 1.0
    mean = states.mean(0) * bias
    values, vectors = torch.linalg.eigh((states - mean).T @ (states - mean) / rows)
    root = vectors / values.sqrt() @ vectors.T
    phi, inner, plain = (nn.Linear(d, e, bias=bias).double() for _ in range(3))
    with torch.no_grad():
        plain.load_state_dict(phi.state_dict())
        inner.weight.copy_(phi.weight @ torch.linalg.inv(root))
        if bias:
            inner.bias.copy_(phi(mean))
    covariance = states.T.cov(correction=0)
    inverse = inverse_moments(states.mean(0), covariance, constant=bias, smallest=0.0)
    options = {"lr": 0.1, "momentum": 0.9}
    ours = WhitenedSGD(phi.parameters(), **options, inverses={phi: inverse}, clip=clip)
    reference = torch.optim.SGD(inner.parameters(), **options, nesterov=True)
    raw = WhitenedSGD(plain.parameters(), **options)
    for _ in range(5):
        for module, optimizer, read in ((phi, ours, states), (inner, reference, (states - mean) @ root)):
            optimizer.zero_grad()
            (module(read) - goal).tanh().square().mean().backward()
            if module is inner and clip:
                nn.utils.clip_grad_norm_(module.parameters(), clip)
            optimizer.step()
        raw.zero_grad()
        (plain(states) - goal).tanh().square().mean().backward()
        raw.step()
    torch.testing.assert_close(phi(states), inner((states - mean) @ root), atol=1e-9, rtol=1e-9)
    assert (phi(states) - plain(states)).abs().max() > 1e-3, "control: raw steps are different"


def test_steps_without_whitening_have_the_bits_of_torchs_sgd():
    ours, theirs = nn.Linear(6, 3), nn.Linear(6, 3)
    theirs.load_state_dict(ours.state_dict())
    options = {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.01}
    optimizers = [
        WhitenedSGD(ours.parameters(), **options),
        torch.optim.SGD(theirs.parameters(), **options, nesterov=True, foreach=False),
    ]
    inputs = torch.randn(20, 6)
    for _ in range(4):
        for module, optimizer in zip((ours, theirs), optimizers, strict=True):
            optimizer.zero_grad()
            module(inputs).square().mean().backward()
            optimizer.step()
    assert all(map(torch.equal, ours.parameters(), theirs.parameters()))


@pytest.mark.parametrize("optimizer", [WhitenedSGD, PulledAdamW])
def test_pull_moves_a_weight_towards_its_start_alone(optimizer):
    weight, free = nn.Parameter(torch.zeros(3)), nn.Parameter(torch.ones(3))
    weight.grad, free.grad = torch.zeros(3), torch.zeros(3)
    group = {"params": [weight, free], "lr": 0.1, "pull": 2.0, "weight_decay": 0.0}
    optimizer([group], starts={weight: torch.full((3,), 5.0)}).step()
    assert torch.equal(weight, torch.ones(3))
    assert torch.equal(free, torch.ones(3))


def test_states_onwards_are_those_after_each_block(models):
    target = models[1]
    entering = [(depth, torch.randn(2, 9, 32)) for depth in (2, 0, 3, 0)]
    for (depth, state), onwards in zip(entering, states_onwards(target, entering), strict=True):
        assert torch.equal(onwards[0], state)
        assert len(onwards) == target.n_layers - depth
        for block, after in enumerate(onwards[1:], depth + 1):
            state = target.advance(state, block, block + 1)
            torch.testing.assert_close(after, state, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("loss", ["penultimate", "alignment"])
def test_losses_of_states_are_what_their_formulas_say(rows, models, loss):
    module = StitchTraining(*models, [(0, 1)], replace(CONFIG, loss=loss, floor=None))
    (source, target), tokens = models, rows[:3].long()
    state, errors = source.head(tokens, 0), []
    for layer in range(1, 4):
        goal = target.head(tokens, layer)
        errors.append(((state - goal).norm(dim=-1) / goal.norm(dim=-1)).square())
        state = target.advance(state, layer + 1, min(layer + 2, 4)) if layer < 3 else state
    wanted = errors[-1] if loss == "penultimate" else sum(errors) / 3
    torch.testing.assert_close(module.losses(tokens)[0], wanted.flatten(), atol=1e-5, rtol=1e-4)


@pytest.mark.ci_slow
def test_readers_stand_for_the_source_or_the_target(rows, models):
    source, target = models
    twin, nothing = tiny.frozen(7), [nn.Identity()] * 2
    bigrams = BigramMeans(target, [1, 2], rows, rows)
    readers = {
        "floor": Control(target, nothing, "target"),
        "random_source": Control(twin, nothing, "source"),
        "token_mean": Control(bigrams.of_current_token, nothing, "target"),
        "again": Control(source, nothing, "source"),
    }
    rows = tiny.token_rows(rows, torch.arange(40).repeat_interleave(32).view(40, 32).int())
    sums = document_sums(*models, PAIRS, {"stitch": nothing}, rows, 7, controls=readers)
    own = document_sums(twin, target, PAIRS, {"stitch": nothing}, rows, 7)
    torch.testing.assert_close(sums["random_source"], own["stitch"], atol=1e-4, rtol=1e-6)
    assert torch.equal(sums["again"], sums["stitch"])
    assert (sums["floor"] - sums["target"]).abs().max() < 1e-3
    assert (sums["token_mean"].sum(-1) > sums["target"].sum(-1)).all()


@pytest.mark.parametrize("kind", ["least_squares", "reduced_rank", "procrustes"])
def test_a_closed_form_without_a_constant_fits_what_is_used(kind):
    """States with large means: dropping the constant of a fit that had one is worse."""
    x = torch.randn(200, 6, dtype=torch.float64) + 3
    y = x @ torch.randn(6, 6, dtype=torch.float64) + 2
    moments = Moments([(0, 0)])
    moments.update([x], [y])
    forms = {"least_squares": least_squares, "reduced_rank": partial(reduced_rank, rank=3), "procrustes": procrustes}
    without, dropped = (forms[kind](moments, (0, 0), bias=bias) for bias in (False, True))
    assert (without.bias == 0).all()
    assert (x @ without.weight.T - y).norm() < 0.95 * (x @ dropped.weight.T - y).norm()
    whole, (u, _, vh) = torch.linalg.lstsq(x, y).solution.T, torch.linalg.svd(y.T @ x)
    right = torch.linalg.svd(x @ whole.T).Vh[:3]
    wanted = {"least_squares": whole, "reduced_rank": right.T @ right @ whole, "procrustes": u @ vh}
    torch.testing.assert_close(without.weight, wanted[kind])


def test_a_closed_form_of_an_unknown_kind_is_refused():
    moments = HalvedMoments([(0, 0)])
    states = torch.randn(20, 3, generator=torch.Generator().manual_seed(0)).double()
    moments.update([states], [states + 1], torch.arange(20) % 2)
    setting = create_autospec(StitchSetting, instance=True, layer_pairs=[(0, 0)], config=CONFIG)
    forms = ClosedForms(setting, moments)
    (bias,) = forms.maps("bias")  # control: the kind of this name adds a constant
    torch.testing.assert_close(bias(states), states + 1)
    with pytest.raises(ValueError, match=r"kind='biased' is not one of .*procrustes.*, bias"):
        forms.maps("biased")


def test_the_start_that_is_chosen_goes_with_the_kind():
    starts = dict.fromkeys(("linear", "affine"), "least_squares") | {"low_rank": "reduced_rank"}
    starts["orthogonal"] = "procrustes"
    assert all(StitchConfig(kind=kind, init="auto").init == start for kind, start in starts.items())
    assert StitchConfig(norm="pre", init="auto").init == "identity"
    assert StitchConfig(kind="identity", init="auto", steps=0).init == "identity"


def test_rates_have_defaults_by_optimiser_and_width():
    assert peak_rate(StitchConfig(), 64) == pytest.approx(0.1)
    assert peak_rate(StitchConfig(scale_lr_by_momentum=False), 64) == 1
    assert peak_rate(StitchConfig(optimizer="adam"), 64) == 0.18 / 8
    assert peak_rate(StitchConfig(optimizer="adam", lr=0.5), 4) == 0.25


@pytest.fixture(scope="module")
def planted(tmp_path_factory):
    config = composed("model=gelu-3l-mini").model
    source, other = load_model(config), load_model(config)
    q = rotation(source.d_model)
    target = FrozenModel(rotate(other.module, q), other.family, other.tokenizer, name="rotated", context=256)
    data = composed(f"data.cache={tmp_path_factory.mktemp('cache')}").data
    corpus = read_corpus(data, source.tokenizer, 64, bos=False, fit_tokens=64)
    return source, target, q, corpus.report.tokens[:16]


SAME_DEPTH = [(0, 0), (1, 1), (2, 2)]


def penalty(source, target, phis, rows):
    sums = document_sums(source, target, SAME_DEPTH, {"stitch": phis}, tiny.token_rows(rows), batch_rows=8)
    return ((sums["stitch"] - sums["target"]) / sums["tokens"]).squeeze(1)


@pytest.mark.ci_slow
@pytest.mark.parametrize("cut", [lambda model: model, MiddleModel])
def test_least_squares_recovers_the_rotation_both_ways(planted, cut):
    (source, target), q, rows = map(cut, planted[:2]), *planted[2:]
    sides = map(tiny.token_rows, (rows[:12], rows[12:]))
    moments, held_out = (state_moments(source, target, SAME_DEPTH, side, Budget(1e9, 0.0)) for side in sides)
    for layer, depth in SAME_DEPTH:
        phi, psi = maps = both_directions(moments.of((layer, depth)))
        assert (phi.weight - q).abs().max() < 1e-4
        assert (psi.weight - q.T).abs().max() < 1e-4
        assert max(map(abs, maps.unexplained(held_out.of((layer, depth))))) < 1e-6
        sites = [Site.of(model.describe(), at) for model, at in ((source, layer), (target, depth))]
        stitched = StitchMap(phi.weight, phi.bias, *sites).stitched(*planted[:2])
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
    setting = StitchSetting(recipe, 0, source, target, SAME_DEPTH, corpus)
    run = TrainingRun(tmp_path, torch.device("cpu"), TrainerConfig())
    maps = fit_stitches(ClosedForms(setting), run).maps
    assert penalty(source, target, maps, corpus.report.tokens[:128]).abs().max() < 0.005
