"""The similarity of every two layers' distances: with intervals, p-values, and given the word."""

from __future__ import annotations

import logging
import math
import warnings
from collections.abc import Sequence

import pandas as pd
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from thinkalike.data.stimuli import Stimuli
from thinkalike.instruments.rsa.distances import RSAConfig
from thinkalike.measures.distances.comparators import TIE_TOLERANCE
from thinkalike.measures.distances.neural import NeuralDistances
from thinkalike.measures.distances.ranks import mid_ranks
from thinkalike.measures.distances.rsa import mantel, rsa, rsa_estimate
from thinkalike.measures.estimates import Estimate, interval_around
from thinkalike.measures.sample_size import effective_number, has_interval, why_no_interval

log = logging.getLogger(__name__)

FOLDS = 10
"""The jackknife leaves out so many parts of the sentences."""

FEWEST_PAIRS = 10
"""Distances of fewer pairs of stimuli of one word are not ranked."""


def similarity_estimate(
    layers: Sequence[NeuralDistances], measure: RSAConfig, seed: int, stimuli: Stimuli
) -> Estimate:
    """Return the similarity of every two layers, (l, l), with its interval over sentences.

    The interval is (-∞, ∞) where there are few sentences.

    Args:
        layers: The distances of stimuli in each layer.
        measure: The settings of the measure.
        seed: The seed of the folds.
        stimuli: The stimuli.
    """
    _, stimuli_per_sentence = stimuli.groups.unique(return_counts=True)
    sentences = len(stimuli_per_sentence)
    effective_sentences = effective_number(stimuli_per_sentence)
    if not has_interval(effective_sentences):
        reason = why_no_interval(effective_sentences, sentences, "sentences")
        log.warning("warning: %s: %s", stimuli.source, reason)
        return interval_around(rsa(layers, comparator=measure.comparator), math.inf)
    return rsa_estimate(
        layers,
        comparator=measure.comparator,
        groups=stimuli.groups,
        folds=min(FOLDS, sentences),
        seed=seed,
    )


def p_values(
    layers: Sequence[NeuralDistances], measure: RSAConfig, seed: int, stimuli: Stimuli
) -> dict[str, Float[Tensor, "l l"]]:
    """Return the columns `p` and `p_corrected` of every two layers, by Mantel's test.

    A warning says if there are too few sentences. For the arguments see `similarity_estimate`.
    """
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        test = mantel(
            layers,
            None,
            "euclidean",
            measure.permutations,
            seed,
            measure.comparator,
            stimuli.groups,
        )
    for warning in caught:
        log.warning("warning: %s: %s", stimuli.source, warning.message)
    return {"p": test.p, "p_corrected": test.p_of_largest}


def pairs_of_one_word(stimuli: Stimuli) -> Bool[Tensor, " pairs"]:
    """Return which pairs of stimuli have the same word, in the order of distance vectors."""
    word_numbers, _ = pd.factorize(pd.Series(stimuli.words).str.casefold())
    words = torch.from_numpy(word_numbers)
    first, second = torch.triu_indices(len(words), len(words), 1)
    return words[first] == words[second]


def similarity_given_word(
    layers: Sequence[NeuralDistances], stimuli: Stimuli
) -> Float[Tensor, "l l"]:
    """Return Spearman's ρ over pairs of stimuli of one word.

    It is NaN where there are few such pairs, or where they are equally far in some layer.

    Args:
        layers: The distances of stimuli in each layer.
        stimuli: The stimuli.
    """
    have_one_word = pairs_of_one_word(stimuli)
    distances = torch.stack([layer.vector() for layer in layers]).cpu().double()
    distances = distances[:, have_one_word]
    if distances.shape[1] < FEWEST_PAIRS:
        return torch.full((len(layers), len(layers)), torch.nan, dtype=torch.float64)

    ranks = mid_ranks(distances, TIE_TOLERANCE)
    centred = ranks - ranks.mean(1, keepdim=True)
    # Of distances that are all equal, this is 0 / 0, which is NaN.
    norms: Tensor = torch.linalg.vector_norm(centred, dim=1, keepdim=True)
    unit = centred / norms
    return unit @ unit.T
