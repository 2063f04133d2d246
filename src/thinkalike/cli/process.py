"""The process of a command: signals and errors end it with one line and an exit status."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import sys
from collections.abc import Iterator
from pathlib import Path

from thinkalike.advice import at_command_line
from thinkalike.config.compose import COMPOSING_ERRORS, explained
from thinkalike.errors import ResourceError, ThinkalikeError, one_line, plain, short
from thinkalike.files import absolute
from thinkalike.processes import Interrupted, TextStream, follow_parent, heeded

# environment variable: the process whose children end with it
STARTED_BY = "THINKALIKE_STARTED_BY"
# environment variable: the command of a process that Lightning starts, which gets no first word
COMMAND = "THINKALIKE_COMMAND"
TRACEBACK = "THINKALIKE_TRACEBACK"  # environment variable: errors keep their traceback
OFF = ("", "0", "false", "no", "off")  # what an environment variable switches nothing on by
USER_ERRORS = (ThinkalikeError, *COMPOSING_ERRORS)  # errors that a user can act on
# errors of a path that a user named
UNREACHABLE = (
    errno.ENAMETOOLONG,
    errno.EACCES,
    errno.EPERM,
    errno.ELOOP,
    errno.ENOTDIR,
)


@contextlib.contextmanager
def own_process() -> Iterator[None]:
    """Heed signals, end with the process that was started first, and print errors as one line.

    The exit status is 1 after an error, and that of the signal after a signal. It is an error,
    too, if a part of the output is lost, unless `let_output_be_lost` was called.
    """
    this_process = str(os.getpid())
    if os.environ.setdefault(STARTED_BY, this_process) != this_process:
        follow_parent()
    try:
        _check_working_folder()
        with at_command_line(), heeded(), _printing():
            yield
    except Interrupted as error:
        print(error, file=sys.stderr, flush=True)
        sys.exit(error.status)
    except USER_ERRORS as error:
        if is_on(TRACEBACK):
            raise
        print_error(message_of(error))
        sys.exit(1)
    except OSError as error:
        is_of_named_path = error.errno in UNREACHABLE and error.filename is not None
        if is_on(TRACEBACK) or not is_of_named_path:
            raise
        print_error(f"{short(str(error.filename))}: {error.strerror}; name another place")
        sys.exit(1)
    except (MemoryError, ImportError) as error:
        if isinstance(error, ImportError) and "map segment" not in str(error):
            raise
        print_error("there is too little memory to start; see ulimit -v and the limits of the job")
        sys.exit(1)


@contextlib.contextmanager
def _printing() -> Iterator[None]:
    """Print to a `Stdout` while this is open, and check at the end that it took everything."""
    stdout = sys.stdout
    if not isinstance(stdout, Stdout):  # as it is inside another `own_process`
        stdout = Stdout(stdout)
    with contextlib.redirect_stdout(stdout):  # type: ignore[type-var]
        try:
            yield
        except SystemExit as end:
            if not end.code:  # --help ends so
                stdout.check_whole()
            raise
        stdout.check_whole()


def let_output_be_lost() -> None:
    """Let this process succeed even if its output cannot be printed: it keeps its results."""
    if isinstance(sys.stdout, Stdout):
        sys.stdout.may_be_lost = True


def is_on(switch: str) -> bool:
    """Return whether an environment variable switches something on: 1 does, and 0 does not."""
    return os.environ.get(switch, "").strip().lower() not in OFF


def print_error(message: str) -> None:
    """Print the line by which a command ends with an error."""
    print(plain(f"error: {message}"), file=sys.stderr, flush=True)


def message_of(error: BaseException) -> str:
    """Return an error that a user can act on in one line."""
    if isinstance(error, COMPOSING_ERRORS):
        message = explained(error)
    else:
        message = " ".join(str(error).split())
    return message or type(error).__name__


def _check_working_folder() -> None:
    """Refuse a working folder that was deleted: importing torch there would end the process."""
    absolute(Path())


class PlainFormatter(logging.Formatter):
    """Writes messages without control characters, which names of models and tensors may have."""

    def format(self, record: logging.LogRecord) -> str:
        return plain(super().format(record))


class Stdout:
    """A stdout that may be full or closed; what is printed then is lost, and the process goes on.

    Attributes:
        may_be_lost: whether the output is not what the process is for.
    """

    def __init__(self, stream: TextStream | None):
        self._stream: TextStream = stream or open(os.devnull, "w")  # noqa: SIM115
        self._failure: OSError | None = None
        self.may_be_lost = False
        if hasattr(self._stream, "reconfigure"):
            # a terminal in ASCII has no bars and no arrows
            self._stream.reconfigure(errors="replace")

    def write(self, text: str) -> int:
        try:
            self._stream.write(text)
        except OSError as error:
            self._print_nowhere(error)
        return len(text)

    def flush(self) -> None:
        try:
            self._stream.flush()
        except OSError as error:
            self._print_nowhere(error)

    def check_whole(self) -> None:
        """Check that everything was printed, or that the reader of a pipe wanted no more.

        Raises:
            ResourceError: A part of the output is lost.
        """
        self.flush()
        if self._failure is None or self.may_be_lost:
            return
        if not isinstance(self._failure, BrokenPipeError):
            reason = one_line(self._failure)
            raise ResourceError(
                f"the output cannot be written as a whole: {reason}; write it to another place"
            )

    def _print_nowhere(self, failure: OSError) -> None:
        self._failure = self._failure or failure
        os.dup2(os.open(os.devnull, os.O_WRONLY), self._stream.fileno())

    def __getattr__(self, name: str) -> object:
        return getattr(self._stream, name)
