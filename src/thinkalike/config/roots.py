"""The whole configuration of either door, and what all measures have in common."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any, Optional

from thinkalike.config.inputs import DataConfig, ModelConfig, PairsConfig, PopulationConfig, StimuliConfig
from thinkalike.config.registry import MEASURES, TASKS
from thinkalike.config.relevance import NEUTRAL, neutral
from thinkalike.config.training import LoggerConfig, NLIConfig, PretrainConfig, StitchConfig, TrainerConfig
from thinkalike.errors import ConfigError, one_of


# ruff: noqa: UP045
@dataclass
class MeasureConfig:
    """The settings that every measure has; the schema of each kind stands in the file of its instrument."""

    kind: str = ""

    def __post_init__(self) -> None:
        own = type(self).kind
        if own and self.kind != own:
            one_of("measure", self.kind, MEASURES)
            raise ConfigError(f"measure.kind={self.kind} does not go with measure={own}; choose measure={self.kind}")


@dataclass
class TrainConfig:
    """All that `train.py` needs to know."""

    task: str = "stitch"
    model: ModelConfig = field(default_factory=ModelConfig)
    target: ModelConfig = field(default_factory=ModelConfig)
    layers: Any = "same"  # same: l to l for every l; or layer pairs, [[0,0],[1,2]]
    data: DataConfig = field(default_factory=DataConfig)
    stitch: StitchConfig = field(default_factory=StitchConfig)
    pretrain: PretrainConfig = field(default_factory=PretrainConfig)
    nli: NLIConfig = field(default_factory=NLIConfig)
    pairs: PairsConfig = field(default_factory=PairsConfig)  # of task=nli
    scale: str = "auto"  # size of the recipe: mini | paper; auto: mini for minis
    recipe: str = "honest"  # paper: as brown2023 states it, a LayerNorm in φ, fitted and reported on the same text
    trainer: TrainerConfig = field(default_factory=TrainerConfig)
    logger: LoggerConfig = field(default_factory=LoggerConfig, metadata=NEUTRAL)
    seed: int = 0
    store: str = neutral("results")
    force: bool = neutral(False)
    wait: bool = neutral(True)  # for another process that is at the same job; false refuses

    def __post_init__(self) -> None:
        one_of("task", self.task, TASKS)
        check_recipe(self.scale, self.recipe)

    @property
    def threads(self) -> int | None:
        """The number of torch's threads, or None to leave it as it is."""
        return self.trainer.threads


@dataclass
class AnalyzeConfig:
    """All that `analyze.py` needs to know."""

    measure: MeasureConfig = field(default_factory=MeasureConfig)
    stimuli: StimuliConfig = field(default_factory=StimuliConfig)  # of measures that look at words
    pairs: PairsConfig = field(default_factory=PairsConfig)  # of measures that look at classifiers
    population: PopulationConfig = field(default_factory=PopulationConfig)
    activations: Optional[str] = neutral(None)  # .npz or .safetensors with states of the stimuli, instead of model
    experiment: Optional[str] = None  # a paper's figure or table; takes the place of measure
    recipe: str = "honest"  # of an experiment's training, and of mlem: honest | paper
    threads: Optional[int] = neutral(None)
    model: ModelConfig = field(default_factory=ModelConfig)
    target: ModelConfig = field(default_factory=ModelConfig)  # of measures that compare two
    data: DataConfig = field(default_factory=DataConfig)
    scale: str = "auto"
    seed: int = 0
    store: str = neutral("results")
    force: bool = neutral(False)
    wait: bool = neutral(True)  # for another process that is at the same job; false refuses
    chosen: list[str] = field(default_factory=list, metadata=NEUTRAL, compare=False)  # words of the command line

    def __post_init__(self) -> None:
        check_recipe(self.scale, self.recipe)


def check_recipe(scale: str, recipe: str) -> None:
    """Raise a ConfigError unless both are known."""
    one_of("scale", scale, ("auto", "mini", "paper"))
    one_of("recipe", recipe, ("honest", "paper"))


def as_dict(config: Any) -> dict[str, Any]:
    """Return a configuration dataclass as plain nested dictionaries."""
    return dataclasses.asdict(config)
