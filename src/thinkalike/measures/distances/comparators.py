"""Comparators of vectors of distances, and of profiles of features.

The distances of n stimuli are a vector of p = n (n - 1) / 2 squared distances, in the order of
`upper_triangle_indices`. Names are those of rsatoolbox (Nili et al. 2014; Schütt et al. 2023),
whose values these are.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import isqrt, sqrt
from typing import Annotated

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from thinkalike.arguments import Within, check_choice, refuse_nan, shown
from thinkalike.measures.distances.ranks import levels_of, ranks_of_levels
from thinkalike.measures.powers_of_two import power_of_two_unit

COMPARATORS = ("spearman", "tau_a", "corr", "cosine", "corr_cov", "cosine_cov")
RANK_COMPARATORS = ("spearman", "tau_a")
CENTRED_COMPARATORS = ("corr", "corr_cov")
WHITENED = ("corr_cov", "cosine_cov")  # for squared Euclidean distances

# tau_a holds all copies of pairs of a resample in memory.
MOST_COPIES = 10**8

# Rounding in float64 alone may take two distances apart by this share of them, beside the rounding
# of states.
TIE_TOLERANCE = 1e-13


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
    | tau_a | (concordant - discordant) / (m (m - 1) / 2), m the distances (Kendall 1938) |
    | corr | Pearson's r |
    | cosine | x·y / (‖x‖ ‖y‖) |
    | cosine_cov | xᵀ V⁻¹ y / √(xᵀ V⁻¹ x · yᵀ V⁻¹ y) |
    | corr_cov | the same of vectors minus their means |

    V = (C Cᵀ)² elementwise, with a row of C for each pair of stimuli, is the covariance of squared
    distances under noise (Diedrichsen et al. 2021). xᵀ V⁻¹ y is proportional to the inner product
    of the double-centred matrices -½ H D H, so V is never formed.

    Args:
        x, y: Vectors of squared distances.
        comparator: How they are compared.
        counts: In each of r resamples, how often each stimulus is drawn; two copies of one
            stimulus are no pair. The value is NaN where a vector is constant (or zero) in a
            resample.

    Raises:
        ValueError: A vector is not finite, has not n (n - 1) / 2 > 1 distances, or is constant
            (zero, under cosines), or counts are not whole numbers for n stimuli.
    """
    stimuli = stimulus_count_of(x.shape[1], "x")
    x_prepared = comparable(x, comparator)
    y_prepared = x_prepared if y is x else comparable(y, comparator)
    if counts is None:
        resamples = torch.ones(1, stimuli, device=x.device)
    else:
        _check_counts(counts, stimuli)
        resamples = counts.to(x.device)

    similarities = []
    for counts_of_resample in resamples.double():
        if comparator == "tau_a":
            weights = pair_counts(counts_of_resample)
            similarities.append(_tau_a(x_prepared, y_prepared, weights))
            continue
        x_units = _unit_vectors(x_prepared, comparator, counts_of_resample)
        y_units = x_units
        if y_prepared is not x_prepared:
            y_units = _unit_vectors(y_prepared, comparator, counts_of_resample)
        similarities.append(x_units @ y_units.T)
    if counts is None:
        return similarities[0]
    return torch.stack(similarities)


def _check_counts(counts: Float[Tensor, "r _"], stimuli: int) -> None:
    """Raise a ValueError unless `counts` says how often each stimulus is drawn in each resample.

    Counts must be whole numbers for all stimuli, and a resample needs two different stimuli.

    Args:
        counts: One row for each of r resamples.
        stimuli: How many stimuli there are.
    """
    if counts.shape[1] != stimuli or (counts != counts.round()).any():
        shape = tuple(counts.shape)
        raise ValueError(
            f"counts has shape {shape}: give whole numbers for each of the {stimuli} stimuli"
        )
    if ((counts > 0).sum(1) < 2).any():
        raise ValueError(
            "counts has a resample of fewer than two stimuli, which has no pairs: draw more"
        )


