"""The frame of every job: a kind is declared once, and key, lock, seed, provenance and results follow from that.

    class Loss(Instrument, kind="loss", version=1, reads=("model", "data")):
        def run(self, config, work): ...       # the computation, from models and data to tables
        def draw(self, result, folder): ...    # its figure, from the result
        def show(self, result): ...            # what the screen says, from the result

`perform(Loss(), config)` does the rest, and returns the finished `Result`; `perform_all` does several in one pass.
"""

from __future__ import annotations

import contextlib
import io
import itertools
import logging
import math
import time
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields, is_dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from thinkalike.config import (
    AnalyzeConfig,
    MeasureConfig,
    ModelConfig,
    TrainConfig,
    measure_schema,
    model_named,
    relevant,
    settings_of,
)
from thinkalike.config.compose import completed, keys_of
from thinkalike.config.parts import HOW_IT_RUNS, PROCESSES
from thinkalike.data.documents import text_fingerprint
from thinkalike.errors import ConfigError, ResultError, ThinkalikeError, flat, listed, nearest, one_line, short
from thinkalike.models.families import told_apart
from thinkalike.models.places import checkpoint_fingerprint
from thinkalike.plugins import instrument, instrument_of, measure_entry
from thinkalike.processes import ProcessGroup, doing
from thinkalike.store import Headline, Job, Result, first_scalar, newest_state, read_state, write_state

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd

    from thinkalike.models.shapes import Passes, Shape, Shapes

log = logging.getLogger(__name__)

EVERY_JOB = {  # settings that every job reads, or that decide which job it is
    "task", "measure", "experiment", "models", "trainer", "logger", "threads", "store", "force",
    "wait", "dry_run", "budget",
}  # fmt: skip
# settings that decide others, where those are left open
RECIPES = {"scale": ("mini", "paper"), "recipe": ("honest", "paper")}
CORPORA = ("model.corpus", "target.corpus")
# what `budget=` leaves of a job, from all of it to little: layers of each model, and one part of so many of the text
LADDER = ((10**9, 1), (12, 1), (8, 1), (5, 1), (5, 2), (5, 4), (5, 8), (5, 16), (5, 32), (5, 64), (5, 128), (2, 128))
OF_SITES = {"model.site", "target.site", "model.head", "target.head"}
ONE_SITE = "{}=: {} reads the stream after each block, resid_post, alone; measure=cka or mlem read other sites"
FIT_TEXT = frozenset({"data.fit_tokens"})  # of jobs that fit something on text
REPORT_TEXT = frozenset({"data.report_tokens"})  # of jobs where no setting of the measure says how much is read
AMOUNTS = ("batches", "tokens_per_batch", "tokens", "words")  # settings of a measure that say how much is compared
OF_STITCHES = frozenset({"trainer.compile", "trainer.memory", "trainer.recompute"})


@dataclass
class Outcome:
    """The numbers that a job computed."""

    table: pd.DataFrame  # the tidy table of the result
    scalars: dict[str, float]  # headline numbers by name
    arrays: dict[str, np.ndarray] = field(default_factory=dict)
    tables: dict[str, pd.DataFrame] = field(default_factory=dict)  # beside the table
    models: Sequence[dict[str, Any]] = ()  # the provenance of each
    facts: dict[str, Any] = field(default_factory=dict)  # the provenance of the data
    draw: Callable[[Path], Any] = lambda folder: None  # into a folder, beside the figures that its kind draws
    blank: Sequence[str] = ()  # columns and arrays that may have empty cells

    def guarded(self) -> Outcome:
        """Return this outcome with blank ends of unbounded intervals; raise a ResultError of what is not finite."""
        for name, value in self.scalars.items():
            self._check(f"the headline number {name}", value)
        for table in (self.table, *self.tables.values()):
            for column, cells in _with_ends(table, 0.0).select_dtypes("number").items():
                self._check(str(column), cells.to_numpy(), table)
        for name, values in self.arrays.items():
            if values.dtype.kind == "f":
                self._check(name, values)
        tables = {name: _with_ends(table, math.nan) for name, table in self.tables.items()}
        return replace(self, table=_with_ends(self.table, math.nan), tables=tables)

    def _check(self, name: str, values: Any, table: pd.DataFrame | None = None) -> None:
        import numpy as np

        wrong = np.argwhere(np.isinf(values) if name in self.blank else ~np.isfinite(values))
        if len(wrong):
            place = tuple(map(int, wrong[0]))
            row: Any = {} if table is None else table.iloc[[*place]].select_dtypes(exclude="float").iloc[0]
            where = f" ({', '.join(f'{column}={cell}' for column, cell in row.items())[:200]})" if len(row) else ""
            raise ResultError(
                f"{name}{list(place) or ''}{where} came out as {np.asarray(values)[place]}, so nothing is stored; "
                "check the weights and the text, or take more of the text and model.dtype=float32"
            )


