"""What the tokens alone say of a model's states: mean states by token, and what tokens leave unexplained.

`TokenMeans` and `BigramMeans` are sources that know only the current token, or the current and the last one. The
penalty of a stitch from them is that of the tokens alone, without any context.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from typing import ClassVar

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import pad

from thinkalike.errors import DataError
from thinkalike.evaluation.language import BATCH_TOKENS
from thinkalike.measures.rows import FEWEST, RowGroups
from thinkalike.models.families import EMBED
from thinkalike.models.frozen import FrozenModel, StateSource
from thinkalike.progress import counted

COMPONENTS = 64  # of the embedding, by which a bag of tokens is described
LAGS = (1, 2, 3, 4, 5, 6)  # of the tokens before that are taken one by one
DECAYS = (0.5, 0.7, 0.85, 0.95)  # of running means of the tokens before, beside the mean of all
ROWS_PER_COVARIATE = 8  # at least
RIDGE = 1e-6  # of the covariates' mean variance
MOST_TOKENS = 2**18  # that means are taken over

Codes = Callable[[Tensor, int], Tensor]  # rows (b, t) and the size of the vocabulary to numbers (b, t)


def bigrams(rows: Int[Tensor, "b t"], vocabulary: int) -> Int[Tensor, "b t"]:
    """Return current token + vocabulary * last token; before the first of a row the last one counts as `vocabulary`."""
    last = torch.cat([torch.full_like(rows[:, :1], vocabulary), rows[:, :-1]], 1)
    return rows + vocabulary * last


_CONTEXTS: tuple[Codes, ...] = (lambda rows, _: torch.zeros_like(rows), lambda rows, _: rows)  # of all, of each token


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


def _running(codes: Float[Tensor, "b t k"], decay: float | None) -> Float[Tensor, "b t k"]:
    """Return Σ decay^(s-1) code at s places before, over all s, as a weighted mean; None: the mean of all."""
    found, total = torch.zeros_like(codes), torch.zeros_like(codes[:, 0])
    for place in range(1, codes.shape[1]):
        total = codes[:, place - 1] + (total if decay is None else decay * total)
        found[:, place] = total / place if decay is None else total * (1 - decay)
    return found


class TokensBefore:
    """Describes the tokens before each token by what a bag of them could say: linear functions of their embeddings.

    Each token is its embedding's leading principal components, weighed by how often tokens occur in `rows`; the tokens
    before are those of the last places one by one, running means of several decays, and the mean of all, also times
    the root of their number.
    """

    def __init__(self, target: FrozenModel, rows: Int[Tensor, "b t"]):
        self.target = target
        known, counts = rows.long().unique(return_counts=True)
        states, weights = self._embedded(known), (counts / counts.sum()).double()
        self.mean = weights @ states
        apart = (states - self.mean) * weights[:, None].sqrt()
        self.components = torch.linalg.eigh(apart.T @ apart).eigenvectors[:, -COMPONENTS:].flip(1)

    def _embedded(self, tokens: Int[Tensor, " n"]) -> Float[Tensor, "n d"]:
        parts = tokens[:, None].split(BATCH_TOKENS)
        return torch.cat([self.target.residuals(part, [EMBED])[0][:, 0] for part in parts]).cpu().double()

    def __call__(self, rows: Int[Tensor, "b t"]) -> Float[Tensor, "b t c"]:
        """Return the covariates of each place; they are 0 where there is no token before."""
        known, places = rows.long().unique(return_inverse=True)
        codes = ((self._embedded(known) - self.mean) @ self.components).float()[places]
        lagged = [pad(codes, (0, 0, lag, 0))[:, : rows.shape[1]] for lag in LAGS]
        mean = _running(codes, None)
        root = torch.arange(rows.shape[1]).sqrt()[:, None] * mean
        return torch.cat([*lagged, *(_running(codes, decay) for decay in DECAYS), mean, root], -1)


class Beyond:
    """Takes out of states what tokens explain: the residuals of least squares within one batch.

    Args:
        tokens, positions: Of each row of the batch; rows of a token that stands there less than 4 times are left out.
        before: See `TokensBefore`.
    """

    def __init__(self, tokens: Int[Tensor, " n"], positions: Int[Tensor, " n"], before: Float[Tensor, "n c"]):
        try:
            self.groups = RowGroups.of(tokens, FEWEST)
        except ValueError as error:
            needed = f"{FEWEST} rows of one token, and a batch of {len(tokens)} has none"
            remedy = "raise data.report_tokens, and data.fit_tokens where it is set"
            raise DataError(f"likeness beyond the tokens needs {needed}: {remedy}") from error
        self.order, self.positions = self.groups.order, positions
        kept = before[:, : len(self.order) // ROWS_PER_COVARIATE]
        self.before = self.groups.without_means(kept, positions, torch.float32)
        gram = (self.before.T @ self.before).double()
        gram.diagonal().add_(RIDGE * gram.diagonal().mean() + torch.finfo(gram.dtype).tiny)
        self.factor = torch.linalg.cholesky(gram)

    def of(self, states: Float[Tensor, "n d"]) -> Float[Tensor, "kept d"]:
        """Return what is left of states, in the order of `order`."""
        rows = self.groups.without_means(states, self.positions)
        weight = torch.cholesky_solve((self.before.T @ rows.float()).double(), self.factor)
        return rows - (self.before @ weight.float()).double()
