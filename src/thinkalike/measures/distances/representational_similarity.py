"""Representational similarity analysis (Kriegeskorte et al. 2008; Salle et al. 2024, section 4)."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from thinkalike.measures.chance import TIE, permuted_rows
from thinkalike.measures.contract import LayerMeasure, both_in_order, products
from thinkalike.measures.distances.comparators import compare, mid_ranks, stimuli_of, unit_ranks
from thinkalike.measures.distances.neural import NeuralDistances, upper
from thinkalike.measures.estimates import FEWEST_GROUPS, Estimate, jackknife, stimulus_folds
from thinkalike.measures.rows import centred
from thinkalike.processes import counted

ROUNDING = 1e-12  # share of a matrix in float64 that centring leaves of nothing
LIMIT, SETTLED = 3000, 1e-14  # steps of SMACOF, and the relative gain at which it stops
Layers = (
    Sequence[Float[Tensor, "_ _"] | NeuralDistances] | Float[Tensor, "l n d"]
)  # states of the same n stimuli, of any widths; or their distances


def rsa(
    layers: Layers, others: Layers | None = None, distance: str = "euclidean", comparator: str = "spearman"
) -> Float[Tensor, "l m"]:
    """Return Spearman's ρ, over pairs of stimuli, of the distances in every two layers, in [-1, 1].

    Args:
        others: The layers to compare with; by default the same.
        distance: See `NeuralDistances`; layers that are `NeuralDistances` keep theirs.
        comparator: The similarity of squared distances, instead of Spearman's ρ; see `compare`.

    Raises:
        ValueError: Layers differ in the number of stimuli, or all distances of one are equal; see `NeuralDistances`
            and `compare`.
    """
    return compare(*_both(layers, others, distance), comparator)


def rsa_estimate(
    layers: Layers,
    others: Layers | None = None,
    distance: str = "euclidean",
    groups: Int[Tensor, " n"] | None = None,
    folds: int = 10,
    seed: int = 0,
    comparator: str = "spearman",
) -> Estimate:
    """Return `rsa` with a 95 % jackknife interval that leaves out one fold of stimuli, and all their pairs, at a time.

    The stimuli of a group, such as the words of a sentence, are left out together, see `stimulus_folds`.
    """
    vectors, further = _both(layers, others, distance)
    owners = stimulus_folds(stimuli_of(vectors.shape[1]), folds, seed, groups).to(vectors.device)
    kept = torch.stack([torch.ones_like(owners), *(owners != fold for fold in range(folds))])
    found = compare(vectors, further, comparator, kept.double())
    if found.isnan().any():
        raise ValueError("all distances of a layer are equal without one fold of stimuli: use more folds, or stimuli")
    return jackknife(found[0], found[1:])


class Mantel(NamedTuple):
    """`rsa` and its p-values.

    Attributes:
        p: (1 + #{value of permuted stimuli ≥ value}) / (1 + permutations), one-sided, of each layer pair.
        p_of_largest: The same against the largest value of all layer pairs in each permutation, for a pair that was
            chosen because it is the largest (Westfall & Young 1993).
    """

    value: Float[Tensor, "l m"]
    p: Float[Tensor, "l m"]
    p_of_largest: Float[Tensor, "l m"]


def mantel(
    layers: Layers,
    others: Layers | None = None,
    distance: str = "euclidean",
    permutations: int = 999,
    seed: int = 0,
    comparator: str = "spearman",
    groups: Int[Tensor, " n"] | None = None,
) -> Mantel:
    """Return `rsa` and its p-values under permutations of the stimuli of the other layers (Mantel 1967).

    Pairs that share a stimulus depend on each other, so stimuli are permuted, not pairs. The stimuli of a group, such
    as the words of a sentence, are moved together, see `permuted_rows`. As groups of different lengths then lie across
    two places, p is of the pairs between groups alone: those within are closer in any model. All layers see the same
    permutations. Fewer than `FEWEST_GROUPS` groups give no p-values (NaN), and a warning.
    """
    vectors, further = _both(layers, others, distance)
    n, value = stimuli_of(vectors.shape[1]), compare(vectors, further, comparator)
    owners = torch.arange(n, device=vectors.device) if groups is None else groups.to(vectors.device)
    if groups is not None and (count := len(groups.unique())) < FEWEST_GROUPS:
        warnings.warn(f"{count} groups have too few orders for p-values: give {FEWEST_GROUPS} or more", stacklevel=2)
        return Mantel(value, value * torch.nan, value * torch.nan)
    if comparator == "spearman":  # Pearson's r of ranks, which move with the stimuli
        ranks = mid_ranks(vectors)
        vectors, further, comparator = ranks, ranks if further is vectors else mid_ranks(further), "corr"
    place = torch.zeros(n, n, dtype=torch.long, device=vectors.device)  # of each pair, in either order, in the vectors
    rows, columns = torch.triu_indices(n, n, 1, device=vectors.device)
    place[rows, columns] = place[columns, rows] = torch.arange(len(rows), device=vectors.device)
    within = owners[rows] == owners[columns]
    vectors = vectors.where(~within, vectors[:, ~within].double().mean(1, keepdim=True))  # which adds a constant
    found = compare(vectors, further, comparator)
    reached, surpassed = torch.ones_like(found), torch.ones_like(found)
    for number in counted(range(permutations), "permutation"):
        order = permuted_rows(owners, seed * permutations + number)
        chance = compare(vectors, further[:, place[order[rows], order[columns]]], comparator)
        reached += chance >= found - TIE
        surpassed += chance.max() >= found - TIE
    return Mantel(value, reached / (1 + permutations), surpassed / (1 + permutations))


def distance_vectors(layers: Layers, distance: str = "euclidean", n: int | None = None) -> Float[Tensor, "l p"]:
    """Return the squared distances of all pairs of n stimuli in each layer, in the order of `upper`.

    Raises:
        ValueError: A layer has another number of stimuli, by default than the first; see `NeuralDistances`.
    """
    n = n or len(layers[0])
    if other := [index for index, states in enumerate(layers) if len(states) != n]:
        raise ValueError(f"layer {other[0]} has {len(layers[other[0]])} stimuli, not {n}")
    known = [
        each if isinstance(each, NeuralDistances) else NeuralDistances.of(each, distance, f"layer {index}")
        for index, each in enumerate(layers)
    ]
    return torch.stack([layer.vector() for layer in known])


def _both(layers: Layers, others: Layers | None, distance: str) -> tuple[Tensor, Tensor]:
    """Return the distances in the layers of both sides, the same object where there is one side."""
    vectors = distance_vectors(layers, distance)
    return vectors, vectors if others is None else distance_vectors(others, distance, len(layers[0]))


def mds(dissimilarity: Float[Tensor, "l l"], dimensions: int = 2) -> tuple[Float[Tensor, "l k"], Float[Tensor, ""]]:
    """Return points whose Euclidean distances d_ij approximate dissimilarities δ_ij: metric multidimensional scaling.

    It minimises Σ_{i<j} (d_ij - δ_ij)² by SMACOF (de Leeuw 1977) from the classical solution (Torgerson 1952), so it is
    deterministic; the largest coordinate of each axis is positive.

    Returns:
        The points, about 0 on principal axes, and Kruskal's stress-1, sqrt(Σ (d - δ)² / Σ d²), at least 0.

    Raises:
        ValueError: The matrix is not symmetric and non-negative with a zero diagonal, or is zero.
    """
    given = dissimilarity.double()
    if not torch.equal(given, given.T) or (given < 0).any() or given.diagonal().any() or not given.any():
        raise ValueError("dissimilarities must be symmetric, not negative, 0 on the diagonal, and not all 0")
    from sklearn.manifold import smacof  # takes a second to import

    squared = given.square()
    product = -(squared - squared.mean(0) - squared.mean(1, keepdim=True) + squared.mean()) / 2
    values, vectors = torch.linalg.eigh(product)
    classical = (vectors * values.clamp(min=0).sqrt())[:, -dimensions:]
    found, _ = smacof(
        given.cpu().numpy(), n_components=dimensions, init=classical.cpu().numpy(), n_init=1,
        max_iter=LIMIT, eps=SETTLED, normalized_stress=False,
    )  # fmt: skip
    points = torch.from_numpy(found).to(given.device)
    distances = torch.cdist(points, points, compute_mode="donot_use_mm_for_euclid_dist")
    stress = ((distances - given).square().sum() / distances.square().sum()).sqrt()
    about_0 = points - points.mean(0)
    turned = about_0 @ torch.linalg.svd(about_0, full_matrices=False).Vh.T
    return turned * turned.gather(0, turned.abs().argmax(0, keepdim=True)).sign(), stress


def distance_correlation(X: Float[Tensor, "n d"], Y: Float[Tensor, "m e"]) -> Float[Tensor, ""]:
    """Return the bias-corrected distance correlation R* = <A, B> / √(<A, A> <B, B>), in [-1, 1].

    A and B are the U-centred Euclidean distances of the rows (Székely & Rizzo 2013; in this form 2014). It estimates
    the *square* of the distance correlation of Székely, Rizzo & Bakirov (2007): about 0 for independent features of any
    width, and a positive limit for any kind of dependence. It has no gradient here.

    Raises:
        ValueError: n < 4 or n differs between the sides, a value is not finite, or all distances of a side are equal.
    """
    return DISTANCE_CORRELATION.of(X, Y)


@torch.no_grad()
def u_centred(matrix: Float[Tensor, "n n"], name: str) -> Float[Tensor, "n n"]:
    """Return a U-centred symmetric matrix, whose products are unbiased, of norm 1; a ValueError of one that is 0.

    Aᵢⱼ = aᵢⱼ - aᵢ./(n-2) - a.ⱼ/(n-2) + a../((n-1)(n-2)) off the diagonal, and 0 on it. The product of two of them, over
    n (n-3), is the unbiased squared distance covariance of matrices of distances, and the unbiased HSIC of Grams.
    """
    n = len(matrix)
    whole = matrix.double().clone().fill_diagonal_(0)
    sums = whole.sum(0) / (n - 2)
    matrix_centred = (whole - sums - sums[:, None] + sums.sum() / (n - 1)).fill_diagonal_(0)
    norm = matrix_centred.norm()
    if not norm > ROUNDING * whole.norm():
        raise ValueError(f"{name}: all distances are equal, or all but those of one row, so none can be compared")
    return matrix_centred / norm


@torch.no_grad()
def _of_distances(features: Float[Tensor, "n d"], name: str) -> Float[Tensor, "n n"]:
    rows = centred(features, name).rows
    return u_centred(NeuralDistances.of(rows, name=name).squared().sqrt(), name)


@torch.no_grad()
def _of_ranks(features: Float[Tensor, "n d"], name: str) -> Float[Tensor, "n n"]:
    squared = NeuralDistances.of(features, name=name).squared()
    above, ranked = upper(len(squared), squared.device), torch.zeros_like(squared)
    ranked.view(-1)[above] = unit_ranks([squared.flatten()[above]], f"the distances of {name},")[0] / 2**0.5
    return ranked + ranked.T


DISTANCE_CORRELATION = LayerMeasure(_of_distances, products, both_in_order)
RANKED_DISTANCES = LayerMeasure(_of_ranks, products, both_in_order, fewest=3)  # the numbers of `rsa`
