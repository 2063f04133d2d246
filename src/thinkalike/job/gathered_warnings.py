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
        """Note a warning, and mark it as `again` if the same text was logged before."""
        text = record.getMessage()
        if text.startswith(WARNING):
            record.again = getattr(record, "again", False) or text in self._texts
            self._texts[text] = None
            self._write_files()

        # Without any other handler, logging would print the record by its last resort.
        is_only_handler = not logging.root.handlers and LOGGER.handlers[0] is self
        is_repeated = getattr(record, "again", False)
        if is_only_handler and logging.lastResort and not is_repeated:
            logging.lastResort.handle(record)

    def keep_beside(self, states: Path, models: Collection[str]) -> None:
        """Keep warnings beside the states of a job, and repeat those that a stopped run left.

        Args:
            states: The folder of the states.
            models: The names of the models of the job.
        """
        file = states / FILE
        for text in _kept_warnings(file):
            log.warning("%s%s", WARNING, text)
        self._models_by_file[file] = models

    def of_models(self, models: Collection[str], pass_models: Iterable[str]) -> list[str]:
        """Return the warnings of a job: those that name no model that only further jobs have.

        Args:
            models: The names of the models of the job.
            pass_models: Those of all jobs of the pass.
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
        """Write the warnings of each job beside its states."""
        pass_models = _all_names(self._models_by_file)
        for file, models in self._models_by_file.items():
            # The folder of a job that has finished is gone.
            with contextlib.suppress(FileNotFoundError):
                file.parent.mkdir(exist_ok=True)
                unfinished = file.with_suffix(".aside")
                unfinished.write_text(json.dumps(self.of_models(models, pass_models)))
                os.replace(unfinished, file)


def _all_names(models_by_file: Mapping[Path, Collection[str]]) -> set[str]:
    """Return the names of all models, without repetition."""
    names: set[str] = set()
    for models in models_by_file.values():
        names.update(models)
    return names


def _kept_warnings(file: Path) -> list[str]:
    """Return the warnings that a stopped run kept; a file without a list of texts is reported."""
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