def _with_ends(table: pd.DataFrame, end: float) -> pd.DataFrame:
    """Return a table with this number for both ends of each interval from minus to plus infinity."""
    changed: dict[str, Any] = {}
    for low in (name for name in map(str, table) if name.endswith("low")):
        if (high := f"{low.removesuffix('low')}high") in table:
            unbounded = (table[low] == -math.inf) & (table[high] == math.inf)
            changed |= {name: table[name].mask(unbounded, end) for name in (low, high)}
    return table.assign(**changed)


class Phases:
    """The seconds that this run of a job has spent in each of its phases.

    A phase inside another one takes its time from it, so that the seconds of all phases add up to those of the run.
    """

    def __init__(self) -> None:
        self._seconds: defaultdict[str | None, float] = defaultdict(float)
        self._now: str | None = None
        self._since = time.monotonic()

    @contextlib.contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        """Time a phase, and show it as the current activity."""
        with doing(name), self.counting(name):
            yield

    @contextlib.contextmanager
    def counting(self, name: str) -> Iterator[None]:
        """Time a phase."""
        before = self._turn_to(name)
        try:
            yield
        finally:
            self._turn_to(before)

    @property
    def seconds(self) -> dict[str, float]:
        """The seconds of each phase that has ended, to a hundredth."""
        return {name: round(value, 2) for name, value in self._seconds.items() if name}

    def _turn_to(self, name: str | None) -> str | None:
        now, before = time.monotonic(), self._now
        self._seconds[before] += now - self._since
        self._now, self._since = name, now
        return before


@dataclass
class Work:
    """The context of a running job."""

    job: Job  # `job.partial` is the folder of its states, `job.aside` that of files of the result
    settings: dict[str, Any]  # as dictionaries, without the parts that the job does not read
    inputs: Mapping[str, Any]  # what `Instrument.inputs` read
    opened: contextlib.ExitStack  # contexts that stay open until the result is there
    processes: ProcessGroup = field(default_factory=ProcessGroup)  # that share the job
    tracker: Any = None  # of `thinkalike.loggers`, if W&B gets the curves
    phase: Phases = field(default_factory=Phases)  # `with work.phase("loading"): ...`; the rest is "computing"

    def resume(self, name: str) -> dict[str, Any] | None:
        """Return the state that an earlier run kept under a name, or None; a damaged one is put aside."""
        if path := newest_state(self.job.states, name):
            log.info("resuming from %s", path)
        return read_state(path) if path else None

    def keep(self, name: str, state: dict[str, Any]) -> None:
        """Keep a state of tensors and plain values under a name, in place of the one before."""
        write_state(self.job.states, name, state)


@contextlib.contextmanager
def phase_of_all(works: Iterable[Work], name: str) -> Iterator[None]:
    """Time a phase of all jobs of one pass; phases inside it take their time from it."""
    with contextlib.ExitStack() as phases, doing(name, steps_aside=True):
        for work in works:
            phases.enter_context(work.phase.counting(name))
        yield


@contextlib.contextmanager
def readable(result: Result) -> Iterator[None]:
    """Turn an error of showing or drawing a stored result into one line.

    The table, the scalars and the provenance of such a result may lack anything: somebody may have changed it, or
    another version may have computed it. What the machine or the terminal lacks passes on, as it is no fault of the
    result.

    Raises:
        ResultError: the result has not what its kind shows.
    """
    from thinkalike.memory import exhausted

    try:
        yield
    except (ThinkalikeError, OSError, UnicodeError):
        raise
    except Exception as error:
        if exhausted(error):
            raise
        reason = f"{type(error).__name__}: {one_line(error)}"
        remedy = "it was changed, or is of another version; compute it again with force=true"
        raise ResultError(f"{result.folder} lacks what {result.kind} shows ({reason}): {remedy}") from error


