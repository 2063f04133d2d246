"""Gathers the warnings of a pass of jobs, so that each result has those that concern it."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path

from thinkalike.errors import one_line
from thinkalike.files import read_bytes
from thinkalike.store.record import MOST_JSON_BYTES

# What the text of a warning begins with.
WARNING = "warning: "

# The file of warnings beside the states of a job that has not finished.
FILE = "warnings.json"

LOGGER = logging.getLogger("thinkalike")

log = logging.getLogger(__name__)


class GatheredWarnings(logging.Handler):
    """Gathers warnings while it is open, and marks records that repeat one, as `record.again`."""

    def __init__(self) -> None:
        super().__init__()
        self._texts: dict[str, None] = {}  # of all warnings so far, in their order
        self._models_by_file: dict[Path, Collection[str]] = {}  # the models of each job

    def __enter__(self) -> GatheredWarnings:
        """Gather the warnings of this package from now on."""
        LOGGER.addHandler(self)
        return self

    def __exit__(self, *_: object) -> None:
        """Gather no more warnings; those that were gathered stay."""
        LOGGER.removeHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        """Store the text of a warning, and set `record.again` if it was logged before.

        Records whose text does not begin with "warning: " are not stored.
        """
        text = record.getMessage()
        if text.startswith(WARNING):
            record.again = getattr(record, "again", False) or text in self._texts
            self._texts[text] = None
            self._write_files()

        # If no handler is set up, `logging` prints records by its last resort, which this handler
        # prevents by being one. So the first handler of this class, which others may follow, calls
        # the last resort itself.
        is_first_of_all_handlers = not logging.root.handlers and LOGGER.handlers[0] is self
        is_repeated = getattr(record, "again", False)
        if is_first_of_all_handlers and logging.lastResort and not is_repeated:
            logging.lastResort.handle(record)

    def store_beside_states(self, states: Path, models: Collection[str]) -> None:
        """Let warnings of a job be written into the folder of its states as they come.

        If the job was stopped and now resumes, the warnings that the stopped run has written there
        are logged again first.

        Args:
            states: The folder in which the unfinished job stores states to resume from.
            models: The names of the models of the job.
        """
        file = states / FILE
        for text in _kept_warnings(file):
            log.warning("%s%s", WARNING, text)
        self._models_by_file[file] = models

    def of_models(self, models: Collection[str], pass_models: Iterable[str]) -> list[str]:
        """Return the warnings of one of several jobs that run together.

        These are all warnings but those that name a model that only the other jobs have.

        Args:
            models: The names of the models of the job.
            pass_models: The names of the models of all jobs that run together.
        """
        patterns = []
        for name in set(pass_models) - set(models):
            patterns.append(re.compile(rf"(?<![\w-]){re.escape(name)}(?![\w-])"))

        warnings = []
        for text in self._texts:
            warning = text.removeprefix(WARNING)
            if not any(pattern.search(warning) for pattern in patterns):
                warnings.append(warning)
        return warnings

    def _write_files(self) -> None:
        """Write the warnings of each unfinished job into the folder of its states, as JSON.

        The file is replaced in one step. A job that has finished has no such folder any more.
        """
        pass_models = _names_of_all_models(self._models_by_file)
        for file, models in self._models_by_file.items():
            # The folder of a job that has finished is gone.
            with contextlib.suppress(FileNotFoundError):
                file.parent.mkdir(exist_ok=True)
                unfinished = file.with_suffix(".aside")
                unfinished.write_text(json.dumps(self.of_models(models, pass_models)))
                os.replace(unfinished, file)


def _names_of_all_models(models_by_file: Mapping[Path, Collection[str]]) -> set[str]:
    """Return the names of the models of all jobs, each once."""
    names: set[str] = set()
    for models in models_by_file.values():
        names.update(models)
    return names


def _kept_warnings(file: Path) -> list[str]:
    """Return the warnings that a stopped run wrote to a file.

    The list is empty if there is no such file. It is empty as well, and a warning is logged, if
    the file cannot be read or holds anything but a list of strings.
    """
    try:
        texts = json.loads(read_bytes(file, MOST_JSON_BYTES, follow=False))
    except FileNotFoundError:
        return []
    except (OSError, ValueError, RecursionError) as error:  # the machine went down while writing
        log.warning("%s cannot be read (%s); the job goes on without them", file, one_line(error))
        return []
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        log.warning("%s holds no list of warnings; the job goes on without them", file)
        return []
    return texts
