"""Figures of transfer between models: probes, steering vectors and sparse autoencoders."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from thinkalike.figures.style import COLOURS, canvas, colour_of, save

MARKS = "osD^vP*Xph"
WIDTH = 0.7  # of a feature, which its conditions share


def carried_probes(table: pd.DataFrame, folder: Path, name: str = "probes") -> None:
    """Draw the balanced accuracy of each condition by feature with its interval, a panel per split and layer pair."""
    pairs = list(table.groupby(["source_layer", "target_layer"], sort=False))
    splits, features = (list(dict.fromkeys(table[part])) for part in ("split", "feature"))
    size = (max(1.1 * len(features), 4) * len(pairs) + 1.6, 2.8 * len(splits))
    with canvas(*size, len(splits), len(pairs), squeeze=False, sharey=True) as (figure, panels):
        for (row, column), axes in np.ndenumerate(panels):
            (layer, depth), rows = pairs[column]
            _conditions(axes, rows[rows["split"] == splits[row]], features)
            axes.set_title(f"layer {layer} → {depth}, held-out {splits[row]}s")
            if not column:
                axes.set_ylabel("balanced accuracy")
        lines = panels[0, 0].get_legend_handles_labels()
        figure.legend(*lines, loc="outside right upper", fontsize=7)
        first = table.iloc[0]
        figure.suptitle(f"probes of {first['source']} in {first['target']}", fontsize=10)
        save(figure, folder, name)


def _conditions(axes: Any, table: pd.DataFrame, features: list[str]) -> None:
    conditions = list(dict.fromkeys(table["condition"]))
    for number, condition in enumerate(conditions):
        rows = table[table["condition"] == condition].set_index("feature").reindex(features)
        places = np.arange(len(features)) + WIDTH * ((number + 0.5) / len(conditions) - 0.5)
        style = {"fmt": MARKS[number % len(MARKS)], "color": colour_of(number), "markersize": 4, "capsize": 2}
        axes.errorbar(places, rows["accuracy"], yerr=_bars(rows, "accuracy"), label=condition, **style)
    chance = table.drop_duplicates("feature").set_index("feature")["chance"].reindex(features)
    for place, value in enumerate(chance):
        axes.hlines(value, place - WIDTH / 2, place + WIDTH / 2, color="0.6", linestyles="--", linewidth=1)
    axes.set_xticks(range(len(features)), features, rotation=30, ha="right")
    axes.set_ylim(0, 1.03)


def steering(table: pd.DataFrame, folder: Path, name: str = "steering") -> None:
    """Draw the share of the natural effect against the layer pair, a panel per position and strength."""
    column = "share" if table["share"].notna().any() else "effect"
    kinds = list(table.groupby(["position", "strength"], sort=False))
    with canvas(3.6 * len(kinds) + 1.6, 3.0, 1, len(kinds), squeeze=False, sharey=True) as (figure, panels):
        for axes, ((position, strength), rows) in zip(panels[0], kinds, strict=True):
            for number, (condition, own) in enumerate(rows.groupby("condition", sort=False)):
                style = {"color": colour_of(number), "label": condition, "markersize": 4, "capsize": 2}
                axes.errorbar(range(len(own)), own[column], yerr=_bars(own, column), fmt=f"{MARKS[number]}-", **style)
            names = [f"{row.source_layer}→{row.target_layer}" for row in own.itertuples()]
            axes.set_xticks(range(len(names)), names)
            axes.axhline(0, color="0.6", linewidth=0.8, zorder=0)
            axes.set(xlabel="layers", title=f"{position}, strength {strength:g}")
        panels[0, 0].set_ylabel("share of the natural effect" if column == "share" else "effect [nats]")
        figure.legend(*panels[0, 0].get_legend_handles_labels(), loc="outside right upper", fontsize=8)
        save(figure, folder, name)


def _bars(rows: pd.DataFrame, column: str) -> list[pd.Series]:
    """Return how far the interval reaches below and above the value."""
    low, high = (rows[f"effect_{end}" if column == "effect" else end] for end in ("low", "high"))
    return [(rows[column] - low).clip(lower=0), (high - rows[column]).clip(lower=0)]


NAMES = {"random": "random", "least_squares": "random, fitted decoder", "transferred": "transferred"}


def sae_curves(curves: pd.DataFrame, folder: Path) -> None:
    """Draw explained variance against all FLOPs, a panel per transfer: means over seeds, and single seeds.

    Each start is at its best rate, which is chosen at each look.
    """
    panels_of = list(curves.groupby("transfer", sort=False)) if "transfer" in curves else [("", curves)]
    width, height = (3.2 * len(panels_of), 3.1) if len(panels_of) > 1 else (4.4, 3.2)
    with canvas(width, height, 1, len(panels_of), squeeze=False) as (figure, panels):
        for axes, (title, inside) in zip(panels[0], panels_of, strict=True):
            for number, (start, rows) in enumerate(inside.groupby("start", sort=False)):
                best = rows.groupby(["tokens", "rate"])["explained_variance"].mean().groupby("tokens").idxmax()
                own = rows.set_index(["tokens", "rate"]).loc[list(best)].reset_index()
                middle = own.groupby("tokens")[["flops", "explained_variance"]].mean()
                colour, name = COLOURS[number % len(COLOURS)], NAMES.get(str(start), str(start))
                axes.scatter(own["flops"], own["explained_variance"], s=4, color=colour, alpha=0.4, linewidths=0)
                axes.plot(middle["flops"], middle["explained_variance"], color=colour, label=name)
            axes.set(xlabel="FLOPs, all counted", ylabel="explained variance")
            axes.set_xscale("symlog", linthresh=max(inside.loc[inside["tokens"] > 0, "flops"].min(), 1.0))
            axes.set_title(title, fontsize=8)
        panels[0][0].legend(fontsize=7)
        save(figure, folder, "explained_variance")
