"""Closed-form maps y ≈ W x + b between residual streams, from statistics that one pass over the tokens gathers.

A mutable `Moments` holds means and centred products of every wanted layer pair, d² numbers each, whatever the number of
tokens; `least_squares`, `reduced_rank`, `procrustes` and `bias_only` turn one pair of it into a frozen `AffineMap`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

Pair = tuple[int, int]  # layer of the source, layer of the target
Site = tuple[str, int]  # "source" or "target", and its layer
Rows = Sequence[Float[Tensor, "_ _"]] | Mapping[int, Float[Tensor, "_ _"]]
CUTOFF = 1e-12  # a direction with less than this share of the largest variance is float32 rounding, and counts as none


@dataclass(frozen=True, eq=False)
class AffineMap:
    """W x + b for states of any dtype, on any device."""

    weight: Float[Tensor, "e d"]
    bias: Float[Tensor, " e"]

    def __call__(self, states: Float[Tensor, "*b d"]) -> Float[Tensor, "*b e"]:
        """In the wider of the two dtypes, as b may cancel large means; the result has the states' dtype and device."""
        wide = torch.promote_types(states.dtype, self.weight.dtype)
        weight, bias = self.weight.to(states.device, wide), self.bias.to(states.device, wide)
        return torch.nn.functional.linear(states.to(wide), weight, bias).to(states.dtype)


class PairMoments(NamedTuple):
    """Statistics of one layer pair, all float64; products are sums over the rows, about the means."""

    n: int
    mean_x: Float[Tensor, " d"]
    mean_y: Float[Tensor, " e"]
    xx: Float[Tensor, "d d"]
    yy: Float[Tensor, "e e"]
    xy: Float[Tensor, "d e"]

    @property
    def noise(self) -> Float[Tensor, ""]:
        """What rounding of the source's mean can leave in `xx` when the source is constant."""
        return self.n * (CUTOFF * self.mean_x).square().sum()


class Moments:
    """Counts, means and centred products of many layer pairs, gathered batch by batch in float64.

    Products are kept about the running mean, so a large offset costs no digits: with δ the difference of two parts'
    means, S = S₁ + S₂ + δₓ δᵧ' n₁ n₂ / (n₁ + n₂) (Chan et al. 1979). Any chunking gives the same up to rounding.
    Sized at the first update. Picklable, so `all_gather_object` and `merge` add up processes.

    Args:
        pairs: the (l, m) whose products are kept; a layer that none of them names is not looked at.

    Raises:
        ValueError: there are no pairs.
    """

    def __init__(self, pairs: Iterable[Pair]):
        self.pairs = list(dict.fromkeys(pairs))
        if not self.pairs:
            raise ValueError("no layer pairs: name at least one, such as pairs=[(0, 0)]")
        crossed = [(("source", layer), ("target", depth)) for layer, depth in self.pairs]
        self._sites: list[Site] = list(dict.fromkeys(site for both in crossed for site in both))
        self._products: list[tuple[Site, Site]] = [*((site, site) for site in self._sites), *crossed]
        self.n = 0
        self._means: dict[Site, Tensor] = {}
        self._scatter: dict[tuple[Site, Site], Tensor] = {}

    @torch.no_grad()
    def update(self, sources: Rows, targets: Rows) -> None:
        """Add the states of the same n tokens in both models, all on one device; float64 copies exist meanwhile.

        Args:
            sources: `sources[l]` is (n, d_l), in a sequence or a mapping.
            targets: `targets[m]` is (n, e_m).

        Raises:
            ValueError: layers differ in n, a width is not that so far, or a state is not finite; nothing is added.
        """
        sides = {"source": sources, "target": targets}
        rows = {site: sides[site[0]][site[1]].double() for site in self._sites}
        counts = {site: len(states) for site, states in rows.items()}
        n = counts[self._sites[0]]
        if any(count != n for count in counts.values()):
            raise ValueError(f"every layer needs the same tokens, but the numbers of rows are {counts}")
        if n == 0:
            return
        means = {site: states.mean(0) for site, states in rows.items()}
        for site, mean in means.items():
            if not mean.isfinite().all():
                raise ValueError(f"states of {site[0]} layer {site[1]} are not finite; run the model in a wider dtype")
            rows[site] = rows[site] - mean
        self._absorb(n, means, lambda left, right: rows[left].T @ rows[right])

    @torch.no_grad()
    def merge(self, other: Moments) -> None:
        """Add what another accumulator saw, as if its rows had come here; the other one stays as it is.

        Raises:
            ValueError: the other one has other pairs or widths.
        """
        if set(other.pairs) != set(self.pairs):
            raise ValueError(f"moments of different pairs cannot be merged: {self.pairs} here, {other.pairs} there")
        if other.n == 0:
            return
        device = (self if self.n else other)._means[self._sites[0]].device
        means = {site: mean.to(device) for site, mean in other._means.items()}
        self._absorb(other.n, means, lambda left, right: other._scatter[left, right].to(device))

    def _absorb(self, n: int, means: Mapping[Site, Tensor], scatter: Callable[[Site, Site], Tensor]) -> None:
        before = self._means or {site: torch.zeros_like(mean) for site, mean in means.items()}
        for site, mean in means.items():
            if mean.shape != before[site].shape:
                raise ValueError(f"{site[0]} layer {site[1]} has width {len(mean)}, but {len(before[site])} so far")
        total = self.n + n
        shift = {site: mean - before[site] for site, mean in means.items()}
        for left, right in self._products:  # one at a time: all pairs' products may be gigabytes
            added = torch.addr(scatter(left, right), shift[left], shift[right], alpha=self.n * n / total)
            self._scatter[left, right] = self._scatter[left, right] + added if self.n else added
        self._means = {site: before[site] + shift[site] * (n / total) for site in self._sites}
        self.n = total

    def of(self, pair: Pair) -> PairMoments:
        """Statistics of one pair.

        Raises:
            ValueError: the pair is not gathered, or fewer than two rows were.
        """
        if pair not in self.pairs:
            raise ValueError(f"pair {pair} was not gathered; there is: {', '.join(map(str, self.pairs))}")
        if self.n < 2:
            raise ValueError(f"a map needs the states of two tokens, not {self.n}: call update first")
        x, y = ("source", pair[0]), ("target", pair[1])
        products = self._scatter[x, x], self._scatter[y, y], self._scatter[x, y]
        return PairMoments(self.n, self._means[x], self._means[y], *products)


