"""How predictions and states differ between models: divergence and distance by token, and tests.

A null is a set of models that were changed as much, but at random. There are two of weights: each
matrix gets the same change with the signs of rows and columns flipped at random, while rows and
columns are permuted (`signed_permutation`) or stay where they are (`random_signs`). If the
distribution of a change is invariant under such maps, the change and its nulls are exchangeable,
so that the rank of the change among them is an exact test. The distribution of Gaussian noise of
one size is invariant under both. Noise that is proportional to the weights, as that of rounding
is, is invariant under flipped signs alone: a permutation takes large changes away from large
weights.
"""

from __future__ import annotations

import math
from typing import Annotated, Literal, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from thinkalike.arguments import Count, Within
from thinkalike.measures.estimates import SCORE_ROUNDING
from thinkalike.measures.sample_size import FEWEST_GROUPS

# Log-probabilities that are compared at a time, which stay in the cache of a processor.
LOG_PROBABILITIES_AT_ONCE = 2**20

# Rounding changes log-probabilities, which are about 10, by less than so many times the epsilon of
# their dtype.
ROUNDING_STEPS = 8

# With fewer groups, what most of them do does not tell what is common to all.
FEWEST_PEERS = 4

# A null that is equal to a value may be below it by this share, for rounding.
NULL_ROUNDING = 1e-9

Verdict = Literal["equivalent", "not equivalent", "undecided"]


class TokenChanges(NamedTuple):
    """The comparison of two predictions of the token that follows each of n tokens.

    Attributes:
        kl: KL(base ‖ changed) in nats.
        reverse: KL(changed ‖ base) in nats.
        flip: Whether the most likely token differs.
        loss_base, loss_changed: The cross-entropy of the token that follows, in nats.
    """

    kl: Float[Tensor, " n"]
    reverse: Float[Tensor, " n"]
    flip: Bool[Tensor, " n"]
    loss_base: Float[Tensor, " n"]
    loss_changed: Float[Tensor, " n"]


def token_changes(
    base: Float[Tensor, "n v"], changed: Float[Tensor, "n v"], targets: Int[Tensor, " n"]
) -> TokenChanges:
    """Return how two predictions of the next token differ, row by row.

    Args:
        base, changed: Log-probabilities of the v tokens of one vocabulary.
        targets: The ids of the tokens that follow.
    """
    target_ids = targets[:, None].long()
    return TokenChanges(
        kl=divergence(base, changed),
        reverse=divergence(changed, base),
        flip=base.argmax(1) != changed.argmax(1),
        loss_base=-base.gather(1, target_ids)[:, 0],
        loss_changed=-changed.gather(1, target_ids)[:, 0],
    )


