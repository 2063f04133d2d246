"""Representational similarity analysis: are the distances of stimuli similar in two layers?

See Kriegeskorte et al. (2008) and Salle et al. (2024, section 4).
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from thinkalike.arguments import Count, Repetitions, Seed
from thinkalike.measures.distances.comparators import TIE_TOLERANCE, compare, stimulus_count_of
from thinkalike.measures.distances.neural import NeuralDistances
from thinkalike.measures.distances.ranks import mid_ranks
from thinkalike.measures.estimates import Estimate, interval_around, jackknife, student_t
from thinkalike.measures.folds import check_groups, stimulus_folds
from thinkalike.measures.permutations import balanced_rows, permuted_rows
from thinkalike.measures.sample_size import (
    FEWEST_GROUPS,
    effective_number,
    freedom_of_groups,
    has_interval,
    why_no_interval,
)
from thinkalike.processes import counted

# States of the same n stimuli, of any widths; or their distances.
Layers = Sequence[Float[Tensor, "_ _"] | NeuralDistances] | Float[Tensor, "l n d"]

# Correlations that differ by less than this are equal up to rounding.
CORRELATION_ROUNDING = 1e-9


def rsa(
    layers: Layers,
    others: Layers | None = None,
    distance: str = "euclidean",
    comparator: str = "spearman",
) -> Float[Tensor, "l m"]:
    """Return how similar the distances of pairs of stimuli are in every two layers, in [-1, 1].

    By default this is Spearman's ρ of the distances in the two layers.

    Args:
        layers: l layers: the states (n, d) of the same n stimuli, or their `NeuralDistances`.
        others: The m layers of these stimuli to compare with; None: the same layers.
        distance: The distance of two stimuli, such as "euclidean" or "cosine"; layers that are
            `NeuralDistances` keep theirs.
        comparator: The similarity of two vectors of squared distances, such as "spearman", "corr"
            (Pearson's r) or "cosine"; see `NeuralDistances` for these, and `compare`.

    Raises:
        ValueError: Layers are of different stimuli, or have no distances that could be compared.
    """
    return compare(*_distances_of_both(layers, others, distance), comparator)


def rsa_of_models(
    models: Layers,
    others: Layers | None = None,
    distance: str = "euclidean",
    comparator: str = "spearman",
) -> Float[Tensor, "l m"]:
    """Return how similar the distances of stimuli are in each of l layers and each of m layers.

    This is `rsa` with another name for its first argument, `models` in place of `layers`, also in
    errors.

    Args:
        models: l layers, each the states (n, d) of the same n stimuli.
        others: m layers of the same stimuli; None: the l layers, each with each.
        distance: The distance between the states of two stimuli.
        comparator: How two sets of squared distances are compared, see `rsa`.
    """
    return compare(*_distances_of_both(models, others, distance, "models"), comparator)


def rsa_estimate(
    layers: Layers,
    others: Layers | None = None,
    distance: str = "euclidean",
    groups: Int[Tensor, " n"] | None = None,
    folds: Count = 10,
    seed: Seed = 0,
    comparator: str = "spearman",
) -> Estimate:
    """Return the RSA of every two layers (see `rsa`) with a 95 % jackknife interval.

    One fold of the stimuli, with all its pairs, is left out at a time. The stimuli of a group,
    such as the words of a sentence, are left out together. If there are too few groups, the
    interval is (-∞, ∞), and a warning says why: they must be worth `FEWEST_GROUPS` of equal size.

    A fold with one group that outweighs the others says as little about the spread as that group
    alone. The degrees of freedom of Student's t are therefore limited, see `freedom_of_groups`.

    Args:
        layers, others, distance, comparator: See `rsa`.
        groups: The group of each stimulus; None: each is one.
        folds: How many folds there are.
        seed: The seed of the folds.

    Raises:
        ValueError: Without a fold, all distances of a layer are equal; see also `rsa`.
    """
    vectors, other_vectors = _distances_of_both(layers, others, distance)
    n = stimulus_count_of(vectors.shape[1])
    sizes = torch.ones(n)
    if groups is not None:
        check_groups(groups, n)
        _, sizes = groups.unique(return_counts=True)
    effective_count = effective_number(sizes)
    if not has_interval(effective_count):
        unit = "stimuli" if groups is None else "groups"
        warnings.warn(why_no_interval(effective_count, len(sizes), unit), stacklevel=2)
        return interval_around(compare(vectors, other_vectors, comparator), math.inf)

    fold_of = stimulus_folds(n, folds, seed, groups).to(vectors.device)
    without_folds = [fold_of != fold for fold in range(folds)]
    counts = torch.stack([torch.ones_like(fold_of), *without_folds]).double()
    similarities = compare(vectors, other_vectors, comparator, counts)  # (1 + folds, l, m)
    if similarities.isnan().any():
        raise ValueError(
            "all distances of a layer are equal without one fold of stimuli: "
            "use more folds, or stimuli"
        )
    t = student_t(0.95, min(folds - 1, freedom_of_groups(sizes)))
    return jackknife(similarities[0], similarities[1:], t=t)


class Mantel(NamedTuple):
    """The RSA of every two layers, with its p-values.

    Attributes:
        value: The RSA of each layer pair, see `rsa`.
        p: (1 + #{value of permuted stimuli ≥ value}) / (1 + permutations), one-sided, of each
            layer pair.
        p_of_largest: The same against the largest value of all layer pairs in each permutation,
            for a pair that was chosen because it is the largest (Westfall & Young 1993).
    """

    value: Float[Tensor, "l m"]
    p: Float[Tensor, "l m"]
    p_of_largest: Float[Tensor, "l m"]


def mantel(
    layers: Layers,
    others: Layers | None = None,
    distance: str = "euclidean",
    permutations: Repetitions = 999,
    seed: Seed = 0,
    comparator: str = "spearman",
    groups: Int[Tensor, " n"] | None = None,
) -> Mantel:
    """Return the RSA of every two layers (see `rsa`) with its p-values, by Mantel's test (1967).

    The null is permutations of the stimuli of the other layers. Pairs that share a stimulus depend
    on each other, so stimuli are permuted, not pairs. The stimuli of a group, such as the words of
    a sentence, are moved together. Groups of unequal size are not exchangeable, so that the same
    number of stimuli of each group is used (see `balanced_rows`). The p-value is of the pairs
    between groups alone, as those within are closer in any model. All layers see the same
    permutations. Fewer than `FEWEST_GROUPS` groups give no p-values (NaN), and a warning.

    Args:
        layers, others, distance, comparator: See `rsa`.
        permutations: How many permutations are drawn.
        seed: Their seed.
        groups: The group of each stimulus; None: each is one.

    Raises:
        ValueError: See `rsa`.

    >>> X = torch.randn(30, 4)
    >>> float(mantel([X], [2 * X], permutations=19).p)
    0.05
    """
    vectors, other_vectors = _distances_of_both(layers, others, distance)
    n = stimulus_count_of(vectors.shape[1])
    device = vectors.device
    value = compare(vectors, other_vectors, comparator)
    group_of = torch.arange(n, device=device)
    if groups is not None:
        check_groups(groups, n)
        group_of = groups.to(device)
        group_count = len(groups.unique())
        if group_count < FEWEST_GROUPS:
            warnings.warn(
                f"{group_count} groups have too few orders for p-values: "
                f"give {FEWEST_GROUPS} or more",
                stacklevel=2,
            )
            return Mantel(value, value * torch.nan, value * torch.nan)

    if comparator == "spearman":  # Pearson's r of ranks, which move with the stimuli
        ranks = mid_ranks(vectors, TIE_TOLERANCE)
        other_ranks = (
            ranks if other_vectors is vectors else mid_ranks(other_vectors, TIE_TOLERANCE)
        )
        vectors = ranks
        other_vectors = other_ranks
        comparator = "corr"

    stimuli = balanced_rows(group_of).flatten().sort().values
    group_of = group_of[stimuli]
    pair_index = _position_of_each_pair(n, device)[stimuli][:, stimuli]
    rows, columns = torch.triu_indices(len(stimuli), len(stimuli), 1, device=device)
    pairs = pair_index[rows, columns]

    # Pairs within a group get the mean of the others, which adds a constant to all products.
    vectors = vectors[:, pairs]
    is_within = group_of[rows] == group_of[columns]
    mean_between = vectors[:, ~is_within].double().mean(1, keepdim=True)
    vectors = vectors.where(~is_within, mean_between)
    between = compare(vectors, other_vectors[:, pairs], comparator)
    reached = torch.ones_like(between)
    largest_reached = torch.ones_like(between)
    for number in counted(range(permutations), "permutation"):
        order = permuted_rows(group_of, seed * permutations + number)
        permuted_pairs = pair_index[order[rows], order[columns]]
        permuted = compare(vectors, other_vectors[:, permuted_pairs], comparator)
        # A permutation that only exchanges equal distances reaches the value but for rounding.
        reached += permuted >= between - CORRELATION_ROUNDING
        largest_reached += permuted.max() >= between - CORRELATION_ROUNDING
    return Mantel(value, reached / (1 + permutations), largest_reached / (1 + permutations))


def _position_of_each_pair(n: int, device: torch.device) -> Int[Tensor, "n n"]:
    """Return an n x n matrix with the position of each pair (i, j) in a vector of all pairs.

    The vector has the pairs i < j in the order (0, 1), (0, 2), ..., (1, 2), .... A pair (j, i) has
    the position of (i, j). The diagonal, which is no pair, is 0.

    Args:
        n: How many stimuli there are.
        device: Where the matrix is made.
    """
    rows, columns = torch.triu_indices(n, n, 1, device=device)
    positions = torch.arange(len(rows), device=device)
    matrix = torch.zeros(n, n, dtype=torch.long, device=device)
    matrix[rows, columns] = positions
    matrix[columns, rows] = positions
    return matrix


def distance_vectors(
    layers: Layers, distance: str = "euclidean", n: Count | None = None, name: str = "layers"
) -> Float[Tensor, "l p"]:
    """Return the squared distances of all pairs i < j of n stimuli, in each layer.

    Pairs are in the order of SciPy's `pdist`: (0, 1), (0, 2), ..., (1, 2), ....

    Args:
        layers: The layers.
        distance: See `NeuralDistances`.
        n: The number of stimuli; by default that of the first layer.
        name: What errors call the layers.

    Raises:
        ValueError: Layers are of different stimuli, there are fewer than two stimuli, or distances
            are not finite.
    """
    if not len(layers):
        raise ValueError(f"{name} is empty: give the states of one layer or more")
    if n is None:
        n = len(layers[0])
        reason = f"{name}[0] has {n} stimuli"
    else:
        reason = f"n={n}"
    if n < 2:
        raise ValueError(f"{reason}: give two or more, as distances are of pairs")

    vectors = []
    for index, layer in enumerate(layers):
        layer_name = f"{name}[{index}]"
        if len(layer) != n:
            raise ValueError(
                f"{layer_name} has {len(layer)} stimuli, and {reason}: "
                "give states of the same stimuli"
            )
        if not isinstance(layer, NeuralDistances):
            layer = NeuralDistances.of(layer, distance, layer_name)
        vectors.append(layer.vector())
    distances = torch.stack(vectors)
    is_finite = distances.isfinite().all(1)
    if not is_finite.all():  # once, as it waits for the device
        index = int((~is_finite).nonzero()[0])
        raise ValueError(
            f"the distances of {name}[{index}] are beyond float64: "
            "divide its states by a large number"
        )
    return distances


def _distances_of_both(
    layers: Layers, others: Layers | None, distance: str, name: str = "layers"
) -> tuple[Float[Tensor, "l p"], Float[Tensor, "m p"]]:
    """Return the squared distances of all pairs of stimuli in two lists of layers to compare.

    If `others` is None, the first layers are compared with each other, and the same tensor is
    returned twice.

    Args:
        layers: The first layers.
        others: The layers that they are compared with; None: the first ones.
        distance: The distance of two stimuli, such as "euclidean"; layers that are
            `NeuralDistances` keep theirs.
        name: What errors call the first layers.

    Raises:
        ValueError: Layers are of different stimuli, or have no distances.
    """
    vectors = distance_vectors(layers, distance, name=name)
    if others is None:
        return vectors, vectors
    if len(others) and len(others[0]) != len(layers[0]):
        raise ValueError(
            f"others[0] has {len(others[0])} stimuli, and {name}[0] has {len(layers[0])}: "
            "give states of the same stimuli"
        )
    return vectors, distance_vectors(others, distance, name="others")
