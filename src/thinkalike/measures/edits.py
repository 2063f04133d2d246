"""What was done to a tensor: which of its rows or columns differ, and by which operation, read off its entries.

The two tensors are all that is looked at. An operation is named where it gives the changed entries up to the rounding
of the dtype that they were stored in; a change that is none of those has its size and rank.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from thinkalike.measures.seeds import seeded

Operation = Literal[
    "added", "removed", "resized", "zeroed", "masked", "swapped", "permuted", "cast", "scaled", "scaled by row",
    "scaled by column", "rounded", "linear mixture", "spherical mixture", "weighted sum", "low rank", "noise",
    "changed",
]  # fmt: skip
STORED = (torch.float8_e4m3fn, torch.float8_e5m2, torch.float16, torch.bfloat16)
SKETCH = 72  # columns of the sketch of a change, so that ranks up to `MOST_RANK` are found
MOST_RANK = 64
GAP = 0.01  # between the first and the last singular value of a sketch, below which the change may be of low rank
EDGE = 1.06  # times the largest singular value that noise would have: none stands out below
BLOCKS = (256, 128, 64, 32, 16)  # entries of a row that share a step, in formats of rounded weights
LEVELS, MOST_BLOCKS = 256, 0.9  # of rounded values, in this share of the blocks
SAMPLED = 2**16  # entries that decide whether an operation is worth trying
FEW = 8  # rows, at least, that decide whether rounding is


@dataclass(frozen=True)
class Edit:
    """How one tensor became another of the same name.

    Attributes:
        size: ‖changed - base‖ / ‖base‖ over common entries, in [0, ∞).
        spread: the root mean square of the change over the entries that differ by row or column, in standard deviations
            of the base; NaN for a constant base.
        axis, places: the axis of which only some places differ, and these in order; None if all do.
        amount: the factor, the bits of rounding, the rank, the share of zeros, or that of another model in a mixture
            (in a weighted sum its factor), where the operation has one.
    """

    operation: Operation
    size: float
    spread: float
    axis: int | None = None
    places: tuple[int, ...] = ()
    amount: float = math.nan


def edit(
    base: Float[Tensor, "..."], changed: Float[Tensor, "..."], other: Float[Tensor, "..."] | None = None
) -> Edit | None:
    """Return what was done to a tensor, or None if nothing was: the shapes and all entries are equal.

    It may be a mixture of the base with the tensor of a third model, `other`. Of tensors that differ in the length of
    one axis, places are those that were added or removed.
    """
    if base.shape != changed.shape:
        return _resized(base, changed)
    differs = base != changed
    differs &= ~(base.isnan() & changed.isnan())
    if not differs.any():
        return None
    axis, places = _where(differs)
    x, y = (base, changed) if axis is None else (each.index_select(axis, places) for each in (base, changed))
    found = None if other is None or other.shape != base.shape or axis is not None else mixture(x, y, other)
    found = found or _operation(x, y, axis)
    change, std = y.double() - x.double(), float(base.double().std(correction=0))
    size = float(change.norm() / base.double().norm()) if base.any() else math.inf
    spread = float(change.square().mean().sqrt()) / std if std > 0 else math.nan
    return replace(found, size=size, spread=spread, axis=axis, places=tuple(places.tolist()))


def _where(differs: Tensor) -> tuple[int | None, Int[Tensor, " k"]]:
    """Return the axis of which the smallest share of places differs, at most half, and these places."""
    shares, found = [], []
    for axis in range(differs.dim()):
        rest = [other for other in range(differs.dim()) if other != axis]
        places = (differs.any(dim=rest) if rest else differs).nonzero()[:, 0]
        shares.append(len(places) / differs.shape[axis])
        found.append(places)
    least = min(range(len(shares)), key=shares.__getitem__, default=0)
    if not shares or shares[least] > 0.5:
        return None, torch.empty(0, dtype=torch.long)
    return least, found[least]


def _resized(base: Tensor, changed: Tensor) -> Edit:
    """Describe a tensor of other lengths: places that were added at the end of an axis, or taken out of it."""
    others = [axis for axis, (n, m) in enumerate(zip(base.shape, changed.shape, strict=False)) if n != m]
    if base.dim() != changed.dim() or len(others) != 1:
        return Edit("resized", math.nan, math.nan)
    (axis,) = others
    first, second = (each.transpose(0, axis).reshape(each.shape[axis], -1) for each in (base, changed))
    if len(second) < len(first) and (kept := _matches(first, second)) is not None:
        lost = set(range(len(first))) - set(kept.tolist())
        return Edit("removed", 0.0, 0.0, axis, tuple(sorted(lost)))
    if len(second) > len(first) and torch.equal(first, second[: len(first)]):
        return Edit("added", 0.0, 0.0, axis, tuple(range(len(first), len(second))))
    return Edit("resized", math.nan, math.nan)


def _operation(x: Tensor, y: Tensor, axis: int | None) -> Edit:
    """Return the first operation that gives y from x, which are all places, or those of an axis that differ."""

    def named(operation: Operation, amount: float = math.nan) -> Edit:
        return Edit(operation, math.nan, math.nan, amount=amount)

    if not y.any():
        return named("zeroed")
    if _is_permuted(x, y, axis):
        return named("swapped" if axis is not None and y.shape[axis] == 2 else "permuted")
    if ((y == 0) | (y == x)).all():
        return named("masked", float((y == 0).double().mean()))
    few = slice(None, max(SAMPLED * len(y) // y.numel(), 4))  # an operation is tried on these before it is on all
    for dtype in STORED:
        if all(torch.equal(x[part].to(dtype).to(x), y[part]) for part in (few, slice(None))):
            return named("cast", 8.0 * dtype.itemsize)
    eps = _precision(y)
    scalings: list[tuple[Operation, int | None]] = [("scaled", None), ("scaled by row", 1), ("scaled by column", 0)]
    for operation, over in scalings[: 3 if y.dim() == 2 and min(y.shape) > 2 else 1]:
        if _factor(x[few], y[few], over, eps) is not None and (factor := _factor(x, y, over, eps)) is not None:
            return named(operation, float(factor) if over is None else math.nan)
    for first, second in ((x, y), (x.T, y.T)) if y.dim() == 2 else ((x, y),):
        if (bits := rounded_to(first, second, eps)) is not None:
            return named("rounded", float(bits))
    return named(*_spectrum(x, y, eps)) if min(y.flatten(1).shape if y.dim() > 1 else (0,)) > 2 else named("changed")


def _precision(y: Tensor) -> float:
    """Return the relative rounding error of the dtype that a tensor's entries were stored in."""
    few = y.flatten()[:SAMPLED]
    for dtype in (torch.bfloat16, torch.float16):
        if torch.equal(few.to(dtype).to(few), few):
            return torch.finfo(dtype).eps
    return torch.finfo(y.dtype).eps


