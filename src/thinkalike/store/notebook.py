"""What a notebook shows of a result: its sentences, its figure and the first rows of its table."""

from __future__ import annotations

import base64
import html
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from thinkalike.store.result import Result, ResultInstrument

MOST_ROWS = 12  # of the table; `result.table` has all


def page_of(result: Result, instrument: ResultInstrument) -> str:
    """Return HTML for a notebook."""
    blocks = [f"<p>{html.escape(sentence)}</p>" for sentence in instrument.sentences(result)]
    picture = instrument.picture(result)
    if picture is not None:
        content = base64.b64encode(picture).decode()
        blocks.append(f'<img style="max-width:100%" src="data:image/png;base64,{content}">')
    blocks.append(_table_of(result))
    blocks.append(f"<p><small>{html.escape(result.location)}</small></p>")
    return f'<div class="thinkalike">{"".join(blocks)}</div>'


def _table_of(result: Result) -> str:
    """Return the first rows of the table, and how many there are."""
    table = result.table
    rows = table.head(MOST_ROWS).to_html(
        index=False, border=0, na_rep="", float_format="{:.4g}".format
    )
    if len(table) <= MOST_ROWS:
        return rows
    return f"{rows}<p><small>{MOST_ROWS} of {len(table):,} rows of result.table</small></p>"
