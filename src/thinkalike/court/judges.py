"""The judges of a court: a line each, with what they say of a source's evidence, and whether more means more alike."""

from __future__ import annotations

from collections.abc import Callable
from statistics import fmean
from typing import NamedTuple

import torch
from torch import Tensor

from thinkalike.court.evidence import Evidence
from thinkalike.court.profile import profile_likeness
from thinkalike.measures import FeatureSpaceCKA, NeighboursGivenToken, mutual_knn, rsa

NEIGHBOURS = 10
PROFILED = 512  # tokens whose features an MLEM profile is of
DECOYS = ("answers", "token", "leak", "untrained", "shortcut")


class Judge(NamedTuple):
    """A measure of likeness.

    Attributes:
        name: what tables call it.
        value: what it says of a source.
        higher: whether more means more alike.
        against: the kinds of decoys that it is meant to tell from what is alike.
    """

    name: str
    value: Callable[[Evidence], float]
    higher: bool
    against: tuple[str, ...] = DECOYS


def _cka(evidence: Evidence) -> float:
    metric = FeatureSpaceCKA()
    source, target = evidence.states
    metric.update([source], [target])
    return float(metric.compute()[0, 0])


def _over_samples(evidence: Evidence, measure: Callable[[Tensor, Tensor], Tensor]) -> float:
    """Return the mean of a measure of all pairs of tokens over the bench's samples."""
    parts = [measure(*(side[part.to(side.device)] for side in evidence.states)) for part in evidence.bench.samples]
    return float(torch.stack(parts).mean())


def _neighbours(evidence: Evidence) -> float:
    return _over_samples(evidence, lambda source, target: mutual_knn(source, target, NEIGHBOURS))


def _neighbours_given_token(evidence: Evidence) -> float:
    """Return the share of neighbours among states of one token beyond chance; 0 where a token's states do not vary."""
    metric, start = NeighboursGivenToken(1, 1, NEIGHBOURS), 0
    if not evidence.likeness["cka_given_token"]:
        return 0.0
    for number, part in enumerate(evidence.bench.report):
        source, target = (side[start : start + len(part.own)] for side in evidence.states)
        metric.update([source], [target], None, number, part.tokens)
        start += len(part.own)
    return float(metric.compute().calibrated.value)


def _rsa(evidence: Evidence) -> float:
    return _over_samples(evidence, lambda source, target: rsa([source], [target])[0, 0])


def _profile(evidence: Evidence) -> float:
    """Return how alike the MLEM profiles are of a sample of tokens."""
    bench = evidence.bench
    chosen = bench.samples[0][:PROFILED]
    source, target = (side[chosen.to(side.device)] for side in evidence.states)
    return profile_likeness(bench.token_features[chosen], source, target, evidence.setting.number("MLEM profile"))


def _of(*names: str) -> Callable[[Evidence], float]:
    """Return the least of some measures of `Likeness`."""
    return lambda evidence: min(evidence.likeness[name] for name in names)


def _product(evidence: Evidence) -> float:
    """Return CKA given the token times R² given the token both ways, each at least 0."""
    least = _of("r2_given_token", "r2_given_token_back")(evidence)
    return max(least, 0.0) * max(evidence.likeness["cka_given_token"], 0.0)


JUDGES = (
    Judge("penalty", lambda evidence: evidence.trained.penalty, False),
    Judge("penalty, least squares", lambda evidence: evidence.start.penalty, False),
    Judge("KL", lambda evidence: evidence.trained.kl, False),
    Judge("KL, least squares", lambda evidence: evidence.start.kl, False),
    Judge("distance", lambda evidence: evidence.trained.distances[0], False),
    Judge("distance, least squares", lambda evidence: evidence.start.distances[0], False),
    Judge("penultimate match", lambda evidence: evidence.trained.distances[-1], False),
    Judge("latent alignment", lambda evidence: fmean(evidence.trained.distances), False),
    Judge("R² to the target", _of("r2"), True),
    Judge("R² to the source", _of("r2_back"), True),
    Judge("R², both ways", _of("r2", "r2_back"), True),
    Judge("CKA", _cka, True),
    Judge("mutual neighbours", _neighbours, True),
    Judge("RSA", _rsa, True),
    Judge("MLEM profile", _profile, True),
    Judge("R² given the token, to the target", _of("r2_given_token"), True),
    Judge("R² given the token, to the source", _of("r2_given_token_back"), True),
    Judge("R² given the token, both ways", _of("r2_given_token", "r2_given_token_back"), True),
    Judge("CKA given the token", _of("cka_given_token"), True),
    Judge("mutual neighbours given the token", _neighbours_given_token, True),
    Judge("CKA and R² given the token", _product, True),
    Judge("future", _of("future"), False, ("leak",)),
)


def verdicts(evidence: Evidence) -> dict[str, float]:
    """Return what each judge says of a source, by the judge's name."""
    return {judge.name: judge.value(evidence) for judge in JUDGES}
