"""An estimate is a value with its interval; the jackknife gives one over groups of rows."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from types import EllipsisType
from typing import Annotated, SupportsIndex

import torch
from jaxtyping import Float, Int
from torch import Tensor

from thinkalike.arguments import Level, Within
from thinkalike.measures.folds import JACKKNIFE_PARTS
from thinkalike.measures.powers_of_two import power_of_two_below
from thinkalike.measures.sample_size import effective_number, has_interval

# What indexes one axis of a tensor, or adds one.
AxisIndex = SupportsIndex | slice | EllipsisType | Tensor | Sequence[int] | None

# A difference of scores in [-1, 1] below this is rounding.
SCORE_ROUNDING = 1e-12


class Estimate:
    """A value with the lower and the upper end of its interval: three tensors of one shape.

    Iteration yields the three tensors, `estimate[index]` indexes all of them, and
    f"{estimate:+.3f}" of a single number is "+0.037 [+0.032, +0.043]".

    Attributes:
        value: The estimate, without its bias where a bias is known.
        low: The lower end of the interval.
        high: The upper end of the interval.
        uncorrected: The value with its bias, where a bias is known and was removed; else None.
    """

    def __init__(
        self, value: Tensor, low: Tensor, high: Tensor, *, uncorrected: Tensor | None = None
    ):
        """Store an estimate: values with their intervals, as tensors of one shape.

        `value` is the best estimate, and `low` and `high` are the ends of its interval.
        `uncorrected` is the value before a known bias was subtracted; None: none was.
        """
        self.value = value
        self.low = low
        self.high = high
        self.uncorrected = uncorrected

    def __repr__(self) -> str:
        attributes = ", ".join(f"{name}={value!r}" for name, value in vars(self).items())
        return f"{type(self).__name__}({attributes})"

    def __iter__(self) -> Iterator[Tensor]:
        return iter((self.value, self.low, self.high))

    def __getitem__(self, index: AxisIndex | tuple[AxisIndex, ...]) -> Estimate:
        """Return the estimates at an index of their tensors, such as a number, a slice or a mask.

        Values, ends of intervals and uncorrected values are indexed alike.
        """
        uncorrected = None
        if self.uncorrected is not None:
            uncorrected = self.uncorrected[index]
        return Estimate(
            self.value[index], self.low[index], self.high[index], uncorrected=uncorrected
        )

    @property
    def with_bias(self) -> Tensor:
        """The value before a known bias was subtracted, or `value` if none was subtracted."""
        if self.uncorrected is None:
            return self.value
        return self.uncorrected

    def __format__(self, spec: str) -> str:
        """Return "value [low, high]" of a single number, each formatted by `spec`, such as "+.3f".

        Without a spec it is `str` of the estimate, and only the value if an end is NaN.
        """
        if not spec:
            return str(self)
        value, low, high = (f"{tensor.item():{spec}}" for tensor in self)
        if "nan" in (low, high):
            return value
        return f"{value} [{low}, {high}]"


def interval_around(
    value: Annotated[Float[Tensor, "*s"], Within()],
    half: Annotated[Float[Tensor, "*#s"] | float, Within(least=0, allows_infinity=True)],
) -> Estimate:
    """Return the estimate with the interval value ± half.

    Args:
        value: The values.
        half: Half the width of the interval, as one number for all values or one for each.
    """
    return Estimate(value, value - half, value + half)


def student_t(level: Level, freedom: Annotated[float | int, Within(above=0)]) -> float:
    """Return the t with P(|T| < t) = level, for T of Student's distribution.

    Args:
        level: A probability between 0 and 1, such as 0.95.
        freedom: The degrees of freedom, which need not be whole.

    Raises:
        ValueError: The level is so close to 0 or 1 that float64 does not tell it from them.
    """
    from scipy.special import stdtrit  # the import takes half a second

    share_below = (1 + level) / 2
    if share_below in (0.5, 1):
        raise ValueError(
            f"level={level} is closer to {round(level)} than float64 distinguishes: "
            "give one such as 0.95"
        )
    return float(stdtrit(freedom, share_below))


def jackknife(
    value: Annotated[Float[Tensor, "*s"], Within()],
    replicates: Annotated[Float[Tensor, " b *s"], Within()],
    reference: Annotated[Float[Tensor, "*s"] | None, Within()] = None,
    *,
    is_drawn: bool = False,
    level: Level = 0.95,
    t: Annotated[
        Float[Tensor, "*#s"] | float | None, Within(least=0, allows_infinity=True)
    ] = None,
) -> Estimate:
    """Return a value with its jackknife interval, in float64.

    The interval is value ± t √((b-1)/b Σ (replicate - mean)²), with t of Student's distribution
    with b - 1 degrees of freedom. Fewer than two groups tell nothing about the spread or a bias:
    the interval is then (-∞, ∞).

    Args:
        value: The statistic of all rows.
        replicates: The same statistic without each of b groups of rows in turn (Tukey 1958).
        reference: What the replicates would average if rows did not depend on each other. Their
            mean minus the reference, times b - 1, is the bias of the value through dependent rows
            (Quenouille 1956). It is subtracted from the value, which remains as `uncorrected`. The
            interval is around the corrected value and reaches both values.
        is_drawn: Whether the reference was estimated from rows drawn at random. The bias is then
            less certain than the value, so it is not subtracted: the interval covers the interval
            around the value and that around the corrected value.
        level: The probability with which the interval covers the true value.
        t: Replaces Student's t, for instance where intervals hold for several values at once.
    """
    b = len(replicates)
    value = value.double()
    replicates = replicates.double()
    if b < 2:
        return interval_around(value, math.inf)

    # Squares of very small or very large numbers leave the range of float64. Powers of two change
    # no other digits.
    unit = power_of_two_below(replicates.detach().abs().amax(0))
    standard_error = (replicates / unit).var(0, correction=0).mul(b - 1).sqrt() * unit
    if t is None:
        t = student_t(level, b - 1)
    half = t * standard_error
    if reference is None:
        return interval_around(value, half)

    bias = (b - 1) * (replicates.mean(0) - reference)
    corrected = value - bias
    if is_drawn:
        low = torch.minimum(value - half, corrected - half)
        high = torch.maximum(value + half, corrected + half)
        return Estimate(value, low, high)
    low = torch.minimum(value, corrected - half)
    high = torch.maximum(value, corrected + half)
    return Estimate(corrected, low, high, uncorrected=value)


def without_parts(
    sums: Float[Tensor, " parts *s"], documents: Int[Tensor, " n"]
) -> Float[Tensor, " r *s"]:
    """Return a sum over all documents but those of one part, for each part in turn (jackknife).

    Documents are divided into `JACKKNIFE_PARTS` parts. Only the r parts that have documents are
    left out in turn. If there are too few documents for a jackknife interval, the result is empty,
    r = 0.

    Args:
        sums: The sum over the documents of each of the `JACKKNIFE_PARTS` parts.
        documents: Which document each row is of, as a number whose remainder of division by
            `JACKKNIFE_PARTS` is the document's part, see `numbered_by_part`.
    """
    distinct_documents, row_counts = documents.unique(return_counts=True)
    parts_with_documents = (distinct_documents % JACKKNIFE_PARTS).unique()
    if not has_interval(effective_number(row_counts)):
        parts_with_documents = parts_with_documents[:0]
    return sums.sum(0) - sums[parts_with_documents]
