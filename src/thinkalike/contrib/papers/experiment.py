"""A paper's figure or table as data: its models at each scale, the jobs that it rests on, and its claims.

Its jobs run if the store lacks them. The conclusion from their results is itself a job, of its own kind.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from thinkalike.config import RUNS, AnalyzeConfig, ModelConfig, as_target, compose_job
from thinkalike.contrib.papers.claims import Claim, claims_table, counts_of
from thinkalike.errors import ConfigError, ResourceError, listed
from thinkalike.instruments import check_read, instrument_of, passes, run_jobs
from thinkalike.job import Instrument, Outcome, Work
from thinkalike.models.outline import label
from thinkalike.progress import doing
from thinkalike.screen import Column, Table, number_column, show_table, text_column
from thinkalike.store import Headline, Result

log = logging.getLogger(__name__)

OF_MODELS = ("model=", "model.", "model@target=", "target.")
FORWARDED = ("measure", "stimuli", "pairs", "population", "recipe", "seed", "store", "threads", "force", "wait")


class Model(NamedTuple):
    """A model of an experiment, and the overrides that choose it."""

    words: tuple[str, ...]
    config: ModelConfig

    @property
    def name(self) -> str:
        return label(self.config)

    @classmethod
    def of(cls, *words: str) -> Model:
        return cls(words, compose_job("analyze", words).model)

    def as_target(self) -> tuple[str, ...]:
        """Return the overrides that choose it as the target."""
        return as_target(self.words)


@dataclass(frozen=True)
class Part:
    """A job that an experiment rests on: the name of its result, its overrides, and further changes."""

    label: str
    words: tuple[str, ...] = ()
    entry_point: str = "analyze"
    changes: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Case:
    """An experiment with its configuration, its models, and the results of its parts by their labels."""

    config: AnalyzeConfig
    models: Sequence[Model]
    results: Mapping[str, Result] = field(default_factory=dict)

    @property
    def scale(self) -> str:
        """The scale of its models: mini or paper."""
        return "mini" if self.config.scale == "mini" else "paper"

    def fingerprint(self) -> str:
        """Return the models, and the keys of the results, which say what is in them."""
        return repr([*(model.name for model in self.models), *(result.key for result in self.results.values())])


@dataclass(frozen=True)
class Conclusion:
    """The conclusion from the results: a table, further tables, the claims, and a function that draws into a folder.

    Attributes:
        blank: columns of the tables whose cells may be empty.
    """

    table: pd.DataFrame
    claims: Sequence[Claim]
    draw: Callable[[Path], Any] = lambda folder: None
    tables: dict[str, pd.DataFrame] = field(default_factory=dict)
    blank: Sequence[str] = ()


class Experiment(
    Instrument,
    kind="experiment",
    version=4,
    reads=("experiment", "scale", "recipe", "seed", "measure", "stimuli", "population"),
):
    """A figure or table of a paper.

    Args:
        name: paper/figure; the folder of its results is called paper-figure.
        conclude: what follows from the results of the parts.
        models: names of the models that it is about, by scale.
        parts: the jobs that it rests on, given configuration and models; None: it rests on none.
        measure: the kind of measure whose settings its jobs take; None: it has none.
        tabulates: whether its table is short enough to be printed above the claims.
        takes: how many models `model=` and `model@target=` may put in the place of its own.
    """

    def __init__(
        self,
        name: str,
        conclude: Callable[[Case], Conclusion],
        models: Mapping[str, Sequence[str]],
        parts: Callable[[Case], Sequence[Part]] | None = None,
        measure: str | None = None,
        takes: Sequence[int] = (),
        tabulates: bool = False,
    ):
        self.name, self.kind, self.conclude = name, name.replace("/", "-"), conclude
        self.models, self.measure, self.takes, self.tabulates = models, measure, takes, tabulates
        self.parts, self.measures = parts or (lambda case: ()), bool(parts and measure)

    def jobs(self, config: AnalyzeConfig) -> tuple[Case, list[tuple[str, Any]]]:
        """Return the case without results, and the jobs that it rests on with their labels.

        Raises:
            ConfigError: the command line names another measure, or gives a setting that none of the jobs reads.
        """
        if config.measure.kind != self.measure if self.measure else "measure" in config.chosen_keys:
            only = f"is about measure={self.measure}" if self.measure else "has no measure"
            raise ConfigError(f"experiment={config.experiment} {only}; leave measure= out")
        case = self.case(config)
        jobs = [(part.label, job_of(config, part)) for part in self.parts(case)]
        given = replace(config, chosen=[word for word in config.chosen if not word.startswith(OF_MODELS)])
        check_read(given, [(instrument_of(job), job) for _, job in jobs] or [(self, config)])
        return case, jobs

    def case(self, config: AnalyzeConfig) -> Case:
        """Return the configuration and the models: those of the command line if given, else its own.

        Raises:
            ConfigError: the experiment does not take this number of models, or one is given twice.
        """
        own = self.models["mini" if config.scale == "mini" else "paper"]
        given = _given(config.chosen)
        if not given or settings_of_all(config.chosen):
            return Case(config, [Model.of(f"model={name}") for name in own])
        if len(given) not in self.takes:
            counts = " or ".join(str(count) for count in self.takes)
            instead = f"it takes {counts} by model= and model@target=" if counts else "it takes no others"
            about = ", ".join(own) or "the models of population="
            raise ConfigError(f"experiment={config.experiment} is about {about}; {instead}")
        models = [Model.of(*words) for words in given]
        if len({model.name for model in models}) < len(models):
            raise ConfigError(f"{models[0].name} was given twice; name two models, by model.name= and target.name=")
        return Case(config, models)

    def with_unread_reset(self, config: AnalyzeConfig) -> AnalyzeConfig:
        read = copy(config)  # not `replace`, as a configuration that a user gives must have a population
        read.population = None  # type: ignore[assignment]
        if not self.measures:
            read.measure = None  # type: ignore[assignment]
        if self.measure == "population":
            read.population = job_of(config, self.parts(self.case(config))[0]).population
        return read

    def inputs(self, config: AnalyzeConfig) -> Mapping[str, Any]:
        return {}

    def prepare(self, config: AnalyzeConfig) -> Mapping[str, Any]:
        """Run the jobs that the store lacks; returns the result of each."""
        case, labelled = self.jobs(config)
        labels, jobs = [label for label, _ in labelled], [job for _, job in labelled]
        found: dict[str, Result] = {}
        for places in passes(jobs):
            names, done = [labels[place] for place in places], len(found) + len(places)
            with doing(f"{listed(names)}, up to job {done} of {len(jobs)}"):
                found |= zip(names, _results([jobs[place] for place in places]), strict=True)
        results = {label: found[label] for label in labels}
        return {"case": replace(case, results=results)}

    def run(self, config: AnalyzeConfig, work: Work) -> Outcome:
        case = work.inputs["case"]
        conclusion = self.conclude(case)
        return Outcome(
            conclusion.table,
            counts_of(conclusion.claims),
            tables={"claims": claims_table(conclusion.claims), **conclusion.tables},
            facts={"parts": {label: result.folder.name for label, result in case.results.items()}},
            draw=conclusion.draw,
            blank=("smallest_effect", *conclusion.blank),
        )

    def headlines(self, result: Result) -> list[Headline]:
        """Return how many of the claims hold."""
        return [Headline("claims_that_hold", result.scalars["claims_that_hold"], of=int(result.scalars["claims"]))]

    def show(self, result: Result) -> None:
        if self.tabulates:
            show_table(Table(self.name, [_column(result.table[name]) for name in result.table]))
        claims = result.tables["claims"]
        columns = [text_column(name, claims[name]) for name in ("claim", "verdict", "numbers", "units")]
        show_table(Table(f"{result.config['experiment']}, scale {result.config['scale']}", columns, ruled=True))


def _column(cells: pd.Series) -> Column:
    """Return a column of a table, with a blank where there is no value."""
    if pd.api.types.is_numeric_dtype(cells):
        return number_column(str(cells.name), ["" if pd.isna(cell) else f"{cell:.12g}" for cell in cells])
    return text_column(str(cells.name), ["" if pd.isna(cell) else cell for cell in cells])


def _results(jobs: Sequence[Any]) -> list[Result]:
    """Do jobs in one pass; where their models do not fit together, one after the other."""
    try:
        return run_jobs(jobs, shown=False)
    except ResourceError as error:
        if len(jobs) == 1:
            raise
        log.warning("warning: %s; the %d jobs now run one after the other", error, len(jobs))
    # not above, where the error would still hold what the models did not fit beside
    return [run_jobs([job], shown=False)[0] for job in jobs]


def job_of(config: AnalyzeConfig, part: Part) -> Any:
    """Return the configuration of a part's job, with what the experiment's own configuration says of it."""
    settings = settings_of_all(config.chosen)
    if any(word.startswith(("model@target=", "target.")) for word in part.words):
        settings += [f"target{word[len('model') :]}" for word in settings]
    chosen = [*part.words, *settings, f"scale={Case(config, ()).scale}"]
    if part.entry_point == "train":
        words = [f"store={config.store}", f"seed={config.seed}", f"force={config.force}", "logger=none"]
        words += [f"recipe={config.recipe}"] + ([f"threads={config.threads}"] if config.threads else [])
        job = compose_job("train", [*chosen, *words])
    else:
        job = compose_job("analyze", chosen)
        job = replace(job, **({name: getattr(config, name) for name in FORWARDED} | dict(part.changes)))
    return job if config.data.name == "auto" else replace(job, data=config.data)


def settings_of_all(chosen: Sequence[str]) -> list[str]:
    """Return the words that say how models run, which hold for all models of an experiment unless a word names one."""
    words = [word for word in chosen if word.startswith(OF_MODELS)]
    return words if all(word.startswith(tuple(f"model.{key}=" for key in RUNS)) for word in words) else []


def _given(chosen: Sequence[str]) -> list[tuple[str, ...]]:
    """Return the models that a command line names, as the words that choose each as `model`."""
    first = tuple(word for word in chosen if word.startswith(OF_MODELS[:2]))
    second = [word for word in chosen if word.startswith(OF_MODELS[2:])]
    renamed = tuple(f"model{word.removeprefix('model@').removeprefix('target')}" for word in second)
    return [words for words in (first, renamed) if words]
