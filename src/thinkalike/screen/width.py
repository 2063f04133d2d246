"""How wide the screen is."""

from __future__ import annotations

import os
import sys

PIPE = 80  # columns of a pipe, a file and a terminal of unknown size


def screen_width() -> int:
    """Return the columns of the screen: $COLUMNS if it is set, else those of the terminal, else those of a pipe."""
    given = os.environ.get("COLUMNS", "")
    if given.isdecimal() and int(given):
        return int(given)
    try:
        return os.get_terminal_size(sys.stdout.fileno()).columns or PIPE
    except (OSError, ValueError, AttributeError):  # a pipe, a stream without a file, no stdout at all
        return PIPE
