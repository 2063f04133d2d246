"""The sums of `normal_equations` over explicit pairs of stimuli: for any differences and any distances."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations_with_replacement

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from thinkalike.measures.distances.neural import NeuralDistances
from thinkalike.measures.mlem.features import Features
from thinkalike.measures.mlem.sums.by_level import of_sets
from thinkalike.measures.mlem.terms import Term, regressors

CHUNK = 2**20  # pairs that exist at the same time, of at most
TERMS = 64  # terms; the more there are, the fewer pairs


def sums_by_pair(
    features: Features, layers: Sequence[NeuralDistances], terms: Sequence[Term], cells: Int[Tensor, " n"]
) -> Float[Tensor, "s t u"]:
    """Return the table of `normal_equations`, over chunks of pairs within and between cells."""
    number, chunk = int(cells.max()) + 1, CHUNK // -(-len(terms) // TERMS)
    members = [(cells == cell).nonzero()[:, 0] for cell in range(number)]
    between = torch.zeros(
        number, number, len(terms), len(terms) + len(layers), dtype=torch.float64, device=cells.device
    )
    for a, b in combinations_with_replacement(range(number), 2):
        for rows in members[a].split(max(1, chunk // len(members[b]))):
            kept = rows[:, None] < members[b] if a == b else None
            left = regressors([features.difference(f, rows, members[b]) for f in range(len(features.scaled))], terms)
            right = [layer.block(rows, members[b]) for layer in layers]
            between[a, b] += _products([_flat(part, kept) for part in left], [_flat(part, kept) for part in right])
    total = between.sum((0, 1))
    alone = between.sum(0) + between.sum(1) - between.diagonal().movedim(-1, 0)
    return total[None] if number == 1 else torch.cat([total[None], total - alone])


def sums_of_given_pairs(
    differences: Sequence[Tensor], targets: Float[Tensor, "l p"], terms: Sequence[Term], cells: Int[Tensor, " p"]
) -> Float[Tensor, "s t u"]:
    """Return the table of `normal_equations` of pairs that are given one by one, with cells of pairs, not of stimuli.

    Args:
        differences: Δ of the pairs, feature by feature.
        targets: The squared neural distances of the pairs.
    """
    parts, chunk = [], CHUNK // -(-len(terms) // TERMS)
    for cell in range(int(cells.max()) + 1):
        part = torch.zeros(len(terms), len(terms) + len(targets), dtype=torch.float64, device=cells.device)
        for chosen in (cells == cell).nonzero()[:, 0].split(chunk):
            here = regressors([column[chosen] for column in differences], terms)
            part += _products(here, list(targets[:, chosen]))
        parts.append(part)
    return of_sets(torch.stack(parts))


def _flat(block: Tensor, kept: Bool[Tensor, "a b"] | None) -> Tensor:
    return block.flatten() if kept is None else block[kept]


def _products(left: list[Tensor], right: list[Tensor]) -> Float[Tensor, "t u"]:
    x = torch.stack(left)
    return x @ torch.cat([x, torch.stack(right)]).T
