"""A figure of how far apart the levels of features are."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd

from thinkalike.figures.style import canvas, colour_of, layer_name, save

ACROSS = 8  # layers of a model that are drawn


def levels(table: pd.DataFrame, folder: Path) -> None:
    """Draw the levels of each feature as points in a plane, a row per model and feature, a column per layer.

    Args:
        table: model, layer, feature, level, x, y; panels of one row have one scale.
    """
    rows = [group for _, group in table.groupby(["model", "feature"], sort=False)]
    layers = [_some(list(dict.fromkeys(group["layer"]))) for group in rows]
    columns = max(map(len, layers))
    with canvas(1.7 * columns + 0.4, 1.8 * len(rows), len(rows), columns, squeeze=False) as (figure, panels):
        for line, group, chosen in zip(panels, rows, layers, strict=True):
            reach = 1.3 * max(group[["x", "y"]].abs().to_numpy().max(), 1e-12)
            for axes in line[len(chosen) :]:
                axes.set_axis_off()
            for axes, layer in zip(line, chosen, strict=False):
                for number, point in enumerate(group[group["layer"] == layer].itertuples()):
                    axes.scatter(point.x, point.y, s=12, color=colour_of(number), linewidths=0)
                    axes.annotate(point.level, (point.x, point.y), (2, 2), textcoords="offset points", fontsize=5)
                axes.set(xlim=(-reach, reach), ylim=(-reach, reach), xticks=[], yticks=[], aspect="equal")
                axes.set_title(f"layer {layer_name(layer)}", fontsize=7)
            line[0].set_ylabel(f"{group['model'].iloc[0]}\n{group['feature'].iloc[0]}", fontsize=7)
        save(figure, folder, "levels")


def _some(layers: list) -> list:
    """Return at most `ACROSS` of the layers, from the first to the last."""
    return [layers[place] for place in np.unique(np.linspace(0, len(layers) - 1, ACROSS).round().astype(int))]
