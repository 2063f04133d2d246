"""A paper's figure or table as data: its models at each scale, its inner jobs, and its claims.

The inner jobs run if the store lacks them. The conclusion from their results is itself a job, of
its own kind.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import pandas as pd

from thinkalike.config import (
    RUN_SETTINGS,
    AnalyzeConfig,
    JobConfig,
    MeasureConfig,
    ModelConfig,
    SettingValues,
    model_named,
    settings_of,
)
from thinkalike.config.completing import completed as with_recipe_defaults
from thinkalike.config.completing import completed_for_instrument
from thinkalike.config.compose_jobs import compose_inner_job
from thinkalike.config.values import with_settings
from thinkalike.contrib.papers.claims import Claim, claims_table, counts_of
from thinkalike.contrib.populations.config import PopulationJob
from thinkalike.errors import ConfigError, ResourceError, listed
from thinkalike.instruments import jobs_by_pass, run_jobs
from thinkalike.job import Instrument, Outcome, Work
from thinkalike.models.labels import label
from thinkalike.processes import doing
from thinkalike.screen import Column, Table, number_column, show_table, text_column
from thinkalike.store import Headline, Result

log = logging.getLogger(__name__)

# Parts of the experiment's configuration that its inner jobs of analyze.py have as well.
PARTS_OF_ANALYSES = (
    "measure",
    "stimuli",
    "pairs",
    "population",
    "recipe",
    "seed",
    "store",
    "threads",
    "force",
    "wait",
)
PARTS_OF_TRAININGS = ("store", "seed", "force", "threads")

# The name of what `Experiment.prepare` returns. It is part of the keys of stored results.
PREPARED = "case"

Job = JobConfig


@dataclass(frozen=True)
class InnerJob:
    """A job that an experiment rests on.

    Attributes:
        label: The name of its result.
        models: Its source and its target, or one model that is both; empty: it reads no models.
        arguments: Further arguments of its command line, such as "sae.k=16".
        entry_point: "analyze" or "train".
        changes: Parts of its configuration, which replace those that the arguments make.
    """

    label: str
    models: Sequence[ModelConfig | str] = ()
    arguments: tuple[str, ...] = ()
    entry_point: str = "analyze"
    changes: Mapping[str, object] = field(default_factory=dict)


def _scale_of_models(config: AnalyzeConfig) -> str:
    """Return the scale of an experiment's models: "mini", or "paper" for any other setting."""
    return "mini" if config.scale == "mini" else "paper"


@dataclass(frozen=True)
class ExperimentRun:
    """One run of an experiment: its configuration, its models, and the results of its inner jobs.

    Attributes:
        config: The configuration of the experiment.
        models: Its models, by what results call them.
        results: The results of the inner jobs, by their labels; empty before these have run.
    """

    config: AnalyzeConfig
    models: Mapping[str, ModelConfig]
    results: Mapping[str, Result] = field(default_factory=dict)

    @property
    def scale(self) -> str:
        """The scale of the models: "mini", or "paper" for any other."""
        return _scale_of_models(self.config)

    @property
    def names(self) -> list[str]:
        """What results call the models, in order."""
        return list(self.models)

    def fingerprint(self) -> str:
        """Return a text that identifies the run: the names of its models, and its results' keys.

        The key of a result is a hash of all that the result depends on.
        """
        result_keys = [result.key for result in self.results.values()]
        return repr([*self.names, *result_keys])


@dataclass(frozen=True)
class Conclusion:
    """The conclusion from the results.

    Attributes:
        table: The numbers of the figure.
        claims: What the paper claims, with the verdicts.
        draw: Draws the figure into a folder.
        tables: Further tables by name.
        blank: Columns of the tables whose cells may be empty.
    """

    table: pd.DataFrame
    claims: Sequence[Claim]
    draw: Callable[[Path], object] = lambda folder: None
    tables: dict[str, pd.DataFrame] = field(default_factory=dict)
    blank: Sequence[str] = ()


