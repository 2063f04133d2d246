"""Closed-form maps between the states of two models, from means and centred products gathered in one pass.

The products take d² numbers for each layer pair, whatever the number of tokens.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from thinkalike.measures.estimates import FEWEST_GROUPS, PARTS, Estimate, jackknife

LayerPair = tuple[int, int]  # layer of the source, layer of the target
ModelLayer = tuple[str, int]  # "source" or "target", and its layer
LayerStates = Sequence[Float[Tensor, "_ _"]] | Mapping[int, Float[Tensor, "_ _"]]
RIDGE = 1e-9  # of the mean variance of the states that predict: below what counts, and above float64's rounding
CUTOFF = 1e-12  # of the largest variance: a direction below it is float32 rounding, and gets no weight
ROUNDING = 1e-6  # of the largest singular value: below it a matrix that was ever in float32 holds rounding


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

    @property
    def of_source(self) -> PairStatistics:
        return PairStatistics(self.n, self.mean_x, self.mean_x, self.xx, self.xx, self.xx)


class Moments:
    """The count, means and centred products of the layer pairs (l, m), gathered batch by batch in float64.

    Products are kept about the running mean, so a large offset costs no digits: with δ the difference of two parts'
    means, S = S₁ + S₂ + δₓ δᵧ' n₁ n₂ / (n₁ + n₂) (Chan et al. 1979).
    """

    def __init__(self, pairs: Iterable[LayerPair]):
        self.pairs = list(dict.fromkeys(pairs))
        crossed = [(("source", l), ("target", m)) for l, m in self.pairs]  # noqa: E741
        self._layers: list[ModelLayer] = list(dict.fromkeys(layer for both in crossed for layer in both))
        self._products: list[tuple[ModelLayer, ModelLayer]] = [*((layer, layer) for layer in self._layers), *crossed]
        self.n = 0
        self._means: dict[ModelLayer, Tensor] = {}
        self._scatter: dict[tuple[ModelLayer, ModelLayer], Tensor] = {}

    @torch.no_grad()
    def update(self, sources: LayerStates, targets: LayerStates) -> None:
        """Add the states of the same n tokens in both models: `sources[l]` is (n, d_l), and `targets[m]` (n, e_m).

        All are on one device, where float64 copies exist meanwhile.

        Raises:
            ValueError: Layers differ in n, a width is not that so far, or a state is not finite; nothing is added.
        """
        sides = {"source": sources, "target": targets}
        rows = {layer: sides[layer[0]][layer[1]].double() for layer in self._layers}
        counts = {layer: len(states) for layer, states in rows.items()}
        n = counts[self._layers[0]]
        if any(count != n for count in counts.values()):
            raise ValueError(f"every layer needs the same tokens, but the numbers of rows are {counts}")
        if n == 0:
            return
        means = {layer: states.mean(0) for layer, states in rows.items()}
        before = self._means or {layer: torch.zeros_like(mean) for layer, mean in means.items()}
        for layer, mean in means.items():
            if not mean.isfinite().all():
                raise ValueError(f"{layer[0]} layer {layer[1]} is not finite; run the model in a wider dtype")
            if mean.shape != before[layer].shape:
                raise ValueError(f"{layer[0]} layer {layer[1]} has width {len(mean)}, but {len(before[layer])} so far")
            rows[layer] = rows[layer] - mean
        total = self.n + n
        shift = {layer: mean - before[layer] for layer, mean in means.items()}
        for left, right in self._products:  # one at a time: all pairs' products may be gigabytes
            scatter = rows[left].T @ rows[right]
            added = torch.addr(scatter, shift[left], shift[right], alpha=self.n * n / total)
            self._scatter[left, right] = self._scatter[left, right] + added if self.n else added
        self._means = {layer: before[layer] + shift[layer] * (n / total) for layer in self._layers}
        self.n = total

    def state_dict(self) -> dict[str, Any]:
        return {"n": self.n, "means": list(self._means.values()), "scatter": list(self._scatter.values())}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.n = state["n"]
        self._means = dict(zip(self._layers, state["means"], strict=False))  # empty before any rows
        self._scatter = dict(zip(self._products, state["scatter"], strict=False))

    def of(self, pair: LayerPair) -> PairStatistics:
        """Return the statistics of one layer pair; a ValueError of fewer than two rows."""
        if self.n < 2:
            raise ValueError(f"a map needs the states of two tokens, not {self.n}: call update first")
        x, y = ("source", pair[0]), ("target", pair[1])
        products = self._scatter[x, x], self._scatter[y, y], self._scatter[x, y]
        return PairStatistics(self.n, self._means[x], self._means[y], *products)

    def take(self, pair: LayerPair) -> PairStatistics:
        """Return `of` a pair, and forget the products across its layers, which leaves room for a map."""
        found = self.of(pair)
        del self._scatter[("source", pair[0]), ("target", pair[1])]
        return found


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


def least_squares(moments: Moments, pair: LayerPair, ridge: float = 0.0, bias: bool = True) -> AffineMap:
    """Return the W, b with least Σᵢ ‖yᵢ - W xᵢ - b‖² + ridge ‖W‖²: W = Y'X (X'X + ridge I)⁺ on centred rows.

    The penalty stands beside a sum over rows, as in scikit-learn, and spares b. At ridge=0 and a singular X'X (n <= d,
    or a LayerNorm's states) W is the one of least norm: directions below `CUTOFF` of the largest variance get none.
    Without `bias` there is no b, and large means cost digits. A ValueError says that the ridge is not a number >= 0.
    """
    return least_squares_of(_statistics(moments, pair, bias), ridge)


def least_squares_of(statistics: PairStatistics, ridge: float = 0.0) -> AffineMap:
    return _through_means(statistics, _solve(statistics, ridge))


def reduced_rank(moments: Moments, pair: LayerPair, rank: int, ridge: float = 0.0, bias: bool = True) -> AffineMap:
    """Return the best W of at most this rank for the sum that `least_squares` minimises, with b.

    W = U U' W₁ with W₁ of full rank and U the top eigenvectors of W₁ (X'X + ridge I) W₁' = W₁ X'Y, the products of the
    fitted values (Izenman 1975; with ridge Mukherjee & Zhu 2011). A ValueError says that the rank is not in
    1..min(d, e).
    """
    statistics = _statistics(moments, pair, bias)
    most = min(statistics.xy.shape)
    if not 1 <= rank <= most:
        raise ValueError(f"rank={rank} is not in 1..{most}, the smaller of the two widths")
    weight = _solve(statistics, ridge)
    fitted = weight @ statistics.xy
    top = torch.linalg.eigh((fitted + fitted.T) / 2).eigenvectors[:, -rank:]
    return _through_means(statistics, top @ (top.T @ weight))


def procrustes(moments: Moments, pair: LayerPair, bias: bool = True) -> AffineMap:
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


def bias_only(moments: Moments, pair: LayerPair) -> AffineMap:
    """Return the best shift x + μᵧ - μₓ between equal widths, with W = I."""
    statistics = moments.of(pair)
    return _through_means(statistics, torch.eye(len(statistics.mean_x)).to(statistics.xx))


def _statistics(moments: Moments, pair: LayerPair, bias: bool) -> PairStatistics:
    """Return the statistics of a layer pair, about the means, or about 0 for a map without b."""
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


# ---- maps in both directions, and the variance that they and their round trips leave unexplained


class PairMoments(Moments):
    """The moments of one pair of sites, from rows of x and y."""

    def __init__(self) -> None:
        super().__init__([(0, 0)])

    def update(self, x: Float[Tensor, "n d"], y: Float[Tensor, "n e"]) -> None:  # type: ignore[override]
        super().update([x], [y])

    @property
    def statistics(self) -> PairStatistics:
        return self.of((0, 0))


class Unexplained(NamedTuple):
    """Shares of variance that maps leave unexplained: Σ‖y - ŷ‖² / Σ‖y - ȳ‖², 0 for a perfect map, 1 for the mean.

    ȳ is the mean of the rows at hand, so a map that was fitted on other rows may exceed 1.
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
        """Return what both maps and their round trips leave unexplained of rows with these moments."""
        there = moments.statistics if isinstance(moments, PairMoments) else moments
        back = there.reversed
        return Unexplained(
            unexplained_by(self.phi, there),
            unexplained_by(self.psi, back),
            unexplained_by(self.psi @ self.phi, there.of_source),
            unexplained_by(self.phi @ self.psi, back.of_source),
        )


