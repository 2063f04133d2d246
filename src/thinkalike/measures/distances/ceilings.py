"""How well any model of given features could do: what their joint cells say of the distances of stimuli."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from thinkalike.arguments import seeded
from thinkalike.measures.distances.neural import DistanceChoice, NeuralDistances, upper
from thinkalike.measures.distances.ranks import spearman
from thinkalike.measures.mlem.columns import joint_cells
from thinkalike.progress import counted

MOST = 2000  # stimuli whose pairs are looked at


def ceiling(
    cells: Any,
    layers: Sequence[Float[Tensor, "n _"]],
    distance: DistanceChoice = "euclidean",
    *,
    groups: Any = None,
    splits: int = 5,
    seed: int = 0,
) -> Float[Tensor, " l"]:
    """Return Spearman's ρ that the best function of two stimuli's cells would reach in each layer, in [-1, 1].

    A cell is all stimuli of one level in each feature, so that no model of these features tells them apart; cells of
    single words give what a word's identity could explain. Stimuli are divided into halves A and B. The mean squared
    distance of two cells in A predicts that of each pair of stimuli in B, with the noise of few stimuli: ρ(B, A) is √r
    times what exact means would reach, where the reliability r is the ρ of the means of both halves over the same pairs
    (Spearman 1904). So ρ(B, A) / √r, at most 1, is averaged over both directions and `splits` divisions. Pairs of cells
    that a half lacks do not count.

    Args:
        cells: (n), what says which cell a stimulus is of, or (n, f), a table of features as `MLEM.fit` takes.
        layers: States (n, d) of each layer; of more than 2,000 stimuli as many are drawn at random.
        distance: See `NeuralDistances`.
        groups: (n), such as sentences; the stimuli of one are in one half.

    Raises:
        ValueError: There are fewer than two pairs of cells in both halves, they are all equally far, or they are noise.
    """
    draw = seeded(seed)
    owners = _numbers(range(len(layers[0])) if groups is None else joint_cells(groups))
    numbers = _numbers(joint_cells(cells))
    rows = torch.randperm(len(numbers), generator=draw)[:MOST].sort().values
    distances, found = [NeuralDistances.of(layer, distance) for layer in layers], []
    for _ in counted(range(splits), "division for ceilings"):
        side = torch.randperm(int(owners.max()) + 1, generator=draw)[owners[rows]] % 2
        halves = [rows[side == half] for half in (0, 1)]
        found.append(torch.tensor([_both(each, numbers, halves) for each in distances]))
    return torch.stack(found).mean(0)


def _numbers(values: Any) -> Int[Tensor, " n"]:
    """Return numbers from 0 for equal values of any kind."""
    known: dict[Any, int] = {}
    return torch.tensor([known.setdefault(value, len(known)) for value in values])


def _both(distances: NeuralDistances, cells: Int[Tensor, " n"], halves: Sequence[Int[Tensor, " _"]]) -> float:
    squared = [distances.take(half).squared() for half in halves]
    means = [_means(part, cells[half], int(cells.max()) + 1) for part, half in zip(squared, halves, strict=True)]
    scores = []
    for half, part, own, other in zip(halves, squared, means, means[::-1], strict=True):
        pairs = upper(len(half))
        left, right = cells[half][pairs // len(half)], cells[half][pairs % len(half)]
        predicted, measured = other[left, right], own[left, right]
        known = predicted.isfinite() & measured.isfinite()
        reliability = _rho(predicted[known], measured[known])
        if not reliability > 0:
            raise ValueError(f"cells have no reliable distances (split-half ρ {reliability:.2f}): too few stimuli each")
        scores.append(min(_rho(part.flatten()[pairs][known], predicted[known]) / reliability**0.5, 1.0))
    return sum(scores) / 2


def _means(squared: Float[Tensor, "k k"], cells: Int[Tensor, " k"], number: int) -> Float[Tensor, "c c"]:
    """Return the mean squared distance of two different stimuli of each two cells; nan where there are none."""
    held = torch.nn.functional.one_hot(cells, number).double()
    sizes = held.sum(0)
    return (held.T @ squared @ held) / (sizes[:, None] * sizes - sizes.diag())


def _rho(x: Float[Tensor, " p"], y: Float[Tensor, " p"]) -> float:
    try:
        return float(spearman(x, y))
    except ValueError as error:
        message = f"{len(x)} pairs of stimuli whose cells both halves have are too few, or all equally far"
        raise ValueError(message) from error
