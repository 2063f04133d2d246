"""measure=trajectory: how the representations of a model form while it trains.

python analyze.py measure=trajectory model=./my-run
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

from thinkalike import figures
from thinkalike.config import AnalyzeConfig, JobConfig, ModelConfig, SettingValues
from thinkalike.data.documents import text_fingerprint
from thinkalike.data.tables import read_stimuli
from thinkalike.errors import ConfigError
from thinkalike.instruments import run_job
from thinkalike.instruments.random_rows import TOKENS_PER_ROW
from thinkalike.instruments.trajectory.checkpoints import Checkpoints, checkpoints_of
from thinkalike.instruments.trajectory.reader import (
    CheckpointReader,
    numbers_of_state,
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
        """Return the setting that this job ignores, the model's revision: it reads all of them."""
        return {"model.revision": None}

    def models_of(self, config: AnalyzeConfig) -> Mapping[str, ModelConfig]:
        """Return the model whose sizes forecasts use: the last checkpoint of the run.

        If the job itself trains the model, there are no checkpoints yet, and the model is returned
        as it is configured.
        """
        measure = config.measure_as(TrajectoryConfig)
        model = config.model
        if not measure.train:
            checkpoints = list(checkpoints_of(model, measure).values())
            model = checkpoints[-1]
        return {"model": model}

    def prepared_jobs(self, config: AnalyzeConfig) -> Sequence[JobConfig]:
        """Return the jobs that run before this one: that which trains the model, if asked for."""
        if config.measure_as(TrajectoryConfig).train:
            return [training_job(config)]
        return []

    def model_passes(self, config: AnalyzeConfig, shapes: Shapes) -> Sequence[Passes]:
        """Return the forward passes of all checkpoints over the text, to estimate the job's time.

        If the job trains the model, the number of checkpoints is unknown, and one is counted.
        """
        measure = config.measure_as(TrajectoryConfig)
        checkpoints = 1
        if not measure.train:
            checkpoints = len(checkpoints_of(config.model, measure))
        row_length = config.data.context or TOKENS_PER_ROW
        tokens = float(measure.tokens)
        return [shapes["model"].passes("checkpoints", tokens, row_length, times=checkpoints)]

    def reductions(
        self, config: AnalyzeConfig, shapes: Shapes, chosen: Collection[str]
    ) -> Iterator[dict[str, object]]:
        """Yield settings that take ever less time, for `budget=`: fewer tokens per checkpoint."""
        for tokens in halvings(config.measure_as(TrajectoryConfig).tokens, least=FEWEST_TOKENS):
            yield {"measure.tokens": tokens}

    def inputs(self, config: AnalyzeConfig) -> Inputs:
        """Return what decides the result of a job besides its settings, by name, for its hash.

        These are the stimuli, the fingerprint of the text, and the name of the model. The method
        `prepare` adds the checkpoints, which may have to be trained first.

        Raises:
            ConfigError: States are to be read at more than one hook point or head.
            DataError: The stimuli do not suit probes.
        """
        stimuli = read_stimuli(config.stimuli)
        if not isinstance(config.model.site, str) or config.model.head == "all":
            raise ConfigError(
                "trajectory follows one site: give one model.site, and one model.head of z"
            )
        # The tasks are not kept: stimuli that do not suit raise here, before anything is trained.
        one_task_per_feature(config, stimuli)
        return {
            "stimuli": stimuli,
            "data": text_fingerprint(config.data),
            "labels": config.model.called,  # the name of the model, which stands in tables
        }

    def prepare(self, config: AnalyzeConfig) -> Inputs:
        """Train the model if the job asks for that, and return its checkpoints as an input."""
        measure = config.measure_as(TrajectoryConfig)
        return {"steps": checkpoints_of(trained_model(config), measure)}

    def run(self, config: AnalyzeConfig, work: Work) -> Outcome:
        """Read all checkpoints, and compare them.

        What was read of a checkpoint is saved, so that a stopped job resumes with the next one.
        """
        checkpoints: Checkpoints = work.input("steps", Checkpoints)  # what `prepare` returned
        reader = CheckpointReader(config, work)
        numbers = []
        for step in counted(list(checkpoints), "checkpoint"):
            saved_numbers = work.resume(f"step{step}")
            if saved_numbers is None:
                numbers_of_step = reader.read(checkpoints[step])
                work.keep(f"step{step}", dict(numbers_of_step))
            else:
                numbers_of_step = numbers_of_state(saved_numbers)
            numbers.append(numbers_of_step)
        return outcome_of_trajectory(list(checkpoints), numbers, reader)

    def draw(self, result: Result, folder: Path) -> None:
        """Draw losses, similarities and accuracies over the steps."""
        name = result.provenance["models"][-1]["name"]
        subtitle = f"{number_of_documents(result.scalars)}\nbands: simultaneous 95 % intervals"
        n_stimuli = result.provenance.get("stimuli", {}).get("count")
        figures.trajectory(result.details, result.tables, folder, name, subtitle, n_stimuli)

    def headlines(self, result: Result) -> Sequence[Headline]:
        """Return the steps by which the loss and the similarity to the last checkpoint settled.

        A curve that does not change has no such step, and is left out.
        """
        headlines = []
        for name in ("loss_settles", "similarity_settles"):
            if name in result.scalars:
                headlines.append(Headline(name, result.scalars[name]))
        return headlines

    def show(self, result: Result) -> None:
        """Print when curves settle and features can first be read out, and a table of steps."""
        show_settling(result)
        show_onsets(result.tables["onsets"])
        show_steps(result)


def training_job(config: AnalyzeConfig) -> JobConfig:
    """Return the configuration of the job that trains the model whose trajectory is measured.

    The job is composed from words of a command line, since its class is in `contrib`, which the
    core must not import.
    """
    from thinkalike.config.compose_jobs import compose_inner_job  # imports Hydra

    measure = config.measure_as(TrajectoryConfig)
    command_line_words = [
        "task=pretrain",
        f"model={config.model.name}",
        *measure.train,
        f"store={config.store}",
        "logger=none",
    ]
    job = compose_inner_job("train", command_line_words)
    job.threads = config.threads
    return job


def trained_model(config: AnalyzeConfig) -> ModelConfig:
    """Return the model whose checkpoints are read.

    With the setting `measure.train`, the model is trained here (or its stored result is found),
    and the returned model has the path of its checkpoints.
    """
    if not config.measure_as(TrajectoryConfig).train:
        return config.model
    result = run_job(training_job(config), shown=False)
    folder = result.folder / str(config.model.name)
    return replace(config.model, path=str(folder))
