"""Closed-form maps y ≈ W x + b between residual streams: each turns the `Moments` of one layer pair into a map."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from thinkalike.arguments import takes_arrays
from thinkalike.measures.stitching.moments import CUTOFF, LayerPair, Moments, PairStatistics

ROUNDING = 1e-6  # of the largest singular value: below it a matrix that was ever in float32 holds rounding


@dataclass(frozen=True, eq=False)
class AffineMap:
    """The map x ↦ W x + b for states of any dtype, on any device."""

    weight: Float[Tensor, "e d"]
    bias: Float[Tensor, " e"]

    @takes_arrays
    def __call__(self, states: Float[Tensor, "*b d"]) -> Float[Tensor, "*b e"]:
        """Return W x + b of each state, with the dtype and device of the states.

        It is computed in the wider of the two dtypes, as b may cancel large means.
        """
        wide = torch.promote_types(states.dtype, self.weight.dtype)
        weight, bias = self.weight.to(states.device, wide), self.bias.to(states.device, wide)
        return torch.nn.functional.linear(states.to(wide), weight, bias).to(states.dtype)

    def __matmul__(self, first: AffineMap) -> AffineMap:
        """Return the composition that applies `first`, then this map."""
        return AffineMap(self.weight @ first.weight, self.weight @ first.bias + self.bias)

    @property
    def condition(self) -> float:
        """The largest singular value of W over the smallest that is more than `ROUNDING`; inf where W is 0."""
        singular = torch.linalg.svdvals(self.weight.double())
        kept = singular[singular > ROUNDING * singular[0]]
        return float(kept[0] / kept[-1]) if len(kept) else float("inf")

    def inverse(self) -> AffineMap:
        """Return y ↦ W⁺ (y - b) in float64, with the pseudo-inverse W⁺ of what of W is more than `ROUNDING`."""
        back = torch.linalg.pinv(self.weight.double(), rtol=ROUNDING)
        return AffineMap(back, -back @ self.bias.double())


def least_squares(moments: Moments, pair: LayerPair, ridge: float = 0.0, bias: bool = True) -> AffineMap:
    """Return the W, b with least Σᵢ ‖yᵢ - W xᵢ - b‖² + ridge ‖W‖².

    W = Y'X (X'X + ridge I)⁺ on centred rows, and b = μᵧ - W μₓ.

    The penalty stands beside a sum over rows, as in scikit-learn, and spares b. At ridge=0 and a singular X'X (n <= d,
    or a LayerNorm's states) W is the one of least norm: directions below `CUTOFF` of the largest variance get none.

    Args:
        bias: Whether there is a b; without it the products are about 0, which costs digits if means are large.

    Raises:
        ValueError: The ridge is not a number >= 0; see `Moments.of`.
    """
    return least_squares_of(_statistics(moments, pair, bias), ridge)


def least_squares_of(statistics: PairStatistics, ridge: float = 0.0) -> AffineMap:
    """Return what `least_squares` does, from the statistics of one pair.

    Raises:
        ValueError: The ridge is not a number >= 0.
    """
    return _through_means(statistics, _solve(statistics, ridge))


def reduced_rank(moments: Moments, pair: LayerPair, rank: int, ridge: float = 0.0, bias: bool = True) -> AffineMap:
    """Return the best W of at most this rank for the sum that `least_squares` minimises, with b.

    W = U U' W₁ with W₁ of full rank and U the top eigenvectors of W₁ (X'X + ridge I) W₁' = W₁ X'Y, the products of the
    fitted values (Izenman 1975; with ridge Mukherjee & Zhu 2011).

    Raises:
        ValueError: The rank is not in 1..min(d, e); see `least_squares`.
    """
    statistics = _statistics(moments, pair, bias)
    most = min(statistics.xy.shape)
    if not 1 <= rank <= most:
        raise ValueError(f"rank={rank} is not in 1..{most}, the smaller of the two widths")
    weight = _solve(statistics, ridge)
    fitted = weight @ statistics.xy
    top = torch.linalg.eigh((fitted + fitted.T) / 2).eigenvectors[:, -rank:]
    return _through_means(statistics, top @ (top.T @ weight))


def procrustes(moments: Moments, pair: LayerPair, scale: bool = False, bias: bool = True) -> AffineMap:
    """Return the isometry Q, Q'Q = I, with least Σᵢ ‖yᵢ - μᵧ - s Q (xᵢ - μₓ)‖², and its b.

    Q = U V' for Y'X = U S V', and b = μᵧ - s Q μₓ. Reflections are allowed (Schönemann 1966). Into a wider target
    (e > d) Q has orthonormal columns. Where Y'X is singular Q is one of several minimisers. s = 1, or tr S / ‖X‖² with
    `scale`. Without `bias` the means are taken as 0.

    Raises:
        ValueError: The target is narrower than the source, or `scale` meets a constant source; see `Moments.of`.
    """
    statistics = _statistics(moments, pair, bias)
    d, e = statistics.xy.shape
    if e < d:
        raise ValueError(f"no isometry goes from width {d} to {e}: fit the other direction, or use reduced_rank")
    u, s, vh = torch.linalg.svd(statistics.xy.T, full_matrices=False)
    weight, spread = u @ vh, statistics.xx.trace()
    if scale:
        if spread <= statistics.noise:
            raise ValueError(f"source layer {pair[0]} is constant, so it has no scale: use scale=False")
        weight = weight * (s.sum() / spread)
    return _through_means(statistics, weight)


def bias_only(moments: Moments, pair: LayerPair) -> AffineMap:
    """Return the best shift x + μᵧ - μₓ, with W = I.

    Raises:
        ValueError: The widths differ; see `Moments.of`.
    """
    statistics = moments.of(pair)
    d, e = statistics.xy.shape
    if d != e:
        raise ValueError(f"a shift needs equal widths, not {d} and {e}: use least_squares")
    return _through_means(statistics, torch.eye(d, dtype=statistics.xx.dtype, device=statistics.xx.device))


def _statistics(moments: Moments, pair: LayerPair, bias: bool) -> PairStatistics:
    """Return the statistics of a layer pair, about the means, or, for a map without b, about 0."""
    found = moments.of(pair)
    if bias:
        return found
    x, y = found.mean_x, found.mean_y
    xx, xy = (torch.addr(product, x, mean, alpha=found.n) for product, mean in ((found.xx, x), (found.xy, y)))
    return found._replace(mean_x=torch.zeros_like(x), mean_y=torch.zeros_like(y), xx=xx, xy=xy)


def _through_means(statistics: PairStatistics, weight: Float[Tensor, "e d"]) -> AffineMap:
    return AffineMap(weight, statistics.mean_y - weight @ statistics.mean_x)


def _solve(statistics: PairStatistics, ridge: float) -> Float[Tensor, "e d"]:
    if not 0 <= ridge < float("inf"):
        raise ValueError(f"ridge={ridge} is not a number >= 0")
    values, vectors = torch.linalg.eigh(statistics.xx)
    shifted = values.clamp(min=0) + ridge
    inverse = torch.where(shifted > CUTOFF * shifted[-1] + statistics.noise, 1 / shifted, 0)
    return (statistics.xy.T @ vectors * inverse) @ vectors.T
