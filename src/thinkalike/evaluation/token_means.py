"""Sources that know no more than the current token, or the current and the last one: means of a model's states.

What a stitch from them reaches is what the tokens alone explain, without any context.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor

from thinkalike.errors import ModelError
from thinkalike.evaluation.language import BATCH_TOKENS
from thinkalike.models import FrozenModel

MOST_TOKENS = 2**18  # that means are taken over


class TokenMeans:
    """The mean state of each token, at several layers of a model, in one pass over fit rows.

    Means are kept only for the tokens of `report`, so that the report decides the memory and not the vocabulary. A
    token that no fit row has gets the mean of all tokens.

    Args:
        model: something with `residuals(rows, layers)`, and the attributes of a FrozenModel that are named below.
        fit: rows that means are taken over, the first 2^18 tokens of them.
        report: rows that `residuals` will be asked for; nothing but which tokens occur is read off them.

    Attributes:
        d_model, n_layers, device, dtype: the model's.
        layers: those that can be asked for.
    """

    def __init__(
        self,
        model: FrozenModel,
        layers: Sequence[int],
        fit: Int[Tensor, "rows t"],
        report: Int[Tensor, "some t"],
    ):
        self._describe(model, layers)
        self._means = _Means(self.codes(report).unique(), len(self.layers))
        self._all = _Means(torch.zeros(1, dtype=torch.long), len(self.layers))
        self._gather(model, fit)

    def _describe(self, model: FrozenModel, layers: Sequence[int]) -> None:
        self.layers = list(dict.fromkeys(layers))
        self.d_model, self.n_layers, self.vocabulary = model.d_model, model.n_layers, model.vocabulary
        self.device, self.dtype = model.device, model.dtype

    @torch.no_grad()
    def _gather(self, model: FrozenModel, fit: Int[Tensor, "rows t"]) -> None:
        context = fit.shape[1]
        for part in fit[: max(MOST_TOKENS // context, 1)].long().split(max(BATCH_TOKENS // context, 1)):
            self._update(part, [state.flatten(0, 1).float().cpu() for state in model.residuals(part, self.layers)])

    def _update(self, rows: Int[Tensor, "b t"], states: Sequence[Float[Tensor, "n d"]]) -> None:
        self._means.update(self.codes(rows).flatten(), states)
        self._all.update(torch.zeros(rows.numel(), dtype=torch.long), states)

    def codes(self, rows: Int[Tensor, "b t"]) -> Int[Tensor, "b t"]:
        """Return what tells the tokens of rows apart here: the tokens themselves."""
        return rows.long().cpu()

    def residuals(self, rows: Int[Tensor, "b t"], layers: Sequence[int]) -> list[Float[Tensor, "b t d"]]:
        """Return for each token the mean state of that token at each of these layers.

        Raises:
            ModelError: means of a layer were not taken.
        """
        if unknown := [layer for layer in layers if layer not in self.layers]:
            raise ModelError(f"means of layer {unknown[0]} were not taken; there are those of {self.layers}")
        found = self._look_up(rows, [self.layers.index(layer) for layer in layers])
        return [state.view(*rows.shape, -1).to(self.device, self.dtype) for state in found]

    def _look_up(self, rows: Int[Tensor, "b t"], places: Sequence[int]) -> list[Float[Tensor, "n d"]]:
        codes = TokenMeans.codes(self, rows).flatten()
        backing = [self._all.of(torch.zeros_like(codes), place, None) for place in places]
        return [self._means.of(codes, place, back) for place, back in zip(places, backing, strict=True)]


class BigramMeans(TokenMeans):
    """The mean state of each pair of the last token and the current one; the first of a row is a pair of its own kind.

    A pair that no fit row has gets the mean of its current token, as `tokens` has it, and that of a token that none has
    the mean of all.

    Attributes:
        tokens: the means of tokens of the same pass.
    """

    def __init__(
        self,
        model: FrozenModel,
        layers: Sequence[int],
        fit: Int[Tensor, "rows t"],
        report: Int[Tensor, "some t"],
    ):
        self._describe(model, layers)
        self._means = _Means(self.codes(report).unique(), len(self.layers))
        self.tokens = TokenMeans(model, layers, fit[:0], report)
        self._gather(model, fit)

    def _update(self, rows: Int[Tensor, "b t"], states: Sequence[Float[Tensor, "n d"]]) -> None:
        self._means.update(self.codes(rows).flatten(), states)
        self.tokens._update(rows, states)

    def codes(self, rows: Int[Tensor, "b t"]) -> Int[Tensor, "b t"]:
        """Return a number for each pair of a token and the one before it in its row."""
        return bigrams(rows.long().cpu(), self.vocabulary)

    def _look_up(self, rows: Int[Tensor, "b t"], places: Sequence[int]) -> list[Float[Tensor, "n d"]]:
        codes, backing = self.codes(rows).flatten(), self.tokens._look_up(rows, places)
        return [self._means.of(codes, place, back) for place, back in zip(places, backing, strict=True)]


def bigrams(rows: Int[Tensor, "b t"], vocabulary: int) -> Int[Tensor, "b t"]:
    """Return current token + vocabulary * last token; before the first of a row the last one counts as `vocabulary`."""
    last = torch.cat([torch.full_like(rows[:, :1], vocabulary), rows[:, :-1]], 1)
    return rows + vocabulary * last


class _Means:
    """Running means of states by code, for the codes of a sorted list alone."""

    def __init__(self, codes: Int[Tensor, " c"], layers: int):
        self._codes, self._counts = codes, torch.zeros(len(codes))
        self._means: list[Tensor] = [torch.empty(0)] * layers

    def _places(self, codes: Int[Tensor, " n"]) -> Int[Tensor, " n"]:
        """Return where each code is in the list, -1 where it is not."""
        places = torch.searchsorted(self._codes, codes).clamp(max=len(self._codes) - 1)
        return torch.where(self._codes[places] == codes, places, -1)

    def update(self, codes: Int[Tensor, " n"], states: Sequence[Float[Tensor, "n d"]]) -> None:
        """Add states: the mean of n₁ + n₂ states is m + Σ(x - m) / (n₁ + n₂), m the mean of the first n₁."""
        places = self._places(codes)
        kept = places >= 0
        present, inverse, counts = places[kept].unique(return_inverse=True, return_counts=True)
        self._counts[present] += counts
        for layer, state in enumerate(states):
            if not len(self._means[layer]):
                self._means[layer] = state.new_zeros(len(self._codes), state.shape[1])
            means = self._means[layer][present]
            departures = torch.zeros_like(means).index_add_(0, inverse, state[kept] - means[inverse])
            self._means[layer][present] = means + departures / self._counts[present, None].to(means)

    def of(self, codes: Int[Tensor, " n"], layer: int, otherwise: Float[Tensor, "n d"] | None) -> Float[Tensor, "n d"]:
        """Return the mean of each code, or what stands for it where no state of it was seen."""
        places = self._places(codes)
        means = self._means[layer][places.clamp(min=0)]
        if otherwise is None:
            return means
        seen = (places >= 0) & (self._counts[places.clamp(min=0)] > 0)
        return torch.where(seen[:, None], means, otherwise)
