"""How stitches, minis and classifiers are trained, on what devices, and where curves go; checks of these values."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass, field
from typing import Optional

from thinkalike import plugins
from thinkalike.config.ranges import (
    CONTEXT,
    COUNTS,
    SEEDS,
    STEPS,
    TOKENS_AT_ONCE,
    Checked,
    bytes_of,
    ranged,
    sized,
)
from thinkalike.config.relevance import neutral
from thinkalike.errors import ConfigError, one_of

TRAINED = ("linear", "affine", "low_rank", "orthogonal")
CLOSED = ("least_squares", "procrustes", "reduced_rank", "bias")
LOSSES = ("cross_entropy", "kl", "mse", "penultimate", "alignment")
STARTS = {"orthogonal": "procrustes", "low_rank": "reduced_rank"}  # of stitch.init=auto; else least_squares
RATES = {"sgd": 1.0, "adam": 0.18}  # stitch.lr where none is given


# ruff: noqa: UP045
@dataclass
class StitchConfig(Checked, part="stitch"):
    """The map φ and its training."""

    kind: str = "linear"  # of φ: trained, a closed form, or the identity
    norm: str = "none"  # where φ has a LayerNorm: none | pre | post
    rank: int = ranged(16, least=1, most=10**6)  # of low_rank and reduced_rank
    init: str = "identity"  # where training starts: identity, a closed form, or auto: the closed form of the kind
    ridge: float = ranged(0.0, least=0)  # of the closed forms least_squares and reduced_rank
    loss: str = "cross_entropy"  # cross_entropy: of the next token | kl: to the target's output | mse: to its state |
    # penultimate: ‖s - t‖² / ‖t‖² to its state after the last block | alignment: the mean of that from the site on
    controls: bool = False  # report closed forms, shuffled and random sources beside φ
    floor: bool = True  # also fit the target to itself, by the same recipe
    both: bool = False  # also fit the target to the source
    optimizer: str = "sgd"  # sgd: with Nesterov momentum, as in brown2023 | adam: with decoupled decay
    lr: Optional[float] = ranged(
        None, above=0, most=1e37
    )  # peak, for adam times √width; null: 1 for sgd, 0.18 for adam
    rates: list[float] = ranged(list, above=0)  # multiples of lr that are tried beside it, in the same pass
    seeds: int = ranged(1, least=1, most=1000)  # fits whose order of the text differs; the table is of their mean
    momentum: float = ranged(0.9, least=0, below=1)  # of sgd
    scale_lr_by_momentum: bool = True  # the rate that sgd gets is lr * (1 - momentum)
    weight_decay: float = ranged(1e-3, least=0)  # pulls φ to where it begins; that of a plugin to zero
    clip: float = ranged(1.0, least=0)  # gradient norm per stitch; 0: none
    schedule: str = "linear"  # of the rate: linear | cosine | tuned_lens
    steps: int = ranged(2000, least=0, most=STEPS)  # of training; of closed forms: batches that they read
    warmup: int = ranged(200, least=0, most=STEPS)  # steps in which the rate rises
    tokens_per_step: int = ranged(16384, least=2, most=TOKENS_AT_ONCE)  # target tokens that a step reads

    def __post_init__(self) -> None:
        super().__post_init__()
        one_of("stitch.kind", self.kind, (*TRAINED, *CLOSED, "identity", *plugins.active("stitch")))
        one_of("stitch.init", self.init, ("auto", "identity", "least_squares", "procrustes", "reduced_rank"))
        one_of("stitch.loss", self.loss, LOSSES)
        one_of("stitch.optimizer", self.optimizer, (*RATES, *plugins.active("optimizer")))
        one_of("stitch.norm", self.norm, ("none", "pre", "post"))
        one_of("stitch.schedule", self.schedule, ("linear", "cosine", "tuned_lens"))
        if self.kind in CLOSED and self.norm != "none":
            raise ConfigError(f"stitch.norm={self.norm} does not go with stitch={self.kind}, which has no LayerNorm")
        if self.is_plugin and self.init not in ("auto", "identity"):
            raise ConfigError(f"stitch.init={self.init} does not go with stitch={self.kind}: it begins as it is made")
        if self.init == "auto":
            plain = self.norm != "none" or self.kind == "identity" or self.is_plugin
            self.init = "identity" if plain else STARTS.get(self.kind, "least_squares")
        if not self.trained:
            self.warmup = 0
        if self.kind == "identity" and not self.trained:
            self.steps = 0
        elif self.steps == 0:
            raise ConfigError(
                f"stitch.steps={self.steps} must be positive; stitch=identity without a norm trains nothing"
            )
        elif self.warmup >= self.steps:
            raise ConfigError(f"stitch.warmup={self.warmup} must be less than stitch.steps={self.steps}")
        if self.init != "identity" and (self.norm != "none" or self.kind == "identity"):
            raise ConfigError(f"stitch.init={self.init} does not go with stitch.norm={self.norm}: it has no LayerNorm")

    @property
    def peak(self) -> float:
        """Return `lr`, or the default of the optimiser where it is null."""
        if self.lr is not None:
            return self.lr
        own = plugins.active("optimizer").get(self.optimizer)
        return float(own.lr) if own else RATES[self.optimizer]

    @property
    def is_plugin(self) -> bool:
        """Whether the map is one of a plugin."""
        return self.kind in plugins.active("stitch")

    @property
    def trained(self) -> bool:
        """Whether there is anything to train; closed forms read `steps` batches, once."""
        return self.kind in TRAINED or self.is_plugin or (self.kind == "identity" and self.norm != "none")


@dataclass
class PretrainConfig(Checked, part="pretrain"):
    """How task=pretrain trains a mini: AdamW, warm-up and cosine."""

    tokens: int = ranged(0, least=0, most=COUNTS)  # how many tokens it sees
    tokens_per_step: int = ranged(2048, least=2, most=TOKENS_AT_ONCE)  # tokens that a step reads
    lr: float = ranged(2e-3, above=0)  # peak
    weight_decay: float = ranged(0.1, least=0)  # of matrices, decoupled
    warmup: int = ranged(200, least=0, most=STEPS)  # steps in which the rate rises
    clip: float = ranged(1.0, least=0)  # gradient norm; 0: none
    vocabulary: int = ranged(1024, least=260, most=10**6)  # the bytes and the special tokens are the least
    ship: bool = neutral(False)  # also put it where the embedded minis are


@dataclass
class NLIConfig(Checked, part="nli"):
    """How task=nli fine-tunes a classifier: AdamW, warm-up and cosine."""

    index: int = ranged(0, least=0, most=SEEDS)  # of a population; it decides head and order
    epochs: int = ranged(3, least=1, most=10**4)  # how often it sees each pair
    pairs_per_step: int = ranged(32, least=1, most=10**6)  # pairs that a step reads
    lr: float = ranged(2e-5, above=0)  # peak
    weight_decay: float = ranged(0.01, least=0)  # decoupled, of all weights
    warmup: float = ranged(0.1, least=0, below=1)  # share of the steps
    clip: float = ranged(1.0, least=0)  # gradient norm; 0: none
    context: int = ranged(128, least=5, most=CONTEXT)  # tokens of a pair: one of each text, and three marks
    head_lr: Optional[float] = ranged(None, above=0)  # of the new classes; null: lr
    head_std: Optional[float] = ranged(None, above=0)  # of their weights; null: the model's initializer_range
    freeze: int = ranged(0, least=0, most=10**4)  # blocks that are not trained, with the embeddings; 0: all is trained
    redraw: Optional[int] = ranged(None, least=0, most=10**4)  # the first block drawn anew, with all later ones
    ship: Optional[str] = neutral(None)  # also put the body, without its classes, among the minis, by this name


@dataclass
class TrainerConfig(Checked, part="trainer"):
    """How Lightning runs, and how often it keeps a state to go on from; the device is the target's."""

    precision: str = "32-true"  # bf16-mixed: training runs under autocast; the report never does
    matmul: str = "highest"  # of float32 products in training: high: TF32 on a GPU | medium: bfloat16; reports: highest
    compile: bool = False  # compile the frozen blocks: slow to start, then faster on a GPU
    strategy: str = "auto"  # auto: one process | ddp: each step's rows are shared by `devices` processes
    devices: Optional[int] = ranged(None, least=1, most=10**4)  # ddp: processes per node; null: one for each GPU
    num_nodes: int = ranged(1, least=1, most=10**5)  # ddp: machines that share a job
    checkpoint_every: int = ranged(50, least=1, most=STEPS, neutral=True)  # steps; then a state is kept
    log_every: int = ranged(10, least=1, most=STEPS, neutral=True)  # steps; then losses are read, checked and logged
    memory: Optional[str] = sized(None)  # task=stitch: the most of a process, such as 8GB; null: what is free now
    callbacks: list[str] = field(default_factory=list)  # of plugins, in this order
    recompute: bool = neutral(False)  # task=stitch: keep no states inside the frozen blocks: less memory, more time

    def __post_init__(self) -> None:
        super().__post_init__()
        one_of("trainer.precision", self.precision, ("32-true", "bf16-mixed"))
        one_of("trainer.matmul", self.matmul, ("highest", "high", "medium"))
        one_of("trainer.strategy", self.strategy, ("auto", "ddp"))
        for name in self.callbacks:
            if not (known := plugins.active("callback")):
                raise ConfigError(
                    f"trainer.callbacks={name} is of no plugin; name the file that has it: plugins=[mine.py]"
                )
            one_of("trainer.callbacks", name, known)
        if self.strategy == "auto" and (self.devices or 1, self.num_nodes) != (1, 1):
            raise ConfigError("trainer.devices and trainer.num_nodes are for several processes; add trainer=ddp")

    @property
    def memory_bytes(self) -> float | None:
        """The most memory of a process, in bytes; None: what is free."""
        return None if self.memory is None else bytes_of("trainer.memory", self.memory)


@dataclass
class LoggerConfig(Checked, part="logger"):
    """Where curves go, and what else is known of a job: none, csv, wandb or tensorboard."""

    kind: str = "csv"  # csv: curves beside the result
    project: str = "thinkalike"  # of W&B
    entity: Optional[str] = None  # of W&B: user or team; null: the default of the key
    group: Optional[str] = None  # of W&B; null: the sweep, if the job belongs to one

    def __post_init__(self) -> None:
        super().__post_init__()
        one_of("logger.kind", self.kind, ("none", "csv", "wandb", "tensorboard"))

    def check_package(self) -> None:
        """Raise a ConfigError if the package that writes there is missing."""
        if self.kind == "tensorboard" and importlib.util.find_spec("tensorboard") is None:
            raise ConfigError("logger=tensorboard needs a package: pip install tensorboard")
