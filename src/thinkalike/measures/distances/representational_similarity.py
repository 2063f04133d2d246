"""Representational similarity analysis (Kriegeskorte et al. 2008; Salle et al. 2024, section 4)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor

from thinkalike.measures.distances.neural import DistanceChoice, NeuralDistances, upper
from thinkalike.measures.distances.ranks import spearman, unit_ranks
from thinkalike.measures.statistics.estimate import Estimate
from thinkalike.measures.statistics.folds import splits, stimulus_folds
from thinkalike.measures.statistics.jackknifing import jackknife

Layers = Sequence[Tensor] | Float[Tensor, "l n d"]  # states of the same n stimuli, of any widths


def rsa(layers: Layers, others: Layers | None = None, distance: DistanceChoice = "euclidean") -> Float[Tensor, "l m"]:
    """Return Spearman's ρ, over pairs of stimuli, of the distances in every two layers, in [-1, 1].

    Ties have mid-ranks. Each layer is ranked once, and all ρ are one product, which takes 8 bytes for each pair
    and layer.

    Args:
        others: The layers to compare with; by default the same.
        distance: See `NeuralDistances`.

    Raises:
        ValueError: Layers differ in the number of stimuli, or all distances of one are equal; see `NeuralDistances`.
    """
    ranks = _ranks(layers, distance)
    return ranks @ (ranks if others is None else _ranks(others, distance, len(layers[0]))).T


def rsa_estimate(
    layers: Layers,
    others: Layers | None = None,
    distance: DistanceChoice = "euclidean",
    groups: Int[Tensor, " n"] | None = None,
    folds: int = 10,
    seed: int = 0,
) -> Estimate:
    """Return `rsa` with a 95 % jackknife interval that leaves out one fold of stimuli, and all their pairs, at a time.

    Args:
        groups: (n) numbers; stimuli of a group, such as the words of a sentence, are left out together.

    Raises:
        ValueError: See `rsa` and `stimulus_folds`.
    """
    owners = stimulus_folds(len(layers[0]), folds, seed, groups).to(layers[0].device)
    kept = [train for train, _ in splits(owners)]

    def without(given: Layers | None, rows: Tensor) -> list[Tensor] | None:
        return None if given is None else [layer[rows] for layer in given]

    replicates = [rsa([layer[rows] for layer in layers], without(others, rows), distance) for rows in kept]
    return jackknife(rsa(layers, others, distance), torch.stack(replicates))


def mantel(
    layers: Layers,
    others: Layers | None = None,
    distance: DistanceChoice = "euclidean",
    permutations: int = 999,
    seed: int = 0,
) -> tuple[Float[Tensor, "l m"], Float[Tensor, "l m"]]:
    """Return `rsa`, and the probability of so large a ρ if stimuli had no counterpart in the other layers.

    It is p = (1 + #{ρ of permuted stimuli ≥ ρ}) / (1 + permutations), one-sided (Mantel 1967). Pairs that share a
    stimulus depend on each other, so stimuli are permuted, not pairs. All layers see the same permutations.

    Raises:
        ValueError: There is not one permutation; see `rsa`.
    """
    if permutations < 1:
        raise ValueError(f"permutations={permutations}: a p-value needs at least one")
    n = len(layers[0])
    ranks = _ranks(layers, distance)
    further = ranks if others is None else _ranks(others, distance, n)
    correlations = ranks @ further.T
    place = torch.zeros(n, n, dtype=torch.long, device=ranks.device)  # of each pair, in either order, in the ranks
    rows, columns = torch.triu_indices(n, n, 1, device=ranks.device)
    place[rows, columns] = place[columns, rows] = torch.arange(len(rows), device=ranks.device)
    generator = torch.Generator().manual_seed(seed)
    reached = torch.ones_like(correlations)
    for _ in range(permutations):
        order = torch.randperm(n, generator=generator).to(ranks.device)
        reached += ranks @ further[:, place[order[rows], order[columns]]].T >= correlations
    return correlations, reached / (1 + permutations)


def matrix_agreement(matrix: Float[Tensor, "l l"], other: Float[Tensor, "l l"]) -> Float[Tensor, ""]:
    """Return Spearman's ρ of the upper triangles, without the diagonals, of two similarity matrices of the same layers.

    Raises:
        ValueError: A triangle is constant.
    """
    chosen = upper(len(matrix), matrix.device)
    return spearman(matrix.flatten()[chosen], other.flatten()[chosen])


def _ranks(layers: Layers, distance: DistanceChoice, n: int | None = None) -> Float[Tensor, "l p"]:
    n = n or len(layers[0])
    for index, states in enumerate(layers):
        if len(states) != n:
            raise ValueError(f"layer {index} has {len(states)} stimuli, not {n}: all layers need the same ones")
    above = upper(n, layers[0].device)
    prepared = (NeuralDistances.of(states, distance, f"layer {index}") for index, states in enumerate(layers))
    return unit_ranks((layer.squared().flatten()[above] for layer in prepared), "the distances of layer")
