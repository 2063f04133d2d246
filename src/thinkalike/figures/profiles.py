"""Figures of feature profiles, and of the likeness of layers (Salle et al. 2024, figures 2, 3, 4, S5)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.colors import Normalize

from thinkalike.figures.style import COLOURS, STYLE, save, short, write_values

MORE_COLOURS = (*COLOURS, "#e69f00", "#56b4e9", "#000000", "#8c564b", "#7f7f7f", "#bcbd22")
MARKS = "osD^vP*X"


def profiles(table: pd.DataFrame, scores: pd.DataFrame, folder: Path, across: int = 3) -> None:
    """Importance of each feature against layer with its interval, a panel per model; below each, held-out scores."""
    models, features = list(dict.fromkeys(table["model"])), list(dict.fromkeys(table["feature"]))
    with plt.rc_context(STYLE):
        rows, columns = -(-len(models) // across), min(len(models), across)
        shape: dict[str, Any] = {"squeeze": False, "sharex": "col", "height_ratios": (3, 1) * rows}
        size = (3.0 * columns + 1.4, 4.2 * rows)
        figure, panels = plt.subplots(2 * rows, columns, figsize=size, layout="constrained", **shape)
        pairs = [(panels[2 * row, column], panels[2 * row + 1, column]) for row, column in np.ndindex(rows, columns)]
        for pair in pairs[len(models) :]:
            for axes in pair:
                axes.set_axis_off()
        for (upper, lower), model in zip(pairs, models, strict=False):
            if model != models[0]:
                upper.sharey(pairs[0][0])
                lower.sharey(pairs[0][1])
            inside = table[table["model"] == model]
            for number, feature in enumerate(features):
                part = inside[inside["feature"] == feature]
                style = {"color": _colour(number), "marker": MARKS[number % len(MARKS)]}
                _band(upper, part, "importance", feature, **style)
            held_out = scores[scores["model"] == model]
            _band(lower, held_out, "score", "", color="0.3", marker="o")
            upper.axhline(0, color="0.6", linewidth=0.8, zorder=0)
            _name_layers(lower, list(held_out["layer"]))
            lower.set_xlabel("layer")
            upper.set_title(short(model), fontsize=9)
        for row in range(rows):
            panels[2 * row, 0].set_ylabel("feature importance [drop of ρ]")
            panels[2 * row + 1, 0].set_ylabel("held-out ρ")
        figure.legend(*panels[0][0].get_legend_handles_labels(), loc="outside right upper", frameon=False, fontsize=8)
        save(figure, folder, "profiles")


def _band(axes: Any, rows: pd.DataFrame, column: str, label: str, **style: Any) -> None:
    places = range(len(rows))
    axes.plot(places, rows[column], label=label, markersize=3.5, linewidth=1.2, **style)
    axes.fill_between(places, rows["low"], rows["high"], color=style["color"], alpha=0.15, linewidth=0)


def _colour(number: int) -> str:
    return MORE_COLOURS[number % len(MORE_COLOURS)]


def _layer_name(layer: Any) -> str:
    return "embed" if str(layer) == "-1" else str(layer)


def _name_layers(axes: Any, layers: list[Any]) -> None:
    places = range(0, len(layers), max(1, round(len(layers) / 8)))
    axes.set_xticks(places, [_layer_name(layers[place]) for place in places])


def similarity(
    matrices: Mapping[str, pd.DataFrame], folder: Path, maps: Mapping[str, pd.DataFrame] | None = None
) -> None:
    """Likeness of all layers of all models, a panel per way to measure it; below, the layers in a plane.

    Args:
        maps: by the same titles: model, layer, x, y, and the stress of the map.
    """
    with plt.rc_context(STYLE):
        size = (4.2 * len(matrices), 7.4 if maps else 3.8)
        figure, panels = plt.subplots(
            2 if maps else 1, len(matrices), figsize=size, squeeze=False, layout="constrained"
        )
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
    names = [_layer_name(layer) for layer in layers["source_layer"]]
    every = max(1, round(len(names) / 24))
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_ticks(range(0, len(names), every), names[::every], fontsize=6)
    middles = ends - counts / 2 - 0.5
    size = 8 if len(counts) <= 3 else 6
    for model, middle in middles.items():
        place = (middle + 0.5) / len(names)
        style: dict[str, Any] = {"transform": axes.transAxes, "fontsize": size}
        axes.text(place, -0.09, short(str(model)), ha="center", va="top", **style)
        axes.text(-0.09, place, short(str(model)), ha="right", va="center", rotation=90, **style)
    axes.spines[:].set_visible(False)
    return image


def _plane(axes: Any, points: pd.DataFrame) -> None:
    for number, (model, rows) in enumerate(points.groupby("model", sort=False)):
        axes.plot(rows["x"], rows["y"], "o-", color=_colour(number), label=short(str(model)), alpha=0.7)
        for row in rows.itertuples():
            name = (_layer_name(row.layer), (row.x, row.y))
            axes.annotate(*name, fontsize=6, xytext=(3, 3), textcoords="offset points")
    axes.set_title(f"layers by their likeness, stress {points['stress'].iloc[0]:.2f}", fontsize=9)
    axes.legend(frameon=False, fontsize=7, ncols=3, loc="upper center", bbox_to_anchor=(0.5, 0.0))
    axes.set_aspect("equal", adjustable="datalim")
    axes.set_xticks([])
    axes.set_yticks([])


def correlation(table: pd.DataFrame, folder: Path) -> None:
    """Correlations of all features with all: a table with named rows and columns."""
    with plt.rc_context(STYLE):
        side = 0.55 * len(table) + 1.2
        figure, axes = plt.subplots(figsize=(side + 0.8, side), layout="constrained")
        image = axes.imshow(table.to_numpy(), cmap="RdBu_r", norm=Normalize(-1, 1))
        write_values(axes, table.to_numpy(), image)
        axes.set_xticks(range(len(table)), table.columns, rotation=45, ha="right")
        axes.set_yticks(range(len(table)), table.columns)
        axes.spines[:].set_visible(False)
        figure.colorbar(image, ax=axes, label="correlation of differences over pairs", shrink=0.8)
        save(figure, folder, "correlation")


class Contrast(NamedTuple):
    """Two layers side by side."""

    title: str
    names: tuple[str, str]
    importance: pd.DataFrame  # feature, x, y: importance in either layer
    words: tuple[pd.DataFrame, pd.DataFrame]  # x, y, level, stress: the words of either layer in a plane
    feature: str  # that colours them


def scatter(contrasts: list[Contrast], folder: Path) -> None:
    """For each contrast the importance of all features in one layer against the other, and the words of both."""
    with plt.rc_context(STYLE):
        size = (9.6, 3.2 * len(contrasts))
        figure, panels = plt.subplots(len(contrasts), 3, figsize=size, squeeze=False, layout="constrained")
        for (left, middle, right), contrast in zip(panels, contrasts, strict=True):
            for axes, name, words in zip((left, right), contrast.names, contrast.words, strict=True):
                _words(axes, words, f"{name}, by {contrast.feature}")
            left.legend(frameon=False, fontsize=6, markerscale=2)
            _against(middle, contrast)
        save(figure, folder, "contrasts")


def _against(axes: Any, contrast: Contrast) -> None:
    table = contrast.importance
    axes.scatter(table["x"], table["y"], color=[_colour(number) for number in range(len(table))], s=18, zorder=3)
    telling = table[table[["x", "y"]].max(axis=1) > 0.04 * table[["x", "y"]].to_numpy().max()]
    for row in telling.itertuples():  # the others lie on each other at 0
        axes.annotate(row.feature, (row.x, row.y), fontsize=6, xytext=(3, 2), textcoords="offset points")
    low, high = (np.array([table[axis].agg(end) for axis in "xy"]) for end in ("min", "max"))
    ends = [min(low.min(), 0), 1.1 * high.max()]
    axes.plot(ends, ends, color="0.6", linewidth=0.8, zorder=0)
    axes.set_xlabel(f"importance in {contrast.names[0]}")
    axes.set_ylabel(f"importance in {contrast.names[1]}")
    axes.set_title(contrast.title, fontsize=9)


def _words(axes: Any, words: pd.DataFrame, title: str) -> None:
    for number, (level, rows) in enumerate(words.groupby("level", sort=True)):
        axes.scatter(rows["x"], rows["y"], s=5, color=_colour(number), label=str(level), linewidths=0)
    axes.set_title(f"{title}\nstress {words['stress'].iloc[0]:.2f}", fontsize=8)
    axes.set_aspect("equal", adjustable="datalim")
    axes.set_xticks([])
    axes.set_yticks([])
