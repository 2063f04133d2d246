"""The jobs that a command line stands for, and what each takes: operations, tokens, bytes and hours on a large GPU."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from thinkalike.config import AnalyzeConfig, TrainConfig, TrainerConfig
from thinkalike.errors import ThinkalikeError
from thinkalike.instruments import asked_for, instrument_of, passes
from thinkalike.job import Estimate, Phase, estimate, is_stored, together
from thinkalike.models import PEAKS, PRECISIONS, Shape, precision_of
from thinkalike.papers import experiment_named
from thinkalike.papers.experiment import job_of

SHARE = 0.4  # of the peak; 40 % and more is what large trainings reach (Chowdhery et al. 2022, table 3)
COMPARED = ("comparing", "closed forms")  # phases of states and not of models
GPUS = ("A100", "H100")  # with 80 GB; their peaks are those of NVIDIA's data sheets, without sparsity


@dataclass(frozen=True)
class Planned:
    """A job, and what it takes.

    Attributes:
        label: what it is called.
        training, passes: the precision of products in training, and in other passes: bfloat16, TF32 or float32.
        is_stored: whether the store has its result.
        estimate: its phases and models.
        holds: the bytes beside the weights that are known before anything is loaded.
    """

    label: str
    training: str
    passes: str
    is_stored: bool
    estimate: Estimate
    holds: float

    def precision(self, phase: Phase) -> str:
        """Return the precision of the products of a phase; states are compared in float32 whatever models run in."""
        if phase.name in COMPARED:
            return "float32"
        return self.training if phase.name == "training" else self.passes

    def hours(self, gpu: str, phases: Sequence[Phase] | None = None) -> float:
        """Return the hours of all its phases, or of these, on a GPU at `SHARE` of its peak."""
        chosen = self.estimate.phases if phases is None else phases
        return float(sum(hours_on(gpu, phase.operations, self.precision(phase)) for phase in chosen))


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
        """The jobs of each pass that the store lacks."""
        return [[job for job in each if not job.is_stored] for each in self.passes]

    @property
    def phases(self) -> list[Phase]:
        """All phases of what the store lacks; what jobs of one pass share is there once."""
        return [phase for each in self.missing for phase in together(job.estimate.phases for job in each)]

    @property
    def shapes(self) -> list[Shape]:
        """The different models, by name."""
        return list({shape.name: shape for job in self.jobs for shape in job.estimate.shapes.values()}.values())

    @property
    def unknown(self) -> list[str]:
        """The names of models whose shape cannot be known here; what they take is missing in every sum."""
        return list(dict.fromkeys(name for job in self.jobs for name in job.estimate.unknown))

    @property
    def bytes(self) -> float:
        """The most bytes that a pass is known to hold: the weights of its models, and what its jobs hold."""
        return max((_bytes(each) for each in self.missing if each), default=0.0)

    def hours(self, gpu: str) -> float:
        """Return the hours on a GPU at `SHARE` of its peak, each job at the precision of its own products."""
        shared = [(each[0], together(job.estimate.phases for job in each)) for each in self.missing if each]
        return float(sum(first.hours(gpu, phases) for first, phases in shared))


def hours_on(gpu: str, operations: float, precision: str) -> float:
    """Return the hours of so many operations on a GPU at `SHARE` of its peak."""
    return operations / (SHARE * PEAKS[gpu][PRECISIONS.index(precision)]) / 3600


def forecast(config: TrainConfig | AnalyzeConfig, looks_up: bool = True) -> Forecast:
    """Return what a configuration stands for: a job, those of `models=[...]`, or the parts of an experiment.

    Args:
        looks_up: whether the store is asked which jobs are done.

    Raises:
        ThinkalikeError: the configuration is wrong.
    """
    labels, jobs = _jobs(config)
    return Forecast([[_planned(labels[place], jobs[place], looks_up) for place in places] for places in passes(jobs)])


def _jobs(config: Any) -> tuple[list[str], list[Any]]:
    if isinstance(config, AnalyzeConfig) and config.experiment and config.models is None:
        experiment = experiment_named(config.experiment)
        experiment.check(config)
        parts = experiment.parts(experiment.case(config))
        asked = [(part.label, job_of(config, part)) for part in parts]
    else:
        asked = [(_name(job), job) for job in asked_for(config)]
    labels, jobs = list[str](), list[Any]()
    for label, job in asked:
        first = [each for each in instrument_of(job).prepared(job) if each not in jobs]
        labels += [*map(_name, first), label]
        jobs += [*first, job]
    return labels, jobs


def _name(config: Any) -> str:
    """Return the kind of a job and the names of its models."""
    kind = instrument_of(config)
    names = [model.name for model in kind.models_of(config).values()]
    return f"{kind.kind}: {', '.join(dict.fromkeys(names))}" if names else kind.kind


def _planned(label: str, config: Any, looks_up: bool) -> Planned:
    kind = instrument_of(config)
    guess = estimate(kind, config)
    stored = looks_up and not kind.makes_inputs and _is_stored(kind, config)
    dtype = config.model.dtype
    precisions = precision_of(dtype, config.trainer), precision_of(dtype, TrainerConfig())
    return Planned(label, *precisions, stored, guess, kind.holds(config, guess.shapes))


def _is_stored(kind: Any, config: Any) -> bool:
    """Return whether the store has a result; a job that reads the hub, which may be out of reach, then counts as not.

    Raises:
        ThinkalikeError: the configuration of a job that reads nothing from the hub is wrong.
    """
    try:
        return is_stored(kind, config)
    except ThinkalikeError:
        models: Mapping[str, Any] = kind.models_of(config)
        reads_hub = any(not (model.path or model.mini) for model in models.values())
        if reads_hub or config.data.source == "hub" or config.pairs.source == "hub":
            return False
        raise


def _bytes(jobs: Sequence[Planned]) -> float:
    shapes = {shape.name: shape for job in jobs for shape in job.estimate.shapes.values()}
    return sum(shape.bytes for shape in shapes.values()) + max(job.holds for job in jobs)
