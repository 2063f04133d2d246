"""The process of a command: signals and errors end it with one line and an exit status."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import sys
from collections.abc import Iterator

from thinkalike.advice import at_command_line
from thinkalike.config.compose import COMPOSING_ERRORS, explained
from thinkalike.errors import ConfigError, ThinkalikeError, plain, short
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

    The exit status is 1 after an error, and that of the signal after a signal.
    """
    this_process = str(os.getpid())
    if os.environ.setdefault(STARTED_BY, this_process) != this_process:
        follow_parent()
    try:
        _check_working_folder()
        stdout = Stdout(sys.stdout)
        with at_command_line(), heeded(), contextlib.redirect_stdout(stdout):  # type: ignore[type-var]
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
    try:
        os.getcwd()
    except OSError as error:
        raise ConfigError("the working folder was deleted; cd to one that exists") from error


class PlainFormatter(logging.Formatter):
    """Writes messages without control characters, which names of models and tensors may have."""

    def format(self, record: logging.LogRecord) -> str:
        return plain(super().format(record))


class Stdout:
    """A stdout that may be full or closed: what is printed then is lost, but not the result."""

    def __init__(self, stream: TextStream | None):
        self._stream: TextStream = stream or open(os.devnull, "w")  # noqa: SIM115
        if hasattr(self._stream, "reconfigure"):
            # a terminal in ASCII has no bars and no arrows
            self._stream.reconfigure(errors="replace")

    def write(self, text: str) -> int:
        try:
            self._stream.write(text)
        except OSError:
            self._print_nowhere()
        return len(text)

    def flush(self) -> None:
        try:
            self._stream.flush()
        except OSError:
            self._print_nowhere()

    def _print_nowhere(self) -> None:
        os.dup2(os.open(os.devnull, os.O_WRONLY), self._stream.fileno())

    def __getattr__(self, name: str) -> object:
        return getattr(self._stream, name)
