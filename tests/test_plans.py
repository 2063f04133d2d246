"""A step that does not fit runs in parts: the estimate is what is measured, and the numbers are those of one part."""

from __future__ import annotations

import itertools
import logging
from dataclasses import replace

import pytest
import torch

import tiny
from conftest import break_off
from thinkalike import memory as places
from thinkalike.config import StitchConfig, TrainerConfig
from thinkalike.errors import DataError, ResourceError
from thinkalike.evaluation.maps import rows_of_moments
from thinkalike.evaluation.stitches import document_sums, report_share
from thinkalike.memory import GAPS, MARGIN, Budget, LiveBytes
from thinkalike.store import newest_state, read_state
from thinkalike.training import run as running
from thinkalike.training.parts import Plan, Prober, bounded, mean_losses, measured, planned
from thinkalike.training.run import Run, fit
from thinkalike.training.stitching import StitchTraining

CPU = torch.device("cpu")
LAYERS = 3
PAIRS = list(itertools.product(range(LAYERS), range(LAYERS)))
CONFIG = StitchConfig(steps=3, warmup=1, tokens_per_step=128)  # 4 rows
PLENTY = 1e12


@pytest.fixture(scope="module")
def rows():
    return torch.randint(300, (80, 32), generator=torch.Generator().manual_seed(5))


def training(rows, pairs=PAIRS, seed=0, limits=None, **changes):
    models = tiny.frozen(1, n_layers=LAYERS), tiny.frozen(2, n_layers=LAYERS, act_fn="gelu")
    return StitchTraining(*models, pairs, rows, replace(CONFIG, **changes), seed, limits=limits)


def of(module):
    """The losses of a module, the weights of each stitch, and the blocks after it."""
    weights = [list(phi.parameters()) for phi in module.stitches]
    return module.losses, weights, [LAYERS - 1 - depth for _, depth in module.layer_pairs]


def losses_and_gradients(module, rows, plan):
    losses, weights, _ = of(module)
    means = mean_losses(losses, weights, rows, plan)
    scales = torch.linspace(0.5, 2, len(means))  # not all alike
    return means.detach(), torch.autograd.grad(means @ scales, [weight for own in weights for weight in own])


# -------------------------------------------------------------------------------------------------------------- parts

PLANS = [Plan(2, (9,)), Plan(1, (9,)), Plan(4, (3, 3, 3)), Plan(3, (1, 7, 1))]


@pytest.mark.parametrize(
    ("plan", "changes"),
    [*((plan, {}) for plan in PLANS), (PLANS[0], {"loss": "mse", "norm": "pre"}), (PLANS[2], {"kind": "orthogonal"})],
    ids=str,
)
def test_parts_give_the_losses_and_gradients_of_the_whole(rows, plan, changes):
    module, whole = training(rows, **changes), Plan(4, (9,))
    losses, gradients = losses_and_gradients(module, rows[:4], whole)
    in_parts, ours = losses_and_gradients(module, rows[:4], plan)
    assert plan.parts(4) > 1, "control"
    torch.testing.assert_close(in_parts, losses, atol=1e-6, rtol=1e-6)
    assert max(gradient.abs().max() for gradient in gradients) > 1e-3, "control"
    for one, other in zip(ours, gradients, strict=True):
        torch.testing.assert_close(one, other, atol=1e-6, rtol=1e-5)


def test_one_part_is_the_step_of_before_to_the_bit(rows):
    module = training(rows)
    losses, gradients = losses_and_gradients(module, rows[:4], Plan(16, (9,)))
    before = torch.stack([losses.mean() for losses in module.losses(rows[:4])])
    assert torch.equal(losses, before)
    scales = torch.linspace(0.5, 2, 9)
    again = torch.autograd.grad(before @ scales, list(module.stitches.parameters()))
    assert all(torch.equal(one, other) for one, other in zip(gradients, again, strict=True))


