"""Closed-form maps between two sites in both directions, and what they leave unexplained of each side's variance."""

from __future__ import annotations

from typing import NamedTuple

from thinkalike.measures.stitching.closed_forms import AffineMap, least_squares_of
from thinkalike.measures.stitching.moments import RIDGE, PairMoments, PairStatistics


class Unexplained(NamedTuple):
    """Shares of variance that maps leave unexplained: Σ‖y - ŷ‖² / Σ‖y - ȳ‖², 0 for a perfect map, 1 for the mean.

    ȳ is the mean of the rows that judge, so a map that was fitted on other rows may exceed 1.
    """

    phi: float  # of y, by φ(x)
    psi: float  # of x, by ψ(y)
    psi_phi: float  # of x, by ψ(φ(x))
    phi_psi: float  # of y, by φ(ψ(y))


class BothDirections(NamedTuple):
    """The maps φ: x → y and ψ: y → x of one pair of sites, in float64."""

    phi: AffineMap
    psi: AffineMap

    def unexplained(self, moments: PairMoments | PairStatistics) -> Unexplained:
        """Return what the maps and their round trips leave unexplained of rows: those they were fitted on, or others.

        Args:
            moments: What a `PairMoments` has seen, or `Moments.of` a layer pair.

        Raises:
            ValueError: Fewer than two rows were seen, or one side does not vary.
        """
        there = _statistics(moments)
        back = there.reversed
        return Unexplained(
            unexplained_by(self.phi, there),
            unexplained_by(self.psi, back),
            unexplained_by(self.psi @ self.phi, there.of_source),
            unexplained_by(self.phi @ self.psi, back.of_source),
        )


def both_directions(moments: PairMoments | PairStatistics, ridge: float = RIDGE) -> BothDirections:
    """Return φ: x → y and ψ: y → x, each by ridge regression with a bias.

    φ minimises Σ‖yᵢ - W xᵢ - b‖² + λ‖W‖², with λ the ridge times the mean of the diagonal of Σ(x - x̄)(x - x̄)', so
    that a change of either side's scale changes nothing but that of W; ψ likewise with x and y exchanged. ψ is not the
    inverse of φ: what φ does not explain of y shrinks both, and the inverse would blow it up.

    Args:
        moments: What a `PairMoments` has seen, or `Moments.of` a layer pair.
        ridge: In units of the mean variance of the states that predict.

    Raises:
        ValueError: The ridge is not a number >= 0, or fewer than two rows were seen.
    """
    there = _statistics(moments)
    return BothDirections(*(_fit(statistics, ridge) for statistics in (there, there.reversed)))


def unexplained_by(fit: AffineMap, statistics: PairStatistics) -> float:
    """Return the share of the target's variance that a map of the source, of any dtype, leaves unexplained.

    Raises:
        ValueError: The target does not vary.
    """
    whole = statistics.yy.trace()
    if whole <= statistics.reversed.noise:
        raise ValueError("a side whose states do not vary has no variance to explain: leave this pair out")
    weight, offset = fit.weight.to(whole), statistics.mean_y - fit(statistics.mean_x)
    left = whole - 2 * (weight * statistics.xy.T).sum() + (weight @ statistics.xx * weight).sum()
    return float((left + statistics.n * offset.square().sum()) / whole)


def _fit(statistics: PairStatistics, ridge: float) -> AffineMap:
    return least_squares_of(statistics, ridge * float(statistics.xx.diagonal().mean()))


def _statistics(moments: PairMoments | PairStatistics) -> PairStatistics:
    return moments.statistics if isinstance(moments, PairMoments) else moments
