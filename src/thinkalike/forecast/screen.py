"""What `dry_run=true` prints: models, jobs and their sum."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from thinkalike.forecast.plan import GPUS, SHARE, Forecast, Planned
from thinkalike.job import total
from thinkalike.memory import readable
from thinkalike.models import PEAKS, PRECISIONS, Shape

WIDTH = 140
UNKNOWN = "unknown: its sizes are neither here nor in the table of published ones"


def show(plan: Forecast, speed: float | None = None) -> None:
    """Print the models, the jobs that the store lacks, and what they take together.

    Args:
        speed: floating-point operations per second of this machine, if it is known.
    """
    console = Console(width=max(Console().width, WIDTH))
    console.print(models_table(plan.shapes, plan.unknown))
    console.print(jobs_table(plan))
    for line in summary(plan, speed):
        print(line)


def models_table(shapes: Sequence[Shape], unknown: Sequence[str]) -> Table:
    """Return a table of models: layers, width, vocabulary, parameters, and the bytes of their weights."""
    table = Table(title="models")
    for column in ("model", "layers", "width", "vocabulary", "parameters", "weights"):
        table.add_column(column, justify="left" if column == "model" else "right")
    for shape in shapes:
        numbers = (f"{each:,}" for each in (shape.layers, shape.width, shape.vocabulary, shape.parameters))
        table.add_row(shape.name, *numbers, readable(shape.bytes))
    for name in unknown:
        table.add_row(name, UNKNOWN)
    return table


def jobs_table(plan: Forecast) -> Table:
    """Return a table of jobs: what the store has, and of each phase of the others tokens and operations."""
    table = Table(title="jobs")
    for column in ("job", "phase", "tokens read", "FLOPs", f"hours on one 80 GB {GPUS[0]}"):
        table.add_column(column, justify="left" if column in ("job", "phase") else "right")
    for job in plan.jobs:
        if job.is_stored:
            table.add_row(job.label, "in the store")
        elif not job.estimate.phases:
            table.add_row(job.label, "nothing to speak of, or unknown")
        else:
            _add(table, job)
    return table


def _add(table: Table, job: Planned) -> None:
    named = job.label
    for phase in job.estimate.phases:
        read = ", ".join(f"{model} {tokens:,.0f}" for model, tokens in phase.tokens.items() if tokens)
        table.add_row(named, phase.name, read, f"{phase.operations:.3g}", f"{job.hours(GPUS[0], [phase]):.2g}")
        named = ""


def summary(plan: Forecast, speed: float | None = None) -> list[str]:
    """Return the lines below the tables: operations, bytes, hours, and what they rest on.

    Args:
        speed: see `show`.
    """
    todo = [job for each in plan.missing for job in each]
    apart = sum(total(job.estimate.phases) for job in todo)
    whole = total(plan.phases)
    lines = [
        f"{len(todo)} of {len(plan.jobs)} jobs to do: {whole:.3g} FLOPs; at least {readable(plan.bytes)} of memory"
    ]
    if whole < apart:
        lines.append(f"in one pass; one after the other {apart:.3g} FLOPs")
    precisions = list(dict.fromkeys(job.precision(phase) for job in todo for phase in job.estimate.phases))
    for gpu in GPUS:
        peaks = ", ".join(f"{PEAKS[gpu][PRECISIONS.index(each)] / 1e12:g}e12 in {each}" for each in precisions)
        if peaks:
            lines.append(
                f"{plan.hours(gpu):.2g} hours on one 80 GB {gpu} at {SHARE:.0%} of its peak ({peaks} per second)"
            )
    if speed is not None:
        lines.append(f"{whole / speed / 3600:.2g} hours at {speed:g} FLOPs per second")
    if plan.unknown:
        lines.append(f"without what {', '.join(plan.unknown)} would take, whose shape is not known")
    return [*lines, "dry run: nothing was loaded, computed or written"]
