"""One line for an error that means that the machine has too little memory or space for a job."""

from __future__ import annotations

import contextlib
import errno
import re
import traceback
from collections.abc import Iterator

from thinkalike.advice import named_setting
from thinkalike.errors import ModelError, PluginError, ResourceError, chain, one_line, panicked
from thinkalike.processes import Interrupted
from thinkalike.store import StoredJob
from thinkalike.unkept import UnkeptJob

# The numbers of errors of the operating system that say that a file cannot be written.
CANNOT_WRITE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EACCES)

# How libraries written in Rust give the number of an error in its message.
RUST_ERROR_NUMBER = re.compile(r"\(os error (\d+)\)")

# The remedies for too little memory, and for too little space.
LESS_MEMORY = "lower {}, {}, pairs or layers, or choose a larger machine"
MORE_SPACE = "free some space, or choose other places with {} and {}"


@contextlib.contextmanager
def explaining_machine_errors(job: StoredJob | UnkeptJob) -> Iterator[None]:
    """Turn an error that means too little memory or disk space into a one-line ResourceError.

    The line says how to get along with less, and whether the job can be resumed. A panic in the
    Rust code of a tokenizer becomes a ModelError. A SystemExit, which only code of the user
    raises while a job runs, becomes a PluginError: the job is not done, whatever its status says.
    An interruption by a signal passes on, with the attribute `kept`: whether the job can be
    resumed. Other errors pass unchanged.

    Args:
        job: The job that runs in the body.
    """
    try:
        yield
    except Interrupted as error:
        error.kept = error.kept or job.has_states()  # whether the job can be resumed
        raise
    except ResourceError:
        raise
    except Exception as error:
        reason = _reason_of(error)
        if reason is None:
            raise
        how_to_resume = " to resume from the last state" if job.has_states() else ""
        raise ResourceError(f"{reason}, and rerun the command{how_to_resume}") from error
    except SystemExit as error:
        place = traceback.extract_tb(error.__traceback__)[-1]
        raise PluginError(
            f"{place.filename}, line {place.lineno}, called sys.exit({error.code}) while the job "
            "ran, so nothing is stored"
        ) from error
    except BaseException as error:
        if panicked(error):
            raise ModelError(
                f"a tokenizer gives up on the text ({one_line(error)}): "
                "a pattern of its tokenizer.json takes too many steps; replace it"
            ) from error
        raise


def _reason_of(error: BaseException) -> str | None:
    """Return what the machine lacks and a remedy, as a text; None for errors of other causes.

    The reason may be too little memory, or that a file cannot be written, such as on a full disk.
    For the latter, the errors that led to this one are searched as well.
    """
    from thinkalike.memory import out_of_memory_error

    memory_error = out_of_memory_error(error)
    if memory_error:
        detail = one_line(memory_error) or type(memory_error).__name__
        remedy = LESS_MEMORY.format(
            named_setting("trainer.memory"), named_setting("measure.tokens_per_batch")
        )
        return f"there is too little memory ({detail}): {remedy}"

    for cause in chain(error, suppressed=True):
        if _error_number(cause) in CANNOT_WRITE:
            places = [named_setting(key, like="DIR") for key in ("store", "data.cache")]
            return f"{one_line(cause)}: {MORE_SPACE.format(*places)}"
    return None


def _error_number(error: BaseException) -> int | None:
    """Return the errno of an error; None if it has none.

    Errors of Rust libraries have it in their message, as "(os error 28)".
    """
    if isinstance(error, OSError):
        return error.errno
    numbered = RUST_ERROR_NUMBER.search(str(error))
    if numbered is None:
        return None
    return int(numbered[1])
