"""A kind of job: it is declared once, and key, lock, seed and results follow from that.

    class Loss(Instrument[AnalyzeConfig], kind="loss", version=1, reads=("model", "data")):
        def run(self, config, work): ...       # the computation, from models and data to tables
        def draw(self, result, folder): ...    # its figure, from the result
        def show(self, result): ...            # what the screen says, from the result

`thinkalike.job.performing.perform(Loss(), config)` does the rest, and returns the `Result`.
"""

from __future__ import annotations

import contextlib
import io
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Generic

from typing_extensions import TypeVar

from thinkalike.advice import named_setting
from thinkalike.config import AnalyzeConfig, JobConfig, MeasureConfig, ModelConfig
from thinkalike.config.completing import completed
from thinkalike.config.parts import UNSEEN_BY_MINIS
from thinkalike.config.schema import Checked, SettingValues, declared_of, fields_of
from thinkalike.config.values import key_settings, with_settings
from thinkalike.errors import ResultError, ThinkalikeError, nearest
from thinkalike.former_names import with_former_names
from thinkalike.job.inputs import Inputs, fingerprints
from thinkalike.job.outcome import Outcome
from thinkalike.job.setting_groups import FIT_TEXT, OF_EVERY_JOB, OF_SITES
from thinkalike.job.work import Work
from thinkalike.models.labels import distinct_labels
from thinkalike.screen import gathered_sentences
from thinkalike.store import Headline, Result, first_scalar
from thinkalike.store.damaged_results import reporting_damage

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from thinkalike.models.shapes import Passes, Shape, Shapes

# The class of the configurations of an instrument.
Config = TypeVar("Config", bound=JobConfig, default=AnalyzeConfig)


