"""Measures of a change: divergences, random changes of the same size, equivalence, tokens, directions, edits."""

import math

import pytest
import scipy.special
import scipy.stats
import torch

from thinkalike.instruments.diff.screen import LEAST_Z_NAMED
from thinkalike.measures.changes import (
    deviations_beyond_null,
    directions_of_change,
    divergence,
    equivalence,
    excess,
    false_discovery_rates,
    p_above_null,
    random_signs,
    rank_p,
    signed_permutation,
    token_changes,
)
from thinkalike.measures.edits import edit, rounded_to

F64 = torch.float64


def drawn(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=F64)


def test_changes_of_predictions_are_those_of_scipy_and_torch():
    before, after = drawn(40, 9), drawn(40, 9, seed=1)
    targets = torch.arange(40) % 9
    found = token_changes(before.log_softmax(1), after.log_softmax(1), targets)
    p, q = before.softmax(1).numpy(), after.softmax(1).numpy()
    assert torch.allclose(found.kl, torch.from_numpy(scipy.special.rel_entr(p, q).sum(1)))
    assert torch.allclose(found.reverse, torch.from_numpy(scipy.special.rel_entr(q, p).sum(1)))
    assert not torch.allclose(found.kl, found.reverse), "control"
    losses = [torch.nn.functional.cross_entropy(each, targets, reduction="none") for each in (before, after)]
    assert torch.allclose(found.loss_base, losses[0])
    assert torch.allclose(found.loss_changed, losses[1])
    assert found.flip.tolist() == (before.argmax(1) != after.argmax(1)).tolist()


def test_the_divergence_of_equal_predictions_is_exactly_zero():
    logs = drawn(20, 7).float().log_softmax(1)
    assert divergence(logs, logs).tolist() == [0.0] * 20


@pytest.mark.parametrize("size", [1e-1, 1e-3, 1e-5])
def test_rounding_does_not_add_to_a_small_divergence(size):
    logits = 3 * drawn(50, 5000).float()
    changed = logits + size * drawn(50, 5000, seed=1).float()
    p = logits.double().softmax(1)
    q = changed.double().softmax(1)
    expected = scipy.special.rel_entr(p.numpy(), q.numpy()).sum(1)
    divergences = divergence(logits.log_softmax(1), changed.log_softmax(1))
    assert divergences.double().numpy() == pytest.approx(expected, rel=0.02)


def test_a_divergence_that_rounding_alone_makes_is_zero():
    logits = 3 * drawn(50, 5000).float()
    shifted = (logits + 3).log_softmax(1)  # the same predictions
    assert not torch.equal(shifted, logits.log_softmax(1)), "control"
    assert not divergence(logits.log_softmax(1), shifted).any()


def test_the_divergence_of_predictions_far_apart_is_finite_and_exact():
    before = torch.tensor([[0.0, 200.0, 5.0], [150.0, 0.0, 0.0]])
    after = torch.tensor([[200.0, 0.0, 7.0], [0.0, 150.0, 0.0]])
    logs = before.log_softmax(1), after.log_softmax(1)
    assert divergence(*logs).tolist() == pytest.approx([200.0, 150.0])
    assert divergence(torch.full((1, 2), math.nan), logs[0][:1, :2]).isnan().all(), "control"


def test_a_random_change_keeps_norm_spectrum_and_entries():
    change = drawn(12, 7)
    moved = signed_permutation(change, torch.Generator().manual_seed(3))
    assert torch.allclose(torch.linalg.svdvals(moved), torch.linalg.svdvals(change))
    assert torch.equal(moved.abs().flatten().sort().values, change.abs().flatten().sort().values)
    assert torch.nn.functional.cosine_similarity(moved.flatten(), change.flatten(), 0).abs() < 0.5
    vector = drawn(30)
    assert torch.isclose(signed_permutation(vector, torch.Generator().manual_seed(3)).norm(), vector.norm())


def test_the_rank_among_random_changes_is_an_exact_test():
    runs = drawn(20, 4000)
    rejected = (rank_p(runs[0], runs[1:]) <= 0.05).double().mean()
    assert 0.04 < rejected < 0.06
    assert rank_p(torch.tensor(5.0), torch.arange(19.0)).item() == 15 / 20
    assert rank_p(torch.tensor(99.0), torch.arange(19.0)).item() == 1 / 20


@pytest.mark.parametrize(
    ("low", "high", "verdict"),
    [
        (0.001, 0.004, "equivalent"),
        (-0.004, 0.004, "equivalent"),
        (0.0, 0.0, "equivalent"),
        (0.02, 0.03, "not equivalent"),
        (-0.03, -0.02, "not equivalent"),
        (0.004, 0.03, "undecided"),
        (-0.02, 0.001, "undecided"),
        (-math.inf, math.inf, "undecided"),
    ],
)
def test_two_one_sided_tests_decide_or_do_not(low, high, verdict):
    assert equivalence(low, high, 0.01) == verdict


