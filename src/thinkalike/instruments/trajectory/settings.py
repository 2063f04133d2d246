"""The settings of measure=trajectory."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from thinkalike.config import MeasureConfig, setting
from thinkalike.config.schema import Numbers


@dataclass
class TrajectoryConfig(MeasureConfig):
    """The settings of a trajectory."""

    kind: str = "trajectory"
    steps: Literal["all"] | Numbers = "all"  # checkpoints by their steps
    checkpoints: str = "*"  # a pattern of their names, such as stage1-*
    # words of task=pretrain: train this mini first; []: it is there
    train: list[str] = field(default_factory=list)
    tokens: int = setting(4096, least=64, most=10**8)  # of text that each checkpoint reads
    importance: bool = True  # of features by MLEM, beside accuracies of probes
    folds: int = setting(5, least=2, most=10**4)  # of the stimuli
    least: int = setting(20, least=2, most=10**9)  # stimuli of a level that is told apart
    # of labels, of the null of accuracies
    permutations: int = setting(99, least=19, most=10**5)
