"""Which environment variables a configuration reads: those alone that the command line names.

A variable may hold a key, and settings go to loggers, to the hub and into results.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection

from thinkalike.config.references import ENVIRONMENT, ReadReferences, texts_in, unescaped
from thinkalike.errors import ConfigError, short


def environment_in(value: object, read_references: ReadReferences) -> set[str]:
    """Return the names of the environment variables that nested settings read.

    Raises:
        ConfigError: A ${...} is of a form that is not read.
    """
    names: set[str] = set()
    for text in texts_in(value):
        for reference in read_references(text):
            if reference.resolver == ENVIRONMENT:
                names.add(reference.name)
    return names


def check_environment(names: Collection[str], named: Collection[str], reader: str) -> None:
    """Check that the command line names each environment variable that is read.

    Args:
        names: Of those that are read.
        named: On the command line.
        reader: What reads them, as messages call it.
    """
    for name in sorted({*names} - {*named}):
        raise ConfigError(
            f"{reader} reads the environment variable {short(name)}, which may be a secret; "
            f"give the setting on the command line, as KEY='${{oc.env:{short(name)}}}'"
        )


def check_environment_of_file(
    settings: object, file: str, named: Collection[str], read_references: ReadReferences
) -> None:
    """Check the environment variables that the content of a file reads.

    Args:
        named: On the command line.
    """
    for text in texts_in(settings):
        try:
            names = environment_in(text, read_references)
        except ConfigError as error:
            raise ConfigError(f"{file}: {error}") from error
        with contextlib.suppress(ConfigError):  # it may be no more than the name of a file
            names |= environment_in(unescaped(text), read_references)
        check_environment(names, named, file)
