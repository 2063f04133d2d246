"""How all figures look, and what several of them are made of.

A figure is as wide as a column of a paper, or as a page where it has three panels or more in a
row. No text is smaller than 6 points at that width.
"""

from __future__ import annotations

import contextlib
import io
import math
import re
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import matplotlib
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.colors import ListedColormap, Normalize
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle
from matplotlib.text import Text
from matplotlib.ticker import LogFormatter

from thinkalike.errors import ConfigError, short
from thinkalike.figures.letters import use_existing_letters

if TYPE_CHECKING:
    from matplotlib.colors import Colormap
    from matplotlib.image import AxesImage

COLUMN = 3.3
"""The width of a figure in one column of a paper, in inches."""

PAGE = 6.9
"""The width of a figure across both columns, in inches."""

TITLE_SIZE = 7.5  # points
SMALL = 6.5  # points, of ticks, legends and names beside lines
VALUE_SIZE = 6  # points, of the numbers in cells
VALUE_WIDTH = 0.23  # inches of a cell that has a number
LONG_WORD = 6  # letters
LETTER_WIDTH = 0.56  # of the size of a font, about, in English text
POINTS_PER_INCH = 72
SCREEN_DPI = 180  # of a figure in a notebook, where 3.3 inches at 100 would be small

STYLE: dict[str, object] = {
    "font.size": 7.5,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlesize": TITLE_SIZE,
    "figure.titlesize": TITLE_SIZE,
    "axes.labelsize": 7.5,
    "xtick.labelsize": SMALL,
    "ytick.labelsize": SMALL,
    "legend.fontsize": SMALL,
    "axes.linewidth": 0.6,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "xtick.major.size": 2.5,
    "ytick.major.size": 2.5,
    "lines.linewidth": 1.2,
    "legend.frameon": False,
    "legend.handlelength": 1.6,
    "legend.columnspacing": 1.2,
    "svg.fonttype": "none",  # text stays text, to be set in a paper's own font
    "svg.hashsalt": "thinkalike",
    "text.parse_math": False,  # a name with "$" in it is no formula
}
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7")  # colour-blind readers can tell them apart
MORE_COLOURS = (*COLOURS, "#e69f00", "#56b4e9", "#000000", "#8c564b", "#7f7f7f", "#bcbd22")
MINUS = "−"
SHADES = 256  # of a scale of colours
COLORBAR = "<colorbar>"  # how matplotlib labels the axes of one
EMBEDDING = "-1"  # the layer of the embedding in tables
PIXELS_PER_INCH = 110  # of a figure in a notebook
LONG_NAME = 6  # letters; longer names of layers, such as 3.attn_out, are rotated
# weights of red, green and blue in how bright a colour looks
BRIGHTNESS = (0.3, 0.6, 0.1)

# of lines that may coincide: the first drawn is the widest, and the last one the narrowest
WIDEST = 2.6  # points
NARROWEST = 0.8
LARGEST_MARKER = 6.5  # points
SMALLEST_MARKER = 2.5
NESTED_MARKERS = "osDo"
NESTED_NOTE = "of lines that coincide, the wider is below"

MISSING = "0.85"  # the grey of cells without a value
LEAST_SPAN = 0.05  # of a measure's range, which colours span at least: less is noise

ShownFigures = dict[str, tuple[Figure, Axes | list[Axes]]]


@dataclass
class Screen:
    """Where figures go while they are shown and not saved.

    Attributes:
        figures: those that were drawn, by name, with their axes.
        place: axes of the user's; the first figure is drawn in their place.
    """

    figures: ShownFigures = field(default_factory=dict)
    place: Axes | None = None


_screen: Screen | None = None  # open while figures are `shown_figures`


@contextlib.contextmanager
def canvas(
    width: float, height: float, rows: int = 1, columns: int = 1, **options: Any
) -> Iterator[tuple[Figure, Any]]:
    """Yield a figure of this size in inches in our style, and its axes: one, or an array.

    A figure that is saved needs no screen, and does not change how a notebook shows figures.
    """
    place = None
    if _screen is not None:
        place = _screen.place
    figure = _figure(place, width, height)
    with matplotlib.rc_context(STYLE):  # type: ignore[arg-type]
        if place is None:
            axes = figure.subplots(rows, columns, **options)
        else:
            axes = _axes_in_place(place, rows, columns, **options)
        yield figure, axes


