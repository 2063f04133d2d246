"""The settings that measures of layer pairs have in common."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from thinkalike.config import MeasureConfig, setting
from thinkalike.config.parts import CONTEXT, TOKENS_AT_ONCE
from thinkalike.errors import ConfigError

BATCHES = 64
"""The value is the mean of so many batches. Measures that take longer for a batch have fewer."""

OF_STATES = ("model", "target", "layers", "data", "measure", "stimuli", "ruler")
"""The parts of the configuration that a measure of states reads."""


@dataclass
class LayerPairsConfig(MeasureConfig):
    """The settings that all measures of layer pairs have."""

    batches: int = setting(BATCHES, by_recipe=True, least=1, most=10**9)  # whose mean is the value
    # words, where the models' tokenizers differ
    tokens_per_batch: int = setting(1024, least=1, most=TOKENS_AT_ONCE)
    # of rows; auto: words where the tokenizers differ
    unit: Literal["auto", "token", "word"] = "auto"
    embed: bool = False  # also the site before block 0
    massive: Literal["drop", "keep"] = "drop"  # the few tokens whose long states decide some layer
    # tokens of every row of text that are left out
    skip_first: int = setting(0, least=0, most=CONTEXT)
    skip_special_tokens: bool = False  # leave out BOS, EOS and the like
    # token: rows are compared with those of the same token or word alone; token_position: less the
    # means of their tokens and positions
    conditional_on: Literal["none", "token", "token_position"] = "none"


@dataclass
class WithNull(LayerPairsConfig):
    """The settings of a measure of layer pairs that has a null."""

    compares_within_groups: ClassVar[bool] = False
    """Whether the measure can compare the rows of one token among themselves."""

    # beside each value what permuted documents give, the calibrated value and p
    null: bool = False
    # of documents, in one batch; p is at least 1 / (this + 1)
    permutations: int = setting(99, least=1, most=10**6)

    def settings_read(self) -> frozenset[str]:
        settings = super().settings_read()
        if self.null:
            return settings
        return settings - {"permutations"}

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.conditional_on != "none" and self.kind and not self.compares_within_groups:
            raise ConfigError(
                f"measure={self.kind} compares all rows: omit "
                f"measure.conditional_on={self.conditional_on}, or take cka"
            )
