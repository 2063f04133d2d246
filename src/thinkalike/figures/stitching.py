"""Figures of stitches and of populations of stitched classifiers."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.colors import LogNorm

from thinkalike.figures.style import COLOURS, canvas, heatmap, line, save, write_values


def penalty_map(cells: pd.DataFrame, title: str, folder: Path, name: str = "penalty") -> None:
    """Draw penalties of all layer pairs; the colours are logarithmic, because a few pairs cost ten times the others."""
    size = 0.45 * max(cells.shape) + 1.2
    with canvas(size + 0.8, size) as (figure, axes):
        values = cells.to_numpy()
        least = max(values.min(), values.max() / 100, 1e-3)
        image = heatmap(axes, cells, LogNorm(least, max(values.max(), 2 * least), clip=True), "viridis_r")
        write_values(axes, values, image)
        axes.set(xlabel="layer of the target", ylabel="layer of the source", title=title)
        figure.colorbar(image, ax=axes, label="penalty [nats per token]", format="%g")
        save(figure, folder, name)


BESIDE = {"floor": "the target into itself", "identity": "φ = identity", "token_mean": "the current token alone"}


def penalties(table: pd.DataFrame, folder: Path, name: str = "penalty") -> None:
    """Draw the penalty against layer with its interval, and beside it what it lies between, where that is known."""
    with canvas(4.2, 2.8) as (figure, axes):
        first = table.iloc[0]
        line(axes, table, "penalty", ("penalty_low", "penalty_high"), f"φ {first.stitch}, trained", COLOURS[0], "o-")
        for number, (other, label) in enumerate(BESIDE.items(), 1):
            column = f"{other}_penalty"
            if column in table and first.stitch != other:
                line(axes, table, column, (f"{column}_low", f"{column}_high"), label, COLOURS[number], "s--")
        axes.axhline(0, color="0.6", linewidth=0.8, zorder=0)
        axes.set_xticks(range(len(table)), [_site(row) for row in table.itertuples()])
        title = f"{first.source} into {first.target}"
        axes.set(xlabel="layer of the stitch", ylabel="penalty [nats per token]", title=title)
        figure.legend(loc="outside lower center", ncols=2)
        save(figure, folder, name)


def _site(row: Any) -> str:
    return str(row.source_layer) if row.source_layer == row.target_layer else f"{row.source_layer}→{row.target_layer}"


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
    """Draw the loss against step, a running mean of ten steps: a row per group of models, a panel per layer.

    Args:
        curves: (group, direction) to losses (steps, layers), in nats per token.
    """
    groups = list(dict.fromkeys(group for group, _ in curves))
    layers = max(curve.shape[1] for curve in curves.values())
    size = 2.3 * layers, 2.3 * len(groups)
    with canvas(*size, len(groups), layers, sharey=True, squeeze=False) as (figure, panels):
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

LABELS = {"accuracy_penalty": "accuracy penalty", "flips": "share of flipped predictions", "value": "CKA"}
ACROSS = 3  # panels
MARGIN = 0.05  # of the height of a panel, above and below its values


def groups_by_depth(tables: Mapping[str, pd.DataFrame], folder: Path) -> None:
    """Draw means over pairs of models by kind of pair, against depth, with intervals over models.

    Panels of one quantity have one scale, so that a null looks as small as it is.

    Args:
        tables: by title: pair (such as "generalizing into heuristic"), place, mean, low, high; and column, what it is.
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
    """Draw the distances of all pairs of models: a matrix in the order of the groups, and the kinds of pairs.

    Args:
        table: source, target, pair, value.
    """
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
        kinds = [(str(pair), rows["value"]) for pair, rows in table[table["source"] < table["target"]].groupby("pair")]
        _spread(right, kinds)
        save(figure, folder, "distances")


def _spread(axes: Any, kinds: list[tuple[str, pd.Series]]) -> None:
    axes.boxplot([values for _, values in kinds], widths=0.5, showfliers=False, medianprops={"color": "0.2"})
    shift = np.random.default_rng(0)
    for place, (_, values) in enumerate(kinds, 1):
        across = place + shift.uniform(-0.15, 0.15, len(values))
        axes.plot(across, values, "o", color=COLOURS[(place - 1) % len(COLOURS)], markersize=2.5, alpha=0.6)
    axes.set_xticks(range(1, len(kinds) + 1), [name.replace(" and ", "\nand ") for name, _ in kinds])
    axes.set_ylabel("distance (equation 2)")