def test_false_discovery_rates_are_those_of_scipy():
    p = torch.rand(50, generator=torch.Generator().manual_seed(1), dtype=F64) ** 2
    assert torch.allclose(false_discovery_rates(p), torch.from_numpy(scipy.stats.false_discovery_control(p.numpy())))


def test_an_excess_of_few_groups_is_that_of_scipy():
    runs = drawn(20, 7) * 3
    beyond, t, p = excess(runs[0], runs[1:])
    wide = runs[1:].std(0) >= runs[1:].std(0).median()
    reference = scipy.stats.ttest_ind(runs[:1].numpy(), runs[1:].numpy())
    assert torch.allclose(beyond, runs[0] - runs[1:].mean(0))
    assert torch.allclose(t[wide], torch.from_numpy(reference.statistic)[wide])
    assert torch.allclose(p[wide], torch.from_numpy(reference.pvalue)[wide])
    assert (t[~wide].abs() < torch.from_numpy(reference.statistic)[~wide].abs()).all()


def test_only_groups_changed_beyond_the_null_are_found():
    """Groups of unequal spread, in a change that is three times as large as the null everywhere."""
    spread = torch.linspace(0.1, 0.6, 60, dtype=F64)
    single, any_of_all, factors = [], [], []
    for seed in range(100):
        runs = drawn(20, 60, seed=seed) * spread
        runs[0] += math.log(3)
        p = excess(runs[0], runs[1:])[2]
        single.append((p <= 0.05).double().mean())
        any_of_all.append(false_discovery_rates(p).min() <= 0.05)
        runs[0, 20] += math.log(20)
        beyond, t, p = excess(runs[0], runs[1:])
        assert false_discovery_rates(p).argmin() == 20
        assert false_discovery_rates(p)[20] < 0.05
        assert t[20] > 0
        factors.append(beyond[20].exp())
    assert 0.015 < torch.stack(single).mean() < 0.055
    assert torch.stack(any_of_all).double().mean() <= 0.05
    assert 16 < torch.stack(factors).median() < 25


def test_what_most_groups_do_is_an_excess_of_none():
    """A change that moves every group four times as far as the null does, in either direction, and one group more."""
    false, few = [], []
    for seed in range(100):
        runs = drawn(20, 60, seed=seed)
        runs[0] *= 4
        few.append(max((excess(part[0], part[1:])[2] <= 0.05).double().mean() for part in runs.split(6, 1)))
        false.append(false_discovery_rates(excess(runs[0], runs[1:])[2]).min() <= 0.05)
        runs[0, 7] = -60
        _, t, p = excess(runs[0], runs[1:])
        assert (p.argmin(), false_discovery_rates(p)[7] < 0.05, t[7] < -5) == (7, True, True)
    assert torch.stack(false).double().mean() <= 0.1
    assert torch.stack(few).mean() > 0.5, "control: of few groups nothing is known of the others"


def test_beyond_the_null_is_an_exact_test_over_groups():
    """Groups that depend on each other, with heavy tails, and two statistics of each."""
    draws = torch.distributions.StudentT(3.0).sample((2000, 20, 8, 2)).double()
    draws = draws + draws[..., :1, :]
    found = [deviations_beyond_null(runs[0], runs[1:]) for runs in draws]
    assert 0.035 < torch.stack([p <= 0.05 for _, p in found]).double().mean() < 0.065
    runs = draws[0].clone()
    runs[0, 5, 1] += 100
    beyond, p = deviations_beyond_null(runs[0], runs[1:])
    assert (beyond.argmax(), p) == (5, 0.05)


def test_what_most_groups_do_is_beyond_the_null_in_none():
    """A change of every group by another factor each, as by another learning rate, and one group beside them."""
    false, right = 0, 0
    for seed in range(50):
        runs = drawn(20, 12, 2, seed=seed) * 0.05
        runs[0] += 1 + 0.3 * drawn(12, 2, seed=1000 + seed)
        beyond, p = deviations_beyond_null(runs[0], runs[1:])
        false += bool(beyond.max() > LEAST_Z_NAMED and p <= 0.05)
        runs[0, 3] += 4
        beyond, p = deviations_beyond_null(runs[0], runs[1:])
        right += bool(beyond.argmax() == 3 and beyond.max() > LEAST_Z_NAMED and p <= 0.05)
    assert false <= 5
    assert right == 50
    few = drawn(20, 3, 2)
    few[0] += 9
    assert deviations_beyond_null(few[0], few[1:])[1] == 0.05, "control: of three groups, nothing is known of most"


