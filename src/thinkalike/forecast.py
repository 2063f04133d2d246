"""What the jobs of a command line take, before anything is loaded: `dry_run=true`.

FLOPs are those of the passes of models; what a job computes from states comes on top. Bytes are at least needed.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from thinkalike.config import AnalyzeConfig, TrainConfig, TrainerConfig
from thinkalike.errors import ModelError
from thinkalike.instruments import asked_for, instrument_of, passes
from thinkalike.job import Instrument, is_stored
from thinkalike.memory import GAPS, readable
from thinkalike.models.families import pick_device, told_apart
from thinkalike.models.shapes import Passes, Shape
from thinkalike.screen import Table, number_column, show_table, show_text, text_column

SHARE = 0.4  # of the peak; 40 % and more is what large trainings reach (Chowdhery et al. 2022, table 3)
PROCESS, ENTRY = 6e8, 1500.0  # bytes on a CPU: of Python with its libraries, and of each entry of a tokenizer
PEAKS = {  # FLOPs per second of GPUs with 80 GB, without sparsity (NVIDIA's data sheets)
    "A100": {"bfloat16": 312e12, "TF32": 156e12, "float32": 19.5e12},
    "H100": {"bfloat16": 989e12, "TF32": 494e12, "float32": 67e12},
}


class Planned(NamedTuple):
    """A job before it runs: its models, by name, and their passes, of which an unknown shape leaves none."""

    label: str
    is_stored: bool
    shapes: Mapping[str, Shape | None]
    passes: Sequence[Passes]
    precision: str  # of products: bfloat16, TF32 or float32
    holds: float  # bytes beside the models; on a CPU those of the process and its tokenizers, too


@dataclass(frozen=True)
class Forecast:
    """Jobs by the pass over the text in which they are done; sums are of those that the store lacks."""

    together: Sequence[Sequence[Planned]]

    @property
    def jobs(self) -> list[Planned]:
        return [job for each in self.together for job in each]

    @property
    def missing(self) -> list[list[Planned]]:
        return [lacking for each in self.together if (lacking := [job for job in each if not job.is_stored])]

    @property
    def passes(self) -> list[tuple[Passes, str]]:
        """The passes of models with their precisions; those that several jobs share appear once."""
        found: list[tuple[Passes, str]] = []
        for jobs in self.missing:
            own = [(each, job.precision) for job in jobs for each in job.passes]
            found += dict.fromkeys(each for each in own if each[0].is_shared)
            found += [each for each in own if not each[0].is_shared]
        return found

    @property
    def flops(self) -> float:
        return float(sum(each.flops for each, _ in self.passes))

    @property
    def bytes(self) -> float:
        """The most bytes that a pass over the text is known to hold: its models, and those of its largest job."""
        most = (sum(shape.bytes for shape in shapes_of(jobs)) + max(job.holds for job in jobs) for jobs in self.missing)
        return float(max(most, default=0.0))

    def hours(self, gpu: str) -> float:
        return float(sum(hours_on(gpu, *each) for each in self.passes))


def hours_on(gpu: str, each: Passes, precision: str) -> float:
    """Return the hours of passes on a GPU at `SHARE` of its peak."""
    return each.flops / (SHARE * PEAKS[gpu][precision]) / 3600


def speed(seconds: float = 0.3) -> float:
    """Return how many operations per second a product of large float32 matrices reaches on this machine."""
    place, n, done = pick_device("auto"), 1024, 0
    matrix = torch.randn(n, n, device=place)
    float((matrix @ matrix)[0, 0])  # the first product waits for the device
    began = time.perf_counter()
    while (took := time.perf_counter() - began) < seconds:
        float((matrix @ matrix)[0, 0])
        done += 1
    return 2 * n**3 * done / took


def precision_of(dtype: str | None, trainer: TrainerConfig) -> str:
    """Return the precision of the products of a job with models of this dtype: bfloat16, TF32 or float32."""
    if trainer.precision == "bf16-mixed" or trainer.matmul == "medium" or dtype in ("bfloat16", "float16"):
        return "bfloat16"
    return "TF32" if trainer.matmul == "high" else "float32"


def shapes_of(jobs: Iterable[Planned]) -> list[Shape]:
    """Return the different models of jobs."""
    return list({name: shape for job in jobs for name, shape in job.shapes.items() if shape}.values())


def forecast(config: TrainConfig | AnalyzeConfig, looks_up: bool = True) -> Forecast:
    """Return the jobs of a configuration: one, those of `models=[...]`, or the parts of an experiment.

    With `looks_up` the store is asked which of them are done.
    """
    labelled = _jobs(config)
    places = passes([job for _, job in labelled])
    return Forecast([[_planned(*labelled[place], looks_up) for place in each] for each in places])


def _jobs(config: Any) -> list[tuple[str, Any]]:
    """Return the jobs with their labels, each after the jobs that it needs."""
    if isinstance(config, AnalyzeConfig) and config.experiment and config.models is None:
        asked = instrument_of(config).jobs(config)[1]
    else:
        asked = [(_name(job), job) for job in asked_for(config)]
    found: list[tuple[str, Any]] = []
    for name, job in asked:
        needed = instrument_of(job).prepared(job)
        found += [(_name(each), each) for each in needed if each not in [done for _, done in found]]
        found.append((name, job))
    return found


def _name(config: Any) -> str:
    kind = instrument_of(config)
    names = told_apart(list(kind.models_of(config).values()))
    return f"{kind.kind}: {', '.join(dict.fromkeys(names))}" if names else kind.kind


def _planned(label: str, config: Any, looks_up: bool) -> Planned:
    kind = instrument_of(config)
    found, models = kind.shapes_of(config), kind.models_of(config)
    shapes = {part: shape for part, shape in found.items() if shape}
    own, holds = [], 0.0
    if len(shapes) == len(found):
        own = [each for each in kind.passes(config, shapes) if each.tokens]
        holds = GAPS * kind.holds(config, shapes)
    if pick_device(config.model.device) == "cpu":
        holds += PROCESS + ENTRY * sum(shape.vocabulary for shape in {*shapes.values()})
    is_done = False
    if looks_up and type(kind).prepare is Instrument.prepare:  # else it would do other jobs
        with contextlib.suppress(ModelError):  # if the hub is out of reach, it counts as not stored
            is_done = is_stored(kind, config)
    named = dict(zip(told_apart(list(models.values())), found.values(), strict=True))
    return Planned(label, is_done, named, own, precision_of(config.model.dtype, config.trainer), holds)


def show(plan: Forecast, speed: float | None = None) -> None:
    """Print the jobs and the sums of the missing ones, with the hours at a speed in FLOPs per second, if given."""
    if plan.jobs:
        labels, tokens, flops = zip(*(row for job in plan.jobs for row in _rows(job)), strict=True)
        counts = [number_column("tokens read", tokens), number_column("FLOPs", flops)]
        show_table(Table("jobs, and the passes of their models", [text_column("job", labels), *counts]))
    for line in summary(plan, speed):
        show_text(line)


def _rows(job: Planned) -> list[tuple[str, str, str]]:
    """Return a row with the label of a job, and one for the passes of each of its models: tokens and FLOPs."""
    if job.is_stored or not job.passes:
        why = "in the store" if job.is_stored else "unknown" if None in job.shapes.values() else "no passes of models"
        return [(f"{job.label}: {why}", "", "")]
    rows = [(f"- {each.phase}, {each.model.name}", f"{each.tokens:,.0f}", f"{each.flops:.3g}") for each in job.passes]
    return [(job.label, "", ""), *rows]


def summary(plan: Forecast, speed: float | None = None) -> list[str]:
    """Return the lines below the table: FLOPs, bytes and hours."""
    todo, whole = [job for each in plan.missing for job in each], plan.flops
    count = f"{len(todo)} of {len(plan.jobs)} jobs to do"
    lines = [f"{count}: {whole:.3g} FLOPs in passes of models; at least {readable(plan.bytes)} of memory"]
    lines += [f"{plan.hours(gpu):.2g} hours on one 80 GB {gpu} at {SHARE:.0%} of its peak" for gpu in PEAKS if whole]
    if speed is not None:
        lines.append(f"{whole / speed / 3600:.2g} hours on this machine, at {speed:.2g} FLOPs per second")
    if unknown := dict.fromkeys(name for job in plan.jobs for name, shape in job.shapes.items() if shape is None):
        lines.append(f"without the jobs of {', '.join(unknown)}, whose sizes are unknown")
    return [*lines, "dry run: nothing was loaded, computed or written"]