def test_parts_take_less_memory(rows):
    module = training(rows)
    peaks = []
    for plan in (Plan(16, (9,)), Plan(4, (9,)), Plan(4, (3, 3, 3))):
        with LiveBytes(CPU) as live:
            losses_and_gradients(module, rows[:16], plan)
        peaks.append(live.peak)
    assert peaks[0] > 2 * peaks[1] > 3 * peaks[2]


# ---------------------------------------------------------------------------------------------------------- estimates


@pytest.mark.parametrize(
    ("pairs", "changes"),
    [
        (PAIRS, {}),
        (PAIRS[::4], {}),
        *(
            pytest.param(*case, marks=pytest.mark.slow)
            for case in (
                ([(2, 1)], {"norm": "post"}),
                (PAIRS, {"loss": "mse"}),
                (PAIRS, {"kind": "orthogonal"}),
                (PAIRS[::4], {"loss": "kl"}),
            )
        ),
    ],
    ids=str,
)
def test_the_estimate_is_what_a_step_takes(rows, pairs, changes):
    module = training(rows, pairs, **changes)
    losses, weights, tails = of(module)
    state = torch.get_rng_state()
    cost = measured(Prober(losses, weights, rows[:40], PLENTY), tails)
    assert torch.equal(torch.get_rng_state(), state)
    assert all(weight.grad is None for weight in module.parameters())
    with LiveBytes(CPU) as live:
        losses_and_gradients(module, rows, Plan(80, (len(pairs),)))
    assert cost(80, tails) == pytest.approx(live.peak, rel=0.15)
    with LiveBytes(CPU) as live:
        losses_and_gradients(module, rows[:8], Plan(8, (len(pairs),)))
    assert 0.9 < cost(8, tails) / live.peak < 3, "where no chunk is full it may be too much"


def test_recomputed_blocks_take_less_give_the_same_bits_and_are_foreseen(rows):
    deep = tiny.frozen(1, n_layers=8)
    module = StitchTraining(deep, deep, [(0, 0), (1, 2)], rows, replace(CONFIG, loss="cross_entropy"), 0)
    losses, weights, _ = of(module)
    numbers, foreseen, taken = [], [], []
    for wanted in (False, True):
        with deep.recomputed(wanted):
            foreseen.append(measured(Prober(losses, weights, rows, PLENTY), [7, 5])(80, [7, 5]))
            with LiveBytes(CPU) as live:
                numbers.append(losses_and_gradients(module, rows, Plan(80, (2,))))
            taken.append(live.peak)
    assert "forward" not in vars(deep.blocks[0])
    (plain, gradients), (again, others) = numbers
    assert torch.equal(plain, again)
    assert all(torch.equal(one, other) for one, other in zip(gradients, others, strict=True))
    assert foreseen == pytest.approx(taken, rel=0.2)
    assert taken[1] < 0.5 * taken[0]


def test_recomputation_puts_back_what_was_there():
    model = tiny.frozen()
    block, other = model.module.layers[0], lambda *_: None
    block.forward = other
    with model.recomputed(False):
        assert block.forward is other
    with model.recomputed():
        assert block.forward is not other
    assert block.forward is other


def test_a_probe_that_takes_too_much_is_left_out_and_the_estimate_stays_safe(rows):
    module = training(rows)
    losses, weights, tails = of(module)
    exact = measured(Prober(losses, weights, rows[:40], PLENTY), tails)
    cautious = measured(Prober(losses, weights, rows[:40], 1.05 * exact(1, [LAYERS - 1])), tails)
    assert cautious(1, [LAYERS - 1]) == pytest.approx(exact(1, [LAYERS - 1]), rel=0.15)
    assert cautious(40, tails) > exact(40, tails)


def test_a_bound_from_one_row_is_never_less(rows):
    module = training(rows)
    losses, weights, tails = of(module)
    probe = Prober(losses, weights, rows, PLENTY)
    bound, cost = bounded(probe, tails), measured(probe, tails)
    for count, some in ((1, tails[:1]), (1, tails), (40, tails[:2]), (80, tails)):
        assert bound(count, some) >= 0.99 * cost(count, some)


