"""Representational similarity analysis (Kriegeskorte et al. 2008; Salle et al. 2024, section 4)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor

from thinkalike.arguments import seeded
from thinkalike.measures.distances.comparators import compare
from thinkalike.measures.distances.neural import DistanceChoice, NeuralDistances, upper
from thinkalike.measures.distances.ranks import SortedRows, spearman, unit_ranks
from thinkalike.measures.statistics.estimate import Estimate
from thinkalike.measures.statistics.folds import splits, stimulus_folds
from thinkalike.measures.statistics.jackknifing import jackknife
from thinkalike.progress import counted

Layers = (
    Sequence[Float[Tensor, "_ _"] | NeuralDistances] | Float[Tensor, "l n d"]
)  # states of the same n stimuli, of any widths; or their distances

OF_LAYER = "the distances of layer"  # what an error calls a row


def rsa(
    layers: Layers,
    others: Layers | None = None,
    distance: DistanceChoice = "euclidean",
    comparator: str = "spearman",
) -> Float[Tensor, "l m"]:
    """Return Spearman's ρ, over pairs of stimuli, of the distances in every two layers, in [-1, 1].

    Ties have mid-ranks. Each layer is ranked once, and all ρ are one product, which takes 8 bytes for each pair
    and layer.

    Args:
        others: The layers to compare with; by default the same.
        distance: See `NeuralDistances`; layers whose distances are given keep theirs.
        comparator: What takes the place of Spearman's ρ, of the squared distances; see `compare`.

    Raises:
        ValueError: Layers differ in the number of stimuli, or all distances of one are equal; see `NeuralDistances`
            and `compare`.
    """
    if comparator != "spearman":
        vectors = distance_vectors(layers, distance)
        further = vectors if others is None else distance_vectors(others, distance, _count(layers))
        return compare(vectors, further, comparator)
    if others is not None and not len(others):
        raise ValueError("others is empty: give at least one layer")
    ranks = _ranks(layers, distance)
    return ranks @ (ranks if others is None else _ranks(others, distance, _count(layers))).T


def rsa_estimate(
    layers: Layers,
    others: Layers | None = None,
    distance: DistanceChoice = "euclidean",
    groups: Int[Tensor, " n"] | None = None,
    folds: int = 10,
    seed: int = 0,
    comparator: str = "spearman",
) -> Estimate:
    """Return `rsa` with a 95 % jackknife interval that leaves out one fold of stimuli, and all their pairs, at a time.

    Args:
        groups: (n) numbers; stimuli of a group, such as the words of a sentence, are left out together.

    Raises:
        ValueError: See `rsa` and `stimulus_folds`.
    """
    owners = stimulus_folds(_count(layers), folds, seed, groups).to(_device(layers))
    kept = [torch.arange(len(owners), device=owners.device), *(train for train, _ in splits(owners))]
    if comparator == "spearman":
        whole, *replicates = _ranked_among(layers, others, distance, kept)
    else:
        further = [None if others is None else _taken(others, rows) for rows in kept]
        sides = zip((_taken(layers, rows) for rows in counted(kept, "fold")), further, strict=True)
        whole, *replicates = (rsa(first, second, distance, comparator) for first, second in sides)
    return jackknife(whole, torch.stack(replicates))


def _ranked_among(
    layers: Layers, others: Layers | None, distance: DistanceChoice, kept: Sequence[Int[Tensor, " _"]]
) -> list[Float[Tensor, "l m"]]:
    """Return Spearman's ρ among the stimuli that are kept each time; the distances of a layer are sorted once."""
    n = _count(layers)
    ordered = SortedRows(_vectors(layers, distance, n))
    further = ordered if others is None else SortedRows(_vectors(others, distance, n))
    rows, columns = torch.triu_indices(n, n, 1, device=_device(layers))
    found = []
    for chosen in counted(kept, "fold"):
        there = torch.zeros(n, dtype=torch.bool, device=rows.device).index_fill_(0, chosen, True)
        pairs = there[rows] & there[columns]
        ranks = ordered.unit_ranks(pairs, OF_LAYER)
        found.append(ranks @ (ranks if others is None else further.unit_ranks(pairs, OF_LAYER)).T)
    return found


