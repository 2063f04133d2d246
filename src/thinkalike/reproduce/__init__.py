"""The papers' experiments: compute what the store lacks, draw, and check each claim with its numbers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from thinkalike.config import AnalyzeConfig
from thinkalike.errors import ConfigError, one_of
from thinkalike.reproduce import cka, layers, nli, profiles, stimuli, stitching

EXPERIMENTS: dict[str, Callable[[AnalyzeConfig], Path]] = {
    "brown2023/figure1": stitching.figure1,
    "brown2023/figure2": nli.figure2,
    "brown2023/figure3": cka.figure3,
    "brown2023/figure4": cka.figure4,
    "brown2023/figure5": cka.figure5,
    "brown2023/figure6": stitching.figure6,
    "brown2023/figure7": nli.figure7,
    "brown2023/figure8": nli.figure8,
    "brown2023/figure9": cka.figure9,
    "brown2023/figure10": cka.figure10,
    "brown2023/table1": cka.table1,
    "salle2024/figure2": layers.figure2,
    "salle2024/figure3": profiles.figure3,
    "salle2024/figure4": layers.figure4,
    "salle2024/figure_s5": stimuli.figure_s5,
    "salle2024/table_s1": stimuli.table_s1,
}
KINDS: dict[Callable[[AnalyzeConfig], Path], str] = {  # of the measure that an experiment hands on to its jobs
    **dict.fromkeys((cka.figure3, cka.figure4, cka.figure5, cka.figure9, cka.figure10), "cka"),
    **dict.fromkeys((layers.figure2, layers.figure4, profiles.figure3), "mlem"),
    **dict.fromkeys((nli.figure2, nli.figure7, nli.figure8), "population"),
}


def reproduce(config: AnalyzeConfig) -> Path:
    """Run an experiment of a paper.

    Raises:
        ConfigError: there is no such experiment, or it is not about the measure that is given.
    """
    name = str(config.experiment)
    one_of("experiment", name, EXPERIMENTS)
    kind = KINDS.get(EXPERIMENTS[name])
    if kind not in (None, config.measure.kind):
        raise ConfigError(f"experiment={name} is about measure={kind}, not measure={config.measure.kind}")
    return EXPERIMENTS[name](config)
