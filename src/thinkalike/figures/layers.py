"""Figures of layers: matrices of measures, the likeness of all layers, what a change did, and profiles of features."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import pandas as pd
from matplotlib.colors import Normalize, PowerNorm

from thinkalike.figures.style import canvas, check_axes, colour_of, heatmap, line, save, shown, ticks, write_values

BELOW = "#4a90d9"  # the colour of values below the scale
MARKS = "osD^vP*X"
FEW = 36  # cells into which their values are written
APART = 0.04  # of a share, between the names of two rungs


def layer_heatmaps(
    table: pd.DataFrame, folder: Path, file: str, label: str, scale: tuple[float, float] = (0.0, 1.0), across: int = 3,
    about: str = "",
) -> None:  # fmt: skip
    """Draw the layer pairs of every pair of models in a table, `across` in a row, on one scale; below it is blue.

    The title says what the numbers are about.
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
        figure.suptitle(about, fontsize=8)
        save(figure, folder, file)


def components(
    cells: pd.DataFrame, folder: Path, file: str, label: str, scale: tuple[float, float] = (0.0, 1.0), about: str = ""
) -> None:
    """Draw a measure at each component of each layer; the title says what the numbers are about."""
    rows, columns = cells.shape
    with canvas(max(0.3 * columns + 2, 4.4), max(0.15 * rows + 1.5, 2.8)) as (figure, axes):
        image = _drawn(axes, cells, scale, "both models", "")
        ticks(axes.xaxis, list(cells.columns), columns, fontsize=7, rotation=45, ha="right", rotation_mode="anchor")
        axes.set(aspect="auto", xlabel="component")
        _explain(figure, axes, image, label, scale[0], float(np.nanmin(cells.to_numpy())))
        axes.set_title(about, fontsize=8)
        save(figure, folder, file)


def layer_pairs(values: Any, label: str, scale: tuple[float, float] = (0.0, 1.0), ax: Any = None) -> tuple[Any, Any]:
    """Draw a matrix of all layer pairs, rows the source's, into axes or a new figure; returns figure and axes."""
    check_axes(ax)
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
    axes.set(xlabel=f"{target}, layer", ylabel=f"{source}, layer")
    return image


def _explain(figure: Any, panels: Any, image: Any, label: str, lowest: float, least: float) -> None:
    extend = "min" if least < lowest else "neither"
    figure.colorbar(image, ax=panels, label=label, extend=extend, shrink=0.8, aspect=30)


def similarity(
    matrices: Mapping[str, pd.DataFrame], folder: Path, below: Callable[[Any, str], None] | None = None, about: str = ""
) -> None:
    """Draw the likeness of all layers of all models, a panel per measure of it; `below` draws further axes under each.

    The title says what the numbers are about.
    """
    size = 4.8 * len(matrices), 8.0 if below else 4.2
    with canvas(*size, 2 if below else 1, len(matrices), squeeze=False) as (figure, panels):
        for column, (title, table) in enumerate(matrices.items()):
            axes = panels[0][column]
            image = _blocks(axes, table)
            axes.set_title(title)
            figure.colorbar(image, ax=axes, shrink=0.75)
            if below:
                below(panels[1][column], title)
        figure.suptitle(about, fontsize=8)
        if engine := figure.get_layout_engine():  # a user's figure may have none
            engine.set(w_pad=0.15)  # as names of models reach further than it knows
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
    size = 8 if len(counts) <= 3 else 6
    for axis in (axes.xaxis, axes.yaxis):
        ticks(axis, list(layers["source_layer"]), 16, fontsize=6)
        axis.set_ticks(ends - counts / 2 - 0.5, map(str, counts.index), minor=True, fontsize=size)
    axes.tick_params(which="minor", length=0, pad=16 if max(map(len, map(str, layers["source_layer"]))) <= 6 else 40)
    axes.tick_params(which="minor", axis="x", labelrotation=30)
    for name in axes.get_xticklabels(minor=True):
        name.set(ha="right", rotation_mode="anchor")
    axes.spines[:].set_visible(False)
    return image


def changes(parts: pd.DataFrame, layers: pd.DataFrame, folder: Path, about: str = "") -> None:
    """Draw the share of KL that each part of a model has, and the relative distance of states by layer.

    Colours are by the square root of the share, from 0 to 1; a share below 0 is blue. The title says of which models.
    """
    cells = parts.pivot_table(index="component", columns="layer", values="share", sort=False, dropna=False)
    with canvas(7.2, 2.9, 1, 2) as (figure, (left, right)):
        colours, scale = matplotlib.colormaps["magma_r"].with_extremes(under=BELOW, bad="0.9"), PowerNorm(0.5, 0, 1)
        image = left.imshow(cells.to_numpy(), aspect="auto", cmap=colours, norm=scale)
        left.set_yticks(range(len(cells)), cells.index, fontsize=7)
        ticks(left.xaxis, cells.columns, fontsize=7)
        left.set(xlabel="layer", title="share of KL(base ‖ changed)")
        figure.colorbar(image, ax=left, ticks=[0, 0.01, 0.1, 0.25, 0.5, 1], format="%g", extend="min")
        line(right, layers, "distance", ("distance_low", "distance_high"), "distance", colour_of(0), "o-")
        ticks(right.xaxis, layers["layer"], fontsize=7)
        right.set(xlabel="layer", title="distance of states (accumulates)", ylim=(0, None))
        figure.suptitle(about, fontsize=8)
        save(figure, folder, "diff")


