"""The papers' figures and tables; which there are stands in `conf/experiment/`."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from importlib import import_module

from thinkalike.config import AnalyzeConfig, options
from thinkalike.errors import DataError, ModelError, chain, first_line, one_of
from thinkalike.job import perform
from thinkalike.papers.experiment import Experiment
from thinkalike.store import Result

HUB = ("huggingface_hub", "httpx2", "thinkalike.hub")  # whose errors mean that the hub does not give something
PAPERS = {  # the modules that hold the experiments of each
    "brown2023": ("brown2023_stitching", "brown2023_cka", "brown2023_population"),
    "salle2024": ("salle2024_profiles", "salle2024_layers", "salle2024_stimuli"),
    "validity": ("validity_court",),
    "chen2025": ("chen2025.probes", "chen2025.steering", "chen2025.sae"),
}


def experiment_named(name: str) -> Experiment:
    """Return an experiment by its name, such as brown2023/figure1.

    Raises:
        ConfigError: there is none of that name.
    """
    one_of("experiment", name, options("experiment"))
    modules = (import_module(f"{__name__}.{module}") for module in PAPERS[name.partition("/")[0]])
    return next(each for module in modules for each in module.EXPERIMENTS if each.name == name)


def reproduce(config: AnalyzeConfig) -> Result:
    """Do an experiment: compute what the store lacks, draw, and check each claim.

    Raises:
        ConfigError: there is no such experiment, or it cannot be done as asked.
        ModelError, DataError: the hub does not give what it needs; the message says how to do without.
    """
    with _offering_minis(config.scale):
        return perform(experiment_named(str(config.experiment)), config)


@contextlib.contextmanager
def _offering_minis(scale: str) -> Iterator[None]:
    """Add to the error of an experiment that needs a hub how it is done without one."""
    try:
        yield
    except (ModelError, DataError) as error:
        causes = [each for each in chain(error, suppressed=True) if type(each).__module__.startswith(HUB)]
        if scale == "mini" or not causes:
            raise
        raise type(error)(f"{first_line(error)}; scale=mini does it offline, on the minis") from error
