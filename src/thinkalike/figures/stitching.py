"""Figures of stitches."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.colors import LogNorm

from thinkalike.figures.style import (
    COLOURS,
    COLUMN,
    VALUE_WIDTH,
    canvas,
    colour_range,
    heatmap,
    in_lines,
    line,
    save,
    ticks,
    write_title,
    write_values,
)

TICK_PENALTIES = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30)  # nats per token
LEAST_PENALTY = 1e-3  # the lowest end of the colours
COLOUR_RANGE = 100  # the highest end of the colours is at most so many times the lowest
BESIDE_MAP = 1.3  # inches of the names of layers and the colours on both sides of a map
ABOVE_AND_BELOW = 1.1  # inches of a title and the names of layers

# baselines beside the stitch, by the beginning of their columns
REFERENCES = {
    "floor": "target into itself",
    "identity": "identity baseline",
    "token_mean": "token-mean baseline",
}


def penalty_map(
    cells: pd.DataFrame,
    source: str,
    target: str,
    folder: Path,
    about: str = "",
    name: str = "penalty",
) -> None:
    """Draw the penalties of all layer pairs.

    The colours are logarithmic, because a few pairs cost ten times as much as the others.

    Args:
        cells: Penalties; rows are layers of the source, columns those of the target.
        source, target: The names of the models.
        folder: Where the figure is written.
        about: How much was compared.
        name: The name of the file.
    """
    values = cells.to_numpy(float)
    rows, columns = cells.shape
    inches_of_cell = (COLUMN - BESIDE_MAP) / max(rows, columns)
    height = inches_of_cell * rows + ABOVE_AND_BELOW
    with canvas(COLUMN, height) as (figure, axes):
        least, most = colour_range(values, (0.0, 0.0))
        lowest = max(least, most / COLOUR_RANGE, LEAST_PENALTY)
        highest = max(most, 2 * lowest)
        image = heatmap(axes, cells, LogNorm(lowest, highest, clip=True), "viridis_r")
        if inches_of_cell >= VALUE_WIDTH:
            write_values(axes, np.ma.asarray(image.get_array()), image)
        axes.set(xlabel=f"layer of {target}", ylabel=f"layer of {source}")
        label = "penalty [nats per token]"
        bar = figure.colorbar(image, ax=axes, label=label, format="%g", shrink=0.8, aspect=25)
        inside = [penalty for penalty in TICK_PENALTIES if lowest <= penalty <= highest]
        bar.set_ticks(inside, minor=False)
        bar.ax.minorticks_off()
        write_title(figure, axes, f"{source} into {target}", about)
        save(figure, folder, name)


def penalties(table: pd.DataFrame, folder: Path, about: str = "", name: str = "penalty") -> None:
    """Draw the penalty against layer with its interval, beside those of `REFERENCES`.

    Args:
        table: The layer pairs of one source and one target.
        folder: Where the figure is written.
        about: How much was compared, and what the intervals are over.
        name: The name of the file.
    """
    first = table.iloc[0]
    with canvas(COLUMN, 2.5) as (figure, axes):
        ends = ("penalty_low", "penalty_high")
        stitch = f"{str(first.stitch).replace('_', ' ')} stitch"
        line(axes, table, "penalty", ends, stitch, COLOURS[0], "o-")
        for number, (reference, label) in enumerate(REFERENCES.items(), 1):
            column = f"{reference}_penalty"
            if column in table and first.stitch != reference:
                ends = (f"{column}_low", f"{column}_high")
                line(axes, table, column, ends, label, COLOURS[number], "s--")
        axes.axhline(0, color="0.6", linewidth=0.8, zorder=0)

        pairs = list(zip(table["source_layer"], table["target_layer"], strict=True))
        if all(source == target for source, target in pairs):
            ticks(axes.xaxis, [source for source, _ in pairs], 10)
            where = "layer of the stitch"
        else:
            ticks(axes.xaxis, [f"{source}→{target}" for source, target in pairs], 6)
            where = f"layer of {first.source} → layer of {first.target}"
        axes.set(xlabel=in_lines(where, COLUMN - 0.5), ylabel="penalty [nats per token]")
        figure.legend(loc="outside lower center", ncols=2)
        write_title(figure, axes, f"{first.source} into {first.target}", about)
        save(figure, folder, name)
