"""The frame of every job: a kind is declared once, and key, lock, seed, provenance and results follow from that.

    class Loss(Instrument[AnalyzeConfig], kind="loss", version=1, reads=("model", "data")):
        def run(self, config, work): ...       # the computation, from models and data to tables
        def draw(self, result, folder): ...    # its figure, from the result
        def show(self, result): ...            # what the screen says, from the result

`perform(Loss(), config)` does the rest, and returns the finished `Result`; `perform_all` does several in one pass.
"""

from __future__ import annotations

import contextlib
import io
import logging
import math
import time
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Generic

from typing_extensions import TypeVar

from thinkalike.config import AnalyzeConfig, MeasureConfig, ModelConfig
from thinkalike.config.groups import completed
from thinkalike.config.parts import PROCESSES
from thinkalike.config.schema import (
    Checked,
    SettingValues,
    declared_of,
    fields_of,
    key_settings,
    value_at,
    with_settings,
)
from thinkalike.data.documents import text_fingerprint
from thinkalike.errors import ResultError, ThinkalikeError, nearest, one_line
from thinkalike.models.fingerprints import checkpoint_fingerprint
from thinkalike.models.labels import told_apart
from thinkalike.processes import ProcessGroup, doing
from thinkalike.store import Headline, Job, Result, first_scalar, newest_state, read_state, write_state
from thinkalike.unkept import UnkeptJob

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd

    from thinkalike.models.shapes import Passes, Shape, Shapes

log = logging.getLogger(__name__)

Config = TypeVar("Config", default=Any)  # the configuration of the jobs of an instrument

# settings that every job has, whatever its kind: which job it is, and where and how it runs
OF_EVERY_JOB = frozenset({
    "task", "measure", "experiment", "models", "trainer", "logger", "threads", "store", "force",
    "wait", "dry_run", "budget", *(f"trainer.{name}" for name in PROCESSES),
})  # fmt: skip
# what `budget=` leaves of a job, from all of it to little: layers of each model, and one part of so many of the text
LADDER = ((10**9, 1), (12, 1), (8, 1), (5, 1), (5, 2), (5, 4), (5, 8), (5, 16), (5, 32), (5, 64), (5, 128), (2, 128))
OF_SITES = frozenset({"model.site", "target.site", "model.head", "target.head"})
FIT_TEXT = frozenset({"data.fit_tokens"})  # of jobs that fit something on text
REPORT_TEXT = frozenset({"data.report_tokens"})  # of jobs where no setting of the measure says how much is read
OF_STITCHES = frozenset({"trainer.compile", "trainer.memory", "trainer.recompute"})


def draw_nothing(folder: Path) -> None:
    """Draw no figure; a function with a name, so that an outcome can be pickled."""


@dataclass
class Outcome:
    """The numbers that a job computed."""

    table: pd.DataFrame  # the tidy table of the result
    scalars: dict[str, float]  # headline numbers by name
    arrays: dict[str, np.ndarray] = field(default_factory=dict)
    tables: dict[str, pd.DataFrame] = field(default_factory=dict)  # beside the table
    models: Sequence[dict[str, Any]] = ()  # the provenance of each
    facts: dict[str, Any] = field(default_factory=dict)  # the provenance of the data
    draw: Callable[[Path], Any] = draw_nothing  # into a folder, beside the figures that its kind draws
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

    job: Job | UnkeptJob  # of a kept one `job.partial` is the folder of its states, `job.aside` that of the result
    settings: dict[str, Any]  # as dictionaries, without the parts that the job does not read
    inputs: Mapping[str, Any]  # what `Instrument.inputs` read
    opened: contextlib.ExitStack  # contexts that stay open until the result is there
    processes: ProcessGroup = field(default_factory=ProcessGroup)  # that share the job
    tracker: Any = None  # of `thinkalike.loggers`, if W&B gets the curves
    phase: Phases = field(default_factory=Phases)  # `with work.phase("loading"): ...`; the rest is "computing"

    def resume(self, name: str) -> dict[str, Any] | None:
        """Return the state that an earlier run kept under a name, or None; a damaged one is put aside."""
        if not self.job.keeps_states:
            return None
        if path := newest_state(self.job.states, name):
            log.info("resuming from %s", path)
        return read_state(path) if path else None

    def keep(self, name: str, state: dict[str, Any]) -> None:
        """Keep a state of tensors and plain values under a name, in place of the one before, if the job is kept."""
        if self.job.keeps_states:
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
    from thinkalike.memory import out_of_memory_error

    try:
        yield
    except (ThinkalikeError, OSError, UnicodeError):
        raise
    except Exception as error:
        if out_of_memory_error(error):
            raise
        reason = f"{type(error).__name__}: {one_line(error)}"
        remedy = "it was changed, or is of another version; compute it again with force=true"
        raise ResultError(f"{result.place} lacks what {result.kind} shows ({reason}): {remedy}") from error


