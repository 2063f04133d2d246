"""One line for a stored result that lacks what its kind shows or draws."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from thinkalike.advice import named_setting
from thinkalike.errors import ResultError, ThinkalikeError, reason_in_words


@contextlib.contextmanager
def reporting_damage(place: str, kind: str) -> Iterator[None]:
    """Turn an error in the body, which shows or draws a stored result, into a one-line error.

    A column, number or array may be missing, because somebody changed the result or another
    version computed it. Errors that the result is not to blame for pass unchanged: too little
    memory, errors of files and of the terminal, and those of this package.

    Args:
        place: Where the result is, as messages say it.
        kind: The kind of the result, such as "cka".

    Raises:
        ResultError: The body failed because the result lacks something.
    """
    from thinkalike.memory import out_of_memory_error

    try:
        yield
    except (ThinkalikeError, OSError, UnicodeError):
        raise
    except Exception as error:
        if out_of_memory_error(error):
            raise
        reason = reason_in_words(error)
        remedy = (
            "it was changed, or is of another version; compute it again with "
            f"{named_setting('force', True)}"
        )
        raise ResultError(f"{place} lacks what {kind} shows ({reason}): {remedy}") from error
