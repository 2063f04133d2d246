"""The figure of a finished result once more, for a notebook: its kind draws it from the tables."""

from __future__ import annotations

from typing import Any

from thinkalike import figures
from thinkalike.config import KINDS
from thinkalike.errors import ResultError, nearest
from thinkalike.instruments import instrument
from thinkalike.store import Result


def plot_result(result: Result, name: str | None = None) -> tuple[Any, Any]:
    """Draw a figure of a result; returns it and its axes, a list where there are several.

    Args:
        name: of which of its figures, as its files are called; the first one if none is given.

    Raises:
        ResultError: the kind draws no figures, or none of that name.
    """
    if result.kind not in KINDS:
        raise ResultError(
            f"{result.kind} is drawn from several results; its figures are in {result.folder / 'figures'}"
        )
    with figures.shown() as drawn:
        instrument(KINDS[result.kind]).draw(result, result.folder)
    if not drawn:
        raise ResultError(f"measure={result.kind} draws no figure; its numbers are in result.table")
    chosen = name or next(iter(drawn))
    if chosen not in drawn:
        raise ResultError(f"{result.kind} has no figure {name}; {nearest(chosen, drawn)}")
    return drawn[chosen]  # type: ignore[no-any-return]
