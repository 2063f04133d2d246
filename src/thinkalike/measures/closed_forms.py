"""Closed-form maps between the states of two models, from means and centred products gathered in one pass.

The products take d² numbers for each layer pair, whatever the number of tokens. Least squares on few rows overfits, and
its R² on other rows falls far below 0. So here is also the ridge regression whose penalty is chosen by cross-validation
over documents, as rows of one document depend on each other. A penalty may grow without bound, to the map 0 of R² 0.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Annotated, Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from thinkalike.arguments import Count, Within, shown, takes_arrays
from thinkalike.measures.folds import stimulus_folds

LayerPair = tuple[Any, Any]  # layer of the source, layer of the target: numbers, or places in blocks
ModelLayer = tuple[str, Any]  # "source" or "target", and its layer
Ridge = Annotated[float | None, Within(least=0)]
LayerStates = Sequence[Float[Tensor, "_ _"]] | Mapping[Any, Float[Tensor, "_ _"]]
CUTOFF = 1e-12  # of the largest variance: a direction below it is float32 rounding, and gets no weight
ROUNDING = 1e-6  # of the largest singular value: below it a matrix that was ever in float32 holds rounding
PENALTIES = torch.logspace(-12, 6, 55, dtype=torch.float64)  # in units of the mean variance of the states that predict
SURE = 1 + 1e-6  # standard errors by which a map predicts better than none, or 0 takes its place: 1 is one part alone


class PairStatistics(NamedTuple):
    """The statistics of one layer pair, all in float64; products are sums over the n rows, about the means."""

    n: int
    mean_x: Float[Tensor, " d"]
    mean_y: Float[Tensor, " e"]
    xx: Float[Tensor, "d d"]
    yy: Float[Tensor, "e e"]
    xy: Float[Tensor, "d e"]

    @property
    def noise(self) -> Float[Tensor, ""]:
        """The most that rounding of the source's mean can leave in `xx` when the source is constant."""
        return self.n * (CUTOFF * self.mean_x).square().sum()

    @property
    def is_constant(self) -> bool:
        """Whether the source's states are the same in all rows, but for rounding."""
        return bool(self.xx.trace() <= self.noise)

    @property
    def reversed(self) -> PairStatistics:
        return PairStatistics(self.n, self.mean_y, self.mean_x, self.yy, self.xx, self.xy.T)

    def joined(self, other: PairStatistics) -> PairStatistics:
        """Return the statistics of these rows and those of another part together (see `Moments`)."""
        n, x, y = self.n + other.n, other.mean_x - self.mean_x, other.mean_y - self.mean_y
        weight = self.n * other.n / n
        products = ((self.xx, other.xx, x, x), (self.yy, other.yy, y, y), (self.xy, other.xy, x, y))
        means = (self.mean_x + x * (other.n / n), self.mean_y + y * (other.n / n))
        return PairStatistics(n, *means, *((a + b).addr_(*shifts, alpha=weight) for a, b, *shifts in products))


def _layer_pairs(pairs: Any) -> list[LayerPair]:
    """Return different pairs of layers in their order; a ValueError of what is no pair."""
    try:
        found = list(dict.fromkeys(pairs))
    except TypeError:
        found = []
    if not found or not all(isinstance(pair, tuple) and len(pair) == 2 for pair in found):
        raise ValueError(f"pairs={shown(pairs)} must be pairs of a source layer and a target layer, as [(0, 0)]")
    return found


