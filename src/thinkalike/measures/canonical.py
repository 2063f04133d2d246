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


def canonical_directions(
    statistics: PairStatistics, among: tuple[Float[Tensor, "d a"], Float[Tensor, "e b"]] | None = None
) -> Directions:
    """Return the canonical directions of one layer pair; r is the smaller rank, 0 where one side is constant.

    Directions of less than `CUTOFF` of the largest variance are rounding, and do not count.

    Args:
        among: Directions of unit variance of the same states as they are, where the statistics are of what is left of
            them; then only these are looked at, and of these only such as keep `LEFT` of their variance.
    """
    of_x, of_y, across = (each / (statistics.n - 1) for each in (statistics.xx, statistics.yy, statistics.xy))
    x, y = (whitening(of_x), whitening(of_y)) if among is None else map(_whitening_among, (of_x, of_y), among)
    left, correlations, right = torch.linalg.svd(x.T @ across @ y, full_matrices=False)
    target = y @ right.T
    ranks = x.shape[1], y.shape[1]
    means, clamped = (statistics.mean_x, statistics.mean_y), correlations.clamp(max=1)
    return Directions(*means, x @ left, target, target.T @ of_y, clamped, ranks)


def whitening(covariance: Float[Tensor, "d d"], least: float | None = None) -> Float[Tensor, "d r"]:
    """Return directions of variance 1 that are uncorrelated, of those with more than `least` variance.

    By default this is `CUTOFF` of the largest.
    """
    values, vectors = torch.linalg.eigh(covariance)
    kept = values > (CUTOFF * values[-1:].clamp(min=0) if least is None else least)
    return vectors[:, kept] / values[kept].sqrt()


def _whitening_among(covariance: Float[Tensor, "d d"], directions: Float[Tensor, "d a"]) -> Float[Tensor, "d r"]:
    return directions @ whitening(directions.T @ covariance @ directions, LEFT)


class DirectionSums:
    """Sums over held-out rows for one layer pair, by part of their documents.

    Args:
        directions: Of rows of other documents.
        output: A root, (e, e), of the matrix by which errors of the target's states change its output; None: no
            such measure.
    """

    def __init__(self, directions: Directions, output: Float[Tensor, "e k"] | None = None):
        self.directions, self.output = directions, output
        self._sums: dict[str, Tensor] = {}  # each (PARTS, r), or (PARTS, 1)

    @torch.no_grad()
    def judge(self, x: Float[Tensor, "n d"], y: Float[Tensor, "n e"], parts: Int[Tensor, " n"]) -> None:
        """Add held-out rows of both sides; `parts` says to which part, below `PARTS`, each row belongs."""
        own, found = self.directions, {}
        u, whole = (x.double() - own.mean_x) @ own.source, y.double() - own.mean_y
        v, predicted = whole @ own.target, u * own.correlations
        found = {"onward": v - predicted, "target": v, "backward": u - v * own.correlations, "source": u}
        if self.output is not None:
            root = self.output
            found |= {"error": whole @ root - predicted @ (own.back @ root), "read": whole @ root}
        belongs = torch.nn.functional.one_hot(parts, PARTS).to(v).T
        for name, each in found.items():
            squares = each.square() if name not in ("error", "read") else each.square().sum(1, keepdim=True)
            self._sums[name] = self._sums.get(name, 0) + belongs @ squares
        self._sums["rows"] = self._sums.get("rows", 0) + belongs.sum(1)

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
        if self.output is not None:
            found["r2_output"] = _r2(sums["error"], sums["read"])[..., 0]
        return found


def _r2(errors: Float[Tensor, "*b r"], whole: Float[Tensor, "*b r"]) -> Float[Tensor, "*b r"]:
    """Return 1 - errors / whole, 0 where there is nothing to predict."""
    return torch.where(whole > 0, 1 - errors / whole.clamp(min=torch.finfo(whole.dtype).tiny), 0.0)


def _least(explained: Float[Tensor, "*b r"], rank: int) -> Float[Tensor, "*b"]:
    """Return the least R² of `rank` directions, of which those that are not there have 0."""
    if not rank:
        return explained.sum(-1)
    least = explained.amin(-1) if explained.shape[-1] else explained.sum(-1)
    return least if explained.shape[-1] == rank else least.clamp(max=0)
