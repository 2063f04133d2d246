"""What a job prints: tables and sentences that fit the screen."""

from thinkalike.screen.columns import Column, number_column, text_column
from thinkalike.screen.tables import Table, show_table, show_text
from thinkalike.screen.width import screen_width

__all__ = ["Column", "Table", "number_column", "screen_width", "show_table", "show_text", "text_column"]
