"""Populations of classifiers: figures 2, 7 and 8 of Brown et al. 2023."""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.image import AxesImage

from thinkalike.figures.style import (
    COLOURS,
    COLUMN,
    NESTED_NOTE,
    PAGE,
    canvas,
    colour_of,
    leave_out,
    line,
    lower_half,
    nested_look,
    save,
    ticks,
    write_title,
)
from thinkalike.matrices import matrix_of

LABELS = {
    "accuracy_penalty": "accuracy penalty",
    "flips": "share of flipped predictions",
    "value": "CKA",
}
MOST_ACROSS = 3  # panels
DISTANCE = "√Σ arccos²(CKA) [radians]"
MARGIN = 0.05  # of the height of a panel, above and below its values


def draw_groups_by_depth(
    panels_by_title: Mapping[str, pd.DataFrame], folder: Path, units: str
) -> None:
    """Draw means over pairs of models against depth, a line for each kind of pair.

    The kind of a pair is the groups of its two models. Error bars are intervals over models.
    Panels of the same quantity have the same scale, so that small effects look small.

    Args:
        panels_by_title: The table of each panel, by its title. The columns are pair (the kind of
            pair), place (the depth), mean, low, high, column (the quantity) and axis (what the
            depth is called).
        folder: Where the figure is written.
        units: What the intervals are over, such as "12 models in groups of 6 and 6".
    """
    n_panels = len(panels_by_title)
    # Three panels in a row if that fills all rows, and else two.
    fills_rows = n_panels % MOST_ACROSS == 0
    n_across = min(n_panels, MOST_ACROSS if fills_rows else 2)
    n_down = ceil(n_panels / n_across)
    all_rows = pd.concat(list(panels_by_title.values()))
    # A kind of pair looks the same in all panels, as they share a legend.
    pairs = all_rows["pair"].unique()
    most_pairs = max(table["pair"].nunique() for table in panels_by_title.values())
    look_of_pair = {
        str(pair): {"colour": colour_of(number), **nested_look(number % most_pairs, most_pairs)}
        for number, pair in enumerate(pairs)
    }
    handle_of_label = {}  # for one legend of all panels
    height = 2.3 * n_down + 0.3  # rows of panels, and the legend below them
    with canvas(PAGE, height, n_down, n_across, squeeze=False) as (figure, panels):
        leave_out(panels.flat[n_panels:])
        for axes, (title, table) in zip(panels.flat, panels_by_title.items(), strict=False):
            quantity = str(table["column"].iloc[0])
            _draw_means_by_depth(axes, table, look_of_pair)
            axes.set_ylim(*_value_limits(all_rows[all_rows["column"] == quantity]))
            axes.set(ylabel=LABELS[quantity], title=title)
            for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
                handle_of_label[label] = handle
        labels = list(handle_of_label)
        figure.legend(handle_of_label.values(), labels, loc="outside lower center", ncols=3)
        intervals = f"bars: 95 % intervals over {units}"
        scales = f"panels of one quantity have one scale; {NESTED_NOTE}"
        write_title(
            figure, panels[0, 0], "Pairs of models within and between groups", intervals, scales
        )
        save(figure, folder, "groups")


def _value_limits(rows: pd.DataFrame) -> tuple[float, float]:
    """Return the limits of an axis for means and finite ends of intervals, with a margin."""
    values = rows[["mean", "low", "high"]]
    finite = values.replace([np.inf, -np.inf], np.nan)  # an interval may be unbounded
    lowest = float(np.nanmin(finite))
    highest = float(np.nanmax(finite))
    value_range = highest - lowest or 1.0  # 1 if all values are the same
    margin = MARGIN * value_range
    return lowest - margin, highest + margin


def _draw_means_by_depth(
    axes: Axes, table: pd.DataFrame, look_of_pair: Mapping[str, Mapping[str, Any]]
) -> None:
    """Draw means with error bars against depth, a line for each kind of pair of models.

    Args:
        axes: Where it is drawn.
        table: A row for each kind of pair and depth, with the columns pair (the kind: the groups
            of the two models), place (the depth), mean, low, high and axis (what the depth is
            called).
        look_of_pair: How the line of each kind of pair looks.
    """
    for pair, rows in table.groupby("pair", sort=False):
        look = look_of_pair[str(pair)]
        line(axes, rows, "mean", ("low", "high"), str(pair), style="-", **look)
    depths = sorted(table["place"].unique())
    ticks(axes.xaxis, depths, len(depths))
    axes.set_xlabel(str(table["axis"].iloc[0]))