class Instrument(ABC):
    """A kind of job."""

    kind: str  # the folder of its results in a store
    version: int  # raised when its numbers change for one and the same configuration
    reads: tuple[str, ...]  # the parts of the configuration that can change the numbers
    config: ClassVar[type]  # of train.py or of analyze.py
    inner_jobs_read: ClassVar[tuple[str, ...]] = ()  # further parts, or single settings, that jobs inside this one read
    ignores: ClassVar[frozenset[str]] = frozenset()  # settings of the parts that it reads that change nothing of it
    takes_activations: ClassVar[bool] = False  # whether recordings can take the place of the model
    is_shared: ClassVar[bool] = False  # whether several processes of analyze.py can share the job
    run_all: ClassVar[Callable[..., list[Outcome | ThinkalikeError]] | None] = None  # does several jobs with less work:
    # given (instrument, configuration, work) of each, it returns the outcome of each, or its error
    takes_sites: ClassVar[bool] = False  # whether states can be those of another site than the stream after each block
    of_models: ClassVar[str] = ""  # what `models=[...]` stands for: jobs of "pairs", of "each", one of "all", or none
    smallest: ClassVar[Mapping[str, Any]] = {}  # settings that make a job small enough for a test or an example

    def __init_subclass__(
        cls, *, kind: str = "", reads: Sequence[str] = (), version: int = 1, config: type = AnalyzeConfig, **more: Any
    ):
        super().__init_subclass__(**more)
        if not kind:
            return  # what several kinds have in common
        parts = {item.name for item in fields(config)}
        if unknown := set(reads) - parts:
            raise TypeError(f"{cls.__name__} reads {sorted(unknown)}, and {config.__name__} has {sorted(parts)}")
        cls.kind, cls.reads, cls.version, cls.config = kind, tuple(reads), version, config

    @property
    def settings(self) -> type[MeasureConfig]:
        """The schema of `measure.` settings of an instrument of analyze.py."""
        return MeasureConfig.schemas[self.kind]

    def inputs(self, config: Any) -> Mapping[str, Any]:
        """Read, before the job begins, everything besides the settings that decides the numbers.

        Each is a fingerprint, or something that has one as `.fingerprint()`; by default those of models and text.
        """
        return fingerprints(config, self.reads)

    def prepare(self, config: Any) -> Mapping[str, Any]:
        """Do the jobs whose results this one reads; returns these results, as further `inputs`."""
        return {}

    def prepared(self, config: Any) -> Sequence[Any]:
        """Return the configurations of the jobs that `prepare` would do, so that a forecast counts them."""
        return ()

    def completed(self, config: Any) -> Any:
        """Return the configuration with everything decided that was left open and that this job reads."""
        return completed(config, self.reads)

    def with_unread_reset(self, config: Any) -> Any:
        """Return the configuration with every setting that this job ignores reset to its default, or to None."""
        return config

    def reads_setting(self, key: str, read: Any, config: Any) -> bool:
        """Return whether this job reads the value that `config` has for a key, given `read` of `with_unread_reset`."""
        part, _, setting = key.partition(".")
        key = ".".join(key.split(".")[:2])  # of a dictionary, such as model.architecture.n_layers, the whole
        if part == "logger" and setting in config.logger.unused:
            return False
        if self.is_ignored(key, config):
            return False
        if part == "logger" or (part == "trainer" and setting in PROCESSES):
            return True
        if part == "trainer" and isinstance(config, TrainConfig):
            return not setting or bool(getattr(read.trainer, setting) == getattr(config.trainer, setting))
        parts = {*self.reads, *self.inner_jobs_read, *(["activations"] if self.takes_activations else [])}
        if not {part, key} & parts or (key in OF_SITES and not self.takes_sites):
            return False
        own, given = getattr(read, part, None), getattr(config, part)
        if not setting:
            return own == given or is_dataclass(own)
        name = setting.partition(".")[0]
        value = getattr(given, name)
        is_same = getattr(own, name, MISSING) == value or value == "auto"  # which other settings have decided by now
        return value is None or (own is not None and name not in own.unused and is_same)

    def is_ignored(self, key: str, config: Any) -> bool:
        """Return whether a setting of a part that this kind of job reads changes nothing of it."""
        part, _, setting = key.partition(".")
        if key in self.ignores:
            return True
        schema = getattr(config, part, None)
        items = {item.name: item for item in fields(schema)} if is_dataclass(schema) else {}
        item = items.get(setting.partition(".")[0])
        return item is not None and item.metadata.get("read_by", self.kind) != self.kind

    def models_of(self, config: Any) -> Mapping[str, ModelConfig]:
        """Return the models that a job runs: by the part of the configuration, or by their names.

        The part is empty where states were recorded, and then runs nothing.
        """
        parts = {part: getattr(config, part) for part in ("model", "target") if part in self.reads}
        return {part: model for part, model in parts.items() if model is not None and model.name}

    def shapes_of(self, config: Any) -> dict[str, Shape | None]:
        """Return the shapes of the models of `models_of`, without loading weights; None where a shape is unknown."""
        from thinkalike.models.shapes import shape_of

        models = self.models_of(config)
        names = told_apart(list(models.values()))
        return {part: shape_of(model, name) for (part, model), name in zip(models.items(), names, strict=True)}

    def passes(self, config: Any, shapes: Shapes) -> Sequence[Passes]:
        """Return the passes of the models of a job, given their shapes; by default each reads the report once."""
        if "data" not in self.reads or not config.data.report_tokens:
            return []
        row = config.data.context or min((shape.context for shape in shapes.values()), default=0)
        tokens = float(config.data.report_tokens)
        return [shape.passes("report", tokens, row) for shape in dict.fromkeys(shapes.values())]

    def seconds(self, config: Any, shapes: Shapes) -> float:
        """Return how long a job takes on this machine besides the passes of its models."""
        return 0.0

    def smaller(self, config: Any, shapes: Shapes, chosen: Collection[str]) -> Iterator[dict[str, Any]]:
        """Yield for `budget=` settings of less and less work, by their keys; those that are `chosen` already stay."""
        yield from ()

    def holds(self, config: Any, shapes: Shapes) -> float:
        """Return the bytes that a job needs besides the weights of its models, as known before anything is loaded."""
        return 0.0

    def seed(self, config: Any) -> int:
        """Return the seed of torch's global generator."""
        return int(config.seed) if "seed" in self.reads else 0

    @abstractmethod
    def run(self, config: Any, work: Work) -> Outcome:
        """Compute the numbers."""

    def draw(self, result: Result, folder: Path) -> None:  # noqa: B027
        """Draw the figures of a result into a folder; a kind may have none."""

    def plot(self, result: Result, name: str | None = None, ax: Any = None) -> tuple[Any, Any]:
        """Draw a figure of a result once more, see `thinkalike.plot`; returns the figure and its axes."""
        from thinkalike import figures  # imports matplotlib

        with figures.shown(ax) as drawn, readable(result):
            self.draw(result, result.folder)
        if not drawn:
            raise ResultError(f"measure={result.kind} draws no figure; its numbers are in result.table")
        chosen = name or next(iter(drawn))
        if chosen not in drawn:
            raise ResultError(f"{result.kind} has no figure {name}; {nearest(chosen, drawn)}")
        kept = (drawn[chosen][0], getattr(ax, "figure", None))
        figures.close(figure for figure, _ in drawn.values() if figure not in kept)
        return drawn[chosen]  # type: ignore[no-any-return]

    def said(self, result: Result) -> str:
        """Return what the screen says of a result."""
        text = io.StringIO()
        with contextlib.redirect_stdout(text), readable(result):
            self.show(result)
        return text.getvalue()

    def headlines(self, result: Result) -> Sequence[Headline]:
        """Return the numbers that summarise a result, the most important one first; by default the first scalar.

        Screens, lists of results, the table of a sweep and W&B's summary show them.
        """
        return first_scalar(result.scalars)

    def show(self, result: Result) -> None:  # noqa: B027
        """Print the result for a reader: a table of at most eight columns, and what it says in sentences."""


