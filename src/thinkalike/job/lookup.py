"""Which instrument does a job: that of a configuration, or of the name of a measure."""

from __future__ import annotations

from thinkalike import catalogue
from thinkalike.config import JobConfig, completing
from thinkalike.job.instrument import AnyInstrument, as_instrument
from thinkalike.registry import CORE


def instrument_of(config: JobConfig) -> AnyInstrument:
    """Return the instrument of a configuration: that of its task, experiment or measure."""
    return as_instrument(completing.untyped_instrument_of(config))


def instrument_of_measure(kind: str) -> AnyInstrument:
    """Return the instrument of `measure=KIND`, which may be FILE.py:NAME."""
    return as_instrument(catalogue.instrument(catalogue.measure_entry(kind)))


def instrument_of_task(task: str) -> AnyInstrument:
    """Return the instrument of `task=TASK`."""
    return as_instrument(catalogue.instrument(catalogue.TASKS[task]))


def measures_of_arrays() -> list[str]:
    """Return the measures of the core that compare arrays of states, which no model computed."""
    kinds = [entry.kind for entry in CORE.measures]
    return [kind for kind in kinds if instrument_of_measure(kind).takes_activations]
