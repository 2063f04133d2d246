"""Steering vectors: the difference that a feature makes to mean states, carried to another model, and its effect.

With φ(h) = U h + u from model A to model B, a vector s that is added to states of A becomes U s in B
(Chen, Merullo, Stolfo & Pavlick 2025, arXiv 2506.06609).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from thinkalike.measures.bootstrapping import over_parts, without_each_part
from thinkalike.measures.closed_forms import AffineMap
from thinkalike.measures.estimates import Estimate, interval_around


def held_out_differences(
    before: Float[Tensor, "n d"], after: Float[Tensor, "n d"], fold_of: Int[Tensor, " n"]
) -> Float[Tensor, "n d"]:
    """Return for each pair of states the mean of after - before over all pairs that are not in its fold."""
    difference, vectors = after.double() - before.double(), torch.empty(before.shape, dtype=torch.float64)
    for fold in fold_of.unique():
        vectors[fold_of == fold] = difference[fold_of != fold].mean(0)
    return vectors


def carried_vectors(vectors: Float[Tensor, "n d"], mapping: AffineMap) -> Float[Tensor, "n e"]:
    """Return U s for each vector s, with U the weight of the map."""
    return vectors @ mapping.weight.to(vectors).T


def with_norms_of(vectors: Float[Tensor, "*n d"], others: Float[Tensor, "n e"]) -> Float[Tensor, "*n d"]:
    """Return the directions of some vectors with the norms of others; a zero vector stays one."""
    return torch.nn.functional.normalize(vectors, dim=-1) * others.norm(dim=-1, keepdim=True)


def random_directions(
    draws: int, vectors: Float[Tensor, "n d"], generator: torch.Generator
) -> Float[Tensor, "draws n d"]:
    """Return random directions, each the same for all n, with the norms of the given vectors."""
    directions = torch.randn(draws, 1, vectors.shape[1], dtype=vectors.dtype, generator=generator)
    return with_norms_of(directions.expand(-1, len(vectors), -1), vectors)


@dataclass(frozen=True, eq=False)
class Effects:
    """Mean effects of c conditions and of the counterpart texts, in nats, and both without each of r parts of groups.

    Intervals are of the jackknife and Student's t, see `over_parts`.
    """

    value: Float[Tensor, " c"]
    replicates: Float[Tensor, "c r"]
    natural: Float[Tensor, ""]
    natural_replicates: Float[Tensor, " r"]

    def interval(self, level: float = 0.95) -> Estimate:
        """Return the mean effects, in nats, with their intervals."""
        return over_parts(self.value, self.replicates, level)

    def shares(self, level: float = 0.95) -> Estimate:
        """Return each mean effect as a share of the natural one, with its interval.

        It is NaN where the interval of the natural effect includes 0.
        """
        ends = over_parts(self.natural, self.natural_replicates, level)
        if ends.low <= 0 <= ends.high:
            return interval_around(torch.full_like(self.value, torch.nan), torch.nan)
        return over_parts(self.value / self.natural, self.replicates / self.natural_replicates, level)


def effects_of(steered: Float[Tensor, "c n"], natural: Float[Tensor, " n"], groups: Int[Tensor, " n"]) -> Effects:
    """Return mean effects over texts, and those without each part of the groups of texts.

    Args:
        steered: How far each condition moves the log-probability gap of each text, in nats.
        natural: How far the counterpart of the text moves it.
        groups: The number of each text's group, such as its word.
    """
    rows = torch.cat([steered.double(), natural.double()[None], torch.ones(1, len(natural), dtype=torch.float64)])
    sums = without_each_part(rows, groups)
    means = sums[:-1] / sums[-1]
    return Effects(means[:-1, 0], means[:-1, 1:], means[-1, 0], means[-1, 1:])


def turned_at_random(mapping: AffineMap, mean: Float[Tensor, " d"], generator: torch.Generator) -> AffineMap:
    """Return Q W R x + b' with random rotations Q and R: the singular values of W, and the same image of the mean."""
    weight = mapping.weight.double()
    left, right = (random_rotation(width, generator).to(weight.device) for width in weight.shape)
    turned = left @ weight @ right
    mean = mean.to(weight)
    return AffineMap(turned, weight @ mean + mapping.bias.double() - turned @ mean)


def random_rotation(width: int, generator: torch.Generator) -> Float[Tensor, "d d"]:
    """Return an orthogonal matrix from the uniform distribution over all of them, in float64 (Mezzadri 2007)."""
    q, r = torch.linalg.qr(torch.randn(width, width, dtype=torch.float64, generator=generator))
    return q * r.diagonal().sign()