def _figure(place: Axes | None, width: float, height: float) -> Figure:
    """Return the figure of the user's axes, or a new one.

    A figure for a notebook is opened in no `rc_context`, whose end would undo how it is shown.
    """
    if place is not None:
        figure = place.figure
        assert isinstance(figure, Figure)
        return figure
    if _screen is None:
        return Figure(figsize=(width, height), layout="constrained")
    from matplotlib import pyplot

    return pyplot.figure(figsize=(width, height), dpi=SCREEN_DPI, layout="constrained")


def _axes_in_place(place: Axes, rows: int, columns: int, **options: Any) -> Any:
    """Return panels in the place of the user's axes, or these axes if there is one panel."""
    if (rows, columns) == (1, 1):
        for text in place.findobj(Text):  # the style is only for texts that are made in it
            text.set_parse_math(False)  # type: ignore[attr-defined]
        if options.get("squeeze") is False:
            return np.array([[place]])
        return place
    ratios = {}
    for name in ("height_ratios", "width_ratios"):
        if name in options:
            ratios[name] = options.pop(name)
    subplot = place.get_subplotspec()
    if subplot is None:
        raise ConfigError("ax= has no place in a grid of subplots; make it by plt.subplots()")
    grid = subplot.subgridspec(rows, columns, **ratios)
    place.remove()
    return grid.subplots(**options)


@contextlib.contextmanager
def shown_figures(ax: object = None) -> Iterator[ShownFigures]:
    """Show figures while this is open, the first in the place of some axes, and save none.

    It yields each figure by its name, with its axes.
    """
    check_axes(ax)
    assert ax is None or isinstance(ax, Axes)
    global _screen
    earlier = _screen
    screen = Screen(place=ax)
    _screen = screen
    try:
        yield screen.figures
    finally:
        _screen = earlier


def check_axes(ax: object) -> None:
    """Raise a ConfigError unless a value is None or axes of matplotlib."""
    if ax is not None and not isinstance(ax, Axes):
        raise ConfigError(
            f"ax={short(ax)} must be axes of matplotlib: "
            "write a file by plot().figure.savefig(FILE)"
        )


def png_of(figure: Figure) -> bytes:
    """Return a figure as a PNG file, and close it: a notebook would show it a second time."""
    file = io.BytesIO()
    figure.savefig(file, format="png", dpi=PIXELS_PER_INCH)
    close([figure])
    return file.getvalue()


def close(figures: Iterable[Figure]) -> None:
    """Close figures of a screen, which a notebook would show beside the one that is asked for."""
    from matplotlib import pyplot

    for figure in figures:
        pyplot.close(figure)


def width_of(panels: int) -> float:
    """Return the width of a figure with so many panels in a row: a column's, or a page's."""
    if panels == 1:
        return COLUMN
    return PAGE


def write_title(figure: Figure, axes: Axes, *lines: str) -> None:
    """Write a title over a whole figure, or over axes of the user's; long lines are wrapped.

    Args:
        figure: The figure.
        axes: Its first axes.
        lines: What is compared, and then how much of it and what intervals are; "" is left out.
    """
    paragraphs = [paragraph for text in lines for paragraph in text.splitlines()]
    title = "\n".join(in_lines(paragraph, figure.get_figwidth()) for paragraph in paragraphs)
    if _screen is not None and _screen.place is not None:
        axes.set_title(title, fontsize=TITLE_SIZE)
    else:
        figure.suptitle(title, fontsize=TITLE_SIZE)


def in_lines(text: str, inches: float) -> str:
    """Return a title or the label of an axis in lines that fit into a width."""
    letters = inches * POINTS_PER_INCH / (LETTER_WIDTH * TITLE_SIZE)
    lines = max(math.ceil(len(text) / letters), 1)
    if lines == 1:
        return text

    # Lines of about one length, so that no word stands alone below the others.
    balanced = len(text) / lines + LONG_WORD
    width = int(max(min(letters, balanced), 1))
    return "\n".join(textwrap.wrap(text, width, break_long_words=False))


def colour_range(values: np.ndarray, scale: tuple[float, float]) -> tuple[float, float]:
    """Return the ends of the colours: the least and the greatest value.

    Args:
        values: Of all panels; some may be NaN.
        scale: The range of the measure. Colours span at least a twentieth of it, so that noise
            does not look like a pattern.
    """
    finite = values[np.isfinite(values)]
    if finite.size == 0:
        return scale
    lowest = float(finite.min())
    highest = float(finite.max())
    least_span = LEAST_SPAN * (scale[1] - scale[0])
    if lowest + least_span > scale[1] >= highest:  # no colour is for values that there cannot be
        return scale[1] - least_span, scale[1]
    return lowest, max(highest, lowest + least_span)


