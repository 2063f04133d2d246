"""Means and centred products of the states of two models, gathered in one pass over the tokens.

They take d² numbers for each layer pair, whatever the number of tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from thinkalike.arguments import takes_arrays

LayerPair = tuple[int, int]  # layer of the source, layer of the target
ModelLayer = tuple[str, int]  # "source" or "target", and its layer
LayerStates = Sequence[Float[Tensor, "_ _"]] | Mapping[int, Float[Tensor, "_ _"]]
RIDGE = 1e-9  # of the mean variance of the states that predict: below what counts, and above float64's rounding
CUTOFF = 1e-12  # a direction with less than this share of the largest variance is float32 rounding, and counts as none


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
    def reversed(self) -> PairStatistics:
        """The statistics of the same rows with source and target exchanged."""
        return PairStatistics(self.n, self.mean_y, self.mean_x, self.yy, self.xx, self.xy.T)

    @property
    def of_source(self) -> PairStatistics:
        """The statistics of the source with itself, for maps from its states to themselves."""
        return PairStatistics(self.n, self.mean_x, self.mean_x, self.xx, self.xx, self.xx)


class Moments:
    """The count, means and centred products of many layer pairs, gathered batch by batch in float64.

    Products are kept about the running mean, so a large offset costs no digits: with δ the difference of two parts'
    means, S = S₁ + S₂ + δₓ δᵧ' n₁ n₂ / (n₁ + n₂) (Chan et al. 1979). Any chunking gives the same up to rounding.
    The first update sets the widths. Moments can be pickled, so `all_gather_object` and `merge` add up processes.

    Args:
        pairs: The layer pairs (l, m) whose products are kept; a layer that none of them names is not looked at.

    Raises:
        ValueError: There are no layer pairs.
    """

    def __init__(self, pairs: Iterable[LayerPair]):
        self.pairs = list(dict.fromkeys(pairs))
        if not self.pairs:
            raise ValueError("no layer pairs: name at least one, such as pairs=[(0, 0)]")
        crossed = [(("source", l), ("target", m)) for l, m in self.pairs]  # noqa: E741
        self._layers: list[ModelLayer] = list(dict.fromkeys(layer for both in crossed for layer in both))
        self._products: list[tuple[ModelLayer, ModelLayer]] = [*((layer, layer) for layer in self._layers), *crossed]
        self.n = 0
        self._means: dict[ModelLayer, Tensor] = {}
        self._scatter: dict[tuple[ModelLayer, ModelLayer], Tensor] = {}

    @takes_arrays
    @torch.no_grad()
    def update(self, sources: LayerStates, targets: LayerStates) -> None:
        """Add the states of the same n tokens in both models, all on one device; float64 copies exist meanwhile.

        Args:
            sources: The source's states: `sources[l]` is (n, d_l), in a sequence or a mapping.
            targets: The target's states: `targets[m]` is (n, e_m).

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
        for layer, mean in means.items():
            if not mean.isfinite().all():
                raise ValueError(
                    f"states of {layer[0]} layer {layer[1]} are not finite; run the model in a wider dtype"
                )
            rows[layer] = rows[layer] - mean
        self._absorb(n, means, lambda left, right: rows[left].T @ rows[right])

    @torch.no_grad()
    def merge(self, other: Moments) -> None:
        """Add what another accumulator saw, as if its rows had come here; the other one stays as it is.

        Raises:
            ValueError: The other one has other layer pairs or widths.
        """
        if set(other.pairs) != set(self.pairs):
            raise ValueError(f"moments of different pairs cannot be merged: {self.pairs} here, {other.pairs} there")
        if other.n == 0:
            return
        device = (self if self.n else other)._means[self._layers[0]].device
        means = {layer: mean.to(device) for layer, mean in other._means.items()}
        self._absorb(other.n, means, lambda left, right: other._scatter[left, right].to(device))

    def state_dict(self) -> dict[str, Any]:
        """Return all that was gathered, to go on from."""
        return {"n": self.n, "means": list(self._means.values()), "scatter": list(self._scatter.values())}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over what the `state_dict` of moments of the same layer pairs holds."""
        self.n = state["n"]
        self._means = dict(zip(self._layers, state["means"], strict=False))  # there are none of no rows
        self._scatter = dict(zip(self._products, state["scatter"], strict=False))

    def _absorb(
        self, n: int, means: Mapping[ModelLayer, Tensor], scatter: Callable[[ModelLayer, ModelLayer], Tensor]
    ) -> None:
        before = self._means or {layer: torch.zeros_like(mean) for layer, mean in means.items()}
        for layer, mean in means.items():
            if mean.shape != before[layer].shape:
                raise ValueError(f"{layer[0]} layer {layer[1]} has width {len(mean)}, but {len(before[layer])} so far")
        total = self.n + n
        shift = {layer: mean - before[layer] for layer, mean in means.items()}
        for left, right in self._products:  # one at a time: all pairs' products may be gigabytes
            added = torch.addr(scatter(left, right), shift[left], shift[right], alpha=self.n * n / total)
            self._scatter[left, right] = self._scatter[left, right] + added if self.n else added
        self._means = {layer: before[layer] + shift[layer] * (n / total) for layer in self._layers}
        self.n = total

    def of(self, pair: LayerPair) -> PairStatistics:
        """Return the statistics of one layer pair.

        Raises:
            ValueError: The pair was not gathered, or fewer than two rows were.
        """
        if pair not in self.pairs:
            raise ValueError(f"pair {pair} was not gathered; there is: {', '.join(map(str, self.pairs))}")
        if self.n < 2:
            raise ValueError(f"a map needs the states of two tokens, not {self.n}: call update first")
        x, y = ("source", pair[0]), ("target", pair[1])
        products = self._scatter[x, x], self._scatter[y, y], self._scatter[x, y]
        return PairStatistics(self.n, self._means[x], self._means[y], *products)


class PairMoments:
    """The moments of one pair of sites, gathered from rows of x and y; see `Moments`, which gathers many pairs."""

    def __init__(self) -> None:
        self._moments = Moments([(0, 0)])

    def update(self, x: Float[Tensor, "n d"], y: Float[Tensor, "n e"]) -> None:
        """Add the states of the same n tokens at both sites; any chunking of the rows gives the same up to rounding.

        Raises:
            ValueError: The numbers of rows differ, a width is not that so far, or a state is not finite.
        """
        self._moments.update([x], [y])

    def merge(self, other: PairMoments) -> None:
        """Add what another accumulator saw, as if its rows had come here.

        Raises:
            ValueError: The other one has other widths.
        """
        self._moments.merge(other._moments)

    @property
    def n(self) -> int:
        """The number of rows so far."""
        return self._moments.n

    @property
    def statistics(self) -> PairStatistics:
        """Return what closed forms need of the rows so far.

        Raises:
            ValueError: There are fewer than two.
        """
        return self._moments.of((0, 0))