def fingerprints(config: Any, parts: Sequence[str]) -> dict[str, str]:
    """Return the fingerprints of checkpoints and text, as far as they are among these parts, and the models' labels."""
    models = {part: getattr(config, part) for part in ("model", "target") if part in parts}
    found = {part: checkpoint_fingerprint(model) for part, model in models.items() if model is not None}
    if found:
        found["labels"] = ", ".join(told_apart([models[part] for part in found]))
    return found | ({"data": text_fingerprint(config.data)} if "data" in parts and config.data is not None else {})


def asked_for(config: TrainConfig | AnalyzeConfig) -> Sequence[TrainConfig | AnalyzeConfig]:
    """Return the jobs that a configuration stands for: itself, or those of `models=[...]`, each with its own models.

    Raises:
        ConfigError: there are fewer than two different models, one is not known, a model is also named apart, or the
            measure takes no list.
    """
    if isinstance(config, TrainConfig) or config.models is None:
        return [completed(config)]
    stands_for = instrument(measure_entry(config.measure.kind)).of_models
    if stands_for == "all":
        return [completed(config)]
    runs = settings_of(config.model)
    apart = {"experiment": config.experiment, "activations": config.activations}
    apart |= {f"model.{key}": value for key, value in runs.items() if key not in HOW_IT_RUNS}
    apart |= {f"target.{key}": value for key, value in settings_of(config.target).items()}
    if given := [f"{key}={value}" for key, value in apart.items() if value]:
        raise ConfigError(f"{given[0]} does not go with models=, whose settings are in {{model: NAME, key: value}}")
    models = [_listed_model(entry, runs) for entry in config.models]
    if not stands_for or len(models) < 2 or any(models.count(each) > 1 for each in models):
        raise ConfigError(f"models={config.models} must be two different models or more, for a measure that takes them")
    pairs: Any = itertools.combinations(models, 2) if stands_for == "pairs" else zip(models, models, strict=True)
    return [completed(replace(config, models=None, model=one, target=other)) for one, other in pairs]