def test_plans_are_the_fewest_parts_that_fit(rows):
    module = training(rows)
    losses, weights, tails = of(module)
    cost = measured(Prober(losses, weights, rows[:40], PLENTY), tails)
    assert planned(cost, tails, 40, cost(40, tails)) == Plan(40, (9,))
    assert planned(cost, tails, 40, cost(40, tails) - 1) == Plan(32, (9,))
    assert planned(cost, tails, 40, cost(8, tails)) == Plan(8, (9,))
    assert planned(cost, tails, 1, cost(1, tails)) == Plan(1, (9,))
    least = max(cost(1, [tail]) for tail in tails)
    assert planned(cost, tails, 40, least - 1) is None
    for share in (0.9, 0.5, 0.3):
        room = least + share * (cost(1, tails) - least)
        plan = planned(cost, tails, 40, room)
        assert plan.rows == 1
        assert sum(plan.groups) == 9
        assert len(plan.groups) > 1
        left = list(tails)
        for size in plan.groups:
            group, left = left[:size], left[size:]
            assert cost(1, group) <= room
            assert not left or cost(1, [*group, left[0]]) > room, "each takes as many as it can"


# ------------------------------------------------------------------------------------------------------------ training


@pytest.fixture
def run(tmp_path, monkeypatch):
    """A run whose process seems to hold nothing, so that a few megabytes are a limit."""
    monkeypatch.setattr(places, "in_use", lambda _: 0)
    return Run(tmp_path, CPU, TrainerConfig(checkpoint_every=2))


def budget(rows, size, cast=False):
    """A limit that leaves a part as much as so many rows and stitches take."""
    losses, weights, tails = of(training(rows))
    coming = 2 * sum(weight.nbytes for own in weights for weight in own)
    with torch.autocast("cpu", torch.bfloat16, enabled=cast):
        part = measured(Prober(losses, weights, rows[:40], PLENTY), tails)(size[0], tails[: size[1]])
    return TrainerConfig(memory=f"{int((coming + 1.05 * GAPS * part) / MARGIN)}B")


@pytest.mark.parametrize(("size", "precision"), [((2, 9), "32-true"), ((1, 4), "32-true"), ((2, 9), "bf16-mixed")])
def test_a_limit_trains_the_same_stitches(rows, run, tmp_path, size, precision, caplog):
    caplog.set_level(logging.INFO, "thinkalike")
    free = replace(run, trainer=replace(run.trainer, precision=precision))
    whole, parts = training(rows), training(rows, limits=budget(rows, size, precision != "32-true"))
    fit(whole, free)
    fit(parts, replace(free, partial=tmp_path / "parts"))
    assert whole.plan == Plan(4, (9,))
    assert parts.plan.rows == size[0], "control: it did split"
    assert (len(parts.plan.groups) > 1) == (size[1] < 9), "and between stitches"
    close = {"atol": 1e-6, "rtol": 1e-5} if precision == "32-true" else {"atol": 2e-3, "rtol": 0}
    for one, other in zip(whole.stitches.parameters(), parts.stitches.parameters(), strict=True):
        assert one.abs().max() > 1e-3
        torch.testing.assert_close(one, other, **close)
    torch.testing.assert_close(whole.curve, parts.curve, **close)
    said = [record.message for record in caplog.records if record.message.startswith("memory: ")]
    assert len(said) == 2
    assert said[0].endswith("for a step")
    assert f"parts of a step ({size[0]} of 4 rows" in said[1]


