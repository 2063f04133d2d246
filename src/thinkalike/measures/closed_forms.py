"""Closed-form maps between the states of two models, from their means and centred products."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import torch
from jaxtyping import Float
from torch import Tensor

from thinkalike.arguments import Count, Within
from thinkalike.measures.halved_moments import HalvedMoments
from thinkalike.measures.moments import VARIANCE_ROUNDING, KeyPair, Moments, PairStatistics

# The penalty of a ridge regression; None: it is chosen by cross-validation over documents.
Ridge = Annotated[float | None, Within(least=0)]

# Singular values below this share of the largest are only rounding errors if the matrix was ever
# in float32.
SINGULAR_VALUE_ROUNDING = 1e-6


@dataclass(frozen=True, eq=False)
class AffineMap:
    """The map x ↦ W x + b for states of any dtype, on any device."""

    weight: Float[Tensor, "e d"]
    bias: Float[Tensor, " e"]

    def __call__(self, states: Float[Tensor, "*b d"]) -> Float[Tensor, "*b e"]:
        """Return W x + b for each state x, in the dtype of the states.

        It is computed in the wider one of the dtypes of states and weights, as W x and b may be
        large and cancel.
        """
        wide = torch.promote_types(states.dtype, self.weight.dtype)
        weight = self.weight.to(states.device, wide)
        bias = self.bias.to(states.device, wide)
        return torch.nn.functional.linear(states.to(wide), weight, bias).to(states.dtype)

    def __matmul__(self, first: AffineMap) -> AffineMap:
        """Return the map that applies `first` and then this map: `second @ first`."""
        return AffineMap(self.weight @ first.weight, self.weight @ first.bias + self.bias)

    @property
    def condition(self) -> float:
        """The condition number of W: its largest singular value over its smallest.

        Singular values of W that are only rounding are left out. It is ∞ if W is 0.
        """
        singular_values = torch.linalg.svdvals(self.weight.double())
        threshold = SINGULAR_VALUE_ROUNDING * singular_values[0]
        significant = singular_values[singular_values > threshold]
        if not len(significant):
            return float("inf")
        return float(significant[0] / significant[-1])

    def inverse(self) -> AffineMap:
        """Return the map y ↦ W⁺ (y - b) in float64, with W⁺ the pseudo-inverse of W.

        Singular values that are only rounding count as 0.
        """
        inverse = torch.linalg.pinv(self.weight.double(), rtol=SINGULAR_VALUE_ROUNDING)
        return AffineMap(inverse, -inverse @ self.bias.double())


def least_squares(
    moments: Moments | HalvedMoments, pair: KeyPair, ridge: Ridge = 0.0, bias: bool = True
) -> AffineMap:
    """Return the W and b that minimise Σᵢ ‖yᵢ - W xᵢ - b‖² + ridge ‖W‖².

    W = Y'X (X'X + ridge I)⁺ on centred rows. The penalty is added to a sum over rows, as in
    scikit-learn, and does not apply to b. If ridge=0 and X'X is singular, as for n <= d rows or
    for the states of a LayerNorm, W is the solution of least norm: it is 0 in directions with less
    than 1e-12 of the largest variance.

    Args:
        moments: The moments of the states.
        pair: The layer pair.
        ridge: The penalty; None: it is chosen by cross-validation over the documents of
            `HalvedMoments`.
        bias: Whether there is a b. Without it the states are not centred, so that large means cost
            digits.

    Raises:
        ValueError: The ridge is not a number >= 0, or is None without `HalvedMoments`.
    """
    statistics = _statistics(moments, pair, bias)
    return least_squares_of(statistics, _penalty(moments, pair, ridge, bias))


def least_squares_of(statistics: PairStatistics, ridge: float = 0.0) -> AffineMap:
    """Return the W and b that minimise Σᵢ ‖yᵢ - W xᵢ - b‖² + ridge ‖W‖², from sums over rows.

    Args:
        statistics: The means of x and y, and the sums of products of their deviations from these.
            If the means are 0 and the products those of x and y themselves, b is 0.
        ridge: The penalty, at least 0.

    Raises:
        ValueError: The ridge is not a number >= 0.
    """
    return _map_through_means(statistics, _ridge_weight(statistics, ridge))


def reduced_rank(
    moments: Moments | HalvedMoments,
    pair: KeyPair,
    rank: Count,
    ridge: Ridge = 0.0,
    bias: bool = True,
) -> AffineMap:
    """Return the W of at most this rank, and b, that minimise Σᵢ ‖yᵢ - W xᵢ - b‖² + ridge ‖W‖².

    W = U U' W₁, with W₁ the minimiser without a limit of the rank and U the top eigenvectors of
    W₁ (X'X + ridge I) W₁' = W₁ X'Y, the products of the fitted values (Izenman 1975; with ridge
    Mukherjee & Zhu 2011).

    Args:
        moments: The moments of the states.
        pair: The layer pair.
        rank: The greatest rank that W may have.
        ridge: The penalty; None: it is chosen by cross-validation over the documents of
            `HalvedMoments`.
        bias: Whether there is a b. Without it the states are not centred, so that large means cost
            digits.

    Raises:
        ValueError: The rank is not in 1..min(d, e), or the ridge is not a number >= 0, or is None
            without `HalvedMoments`.
    """
    statistics = _statistics(moments, pair, bias)
    most = min(statistics.xy.shape)
    if not 1 <= rank <= most:
        raise ValueError(f"rank={rank} is not in 1..{most}, the smaller of the two widths")
    weight = _ridge_weight(statistics, _penalty(moments, pair, ridge, bias))
    fitted_products = weight @ statistics.xy
    symmetric = (fitted_products + fitted_products.T) / 2  # up to rounding it is symmetric already
    top = torch.linalg.eigh(symmetric).eigenvectors[:, -rank:]  # U
    return _map_through_means(statistics, top @ (top.T @ weight))


def procrustes(moments: Moments | HalvedMoments, pair: KeyPair, bias: bool = True) -> AffineMap:
    """Return the isometry Q, Q'Q = I, that minimises Σᵢ ‖yᵢ - μᵧ - Q (xᵢ - μₓ)‖², and its b.

    Q = U V' for Y'X = U S V', and b = μᵧ - Q μₓ. Reflections are allowed (Schönemann 1966). Into a
    wider target (e > d) Q has orthonormal columns. Where Y'X is singular, Q is one of several
    minimisers.

    Args:
        moments: The moments of the states.
        pair: The layer pair.
        bias: Whether there is a b; without it, the means are taken as 0.

    Raises:
        ValueError: The target is narrower than the source.
    """
    statistics = _statistics(moments, pair, bias)
    d, e = statistics.xy.shape
    if e < d:
        raise ValueError(
            f"no isometry goes from width {d} to {e}: fit the other direction, or use reduced_rank"
        )
    u, _, vh = torch.linalg.svd(statistics.xy.T, full_matrices=False)
    return _map_through_means(statistics, u @ vh)


def bias_only(moments: Moments | HalvedMoments, pair: KeyPair) -> AffineMap:
    """Return the map x ↦ x + μᵧ - μₓ between two layers of the same width.

    μₓ and μᵧ are the mean states of the two layers. Of all maps that only add a constant, this
    has the least squared error.

    Args:
        moments: The moments of the states.
        pair: The layer of x and the layer of y.
    """
    statistics = moments.of(pair)
    identity = torch.eye(len(statistics.mean_x)).to(statistics.xx)
    return _map_through_means(statistics, identity)


def _statistics(moments: Moments | HalvedMoments, pair: KeyPair, bias: bool) -> PairStatistics:
    """Return the means and the sums of products of states x and y, from which maps are fitted.

    The products are those of centred states, or, if the map has no bias, of the states themselves.

    Args:
        moments: The moments of the states.
        pair: The layer of x and the layer of y.
        bias: Whether the map has a bias.
    """
    statistics = moments.of(pair)
    if bias:
        return statistics
    return statistics.about_zero()


def _penalty(
    moments: Moments | HalvedMoments, pair: KeyPair, ridge: float | None, bias: bool
) -> float:
    """Return the ridge penalty that was given; if it is None, the one chosen on the documents.

    The penalty is chosen such that maps fitted on one half of the documents predict the other half
    best.

    Args:
        moments: The moments of the states; to choose a ridge, those of both halves of documents.
        pair: The layer pair.
        ridge: The penalty, or None.
        bias: Whether the map has a constant b.

    Raises:
        ValueError: The ridge is None without `HalvedMoments`.
    """
    if ridge is not None:
        return ridge
    if not isinstance(moments, HalvedMoments):
        raise ValueError(
            "ridge=None is chosen over halves of the documents: give HalvedMoments, or a number"
        )
    return moments.penalty(pair, bias)


def _map_through_means(statistics: PairStatistics, weight: Float[Tensor, "e d"]) -> AffineMap:
    """Return the map x ↦ W x + b for a given W, with the b that maps the mean of x to that of y.

    A map without a bias has statistics whose means are set to 0, so that b = 0.
    """
    return AffineMap(weight, statistics.mean_y - weight @ statistics.mean_x)


def _ridge_weight(statistics: PairStatistics, ridge: float) -> Float[Tensor, "e d"]:
    """Return the weight of a ridge regression of Y on X, W = Y'X (X'X + ridge I)⁺.

    Eigenvalues of X'X + ridge I that may be only rounding errors count as 0 in the pseudo-inverse,
    so that W is 0 in the directions of their eigenvectors.

    Args:
        statistics: `xx` is X'X and `xy` is X'Y.
        ridge: The penalty.

    Raises:
        ValueError: The ridge is not a number >= 0.
    """
    if not ridge >= 0:
        raise ValueError(f"ridge={ridge} is not a number >= 0")
    values, vectors = torch.linalg.eigh(statistics.xx)
    penalised = values.clamp(min=0) + ridge  # rounding may leave eigenvalues below 0
    # In a direction in which states do not vary, the exact eigenvalue of X'X is 0. The computed
    # one may be as large as this bound: a share of the largest eigenvalue, and what rounding of a
    # large mean looks like (`noise`). With a ridge above the bound, all directions are used.
    largest_rounding = VARIANCE_ROUNDING * penalised[-1] + statistics.noise
    inverse = torch.where(penalised > largest_rounding, 1 / penalised, 0)
    weight: Tensor = (statistics.xy.T @ vectors * inverse) @ vectors.T
    return weight
