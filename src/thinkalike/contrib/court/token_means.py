"""Sources built from mean states: of a token, of the last tokens, or of a position."""

from __future__ import annotations

from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor

from thinkalike.contrib.court.materials import Materials
from thinkalike.contrib.court.random_codes import noise_for, prefix_codes
from thinkalike.contrib.court.source import Source, States, Tokens
from thinkalike.evaluation.token_means import BigramMeans, ContextCode, TokenMeans, bigrams
from thinkalike.measures.seeds import seeded
from thinkalike.measures.splitmix import splitmix


def means(materials: Materials, kind: type[TokenMeans], source: Source | None = None) -> States:
    """Return the mean state of each token, or of each n-gram, in other documents.

    Args:
        materials: The materials of a court.
        kind: What means are taken of: `TokenMeans`, `BigramMeans` or `TrigramMeans`.
        source: The source whose states are averaged; None: the target.
    """
    asked_for = torch.cat([materials.fit, materials.report, materials.other])
    fitted = kind(source or materials.target_source, [0], materials.other, asked_for)
    return lambda rows: fitted.residuals(rows, [0])[0]


def trigrams(rows: Tokens, vocabulary: int) -> Tokens:
    """Return a number for the current token and the last two before it, see `bigrams`.

    At the beginning of a row, where they are missing, `vocabulary` stands for them.
    """
    no_tokens = torch.full_like(rows[:, :2], vocabulary)
    two_before = torch.cat([no_tokens, rows[:, :-2]], 1)
    return bigrams(rows, vocabulary) + vocabulary * (vocabulary + 1) * two_before


class TrigramMeans(TokenMeans):
    """The mean state of each trigram, or of the bigram where no fit row has the trigram."""

    context_codes = (*BigramMeans.context_codes, trigrams)


NGRAM_CODES: dict[str, ContextCode] = {
    "token": lambda rows, _: rows,
    "bigram": bigrams,
    "trigram": trigrams,
}


def code(materials: Materials, of: str) -> States:
    """Return a random vector for each token, bigram or trigram that ends at the current token.

    Args:
        materials: The materials of a court.
        of: "token", "bigram" or "trigram".
    """

    def codes_of(rows: Tokens) -> Tokens:
        return NGRAM_CODES[of](rows, materials.target.vocabulary)

    return noise_for(materials, f"code of the {of}", codes_of)


def at_position(materials: Materials, token: float, noise: float = 0.0) -> States:
    """Return the mean of the target's states at each position in other documents.

    Args:
        materials: The materials of a court.
        token: With 1, the mean state of the token is subtracted first and added at the end; with 0
            the tokens do not count.
        noise: The size of added normal noise, as a share of the standard deviation of what the
            mean leaves.
    """
    token_mean = means(materials, TokenMeans)
    random = noise_for(materials, "at position")
    states = materials.target_states(materials.other) - token * token_mean(materials.other)
    position_mean = states.mean(0)  # (t, d)
    size = noise * (states - position_mean).flatten(0, 1).std(0)

    def states_at(rows: Tokens) -> Float[Tensor, "b t d"]:
        mean = token * token_mean(rows) + position_mean[: rows.shape[1]]
        return mean + size * random(rows)

    return states_at


def reweighted(materials: Materials, token: float, rest: float) -> States:
    """Return a weighted sum of the token's mean state and the target's departure from it.

    Args:
        materials: The materials of a court.
        token: The weight of the mean.
        rest: The weight of the departure.
    """
    token_mean = means(materials, TokenMeans)

    def states(rows: Tokens) -> Float[Tensor, "b t d"]:
        mean = token_mean(rows)
        return token * mean + rest * (materials.target_states(rows) - mean)

    return states


def with_means_of_other_tokens(materials: Materials) -> States:
    """Return the target's states with the mean of a different token in place of its own."""
    token_mean = means(materials, TokenMeans)
    generator = seeded(materials.seed_for("other tokens"))
    tokens = materials.other.long().unique()
    tokens = tokens[torch.randperm(len(tokens), generator=generator)]
    stand_in = torch.arange(materials.target.vocabulary)  # itself, for a token without a mean
    stand_in[tokens] = tokens.roll(1)

    def states(rows: Tokens) -> Float[Tensor, "b t d"]:
        departure = materials.target_states(rows) - token_mean(rows)
        return departure + token_mean(stand_in[rows.long().cpu()])

    return states


def gaussian(materials: Materials) -> States:
    """Return normal numbers with the mean and variance of each dimension given the token."""

    def squared_states(rows: Tokens) -> Float[Tensor, "b t d"]:
        return materials.centred_states(rows).square()

    squares = Source("squares", "", squared_states, materials.target)
    first_moment = means(materials, TokenMeans)
    second_moment = means(materials, TokenMeans, squares)
    noise = noise_for(materials, "Gaussian given the token")

    def states(rows: Tokens) -> Float[Tensor, "b t d"]:
        mean = first_moment(rows)
        variance = second_moment(rows) - (mean - materials.mean).square()
        return mean + variance.clamp(min=0).sqrt() * noise(rows)

    return states


def other_context(materials: Materials) -> States:
    """Return the target's state at the same token in another document.

    The tokens up to the current one decide which occurrence it is. A token that no other document
    has gets the mean of all states.
    """
    seed = materials.seed_for("other context")
    mean = materials.mean
    tokens = materials.other.long().flatten()
    states = materials.target_states(materials.other).flatten(0, 1)
    # Occurrences of a token stand together in this order, from its start.
    order = tokens.argsort(stable=True)
    counts = tokens.bincount(minlength=materials.target.vocabulary)
    starts = counts.cumsum(0) - counts

    def states_elsewhere(rows: Tokens) -> Float[Tensor, "b t d"]:
        rows = rows.long().cpu()
        occurrence = splitmix(prefix_codes(rows, seed)) % counts[rows].clamp(min=1)
        position = order[(starts[rows] + occurrence).clamp(max=len(order) - 1)]
        occurs = (counts[rows] > 0)[..., None].to(states.device)
        return torch.where(occurs, states[position.to(states.device)], mean)

    return states_elsewhere


def mixture_with_other_context(materials: Materials, share: float) -> States:
    """Return states with this share of their variance from the target's own states.

    The rest of the variance is that of the same token in another context.

    Args:
        materials: The materials of a court.
        share: From 0, all from the other context, to 1, the target's own states.
    """
    elsewhere: Callable[[Tokens], Tensor] = other_context(materials)
    mean = materials.mean
    own_weight = share**0.5
    rest_weight = (1 - share) ** 0.5

    def states(rows: Tokens) -> Float[Tensor, "b t d"]:
        own_part = own_weight * (materials.target_states(rows) - mean)
        return mean + own_part + rest_weight * (elsewhere(rows) - mean)

    return states
