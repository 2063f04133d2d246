"""Figures of maps between two models in both directions."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pandas as pd
from matplotlib.colors import Normalize

from thinkalike.figures.style import COLOURS, canvas, heatmap, line, save, write_values

Columns = Mapping[str, str]  # of a table, by the sign of the map that they are of


def transfer_maps(table: pd.DataFrame, folder: Path, unexplained: Columns, penalties: Columns) -> None:
    """Draw what maps leave unexplained: as matrices where all layers meet all, else as lines beside the penalties.

    Args:
        unexplained: first of the two maps, then of their round trips.
    """
    cells = table.pivot(index="source_layer", columns="target_layer", values=next(iter(unexplained.values())))
    if min(cells.shape) > 1 and cells.notna().all(axis=None):
        _matrices(table, folder, dict(list(unexplained.items())[:2]))
    else:
        _lines(table, folder, {"unexplained variance": unexplained, "penalty [nats per token]": penalties})


def _lines(table: pd.DataFrame, folder: Path, labels: Mapping[str, Columns]) -> None:
    first = table.iloc[0]
    with canvas(6.6, 2.9, 1, 2) as (figure, panels):
        for axes, (label, columns) in zip(panels, labels.items(), strict=True):
            for number, (name, column) in enumerate(columns.items()):
                ends = f"{column}_low", f"{column}_high"
                line(axes, table, column, ends, name, COLOURS[number], "o-" if number < 2 else "s--")
            axes.axhline(0, color="0.6", linewidth=0.8, zorder=0)
            pairs = zip(table["source_layer"], table["target_layer"], strict=True)
            axes.set_xticks(range(len(table)), [f"{l}" if l == m else f"{l}→{m}" for l, m in pairs])  # noqa: E741
            axes.set_xlabel("layer")
            axes.set_ylabel(label)
            axes.legend(frameon=False, fontsize=7)
        figure.suptitle(f"{first.source} → {first.target} by φ, and back by ψ", fontsize=9)
        save(figure, folder, "transfer_maps")


def _matrices(table: pd.DataFrame, folder: Path, maps: Columns) -> None:
    first = table.iloc[0]
    with canvas(7.2, 3.2, 1, 2) as (figure, panels):
        for axes, (name, column) in zip(panels, maps.items(), strict=True):
            cells = table.pivot(index="source_layer", columns="target_layer", values=column)
            image = heatmap(axes, cells, Normalize(0, 1), "viridis_r")
            if cells.size <= 36:
                write_values(axes, cells.to_numpy(), image)
            axes.set_xlabel(f"{first.target}, layer")
            axes.set_ylabel(f"{first.source}, layer")
            axes.set_title(name, fontsize=9)
        figure.colorbar(image, ax=panels, label="unexplained variance")
        save(figure, folder, "transfer_maps")
