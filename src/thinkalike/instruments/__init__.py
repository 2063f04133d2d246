"""Instruments: one file each, with its settings, its run, its table, its figure and what it prints.

Which there are stands in `thinkalike.config.registry`. A module here holds the schema `Config` of a measure and one
subclass of `Instrument`; it imports at its top what is quick, and inside functions what is not.
"""

from __future__ import annotations

from functools import cache
from importlib import import_module

from thinkalike.config import MEASURES, TASKS, AnalyzeConfig, TrainConfig
from thinkalike.errors import ConfigError, one_of
from thinkalike.job import Instrument, perform
from thinkalike.store import Result


@cache
def instrument(module: str) -> Instrument:
    """Return the instrument that a module holds."""
    import_module(module)
    return Instrument.known[module]()


def run_job(config: TrainConfig | AnalyzeConfig, shown_again: bool = True) -> Result:
    """Do the job that a configuration describes, or return its result if that is in the store.

    Args:
        shown_again: whether a result that is in the store is printed, too.

    Raises:
        ConfigError: there is no such task or measure, or it takes no activations.
        ThinkalikeError: see the instrument.
    """
    if isinstance(config, TrainConfig):
        return perform(instrument(TASKS[config.task]), config, shown_again)
    one_of("measure", config.measure.kind, MEASURES)
    chosen = instrument(MEASURES[config.measure.kind])
    if config.activations and not chosen.takes_activations:
        raise ConfigError(f"measure={chosen.kind} takes no activations; choose measure=cka, mknn, mlem or rsa")
    if config.subjects and not chosen.takes_subjects:
        raise ConfigError(
            f"measure={chosen.kind} compares two sides, and activations= are {len(config.subjects)} subjects; choose "
            "measure=rsa or mlem"
        )
    return perform(chosen, config, shown_again)


__all__ = ["instrument", "run_job"]
