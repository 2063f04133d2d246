"""Figures of the papers: features, layers side by side, learning curves, and populations of classifiers."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from matplotlib.colors import Normalize

from thinkalike.figures.style import COLOURS, canvas, colour_of, line, save, write_values

LABELS = {"accuracy_penalty": "accuracy penalty", "flips": "share of flipped predictions", "value": "CKA"}
ACROSS = 3  # panels
MARGIN = 0.05  # of the height of a panel, above and below its values


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
                for number, (level, rows) in enumerate(words.groupby("level", sort=True)):
                    axes.scatter(rows["x"], rows["y"], s=5, color=colour_of(number), label=str(level), linewidths=0)
                title = f"{name}, by {contrast.feature}\nstress {words['stress'].iloc[0]:.2f}"
                axes.set_title(title, fontsize=8)
                axes.set_aspect("equal", adjustable="datalim")
                axes.set(xticks=[], yticks=[])
            left.legend(fontsize=6, markerscale=2)
            table, (first, second) = contrast.importance, contrast.names
            values, colours = table[["x", "y"]].to_numpy(), [colour_of(number) for number in range(len(table))]
            middle.scatter(table["x"], table["y"], color=colours, s=18, zorder=3)
            for row in table[values.max(axis=1) > 0.04 * values.max()].itertuples():  # the others lie together at 0
                middle.annotate(row.feature, (row.x, row.y), fontsize=6, xytext=(3, 2), textcoords="offset points")
            ends = [min(values.min(), 0), 1.1 * values.max()]
            middle.plot(ends, ends, color="0.6", linewidth=0.8, zorder=0)
            middle.set(xlabel=f"importance in {first}", ylabel=f"importance in {second}", title=contrast.title)
        save(figure, folder, "contrasts")


def directions(table: pd.DataFrame, folder: Path) -> None:
    """Draw the penalty against layer with its interval, one panel per group of models, one line per direction."""
    groups = list(dict.fromkeys(table["group"]))
    with canvas(3.1 * len(groups), 3.3, 1, len(groups), sharey=True, squeeze=False) as (figure, panels):
        for axes, group in zip(panels[0], groups, strict=True):
            inside = table[table["group"] == group]
            for number, ((source, target), rows) in enumerate(inside.groupby(["source", "target"], sort=True)):
                label = f"{source} → {target}"
                colour, style = COLOURS[number % len(COLOURS)], ("o-", "s--")[number // len(COLOURS)]
                line(axes, rows.reset_index(), "penalty", ("penalty_low", "penalty_high"), label, colour, style)
            axes.axhline(0, color="0.6", linewidth=0.8, zorder=0)
            axes.set_xticks(range(inside["source_layer"].nunique()))
            axes.set(xlabel="layer of the stitch", title=group)
            axes.legend(fontsize=7)
        panels[0][0].set_ylabel("penalty [nats per token]")
        save(figure, folder, "penalties")


def learning_curves(curves: dict[tuple[str, str], Any], folder: Path) -> None:
    """Draw losses (steps, layers) by group and direction against step, running means of ten, a panel per layer."""
    groups = list(dict.fromkeys(group for group, _ in curves))
    layers = max(curve.shape[1] for curve in curves.values())
    with canvas(2.3 * layers, 2.3 * len(groups), len(groups), layers, sharey=True, squeeze=False) as (figure, panels):
        for row, group in zip(panels, groups, strict=True):
            inside = {label: curve for (name, label), curve in curves.items() if name == group}
            for layer, axes in enumerate(row):
                if layer >= next(iter(inside.values())).shape[1]:
                    axes.set_axis_off()
                    continue
                for number, (label, curve) in enumerate(sorted(inside.items())):
                    smooth = pd.Series(curve[:, layer]).rolling(10, min_periods=1).mean()
                    axes.plot(smooth, color=COLOURS[number % len(COLOURS)], label=label, linewidth=1)
                axes.set_title(f"{group}, layer {layer}", fontsize=8)
                axes.set_xlabel("step")
            row[0].set_ylabel("loss [nats per token]")
            row[0].legend(fontsize=6)
        save(figure, folder, "learning_curves")


# Populations of classifiers (Brown et al. 2023, figures 2, 7, 8).


def groups_by_depth(tables: Mapping[str, pd.DataFrame], folder: Path) -> None:
    """Draw means over pairs of models by kind of pair, against depth, with intervals over models.

    Panels of one quantity have one scale, so that a null looks as small as it is. Each table, by title, has pair,
    place, mean, low and high, and column, what it is.
    """
    columns = min(len(tables), ACROSS if len(tables) % ACROSS == 0 else 2)
    rows = -(-len(tables) // columns)
    values = pd.concat(list(tables.values())).set_index("column")[["mean", "low", "high"]]
    ends = values.replace([np.inf, -np.inf], np.nan)  # an interval may be open
    with canvas(4.1 * columns, 3.3 * rows, rows, columns, squeeze=False) as (figure, panels):
        for axes in panels.flat[len(tables) :]:
            axes.set_axis_off()
        for axes, (title, table) in zip(panels.flat, tables.items(), strict=False):
            for number, (pair, points) in enumerate(table.groupby("pair", sort=False)):
                errors = [points["mean"] - points["low"], points["high"] - points["mean"]]
                style = {"color": COLOURS[number % len(COLOURS)], "label": pair, "capsize": 3, "markersize": 4}
                axes.errorbar(points["place"], points["mean"], yerr=np.clip(errors, 0, None), fmt="o-", **style)
            places = sorted(table["place"].unique())
            axes.set_xticks(places, ["embed" if place < 0 else str(place) for place in places])
            axes.set_xlabel(str(table["axis"].iloc[0]))
            quantity = str(table["column"].iloc[0])
            low, high = np.nanmin(ends.loc[quantity]), np.nanmax(ends.loc[quantity])
            margin = MARGIN * (high - low or 1)
            axes.set_ylim(low - margin, high + margin)
            axes.set(ylabel=LABELS[quantity], title=title)
            axes.legend(fontsize=7)
        save(figure, folder, "groups")


def distances(table: pd.DataFrame, folder: Path) -> None:
    """Draw the distances of all pairs of models: a matrix in the order of the groups, and the kinds of pairs."""
    names = list(dict.fromkeys(table["source"]))
    cells = table.pivot(index="source", columns="target", values="value").loc[names, names]
    with canvas(8.4, 3.6, 1, 2) as (figure, (left, right)):
        image = left.imshow(cells.to_numpy(), origin="lower", cmap="viridis")
        groups = table.drop_duplicates("source")["group_of_source"].tolist()
        for edge in (place - 0.5 for place in range(1, len(groups)) if groups[place] != groups[place - 1]):
            left.axhline(edge, color="white", linewidth=1)
            left.axvline(edge, color="white", linewidth=1)
        order = f"model: {', then '.join(dict.fromkeys(groups))}"
        left.set(xlabel=order, ylabel=order)
        figure.colorbar(image, ax=left, label="distance (equation 2)", shrink=0.85)
        kinds = {str(pair): rows["value"] for pair, rows in table[table["source"] < table["target"]].groupby("pair")}
        right.boxplot(list(kinds.values()), widths=0.5, showfliers=False, medianprops={"color": "0.2"})
        shift = np.random.default_rng(0)
        for place, values in enumerate(kinds.values(), 1):
            across = place + shift.uniform(-0.15, 0.15, len(values))
            right.plot(across, values, "o", color=COLOURS[(place - 1) % len(COLOURS)], markersize=2.5, alpha=0.6)
        right.set_xticks(range(1, len(kinds) + 1), [name.replace(" and ", "\nand ") for name in kinds])
        right.set_ylabel("distance (equation 2)")
        save(figure, folder, "distances")
