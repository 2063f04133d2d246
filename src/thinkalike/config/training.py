"""How stitches, minis and classifiers are trained, on what devices, and where curves go; checks of these values."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Optional

from thinkalike.config.relevance import neutral
from thinkalike.errors import ConfigError, one_of

TRAINED = ("linear", "affine", "low_rank", "orthogonal")
CLOSED = ("least_squares", "procrustes", "reduced_rank", "bias")


# ruff: noqa: UP045
@dataclass
class StitchConfig:
    """The map φ and its training."""

    kind: str = "linear"
    norm: str = "none"  # where φ has a LayerNorm: none | pre | post
    rank: int = 16  # of low_rank and reduced_rank
    init: str = "identity"  # where training starts: identity, or a closed form
    ridge: float = 0.0  # of the closed forms least_squares and reduced_rank
    loss: str = "cross_entropy"  # cross_entropy | kl (to the target's output) | mse (to the target's state)
    controls: bool = False  # report closed forms, shuffled and random sources beside φ
    lr: float = 1.0
    momentum: float = 0.9
    scale_lr_by_momentum: bool = True  # the rate that SGD gets is lr * (1 - momentum)
    weight_decay: float = 1e-3  # pulls φ to the identity where the widths match
    clip: float = 1.0  # gradient norm per stitch; 0: none
    schedule: str = "linear"  # linear | tuned_lens
    steps: int = 2000  # closed forms: how many batches they read
    warmup: int = 200
    tokens_per_step: int = 16384

    def __post_init__(self) -> None:
        one_of("stitch.kind", self.kind, (*TRAINED, *CLOSED, "identity"))
        one_of("stitch.init", self.init, ("identity", "least_squares", "procrustes", "reduced_rank"))
        one_of("stitch.loss", self.loss, ("cross_entropy", "kl", "mse"))
        one_of("stitch.norm", self.norm, ("none", "pre", "post"))
        one_of("stitch.schedule", self.schedule, ("linear", "tuned_lens"))
        if self.kind in CLOSED and self.norm != "none":
            raise ConfigError(f"stitch.norm={self.norm} does not go with stitch={self.kind}, which has no LayerNorm")
        if not self.trained:
            self.warmup = 0
        if self.kind == "identity" and not self.trained:
            self.steps = 0
        elif self.steps <= 0:
            raise ConfigError(
                f"stitch.steps={self.steps} must be positive; stitch=identity without a norm trains nothing"
            )
        elif not 0 <= self.warmup < self.steps:
            raise ConfigError(f"stitch.warmup={self.warmup} must lie between 0 and stitch.steps={self.steps}")
        if not (math.isfinite(self.lr) and self.lr > 0):
            raise ConfigError(f"stitch.lr={self.lr} must be positive and finite")
        if not 0 <= self.momentum < 1:
            raise ConfigError(f"stitch.momentum={self.momentum} must lie in [0, 1)")
        if self.tokens_per_step <= 0:
            raise ConfigError(f"stitch.tokens_per_step={self.tokens_per_step} must be positive")
        if self.rank <= 0 or self.ridge < 0:
            raise ConfigError(f"stitch.rank={self.rank} must be positive and stitch.ridge={self.ridge} not negative")
        if self.init != "identity" and (self.norm != "none" or self.kind == "identity"):
            raise ConfigError(f"stitch.init={self.init} does not go with stitch.norm={self.norm}: it has no LayerNorm")

    @property
    def trained(self) -> bool:
        """Whether there is anything to train; closed forms read `steps` batches, once."""
        return self.kind in TRAINED or (self.kind == "identity" and self.norm != "none")


@dataclass
class PretrainConfig:
    """How task=pretrain trains a mini: AdamW, warm-up and cosine."""

    tokens: int = 0  # how many tokens it sees
    tokens_per_step: int = 2048
    lr: float = 2e-3
    weight_decay: float = 0.1
    warmup: int = 200
    clip: float = 1.0
    vocabulary: int = 1024
    ship: bool = neutral(False)  # also put it where the embedded minis are

    def __post_init__(self) -> None:
        if self.tokens < 0 or self.tokens_per_step <= 0:
            raise ConfigError(f"pretrain.tokens={self.tokens} and pretrain.tokens_per_step must be positive")


@dataclass
class NLIConfig:
    """How task=nli fine-tunes a classifier: AdamW, warm-up and cosine."""

    index: int = 0  # which of a population; it decides the head's initial weights and the order of the pairs
    epochs: int = 3
    pairs_per_step: int = 32
    lr: float = 2e-5
    weight_decay: float = 0.01
    warmup: float = 0.1  # share of the steps
    clip: float = 1.0
    context: int = 128  # tokens of a pair

    def __post_init__(self) -> None:
        for key in ("epochs", "pairs_per_step", "lr", "context"):
            if getattr(self, key) <= 0:
                raise ConfigError(f"nli.{key}={getattr(self, key)} must be positive")
        if not 0 <= self.warmup < 1:
            raise ConfigError(f"nli.warmup={self.warmup} must lie in [0, 1)")


@dataclass
class TrainerConfig:
    """How Lightning runs, and how often it keeps a state to go on from; the device is the target's."""

    precision: str = "32-true"  # bf16-mixed: training runs under autocast; the report never does
    compile: bool = False  # compile the frozen blocks: slow to start, then faster on a GPU
    strategy: str = "auto"  # auto: one process | ddp: each step's rows are shared by `devices` processes
    devices: Optional[int] = None  # ddp: processes per node; null: one for each GPU
    num_nodes: int = 1
    checkpoint_every: int = neutral(50)  # steps
    threads: Optional[int] = neutral(None)  # torch's; null: as it is

    def __post_init__(self) -> None:
        one_of("trainer.precision", self.precision, ("32-true", "bf16-mixed"))
        one_of("trainer.strategy", self.strategy, ("auto", "ddp"))
        if self.strategy == "auto" and (self.devices or 1, self.num_nodes) != (1, 1):
            raise ConfigError("trainer.devices and trainer.num_nodes are for several processes; add trainer=ddp")


@dataclass
class LoggerConfig:
    """Where curves go."""

    kind: str = "csv"
    project: str = "thinkalike"
    entity: Optional[str] = None
    group: Optional[str] = None

    def __post_init__(self) -> None:
        one_of("logger.kind", self.kind, ("none", "csv", "wandb"))
