"""Trajectories of several seeds: similarity to the end by layer, and onsets of features."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from thinkalike.figures.style import COLUMN, SMALL, canvas, colour_of, save, write_title
from thinkalike.figures.trajectories import label_steps, step_position
from thinkalike.matrices import matrix_of

ONSET_COLOUR = "0.25"  # dark grey, on which white numbers can be read


def draw_settling(runs: Mapping[str, pd.DataFrame], onsets: pd.DataFrame, folder: Path) -> None:
    """Draw how training runs settle: similarity to the last checkpoint, and onsets of features.

    The onset of a feature is the step from which it can be read out of a layer.

    Args:
        runs: By the name of the run, a row for each layer and step, with the similarity to the
            last step. All runs have the same layers and steps.
        onsets: A row for each run, feature and layer, with the onset or NaN.
        folder: Where the figure is written.
    """
    any_run = list(runs.values())[-1]  # all have the same layers and steps
    steps = any_run["step"].unique()
    with canvas(COLUMN, height=5.2, rows=2) as (figure, (curves_axes, onsets_axes)):
        _draw_curves(curves_axes, runs)
        layers = any_run["layer"].unique()
        curves_axes.legend([f"layer {layer}" for layer in layers])
        curves_axes.set_ylabel("CKA")
        _draw_onsets(onsets_axes, onsets)
        for axes in (curves_axes, onsets_axes):
            label_steps(axes, steps)
        onsets_axes.set_xlim(curves_axes.get_xlim())  # a step is at the same place in both
        names = list(runs)
        title = f"{len(names)} training runs: {names[0]}, to {names[-1]}"
        write_title(figure, curves_axes, title)
        save(figure, folder, "settling")


def _draw_curves(axes: Axes, runs: Mapping[str, pd.DataFrame]) -> None:
    """Draw the similarity of each checkpoint to the last one: a line per run and layer.

    Colours are layers. The lines of the first run are drawn first, one for each layer, so that a
    legend with one label for each layer names these.

    Args:
        axes: Where it is drawn.
        runs: By the name of the run, a row for each layer and step, with the similarity.
    """
    for table in runs.values():
        positions = step_position(table["step"].unique())
        by_layer = matrix_of(table, index="step", columns="layer", values="similarity_to_last")
        for layer, curve in by_layer.items():
            axes.plot(positions, curve, color=colour_of(int(str(layer))), linewidth=0.9)
    axes.set(title="each checkpoint and the last, a line per seed", ylim=(None, 1.02))


def _draw_onsets(axes: Axes, onsets: pd.DataFrame) -> None:
    """Draw a circle for each feature and step that is its onset in some run, with their number.

    The onset of a feature in a run is the earliest step from which it can be read out of some
    layer. Runs without an onset are not drawn.

    Args:
        axes: Where it is drawn.
        onsets: A row for each run, feature and layer, with the onset of this layer or NaN.
    """
    features = list(dict.fromkeys(onsets["feature"]))  # each once, in order
    for height, feature in enumerate(features):
        rows_of_feature = onsets[onsets["feature"] == feature]
        onset_of_run = rows_of_feature.groupby("run")["onset"].min()
        for step, n_runs in onset_of_run.value_counts().items():
            (position,) = step_position(np.array([step]))
            # Colours are layers in the panel above, and features have their names.
            axes.plot(position, height, "o", color=ONSET_COLOUR, markersize=8)
            axes.text(
                position,
                height,
                str(n_runs),
                ha="center",
                va="center_baseline",
                fontsize=SMALL,
                color="white",
            )
    axes.set_yticks(range(len(features)), features)
    axes.set(
        title="seeds with an onset at a step; blank: none",
        ylabel="feature",
        ylim=(-0.5, len(features) - 0.5),
    )