def _unit_vectors(
    vectors: Tensor, comparator: str, counts: Float[Tensor, " n"]
) -> Float[Tensor, "k q"]:
    """Return vectors of norm 1 whose inner products are the similarities by a comparator.

    For Spearman's ρ, for instance, they are centred ranks. They have an entry for each of the q
    pairs that are drawn, or for the whitened comparators "corr_cov" and "cosine_cov", for each
    entry of a matrix of the drawn stimuli. A vector that is constant, or zero under cosines,
    becomes NaN.

    Args:
        vectors: k vectors of p squared distances. For a comparator of ranks these are levels
            instead: whole numbers in the order of the distances, equal for equal ones.
        comparator: How vectors are compared: any of `COMPARATORS` but tau_a.
        counts: How often each of the n stimuli is drawn in a resample.
    """
    weights = pair_counts(counts)  # how often each pair is drawn
    if comparator in CENTRED_COMPARATORS:
        means = vectors @ weights / weights.sum()
        vectors = vectors - means[:, None]
    if comparator in WHITENED:
        return _whitened(vectors, counts)
    if (weights == 0).any():  # pairs that are not drawn are left out
        drawn_pairs = weights.nonzero()[:, 0]
        vectors = vectors[:, drawn_pairs]
        weights = weights[drawn_pairs]
    if comparator in RANK_COMPARATORS:
        mean_rank = (weights.sum() + 1) / 2
        vectors = ranks_of_levels(vectors, weights) - mean_rank
    return _normed(vectors, weights)


def stimulus_count_of(pairs: int, name: str = "vectors") -> int:
    """Return the number n of stimuli that have this many pairs, n (n - 1) / 2.

    Args:
        pairs: How many pairs, and so distances, there are.
        name: What an error calls the distances.

    Raises:
        ValueError: No n ≥ 3 has so many pairs.
    """
    n = (1 + isqrt(1 + 8 * pairs)) // 2  # solves n (n - 1) / 2 = pairs, if n is whole
    if n * (n - 1) // 2 != pairs or n < 3:
        raise ValueError(
            f"{name}: {pairs} distances are not those of all pairs of three stimuli or more"
        )
    return n


def pair_counts(counts: Float[Tensor, "*r n"]) -> Float[Tensor, "*r p"]:
    """Return how often each pair of different stimuli is drawn, in float64: c_i c_j for i < j.

    Args:
        counts: How often each stimulus is drawn, c, in each resample.
    """
    n = counts.shape[-1]
    rows, columns = torch.triu_indices(n, n, 1, device=counts.device)
    return counts[..., rows].double() * counts[..., columns]


def comparable(
    vectors: Float[Tensor, "k p"], comparator: str, names: Sequence[str] = ()
) -> Float[Tensor, "k p"] | Int[Tensor, "k p"]:
    """Return vectors of distances in the form that this module's `compare` takes, after checks.

    For comparators of ranks these are levels: whole numbers in the order of the distances, equal
    for distances that differ by rounding alone. For other comparators these are the distances in
    float64, each vector divided by a power of two near its size.

    Args:
        vectors: Squared distances.
        comparator: How they will be compared.
        names: What errors call each vector; empty: "layer 0" and so on.

    Raises:
        ValueError: The comparator is unknown, names do not fit, the distances are not those of all
            pairs of stimuli, or a vector is not finite or constant.
    """
    check_choice("comparator", comparator, COMPARATORS)
    stimulus_count_of(vectors.shape[1])
    if not isinstance(names, list | tuple) or len(names) not in (0, len(vectors)):
        raise ValueError(
            f"names={shown(names)} must be a list of one name for each of the {len(vectors)} "
            "vectors"
        )
    vectors = vectors.detach().double()
    if not names:
        names = [f"layer {index}" for index in range(len(vectors))]
    prepared = []
    for name, vector in zip(names, vectors, strict=True):
        _refuse_constant(vector, comparator, name)
        if comparator in RANK_COMPARATORS:
            prepared.append(levels_of(vector, TIE_TOLERANCE))
        else:
            prepared.append(vector / power_of_two_unit(vector))
    return torch.stack(prepared)


