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

# Of the features that `features_of_inner_tokens` returns, in its order.
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


def features_of_inner_tokens(
    rows: Int[Tensor, "b t"], text_of_token: Mapping[int, str], counts: Int[Tensor, " vocab"]
) -> Float[Tensor, "n f"]:
    """Return f = 8 features of each token, without the first and the last token of each row.

    The features are length, character class, whether the token begins a word, log frequency,
    position, the classes of the two tokens before it, and whether it occurred before in the row.

    Args:
        rows: Tokens, at least three in each row.
        text_of_token: The text of each token of the rows.
        counts: How often each token occurs in other text, by its id.
    """
    length, character_class, begins_word = _text_features(rows, text_of_token).unbind(-1)

    # The first token has no class before it: `roll` gives it that of the last token of the row.
    # That does no harm, as the first token is dropped below.
    previous_class = character_class.roll(1, 1)
    class_before_that = character_class.roll(2, 1)
    class_before_that[:, 1] = NO_TOKEN  # the second token has only one token before it
    is_same_token = rows[:, :, None] == rows[:, None]  # (b, t, t)
    is_repeated = is_same_token.tril(-1).any(-1)  # the same as any earlier token
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


def _text_features(
    rows: Int[Tensor, "b t"], text_of_token: Mapping[int, str]
) -> Float[Tensor, "b t 3"]:
    """Return the features of each token that its text alone decides, see `_features_of_text`."""
    distinct_tokens = rows.unique()  # sorted
    features_of_distinct = torch.tensor(
        [_features_of_text(text_of_token[token]) for token in distinct_tokens.tolist()],
        dtype=torch.float32,
    )
    index_of_token = torch.searchsorted(distinct_tokens, rows)
    return features_of_distinct[index_of_token]


def _features_of_text(text: str) -> tuple[int, int, bool]:
    """Return the length of a token, the index of its class, and whether it begins a word.

    The class is the first of `CHARACTER_CLASSES` (tests such as `str.isalpha`) that the text
    passes, without white space at its ends unless it is nothing else. A token that passes none,
    such as punctuation, has the index after the last class. A token that begins with white space
    begins a word.
    """
    stripped = text.strip() or text
    class_index = len(CHARACTER_CLASSES)
    for index, is_of_class in enumerate(CHARACTER_CLASSES):
        if is_of_class(stripped):
            class_index = index
            break
    return len(text), class_index, text[:1].isspace()


def profile_similarity(
    features: Float[Tensor, "n f"],
    source: Float[Tensor, "n d"],
    target: Float[Tensor, "n e"],
    seed: int,
) -> float:
    """Return how similarly two sets of states of the same tokens encode features of the tokens.

    An MLEM (metric-learning encoding model) gives the importance of each feature in each set of
    states, which is the profile of these states. The result is the weighted Kendall τ of the two
    profiles. It is 0 if a profile is constant, since τ is then undefined.

    Args:
        features: The features of n tokens, see `features_of_inner_tokens`.
        source: The source's states of these tokens.
        target: The target's states of these tokens.
        seed: The seed of the MLEM and of the permutations.
    """
    # `KINDS` says which features are numeric. "scaled": these differ by |a - b| / range.
    model = MLEM(kinds=KINDS, difference="scaled", seed=seed)
    with warnings.catch_warnings():
        # MLEM warns of features that are much the same, which would be repeated for every source.
        warnings.simplefilter("ignore")
        try:
            importance = feature_importance(
                model, features, [source, target], permutations=1, seed=seed
            )
            profiles = importance.profile().value  # (2, f): of the source, and of the target
            return float(weighted_tau(profiles[:1], profiles[1:]))
        except ValueError as error:
            is_constant_profile = "constant" in str(error)
            if not is_constant_profile:
                raise
            return 0.0
