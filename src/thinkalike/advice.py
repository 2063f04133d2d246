"""Settings in messages and on screens, in the words of whoever reads them.

    f"raise {named_setting('measure.tokens')}, or give {named_setting('measure.null', True)}"

A reader in Python reads "raise tokens, or give null=True", and one at a command line "raise
measure.tokens, or give measure.null=true". The words are chosen where the sentence is made, so
that a stored result has those of the side that opens it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping

_NOT_GIVEN = object()

# Whether a command runs in this process, and not a program of the user's.
_is_command_line = False

# The parts whose settings are arguments of the functions, under the same names.
PARTS_OF_FUNCTIONS = ("measure", "stitch", "data", "stimuli")

# The settings of models that functions take; `load_model` takes the others.
OF_FUNCTIONS = ("model.site", "model.head", "target.site", "target.head")

# Arguments that have a different name than the setting, or take what several settings say.
ARGUMENTS = {
    "data": "texts",
    "data.files": "texts",
    "data.hub_id": "texts",
    "model@target": "target",
    "stitch": "kind",
    "stimuli.path": "stimuli",
}

# Measures that have a function of their own.
FUNCTIONS = ("diff", "lineage", "mlem", "rsa", "ruler", "trajectory")


@contextlib.contextmanager
def at_command_line() -> Iterator[None]:
    """Let sentences have the words of a command line, as in the process of a command.

    It holds for all threads of the process.
    """
    global _is_command_line
    was_command_line = _is_command_line
    _is_command_line = True
    try:
        yield
    finally:
        _is_command_line = was_command_line


def named_setting(key: str, value: object = _NOT_GIVEN, *, like: str | None = None) -> str:
    """Return a setting, as who reads the sentence would write it.

    Args:
        key: The setting on a command line, such as "measure.null" or "data".
        value: Its value, such as True; without it, only the name is returned.
        like: What stands for a value, such as "FILE" or "[...]"; it is written as it is.

    >>> named_setting("measure.massive", "keep"), named_setting("data.files", like="[...]")
    ('massive="keep"', 'texts=[...]')
    >>> with at_command_line():
    ...     named_setting("measure.massive", "keep")
    'measure.massive=keep'
    """
    if _is_command_line:
        if like is None and value is _NOT_GIVEN:
            return key
        return f"{key}={_on_command_line(value) if like is None else like}"

    if key in ("measure", "task") and value in (*FUNCTIONS, "stitch"):
        return f"thinkalike.{value}"
    if key == "data" and value == "text":  # the name of text that was given in memory
        return "texts"
    name = _argument(key)
    # Of a setting by names, as the kinds of features. What has no argument keeps its key.
    entries, _, entry = (name, "", "") if name == key else name.partition(".")
    if like is None and value is _NOT_GIVEN:
        if entry:
            return f"{entries}[{entry!r}]"
        return f"{name} of load_model" if _is_of_loading(key) else name
    if entry and like == "":  # as "setting=", which names it alone
        return f"{entries}[{entry!r}]"
    if entry:
        written = like if like is not None else repr(value)
        return f"{entries}={{{entry!r}: {written}}}"
    written = like if like is not None else _in_python(value)
    if _is_of_loading(key):
        return f"load_model(..., {name}={written})"
    return f"{name}={written}"


def shown_in_words(counts: Mapping[str, tuple[int, int]], table: str = "details") -> str:
    """Return how much of a table a screen shows, and what has all of it; "" if it shows all.

    Args:
        counts: How many are shown and how many there are, by what they are, such as "layers".
        table: The name of the table in the result.

    >>> shown_in_words({"layers": (16, 30)}), shown_in_words({"layers": (3, 3)})
    ('16 of 30 layers; result.details has all', '')
    """
    parts = []
    for unit, (shown, total) in counts.items():
        if shown < total:
            parts.append(f"{shown} of {total} {unit}")
    if not parts:
        return ""
    return f"{' and '.join(parts)}; {_named_table(table)} has all"


def _named_table(name: str) -> str:
    """Return what has all rows of a table of a result: its file, or an attribute in Python."""
    if _is_command_line:
        return "table.csv" if name == "details" else f"{name}.csv"
    return "result.details" if name == "details" else f'result.tables["{name}"]'


def text_label(name: str) -> str:
    """Return what a message calls the text of a job, such as "data pydoc".

    Args:
        name: The name of the text; that of strings given to a function is "text".
    """
    if not _is_command_line and name == "text":
        return "texts"
    return f"data {name}"


def _argument(key: str) -> str:
    """Return the argument in Python that a setting is."""
    if key in ARGUMENTS:
        return ARGUMENTS[key]
    part, _, name = key.partition(".")
    if name and (part in PARTS_OF_FUNCTIONS or key in OF_FUNCTIONS or _is_of_loading(key)):
        return name
    return key


def _is_of_loading(key: str) -> bool:
    """Return whether a setting is one that `load_model` takes, and no function does."""
    return key.startswith(("model.", "target.")) and key not in OF_FUNCTIONS


def _on_command_line(value: object) -> str:
    """Return a value as a command line has it."""
    constants = {True: "true", False: "false", None: "null"}
    if value is None or isinstance(value, bool):
        return constants[value]
    return str(value)


def _in_python(value: object) -> str:
    """Return a value as Python has it, with the double quotes of this project."""
    if isinstance(value, str) and '"' not in value and "\\" not in value:
        return f'"{value}"'
    return repr(value)
