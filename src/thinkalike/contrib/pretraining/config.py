"""The settings of task=pretrain."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any

from pydantic import Field

from thinkalike.config import TrainConfig, left_open, not_in_key, ranged
from thinkalike.config.schema import COUNTS, STEPS, TOKENS_AT_ONCE, Checked
from thinkalike.errors import ConfigError

Keep = Annotated[str, Field(pattern=r"^(log2|every=[1-9]\d{0,6})$")] | list[Annotated[int, Field(ge=0, strict=True)]]


@dataclass
class PretrainConfig(Checked, part="pretrain"):
    """How task=pretrain trains a mini: AdamW, warm-up and cosine."""

    tokens: int = left_open(0, least=0, most=COUNTS)  # how many tokens it sees
    tokens_per_step: int = left_open(2048, least=2, most=TOKENS_AT_ONCE)  # tokens that a step reads
    lr: float = left_open(2e-3, above=0)  # peak
    weight_decay: float = ranged(0.1, least=0)  # of matrices, decoupled
    warmup: int = ranged(200, least=0, most=STEPS)  # steps in which the rate rises
    clip: float = ranged(1.0, least=0)  # gradient norm; 0: none
    vocabulary: int = left_open(1024, least=260, most=10**6)  # the bytes and the special tokens are the least
    keep: Keep = field(default_factory=list)  # checkpoints after these steps: [0,1,2,4] | log2 | every=N; [] none
    ship: bool = not_in_key(False)  # also put it where the embedded minis are

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.tokens and self.tokens_per_step and any(step > self.steps for step in self.kept):
            raise ConfigError(f"pretrain.keep={self.keep} names a step after the last one, which is {self.steps}")

    def by_recipe(self, job: Any) -> dict[str, Any]:
        names = ("tokens", "tokens_per_step", "lr", "vocabulary")
        return {name: getattr(job.model, f"pretrain_{name}") for name in names}

    @property
    def steps(self) -> int:
        return max(self.tokens // self.tokens_per_step, 1)

    @property
    def kept(self) -> list[int]:
        """The steps after which a checkpoint is kept; by log2 and every=N also the first and the last one."""
        if isinstance(self.keep, list):
            return self.keep
        powers = (2**power for power in range(self.steps.bit_length()))
        between = powers if self.keep == "log2" else range(0, self.steps, int(self.keep.removeprefix("every=")))
        return sorted({0, *between, self.steps})


@dataclass
class PretrainJob(TrainConfig):
    """All that `task=pretrain` needs to know."""

    pretrain: PretrainConfig = field(default_factory=PretrainConfig)

    def __post_init__(self) -> None:
        super().__post_init__()
        tokens = self.pretrain.tokens  # null: left open
        if tokens == 0 or (tokens and not self.model.architecture):
            raise ConfigError(f"task=pretrain needs model.architecture and pretrain.tokens: model={self.model.name}")
