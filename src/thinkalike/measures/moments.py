"""Means and centred products of the states of two models, gathered in one pass.

The products take d² numbers for each layer pair, whatever the number of tokens. The closed-form
maps of `thinkalike.measures.closed_forms` need nothing else.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from thinkalike.arguments import shown, takes_arrays

# The number of a layer of the source, and that of a layer of the target.
LayerPair = tuple[int, int]
# A layer of the source and one of the target, by the keys of their states: numbers of layers, or
# sites in a layer.
KeyPair = tuple[Hashable, Hashable]
# "source" or "target", and the key of a layer of that model.
ModelKey = tuple[str, Hashable]
LayerStates = Sequence[Float[Tensor, "_ _"]] | Mapping[Hashable, Float[Tensor, "_ _"]]

# A direction with less than this share of the largest variance is rounding of float32.
VARIANCE_ROUNDING = 1e-12


class PairStatistics(NamedTuple):
    """The statistics of one layer pair, all in float64.

    Attributes:
        n: The number of rows.
        mean_x, mean_y: The means of the source's and the target's states.
        xx, yy, xy: Sums over the rows of the products of states less their means.
    """

    n: int
    mean_x: Float[Tensor, " d"]
    mean_y: Float[Tensor, " e"]
    xx: Float[Tensor, "d d"]
    yy: Float[Tensor, "e e"]
    xy: Float[Tensor, "d e"]

    @property
    def noise(self) -> Float[Tensor, ""]:
        """The greatest trace of `xx` that rounding errors cause where source states are constant.

        It grows with the mean of the states, of which rounding errors are a share.
        """
        return self.n * (VARIANCE_ROUNDING * self.mean_x).square().sum()

    @property
    def is_constant(self) -> bool:
        """Whether the source's states are the same in all rows, except for rounding errors."""
        return bool(self.xx.trace() <= self.noise)

    @property
    def reversed(self) -> PairStatistics:
        """The statistics with source and target exchanged."""
        return PairStatistics(self.n, self.mean_y, self.mean_x, self.yy, self.xx, self.xy.T)

    def joined(self, other: PairStatistics) -> PairStatistics:
        """Return the statistics of the rows of both together, for the same layer pair.

        Centred products are S = S₁ + S₂ + δₓ δᵧ' n₁ n₂ / (n₁ + n₂), with δ the difference of the
        two means (Chan et al. 1979).

        Args:
            other: The statistics of other rows.
        """
        n = self.n + other.n
        share = other.n / n
        weight = self.n * other.n / n
        delta_x = other.mean_x - self.mean_x
        delta_y = other.mean_y - self.mean_y
        return PairStatistics(
            n=n,
            mean_x=self.mean_x + delta_x * share,
            mean_y=self.mean_y + delta_y * share,
            # addr_ adds weight · δₓ δᵧ'.
            xx=(self.xx + other.xx).addr_(delta_x, delta_x, alpha=weight),
            yy=(self.yy + other.yy).addr_(delta_y, delta_y, alpha=weight),
            xy=(self.xy + other.xy).addr_(delta_x, delta_y, alpha=weight),
        )

    def about_zero(self) -> PairStatistics:
        """Return statistics whose `xx` and `xy` are sums of products of uncentred states.

        A map without a constant b is fitted on these. The means are set to 0, and `yy` remains the
        sum of centred products.
        """
        # Σ x x' = Σ (x - x̄)(x - x̄)' + n x̄ x̄', and likewise for Σ x y'.
        return self._replace(
            mean_x=torch.zeros_like(self.mean_x),
            mean_y=torch.zeros_like(self.mean_y),
            xx=torch.addr(self.xx, self.mean_x, self.mean_x, alpha=self.n),
            xy=torch.addr(self.xy, self.mean_x, self.mean_y, alpha=self.n),
        )


def distinct_pairs(pairs: object) -> list[KeyPair]:
    """Return each pair of layers once, in the order in which they first occur.

    Args:
        pairs: Tuples (source layer, target layer), as a user gave them.

    Raises:
        ValueError: `pairs` is empty, or has something that is not a tuple of two.
    """
    try:
        distinct = list(dict.fromkeys(pairs))  # type: ignore[call-overload]
    except TypeError:
        distinct = []
    are_pairs = all(isinstance(pair, tuple) and len(pair) == 2 for pair in distinct)
    if not distinct or not are_pairs:
        raise ValueError(
            f"pairs={shown(pairs)} must be pairs of a source layer and a target layer, as [(0, 0)]"
        )
    return distinct


