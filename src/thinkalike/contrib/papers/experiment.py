"""A paper's figure or table as data: its models at each scale, the jobs that it rests on, and its claims.

Its jobs run if the store lacks them. The conclusion from their results is itself a job, of its own kind.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pandas as pd

from thinkalike.config import RUNS, AnalyzeConfig, JobConfig, ModelConfig, SettingValues, model_named, settings_of
from thinkalike.config.completing import completed, completed_for_instrument
from thinkalike.config.compose import compose_inner_job
from thinkalike.config.values import with_settings
from thinkalike.contrib.papers.claims import Claim, claims_table, counts_of
from thinkalike.contrib.populations.config import PopulationJob
from thinkalike.errors import ConfigError, ResourceError, listed
from thinkalike.instruments import passes, run_jobs
from thinkalike.job import Instrument, Outcome, Work
from thinkalike.models.labels import label
from thinkalike.processes import doing
from thinkalike.screen import Column, Table, number_column, show_table, text_column
from thinkalike.store import Headline, Result

log = logging.getLogger(__name__)

FORWARDED = ("measure", "stimuli", "pairs", "population", "recipe", "seed", "store", "threads", "force", "wait")


@dataclass(frozen=True)
class Part:
    """A job that an experiment rests on."""

    label: str  # the name of its result
    models: Sequence[ModelConfig | str] = ()  # its source and its target, or one that is both; none: it reads no models
    words: tuple[str, ...] = ()  # its further overrides
    entry_point: str = "analyze"
    changes: Mapping[str, Any] = field(default_factory=dict)  # parts of its configuration, in place of these


@dataclass(frozen=True)
class Case:
    """An experiment with its configuration, its models, and the results of its parts by their labels."""

    config: AnalyzeConfig
    models: Mapping[str, ModelConfig]  # by what results call them
    results: Mapping[str, Result] = field(default_factory=dict)

    @property
    def scale(self) -> str:
        return "mini" if self.config.scale == "mini" else "paper"

    @property
    def names(self) -> list[str]:
        return list(self.models)

    def fingerprint(self) -> str:
        """Return the models, and the keys of the results, which say what is in them."""
        return repr([*self.names, *(result.key for result in self.results.values())])


@dataclass(frozen=True)
class Conclusion:
    """The conclusion from the results: a table, further tables, the claims, and a function that draws into a folder."""

    table: pd.DataFrame
    claims: Sequence[Claim]
    draw: Callable[[Path], Any] = lambda folder: None
    tables: dict[str, pd.DataFrame] = field(default_factory=dict)
    blank: Sequence[str] = ()  # columns of the tables whose cells may be empty


class Experiment(
    Instrument[AnalyzeConfig],
    kind="experiment",
    version=4,
    config=PopulationJob,  # if it is about a population
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
        """Return the case without results, and the jobs that it rests on with their labels."""
        if config.measure.kind != (self.measure or "loss"):
            only = f"is about measure={self.measure}" if self.measure else "has no measure"
            raise ConfigError(f"experiment={config.experiment} {only}; leave measure= out")
        case = self.case(config := self.completed(config))
        return case, [(part.label, job_of(config, part)) for part in self.parts(case)]

    def labelled_jobs(self, config: AnalyzeConfig) -> list[tuple[str, JobConfig]]:
        return self.jobs(config)[1]

    def case(self, config: AnalyzeConfig) -> Case:
        """Return the configuration and the models: those of the command line if given, else its own."""
        own = self.models["mini" if config.scale == "mini" else "paper"]
        given = [each for each in (config.model, config.target) if each.name is not None]
        given = given[:1] if given[0:1] == given[1:] else given
        if not given and not {*settings_of(config.model), *settings_of(config.target)} - {*RUNS}:
            given = [model_named(name, {}) for name in own]
        elif len(given) not in self.takes:
            counts = " or ".join(str(count) for count in self.takes)
            instead = f"it takes {counts} by model= and model@target=" if counts else "it takes no others"
            about = ", ".join(own) or "the models of population="
            raise ConfigError(f"experiment={config.experiment} is about {about}; {instead}")
        return Case(config, {label(each): each for each in given})

    def completed(self, config: AnalyzeConfig) -> AnalyzeConfig:
        return completed(config, ("stimuli", "population"))  # what is left open of a measure is up to its jobs

    def unread(self, config: AnalyzeConfig) -> SettingValues:
        """Return the measure and the population, unless the experiment is about them."""
        unread: dict[str, Any] = {} if self.measures else {"measure": None}
        return unread if self.measure == "population" else unread | {"population": None}

    def as_read(self, config: AnalyzeConfig) -> AnalyzeConfig:
        """Return what the conclusion depends on: everything is decided, and the population is that of the jobs."""
        read = super().as_read(completed(config, self.reads))
        if self.measure != "population":
            return read
        compared = job_of(config, self.parts(self.case(config))[0])
        return with_settings(read, {"population": compared.population})

    def inputs(self, config: AnalyzeConfig) -> Mapping[str, Any]:
        return {}

    def prepare(self, config: AnalyzeConfig) -> Mapping[str, Any]:
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
        case = work.input("case", Case)
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
        return [Headline("claims_that_hold", result.scalars["claims_that_hold"], of=int(result.scalars["claims"]))]

    def show(self, result: Result) -> None:
        if self.tabulates:
            show_table(Table(self.name, [_column(result.table[name]) for name in result.table]))
        claims = result.tables["claims"]
        columns = [text_column(name, claims[name]) for name in ("claim", "verdict", "numbers", "units")]
        show_table(Table(f"{result.config['experiment']}, scale {result.config['scale']}", columns, ruled=True))


def _column(cells: pd.Series) -> Column:
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
    words, runs = [*part.words, f"scale={Case(config, {}).scale}"], dict[str, Any]()
    if not config.model.name:
        runs = {key: value for key in RUNS if (value := getattr(config.model, key)) is not None}
    models = [model_named(each, runs) for each in part.models]
    chosen = {"model": models[0], "target": models[-1]} if models else {"model": config.model, "target": config.model}
    if part.entry_point == "train":
        own = {name: getattr(config, name) for name in ("store", "seed", "force", "threads")}
        job = compose_inner_job("train", [*words, "logger=none", f"recipe={config.recipe}"], **chosen, **own)
    else:
        own = {name: getattr(config, name) for name in FORWARDED if hasattr(config, name)}
        kind = part.changes.get("measure", config.measure).kind
        job = compose_inner_job("analyze", [f"measure={kind}", *words], **chosen, **own | dict(part.changes))
    return job if config.data.name is None else completed_for_instrument(replace(job, data=config.data))
