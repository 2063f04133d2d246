"""The MLEM profile of a source: how much of its distances each feature of a token and of its place explains."""

from __future__ import annotations

import warnings
from collections.abc import Mapping

import torch
from jaxtyping import Float, Int
from torch import Tensor

from thinkalike.measures import MLEM, feature_importance, weighted_tau

KINDS = {  # of each feature
    "length": "numeric",
    "class": "nominal",
    "begins a word": "nominal",
    "frequency": "numeric",
    "place": "numeric",
    "class of the last token": "nominal",
    "class of the one before": "nominal",
    "seen before": "nominal",
}
CLASSES = (str.isalpha, str.isdigit, str.isspace, str.isalnum)  # the first that holds; none of them: punctuation


def token_features(
    rows: Int[Tensor, "b t"], words: Mapping[int, str], counts: Int[Tensor, " vocab"]
) -> Float[Tensor, "n f"]:
    """Return the features `KINDS` of the tokens of rows, but of the first and the last of each.

    Args:
        words: The text of each token.
        counts: How often each token occurs in other text.
    """
    known = rows.unique()
    place = torch.searchsorted(known, rows)
    texts = [words[token] for token in known.tolist()]
    seen = torch.tensor([_seen(text) for text in texts], dtype=torch.float32)[place]
    length, sort, begins = seen.unbind(-1)
    earlier = (rows[:, :, None] == rows[:, None]).tril(-1).any(-1)
    before, two_before = (sort.roll(steps, 1) for steps in (1, 2))
    two_before[:, 1] = -1  # there is none
    places = torch.arange(rows.shape[1]).expand_as(rows)
    features = (length, sort, begins, counts[rows].add(1).log(), places, before, two_before, earlier)
    return torch.stack([each[:, 1:-1].flatten().float() for each in features], -1)


def _seen(text: str) -> tuple[int, int, bool]:
    """Return the length of a token, the number of its class, and whether it begins a word."""
    bare = text.strip() or text
    return len(text), next((n for n, holds in enumerate(CLASSES) if holds(bare)), len(CLASSES)), text[:1].isspace()


def profile_likeness(
    features: Float[Tensor, "n f"], source: Float[Tensor, "n d"], target: Float[Tensor, "n e"], seed: int
) -> float:
    """Return the weighted Kendall τ of the importance of features in two sets of states of the same tokens.

    It is 0 where no feature explains anything of one of them.
    """
    model = MLEM(kinds=list(KINDS.values()), difference="scaled", seed=seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # which features are much the same is the same for every source
        try:
            profiles = feature_importance(model, features, [source, target], permutations=1, seed=seed).profile().value
            return float(weighted_tau(profiles[:1], profiles[1:]))
        except ValueError as error:
            if "constant" not in str(error):
                raise
            return 0.0