class Moments:
    """The count, means and centred products of the layer pairs (l, m), gathered batch by batch in float64.

    Products are kept about the running mean, so a large offset costs no digits: with δ the difference of two parts'
    means, S = S₁ + S₂ + δₓ δᵧ' n₁ n₂ / (n₁ + n₂) (Chan et al. 1979). Unless for `both` ways, those of y with y are 0.
    """

    def __init__(self, pairs: Iterable[LayerPair], both: bool = True):
        self.pairs = _layer_pairs(pairs)
        crossed = [(("source", l), ("target", m)) for l, m in self.pairs]  # noqa: E741
        self._layers: list[ModelLayer] = list(dict.fromkeys(layer for both in crossed for layer in both))
        within = [(layer, layer) for layer in self._layers if both or layer[0] == "source"]
        self._products: list[tuple[ModelLayer, ModelLayer]] = [*within, *crossed]
        self.n = 0
        self._means: dict[ModelLayer, Tensor] = {}
        self._scatter: dict[tuple[ModelLayer, ModelLayer], Tensor] = {}

    @takes_arrays
    @torch.no_grad()
    def update(self, sources: LayerStates, targets: LayerStates) -> None:
        """Add the states of the same n tokens in both models: `sources[l]` is (n, d_l), and `targets[m]` (n, e_m).

        All are on one device, where float64 copies exist meanwhile.

        Raises:
            ValueError: Layers differ in n, a width is not that so far, or a state is not finite; nothing is added.
        """
        sides = {"source": sources, "target": targets}
        for side, layer in self._layers:
            is_there = layer in sides[side] if isinstance(sides[side], Mapping) else layer in range(len(sides[side]))
            if not is_there:
                raise ValueError(f"{side}s lacks layer {layer!r}, which is in pairs: give its states")
        rows = {layer: sides[layer[0]][layer[1]].double() for layer in self._layers}
        counts = {layer: len(states) for layer, states in rows.items()}
        n = counts[self._layers[0]]
        if any(count != n for count in counts.values()):
            raise ValueError(f"every layer needs the same tokens, but the numbers of rows are {counts}")
        if n == 0:
            return
        means = {layer: states.mean(0) for layer, states in rows.items()}
        before = self._means or {layer: torch.zeros_like(mean) for layer, mean in means.items()}
        finite = torch.stack([mean.isfinite().all() for mean in means.values()]).tolist()
        for (layer, mean), is_finite in zip(means.items(), finite, strict=True):
            if not is_finite:
                raise ValueError(f"{layer[0]} layer {layer[1]} is not finite; run the model in a wider dtype")
            if mean.shape != before[layer].shape:
                raise ValueError(f"{layer[0]} layer {layer[1]} has width {len(mean)}, but {len(before[layer])} so far")
            rows[layer] = rows[layer] - mean
        total = self.n + n
        shift = {layer: mean - before[layer] for layer, mean in means.items()}
        for left, right in self._products:  # one at a time: all pairs' products may be gigabytes
            added = (rows[left].T @ rows[right]).addr_(shift[left], shift[right], alpha=self.n * n / total)
            self._scatter[left, right] = self._scatter[left, right].add_(added) if self.n else added
        self._means = {layer: before[layer] + shift[layer] * (n / total) for layer in self._layers}
        self.n = total

    def of(self, pair: LayerPair) -> PairStatistics:
        """Return the statistics of one layer pair; a ValueError of fewer than two rows."""
        if not isinstance(pair, tuple) or pair not in self.pairs:
            raise ValueError(f"pair={shown(pair)} is not one of the layer pairs {shown(self.pairs)}")
        if self.n < 2:
            raise ValueError(f"a map needs the states of two tokens, not {self.n}: call update first")
        x, y = ("source", pair[0]), ("target", pair[1])
        xx, xy = self._scatter[x, x], self._scatter[x, y]
        yy = self._scatter[y, y] if (y, y) in self._scatter else xy.new_zeros(xy.shape[1], xy.shape[1])
        if not all(products.isfinite().all() for products in (xx, xy, yy)):
            raise ValueError(f"sources or targets of {pair} are too large for float64: divide them by a large number")
        return PairStatistics(self.n, self._means[x], self._means[y], xx, yy, xy)


# ---- ridge regressions, whose penalty is chosen by cross-validation over documents


