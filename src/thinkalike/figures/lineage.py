"""Figures of families of models: how much every two share, and the tree of it."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import Normalize
from scipy.cluster.hierarchy import dendrogram, linkage
from scipy.spatial.distance import squareform

from thinkalike.figures.style import (
    COLUMN,
    SMALL,
    VALUE_WIDTH,
    canvas,
    colour_range,
    heatmap,
    save,
    write_title,
    write_values,
)

# inches
PER_MODEL = 0.2
BESIDE_MATRIX = 1.8  # the names of models and the colours on both sides of the matrix
TALLEST_PANEL = 3.3

SMALLEST_IN_DIGITS = 0.001  # a smaller p-value has a power of ten
LEAST_HEIGHT = 0.05  # of the tree's axis, which ends beyond its highest joint


def family(relations: pd.DataFrame, folder: Path) -> None:
    """Draw the share of units that every two models have in place, and the tree of the shares.

    Each joint of the tree has the smallest p-value between the models on both sides of it.

    Args:
        relations: A row for each pair of models, with source, target, units_in_place and
            lowest_p_corrected.
        folder: Where the figure is written.
    """
    names = list(dict.fromkeys([*relations["source"], *relations["target"]]))
    shared = square_matrix(relations, names, "units_in_place", diagonal=1.0)
    p_values = square_matrix(relations, names, "lowest_p_corrected", diagonal=0.0)
    size = PER_MODEL * len(names) + 1.2
    height = min(size, TALLEST_PANEL) + size
    with canvas(COLUMN, height, 2, 1) as (figure, (upper, lower)):
        cells = pd.DataFrame(shared, index=names, columns=names)
        norm = Normalize(*colour_range(shared, (0.0, 1.0)))
        image = heatmap(upper, cells, norm, "magma", len(names))
        if (COLUMN - BESIDE_MATRIX) / len(names) >= VALUE_WIDTH:
            write_values(upper, np.ma.asarray(image.get_array()), image)
        figure.colorbar(image, ax=upper, label="share of units in place", shrink=0.8, aspect=20)
        draw_tree(lower, shared, p_values, names)
        about = "p-values at the joints are corrected for all pairs of blocks"
        write_title(figure, upper, f"Units in place of {len(names)} models", about)
        save(figure, folder, "family")


def square_matrix(
    relations: pd.DataFrame,
    names: list[str],
    column: str,
    diagonal: float,
) -> np.ndarray:
    """Return a column of pairs of models as a symmetric matrix (m, m)."""
    number = {name: place for place, name in enumerate(names)}
    matrix = np.full((len(names), len(names)), diagonal)
    for source, target, value in relations[["source", "target", column]].to_numpy():
        matrix[number[source], number[target]] = value
        matrix[number[target], number[source]] = value
    return matrix


def draw_tree(axes: Axes, shared: np.ndarray, p_values: np.ndarray, names: list[str]) -> None:
    """Draw the average-linkage tree of 1 - share, with a p-value at each joint below 1."""
    joints = linkage(squareform(1 - shared, checks=False), "average")
    with warnings.catch_warnings():
        # Joints that are all at 0 give limits that are equal; limits are set below.
        warnings.filterwarnings("ignore", "Attempting to set identical", UserWarning)
        tree = dendrogram(joints, labels=names, orientation="right", ax=axes, color_threshold=0)
    axes.tick_params(axis="y", labelsize=SMALL)
    farthest = max(float(joints[:, 2].max()), LEAST_HEIGHT)
    axes.set(xlabel="1 − share of units in place", xlim=(1.3 * farthest, -0.02 * farthest))

    members = [[number] for number in range(len(names))]
    p_of_height: dict[float, list[float]] = {}
    for first, second, height, _ in joints:
        between = p_values[np.ix_(members[int(first)], members[int(second)])]
        members.append([*members[int(first)], *members[int(second)]])
        p_of_height.setdefault(float(height), []).append(float(between.min()))
    for heights, places in zip(tree["dcoord"], tree["icoord"], strict=True):
        height = float(heights[1])
        p = min(p_of_height.get(height, [1.0]))
        if height < 1:
            middle = (places[1] + places[2]) / 2
            axes.text(height, middle, f"p ≤ {in_digits(p)} ", fontsize=6, ha="right", va="bottom")


def in_digits(p: float) -> str:
    """Return a p-value as a figure writes it, with a true minus sign.

    >>> in_digits(2e-8), in_digits(0.04)
    ('2e−8', '0.04')
    """
    if p >= SMALLEST_IN_DIGITS:
        return f"{p:.2g}"
    digits, exponent = f"{p:.0e}".split("e")
    return f"{digits}e{int(exponent)}".replace("-", "−")