def _listed_model(entry: str | dict[str, Any], runs: Mapping[str, Any]) -> ModelConfig:
    """Return the configuration of an entry of models=[...], a name or {model: NAME, SETTING: value}.

    Args:
        runs: how all of them run, where an entry says nothing else.
    """
    settings = dict(entry) if isinstance(entry, dict) else {"model": entry}
    name = settings.pop("model", None)
    if name is None:
        raise ConfigError(f"models: {short(entry)} names no model; write {{model: NAME, SETTING: value}}")
    return model_named(str(name), {**runs, **settings})


def _check_listed_models(config: TrainConfig | AnalyzeConfig) -> None:
    """Raise a ConfigError for a setting of an entry of models=[...] that none of the jobs reads."""
    if isinstance(config, TrainConfig) or config.models is None:
        return
    kind = instrument(measure_entry(config.measure.kind))
    # the one job of all models is made of comparisons of pairs
    measure = measure_schema("cka")() if kind.of_models == "all" else config.measure
    jobs = asked_for(replace(config, measure=measure))
    sides = [(job, part) for job in jobs for part in ("model", "target")]
    for entry in config.models:
        if not isinstance(entry, dict):
            continue
        model = _listed_model(entry, settings_of(config.model))
        for name in entry:
            if name == "model":
                continue
            of_model = [
                (job, part)
                for job, part in sides
                if getattr(job, part).called == model.called
                and getattr(getattr(job, part), name) == getattr(model, name)
            ]
            readers = [instrument_of(job) for job, _ in of_model]
            is_read = any(
                reader.reads_setting(f"{part}.{name}", reader.with_unread_reset(job), job)
                for reader, (job, part) in zip(readers, of_model, strict=True)
            )
            if of_model and not is_read:
                raise ConfigError(f"models: {name} of {model.called} has no effect on {kind.kind}; leave it out")


def _is_read(key: str, jobs: Sequence[tuple[Instrument, Any]], config: TrainConfig | AnalyzeConfig) -> bool:
    """Return whether one of the jobs that a configuration stands for reads what it has for a key.

    Args:
        jobs: each with its configuration of `Instrument.with_unread_reset`.
    """
    if key in RECIPES:
        return _decides(key, config)
    if key in CORPORA and config.data.name is not None:
        return False
    return any(kind.reads_setting(key, job, config) for kind, job in jobs)


