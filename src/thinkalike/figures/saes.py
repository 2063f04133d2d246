"""Figures of sparse autoencoders."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd

from thinkalike.figures.style import COLOURS, canvas, save

NAMES = {"random": "random", "least_squares": "random, fitted decoder", "transferred": "transferred"}


def sae_curves(curves: pd.DataFrame, folder: Path) -> None:
    """Draw explained variance against all FLOPs, each start at its best rate: means over seeds, and single seeds."""
    with canvas(4.4, 3.2) as (figure, axes):
        draw_courses(axes, curves)
        axes.legend(frameon=False)
        save(figure, folder, "explained_variance")


def sae_transfers(curves: pd.DataFrame, folder: Path) -> None:
    """Draw the same of several transfers, one panel for each."""
    names = list(dict.fromkeys(curves["transfer"]))
    with canvas(3.2 * len(names), 3.1, 1, len(names), squeeze=False) as (figure, panels):
        for axes, name in zip(panels[0], names, strict=True):
            draw_courses(axes, curves[curves["transfer"] == name])
            axes.set_title(name, fontsize=8)
        panels[0][0].legend(frameon=False, fontsize=7)
        save(figure, folder, "explained_variance")


def draw_courses(axes: Any, curves: pd.DataFrame) -> None:
    """Draw the curves of all starts into given axes; the best rate is chosen at each look."""
    for number, (start, rows) in enumerate(curves.groupby("start", sort=False)):
        means = rows.groupby(["tokens", "rate"])["explained_variance"].mean()
        best = means.groupby("tokens").idxmax()
        own = rows.set_index(["tokens", "rate"]).loc[list(best)].reset_index()
        middle = own.groupby("tokens")[["flops", "explained_variance"]].mean()
        colour = COLOURS[number % len(COLOURS)]
        axes.scatter(own["flops"], own["explained_variance"], s=4, color=colour, alpha=0.4, linewidths=0)
        axes.plot(middle["flops"], middle["explained_variance"], color=colour, label=NAMES.get(str(start), str(start)))
    axes.set_xlabel("FLOPs, all counted")
    axes.set_ylabel("explained variance")
    axes.set_xscale("symlog", linthresh=max(curves.loc[curves["tokens"] > 0, "flops"].min(), 1.0))
