"""The whole configuration of either entry point, and the instruments that do its jobs.

What `task=`, `measure=` and `experiment=` can be is found by entry points of installed packages:

    [project.entry-points."thinkalike.instruments"]
    "measure.mine" = "my_package.mine:Mine"

The group has `task.NAME` and `measure.NAME`, each a subclass of `thinkalike.job.Instrument`; `subjects.NAME`, the form
that a measure takes for several subjects; `plugin`, a function from FILE.py:NAME to an instrument and its schema; and
`experiment`, a function of the name of an experiment. A module is imported when it is needed.
"""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from thinkalike.config.parts import DataConfig, LoggerConfig, ModelConfig, StimuliConfig, StitchConfig, TrainerConfig
from thinkalike.config.schema import (
    NOT_IN_KEY,
    SEEDS,
    Checked,
    FilePath,
    Layers,
    Recipe,
    left_open,
    not_in_key,
    ranged,
)
from thinkalike.errors import ConfigError, one_of
from thinkalike.plugins import is_plugin

GROUP = "thinkalike.instruments"
PROJECT = Path(__file__).parents[3] / "pyproject.toml"
PROCESSES = ("strategy", "devices", "num_nodes")  # the settings of a trainer that say which processes share a job
SMALL = 2**28  # bytes of a checkpoint: of 64 million parameters in float32
Files = Annotated[list[FilePath], Field(min_length=1)]


@dataclass
class MeasureConfig(Checked, part="measure"):
    """The settings that every measure has; the schema of each kind stands in the file of its instrument."""

    kind: Annotated[str, Field(min_length=0)] = ""
    schemas: ClassVar[dict[str, type[MeasureConfig]]] = {}  # by kind

    def __init_subclass__(cls, **more: Any) -> None:
        super().__init_subclass__(**more)
        if "kind" in vars(cls):
            MeasureConfig.schemas[cls.kind] = cls


@dataclass
class JobConfig(Checked):
    """The settings that both entry points have."""

    model: ModelConfig = field(default_factory=ModelConfig)
    target: ModelConfig = field(default_factory=ModelConfig)  # of jobs of two models
    # of layer pairs: same: l to l for every l; all; some, [0,3]; or some pairs, [[0,0],[1,2]]
    layers: Layers = left_open("same")
    data: DataConfig = field(default_factory=DataConfig)
    scale: Literal["auto", "mini", "paper"] = "auto"  # size of the recipe; auto: mini for small models or without a GPU
    recipe: Literal["honest", "paper"] = "honest"  # paper: fitted, split and reported as the papers state it
    trainer: TrainerConfig = field(default_factory=TrainerConfig)
    logger: LoggerConfig = field(default_factory=LoggerConfig, metadata=NOT_IN_KEY)
    threads: int | None = ranged(None, least=1, most=1024, in_key=False)  # CPU threads; null: torch's default
    seed: int = ranged(0, least=0, most=SEEDS)  # of all that is drawn at random
    store: FilePath = not_in_key("results")  # the folder that results go to
    force: bool = not_in_key(False)  # do a finished job again
    screen: Literal["short", "full"] = not_in_key("short")  # full: also print all tables with all their columns
    wait: bool = not_in_key(True)  # for another process that is at the same job; false refuses
    dry_run: bool = not_in_key(False)  # print what it would take, and do nothing

    stands_for_jobs: ClassVar[bool] = False  # whether its jobs are still to be made

    @property
    def recipe_of_job(self) -> Recipe:
        """The scale, the recipe and the model, by which settings that are left open are decided."""
        named = [model for model in (self.model, self.target) if model.name is not None]
        is_mini = chosen_scale(self.scale, named)[0] == "mini"
        return Recipe(self.scale, is_mini, self.recipe == "paper", self.model)


@dataclass
class TrainConfig(JobConfig):
    """All that `train.py` needs to know of a stitch; the schemas of other tasks add their own parts."""

    task: str = "stitch"  # what is fitted: stitch | pretrain | nli | sae
    stitch: StitchConfig = field(default_factory=StitchConfig)


