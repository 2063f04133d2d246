"""Linear maps between two sites in both directions, and what they leave unexplained."""

from __future__ import annotations

from typing import NamedTuple

from thinkalike.measures.closed_forms import AffineMap, least_squares_of
from thinkalike.measures.moments import PairStatistics

# The ridge, as a share of the mean variance of the states that predict. It is too small to change
# what a map explains, and large enough to hide the rounding errors of float64.
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

    def unexplained(self, x_to_y: PairStatistics) -> Unexplained:
        """Return the shares of variance that the maps leave unexplained in some rows.

        They are those of φ, which predicts y from x, and of ψ, which predicts x from y; and those
        of the round trips ψ ∘ φ, from x back to x, and φ ∘ ψ, from y back to y.

        Args:
            x_to_y: The statistics of these rows, with x as the source and y as the target.
        """
        y_to_x = x_to_y.reversed
        return Unexplained(
            phi=unexplained_by(self.phi, x_to_y),
            psi=unexplained_by(self.psi, y_to_x),
            psi_phi=unexplained_by(self.psi @ self.phi, _source_to_itself(x_to_y)),
            phi_psi=unexplained_by(self.phi @ self.psi, _source_to_itself(y_to_x)),
        )


def _source_to_itself(statistics: PairStatistics) -> PairStatistics:
    """Return the statistics with the source's states in place of the target's: y = x."""
    return statistics._replace(mean_y=statistics.mean_x, yy=statistics.xx, xy=statistics.xx)


def both_directions(x_to_y: PairStatistics, ridge: float = RIDGE) -> BothDirections:
    """Return φ: x → y and ψ: y → x, by ridge regression with a bias.

    φ minimises Σ‖yᵢ - W xᵢ - b‖² + λ‖W‖². The penalty λ is the ridge times the mean of the
    diagonal of Σ(x - x̄)(x - x̄)', so that the fit does not depend on the units of x and y. ψ is
    fitted likewise with x and y exchanged. It is not the inverse of φ, which would amplify what φ
    does not explain of y.

    Args:
        x_to_y: The statistics of the rows to fit on, as `Moments.of` a layer pair.
        ridge: The ridge, as a share of the mean variance of the states that predict.
    """
    return BothDirections(_ridge_map(x_to_y, ridge), _ridge_map(x_to_y.reversed, ridge))


def _ridge_map(statistics: PairStatistics, ridge: float) -> AffineMap:
    """Return the map W x + b from the source's states to the target's, by ridge regression.

    Args:
        statistics: The statistics of the rows to fit on.
        ridge: The penalty, as a multiple of the sum of (x - x̄)² over the rows, averaged over the
            dimensions of x.
    """
    mean_square_sum = float(statistics.xx.diagonal().mean())
    return least_squares_of(statistics, ridge * mean_square_sum)


def unexplained_by(fit: AffineMap, statistics: PairStatistics) -> float:
    """Return the share of the target's variance that a map leaves unexplained.

    It is Σ‖y - W x - b‖² / Σ‖y - ȳ‖². With deviations x' = x - x̄ and y' = y - ȳ, the first sum is
    Σ‖y' - W x'‖² + n ‖ȳ - W x̄ - b‖².

    Args:
        fit: The map x ↦ W x + b.
        statistics: The means and centred products of the rows x and y.

    Raises:
        ValueError: The target's states do not vary.
    """
    total = statistics.yy.trace()  # Σ‖y - ȳ‖²
    from_target_to_source = statistics.reversed  # with y in the place of x
    if from_target_to_source.is_constant:
        raise ValueError(
            "a side whose states do not vary has no variance to explain: leave this pair out"
        )
    weight = fit.weight.to(total)
    offset = statistics.mean_y - fit(statistics.mean_x)  # ȳ - W x̄ - b
    linear = (weight * statistics.xy.T).sum()  # Σ (y - ȳ)' W (x - x̄)
    quadratic = (weight @ statistics.xx * weight).sum()  # Σ‖W (x - x̄)‖²
    about_means = total - 2 * linear + quadratic  # Σ‖(y - ȳ) - W (x - x̄)‖²
    return float((about_means + statistics.n * offset.square().sum()) / total)
