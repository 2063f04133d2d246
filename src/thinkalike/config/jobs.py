"""The configurations of jobs: what all have, what train.py adds, and what analyze.py adds."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal, TypeVar

from pydantic import AfterValidator, Field, InstanceOf

from thinkalike.config.parts import (
    DataConfig,
    LoggerConfig,
    MeasureConfig,
    ModelConfig,
    StimuliConfig,
    TrainerConfig,
    model_settings,
)
from thinkalike.config.recorded import RecordedArrays
from thinkalike.config.scale import chosen_scale
from thinkalike.config.schema import (
    SEEDS,
    Checked,
    FilePath,
    Layers,
    SettingValues,
    fields_of,
    of_form,
    setting,
)
from thinkalike.config.values import with_settings
from thinkalike.errors import ConfigError

Recording = FilePath | InstanceOf[RecordedArrays]
Recordings = Annotated[list[Recording], Field(min_length=1)]
BUDGET = of_form(
    r"[1-9][0-9]{0,3}(s|min|h)",
    "a time such as 90s, 10min or 2h: a whole number up to 9999, and its unit",
)
Measure = TypeVar("Measure", bound=MeasureConfig)


def _of_one_line(path: str) -> str:
    if not path.isprintable():  # the last lines of stdout are paths of results
        raise ValueError("must be a path of printable characters")
    return path


@dataclass
class JobConfig(Checked):
    """The settings that both entry points have."""

    model: ModelConfig = field(default_factory=model_settings)
    # second model, of jobs that compare two; null: the same as model
    target: ModelConfig = field(default_factory=model_settings)
    # pairs of layers (source, target); same: equal numbers; all: every pair; [0,3]: these layers,
    # each with its own number; or a list of pairs, [[0,0],[1,2]]
    layers: Layers = setting("same", by_recipe=True)
    data: DataConfig = field(default_factory=DataConfig)
    # size of the job; auto: mini for small models and on a machine without a GPU, otherwise that
    # of the papers
    scale: Literal["auto", "mini", "paper"] = "auto"
    # paper: fit, split and evaluate as the original papers do; default: separate documents for
    # fitting and evaluation
    recipe: Literal["default", "paper"] = "default"
    trainer: TrainerConfig = field(default_factory=TrainerConfig)
    logger: LoggerConfig = setting(LoggerConfig, in_key=False)
    # number of CPU threads; null: torch's default
    threads: int | None = setting(None, least=1, most=1024, in_key=False)
    # random seed
    seed: int = setting(0, least=0, most=SEEDS)
    # folder of stored results; null, from Python only: the result stays in memory
    store: Annotated[FilePath, AfterValidator(_of_one_line)] | None = setting(
        "results", in_key=False
    )
    # compute a job again although its result is stored
    force: bool = setting(False, in_key=False)
    # wait for another process that computes the same job; false: stop with an error
    wait: bool = setting(True, in_key=False)
    # print how much work the job is, and do nothing
    dry_run: bool = setting(False, in_key=False)
    # time budget on this machine, such as 90s, 10min or 2h; chooses the layers, the amount of
    # text, the steps and the kind of map that you did not set
    budget: Annotated[str, BUDGET] | None = setting(None, in_key=False)

    @property
    def is_mini(self) -> bool:
        """Whether the job is of the size that suits a laptop, and not that of the papers."""
        named = [model for model in (self.model, self.target) if model.name is not None]
        scale, _ = chosen_scale(self.scale, named)
        return scale == "mini"


@dataclass
class TrainConfig(JobConfig):
    """What all that `train.py` fits has in common; the schema of each task adds its own parts."""

    # what is trained; stitch: a map between two models
    task: str = "stitch"
    # bits: express each stitch's loss in equivalent bits, by copies of the target rounded to 2 to
    # 8 bits; null: do not
    ruler: Literal["bits"] | None = "bits"
    # also test whether the states of stitched layers are similar, by residual R² as in
    # measure=ruler
    similarity: bool = False


@dataclass
class AnalyzeConfig(JobConfig):
    """All that `analyze.py` needs to know; the schemas of some measures add parts of their own."""

    measure: MeasureConfig = field(default_factory=MeasureConfig)
    # words or texts whose states are analysed, for measures of stimuli such as mlem and rsa
    stimuli: StimuliConfig = field(default_factory=StimuliConfig)
    # files of recorded states, used in place of the model (or of the target, if a model is named):
    # one, two, or one for each participant
    activations: FilePath | Recordings | None = setting(None, in_key=False)
    # list of models; compares all pairs, and runs each model once
    models: list[str | dict[str, object]] | None = setting(None, in_key=False)
    # figure or table of a paper to reproduce; used in place of measure
    experiment: str | None = None
    # bits: also express similarities in equivalent bits, by copies of both models rounded to 2 to
    # 8 bits
    ruler: Literal["bits"] | None = None
    # which processes share the job
    trainer: TrainerConfig = setting(TrainerConfig, in_key=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.activations, str):
            self.activations = [self.activations]
        entries = self.activations or []
        named = self.beside_recordings
        if len(entries) == 1 and len(named) == 2:
            raise ConfigError(
                f"activations={entries[0]} takes the place of model= or of model@target=; "
                "leave one of them out"
            )
        has_repeated = len(self.recordings) < len(entries)
        if has_repeated and (len(entries) > 2 or named):
            raise ConfigError(
                f"activations={entries} names a file more than once; give each subject once"
            )

    def measure_as(self, schema: type[Measure]) -> Measure:
        """Return the settings of the measure, whose schema its instrument alone knows."""
        assert isinstance(self.measure, schema), (
            f"measure={self.measure.kind} is no {schema.__name__}"
        )
        return self.measure

    def without_model(self) -> AnalyzeConfig:
        """Return a configuration of recordings, with those models alone that are named."""
        return with_settings(self, self.unread_beside_recordings())

    def unread_beside_recordings(self) -> SettingValues:
        """Return the settings that have no effect on recordings, see `Instrument.unread`.

        Those are models that are not named, and, without any model, what is of states of tokens.
        """
        named = self.beside_recordings
        unread: dict[str, object] = {}
        for part in ("model", "target"):
            if part not in named:
                unread[part] = None
        if named:
            return unread

        unread |= {"layers": "same", "stimuli.token": "last"}
        names = {item.name for item in fields_of(self.measure)}
        for name, default in (("embed", False), ("massive", "drop")):
            if name in names:
                unread[f"measure.{name}"] = default
        return unread

    @property
    def recordings(self) -> list[str | RecordedArrays]:
        """The different files of `activations`, or arrays in memory that take their place."""
        recordings: dict[str | RecordedArrays, None] = {}
        for entry in self.activations or []:
            if isinstance(entry, str):
                entry = str(Path(entry))
            recordings[entry] = None
        return list(recordings)

    @property
    def subjects(self) -> list[str | RecordedArrays]:
        """The files of `activations` if they are subjects, and [] otherwise.

        They are if there are three or more, or two beside a model that is named.
        """
        recordings = self.recordings
        if len(recordings) > 2 or (len(recordings) == 2 and self.beside_recordings):
            return recordings
        return []

    @property
    def beside_recordings(self) -> dict[str, ModelConfig]:
        """The different models beside recordings, by part: those that are named."""
        named = {}
        for part in ("model", "target"):
            model: ModelConfig = getattr(self, part)
            if model.name is not None:
                named[part] = model
        if named.get("target") == self.model:
            return {"model": self.model}
        return named
