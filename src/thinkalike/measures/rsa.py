"""Representational similarity analysis (Kriegeskorte et al. 2008; Salle et al. 2024, section 4)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor

from thinkalike.measures.distances import Distance, NeuralDistances
from thinkalike.measures.folds import splits, stimulus_folds
from thinkalike.measures.jackknife import Estimate, jackknife
from thinkalike.measures.pairs import upper
from thinkalike.measures.ranks import spearman, unit_ranks

Layers = Sequence[Tensor] | Float[Tensor, "l n d"]  # states of the same n stimuli, of any widths


def rsa(layers: Layers, others: Layers | None = None, distance: Distance = "euclidean") -> Float[Tensor, "l m"]:
    """Spearman's ρ, over pairs of stimuli, of the distances in every two layers; in [-1, 1], ties at mid-ranks.

    Each layer is ranked once, and all ρ are one product. Memory: 8 bytes for each pair and layer.

    Args:
        others: layers to compare with; default: the same.

    Raises:
        ValueError: layers differ in the number of stimuli, all distances of one are equal, or see `NeuralDistances`.
    """
    ranks = _ranks(layers, distance)
    return ranks @ (ranks if others is None else _ranks(others, distance, len(layers[0]))).T


def rsa_estimate(
    layers: Layers,
    others: Layers | None = None,
    distance: Distance = "euclidean",
    groups: Int[Tensor, " n"] | None = None,
    folds: int = 10,
    seed: int = 0,
) -> Estimate:
    """`rsa` with a 95 % interval: a jackknife that leaves out one fold of the stimuli at a time, and all their pairs.

    Args:
        groups: (n) numbers; stimuli of a group, such as the words of a sentence, are left out together.

    Raises:
        ValueError: see `rsa` and `stimulus_folds`.
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
    distance: Distance = "euclidean",
    permutations: int = 999,
    seed: int = 0,
) -> tuple[Float[Tensor, "l m"], Float[Tensor, "l m"]]:
    """`rsa`, and the probability of so large a ρ if the stimuli had no counterpart in the other layers (Mantel 1967).

    p = (1 + #{ρ of permuted stimuli ≥ ρ}) / (1 + permutations), one-sided. Pairs that share a stimulus depend on each
    other, so stimuli are permuted, not pairs. All layers see the same permutations.

    Raises:
        ValueError: see `rsa`; fewer than one permutation.
    """
    if permutations < 1:
        raise ValueError(f"permutations={permutations}: a p-value needs at least one")
    n = len(layers[0])
    ranks = _ranks(layers, distance)
    further = ranks if others is None else _ranks(others, distance, n)
    found = ranks @ further.T
    place = torch.zeros(n, n, dtype=torch.long, device=ranks.device)  # of each pair, in either order, in the ranks
    rows, columns = torch.triu_indices(n, n, 1, device=ranks.device)
    place[rows, columns] = place[columns, rows] = torch.arange(len(rows), device=ranks.device)
    generator = torch.Generator().manual_seed(seed)
    reached = torch.ones_like(found)
    for _ in range(permutations):
        order = torch.randperm(n, generator=generator).to(ranks.device)
        reached += ranks @ further[:, place[order[rows], order[columns]]].T >= found
    return found, reached / (1 + permutations)


def matrix_agreement(matrix: Float[Tensor, "l l"], other: Float[Tensor, "l l"]) -> Float[Tensor, ""]:
    """Spearman's ρ of the upper triangles, without the diagonals, of two similarity matrices of the same layers.

    Raises:
        ValueError: a triangle is constant.
    """
    chosen = upper(len(matrix), matrix.device)
    return spearman(matrix.flatten()[chosen], other.flatten()[chosen])


def _ranks(layers: Layers, distance: Distance, n: int | None = None) -> Float[Tensor, "l p"]:
    n = n or len(layers[0])
    for index, states in enumerate(layers):
        if len(states) != n:
            raise ValueError(f"layer {index} has {len(states)} stimuli, not {n}: all layers need the same ones")
    pairs = upper(n, layers[0].device)
    made = (NeuralDistances.of(states, distance, f"layer {index}") for index, states in enumerate(layers))
    return unit_ranks((layer.squared().flatten()[pairs] for layer in made), "the distances of layer")
