"""Which files of code settings name, as FILE.py:NAME, also in overrides among their texts.

A configuration may be a stranger's, and runs none that a person did not name by
`thinkalike.plugins.trust`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from thinkalike.plugins import check_trusted, named_in

ReadValues = Callable[[str], list[object]]  # the values of a text that is an override


def plugins_in(settings: object, read_values: ReadValues) -> list[str]:
    """Return the plugins FILE.py:NAME that nested settings name.

    Some settings are lists of overrides for a job inside the job, such as measure.train, which
    name plugins in their values.
    """
    if isinstance(settings, Mapping):
        return plugins_in(list(settings.values()), read_values)
    if isinstance(settings, list | tuple):
        names = []
        for value in settings:
            names += plugins_in(value, read_values)
        return names

    names = named_in(settings)
    if isinstance(settings, str) and "=" in settings and ".py:" in settings:
        names += plugins_in(read_values(settings), read_values)
    return names


def check_plugins(settings: object, read_values: ReadValues) -> None:
    """Check that a person named each file of code that settings name."""
    for name in plugins_in(settings, read_values):
        check_trusted(name)
