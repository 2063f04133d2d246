"""The settings that all measures of layer pairs have."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Optional

from thinkalike.config import MeasureConfig, ranged
from thinkalike.config.ranges import CONTEXT, TOKENS_AT_ONCE
from thinkalike.errors import one_of


# ruff: noqa: UP045
@dataclass
class LayerPairsConfig(MeasureConfig):
    """The settings that all measures of layer pairs have."""

    batches: int = ranged(64, least=2, most=10**9)  # whose mean is the value; intervals are over them
    tokens_per_batch: int = ranged(1024, least=1, most=TOKENS_AT_ONCE)  # words, where the models' tokenizers differ
    level: str = "auto"  # token | word; auto: words where the tokenizers differ
    embed: bool = False  # also the site before block 0
    skip_first_tokens: int = ranged(0, least=0, most=CONTEXT)  # of every row of text; the first is often massive
    skip_special_tokens: bool = False  # leave out BOS, EOS and the like
    stop_at_width: Optional[float] = ranged(None, above=0)  # stop when every interval is narrower
    given: str = "none"  # none | token: rows are compared with those of the same token, or form of a word, alone

    def __post_init__(self) -> None:
        super().__post_init__()
        one_of("measure.level", self.level, ("auto", "token", "word"))
        one_of("measure.given", self.given, ("none", "token"))
