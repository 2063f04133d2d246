"""The figure of a trajectory: likeness of every two checkpoints, curves with bands, and onsets."""

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
    with canvas(10.5, 3.6, 1, 3) as (figure, (left, centre, right)):
        cells = tables["likeness"].query("layer == @middle").pivot(index="step", columns="other", values="value")
        image = left.imshow(cells.to_numpy(), origin="lower", vmin=0, vmax=1, cmap="magma")
        places = range(0, len(steps), max(1, round(len(steps) / 8)))
        for axis in (left.xaxis, left.yaxis):
            axis.set_ticks(places, [f"{steps[place]}" for place in places], fontsize=7, rotation=45)
        left.set(title=f"CKA of checkpoints, layer {middle}", xlabel="step", ylabel="step")
        figure.colorbar(image, ax=left, shrink=0.8)
        for number, layer in enumerate(layers[:: -(-len(layers) // MOST)]):
            _curve(centre, table[table["layer"] == layer], "to_last", f"layer {layer}", colour_of(number))
        beside = centre.twinx()
        _curve(beside, tables["losses"], "loss", "loss", "black", "--")
        beside.set_ylabel("loss [nats per token], dashed")
        centre.set(title="CKA with the last checkpoint", ylim=(None, 1.02))
        inside = tables["features"][tables["features"]["layer"] == middle]
        onsets = tables["onsets"][tables["onsets"]["layer"] == middle].set_index("feature")
        for number, (feature, rows) in enumerate(inside.dropna(subset="accuracy").groupby("feature", sort=False)):
            _curve(right, rows, "accuracy", str(feature), colour_of(number))
            if pd.notna(start := onsets.loc[feature, "onset"]):
                at = rows[rows["step"] == start].iloc[0]
                right.plot(_place(start), at["accuracy"], "o", color=colour_of(number), markersize=6)
        right.set(title=f"held-out accuracy, layer {middle}; dots: onset", ylim=(0, 1))
        for axes in (centre, right):
            axes.set_xlabel("step")
            axes.legend(fontsize=7, ncols=3, loc="upper center", bbox_to_anchor=(0.5, -0.25))
            axes.set_xticks(_place(steps[list(places)]), steps[list(places)], fontsize=7, rotation=45)
        save(figure, folder, "trajectory")


def _place(steps: Any) -> Any:
    return np.log2(1 + np.asarray(steps, float))


def _curve(axes: Any, rows: pd.DataFrame, name: str, label: str, colour: str, style: str = "-") -> None:
    place = _place(rows["step"])
    axes.plot(place, rows[name], style, color=colour, label=label, linewidth=1.2)
    axes.fill_between(place, rows[f"{name}_low"], rows[f"{name}_high"], color=colour, alpha=0.15, linewidth=0)


def settling(runs: Mapping[str, pd.DataFrame], onsets: pd.DataFrame, folder: Path) -> None:
    """Draw likeness to the end by layer in each run, and the onset of each feature in the layer that has it first."""
    with canvas(8.5, 3.4, 1, 2) as (figure, (left, right)):
        for run in runs.values():
            for number, (layer, rows) in enumerate(run.groupby("layer")):
                label = f"layer {layer}" if run is next(iter(runs.values())) else None
                left.plot(_place(rows["step"]), rows["to_last"], color=colour_of(number), linewidth=0.9, label=label)
        earliest = onsets.groupby(["feature", "run"], sort=False)["onset"].min().dropna()
        names = list(dict.fromkeys(onsets["feature"]))
        for number, name in enumerate(names):
            steps = earliest.get(name, pd.Series(dtype=float))
            right.plot(_place(steps), np.full(len(steps), number), "o", color=colour_of(number), alpha=0.5)
        steps = next(iter(runs.values()))["step"].unique()
        for axes in (left, right):
            axes.set_xticks(_place(steps), steps, fontsize=6, rotation=45)
            axes.set_xlabel("step")
        right.set_yticks(range(len(names)), names)
        left.set(title="CKA with the last checkpoint, each seed a line", ylim=(None, 1.02))
        right.set(title="onset in each seed; none: not there at the end")
        left.legend(fontsize=7)
        save(figure, folder, "settling")
