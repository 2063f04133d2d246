"""How all figures look, and what several of them are made of."""

from __future__ import annotations

import contextlib
import io
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import matplotlib
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure

from thinkalike.errors import ConfigError, short

if TYPE_CHECKING:
    from matplotlib.colors import Colormap, Normalize
    from matplotlib.image import AxesImage

STYLE: dict[str, object] = {
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlesize": 9,
    "legend.frameon": False,
    "svg.fonttype": "none",  # text stays text, to be set in a paper's own font
    "svg.hashsalt": "thinkalike",
}
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7")  # colour-blind readers can tell them apart
MORE_COLOURS = (*COLOURS, "#e69f00", "#56b4e9", "#000000", "#8c564b", "#7f7f7f", "#bcbd22")
COLORBAR = "<colorbar>"  # how matplotlib labels the axes of one
EMBEDDING = "-1"  # the layer of the embedding in tables
PIXELS_PER_INCH = 110  # of a figure in a notebook
LONG_NAME = 6  # letters; longer names of layers, such as 3.attn_out, are rotated
# weights of red, green and blue in how bright a colour looks
BRIGHTNESS = (0.3, 0.6, 0.1)

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


_screen: Screen | None = None  # open while figures are `shown`


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

    return pyplot.figure(figsize=(width, height), layout="constrained")


def _axes_in_place(place: Axes, rows: int, columns: int, **options: Any) -> Any:
    """Return panels in the place of the user's axes, or these axes if there is one panel."""
    if (rows, columns) == (1, 1):
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
def shown(ax: object = None) -> Iterator[ShownFigures]:
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


def heatmap(
    axes: Axes, cells: pd.DataFrame, scale: Normalize, colours: str | Colormap
) -> AxesImage:
    """Draw a matrix of layers, rows the source's, columns the target's, layer 0 at the bottom."""
    image = axes.imshow(cells.to_numpy(), origin="lower", norm=scale, cmap=colours)
    longest = max(cells.shape)
    ticks(axes.xaxis, cells.columns, 8 * len(cells.columns) / longest)
    ticks(axes.yaxis, cells.index, 8 * len(cells.index) / longest)
    axes.spines[:].set_visible(False)
    return image


def write_values(axes: Axes, values: np.ndarray, image: AxesImage) -> None:
    """Write each cell's number, in black or white, whichever can be read on its colour."""
    assert image.cmap is not None
    for (row, column), value in np.ndenumerate(values):
        red, green, blue, _ = image.cmap(image.norm(value))
        brightness = BRIGHTNESS[0] * red + BRIGHTNESS[1] * green + BRIGHTNESS[2] * blue
        colour = "white"
        if brightness > 0.5:
            colour = "black"
        text = f"{value:.2f}"
        axes.text(column, row, text, ha="center", va="center", color=colour, fontsize=7)


def line(
    axes: Axes,
    table: pd.DataFrame,
    column: str,
    ends: tuple[str, str],
    label: str,
    colour: str,
    style: str,
) -> None:
    """Draw a column against its rows, with error bars.

    Args:
        ends: the columns of the lower and upper ends of the intervals.
    """
    low, high = ends
    values = table[column]
    below = (values - table[low]).clip(lower=0)
    above = (table[high] - values).clip(lower=0)
    axes.errorbar(
        range(len(table)),
        values,
        yerr=[below, above],
        fmt=style,
        color=colour,
        label=label,
        capsize=3,
        markersize=4,
    )


def save(figure: Figure, folder: Path, name: str) -> None:
    """Save a figure as PNG and SVG, unless it is `shown`."""
    if _screen is not None:
        panels = [axes for axes in figure.axes if axes.get_label() != COLORBAR]
        _screen.place = None
        if len(panels) == 1:
            _screen.figures[name] = (figure, panels[0])
        else:
            _screen.figures[name] = (figure, panels)
        return
    folder.mkdir(parents=True, exist_ok=True)
    figure.draw_without_rendering()
    figure.set_layout_engine("none")  # the layout is found; each format would look for it again
    figure.savefig(folder / f"{name}.png", dpi=200)
    figure.savefig(folder / f"{name}.svg", metadata={"Date": None})


def colour_of(number: int) -> str:
    """Return the colour of the curve of this number; colours repeat after the last."""
    return MORE_COLOURS[number % len(MORE_COLOURS)]


def layer_name(layer: object) -> str:
    """Return a layer as figures call it."""
    if str(layer) == EMBEDDING:
        return "embed"
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