def _is_permuted(x: Tensor, y: Tensor, axis: int | None) -> bool:
    """Return whether y has the places of x in another order, along the axis given or else along any."""
    if y.dim() == 1 and len(y) < 3:
        return False  # two numbers may be equal to others by chance
    for over in range(y.dim()) if axis is None else [axis]:
        matches = _matches(*(each.transpose(0, over).reshape(each.shape[over], -1) for each in (x, y)))
        if matches is not None and len(matches.unique()) == len(matches):
            return True
    return False


def _matches(rows: Float[Tensor, "n d"], others: Float[Tensor, "m d"]) -> Int[Tensor, " m"] | None:
    """Return for each of m rows the number of the row of n that is equal to it, or None if one has no equal."""
    if not len(others) or not (rows == others[0]).all(1).any():
        return None
    coded, wanted = ([row.contiguous().view(torch.uint8).numpy().tobytes() for row in side] for side in (rows, others))
    by_entry = {code: place for place, code in enumerate(coded)}
    found = [by_entry.get(code) for code in wanted]
    return None if None in found else torch.tensor(found)


def _factor(x: Tensor, y: Tensor, over: int | None, eps: float) -> Tensor | None:
    """Return the factors s with y = s x, one of all entries or one for each place beside axis `over`, or None."""
    x, y = x.double(), y.double()
    dot, norm = ((x * y).sum(), (x * x).sum()) if over is None else ((x * y).sum(over, True), (x * x).sum(over, True))
    factor = dot / norm.clamp(min=torch.finfo(torch.float64).tiny)
    return factor if ((y - factor * x).abs() <= 2 * eps * y.abs()).all() else None


def mixture(x: Float[Tensor, "..."], y: Float[Tensor, "..."], z: Float[Tensor, "..."]) -> Edit | None:
    """Return the mixture y = a x + b z, if it is one up to rounding, with the share t of z; see `Edit`.

    A linear one has a + b = 1. A spherical one (Shoemake 1985) has a = sin((1 - t) Ω) / sin Ω and b = sin(t Ω) / sin Ω,
    where Ω is the angle between x and z, so that (a + b cos Ω)² + (b sin Ω)² = 1 and t Ω is the angle of that point.
    """
    x, y, z, eps = x.double().flatten(), y.double().flatten(), z.double().flatten(), _precision(y)
    (xx, xz, zz), right = (x @ x if x.any() else x.new_ones(()), x @ z, z @ z), torch.stack([x @ y, z @ y])
    if (determinant := xx * zz - xz * xz) <= 1e-12 * xx * zz:
        return None  # they are multiples of each other
    a, b = torch.linalg.solve(torch.stack([xx, xz, xz, zz]).view(2, 2), right).tolist()
    a = a if x.any() else 1 - b  # any a will do
    rounding = 2 * eps * y.square().mean().sqrt() / determinant.sqrt()  # moves a by √zz of this at most, and b by √xx
    of_x = 4 * torch.finfo(torch.float32).eps * abs(a) + rounding * zz.sqrt()
    of_z = 4 * torch.finfo(torch.float32).eps * abs(b) + rounding * xx.sqrt()
    subnormal = 2**-24 if eps == torch.finfo(torch.float16).eps else 0.0
    if ((y - a * x - b * z).abs() > 2 * eps * y.abs() + of_x * x.abs() + of_z * z.abs() + subnormal).any():
        return None
    if abs(b) * zz.sqrt() <= 1e-3 * y.norm():
        return None  # nothing of z is in it
    cosine = float(xz / (xx * zz).sqrt())
    across, along = b * math.sqrt(1 - cosine**2), a + b * cosine
    misses: dict[Operation, float] = {
        "linear mixture": abs(a + b - 1),
        "spherical mixture": abs(across**2 + along**2 - 1),
        "weighted sum": 1e-3,
    }
    name = min(misses, key=misses.__getitem__)
    share = math.atan2(across, along) / math.acos(cosine) if name == "spherical mixture" else b
    return Edit(name, math.nan, math.nan, amount=share)


