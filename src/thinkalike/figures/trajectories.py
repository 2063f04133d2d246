"""Curves over the checkpoints of a training run."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TypeVar

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from numpy.typing import ArrayLike

from thinkalike.figures.style import canvas, colour_of, save

MOST_LAYERS = 6  # whose curves are drawn
MOST_STEPS = 8  # about as many are written at an axis
Steps = TypeVar("Steps", np.ndarray, range)


def trajectory(table: pd.DataFrame, tables: Mapping[str, pd.DataFrame], folder: Path) -> None:
    """Draw the checkpoints of a training run in three panels.

    On the left, the CKA of all pairs of checkpoints in the middle layer; then the similarity to
    the last checkpoint with the loss; on the right, the accuracies of features with their onsets.
    """
    layers = sorted(table["layer"].unique())
    steps = table["step"].unique()
    middle = layers[len(layers) // 2]
    of_middle_layer = {}
    for name, layer_table in tables.items():
        if "layer" in layer_table:
            of_middle_layer[name] = layer_table[layer_table["layer"] == middle]

    with canvas(10.5, 3.6, 1, 3) as (figure, (left, centre, right)):
        likeness = of_middle_layer["similarity"]
        cells = likeness.pivot(index="step", columns="other_step", values="value")
        image = left.imshow(cells.to_numpy(), origin="lower", vmin=0, vmax=1, cmap="magma")
        for axis in (left.xaxis, left.yaxis):
            axis.set_ticks(_few(range(len(steps))), _few(steps), fontsize=7, rotation=45)
        left.set(title=f"CKA of checkpoints, layer {middle}", xlabel="step", ylabel="step")
        figure.colorbar(image, ax=left, shrink=0.8)

        _draw_similarity(centre, table, tables["losses"], layers)
        _draw_accuracies(right, of_middle_layer["features"], of_middle_layer["onsets"])
        right.set(title=f"held-out accuracy, layer {middle}; dots: onset", ylim=(0, 1))
        for axes in (centre, right):
            label_steps(axes, steps)
            axes.legend(fontsize=7, ncols=3, loc="upper center", bbox_to_anchor=(0.5, -0.25))
        save(figure, folder, "trajectory")


def _draw_similarity(
    axes: Axes, table: pd.DataFrame, losses: pd.DataFrame, layers: list[object]
) -> None:
    """Draw the similarity of some layers to the last checkpoint, and the loss on a second axis."""
    stride = -(-len(layers) // MOST_LAYERS)
    for number, layer in enumerate(layers[::stride]):
        rows = table[table["layer"] == layer]
        _draw_curve(axes, rows, "similarity_to_last", f"layer {layer}", colour_of(number))
    loss_axes = axes.twinx()
    assert isinstance(loss_axes, Axes)
    _draw_curve(loss_axes, losses, "loss", "loss", "black", "--")
    loss_axes.set_ylabel("loss [nats per token], dashed")
    axes.set(title="CKA with the last checkpoint", ylim=(None, 1.02))


def _draw_accuracies(axes: Axes, features: pd.DataFrame, onsets: pd.DataFrame) -> None:
    """Draw the accuracy of each feature, with a dot at its onset."""
    onset_of = onsets.set_index("feature")["onset"]
    judged = features.dropna(subset="accuracy")
    for number, (feature, rows) in enumerate(judged.groupby("feature", sort=False)):
        colour = colour_of(number)
        _draw_curve(axes, rows, "accuracy", str(feature), colour)
        # It is empty if the feature cannot be decoded at the end.
        onset = rows[rows["step"] == onset_of[feature]]
        axes.plot(step_position(onset["step"]), onset["accuracy"], "o", color=colour, markersize=6)


def step_position(steps: ArrayLike) -> np.ndarray:
    """Return where steps are on an axis: logarithmic, with step 0 at 0."""
    positions: np.ndarray = np.log2(1 + np.asarray(steps, float))
    return positions


def _few(steps: Steps) -> Steps:
    stride = max(1, round(len(steps) / MOST_STEPS))
    return steps[::stride]


def label_steps(axes: Axes, steps: np.ndarray) -> None:
    """Write some steps at the horizontal axis."""
    axes.set_xticks(step_position(_few(steps)), _few(steps), fontsize=7, rotation=45)
    axes.set_xlabel("step")


def _draw_curve(
    axes: Axes, rows: pd.DataFrame, name: str, label: str, colour: str, style: str = "-"
) -> None:
    """Draw a column against the steps, with the band of its interval."""
    positions = step_position(rows["step"])
    axes.plot(positions, rows[name], style, color=colour, label=label, linewidth=1.2)
    low = rows[f"{name}_low"]
    high = rows[f"{name}_high"]
    axes.fill_between(positions, low, high, color=colour, alpha=0.15, linewidth=0)
