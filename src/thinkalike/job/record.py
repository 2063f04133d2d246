"""What a run says of itself: its phases, its warnings, its environment, and what the machine had too little of."""

from __future__ import annotations

import contextlib
import errno
import json
import logging
import re
import resource
import socket
import subprocess
import time
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from thinkalike.config import command_line
from thinkalike.digests import versions_of
from thinkalike.errors import ResourceError, chain, first_line
from thinkalike.progress import doing

WARNING = "warning: "
LOGGER = logging.getLogger("thinkalike")
PACKAGES = ("thinkalike", "torch", "transformers", "transformer-lens", "pytorch-lightning", "datasets", "numpy")
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


class Phases:
    """The seconds that a job has spent in each of its phases, in earlier runs of an interrupted job, too.

    A phase inside another one takes its time from it, so that the seconds of all phases add up to those of the job.

    Args:
        folder: where a job keeps its states, and the seconds of its earlier runs; None: they are not kept.
    """

    def __init__(self, folder: Path | None = None):
        self._file = folder / "phases.json" if folder else None
        self._seconds: dict[str, float] = {}
        self._now: str | None = None
        self._since = time.monotonic()
        if self._file:
            with contextlib.suppress(OSError, ValueError, TypeError, AttributeError):  # it is missing or damaged
                self._seconds = {name: float(value) for name, value in json.loads(self._file.read_text()).items()}

    @contextlib.contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        """Time a phase, and show it as the current activity."""
        with doing(name), self.counting(name):
            yield

    @contextlib.contextmanager
    def counting(self, name: str) -> Iterator[None]:
        """Time a phase."""
        before = self._turn_to(name)
        try:
            yield
        finally:
            self._turn_to(before)
            if self._file and self._file.parent.is_dir():  # else the job has left no state
                self._file.write_text(json.dumps(self._seconds))

    @property
    def seconds(self) -> dict[str, float]:
        """The seconds of each phase that has ended, to a hundredth."""
        return {name: round(value, 2) for name, value in self._seconds.items()}

    def _turn_to(self, name: str | None) -> str | None:
        now, before = time.monotonic(), self._now
        if before is not None:
            self._seconds[before] = self._seconds.get(before, 0.0) + now - self._since
        self._now, self._since = name, now
        return before


@contextlib.contextmanager
def phase_of_all(works: Iterable[Any], name: str) -> Iterator[None]:
    """Time a phase of all jobs of one pass; phases inside it take their time from it."""
    with contextlib.ExitStack() as phases, doing(name, steps_aside=True):
        for work in works:
            phases.enter_context(work.phase.counting(name))
        yield


class Warnings(logging.Handler):
    """Gathers the warnings of a pass, and marks records that repeat one, as `record.again`."""

    def __init__(self) -> None:
        super().__init__()
        self.said: dict[str, None] = {}

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        if text.startswith(WARNING):
            record.again = getattr(record, "again", False) or text in self.said
            self.said[text] = None
        if not logging.root.handlers and logging.lastResort and LOGGER.handlers[0] is self:  # as if this were not there
            logging.lastResort.handle(record)

    def of(self, own: Iterable[str], others: Iterable[str]) -> list[str]:
        """Return the warnings that name none of the `others`, models that other jobs of the pass have, unless `own`."""
        foreign = [re.compile(rf"(?<![\w-]){re.escape(name)}(?![\w-])") for name in {*others} - {*own}]
        texts = [text.removeprefix(WARNING) for text in self.said]
        return [text for text in texts if not any(name.search(text) for name in foreign)]


@contextlib.contextmanager
def gathered() -> Iterator[Warnings]:
    """Gather warnings while this is open."""
    warnings = Warnings()
    LOGGER.addHandler(warnings)
    try:
        yield warnings
    finally:
        LOGGER.removeHandler(warnings)


@contextlib.contextmanager
def explained(folder: Path) -> Iterator[None]:
    """Turn an error that means that the machine has too little of something into one line.

    Args:
        folder: where the job keeps its states, to tell that it was removed.

    Raises:
        ResourceError: the message names what there is too little of, and what to do; the last state is kept.
    """
    try:
        yield
    except Exception as error:
        if not isinstance(error, ResourceError) and (reason := _reason(error, folder)):
            raise ResourceError(f"{reason}, and rerun the command to resume from the last state") from error
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


def environment() -> dict[str, Any]:
    """Return date (UTC), command line, host, versions, commit, threads and peak memory of this process."""
    import torch

    gpu = {"peak_gpu_bytes": torch.cuda.max_memory_allocated()} if torch.cuda.is_available() else {}
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": command_line(),
        "host": socket.gethostname(),
        "versions": versions_of(PACKAGES),
        "git_commit": _commit(),
        "threads": torch.get_num_threads(),
        "peak_memory_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        **gpu,
    }


def _commit() -> str:
    """The commit of the checkout that this code runs from."""
    command = ["git", "describe", "--always", "--dirty"]
    with contextlib.suppress(OSError):  # there is no git
        run = subprocess.run(command, cwd=Path(__file__).parent, capture_output=True, text=True)
        return run.stdout.strip() or "unknown"
    return "unknown"
