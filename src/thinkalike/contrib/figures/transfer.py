"""Probes and steering vectors that are carried from one model to another."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from thinkalike.figures.style import (
    COLUMN,
    PAGE,
    canvas,
    colour_of,
    finite_or_nan,
    save,
    width_of,
    write_title,
)

MARKERS = "osD^vP*Xph"
LEGENDS_ACROSS = {COLUMN: 2, PAGE: 5}
MOST_IN_COLUMN = 3  # features of all panels of a row, in a figure as wide as a column
FEATURE_WIDTH = 0.7  # of the distance of two features, which its conditions share


def draw_probes(table: pd.DataFrame, folder: Path, name: str = "probes") -> None:
    """Draw the balanced accuracy of probes of each feature, with its interval.

    A condition is where a probe was fitted and which states it reads; each has a marker. There is
    a row of panels for each split (whether sentences or words are held out), and a column for each
    layer pair.

    Args:
        table: The table of a result of `measure=probes`.
        folder: Where the figure is written.
        name: The name of its files.
    """
    layer_pairs = list(table.groupby(["source_layer", "target_layer"], sort=False))
    splits = list(dict.fromkeys(table["split"]))
    features = list(dict.fromkeys(table["feature"]))
    width = PAGE
    if len(features) * len(layer_pairs) <= MOST_IN_COLUMN:
        width = COLUMN
    n_rows = len(splits)
    n_columns = len(layer_pairs)
    height = 2.1 * n_rows + 0.9  # rows of panels, and the legend below them
    with canvas(width, height, n_rows, n_columns, squeeze=False, sharey=True) as (figure, panels):
        for (row, column), axes in np.ndenumerate(panels):
            (source_layer, target_layer), rows = layer_pairs[column]
            split = splits[row]
            _draw_conditions(axes, rows[rows["split"] == split], features)
            axes.set_title(f"layer {source_layer} → {target_layer}, held-out {split}s")
            if column == 0:
                axes.set_ylabel("balanced accuracy")
            is_last_row = row == n_rows - 1
            axes.tick_params(labelbottom=is_last_row)  # the names of features, below it
        handles, labels = panels[0, 0].get_legend_handles_labels()
        handles.append(Line2D([], [], color="0.6", linestyle="--", linewidth=1))
        labels.append("chance")
        across = LEGENDS_ACROSS[width]
        figure.legend(handles, labels, loc="outside lower center", ncols=across)
        first = table.iloc[0]
        names = f"Probes of {first['source']} in {first['target']}"
        fewest, most = table["sentences"].min(), table["sentences"].max()
        counts = f"{most}" if fewest == most else f"{fewest} to {most}"
        note = f"bars: 95 % intervals over {counts} sentences"
        write_title(figure, panels[0, 0], names, note)
        save(figure, folder, name)


def _draw_conditions(axes: Axes, table: pd.DataFrame, features: list[str]) -> None:
    """Draw the accuracies of all conditions side by side for each feature, with chance.

    A condition is where a probe was fitted and which states it reads. Chance is a dashed line.

    Args:
        axes: Where it is drawn.
        table: A row for each condition and feature, of one layer pair and one split (whether
            sentences or words were held out).
        features: The features from left to right. Where a condition has no accuracy for a feature,
            nothing is drawn.
    """
    conditions = list(dict.fromkeys(table["condition"]))
    positions = np.arange(len(features))
    for number, condition in enumerate(conditions):
        rows_of_condition = table[table["condition"] == condition]
        rows = rows_of_condition.set_index("feature").reindex(features)
        # Conditions are evenly spaced around the position of a feature.
        shift = FEATURE_WIDTH * ((number + 0.5) / len(conditions) - 0.5)
        axes.errorbar(
            positions + shift,
            rows["accuracy"],
            yerr=_error_bars(rows["accuracy"], rows["low"], rows["high"]),
            label=condition,
            fmt=MARKERS[number % len(MARKERS)],
            color=colour_of(number),
            markersize=2.5,
            capsize=1,
            elinewidth=0.7,
        )
    chance = table.drop_duplicates("feature").set_index("feature")["chance"]
    _draw_chance(axes, chance.reindex(features))
    axes.set_xticks(range(len(features)), features, rotation=30, ha="right")
    axes.set_ylim(0, 1.03)


def _draw_chance(axes: Axes, chance: pd.Series) -> None:
    """Draw a dashed line at the accuracy of chance of each feature, at positions 0, 1, 2, ..."""
    for position, value in enumerate(chance):
        axes.hlines(
            value,
            position - FEATURE_WIDTH / 2,
            position + FEATURE_WIDTH / 2,
            color="0.6",
            linestyles="--",
            linewidth=1,
        )


def draw_steering(table: pd.DataFrame, folder: Path, about: str, name: str = "steering") -> None:
    """Draw the effects of steering vectors against the layer pair.

    There is a panel for each position (the tokens to which vectors are added) and strength (what
    they are multiplied by). Effects are shares of the natural effect, that of the text itself; if
    no share is known, they are in nats.

    Args:
        table: The table of a result of `measure=steering`.
        folder: Where the figure is written.
        about: The pairs of texts, and what the intervals are over.
        name: The name of its files.
    """
    has_shares = bool(table["share"].notna().any())
    rows_by_panel = list(table.groupby(["position", "strength"], sort=False))
    n_panels = len(rows_by_panel)
    width = width_of(n_panels)
    with canvas(width, 2.6, columns=n_panels, squeeze=False, sharey=True) as (figure, panels):
        for axes, ((position, strength), rows) in zip(panels[0], rows_by_panel, strict=True):
            _draw_effects(axes, rows, has_shares)
            axes.set(xlabel="layer → layer", title=f"{position}, strength {strength:g}")
        panels[0, 0].set_ylabel("share of the natural effect" if has_shares else "effect [nats]")
        handles, labels = panels[0, 0].get_legend_handles_labels()
        across = LEGENDS_ACROSS[width]
        figure.legend(handles, labels, loc="outside lower center", ncols=across)
        first = table.iloc[0]
        names = f"Steering vectors of {first['source']} in {first['target']}"
        write_title(figure, panels[0, 0], names, about)
        save(figure, folder, name)


def _draw_effects(axes: Axes, table: pd.DataFrame, has_shares: bool) -> None:
    """Draw the effects of steering vectors against the layer pair, a line for each condition.

    A condition says which vector was added.

    Args:
        axes: Where it is drawn.
        table: A row for each layer pair and condition, of one position and strength.
        has_shares: Whether shares of the natural effect are drawn, and not effects in nats.
    """
    columns = ["effect", "effect_low", "effect_high"]
    if has_shares:
        columns = ["share", "low", "high"]
    for number, (condition, rows) in enumerate(table.groupby("condition", sort=False)):
        value, low, high = (rows[column] for column in columns)
        axes.errorbar(
            range(len(rows)),
            value,
            yerr=_error_bars(value, low, high),
            fmt=f"{MARKERS[number]}-",
            color=colour_of(number),
            label=condition,
            markersize=3,
            capsize=2,
            elinewidth=0.8,
        )
    layer_pairs = table[["source_layer", "target_layer"]].drop_duplicates()
    names = [f"{source}→{target}" for source, target in layer_pairs.itertuples(index=False)]
    axes.set_xticks(range(len(names)), names)
    axes.axhline(0, color="0.6", linewidth=0.8, zorder=0)


def _error_bars(value: pd.Series, low: pd.Series, high: pd.Series) -> list[pd.Series]:
    """Return the lengths of error bars below and above values, NaN where an interval is unbounded.

    They are at least 0, as matplotlib requires, even if an interval does not contain its value.
    """
    below = (value - finite_or_nan(low)).clip(lower=0)
    above = (finite_or_nan(high) - value).clip(lower=0)
    return [below, above]
