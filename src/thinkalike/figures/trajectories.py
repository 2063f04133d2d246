"""Curves over the checkpoints of a training run: likeness to the last one, losses, accuracies with their onsets."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from thinkalike.figures.style import canvas, colour_of, save

MOST = 6  # layers whose curves are drawn


def trajectory(table: pd.DataFrame, tables: Mapping[str, pd.DataFrame], folder: Path) -> None:
    """Draw the step x step map of the middle layer, likeness to the end and loss, and accuracies with their onsets."""
    layers, steps = sorted(table["layer"].unique()), table["step"].unique()
    middle = layers[len(layers) // 2]
    inside = {name: each[each["layer"] == middle] for name, each in tables.items() if "layer" in each}
    with canvas(10.5, 3.6, 1, 3) as (figure, (left, centre, right)):
        cells = inside["likeness"].pivot(index="step", columns="other", values="value")
        image = left.imshow(cells.to_numpy(), origin="lower", vmin=0, vmax=1, cmap="magma")
        for axis in (left.xaxis, left.yaxis):
            axis.set_ticks(few(range(len(steps))), few(steps), fontsize=7, rotation=45)
        left.set(title=f"CKA of checkpoints, layer {middle}", xlabel="step", ylabel="step")
        figure.colorbar(image, ax=left, shrink=0.8)
        for number, layer in enumerate(layers[:: -(-len(layers) // MOST)]):
            curve(centre, table[table["layer"] == layer], "to_last", f"layer {layer}", colour_of(number))
        beside = centre.twinx()
        curve(beside, tables["losses"], "loss", "loss", "black", "--")
        beside.set_ylabel("loss [nats per token], dashed")
        centre.set(title="CKA with the last checkpoint", ylim=(None, 1.02))
        start_of, judged = inside["onsets"].set_index("feature")["onset"], inside["features"].dropna(subset="accuracy")
        for number, (feature, rows) in enumerate(judged.groupby("feature", sort=False)):
            curve(right, rows, "accuracy", str(feature), colour_of(number))
            start = rows[rows["step"] == start_of[feature]]  # none if the feature is not there at the end
            right.plot(place_of(start["step"]), start["accuracy"], "o", color=colour_of(number), markersize=6)
        right.set(title=f"held-out accuracy, layer {middle}; dots: onset", ylim=(0, 1))
        for axes in (centre, right):
            along(axes, steps)
            axes.legend(fontsize=7, ncols=3, loc="upper center", bbox_to_anchor=(0.5, -0.25))
        save(figure, folder, "trajectory")


def place_of(steps: Any) -> Any:
    return np.log2(1 + np.asarray(steps, float))


def few(steps: Any) -> Any:
    return steps[:: max(1, round(len(steps) / 8))]


def along(axes: Any, steps: Any) -> None:
    axes.set_xticks(place_of(few(steps)), few(steps), fontsize=7, rotation=45)
    axes.set_xlabel("step")


def curve(axes: Any, rows: pd.DataFrame, name: str, label: str, colour: str, style: str = "-") -> None:
    place = place_of(rows["step"])
    axes.plot(place, rows[name], style, color=colour, label=label, linewidth=1.2)
    axes.fill_between(place, rows[f"{name}_low"], rows[f"{name}_high"], color=colour, alpha=0.15, linewidth=0)
