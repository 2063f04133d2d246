"""Feature profiles of states of tokens: an MLEM of features that any text has."""

from __future__ import annotations

import warnings
from collections.abc import Mapping

import torch
from jaxtyping import Float, Int
from torch import Tensor

from thinkalike.measures.distances.comparators import weighted_tau
from thinkalike.measures.mlem.encoding_model import MLEM
from thinkalike.measures.mlem.importance import feature_importance

# Of the features that `token_features` returns, in its order.
KINDS = [
    "numeric",  # length
    "nominal",  # class
    "nominal",  # whether it begins a word
    "numeric",  # log frequency
    "numeric",  # position
    "nominal",  # class of the previous token
    "nominal",  # class of the token before that
    "nominal",  # whether the token occurred before
]

# The class of a token is the first that holds. A token without any is punctuation.
CHARACTER_CLASSES = (str.isalpha, str.isdigit, str.isspace, str.isalnum)
NO_TOKEN = -1  # the class before the beginning of a row


def token_features(
    rows: Int[Tensor, "b t"], text_of_token: Mapping[int, str], counts: Int[Tensor, " vocab"]
) -> Float[Tensor, "n f"]:
    """Return the features of the tokens of rows, without the first and the last of each.

    They are length, class, whether it begins a word, log frequency, position, the classes of the
    last two tokens, and whether the token occurred before; see `KINDS`.

    Args:
        rows: Tokens, at least three in a row.
        text_of_token: The text of each token of the rows.
        counts: How often each token occurs in other text.
    """
    distinct = rows.unique()
    features_of_text = [_features_of_text(text_of_token[token]) for token in distinct.tolist()]
    index = torch.searchsorted(distinct, rows)
    of_token = torch.tensor(features_of_text, dtype=torch.float32)[index]  # (b, t, 3)
    length, character_class, begins_word = of_token.unbind(-1)

    previous_class = character_class.roll(1, 1)
    class_before_that = character_class.roll(2, 1)
    class_before_that[:, 1] = NO_TOKEN  # the second token has only one token before it
    is_repeated = (rows[:, :, None] == rows[:, None]).tril(-1).any(-1)
    position = torch.arange(rows.shape[1]).expand_as(rows)
    log_frequency = counts[rows].add(1).log()
    features = (
        length,
        character_class,
        begins_word,
        log_frequency,
        position,
        previous_class,
        class_before_that,
        is_repeated,
    )
    return torch.stack([feature[:, 1:-1].flatten().float() for feature in features], -1)


def _features_of_text(text: str) -> tuple[int, int, bool]:
    """Return the length of a token, the number of its class, and whether it begins a word."""
    stripped = text.strip() or text
    class_number = len(CHARACTER_CLASSES)
    for number, holds in enumerate(CHARACTER_CLASSES):
        if holds(stripped):
            class_number = number
            break
    return len(text), class_number, text[:1].isspace()


def profile_likeness(
    features: Float[Tensor, "n f"],
    source: Float[Tensor, "n d"],
    target: Float[Tensor, "n e"],
    seed: int,
) -> float:
    """Return the weighted Kendall τ of feature importance in two sets of states of some tokens.

    It is 0 where no feature explains anything of one of them.

    Args:
        features: The features of n tokens, see `token_features`.
        source: States of the same tokens.
        target: Other states of them.
        seed: The seed of the MLEM and of the permutations.
    """
    model = MLEM(kinds=KINDS, difference="scaled", seed=seed)
    with warnings.catch_warnings():
        # Which features are much the same is the same for every source.
        warnings.simplefilter("ignore")
        try:
            importance = feature_importance(
                model, features, [source, target], permutations=1, seed=seed
            )
            profiles = importance.profile().value
            return float(weighted_tau(profiles[:1], profiles[1:]))
        except ValueError as error:
            if "constant" not in str(error):
                raise
            return 0.0
