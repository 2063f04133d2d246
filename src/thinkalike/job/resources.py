"""What a machine runs out of: disk, quota, memory. One line that says what to do, and the job's state is kept."""

from __future__ import annotations

import contextlib
import errno
import re
from collections.abc import Iterator
from pathlib import Path

import torch

from thinkalike.errors import ResourceError, chain, first_line

SMALLER = "lower stitch.tokens_per_step, measure.tokens_per_batch, pairs or layers, or choose a larger machine"
REMEDIES = {
    errno.ENOSPC: "free some space",
    errno.EDQUOT: "free some of your quota",
    errno.EFBIG: "raise the limit on the size of files",
    errno.ENOMEM: SMALLER,
    errno.EMFILE: "raise the limit on open files",
    errno.EROFS: "choose another place with store=DIR and data.cache=DIR",
    errno.EACCES: "choose another place with store=DIR and data.cache=DIR",
}
NUMBERED = re.compile(r"\(os error (\d+)\)")  # how libraries written in Rust say it
NO_MEMORY = ("DefaultCPUAllocator", "can't allocate memory", "Cannot allocate memory", "CUDA out of memory")


@contextlib.contextmanager
def explained(folder: Path) -> Iterator[None]:
    """Turn what is raised where the machine has run out of something into one line.

    Args:
        folder: where the job keeps its states, to tell that it was removed.

    Raises:
        ResourceError: it has.
    """
    try:
        yield
    except ResourceError:
        raise
    except Exception as error:
        if reason := _reason(error, folder):
            raise ResourceError(f"{reason}, and then give the same command: it goes on from the last state") from error
        raise


def _reason(error: BaseException, folder: Path) -> str | None:
    """Return what the machine lacks and what to do, or None if an error means something else."""
    for each in chain(error, suppressed=True):
        text = str(each)
        if isinstance(each, (MemoryError, torch.OutOfMemoryError)) or any(words in text for words in NO_MEMORY):
            return f"there is too little memory ({first_line(each)[:200] or type(each).__name__}): {SMALLER}"
        numbered = NUMBERED.search(text)
        number = each.errno if isinstance(each, OSError) else int(numbered[1]) if numbered else None
        if number in (errno.ENOENT, errno.ENOTDIR) and not folder.exists():
            return f"{folder} was removed while the job ran: leave the store where it is"
        if number in REMEDIES:
            return f"{first_line(each)[:200]}: {REMEDIES[number]}"
    return None