def _refuse_constant(vector: Float[Tensor, " p"], comparator: str, name: str) -> None:
    """Raise a ValueError if a vector of distances cannot be compared with others.

    Distances must be finite. They must not all be 0, and for comparators of ranks or of centred
    distances not be constant up to rounding.

    Args:
        vector: The distances.
        comparator: How they will be compared, one of `COMPARATORS`.
        name: What the error calls their layer.
    """
    if not vector.isfinite().all():
        raise ValueError(f"the distances of {name} are not finite")
    low, high = vector.aminmax()
    if comparator in (*RANK_COMPARATORS, *CENTRED_COMPARATORS):
        is_constant = high - low <= TIE_TOLERANCE * high.abs()
    else:  # cosines
        is_constant = low == high == 0
    if is_constant:
        raise ValueError(
            f"the distances of {name} are constant over {len(vector)} pairs: leave it out"
        )


def _normed(vectors: Float[Tensor, "k q"], weights: Float[Tensor, " q"]) -> Float[Tensor, "k q"]:
    """Return v √w / ‖v √w‖ for each of k vectors v, with the weight w of each of their q entries.

    The inner product of two results is the cosine Σ w v u / √(Σ w v² Σ w u²) of their vectors. A
    zero vector becomes NaN.
    """
    weighted = vectors * weights.sqrt()
    norms: Tensor = weighted.norm(dim=1, keepdim=True)
    return weighted / norms


def _whitened(vectors: Float[Tensor, "k p"], counts: Float[Tensor, " n"]) -> Float[Tensor, "k q"]:
    """Return squared distances double-centred, flattened and of norm 1, for a resample of stimuli.

    Whitening distances by their covariance under noise is the same as centring them twice
    (Diedrichsen et al. 2021), so that inner products of the results are the similarities
    "cosine_cov" and "corr_cov". A stimulus may be drawn several times; one that is not drawn is
    left out.

    For the squared distances D the result is G = -½ D + a 1ᵀ + 1 aᵀ, with the vector a that
    minimises Σ_ij W_ij G_ij². A stimulus that is drawn c times would have c equal rows in D. W_ij
    counts the entries that one entry stands for: c_i c_j of two stimuli, and c_i of a stimulus
    with itself, as two copies of one stimulus are no pair. If each stimulus is drawn once, G is
    -½ H D H with H = 1 - 11ᵀ/n. The norm and inner products are weighted by W.

    Args:
        vectors: Squared distances D of all pairs of n stimuli, k times.
        counts: How often each stimulus is drawn, c.
    """
    n = len(counts)
    rows, columns = torch.triu_indices(n, n, 1, device=vectors.device)
    minus_half = vectors.new_zeros(len(vectors), n, n)  # -½ D
    minus_half[:, rows, columns] = -vectors / 2
    minus_half[:, columns, rows] = minus_half[:, rows, columns]
    drawn = counts.nonzero()[:, 0]
    minus_half = minus_half[:, drawn][:, :, drawn]
    drawn_counts = counts[drawn]
    weights = drawn_counts[:, None] * drawn_counts  # W
    weights.diagonal().copy_(drawn_counts)

    # The normal equations for a: (W + diag(W 1)) a = Σ_j W_ij D_ij / 2
    system = weights + weights.sum(1).diag()
    a = torch.linalg.solve(system, -(weights * minus_half).sum(2).T).T  # (k, drawn)
    centred = minus_half + a[:, :, None] + a[:, None]  # G
    return _normed(centred.flatten(1), weights.flatten())