def profiles(table: pd.DataFrame, scores: pd.DataFrame, folder: Path, across: int = 3, about: str = "") -> None:
    """Draw the importance of each feature against layer with its interval, a panel per model, above held-out scores.

    Scores have their split-half references beside them, where they are known. Layers of equal relative depth stand
    below each other; the title says what the numbers are about.
    """
    models, features = list(dict.fromkeys(table["model"])), list(dict.fromkeys(table["feature"]))
    rows, columns = -(-len(models) // across), min(len(models), across)
    shape: dict[str, Any] = {"squeeze": False, "height_ratios": (3, 1) * rows}
    with canvas(3.0 * columns + 1.4, 4.2 * rows, 2 * rows, columns, **shape) as (figure, panels):
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
                style = {"color": colour_of(number), "marker": MARKS[number % len(MARKS)]}
                band(upper, part, "importance", feature, **style)
            held_out = scores[scores["model"] == model]
            band(lower, held_out, "score", "held-out ρ", color="0.3", marker="o")
            if "reference" in held_out:
                style = {"color": "0.3", "linestyle": "--", "label": "its split-half reference"}
                lower.plot(range(len(held_out)), held_out["reference"], linewidth=1, **style)
            upper.axhline(0, color="0.6", linewidth=0.8, zorder=0)
            upper.tick_params(labelbottom=False)
            for axes in (upper, lower):
                ticks(axes.xaxis, list(held_out["layer"]))
            lower.set_xlabel("layer")
            upper.set_title(model)
        for row in range(rows):
            panels[2 * row, 0].set_ylabel("feature importance [drop of ρ]")
            panels[2 * row + 1, 0].set_ylabel("held-out ρ")
        lines = {name: line for axes in pairs[0] for line, name in zip(*axes.get_legend_handles_labels(), strict=True)}
        figure.legend(list(lines.values()), list(lines), loc="outside right upper", fontsize=8)
        figure.suptitle(about, fontsize=8)
        save(figure, folder, "profiles")


def band(axes: Any, rows: pd.DataFrame, column: str, label: str, **style: Any) -> None:
    """Draw a column against the rows, with the band from `low` to `high`."""
    places = range(len(rows))
    axes.plot(places, rows[column], label=label, markersize=3.5, linewidth=1.2, **style)
    axes.fill_between(places, rows["low"], rows["high"], color=style["color"], alpha=0.15, linewidth=0)


def ruler(table: pd.DataFrame, rungs: pd.DataFrame, documents: float, folder: Path, label: str) -> None:
    """Draw a panel for each model: the layer pairs' values with intervals over documents, and its rungs."""
    sides = {table[side].iloc[0]: side for side in ("target", "source") if table[f"{side}_bits"].notna().any()}
    models = [model for model in dict.fromkeys([table["source"].iloc[0], table["target"].iloc[0]]) if model in sides]
    pairs = [f"{a} → {b}" for a, b in zip(table["source_layer"], table["target_layer"], strict=True)]
    with canvas(3.6 * len(models) + 0.6, 3.4, 1, len(models), squeeze=False, sharey=True) as (figure, panels):
        for axes, model in zip(panels[0], models, strict=True):
            side = sides[model]
            cells = rungs[rungs["model"] == model].pivot(index="layer", columns="rung", values="value")
            lines, height = cells.loc[table[f"{side}_layer"]], -1.0
            for name in lines.iloc[-1].sort_values().index:
                style = {"color": "0.2", "linestyle": ":"} if name == "untrained" else {"color": "0.6"}
                axes.plot(lines[name].to_numpy(), linewidth=1, **style)
                height = max(float(lines[name].iloc[-1]), height + APART)
                place = {"xytext": (4, 0), "textcoords": "offset points", "va": "center", "fontsize": 7}
                axes.annotate(name, (len(lines) - 1, height), **place)
            line(axes, table, "value", ("low", "high"), "both models", colour_of(0), "o-")
            axes.set(title=f"beside copies of {model}", ylim=(min(-0.02, table["low"].min()), 1.02))
            axes.set_xlabel(f"layers; intervals over {documents:.0f} documents")
            ticks(axes.xaxis, pairs, 6)
        panels[0][0].set_ylabel(label)
        panels[0][0].legend(loc="upper right")
        save(figure, folder, "ruler")


def shifts(table: pd.DataFrame, folder: Path, about: str = "") -> None:
    """Draw the relative distance of two models' states against the layer; the title says what numbers are about."""
    first = table.iloc[0]
    with canvas(5.2, 2.9) as (figure, axes):
        line(axes, table, "value", ("low", "high"), "distance", colour_of(0), "o-")
        ticks(axes.xaxis, list(table["source_layer"]), 15, fontsize=7)
        axes.set(xlabel="layer", ylabel="relative distance of states", ylim=(0, None))
        axes.set_title(f"{first.source} → {first.target}\n{about}", fontsize=8)
        save(figure, folder, "distance")
