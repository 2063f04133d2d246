"""Errors and warnings of a job that call its settings as its user writes them, in Python."""

from __future__ import annotations

import contextlib
import logging
import os
import re
from collections.abc import Iterator

from thinkalike.errors import ThinkalikeError
from thinkalike.jobs.base import INPUTS, Job

# A value of a setting that is one word, such as keep or true, and not the first of a longer text.
WORD = r"[a-z][\w-]*(?![\w.|:/(\[-])"

# How Python writes the constants of a command line.
CONSTANTS = {"true": "True", "false": "False", "null": "None"}


@contextlib.contextmanager
def naming(job: Job) -> Iterator[None]:
    """Let errors and warnings call the settings of a job by its fields."""
    make_record = logging.getLogRecordFactory()

    def make_record_in_words(*arguments: object, **named: object) -> logging.LogRecord:
        record = make_record(*arguments, **named)
        if record.name.partition(".")[0] == "thinkalike":
            record.msg = in_words_of(job, record.getMessage())
            record.args = ()
        return record

    logging.setLogRecordFactory(make_record_in_words)
    try:
        yield
    except ThinkalikeError as error:
        error.args = (in_words_of(job, str(error)),)
        raise
    finally:
        logging.setLogRecordFactory(make_record)


def in_words_of(job: Job, message: str) -> str:
    """Return a message in which settings are arguments of the function that did a job.

    "measure.massive=keep" becomes 'massive="keep"', and "data.context" becomes "context".

    Args:
        job: The job, whose fields are the arguments.
        message: The message, in which settings are those of a command line.
    """
    names = "|".join([*job.defaults(), *INPUTS])
    kinds = r"\b(?:stimuli\.)?kinds\.([^=,;:.]+)=(\[[^]]*\]|\w+)"
    message = re.sub(kinds, _kinds_as_argument, message)
    of_parts = rf"(?:stitch|measure|data|stimuli)\.({names})"
    for setting in (of_parts, r"model\.(site|head)", "(force)"):
        message = re.sub(rf"\b{setting}=({WORD})", _as_argument, message)
        message = re.sub(rf"\b{setting}\b", r"\1", message)
    message = re.sub(rf"\b(model)\.(\w+)=({WORD})", _as_argument_of_loading, message)

    texts = job.texts_given
    if texts is not None and not isinstance(texts, str | os.PathLike):
        message = re.sub(r"\bdata(?:=| )text\b", "texts", message)
    message = re.sub(r"\bdata=", "texts=", message)
    message = re.sub(r"\bdata\.files\b", "texts", message)
    return re.sub(r"\bmodel@target=", "target=", message)


def _as_argument(match: re.Match[str]) -> str:
    """Return the name and the value of a setting as an argument in Python."""
    name, value = match.groups()
    return f"{name}={_as_python(value)}"


def _as_argument_of_loading(match: re.Match[str]) -> str:
    """Return a setting of a model, which functions do not take, as that of `load_model`."""
    _, name, value = match.groups()
    return f"load_model(..., {name}={_as_python(value)})"


def _kinds_as_argument(match: re.Match[str]) -> str:
    """Return the kind of a feature as an argument in Python: a word, or a list of levels."""
    name, kind = match.groups()
    kind_in_python = kind if kind.startswith("[") else f"{kind!r}"
    return f"kinds={{{name!r}: {kind_in_python}}}"


def _as_python(value: str) -> str:
    """Return a word of a command line as Python writes it."""
    return CONSTANTS.get(value, f'"{value}"')
