"""How many documents there are in effect, and whether they are enough for an interval."""

from __future__ import annotations

from typing import Annotated

from jaxtyping import Shaped
from torch import Tensor

from thinkalike.arguments import Within
from thinkalike.measures.powers_of_two import power_of_two_below

# A p-value needs this many documents, sentences or other groups. An interval needs groups that are
# worth this many of equal length.
FEWEST_GROUPS = 8

# Where the value of a measure depends on the number of rows, leaving out a part of them shifts it,
# and its interval needs groups that are worth this many of equal length.
FEWEST_GROUPS_IF_BIASED = 15

# Intervals of groups that are worth fewer of equal length come with a warning.
FEW_GROUPS = 2 * FEWEST_GROUPS

# Effective numbers and means that differ by less than this share are equal up to rounding.
RELATIVE_ROUNDING = 1e-9


def effective_number(
    counts: Annotated[Shaped[Tensor, " documents"], Within(least=0, fewest=1)],
) -> float:
    """Return how many documents of equal length these are worth, in [1, documents].

    It is (Σ n)² / Σ n² for documents of n tokens (Kish 1965, section 11.7). Documents that are all
    empty are worth 0.
    """
    if not counts.any():
        return 0.0
    counts = counts.double() / power_of_two_below(counts.double().max())  # squares stay finite
    return float(counts.sum().square() / counts.square().sum())


def has_interval(effective_count: float | int, fewest: int = FEWEST_GROUPS) -> bool:
    """Return whether documents are enough for an interval.

    A jackknife learns the spread from whole documents. Where one document has half of the rows,
    that spread is hardly observed, however many short documents there are: 95 % intervals of CKA
    then cover 84 % (`benchmarks/unequal_coverage.py`).

    Args:
        effective_count: How many documents of equal length the documents are worth, which is fewer
            than there are if lengths differ; see `effective_number`.
        fewest: How many they must be worth, up to rounding.
    """
    return effective_count >= fewest * (1 - RELATIVE_ROUNDING)


def why_no_interval(
    effective_count: float | int, count: int, unit: str = "documents", fewest: int = FEWEST_GROUPS
) -> str:
    """Return a message for users that documents are too few for an interval.

    Args:
        effective_count: How many documents of equal length they are worth, the effective sample
            size.
        count: How many documents there are.
        unit: What the message calls the documents.
        fewest: How many they must be worth.
    """
    return (
        f"no intervals: effective sample size {effective_count:.1f} {unit} (of {count:,}); "
        f"intervals need {fewest}"
    )


def freedom_of_groups(counts: Shaped[Tensor, " groups"]) -> float:
    """Return the degrees of freedom of a variance that is estimated from groups of rows.

    They are (Σ n²)² / Σ n⁴ for groups of n rows. This is Satterthwaite's (1946) formula where rows
    of a group depend on each other fully, so that group i adds n_i² to the variance of a mean. The
    result is the number of groups if they are equal, and close to 1 if one group outweighs all
    others.
    """
    squares = counts.double().square()
    return float(squares.sum().square() / squares.square().sum())
