"""The settings of measure=mlem."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from thinkalike.advice import named_setting
from thinkalike.config import setting
from thinkalike.errors import ConfigError
from thinkalike.instruments.of_stimuli import StimulusDistanceConfig


def _default_alphas() -> list[float]:
    """Return nine powers of ten, from 10⁻⁴ to 10⁴."""
    return [10.0**power for power in range(-4, 5)]


@dataclass
class MLEMConfig(StimulusDistanceConfig):
    """The settings of a metric-learning encoding model of every layer, and of its importances."""

    kind: str = "mlem"
    # diagonal: one weight for each feature; full: also one for the interaction of every two
    weights: Literal["diagonal", "full"] = "diagonal"
    # ridge penalties (alphas) among which cross-validation chooses
    alphas: list[float] = setting(_default_alphas, least=0)
    # how two values of a feature differ: indicator, 0 or 1 as in Salle et al. (2024); scaled, by
    # the distance of ordered values; levels, a weight for each pair of values
    difference: Literal["indicator", "scaled", "levels"] = "indicator"
    # what a missing value means: a level of its own, a difference that is ignored, a stimulus that
    # is dropped, or an error
    missing: Literal["own_level", "ignore", "drop", "error"] = "own_level"
    # how squared distances are scaled before the fit, which is the unit of the weights; auto:
    # mean, or minmax with recipe=paper
    scale: Literal["auto", "mean", "minmax", "none"] = "auto"
    # number of folds of the outer and the inner cross-validation
    folds: int = setting(5, least=2, most=10**4)
    # what stays together in one fold of cross-validation
    together: Literal["sentence", "stimulus"] = "sentence"
    # number of permutations of each feature in each fold, from which its importance is computed
    permutations: int = setting(5, least=1, most=10**6)
    # feature that importance is conditional on: other features are permuted only among stimuli
    # that have the same value of it
    conditional_on: str | None = None
    # interactions whose importance is computed: pairs of features that are also permuted together
    interactions: list[list[str]] = field(default_factory=list)
    # number of times that each feature is moved between sentences, for its importance by chance
    # and p-values; 0: none
    null: int = setting(0, least=0, most=10**6)
    # number of random divisions of the stimuli into halves, for the split-half reference; 0: none
    references: int = setting(3, least=0, most=10**4)

    def __post_init__(self) -> None:
        """Refuse interactions that are not pairs of two different features."""
        super().__post_init__()
        for pair in self.interactions:
            if len(pair) != 2 or pair[0] == pair[1]:
                raise ConfigError(
                    f"{named_setting('measure.interactions')} holds pairs of two features, not "
                    f"{pair}"
                )

    @property
    def features_named(self) -> list[str]:
        """The features that the settings `conditional_on` and `interactions` name."""
        names = []
        if self.conditional_on is not None:
            names.append(self.conditional_on)
        for pair in self.interactions:
            names += pair
        return names