def _taken(given: Layers, rows: Tensor) -> list[Tensor | NeuralDistances]:
    """Return the layers of some of the stimuli."""
    return [layer.take(rows) if isinstance(layer, NeuralDistances) else layer[rows] for layer in given]


def _count(layers: Layers) -> int:
    """Return the number of stimuli.

    Raises:
        ValueError: There is no layer.
    """
    if not len(layers):
        raise ValueError("layers is empty: give at least one layer")
    return len(layers[0])


def mantel(
    layers: Layers,
    others: Layers | None = None,
    distance: DistanceChoice = "euclidean",
    permutations: int = 999,
    seed: int = 0,
    comparator: str = "spearman",
) -> tuple[Float[Tensor, "l m"], Float[Tensor, "l m"]]:
    """Return `rsa`, and the probability of so large a ρ if stimuli had no counterpart in the other layers.

    It is p = (1 + #{ρ of permuted stimuli ≥ ρ}) / (1 + permutations), one-sided (Mantel 1967). Pairs that share a
    stimulus depend on each other, so stimuli are permuted, not pairs. All layers see the same permutations.

    Raises:
        ValueError: There is not one permutation; see `rsa`.
    """
    if permutations < 1:
        raise ValueError(f"permutations={permutations}: a p-value needs at least one")
    n, ranked = _count(layers), comparator == "spearman"
    take = _ranks if ranked else distance_vectors
    vectors = take(layers, distance)
    further = vectors if others is None else take(others, distance, n)

    def likeness(moved: Tensor) -> Tensor:
        return vectors @ moved.T if ranked else compare(vectors, moved, comparator)

    found = likeness(further)
    place = torch.zeros(n, n, dtype=torch.long, device=vectors.device)  # of each pair, in either order, in the vectors
    rows, columns = torch.triu_indices(n, n, 1, device=vectors.device)
    place[rows, columns] = place[columns, rows] = torch.arange(len(rows), device=vectors.device)
    generator = seeded(seed)
    reached = torch.ones_like(found)
    for _ in counted(range(permutations), "permutation"):
        order = torch.randperm(n, generator=generator).to(vectors.device)
        reached += likeness(further[:, place[order[rows], order[columns]]]) >= found
    return found, reached / (1 + permutations)


def matrix_agreement(matrix: Float[Tensor, "l l"], other: Float[Tensor, "l l"]) -> Float[Tensor, ""]:
    """Return Spearman's ρ of the upper triangles, without the diagonals, of two similarity matrices of the same layers.

    Raises:
        ValueError: A triangle is constant.
    """
    chosen = upper(len(matrix), matrix.device)
    return spearman(matrix.flatten()[chosen], other.flatten()[chosen])


def distance_vectors(
    layers: Layers, distance: DistanceChoice = "euclidean", n: int | None = None
) -> Float[Tensor, "l p"]:
    """Return the squared distances of all pairs of stimuli in each layer, in the order of `upper`.

    Args:
        n: The number of stimuli that layers must have; by default that of the first.

    Raises:
        ValueError: Layers differ in the number of stimuli; see `NeuralDistances`.
    """
    return torch.stack(list(_vectors(layers, distance, n)))


def _vectors(layers: Layers, distance: DistanceChoice, n: int | None) -> Iterator[Float[Tensor, " p"]]:
    n = n or _count(layers)
    for index, states in enumerate(layers):
        if len(states) != n:
            raise ValueError(f"layer {index} has {len(states)} stimuli, not {n}: all layers need the same ones")
    for index, states in enumerate(layers):
        known = isinstance(states, NeuralDistances)
        layer = states if known else NeuralDistances.of(states, distance, f"layer {index}")
        yield layer.vector()


def _device(layers: Layers) -> torch.device:
    first = layers[0]
    return first.states.device if isinstance(first, NeuralDistances) else first.device


def _ranks(layers: Layers, distance: DistanceChoice, n: int | None = None) -> Float[Tensor, "l p"]:
    return unit_ranks(_vectors(layers, distance, n), OF_LAYER, len(layers))