class Basis(NamedTuple):
    """The eigenvectors of Σ (x - x̄)(x - x̄)', among which ridge regressions of anything on x are diagonal."""

    values: Float[Tensor, " r"]
    vectors: Float[Tensor, "d r"]
    others: Any = None  # (r, r), V' Σ x x' V over the other part's rows, in the unit of all

    @classmethod
    def of(cls, products: Float[Tensor, "d d"], rows: int | None = None) -> Basis:
        values, vectors = torch.linalg.eigh(products)
        kept = slice(-min(rows or len(values), len(values)), None)  # the products of few rows have no further rank
        return cls(values[kept].clamp(min=0), vectors[:, kept])

    @property
    def unit(self) -> Float[Tensor, ""]:
        """The mean variance, times the number of rows."""
        return (self.values.sum() / len(self.vectors)).clamp(min=torch.finfo(self.values.dtype).tiny)


def gained(
    values: Float[Tensor, " d"],
    penalties: Float[Tensor, " p"],
    fitted: Float[Tensor, "d e"],
    across: Float[Tensor, "d e"],
    products: Float[Tensor, "d d"],
) -> Float[Tensor, " p"]:
    """Return Σ ‖y‖² - Σ ‖y - W x‖² over rows that W was not fitted on, for the W of each penalty.

    Args:
        values: The eigenvalues of Σ x x' over the rows to fit on. All else is in the basis V of its eigenvectors.
        fitted: V' Σ x y' over the rows to fit on.
        across, products: V' Σ x y' and V' Σ x x' V over the other rows.
    """
    shrunk = 1 / (values + penalties[:, None])
    linear, quadratic = (fitted * across).sum(1), (fitted @ fitted.T) * products
    return 2 * shrunk @ linear - ((shrunk @ quadratic) * shrunk).sum(1)


def chosen(gains: Float[Tensor, "k p"], penalties: Float[Tensor, " p"]) -> Float[Tensor, ""]:
    """Return the penalty that predicts k parts of the documents best, or ∞, which gives the map 0.

    That is so where the best predicts better than the mean by less than `SURE` standard errors over the parts.
    """
    best = gains.sum(0).argmax(keepdim=True)
    own = gains.index_select(1, best)[:, 0]
    return torch.where(own.mean() > SURE * own.std() / len(own) ** 0.5, penalties.index_select(0, best)[0], math.inf)


def bases_of(parts: Sequence[PairStatistics]) -> list[Basis]:
    """Return the basis of x in all rows, and those of each part, with the other's products."""
    every = [reduce(PairStatistics.joined, parts), *(parts if len(parts) > 1 else ())]
    whole, *apart = (Basis.of(each.xx, each.n) for each in every)
    found = [whole]
    for basis, own, other in zip(apart, parts, reversed(parts), strict=False):
        x, vectors = other.mean_x - own.mean_x, basis.vectors
        products = torch.addr(other.xx, x, x, alpha=other.n) / whole.unit  # about the mean of the part's own
        found.append(basis._replace(others=vectors.T @ products @ vectors))
    return found


def penalty_of(parts: Sequence[PairStatistics], bases: Sequence[Basis]) -> Float[Tensor, ""]:
    """Return the λ of `PENALTIES` with which maps of each half of the documents predict the other best.

    As λ stands beside a sum over rows, it is right for the map of all rows, too. It is ∞ where none is `chosen`.
    """
    unit, every, found = bases[0].unit, PENALTIES.to(bases[0].values), []
    for own, other, basis in zip(parts, reversed(parts), bases[1:], strict=True):
        x, y = basis.vectors.T @ (other.mean_x - own.mean_x), other.mean_y - own.mean_y
        across = (basis.vectors.T @ other.xy).addr_(x, y, alpha=other.n)
        found.append((basis, basis.vectors.T @ own.xy, across))
    ends = [end for _, *both in found for each in both if each.numel() for end in each.aminmax()]  # of no direction 0
    size = torch.stack([*ends, torch.zeros_like(unit)]).abs().max()  # in units of which none overflows
    gains = [gained(e.values / unit, every, own.div_(size), across.div_(size), e.others) for e, own, across in found]
    return unit * chosen(torch.stack(gains), every)


