"""Figures of an atlas: how far measures agree, and the matrices of all measures and all pairs of models."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.colors import Normalize

from thinkalike.figures.style import canvas, save, write_values


def agreement(table: pd.DataFrame, measures: Sequence[str], folder: Path) -> None:
    """Draw the rank correlation of every two measures as a matrix, the one that agrees most with the others first.

    Args:
        table: measure, other, rho.
    """
    both = pd.concat([table, table.rename(columns={"measure": "other", "other": "measure"})])
    cells = both.pivot(index="measure", columns="other", values="rho").loc[list(measures), list(measures)]
    cells = cells.mask(np.eye(len(measures), dtype=bool), 1.0)
    order = cells.mean().sort_values(ascending=False, kind="stable").index
    cells = cells.loc[order, order]
    size = 0.42 * len(order)
    with canvas(size + 2.6, size + 1.3) as (figure, axes):
        image = axes.imshow(cells.to_numpy(), norm=Normalize(-1, 1), cmap="RdBu_r")
        write_values(axes, cells.to_numpy(), image)
        axes.set_xticks(range(len(order)), order, rotation=90)
        axes.set_yticks(range(len(order)), order)
        axes.spines[:].set_visible(False)
        figure.colorbar(image, ax=axes, label="Spearman's ρ over layer pairs", shrink=0.8, aspect=30)
        save(figure, folder, "agreement")


def ranks(table: pd.DataFrame, measures: Sequence[str], folder: Path) -> None:
    """Draw the layer pairs of every pair of models, a column, by every measure, a row: bright is close.

    Args:
        table: source, target, source_layer, target_layer, and by measure the rank, from 0, the farthest, to 1.
    """
    pairs = list(table.groupby(["source", "target"], sort=False))
    with canvas(0.75 * len(pairs) + 1.8, 0.72 * len(measures) + 1.3, len(measures), len(pairs), squeeze=False) as drawn:
        figure, panels = drawn
        for row, measure in zip(panels, measures, strict=True):
            for axes, (_, inside) in zip(row, pairs, strict=True):
                cells = inside.pivot(index="source_layer", columns="target_layer", values=measure)
                image = axes.imshow(cells.to_numpy(), origin="lower", norm=Normalize(0, 1), cmap="magma", aspect="auto")
                axes.set_xticks([])
                axes.set_yticks([])
                axes.spines[:].set_visible(False)
            row[0].set_ylabel(measure, rotation=0, ha="right", va="center")
        for axes, ((source, target), _) in zip(panels[-1], pairs, strict=True):
            axes.set_xlabel(f"{source}\n× {target}", rotation=90, fontsize=7)
        figure.colorbar(image, ax=panels, label="rank among the layer pairs of two models", shrink=0.5, aspect=30)
        save(figure, folder, "ranks")
