"""The distances of stimuli in each layer, and the settings of measure=rsa."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from thinkalike.advice import named_setting
from thinkalike.config import setting
from thinkalike.errors import ConfigError, DataError
from thinkalike.instruments.of_stimuli import DistanceName, StimulusDistanceConfig
from thinkalike.measures.distances.comparators import WHITENED
from thinkalike.measures.distances.crossnobis import crossnobis
from thinkalike.measures.distances.neural import NeuralDistances
from thinkalike.states.stimuli import StimulusStates

FEWEST_RUNS = 2
"""Crossnobis distances multiply the differences of two runs or more."""


@dataclass
class RSAConfig(StimulusDistanceConfig):
    """The settings of representational similarity analysis."""

    kind: str = "rsa"
    # distance between the states of two stimuli; crossnobis needs repeated recordings
    distance: Literal[DistanceName, "crossnobis"] = "euclidean"  # type: ignore[assignment]
    # number of permutations of sentences in Mantel's test; 0: no p-values
    permutations: int = setting(0, least=0, most=10**6)
    # how two matrices of distances are compared: a rank correlation, a correlation or a cosine of
    # squared distances, or their whitened forms (_cov)
    comparator: Literal["spearman", "tau_a", "corr", "cosine", "corr_cov", "cosine_cov"] = (
        "spearman"
    )
    # for distance=crossnobis: how the covariance of the noise is estimated
    noise: Literal["shrinkage", "diagonal", "none"] = "shrinkage"
    # number of bootstrap resamples of participants and stimuli; 0: intervals are over participants
    # alone
    resamples: int = setting(1000, least=0, most=10**6)

    def __post_init__(self) -> None:
        """Refuse whitened comparators for Manhattan distances.

        Whitening is for squared Euclidean distances, and Manhattan distances are not Euclidean.
        """
        super().__post_init__()
        if self.comparator in WHITENED and self.distance == "manhattan":
            raise ConfigError(
                f"{named_setting('measure.comparator', self.comparator)} compares squared "
                "Euclidean distances, not manhattan ones; choose "
                f"{named_setting('measure.comparator', 'corr')} or another distance"
            )

    def settings_read(self) -> frozenset[str]:
        """Return the names of the settings that have an effect.

        These are all settings, but `noise` only with crossnobis distances.
        """
        settings = super().settings_read()
        if self.distance == "crossnobis":
            return settings
        return settings - {"noise"}


def layer_distances(
    side: StimulusStates, measure: StimulusDistanceConfig
) -> list[NeuralDistances]:
    """Return the distances between all pairs of stimuli in each layer.

    Crossnobis distances need several runs of a recording, from which noise is estimated. A model
    has no runs, and gets Euclidean distances instead.

    Args:
        side: A model or a recording.
        measure: The settings of the measure.

    Raises:
        DataError: Crossnobis distances are asked for, and a recording has one run, or its noise
            has no inverse.
        ValueError: A state is not finite, or is zero with cosine or constant with correlation
            distances.
    """
    # Of the measures of distances, only RSA offers the crossnobis distance.
    if not isinstance(measure, RSAConfig) or measure.distance != "crossnobis":
        return _distances_of_states(side, measure.distance)
    if not side.runs:
        return _distances_of_states(side, "euclidean")

    recording = side.origin["name"]
    distances = []
    for layer, runs in zip(side.layers, side.runs, strict=True):
        if len(runs) < FEWEST_RUNS:
            raise DataError(
                f"{recording} has one run, and "
                f"{named_setting('measure.distance', 'crossnobis')} needs two or more"
            )
        try:
            distances.append(NeuralDistances.given(crossnobis(runs, measure.noise)))
        except ValueError as error:
            # The error of the function names its argument; name the setting in its place.
            reason = str(error).replace("noise=", named_setting("measure.noise", like=""))
            raise DataError(f"{recording}: {layer}: {reason}") from error
    return distances


def _distances_of_states(side: StimulusStates, distance: str) -> list[NeuralDistances]:
    """Return the distances between the states of all stimuli in each layer.

    Args:
        side: A model or a recording.
        distance: The name of the distance, such as "euclidean".
    """
    distances = []
    for layer, states in zip(side.layers, side.states, strict=True):
        distances.append(NeuralDistances.of(states, distance, f"{side.name} {layer}"))
    return distances


def distances_of_sides(
    sides: Sequence[StimulusStates], measure: RSAConfig
) -> list[NeuralDistances]:
    """Return the distances between all pairs of stimuli, for each layer of each side in turn.

    A side is a model or a recording.
    """
    distances = []
    for side in sides:
        distances += layer_distances(side, measure)
    return distances
