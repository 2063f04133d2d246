"""What the jobs of a command line take, before anything is loaded: `dry_run=true`.

FLOPs are those of the passes of models; what a job computes from states comes on top. Bytes are at least needed.
Seconds are measured: blocks of the sizes of each model, and a step of the job's work with random states, are timed on
this machine once, and remembered.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

from thinkalike.config import AnalyzeConfig, TrainConfig, TrainerConfig
from thinkalike.errors import ConfigError
from thinkalike.instruments import asked_for, instrument_of, passes
from thinkalike.job.performing import is_known_done
from thinkalike.memory import FRAGMENTATION, readable
from thinkalike.models.families import pick_device
from thinkalike.models.labels import told_apart
from thinkalike.models.shapes import Passes, Shape
from thinkalike.screen import Table, number_column, show_table, show_text, text_column

log = logging.getLogger(__name__)

SHARE = 0.4  # of the peak; 40 % and more is what large trainings reach (Chowdhery et al. 2022, table 3)
START = 7.0  # seconds of Python, its libraries and reading text
WEIGHT_SECONDS = 1e-8  # of loading each weight, and of the proof of the model that has it
ENTRY_SECONDS = 5e-5  # of loading each entry of a tokenizer; one of 262,144 takes longer than the weights beside it
PROCESS, ENTRY = 6e8, 1500.0  # bytes on a CPU: of Python with its libraries, and of each entry of a tokenizer
LONG, BEYOND = 600.0, 1.2  # seconds beyond which a job is offered a budget, and times a budget that is still in it
BUDGETS = ("10min", "30min", "2h", "8h")
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
    time_work: Callable[[], float] = lambda: 0.0  # times what is computed beside passes

    @property
    def seconds(self) -> float:
        """The time on this machine of what is computed beside passes."""
        return self.time_work()


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

    def seconds(self) -> float:
        """The time on this machine."""
        seconds = sum(passes.seconds for passes, _ in self.passes)
        for jobs in self.missing:
            seconds += START + sum(job.seconds for job in jobs)
            seconds += sum(seconds_to_load(shape) for shape in shapes_of(jobs))
        return seconds


def seconds_to_load(shape: Shape) -> float:
    return WEIGHT_SECONDS * shape.parameters + ENTRY_SECONDS * shape.vocabulary


def hours_on(gpu: str, each: Passes, precision: str) -> float:
    """Return the hours of passes on a GPU at `SHARE` of its peak."""
    return each.flops / (SHARE * PEAKS[gpu][precision]) / 3600


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
    models = kind.models_of(config)
    shapes = kind.shapes_of(config)
    known = {part: shape for part, shape in shapes.items() if shape is not None}
    runs_models = not getattr(config, "activations", None)  # else states were recorded
    plan = Planned(
        label,
        is_stored=looks_up and is_known_done(kind, config),
        shapes=dict(zip(told_apart(list(models.values())), shapes.values(), strict=True)),
        passes=[],
        precision=precision_of(config.model.dtype, config.trainer),
        holds=0.0,
    )
    if pick_device(config.model.device) == "cpu":
        vocabularies = sum(shape.vocabulary for shape in set(known.values()))
        plan = plan._replace(holds=PROCESS + ENTRY * vocabularies)
    if not runs_models or len(known) < len(shapes):
        return plan
    passes = [each for each in kind.passes(config, known) if each.tokens]
    plan = plan._replace(passes=passes, holds=plan.holds + FRAGMENTATION * kind.holds(config, known))
    return plan._replace(time_work=partial(kind.seconds, config, known)) if known else plan


def in_words(seconds: float) -> str:
    """Return a time in its largest fitting unit, such as 40 minutes."""
    size, unit = next(each for each in ((3600, "hours"), (60, "minutes"), (1, "seconds")) if seconds >= 2 * each[0] - 1)
    return f"{seconds / size:.2g} {unit}" if seconds < 100 * size else f"{seconds / size:,.0f} {unit}"


def within(config: TrainConfig | AnalyzeConfig, chosen: Collection[str]) -> TrainConfig | AnalyzeConfig:
    """Return the configuration that does as much as its budget has time for; the settings that are `chosen` stay."""
    if config.budget is None:
        return config
    if (found := smaller(config, chosen, config.budget)) is None:
        raise ConfigError(
            f"budget={config.budget} is for a comparison or stitch of models of known size, and chooses the layers and "
            "the amount of text that are left open; leave it out"
        )
    job, words, seconds = found
    log.info("budget=%s: %s; about %s on this machine", config.budget, words, in_words(seconds))
    if seconds > BEYOND * seconds_of(config.budget):
        log.warning("warning: this is the least that this job does, and takes longer than budget=%s", config.budget)
    return job


def offered(config: TrainConfig | AnalyzeConfig, chosen: Collection[str], seconds: float) -> str:
    """Return what budget a job of so many seconds could have, and what it would do then; "" if it is short enough."""
    for budget in BUDGETS if seconds > LONG else ():
        if (found := smaller(config, chosen, budget)) and found[2] <= BEYOND * seconds_of(budget) < seconds:
            return f"; budget={budget} does {found[1]}"
    return ""


def smaller(config: Any, chosen: Collection[str], budget: str) -> tuple[Any, str, float] | None:
    """Return the largest job that a budget has time for, or the least, what it does in words, and its seconds.

    None: the job has nothing to leave out, all of it is `chosen`, or a shape is unknown.
    """
    config = replace(config, budget=None)
    if any(getattr(config, several, None) for several in ("experiment", "models", "activations")):
        return None
    (job,) = asked_for(config)
    kind, allowed = instrument_of(job), seconds_of(budget)
    shapes = kind.shapes_of(job)
    if None in shapes.values():
        return None
    choices = [
        {key: value for key, value in less.items() if not {key, key.removesuffix(".kind")} & {*chosen}}
        for less in kind.smaller(job, shapes, chosen)
    ]
    if len(choices) > 1 and all(choice == choices[0] for choice in choices):
        return None
    found = None
    for left in choices:
        made = config
        for key, value in left.items():
            part, _, name = key.partition(".")
            made = replace(made, **{part: replace(getattr(made, part), **{name: value}) if name else value})
        found = made, said(left), forecast(made, looks_up=False).seconds()
        if found[2] <= allowed:
            break
    return found


def said(settings: Mapping[str, Any]) -> str:
    words = [f"{key.removesuffix('.kind')}={value}" for key, value in settings.items() if key != "layers"]
    if "layers" in settings:
        words.insert(0, f"layers {', '.join(f'{layer}→{depth}' for layer, depth in settings['layers'])}")
    return ", ".join(words) or "all of it"


def seconds_of(budget: str) -> float:
    """Return the seconds of a budget such as 90s, 5min or 2h."""
    number, unit = re.fullmatch("([0-9]+)(s|min|h)", budget).groups()  # type: ignore[union-attr]
    return float(number) * {"s": 1, "min": 60, "h": 3600}[unit]


def show(plan: Forecast, seconds: float | None = None) -> None:
    """Print the jobs and the sums of the missing ones, with their seconds on this machine, if given."""
    if plan.jobs:
        labels, tokens, flops = zip(*(row for job in plan.jobs for row in _rows(job)), strict=True)
        counts = [number_column("tokens read", tokens), number_column("FLOPs", flops)]
        show_table(Table("jobs, and the passes of their models", [text_column("job", labels), *counts]))
    for line in summary(plan, seconds):
        show_text(line)


def _rows(job: Planned) -> list[tuple[str, str, str]]:
    """Return a row with the label of a job, and one for the passes of each of its models: tokens and FLOPs."""
    if job.is_stored or not job.passes:
        why = "in the store" if job.is_stored else "unknown" if None in job.shapes.values() else "no passes of models"
        return [(f"{job.label}: {why}", "", "")]
    rows = [(f"- {each.phase}, {each.model.name}", f"{each.tokens:,.0f}", f"{each.flops:.3g}") for each in job.passes]
    return [(job.label, "", ""), *rows]


def summary(plan: Forecast, seconds: float | None = None) -> list[str]:
    """Return the lines below the table: FLOPs, bytes and hours."""
    todo, whole = [job for each in plan.missing for job in each], plan.flops
    count = f"{len(todo)} of {len(plan.jobs)} jobs to do"
    lines = [f"{count}: {whole:.3g} FLOPs in passes of models; at least {readable(plan.bytes)} of memory"]
    lines += [f"{plan.hours(gpu):.2g} hours on one 80 GB {gpu} at {SHARE:.0%} of its peak" for gpu in PEAKS if whole]
    if seconds is not None:
        lines.append(f"about {in_words(seconds)} on this machine, as small steps of it were timed")
    if unknown := dict.fromkeys(name for job in plan.jobs for name, shape in job.shapes.items() if shape is None):
        lines.append(f"without the jobs of {', '.join(unknown)}, whose sizes are unknown")
    return [*lines, "dry run: nothing was loaded, and no result computed or written"]
