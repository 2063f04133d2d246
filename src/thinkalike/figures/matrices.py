"""Heatmaps of measures of all layer pairs."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import matplotlib
import pandas as pd
from matplotlib.colors import Normalize

from thinkalike.figures.style import canvas, heatmap, save, shown, write_values

BELOW = "#4a90d9"  # the colour of values below the scale
FEW = 36  # cells into which their values are written


def layer_heatmaps(
    table: pd.DataFrame,
    folder: Path,
    file: str,
    label: str,
    scale: tuple[float, float] = (0.0, 1.0),
    across: int = 3,
) -> None:
    """Draw the layer pairs of every pair of models in the table, `across` in a row, on one scale; below it is blue.

    Args:
        table: source, target, source_layer, target_layer, value.
        label: what the value is.
    """
    pairs = list(table[["source", "target"]].drop_duplicates().itertuples(index=False, name=None))
    height, width = -(-len(pairs) // across), min(len(pairs), across)
    with canvas(2.3 * width + 0.9, 2.5 * height, height, width, squeeze=False) as (figure, panels):
        for axes in panels.flat[len(pairs) :]:
            axes.set_axis_off()
        for axes, (source, target) in zip(panels.flat, pairs, strict=False):
            inside = table[(table["source"] == source) & (table["target"] == target)]
            rows, columns = (inside[f"{side}_layer"].unique() for side in ("source", "target"))  # in their order
            cells = inside.pivot(index="source_layer", columns="target_layer", values="value").loc[rows, columns]
            image = _drawn(axes, cells, scale, source, target)
        _explain(figure, panels, image, label, scale[0], table["value"].min())
        save(figure, folder, file)


def layer_pairs(values: Any, label: str, scale: tuple[float, float] = (0.0, 1.0), ax: Any = None) -> tuple[Any, Any]:
    """Draw a matrix of all layer pairs into axes, or into a new figure; returns figure and axes.

    Args:
        values: rows are the source's layers.
        label: what a value is.
        ax: where to draw.
    """
    cells = pd.DataFrame(values)
    with contextlib.ExitStack() as style:
        if ax is None:
            style.enter_context(shown())
            _, ax = style.enter_context(canvas(0.3 * cells.shape[1] + 2.5, 0.3 * cells.shape[0] + 2))
        image = _drawn(ax, cells, scale, "source", "target")
        _explain(ax.figure, ax, image, label, scale[0], cells.to_numpy().min())
    return ax.figure, ax


def _drawn(axes: Any, cells: pd.DataFrame, scale: tuple[float, float], source: str, target: str) -> Any:
    colours = matplotlib.colormaps["magma"].with_extremes(under=BELOW)
    image = heatmap(axes, cells, Normalize(*scale), colours)
    if cells.size <= FEW:
        write_values(axes, cells.to_numpy(), image)
    axes.set_xlabel(f"{target}, layer")
    axes.set_ylabel(f"{source}, layer")
    return image


def _explain(figure: Any, panels: Any, image: Any, label: str, lowest: float, least: float) -> None:
    extend = "min" if least < lowest else "neither"
    figure.colorbar(image, ax=panels, label=label, extend=extend, shrink=0.8, aspect=30)
