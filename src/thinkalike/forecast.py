"""The jobs that a command line stands for, with their operations, tokens, bytes and GPU hours: `dry_run=true`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from thinkalike.config import AnalyzeConfig, TrainConfig, TrainerConfig
from thinkalike.errors import ThinkalikeError
from thinkalike.instruments import asked_for, instrument_of, passes
from thinkalike.job import Estimate, Phase, estimate, is_stored, together, total
from thinkalike.memory import GAPS, readable
from thinkalike.models.labels import told_apart
from thinkalike.models.places import pick_device
from thinkalike.models.shapes import PEAKS, PRECISIONS, Shape, precision_of
from thinkalike.screen import Table, number_column, show_table, show_text, text_column

SHARE = 0.4  # of the peak; 40 % and more is what large trainings reach (Chowdhery et al. 2022, table 3)
COMPARED = ("comparing", "closed forms")  # phases that compare states, always in float32
PROCESS, ENTRY = 6e8, 1500.0  # bytes on a CPU: of Python with its libraries, and of each entry of a tokenizer
GPUS = ("A100", "H100")  # with 80 GB; their peaks are those of NVIDIA's data sheets, without sparsity


@dataclass(frozen=True)
class Planned:
    """A job, its phases and models, and whether the store has its result.

    Attributes:
        training, passes: the precision of products in training, and in other passes: bfloat16, TF32 or float32.
        holds: the bytes beside the models that are known before anything is loaded.
        on_cpu: whether they are of the machine, and not of a GPU.
    """

    label: str
    training: str
    passes: str
    is_stored: bool
    estimate: Estimate
    holds: float
    on_cpu: bool

    def hours(self, gpu: str, phases: Sequence[Phase] | None = None) -> float:
        """Return the hours of all its phases, or of these, on a GPU at `SHARE` of its peak."""
        chosen = self.estimate.phases if phases is None else phases
        of_phase = {**dict.fromkeys(COMPARED, "float32"), "training": self.training}
        return float(sum(hours_on(gpu, each.operations, of_phase.get(each.name, self.passes)) for each in chosen))


@dataclass(frozen=True)
class Forecast:
    """Jobs by the passes in which they are done."""

    passes: Sequence[Sequence[Planned]]

    @property
    def jobs(self) -> list[Planned]:
        """All jobs."""
        return [job for each in self.passes for job in each]

    @property
    def missing(self) -> list[list[Planned]]:
        """The jobs that the store lacks, by pass."""
        return [lacking for each in self.passes if (lacking := [job for job in each if not job.is_stored])]

    @property
    def phases(self) -> list[Phase]:
        """All phases of the missing jobs; those that jobs of one pass share appear once."""
        return [phase for each in self.missing for phase in together(job.estimate.phases for job in each)]

    @property
    def shapes(self) -> list[Shape]:
        """The different models, by name."""
        return _shapes(self.jobs)

    @property
    def unknown(self) -> list[str]:
        """The names of models of unknown shape; every sum leaves their jobs out."""
        return list(dict.fromkeys(name for job in self.jobs for name in job.estimate.unknown))

    @property
    def bytes(self) -> float:
        """The most bytes that a pass is known to hold: its models, and the bytes of its largest job.

        On a CPU the process and the tokenizers count as well.
        """
        return max(map(_bytes, self.missing), default=0.0)

    def hours(self, gpu: str) -> float:
        """Return the hours on a GPU at `SHARE` of its peak, each job at the precision of its own products."""
        return float(sum(each[0].hours(gpu, together(job.estimate.phases for job in each)) for each in self.missing))


def _shapes(jobs: Sequence[Planned]) -> list[Shape]:
    return list({shape.name: shape for job in jobs for shape in job.estimate.shapes.values()}.values())


def _bytes(jobs: Sequence[Planned]) -> float:
    entry, process = (ENTRY, PROCESS) if any(job.on_cpu for job in jobs) else (0.0, 0.0)
    models = sum(each.bytes + entry * each.vocabulary for each in _shapes(jobs))
    return process + models + GAPS * max(job.holds for job in jobs)


def hours_on(gpu: str, operations: float, precision: str) -> float:
    """Return the hours of a number of operations on a GPU at `SHARE` of its peak."""
    return operations / (SHARE * PEAKS[gpu][PRECISIONS.index(precision)]) / 3600


def forecast(config: TrainConfig | AnalyzeConfig, looks_up: bool = True) -> Forecast:
    """Return the jobs of a configuration: one, those of `models=[...]`, or the parts of an experiment.

    Args:
        looks_up: whether to ask the store which jobs are done.

    Raises:
        ThinkalikeError: The configuration is wrong.
    """
    labelled = _jobs(config)
    places = passes([job for _, job in labelled])
    return Forecast([[_planned(*labelled[place], looks_up) for place in each] for each in places])


def _jobs(config: Any) -> list[tuple[str, Any]]:
    """Return the jobs with their labels, each after the jobs that it needs."""
    if isinstance(config, AnalyzeConfig) and config.experiment and config.models is None:
        experiment: Any = instrument_of(config)
        asked = experiment.jobs(config)[1]
    else:
        asked = [(_name(job), job) for job in asked_for(config)]
    found: list[tuple[str, Any]] = []
    for label, job in asked:
        needed = instrument_of(job).prepared(job)
        found += [(_name(each), each) for each in needed if each not in [done for _, done in found]]
        found.append((label, job))
    return found


def _name(config: Any) -> str:
    """Return the kind of a job and the names of its models."""
    kind = instrument_of(config)
    names = told_apart(list(kind.models_of(config).values()))
    return f"{kind.kind}: {', '.join(dict.fromkeys(names))}" if names else kind.kind


def _planned(label: str, config: Any, looks_up: bool) -> Planned:
    kind, dtype = instrument_of(config), config.model.dtype
    guess = estimate(kind, config)
    stored = looks_up and not kind.makes_inputs and _is_stored(kind, config)
    precisions = precision_of(dtype, config.trainer), precision_of(dtype, TrainerConfig())
    holds = 0.0 if guess.unknown else kind.holds(config, guess.shapes)
    return Planned(label, *precisions, stored, guess, holds, pick_device(config.model.device) == "cpu")


def _is_stored(kind: Any, config: Any) -> bool:
    """Return whether the store has a result; a job whose hub is out of reach counts as not stored."""
    try:
        return is_stored(kind, config)
    except ThinkalikeError:
        reads_hub = any(not (model.path or model.mini) for model in kind.models_of(config).values())
        if reads_hub or config.data.source == "hub" or config.pairs.source == "hub":
            return False
        raise


def show(plan: Forecast, speed: float | None = None) -> None:
    """Print the models, the jobs, and the sums of the missing ones.

    Args:
        speed: floating-point operations per second of this machine, if known.
    """
    sizes = ("layers", "width", "vocabulary", "parameters")
    if shapes := plan.shapes:
        columns = [number_column(size, [getattr(shape, size) for shape in shapes], ",") for size in sizes]
        names = text_column("model", [shape.name for shape in shapes])
        weights = number_column("weights", [readable(shape.bytes) for shape in shapes])
        show_table(Table("models", [names, *columns, weights]))
    if plan.jobs:
        cells = zip(*(row for job in plan.jobs for row in _rows(job)), strict=True)
        words = [text_column(name, next(cells)) for name in ("job", "phase", "tokens read")]
        numbers = [number_column(name, next(cells)) for name in ("FLOPs", f"hours on one 80 GB {GPUS[0]}")]
        show_table(Table("jobs", [*words, *numbers], keys=2))
    for line in summary(plan, speed):
        show_text(line)


def _rows(job: Planned) -> list[tuple[str, ...]]:
    """Return the rows of a job: its name in the first, phase, tokens, operations, hours."""
    phases = [] if job.is_stored else job.estimate.phases
    if not phases:
        why = "in the store" if job.is_stored else "unknown" if job.estimate.unknown else "no passes of models"
        return [(job.label, why, "", "", "")]
    read = ["\n".join(f"{model} {tokens:,.0f}" for model, tokens in each.tokens.items() if tokens) for each in phases]
    return [
        ("" if place else job.label, phase.name, text, f"{phase.operations:.3g}", f"{job.hours(GPUS[0], [phase]):.2g}")
        for place, (phase, text) in enumerate(zip(phases, read, strict=True))
    ]


def summary(plan: Forecast, speed: float | None = None) -> list[str]:
    """Return the lines below the tables: operations, bytes and hours, at the `speed` of `show`."""
    todo, whole = [job for each in plan.missing for job in each], total(plan.phases)
    apart = sum(total(job.estimate.phases) for job in todo)
    count = f"{len(todo)} of {len(plan.jobs)} jobs to do"
    lines = [f"{count}: {whole:.3g} FLOPs; at least {readable(plan.bytes)} of memory"]
    if whole < apart:
        lines.append(f"in one pass; one after the other {apart:.3g} FLOPs")
    lines += [f"{plan.hours(gpu):.2g} hours on one 80 GB {gpu} at {SHARE:.0%} of its peak" for gpu in GPUS if whole]
    if speed is not None:
        lines.append(f"{whole / speed / 3600:.2g} hours on this machine, at {speed:.2g} FLOPs per second")
    if plan.unknown:
        lines.append(f"without the jobs of {', '.join(plan.unknown)}, whose sizes are unknown")
    return [*lines, "dry run: nothing was loaded, computed or written"]
