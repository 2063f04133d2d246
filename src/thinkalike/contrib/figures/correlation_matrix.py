"""A matrix of correlations with named rows and columns."""

from __future__ import annotations

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import Normalize
from matplotlib.image import AxesImage

from thinkalike.figures.style import write_values


def draw_correlation_matrix(
    axes: Axes, cells: pd.DataFrame, *, rotation: float, ha: str = "center"
) -> AxesImage:
    """Draw numbers from -1 to 1 as a matrix.

    Args:
        rotation, ha: Of the names of the columns.
    """
    image = axes.imshow(cells.to_numpy(), cmap="RdBu_r", norm=Normalize(-1, 1))
    write_values(axes, cells.to_numpy(), image)
    axes.set_xticks(range(len(cells)), cells.columns, rotation=rotation, ha=ha)
    axes.set_yticks(range(len(cells)), cells.columns)
    axes.spines[:].set_visible(False)
    return image
