"""What a notebook shows of a result: its sentences, its figure and the first rows of its table."""

from __future__ import annotations

import base64
import html
from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas as pd  # which takes half a second to import

# The most rows of the table that a notebook shows; `result.table` has all.
MOST_ROWS = 12


def notebook_html(
    sentences: Iterable[str], picture: bytes | None, table: pd.DataFrame, location: str
) -> str:
    """Return HTML for a notebook.

    Args:
        sentences: What was found.
        picture: The figure as PNG; None if there is none.
        table: The table.
        location: Where the result is kept, or that it is not.
    """
    blocks = [f"<p>{html.escape(sentence)}</p>" for sentence in sentences]
    if picture is not None:
        content = base64.b64encode(picture).decode()
        blocks.append(f'<img style="max-width:100%" src="data:image/png;base64,{content}">')
    blocks.append(_html_of_first_rows(table))
    blocks.append(f"<p><small>{html.escape(location)}</small></p>")
    return f'<div class="thinkalike">{"".join(blocks)}</div>'


def _html_of_first_rows(table: pd.DataFrame) -> str:
    """Return the first rows of a table as HTML, followed by how many there are if not all."""
    rows = table.head(MOST_ROWS).to_html(
        index=False, border=0, na_rep="", float_format="{:.4g}".format
    )
    if len(table) <= MOST_ROWS:
        return rows
    return f"{rows}<p><small>{MOST_ROWS} of {len(table):,} rows of result.table</small></p>"