def test_a_run_that_goes_on_keeps_its_parts_unless_the_user_changes_the_limit(rows, run, tmp_path, monkeypatch):
    limits = budget(rows, (2, 9))

    def train(folder, stop_at=None, limits=limits):
        module = training(rows, limits=limits)
        break_off(module, stop_at)
        here = replace(run, partial=tmp_path / folder)
        if stop_at is None:
            fit(module, here)
        else:
            with pytest.raises(DataError):
                fit(module, here)
        return module

    whole, _ = train("whole"), train("broken", stop_at=2)
    kept = read_state(newest_state(tmp_path / "broken" / "checkpoints", "training"))["plan"]
    assert kept == {"limits": [limits.memory, False], "rows": 2, "groups": [9]}
    with monkeypatch.context() as patch:
        patch.setattr(places, "at_hand", lambda _: 2**20)  # less than there was: nothing is planned again
        broken = train("broken")
    assert broken.plan == whole.plan
    assert torch.equal(broken.curve, whole.curve)
    assert all(torch.equal(*both) for both in zip(broken.parameters(), whole.parameters(), strict=True))
    train("changed", stop_at=2)
    assert train("changed", limits=None).plan == Plan(4, (9,))


def test_what_fits_in_no_part_is_one_line_that_says_what_to_lower(rows, run):
    tight = TrainerConfig(memory="200kB")
    with pytest.raises(ResourceError) as caught:
        fit(training(rows, limits=tight, kind="low_rank", rank=1, loss="kl"), run)
    assert str(caught.value).startswith("one row of text and one stitch need ")
    wanted = ("trainer.memory allows 0 MB; set trainer.recompute=true, lower data.context", "or raise trainer.memory")
    assert all(words in str(caught.value) for words in wanted)
    with pytest.raises(ResourceError, match=r"^9 stitches need .* for gradients and momenta beside .*fewer layers"):
        fit(training(rows, limits=TrainerConfig(memory="50kB")), run)


# ------------------------------------------------------------------------------------------------------- large states


def test_states_of_gigabytes_are_minutes_apart(rows, run, tmp_path, monkeypatch):
    written = []
    monkeypatch.setattr(running, "write_state", lambda *_: written.append(clock[0]))
    clock = [0.0]
    monkeypatch.setattr(running.time, "monotonic", lambda: clock[0])

    def steps(folder):
        written.clear()
        module = training(rows, PAIRS[:2])
        one_step = module.training_step

        def step(*batch):
            clock[0] += 100
            return one_step(*batch)

        module.training_step = step
        fit(module, replace(run, partial=tmp_path / folder, trainer=TrainerConfig(checkpoint_every=1)))
        return len(written)

    assert steps("small") == 3
    monkeypatch.setattr(running, "LARGE", 1.0)
    assert steps("large") == 1


# -------------------------------------------------------------------------------------------------------------- report


def report(module, rows, *at_once):
    maps = {"stitch": list(module.stitches), "identity": [torch.nn.Identity()] * len(PAIRS)}
    return document_sums(*module.models, PAIRS, maps, rows, torch.zeros_like(rows), *at_once)


def test_the_report_does_not_depend_on_how_many_pairs_run_together(rows):
    module, rows = training(rows), rows[:6]
    whole = report(module, rows, 4)
    for pairs in (1, 4):
        parts = report(module, rows, 4, pairs)
        assert parts.keys() == whole.keys()
        for name, value in whole.items():
            torch.testing.assert_close(parts[name], value, atol=1e-4, rtol=1e-6)


def test_the_report_takes_what_fits_and_pairs_give_way_first(rows):
    module = training(rows)
    models = (*module.models, PAIRS)

    def share(total):
        return report_share(*models, rows, 40, Budget(total, 0.0))

    assert share(1e9) == (40, 9)
    some = share(12e6)
    assert some.rows == 40
    assert 1 <= some.pairs < 9
    with LiveBytes(CPU) as live:
        report(module, rows[:40], *some)
    assert 3e6 < live.peak < 12e6
    few = share(5e6)
    assert few.pairs == 1
    assert few.rows < 40
    assert share(1e3) == (1, 1), "it is tried"
    assert rows_of_moments(*module.models, rows, 40, Budget(1e9, 0.0)) == 40
    assert rows_of_moments(*module.models, rows, 40, Budget(1e6, 0.0)) == 5
