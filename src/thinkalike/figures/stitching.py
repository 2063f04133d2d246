"""Figures of stitches."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
from matplotlib.colors import LogNorm

from thinkalike.figures.style import COLOURS, canvas, heatmap, line, save, ticks, write_values

TICK_PENALTIES = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30)  # nats per token
MOST_WRITTEN = 144  # cells whose values are written
LEAST_PENALTY = 1e-3  # the lowest end of the colours
COLOUR_RANGE = 100  # the highest end of the colours is at most so many times the lowest
# inches of a cell, with and without its value; of the smallest map; and of the names of layers
CELL_WITH_VALUE = 0.45
CELL = 0.2
SMALLEST_MAP = 1.5
MARGIN = 1.2

# other maps beside φ, by the beginning of their columns
REFERENCES = {
    "floor": "the target into itself",
    "identity": "φ = identity",
    "token_mean": "the current token alone",
}


def penalty_map(cells: pd.DataFrame, title: str, folder: Path, name: str = "penalty") -> None:
    """Draw the penalties of all layer pairs.

    The colours are logarithmic, because a few pairs cost ten times as much as the others.
    """
    values = cells.to_numpy()
    shows_values = cells.size <= MOST_WRITTEN
    inches_of_cell = CELL
    if shows_values:
        inches_of_cell = CELL_WITH_VALUE
    rows, columns = cells.shape
    height = max(inches_of_cell * rows, SMALLEST_MAP) + MARGIN
    width = max(inches_of_cell * columns, SMALLEST_MAP) + MARGIN

    with canvas(width + 0.8, height) as (figure, axes):
        lowest = max(values.min(), values.max() / COLOUR_RANGE, LEAST_PENALTY)
        highest = max(values.max(), 2 * lowest)
        image = heatmap(axes, cells, LogNorm(lowest, highest, clip=True), "viridis_r")
        if shows_values:
            write_values(axes, values, image)
        axes.set(xlabel="layer of the target", ylabel="layer of the source", title=title)
        label = "penalty [nats per token]"
        bar = figure.colorbar(image, ax=axes, label=label, format="%g", shrink=0.8, aspect=30)
        inside = [penalty for penalty in TICK_PENALTIES if lowest <= penalty <= highest]
        bar.set_ticks(inside, minor=False)
        bar.ax.minorticks_off()
        save(figure, folder, name)


def penalties(table: pd.DataFrame, title: str, folder: Path, name: str = "penalty") -> None:
    """Draw the penalty against layer with its interval, beside those of `REFERENCES`."""
    first = table.iloc[0]
    with canvas(4.2, 2.8) as (figure, axes):
        ends = ("penalty_low", "penalty_high")
        line(axes, table, "penalty", ends, f"φ {first.stitch}, fitted", COLOURS[0], "o-")
        for number, (reference, label) in enumerate(REFERENCES.items(), 1):
            column = f"{reference}_penalty"
            if column in table and first.stitch != reference:
                ends = (f"{column}_low", f"{column}_high")
                line(axes, table, column, ends, label, COLOURS[number], "s--")
        axes.axhline(0, color="0.6", linewidth=0.8, zorder=0)

        pairs = list(zip(table["source_layer"], table["target_layer"], strict=True))
        if all(source == target for source, target in pairs):
            ticks(axes.xaxis, [source for source, _ in pairs], 10)
        else:
            ticks(axes.xaxis, [f"{source}→{target}" for source, target in pairs], 6)
        axes.set(xlabel="layer of the stitch", ylabel="penalty [nats per token]", title=title)
        figure.legend(loc="outside lower center", ncols=2)
        save(figure, folder, name)
