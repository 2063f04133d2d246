"""Heatmaps of measures of all layer pairs."""

from __future__ import annotations

from pathlib import Path

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.colors import Normalize

from thinkalike.figures.style import canvas, heatmap, save, write_values


def layer_heatmaps(
    table: pd.DataFrame,
    folder: Path,
    file: str,
    label: str,
    scale: tuple[float, float] = (0, 1),
    across: int = 3,
) -> None:
    """Draw the layer pairs of every pair of models in the table, `across` in a row, on one scale; below it is blue.

    Args:
        table: source, target, source_layer, target_layer, value.
        label: what the value is.
    """
    pairs = list(table[["source", "target"]].drop_duplicates().itertuples(index=False, name=None))
    height, width = -(-len(pairs) // across), min(len(pairs), across)
    colours = plt.get_cmap("magma").with_extremes(under="#4a90d9")
    with canvas(2.3 * width + 0.9, 2.5 * height, height, width, squeeze=False) as (figure, panels):
        for axes in panels.flat[len(pairs) :]:
            axes.set_axis_off()
        for axes, (source, target) in zip(panels.flat, pairs, strict=False):
            inside = table[(table["source"] == source) & (table["target"] == target)]
            rows, columns = (inside[f"{side}_layer"].unique() for side in ("source", "target"))  # in their order
            cells = inside.pivot(index="source_layer", columns="target_layer", values="value").loc[rows, columns]
            image = heatmap(axes, cells, Normalize(*scale), colours)
            if cells.size <= 36:
                write_values(axes, cells.to_numpy(), image)
            axes.set_xlabel(f"{target}, layer")
            axes.set_ylabel(f"{source}, layer")
        extend = "min" if (table["value"] < scale[0]).any() else "neither"
        figure.colorbar(image, ax=panels, label=label, extend=extend, shrink=0.8, aspect=30)
        save(figure, folder, file)
