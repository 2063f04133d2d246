"""Sources that know only the current token, or the current and the last one: means of a model's states.

The penalty of a stitch from them is that of the tokens alone, without any context.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from typing import ClassVar

import torch
from jaxtyping import Float, Int
from torch import Tensor

from thinkalike.evaluation.language import BATCH_TOKENS
from thinkalike.models.frozen import StateSource
from thinkalike.progress import counted

MOST_TOKENS = 2**18  # that means are taken over

Codes = Callable[[Tensor, int], Tensor]  # rows (b, t) and the size of the vocabulary to numbers (b, t)


def bigrams(rows: Int[Tensor, "b t"], vocabulary: int) -> Int[Tensor, "b t"]:
    """Return current token + vocabulary * last token; before the first of a row the last one counts as `vocabulary`."""
    last = torch.cat([torch.full_like(rows[:, :1], vocabulary), rows[:, :-1]], 1)
    return rows + vocabulary * last


_CONTEXTS: tuple[Codes, ...] = (lambda rows, _: torch.zeros_like(rows), lambda rows, _: rows)  # of all, of each token


class TokenMeans:
    """The mean state of each token after several blocks of a model, over at most 2^18 tokens of fit rows.

    Only the means of the tokens of `report`, the rows that `residuals` will be asked for, are in memory. A token that
    no fit row has gets the mean of all tokens.

    Args:
        fit: rows that the model reads now; another pass over text can give `update` its states instead.
    """

    contexts: ClassVar[tuple[Codes, ...]] = _CONTEXTS  # each stands in where the next was not seen

    def __init__(
        self, model: StateSource, layers: Sequence[int], fit: Int[Tensor, "rows t"], report: Int[Tensor, "some u"]
    ):
        self.layers = list(dict.fromkeys(layers))
        self.d_model, self.n_layers, self.vocabulary = model.d_model, model.n_layers, model.vocabulary
        self.device, self.dtype = model.device, model.dtype
        asked = report.long().cpu()
        self._tables = [_Means(codes(asked, self.vocabulary).unique(), len(self.layers)) for codes in self.contexts]
        self.read(model, fit)

    @torch.no_grad()
    def read(self, model: StateSource, fit: Int[Tensor, "rows t"]) -> None:
        """Add the states of the first 2^18 tokens of rows."""
        most, batch = (max(tokens // fit.shape[1], 1) for tokens in (MOST_TOKENS, BATCH_TOKENS))
        for part in counted(fit[:most].long().cpu().split(batch), "batch of token means"):
            if len(part):
                self.update(part, model.residuals(part, self.layers))

    def update(self, rows: Int[Tensor, "b t"], states: Sequence[Float[Tensor, "b t d"]]) -> None:
        """Add the states of rows, one tensor for each of `layers`."""
        flat = [state.flatten(0, 1).float().cpu() for state in states]
        for codes, table in zip(self.contexts, self._tables, strict=True):
            table.update(codes(rows.long().cpu(), self.vocabulary).flatten(), flat)

    def residuals(self, rows: Int[Tensor, "b t"], layers: Sequence[int]) -> list[Float[Tensor, "b t d"]]:
        """Return for each token the mean state of that token at each of these layers."""
        tokens, found = rows.long().cpu(), []
        for layer in layers:
            state = torch.zeros(rows.numel(), self.d_model)
            for codes, table in zip(self.contexts, self._tables, strict=False):
                state = table.of(codes(tokens, self.vocabulary).flatten(), self.layers.index(layer), state)
            found.append(state.view(*rows.shape, -1).to(self.device, self.dtype))
        return found


class BigramMeans(TokenMeans):
    """The mean state of each pair of the last token and the current one; see `bigrams` for the first of a row.

    A pair that no fit row has gets the mean of its current token.
    """

    contexts: ClassVar[tuple[Codes, ...]] = (*_CONTEXTS, bigrams)

    @property
    def tokens(self) -> BigramMeans:
        """`TokenMeans` of the same pass."""
        view = copy(self)
        view._tables = self._tables[:2]
        return view


class _Means:
    """Running means of states by code, for the codes of a sorted list."""

    def __init__(self, codes: Int[Tensor, " c"], layers: int):
        self._codes, self._counts = codes, torch.zeros(len(codes))
        self._means: list[Tensor] = [torch.empty(0)] * layers

    def _places(self, codes: Int[Tensor, " n"]) -> Int[Tensor, " n"]:
        """Return where each code is in the list, -1 where it is not."""
        places = torch.searchsorted(self._codes, codes).clamp(max=len(self._codes) - 1)
        return torch.where(self._codes[places] == codes, places, -1)

    def update(self, codes: Int[Tensor, " n"], states: Sequence[Float[Tensor, "n d"]]) -> None:
        """Add states: the mean of n₁ + n₂ of them is m + Σ(x - m) / (n₁ + n₂), with m that of the first n₁."""
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

    def of(self, codes: Int[Tensor, " n"], layer: int, otherwise: Float[Tensor, "n d"]) -> Float[Tensor, "n d"]:
        """Return the mean of each code, or `otherwise` where none of its states was seen."""
        places = self._places(codes)
        means, seen = self._means[layer][places.clamp(min=0)], self._counts[places.clamp(min=0)] > 0
        return torch.where((seen & (places >= 0))[:, None], means, otherwise.to(means))