def divergence(log_p: Float[Tensor, "n v"], log_q: Float[Tensor, "n v"]) -> Float[Tensor, " n"]:
    """Return KL(p ‖ q) = Σ p (log p - log q) of each row in nats, in [0, ∞).

    It is computed as Σ (q - p - p (log q - log p)), which is equal, as p and q both sum to 1. No
    term of that sum is negative, so that nothing cancels. In float32 its rounding error is less
    than 1e-12 nats, and that of Σ p (log p - log q) about 1e-7. A divergence of up to
    `kl_of_rounding` is set to 0, as rounding of the log-probabilities alone can cause it.

    Args:
        log_p, log_q: Log-probabilities of the v tokens. Both are finite: -∞ would give NaN or ∞.
    """
    rows_at_once = max(LOG_PROBABILITIES_AT_ONCE // log_p.shape[1], 1)
    sums = []
    for log_p_of_rows, log_q_of_rows in zip(
        log_p.split(rows_at_once), log_q.split(rows_at_once), strict=True
    ):
        log_ratio = log_q_of_rows - log_p_of_rows
        p = log_p_of_rows.exp()
        # q - p is p (q/p - 1), which keeps its digits where p and q are close, and may overflow
        # where they are not.
        is_close = log_ratio < 1
        difference_if_close = p * torch.expm1(log_ratio.clamp(max=1))
        difference = torch.where(is_close, difference_if_close, log_q_of_rows.exp() - p)
        sums.append((difference - p * log_ratio).sum(1))
    divergences = torch.cat(sums)
    return divergences.masked_fill(divergences <= kl_of_rounding(log_p.dtype), 0)


def kl_of_rounding(dtype: torch.dtype = torch.float32) -> float:
    """Return the KL in nats up to which log-probabilities of a dtype differ by rounding alone.

    For float32 it is 9e-13.
    """
    # KL grows with the square of the difference of the log-probabilities.
    return (ROUNDING_STEPS * torch.finfo(dtype).eps) ** 2


def signed_permutation(
    change: Float[Tensor, "*s"], generator: torch.Generator
) -> Float[Tensor, "*s"]:
    """Return the change of a weight with its indices along each axis permuted and given signs.

    For a matrix, rows and columns are put in random order and multiplied by 1 or -1 at random.
    These maps are orthogonal: they change neither the Frobenius norm nor a singular value.

    Args:
        change: The change of a weight; it is not changed.
        generator: Draws orders and signs.
    """
    for axis, size in enumerate(change.shape):
        order = torch.randperm(size, generator=generator).to(change.device)
        signs = _signs_along(change, axis, generator)
        change = change.index_select(axis, order).mul_(signs)  # in a copy
    return change


def random_signs(change: Float[Tensor, "*s"], generator: torch.Generator) -> Float[Tensor, "*s"]:
    """Return the change of a weight with a random sign for each index of each axis.

    For a matrix, each row and each column is multiplied by 1 or -1 at random. Entries keep their
    places and their absolute values, and the matrix keeps its singular values.

    Args:
        change: The change of a weight; it is not changed.
        generator: Draws the signs.
    """
    change = change.clone()
    for axis in range(change.dim()):
        change.mul_(_signs_along(change, axis, generator))
    return change


def _signs_along(
    change: Float[Tensor, "*s"], axis: int, generator: torch.Generator
) -> Float[Tensor, "..."]:
    """Return 1 or -1 at random for each index of an axis, to be multiplied with the tensor.

    For axis 0 of a matrix (n, m) the shape is (n, 1).
    """
    zeros_and_ones = torch.randint(2, (change.shape[axis],), generator=generator).to(change)
    signs = zeros_and_ones * 2 - 1
    axes_after = change.dim() - axis - 1
    return signs.view(-1, *[1] * axes_after)  # axes of length 1, to broadcast


def rank_p(value: Float[Tensor, "..."], null: Float[Tensor, "r ..."]) -> Float[Tensor, "..."]:
    """Return the p-value (1 + #{null ≥ value}) / (1 + r), in [1 / (r + 1), 1].

    If value and null are exchangeable and have no ties, it is at most α with probability α, for
    each α for which α (r + 1) is a whole number (Phipson & Smyth 2010). A null value that is below
    the value by no more than rounding counts as equal.

    Args:
        value: The values that are tested.
        null: The same values in r runs of the null, such as models that were changed at random.
    """
    # Only the second comparison allows for rounding. The first one is needed for an infinite
    # value, for which the second is with ∞ - ∞, NaN.
    reaches_value = (null >= value) | (null >= value - NULL_ROUNDING * value.abs())
    return (1 + reaches_value.sum(0)).double() / (1 + len(null))


def equivalence(low: float, high: float, margin: float) -> Verdict:
    """Say whether a value is within ± margin: two one-sided tests (Schuirmann 1987).

    It is *equivalent* if the interval is inside of ± margin, a verdict that is wrong with
    probability α at most, *not equivalent* if it is outside, and otherwise *undecided*.

    Args:
        low, high: The ends of an interval of level 1 - 2 α.
        margin: The largest absolute value that counts as no difference, above 0.
    """
    if -margin < low and high < margin:
        return "equivalent"
    if low > margin or high < -margin:
        return "not equivalent"
    return "undecided"


def false_discovery_rates(p: Float[Tensor, " m"]) -> Float[Tensor, " m"]:
    """Return the false discovery rate of each p-value, in [0, 1] (Benjamini & Hochberg 1995).

    For the i-th smallest of m p-values, p₍ᵢ₎, it is the minimum over k ≥ i of p₍ₖ₎ m / k. Entry j
    of the result belongs to entry j of `p`.
    """
    largest_first = p.argsort(descending=True)
    ranks = torch.arange(len(p), 0, -1, dtype=p.dtype, device=p.device)
    sorted_rates = (p[largest_first] * len(p) / ranks).cummin(0).values
    return torch.empty_like(p).scatter_(0, largest_first, sorted_rates)


class Excess(NamedTuple):
    """How far each of g groups changed beyond the null and beyond the remaining groups.

    Attributes:
        excess: The difference from the null, in the unit of the values.
        t: The excess in standard errors.
        p: The two-sided p-value.
    """

    excess: Float[Tensor, " g"]
    t: Float[Tensor, " g"]
    p: Float[Tensor, " g"]


def excess(values: Float[Tensor, " g"], null: Float[Tensor, "r g"]) -> Excess:
    """Return how far each of g groups changed beyond the null and beyond the remaining groups.

    The null is these values in r ≥ 2 models that were changed at random, its runs. The excess is
    value - mean of the runs, and t is excess / (s √(1 + 1/r)), with r - 1 degrees of freedom. s
    is the standard deviation of the runs, or the median one of all groups if that is larger. With
    `FEWEST_GROUPS` groups or more, the median over groups is first subtracted from the values and
    from each run, so that a change that most groups have in common is no excess of any of them. t
    is then also divided by λ, if λ > 1: the median over groups of |t|, with each group's own s,
    over the median of Student's |t| (genomic control, Devlin & Roeder 1999).

    Args:
        values: The value of each group.
        null: The values of each group in r runs of the null.
    """
    from scipy.special import stdtrit

    runs = torch.cat([values[None], null]).double()  # (1 + r, g); run 0 is the tested one
    freedom = len(null) - 1
    has_many_groups = runs.shape[1] >= FEWEST_GROUPS
    if has_many_groups:
        runs = runs - runs.median(1, keepdim=True).values
    excess_of_groups = runs[0] - runs[1:].mean(0)
    # s √(1 + 1/r), with the standard deviation of each group's own runs, ...
    error_of_group = runs[1:].std(0).clamp(min=SCORE_ROUNDING) * math.sqrt(1 + 1 / len(null))
    error = error_of_group.clamp(min=error_of_group.median())  # ... and at least the median one
    if has_many_groups:
        median_of_student = float(stdtrit(freedom, 0.75))  # of |t|, as t is symmetric
        inflation = (excess_of_groups / error_of_group).abs().median() / median_of_student  # λ
        error = error * inflation.clamp(min=1)
    p = two_sided(excess_of_groups, error, freedom).to(values.device)
    return Excess(excess_of_groups, excess_of_groups / error, p)


def p_above_null(values: Float[Tensor, " g"], null: Float[Tensor, "r g"]) -> Float[Tensor, " g"]:
    """Return for each of g groups the one-sided p-value that its value is above the null.

    The null is these values in r ≥ 2 models that were changed at random, its runs.
    t = (value - mean of the runs) / (s √(1 + 1/r)), with s the standard deviation of the runs, or
    the median one of all groups if that is larger. Unlike in `excess`, what groups have in common
    is not subtracted, so a change that moves all groups is above the null in all.

    Args:
        values: The value of each group.
        null: The values of each group in r runs of the null.
    """
    runs = null.double()
    # s √(1 + 1/r), with the standard deviation of each group's own runs, ...
    error_of_group = runs.std(0).clamp(min=SCORE_ROUNDING) * math.sqrt(1 + 1 / len(runs))
    error = error_of_group.clamp(min=error_of_group.median())  # ... and at least the median one
    above = values.double() - runs.mean(0)
    two_sided_p = two_sided(above, error, len(runs) - 1).to(values.device)
    return torch.where(above > 0, two_sided_p / 2, 1 - two_sided_p / 2)


def deviations_beyond_null(
    values: Float[Tensor, "g k"], null: Float[Tensor, "r g k"]
) -> tuple[Float[Tensor, " g"], Float[Tensor, ""]]:
    """Return how far each of g groups is beyond r runs of a null, and the p-value of the farthest.

    1. Each of k statistics of a group is compared with the null by
       z = (value - mean) / (s √(1 + 1/r)), with the mean and the standard deviation s of the
       null's runs; s is at least the median one of all groups.
    2. With `FEWEST_PEERS` groups or more, what groups have in common is removed. Before step 1,
       the median over groups is subtracted from each run. Afterwards z becomes
       (z - mean of the remaining groups) / max(their standard deviation, 1).
    3. How far a group is beyond the null is the greatest z of its k statistics.

    The same is computed for each run of the null in place of the value, and the p-value is the
    rank of the value's maximum over groups among those of the runs. It is exact if value and null
    are exchangeable, whatever their distribution and dependence (Westfall & Young 1993).

    Args:
        values: The k statistics of each of g groups.
        null: The same in each of r models that were changed at random, the runs of the null.
    """
    runs = torch.cat([values[None], null]).double()  # (1 + r, g, k); run 0 is the value
    r = len(null)
    has_peers = runs.shape[1] >= FEWEST_PEERS
    if has_peers:
        runs = runs - runs.median(1, keepdim=True).values
    # Of each run, the mean and the variance of the r other runs.
    mean_of_others = (runs.sum(0) - runs) / r
    mean_square_of_others = (runs.square().sum(0) - runs.square()) / r
    variance = (mean_square_of_others - mean_of_others.square()).clamp(min=0) * r / (r - 1)
    error = (variance * (1 + 1 / r)).sqrt()
    error = torch.maximum(error, error.median(1, keepdim=True).values)
    z = ((runs - mean_of_others) / error).nan_to_num(0.0)
    if has_peers:
        peers = runs.shape[1] - 1
        mean_of_peers = (z.sum(1, keepdim=True) - z) / peers
        mean_square_of_peers = (z.square().sum(1, keepdim=True) - z.square()) / peers
        variance_of_peers = (mean_square_of_peers - mean_of_peers.square()).clamp(min=0)
        variance_of_peers = variance_of_peers * peers / (peers - 1)
        z = (z - mean_of_peers) / variance_of_peers.sqrt().clamp(min=1)
    greatest_z = z.amax(2)  # (1 + r, g)
    p = rank_p(greatest_z[0].max(), greatest_z[1:].amax(1))
    return greatest_z[0], p


class Directions(NamedTuple):
    """Principal directions of the change of states.

    Attributes:
        directions: The k directions, of length 1, that of the largest share first.
        share: The share of the mean square of the change that lies in each, in [0, 1].
        stability: The |cosine| of each with the nearest principal direction of one half of the
            documents, the lesser over both halves.
    """

    directions: Float[Tensor, "k d"]
    share: Float[Tensor, " k"]
    stability: Float[Tensor, " k"]


def directions_of_change(
    change: Float[Tensor, "n d"], half: Bool[Tensor, " n"], k: int = 3
) -> Directions:
    """Return the first k ≤ d principal directions of the change y - x of states.

    They are the right singular vectors of the changes, from which no mean is subtracted, with
    their shares of Σ ‖y - x‖². The sign of each is chosen so that the change along it is positive
    on average. The stability of a direction says whether it would also be found in half of the
    documents: it is the greatest |cosine| with a leading direction of one half, for the half in
    which this is smaller.

    Args:
        change: The change of each state.
        half: True for rows of the first half of the documents, False for those of the second.
        k: How many directions are returned.
    """
    rows = change.double()
    values, vectors = _principal_directions(rows)
    directions = vectors[:k]
    mean_projection = (rows @ directions.T).mean(0)
    signs = (mean_projection.sign() + 0.5).sign()  # 1 for a mean of 0
    directions = directions * signs[:, None]

    # Directions of nearly equal size may change places in a half, so the first k + 2 directions of
    # a half are looked at.
    cosines_of_halves = []
    for rows_of_half in (rows[half], rows[~half]):
        _, vectors_of_half = _principal_directions(rows_of_half)
        cosines = directions @ vectors_of_half[: k + 2].T
        cosines_of_halves.append(cosines.abs().amax(1))
    stability = torch.stack(cosines_of_halves).amin(0)
    return Directions(directions, values[:k] / values.sum(), stability)


def _principal_directions(
    rows: Float[Tensor, "m d"],
) -> tuple[Float[Tensor, " d"], Float[Tensor, "d d"]]:
    """Return the squared singular values of a matrix, falling, and its right singular vectors.

    Row i of the second result is the vector of value i.
    """
    values, vectors = torch.linalg.eigh(rows.T @ rows)
    return values.flip(0).clamp(min=0), vectors.T.flip(0)  # rounding may leave values below 0


def two_sided(
    value: Annotated[Float[Tensor, "*b"], Within()],
    error: Annotated[Float[Tensor, "*#b"], Within(least=0)],
    freedom: Count,
) -> Float[Tensor, "*b"]:
    """Return the two-sided p-value of the hypothesis that a value is 0, by Student's t.

    t is value / error. If the error is 0 up to rounding, p is 1 for a value of 0 and 0 for any
    other value. It is in float64, on the CPU, and has no gradient.

    Args:
        value: The value.
        error: Its standard error.
        freedom: The degrees of freedom.
    """
    from scipy.special import stdtr

    value = value.detach().where(value.abs() > SCORE_ROUNDING, 0.0)
    error = error.detach().where(error.abs() > SCORE_ROUNDING, 0.0)
    t = (value / error).nan_to_num(0.0, math.inf, -math.inf)
    one_sided = stdtr(freedom, -t.abs().double().cpu().numpy())
    return 2 * torch.as_tensor(one_sided)


def relative_distance(x: Float[Tensor, "n d"], y: Float[Tensor, "n d"]) -> Float[Tensor, " n"]:
    """Return ‖x - y‖ / ‖x‖ of each row, at least 0.

    Where a row of x is 0 it is ∞, or NaN if that of y is 0 as well.
    """
    distances: Tensor = torch.linalg.vector_norm(x - y, dim=1)
    norms: Tensor = torch.linalg.vector_norm(x, dim=1)
    return distances / norms
