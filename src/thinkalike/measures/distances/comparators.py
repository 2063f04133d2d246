"""Ranks with ties, and comparators of vectors of distances and of profiles of features.

The distances of n stimuli are a vector of p = n (n - 1) / 2 squared distances, in the order of `upper`. Names are those
of rsatoolbox (Nili et al. 2014; Schütt et al. 2023), whose values these are.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from math import isqrt
from typing import Annotated

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from thinkalike.arguments import Within, check_choice, refuse_nan, shown
from thinkalike.measures.powers_of_two import size_of

COMPARATORS = ("spearman", "tau_a", "corr", "cosine", "corr_cov", "cosine_cov")
RANKED = ("spearman", "tau_a")
CENTRED = ("corr", "corr_cov")
WHITENED = ("corr_cov", "cosine_cov")  # for squared Euclidean distances
MOST_COPIES = 10**8  # of pairs in a resample, which tau_a holds in memory
TIED = 1e-13  # share of two distances in float64 by which rounding alone may take them apart, beside that of states


def compare(
    x: Annotated[Float[Tensor, "a p"], Within(fewest=1)],
    y: Annotated[Float[Tensor, "b p"], Within(fewest=1)],
    comparator: str = "spearman",
    counts: Annotated[Float[Tensor, "r n"] | None, Within(least=0, fewest=1)] = None,
) -> Float[Tensor, "*r a b"]:
    """Return the similarity of each vector of x with each of y, in [-1, 1].

    | comparator | value |
    |---|---|
    | spearman | Pearson's r of ranks, ties at mid-ranks |
    | tau_a | (concordant - discordant) / (m (m - 1) / 2) over the m (m - 1) / 2 pairs of m distances (Kendall 1938) |
    | corr | Pearson's r |
    | cosine | x·y / (‖x‖ ‖y‖) |
    | cosine_cov | xᵀ V⁻¹ y / √(xᵀ V⁻¹ x · yᵀ V⁻¹ y) |
    | corr_cov | the same of vectors minus their means |

    V = (C Cᵀ)² elementwise, with a row of C for each pair of stimuli, is the covariance of squared distances under
    noise (Diedrichsen et al. 2021). xᵀ V⁻¹ y is proportional to the inner product of the double-centred matrices
    -½ H D H, so V is never formed.

    Args:
        counts: In each of r resamples, how often each stimulus is drawn; two copies of one stimulus are no pair. The
            value is NaN where a vector is constant (or zero) in a resample.

    Raises:
        ValueError: A vector is not finite, has not n (n - 1) / 2 > 1 distances, or is constant (zero, under cosines),
            or counts are not whole numbers for n stimuli.
    """
    stimuli = stimuli_of(x.shape[1], "x")
    left = comparable(x, comparator)
    right = left if y is x else comparable(y, comparator)
    if counts is not None and (counts.shape[1] != stimuli or (counts != counts.round()).any()):
        shape = tuple(counts.shape)
        raise ValueError(f"counts has shape {shape}: give whole numbers for each of the {stimuli} stimuli")
    if counts is not None and ((counts > 0).sum(1) < 2).any():
        raise ValueError("counts has a resample of fewer than two stimuli, which has no pairs: draw more")
    resamples = torch.ones(1, stimuli, device=x.device) if counts is None else counts.to(x.device)
    found = []
    for each in resamples.double():
        if comparator == "tau_a":
            found.append(_tau_a(left, right, pair_counts(each)))
            continue
        units = _units(left, comparator, each)
        found.append(units @ (units if right is left else _units(right, comparator, each)).T)
    return found[0] if counts is None else torch.stack(found)


def _units(vectors: Tensor, comparator: str, counts: Float[Tensor, " n"]) -> Float[Tensor, "k q"]:
    """Return vectors of norm 1 whose products are the comparator's values; NaN for constant (or zero) vectors."""
    weights = pair_counts(counts)
    if comparator in CENTRED:
        vectors = vectors - (vectors @ weights / weights.sum())[:, None]
    if comparator in WHITENED:
        return _whitened(vectors, counts)
    if (weights == 0).any():
        kept = weights.nonzero()[:, 0]
        vectors, weights = vectors[:, kept], weights[kept]
    if comparator in RANKED:
        vectors = ranks_of_levels(vectors, weights) - (weights.sum() + 1) / 2
    return _normed(vectors, weights)