class Instrument(ABC, Generic[Config]):
    """A kind of job.

    A subclass declares in its first line its name, the parts of the configuration that it reads,
    and its version:

        class Loss(Instrument[AnalyzeConfig], kind="loss", version=2, reads=("model", "data")):

    Its settings are those of these parts, see `settings_read`. A setting of a new kind is a field
    of its schema, see `thinkalike.config.schema.setting`; a kind overrides `unread` only if some
    of its jobs do not read all of them.

    Attributes:
        kind: The folder of its results in a store.
        version: Raised when its numbers change for one and the same configuration.
        reads: The parts of the configuration that can change the numbers.
        config: The class of its configurations, for train.py or for analyze.py.
        takes_activations: Whether recordings can take the place of the model.
        takes_sites: Whether states can be taken at other places (sites) in a model than the
            residual stream after each block, such as the output of attention.
        needs_store: Whether it does further jobs, or writes files of its own, which need a store.
        is_shared: Whether several processes of analyze.py can share the job.
        run_all: Does several jobs in one pass over the text; returns the outcome of each, or its
            error. None: each job is run by itself.
        of_models: The jobs that `models=[...]` stands for: one for each of the "pairs", one for
            "each" model, one of "all" models; "": the instrument takes no list.
        smallest: Settings that make a job small enough for a test or an example.
    """

    kind: str
    version: int
    reads: tuple[str, ...]
    config: ClassVar[type[JobConfig]]
    takes_activations: ClassVar[bool] = False
    takes_sites: ClassVar[bool] = False
    needs_store: ClassVar[bool] = False
    is_shared: ClassVar[bool] = False
    run_all: ClassVar[staticmethod[[Sequence[RunningJob]], list[OutcomeOrError]] | None] = None
    of_models: ClassVar[str] = ""
    smallest: ClassVar[Mapping[str, object]] = {}

    def __init_subclass__(
        cls,
        *,
        kind: str = "",
        reads: Sequence[str] = (),
        version: int = 1,
        config: type[JobConfig] = AnalyzeConfig,
    ) -> None:
        """Store what a subclass declares in its first line; without `kind` it declares nothing.

        Raises:
            TypeError: `reads` names a part that the configuration does not have.
        """
        super().__init_subclass__()
        if not kind:  # a base class of several kinds
            return

        names_of_parts = {item.name for item in fields(config)}
        unknown = set(reads) - names_of_parts
        if unknown:
            raise TypeError(
                f"{cls.__name__} reads {sorted(unknown)}, "
                f"and {config.__name__} has {sorted(names_of_parts)}"
            )
        cls.kind = kind
        cls.reads = tuple(reads)
        cls.version = version
        cls.config = config

    # ---- settings

    @property
    def settings(self) -> type[MeasureConfig]:
        """The schema of `measure.` settings of an instrument of analyze.py."""
        return MeasureConfig.schemas[self.kind]

    def completed(self, config: Config) -> Config:
        """Return the configuration with a value for each setting that was left open.

        The recipe of the configuration decides these values. Only the parts in `reads` are
        completed.
        """
        return completed(config, self.reads)

    def settings_read(self, config: Config) -> frozenset[str]:
        """Return the keys of the settings that a job with this configuration reads.

        A key is a name such as "data.context". A setting on a command line that is not read is
        refused, one in a file leads to a warning, and `scale` and `recipe` are refused if they
        decide none of these settings.

        The keys are those of the parts in `reads`. Two kinds of settings are left out: those that
        have no effect because of the values of others, which the schema of each part knows
        (`Checked.settings_read`), and those that `unread` names. A kind of job overrides this
        method only if jobs inside it read settings that it does not read itself.
        """
        keys = set(OF_EVERY_JOB)
        keys |= self.keys_of_part(config, "logger")
        keys_of_kind = {"activations"} if self.takes_activations else set()
        for part_name in self.reads:
            keys_of_kind |= self.keys_of_part(config, part_name)

        unread = set(self.unread(config))
        # A job that fits nothing evaluates models on all of a user's text, so that there is
        # nothing to split. A built-in text is split nevertheless: minis were trained on a part.
        fits_nothing = unread.issuperset(FIT_TEXT)
        is_text_of_user = config.data.source in UNSEEN_BY_MINIS
        if fits_nothing and is_text_of_user:
            unread.add("data.same_split")
        for key in keys_of_kind:
            part_name = key.partition(".")[0]
            if key not in unread and part_name not in unread:
                keys.add(key)
        return frozenset(keys)

    def keys_of_part(self, config: Config, part: str) -> set[str]:
        """Return the key of a part, and the keys of its settings that a job of this kind reads.

        Left out are settings for another kind of job, and settings without an effect given the
        values of other settings (the part's own `settings_read` leaves these out). If jobs of this
        kind always read states at one place in a model, the residual stream after a block, the
        settings that choose another place (a site) are left out as well.

        Args:
            config: The configuration.
            part: The name of the part, such as "data".
        """
        keys = {part}
        schema = getattr(config, part, None)
        if isinstance(schema, Checked):
            names_read = schema.settings_read()
            for item in fields_of(schema):
                is_for_this_kind = declared_of(item).only_for in (None, self.kind)
                if is_for_this_kind and item.name in names_read:
                    keys.add(f"{part}.{item.name}")
        if not self.takes_sites:
            keys -= OF_SITES  # the settings that choose where states are read
        return keys

    def unread(self, config: Config) -> SettingValues:
        """Return the settings and whole parts of the configuration that a certain job ignores.

        Only those are returned that other jobs of this kind read, as the class attribute `reads`
        declares. Each comes with the value that enters the hash of the job in its place: usually
        the default of a setting, and None for a part. So jobs that differ only in ignored settings
        share one stored result. If an ignored setting must stay in the hash as it is, the function
        `left_in_key` returns it with the value that the configuration has.

            def unread(self, config):
                trains_copies = config.measure.null == "continued_training"
                return {} if trains_copies else {"data.fit_tokens": None}
        """
        return {}

    def as_read(self, config: Config) -> Config:
        """Return the configuration with ignored settings replaced by fixed values, see `unread`.

        The key of the job, a hash of its settings, is made from it.
        """
        return with_settings(config, self.unread(config))

    def key_settings(self, config: Config) -> dict[str, object]:
        """Return the settings that enter the key of the job, the hash under which it is stored.

        These are the settings that the job reads and that are not the default. A setting that was
        renamed has its first name here, so that results of earlier versions are found.
        """
        settings_by_part = key_settings(self.as_read(config))  # without those that are the default
        settings_read = {}
        for part_name, settings in settings_by_part.items():
            if part_name in self.reads:
                settings_read[part_name] = settings
        return with_former_names(settings_read)

    def seed(self, config: Config) -> int:
        """Return the seed of torch's global generator; 0 for a kind whose jobs draw nothing."""
        if "seed" not in self.reads:
            return 0
        return config.seed

    # ---- what the job reads besides its settings

    def inputs(self, config: Config) -> Inputs:
        """Return everything besides the settings that decides the numbers of a job, by name.

        It is called before the job begins. A value is a fingerprint, or an object with a method
        `fingerprint`, such as stimuli that were read. By default, the values are the fingerprints
        of the checkpoints and the text.
        """
        return fingerprints(config, self.reads)

    def prepare(self, config: Config) -> Inputs:
        """Do the jobs whose results this job reads, and return these results by name.

        They are added to what `inputs` returns. By default a job reads no results of other jobs,
        and the mapping is empty.
        """
        return {}

    def prepared_jobs(self, config: Config) -> Sequence[JobConfig]:
        """Return the configurations of the jobs whose results this job reads.

        The method `prepare` does them, and a forecast adds their durations. By default there are
        none.
        """
        return ()

    def labelled_jobs(self, config: Config) -> Sequence[tuple[str, JobConfig]]:
        """Return the jobs that an experiment is made of, each with a label.

        By default there are none: the instrument does a single job.
        """
        return ()

    # ---- what the job takes

    def models_of(self, config: Config) -> Mapping[str, ModelConfig]:
        """Return the configurations of the models that a job runs, by "model" and "target".

        A model without a name is left out: recorded states take its place. Kinds that run further
        models override this method.
        """
        models = {}
        for side in ("model", "target"):
            model: ModelConfig | None = getattr(config, side) if side in self.reads else None
            if model is not None and model.name:
                models[side] = model
        return models

    def shapes_of(self, config: Config) -> dict[str, Shape | None]:
        """Return the shape (layers, widths, context) of each model that a job runs.

        Names are those of `models_of`. No weights are loaded; None stands for a shape that is not
        known.
        """
        from thinkalike.models.shapes import shape_of

        models = self.models_of(config)
        labels = distinct_labels(list(models.values()))
        shapes = {}
        for (name, model), label in zip(models.items(), labels, strict=True):
            shapes[name] = shape_of(model, label)
        return shapes

    def model_passes(self, config: Config, shapes: Shapes) -> Sequence[Passes]:
        """Return the forward passes of the models of a job, from which its duration is forecast.

        By default, each model reads the evaluation text once; a model that is both source and
        target counts once. The list is empty if the job reads no text or the amount of text is not
        set.

        Args:
            config: The configuration of the job.
            shapes: The sizes of its models by name, such as "model" and "target"; see `models_of`.
        """
        if "data" not in self.reads or not config.data.evaluation_tokens:
            return []
        tokens = float(config.data.evaluation_tokens)
        shortest = min((shape.context for shape in shapes.values()), default=0)
        row_length = config.data.context or shortest
        # A shape holds the name of its model, so shapes are equal for one and the same model only.
        distinct_shapes = dict.fromkeys(shapes.values())
        phase = "report"  # the evaluation
        return [shape.passes(phase, tokens, row_length) for shape in distinct_shapes]

    def seconds_beside_passes(self, config: Config, shapes: Shapes) -> float:
        """Return the seconds that a job takes on this machine besides its models' forward passes.

        A forecast of the duration adds them. By default there are none.
        """
        return 0.0

    def reductions(
        self, config: Config, shapes: Shapes, chosen: Collection[str]
    ) -> Iterator[SettingValues]:
        """Yield changes of settings, by key, each of which leaves less work than the one before.

        The setting `budget=` takes the first one that fits into the time. By default there are
        none.

        Args:
            config: The configuration of the job.
            shapes: The sizes of its models by name, such as "model" and "target"; see `models_of`.
            chosen: The keys of settings that were given, and stay as they are.
        """
        yield from ()

    def bytes_beside_models(self, config: Config, shapes: Shapes) -> float:
        """Return the bytes of memory that a job needs besides the weights of its models.

        A forecast of the memory adds them. By default it is 0.
        """
        return 0.0

    # ---- the job itself

    @abstractmethod
    def run(self, config: Config, work: Work) -> Outcome:
        """Do the job and return its tables and numbers.

        Args:
            config: Its configuration, in which no setting is left open.
            work: Has the inputs that were read, and stores states to resume from.
        """

    # ---- its result

    def draw(self, result: Result, folder: Path) -> None:
        """Draw the figures of a result into a folder; by default there are none."""

    def plot(
        self, result: Result, name: str | None = None, ax: Axes | None = None
    ) -> tuple[Figure, Axes | list[Axes]]:
        """Draw a figure of a result once more, and return it with its axes.

        Args:
            result: The result.
            name: The name of the figure; None: the first one that `draw` draws.
            ax: The axes that it is drawn into; None: a new figure.

        Raises:
            ResultError: The result has no figure, or none of this name.
        """
        from thinkalike import figures  # imports matplotlib

        with figures.shown_figures(ax) as drawn, reporting_damage(result.place, result.kind):
            self.draw(result, Path("figures"))  # nothing is written in this context
        if not drawn:
            raise ResultError(
                f"{named_setting('measure', result.kind)} draws no figure; "
                "its numbers are in result.table"
            )
        chosen = name or next(iter(drawn))
        if chosen not in drawn:
            raise ResultError(f"{result.kind} has no figure {name}; {nearest(chosen, drawn)}")

        chosen_figure, axes = drawn[chosen]
        figure_of_caller = getattr(ax, "figure", None)
        other_figures = [
            figure
            for figure, _ in drawn.values()
            if figure not in (chosen_figure, figure_of_caller)
        ]
        figures.close(other_figures)
        return chosen_figure, axes

    def picture(self, result: Result) -> bytes | None:
        """Return the first figure of a result as the bytes of a PNG; None if there is none."""
        from thinkalike import figures

        draws_nothing = type(self).draw is Instrument.draw
        if draws_nothing:
            return None
        try:
            figure, _ = self.plot(result)
        except ResultError:  # there is nothing to draw in this very result
            return None
        # matplotlib lays the figure out only now
        with reporting_damage(result.place, result.kind):
            return figures.png_of(figure)

    def said(self, result: Result) -> str:
        """Return the text that `show` prints about a result."""
        text = io.StringIO()
        with contextlib.redirect_stdout(text), reporting_damage(result.place, result.kind):
            self.show(result)
        return text.getvalue()

    def sentences(self, result: Result) -> Sequence[str]:
        """Return the sentences that `show` prints about a result, without tables and maps."""
        with gathered_sentences() as sentences, reporting_damage(result.place, result.kind):
            self.show(result)
        return sentences

    def ranked(self, table: pd.DataFrame) -> pd.DataFrame:
        """Return the table of a result with its most important rows first.

        By default the table is returned unchanged. A kind whose table has many columns may leave
        some of them out here.
        """
        return table

    def headlines(self, result: Result) -> Sequence[Headline]:
        """Return the numbers that summarise a result, the most important one first.

        Screens, lists of results, the table of a sweep and W&B's summary show them. By default it
        is the first scalar.
        """
        return first_scalar(result.scalars)

    def show(self, result: Result) -> None:
        """Print the result for a reader: a table of at most eight columns, and sentences.

        By default nothing is printed.
        """


AnyInstrument = Instrument[Any]  # whatever the class of its configurations is
RunningJob = tuple[AnyInstrument, AnalyzeConfig, Work]
OutcomeOrError = Outcome | ThinkalikeError
RunTogether = Callable[[Sequence[RunningJob]], list[OutcomeOrError]]


def as_instrument(declared: object) -> AnyInstrument:
    """Return an object of the registry, after an assertion that it is an instrument."""
    assert isinstance(declared, Instrument), f"{declared!r} is no instrument"
    return declared