def least_squares(moments: Moments, pair: Pair, ridge: float = 0.0, bias: bool = True) -> AffineMap:
    """The W, b with least Σᵢ ‖yᵢ - W xᵢ - b‖² + ridge ‖W‖²: W = Y'X (X'X + ridge I)⁺ on centred rows, b = μᵧ - W μₓ.

    The penalty stands beside a sum over rows, as in scikit-learn, and spares b. At ridge=0 and a singular X'X (n <= d,
    or a LayerNorm's states) W is the one of least norm: directions below `CUTOFF` of the largest variance get none.

    Args:
        bias: False: through the origin, b = 0 and products about 0, which digits suffer from if means are large.

    Raises:
        ValueError: see `Moments.of`; ridge is not a number >= 0.
    """
    found = moments.of(pair)
    if bias:
        return _through_means(found, _solve(found, ridge))
    xx = torch.addr(found.xx, found.mean_x, found.mean_x, alpha=found.n)
    xy = torch.addr(found.xy, found.mean_x, found.mean_y, alpha=found.n)
    return AffineMap(_solve(found._replace(xx=xx, xy=xy), ridge), torch.zeros_like(found.mean_y))


def reduced_rank(moments: Moments, pair: Pair, rank: int, ridge: float = 0.0) -> AffineMap:
    """The best W of at most this rank for the sum that `least_squares` minimises, with b.

    W = U U' W₁ with W₁ of full rank and U the top eigenvectors of W₁ (X'X + ridge I) W₁' = W₁ X'Y, the products of the
    fitted values (Izenman 1975; with ridge Mukherjee & Zhu 2011).

    Raises:
        ValueError: as `least_squares`; rank is not in 1..min(d, e).
    """
    found = moments.of(pair)
    most = min(found.xy.shape)
    if not 1 <= rank <= most:
        raise ValueError(f"rank={rank} is not in 1..{most}, the smaller of the two widths")
    weight = _solve(found, ridge)
    fitted = weight @ found.xy
    top = torch.linalg.eigh((fitted + fitted.T) / 2).eigenvectors[:, -rank:]
    return _through_means(found, top @ (top.T @ weight))


def procrustes(moments: Moments, pair: Pair, scale: bool = False) -> AffineMap:
    """The isometry Q, Q'Q = I, with least Σᵢ ‖yᵢ - μᵧ - s Q (xᵢ - μₓ)‖²: Q = U V' for Y'X = U S V', b = μᵧ - s Q μₓ.

    Reflections are allowed (Schönemann 1966). Into a wider target (e > d) Q has orthonormal columns. Where Y'X is
    singular Q is one of several minimisers. s = 1, or tr S / ‖X‖² with `scale`.

    Raises:
        ValueError: see `Moments.of`; e < d; `scale` with a source that is constant.
    """
    found = moments.of(pair)
    d, e = found.xy.shape
    if e < d:
        raise ValueError(f"no isometry goes from width {d} to {e}: fit the other direction, or use reduced_rank")
    u, s, vh = torch.linalg.svd(found.xy.T, full_matrices=False)
    weight, spread = u @ vh, found.xx.trace()
    if scale:
        if spread <= found.noise:
            raise ValueError(f"source layer {pair[0]} is constant, so it has no scale: use scale=False")
        weight = weight * (s.sum() / spread)
    return _through_means(found, weight)


def bias_only(moments: Moments, pair: Pair) -> AffineMap:
    """x + μᵧ - μₓ, the best shift: W = I.

    Raises:
        ValueError: see `Moments.of`; the widths differ.
    """
    found = moments.of(pair)
    d, e = found.xy.shape
    if d != e:
        raise ValueError(f"a shift needs equal widths, not {d} and {e}: use least_squares")
    return _through_means(found, torch.eye(d, dtype=found.xx.dtype, device=found.xx.device))


def _through_means(found: PairMoments, weight: Float[Tensor, "e d"]) -> AffineMap:
    return AffineMap(weight, found.mean_y - weight @ found.mean_x)


def _solve(found: PairMoments, ridge: float) -> Float[Tensor, "e d"]:
    if not 0 <= ridge < float("inf"):
        raise ValueError(f"ridge={ridge} is not a number >= 0")
    values, vectors = torch.linalg.eigh(found.xx)
    shifted = values.clamp(min=0) + ridge
    inverse = torch.where(shifted > CUTOFF * shifted[-1] + found.noise, 1 / shifted, 0)
    return (found.xy.T @ vectors * inverse) @ vectors.T
