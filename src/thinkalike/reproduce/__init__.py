"""The papers' experiments: compute what the store lacks, draw, and check each claim with its numbers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from thinkalike.config import AnalyzeConfig
from thinkalike.errors import one_of
from thinkalike.reproduce import cka, stitching

EXPERIMENTS: dict[str, Callable[[AnalyzeConfig], Path]] = {
    "brown2023/figure1": stitching.figure1,
    "brown2023/figure3": cka.figure3,
    "brown2023/figure4": cka.figure4,
    "brown2023/figure5": cka.figure5,
    "brown2023/figure6": stitching.figure6,
    "brown2023/figure9": cka.figure9,
    "brown2023/figure10": cka.figure10,
    "brown2023/table1": cka.table1,
}


def reproduce(config: AnalyzeConfig) -> Path:
    """Run an experiment of a paper.

    Raises:
        ConfigError: there is no such experiment.
    """
    one_of("experiment", str(config.experiment), EXPERIMENTS)
    return EXPERIMENTS[str(config.experiment)](config)
