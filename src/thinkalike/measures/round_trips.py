"""Linear maps between two sites in both directions, and what they leave unexplained."""

from __future__ import annotations

from typing import NamedTuple

from thinkalike.measures.closed_forms import AffineMap, least_squares_of
from thinkalike.measures.moments import PairStatistics

# of the mean variance of the states that predict: below what counts, and above float64's rounding
RIDGE = 1e-9


class Unexplained(NamedTuple):
    """Shares of variance that maps leave unexplained: Σ‖y - ŷ‖² / Σ‖y - ȳ‖².

    They are 0 for a perfect map and 1 for the mean. ȳ is the mean of the rows at hand, so a map
    that was fitted on other rows may exceed 1.
    """

    phi: float  # of y, by φ(x)
    psi: float  # of x, by ψ(y)
    psi_phi: float  # of x, by ψ(φ(x))
    phi_psi: float  # of y, by φ(ψ(y))


class BothDirections(NamedTuple):
    """The maps φ: x → y and ψ: y → x of one pair of sites, in float64."""

    phi: AffineMap
    psi: AffineMap

    def unexplained(self, there: PairStatistics) -> Unexplained:
        """Return what both maps and their round trips leave unexplained of these rows."""
        back = there.reversed
        return Unexplained(
            unexplained_by(self.phi, there),
            unexplained_by(self.psi, back),
            unexplained_by(self.psi @ self.phi, _with_itself(there)),
            unexplained_by(self.phi @ self.psi, _with_itself(back)),
        )


def _with_itself(side: PairStatistics) -> PairStatistics:
    """Return the statistics of the source's site as both sites of a pair."""
    return side._replace(mean_y=side.mean_x, yy=side.xx, xy=side.xx)


def both_directions(there: PairStatistics, ridge: float = RIDGE) -> BothDirections:
    """Return φ: x → y and ψ: y → x, by ridge regression with a bias, from `Moments.of` a pair.

    φ minimises Σ‖yᵢ - W xᵢ - b‖² + λ‖W‖², with λ the ridge times the mean of the diagonal of Σ(x -
    x̄)(x - x̄)', so that a change of either side's scale changes nothing but that of W; ψ likewise
    with x and y exchanged. ψ is not the inverse of φ: what φ does not explain of y shrinks both,
    and the inverse would blow it up.
    """
    sides = there, there.reversed
    return BothDirections(
        *(least_squares_of(side, ridge * float(side.xx.diagonal().mean())) for side in sides)
    )


def unexplained_by(fit: AffineMap, statistics: PairStatistics) -> float:
    """Return the share of the target's variance, which must not be 0, that a map leaves."""
    whole = statistics.yy.trace()
    if statistics.reversed.is_constant:
        raise ValueError(
            "a side whose states do not vary has no variance to explain: leave this pair out"
        )
    weight, offset = fit.weight.to(whole), statistics.mean_y - fit(statistics.mean_x)
    left = whole - 2 * (weight * statistics.xy.T).sum() + (weight @ statistics.xx * weight).sum()
    return float((left + statistics.n * offset.square().sum()) / whole)
