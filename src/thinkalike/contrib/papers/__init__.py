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
    paper = name.partition("/")[0]
    for module in PAPERS.get(paper, ()):
        for experiment in import_module(f"{__name__}.{module}").EXPERIMENTS:
            if experiment.name == name:
                return experiment  # type: ignore[no-any-return]
    ours = [option for option in options("experiment") if option.partition("/")[0] in PAPERS and option != name]
    one_of("experiment", name, ours)  # a file experiment/mine.yaml of a user is an option, and no experiment
    raise AssertionError(name)
