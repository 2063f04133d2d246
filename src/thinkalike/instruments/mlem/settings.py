"""The settings of measure=mlem."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from thinkalike.config import setting
from thinkalike.errors import ConfigError
from thinkalike.instruments.of_stimuli import StimulusDistanceConfig


def _default_alphas() -> list[float]:
    return [10.0**power for power in range(-4, 5)]


@dataclass
class MLEMConfig(StimulusDistanceConfig):
    """The settings of a metric-learning encoding model of every layer, and of its importances."""

    kind: str = "mlem"
    # full: with an interaction of every two features
    weights: Literal["diagonal", "full"] = "diagonal"
    # ridges
    alphas: list[float] = setting(_default_alphas, least=0)
    # indicator, as salle2024 has it | scaled, of ordered features | levels
    difference: Literal["indicator", "scaled", "levels"] = "indicator"
    # NaN is a value of its own
    missing: Literal["own_level", "ignore", "drop", "error"] = "own_level"
    # of weights, by squared distances; recipe=paper: minmax
    scale: Literal["auto", "mean", "minmax", "none"] = "auto"
    folds: int = setting(5, least=2, most=10**4)  # outer and inner
    together: Literal["sentence", "stimulus"] = "sentence"  # what a fold keeps together
    permutations: int = setting(5, least=1, most=10**6)  # of each feature, on each fold
    conditional_on: str | None = None  # a feature within whose levels the others are permuted
    # pairs of features that are also permuted together
    interactions: list[list[str]] = field(default_factory=list)
    # how often each feature moves between sentences, for p-values
    null: int = setting(0, least=0, most=10**6)
    # divisions of the stimuli for split-half references; 0: none
    references: int = setting(3, least=0, most=10**4)

    def __post_init__(self) -> None:
        super().__post_init__()
        for pair in self.interactions:
            if len(pair) != 2 or pair[0] == pair[1]:
                raise ConfigError(f"measure.interactions holds pairs of two features, not {pair}")

    @property
    def features_named(self) -> list[str]:
        """The features that the settings name."""
        names = []
        if self.conditional_on is not None:
            names.append(self.conditional_on)
        for pair in self.interactions:
            names += pair
        return names