def colours_of(values: np.ndarray, scale: tuple[float, float]) -> tuple[Normalize, Colormap]:
    """Return the scale of colours of values, from the least to the greatest, and the colours.

    Where there are negative values, white is 0, and a colour is as strong as its value is far from
    0. The scale then ends at 0 at the least.
    """
    lowest, highest = colour_range(values, scale)
    if lowest >= 0:
        return Normalize(lowest, highest), matplotlib.colormaps["magma"]
    highest = max(highest, 0.0)
    farthest = max(-lowest, highest)
    # The part of a scale from -farthest to farthest that is used.
    first = 0.5 + lowest / (2 * farthest)
    last = 0.5 + highest / (2 * farthest)
    shades = matplotlib.colormaps["RdBu_r"](np.linspace(first, last, SHADES))
    return Normalize(lowest, highest), ListedColormap(shades)


def lower_half(values: np.ndarray) -> np.ndarray:
    """Return a matrix without what mirrors across its diagonal; another matrix stays as it is.

    The cells above the diagonal of a symmetric matrix are masked.
    """
    rows, columns = values.shape
    if rows != columns or rows == 1 or not np.allclose(values, values.T, equal_nan=True):
        return values
    mirrored = np.triu(np.ones(values.shape, dtype=bool), 1)
    return np.ma.array(values, mask=mirrored)


def heatmap(
    axes: Axes,
    cells: pd.DataFrame,
    scale: Normalize,
    colours: str | Colormap,
    most_ticks: int = 8,
) -> AxesImage:
    """Draw a matrix of layers, rows the source's, columns the target's, layer 0 at the bottom.

    Half of a symmetric matrix is drawn. Cells without a value are grey.
    """
    colour_map = matplotlib.colormaps[colours] if isinstance(colours, str) else colours
    values = cells.to_numpy(dtype=float)
    drawn = lower_half(values)
    is_missing = ~np.isfinite(np.ma.filled(drawn, 0.0))
    image = axes.imshow(np.ma.masked_invalid(drawn), origin="lower", norm=scale, cmap=colour_map)
    if is_missing.any():
        show_missing(axes, is_missing)
    longest = max(cells.shape)
    ticks(axes.xaxis, cells.columns, most_ticks * len(cells.columns) / longest)
    ticks(axes.yaxis, cells.index, most_ticks * len(cells.index) / longest)
    axes.spines[:].set_visible(False)
    return image


def show_missing(axes: Axes, is_missing: np.ndarray, reason: str = "not computed") -> None:
    """Draw cells without a value in grey below an image, with a legend that says why."""
    rows, columns = np.nonzero(is_missing)
    for row, column in zip(rows, columns, strict=True):
        corner = (column - 0.5, row - 0.5)
        axes.add_patch(Rectangle(corner, 1, 1, facecolor=MISSING, linewidth=0))
    grey = Patch(facecolor=MISSING, label=reason)
    figure = axes.figure
    if not figure.legends:  # a panel before this one may have it
        figure.legend(handles=[grey], loc="outside lower left")


def write_values(axes: Axes, values: np.ndarray, image: AxesImage) -> None:
    """Write each cell's number, in black or white, whichever can be read on its colour.

    If there are negative numbers, no zero stands before the point, so that they fit into cells.
    """
    assert image.cmap is not None
    visible = np.ma.masked_invalid(values)
    texts = {
        place: with_minus(f"{value:.2f}".replace("-0.00", "0.00"))
        for place, value in np.ma.ndenumerate(visible, compressed=True)
    }
    has_negative = any(text.startswith(MINUS) for text in texts.values())
    for (row, column), text in texts.items():
        red, green, blue, _ = image.cmap(image.norm(visible[row, column]))
        brightness = BRIGHTNESS[0] * red + BRIGHTNESS[1] * green + BRIGHTNESS[2] * blue
        colour = "white"
        if brightness > 0.5:
            colour = "black"
        written = text.replace("0.", ".") if has_negative else text
        axes.text(
            column, row, written, ha="center", va="center", color=colour, fontsize=VALUE_SIZE
        )


def with_minus(text: str) -> str:
    """Return a text with minus signs for the hyphens before negative numbers, not in names."""
    return re.sub(r"(?<![\w-])-(?=[0-9.])", MINUS, text)


