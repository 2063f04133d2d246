"""Figures of feature profiles."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from thinkalike.figures.style import canvas, colour_of, save, ticks

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
                band(upper, part, "importance", feature, **style)
            held_out = scores[scores["model"] == model]
            band(lower, held_out, "score", "held-out ρ", color="0.3", marker="o")
            if "reference" in held_out:
                style = {"color": "0.3", "linestyle": "--", "label": "its split-half reference"}
                lower.plot(range(len(held_out)), held_out["reference"], linewidth=1, **style)
            upper.axhline(0, color="0.6", linewidth=0.8, zorder=0)
            ticks(lower.xaxis, list(held_out["layer"]))
            lower.set_xlabel("layer")
            upper.set_title(model)
        for row in range(rows):
            panels[2 * row, 0].set_ylabel("feature importance [drop of ρ]")
            panels[2 * row + 1, 0].set_ylabel("held-out ρ")
        lines = {name: line for axes in pairs[0] for line, name in zip(*axes.get_legend_handles_labels(), strict=True)}
        figure.legend(list(lines.values()), list(lines), loc="outside right upper", fontsize=8)
        save(figure, folder, "profiles")


def band(axes: Any, rows: pd.DataFrame, column: str, label: str, **style: Any) -> None:
    """Draw a column against the rows, with the band from `low` to `high`."""
    places = range(len(rows))
    axes.plot(places, rows[column], label=label, markersize=3.5, linewidth=1.2, **style)
    axes.fill_between(places, rows["low"], rows["high"], color=style["color"], alpha=0.15, linewidth=0)