def stimuli_of(pairs: int, name: str = "vectors") -> int:
    """Return the n ≥ 3 of n (n - 1) / 2 pairs; an error has the name of the distances."""
    n = (1 + isqrt(1 + 8 * pairs)) // 2
    if n * (n - 1) // 2 != pairs or n < 3:
        raise ValueError(f"{name}: {pairs} distances are not those of all pairs of three stimuli or more")
    return n


def pair_counts(counts: Float[Tensor, "*r n"]) -> Float[Tensor, "*r p"]:
    rows, columns = torch.triu_indices(counts.shape[-1], counts.shape[-1], 1, device=counts.device)
    return counts[..., rows].double() * counts[..., columns]


def comparable(
    vectors: Float[Tensor, "k p"], comparator: str, names: Sequence[str] = ()
) -> Float[Tensor, "k p"] | Int[Tensor, "k p"]:
    """Return the distances in float64, or for comparators of ranks their `levels_of`; errors have their names."""
    check_choice("comparator", comparator, COMPARATORS)
    stimuli_of(vectors.shape[1])
    if not isinstance(names, list | tuple) or len(names) not in (0, len(vectors)):
        raise ValueError(f"names={shown(names)} must be a list of one name for each of the {len(vectors)} vectors")
    vectors = vectors.detach().double()
    for name, vector in zip(names or [f"layer {k}" for k in range(len(vectors))], vectors, strict=True):
        if not vector.isfinite().all():
            raise ValueError(f"the distances of {name} are not finite")
        low, high = vector.aminmax()
        if (high - low <= TIED * high.abs()) if comparator in (*RANKED, *CENTRED) else low == high == 0:
            raise ValueError(f"the distances of {name} are constant over {len(vector)} pairs: leave it out")
    return torch.stack([levels_of(each, TIED) if comparator in RANKED else each / size_of(each) for each in vectors])


def _normed(vectors: Float[Tensor, "k q"], weights: Float[Tensor, " q"]) -> Float[Tensor, "k q"]:
    weighted = vectors * weights.sqrt()
    return weighted / weighted.norm(dim=1, keepdim=True)


def _whitened(vectors: Float[Tensor, "k p"], counts: Float[Tensor, " n"]) -> Float[Tensor, "k q"]:
    """Return the matrices G = -½ D + a 1ᵀ + 1 aᵀ, with the a of least Σ W G², as vectors of norm 1.

    W_ij = c_i c_j counts copies of pairs, and W_ii = c_i copies of stimuli: double centring where all counts are 1.
    """
    n, drawn = len(counts), counts.nonzero()[:, 0]
    square = vectors.new_zeros(len(vectors), n, n)
    rows, columns = torch.triu_indices(n, n, 1, device=vectors.device)
    square[:, rows, columns] = square[:, columns, rows] = -vectors / 2
    square, kept = square[:, drawn][:, :, drawn], counts[drawn]
    weights = kept[:, None] * kept
    weights.diagonal().copy_(kept)
    shift = torch.linalg.solve(weights + weights.sum(1).diag(), -(weights * square).sum(2).T).T
    gram = square + shift[:, :, None] + shift[:, None]
    return _normed(gram.flatten(1), weights.flatten())


def _tau_a(x: Int[Tensor, "a p"], y: Int[Tensor, "b p"], weights: Float[Tensor, " p"]) -> Float[Tensor, "a b"]:
    """Return Kendall's τ_a, where a tied pair counts, so that a model gains nothing by predicting ties, from τ_b."""
    from scipy.stats import kendalltau  # takes half a second to import

    def root(levels: np.ndarray) -> float:
        """Return the root of the share of pairs of values that are not tied."""
        counts = np.bincount(levels).astype(float)
        return float(1 - (counts * (counts - 1)).sum() / (len(levels) * (len(levels) - 1))) ** 0.5

    if weights.sum() > MOST_COPIES:
        raise ValueError(f"counts make {float(weights.sum()):g} pairs: comparator=tau_a takes {MOST_COPIES:,} at most")
    copies = weights.cpu().long().numpy()
    left, right = ([np.repeat(row, copies) for row in part.cpu().numpy()] for part in (x, y))
    tau = partial(kendalltau, method="asymptotic")
    found = [[tau(one, other).statistic * root(one) * root(other) for other in right] for one in left]
    return torch.tensor(found, dtype=torch.float64, device=x.device)


