"""What was done to a tensor: which of its rows or columns differ, and by which operation.

This is read off the entries; the two tensors are all that is looked at. An operation is named
where it gives the changed entries up to the rounding of the dtype that they were stored in. A
change that is no such operation has its size and rank.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from thinkalike.measures.seeds import seeded

Operation = Literal[
    "added",
    "removed",
    "resized",
    "zeroed",
    "masked",
    "swapped",
    "permuted",
    "cast to float8_e4m3fn",
    "cast to float8_e5m2",
    "cast to float16",
    "cast to bfloat16",
    "scaled",
    "scaled by row",
    "scaled by column",
    "rounded",
    "linear mixture",
    "spherical mixture",
    "weighted sum",
    "low rank",
    "noise",
    "changed",
]

# Dtypes that weights are cast to.
CASTS: dict[Operation, torch.dtype] = {
    "cast to float8_e4m3fn": torch.float8_e4m3fn,
    "cast to float8_e5m2": torch.float8_e5m2,
    "cast to float16": torch.float16,
    "cast to bfloat16": torch.bfloat16,
}

# An operation is tried on this many entries before it is tried on all.
SAMPLED_ENTRIES = 2**16

# Where more than this share of the indices of an axis differs, the change is one of all entries.
MOST_DIFFERING_SHARE = 0.5

# The columns of the sketch of a change, so that ranks up to `MOST_RANK` are found.
SKETCH_WIDTH = 72
MOST_RANK = 64

# A change may be of low rank if the last singular value of its sketch is below this share of the
# first.
LOW_RANK_GAP = 0.01

# A change is of low rank if what its leading singular values leave is below this share of the
# largest one of noise.
LOW_RANK_REST = 1e-3

# A change looks like noise if no singular value is above this many times the largest one of noise.
NOISE_EDGE = 1.06

# Noise knows nothing of the weights: the change and its size do not correlate with them by more
# than this, and than so many standard errors.
MOST_CORRELATION = 0.01
STANDARD_ERRORS = 5.0

# In formats of rounded weights, this many entries of a row may share a step.
BLOCK_WIDTHS = (256, 128, 64, 32, 16)

# Entries are rounded if they have at most so many levels in this share of the blocks.
MOST_LEVELS = 256
ROUNDED_BLOCKS = 0.9

# Rounding is tried on at least this many rows.
FEWEST_SAMPLED_ROWS = 8

# A distance between rounded entries is a whole number of steps up to this share of a step.
STEP_TOLERANCE = 0.05

# Where an entry may be off by more than this share of a step, steps cannot be told.
MOST_ENTRY_ERROR = 0.2

# Two tensors are multiples of each other if the squared sine of their angle is below this.
LEAST_SQUARED_SINE = 1e-12

# A third model counts for something in a mixture above this share of its norm, and the weights of
# a linear or spherical mixture miss their equation by less.
MIXTURE_TOLERANCE = 1e-3

# The rounding of subnormal numbers in float16.
FLOAT16_SUBNORMAL = 2**-24


@dataclass(frozen=True)
class Edit:
    """How one tensor became another of the same name.

    Attributes:
        operation: What was done.
        size: ‖changed - base‖ / ‖base‖ over common entries, in [0, ∞); NaN for a base of zeros.
        norm: ‖changed - base‖ over common entries; NaN where tensors have no entries in common.
        spread: The root mean square of the change over the rows or columns that differ, in
            standard deviations of the base; NaN for a constant base.
        axis: The axis along which only some indices differ; None if all do.
        indices: The indices along `axis` that differ, in rising order.
        amount: The factor, the bits of rounding, the rank, the share of zeros, or that of another
            model in a mixture (in a weighted sum its factor), where the operation has one.
    """

    operation: Operation
    size: float
    spread: float
    norm: float
    axis: int | None = None
    indices: tuple[int, ...] = ()
    amount: float = math.nan


def edit(
    base: Float[Tensor, "..."],
    changed: Float[Tensor, "..."],
    other: Float[Tensor, "..."] | None = None,
) -> Edit | None:
    """Return what was done to a tensor; None if all entries are equal.

    Two NaN count as equal. Where tensors differ in the length of one axis, `Edit.indices` are the
    indices that were added or removed.

    Args:
        base: The tensor before.
        changed: The tensor after.
        other: The tensor of a third model, which may have been mixed in. It is ignored if its
            shape is another one, or if only some indices of an axis differ.
    """
    if base.shape != changed.shape:
        return _resized(base, changed)
    differs = base != changed
    differs &= ~(base.isnan() & changed.isnan())
    if not differs.any():
        return None

    axis, indices = _differing_indices(differs)
    x = base
    y = changed
    if axis is not None:
        x = base.index_select(axis, indices)
        y = changed.index_select(axis, indices)

    operation = None
    if other is not None and other.shape == base.shape and axis is None:
        operation = mixture(x, y, other)
    if operation is None:
        operation = _operation(x, y, axis)

    change = y.double() - x.double()
    deviation = float(base.double().std(correction=0))
    norm = float(change.norm())
    size = math.nan  # nothing is a share of a norm of 0
    if base.any():
        size = norm / float(base.double().norm())
    spread = math.nan
    if deviation > 0:
        spread = float(change.square().mean().sqrt()) / deviation
    return replace(
        operation,
        size=size,
        spread=spread,
        norm=norm,
        axis=axis,
        indices=tuple(indices.tolist()),
    )


def _edit_of_unknown_size(operation: Operation, amount: float = math.nan) -> Edit:
    """Return an edit whose operation and amount are known, but not yet its size.

    Its size, spread and norm are NaN, and it has no axis. The function `edit` fills them in if the
    two tensors have one shape.

    Args:
        operation: What was done.
        amount: The number that goes with the operation, such as the factor of a scaling or the
            bits of rounding; NaN: it has none.
    """
    return Edit(operation, size=math.nan, spread=math.nan, norm=math.nan, amount=amount)


def _differing_indices(differs: Bool[Tensor, "..."]) -> tuple[int | None, Int[Tensor, " k"]]:
    """Return the axis with the smallest share of indices that differ, and these indices.

    For a matrix, this tells a change of some rows from a change of some columns. An index differs
    if any entry with this index does. If the share is more than `MOST_DIFFERING_SHARE`, the axis
    is None and no indices are returned. Of two axes with the same share, the first is returned.

    Args:
        differs: Which entries of the tensor differ; at least one.
    """
    smallest_share = math.inf
    best_axis = None
    best_indices = torch.empty(0, dtype=torch.long)
    for axis in range(differs.dim()):
        remaining_axes = [number for number in range(differs.dim()) if number != axis]
        index_differs = differs.any(dim=remaining_axes) if remaining_axes else differs
        indices = index_differs.nonzero()[:, 0]
        share = len(indices) / differs.shape[axis]
        if share < smallest_share:
            smallest_share = share
            best_axis = axis
            best_indices = indices
    if smallest_share > MOST_DIFFERING_SHARE:
        return None, torch.empty(0, dtype=torch.long)
    return best_axis, best_indices


def _rows_along(tensor: Tensor, axis: int) -> Tensor:
    """Return the tensor as a matrix whose rows are the indices of an axis."""
    return tensor.transpose(0, axis).reshape(tensor.shape[axis], -1)


def _resized(base: Tensor, changed: Tensor) -> Edit:
    """Return the edit between two tensors of different shapes.

    If a single axis has another length, the edit is "added" if indices of this axis were appended
    at the end, or "removed" if some were taken out, in both cases with all other entries as they
    were. Otherwise it is "resized".

    Args:
        base: The tensor before.
        changed: The tensor after.
    """
    lengths = zip(base.shape, changed.shape, strict=False)  # the number of axes may differ, too
    resized_axes = [axis for axis, (before, after) in enumerate(lengths) if before != after]
    if base.dim() != changed.dim() or len(resized_axes) != 1:
        return _edit_of_unknown_size("resized")
    (axis,) = resized_axes
    rows = _rows_along(base, axis)  # each index of the axis as a row
    changed_rows = _rows_along(changed, axis)
    if len(changed_rows) < len(rows):
        remaining = _matching_rows(rows, changed_rows)  # indices; None if a row is not in the base
        if remaining is not None:
            removed = set(range(len(rows))) - set(remaining.tolist())
            return _edit_of_length("removed", axis, sorted(removed))
    elif torch.equal(rows, changed_rows[: len(rows)]):
        added = range(len(rows), len(changed_rows))
        return _edit_of_length("added", axis, added)
    return _edit_of_unknown_size("resized")


def _edit_of_length(operation: Operation, axis: int, indices: Sequence[int]) -> Edit:
    """Return an edit that adds or removes indices of an axis and changes no other entry.

    Args:
        operation: "added" or "removed".
        axis: The axis.
        indices: The indices that were added or removed, in rising order.
    """
    return Edit(operation, size=0.0, spread=0.0, norm=0.0, axis=axis, indices=tuple(indices))


def _operation(x: Tensor, y: Tensor, axis: int | None) -> Edit:
    """Return the simplest operation that turns x into y.

    Zeroing, permuting, masking, casting, scaling and rounding are tried in this order. If none
    fits, a tensor of two axes or more is tested for a change of low rank or noise. Otherwise the
    operation is "changed".

    Args:
        x, y: The tensors before and after. If only some indices of an axis differ, they hold these
            indices alone.
        axis: This axis; None: x and y are the whole tensors.
    """
    if not y.any():
        return _edit_of_unknown_size("zeroed")
    if _is_permuted(x, y, axis):
        is_swapped = axis is not None and y.shape[axis] == 2
        return _edit_of_unknown_size("swapped" if is_swapped else "permuted")
    if ((y == 0) | (y == x)).all():
        return _edit_of_unknown_size("masked", float((y == 0).double().mean()))

    # What fails on the first rows is not tried on all entries.
    sampled_rows = max(SAMPLED_ENTRIES * len(y) // y.numel(), 4)
    x_sample = x[:sampled_rows]
    y_sample = y[:sampled_rows]
    for cast, dtype in CASTS.items():
        fits_sample = torch.equal(x_sample.to(dtype).to(x), y_sample)
        if fits_sample and torch.equal(x.to(dtype).to(x), y):
            return _edit_of_unknown_size(cast, 8.0 * dtype.itemsize)

    eps = _precision(y)
    scalings: list[tuple[Operation, int | None]] = [("scaled", None)]
    if y.dim() == 2 and min(y.shape) > 2:
        scalings += [("scaled by row", 1), ("scaled by column", 0)]
    for operation, summed_axis in scalings:
        if _scaling_factors(x_sample, y_sample, summed_axis, eps) is None:
            continue
        factor = _scaling_factors(x, y, summed_axis, eps)
        if factor is not None:
            amount = float(factor) if summed_axis is None else math.nan
            return _edit_of_unknown_size(operation, amount)

    bits = rounded_to(x, y, eps)
    if bits is None and y.dim() == 2:  # perhaps columns share a step, and not rows
        bits = rounded_to(x.T, y.T, eps)
    if bits is not None:
        return _edit_of_unknown_size("rounded", float(bits))

    if y.dim() > 1 and min(y.flatten(1).shape) > 2:
        return _edit_of_unknown_size(*_low_rank_or_noise(x, y, eps))
    return _edit_of_unknown_size("changed")


def _precision(y: Tensor) -> float:
    """Return the machine epsilon of the narrowest dtype that holds a tensor's entries exactly.

    In this dtype they were probably once stored. It is bfloat16, or else float16, if a cast to it
    and back leaves the first `SAMPLED_ENTRIES` entries as they are, else the tensor's own dtype.
    """
    sample = y.flatten()[:SAMPLED_ENTRIES]
    for dtype in (torch.bfloat16, torch.float16):
        if torch.equal(sample.to(dtype).to(sample), sample):
            return torch.finfo(dtype).eps
    return torch.finfo(y.dtype).eps


def _is_permuted(x: Tensor, y: Tensor, axis: int | None) -> bool:
    """Return whether y is x with the indices of one axis in another order.

    Args:
        x, y: The tensors, of one shape.
        axis: The axis along which the order may differ; None: each axis is tried.
    """
    if y.dim() == 1 and len(y) < 3:
        return False  # one or two numbers may be equal in another order by chance
    axes = range(y.dim()) if axis is None else [axis]
    for candidate in axes:
        # For each row of y the index of the equal row of x; None if some row of y has none.
        matches = _matching_rows(_rows_along(x, candidate), _rows_along(y, candidate))
        if matches is None:
            continue
        uses_each_row_once = len(matches.unique()) == len(matches)
        if uses_each_row_once:
            return True
    return False


def _matching_rows(
    rows: Float[Tensor, "n d"], changed_rows: Float[Tensor, "m d"]
) -> Int[Tensor, " m"] | None:
    """Return for each changed row the index of the equal row in `rows`.

    Rows are equal if their bytes are. If several rows are equal, the last index is taken. None if
    a changed row has no equal, or if there are no changed rows.
    """
    # The first row is compared alone, as comparing the bytes of all rows takes longer.
    if not len(changed_rows) or not (rows == changed_rows[0]).all(1).any():
        return None
    index_of_row = {row_bytes: index for index, row_bytes in enumerate(_bytes_of_rows(rows))}
    indices = [index_of_row.get(row_bytes) for row_bytes in _bytes_of_rows(changed_rows)]
    if None in indices:
        return None
    return torch.tensor(indices)


def _bytes_of_rows(rows: Float[Tensor, "n d"]) -> list[bytes]:
    """Return the bytes of each row, by which rows are compared exactly."""
    return [row.contiguous().view(torch.uint8).numpy().tobytes() for row in rows]


def _scaling_factors(x: Tensor, y: Tensor, summed_axis: int | None, eps: float) -> Tensor | None:
    """Return the factors s with y = s x up to rounding; None if there are none.

    They are those of least squares, Σ x y / Σ x², and 0 where x is 0. Either all entries share a
    factor, a scalar, or each row or column has one, in a tensor whose summed axis has length 1.

    Args:
        x, y: The tensors.
        summed_axis: The axis along which entries share a factor; None: all entries share one.
        eps: The relative rounding error of y.
    """
    x = x.double()
    y = y.double()
    smallest = torch.finfo(torch.float64).tiny  # so that the factor is 0 where x is 0, and not NaN
    if summed_axis is None:
        product = (x * y).sum()
        square = (x * x).sum()
    else:
        product = (x * y).sum(summed_axis, keepdim=True)
        square = (x * x).sum(summed_axis, keepdim=True)
    factor = product / square.clamp(min=smallest)
    is_exact = (y - factor * x).abs() <= 2 * eps * y.abs()
    if is_exact.all():
        return factor
    return None


def mixture(
    x: Float[Tensor, "..."], y: Float[Tensor, "..."], z: Float[Tensor, "..."]
) -> Edit | None:
    """Return the mixture y = a x + b z, if it is one up to rounding, with the share t of z.

    A linear one has a + b = 1. A spherical one (Shoemake 1985) has a = sin((1 - t) Ω) / sin Ω and
    b = sin(t Ω) / sin Ω, where Ω is the angle between x and z, so that
    (a + b cos Ω)² + (b sin Ω)² = 1 and t Ω is the angle of that point. Any other mixture is a
    weighted sum, with b as its amount.

    None if y is no such mixture, if next to nothing of z is in it, or if x and z are multiples of
    each other, so that a and b are not determined.
    """
    x = x.double().flatten()
    y = y.double().flatten()
    z = z.double().flatten()
    eps = _precision(y)

    # the normal equations of least squares; where x is 0, any a will do
    has_x = bool(x.any())
    xx = x @ x if has_x else x.new_ones(())
    xz = x @ z
    zz = z @ z
    determinant = xx * zz - xz * xz
    if determinant <= LEAST_SQUARED_SINE * xx * zz:
        return None  # they are multiples of each other
    normal_matrix = torch.stack([xx, xz, xz, zz]).view(2, 2)
    a, b = torch.linalg.solve(normal_matrix, torch.stack([x @ y, z @ y])).tolist()
    if not has_x:
        a = 1 - b

    # Rounding of y moves a by at most √zz times this, and b by √xx times.
    rounding = 2 * eps * y.square().mean().sqrt() / determinant.sqrt()
    float32_eps = torch.finfo(torch.float32).eps
    error_of_a = 4 * float32_eps * abs(a) + rounding * zz.sqrt()
    error_of_b = 4 * float32_eps * abs(b) + rounding * xx.sqrt()
    subnormal = FLOAT16_SUBNORMAL if eps == torch.finfo(torch.float16).eps else 0.0
    tolerance = 2 * eps * y.abs() + error_of_a * x.abs() + error_of_b * z.abs() + subnormal
    if ((y - a * x - b * z).abs() > tolerance).any():
        return None
    if abs(b) * zz.sqrt() <= MIXTURE_TOLERANCE * y.norm():
        return None  # nothing of z is in it

    cosine = float(xz / (xx * zz).sqrt())
    across = b * math.sqrt(1 - cosine**2)
    along = a + b * cosine
    # How far the weights miss the equation of a mixture; the closest one names the operation.
    misses: dict[Operation, float] = {
        "linear mixture": abs(a + b - 1),
        "spherical mixture": abs(across**2 + along**2 - 1),
        "weighted sum": MIXTURE_TOLERANCE,
    }
    operation = min(misses, key=misses.__getitem__)
    if operation == "spherical mixture":
        return _edit_of_unknown_size(operation, math.atan2(across, along) / math.acos(cosine))
    return _edit_of_unknown_size(operation, b)


def rounded_to(x: Float[Tensor, "..."], y: Float[Tensor, "..."], eps: float) -> int | None:
    """Return to how many bits, 1 to 8, the entries of x were rounded to become y; None if not.

    Entries were rounded if within each row of y, or each block of a row (`BLOCK_WIDTHS`), they lie
    on a grid, that is, are whole multiples of one step apart, and x is within about a step of
    them. Nearly all rows or blocks of a sample must be so (`ROUNDED_BLOCKS`).

    The result is also None if x was on a grid already, if x has equal entries in each row or
    block, which rounding leaves equal, and for a vector or rows of fewer than 16 entries, which
    are too few to recognise a grid.

    Args:
        x, y: The tensors before and after.
        eps: The relative rounding error of y.
    """
    if y.dim() < 2 or y.shape[-1] < BLOCK_WIDTHS[-1]:
        return None
    length = y.shape[-1]
    x = x.flatten(0, -2)
    y = y.flatten(0, -2)
    row_count = min(len(y), max(SAMPLED_ENTRIES // 2 // length, FEWEST_SAMPLED_ROWS))
    sampled_rows = torch.linspace(0, len(y) - 1, row_count).long()
    block_widths = [width for width in BLOCK_WIDTHS if width < length and length % width == 0]
    for width in (length, *block_widths):
        x_blocks = x[sampled_rows].reshape(-1, width)
        y_blocks = y[sampled_rows].reshape(-1, width)
        grid = _grid_of_rows(y_blocks, eps)
        is_on_grid = grid.levels <= MOST_LEVELS
        is_near = (x_blocks - y_blocks).abs().median(1).values <= 2 * grid.steps
        if (is_on_grid & is_near).double().mean() < ROUNDED_BLOCKS:
            continue
        grid_before = _grid_of_rows(x_blocks, eps)
        was_on_grid = bool(grid_before.levels.min() <= MOST_LEVELS)
        is_varied = bool((x_blocks != x_blocks[:, :1]).any())
        if is_varied and not was_on_grid:
            # A high quantile and not the most levels: an outlier gives a few rows or blocks more.
            typical_levels = grid.levels[is_on_grid].quantile(ROUNDED_BLOCKS)
            return max(math.ceil(math.log2(float(typical_levels))), 1)  # b bits have 2^b levels
    return None


class _Grid(NamedTuple):
    """The grid on which the values of each of n rows lie.

    Attributes:
        steps: The distance of neighbouring points of the grid.
        levels: The number of points from the least value of the row to the greatest; ∞ where the
            values lie on no grid.
    """

    steps: Float[Tensor, " n"]
    levels: Float[Tensor, " n"]


def _grid_of_rows(rows: Float[Tensor, "n d"], eps: float) -> _Grid:
    """Return for each row the step of the grid on which its values lie, and the number of levels.

    A grid is the least value of a row plus all whole multiples of a step. The step is the least
    distance between two values that is more than rounding, or ∞ if all values are equal. Levels
    are the points of the grid from the least value of the row to the greatest. Their number is ∞
    if a value lies off the grid, if the step is too small to be told from rounding, or if all
    values are equal.

    Args:
        rows: The rows.
        eps: The machine epsilon of the dtype in which they were stored.
    """
    values = rows.double().sort(1).values
    gaps = values.diff(dim=1)
    error = 4 * eps * rows.double().abs().amax(1)  # more than rounding moves an entry
    steps = torch.where(gaps > error[:, None], gaps, math.inf).amin(1)
    multiples = (values - values[:, :1]) / steps[:, None]  # in rising order, from 0
    tolerance = STEP_TOLERANCE + (error / steps)[:, None]
    is_whole = ((multiples - multiples.round()).abs() <= tolerance).all(1)
    is_resolved = error < MOST_ENTRY_ERROR * steps
    is_on_grid = is_whole & is_resolved & steps.isfinite()
    levels = multiples[:, -1].round() + 1
    return _Grid(steps, torch.where(is_on_grid, levels, math.inf))


def _low_rank_or_noise(x: Tensor, y: Tensor, eps: float) -> tuple[Operation, float]:
    """Return "low rank" and the rank of the change y - x, or "noise" or "changed" with NaN.

    A change is noise if its entries do not depend on the weights, and its largest singular value
    is not above that of independent entries with the same root mean square s. For an n x m matrix
    this is about s (√n + √m), the edge (Marchenko & Pastur 1967). A change is of low rank if a few
    leading singular values leave next to nothing of it. All other changes are "changed". Singular
    values come from a random sketch.

    Args:
        x, y: The tensors before and after, of two axes or more; axes after the first are joined.
        eps: The relative rounding error of y.
    """
    change = (y.double() - x.double()).flatten(1)
    n, m = change.shape
    size_of_y = float(y.float().square().mean().sqrt())
    # The largest singular value of independent rounding errors, and of independent changes.
    rounding = eps * size_of_y * (math.sqrt(n) + math.sqrt(m))
    edge = float(change.square().mean().sqrt()) * (math.sqrt(n) + math.sqrt(m))

    # float32 is enough to recognise noise. Its singular values differ little from each other, so
    # that the sketch needs an iteration more than below.
    singular_values = _sketched_singular_values(change.float(), iterations=2)  # in falling order
    smallest_is_large = singular_values[-1] > LOW_RANK_GAP * singular_values[0]
    if smallest_is_large:  # the rank is greater than the sketch is wide
        is_within_edge = float(singular_values[0]) <= NOISE_EDGE * edge
        if is_within_edge and _is_independent(change, x.double().flatten(1)):
            return "noise", math.nan
        return "changed", math.nan

    singular_values = _sketched_singular_values(change, iterations=1)
    # The Frobenius norm of what the leading singular values do not explain. Of rounding errors it
    # is at most √min(n, m) times their largest singular value.
    rest = max(float(change.square().sum() - singular_values.square().sum()), 0.0) ** 0.5
    most_rest = max(rounding * math.sqrt(min(n, m)), LOW_RANK_REST * edge)
    rank = int((singular_values > rounding).sum())
    most_rank = min(MOST_RANK, min(n, m) // 4)  # more than a quarter of the full rank is not low
    if 1 <= rank <= most_rank and rest <= most_rest:
        return "low rank", float(rank)
    return "changed", math.nan


def _is_independent(change: Float[Tensor, "n m"], x: Float[Tensor, "n m"]) -> bool:
    """Return whether the change of weights x does not depend on x, as far as correlations tell.

    The change by added noise does not. If weights were clipped, shrunk or pruned, their change
    correlates with them, or its absolute size with theirs. Both correlations must be small.

    Args:
        change: How much each weight changed.
        x: The weights before.
    """
    # Independent numbers have a correlation of about 1 / √(their number) by chance.
    bound = MOST_CORRELATION + STANDARD_ERRORS / math.sqrt(x.numel())
    for changes, weights in ((change, x), (change.abs(), x.abs())):
        changes = changes - changes.mean()
        weights = weights - weights.mean()
        covariance = float((changes * weights).sum())
        if abs(covariance) > bound * float(changes.norm() * weights.norm()):
            return False
    return True


def _sketched_singular_values(
    change: Float[Tensor, "n m"], iterations: int
) -> Float[Tensor, " k"]:
    """Return approximations of the k largest singular values of a matrix, in falling order.

    k is `SKETCH_WIDTH`, or n or m if one of them is smaller. They are those of the matrix
    restricted to k dimensions, which subspace iteration finds from random directions of fixed seed
    (Halko et al. 2011); more iterations make them more exact.

    Args:
        change: The matrix.
        iterations: How often the directions are multiplied by the matrix and its transpose.
    """
    n, m = change.shape
    start = torch.randn(m, min(SKETCH_WIDTH, n, m), generator=seeded(0)).to(change)
    basis = torch.linalg.qr(change @ start).Q
    for _ in range(iterations):
        basis = torch.linalg.qr(change @ (change.T @ basis)).Q
    singular_values: Tensor = torch.linalg.svdvals((basis.T @ change).double())
    return singular_values