class Experiment(
    Instrument[AnalyzeConfig],
    kind="experiment",
    version=4,
    config=PopulationJob,  # some experiments are about a population
    reads=("experiment", "scale", "recipe", "seed", "measure", "stimuli", "population"),
):
    """A figure or table of a paper, whose claims are judged by the results of inner jobs."""

    def __init__(
        self,
        name: str,
        conclude: Callable[[ExperimentRun], Conclusion],
        models: Mapping[str, Sequence[str]],
        inner_jobs: Callable[[ExperimentRun], Sequence[InnerJob]] | None = None,
        measure: str | None = None,
        accepted_model_counts: Sequence[int] = (),
        prints_table: bool = False,
    ):
        """Define an experiment: a figure or table of a paper, whose claims are judged.

        Its numbers come from inner jobs, which compare or train some models.

        Args:
            name: The name, such as brown2023/figure1; the folder of its results is called
                brown2023-figure1.
            conclude: Judges the claims of the paper, given the results of the inner jobs.
            models: The names of the models for each scale, "mini" and "paper".
            inner_jobs: Returns the jobs whose results are needed; None: there are none.
            measure: The kind of measure whose settings these jobs take; None: they share none.
            accepted_model_counts: How many models the user may give by `model=` and
                `model@target=` instead; empty: the models cannot be changed.
            prints_table: Whether the table is short enough to be printed above the claims.
        """
        self.name = name
        self.kind = name.replace("/", "-")
        self.conclude = conclude
        self.models = models
        self.inner_jobs = inner_jobs or (lambda experiment: ())
        self.measure = measure
        self.accepted_model_counts = accepted_model_counts
        self.prints_table = prints_table
        # Without jobs, the settings of the measure change nothing.
        self.applies_settings_of_measure = inner_jobs is not None and measure is not None

    def jobs(self, config: AnalyzeConfig) -> tuple[ExperimentRun, list[tuple[str, Job]]]:
        """Return the run of the experiment before it has results, and its inner jobs with labels.

        The experiment draws its conclusion from the results of the inner jobs.

        Raises:
            ConfigError: The command line names a measure that the experiment is not about, or
                models that it does not take.
        """
        self._check_measure(config)
        config = self.completed(config)  # with defaults in place of unset settings
        experiment = self.experiment_run(config)
        labelled_jobs = [
            (inner.label, inner_job_config(config, inner)) for inner in self.inner_jobs(experiment)
        ]
        return experiment, labelled_jobs

    def _check_measure(self, config: AnalyzeConfig) -> None:
        """Raise `ConfigError` if the user's measure is not the one that the experiment is about.

        An experiment without a measure accepts the default of analyze.py, "loss", which users have
        who choose none. (Whether they wrote measure=loss themselves is unknown here.)
        """
        own_measure = self.measure or "loss"
        if config.measure.kind == own_measure:
            return
        fact = "has no measure"
        if self.measure:
            fact = f"is about measure={self.measure}"
        raise ConfigError(f"experiment={config.experiment} {fact}; leave measure= out")

    def labelled_jobs(self, config: AnalyzeConfig) -> list[tuple[str, Job]]:
        """Return the inner jobs, whose results the experiment reads, each with its label."""
        _, labelled_jobs = self.jobs(config)
        return labelled_jobs

    def experiment_run(self, config: AnalyzeConfig) -> ExperimentRun:
        """Return the configuration together with the models of the experiment, without results.

        An experiment repeats a figure of a paper on some models. They are those of the command
        line (`model=` and `model@target=`) if it names any, and otherwise the experiment's own. If
        source and target are the same, they count as one model.

        Raises:
            ConfigError: The command line names a number of models that the experiment does not
                take, or it changes settings of the experiment's own models.
        """
        own_names = self.models[_scale_of_models(config)]
        models = [model for model in (config.model, config.target) if model.name is not None]
        if len(models) == 2 and models[0] == models[1]:
            models = models[:1]

        takes_these_models = len(models) in self.accepted_model_counts
        if not models:
            # Settings of how models run, such as the precision, apply to the experiment's own
            # models as well. Any other setting would change what they are.
            set_by_user = {*settings_of(config.model), *settings_of(config.target)}
            takes_these_models = set_by_user <= set(RUN_SETTINGS)
            models = [model_named(name, {}) for name in own_names]
        if not takes_these_models:
            # An experiment about a population names no models of its own.
            own = ", ".join(own_names) or "the models of population="
            counts = " or ".join(str(count) for count in self.accepted_model_counts)
            remedy = "it takes no others"
            if counts:
                remedy = f"it takes {counts} by model= and model@target="
            raise ConfigError(f"experiment={config.experiment} is about {own}; {remedy}")
        return ExperimentRun(config, {label(model): model for model in models})

    def completed(self, config: AnalyzeConfig) -> AnalyzeConfig:
        """Return the configuration with defaults for unset settings of stimuli and population.

        The defaults are those of the recipe, a named set of them. Settings of the measure that are
        None stay None, as each inner job has its own defaults.
        """
        with_defaults: AnalyzeConfig = with_recipe_defaults(config, ("stimuli", "population"))
        return with_defaults

    def unread(self, config: AnalyzeConfig) -> SettingValues:
        """Return the parts of the configuration that this experiment ignores, by name.

        A result is stored under a key, a hash of the settings. There the value None replaces the
        settings of an ignored part, so that they do not change the key.
        """
        unread: dict[str, None] = {}
        if not self.applies_settings_of_measure:
            unread["measure"] = None
        if self.measure != "population":  # only this measure reads a population of classifiers
            unread["population"] = None
        return unread

    def as_read(self, config: AnalyzeConfig) -> AnalyzeConfig:
        """Return the configuration as it enters the key (a hash) of the experiment's result.

        Settings that the experiment ignores have fixed values. Settings that are None get the
        defaults of the recipe that belongs to the scale of the experiment.

        An experiment about a population (a set of classifiers) consists of jobs on one population.
        Its name depends on the scale, as the paper's population is published and a mini one is
        trained here, and the configuration alone does not tell it. The first job does.
        """
        read = super().as_read(with_recipe_defaults(config, self.reads))
        if self.measure != "population":
            return read
        inner_jobs = self.inner_jobs(self.experiment_run(config))
        first_job = inner_job_config(config, inner_jobs[0])
        assert isinstance(first_job, PopulationJob)
        return with_settings(read, {"population": first_job.population})

    def inputs(self, config: AnalyzeConfig) -> Mapping[str, str]:
        """Return nothing: an experiment reads results of jobs alone, which `prepare` returns."""
        return {}

    def prepare(self, config: AnalyzeConfig) -> Mapping[str, ExperimentRun]:
        """Run all inner jobs; return the experiment with their results under the key `PREPARED`.

        A job whose result is in the store is not computed again. Jobs that read the same models
        and text run together, in one pass.
        """
        experiment, labelled_jobs = self.jobs(config)
        labels = [label for label, _ in labelled_jobs]
        jobs = [job for _, job in labelled_jobs]
        results: dict[str, Result] = {}
        for indices in jobs_by_pass(jobs):  # the indices of the jobs that run together
            labels_of_pass = [labels[index] for index in indices]
            n_when_done = len(results) + len(indices)
            with doing(f"{listed(labels_of_pass)}, up to job {n_when_done} of {len(jobs)}"):
                jobs_of_pass = [jobs[index] for index in indices]
                results_of_pass = _results_in_one_pass_if_possible(jobs_of_pass)
            results.update(zip(labels_of_pass, results_of_pass, strict=True))
        in_order = {label: results[label] for label in labels}
        return {PREPARED: replace(experiment, results=in_order)}

    def run(self, config: AnalyzeConfig, work: Work) -> Outcome:
        """Judge the paper's claims from the results of the inner jobs, which have run before.

        The outcome has the table of the figure, a table of the claims with their verdicts, further
        tables, and how many claims have each verdict.
        """
        experiment = work.input(PREPARED, ExperimentRun)
        conclusion = self.conclude(experiment)
        folders = {label: result.folder.name for label, result in experiment.results.items()}
        return Outcome(
            conclusion.table,
            counts_of(conclusion.claims),
            tables={"claims": claims_table(conclusion.claims), **conclusion.tables},
            facts={"parts": folders},  # the results that the conclusion rests on
            draw=conclusion.draw,
            # Columns of any table that may have empty cells; this one is of the claims.
            blank=("smallest_effect", *conclusion.blank),
        )

    def headlines(self, result: Result) -> list[Headline]:
        """Return how many of the claims hold."""
        n_holding = result.scalars["claims_that_hold"]
        n_claims = int(result.scalars["claims"])
        return [Headline("claims_that_hold", n_holding, of=n_claims)]

    def show(self, result: Result) -> None:
        """Print the paper's claims with their verdicts, below the table of numbers if it is short.

        An experiment repeats a figure or a table of a paper. Its `prints_table` says whether the
        table is short.
        """
        if self.prints_table:
            columns = [_screen_column(result.details[name]) for name in result.details]
            show_table(Table(self.name, columns))
        claims = result.tables["claims"]
        columns = [
            text_column(name, claims[name]) for name in ("claim", "verdict", "numbers", "units")
        ]
        title = f"{result.config['experiment']}, scale {result.config['scale']}"
        show_table(Table(title, columns, ruled=True))


