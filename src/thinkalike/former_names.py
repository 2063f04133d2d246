"""Settings that had another name in earlier versions.

A command line, a file or a keyword that uses a former name is refused, with the present name. Stored
results stay valid: the key of a job is made of the former names, and the settings that an earlier
version recorded are read under the present ones.

No schema may declare a former name again, as its recorded values would be taken for those of the
present one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

FORMER_NAMES = {
    "evaluation_tokens": "report_tokens",
    "evaluation_share": "report_share",
    "unit": "level",
    "conditional_on": "given",
    "calibration_points": "rungs",
    "similar_units": "likeness",
}
"""By the name of a setting, without its part, the one that it had."""

FORMER_VALUES = {
    "recipe": {"default": "honest"},
    "null": {"random_change": "perturbation", "continued_training": "drift"},
}
"""By the name of a setting, for those of its values that had another name, the one that they had."""

Renaming = Callable[[str, object], tuple[str, object]]

PRESENT_NAMES = {former: present for present, former in FORMER_NAMES.items()}


def present_name(key: str) -> str | None:
    """Return the key that a former key has now, such as data.evaluation_tokens.

    None: it is no former key.
    """
    part, dot, name = key.rpartition(".")
    if name not in PRESENT_NAMES:
        return None
    return f"{part}{dot}{PRESENT_NAMES[name]}"


def present_value(key: str, value: object) -> str | None:
    """Return what a former value of a setting is called now; None: it is no former value."""
    name = key.rpartition(".")[2]
    for present, former in FORMER_VALUES.get(name, {}).items():
        if value == former:
            return present
    return None


def with_former_names(settings: Mapping[str, object]) -> dict[str, object]:
    """Return the settings of a job, nested by part, under the names that enter its key."""
    return _renamed(settings, _as_formerly)


def with_present_names(settings: Mapping[str, object]) -> dict[str, object]:
    """Return recorded settings of a job, nested by part, under the names that they have now."""
    return _renamed(settings, _as_now)


def _renamed(settings: Mapping[str, object], rename: Renaming) -> dict[str, object]:
    renamed: dict[str, object] = {}
    for name, value in settings.items():
        if isinstance(value, Mapping):
            renamed[name] = dict(rename(inner, value[inner]) for inner in value)
        else:
            new_name, new_value = rename(name, value)
            renamed[new_name] = new_value
    return renamed


def _as_formerly(name: str, value: object) -> tuple[str, object]:
    if isinstance(value, str):
        value = FORMER_VALUES.get(name, {}).get(value, value)
    return FORMER_NAMES.get(name, name), value


def _as_now(name: str, value: object) -> tuple[str, object]:
    return PRESENT_NAMES.get(name, name), present_value(name, value) or value