@dataclass
class AnalyzeConfig(JobConfig):
    """All that `analyze.py` needs to know; the schemas of some measures add parts of their own."""

    measure: MeasureConfig = field(default_factory=MeasureConfig)
    stimuli: StimuliConfig = field(default_factory=StimuliConfig)  # of measures that look at words
    activations: FilePath | Files | None = not_in_key(None)  # instead of model: a file, two, or subjects
    models: list[str | dict[str, Any]] | None = not_in_key(None)  # instead of model and target: jobs of one pass
    experiment: str | None = None  # a paper's figure or table; takes the place of measure
    trainer: TrainerConfig = field(default_factory=TrainerConfig, metadata=NOT_IN_KEY)  # which processes share the job

    def __post_init__(self) -> None:
        super().__post_init__()
        given = self._given
        if len(given) == 1 and "model" in self.beside_recordings:
            raise ConfigError(f"activations={given[0]} takes the place of model=; name the other side by model@target=")
        if len(self.recordings) < len(given) and (len(given) > 2 or self.beside_recordings):
            raise ConfigError(f"activations={given} names a file more than once; give each subject once")

    @property
    def stands_for_jobs(self) -> bool:  # type: ignore[override]
        return bool(self.models is not None or self.experiment)

    @property
    def recordings(self) -> list[str]:
        """The different files of `activations`."""
        return list(dict.fromkeys(map(str, map(Path, self._given))))

    @property
    def _given(self) -> list[str]:
        return [self.activations] if isinstance(self.activations, str) else self.activations or []

    @property
    def subjects(self) -> list[str]:
        """The files of `activations` where they are subjects: three or more, or two beside a model that is named."""
        several = len(self.recordings)
        return self.recordings if several > 2 or (several == 2 and self.beside_recordings) else []

    @property
    def beside_recordings(self) -> dict[str, ModelConfig]:
        """The different models beside recordings, by part: those that are named."""
        named = {name: model for name in ("model", "target") if (model := getattr(self, name)).name is not None}
        return named if named.get("target") != self.model else {"model": self.model}

    @property
    def sides(self) -> list[str | ModelConfig]:
        """Return what measures of stimuli compare, each once: files of `activations`, `model` and `model@target`."""
        if self.activations:
            return [*self.recordings, *self.beside_recordings.values()]
        return [self.model] if self.target == self.model else [self.model, self.target]


def chosen_scale(scale: str, models: Sequence[Any]) -> tuple[str, str]:
    """Return the scale of a recipe, mini or paper, and why it was chosen, or nothing if that needs no words."""
    if scale != "auto" or all(model.mini for model in models):
        return ("mini" if scale == "auto" else scale), ""
    folders = [Path(model.path) if model.path else None for model in models if not model.mini]
    if all(folder and sum(file.stat().st_size for file in folder.glob("*")) < SMALL for folder in folders):
        return "mini", "these models are small"
    import torch

    return ("paper", "this machine has a GPU") if torch.cuda.is_available() else ("mini", "this machine has no GPU")


def _declared() -> dict[str, str]:
    """Return module:name of each entry point; a checkout's own list counts, whether it is installed or not."""
    found = {point.name: point.value for point in entry_points(group=GROUP)}
    if PROJECT.is_file():
        own: dict[str, Any] = tomllib.loads(PROJECT.read_text(encoding="utf-8")).get("project", {})
        found |= own.get("entry-points", {}).get(GROUP, {})
    return dict(sorted(found.items()))


POINTS = _declared()


def _named(part: str) -> dict[str, str]:
    return {name.removeprefix(part): value for name, value in POINTS.items() if name.startswith(part)}


TASKS, MEASURES, SUBJECTS = _named("task."), _named("measure."), _named("subjects.")


@cache
def loaded(value: str) -> Any:
    """Return the object that module:name names."""
    module, _, name = value.partition(":")
    return getattr(import_module(module), name)


def measure_module(kind: str) -> str:
    """Return the module:name of a kind of measure; one in a file of the user's, FILE.py:NAME, stays as it is.

    Raises:
        ConfigError: there is no such measure.
    """
    if is_plugin(kind):
        return kind
    one_of("measure", kind, MEASURES)
    return MEASURES[kind]


def measure_schema(kind: str) -> type[MeasureConfig]:
    """Return the schema of a kind of measure, which is defined in the file of its instrument."""
    if is_plugin(kind):
        return loaded(POINTS["plugin"])(kind)[1]  # type: ignore[no-any-return]
    loaded(measure_module(kind))
    return MeasureConfig.schemas[kind]


def instrument(value: str) -> Any:
    """Return the instrument module:name, or that of a user's measure."""
    kind = loaded(POINTS["plugin"])(value)[0] if is_plugin(value) else loaded(value)
    return kind()


def instrument_of(config: JobConfig) -> Any:
    """Return the instrument of a job.

    Raises:
        ConfigError: there is no such measure, or it takes no several subjects.
        TypeError: this is no configuration.
    """
    if isinstance(config, TrainConfig):
        return instrument(TASKS[config.task])
    if not isinstance(config, AnalyzeConfig):
        raise TypeError(f"a job is a configuration, as compose_job makes one, and this is a {type(config).__name__}")
    if config.experiment and config.models is None:
        return loaded(POINTS["experiment"])(config.experiment)
    if not config.subjects:
        return instrument(measure_module(config.measure.kind))
    if (kind := config.measure.kind) not in SUBJECTS:
        raise ConfigError(
            f"measure={kind} compares two sides, and activations= are {len(config.subjects)} subjects; choose "
            f"measure={' or '.join(SUBJECTS)}"
        )
    return instrument(SUBJECTS[kind])
