"""Reading files of users by their ending, with errors that name the file."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from thinkalike.errors import DataError, first_line


def read_with(path: Path, readers: Mapping[str, Callable[[Path], Any]]) -> Any:
    """Return what the reader of a file's ending makes of it.

    Args:
        readers: functions of a path, by ending (".csv").

    Raises:
        DataError: no reader is for this ending, or the file cannot be read.
    """
    if path.suffix not in readers:
        raise DataError(f"{path} is of no known kind; give a file of {' or '.join(readers)}")
    try:
        return readers[path.suffix](path)
    except DataError:
        raise
    except UnicodeError as error:
        raise DataError(f"cannot read {path}: it is no UTF-8 text ({first_line(error)}); save it as UTF-8") from error
    except Exception as error:  # missing, damaged, in another encoding: each library has errors of its own
        reason = first_line(error)
        raise DataError(f"cannot read {path}: {type(error).__name__}: {reason}") from error
