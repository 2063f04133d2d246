"""What `dry_run=true` prints: models, jobs and their sum."""

from __future__ import annotations

from collections.abc import Sequence

from thinkalike.forecast.plan import GPUS, SHARE, Forecast, Planned
from thinkalike.job import total
from thinkalike.memory import readable
from thinkalike.models import PEAKS, PRECISIONS, Shape
from thinkalike.screen import Table, number_column, show_table, show_text, text_column

UNKNOWN = "unknown: its sizes are neither here nor in the table of published ones"


def show(plan: Forecast, speed: float | None = None) -> None:
    """Print the models, the jobs that the store lacks, and what they take together.

    Args:
        speed: floating-point operations per second of this machine, if it is known.
    """
    if plan.shapes:
        show_table(models_table(plan.shapes))
    for name in plan.unknown:
        show_text(f"{name}: {UNKNOWN}")
    if plan.jobs:
        show_table(jobs_table(plan))
    for line in summary(plan, speed):
        show_text(line)


def models_table(shapes: Sequence[Shape]) -> Table:
    """Return a table of models: layers, width, vocabulary, parameters, and the bytes of their weights."""
    sizes = ("layers", "width", "vocabulary", "parameters")
    return Table(
        "models",
        [
            text_column("model", [shape.name for shape in shapes]),
            *(number_column(size, [getattr(shape, size) for shape in shapes], ",") for size in sizes),
            number_column("weights", [readable(shape.bytes) for shape in shapes]),
        ],
    )


def jobs_table(plan: Forecast) -> Table:
    """Return a table of jobs: what the store has, and of each phase of the others tokens and operations."""
    jobs, phases, *counts = zip(*(row for job in plan.jobs for row in _rows(job)), strict=True)
    names = ("tokens read", "FLOPs", f"hours on one 80 GB {GPUS[0]}")
    columns = [number_column(name, cells) for name, cells in zip(names, counts, strict=True)]
    return Table("jobs", [text_column("job", jobs), text_column("phase", phases), *columns], keys=2)


def _rows(job: Planned) -> list[tuple[str, ...]]:
    """Return the rows of a job: its name in the first, phase, tokens, operations, hours."""
    if job.is_stored:
        return [(job.label, "in the store", "", "", "")]
    if not job.estimate.phases:
        return [(job.label, "nothing to speak of, or unknown", "", "", "")]
    rows: list[tuple[str, ...]] = []
    for phase in job.estimate.phases:
        read = "\n".join(f"{model} {tokens:,.0f}" for model, tokens in phase.tokens.items() if tokens)
        spent = f"{phase.operations:.3g}", f"{job.hours(GPUS[0], [phase]):.2g}"
        rows.append(("" if rows else job.label, phase.name, read, *spent))
    return rows


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
