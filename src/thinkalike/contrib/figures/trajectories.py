"""The figures of trajectories: likeness of checkpoints, curves with bands, and onsets."""

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
            axis.set_ticks(_few(range(len(steps))), _few(steps), fontsize=7, rotation=45)
        left.set(title=f"CKA of checkpoints, layer {middle}", xlabel="step", ylabel="step")
        figure.colorbar(image, ax=left, shrink=0.8)
        for number, layer in enumerate(layers[:: -(-len(layers) // MOST)]):
            _curve(centre, table[table["layer"] == layer], "to_last", f"layer {layer}", colour_of(number))
        beside = centre.twinx()
        _curve(beside, tables["losses"], "loss", "loss", "black", "--")
        beside.set_ylabel("loss [nats per token], dashed")
        centre.set(title="CKA with the last checkpoint", ylim=(None, 1.02))
        start_of, judged = inside["onsets"].set_index("feature")["onset"], inside["features"].dropna(subset="accuracy")
        for number, (feature, rows) in enumerate(judged.groupby("feature", sort=False)):
            _curve(right, rows, "accuracy", str(feature), colour_of(number))
            start = rows[rows["step"] == start_of[feature]]  # none if the feature is not there at the end
            right.plot(_place(start["step"]), start["accuracy"], "o", color=colour_of(number), markersize=6)
        right.set(title=f"held-out accuracy, layer {middle}; dots: onset", ylim=(0, 1))
        for axes in (centre, right):
            _along(axes, steps)
            axes.legend(fontsize=7, ncols=3, loc="upper center", bbox_to_anchor=(0.5, -0.25))
        save(figure, folder, "trajectory")


def settling(runs: Mapping[str, pd.DataFrame], onsets: pd.DataFrame, folder: Path) -> None:
    """Draw likeness to the end by layer in each run, and how many runs have the onset of a feature at each step."""
    with canvas(8.5, 3.4, 1, 2) as (figure, (left, right)):
        for table in runs.values():
            steps = table["step"].unique()
            for layer, curve in table.pivot(index="step", columns="layer", values="to_last").items():
                left.plot(_place(steps), curve, color=colour_of(int(str(layer))), linewidth=0.9)
        left.legend([f"layer {layer}" for layer in table["layer"].unique()], fontsize=7)
        features = list(dict.fromkeys(onsets["feature"]))
        for number, feature in enumerate(features):
            first = onsets[onsets["feature"] == feature].groupby("run")["onset"].min()
            for step, count in first.value_counts().items():
                right.plot(_place(step), number, "o", color=colour_of(number), markersize=11)
                right.text(_place(step), number, count, ha="center", va="center_baseline", fontsize=8, color="white")
        right.set_yticks(range(len(features)), features)
        left.set(title="CKA with the last checkpoint, each seed a line", ylim=(None, 1.02))
        right.set(title="onset in how many seeds; none: not there at the end", ylim=(-0.5, len(features) - 0.5))
        for axes in (left, right):
            _along(axes, steps)
        save(figure, folder, "settling")


def _place(steps: Any) -> Any:
    return np.log2(1 + np.asarray(steps, float))


def _few(steps: Any) -> Any:
    return steps[:: max(1, round(len(steps) / 8))]


def _along(axes: Any, steps: Any) -> None:
    axes.set_xticks(_place(_few(steps)), _few(steps), fontsize=7, rotation=45)
    axes.set_xlabel("step")


def _curve(axes: Any, rows: pd.DataFrame, name: str, label: str, colour: str, style: str = "-") -> None:
    place = _place(rows["step"])
    axes.plot(place, rows[name], style, color=colour, label=label, linewidth=1.2)
    axes.fill_between(place, rows[f"{name}_low"], rows[f"{name}_high"], color=colour, alpha=0.15, linewidth=0)
