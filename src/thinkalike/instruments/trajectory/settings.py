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
    # training steps of the checkpoints to read
    steps: Literal["all"] | Numbers = "all"
    # pattern that the names of the checkpoints match, such as stage1-*
    checkpoints: str = "*"
    # words of a task=pretrain command that first trains the model; []: the checkpoints exist
    train: list[str] = field(default_factory=list)
    # number of tokens of text that each checkpoint reads
    tokens: int = setting(4096, least=64, most=10**8)
    # also compute the importance of features by MLEM, beside the accuracy of probes
    importance: bool = True
    # number of folds of the stimuli in cross-validation
    folds: int = setting(5, least=2, most=10**4)
    # least number of stimuli that a level of a feature must have to be probed
    least: int = setting(20, least=2, most=10**9)
    # number of permutations of the labels, for the accuracy by chance
    permutations: int = setting(99, least=19, most=10**5)
