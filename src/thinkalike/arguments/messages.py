"""What errors say of arguments: values in one line, and no control characters."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator

from thinkalike.errors import plain_line

REAL_NUMBERS = "give real numbers, as a tensor, an array, a DataFrame or a list"
# bits of a whole number that a message writes out; Python refuses to write much longer ones
MOST_BITS = 4096
LONGEST = 60  # characters of a value in a message


def shown(value: object) -> str:
    """Return a value as a message has it: in one line, shortened."""
    if isinstance(value, int) and value.bit_length() > MOST_BITS:
        sign = "-" if value < 0 else ""
        power = "..." if value < 0 else str(int(value.bit_length() * math.log10(2)))
        return f"{sign}10^{power}"
    try:
        text = " ".join(repr(value).split())
    except Exception:  # such as of a list of numbers that Python refuses to write
        text = f"<{type(value).__name__}>"
    text = text.encode("utf-8", "backslashreplace").decode()
    if len(text) > LONGEST:
        return f"{text[: LONGEST - 3]}..."
    return text


@contextlib.contextmanager
def in_plain_lines() -> Iterator[None]:
    """Let errors have no control characters and no line breaks, which a given name may have."""
    try:
        yield
    except ValueError as error:
        if type(error) is ValueError:
            error.args = (plain_line(str(error)),)
        raise
