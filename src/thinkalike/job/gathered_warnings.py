"""Gathers the warnings of a pass of jobs, so that each result has those that concern it."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path

from thinkalike.errors import one_line, plain_line
from thinkalike.files import read_bytes
from thinkalike.store.record import MOST_JSON_BYTES

# What the text of a warning begins with.
WARNING = "warning: "

# The file of warnings beside the states of a job that has not finished.
FILE = "warnings.json"

LOGGER = logging.getLogger("thinkalike")

log = logging.getLogger(__name__)


class GatheredWarnings(logging.Handler):
    """Gathers warnings while it is open, and marks records that repeat a warning.

    The mark is the attribute `again` of a record, which handlers that print may read.
    """

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
        """Store the text of a warning, mark the record if it repeats one, and print if needed.

        - A record whose text begins with "warning: " is stored, and `record.again` says whether
          the same text was logged before. While a job is unfinished, its warnings are also written
          to a file, if `store_beside_states` has named a folder for it.
        - A record that is no repeated warning is printed if the program has set up no logging. If
          there are several handlers of this class, since jobs run inside a job, the first prints.
        """
        text = record.getMessage()
        if text.startswith(WARNING):
            # A job may run other jobs inside it, each with a handler of this class. All of them
            # get the record, and an earlier one may have marked it.
            is_marked = getattr(record, "again", False)
            record.again = is_marked or text in self._texts
            self._texts[text] = None
            self._write_files()

        # `logging` prints the records of a program that has set up no handlers by
        # `logging.lastResort`. Handlers of this class keep it from doing so, although they only
        # gather records. So the first of them does it instead.
        program_has_handlers = bool(logging.root.handlers)
        is_first = LOGGER.handlers[0] is self
        is_repeated = getattr(record, "again", False)
        has_to_print = not program_has_handlers and is_first and not is_repeated
        if has_to_print and logging.lastResort:
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
        for text in _warnings_of_stopped_run(file):
            log.warning("%s%s", WARNING, text)
        self._models_by_file[file] = models

    def warnings_of_job(
        self, models_of_job: Collection[str], models_of_all_jobs: Iterable[str]
    ) -> list[str]:
        """Return the warnings of one of several jobs that run together.

        These are all warnings except those that name a model that only the other jobs have.

        Args:
            models_of_job: The names of the models of the job.
            models_of_all_jobs: The names of the models of all jobs that run together.
        """
        patterns_of_other_models = []
        for name in set(models_of_all_jobs) - set(models_of_job):
            # The name as a whole word: "gpt2" is not found in "gpt2-mini".
            whole_name = rf"(?<![\w-]){re.escape(name)}(?![\w-])"
            patterns_of_other_models.append(re.compile(whole_name))

        warnings = []
        for text in self._texts:
            warning = text.removeprefix(WARNING)
            if not any(pattern.search(warning) for pattern in patterns_of_other_models):
                warnings.append(warning)
        return warnings

    def _write_files(self) -> None:
        """Write the warnings of each unfinished job into the folder of its states, as JSON.

        The file is replaced in one step. Nothing is written for a job that has finished.
        """
        models_of_all_jobs = _names_of_all_models(self._models_by_file)
        for file, models in self._models_by_file.items():
            # When a job finishes, the folder around that of its states is removed, so that `mkdir`
            # fails.
            with contextlib.suppress(FileNotFoundError):
                file.parent.mkdir(exist_ok=True)
                unfinished = file.with_suffix(".aside")
                warnings = self.warnings_of_job(models, models_of_all_jobs)
                unfinished.write_text(json.dumps(warnings))
                os.replace(unfinished, file)


def _names_of_all_models(models_by_file: Mapping[Path, Collection[str]]) -> set[str]:
    """Return the names of the models of all jobs, each once."""
    names: set[str] = set()
    for models in models_by_file.values():
        names.update(models)
    return names


def _warnings_of_stopped_run(file: Path) -> list[str]:
    """Return the warnings that an earlier, stopped run of a job wrote to a JSON file.

    The list is empty if there is no such file. It is empty as well, and a warning is logged, if
    the file cannot be read or holds anything but a list of strings. Control characters and line
    breaks of a foreign file are replaced.
    """
    try:
        texts = json.loads(read_bytes(file, MOST_JSON_BYTES, follow=False))
    except FileNotFoundError:
        return []
    except (OSError, ValueError, RecursionError) as error:  # such as a file that was cut off
        log.warning("%s cannot be read (%s); the job goes on without them", file, one_line(error))
        return []
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        log.warning("%s holds no list of warnings; the job goes on without them", file)
        return []
    return [plain_line(text) for text in texts]
