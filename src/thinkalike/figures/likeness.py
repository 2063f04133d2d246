"""Figures of the likeness of layers (Salle et al. 2024, figure 2)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd
from matplotlib.colors import Normalize

from thinkalike.figures.style import canvas, colour_of, layer_name, save, write_values


def similarity(
    matrices: Mapping[str, pd.DataFrame], folder: Path, maps: Mapping[str, pd.DataFrame] | None = None
) -> None:
    """Draw the likeness of all layers of all models, a panel per way to measure it; below, the layers in a plane.

    Args:
        maps: by the same titles: model, layer, x, y, and the stress of the map.
    """
    size = 4.2 * len(matrices), 7.4 if maps else 3.8
    with canvas(*size, 2 if maps else 1, len(matrices), squeeze=False) as (figure, panels):
        for column, (title, table) in enumerate(matrices.items()):
            axes = panels[0][column]
            image = _blocks(axes, table)
            axes.set_title(title, fontsize=9)
            figure.colorbar(image, ax=axes, shrink=0.75)
            if maps:
                _plane(panels[1][column], maps[title])
        save(figure, folder, "similarity")


def _blocks(axes: Any, table: pd.DataFrame) -> Any:
    layers = table[["source", "source_layer"]].drop_duplicates()
    values = table["value"].to_numpy().reshape(len(layers), len(layers))
    image = axes.imshow(values, origin="lower", cmap="RdBu_r", norm=Normalize(-1, 1))
    if values.size <= 64:
        write_values(axes, values, image)
    counts = layers.groupby("source", sort=False).size()
    ends = counts.cumsum()
    for end in ends[:-1]:
        axes.axhline(end - 0.5, color="black", linewidth=1)
        axes.axvline(end - 0.5, color="black", linewidth=1)
    names = [layer_name(layer) for layer in layers["source_layer"]]
    every = max(1, round(len(names) / 24))
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_ticks(range(0, len(names), every), names[::every], fontsize=6)
    middles = ends - counts / 2 - 0.5
    size = 8 if len(counts) <= 3 else 6
    for model, middle in middles.items():
        place = (middle + 0.5) / len(names)
        style: dict[str, Any] = {"transform": axes.transAxes, "fontsize": size}
        axes.text(place, -0.09, str(model), ha="right", va="top", rotation=30, rotation_mode="anchor", **style)
        axes.text(-0.1, place, str(model), ha="right", va="center", **style)
    axes.spines[:].set_visible(False)
    return image


def _plane(axes: Any, points: pd.DataFrame) -> None:
    for number, (model, rows) in enumerate(points.groupby("model", sort=False)):
        axes.plot(rows["x"], rows["y"], "o-", color=colour_of(number), label=str(model), alpha=0.7)
        for row in rows.itertuples():
            name = (layer_name(row.layer), (row.x, row.y))
            axes.annotate(*name, fontsize=6, xytext=(3, 3), textcoords="offset points")
    axes.set_title(f"layers by their likeness, stress {points['stress'].iloc[0]:.2f}", fontsize=9)
    axes.legend(frameon=False, fontsize=7, ncols=3, loc="upper center", bbox_to_anchor=(0.5, 0.0))
    axes.set_aspect("equal", adjustable="datalim")
    axes.set_xticks([])
    axes.set_yticks([])