class Moments:
    """The count, means and centred products of layer pairs (l, m), gathered batch by batch.

    All are in float64. Products are kept about the running mean, so a large offset costs no
    digits; see `PairStatistics.joined` for the update.

    Args:
        pairs: The layer pairs.
        both: Whether maps of both directions are fitted. If not, the products of targets with
            themselves are not gathered and read as 0.
    """

    def __init__(self, pairs: Iterable[KeyPair], both: bool = True):
        """Begin sums of products of states, for fitting maps between layers of two models.

        Products are summed for the given pairs of a source layer and a target layer, for each
        source layer with itself, and, if maps from target to source are to be fitted as well
        (`both`), for each target layer with itself.
        """
        self.pairs = distinct_pairs(pairs)
        across = [(("source", source), ("target", target)) for source, target in self.pairs]
        layers = [layer for pair in across for layer in pair]
        self._layers: list[ModelKey] = list(dict.fromkeys(layers))
        with_themselves = []
        for layer in self._layers:
            model, _ = layer
            if both or model == "source":
                with_themselves.append((layer, layer))
        self._products: list[tuple[ModelKey, ModelKey]] = [*with_themselves, *across]
        self.n = 0  # rows so far
        self._means: dict[ModelKey, Tensor] = {}
        self._scatter: dict[tuple[ModelKey, ModelKey], Tensor] = {}  # centred products

    @takes_arrays
    @torch.no_grad()
    def update(self, sources: LayerStates, targets: LayerStates) -> None:
        """Add the states of the same n tokens in both models to the means and centred products.

        Args:
            sources: The states (n, d_l) of each source layer l.
            targets: The states (n, e_m) of each target layer m. All are on one device, where
                float64 copies exist meanwhile.

        Raises:
            ValueError: Layers differ in n, a width is not that so far, or a state is not finite.
                Nothing is added.
        """
        rows = self._rows(sources, targets)
        n = len(rows[self._layers[0]])
        if n == 0:
            return
        # The products of n rows, and of `self.n` earlier ones, are joined as in
        # `PairStatistics.joined`.
        means = {layer: states.mean(0) for layer, states in rows.items()}
        means_before = self._means
        if not means_before:
            means_before = {layer: torch.zeros_like(mean) for layer, mean in means.items()}
        _check_means(means, means_before)
        for layer, mean in means.items():
            rows[layer] = rows[layer] - mean

        total = self.n + n  # rows
        delta = {layer: mean - means_before[layer] for layer, mean in means.items()}
        for first, second in self._products:  # one by one: all pairs' products may be gigabytes
            added = rows[first].T @ rows[second]
            added.addr_(delta[first], delta[second], alpha=self.n * n / total)
            if self.n:
                self._scatter[first, second].add_(added)
            else:
                self._scatter[first, second] = added
        self._means = {
            layer: means_before[layer] + delta[layer] * (n / total) for layer in self._layers
        }
        self.n = total

    def _rows(self, sources: LayerStates, targets: LayerStates) -> dict[ModelKey, Tensor]:
        """Return the states of each layer of both models that maps are fitted for, in float64.

        Args:
            sources, targets: The states by layer, or in a list whose index is the layer.

        Returns:
            The states (n, d) by ("source" or "target", layer).

        Raises:
            ValueError: A layer is missing, or layers differ in their number of rows.
        """
        # `self._layers` has the layers of the pairs that this object was made for.
        sides = {"source": _by_key(sources), "target": _by_key(targets)}
        for side, layer in self._layers:
            if layer not in sides[side]:
                raise ValueError(
                    f"{side}s lacks layer {layer!r}, which is in pairs: give its states"
                )
        rows = {(side, layer): sides[side][layer].double() for side, layer in self._layers}
        counts = {layer: len(states) for layer, states in rows.items()}
        if len(set(counts.values())) > 1:
            raise ValueError(
                f"every layer needs the same tokens, but the numbers of rows are {counts}"
            )
        return rows

    def of(self, pair: KeyPair) -> PairStatistics:
        """Return the number of rows, the means and the centred products of one layer pair.

        The products of the target layer with itself are 0 if this object was made without them,
        for maps from source to target only.

        Raises:
            ValueError: There are fewer than two rows, the pair is unknown, or products overflow.
        """
        if not isinstance(pair, tuple) or pair not in self.pairs:
            raise ValueError(
                f"pair={shown(pair)} is not one of the layer pairs {shown(self.pairs)}"
            )
        if self.n < 2:
            raise ValueError(
                f"a map needs the states of two tokens, not {self.n}: call update first"
            )
        x = ("source", pair[0])
        y = ("target", pair[1])
        xx = self._scatter[x, x]
        xy = self._scatter[x, y]
        yy = self._scatter.get((y, y))
        if yy is None:
            yy = xy.new_zeros(xy.shape[1], xy.shape[1])
        if not all(products.isfinite().all() for products in (xx, xy, yy)):
            raise ValueError(
                f"sources or targets of {pair} are too large for float64: "
                "divide them by a large number"
            )
        return PairStatistics(self.n, self._means[x], self._means[y], xx, yy, xy)


def _by_key(states: LayerStates) -> Mapping[Hashable, Tensor]:
    """Return the states of each layer by its key, which for a list is the index."""
    if isinstance(states, Mapping):
        return states
    return dict(enumerate(states))


def _check_means(
    means: Mapping[ModelKey, Tensor], means_before: Mapping[ModelKey, Tensor]
) -> None:
    """Raise a ValueError if a state is not finite, or if a layer's width changed between batches.

    Means are enough to see this: one state with NaN or ∞ makes the mean NaN or ∞.

    Args:
        means: The mean state of each layer in a new batch.
        means_before: The mean state of each layer in all earlier batches.
    """
    # One copy from the device for all layers, as each copy makes the CPU wait for a GPU.
    are_finite = torch.stack([mean.isfinite().all() for mean in means.values()]).tolist()
    for ((side, layer), mean), is_finite in zip(means.items(), are_finite, strict=True):
        before = means_before[side, layer]
        if not is_finite:
            raise ValueError(f"{side} layer {layer} is not finite; run the model in a wider dtype")
        if mean.shape != before.shape:
            raise ValueError(
                f"{side} layer {layer} has width {len(mean)}, but {len(before)} so far"
            )