def test_random_signs_leave_every_entry_where_it_is():
    change = drawn(12, 7)
    signed = random_signs(change, torch.Generator().manual_seed(3))
    assert torch.equal(signed.abs(), change.abs())
    assert torch.allclose(torch.linalg.svdvals(signed), torch.linalg.svdvals(change))
    assert not torch.equal(signed, change)
    vector = drawn(30)
    assert torch.equal(random_signs(vector, torch.Generator().manual_seed(3)).abs(), vector.abs())


def test_a_change_that_moves_all_groups_is_above_the_null_in_all_of_them():
    runs = drawn(20, 60) * 0.2
    runs[0] += math.log(23)
    assert (false_discovery_rates(p_above_null(runs[0], runs[1:])) <= 0.05).all()
    assert (false_discovery_rates(excess(runs[0], runs[1:])[2]) > 0.05).all(), "control: none stands out"
    false = [
        (false_discovery_rates(p_above_null(part[0], part[1:])) <= 0.05).any()
        for part in (drawn(20, 60, seed=seed) for seed in range(100))
    ]
    assert torch.stack(false).double().mean() <= 0.05


def test_directions_of_a_planted_change_are_found_and_stable():
    direction = torch.nn.functional.normalize(drawn(16), dim=0)
    along = 3 + drawn(400, seed=1)
    half = torch.arange(400) % 2 == 0
    found = directions_of_change(along[:, None] * direction + 0.05 * drawn(400, 16, seed=2), half, 2)
    assert found.directions[0] @ direction > 0.999
    assert found.share[0] == pytest.approx(10 / (10 + 16 * 0.05**2), abs=0.002)
    assert found.stability[0] > 0.999
    assert directions_of_change(drawn(400, 16, seed=2), half, 2).stability[0] < 0.9, "control: noise has no direction"


N, M = 48, 96


@pytest.fixture
def base():
    return torch.randn(N, M, generator=torch.Generator().manual_seed(0)) * 0.05


def random(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(1))


def rounded(x, bits, width=M):
    blocks = x.reshape(-1, width)
    step = blocks.abs().amax(1, keepdim=True) / (2 ** (bits - 1) - 1)
    return ((blocks / step).round() * step).reshape(x.shape)


def with_places(x, places, value, axis=0):
    y = x.clone()
    y.index_copy_(
        axis, torch.tensor(places), torch.as_tensor(value).expand_as(y.index_select(axis, torch.tensor(places)))
    )
    return y


@pytest.mark.parametrize(
    ("change", "operation", "amount"),
    [
        (lambda x: x * 1.1, "scaled", 1.1),
        (lambda x: -x, "scaled", -1),
        (lambda x: (x.bfloat16() * 1.5).bfloat16().float(), "scaled", 1.5),
        (lambda x: x * random(N, 1), "scaled by row", math.nan),
        (lambda x: x * random(M), "scaled by column", math.nan),
        (lambda x: x.bfloat16().float(), "cast to bfloat16", 16),
        (lambda x: x.half().float(), "cast to float16", 16),
        (lambda x: x.to(torch.float8_e4m3fn).float(), "cast to float8_e4m3fn", 8),
        (lambda x: x.to(torch.float8_e5m2).float(), "cast to float8_e5m2", 8),
        (lambda x: x * (random(N, M) > 0), "masked", 0.5),
        (lambda x: x[torch.randperm(N)], "permuted", math.nan),
        (lambda x: x[:, torch.randperm(M)], "permuted", math.nan),
        *((lambda x, bits=bits: rounded(x, bits), "rounded", bits) for bits in (2, 3, 4, 6, 8)),
        *((lambda x, bits=bits: rounded(x, bits, 32), "rounded", bits) for bits in (3, 4, 8)),
        (lambda x: rounded(x.T, 4, N).T, "rounded", 4),
        *((lambda x, r=r: x + random(N, r) @ random(r, M) / 100, "low rank", r) for r in (1, 4, 12)),
        (lambda x: (x + random(N, 2) @ random(2, M) / 100).bfloat16().float(), "low rank", 2),
        (lambda x: x + 0.02 * random(N, M), "noise", math.nan),
        (lambda x: x + random(N, N) @ x / 100, "changed", math.nan),
        (lambda x: torch.cat([x, x[:3]]), "added", math.nan),
        (lambda x: x[:, 5:], "removed", math.nan),
        (lambda x: random(N, M + 1), "resized", math.nan),
    ],
)
def test_what_was_done_to_all_of_a_matrix_is_named(base, change, operation, amount):
    found = edit(base, change(base))
    assert found.operation == operation
    assert found.amount == pytest.approx(amount, rel=0.1, nan_ok=True)
    assert found.axis is None or operation in ("added", "removed")


