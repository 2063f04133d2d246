"""Figures of feature profiles, of features and their levels, and of scores against noise ceilings."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from matplotlib.colors import Normalize

from thinkalike.figures.style import canvas, colour_of, layer_name, save, write_values

MARKS = "osD^vP*X"


def profiles(table: pd.DataFrame, scores: pd.DataFrame, folder: Path, across: int = 3) -> None:
    """Draw the importance of each feature against layer with its interval, a panel per model, above held-out scores.

    Scores have their split-half references beside them, where they are known.
    """
    models, features = list(dict.fromkeys(table["model"])), list(dict.fromkeys(table["feature"]))
    rows, columns = -(-len(models) // across), min(len(models), across)
    shape: dict[str, Any] = {"squeeze": False, "sharex": "col", "height_ratios": (3, 1) * rows}
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
                _band(upper, part, "importance", feature, **style)
            held_out = scores[scores["model"] == model]
            _band(lower, held_out, "score", "held-out ρ", color="0.3", marker="o")
            if "reference" in held_out:
                style = {"color": "0.3", "linestyle": "--", "label": "its split-half reference"}
                lower.plot(range(len(held_out)), held_out["reference"], linewidth=1, **style)
            upper.axhline(0, color="0.6", linewidth=0.8, zorder=0)
            _name_layers(lower, list(held_out["layer"]))
            lower.set_xlabel("layer")
            upper.set_title(model)
        for row in range(rows):
            panels[2 * row, 0].set_ylabel("feature importance [drop of ρ]")
            panels[2 * row + 1, 0].set_ylabel("held-out ρ")
        lines = {name: line for axes in pairs[0] for line, name in zip(*axes.get_legend_handles_labels(), strict=True)}
        figure.legend(list(lines.values()), list(lines), loc="outside right upper", fontsize=8)
        save(figure, folder, "profiles")


def _band(axes: Any, rows: pd.DataFrame, column: str, label: str, **style: Any) -> None:
    places = range(len(rows))
    axes.plot(places, rows[column], label=label, markersize=3.5, linewidth=1.2, **style)
    axes.fill_between(places, rows["low"], rows["high"], color=style["color"], alpha=0.15, linewidth=0)


def _name_layers(axes: Any, layers: list[Any]) -> None:
    places = range(0, len(layers), max(1, round(len(layers) / 8)))
    axes.set_xticks(places, [layer_name(layers[place]) for place in places])


def correlation(table: pd.DataFrame, folder: Path) -> None:
    """Draw the correlations of all features with all: a table with named rows and columns."""
    side = 0.55 * len(table) + 1.2
    with canvas(side + 0.8, side) as (figure, axes):
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
    """Draw for each contrast the importance of all features in one layer against the other, and the words of both."""
    with canvas(9.6, 3.2 * len(contrasts), len(contrasts), 3, squeeze=False) as (figure, panels):
        for (left, middle, right), contrast in zip(panels, contrasts, strict=True):
            for axes, name, words in zip((left, right), contrast.names, contrast.words, strict=True):
                _words(axes, words, f"{name}, by {contrast.feature}")
            left.legend(fontsize=6, markerscale=2)
            _against(middle, contrast)
        save(figure, folder, "contrasts")


def _against(axes: Any, contrast: Contrast) -> None:
    table = contrast.importance
    axes.scatter(table["x"], table["y"], color=[colour_of(number) for number in range(len(table))], s=18, zorder=3)
    telling = table[table[["x", "y"]].max(axis=1) > 0.04 * table[["x", "y"]].to_numpy().max()]
    for row in telling.itertuples():  # the others lie on each other at 0
        axes.annotate(row.feature, (row.x, row.y), fontsize=6, xytext=(3, 2), textcoords="offset points")
    low, high = (np.array([table[axis].agg(end) for axis in "xy"]) for end in ("min", "max"))
    ends = [min(low.min(), 0), 1.1 * high.max()]
    axes.plot(ends, ends, color="0.6", linewidth=0.8, zorder=0)
    first, second = contrast.names
    axes.set(xlabel=f"importance in {first}", ylabel=f"importance in {second}", title=contrast.title)


def _words(axes: Any, words: pd.DataFrame, title: str) -> None:
    for number, (level, rows) in enumerate(words.groupby("level", sort=True)):
        axes.scatter(rows["x"], rows["y"], s=5, color=colour_of(number), label=str(level), linewidths=0)
    axes.set_title(f"{title}\nstress {words['stress'].iloc[0]:.2f}", fontsize=8)
    axes.set_aspect("equal", adjustable="datalim")
    axes.set(xticks=[], yticks=[])


def subject_scores(table: pd.DataFrame, ceilings: pd.DataFrame, folder: Path, comparator: str) -> None:
    """Draw the mean score of each layer of each model with its interval, a panel per recorded layer, and the ceiling.

    Args:
        table: recorded, model, layer, value, low, high.
        ceilings: recorded, lower, upper; a grey band from one to the other.
    """
    recorded = list(ceilings["recorded"])
    shape: dict[str, Any] = {"squeeze": False, "sharey": True}
    with canvas(3.4 * len(recorded) + 1.2, 3.4, 1, len(recorded), **shape) as (figure, panels):
        for axes, name in zip(panels[0], recorded, strict=True):
            ends = ceilings[ceilings["recorded"] == name].iloc[0]
            axes.axhspan(ends["lower"], ends["upper"], color="0.85", label="noise ceiling", zorder=0)
            inside = table[table["recorded"] == name]
            for number, (model, rows) in enumerate(inside.groupby("model", sort=False)):
                _band(axes, rows, "value", str(model), color=colour_of(number), marker="o")
                _name_layers(axes, list(rows["layer"]))
            axes.axhline(0, color="0.6", linewidth=0.8, zorder=0)
            axes.set(title=str(name), xlabel="layer")
        panels[0, 0].set_ylabel(f"{comparator.replace('_', ' ')}, mean over subjects")
        figure.legend(*panels[0, 0].get_legend_handles_labels(), loc="outside right upper", fontsize=8)
        save(figure, folder, "subjects")


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
