"""What a reviewer refuses in a figure, found in the figure itself."""

from __future__ import annotations

import itertools
import re

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.text import Text
from matplotlib.transforms import Bbox

from thinkalike.figures.style import COLUMN, PAGE

SMALLEST = 6  # points
TOLERANCE = 1.0  # points by which two boxes may overlap: a letter does not fill its box


def complaints(figure: Figure) -> list[str]:
    """Return what is wrong with a figure: width, text (small, overlapping, cut, hyphens), axes without names."""
    figure.draw_without_rendering()
    texts = _visible_texts(figure)
    return [
        *_of_width(figure),
        *_of_small_text(texts),
        *_of_hyphens(texts),
        *_of_cut_text(figure, texts),
        *_of_overlaps(figure, texts),
        *_of_unnamed_axes(figure),
    ]


def _of_width(figure: Figure) -> list[str]:
    width = figure.get_figwidth()
    if any(np.isclose(width, allowed) for allowed in (COLUMN, PAGE)):
        return []
    return [f"{width:.2f} inches is no width of a column or a page"]


def _of_small_text(texts: list[Text]) -> list[str]:
    found = []
    for text in texts:
        if text.get_fontsize() < SMALLEST:
            found.append(f"{text.get_text()!r} has {text.get_fontsize():g} points")
    return found


def _of_hyphens(texts: list[Text]) -> list[str]:
    """Find negative numbers with a hyphen for a minus sign; "gpt2-1" is a name."""
    is_negative = re.compile(r"(?<![\w-])-[0-9.]")
    return [f"{text.get_text()!r} has no minus sign" for text in texts if is_negative.search(text.get_text())]


def _of_cut_text(figure: Figure, texts: list[Text]) -> list[str]:
    found = []
    limits = figure.bbox.padded(figure.dpi / 72 * TOLERANCE)
    legends = [axes.get_legend() for axes in figure.axes if axes.get_legend() is not None]
    for legend in [*figure.legends, *legends]:
        if legend.get_window_extent().x0 < limits.x0 or legend.get_window_extent().x1 > limits.x1:
            found.append(f"the legend of {legend.get_texts()[0].get_text()!r} reaches out of the figure")
    for text in texts:
        box = text.get_window_extent()
        if box.x0 < limits.x0 or box.x1 > limits.x1 or box.y0 < limits.y0 or box.y1 > limits.y1:
            found.append(f"{text.get_text()!r} reaches out of the figure")
    return found


def _of_overlaps(figure: Figure, texts: list[Text]) -> list[str]:
    """Compare the boxes of every two texts; that of slanted text is larger than the text and is left out."""
    found = []
    slack = figure.dpi / 72 * TOLERANCE
    upright = [text for text in texts if text.get_rotation() % 90 == 0]
    boxes = [Text.get_window_extent(text) for text in upright]  # of an annotation without its line
    for (first, box), (second, other) in itertools.combinations(zip(upright, boxes, strict=True), 2):
        common = Bbox.intersection(box, other)
        if common is not None and common.width > slack and common.height > slack:
            found.append(f"{first.get_text()!r} and {second.get_text()!r} overlap")
    return found


def _of_unnamed_axes(figure: Figure) -> list[str]:
    """Find numbers at an axis whose quantity no label says, neither its own nor that of a panel in line with it."""
    found = []
    for name in ("x", "y"):
        for axes in figure.axes:
            axis = getattr(axes, f"{name}axis")
            numbers = [label.get_text() for label in axis.get_ticklabels() if label.get_visible()]
            has_numbers = any(_is_number(text) for text in numbers)
            if not axes.axison or not axes.get_visible() or not has_numbers:
                continue
            if not any(getattr(other, f"get_{name}label")() for other in _in_line(figure, axes, name)):
                found.append(f"the {name} axis of {axes.get_title()!r} has no label")
    return found


def _in_line(figure: Figure, axes: Axes, name: str) -> list[Axes]:
    """Return the axes above and below a panel, or those beside it, with itself."""
    place = axes.get_position()
    if name == "x":
        return [one for one in figure.axes if np.isclose(one.get_position().x0, place.x0, atol=0.1)]
    return [one for one in figure.axes if np.isclose(one.get_position().y0, place.y0, atol=0.1)]


def _is_number(text: str) -> bool:
    try:
        float(text.replace("−", "-"))
    except ValueError:
        return False
    return True


def _visible_texts(figure: Figure) -> list[Text]:
    """Return the texts that are drawn; matplotlib has more for ticks beyond the ends of an axis."""
    texts = list(figure.texts)
    for legend in figure.legends:
        texts += legend.get_texts()
    for axes in figure.axes:
        texts += axes.texts
        if axes.get_legend() is not None:
            texts += axes.get_legend().get_texts()
        texts += [axes.title]
        if axes.axison:
            texts += [axes.xaxis.label, axes.yaxis.label]
            for axis in (axes.xaxis, axes.yaxis):
                if not axis.get_visible():  # that of a second panel in the same place
                    continue
                for tick in axis._update_ticks():
                    texts += [tick.label1, tick.label2]
    return [text for text in texts if text.get_visible() and text.get_text().strip()]