def draw_distances(table: pd.DataFrame, folder: Path) -> None:
    """Draw the distances of all pairs of models, as a matrix and as box plots by kind of pair.

    The kind of a pair is the groups of its two models.

    Args:
        table: A row for each source and target, with their groups and the distance (value):
            √Σ arccos²(CKA) over layers, which is equation 2 of Brown et al. 2023.
        folder: Where the figure is written.
    """
    with canvas(COLUMN, height=5.2, rows=2) as (figure, (matrix_axes, kinds_axes)):
        image = _draw_distance_matrix(matrix_axes, table)
        figure.colorbar(image, ax=matrix_axes, label=DISTANCE, shrink=0.85)
        _draw_boxes_by_kind(kinds_axes, table)
        models = table["source"].nunique()
        equation = "distance: equation 2 of Brown et al. 2023, Σ over layers"
        parts = "points: pairs of models; boxes: quartiles and median; whiskers: range"
        write_title(figure, matrix_axes, f"Distances of {models} models", equation, parts)
        save(figure, folder, "distances")


def _draw_distance_matrix(axes: Axes, table: pd.DataFrame) -> AxesImage:
    """Draw the lower half of the matrix of distances, with white lines between groups.

    Models are in the order of the table, in which those of one group follow each other. The image
    is returned for a colour bar.
    """
    names = list(dict.fromkeys(table["source"]))
    cells = matrix_of(table, index="source", columns="target", values="value").loc[names, names]
    image = axes.imshow(lower_half(cells.to_numpy(float)), origin="lower", cmap="viridis")
    axes.spines[:].set_visible(False)
    group_of_models = table.drop_duplicates("source")["group_of_source"].tolist()
    for index in range(1, len(group_of_models)):
        is_first_of_group = group_of_models[index] != group_of_models[index - 1]
        if is_first_of_group:
            edge = index - 0.5  # between the cells of two models
            axes.axhline(edge, color="white", linewidth=1)
            axes.axvline(edge, color="white", linewidth=1)
    group_names = dict.fromkeys(group_of_models)  # each once, in order
    label = f"models: {', then '.join(group_names)}"
    axes.set(xlabel=label, ylabel=label)
    for axis in (axes.xaxis, axes.yaxis):
        ticks(axis, range(len(names)))
    return image


def _draw_boxes_by_kind(axes: Axes, table: pd.DataFrame) -> None:
    """Draw a box plot of distances for each two groups, and a point for each pair of models.

    Points are shifted sideways at random so that they do not hide each other.

    Args:
        axes: Where they are drawn.
        table: A row for each pair of models, with their names as "source" and "target", their two
            groups as "pair", and their distance as "value" (Brown et al. 2023, equation 2).
    """
    # Each pair once, as distances are symmetric, and no model with itself.
    pairs = table[table["source"] < table["target"]]
    values_of_kind = {str(groups): rows["value"] for groups, rows in pairs.groupby("pair")}
    axes.boxplot(
        list(values_of_kind.values()),
        widths=0.5,
        whis=(0, 100),  # from the least to the greatest
        medianprops={"color": "0.2"},
    )
    random = np.random.default_rng(0)
    for number, values in enumerate(values_of_kind.values()):
        position = number + 1  # of the box: `boxplot` counts from 1
        jitter = random.uniform(-0.15, 0.15, len(values))
        colour = COLOURS[number % len(COLOURS)]
        axes.plot(position + jitter, values, "o", color=colour, markersize=2.5, alpha=0.6)
    names = [f"{kind}\n{len(values)} pairs" for kind, values in values_of_kind.items()]
    axes.set_xticks(range(1, len(names) + 1), names)
    axes.set(xlabel="groups of the two models", ylabel=DISTANCE)