def weighted_tau(profiles: Float[Tensor, "l f"], others: Float[Tensor, "m f"] | None = None) -> Float[Tensor, "l m"]:
    """Return the weighted Kendall τ of every two profiles, in [-1, 1]: `scipy.stats.weightedtau`.

    τ = <x, y> / (‖x‖ ‖y‖), <x, y> = Σ_{i<j} w_ij sgn(x_i - x_j) sgn(y_i - y_j), w_ij = 1/(1 + r_i) + 1/(1 + r_j), with
    r = 0 for the most important feature (Vigna 2015, additive hyperbolic). The value is the mean of that with features
    ranked by x, ties by y, and the other way round. By default the other profiles are the same. A profile that is
    constant or holds NaN is a ValueError.

    >>> weighted_tau([[0.3, 0.2, 0.1], [3.0, 2.0, 1.0]])[0, 1].item()
    1.0
    """
    from scipy.stats import weightedtau

    left = _ranking(profiles, "profiles")
    right = left if others is None else _ranking(others, "others")
    found = [[weightedtau(one, other).statistic for other in right] for one in left]
    return torch.tensor(found, dtype=torch.float64, device=profiles.device).view(len(left), len(right))


def _ranking(profiles: Float[Tensor, "l f"], name: str) -> np.ndarray:
    refuse_nan(profiles, name)
    if constant := (profiles == profiles[:, :1]).all(1).nonzero().flatten().tolist():
        raise ValueError(f"{name}: profile {constant[0]} is constant and ranks no feature")
    return profiles.detach().double().cpu().numpy()


def levels_of(values: Float[Tensor, "*b n"], rounding: float | Float[Tensor, "*b n"] = 0.0) -> Int[Tensor, "*b n"]:
    """Return numbers of values in ascending order from 0, one for all that rounding alone may have taken apart.

    Args:
        rounding: By how much rounding may have changed each value, or, as a number, the share of the larger of two
            neighbours. Values that are close to the next one, and so forth, over more than twice their rounding are a
            continuum and stay apart.
    """
    if not values.shape[-1]:
        return torch.zeros_like(values, dtype=torch.long)
    ordered, order = in_ascending_order(values)
    if isinstance(rounding, Tensor):
        is_new = _are_new(ordered, rounding.gather(-1, order))
    else:
        near = ordered.diff() <= rounding * ordered[..., 1:].abs()  # false of infinities
        is_new = (ordered[..., 1:] != ordered[..., :-1]) & ~near
    levels = is_new.cumsum(-1)
    return torch.zeros_like(order).scatter_(-1, order[..., 1:], levels)


def _are_new(ordered: Float[Tensor, "*b n"], rounding: Float[Tensor, "*b n"]) -> Bool[Tensor, "*b m"]:
    """Return of every ascending value but the first whether it begins a level, given the rounding of each."""
    differs = ordered[..., 1:] != ordered[..., :-1]
    is_new = differs & ~(ordered.diff() <= rounding[..., 1:])
    first = torch.nn.functional.pad(is_new, (1, 0), value=True)
    places = torch.arange(ordered.shape[-1], device=ordered.device).expand_as(first)
    begins = torch.where(first, places, 0).cummax(-1).values  # the place where the level of each value begins
    is_wide = ordered - ordered.gather(-1, begins) > 2 * rounding
    if is_wide.is_cpu and not is_wide.any():  # a GPU would be waited for
        return is_new
    of_wide = torch.zeros_like(places).scatter_reduce_(-1, begins, is_wide.long(), "amax").gather(-1, begins)
    return is_new | (differs & of_wide[..., 1:].bool())


