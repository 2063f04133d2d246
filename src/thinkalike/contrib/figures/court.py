"""What the judges of courts say of sources of known similarity."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import ceil
from pathlib import Path

import numpy as np
import pandas as pd

from thinkalike.figures.style import PAGE, canvas, colour_of, leave_out, save, write_title

PANELS_ACROSS = 3
JITTER = 0.25  # of the distance of two kinds
UNITS = {"penalty": "penalty [nats per token]"}

# inches
KIND_HEIGHT = 0.12
AXIS_HEIGHT = 0.5
DOSE_HEIGHT = 1.8


def draw_court(table: pd.DataFrame, judges: Sequence[str], folder: Path) -> None:
    """Draw the values of similarity measures for sources whose similarity to a target is known.

    There is a panel for each measure, with a row for each kind of source and a point for each
    source. Points of one kind are shifted up and down so that they do not hide each other.

    Args:
        table: A row for each source, with its kind and a column for each measure.
        judges: The names of the measures.
        folder: Where the figure is written.
    """
    kinds = list(dict.fromkeys(table["kind"]))
    from_below = kinds[::-1]  # so that the first kind is on top
    across = min(len(judges), PANELS_ACROSS)
    down = ceil(len(judges) / across)
    height = (KIND_HEIGHT * len(kinds) + AXIS_HEIGHT) * down + 0.3
    with canvas(PAGE, height, down, across, squeeze=False, sharey=True) as (figure, panels):
        for axes, judge in zip(panels.flat, judges, strict=False):
            for position, kind in enumerate(from_below):
                values = table[table["kind"] == kind][judge].to_numpy()
                jitter = np.zeros(1)
                if len(values) > 1:
                    jitter = np.linspace(-JITTER, JITTER, len(values))
                colour = colour_of(kinds.index(kind))
                axes.plot(values, position + jitter, ".", color=colour, markersize=3, alpha=0.7)
            axes.set_xlabel(UNITS.get(judge, judge))
        for row in panels:
            row[0].set_yticks(range(len(kinds)), from_below)
            row[0].set_ylabel("kind of source")
        leave_out(panels.flat[len(judges) :])
        write_title(figure, panels[0, 0], "What each measure says of sources of known similarity")
        save(figure, folder, "court")


def draw_doses(curves: Mapping[str, pd.DataFrame], folder: Path) -> None:
    """Draw the value of each measure against the share of a source's variance from the target.

    Args:
        curves: By the name of the measure, a row for each source with the columns own_share and
            value.
        folder: Where the figure is written.
    """
    across = min(len(curves), PANELS_ACROSS)
    down = ceil(len(curves) / across)
    height = DOSE_HEIGHT * down + 0.3
    with canvas(PAGE, height, down, across, squeeze=False, sharex=True) as (figure, panels):
        for axes, (judge, curve) in zip(panels.flat, curves.items(), strict=False):
            axes.plot(curve["own_share"], curve["value"], "o-", color=colour_of(0), markersize=3)
            axes.set_ylabel(UNITS.get(judge, judge))
        for axes in panels[-1]:
            axes.set_xlabel("share of the target's own variance")
        leave_out(panels.flat[len(curves) :])
        title = "What each measure says of a mixture of the target's states and unrelated ones"
        write_title(figure, panels[0, 0], title)
        save(figure, folder, "doses")
