"""How all figures look, and what several of them are made of."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from thinkalike.errors import ConfigError, short

STYLE: dict[Any, Any] = {
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlesize": 9,
    "legend.frameon": False,
    "svg.fonttype": "none",  # text stays text, to be set in a paper's own font
    "svg.hashsalt": "thinkalike",
}
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7")  # told apart by colour-blind readers, too
MORE_COLOURS = (*COLOURS, "#e69f00", "#56b4e9", "#000000", "#8c564b", "#7f7f7f", "#bcbd22")


_shown: dict[str, tuple[Any, Any]] | None = None  # by name: figures that are drawn for a screen, with their axes
_place: Any = None  # axes of the user's, in whose place these are drawn


@contextlib.contextmanager
def canvas(width: float, height: float, rows: int = 1, columns: int = 1, **options: Any) -> Iterator[tuple[Any, Any]]:
    """Yield a figure of this size in inches and its axes, one or an array of them, in the style of all figures.

    A figure that is saved needs no screen, and leaves a notebook's own way to show figures as it is.
    """
    size: dict[str, Any] = {"figsize": (width, height), "layout": "constrained"}
    figure = _place.figure if _place is not None else Figure(**size) if _shown is None else _opened(**size)
    with matplotlib.rc_context(STYLE):
        yield figure, figure.subplots(rows, columns, **options) if _place is None else _within(rows, columns, **options)


def _opened(**size: Any) -> Any:
    """Return a new figure that a notebook shows; in no `rc_context`, whose end would undo how it shows figures."""
    from matplotlib import pyplot

    return pyplot.figure(**size)


def _within(rows: int, columns: int, **options: Any) -> Any:
    """Return the panels of a figure in the place of the user's axes: these, where there is one."""
    if (rows, columns) == (1, 1):
        return np.array([[_place]]) if options.get("squeeze") is False else _place
    ratios = {name: options.pop(name) for name in ("height_ratios", "width_ratios") if name in options}
    inside = _place.get_subplotspec().subgridspec(rows, columns, **ratios)
    _place.remove()
    return inside.subplots(**options)


@contextlib.contextmanager
def shown(ax: Any = None) -> Iterator[dict[str, tuple[Any, Any]]]:
    """Show figures while the context is open, the first in the place of some axes, and save none.

    It yields each by its name, with its axes.
    """
    check_axes(ax)
    global _shown, _place
    before, _shown, _place = (_shown, _place), {}, ax
    try:
        yield _shown
    finally:
        _shown, _place = before


def check_axes(ax: Any) -> None:
    """Raise a ConfigError unless a value is None or axes of matplotlib."""
    if ax is not None and not isinstance(ax, Axes):
        raise ConfigError(f"ax={short(ax)} must be axes of matplotlib: write a file by plot().figure.savefig(FILE)")


def close(figures: Iterable[Any]) -> None:
    """Close figures that were opened for a screen, which a notebook would show beside the one that is asked for."""
    from matplotlib import pyplot

    for figure in figures:
        pyplot.close(figure)


def heatmap(axes: Any, cells: pd.DataFrame, scale: Any, colours: Any) -> Any:
    """Draw a matrix with layer 0 at the bottom left; rows are the source's layers, columns the target's."""
    image = axes.imshow(cells.to_numpy(), origin="lower", norm=scale, cmap=colours)
    for axis, layers in ((axes.xaxis, cells.columns), (axes.yaxis, cells.index)):
        ticks(axis, layers, 8 * len(layers) / max(cells.shape))
    axes.spines[:].set_visible(False)
    return image


def write_values(axes: Any, values: np.ndarray, image: Any) -> None:
    """Write each cell's number, in whichever of black and white can be read on its colour."""
    for (row, column), value in np.ndenumerate(values):
        red, green, blue, _ = image.cmap(image.norm(value))
        colour = "black" if 0.3 * red + 0.6 * green + 0.1 * blue > 0.5 else "white"
        axes.text(column, row, f"{value:.2f}", ha="center", va="center", color=colour, fontsize=7)


def line(
    axes: Any, table: pd.DataFrame, column: str, ends: tuple[str, str], label: str, colour: str, style: str
) -> None:
    """Draw a column against its rows, with error bars from the columns of its lower and upper ends."""
    values = table[column]
    errors = [(values - table[ends[0]]).clip(lower=0), (table[ends[1]] - values).clip(lower=0)]
    axes.errorbar(range(len(table)), values, yerr=errors, fmt=style, color=colour, label=label, capsize=3, markersize=4)


def save(figure: Any, folder: Path, name: str) -> None:
    """Save a figure as PNG and SVG, unless it is `shown`."""
    global _place
    if _shown is not None:
        panels = [axes for axes in figure.axes if axes.get_label() != "<colorbar>"]
        _place = None
        _shown[name] = figure, panels[0] if len(panels) == 1 else panels
        return
    folder.mkdir(parents=True, exist_ok=True)
    figure.draw_without_rendering()
    figure.set_layout_engine("none")  # the places are found; each format would look for them again
    figure.savefig(folder / f"{name}.png", dpi=200)
    figure.savefig(folder / f"{name}.svg", metadata={"Date": None})


def colour_of(number: int) -> str:
    return MORE_COLOURS[number % len(MORE_COLOURS)]


def layer_name(layer: Any) -> str:
    return "embed" if str(layer) == "-1" else str(layer)


def ticks(axis: Any, layers: Any, most: int | float = 8, **style: Any) -> None:
    """Name at most about so many of the layers at an axis."""
    places = range(0, len(layers), max(1, math.ceil(len(layers) / max(most, 1) - 0.5)))
    if axis.axis_name == "x" and any(len(str(layer)) > 6 for layer in layers):  # such as 3.attn_out
        style = {"rotation": 45, "ha": "right", "rotation_mode": "anchor"} | style
    axis.set_ticks(places, [layer_name(layers[place]) for place in places], **style)
