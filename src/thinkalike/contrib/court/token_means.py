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
    """Return a function of tokens: the mean state of the n-gram that ends at each position.

    Means are over `materials.other_rows`, documents on which no map is fitted or evaluated.

    Args:
        materials: The target model with its layer, the text, and a seed for each purpose.
        kind: Which n-grams have a mean: single tokens (`TokenMeans`), pairs (`BigramMeans`) or
            triples (`TrigramMeans`).
        source: The source whose states are averaged; None: the target's own states.
    """
    # Means are kept only for n-grams that occur in one of the texts.
    all_rows = torch.cat([materials.fit_rows, materials.evaluation_rows, materials.other_rows])
    only_layer = [0]  # of a source
    means = kind(
        source or materials.target_source,
        layers=only_layer,
        fitting_rows=materials.other_rows,
        evaluation_rows=all_rows,
    )
    # `TokenMeans` takes the place of a model: `residuals` are its states, which are the means.
    return lambda rows: means.residuals(rows, only_layer)[0]


def trigrams(rows: Tokens, vocabulary: int) -> Tokens:
    """Return at each position a distinct number for its trigram: the token and the two before it.

    At the beginning of a row, the number `vocabulary` takes the place of missing tokens. The
    number of a trigram is that of its last two tokens plus (number of possible bigrams) · (first
    token).
    """
    no_tokens = torch.full_like(rows[:, :2], vocabulary)
    two_before = torch.cat([no_tokens, rows[:, :-2]], 1)
    n_bigrams = vocabulary * (vocabulary + 1)  # the first token of a bigram may be missing
    return bigrams(rows, vocabulary) + n_bigrams * two_before


class TrigramMeans(TokenMeans):
    """The mean state of each trigram, or of the bigram where no fit row has the trigram."""

    context_codes = (*BigramMeans.context_codes, trigrams)


NGRAM_CODES: dict[str, ContextCode] = {
    "token": lambda rows, _: rows,
    "bigram": bigrams,
    "trigram": trigrams,
}


def random_vector_of_ngram(materials: Materials, ngram: str) -> StateFunction:
    """Return a function of tokens: a random vector for the n-gram that ends at each position.

    Args:
        materials: The target model with its layer, the text, and a seed for each purpose.
        ngram: "token", "bigram" or "trigram".
    """

    def ngram_numbers(rows: Tokens) -> Tokens:
        """Return the number of the n-gram at each position."""
        return NGRAM_CODES[ngram](rows, materials.target.vocabulary)

    return noise_for(materials, f"code of the {ngram}", ngram_numbers)


def position_means(
    materials: Materials, token_weight: float, noise_share: float = 0.0
) -> StateFunction:
    """Return a function of tokens: the target's mean state at each position, in other documents.

    It gives w · (mean state of the token) + mean over rows of (state - w · mean state of the
    token) at the position + noise, where w is `token_weight`.

    Args:
        materials: The target model with its layer, the text, and a seed for each purpose.
        token_weight: With 0, the state depends on the position only; with 1, it is the sum of
            what token and position predict.
        noise_share: The standard deviation of added normal noise, as a share of that of the states
            around their prediction.
    """
    token_mean = mean_states_of_ngrams(materials, TokenMeans)
    unit_noise = noise_for(materials, "at position")
    rows_to_learn = materials.other_rows
    deviations = materials.target_states(rows_to_learn) - token_weight * token_mean(rows_to_learn)
    position_mean = deviations.mean(0)  # (t, d)
    residuals = deviations - position_mean
    noise_size = noise_share * residuals.flatten(0, 1).std(0)

    def states(rows: Tokens) -> Float[Tensor, "b t d"]:
        """Return the prediction from token and position, plus noise."""
        prediction = token_weight * token_mean(rows) + position_mean[: rows.shape[1]]
        return prediction + noise_size * unit_noise(rows)

    return states


def reweighted(materials: Materials, token_weight: float, rest_weight: float) -> StateFunction:
    """Return a function of tokens that reweights two parts of the target's states.

    It gives token_weight · (mean state of the token) + rest_weight · (state - this mean). The mean
    is over documents on which no map is fitted or evaluated.
    """
    token_mean = mean_states_of_ngrams(materials, TokenMeans)

    def states(rows: Tokens) -> Float[Tensor, "b t d"]:
        """Return the weighted sum at each position."""
        mean = token_mean(rows)
        return token_weight * mean + rest_weight * (materials.target_states(rows) - mean)

    return states


def with_means_of_other_tokens(materials: Materials) -> StateFunction:
    """Return a function of tokens: the target's states with the means of their tokens exchanged.

    The mean state of the token itself is subtracted, and that of a different token is added. Each
    token has a replacement, drawn at random among the tokens that have a mean: those that occur in
    the training text of sources (`other_rows`), which is other text than that of the comparison. A
    token without a mean is its own replacement.
    """
    # A function from rows of tokens to the mean state of each token
    token_mean = mean_states_of_ngrams(materials, TokenMeans)
    generator = seeded(materials.seed_for("other tokens"))
    tokens_with_mean = materials.other_rows.long().unique()
    order = torch.randperm(len(tokens_with_mean), generator=generator)
    shuffled_tokens = tokens_with_mean[order]
    # Each token is replaced by the one before it in the random order, and so by a different one.
    replacement_of = torch.arange(materials.target.vocabulary)
    replacement_of[shuffled_tokens] = shuffled_tokens.roll(1)

    def states(rows: Tokens) -> Float[Tensor, "b t d"]:
        """Return (state - mean of its token) + mean of the replacement."""
        deviation = materials.target_states(rows) - token_mean(rows)
        return deviation + token_mean(replacement_of[rows.long().cpu()])

    return states


def gaussian(materials: Materials) -> StateFunction:
    """Return a function of tokens: noise with the mean and variance of the states of each token.

    The noise is normal, and dimensions are independent. The variance given the token is
    E[x²] - E[x]², where x is the target's state minus the mean of all states, so that E[x] is the
    token's mean minus that of all states.

    Args:
        materials: The target and its states, with `mean`, that of all its states.
    """

    def squared_states(rows: Tokens) -> Float[Tensor, "b t d"]:
        """Return x², the squares of the centred states."""
        return materials.centred_states(rows).square()

    # A source, as means are taken over the states of a source. It stands in no table.
    squares = Source("squares", kind="", states=squared_states, target=materials.target)
    token_mean = mean_states_of_ngrams(materials, TokenMeans)
    token_mean_of_squares = mean_states_of_ngrams(materials, TokenMeans, squares)
    unit_noise = noise_for(materials, "Gaussian given the token")

    def states(rows: Tokens) -> Float[Tensor, "b t d"]:
        """Return mean + standard deviation · noise, at each position."""
        mean = token_mean(rows)
        variance = token_mean_of_squares(rows) - (mean - materials.mean).square()
        # Rounding can make a variance of 0 slightly negative.
        return mean + variance.clamp(min=0).sqrt() * unit_noise(rows)

    return states


def other_context(materials: Materials) -> StateFunction:
    """Return a function of tokens: the target's state at the same token in another document.

    The other documents are `materials.other_rows`. A hash of the tokens up to the current one
    decides which occurrence of the token is taken. A token that does not occur in the other
    documents gets the mean of all states.
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

    It gives mean + √share (own state - mean) + √(1 - share) (other state - mean). So a share of
    `share` of the variance comes from the target's own states, and the rest from its states at the
    same token in another document.

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
