"""Any measure of two sets of features, with an interval, its value by chance, and a p-value."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from typing import Annotated, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from thinkalike.arguments import Repetitions, Seed, Within, shown, takes_arrays
from thinkalike.measures.chance import p_value
from thinkalike.measures.estimates import Estimate, jackknife
from thinkalike.measures.folds import JACKKNIFE_PARTS, check_groups, numbered_by_part
from thinkalike.measures.permutations import balanced_rows, permuted_rows
from thinkalike.measures.sample_size import (
    FEWEST_GROUPS,
    FEWEST_GROUPS_IF_BIASED,
    effective_number,
    why_no_interval,
)
from thinkalike.measures.seeds import seeded
from thinkalike.processes import counted

UserFunction = Callable[[Tensor, Tensor], object]


class Calibrated(NamedTuple):
    """A value with its 95 % interval, and what it is by chance.

    Attributes:
        value: The value of the function for all rows.
        low: The lower end of the interval; -inf where groups are too few.
        high: The upper end of the interval; inf where groups are too few.
        null: The mean value where whole groups of Y changed places.
        p: The share of permutations of groups, with the value itself, whose value is at least as
            large; ties are broken at random.
        groups: How many different groups there are.
    """

    value: float
    low: float
    high: float
    null: float
    p: float
    groups: int


@takes_arrays
def calibrate(
    function: Callable[[Tensor, Tensor], object],
    X: Annotated[Float[Tensor, "n d"], Within(fewest=1)],
    Y: Float[Tensor, "n e"],
    groups: Int[Tensor, " n"],
    permutations: Repetitions = 99,
    seed: Seed = 0,
) -> Calibrated:
    """Return the value of any function of two sets of features, with its interval and p.

    The interval is the jackknife that leaves out whole groups, those of one tenth at a time. How
    much the value depends on the number of rows is learnt by leaving out as many rows at random.
    For p, groups are cut to the same number of rows and shorter groups are left out, since only
    groups of equal length are exchangeable. Groups that are worth fewer than 15 of equal length
    (`effective_number`) have the interval (-∞, ∞), and where fewer than 8 can be exchanged p is
    NaN; a warning says why.

    Args:
        function: Takes two tensors, (m, d) and (m, e), which may hold only some of the rows, and
            returns a finite number that is larger if they are more alike. It gets copies, which it
            may change.
        X, Y: Row i of both belongs to stimulus i.
        groups: What each row belongs to, such as its document or sentence; rows of one group
            depend on each other.
        permutations: How often groups change places.
        seed: The seed of the permutations.

    Raises:
        ValueError: The function does not return a finite number.

    >>> X, documents = torch.randn(60, 3), [n // 3 for n in range(60)]
    >>> calibrate(cka, X, 2 * X, documents, permutations=19).p
    0.05
    """
    check_groups(groups, len(X))
    numbers = numbered_by_part(groups)
    _, counts = numbers.unique(return_counts=True)
    effective_count = effective_number(counts)
    if effective_count < FEWEST_GROUPS_IF_BIASED:
        reason = why_no_interval(effective_count, len(counts), "groups", FEWEST_GROUPS_IF_BIASED)
        warnings.warn(reason, stacklevel=2)
    value = torch.tensor(_value_of(function, X, Y), dtype=torch.float64)
    estimate = _with_jackknife_interval(function, X, Y, numbers, value, seed)

    seeds = [seed * permutations + index for index in range(permutations)]
    null = []
    for permutation_seed in counted(seeds, "permutation"):
        order = permuted_rows(numbers, permutation_seed)
        null.append(_value_of(function, X, Y[order]))

    rows_of_group = balanced_rows(numbers)
    p = float("nan")
    if len(rows_of_group) >= FEWEST_GROUPS:
        p = _p_of_groups(function, X, Y, numbers, rows_of_group.flatten(), seeds)
    else:
        warnings.warn(
            f"no p-value: {len(rows_of_group)} groups can be exchanged; p needs {FEWEST_GROUPS}",
            stacklevel=2,
        )
    return Calibrated(
        value=float(value),
        low=float(estimate.low),
        high=float(estimate.high),
        null=sum(null) / len(null),
        p=p,
        groups=len(counts),
    )


def _with_jackknife_interval(
    function: UserFunction,
    X: Float[Tensor, "n d"],
    Y: Float[Tensor, "n e"],
    group_of_row: Int[Tensor, " n"],
    value: Float[Tensor, ""],
    seed: int,
) -> Estimate:
    """Return the value with its jackknife interval, each time without a tenth of the groups.

    A function of a user may be biased by the number of rows. Therefore the values without a tenth
    of the groups are compared with the mean of values without a random tenth of the rows, and not
    with the value of all rows. If the effective number of groups is too small for that, the
    interval is (-∞, ∞).

    Args:
        function: The user's function of the rows of two layers.
        X, Y: The rows of both layers.
        group_of_row: The number of the group, such as a document, of each row. Groups with the
            same number modulo `JACKKNIFE_PARTS` are left out together.
        value: The value for all rows.
        seed: The seed of the parts of random rows.
    """
    _, rows_per_group = group_of_row.unique(return_counts=True)
    part_of_row = group_of_row % JACKKNIFE_PARTS
    order = torch.randperm(len(part_of_row), generator=seeded(seed)).to(part_of_row.device)
    random_part_of_row = part_of_row[order]
    without_groups: list[float] = []
    without_random_rows: list[float] = []
    if effective_number(rows_per_group) >= FEWEST_GROUPS_IF_BIASED:
        without_groups = _values_without_parts(function, X, Y, part_of_row)
        without_random_rows = _values_without_parts(function, X, Y, random_part_of_row)
    # Without replicates, `jackknife` returns an unbounded interval. `is_drawn` says that the
    # reference comes from rows drawn at random: the interval is wider then.
    return jackknife(
        value,
        replicates=torch.tensor(without_groups, dtype=torch.float64),
        reference=torch.tensor(without_random_rows, dtype=torch.float64).mean(0),
        is_drawn=True,
    )


def _values_without_parts(
    function: UserFunction,
    X: Float[Tensor, "n d"],
    Y: Float[Tensor, "n e"],
    part_of_row: Int[Tensor, " n"],
) -> list[float]:
    """Return the function's value without the rows of each of the `JACKKNIFE_PARTS` parts in turn.

    Args:
        function: The user's function of two layers.
        X: Rows of one layer.
        Y: Rows of the other layer.
        part_of_row: The number of the part of each row, from 0.
    """
    values = []
    for part_number in range(JACKKNIFE_PARTS):
        remaining = part_of_row != part_number
        values.append(_value_of(function, X[remaining], Y[remaining]))
    return values


def _p_of_groups(
    function: UserFunction,
    X: Float[Tensor, "n d"],
    Y: Float[Tensor, "n e"],
    group_of_row: Int[Tensor, " n"],
    rows: Int[Tensor, " m"],
    seeds: list[int],
) -> float:
    """Return the p-value of the function's value when whole groups of Y change places at random.

    Only groups of equal length are exchangeable, so each group has the same number of rows here.

    Args:
        function: The user's function of the rows of two layers.
        X, Y: The rows of both layers.
        group_of_row: The number of the group of each row.
        rows: The indices of the rows that are compared, as many of each group.
        seeds: The seed of each permutation.
    """
    x = X[rows]
    y = Y[rows]
    groups = group_of_row[rows]
    value = torch.tensor([_value_of(function, x, y)], dtype=torch.float64)
    values_by_chance = []
    for seed in seeds:
        permuted_y = y[permuted_rows(groups, seed)]
        values_by_chance.append(_value_of(function, x, permuted_y))
    null = torch.tensor(values_by_chance, dtype=torch.float64)
    return float(p_value(null, value))


def _value_of(function: UserFunction, X: Float[Tensor, "m d"], Y: Float[Tensor, "m e"]) -> float:
    """Return what a user's function returns for copies of these rows, as a float.

    Raises:
        ValueError: It returns something that is not a finite number.
    """
    value = function(X.clone(), Y.clone())
    number = float("nan")
    try:
        scalar = value
        if hasattr(value, "item"):
            scalar = value.item()
        if not isinstance(scalar, str | bytes):  # float would read a text
            number = float(scalar)  # type: ignore[arg-type]
    except (TypeError, ValueError, RuntimeError, OverflowError):
        pass
    if not math.isfinite(number):
        raise ValueError(
            f"function returns {shown(value)} for {len(X)} rows: it must return a finite number"
        )
    return number
