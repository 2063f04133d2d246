"""A matrix as a map of shaded cells."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from thinkalike.advice import shown_in_words
from thinkalike.screen.tables import few
from thinkalike.screen.text import number_text, only_sentences_count, show_text

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd

SHADES = " ░▒▓█"
UNKNOWN = "?"  # a cell without a number
MARK = "●"
MOST_ROWS = 18  # lines of the screen that a map has at most
MOST_WIDTH = 48  # columns of the screen, beside the labels
NARROWEST_LABEL = 2
NO_CELL = -1


def show_map(
    values: pd.DataFrame,
    less_is_closer: bool = False,
    marked: Literal["most similar", "least similar"] = "most similar",
) -> None:
    """Print a matrix as shaded cells, and mark one cell of each row with a dot.

    Args:
        values: The similarities or distances.
        less_is_closer: Whether they are distances.
        marked: Which cell of each row has the dot. Cells are the darker the more they are like it.
    """
    if only_sentences_count():
        return
    import numpy as np

    longest_name = max(len(str(name)) for name in values.columns)
    cell_width = max(NARROWEST_LABEL, longest_name) + 1
    rows = few(len(values), MOST_ROWS)
    columns = few(len(values.columns), MOST_WIDTH // cell_width)
    cells = values.iloc[rows, columns].to_numpy(float)
    if not np.isfinite(cells).any():
        return

    low = float(np.nanmin(cells))
    high = float(np.nanmax(cells))
    darkness = cells - low
    lightest = low
    darkest = high
    less_is_darker = less_is_closer == (marked == "most similar")
    if less_is_darker:
        darkness = high - cells
        lightest = high
        darkest = low
    darkness = darkness / ((high - low) or 1)

    label_width = max(len(str(name)) for name in values.index) + 2
    header = "".join(f"{values.columns[column]!s:>{cell_width}}" for column in columns)
    print(" " * (label_width + 1) + header)
    for row, darkness_of_row in zip(rows, darkness, strict=True):
        label = str(values.index[row])
        print(f"{label:>{label_width}} {_shaded_row(darkness_of_row, cell_width)}")

    blank = number_text(lightest, ".3f")
    full = number_text(darkest, ".3f")
    ends = f"blank {blank} to {SHADES[-1]} {full}"
    scale = f"scale: {ends}; {MARK} the {marked} in its row"
    counts = {"rows": (len(rows), len(values)), "columns": (len(columns), len(values.columns))}
    scale = "; ".join(filter(None, [scale, shown_in_words(counts)]))
    show_text(scale, label_width)


def _shaded_row(darkness: np.ndarray, cell_width: int) -> str:
    """Return a row of shaded cells, the darkest of which is marked.

    Args:
        darkness: Of each cell, from 0 to 1; NaN for a cell without a number.
    """
    import numpy as np

    marked = NO_CELL
    if not np.isnan(darkness).all():
        marked = int(np.nanargmax(darkness))
    cells = []
    for position, value in enumerate(darkness):
        shade = UNKNOWN
        if not np.isnan(value):
            level = min(int(value * len(SHADES)), len(SHADES) - 1)
            shade = SHADES[level]
        end = shade
        if position == marked:
            end = MARK
        cells.append(shade * (cell_width - 1) + end)
    return "".join(cells)