def line(
    axes: Axes,
    table: pd.DataFrame,
    column: str,
    ends: tuple[str, str],
    label: str,
    colour: str,
    style: str,
    **look: Any,
) -> None:
    """Draw a column against its rows, with error bars where the intervals are finite.

    Args:
        ends: the columns of the lower and upper ends of the intervals.
        look: how the line and its markers differ from those of a single line.
    """
    low, high = ends
    values = finite_or_nan(table[column])
    below = (values - finite_or_nan(table[low])).clip(lower=0)
    above = (finite_or_nan(table[high]) - values).clip(lower=0)
    axes.errorbar(
        range(len(table)),
        values,
        yerr=[below, above],
        fmt=style,
        color=colour,
        label=label,
        **({"capsize": 2, "markersize": 3, "elinewidth": 0.8} | look),
    )


def nested_look(number: int, count: int) -> dict[str, Any]:
    """Return how one of several lines looks, so that each is seen where all of them coincide.

    The first line is the widest and lies below the others, each of which is narrower. Markers are
    hollow and nested in the same way.

    Args:
        number: Which of the lines it is, from 0.
        count: How many there are.
    """
    share = number / max(count - 1, 1)  # 0 for the first line, 1 for the last
    return {
        "linewidth": WIDEST + share * (NARROWEST - WIDEST),
        "marker": NESTED_MARKERS[number % len(NESTED_MARKERS)],
        "markersize": LARGEST_MARKER + share * (SMALLEST_MARKER - LARGEST_MARKER),
        "markerfacecolor": "none",
        "markeredgewidth": 0.8,
        "zorder": 2 + share,
    }


def leave_out(panels: Iterable[Axes]) -> None:
    """Remove panels of a grid that nothing is drawn into, so that no user gets them."""
    for axes in panels:
        axes.remove()


def finite_or_nan(values: pd.Series) -> pd.Series:
    """Return a column with NaN in place of infinite values, which nothing is drawn for."""
    return values.astype(float).replace([np.inf, -np.inf], np.nan)


def highest_of(table: pd.DataFrame, *columns: str) -> float | None:
    """Return the greatest finite value of some columns; None: there is none above 0.

    Few documents have no interval: its ends are infinite, or NaN where there is no value.
    """
    values = table[list(columns)].to_numpy(float)
    finite = values[np.isfinite(values)]
    if finite.size == 0 or finite.max() <= 0:
        return None
    return float(finite.max())


def save(figure: Figure, folder: Path, name: str) -> None:
    """Save a figure as PNG and SVG, unless it is `shown_figures`."""
    _read_powers(figure)
    use_existing_letters(figure)
    if _screen is not None:
        panels = [axes for axes in figure.axes if axes.get_label() != COLORBAR]
        _screen.place = None
        if len(panels) == 1:
            _screen.figures[name] = (figure, panels[0])
        else:
            _screen.figures[name] = (figure, panels)
        return
    folder.mkdir(parents=True, exist_ok=True)
    # Drawing adds ticks to logarithmic axes.
    with matplotlib.rc_context({"text.parse_math": True}):
        figure.draw_without_rendering()
        # The layout is found; each format would look for it again.
        figure.set_layout_engine("none")
        figure.savefig(folder / f"{name}.png", dpi=200)
        figure.savefig(folder / f"{name}.svg", metadata={"Date": None})


def _read_powers(figure: Figure) -> None:
    """Let numbers at logarithmic axes, which matplotlib writes as formulas, be read as such."""
    for axes in figure.axes:
        for axis in (axes.xaxis, axes.yaxis):
            if isinstance(axis.get_major_formatter(), LogFormatter):
                for label in [*axis.get_ticklabels(), *axis.get_ticklabels(minor=True)]:
                    label.set_parse_math(True)


def colour_of(number: int) -> str:
    """Return the colour of the curve of this number; colours repeat after the last."""
    return MORE_COLOURS[number % len(MORE_COLOURS)]


def layer_name(layer: object) -> str:
    """Return a layer as figures call it."""
    if str(layer) == EMBEDDING:
        return "emb"
    return str(layer)


def ticks(
    axis: Axis,
    layers: Sequence[object] | pd.Index | pd.Series,
    most: int | float = 8,
    **style: Any,
) -> None:
    """Write the names of some layers at an axis.

    Args:
        most: about how many.
        style: how the names look.
    """
    step = max(1, math.ceil(len(layers) / max(most, 1) - 0.5))
    positions = range(0, len(layers), step)
    has_long_names = any(len(str(layer)) > LONG_NAME for layer in layers)
    if axis.axis_name == "x" and has_long_names:  # type: ignore[attr-defined]
        style = {"rotation": 45, "ha": "right", "rotation_mode": "anchor"} | style
    names = [layer_name(layers[position]) for position in positions]
    axis.set_ticks(positions, names, **style)