class HalvedMoments:
    """`Moments` of the halves of the documents, from which a ridge is chosen; see `halves_of`."""

    def __init__(self, pairs: Iterable[LayerPair], both: bool = True):
        different_pairs = _layer_pairs(pairs)
        self.halves = [Moments(different_pairs, both), Moments(different_pairs, both)]
        self.pairs = self.halves[0].pairs

    def update(self, sources: LayerStates, targets: LayerStates, halves: Int[Tensor, " n"]) -> None:
        """Add rows, see `Moments.update`; `halves` says which half each is of, by a number's remainder."""
        for number, half in enumerate(self.halves):
            rows = (halves % len(self.halves) == number).nonzero()[:, 0]
            half.update(*(_rows(side, rows) for side in (sources, targets)))

    def of(self, pair: LayerPair) -> PairStatistics:
        """Return the statistics of all rows."""
        return reduce(PairStatistics.joined, self.parts(pair))

    def parts(self, pair: LayerPair) -> list[PairStatistics]:
        """Return the statistics of each half."""
        if any(half.n < 2 for half in self.halves):
            raise ValueError("each half of the documents to fit on needs two rows, or give a ridge")
        return [half.of(pair) for half in self.halves]

    def penalty(self, pair: LayerPair, bias: bool = True) -> float:
        """Return the λ of a map with or without a constant."""
        parts = [_about_zero(each) if not bias else each for each in self.parts(pair)]
        return float(penalty_of(parts, bases_of(parts)))