def rounded_to(x: Float[Tensor, "..."], y: Float[Tensor, "..."], eps: float) -> int | None:
    """Return to how many bits, 1 to 8, the entries of x were rounded to become y, by row or by block; None if not.

    Rounded entries are whole multiples of one step apart, and x is about as near as a step.
    """
    if y.dim() < 2 or y.shape[-1] < BLOCKS[-1]:
        return None
    length, x, y = y.shape[-1], x.flatten(0, -2), y.flatten(0, -2)
    few = torch.linspace(0, len(y) - 1, min(len(y), max(SAMPLED // 2 // length, FEW))).long()
    before, blocks = x[few], y[few]
    for width in (length, *(size for size in BLOCKS if size < length and length % size == 0)):
        before, blocks = before.reshape(-1, width), blocks.reshape(-1, width)
        steps, levels = _steps(blocks, eps)
        near = (before - blocks).abs().median(1).values <= 2 * steps
        if ((levels <= LEVELS) & near).double().mean() >= MOST_BLOCKS and _steps(before, eps)[1].min() > LEVELS:
            return max(math.ceil(math.log2(float(levels[levels <= LEVELS].quantile(MOST_BLOCKS)))), 1)
    return None


def _steps(rows: Float[Tensor, "n d"], eps: float) -> tuple[Float[Tensor, " n"], Float[Tensor, " n"]]:
    """Return the least distance between two values of each row, and how many such steps it spans; ∞ if not in whole."""
    values = rows.double().sort(1).values
    gaps, top = values.diff(dim=1), rows.double().abs().amax(1)
    error = 4 * eps * top  # of an entry
    steps = torch.where(gaps > error[:, None], gaps, math.inf).amin(1)
    ratios = (values - values[:, :1]) / steps[:, None]
    whole = ((ratios - ratios.round()).abs() <= 0.05 + (error / steps)[:, None]).all(1) & (error < 0.2 * steps)
    whole &= steps.isfinite()
    return steps, torch.where(whole, ratios[:, -1].round() + 1, math.inf)


def _spectrum(x: Tensor, y: Tensor, eps: float) -> tuple[Operation, float]:
    """Return the rank of a change, whether it looks like noise, or neither, from a sketch of its column space.

    Independent entries of spread s have no singular values above about s (√n + √m) (Marchenko & Pastur 1967).
    """
    change = (y.double() - x.double()).flatten(1)
    n, m = change.shape
    rounding = eps * float(y.float().square().mean().sqrt()) * (math.sqrt(n) + math.sqrt(m))
    edge = float(change.square().mean().sqrt()) * (math.sqrt(n) + math.sqrt(m))
    values = _sketched(change.float(), 2)
    if values[-1] > GAP * values[0]:  # its rank is beyond the sketch
        return ("noise", math.nan) if float(values[0]) <= EDGE * edge else ("changed", math.nan)
    values = _sketched(change, 1)
    rest = max(float(change.square().sum() - values.square().sum()), 0.0) ** 0.5
    rank = int((values > rounding).sum())
    if rank <= min(MOST_RANK, min(n, m) // 4) and rest <= max(rounding * math.sqrt(min(n, m)), 1e-3 * edge):
        return "low rank", float(rank)
    return "changed", math.nan


def _sketched(change: Float[Tensor, "n m"], iterations: int) -> Float[Tensor, " k"]:
    """Return the largest singular values, in descending order, by subspace iteration (Halko et al. 2011)."""
    n, m = change.shape
    start = torch.randn(m, min(SKETCH, n, m), generator=seeded(0)).to(change)
    basis = torch.linalg.qr(change @ start).Q
    for _ in range(iterations):
        basis = torch.linalg.qr(change @ (change.T @ basis)).Q
    return torch.linalg.svdvals((basis.T @ change).double())
