"""Errors of a machine that has run out of memory, disk or files: one line that says what to do; the state is kept."""

from __future__ import annotations

import contextlib
import errno
import re
from collections.abc import Iterator
from pathlib import Path

from thinkalike.errors import ResourceError, chain, first_line

SMALLER = "lower trainer.memory, measure.tokens_per_batch, pairs or layers, or choose a larger machine"
REMEDIES = {
    errno.ENOSPC: "free some space",
    errno.EDQUOT: "free some of your quota",
    errno.EFBIG: "raise the limit on the size of files",
    errno.EMFILE: "raise the limit on open files",
    errno.EROFS: "choose another place with store=DIR and data.cache=DIR",
    errno.EACCES: "choose another place with store=DIR and data.cache=DIR",
}
NUMBERED = re.compile(r"\(os error (\d+)\)")  # how libraries written in Rust say it


@contextlib.contextmanager
def explained(folder: Path) -> Iterator[None]:
    """Turn an error that means that the machine has run out of something into one line.

    Args:
        folder: where the job keeps its states, to tell that it was removed.

    Raises:
        ResourceError: the machine has too little of something; the message says of what, and what to do.
    """
    try:
        yield
    except Exception as error:
        if not isinstance(error, ResourceError) and (reason := _reason(error, folder)):
            raise ResourceError(f"{reason}, and then give the same command: it goes on from the last state") from error
        raise


def _reason(error: BaseException, folder: Path) -> str | None:
    """Return what the machine lacks and what to do, or None if an error means something else."""
    from thinkalike.memory import exhausted

    if cause := exhausted(error):
        return f"there is too little memory ({first_line(cause)[:200] or type(cause).__name__}): {SMALLER}"
    for each in chain(error, suppressed=True):
        numbered = NUMBERED.search(str(each))
        number = each.errno if isinstance(each, OSError) else int(numbered[1]) if numbered else None
        if number in (errno.ENOENT, errno.ENOTDIR) and not folder.exists():
            return f"{folder} was removed while the job ran: leave the store where it is"
        if number in REMEDIES:
            return f"{first_line(each)[:200]}: {REMEDIES[number]}"
    return None