def both_directions(moments: PairMoments | PairStatistics, ridge: float = RIDGE) -> BothDirections:
    """Return φ: x → y and ψ: y → x, each by ridge regression with a bias, from `PairMoments`, or `Moments.of` a pair.

    φ minimises Σ‖yᵢ - W xᵢ - b‖² + λ‖W‖², with λ the ridge times the mean of the diagonal of Σ(x - x̄)(x - x̄)', so
    that a change of either side's scale changes nothing but that of W; ψ likewise with x and y exchanged. ψ is not the
    inverse of φ: what φ does not explain of y shrinks both, and the inverse would blow it up.
    """
    there = moments.statistics if isinstance(moments, PairMoments) else moments
    sides = there, there.reversed
    return BothDirections(*(least_squares_of(side, ridge * float(side.xx.diagonal().mean())) for side in sides))


def unexplained_by(fit: AffineMap, statistics: PairStatistics) -> float:
    """Return the share of the target's variance that a map leaves unexplained; a ValueError if there is no variance."""
    whole = statistics.yy.trace()
    if statistics.reversed.is_constant:
        raise ValueError("a side whose states do not vary has no variance to explain: leave this pair out")
    weight, offset = fit.weight.to(whole), statistics.mean_y - fit(statistics.mean_x)
    left = whole - 2 * (weight * statistics.xy.T).sum() + (weight @ statistics.xx * weight).sum()
    return float((left + statistics.n * offset.square().sum()) / whole)


