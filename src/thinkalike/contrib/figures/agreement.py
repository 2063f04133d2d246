"""How far measures agree about pairs of layers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import Normalize
from matplotlib.image import AxesImage

from thinkalike.contrib.figures.correlation_matrix import draw_correlation_matrix
from thinkalike.figures.style import COLUMN, PAGE, SMALL, canvas, save, write_title
from thinkalike.matrices import matrix_of

# inches
BESIDE_MATRIX = 1.6  # the names of measures and the colours
ROW_HEIGHT = 0.42  # of a measure in the figure of ranks
BELOW_ROWS = 1.8  # a title and the names of models


def draw_agreement(table: pd.DataFrame, measures: Sequence[str], folder: Path, about: str) -> None:
    """Draw the rank correlation of every two similarity measures as a matrix.

    Measures are ordered by their mean correlation with the others, from the highest to the lowest.

    Args:
        table: A row for each two measures, with the columns measure, other and rho.
        measures: The names of all measures.
        folder: Where the figure is written.
        about: How much was compared.
    """
    # The table has each two measures in one order; the matrix needs both.
    swapped = table.rename(columns={"measure": "other", "other": "measure"})
    both_orders = pd.concat([table, swapped])
    names = list(measures)
    cells = matrix_of(both_orders, index="measure", columns="other", values="rho").loc[
        names, names
    ]
    cells = cells.mask(np.eye(len(names), dtype=bool), 1.0)  # a measure with itself
    order = cells.mean().sort_values(ascending=False, kind="stable").index
    cells = cells.loc[order, order]
    with canvas(COLUMN, height=2.9) as (figure, axes):
        inches = COLUMN - BESIDE_MATRIX
        image = draw_correlation_matrix(axes, cells, rotation=90.0, inches=inches, ha="right")
        label = "Spearman's ρ over layer pairs"
        figure.colorbar(image, ax=axes, label=label, shrink=0.8, aspect=25)
        write_title(figure, axes, f"Agreement of {len(order)} measures", about)
        save(figure, folder, "agreement")


def draw_ranks(table: pd.DataFrame, measures: Sequence[str], folder: Path) -> None:
    """Draw how each similarity measure ranks the layer pairs of two models, as heatmaps.

    There is a row of heatmaps for each measure, and a column for each pair of models. A heatmap
    has a cell for each layer pair; bright is similar.

    Args:
        table: A row for each layer pair, and a column for each measure with the rank of the pair,
            from 0 (least similar) to 1 (most similar).
        measures: The names of the measures, from the top.
        folder: Where the figure is written.
    """
    model_pairs = list(table.groupby(["source", "target"], sort=False))
    height = ROW_HEIGHT * len(measures) + BELOW_ROWS
    n_rows = len(measures)
    n_columns = len(model_pairs)
    with canvas(PAGE, height, n_rows, n_columns, squeeze=False) as (figure, panels):
        for row, measure in zip(panels, measures, strict=True):
            for axes, (_, layer_pairs) in zip(row, model_pairs, strict=True):
                image = _draw_rank_heatmap(axes, layer_pairs, measure)
            name = measure.replace("_", "\n")
            row[0].set_ylabel(name, rotation=0, ha="right", va="center", fontsize=SMALL)
        for axes, ((source, target), _) in zip(panels[-1], model_pairs, strict=True):
            axes.set_xlabel(f"{source}\n× {target}", rotation=90, fontsize=SMALL)
        figure.colorbar(
            image,
            ax=panels,
            label="rank among the layer pairs of two models (1: most similar)",
            shrink=0.5,
            aspect=30,
        )
        directions = "in a panel, layers of the first model upwards, of the second rightwards"
        write_title(figure, panels[0, 0], "Layer pairs in the order of each measure", directions)
        save(figure, folder, "ranks")


def _draw_rank_heatmap(axes: Axes, layer_pairs: pd.DataFrame, measure: str) -> AxesImage:
    """Draw the ranks of the layer pairs of two models by one measure, from 0 to 1 (most similar).

    The source's layers run upwards, and the target's to the right. The image is returned for a
    colour bar.

    Args:
        axes: Where it is drawn.
        layer_pairs: A row for each layer pair, with its rank in the column of the measure.
        measure: The name of this column.
    """
    ranks = matrix_of(layer_pairs, index="source_layer", columns="target_layer", values=measure)
    image = axes.imshow(
        ranks.to_numpy(), origin="lower", norm=Normalize(0, 1), cmap="magma", aspect="auto"
    )
    axes.set(xticks=[], yticks=[])
    axes.spines[:].set_visible(False)
    return image
