"""Sources that know only tokens: the mean state of each token, or of each pair of tokens.

`TokenMeans` knows the current token, `BigramMeans` the current and the previous one. The penalty
of a stitch from them is that of the tokens alone, without further context.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from typing import ClassVar

import torch
from jaxtyping import Float, Int
from torch import Tensor

from thinkalike.evaluation.batch_sizes import tokens_per_batch
from thinkalike.processes import counted
from thinkalike.states.source import StateSource

MOST_TOKENS = 2**18
"""Means are taken over at most so many tokens."""

ContextCode = Callable[[Tensor, int], Tensor]
"""Turns rows of tokens (b, t) and the size of the vocabulary into codes of contexts (b, t)."""


def bigrams(rows: Int[Tensor, "b t"], vocabulary: int) -> Int[Tensor, "b t"]:
    """Return a code for each token and the one before it: token + vocabulary * previous token.

    The first token of a row has no previous one, and the number `vocabulary` in its place.

    Args:
        rows: The token ids of rows of text.
        vocabulary: How many token ids there are.
    """
    no_token = torch.full_like(rows[:, :1], vocabulary)
    previous = torch.cat([no_token, rows[:, :-1]], 1)
    return rows + vocabulary * previous


def _no_context(rows: Int[Tensor, "b t"], _: int) -> Int[Tensor, "b t"]:
    """Return one code for all tokens."""
    return torch.zeros_like(rows)


def _current_token(rows: Int[Tensor, "b t"], _: int) -> Int[Tensor, "b t"]:
    """Return the tokens themselves as codes."""
    return rows


class _RunningMeans:
    """Running means of states by code.

    Args:
        codes: The codes whose means are kept, sorted.
        layers: How many layers have means.
    """

    def __init__(self, codes: Int[Tensor, " c"], layers: int):
        """Begin with no states; means of a layer get their width with its first states."""
        self._codes = codes
        self._counts = torch.zeros(len(codes))
        self._means: list[Tensor] = [torch.empty(0)] * layers  # (c, d) once there are states

    def _indices(self, codes: Int[Tensor, " n"]) -> Int[Tensor, " n"]:
        """Return the index of each code among the codes that have means; -1 for other codes."""
        indices = torch.searchsorted(self._codes, codes).clamp(max=len(self._codes) - 1)
        return torch.where(self._codes[indices] == codes, indices, -1)

    def update(self, codes: Int[Tensor, " n"], states: Sequence[Float[Tensor, "n d"]]) -> None:
        """Add the states of n tokens to the running mean of their code, in each layer.

        If m is the mean of n₁ states, the mean with n₂ further states x is
        m + Σ(x - m) / (n₁ + n₂). Tokens whose code is not among those of this object are left out.

        Args:
            codes: The code of each token, such as its id.
            states: The states of the tokens in each layer.
        """
        indices = self._indices(codes)  # -1 for a code that is not among those of this object
        is_known = indices >= 0
        # The codes that occur among these tokens, as indices, and which of them each token has.
        occurring, which_code, token_counts = indices[is_known].unique(
            return_inverse=True, return_counts=True
        )
        self._counts[occurring] += token_counts
        for layer, states_of_layer in enumerate(states):
            if not len(self._means[layer]):  # the first states, which tell the width of the layer
                width = states_of_layer.shape[1]
                self._means[layer] = states_of_layer.new_zeros(len(self._codes), width)
            old_means = self._means[layer][occurring]  # m
            deviations = states_of_layer[is_known] - old_means[which_code]  # x - m
            sums = torch.zeros_like(old_means).index_add_(0, which_code, deviations)
            total_counts = self._counts[occurring, None].to(old_means)  # n₁ + n₂
            self._means[layer][occurring] = old_means + sums / total_counts

    def lookup(
        self, codes: Int[Tensor, " n"], layer: int, default: Float[Tensor, "n d"]
    ) -> Float[Tensor, "n d"]:
        """Return the mean state of n tokens' codes at a layer, or `default` for codes without one.

        Args:
            codes: The code of each token, such as the token's id or that of a pair of tokens.
            layer: The index of the layer among those that have means.
            default: For each token, what is returned if no state was averaged for its code.
        """
        indices = self._indices(codes)  # -1 for a code that is not among those of this object
        valid_indices = indices.clamp(min=0)  # what index 0 gives for them is not used
        has_mean = (self._counts[valid_indices] > 0) & (indices >= 0)
        means = self._means[layer][valid_indices]
        return torch.where(has_mean[:, None], means, default.to(means))


class TokenMeans:
    """The mean state of each token after several blocks of a model.

    It can take the place of a model: `residuals` returns means instead of states. A token without
    a mean gets the mean of all tokens. Only the means of tokens that occur in `evaluation_rows`
    are in memory.

    Args:
        model: The model whose states are averaged.
        layers: The blocks after which states are averaged.
        fitting_rows: Rows that the model reads now. `update` and `read` add more.
        evaluation_rows: The rows whose means `residuals` will be called for.
    """

    context_codes: ClassVar[tuple[ContextCode, ...]] = (_no_context, _current_token)
    """From the least to the most specific; the mean of one stands in for the next."""

    def __init__(
        self,
        model: StateSource,
        layers: Sequence[int],
        fitting_rows: Int[Tensor, "rows t"],
        evaluation_rows: Int[Tensor, "some u"],
    ):
        """Average the model's states in the fitting rows, by context.

        A context is the current token, in a subclass also the pair with the previous one; each
        function of `context_codes` gives tokens the codes of one sort of context. Means are kept
        only of the contexts that occur in the evaluation rows, of any number and length.
        """
        self.layers = list(dict.fromkeys(layers))
        # The object takes the place of a model, and has the same attributes.
        self.d_model = model.d_model
        self.n_layers = model.n_layers
        self.vocabulary = model.vocabulary
        self.device = model.device
        self.dtype = model.dtype

        token_ids = evaluation_rows.long().cpu()
        self._means = []
        for context_code in self.context_codes:
            codes = context_code(token_ids, self.vocabulary).unique()
            self._means.append(_RunningMeans(codes, len(self.layers)))
        self.read(model, fitting_rows)

    @torch.no_grad()
    def read(self, model: StateSource, fitting_rows: Int[Tensor, "rows t"]) -> None:
        """Run the model on rows, with a progress display, and add their states to the means.

        Args:
            model: The model whose states are averaged.
            fitting_rows: The token ids; only the first `MOST_TOKENS` tokens are read, or the first
                row if it is longer.
        """
        context = fitting_rows.shape[1]
        rows = fitting_rows[: max(MOST_TOKENS // context, 1)].long().cpu()
        batch_rows = max(tokens_per_batch(model.device) // context, 1)
        for batch in counted(rows.split(batch_rows), "batch of token means"):
            if len(batch):  # without any rows, `split` returns one empty batch
                self.update(batch, model.residuals(batch, self.layers))

    def update(self, rows: Int[Tensor, "b t"], states: Sequence[Float[Tensor, "b t d"]]) -> None:
        """Add states to the running means of their contexts.

        A context is what a mean is taken over: all tokens, the current token, and for bigram
        means the previous and the current token. A function for each of them gives every token
        the code of its context.

        Args:
            rows: The token ids.
            states: The states of these tokens after each block of `self.layers`, in this order.
        """
        token_ids = rows.long().cpu()
        flat_states = [state.flatten(0, 1).float().cpu() for state in states]
        for context_code, means in zip(self.context_codes, self._means, strict=True):
            codes = context_code(token_ids, self.vocabulary)
            means.update(codes.flatten(), flat_states)

    def residuals(
        self, rows: Int[Tensor, "b t"], layers: Sequence[int]
    ) -> list[Float[Tensor, "b t d"]]:
        """Return the mean state of each token at each of these layers, in place of its states.

        For bigram means it is the mean state of the token and the previous one, or that of the
        token if this pair did not occur. A token that did not occur has the mean of all tokens.

        Args:
            rows: The token ids. Means are kept only of tokens in the evaluation rows that the
                object was made for; other tokens count as not occurring.
            layers: Indices of blocks; only those after which states were averaged have means.
        """
        token_ids = rows.long().cpu()
        states = []
        for layer in layers:
            layer_index = self.layers.index(layer)
            mean_states = torch.zeros(rows.numel(), self.d_model)  # if no state was averaged
            # From the least to the most specific context (all tokens, the current token, a pair):
            # the mean of the former stands in where the latter has none. `strict=False`, because
            # bigram means restricted to `of_current_token` have fewer means than functions of
            # codes.
            for context_code, means in zip(self.context_codes, self._means, strict=False):
                codes = context_code(token_ids, self.vocabulary).flatten()
                mean_states = means.lookup(codes, layer_index, default=mean_states)
            states.append(mean_states.view(*rows.shape, -1).to(self.device, self.dtype))
        return states

    @property
    def of_current_token(self) -> TokenMeans:
        """A copy with the means by the current token, without those of pairs; memory is shared."""
        view = copy(self)
        # The contexts of a subclass, such as pairs of tokens, come after those of `TokenMeans`.
        view._means = self._means[: len(TokenMeans.context_codes)]
        return view


class BigramMeans(TokenMeans):
    """The mean state of each pair of the previous and the current token, see `bigrams`.

    A pair without a mean gets the mean of its current token.
    """

    context_codes: ClassVar[tuple[ContextCode, ...]] = (_no_context, _current_token, bigrams)
