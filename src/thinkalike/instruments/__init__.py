"""Instruments: one file each, with its settings, its run, its table, its figure and what it prints.

`thinkalike.plugins` finds them. A module here holds the settings of a measure, such as `CKAConfig`, and one
subclass of `Instrument`. Lists of results import it, so that of stitches imports Lightning inside its functions.
"""

from __future__ import annotations

from typing import Any

from thinkalike import figures
from thinkalike.config import MEASURES, SUBJECTS, TASKS, instrument, instrument_of
from thinkalike.errors import ResultError, nearest
from thinkalike.job import asked_for, check_read, passes, run_job, run_jobs
from thinkalike.store import Result


def plot(what: Any, name: str | None = None, ax: Any = None) -> tuple[Any, Any]:
    """Draw a figure of a `Result` once more, or the matrix of all layer pairs that a metric computed.

    Args:
        name: of a figure of the result, as its files are called, such as "penalty"; by default the first.
        ax: where to draw a matrix; by default into a new figure.

    Returns:
        The figure and its axes, a list where there are several.

    Raises:
        ResultError: the kind draws no figures, or none of that name.
    """
    if not isinstance(what, Result):
        return figures.layer_pairs(what.value.cpu().numpy(), what.label, ax=ax)  # type: ignore[no-any-return]
    result, measures = what, SUBJECTS if "subjects" in what.provenance else MEASURES
    if result.kind in measures:
        own = instrument(measures[result.kind])
    elif not (own := {each.kind: each for each in map(instrument, TASKS.values())}.get(result.kind)):
        folder = result.folder / "figures"
        raise ResultError(f"{result.kind} is drawn from several results; its figures are in {folder}")
    with figures.shown() as drawn:
        own.draw(result, result.folder)
    if not drawn:
        raise ResultError(f"measure={result.kind} draws no figure; its numbers are in result.table")
    chosen = name or next(iter(drawn))
    if chosen not in drawn:
        raise ResultError(f"{result.kind} has no figure {name}; {nearest(chosen, drawn)}")
    return drawn[chosen]  # type: ignore[no-any-return]


__all__ = ["asked_for", "check_read", "instrument", "instrument_of", "passes", "plot", "run_job", "run_jobs"]
