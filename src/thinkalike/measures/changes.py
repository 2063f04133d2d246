"""How predictions and states differ between models: divergence and distance by token, nulls of a change, and tests.

A null is a set of models that were changed as much, but at random. There are two of weights: each matrix gets
the same change with the signs of rows and columns flipped at random, while rows and columns are permuted
(`signed_permutation`) or stay where they are (`random_signs`). If the distribution of a change is invariant
under such maps, the change and its nulls are exchangeable, so that the rank of the change among them is an
exact test. The distribution of Gaussian noise of one size is invariant under both. Noise that is proportional
to the weights, as that of rounding is, is invariant under flipped signs alone: a permutation takes large
changes away from large weights.
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

AT_ONCE = 2**20  # numbers, which stay in the cache of a processor
FEWEST_PEERS = 4  # groups, from which on what most of them do is taken off each of them
TIE = 1e-9  # of a value: what rounding may take a null off that is equal to it
Verdict = Literal["equivalent", "not equivalent", "undecided"]


class TokenChanges(NamedTuple):
    """The comparison of two predictions of the token that follows each of n tokens."""

    kl: Float[Tensor, " n"]  # KL(base ‖ changed) in nats
    reverse: Float[Tensor, " n"]  # KL(changed ‖ base) in nats
    flip: Bool[Tensor, " n"]  # whether the most likely token differs
    loss_base: Float[Tensor, " n"]  # cross-entropy of the token that follows, in nats
    loss_changed: Float[Tensor, " n"]


def token_changes(
    base: Float[Tensor, "n v"], changed: Float[Tensor, "n v"], targets: Int[Tensor, " n"]
) -> TokenChanges:
    """Compare two predictions, given as log-probabilities of the v tokens of one vocabulary, row by row."""
    following = targets[:, None].long()
    return TokenChanges(
        divergence(base, changed),
        divergence(changed, base),
        base.argmax(1) != changed.argmax(1),
        -base.gather(1, following)[:, 0],
        -changed.gather(1, following)[:, 0],
    )


def divergence(p: Float[Tensor, "n v"], q: Float[Tensor, "n v"]) -> Float[Tensor, " n"]:
    """Return KL(p ‖ q) = Σ p (log p - log q) of each row of log-probabilities in nats, in [0, ∞)."""
    parts = zip(*(each.split(max(AT_ONCE // p.shape[1], 1)) for each in (p, q)), strict=True)
    sums = [own.exp().mul_(own - other).sum(1) for own, other in parts]
    return torch.cat(sums).clamp(min=0)  # a sum that rounding took below 0


def signed_permutation(change: Float[Tensor, "*s"], generator: torch.Generator) -> Float[Tensor, "*s"]:
    """Return a tensor with each axis in random order and a random sign for each index of each axis.

    These maps are orthogonal: the Frobenius norm and, of a matrix, all singular values stay as they are.
    """
    for axis, size in enumerate(change.shape):
        order = torch.randperm(size, generator=generator).to(change.device)
        signs = torch.randint(2, (size,), generator=generator).to(change) * 2 - 1
        change = change.index_select(axis, order).mul_(signs.view(-1, *[1] * (change.dim() - axis - 1)))
    return change


def random_signs(change: Float[Tensor, "*s"], generator: torch.Generator) -> Float[Tensor, "*s"]:
    """Return a tensor with a random sign for each index of each axis.

    Entries stay where they are and keep their size; the Frobenius norm and all singular values stay as they are.
    """
    change = change.clone()
    for axis, size in enumerate(change.shape):
        signs = torch.randint(2, (size,), generator=generator).to(change) * 2 - 1
        change.mul_(signs.view(-1, *[1] * (change.dim() - axis - 1)))
    return change


def rank_p(value: Float[Tensor, "..."], null: Float[Tensor, "r ..."]) -> Float[Tensor, "..."]:
    """Return the share of null values, the value itself counted among them, that reach the value: in [1 / (r + 1), 1].

    It is at most α with probability α if value and null are exchangeable and α (r + 1) is whole (Phipson & Smyth 2010).
    """
    reaches = (null >= value) | (null >= value - TIE * value.abs())
    return (1 + reaches.sum(0)).double() / (1 + len(null))


def equivalence(low: float, high: float, margin: float) -> Verdict:
    """Say whether a value is within ± margin, by an interval of level 1 - 2 α: two one-sided tests (Schuirmann 1987).

    *equivalent* if the interval is inside the margin, false with probability α at most; *not equivalent* if outside.
    """
    if -margin < low and high < margin:
        return "equivalent"
    return "not equivalent" if low > margin or high < -margin else "undecided"


def false_discovery_rates(p: Float[Tensor, " m"]) -> Float[Tensor, " m"]:
    """Return for each p-value in order min over k ≥ i of p₍ₖ₎ m / k, in [0, 1] (Benjamini & Hochberg 1995)."""
    order = p.argsort(descending=True)
    ranks = torch.arange(len(p), 0, -1, dtype=p.dtype, device=p.device)
    return torch.empty_like(p).scatter_(0, order, (p[order] * len(p) / ranks).cummin(0).values)


def excess(values: Float[Tensor, " g"], null: Float[Tensor, "r g"]) -> tuple[Tensor, Tensor, Tensor]:
    """Return how far each of g groups changed beyond the null and beyond the other groups, its t and two-sided p-value.

    t is (value - mean of the null's runs) / (s √(1 + 1/r)), with r - 1 degrees of freedom and s the standard deviation
    of the r ≥ 2 runs, at least the median one of all groups. With `FEWEST_GROUPS` groups or more, each run is taken
    less its median, and t is divided by λ = median |t| / the median of Student's |t|, if that is more than 1 (genomic
    control, Devlin & Roeder 1999), so that what happens to most groups is an excess of none.
    """
    from scipy.special import stdtrit

    runs, freedom = torch.cat([values[None], null]).double(), len(null) - 1
    many = runs.shape[1] >= FEWEST_GROUPS
    if many:
        runs = runs - runs.median(1, keepdim=True).values
    beyond, spread = (
        runs[0] - runs[1:].mean(0),
        runs[1:].std(0).clamp(min=SCORE_ROUNDING) * math.sqrt(1 + 1 / len(null)),
    )
    error = spread.clamp(min=spread.median())
    if many:
        error = error * ((beyond / spread).abs().median() / float(stdtrit(freedom, 0.75))).clamp(min=1)
    return beyond, beyond / error, two_sided(beyond, error, freedom).to(values.device)


def above_null(values: Float[Tensor, " g"], null: Float[Tensor, "r g"]) -> Float[Tensor, " g"]:
    """Return for each of g groups the one-sided p-value of a value above those of r ≥ 2 runs of a null.

    As in `excess`, t = (value - mean of the runs) / (s √(1 + 1/r)) with s at least the median one of all groups. The
    remaining groups do not matter, so that a change which moves all of them is above the null in all of them.
    """
    runs = null.double()
    spread = runs.std(0).clamp(min=SCORE_ROUNDING) * math.sqrt(1 + 1 / len(runs))
    above = values.double() - runs.mean(0)
    p = two_sided(above, spread.clamp(min=spread.median()), len(runs) - 1).to(values.device)
    return torch.where(above > 0, p / 2, 1 - p / 2)


def beyond_null(
    values: Float[Tensor, "g k"], null: Float[Tensor, "r g k"]
) -> tuple[Float[Tensor, " g"], Float[Tensor, ""]]:
    """Return how far each of g groups is beyond r runs of a null, and the p-value of the farthest one.

    Each of k statistics is compared by (value - mean) / (s √(1 + 1/r)), with the mean and the standard deviation s of
    the null's runs, s being at least the median one of all groups. With `FEWEST_PEERS` groups or more, each run is
    taken less its median over groups, and each result z becomes (z - mean of the remaining groups) / max(their standard
    deviation, 1): what happens to all groups, or varies as much among all of them, tells none of them apart. The
    greatest of the k statistics counts.

    Each run is compared with all others in this way, and the p-value is the rank of the value's maximum over groups
    among theirs: exact if value and null are exchangeable, whatever their distribution and dependence (Westfall & Young
    1993).
    """
    runs = torch.cat([values[None], null]).double()
    r = len(null)
    has_peers = runs.shape[1] >= FEWEST_PEERS
    if has_peers:
        runs = runs - runs.median(1, keepdim=True).values
    mean_of_others = (runs.sum(0) - runs) / r
    mean_square_of_others = (runs.square().sum(0) - runs.square()) / r
    variance = (mean_square_of_others - mean_of_others.square()).clamp(min=0) * r / (r - 1)
    spread = (variance * (1 + 1 / r)).sqrt()
    spread = torch.maximum(spread, spread.median(1, keepdim=True).values)
    beyond = ((runs - mean_of_others) / spread).nan_to_num(0.0)
    if has_peers:
        peers = runs.shape[1] - 1
        mean_of_peers = (beyond.sum(1, keepdim=True) - beyond) / peers
        square_of_peers = (beyond.square().sum(1, keepdim=True) - beyond.square()) / peers
        variance_of_peers = (square_of_peers - mean_of_peers.square()).clamp(min=0) * peers / (peers - 1)
        beyond = (beyond - mean_of_peers) / variance_of_peers.sqrt().clamp(min=1)
    farthest_statistic = beyond.amax(2)
    return farthest_statistic[0], rank_p(farthest_statistic[0].max(), farthest_statistic[1:].amax(1))


class Directions(NamedTuple):
    """Principal directions of the change of states."""

    directions: Float[Tensor, "k d"]
    share: Float[Tensor, " k"]  # of the mean square of the change
    stability: Float[Tensor, " k"]  # abs(cosine) with the nearest one of the other half, the lesser over halves


def directions_of_change(change: Float[Tensor, "n d"], half: Bool[Tensor, " n"], k: int = 3) -> Directions:
    """Return the first k ≤ d right singular vectors of the change y - x of states, its mean included.

    Each points to where the change is positive on average. The stability compares the rows of one half of the documents
    with those of the other.
    """

    def principal(rows: Float[Tensor, "m d"]) -> tuple[Float[Tensor, " d"], Float[Tensor, "d d"]]:
        values, vectors = torch.linalg.eigh(rows.T @ rows)
        return values.flip(0).clamp(min=0), vectors.T.flip(0)

    rows = change.double()
    values, vectors = principal(rows)
    vectors = vectors[:k] * ((rows @ vectors[:k].T).mean(0).sign() + 0.5).sign()[:, None]
    cosines = [(vectors @ principal(rows[part])[1][: k + 2].T).abs().amax(1) for part in (half, ~half)]
    return Directions(vectors, values[:k] / values.sum(), torch.stack(cosines).amin(0))


def two_sided(
    value: Annotated[Float[Tensor, "*b"], Within()],
    error: Annotated[Float[Tensor, "*#b"], Within(least=0)],
    freedom: Count,
) -> Float[Tensor, "*b"]:
    """Return the p-value of a value that is 0, by Student's t of value / error; 1 where both are 0 up to rounding."""
    from scipy.special import stdtr

    value, error = (part.detach().where(part.abs() > SCORE_ROUNDING, 0.0) for part in (value, error))
    t = (value / error).nan_to_num(0.0, math.inf, -math.inf)
    return 2 * torch.as_tensor(stdtr(freedom, -t.abs().double().cpu().numpy()))


def relative_distance(x: Float[Tensor, "n d"], y: Float[Tensor, "n d"]) -> Float[Tensor, " n"]:
    """Return ‖x - y‖ / ‖x‖ of each row, at least 0."""
    return torch.linalg.vector_norm(x - y, dim=1) / torch.linalg.vector_norm(x, dim=1)
