"""A matrix of correlations with named rows and columns."""

from __future__ import annotations

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.image import AxesImage

from thinkalike.figures.style import VALUE_WIDTH, colours_of, lower_half, write_values


def draw_correlation_matrix(
    axes: Axes, cells: pd.DataFrame, *, rotation: float, inches: float, ha: str = "center"
) -> AxesImage:
    """Draw the lower half of a symmetric matrix of numbers from -1 to 1.

    Args:
        axes: Where it is drawn.
        cells: The matrix as a table; the names of its columns are also those of the rows.
        rotation: The angle of the names of the columns, in degrees.
        inches: The width of the matrix. If cells are wide enough, the numbers are written in them.
        ha: The horizontal alignment of the names of the columns.

    Returns:
        The image, for a colour bar.
    """
    values = lower_half(cells.to_numpy(float))
    norm, colour_map = colours_of(values, (-1.0, 1.0))
    image = axes.imshow(values, cmap=colour_map, norm=norm)
    inches_per_cell = inches / len(cells)
    if inches_per_cell >= VALUE_WIDTH:
        write_values(axes, values, image)
    names = [str(name).replace("_", " ") for name in cells.columns]
    axes.set_xticks(range(len(cells)), names, rotation=rotation, ha=ha, rotation_mode="anchor")
    axes.set_yticks(range(len(cells)), names)
    axes.spines[:].set_visible(False)
    return image