class Instrument(ABC, Generic[Config]):
    """A kind of job.

    A subclass declares in its first line what it is called, which parts of the configuration it reads, and its version:

        class Loss(Instrument[AnalyzeConfig], kind="loss", version=2, reads=("model", "data")):

    Its settings are those of these parts, see `settings_read`. A setting of a new kind is a field of its schema, see
    `thinkalike.config.schema.setting`; a kind itself overrides `unread` if some job of it does not read all of them.
    """

    kind: str  # the folder of its results in a store
    version: int  # raised when its numbers change for one and the same configuration
    reads: tuple[str, ...]  # the parts of the configuration that can change the numbers
    config: ClassVar[type]  # of train.py or of analyze.py
    takes_activations: ClassVar[bool] = False  # whether recordings can take the place of the model
    needs_store: ClassVar[bool] = False  # whether it does other jobs, or writes files of its own, which need a store
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

    def inputs(self, config: Config) -> Mapping[str, Any]:
        """Read, before the job begins, everything besides the settings that decides the numbers.

        Each is a fingerprint, or something that has one as `.fingerprint()`; by default those of models and text.
        """
        return fingerprints(config, self.reads)

    def prepare(self, config: Config) -> Mapping[str, Any]:
        """Do the jobs whose results this one reads; returns these results, as further `inputs`."""
        return {}

    def prepared(self, config: Any) -> Sequence[Any]:
        """Return the configurations of the jobs that `prepare` would do, so that a forecast counts them."""
        return ()

    def completed(self, config: Config) -> Config:
        """Return the configuration with everything decided that was left to the recipe, in the parts that it reads."""
        return completed(config, self.reads)  # type: ignore[no-any-return]

    def settings_read(self, config: Config) -> frozenset[str]:
        """Return the keys of the settings that this very job reads, such as "layers", "data" and "data.context".

        All that asks which settings a job has asks here: a command line that sets another one is refused, a file that
        sets one is warned of, and `scale` and `recipe` are refused if they decide none of these.

        A kind declares `reads`, its schemas say in `Checked.settings_read` what has an effect beside the values of
        other settings, and `unread` takes away what this very job does not read. So a kind overrides this method only
        if jobs inside it read more than itself, see `keys_of_part`.
        """
        of_parts = {"activations"} if self.takes_activations else set()
        for part in self.reads:
            of_parts |= self.keys_of_part(config, part)
        unread = self.unread(config)
        read = {key for key in of_parts if key not in unread and key.partition(".")[0] not in unread}
        return OF_EVERY_JOB | self.keys_of_part(config, "logger") | read

    def keys_of_part(self, config: Config, part: str) -> set[str]:
        """Return the key of a part of the configuration, and those of its settings that jobs of this kind can read."""
        schema = getattr(config, part, None)
        keys = {part}
        if isinstance(schema, Checked):
            read = schema.settings_read()
            of_kind = [item.name for item in fields_of(schema) if declared_of(item).only_for in (None, self.kind)]
            keys |= {f"{part}.{name}" for name in of_kind if name in read}
        return keys if self.takes_sites else keys - OF_SITES

    def unread(self, config: Config) -> SettingValues:
        """Return by their keys the settings, or whole parts, of `reads` that this very job does not read.

        With each stands the value that the key of the job has for it, so that jobs that differ in such settings alone
        are one job: the default of a setting, None for a part. `left_in_key` gives the values that are there.

            def unread(self, config):
                return {} if config.measure.null == "drift" else {"data.fit_tokens": None}
        """
        return {}

    def as_read(self, config: Config) -> Config:
        """Return the configuration that the key of a job is made of: what the job does not read is as `unread` says."""
        return with_settings(config, self.unread(config))

    def key_settings(self, config: Config) -> dict[str, Any]:
        """Return the settings that enter the key of a job: those of the parts that it reads, unless by default."""
        entering = key_settings(self.as_read(config))
        return {name: value for name, value in entering.items() if name in self.reads}

    def models_of(self, config: Config) -> Mapping[str, ModelConfig]:
        """Return the models that a job runs: by the part of the configuration, or by their names.

        The part is empty where states were recorded, and then runs nothing.
        """
        parts = {part: getattr(config, part) for part in ("model", "target") if part in self.reads}
        return {part: model for part, model in parts.items() if model is not None and model.name}

    def shapes_of(self, config: Config) -> dict[str, Shape | None]:
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

    def seed(self, config: Config) -> int:
        """Return the seed of torch's global generator."""
        return int(value_at(config, "seed")) if "seed" in self.reads else 0

    @abstractmethod
    def run(self, config: Config, work: Work) -> Outcome:
        """Compute the numbers."""

    def draw(self, result: Result, folder: Path) -> None:
        """Draw the figures of a result into a folder; a kind may have none."""

    def plot(self, result: Result, name: str | None = None, ax: Any = None) -> tuple[Any, Any]:
        """Draw a figure of a result once more, see `thinkalike.plot`; returns the figure and its axes."""
        from thinkalike import figures  # imports matplotlib

        with figures.shown(ax) as drawn, readable(result):
            self.draw(result, Path("figures"))  # where nothing is written
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

    def show(self, result: Result) -> None:
        """Print the result for a reader: a table of at most eight columns, and what it says in sentences."""


def left_in_key(config: Any, keys: Iterable[str]) -> dict[str, Any]:
    """Return settings with the values that they have, for `Instrument.unread`.

    A key that has always had them, such as the amount of text of a recipe, has them for ever: stored results stay
    found.
    """
    return {key: value_at(config, key) for key in keys}


def fingerprints(config: Any, parts: Sequence[str]) -> dict[str, str]:
    """Return the fingerprints of checkpoints and text, as far as they are among these parts, and the models' labels."""
    models = {part: getattr(config, part) for part in ("model", "target") if part in parts}
    found = {part: checkpoint_fingerprint(model) for part, model in models.items() if model is not None}
    if found:
        found["labels"] = ", ".join(told_apart([models[part] for part in found]))
    return found | ({"data": text_fingerprint(config.data)} if "data" in parts and config.data is not None else {})
