"""Figures of models in several subjects: scores of layers below the noise ceiling."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd

from thinkalike.figures.style import canvas, colour_of, layer_name, save

CEILING = "0.85"


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
            axes.axhspan(ends["lower"], ends["upper"], color=CEILING, label="noise ceiling", zorder=0)
            inside = table[table["recorded"] == name]
            for number, (model, rows) in enumerate(inside.groupby("model", sort=False)):
                _line(axes, rows, str(model), colour_of(number))
            axes.axhline(0, color="0.6", linewidth=0.8, zorder=0)
            axes.set_title(str(name), fontsize=9)
            axes.set_xlabel("layer")
        panels[0, 0].set_ylabel(f"{comparator.replace('_', ' ')}, mean over subjects")
        figure.legend(*panels[0, 0].get_legend_handles_labels(), loc="outside right upper", frameon=False, fontsize=8)
        save(figure, folder, "subjects")


def _line(axes: Any, rows: pd.DataFrame, label: str, colour: str) -> None:
    places = range(len(rows))
    axes.plot(places, rows["value"], "o-", color=colour, label=label, markersize=3.5, linewidth=1.2)
    axes.fill_between(places, rows["low"], rows["high"], color=colour, alpha=0.15, linewidth=0)
    every = max(1, round(len(rows) / 8))
    axes.set_xticks(places[::every], [layer_name(layer) for layer in rows["layer"]][::every])
