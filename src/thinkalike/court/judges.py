"""The judges of a court: a line each, with what they say of a source's evidence, and whether more means more alike."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from thinkalike.court.evidence import Evidence
from thinkalike.measures import AffineMap, FeatureSpaceCKA, mutual_knn, rsa

NEIGHBOURS = 10


class Judge(NamedTuple):
    """A measure of likeness: its name, its value, and whether a higher one means more alike."""

    name: str
    value: Callable[[Evidence], float]
    higher: bool


def _r2(states: Tensor, goals: Tensor, phi: AffineMap) -> float:
    """Return 1 - Σ|y - φ(x)|² / Σ|y - ȳ|² over the report."""
    goals = goals.double()
    left = (goals - phi(states.double())).square().sum()
    return float(1 - left / (goals - goals.mean(0)).square().sum())


def _forward(evidence: Evidence) -> float:
    return _r2(*evidence.states, evidence.forward)


def _backward(evidence: Evidence) -> float:
    source, target = evidence.states
    return _r2(target, source, evidence.backward)


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


def _rsa(evidence: Evidence) -> float:
    return _over_samples(evidence, lambda source, target: rsa([source], [target])[0, 0])


JUDGES = (
    Judge("penalty", lambda evidence: evidence.trained.penalty, False),
    Judge("penalty, least squares", lambda evidence: evidence.start.penalty, False),
    Judge("KL", lambda evidence: evidence.trained.kl, False),
    Judge("KL, least squares", lambda evidence: evidence.start.kl, False),
    Judge("distance", lambda evidence: evidence.trained.distances[0], False),
    Judge("distance, least squares", lambda evidence: evidence.start.distances[0], False),
    Judge("penultimate match", lambda evidence: evidence.trained.distances[-1], False),
    Judge(
        "latent alignment", lambda evidence: sum(evidence.trained.distances) / len(evidence.trained.distances), False
    ),
    Judge("R² to the target", _forward, True),
    Judge("R² to the source", _backward, True),
    Judge("R², both ways", lambda evidence: min(_forward(evidence), _backward(evidence)), True),
    Judge("CKA", _cka, True),
    Judge("mutual neighbours", _neighbours, True),
    Judge("RSA", _rsa, True),
)


def verdicts(evidence: Evidence) -> dict[str, float]:
    """Return what each judge says of a source, by the judge's name."""
    return {judge.name: judge.value(evidence) for judge in JUDGES}
