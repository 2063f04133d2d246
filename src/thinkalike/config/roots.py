"""The whole configuration of either door, and what all measures have in common."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Optional

from thinkalike.config.inputs import DataConfig, ModelConfig, PairsConfig, PopulationConfig, StimuliConfig
from thinkalike.config.layers import check_layers
from thinkalike.config.ranges import SEEDS, THREADS, Checked, ranged
from thinkalike.config.registry import MEASURES, TASKS
from thinkalike.config.relevance import NEUTRAL, neutral
from thinkalike.config.saes import SAEConfig
from thinkalike.config.training import LoggerConfig, NLIConfig, PretrainConfig, StitchConfig, TrainerConfig
from thinkalike.errors import ConfigError, one_of

PROCESSES = ("strategy", "devices", "num_nodes")  # the settings of a trainer that say which processes share a job


# ruff: noqa: UP045
@dataclass
class MeasureConfig(Checked, part="measure"):
    """The settings that every measure has; the schema of each kind stands in the file of its instrument."""

    kind: str = ""

    def __post_init__(self) -> None:
        super().__post_init__()
        own = type(self).kind
        if own and self.kind != own:
            one_of("measure", self.kind, MEASURES)
            raise ConfigError(f"measure.kind={self.kind} does not go with measure={own}; choose measure={self.kind}")


@dataclass
class TrainConfig(Checked):
    """All that `train.py` needs to know."""

    paths: ClassVar[tuple[str, ...]] = ("store",)

    task: str = "stitch"  # what is fitted
    model: ModelConfig = field(default_factory=ModelConfig)
    target: ModelConfig = field(default_factory=ModelConfig)
    layers: Any = "same"  # same: l to l for every l; all; or [[0,0],[1,2]]
    data: DataConfig = field(default_factory=DataConfig)
    stitch: StitchConfig = field(default_factory=StitchConfig)
    pretrain: PretrainConfig = field(default_factory=PretrainConfig)
    nli: NLIConfig = field(default_factory=NLIConfig)
    sae: SAEConfig = field(default_factory=SAEConfig)
    pairs: PairsConfig = field(default_factory=PairsConfig)  # of task=nli
    scale: str = "auto"  # size of the recipe: mini | paper; auto: mini where all models are minis
    recipe: str = "honest"  # paper: as brown2023 states it, a LayerNorm in φ, fitted and reported on the same text
    trainer: TrainerConfig = field(default_factory=TrainerConfig)
    logger: LoggerConfig = field(default_factory=LoggerConfig, metadata=NEUTRAL)
    threads: Optional[int] = ranged(None, least=1, most=THREADS, neutral=True)  # CPU threads; null: torch's default
    seed: int = ranged(0, least=0, most=SEEDS)  # of all that is drawn at random
    store: str = neutral("results")  # the folder that results go to
    force: bool = neutral(False)  # do a finished job again
    wait: bool = neutral(True)  # for another process that is at the same job; false refuses
    dry_run: Any = neutral(False)  # print what it would take, and end; a number: also hours at so many FLOPs per second
    plugins: Any = neutral(None)  # modules or .py files of a user's own; their content counts in the key

    def __post_init__(self) -> None:
        super().__post_init__()
        one_of("task", self.task, TASKS)
        check_recipe(self.scale, self.recipe)
        check_store(self.store)
        check_dry_run(self.dry_run)
        check_layers(self.layers)
        for part in ("model", "target"):
            if self.trainer.strategy == "ddp" and (mapped := getattr(self, part).device_map) is not None:
                raise ConfigError(
                    f"{part}.device_map={mapped} lays one model over several devices, and trainer=ddp gives each "
                    "process one of its own; leave out either"
                )
        if self.task == "pretrain":
            self._check_mini()
        if self.task == "sae" and self.trainer.strategy == "ddp":
            raise ConfigError("task=sae trains all its autoencoders in one process; leave trainer=ddp out")

    def _check_mini(self) -> None:
        name = self.model.name
        if not self.model.architecture:
            raise ConfigError(f"model={name} has no architecture to train; task=pretrain makes minis: gelu-3l-mini")
        if not self.pretrain.tokens:
            raise ConfigError(f"pretrain.tokens=0 trains nothing; say how many tokens model={name} sees")
        if not name or name.startswith(".") or "/" in name:
            raise ConfigError(f"model.name={name} names the folder of a mini; give a plain name")


@dataclass
class AnalyzeConfig(Checked):
    """All that `analyze.py` needs to know."""

    paths: ClassVar[tuple[str, ...]] = ("store", "activations")

    measure: MeasureConfig = field(default_factory=MeasureConfig)
    stimuli: StimuliConfig = field(default_factory=StimuliConfig)  # of measures that look at words
    pairs: PairsConfig = field(default_factory=PairsConfig)  # of measures that look at classifiers
    population: PopulationConfig = field(default_factory=PopulationConfig)
    activations: Any = neutral(None)  # instead of model: states of stimuli, a file or two; or subjects
    models: Any = neutral(None)  # instead of model and target: a list, whose pairs are jobs of one pass
    experiment: Optional[str] = None  # a paper's figure or table; takes the place of measure
    recipe: str = "honest"  # of an experiment's training, of mlem, and of how text is split: honest | paper
    threads: Optional[int] = ranged(None, least=1, most=THREADS, neutral=True)  # CPU threads; null: torch's default
    trainer: TrainerConfig = field(default_factory=TrainerConfig, metadata=NEUTRAL)  # how many processes share the job
    logger: LoggerConfig = field(default_factory=LoggerConfig, metadata=NEUTRAL)
    model: ModelConfig = field(default_factory=ModelConfig)
    target: ModelConfig = field(default_factory=ModelConfig)  # of measures that compare two
    layers: Any = "same"  # of measures that take layer pairs: same: l to l for every l; all; or [[0,0],[1,2]]
    data: DataConfig = field(default_factory=DataConfig)
    scale: str = "auto"  # size of the recipe: mini | paper; auto: mini where all models are minis
    seed: int = ranged(0, least=0, most=SEEDS)  # of all that is drawn at random
    store: str = neutral("results")  # the folder that results go to
    force: bool = neutral(False)  # do a finished job again
    wait: bool = neutral(True)  # for another process that is at the same job; false refuses
    dry_run: Any = neutral(False)  # print what it would take, and end; a number: also hours at so many FLOPs per second
    plugins: Any = neutral(None)  # modules or .py files of a user's own; their content counts in the key
    chosen: list[str] = field(default_factory=list, metadata=NEUTRAL, compare=False)  # words of the command line

    def __post_init__(self) -> None:
        super().__post_init__()
        check_recipe(self.scale, self.recipe)
        check_store(self.store)
        check_dry_run(self.dry_run)
        check_layers(self.layers)
        self._check_trainer()
        if self.activations is not None:
            self._check_recordings()

    def _check_trainer(self) -> None:
        usual = TrainerConfig(strategy=self.trainer.strategy)
        for item in dataclasses.fields(TrainerConfig):
            value = getattr(self.trainer, item.name)
            if item.name not in PROCESSES and value != getattr(usual, item.name):
                raise ConfigError(
                    f"trainer.{item.name}={value} is of training; analyze.py takes {', '.join(PROCESSES)}"
                )

    def _check_recordings(self) -> None:
        given = self.activations if isinstance(self.activations, list) else [self.activations]
        if not given or not all(isinstance(each, str) and each.strip() for each in given):
            raise ConfigError(f"activations={self.activations} must be a file, two, or subjects: activations=[A,B]")
        if self.experiment:
            raise ConfigError(f"experiment={self.experiment} has models of its own; leave activations={given[0]} out")
        if len(given) == 1 and self.names_model:
            named = next(word for word in self.chosen if word.startswith("model="))
            raise ConfigError(
                f"activations={given[0]} takes the place of {named}; name another side by model@target=, or give "
                "several recordings as subjects"
            )
        if len(self.recordings) < len(given) and (len(given) > 2 or self.beside_recordings):
            raise ConfigError(f"activations={given} names a file more than once; give each subject once")

    @property
    def recordings(self) -> list[str]:
        """The different files of `activations`."""
        given = self.activations if isinstance(self.activations, list) else [self.activations or ""]
        return list(dict.fromkeys(str(Path(each).expanduser()) for each in given if each))

    @property
    def subjects(self) -> list[str]:
        """The files of `activations` where they are subjects: three or more, or two beside a model that is named."""
        several = len(self.recordings)
        return self.recordings if several > 2 or (several == 2 and self.beside_recordings) else []

    @property
    def beside_recordings(self) -> list[ModelConfig]:
        """The different models that are asked for beside recordings: `model` only if the command line names it."""
        if self.names_model and self.names_target and self.model == self.target:
            return [self.model]
        return [*([self.model] if self.names_model else []), *([self.target] if self.names_target else [])]

    @property
    def names_model(self) -> bool:
        """Whether the command line names the model."""
        return any(word.startswith("model=") for word in self.chosen)

    @property
    def names_target(self) -> bool:
        """Whether the target is asked for, also where it is the model that `model` would be."""
        return self.target != self.model or any(word.startswith("model@target=") for word in self.chosen)

    @property
    def sides(self) -> list[str | ModelConfig]:
        """Return what measures of stimuli compare, each once: files of `activations`, `model` and `model@target`."""
        if self.activations:
            return [*self.recordings, *self.beside_recordings]
        return [self.model] if self.target == self.model else [self.model, self.target]


def check_recipe(scale: str, recipe: str) -> None:
    """Raise a ConfigError unless both are known."""
    one_of("scale", scale, ("auto", "mini", "paper"))
    one_of("recipe", recipe, ("honest", "paper"))


def check_store(store: str) -> None:
    """Raise a ConfigError unless this can be the path of a folder.

    Whether it can be written is seen when a job begins, because one that is done only reads it.
    """
    if not store.strip() or "\0" in store:
        raise ConfigError(f"store={store!r} names no folder; give one, such as store=results")


def check_dry_run(value: Any) -> None:
    """Raise a ConfigError unless this says whether a run is dry, or how fast this machine is."""
    if not isinstance(value, bool) and not (isinstance(value, int | float) and 0 < value < float("inf")):
        raise ConfigError(
            f"dry_run={value} must be true, false, or this machine's floating-point operations per second, such as 5e10"
        )


def as_dict(config: Any) -> dict[str, Any]:
    """Return a configuration dataclass as plain nested dictionaries."""
    return dataclasses.asdict(config)
