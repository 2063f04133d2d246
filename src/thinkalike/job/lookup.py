"""Which instrument does a job: that of a configuration, or of the name of a measure."""

from __future__ import annotations

from thinkalike import catalogue
from thinkalike.config import JobConfig, completing
from thinkalike.job.instrument import AnyInstrument, as_instrument


def instrument_of(config: JobConfig) -> AnyInstrument:
    """Return the instrument of a configuration: that of its task, experiment or measure."""
    return as_instrument(completing.instrument_of(config))


def instrument_of_measure(kind: str) -> AnyInstrument:
    """Return the instrument of `measure=KIND`, which may be FILE.py:NAME."""
    return as_instrument(catalogue.instrument(catalogue.measure_entry(kind)))


def instrument_of_task(task: str) -> AnyInstrument:
    """Return the instrument of `task=TASK`."""
    return as_instrument(catalogue.instrument(catalogue.TASKS[task]))
