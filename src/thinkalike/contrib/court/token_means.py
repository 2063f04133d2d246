"""Sources built from mean states: of a token, of the last tokens, or of a position."""

from __future__ import annotations

from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor

from thinkalike.contrib.court.materials import Materials
from thinkalike.contrib.court.random_codes import noise_for, prefix_codes
from thinkalike.contrib.court.source import Source, StateFunction, Tokens
from thinkalike.evaluation.token_means import BigramMeans, ContextCode, TokenMeans, bigrams
from thinkalike.measures.seeds import seeded
from thinkalike.measures.splitmix import splitmix


def mean_states_of_ngrams(
    materials: Materials, kind: type[TokenMeans], source: Source | None = None
) -> StateFunction:
    """Return a function of tokens: the mean state of each token (or n-gram) in other documents.

    Args:
        materials: The target model with its layer, the text, and a seed for each purpose.
        kind: `TokenMeans`, `BigramMeans` or `TrigramMeans`: which n-gram has a mean state.
        source: The source whose states are averaged; None: the target's own states.
    """
    # Means are kept only for n-grams that occur in one of the texts.
    all_rows = torch.cat([materials.fit_rows, materials.evaluation_rows, materials.other_rows])
    fitted = kind(source or materials.target_source, [0], materials.other_rows, all_rows)
    return lambda rows: fitted.residuals(rows, [0])[0]  # layer 0 is the only one


