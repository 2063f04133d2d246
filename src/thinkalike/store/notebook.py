"""What a notebook shows of a result: its sentences, its figure and the first rows of its table."""

from __future__ import annotations

import base64
import contextlib
import html
import io
from typing import TYPE_CHECKING

from thinkalike.errors import ResultError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from thinkalike.store.result import Result, ResultInstrument

MOST_ROWS = 12  # of the table; `result.table` has all
PIXELS_PER_INCH = 160  # of the figure, which is shown at half its size on a fine screen
INCHES_TO_CSS = 96


def page_of(result: Result, instrument: ResultInstrument) -> str:
    """Return HTML for a notebook."""
    blocks = [f"<p>{html.escape(sentence)}</p>" for sentence in instrument.sentences(result)]
    with contextlib.suppress(ResultError):  # the kind draws no figure
        figure, _ = instrument.plot(result)
        blocks.append(_image_of(figure))
    blocks.append(_table_of(result))
    blocks.append(f"<p><small>{html.escape(result.location)}</small></p>")
    return f'<div class="thinkalike">{"".join(blocks)}</div>'


def _image_of(figure: Figure) -> str:
    """Return a figure as an image of HTML, and close it: the notebook would show it once more."""
    from matplotlib import pyplot

    file = io.BytesIO()
    figure.savefig(file, format="png", dpi=PIXELS_PER_INCH)
    width = round(figure.get_figwidth() * INCHES_TO_CSS)
    pyplot.close(figure)
    content = base64.b64encode(file.getvalue()).decode()
    style = f"max-width:100%;width:{width}px"
    return f'<img style="{style}" src="data:image/png;base64,{content}">'


def _table_of(result: Result) -> str:
    """Return the first rows of the table, and how many there are."""
    table = result.table
    rows = table.head(MOST_ROWS).to_html(
        index=False, border=0, na_rep="", float_format="{:.4g}".format
    )
    if len(table) <= MOST_ROWS:
        return rows
    return f"{rows}<p><small>{MOST_ROWS} of {len(table):,} rows of result.table</small></p>"
