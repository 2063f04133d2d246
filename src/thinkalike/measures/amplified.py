"""What the difference between two language models says: tokens that rise, and amplified text.

Both read the log-probabilities p of a base and q of a changed copy of it, over one vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from thinkalike.measures.changes import false_discovery_rates, two_sided
from thinkalike.measures.estimates import SCORE_ROUNDING

PLAUSIBLE_NATS = 6.0
"""A token may be chosen if the changed model makes it at most so many nats less likely than its
most likely token. Differences between the log-probabilities of tokens that neither model expects
are large and mean nothing."""


class ShiftSum:
    """Sums how far the log-probability of each token of the vocabulary rises, over batches.

    Attributes:
        count: How many predictions were added.
        rises: At how many of them the log-probability of each token rises.
        shift: The sum of log q - log p of each token.

    Args:
        vocabulary: How many tokens the vocabulary has.
    """

    def __init__(self, vocabulary: int) -> None:
        self.count = 0
        self.rises: Float[Tensor, " v"] = torch.zeros(vocabulary)
        self.shift: Float[Tensor, " v"] = torch.zeros(vocabulary)

    def add(self, base: Float[Tensor, "n v"], changed: Float[Tensor, "n v"]) -> None:
        """Add how often, and by how much, each token of the vocabulary is likelier after a change.

        Both models predict what follows each of n tokens of text. Summed over these predictions,
        for each of the v tokens of the vocabulary, are log q - log p and how often it is above 0.

        Args:
            base: The log-probabilities log p of the base model.
            changed: The log-probabilities log q of the changed model.
        """
        shift = changed - base
        self.count += len(shift)
        self.rises += (shift > 0).sum(0).cpu()
        self.shift += shift.sum(0).cpu()

    def mean(self) -> Float[Tensor, " v"]:
        """Return the mean shift of each token, Σ (log q - log p) / n, in nats."""
        return self.shift / self.count

    def share(self) -> Float[Tensor, " v"]:
        """Return the share of predictions at which the log-probability rises, in [0, 1]."""
        return self.rises / self.count


class ShiftTests(NamedTuple):
    """Tests of how far the log-probability of each of v tokens moved.

    Attributes:
        beyond: The shift beyond that of the median token and the mean of the null's runs, in nats.
        p: The two-sided p-value.
        q: The false discovery rate of the p-value.
    """

    beyond: Float[Tensor, " v"]
    p: Float[Tensor, " v"]
    q: Float[Tensor, " v"]


def shift_tests(shift: Float[Tensor, " v"], nulls: Sequence[Float[Tensor, "r v"]]) -> ShiftTests:
    """Test how far the log-probability of each token moved, against random changes of the model.

    The shift of a token is the mean of log q - log p over some text, with p the probabilities of
    the model before and q those after the change. As probabilities add up to 1, a few tokens that
    rise lower all others, so the shift of the median token is subtracted first.

    A shift is compared with the same of r ≥ 2 randomly changed models, the runs of a null, by
    t = (shift - mean of the runs) / (s √(1 + 1/r)), with r - 1 degrees of freedom. s is the
    standard deviation of the token's runs, or the median of these over all tokens if that is
    larger. If there are several nulls, the greatest p-value counts, so that a token must differ
    from each of them (intersection-union test, Berger 1982). False discovery rates are those of
    Benjamini & Hochberg (1995) over all tokens.

    Args:
        shift: The mean of log q - log p of each token, in nats.
        nulls: The same for models that were changed at random: each null is a kind of random
            change, and each of its r runs is one model.
    """
    beyond_by_null = []
    p_by_null = []
    relative_shift = shift.double() - shift.double().median()
    for null in nulls:
        runs = null.double()
        runs = runs - runs.median(1, keepdim=True).values
        beyond = relative_shift - runs.mean(0)
        deviation_of_runs = runs.std(0).clamp(min=SCORE_ROUNDING)  # for each token
        deviation = deviation_of_runs.clamp(min=deviation_of_runs.median())  # s
        error = deviation * math.sqrt(1 + 1 / len(runs))
        beyond_by_null.append(beyond)
        p_by_null.append(two_sided(beyond, error, len(runs) - 1))
    p, null_of_greatest_p = torch.stack(p_by_null).max(0)  # for each token
    beyond = torch.stack(beyond_by_null).gather(0, null_of_greatest_p[None])[0]
    return ShiftTests(beyond, p, false_discovery_rates(p))


def amplified_choice(
    base: Float[Tensor, "b v"],
    changed: Float[Tensor, "b v"],
    factors: Float[Tensor, " b"],
    plausible: float = PLAUSIBLE_NATS,
) -> Int[Tensor, " b"]:
    """Return, for each of b texts, the next token that exaggerates how a changed model differs.

    With p the probabilities of the base model and q those of the changed model, the token
    maximises log q + α (log q - log p) among the tokens with log q ≥ max log q - plausible. α = 0
    is the greedy choice of the changed model. The score is that of DExperts (Liu et al. 2021),
    where the changed model is the expert and the base the anti-expert. The restriction to
    plausible tokens is that of contrastive decoding (Li et al. 2022).

    Args:
        base: Log-probabilities log p of what follows each text.
        changed: Log-probabilities log q of what follows each text.
        factors: The factor α ≥ 0 of each text.
        plausible: How many nats a token may be below the most likely one.
    """
    amplified = changed + factors[:, None] * (changed - base)
    is_plausible = changed >= changed.amax(1, keepdim=True) - plausible
    return amplified.where(is_plausible, -torch.inf).argmax(1)
