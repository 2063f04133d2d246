"""The figures and tables of papers; `conf/experiment/` lists them."""

from __future__ import annotations

from importlib import import_module

from thinkalike.config import options
from thinkalike.contrib.papers.experiment import Experiment
from thinkalike.errors import one_of

PAPERS = {  # the modules of each paper's experiments
    "brown2023": ("brown2023_layers", "brown2023_population"),
    "salle2024": ("salle2024",),
    "validity": ("validity_court",),
    "trajectory": ("trajectory_grammar",),
    "chen2025": ("chen2025",),
}


def experiment_named(name: str) -> Experiment:
    """Return an experiment by its name, such as brown2023/figure1; an unknown name is a ConfigError."""
    one_of("experiment", name, options("experiment"))
    modules = (import_module(f"{__name__}.{module}") for module in PAPERS[name.partition("/")[0]])
    return next(each for module in modules for each in module.EXPERIMENTS if each.name == name)
