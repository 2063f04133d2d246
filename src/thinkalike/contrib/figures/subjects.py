"""Figures of models beside several subjects."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd

from thinkalike.figures.features import band, name_layers
from thinkalike.figures.style import canvas, colour_of, save


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
                band(axes, rows, "value", str(model), color=colour_of(number), marker="o")
                name_layers(axes, list(rows["layer"]))
            axes.axhline(0, color="0.6", linewidth=0.8, zorder=0)
            axes.set(title=str(name), xlabel="layer")
        panels[0, 0].set_ylabel(f"{comparator.replace('_', ' ')}, mean over subjects")
        figure.legend(*panels[0, 0].get_legend_handles_labels(), loc="outside right upper", fontsize=8)
        save(figure, folder, "subjects")
