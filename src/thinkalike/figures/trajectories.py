"""Curves over the checkpoints of a training run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypeVar

import matplotlib
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import Normalize, to_hex
from numpy.typing import ArrayLike

from thinkalike.figures.style import (
    COLUMN,
    SMALL,
    canvas,
    colour_of,
    colour_range,
    finite_or_nan,
    heatmap,
    in_lines,
    save,
    write_title,
)
from thinkalike.matrices import matrix_of

MOST_LAYERS = 6  # whose curves are drawn
NAME_HEIGHT = 0.09  # of the height of a panel, from one name at the ends of lines to the next
LEADER = {"arrowstyle": "-", "linewidth": 0.6, "shrinkA": 1, "shrinkB": 0, "relpos": (0, 0.5)}
NAME_PLACE = 1.06  # of the width of a panel, where these names begin
MOST_STEPS = 8  # about as many are written at an axis
Steps = TypeVar("Steps", np.ndarray, range)


def trajectory(
    table: pd.DataFrame,
    tables: Mapping[str, pd.DataFrame],
    folder: Path,
    names: str = "",
    about: str = "",
    n_stimuli: int | None = None,
) -> None:
    """Draw the checkpoints of a training run in three panels.

    On top, the CKA of all pairs of checkpoints in the middle layer; then the similarity to the
    last checkpoint with the loss; below, the accuracies of features with their onsets.

    Args:
        table: The similarity of each layer at each step to the last.
        tables: Those of the result: similarity, losses, features and onsets.
        folder: Where the figure is written.
        names: The run.
        about: How much was compared, and what the bands are.
        n_stimuli: How many stimuli the accuracies of features are over, if that is known.
    """
    over_stimuli = "" if n_stimuli is None else f", {n_stimuli:,} stimuli"
    layers = sorted(table["layer"].unique())
    steps = table["step"].unique()
    middle = layers[len(layers) // 2]
    of_middle_layer = {}
    for name, layer_table in tables.items():
        if "layer" in layer_table:
            of_middle_layer[name] = layer_table[layer_table["layer"] == middle]

    with canvas(COLUMN, 7.8, 3, 1) as (figure, (upper, centre, lower)):
        likeness = of_middle_layer["similarity"]
        cells = matrix_of(likeness, index="step", columns="other_step", values="value")
        norm = Normalize(*colour_range(cells.to_numpy(float), (0.0, 1.0)))
        image = heatmap(upper, cells, norm, "magma")
        for axis in (upper.xaxis, upper.yaxis):
            axis.set_ticks(_few(range(len(steps))), _few(steps))
        upper.tick_params(axis="x", labelrotation=45)
        upper.set(title=f"two checkpoints, layer {middle}", xlabel="step", ylabel="step")
        figure.colorbar(image, ax=upper, label="CKA", shrink=0.8, aspect=20)

        _draw_similarity(centre, table, tables["losses"], layers)
        centre.legend(ncols=2, loc="upper center", bbox_to_anchor=(0.5, -0.45))
        _draw_accuracies(lower, of_middle_layer["features"], of_middle_layer["onsets"])
        lower.set_title(in_lines(f"features in layer {middle}{over_stimuli}; dots: onset", COLUMN))
        lower.set_ylabel("balanced accuracy, held out")
        for axes in (centre, lower):
            label_steps(axes, steps)
            axes.tick_params(axis="x", labelrotation=90)  # the names at the right leave less room
        write_title(figure, upper, names, about)
        save(figure, folder, "trajectory")


def _draw_similarity(
    axes: Axes, table: pd.DataFrame, losses: pd.DataFrame, layers: list[object]
) -> None:
    """Draw the similarity of some layers to the last checkpoint, and the loss on a second axis."""
    stride = -(-len(layers) // MOST_LAYERS)
    drawn_layers = layers[::stride]
    # From dark to light, as layers have an order; the lightest colours are hard to see on white.
    shades = matplotlib.colormaps["viridis"](np.linspace(0, 0.85, len(drawn_layers)))
    for layer, shade in zip(drawn_layers, shades, strict=True):
        rows = table[table["layer"] == layer]
        _draw_curve(axes, rows, "similarity_to_last", f"layer {layer}", to_hex(shade))
    loss_axes = axes.twinx()
    assert isinstance(loss_axes, Axes)
    _draw_curve(loss_axes, losses, "loss", "loss", "black", "--")
    loss_axes.set_ylabel("loss (dashed) [nats per token]")
    loss_axes.spines["right"].set_visible(True)
    axes.set(title="each checkpoint and the last", ylabel="CKA", ylim=(None, 1.02))


def _draw_accuracies(axes: Axes, features: pd.DataFrame, onsets: pd.DataFrame) -> None:
    """Draw the accuracy of each feature, with a dot at its onset, and its name at its end."""
    onset_of = onsets.set_index("feature")["onset"]
    judged = features.dropna(subset="accuracy")
    ends = []
    for number, (feature, rows) in enumerate(judged.groupby("feature", sort=False)):
        colour = colour_of(number)
        _draw_curve(axes, rows, "accuracy", str(feature), colour)
        # It is empty if the feature cannot be decoded at the end.
        onset = rows[rows["step"] == onset_of[feature]]
        axes.plot(step_position(onset["step"]), onset["accuracy"], "o", color=colour, markersize=4)
        x = float(step_position(rows["step"])[-1])
        ends.append((str(feature), x, float(rows["accuracy"].iloc[-1]), colour))
    axes.set_ylim(0, 1)
    _name_ends(axes, ends)


def _name_ends(axes: Axes, ends: Sequence[tuple[str, float, float, str]]) -> None:
    """Write the names of lines at their right ends, one above the other, with lines to the ends.

    Args:
        axes: Where they are written; its vertical limits are set.
        ends: Of each line, its name, the place of its end (x, y), and its colour.
    """
    lowest, highest = axes.get_ylim()
    step = (highest - lowest) * NAME_HEIGHT
    ordered = sorted(ends, key=lambda end: end[2])
    heights: list[float] = []
    for _, _, y, _ in ordered:
        least = heights[-1] + step if heights else lowest
        heights.append(max(y, least))
    # Names that were pushed beyond the top are moved down again.
    for index in range(len(heights) - 1, -1, -1):
        most = highest if index == len(heights) - 1 else heights[index + 1] - step
        heights[index] = min(heights[index], most)
    for (name, x, y, colour), height in zip(ordered, heights, strict=True):
        axes.annotate(
            name,
            (x, y),
            xytext=(NAME_PLACE, height),
            textcoords=axes.get_yaxis_transform(),
            fontsize=SMALL,
            color=colour,
            va="center",
            annotation_clip=False,
            arrowprops=LEADER | {"color": colour},
        )


def step_position(steps: ArrayLike) -> np.ndarray:
    """Return where steps are on an axis: logarithmic, with step 0 at 0."""
    positions: np.ndarray = np.log2(1 + np.asarray(steps, float))
    return positions


def _few(steps: Steps) -> Steps:
    stride = max(1, round(len(steps) / MOST_STEPS))
    return steps[::stride]


def label_steps(axes: Axes, steps: np.ndarray) -> None:
    """Write some steps at the horizontal axis."""
    axes.set_xticks(step_position(_few(steps)), _few(steps), rotation=45)
    axes.set_xlabel("step, logarithmic")


def _draw_curve(
    axes: Axes, rows: pd.DataFrame, name: str, label: str, colour: str, style: str = "-"
) -> None:
    """Draw a column against the steps, with the band of its interval."""
    positions = step_position(rows["step"])
    axes.plot(positions, rows[name], style, color=colour, label=label, linewidth=1.0)
    low = finite_or_nan(rows[f"{name}_low"])
    high = finite_or_nan(rows[f"{name}_high"])
    axes.fill_between(positions, low, high, color=colour, alpha=0.15, linewidth=0)
