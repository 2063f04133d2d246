"""Figures of courts: what each judge says of every source of known likeness, and of doses of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from thinkalike.figures.style import canvas, colour_of, save

COLUMNS = 4


def court(table: pd.DataFrame, judges: Sequence[str], folder: Path) -> None:
    """Draw a panel per judge: a row of points for each kind of source, a point for each source in each court."""
    kinds = list(dict.fromkeys(table["kind"]))[::-1]
    rows = -(-len(judges) // COLUMNS)
    with canvas(3.0 * COLUMNS, 2.4 * rows, rows, COLUMNS, squeeze=False, sharey=True) as (figure, panels):
        for axes, judge in zip(panels.flat, judges, strict=False):
            for place, kind in enumerate(kinds):
                values = table[table["kind"] == kind][judge].to_numpy()
                jitter = np.linspace(-0.25, 0.25, len(values)) if len(values) > 1 else np.zeros(1)
                colour = colour_of(len(kinds) - 1 - place)
                axes.plot(values, place + jitter, ".", color=colour, markersize=4, alpha=0.7)
            axes.set_title(judge, fontsize=9)
        panels[0][0].set_yticks(range(len(kinds)), kinds)
        for axes in panels.flat[len(judges) :]:
            axes.set_axis_off()
        save(figure, folder, "court")


def doses(curves: Mapping[str, pd.DataFrame], folder: Path) -> None:
    """Draw each judge's value against the share of the target's own variance: own_share, value."""
    rows = -(-len(curves) // COLUMNS)
    with canvas(3.0 * COLUMNS, 2.2 * rows, rows, COLUMNS, squeeze=False, sharex=True) as (figure, panels):
        for axes, (judge, curve) in zip(panels.flat, curves.items(), strict=False):
            axes.plot(curve["own_share"], curve["value"], "o-", color=colour_of(0), markersize=3)
            axes.set_title(judge, fontsize=9)
        for axes in panels[-1]:
            axes.set_xlabel("share of the target's own variance")
        for axes in panels.flat[len(curves) :]:
            axes.set_axis_off()
        save(figure, folder, "doses")
