"""The figures and tables of papers; `conf/experiment/` lists them."""

from __future__ import annotations

from importlib import import_module

from thinkalike.config import options
from thinkalike.contrib.papers.experiment import Experiment
from thinkalike.errors import one_of

# The modules with the experiments of each paper.
PAPERS = {
    "brown2023": ("brown2023_stitching", "brown2023_cka", "brown2023_population"),
    "salle2024": ("salle2024_profiles", "salle2024_similarity", "salle2024_words"),
    "validity": ("validity_court",),
    "trajectory": ("trajectory_grammar",),
    "chen2025": ("chen2025_probes", "chen2025_steering", "chen2025_saes"),
}


def paper_experiment(name: str) -> Experiment:
    """Return an experiment by its name, such as brown2023/figure1.

    Raises:
        ConfigError: There is no such experiment.
    """
    paper = name.partition("/")[0]
    for module in PAPERS.get(paper, ()):
        experiments: list[Experiment] = import_module(f"{__name__}.{module}").EXPERIMENTS
        for experiment in experiments:
            if experiment.name == name:
                return experiment

    # The error lists the experiments of papers. A user's own experiment may be called as one of a
    # paper, such as brown2023/mine; it is an option of the command line, and is left out.
    experiment_names = [
        option
        for option in options("experiment")
        if option.partition("/")[0] in PAPERS and option != name
    ]
    one_of("experiment", name, experiment_names)
    raise AssertionError(name)  # `one_of` has raised a ConfigError that lists the names