def trigrams(rows: Tokens, vocabulary: int) -> Tokens:
    """Return a distinct number for each trigram: the current token and the two before it.

    At the beginning of a row, the number `vocabulary` takes the place of missing tokens. The
    number of the trigram is that of its last two tokens plus its first token times the number of
    possible bigrams.
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


def code(materials: Materials, of: str) -> StateFunction:
    """Return a function of tokens: a random vector for the n-gram that ends at each position.

    Args:
        materials: The target model with its layer, the text, and a seed for each purpose.
        of: "token", "bigram" or "trigram".
    """

    def codes_of(rows: Tokens) -> Tokens:
        """Return the number of the n-gram at each position."""
        return NGRAM_CODES[of](rows, materials.target.vocabulary)

    return noise_for(materials, f"code of the {of}", codes_of)


def at_position(materials: Materials, token: float, noise: float = 0.0) -> StateFunction:
    """Return a function of tokens: the target's mean state at each position in other documents.

    Args:
        materials: The target model with its layer, the text, and a seed for each purpose.
        token: The weight of the token's own mean state. With 1, it is subtracted from the states
            before means of positions are computed, and added to these means in the result. With 0,
            the token does not matter.
        noise: The standard deviation of added normal noise, as a share of that of the states
            around these means.
    """
    token_mean = mean_states_of_ngrams(materials, TokenMeans)
    normal_noise = noise_for(materials, "at position")
    states = materials.target_states(materials.other_rows) - token * token_mean(
        materials.other_rows
    )
    position_mean = states.mean(0)  # (t, d)
    noise_size = noise * (states - position_mean).flatten(0, 1).std(0)

    def states_at(rows: Tokens) -> Float[Tensor, "b t d"]:
        """Return the mean at each position, plus noise."""
        mean = token * token_mean(rows) + position_mean[: rows.shape[1]]
        return mean + noise_size * normal_noise(rows)

    return states_at


def reweighted(materials: Materials, token: float, rest: float) -> StateFunction:
    """Return a function of tokens that reweights the target's states.

    It gives token · (mean state of the token) + rest · (target's state - this mean).

    Args:
        materials: The target model with its layer, the text, and a seed for each purpose.
        token: The weight of the mean state of the token.
        rest: The weight of the deviation from it.
    """
    token_mean = mean_states_of_ngrams(materials, TokenMeans)

    def states(rows: Tokens) -> Float[Tensor, "b t d"]:
        """Return the weighted sum at each position."""
        mean = token_mean(rows)
        return token * mean + rest * (materials.target_states(rows) - mean)

    return states


def with_means_of_other_tokens(materials: Materials) -> StateFunction:
    """Return a function of tokens: the target's states with the means of their tokens exchanged.

    The mean state of the token itself is subtracted, and that of a different token is added. Each
    token has a replacement, drawn at random among the tokens that have a mean. A token without a
    mean is its own replacement.
    """
    token_mean = mean_states_of_ngrams(materials, TokenMeans)
    generator = seeded(materials.seed_for("other tokens"))
    tokens = materials.other_rows.long().unique()
    shuffled_tokens = tokens[torch.randperm(len(tokens), generator=generator)]
    replacement_of = torch.arange(materials.target.vocabulary)
    # Each token is replaced by its neighbour in a random order.
    replacement_of[shuffled_tokens] = shuffled_tokens.roll(1)

    def states(rows: Tokens) -> Float[Tensor, "b t d"]:
        """Return (state - mean of its token) + mean of the replacement."""
        deviation = materials.target_states(rows) - token_mean(rows)
        return deviation + token_mean(replacement_of[rows.long().cpu()])

    return states


def gaussian(materials: Materials) -> StateFunction:
    """Return a function of tokens: noise with the mean and variance of the states of each token.

    The noise is normal, and dimensions are independent. The variance given the token is
    E[x²] - E[x]², where x is the state minus the mean of all states.
    """

    def squared_states(rows: Tokens) -> Float[Tensor, "b t d"]:
        """Return the squares of the centred states."""
        return materials.centred_states(rows).square()

    squares = Source("squares", "", squared_states, materials.target)
    first_moment = mean_states_of_ngrams(materials, TokenMeans)
    second_moment = mean_states_of_ngrams(materials, TokenMeans, squares)
    noise = noise_for(materials, "Gaussian given the token")

    def states(rows: Tokens) -> Float[Tensor, "b t d"]:
        """Return mean + standard deviation · noise, at each position."""
        mean = first_moment(rows)
        variance = second_moment(rows) - (mean - materials.mean).square()
        return mean + variance.clamp(min=0).sqrt() * noise(rows)

    return states


def other_context(materials: Materials) -> StateFunction:
    """Return a function of tokens: the target's state at the same token in another document.

    A hash of the tokens up to the current one decides which occurrence of the token is taken. A
    token that does not occur in the other documents gets the mean of all states.
    """
    seed = materials.seed_for("other context")
    mean = materials.mean
    tokens = materials.other_rows.long().flatten()
    states = materials.target_states(materials.other_rows).flatten(0, 1)
    # Sorted by token: the occurrences of a token are order[start : start + count].
    order = tokens.argsort(stable=True)
    counts = tokens.bincount(minlength=materials.target.vocabulary)
    starts = counts.cumsum(0) - counts

    def states_elsewhere(rows: Tokens) -> Float[Tensor, "b t d"]:
        """Return the state of another occurrence of each token, or the mean of all states."""
        rows = rows.long().cpu()
        occurrence = splitmix(prefix_codes(rows, seed)) % counts[rows].clamp(min=1)
        # The clamps only matter for tokens that do not occur, whose state is replaced below.
        state_index = order[(starts[rows] + occurrence).clamp(max=len(order) - 1)]
        occurs = (counts[rows] > 0)[..., None].to(states.device)
        return torch.where(occurs, states[state_index.to(states.device)], mean)

    return states_elsewhere


def mixture_with_other_context(materials: Materials, share: float) -> StateFunction:
    """Return a function of tokens that mixes the target's own state with one in another context.

    It gives mean + √share (own state - mean) + √(1 - share) (other state - mean). So this share of
    the variance comes from the target's own states, and the rest from states of the same token in
    another document.

    Args:
        materials: The target model with its layer, the text, and a seed for each purpose.
        share: From 0 (only the other context) to 1 (the target's own states).
    """
    elsewhere: Callable[[Tokens], Tensor] = other_context(materials)
    mean = materials.mean
    own_weight = share**0.5
    rest_weight = (1 - share) ** 0.5

    def states(rows: Tokens) -> Float[Tensor, "b t d"]:
        """Return the mixture at each position."""
        own_part = own_weight * (materials.target_states(rows) - mean)
        return mean + own_part + rest_weight * (elsewhere(rows) - mean)

    return states