def halves_of(documents: Int[Tensor, " n"]) -> Int[Tensor, " n"]:
    """Return the half, 0 or 1, of each row: of whole documents, or, where one has most rows, of rows in order."""
    n = len(documents)
    halves = stimulus_folds(n, 2, groups=documents) if len(documents.unique()) > 1 else torch.zeros(n).long()
    is_even = n / 4 <= int(halves.sum()) <= 3 * n / 4
    return (halves if is_even else torch.arange(n) * 2 // max(n, 1)).to(documents.device)


def _rows(side: LayerStates, rows: Int[Tensor, " k"]) -> LayerStates:
    """Return these rows of the states of each layer."""
    if isinstance(side, Mapping):
        return {layer: states[rows.to(states.device)] for layer, states in side.items()}
    return [states[rows.to(states.device)] for states in side]


@dataclass(frozen=True, eq=False)
class AffineMap:
    """The map x ↦ W x + b for states of any dtype, on any device."""

    weight: Float[Tensor, "e d"]
    bias: Float[Tensor, " e"]

    def __call__(self, states: Float[Tensor, "*b d"]) -> Float[Tensor, "*b e"]:
        """Return W x + b in the dtype of the states, computed in the wider of both, as b may cancel large means."""
        wide = torch.promote_types(states.dtype, self.weight.dtype)
        weight, bias = self.weight.to(states.device, wide), self.bias.to(states.device, wide)
        return torch.nn.functional.linear(states.to(wide), weight, bias).to(states.dtype)

    def __matmul__(self, first: AffineMap) -> AffineMap:
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


def least_squares(
    moments: Moments | HalvedMoments, pair: LayerPair, ridge: Ridge = 0.0, bias: bool = True
) -> AffineMap:
    """Return the W, b with least Σᵢ ‖yᵢ - W xᵢ - b‖² + ridge ‖W‖²: W = Y'X (X'X + ridge I)⁺ on centred rows.

    The penalty stands beside a sum over rows, as in scikit-learn, and spares b. At ridge=0 and a singular X'X (n <= d,
    or a LayerNorm's states) W is the one of least norm: directions below `CUTOFF` of the largest variance get none.
    Without `bias` there is no b, and large means cost digits. A ValueError says that the ridge is not a number >= 0.
    If it is None, it is chosen by cross-validation over the documents of `HalvedMoments`.
    """
    return least_squares_of(_statistics(moments, pair, bias), _ridge(moments, pair, ridge, bias))


def _ridge(moments: Any, pair: LayerPair, ridge: float | None, bias: bool) -> float:
    if ridge is None and not isinstance(moments, HalvedMoments):
        raise ValueError("ridge=None is chosen over halves of the documents: give HalvedMoments, or a number")
    return moments.penalty(pair, bias) if ridge is None else ridge


def least_squares_of(statistics: PairStatistics, ridge: float = 0.0) -> AffineMap:
    return _through_means(statistics, _solve(statistics, ridge))


def reduced_rank(
    moments: Moments | HalvedMoments, pair: LayerPair, rank: Count, ridge: Ridge = 0.0, bias: bool = True
) -> AffineMap:
    """Return the best W of at most this rank for the sum that `least_squares` minimises, with b.

    W = U U' W₁ with W₁ of full rank and U the top eigenvectors of W₁ (X'X + ridge I) W₁' = W₁ X'Y, the products of the
    fitted values (Izenman 1975; with ridge Mukherjee & Zhu 2011). A ValueError says that the rank is not in
    1..min(d, e).
    """
    statistics = _statistics(moments, pair, bias)
    most = min(statistics.xy.shape)
    if not 1 <= rank <= most:
        raise ValueError(f"rank={rank} is not in 1..{most}, the smaller of the two widths")
    weight = _solve(statistics, _ridge(moments, pair, ridge, bias))
    fitted = weight @ statistics.xy
    top = torch.linalg.eigh((fitted + fitted.T) / 2).eigenvectors[:, -rank:]
    return _through_means(statistics, top @ (top.T @ weight))


def procrustes(moments: Moments | HalvedMoments, pair: LayerPair, bias: bool = True) -> AffineMap:
    """Return the isometry Q, Q'Q = I, with least Σᵢ ‖yᵢ - μᵧ - Q (xᵢ - μₓ)‖², and its b.

    Q = U V' for Y'X = U S V', and b = μᵧ - Q μₓ. Reflections are allowed (Schönemann 1966). Into a wider target
    (e > d) Q has orthonormal columns; a narrower one is a ValueError. Where Y'X is singular Q is one of several
    minimisers. Without `bias` the means are taken as 0.
    """
    statistics = _statistics(moments, pair, bias)
    d, e = statistics.xy.shape
    if e < d:
        raise ValueError(f"no isometry goes from width {d} to {e}: fit the other direction, or use reduced_rank")
    u, _, vh = torch.linalg.svd(statistics.xy.T, full_matrices=False)
    return _through_means(statistics, u @ vh)


def bias_only(moments: Moments | HalvedMoments, pair: LayerPair) -> AffineMap:
    """Return the best shift x + μᵧ - μₓ between equal widths, with W = I."""
    statistics = moments.of(pair)
    return _through_means(statistics, torch.eye(len(statistics.mean_x)).to(statistics.xx))


def _statistics(moments: Moments | HalvedMoments, pair: LayerPair, bias: bool) -> PairStatistics:
    """Return the statistics of a layer pair, about the means, or about 0 for a map without b."""
    return moments.of(pair) if bias else _about_zero(moments.of(pair))


def _about_zero(found: PairStatistics) -> PairStatistics:
    x, y = found.mean_x, found.mean_y
    xx, xy = (torch.addr(product, x, mean, alpha=found.n) for product, mean in ((found.xx, x), (found.xy, y)))
    return found._replace(mean_x=torch.zeros_like(x), mean_y=torch.zeros_like(y), xx=xx, xy=xy)


def _through_means(statistics: PairStatistics, weight: Float[Tensor, "e d"]) -> AffineMap:
    return AffineMap(weight, statistics.mean_y - weight @ statistics.mean_x)


def _solve(statistics: PairStatistics, ridge: float) -> Float[Tensor, "e d"]:
    if not ridge >= 0:
        raise ValueError(f"ridge={ridge} is not a number >= 0")
    values, vectors = torch.linalg.eigh(statistics.xx)
    shifted = values.clamp(min=0) + ridge
    inverse = torch.where(shifted > CUTOFF * shifted[-1] + statistics.noise, 1 / shifted, 0)
    return (statistics.xy.T @ vectors * inverse) @ vectors.T
