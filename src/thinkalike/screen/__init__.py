"""What a job prints: tables, maps and sentences that fit the screen, and on stderr its progress.

Lines break between words, and only very long words are broken. A table that is too wide becomes
several tables below each other, each with the key columns. What a job is doing is shown live on a
terminal, and elsewhere as a plain line after ten seconds and then every half minute; the line is
removed at the end, and nothing of it goes to stdout.
"""

from thinkalike.screen.maps import show_map as show_map
from thinkalike.screen.progress import PROGRESS as PROGRESS
from thinkalike.screen.progress import aside as aside
from thinkalike.screen.progress import clock as clock
from thinkalike.screen.progress import expect as expect
from thinkalike.screen.progress import say as say
from thinkalike.screen.progress import sentence as sentence
from thinkalike.screen.progress import watched as watched
from thinkalike.screen.tables import MOST_ROWS as MOST_ROWS
from thinkalike.screen.tables import Column as Column
from thinkalike.screen.tables import Table as Table
from thinkalike.screen.tables import drawn_lines as drawn_lines
from thinkalike.screen.tables import few as few
from thinkalike.screen.tables import number_column as number_column
from thinkalike.screen.tables import show_table as show_table
from thinkalike.screen.tables import stacked as stacked
from thinkalike.screen.tables import text_column as text_column
from thinkalike.screen.tables import widths as widths
from thinkalike.screen.tables import with_share as with_share
from thinkalike.screen.text import capitalised as capitalised
from thinkalike.screen.text import gathered_sentences as gathered_sentences
from thinkalike.screen.text import number_of_documents as number_of_documents
from thinkalike.screen.text import number_text as number_text
from thinkalike.screen.text import range_text as range_text
from thinkalike.screen.text import screen_width as screen_width
from thinkalike.screen.text import show_note as show_note
from thinkalike.screen.text import show_text as show_text
from thinkalike.screen.text import span as span
from thinkalike.screen.text import wrapped as wrapped
