"""Levels as points: the matrices whose squared distances are the weights of pairs of levels.

w^f_ab = ‖p_a - p_b‖² of points p = V S^(1/2) with S ⪰ 0, so that the distances of levels, and of stimuli, are a metric.
V (k, k - 1) has the differences of all levels within its reach, and scales each by the root of its number of stimuli,
which is what makes a fit converge in few steps where some levels are rare.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from thinkalike.measures.mlem.semidefinite import psd_least_squares, size_of, to_entries
from thinkalike.measures.mlem.terms import Term, grouped


class Points:
    """The weights of all terms as linear functions of semidefinite matrices, one per feature.

    Args:
        counts: The number of stimuli of each level of each feature; none for a feature with one weight, which is a
            matrix of one entry.
    """

    def __init__(self, terms: Sequence[Term], counts: Sequence[Float[Tensor, " k"] | None]):
        parts, self.sizes = [], []
        for (feature, *_), places in grouped(terms):
            part = _of_one(counts[feature], places.stop - places.start)
            parts.append(part)
            self.sizes.append(size_of(part.shape[1]))
        self.design = torch.block_diag(*parts)

    def solve(self, gram: Float[Tensor, "s r r"], target: Float[Tensor, "s l r"]) -> Float[Tensor, "s l r"]:
        """Return the weights of such points with least w'Gw / 2 - t'w; 0 for levels that no stimulus has.

        Raises:
            ValueError: The optimum was not found, see `psd_least_squares`.
        """
        design = self.design.to(gram)
        squares = (design * (gram[0] @ design)).sum(0)
        blocks = squares.split([size * (size + 1) // 2 for size in self.sizes])
        units = [block.mean().sqrt() if block.any() else torch.ones(()) for block in blocks]
        design = design / torch.cat(
            [unit.to(gram).expand(len(block)) for unit, block in zip(units, blocks, strict=True)]
        )
        system, aim = design.T @ gram @ design, target @ design
        system = system[:, None].expand(*aim.shape, aim.shape[2])
        return psd_least_squares(system, aim, self.sizes) @ design.T


def _of_one(counts: Float[Tensor, " k"] | None, terms: int) -> Float[Tensor, "t q"]:
    """Return the weights of one feature's terms per entry of its matrix."""
    if counts is None:
        return torch.ones(1, 1, dtype=torch.float64)
    there = counts > 0
    root = counts[there].sqrt()
    unit = root / root.norm()
    vectors = torch.linalg.eigh(torch.outer(unit, unit)).eigenvectors[:, :-1]  # all that is orthogonal to it
    places = torch.zeros(len(counts), max(len(root) - 1, 0), dtype=torch.float64, device=counts.device)
    places[there] = vectors / root[:, None]
    rows, columns = torch.triu_indices(len(counts), len(counts), 1)
    apart = (places[rows] - places[columns]) * (there[rows] & there[columns])[:, None]
    design = to_entries(apart[:, :, None] * apart[:, None])
    return torch.cat([design, design.new_zeros(terms - len(design), design.shape[1])])
