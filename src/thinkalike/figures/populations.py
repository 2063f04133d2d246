"""Figures of populations of classifiers (Brown et al. 2023, figures 2, 7, 8)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from thinkalike.figures.style import COLOURS, canvas, save

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
            axes.set_ylabel(LABELS[quantity])
            axes.set_title(title, fontsize=9)
            axes.legend(frameon=False, fontsize=7)
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
        left.set_xlabel(order)
        left.set_ylabel(order)
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