def with_ties(values: Float[Tensor, " n"], rounding: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
    """Return the values, of which those of one level are exactly equal: the least of them; see `levels_of`."""
    levels = levels_of(values, rounding)
    least = values.new_full((len(values),), torch.inf).scatter_reduce_(0, levels, values, "amin")
    return least[levels]


def in_ascending_order(values: Float[Tensor, "*b n"]) -> tuple[Float[Tensor, "*b n"], Int[Tensor, "*b n"]]:
    """Return `values.sort()`; on a CPU NumPy, which sorts with vector instructions, takes a third of its time."""
    if not values.is_cpu:
        return values.sort()
    plain = values.float() if values.dtype == torch.bfloat16 else values  # which NumPy lacks
    order = torch.from_numpy(np.argsort(plain.detach().numpy()))
    return values.gather(-1, order), order


def ranks_of_levels(
    levels: Int[Tensor, "*b n"], counts: Float[Tensor, "*c n"], most: int | None = None
) -> Float[Tensor, "*b n"]:
    """Return the mid-ranks from 1 of values, given as `levels_of` does or with gaps, with these numbers of copies.

    A GPU is not waited for where it is known how many levels there are at most.
    """
    most = most or (int(levels.max()) + 1 if levels.numel() else 0)
    sizes = counts.new_zeros(*levels.shape[:-1], most)
    sizes.scatter_add_(-1, levels, counts.expand(levels.shape))
    return (sizes.cumsum(-1) - (sizes - 1) / 2).gather(-1, levels)


def mid_ranks(
    values: Annotated[Float[Tensor, "*b n"], Within(is_finite=False)],
    rounding: Annotated[float | Float[Tensor, "*b n"], Within(least=0)] = 0.0,
) -> Float[Tensor, "*b n"]:
    """Return ranks from 1 along the last axis, in float64; ties share the mean of their ranks, see `levels_of`."""
    return ranks_of_levels(levels_of(values, rounding), torch.ones_like(values, dtype=torch.float64), values.shape[-1])


def unit_ranks(
    rows: Iterable[Float[Tensor, " n"]], count: int, name: str = "row", rounding: float = 0.0
) -> Float[Tensor, "l n"]:
    """Return the mid-ranks of each of `count` rows, centred and of norm 1: Spearman's ρ is an inner product of these.

    Errors call a row by its name; for `rounding` see `levels_of`.
    """
    found = torch.empty(0)
    for index, row in enumerate(rows):
        ranks = mid_ranks(row, rounding).sub_((len(row) + 1) / 2)
        norm = ranks.norm()
        if norm == 0:
            raise ValueError(f"{name} {index}: all {len(row)} values are equal and have no ranks")
        found = found if index else ranks.new_empty(count, len(row))
        torch.div(ranks, norm, out=found[index])
    return found


def spearman(x: Float[Tensor, "*b n"], y: Float[Tensor, "*b n"]) -> Float[Tensor, "*b"]:
    """Return Spearman's ρ along the last axis, in [-1, 1], with ties at mid-ranks, as `scipy.stats.spearmanr` does.

    Constants, NaN and less than two values are a ValueError.
    """
    refuse_nan(x, "x")
    refuse_nan(y, "y")
    count = x.shape[:-1].numel()
    left, right = (unit_ranks(part.reshape(count, -1), count, f"{name}, row") for name, part in (("x", x), ("y", y)))
    return (left * right).sum(-1).view(x.shape[:-1])


def spearman_of_patterns(
    predictions: Float[Tensor, "*b l q"], counts: Float[Tensor, " q"], rank_sums: Float[Tensor, "l q"]
) -> Float[Tensor, "*b l"]:
    """Return Spearman's ρ of predictions with one value for all pairs of a pattern, NaN where they are constant.

    It takes the number of pairs of each pattern, and the sums over these of `unit_ranks` of the target.
    """
    ranks = ranks_of_levels(levels_of(predictions), counts) - (counts.sum() + 1) / 2
    return (ranks * rank_sums).sum(-1) / (counts * ranks.square()).sum(-1).sqrt()
