"""Sources that know the current token, or the last two, and nothing of the rest of the context."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor

from thinkalike.court.noise import mixed, normals, prefixes
from thinkalike.court.source import Setting, States
from thinkalike.evaluation import BigramMeans, TokenMeans, bigrams


def token_means(setting: Setting) -> States:
    """Return the mean of the target's states at each token, in other documents."""
    asked = torch.cat([setting.fit, setting.report])
    means = TokenMeans(setting.itself, [0], setting.other, asked)
    return lambda rows: means.residuals(rows, [0])[0]


def bigram_means(setting: Setting) -> States:
    """Return the mean of the target's states at each pair of tokens, in other documents."""
    asked = torch.cat([setting.fit, setting.report])
    means = BigramMeans(setting.itself, [0], setting.other, asked)
    return lambda rows: means.residuals(rows, [0])[0]


def token_code(setting: Setting) -> States:
    """Return a random vector for each token."""
    seed, itself = setting.number("code of the token"), setting.itself
    return lambda rows: normals(rows, itself.d_model, seed).to(itself.device, itself.dtype)


def bigram_code(setting: Setting) -> States:
    """Return a random vector for each pair of the last token and the current one."""
    seed, itself = setting.number("code of the bigram"), setting.itself
    return lambda rows: normals(bigrams(rows, itself.vocabulary), itself.d_model, seed).to(itself.device, itself.dtype)


def other_context(setting: Setting) -> States:
    """Return the target's state at the same token in another document, which the tokens up to there choose."""
    occurrences, seed = Occurrences(setting), setting.number("other context")
    return lambda rows: occurrences.at(rows, seed)


def gaussian(setting: Setting) -> States:
    """Return normal numbers with mean and variance that each dimension of the target's states has at the token."""
    asked = torch.cat([setting.fit, setting.report])
    means = TokenMeans(setting.itself, [0], setting.other, asked)
    squares = TokenMeans(_Squares(setting), [0], setting.other, asked)
    seed = setting.number("Gaussian given the token")

    def states(rows: Tensor) -> Tensor:
        mean, square = means.residuals(rows, [0])[0], squares.residuals(rows, [0])[0]
        variance = (square - (mean - setting.mean).square()).clamp(min=0)
        return mean + variance.sqrt() * normals(prefixes(rows), mean.shape[-1], seed).to(mean)

    return states


def mixture(setting: Setting, share: float) -> States:
    """Return states with this share of their variance from the target's own, the rest from the same token elsewhere."""
    occurrences, seed = Occurrences(setting), setting.number("other context")
    mean, weights = setting.mean, (share**0.5, (1 - share) ** 0.5)

    def states(rows: Tensor) -> Tensor:
        return mean + weights[0] * (setting.own(rows) - mean) + weights[1] * (occurrences.at(rows, seed) - mean)

    return states


class Occurrences:
    """The target's states at all places of the other documents where each token occurs."""

    def __init__(self, setting: Setting):
        tokens = setting.other.long().flatten()
        self._order = tokens.argsort(stable=True)
        self._counts = tokens.bincount(minlength=setting.target.vocabulary)
        self._starts = self._counts.cumsum(0) - self._counts
        self._states, self._mean = setting.own(setting.other).flatten(0, 1), setting.mean

    def places(self, rows: Int[Tensor, "b t"], seed: int) -> Int[Tensor, "b t"]:
        """Return for each token the number of one of its occurrences, chosen by the tokens up to there; -1: none."""
        rows = rows.long().cpu()
        counts = self._counts[rows]
        chosen = self._starts[rows] + mixed(prefixes(rows, seed)) % counts.clamp(min=1)
        return torch.where(counts > 0, self._order[chosen.clamp(max=len(self._order) - 1)], -1)

    def at(self, rows: Int[Tensor, "b t"], seed: int) -> Float[Tensor, "b t d"]:
        """Return the states there; a token that has none gets the mean of all."""
        places = self.places(rows, seed).to(self._states.device)
        return torch.where((places >= 0)[..., None], self._states[places], self._mean)


class _Squares:
    """The squares of the target's states about their mean over all tokens, which `TokenMeans` takes the means of."""

    def __init__(self, setting: Setting):
        self.setting, own = setting, setting.itself
        self.d_model, self.n_layers, self.vocabulary = own.d_model, own.n_layers, own.vocabulary
        self.device, self.dtype = own.device, own.dtype

    def residuals(self, rows: Tensor, layers: Sequence[int]) -> list[Tensor]:
        return [(self.setting.own(rows) - self.setting.mean).square()] * len(layers)
