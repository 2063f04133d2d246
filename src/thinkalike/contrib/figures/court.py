"""What the judges of courts say of sources of known similarity."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import ceil
from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from thinkalike.figures.style import PAGE, canvas, colour_of, leave_out, save, write_title

PANELS_ACROSS = 3
COURT_MARKERS = "osD^v"
JITTER = 0.25  # of the distance of two kinds
UNITS = {"penalty": "penalty [nats per token]", "KL": "KL [nats per token]"}

# inches
KIND_HEIGHT = 0.12
AXIS_HEIGHT = 0.5
DOSE_HEIGHT = 1.8
TITLE_HEIGHT = 0.3
LEGEND_HEIGHT = 0.15


def draw_court(table: pd.DataFrame, judges: Sequence[str], folder: Path, about: str) -> None:
    """Draw the values of similarity measures for sources whose similarity to a target is known.

    The set of such sources is called a court, and the measures that are tried on it its judges.
    There is a panel for each measure, with a row for each kind of source and a point for each
    source. Points of one kind are shifted up and down so that they do not hide each other.

    Args:
        table: A row for each source, with its kind and a column for each measure.
        judges: The names of the measures.
        folder: Where the figure is written.
        about: How many sources and courts there are.
    """
    kinds = list(dict.fromkeys(table["kind"]))  # each once, in order
    n_across = min(len(judges), PANELS_ACROSS)
    n_down = ceil(len(judges) / n_across)
    height = (KIND_HEIGHT * len(kinds) + AXIS_HEIGHT) * n_down + TITLE_HEIGHT
    with canvas(PAGE, height, n_down, n_across, squeeze=False, sharey=True) as (figure, panels):
        for axes, judge in zip(panels.flat, judges, strict=False):
            _draw_values_by_kind(axes, table, kinds, judge)
            axes.set_xlabel(UNITS.get(judge, judge))
        for row in panels:
            row[0].set_yticks(range(len(kinds)), kinds[::-1])  # the first kind is at the top
            row[0].set_ylabel("kind of source")
        leave_out(panels.flat[len(judges) :])  # panels of the grid without a measure
        title = "What each measure says of sources of known similarity"
        write_title(figure, panels[0, 0], title, f"{about}; points: sources")
        save(figure, folder, "court")


def _draw_values_by_kind(
    axes: Axes, table: pd.DataFrame, kinds: Sequence[str], measure: str
) -> None:
    """Draw a point for each source: across its value of a measure, upwards its kind.

    The first kind is on top. Points of one kind are shifted up and down so that they do not hide
    each other.

    Args:
        axes: Where it is drawn.
        table: A row for each source, with its kind and a column for the measure.
        kinds: All kinds of sources.
        measure: The name of the column.
    """
    for index, kind in enumerate(kinds):
        position = len(kinds) - 1 - index  # from below
        values = table[table["kind"] == kind][measure].to_numpy()
        jitter = np.zeros(1)
        if len(values) > 1:
            jitter = np.linspace(-JITTER, JITTER, len(values))
        axes.plot(values, position + jitter, ".", color=colour_of(index), markersize=3, alpha=0.7)


def draw_doses(curves: Mapping[str, pd.DataFrame], folder: Path) -> None:
    """Draw the value of each measure for mixtures of the target's states and unrelated ones.

    There is a panel for each measure. It shows the value against the share of the variance that
    comes from the target: a point for each court, and a line through the means over courts.

    Args:
        curves: By the name of the measure, a row for each court and mixture, with the columns
            court, own_share (the share of the target) and value.
        folder: Where the figure is written.
    """
    courts = list(dict.fromkeys(next(iter(curves.values()))["court"]))
    n_across = min(len(curves), PANELS_ACROSS)
    n_down = ceil(len(curves) / n_across)
    n_legend_rows = ceil((len(courts) + 1) / PANELS_ACROSS)
    height = DOSE_HEIGHT * n_down + TITLE_HEIGHT + LEGEND_HEIGHT * n_legend_rows
    with canvas(PAGE, height, n_down, n_across, squeeze=False, sharex=True) as (figure, panels):
        # The grid may have more panels than there are measures.
        for axes, (measure, curve) in zip(panels.flat, curves.items(), strict=False):
            _draw_doses_of_measure(axes, curve, courts)
            axes.set_ylabel(UNITS.get(measure, measure))  # the name, if it has no unit
        for axes in panels.flat[: len(curves)][-n_across:]:  # the lowest of each column
            axes.set_xlabel("share of the target's own variance")
            axes.tick_params(labelbottom=True)
        leave_out(panels.flat[len(curves) :])  # panels of the grid without a measure
        handles, labels = panels[0, 0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=PANELS_ACROSS)
        title = "What each measure says of a mixture of the target's states and unrelated ones"
        note = f"points: single courts, {len(courts)} in all; lines: their means"
        write_title(figure, panels[0, 0], title, note)
        save(figure, folder, "doses")


def _draw_doses_of_measure(axes: Axes, curve: pd.DataFrame, courts: Sequence[str]) -> None:
    """Draw one measure's values for mixtures: a point for each court, and a line of their means.

    Args:
        axes: Where it is drawn.
        curve: A row for each court and mixture, with the columns court, own_share and value.
        courts: The names of the courts, in the order of colours and markers.
    """
    means = curve.groupby("own_share")["value"].mean()
    axes.plot(means.index, means, color="0.6", label="mean of courts")
    for number, court in enumerate(courts):
        rows = curve[curve["court"] == court]
        axes.plot(
            rows["own_share"],
            rows["value"],
            COURT_MARKERS[number % len(COURT_MARKERS)],
            color=colour_of(number),
            markerfacecolor="none",
            markersize=4,
            label=court,
        )
