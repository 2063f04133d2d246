"""How far measures agree about pairs of layers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.colors import Normalize

from thinkalike.contrib.figures.correlation_matrix import draw_correlation_matrix
from thinkalike.figures.style import canvas, save


def draw_agreement(table: pd.DataFrame, measures: Sequence[str], folder: Path) -> None:
    """Draw the correlation of every two measures as a matrix.

    The measure that agrees most with the others comes first.

    Args:
        table: measure, other and rho.
    """
    swapped = table.rename(columns={"measure": "other", "other": "measure"})
    both_orders = pd.concat([table, swapped])
    names = list(measures)
    cells = both_orders.pivot(index="measure", columns="other", values="rho").loc[names, names]
    cells = cells.mask(np.eye(len(names), dtype=bool), 1.0)
    order = cells.mean().sort_values(ascending=False, kind="stable").index
    cells = cells.loc[order, order]
    size = 0.42 * len(order)
    with canvas(size + 2.6, size + 1.3) as (figure, axes):
        image = draw_correlation_matrix(axes, cells, rotation=90.0)
        figure.colorbar(
            image, ax=axes, label="Spearman's ρ over layer pairs", shrink=0.8, aspect=30
        )
        save(figure, folder, "agreement")


def draw_ranks(table: pd.DataFrame, measures: Sequence[str], folder: Path) -> None:
    """Draw the layer pairs of each pair of models (a column) by each measure (a row).

    Bright is close.

    Args:
        table: Has the rank of each layer pair by measure, from 0, the farthest, to 1.
    """
    model_pairs = list(table.groupby(["source", "target"], sort=False))
    width = 0.75 * len(model_pairs) + 1.8
    height = 0.72 * len(measures) + 1.3
    grid = (len(measures), len(model_pairs))
    with canvas(width, height, *grid, squeeze=False) as (figure, panels):
        for row, measure in zip(panels, measures, strict=True):
            for axes, (_, of_models) in zip(row, model_pairs, strict=True):
                cells = of_models.pivot(
                    index="source_layer", columns="target_layer", values=measure
                )
                image = axes.imshow(
                    cells.to_numpy(),
                    origin="lower",
                    norm=Normalize(0, 1),
                    cmap="magma",
                    aspect="auto",
                )
                axes.set(xticks=[], yticks=[])
                axes.spines[:].set_visible(False)
            row[0].set_ylabel(measure, rotation=0, ha="right", va="center")
        for axes, ((source, target), _) in zip(panels[-1], model_pairs, strict=True):
            axes.set_xlabel(f"{source}\n× {target}", rotation=90, fontsize=7)
        figure.colorbar(
            image,
            ax=panels,
            label="rank among the layer pairs of two models",
            shrink=0.5,
            aspect=30,
        )
        save(figure, folder, "ranks")
