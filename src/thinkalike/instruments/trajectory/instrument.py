"""measure=trajectory: how the representations of a model form while it trains.

python analyze.py measure=trajectory model=./my-run
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import ClassVar, cast

from thinkalike import figures
from thinkalike.config import AnalyzeConfig, JobConfig, ModelConfig, SettingValues
from thinkalike.data.documents import text_fingerprint
from thinkalike.data.tables import read_stimuli
from thinkalike.errors import ConfigError
from thinkalike.instruments import run_job
from thinkalike.instruments.random_rows import TOKENS_PER_ROW
from thinkalike.instruments.trajectory.checkpoints import Checkpoints, checkpoints_of
from thinkalike.instruments.trajectory.reader import (
    CheckpointNumbers,
    CheckpointReader,
    one_task_per_feature,
)
from thinkalike.instruments.trajectory.screen import show_onsets, show_settling, show_steps
from thinkalike.instruments.trajectory.settings import TrajectoryConfig
from thinkalike.instruments.trajectory.tables import outcome_of_trajectory
from thinkalike.job import Instrument, Outcome, Work
from thinkalike.job.inputs import Inputs
from thinkalike.job.reductions import halvings
from thinkalike.models.shapes import Passes, Shapes
from thinkalike.processes import counted
from thinkalike.screen import number_of_documents
from thinkalike.store import Headline, Result

FEWEST_TOKENS = 1024
"""A budget leaves at least so many tokens of each checkpoint."""


class TrajectoryInstrument(
    Instrument[AnalyzeConfig],
    kind="trajectory",
    version=4,
    reads=("model", "data", "measure", "stimuli", "seed"),
):
    """Compares the checkpoints of a run with each other, and finds when each feature is there."""

    of_models: ClassVar[str] = "each"
    takes_sites: ClassVar[bool] = True
    smallest: ClassVar[Mapping[str, object]] = {
        "measure.tokens": 1024,
        "measure.least": 5,
        "measure.folds": 3,
        "measure.permutations": 19,
        "measure.importance": False,
        "stimuli.sentences": 40,
    }

    def unread(self, config: AnalyzeConfig) -> SettingValues:
        """Return the model's revision, which the key of a job does not have."""
        return {"model.revision": None}  # all checkpoints are read

    def models_of(self, config: AnalyzeConfig) -> Mapping[str, ModelConfig]:
        """Return the model, at its last checkpoint unless it is trained first."""
        measure = config.measure_as(TrajectoryConfig)
        model = config.model
        if not measure.train:
            checkpoints = list(checkpoints_of(model, measure).values())
            model = checkpoints[-1]
        return {"model": model}

    def prepared(self, config: AnalyzeConfig) -> Sequence[JobConfig]:
        """Return the job that trains the model, if it is trained first."""
        if config.measure_as(TrajectoryConfig).train:
            return [training(config)]
        return []

    def model_passes(self, config: AnalyzeConfig, shapes: Shapes) -> Sequence[Passes]:
        """Return the passes of all checkpoints over the tokens.

        Checkpoints of a training that has not been done yet count as one.
        """
        measure = config.measure_as(TrajectoryConfig)
        checkpoints = 1
        if not measure.train:
            checkpoints = len(checkpoints_of(config.model, measure))
        row = config.data.context or TOKENS_PER_ROW
        tokens = float(measure.tokens)
        return [shapes["model"].passes("checkpoints", tokens, row, checkpoints)]

    def reductions(
        self, config: AnalyzeConfig, shapes: Shapes, chosen: Collection[str]
    ) -> Iterator[dict[str, object]]:
        """Yield fewer tokens of each checkpoint."""
        for tokens in halvings(config.measure_as(TrajectoryConfig).tokens, least=FEWEST_TOKENS):
            yield {"measure.tokens": tokens}

    def inputs(self, config: AnalyzeConfig) -> Inputs:
        """Read the stimuli; the text enters by its fingerprint.

        Raises:
            ConfigError: The model is read at more than one site or head.
        """
        stimuli = read_stimuli(config.stimuli)
        if not isinstance(config.model.site, str) or config.model.head == "all":
            raise ConfigError(
                "trajectory follows one site: give one model.site, and one model.head of z"
            )
        # Errors of stimuli come before anything is loaded or trained.
        one_task_per_feature(config, stimuli)
        return {
            "stimuli": stimuli,
            "data": text_fingerprint(config.data),
            "labels": config.model.called,
        }

    def prepare(self, config: AnalyzeConfig) -> Inputs:
        """Train the model if asked for, and return its checkpoints by step."""
        measure = config.measure_as(TrajectoryConfig)
        return {"steps": checkpoints_of(trained(config), measure)}

    def run(self, config: AnalyzeConfig, work: Work) -> Outcome:
        """Read all checkpoints, each kept in a state to resume from, and compare them."""
        checkpoints: Checkpoints = work.input("steps", Checkpoints)
        reader = CheckpointReader(config, work)
        numbers = []
        for step in counted(list(checkpoints), "checkpoint"):
            state = work.resume(f"step{step}")
            if state is None:
                of_checkpoint = reader.read(checkpoints[step])
                work.keep(f"step{step}", dict(of_checkpoint))
            else:
                of_checkpoint = cast(CheckpointNumbers, state)
            numbers.append(of_checkpoint)
        return outcome_of_trajectory(list(checkpoints), numbers, reader)

    def draw(self, result: Result, folder: Path) -> None:
        name = result.provenance["models"][-1]["name"]
        about = f"{number_of_documents(result.scalars)}\nbands: simultaneous 95 % intervals"
        figures.trajectory(result.details, result.tables, folder, name, about)

    def headlines(self, result: Result) -> Sequence[Headline]:
        """Return when the loss and when the similarity to the last checkpoint settled."""
        headlines = []
        for name in ("loss_settles", "similarity_settles"):
            if name in result.scalars:
                headlines.append(Headline(name, result.scalars[name]))
        return headlines

    def show(self, result: Result) -> None:
        show_settling(result)
        show_onsets(result.tables["onsets"])
        show_steps(result)


def training(config: AnalyzeConfig) -> JobConfig:
    """Return the configuration of the job that trains the mini.

    It is a `PretrainConfig`, which this package does not know.
    """
    from thinkalike.config.compose import compose_inner_job  # imports Hydra

    measure = config.measure_as(TrajectoryConfig)
    words = [
        "task=pretrain",
        f"model={config.model.name}",
        *measure.train,
        f"store={config.store}",
        "logger=none",
    ]
    job = compose_inner_job("train", words)
    job.threads = config.threads
    return job


def trained(config: AnalyzeConfig) -> ModelConfig:
    """Return the model whose checkpoints are read, trained first if `measure.train` says so."""
    if not config.measure_as(TrajectoryConfig).train:
        return config.model
    result = run_job(training(config), shown=False)
    folder = result.folder / str(config.model.name)
    return replace(config.model, path=str(folder))