@pytest.mark.parametrize(
    ("places", "axis", "value", "operation"),
    [([3, 4, 5], 0, 0.0, "zeroed"), ([7], 1, 0.0, "zeroed"), ([2, 9], 0, "swap", "swapped"),
     ([1, 2, 40], 0, "turn", "permuted"), ([5, 30], 1, 0.3, "changed")],
)  # fmt: skip
def test_places_that_differ_are_listed_with_what_was_done(base, places, axis, value, operation):
    own = base.index_select(axis, torch.tensor(places))
    value = own.flip(axis) if value == "swap" else own.roll(1, axis) if value == "turn" else value
    found = edit(base, with_places(base, places, value, axis))
    assert (found.operation, found.axis, found.indices) == (operation, axis, tuple(places))


PLANE = {  # mixtures of two tensors, and how much of the second one
    "linear mixture": lambda x, z: (0.7 * x + 0.3 * z, 0.3),
    "spherical mixture": lambda x, z: (slerp(0.3, x, z), 0.3),
    "weighted sum": lambda x, z: (x + 0.5 * z, 0.5),
    "scaled": lambda x, z: (1.5 * x, 1.5),
    "noise": lambda x, z: (x + 0.1 * random(N, M).flip(0), math.nan),
}


def slerp(share, x, z):
    angle = torch.acos((x * z).sum() / x.norm() / z.norm())
    return (torch.sin((1 - share) * angle) * x + torch.sin(share * angle) * z) / angle.sin()


@pytest.mark.parametrize("operation", PLANE)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_mixture_with_a_third_tensor_is_named(base, operation, dtype):
    x, z = (each.to(dtype).float() for each in (base, base + 0.5 * random(N, M)))
    changed, amount = PLANE[operation](x, z)
    found = edit(x, changed.to(dtype).float(), z)
    assert found.operation == operation
    assert found.amount == pytest.approx(amount, abs=0.005, nan_ok=True)
    assert edit(x, changed.to(dtype).float()).operation not in list(PLANE)[:3], "control: without the third"


def test_size_and_spread_are_those_of_the_entries(base):
    changed = with_places(base, [0, 1], base[:2] + 0.1)
    found = edit(base, changed)
    assert found.size == pytest.approx(float((changed - base).norm() / base.norm()), rel=1e-6)
    assert found.spread == pytest.approx(0.1 / float(base.std(correction=0)), rel=1e-5)


def test_a_change_of_zeros_has_a_norm_and_no_relative_size():
    change = edit(torch.zeros(32), torch.full((32,), 0.5))
    assert math.isnan(change.size)
    assert math.isnan(change.spread)
    assert change.norm == pytest.approx(0.5 * 32**0.5)
    smallest = torch.full((32,), 1e-45)
    assert math.isfinite(edit(smallest, torch.full((32,), 3e38)).size), "control"


def test_zeros_are_not_rounded_to_something_else():
    values = torch.zeros(N, M)
    values[::3, ::2] = 0.5
    assert edit(torch.zeros(N, M), values).operation != "rounded"
    before = random(N, M)
    after = rounded(before, 4)
    before[0] = 0
    after[0] = 0
    assert edit(before, after).operation == "rounded", "control"


def test_equal_tensors_have_no_edit(base):
    assert edit(base, base.clone()) is None
    assert edit(base, base + 1e-6) is not None, "control"
    whole = torch.ones(4)
    assert edit(whole, whole.clone()) is None
    assert math.isnan(edit(whole, 2 * whole).spread), "a constant has no spread"


@pytest.mark.parametrize(
    "change",
    [
        lambda x: x.clamp(-x.std(), x.std()),
        lambda x: x.sign() * (x.abs() - x.std() / 2).clamp(min=0),
        lambda x: x.std() * torch.tanh(x / x.std()),
        lambda x: 1.5 * x * (random(N, M) > 0),
        lambda x: x.std() * random(N, M),
        lambda x: x * (1 + 0.1 * random(N, M)),
    ],
)
def test_a_change_that_depends_on_the_weights_is_no_added_noise(base, change):
    assert edit(base, change(base)).operation == "changed"


def test_changes_below_the_rounding_have_no_rank():
    generator = torch.Generator().manual_seed(0)
    base = (0.1 * torch.randn(64, 64, generator=generator)).bfloat16()
    changed = (base.float() + 0.0005 * torch.randn(64, 64, generator=generator)).bfloat16()
    assert edit(base, changed).operation == "changed"


def test_a_base_of_few_bits_is_not_rounded_by_further_noise(base):
    few = rounded(base, 4, 32)
    assert edit(few, few + 0.01 * random(N, M)).operation == "noise"
    assert rounded_to(few, few, 1e-7) is None, "control: the base has these steps already"
    assert not edit(few, rounded(few, 3, 32)).operation.startswith("cast")
