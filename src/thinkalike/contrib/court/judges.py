"""The judges of a court: measures of similarity, and their value for each source."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from statistics import fmean
from typing import NamedTuple

import torch
from torch import Tensor

from thinkalike.contrib.court.evidence import Evidence
from thinkalike.contrib.court.token_profile import profile_similarity
from thinkalike.measures.distances.rsa import rsa
from thinkalike.measures.kernel_alignment import cka
from thinkalike.measures.neighbours import mutual_knn

NEIGHBOURS = 10
PROFILE_TOKENS = 512  # that an MLEM profile is computed from

# Kinds of sources that are not similar to the target, however similar they look.
DECOYS = (
    "answers",
    "n-gram",
    "token",
    "position",
    "bag",
    "delay",
    "leak",
    "untrained",
    "shortcut",
    "wrong tokens",
)


class Judge(NamedTuple):
    """A measure of similarity.

    Attributes:
        name: What tables call it.
        value: Computes it for one source.
        higher: Whether a higher value means more similar.
        against: The kinds of decoys that it is meant to tell from similar sources.
    """

    name: str
    value: Callable[[Evidence], float]
    higher: bool
    against: tuple[str, ...] = DECOYS

    @property
    def is_general(self) -> bool:
        """Whether it is meant to tell every kind of decoy from similar sources."""
        return self.against == DECOYS


def _mean_over_samples(measure: Callable[[Tensor, Tensor], Tensor]) -> Callable[[Evidence], float]:
    """Return a function that averages a measure over random samples of tokens.

    It is for measures that compare all pairs of tokens, which would cost too much on all tokens.
    The function takes `Evidence`, which has the states of a source and of the target, and samples.

    Args:
        measure: Returns a scalar for two sets of states (n, d) and (n, e) of the same tokens.
    """

    def value(evidence: Evidence) -> float:
        """Return the mean value for the states of source and target, over samples of tokens."""
        source, target = evidence.states
        values = [measure(source[sample], target[sample]) for sample in evidence.samples]
        return float(torch.stack(values).mean())

    return value


def _cka(evidence: Evidence) -> float:
    """Return the CKA of source and target over all tokens that are compared, in float64."""
    source, target = evidence.states
    return float(cka(source.double(), target.double()))


def _rsa(source: Tensor, target: Tensor) -> Tensor:
    """Return the RSA of two sets of states, (n, d) and (n, e), of the same tokens, as a scalar."""
    return rsa([source], [target])[0, 0]  # (source layer, target layer)


def _profile_similarity(evidence: Evidence) -> float:
    """Return how similar the MLEM profiles of source and target are.

    A profile is the importance of each feature of tokens, such as length or frequency, for the
    states. It is computed from a random sample of at most `PROFILE_TOKENS` tokens.
    """
    first_sample = evidence.samples[0]  # of several random samples of token indices
    token_indices = first_sample[:PROFILE_TOKENS]
    features = evidence.token_features[token_indices]
    source_states, target_states = evidence.states
    return profile_similarity(
        features,
        source_states[token_indices],
        target_states[token_indices],
        evidence.materials.seed_for("MLEM profile"),
    )


JUDGES = (
    Judge("penalty", lambda evidence: evidence.stitched_run.penalty, higher=False),
    Judge("KL", lambda evidence: evidence.stitched_run.kl, higher=False),
    Judge("distance", lambda evidence: evidence.stitched_run.distances[0], higher=False),
    Judge("penultimate match", lambda evidence: evidence.stitched_run.distances[-1], higher=False),
    Judge(
        "latent alignment", lambda evidence: fmean(evidence.stitched_run.distances), higher=False
    ),
    Judge("CKA", _cka, higher=True),
    Judge("mutual neighbours", _mean_over_samples(partial(mutual_knn, k=NEIGHBOURS)), higher=True),
    Judge("RSA", _mean_over_samples(_rsa), higher=True),
    Judge("MLEM profile", _profile_similarity, higher=True),
    Judge("R²", lambda evidence: evidence.r2, higher=True),
    Judge("residual R²", lambda evidence: evidence.residual_r2, higher=True),
    Judge("later", lambda evidence: evidence.later, higher=False, against=("leak",)),
)


def judge_source(evidence: Evidence) -> dict[str, float]:
    """Return the value of each measure of similarity for a source, by the name of its column.

    `evidence.columns` adds the columns, such as the ends of intervals, that a verdict is based on
    (a word for how the source is similar to the target).

    Args:
        evidence: The states of a source and of the target, and what measures derive from them.
    """
    values = {judge.name: judge.value(evidence) for judge in JUDGES}
    return values | evidence.columns
