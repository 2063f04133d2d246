"""What was done to a tensor: planted operations are named, and what is none of them is not."""

import math

import pytest
import torch

from thinkalike.measures.edits import edit, rounded_to

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
        (lambda x: x.bfloat16().float(), "cast", 16),
        (lambda x: x.to(torch.float8_e4m3fn).float(), "cast", 8),
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
    assert (found.operation, found.axis, found.places) == (operation, axis, tuple(places))


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


def test_equal_tensors_have_no_edit(base):
    assert edit(base, base.clone()) is None
    assert edit(base, base + 1e-6) is not None, "control"
    whole = torch.ones(4)
    assert edit(whole, whole.clone()) is None
    assert math.isnan(edit(whole, 2 * whole).spread), "a constant has no spread"


def test_a_base_of_few_bits_is_not_rounded_by_further_noise(base):
    few = rounded(base, 4, 32)
    assert edit(few, few + 0.01 * random(N, M)).operation == "noise"
    assert rounded_to(few, few, 1e-7) is None, "control: the base has these steps already"
    assert edit(few, rounded(few, 3, 32)).operation != "cast"
