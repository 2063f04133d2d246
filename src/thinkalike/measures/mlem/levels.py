"""Weights of pairs of levels: a distance for every two levels of a nominal feature.

A fit minimises Σ_{i<j} (b + Σ_f w^f_{f_i f_j} - (D^N_ij)²)² + α Σ_f Σ_{a<b} (n_a + n_b) (w^f_ab - w^f)², w ≥ 0, with
n_a the number of stimuli of level a, and w^f the mean of the w^f_ab with weights n_a + n_b. α = ∞ is the model with one
weight per feature, without a ridge, and α = 0 the free one. As the mean squared distance of two levels has a variance
near 1 / n_a + 1 / n_b, and n_a n_b pairs of stimuli, a ridge of n_a + n_b shrinks all pairs of levels by their
precision: by half at 1 / α = 1 / n_a + 1 / n_b. So the unit of α is a number of stimuli.

With points, w^f_ab = ‖p_a - p_b‖² of p = V S^(1/2) with S ⪰ 0, so that the distances of levels, and of stimuli, are a
metric. V (k, k - 1) spans the differences of all levels, each scaled by the root of its number of stimuli, so that a
fit converges in few steps even if some levels are rare.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from thinkalike.measures.mlem.features import Features
from thinkalike.measures.mlem.least_squares import nnls, psd_least_squares, size_of, to_entries
from thinkalike.measures.mlem.sums import of_sets
from thinkalike.measures.mlem.terms import Term, grouped, of_features


def level_path(
    moments: Float[Tensor, "s r v"],
    used: Bool[Tensor, "s r"],
    sizes: Float[Tensor, "s r"],
    terms: Sequence[Term],
    alphas: Sequence[float],
    points: Points | None = None,
) -> Float[Tensor, "a s l r"]:
    """Return the weights at every α, on every set of pairs, of every layer.

    Two levels without a pair in a set get the mean weight of their feature, w^f. At α = ∞ the weights of a feature are
    equal to the bit, so that equal predictions tie.

    Args:
        moments: The sums about the means, see `centred`.
        used: Which terms have pairs in a set; the others are found from these.
        sizes: n_a + n_b of each pair of levels, 0 for another term.
        points: If given, the weights are the squared distances of such points.
    """
    r = len(used[0])
    target = torch.where(used[:, None], moments[..., r:].mT, 0)
    gram = torch.where(used[:, :, None] & used[:, None], moments[..., :r], 0)
    ridge = level_ridge(sizes * used, terms)
    own = of_features(terms).to(gram)

    def solved(system: Float[Tensor, "s q q"], aim: Float[Tensor, "s l q"]) -> Float[Tensor, "s l q"]:
        return nnls(system[:, None].expand(*aim.shape, aim.shape[2]), aim)

    def at(alpha: float) -> Float[Tensor, "s l r"]:
        if alpha == torch.inf:
            return solved(own @ gram @ own.T, target @ own.T) @ own
        solve = solved if points is None else points.solve
        return _completed(solve(gram + alpha * ridge, target), used[:, None], (sizes * used)[:, None], terms)

    return torch.stack([at(alpha) for alpha in alphas])


def level_ridge(sizes: Float[Tensor, "s r"], terms: Sequence[Term]) -> Float[Tensor, "s r r"]:
    """Return the matrix of Σ_f Σ_ab p_ab (w_ab - Σ p w / Σ p)² as a quadratic form."""
    ridge = torch.diag_embed(sizes)
    for term, places in grouped(terms):
        if len(term) == 1:
            part = sizes[:, places]
            ridge[:, places, places] -= part[:, :, None] * part[:, None] / part.sum(1).clamp(min=1)[:, None, None]
    return ridge


def _completed(
    path: Tensor, used: Bool[Tensor, "s 1 r"], sizes: Float[Tensor, "s 1 r"], terms: Sequence[Term]
) -> Tensor:
    for term, places in grouped(terms):
        if len(term) == 1:
            share = sizes[..., places] / sizes[..., places].sum(-1, keepdim=True).clamp(min=1)
            mean = (path[..., places] * share).sum(-1, keepdim=True)
            path[..., places] = torch.where(used[..., places], path[..., places], mean)
    return path


def pair_sizes(counts: Sequence[Float[Tensor, "s _"]], terms: Sequence[Term]) -> Float[Tensor, "s r"]:
    """Return n_a + n_b of each pair of levels in each set of stimuli, from `level_counts`; 0 for another term."""
    sizes = counts[0].new_zeros(len(counts[0]), len(terms) - 1)
    for (feature, *_), places in grouped(terms):
        if known := counts[feature].shape[1]:
            left, right = torch.triu_indices(known, known, 1, device=sizes.device)
            sizes[:, places.start : places.stop - 1] = counts[feature][:, left] + counts[feature][:, right]
    return sizes


def level_counts(features: Features, cells: Int[Tensor, " n"]) -> list[Float[Tensor, "s _"]]:
    """Return the number of stimuli of each level of each feature in each set of stimuli, see `normal_equations`.

    A feature with one weight has no levels to count: (s, 0).
    """
    number, found = int(cells.max()) + 1, []
    for feature, known in enumerate(features.known):
        key = cells * (known + 1) + features.levels[:, feature].clamp(-1, known - 1).long() + 1
        counts = torch.bincount(key, minlength=number * (known + 1)).view(number, -1)
        found.append(of_sets(counts.double())[:, 1:])
    return found


class Points:
    """The weights of all terms as linear functions of semidefinite matrices, one per feature.

    Args:
        counts: The number of stimuli of each level of each feature; none for a feature with one weight, whose matrix
            has one entry.
    """

    def __init__(self, terms: Sequence[Term], counts: Sequence[Float[Tensor, " _"]]):
        parts, self.sizes = [], []
        for (feature, *_), places in grouped(terms):
            part = _of_one(counts[feature], places.stop - places.start)
            parts.append(part)
            self.sizes.append(size_of(part.shape[1]))
        self.design = torch.block_diag(*parts)

    def solve(self, gram: Float[Tensor, "s r r"], target: Float[Tensor, "s l r"]) -> Float[Tensor, "s l r"]:
        """Return the weights with least w'Gw / 2 - t'w, see `psd_least_squares`; 0 for levels without a stimulus."""
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


def _of_one(counts: Float[Tensor, " k"], terms: int) -> Float[Tensor, "t q"]:
    """Return the weights of one feature's terms per entry of its matrix."""
    if not len(counts):
        return torch.ones(1, 1, dtype=torch.float64)
    there = counts > 0
    root = counts[there].sqrt()
    unit = root / root.norm()
    vectors = torch.linalg.eigh(torch.outer(unit, unit)).eigenvectors[:, :-1]  # orthogonal to it
    places = torch.zeros(len(counts), max(len(root) - 1, 0), dtype=torch.float64, device=counts.device)
    places[there] = vectors / root[:, None]
    rows, columns = torch.triu_indices(len(counts), len(counts), 1)
    apart = (places[rows] - places[columns]) * (there[rows] & there[columns])[:, None]
    design = to_entries(apart[:, :, None] * apart[:, None])
    return torch.cat([design, design.new_zeros(terms - len(design), design.shape[1])])
