"""What a job prints: tables and sentences that fit the screen, and how far it is."""

from thinkalike.screen.progress import aside, watched
from thinkalike.screen.tables import (
    ROWS,
    Column,
    Table,
    few,
    number_column,
    number_of_documents,
    screen_width,
    show_map,
    show_table,
    show_text,
    span,
    text_column,
)

__all__ = ["ROWS", "Column", "Table", "aside", "few", "number_column", "number_of_documents", "screen_width",
           "show_map", "show_table", "show_text", "span", "text_column", "watched"]  # fmt: skip