# ---- canonical directions: how much of the directions of one side the other predicts on held-out rows

LEFT = 1e-6  # of a direction's variance; with less there is nothing left of it
SHARES = (0.9, 0.99)  # of all that is shared; how many directions carry as much is counted


class Directions(NamedTuple):
    """Canonical directions of x and y: (x - mean_x) @ source and (y - mean_y) @ target have unit covariance, (.., r).

    These pairs of linear functions are uncorrelated with all other pairs (Hotelling 1936). An invertible affine map of
    either side leaves the measures below as they are: the mean over directions is R²_CCA of Kornblith et al. (2019,
    table 1), but of rows that nothing was fitted on. `back` makes states of y of them, wherever y varies.
    """

    mean_x: Float[Tensor, " d"]
    mean_y: Float[Tensor, " e"]
    source: Float[Tensor, "d r"]
    target: Float[Tensor, "e r"]
    back: Float[Tensor, "r e"]
    correlations: Float[Tensor, " r"]
    ranks: tuple[int, int]  # in how many directions x and y vary


def canonical_directions(statistics: PairStatistics, x: Float[Tensor, "d a"], y: Float[Tensor, "e b"]) -> Directions:
    """Return the canonical directions of one layer pair among `whitening` ones of each side; r is the smaller rank."""
    of_y, across = (each / (statistics.n - 1) for each in (statistics.yy, statistics.xy))
    left, correlations, right = torch.linalg.svd(x.T @ across @ y, full_matrices=False)
    target = y @ right.T
    means, ranks = (statistics.mean_x, statistics.mean_y), (x.shape[1], y.shape[1])
    return Directions(*means, x @ left, target, target.T @ of_y, correlations.clamp(max=1), ranks)


def whitening(covariance: Float[Tensor, "d d"], least: float | None = None) -> Float[Tensor, "d r"]:
    """Return uncorrelated directions of variance 1, where it was above `least`, by default `CUTOFF` of the largest."""
    values, vectors = torch.linalg.eigh(covariance)
    kept = values > (CUTOFF * values[-1:].clamp(min=0) if least is None else least)
    return vectors[:, kept] / values[kept].sqrt()


class DirectionSums:
    """Sums over held-out rows for one layer pair; `output` is a root of the matrix by which errors change outputs."""

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
        whole_rows = {"error": error, "read": read}.items()
        found |= {name: belongs @ each.square().sum(1, keepdim=True) for name, each in whole_rows}
        self._sums = {name: self._sums.get(name, 0) + each for name, each in found.items()}

    def replicates(self, documents: int) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Return each measure, and the same without each part of the documents; none of fewer than `FEWEST_GROUPS`."""
        there = self._sums["rows"] > 0
        sums = {name: each[there] for name, each in self._sums.items() if name != "rows"}
        parts = int(there.sum()) if documents >= FEWEST_GROUPS else 0
        left = {name: (each.sum(0) - each)[:parts] for name, each in sums.items()}
        return self._measures({name: each.sum(0) for name, each in sums.items()}), self._measures(left)

    def compute(self, documents: int) -> dict[str, Estimate]:
        """Return each measure with an interval that leaves out a part of the documents at a time.

        `cca`, `cca_back`: the mean held-out R² of the target's directions from the source's states, and of the
        source's from the target's; `cca_least`, `cca_least_back`: the least over directions, 0 if one has no
        counterpart; `directions_90`, `directions_99`: how many directions carry that share of all that is shared;
        `r2_output`: R² with errors weighed by how much they change the target's output. All R² are at most 1.
        With fewer than `FEWEST_GROUPS` documents intervals are (-∞, ∞).
        """
        whole, left = self.replicates(documents)
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
    return torch.where(whole > 0, 1 - errors / whole.clamp(min=torch.finfo(whole.dtype).tiny), 0.0)


def _least(explained: Float[Tensor, "*b r"], rank: int) -> Float[Tensor, "*b"]:
    """Return the least R² of `rank` directions, of which those that are not there have 0."""
    if not rank:
        return explained.sum(-1)
    least = explained.amin(-1) if explained.shape[-1] else explained.sum(-1)
    return least if explained.shape[-1] == rank else least.clamp(max=0)
