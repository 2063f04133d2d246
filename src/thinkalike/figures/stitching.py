"""Figures of stitches."""

from __future__ import annotations

from pathlib import Path

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
        sites = zip(table["source_layer"].map(str), table["target_layer"].map(str), strict=True)
        axes.set_xticks(range(len(table)), [a if a == b else f"{a}→{b}" for a, b in sites])
        title = f"{first.source} into {first.target}"
        axes.set(xlabel="layer of the stitch", ylabel="penalty [nats per token]", title=title)
        figure.legend(loc="outside lower center", ncols=2)
        save(figure, folder, name)
