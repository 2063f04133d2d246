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

    The similarity compares the distances between stimuli in one layer with the distances between
    the same stimuli in the other. If there are too few sentences, the interval is (-∞, ∞), and a
    warning says why.

    Args:
        layers: The distances between all pairs of stimuli in each layer.
        measure: The settings of RSA, which say how distances are compared.
        seed: The seed of the random division of sentences into parts, for the jackknife.
        stimuli: The stimuli, each of which belongs to a sentence.
    """
    _, stimuli_per_sentence = stimuli.groups.unique(return_counts=True)
    sentences = len(stimuli_per_sentence)
    # Sentences with unequal numbers of stimuli tell as much as fewer sentences with equal numbers.
    effective_sentences = effective_number(stimuli_per_sentence)
    if not has_interval(effective_sentences):
        reason = why_no_interval(effective_sentences, sentences, stimuli.unit)
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

    The test permutes whole sentences. `p_corrected` is corrected for the number of layer pairs.
    Warnings of the test, such as of too few sentences, are logged.

    Args:
        layers: The distances between all pairs of stimuli in each layer.
        measure: The settings of RSA, with the number of permutations.
        seed: The seed of the permutations.
        stimuli: The stimuli, each of which belongs to a sentence.
    """
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        test = mantel(
            layers,  # without further layers, every two of these are compared
            permutations=measure.permutations,
            seed=seed,
            comparator=measure.comparator,
            groups=stimuli.groups,
        )
    for warning in caught:
        log.warning("warning: %s: %s", stimuli.source, warning.message)
    # The null of `p_of_largest` has the largest value of all layer pairs in each permutation.
    return {"p": test.p, "p_corrected": test.p_of_largest}


def pairs_of_one_word(stimuli: Stimuli) -> Bool[Tensor, " pairs"]:
    """Return which pairs of stimuli have the same word, whatever its case.

    Pairs are in the order of a vector of distances: the upper triangle of the matrix, row by row.
    """
    codes, _ = pd.factorize(pd.Series(stimuli.words).str.casefold())
    word_of_stimulus = torch.from_numpy(codes)  # an index for each different word
    first, second = torch.triu_indices(len(word_of_stimulus), len(word_of_stimulus), 1)
    return word_of_stimulus[first] == word_of_stimulus[second]


def similarity_given_word(
    layers: Sequence[NeuralDistances], stimuli: Stimuli
) -> Float[Tensor, "l l"]:
    """Return Spearman's ρ of every two layers' distances, over pairs of stimuli of the same word.

    So the value does not rise if all that two layers have in common is that both tell words apart.
    It is NaN if there are fewer than `FEWEST_PAIRS` such pairs, and for a layer in which all of
    them are equally far apart.

    Args:
        layers: The distances between all pairs of stimuli in each layer.
        stimuli: The stimuli.
    """
    have_one_word = pairs_of_one_word(stimuli)
    distances = torch.stack([layer.vector() for layer in layers]).cpu().double()
    distances = distances[:, have_one_word]
    if distances.shape[1] < FEWEST_PAIRS:
        return torch.full((len(layers), len(layers)), torch.nan, dtype=torch.float64)

    ranks = mid_ranks(distances, TIE_TOLERANCE)
    centred = ranks - ranks.mean(1, keepdim=True)
    # Spearman's ρ is the cosine of centred ranks. Equal distances give 0 / 0, which is NaN.
    norms: Tensor = torch.linalg.vector_norm(centred, dim=1, keepdim=True)
    normalised = centred / norms
    return normalised @ normalised.T
