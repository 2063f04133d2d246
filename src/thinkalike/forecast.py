"""What the jobs of a command line take, before anything is loaded: `dry_run=true`.

FLOPs are those of the passes of models; what a job computes from states comes on top. Bytes are at
least needed. Seconds are measured: blocks of the sizes of each model, and a step of the job's work
with random states, are timed on this machine once, and remembered.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from thinkalike.config import AnalyzeConfig, JobConfig, TrainerConfig
from thinkalike.instruments import asked_for, instrument_of, jobs_by_pass
from thinkalike.job.instrument import AnyInstrument
from thinkalike.job.planning import is_known_done
from thinkalike.memory import FRAGMENTATION, readable
from thinkalike.models.families import pick_device
from thinkalike.models.labels import distinct_labels
from thinkalike.models.shapes import Passes, Shape
from thinkalike.screen import Table, number_column, show_table, show_text, text_column

# of the peak; 40 % and more is what large trainings reach (Chowdhery et al. 2022, table 3)
SHARE_OF_PEAK = 0.4
PEAKS = {  # FLOPs per second of GPUs with 80 GB, without sparsity (NVIDIA's data sheets)
    "A100": {"bfloat16": 312e12, "TF32": 156e12, "float32": 19.5e12},
    "H100": {"bfloat16": 989e12, "TF32": 494e12, "float32": 67e12},
}
START_SECONDS = 7.0  # of Python, its libraries and reading text
SECONDS_PER_WEIGHT = 1e-8  # of loading it, and of the proof of the model that has it
# of loading an entry of a tokenizer; one of 262,144 takes longer than the weights beside it
SECONDS_PER_ENTRY = 5e-5
BYTES_OF_PROCESS = 6e8  # on a CPU: of Python with its libraries
BYTES_PER_ENTRY = 1500.0  # of a tokenizer
HOUR = 3600


def _no_work() -> float:
    """Return the time of a job that computes nothing beside the passes of its models."""
    return 0.0


@dataclass(frozen=True)
class ForecastJob:
    """A job before it runs.

    Attributes:
        label: What the table calls it.
        is_stored: Whether the store has its result.
        shapes: Its models, by name; None: the shape is unknown.
        passes: The passes of its models; none if a shape is unknown.
        precision: Of products: bfloat16, TF32 or float32.
        bytes_beside_models: On a CPU also those of the process and its tokenizers.
        time_work: Times what is computed beside the passes.
    """

    label: str
    is_stored: bool
    shapes: Mapping[str, Shape | None]
    precision: str
    passes: Sequence[Passes] = ()
    bytes_beside_models: float = 0.0
    time_work: Callable[[], float] = field(default=_no_work)

    @property
    def seconds(self) -> float:
        """The time on this machine of what is computed beside passes."""
        return self.time_work()

    @property
    def has_unknown_shape(self) -> bool:
        """Whether the size of one of its models is unknown."""
        return None in self.shapes.values()


@dataclass(frozen=True)
class Forecast:
    """Jobs by the pass over the text in which they are done; sums are of those to be done."""

    passes_over_text: Sequence[Sequence[ForecastJob]]

    @property
    def jobs(self) -> list[ForecastJob]:
        """All jobs, in their order."""
        return [job for jobs in self.passes_over_text for job in jobs]

    @property
    def missing(self) -> list[list[ForecastJob]]:
        """The jobs of each pass that the store lacks."""
        missing = []
        for jobs in self.passes_over_text:
            not_stored = [job for job in jobs if not job.is_stored]
            if not_stored:
                missing.append(not_stored)
        return missing

    @property
    def passes(self) -> list[tuple[Passes, str]]:
        """The passes of models with their precisions; those that jobs share appear once."""
        counted: list[tuple[Passes, str]] = []
        for jobs in self.missing:
            shared: dict[tuple[Passes, str], None] = {}
            of_one_job = []
            for job in jobs:
                for model_passes in job.passes:
                    entry = (model_passes, job.precision)
                    if model_passes.is_shared:
                        shared[entry] = None
                    else:
                        of_one_job.append(entry)
            counted += [*shared, *of_one_job]
        return counted

    @property
    def flops(self) -> float:
        """The operations of all passes."""
        return float(sum(model_passes.flops for model_passes, _ in self.passes))

    @property
    def bytes(self) -> float:
        """The most bytes that a pass over the text is known to hold.

        These are its models, and what its largest job holds beside them.
        """
        most = 0.0
        for jobs in self.missing:
            of_models = sum(shape.bytes for shape in shapes_of(jobs))
            beside_models = max(job.bytes_beside_models for job in jobs)
            most = max(most, of_models + beside_models)
        return float(most)

    def hours(self, gpu: str) -> float:
        """Return the hours of all passes on a GPU."""
        hours = [hours_on(gpu, model_passes, precision) for model_passes, precision in self.passes]
        return float(sum(hours))

    def seconds(self) -> float:
        """Return the time on this machine."""
        seconds = self.seconds_of_passes()
        for jobs in self.missing:
            seconds += START_SECONDS
            seconds += sum(job.seconds for job in jobs)
            seconds += sum(seconds_to_load(shape) for shape in shapes_of(jobs))
        return seconds

    def seconds_of_passes(self) -> float:
        """Return the time on this machine of the passes of models alone."""
        return float(sum(model_passes.seconds for model_passes, _ in self.passes))


def seconds_to_load(shape: Shape) -> float:
    """Return how long a model and its tokenizer take to load."""
    return SECONDS_PER_WEIGHT * shape.parameters + SECONDS_PER_ENTRY * shape.vocabulary


def hours_on(gpu: str, passes: Passes, precision: str) -> float:
    """Return the hours of passes on a GPU at `SHARE_OF_PEAK`."""
    return passes.flops / (SHARE_OF_PEAK * PEAKS[gpu][precision]) / HOUR


def precision_of(dtype: str | None, trainer: TrainerConfig) -> str:
    """Return the precision of the products of a job: bfloat16, TF32 or float32.

    Args:
        dtype: That of its models.
    """
    is_half = trainer.precision == "bf16-mixed" or trainer.matmul == "medium"
    if is_half or dtype in ("bfloat16", "float16"):
        return "bfloat16"
    return "TF32" if trainer.matmul == "high" else "float32"


def shapes_of(jobs: Iterable[ForecastJob]) -> list[Shape]:
    """Return the different models of jobs."""
    by_name = {}
    for job in jobs:
        for name, shape in job.shapes.items():
            if shape is not None:
                by_name[name] = shape
    return list(by_name.values())


def forecast(config: JobConfig, looks_up: bool = True) -> Forecast:
    """Return the jobs of a configuration: one, those of `models=[...]`, or those of an experiment.

    Args:
        looks_up: Whether the store is asked which of them are done.
    """
    labelled = _labelled_jobs(config)
    passes_over_text = []
    for positions in jobs_by_pass([job for _, job in labelled]):
        jobs = []
        for position in positions:
            label, job = labelled[position]
            jobs.append(_forecast_of_job(label, job, looks_up))
        passes_over_text.append(jobs)
    return Forecast(passes_over_text)


def _labelled_jobs(config: JobConfig) -> list[tuple[str, JobConfig]]:
    """Return the jobs with their labels, each after the jobs that it needs."""
    requested: Sequence[tuple[str, JobConfig]]
    if isinstance(config, AnalyzeConfig) and config.experiment and config.models is None:
        requested = instrument_of(config).labelled_jobs(config)
    else:
        requested = [(_label_of_job(job), job) for job in asked_for(config)]

    labelled: list[tuple[str, JobConfig]] = []
    for label, job in requested:
        earlier_jobs = [earlier for _, earlier in labelled]
        for needed in instrument_of(job).prepared_jobs(job):
            if needed not in earlier_jobs:
                labelled.append((_label_of_job(needed), needed))
        labelled.append((label, job))
    return labelled


def _label_of_job(config: JobConfig) -> str:
    """Return the kind of a job with its models."""
    kind = instrument_of(config)
    names = distinct_labels(list(kind.models_of(config).values()))
    if not names:
        return kind.kind
    return f"{kind.kind}: {', '.join(dict.fromkeys(names))}"


def _forecast_of_job(label: str, config: JobConfig, looks_up: bool) -> ForecastJob:
    """Return what is known of a job before it runs."""
    kind = instrument_of(config)
    names = distinct_labels(list(kind.models_of(config).values()))
    shapes = kind.shapes_of(config)
    known_shapes = {name: shape for name, shape in shapes.items() if shape is not None}
    job = ForecastJob(
        label,
        is_stored=looks_up and is_known_done(kind, config),
        shapes=dict(zip(names, shapes.values(), strict=True)),
        precision=precision_of(config.model.dtype, config.trainer),
        bytes_beside_models=_bytes_of_process(config, known_shapes),
    )
    has_recorded_states = bool(getattr(config, "activations", None))
    if has_recorded_states or len(known_shapes) < len(shapes):
        return job
    return _with_work(job, kind, config, known_shapes)


def _bytes_of_process(config: JobConfig, shapes: Mapping[str, Shape]) -> float:
    """Return the bytes of Python and of tokenizers; a GPU holds neither."""
    if pick_device(config.model.device) != "cpu":
        return 0.0
    entries = sum(shape.vocabulary for shape in set(shapes.values()))
    return BYTES_OF_PROCESS + BYTES_PER_ENTRY * entries


def _with_work(job: ForecastJob, kind: AnyInstrument, config: JobConfig, shapes: Mapping[str, Shape]) -> ForecastJob:
    """Return a job with what its instrument says of its work."""
    bytes_of_job = FRAGMENTATION * kind.bytes_beside_models(config, shapes)
    job = replace(
        job,
        passes=[of_model for of_model in kind.model_passes(config, shapes) if of_model.tokens],
        bytes_beside_models=job.bytes_beside_models + bytes_of_job,
    )
    if shapes:
        job = replace(job, time_work=partial(kind.seconds_beside_passes, config, shapes))
    return job


# ---- in words


def duration_in_words(seconds: float) -> str:
    """Return a time in its largest fitting unit, such as 40 minutes."""
    size, unit = 1, "seconds"
    for larger_size, larger_unit in ((60, "minutes"), (HOUR, "hours")):
        if seconds >= 2 * larger_size - 1:
            size, unit = larger_size, larger_unit
    number = f"{seconds / size:.2g}" if seconds < 100 * size else f"{seconds / size:,.0f}"
    return f"{number} {unit}"


def show(plan: Forecast, seconds: float | None = None) -> None:
    """Print the jobs and the sums of the missing ones.

    Args:
        seconds: Their time on this machine, if it is known.
    """
    if plan.jobs:
        rows = [row for job in plan.jobs for row in _table_rows(job)]
        columns = [
            text_column("job", [label for label, _, _ in rows]),
            number_column("tokens read", [tokens for _, tokens, _ in rows]),
            number_column("FLOPs", [flops for _, _, flops in rows]),
        ]
        show_table(Table("jobs, and the passes of their models", columns))
    for line in summary_lines(plan, seconds):
        show_text(line)


def _table_rows(job: ForecastJob) -> list[tuple[str, str, str]]:
    """Return a row with the label of a job, and rows of its passes: their tokens and FLOPs."""
    if job.is_stored:
        return [(f"{job.label}: in the store", "", "")]
    if not job.passes:
        reason = "unknown" if job.has_unknown_shape else "no passes of models"
        return [(f"{job.label}: {reason}", "", "")]
    rows = [(job.label, "", "")]
    for of_model in job.passes:
        label = f"- {of_model.phase}, {of_model.model.name}"
        rows.append((label, f"{of_model.tokens:,.0f}", f"{of_model.flops:.3g}"))
    return rows


def summary_lines(plan: Forecast, seconds: float | None = None) -> list[str]:
    """Return the lines below the table: FLOPs, bytes and hours."""
    count = sum(len(jobs) for jobs in plan.missing)
    flops = plan.flops
    lines = [
        f"{count} of {len(plan.jobs)} jobs to do: {flops:.3g} FLOPs in passes of models; "
        f"at least {readable(plan.bytes)} of memory"
    ]
    if flops:
        for gpu in PEAKS:
            hours = plan.hours(gpu)
            lines.append(f"{hours:.2g} hours on one 80 GB {gpu} at {SHARE_OF_PEAK:.0%} of its peak")
    if seconds is not None and count:
        time = duration_in_words(seconds)
        lines.append(f"about {time} on this machine, as small steps of it were timed")

    unknown: dict[str, None] = {}
    for job in plan.jobs:
        unknown |= dict.fromkeys(name for name, shape in job.shapes.items() if shape is None)
    if unknown:
        lines.append(f"without the jobs of {', '.join(unknown)}, whose sizes are unknown")
    return [*lines, "dry run: nothing was loaded, and no result computed or written"]