def _tau_a(
    x: Int[Tensor, "a p"], y: Int[Tensor, "b p"], weights: Float[Tensor, " p"]
) -> Float[Tensor, "a b"]:
    """Return Kendall's τ_a of each vector of distances in x with each in y.

    It compares every two distances: (concordant - discordant) / all. All includes ties, so that a
    model gains nothing by ties. SciPy computes τ_b, which leaves them out of the denominator:
    τ_a is τ_b √(share not tied in x) √(share not tied in y).

    Args:
        x, y: Vectors of p whole numbers in the order of the distances, equal for equal distances.
        weights: How often each pair of stimuli occurs in a resample; its distance is repeated as
            often.

    Raises:
        ValueError: There are more than `MOST_COPIES` copies of pairs.
    """
    from scipy.stats import kendalltau  # the import takes half a second

    if weights.sum() > MOST_COPIES:
        raise ValueError(
            f"counts make {float(weights.sum()):g} pairs: "
            f"comparator=tau_a takes {MOST_COPIES:,} at most"
        )
    copies = weights.cpu().long().numpy()
    x_copies = [np.repeat(row, copies) for row in x.cpu().numpy()]
    y_copies = [np.repeat(row, copies) for row in y.cpu().numpy()]
    tau = []
    for x_levels in x_copies:
        tau_of_x = []
        for y_levels in y_copies:
            tau_b = kendalltau(x_levels, y_levels, method="asymptotic").statistic
            tau_of_x.append(tau_b * _root_untied(x_levels) * _root_untied(y_levels))
        tau.append(tau_of_x)
    return torch.tensor(tau, dtype=torch.float64, device=x.device)


def _root_untied(levels: np.ndarray) -> float:
    """Return √(the share of all pairs of values whose two values are not tied), in [0, 1].

    Args:
        levels: Whole numbers from 0, equal for tied values.
    """
    counts = np.bincount(levels).astype(float)  # of the values of each level
    ordered_tied_pairs = (counts * (counts - 1)).sum()
    tied_share: float = float(ordered_tied_pairs) / (len(levels) * (len(levels) - 1))
    return sqrt(1 - tied_share)


def weighted_tau(
    profiles: Float[Tensor, "l f"], others: Float[Tensor, "m f"] | None = None
) -> Float[Tensor, "l m"]:
    """Return the weighted Kendall τ of every two profiles, in [-1, 1]: `scipy.stats.weightedtau`.

    τ = <x, y> / (‖x‖ ‖y‖), <x, y> = Σ_{i<j} w_ij sgn(x_i - x_j) sgn(y_i - y_j),
    w_ij = 1/(1 + r_i) + 1/(1 + r_j), with r = 0 for the most important feature (Vigna 2015,
    additive hyperbolic). The value is the mean of that with features ranked by x, ties by y, and
    the other way round.

    Args:
        profiles: The importance of each feature in each of l layers.
        others: The profiles that they are compared with; by default themselves.

    Raises:
        ValueError: A profile is constant or holds NaN.

    >>> weighted_tau([[0.3, 0.2, 0.1], [3.0, 2.0, 1.0]])[0, 1].item()
    1.0
    """
    from scipy.stats import weightedtau

    rows = _checked_profiles(profiles, "profiles")
    columns = rows
    if others is not None:
        columns = _checked_profiles(others, "others")
    tau = [[weightedtau(row, column).statistic for column in columns] for row in rows]
    tau_tensor = torch.tensor(tau, dtype=torch.float64, device=profiles.device)
    return tau_tensor.view(len(rows), len(columns))


def _checked_profiles(profiles: Float[Tensor, "l f"], name: str) -> np.ndarray:
    """Return profiles, the importances of f features in each layer, as an array of float64.

    A profile whose importances are all equal is refused, as it ranks no feature.

    Args:
        profiles: One profile for each of l layers.
        name: What errors call the argument.

    Raises:
        ValueError: A profile is constant or holds NaN.
    """
    refuse_nan(profiles, name)
    is_constant = (profiles == profiles[:, :1]).all(1)
    constant = is_constant.nonzero().flatten().tolist()
    if constant:
        raise ValueError(f"{name}: profile {constant[0]} is constant and ranks no feature")
    return profiles.detach().double().cpu().numpy()
