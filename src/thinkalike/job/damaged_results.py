"""One line for a stored result that lacks what its kind shows or draws."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from thinkalike.errors import ResultError, ThinkalikeError, one_line
from thinkalike.store import Result


@contextlib.contextmanager
def reporting_damage(result: Result) -> Iterator[None]:
    """Turn an error of showing or drawing a stored result into one line.

    The table, the scalars and the provenance of such a result may lack anything: somebody may have
    changed it, or another version may have computed it. An error of the machine or the terminal
    passes, as the result is not to blame for it.

    Raises:
        ResultError: The result lacks something that its kind shows.
    """
    from thinkalike.memory import out_of_memory_error

    try:
        yield
    except (ThinkalikeError, OSError, UnicodeError):
        raise
    except Exception as error:
        if out_of_memory_error(error):
            raise
        reason = f"{type(error).__name__}: {one_line(error)}"
        remedy = "it was changed, or is of another version; compute it again with force=true"
        raise ResultError(
            f"{result.place} lacks what {result.kind} shows ({reason}): {remedy}"
        ) from error