def _screen_column(cells: pd.Series) -> Column:
    """Return a column for the screen from a column of a data frame; missing cells are empty."""
    name = str(cells.name)
    if pd.api.types.is_numeric_dtype(cells):
        # 12 digits show all of a number but the noise of rounding, as in 0.30000000000000004.
        return number_column(name, ["" if pd.isna(cell) else f"{cell:.12g}" for cell in cells])
    return text_column(name, ["" if pd.isna(cell) else cell for cell in cells])


def _results_in_one_pass_if_possible(jobs: Sequence[Job]) -> list[Result]:
    """Run jobs in one pass, and return their results in order.

    If their models do not fit into memory together, the jobs run one after the other.

    Raises:
        ResourceError: A single job does not fit.
    """
    try:
        return run_jobs(jobs, shown=False)
    except ResourceError as error:
        if len(jobs) == 1:
            raise
        log.warning("warning: %s; the %d jobs now run one after the other", error, len(jobs))
    # This is not inside the `except` clause, where the error would keep the models in memory.
    return [run_jobs([job], shown=False)[0] for job in jobs]


def inner_job_config(config: AnalyzeConfig, inner: InnerJob) -> Job:
    """Return the complete configuration of an inner job.

    It has the inner job's own arguments and changes, and the settings of the experiment that apply
    to all of its jobs, such as the seed, the store, the text, and how models run. If the inner job
    has no models, it gets the model of the experiment's configuration. If the user has chosen no
    text, it has its own default text.

    Args:
        config: The configuration of the experiment.
        inner: The models of the job, the arguments of its command line, and the parts of its
            configuration that replace those of the experiment (for a job of analyze.py only).
    """
    arguments = [*inner.arguments, f"scale={_scale_of_models(config)}"]
    run_settings = _settings_of_how_models_run(config)
    models = [model_named(model, run_settings) for model in inner.models]
    source = models[0] if models else config.model
    target = models[-1] if models else config.model  # one model is source and target

    # Parts of the configuration that are given as objects, beside the arguments, which are texts.
    parts: dict[str, object] = {"model": source, "target": target}
    if inner.entry_point == "train":  # a command of train.py; else of analyze.py
        parts |= {name: getattr(config, name) for name in PARTS_OF_TRAININGS}
        arguments += ["logger=none", f"recipe={config.recipe}"]
        job: Job = compose_inner_job("train", arguments, **parts)
    else:
        for name in PARTS_OF_ANALYSES:
            if hasattr(config, name):
                parts[name] = getattr(config, name)
        parts |= inner.changes
        measure = parts["measure"]  # that of the experiment, unless `changes` have another one
        assert isinstance(measure, MeasureConfig)
        job = compose_inner_job("analyze", [f"measure={measure.kind}", *arguments], **parts)
    has_chosen_text = config.data.name is not None
    if not has_chosen_text:
        return job
    # The kind of the job, such as CKA, decides the settings of the text that are None.
    return completed_for_instrument(replace(job, data=config.data))


def _settings_of_how_models_run(config: AnalyzeConfig) -> dict[str, object]:
    """Return the settings, such as the precision, that the user gave for all models.

    If the user names a model, these settings are for that model only, and the result is empty.
    """
    if config.model.name:
        return {}
    # `RUN_SETTINGS` are the names of the settings that say how a model runs, and not which it is.
    settings = {name: getattr(config.model, name) for name in RUN_SETTINGS}
    return {name: value for name, value in settings.items() if value is not None}
