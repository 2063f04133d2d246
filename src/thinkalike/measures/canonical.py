"""How much of the directions of one model's states another's predict on held-out rows, whatever the coordinates.

Canonical directions (Hotelling 1936) are pairs of linear functions of two sets of features, uncorrelated with all other
pairs and of unit variance. No invertible affine map of either side changes them, so neither does it change what is
here: the mean over directions is R²_CCA of Kornblith et al. (2019, table 1), but of rows that nothing was fitted on.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from thinkalike.measures.closed_forms import CUTOFF, PairStatistics
from thinkalike.measures.estimates import FEWEST_GROUPS, PARTS, Estimate, interval_around, jackknife

LEFT = 1e-6  # of a direction's variance; with less there is nothing left of it
SHARES = (0.9, 0.99)  # of all that is shared; how many directions carry as much is counted


class Directions(NamedTuple):
    """Canonical directions of x and y: (x - mean_x) @ source and (y - mean_y) @ target have unit covariance, (.., r).

    `back` makes states of y of them: (y - mean_y) = (y - mean_y) @ target @ back wherever y varies.
    """

    mean_x: Float[Tensor, " d"]
    mean_y: Float[Tensor, " e"]
    source: Float[Tensor, "d r"]
    target: Float[Tensor, "e r"]
    back: Float[Tensor, "r e"]
    correlations: Float[Tensor, " r"]
    ranks: tuple[int, int]  # in how many directions x and y vary


def canonical_directions(statistics: PairStatistics, x: Float[Tensor, "d a"], y: Float[Tensor, "e b"]) -> Directions:
    """Return the canonical directions of one layer pair; r is the smaller rank, 0 where one side is constant.

    Args:
        x, y: Uncorrelated directions of unit variance of each side, which span those that are looked at.
    """
    of_y, across = (each / (statistics.n - 1) for each in (statistics.yy, statistics.xy))
    left, correlations, right = torch.linalg.svd(x.T @ across @ y, full_matrices=False)
    target = y @ right.T
    means, ranks = (statistics.mean_x, statistics.mean_y), (x.shape[1], y.shape[1])
    return Directions(*means, x @ left, target, target.T @ of_y, correlations.clamp(max=1), ranks)


def whitening(covariance: Float[Tensor, "d d"], least: float | None = None) -> Float[Tensor, "d r"]:
    """Return directions of variance 1 that are uncorrelated, of those with more than `least` variance.

    By default this is `CUTOFF` of the largest: directions of less are rounding, and do not count.
    """
    values, vectors = torch.linalg.eigh(covariance)
    kept = values > (CUTOFF * values[-1:].clamp(min=0) if least is None else least)
    return vectors[:, kept] / values[kept].sqrt()


def whitening_among(directions: Float[Tensor, "d a"], covariance: Float[Tensor, "d d"]) -> Float[Tensor, "d r"]:
    """Return `whitening` of what is left of states, among directions of unit variance of the states as they are.

    Only directions that keep `LEFT` of their variance are there.
    """
    return directions @ whitening(directions.T @ covariance @ directions, LEFT)


class DirectionSums:
    """Sums over held-out rows for one layer pair, by part of their documents.

    Args:
        directions: Of rows of other documents.
        output: A root, (e, e), of the matrix by which errors of the target's states change its output.
    """

    def __init__(self, directions: Directions, output: Float[Tensor, "e k"]):
        self.directions, self.output = directions, output
        self._sums: dict[str, Tensor] = {}  # each (PARTS, r), or (PARTS, 1)

    @torch.no_grad()
    def judge(self, x: Float[Tensor, "n d"], y: Float[Tensor, "n e"], parts: Int[Tensor, " n"]) -> None:
        """Add held-out rows of both sides; `parts` says to which part, below `PARTS`, each row belongs."""
        own = self.directions
        u, whole = (x.double() - own.mean_x) @ own.source, y.double() - own.mean_y
        v, predicted = whole @ own.target, u * own.correlations
        read = whole @ self.output
        error = read - predicted @ (own.back @ self.output)
        belongs = torch.nn.functional.one_hot(parts, PARTS).to(v).T
        found = {"onward": v - predicted, "target": v, "backward": u - v * own.correlations, "source": u}
        found = {name: belongs @ each.square() for name, each in found.items()} | {"rows": belongs.sum(1)}
        found |= {
            name: belongs @ each.square().sum(1, keepdim=True) for name, each in (("error", error), ("read", read))
        }
        self._sums = {name: self._sums.get(name, 0) + each for name, each in found.items()}

    def compute(self, documents: int) -> dict[str, Estimate]:
        """Return each measure with an interval that leaves out a part of the documents at a time, as numbers.

        `cca`, `cca_back`: the mean held-out R² of the target's directions from the source's states, and of the
        source's from the target's; `cca_least`, `cca_least_back`: the least over directions, 0 if one has no
        counterpart; `directions_90`, `directions_99`: how many directions carry that share of all that is shared;
        `r2_output`: R² with errors weighed by how much they change the target's output. All R² are at most 1.
        With fewer than `FEWEST_GROUPS` documents intervals are (-∞, ∞).
        """
        there = self._sums["rows"] > 0
        sums = {name: each[there] for name, each in self._sums.items() if name != "rows"}
        whole = self._measures({name: each.sum(0) for name, each in sums.items()})
        if documents < FEWEST_GROUPS:
            return {name: interval_around(value, torch.inf) for name, value in whole.items()}
        left = self._measures({name: each.sum(0) - each for name, each in sums.items()})
        return {name: jackknife(value, left[name]) for name, value in whole.items()}

    def _measures(self, sums: dict[str, Float[Tensor, "*b r"]]) -> dict[str, Float[Tensor, "*b"]]:
        rank_x, rank_y = self.directions.ranks
        onward, backward = _r2(sums["onward"], sums["target"]), _r2(sums["backward"], sums["source"])
        shared = onward.clamp(min=0).sort(-1, descending=True).values.cumsum(-1)
        found = {
            "cca": onward.sum(-1) / max(rank_y, 1),
            "cca_back": backward.sum(-1) / max(rank_x, 1),
            "cca_least": _least(onward, rank_y),
            "cca_least_back": _least(backward, rank_x),
        }
        for share in SHARES:
            count = (shared < share * shared[..., -1:]).sum(-1).double() + 1 if shared.shape[-1] else onward.sum(-1)
            found[f"directions_{round(100 * share)}"] = count
        return found | {"r2_output": _r2(sums["error"], sums["read"])[..., 0]}


def _r2(errors: Float[Tensor, "*b r"], whole: Float[Tensor, "*b r"]) -> Float[Tensor, "*b r"]:
    """Return 1 - errors / whole, 0 where there is nothing to predict."""
    return torch.where(whole > 0, 1 - errors / whole.clamp(min=torch.finfo(whole.dtype).tiny), 0.0)


def _least(explained: Float[Tensor, "*b r"], rank: int) -> Float[Tensor, "*b"]:
    """Return the least R² of `rank` directions, of which those that are not there have 0."""
    if not rank:
        return explained.sum(-1)
    least = explained.amin(-1) if explained.shape[-1] else explained.sum(-1)
    return least if explained.shape[-1] == rank else least.clamp(max=0)
