"""The instruments: what `task=`, `measure=` and `experiment=` can be, found by entry points of installed packages.

    [project.entry-points."thinkalike.instruments"]
    "measure.mine" = "my_package.mine:Mine"

The group has `task.NAME` and `measure.NAME`, each a subclass of `thinkalike.job.Instrument`; `subjects.NAME`, the form
that a measure takes for several subjects; `plugin`, a function from FILE.py:NAME to an instrument and its schema; and
`experiment`, a function of the name of an experiment. A module is imported when it is needed.
"""

from __future__ import annotations

import tomllib
from functools import cache
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from thinkalike.config.roots import AnalyzeConfig, JobConfig, MeasureConfig, TrainConfig
from thinkalike.errors import ConfigError, one_of
from thinkalike.plugins import is_plugin

GROUP = "thinkalike.instruments"
PROJECT = Path(__file__).parents[3] / "pyproject.toml"


def _declared() -> dict[str, str]:
    """Return module:name of each entry point; a checkout's own list counts, whether it is installed or not."""
    found = {point.name: point.value for point in entry_points(group=GROUP)}
    if PROJECT.is_file():
        own: dict[str, Any] = tomllib.loads(PROJECT.read_text(encoding="utf-8")).get("project", {})
        found |= own.get("entry-points", {}).get(GROUP, {})
    return found


def _named(part: str) -> dict[str, str]:
    return {name.removeprefix(part): value for name, value in sorted(POINTS.items()) if name.startswith(part)}


POINTS = _declared()
TASKS, MEASURES, SUBJECTS = _named("task."), _named("measure."), _named("subjects.")
EXPERIMENTS = POINTS.get("experiment")
GONE = {  # measures of earlier versions, and what to run instead
    "asymmetry": "run python train.py stitch.both=true, which reports both directions",
    "transfer_maps": "run python train.py stitch=least_squares stitch.both=true, which fits the same maps",
}


@cache
def loaded(value: str) -> Any:
    """Return the object that module:name names."""
    module, _, name = value.partition(":")
    return getattr(import_module(module), name)


def measure_module(kind: str) -> str:
    """Return the module:name of a kind of measure; one in a file of the user's, FILE.py:NAME, stays as it is.

    Raises:
        ConfigError: there is no such measure.
    """
    if is_plugin(kind):
        return kind
    if kind in GONE:
        raise ConfigError(f"measure={kind} no longer exists; {GONE[kind]}")
    one_of("measure", kind, MEASURES)
    return MEASURES[kind]


def measure_schema(kind: str) -> type[MeasureConfig]:
    """Return the schema of a kind of measure, which is defined in the file of its instrument."""
    if is_plugin(kind):
        return loaded(POINTS["plugin"])(kind)[1]  # type: ignore[no-any-return]
    loaded(measure_module(kind))
    return MeasureConfig.schemas[kind]


def instrument(value: str) -> Any:
    """Return the instrument module:name, or that of a user's measure."""
    kind = loaded(POINTS["plugin"])(value)[0] if is_plugin(value) else loaded(value)
    return kind()


def instrument_of(config: JobConfig) -> Any:
    """Return the instrument of a job.

    Raises:
        ConfigError: there is no such measure, or it takes no several subjects.
        TypeError: this is no configuration.
    """
    if isinstance(config, TrainConfig):
        return instrument(TASKS[config.task])
    if not isinstance(config, AnalyzeConfig):
        raise TypeError(f"a job is a configuration, as compose_job makes one, and this is a {type(config).__name__}")
    if config.experiment and config.models is None and EXPERIMENTS:
        return loaded(EXPERIMENTS)(config.experiment)
    if not config.subjects:
        return instrument(measure_module(config.measure.kind))
    if (kind := config.measure.kind) not in SUBJECTS:
        raise ConfigError(
            f"measure={kind} compares two sides, and activations= are {len(config.subjects)} subjects; choose "
            f"measure={' or '.join(SUBJECTS)}"
        )
    return instrument(SUBJECTS[kind])
