"""What a job prints: tables and sentences that fit the screen, and how far it is."""

from thinkalike.screen.columns import Column, number_column, text_column
from thinkalike.screen.progress import aside, watched
from thinkalike.screen.tables import Table, show_table, show_text
from thinkalike.screen.width import screen_width

__all__ = [
    "Column",
    "Table",
    "aside",
    "number_column",
    "screen_width",
    "show_table",
    "show_text",
    "text_column",
    "watched",
]