def _decides(key: str, config: TrainConfig | AnalyzeConfig) -> bool:
    """Return whether the jobs that a configuration stands for differ between the values of `scale` or `recipe`.

    The value that holds anyway is no error: scale=mini says that the usual choice is meant.
    """
    if isinstance(config, AnalyzeConfig) and config.experiment is not None:
        return True
    is_usual = config.recipe == "honest" if key == "recipe" else replace(config, scale="auto").is_mini == config.is_mini
    if is_usual:
        return True
    variants = []
    for value in RECIPES[key]:
        changed: Any = {key: value}
        try:
            jobs = asked_for(replace(config, **changed))
        except ConfigError:  # the settings of one recipe alone go with the others that are given
            return True
        variants.append([_settings_read(job) for job in jobs])
    return variants[0] != variants[1]


def _settings_read(config: TrainConfig | AnalyzeConfig) -> dict[str, Any]:
    """Return the settings that a job reads and that differ from their defaults, by their keys."""
    kind = instrument_of(config)
    parts = {*kind.reads, *kind.inner_jobs_read}
    settings = flat(relevant(kind.with_unread_reset(config)))
    return {
        key: value
        for key, value in settings.items()
        if key.partition(".")[0] in parts and not kind.is_ignored(key, config)
    }


def warn_of_unread(files: Mapping[str, Collection[str]], config: TrainConfig | AnalyzeConfig) -> None:
    """Say which settings of configuration files change nothing of the jobs that a configuration stands for.

    They are no error, as several kinds of jobs may share a file.

    Args:
        files: the keys that each file sets.
    """
    differing = flat(relevant(config))
    for file, keys in files.items():
        jobs, unread = _unread([key for key in sorted(keys) if key in differing], config)
        if unread:
            names = ", ".join(dict.fromkeys(kind.kind for kind, _ in jobs))
            log.warning("warning: %s sets %s, which %s does not read", file, listed(unread), names)


def _unread(keys: Iterable[str], config: TrainConfig | AnalyzeConfig) -> tuple[list[tuple[Instrument, Any]], list[str]]:
    """Return the jobs that a configuration stands for, and those of the keys that none of them reads."""
    keys = [key for key in keys if key not in EVERY_JOB]
    if isinstance(config, TrainConfig) or config.experiment is None or config.models is not None:
        jobs = [(instrument_of(job), job) for job in asked_for(config)]
    else:
        own = instrument_of(config)
        jobs = [(instrument_of(job), job) for _, job in own.jobs(config)[1]] or [(own, config)]
        keys = [key for key in keys if key.partition(".")[0] not in ("model", "target")]
    read = [(kind, kind.with_unread_reset(job)) for kind, job in jobs]
    return jobs, [key for key in keys if not _is_read(key, read, config)]


def check_read(overrides: Sequence[str], config: TrainConfig | AnalyzeConfig) -> None:
    """Raise a ConfigError unless each setting of the overrides is read by a job that a configuration stands for.

    Models that a command line names for an experiment are checked by it.
    """
    _check_listed_models(config)
    jobs, unread = _unread(keys_of(overrides), config)
    for key in unread:
        names, part = ", ".join(dict.fromkeys(kind.kind for kind, _ in jobs)), key.partition(".")[0]
        parts = dict.fromkeys(part for kind, _ in jobs for part in (*kind.reads, *kind.inner_jobs_read))
        if key in OF_SITES and not any(kind.takes_sites for kind, _ in jobs):
            raise ConfigError(ONE_SITE.format(key, names))
        if key in REPORT_TEXT and part in parts:
            measures = [vars(getattr(job, "measure", None) or job) for _, job in jobs]
            amounts = [f"measure.{name}" for name in AMOUNTS if any(name in measure for measure in measures)]
            told = f"; {' and '.join(amounts)} say how much is compared" if amounts else "; leave it out"
            raise ConfigError(f"{key}= has no effect on {names}{told}")
        if part in parts:
            raise ConfigError(f"{key}= has no effect on {names} beside the other settings; leave it out")
        key = key if key != "target" else "model@target"
        raise ConfigError(f"{key}= is not read by {names} with these settings; it reads {', '.join(parts)}")
