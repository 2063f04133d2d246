"""Features of stimuli: their correlations, and layers and words in a plane (Salle et al. 2024)."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.text import Annotation
from matplotlib.transforms import Bbox

from thinkalike.contrib.figures.correlation_matrix import draw_correlation_matrix
from thinkalike.figures.letters import use_existing_letters
from thinkalike.figures.style import (
    COLUMN,
    PAGE,
    POINTS_PER_INCH,
    SMALL,
    canvas,
    colour_of,
    in_lines,
    save,
    with_minus,
    write_title,
)

# A feature is named at its point where its importance is above this share of the largest one; the
# others lie together at 0, and are named together.
NAMED_SHARE = 0.04
WIDTH_OF_NAMES = 1.4  # inches of the names of features near 0

# Where the name of a point may be: by how many points of a font it is moved from it, to the right
# and upwards, and how it is aligned. The first that covers the least is taken.
PLACES_OF_NAMES = ((4, 2, "left"), (-4, 2, "right"), (0, 5, "center"), (0, -10, "center"))
POINT_SIZE = 18  # of the points of features: its square root is their diameter
POINT_RADIUS = POINT_SIZE**0.5 / 2

FIRST_LAYER = "s"  # the marker, a square
LAST_LAYER = "^"  # a triangle

BESIDE_MATRIX = 1.4  # inches of the names of features and the colours


class Contrast(NamedTuple):
    """Two layers that a figure shows side by side.

    Attributes:
        title: The title of the middle panel.
        names: The names of the two layers.
        importance: A row for each feature: its name (column `feature`), and its importance in the
            first layer (x) and in the second (y).
        words: For each layer, a row for each word: its point in a plane (x, y), its level of
            `feature`, and the stress (the error of the plane's distances).
        feature: The feature whose levels colour the words.
    """

    title: str
    names: tuple[str, str]
    importance: pd.DataFrame
    words: tuple[pd.DataFrame, pd.DataFrame]
    feature: str


def draw_correlation(table: pd.DataFrame, folder: Path, n_words: int) -> None:
    """Draw the matrix of correlations of features of stimuli.

    A correlation is over pairs of stimuli, between how much they differ in either feature.

    Args:
        table: The matrix; rows and columns have the names of the features.
        folder: Where the figure is written.
        n_words: How many stimuli there are.
    """
    with canvas(COLUMN, height=COLUMN) as (figure, axes):
        inches = COLUMN - BESIDE_MATRIX
        image = draw_correlation_matrix(axes, table, rotation=45.0, inches=inches, ha="right")
        label = "correlation of differences over pairs"
        figure.colorbar(image, ax=axes, label=label, shrink=0.8, aspect=25)
        write_title(figure, axes, f"Correlation of {len(table)} features", f"{n_words:,} words")
        save(figure, folder, "correlation")


def draw_plane(axes: Axes, points: pd.DataFrame) -> None:
    """Draw layers as points of a plane (MDS), with a line through the layers of each model.

    The first and the last layer of each model have markers of their own.

    Args:
        axes: Where it is drawn.
        points: A row for each layer: model, layer, x, y, and the stress (the error of the plane's
            distances), which is the same in all rows.
    """
    for number, (model, rows) in enumerate(points.groupby("model", sort=False)):
        colour = colour_of(number)
        xs = rows["x"].to_numpy()
        ys = rows["y"].to_numpy()
        axes.plot(xs, ys, "o-", color=colour, label=str(model), alpha=0.7, markersize=3)
        for end, marker in ((0, FIRST_LAYER), (-1, LAST_LAYER)):
            # Hollow, as the ends of several models may be in one place.
            axes.plot(xs[end], ys[end], marker, color=colour, markersize=7, fillstyle="none")
    stress = points["stress"].iloc[0]
    markers = "squares: first layers, triangles: last layers"
    axes.set_title(f"layers in a plane (MDS), stress {stress:.2f}\n{markers}")
    axes.legend(ncols=2, loc="upper center", bbox_to_anchor=(0.5, 0.0))
    axes.set_aspect("equal", adjustable="datalim")
    axes.set(xticks=[], yticks=[])


def draw_contrasts(contrasts: list[Contrast], folder: Path, n_words: int) -> None:
    """Draw contrasts, each of which shows two layers side by side.

    A contrast is a row of three panels: the words as points by their states in the first layer,
    the importance of each feature of words in both layers, and the words in the second layer.
    The words are coloured by the levels of the contrast's feature.

    Args:
        contrasts: The contrasts, from the top.
        folder: Where the figure is written.
        n_words: Over how many words the importance of features is.
    """
    n_rows = len(contrasts)
    height = 2.4 * n_rows + 0.4  # rows of panels, and the title above them
    named_features: dict[Axes, pd.DataFrame] = {}
    with canvas(PAGE, height, rows=n_rows, columns=3, squeeze=False) as (figure, panels):
        for (left, middle, right), contrast in zip(panels, contrasts, strict=True):
            first_name, second_name = contrast.names
            first_words, second_words = contrast.words
            _draw_words(left, first_name, first_words, contrast.feature)
            _draw_words(right, second_name, second_words, contrast.feature)
            # The legend is that of both panels of words.
            left.legend(markerscale=2, ncols=3, loc="upper center", bbox_to_anchor=(0.5, 0.0))
            named_features[middle] = _draw_importance(middle, contrast)
        n_drawn = len(contrasts[0].words[0])
        note = f"importance over {n_words:,} words; points at the sides: {n_drawn:,} of them"
        write_title(figure, panels[0, 0], "Layers of models of different architectures", note)
        for (axes, named), contrast in zip(named_features.items(), contrasts, strict=True):
            _write_names(axes, named, contrast.importance)
            _write_names_near_zero(axes, contrast.importance, named)
        save(figure, folder, "contrasts")


def _draw_words(axes: Axes, name: str, words: pd.DataFrame, feature: str) -> None:
    """Draw the words of a layer as points of a plane (MDS), coloured by the levels of a feature.

    Args:
        axes: Where it is drawn.
        name: The name of the layer.
        words: A row for each word: x, y, its level of the feature, and the stress of the plane
            (how far its distances are from those of the states), the same in all rows.
        feature: The name of the feature.
    """
    for index, (level, rows) in enumerate(words.groupby("level", sort=True)):
        axes.scatter(
            rows["x"], rows["y"], s=5, color=colour_of(index), label=str(level), linewidths=0
        )
    stress = words["stress"].iloc[0]
    axes.set_title(f"{name}, by {feature}\nplane (MDS), stress {stress:.2f}")
    axes.set_aspect("equal", adjustable="datalim")
    axes.set(xticks=[], yticks=[])


def _draw_importance(axes: Axes, contrast: Contrast) -> pd.DataFrame:
    """Draw the importance of each feature in one layer against that in the other.

    A grey line shows where the importance is the same in both. The points of the features that
    are to be named are returned: those that are not unimportant in both layers. All points are
    black, as colours stand for the levels of one feature in the panels beside.
    """
    table = contrast.importance
    values = table[["x", "y"]].to_numpy()  # the importance in the first and the second layer
    largest = values.max()
    axes.scatter(table["x"], table["y"], color="black", s=POINT_SIZE, zorder=3)
    is_named = values.max(axis=1) > NAMED_SHARE * largest
    ends = [min(values.min(), 0), 1.1 * largest]
    axes.plot(ends, ends, color="0.6", linewidth=0.8, zorder=0)
    first, second = contrast.names
    axes.set(
        xlabel=f"importance in {first} [drop of ρ]",
        ylabel=f"importance in {second}\n[drop of ρ]",
        title=with_minus(contrast.title),
    )
    return table[is_named].rename(columns={"feature": "name"})


def _write_names_near_zero(axes: Axes, points: pd.DataFrame, named: pd.DataFrame) -> None:
    """Write which features lie together near 0 in both layers, in the upper middle of a panel.

    Args:
        axes: Where it is written.
        points: A row for each feature, with its importance in both layers (x, y).
        named: The features that have their names beside their points.
    """
    others = points[~points["feature"].isin(named["name"])]
    if len(others):
        text = in_lines(f"near 0: {', '.join(others['feature'])}", WIDTH_OF_NAMES)
        axes.text(0.06, 0.97, text, fontsize=SMALL, ha="left", va="top", transform=axes.transAxes)


def _write_names(axes: Axes, names: pd.DataFrame, points: pd.DataFrame) -> None:
    """Write names beside points, where they cover the fewest points and earlier names.

    Names and points are compared on the paper, by the layout that the figure has at the time.

    Args:
        axes: Where they are written.
        names: A row for each name, with its point (x, y).
        points: All points of the axes (x, y).
    """
    figure = axes.get_figure(root=True)
    assert figure is not None
    use_existing_letters(figure)
    figure.draw_without_rendering()  # finds the layout
    margin = POINT_RADIUS * figure.dpi / POINTS_PER_INCH
    places_of_points = axes.transData.transform(points[["x", "y"]].to_numpy())
    boxes_of_names: list[Bbox] = []

    def n_covered(box: Bbox) -> int:
        """Return how many points and earlier names a name in this box would cover."""
        n_points = box.padded(margin).count_contains(places_of_points)
        return int(n_points + box.count_overlaps(boxes_of_names))

    for row in names.to_dict("records"):
        boxes = {}
        for place in PLACES_OF_NAMES:
            label = _write_beside(axes, row, place)
            boxes[place] = label.get_window_extent()
            label.remove()
        best = min(PLACES_OF_NAMES, key=lambda place: n_covered(boxes[place]))  # the first of them
        _write_beside(axes, row, best)
        boxes_of_names.append(boxes[best])


def _write_beside(
    axes: Axes, row: Mapping[Hashable, Any], place: tuple[int, int, str]
) -> Annotation:
    """Write the name of a row beside its point; the place is one of `PLACES_OF_NAMES`."""
    across, upwards, alignment = place
    return axes.annotate(
        str(row["name"]),
        (row["x"], row["y"]),
        fontsize=SMALL,
        xytext=(across, upwards),
        textcoords="offset points",
        ha=alignment,
    )
