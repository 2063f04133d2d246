"""Figures of stitches."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
from matplotlib.colors import LogNorm

from thinkalike.figures.style import COLOURS, canvas, heatmap, line, save, ticks, write_values

NAMED = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30)  # nats per token
WRITTEN = 144  # cells into which their values are written, at most


def penalty_map(cells: pd.DataFrame, title: str, folder: Path, name: str = "penalty") -> None:
    """Draw penalties of all layer pairs; the colours are logarithmic, because a few pairs cost ten times the others."""
    values, is_small = cells.to_numpy(), cells.size <= WRITTEN
    height, width = (max((0.45 if is_small else 0.2) * count, 1.5) + 1.2 for count in cells.shape)
    with canvas(width + 0.8, height) as (figure, axes):
        least = max(values.min(), values.max() / 100, 1e-3)
        image = heatmap(axes, cells, LogNorm(least, max(values.max(), 2 * least), clip=True), "viridis_r")
        if is_small:
            write_values(axes, values, image)
        axes.set(xlabel="layer of the target", ylabel="layer of the source", title=title)
        bar = figure.colorbar(image, ax=axes, label="penalty [nats per token]", format="%g", shrink=0.8, aspect=30)
        bar.set_ticks([each for each in NAMED if image.norm.vmin <= each <= image.norm.vmax], minor=False)
        bar.ax.minorticks_off()
        save(figure, folder, name)


BESIDE = {"floor": "the target into itself", "identity": "φ = identity", "token_mean": "the current token alone"}


def penalties(table: pd.DataFrame, title: str, folder: Path, name: str = "penalty") -> None:
    """Draw the penalty against layer with its interval, and beside it what it lies between, where that is known."""
    with canvas(4.2, 2.8) as (figure, axes):
        first = table.iloc[0]
        line(axes, table, "penalty", ("penalty_low", "penalty_high"), f"φ {first.stitch}, fitted", COLOURS[0], "o-")
        for number, (other, label) in enumerate(BESIDE.items(), 1):
            column = f"{other}_penalty"
            if column in table and first.stitch != other:
                line(axes, table, column, (f"{column}_low", f"{column}_high"), label, COLOURS[number], "s--")
        axes.axhline(0, color="0.6", linewidth=0.8, zorder=0)
        sites = list(zip(table["source_layer"], table["target_layer"], strict=True))
        are_equal = all(a == b for a, b in sites)
        ticks(axes.xaxis, [a if are_equal else f"{a}→{b}" for a, b in sites], 10 if are_equal else 6)
        axes.set(xlabel="layer of the stitch", ylabel="penalty [nats per token]", title=title)
        figure.legend(loc="outside lower center", ncols=2)
        save(figure, folder, name)
