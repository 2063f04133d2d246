"""How stitches, minis and classifiers are trained, on what devices, and where curves go; checks of these values."""

from __future__ import annotations

import importlib.util
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Annotated, Literal

from pydantic import Field

from thinkalike.config.schema import (
    CONTEXT,
    COUNTS,
    SEEDS,
    STEPS,
    TOKENS_AT_ONCE,
    Checked,
    Size,
    bytes_of,
    not_in_key,
    ranged,
)
from thinkalike.errors import ConfigError, one_of
from thinkalike.plugins import is_plugin, load

TRAINED = ("linear", "affine", "low_rank", "orthogonal")
CLOSED = ("least_squares", "procrustes", "reduced_rank", "bias")
Init = Literal["auto", "identity", "least_squares", "procrustes", "reduced_rank"]
STARTS = {"orthogonal": "procrustes", "low_rank": "reduced_rank"}  # of stitch.init=auto; else least_squares
Keep = Annotated[str, Field(pattern=r"^(log2|every=[1-9]\d{0,6})$")] | list[Annotated[int, Field(ge=0, strict=True)]]
RATES, WHITENED_RATE = {"sgd": 1.0, "adam": 0.18}, 10.0  # stitch.lr where none is given


@dataclass
class StitchConfig(Checked, part="stitch"):
    """The map φ and its training."""

    kind: str = "linear"  # of φ: trained, a closed form, or the identity
    norm: Literal["none", "pre", "post"] = "none"  # where φ has a LayerNorm
    rank: int = ranged(16, least=1, most=10**6)  # of low_rank and reduced_rank
    init: Init = "identity"  # where training starts; auto: at the closed form of the kind
    ridge: float = ranged(0.0, least=0)  # of the closed forms least_squares and reduced_rank
    # cross_entropy: of the next token | kl: to the target's output | mse: to its state |
    # penultimate: ‖s - t‖² / ‖t‖² to its state after the last block | alignment: the mean of that from the site on
    loss: Literal["cross_entropy", "kl", "mse", "penultimate", "alignment"] = "cross_entropy"
    controls: bool = False  # report closed forms, shuffled and random sources beside φ
    floor: bool = True  # also fit the target to itself, by the same recipe, where the identity is not the optimum
    both: bool = False  # also fit the target to the source
    optimizer: str = "sgd"  # sgd: with Nesterov momentum, as in brown2023 | adam: with decoupled decay
    whiten: bool = False  # steps of sgd in coordinates of unit variance of the source's states; of linear and affine
    lr: float | None = ranged(None, above=0, most=1e37)  # peak, for adam times √width; null: 1 for sgd, 10 for sgd in
    # whitened coordinates, 0.18 for adam
    lr_multiples: list[float] = ranged(list, above=0, most=1e6)  # of further rates, tried in the same pass
    seeds: int = ranged(1, least=1, most=1000)  # fits whose order of the text differs; the table is of their mean
    momentum: float = ranged(0.9, least=0, below=1)  # of sgd
    scale_lr_by_momentum: bool = True  # the rate that sgd gets is lr * (1 - momentum)
    weight_decay: float = ranged(1e-3, least=0)  # pulls φ to where it begins; that of a plugin to zero
    clip: float = ranged(1.0, least=0)  # gradient norm per stitch; 0: none
    schedule: Literal["linear", "cosine", "average", "tuned_lens"] = (
        "linear"  # of the rate; average: it stays, and φ is
    )
    # the mean over the last half of the steps
    steps: int = ranged(2000, least=0, most=STEPS)  # of training; of closed forms: batches that they read
    warmup: int = ranged(200, least=0, most=STEPS)  # steps in which the rate rises
    tokens_per_step: int = ranged(16384, least=2, most=TOKENS_AT_ONCE)  # target tokens that a step reads

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.is_plugin:
            one_of("stitch.kind", self.kind, (*TRAINED, *CLOSED, "identity"))
        if not is_plugin(self.optimizer):
            one_of("stitch.optimizer", self.optimizer, RATES)
        if self.kind in CLOSED and self.norm != "none":
            raise ConfigError(f"stitch.norm={self.norm} does not go with stitch={self.kind}, which has no LayerNorm")
        has_no_closed_form = self.norm != "none" or self.kind == "identity" or self.is_plugin
        if self.init == "auto":
            start = STARTS.get(self.kind, "least_squares")
            self.init = "identity" if has_no_closed_form else start  # type: ignore[assignment]
        elif self.init != "identity" and has_no_closed_form:
            raise ConfigError(f"stitch.init={self.init} does not go with stitch={self.kind} and norm={self.norm}")
        plain = self.norm == "none" and self.kind in TRAINED
        self.whiten &= plain and self.kind in ("linear", "affine") and self.optimizer == "sgd"
        self.floor &= not plain or self.loss == "cross_entropy"  # else it is 0, at the identity
        if not self.trained:
            self.warmup = 0
        if self.kind == "identity" and not self.trained:
            self.steps = 0
        elif self.warmup >= self.steps:
            raise ConfigError(f"stitch.warmup={self.warmup} must be less than stitch.steps={self.steps}")

    @property
    def peak(self) -> float:
        """Return `lr`, or the default of the optimiser where it is null."""
        if self.lr is not None:
            return self.lr
        if is_plugin(self.optimizer):
            return float(load(self.optimizer).lr)
        return WHITENED_RATE if self.whiten else RATES[self.optimizer]

    @property
    def is_plugin(self) -> bool:
        """Whether the map is one of a plugin."""
        return is_plugin(self.kind)

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
    keep: Keep = field(default_factory=list)  # checkpoints after these steps: [0,1,2,4] | log2 | every=N; [] none
    ship: bool = not_in_key(False)  # also put it where the embedded minis are

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.tokens and any(step > self.steps for step in self.kept):
            raise ConfigError(f"pretrain.keep={self.keep} names a step after the last one, which is {self.steps}")

    @property
    def steps(self) -> int:
        """The steps of training."""
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
    head_lr: float | None = ranged(None, above=0)  # of the new classes; null: lr
    head_std: float | None = ranged(None, above=0)  # of their weights; null: the model's initializer_range
    freeze: int = ranged(0, least=0, most=10**4)  # blocks that are not trained, with the embeddings; 0: all is trained
    redraw: int | None = ranged(None, least=0, most=10**4)  # the first block drawn anew, with all later ones
    ship: str | None = not_in_key(None)  # also put the body, without its classes, among the minis, by this name


@dataclass
class TrainerConfig(Checked, part="trainer"):
    """How Lightning runs, and how often it keeps a state to go on from; the device is the target's."""

    precision: Literal["32-true", "bf16-mixed"] = "32-true"  # the report never runs under autocast
    matmul: Literal["highest", "high", "medium"] = "highest"  # of float32 products in training
    compile: bool = False  # compile the frozen blocks: slow to start, then faster on a GPU
    strategy: Literal["auto", "ddp"] = "auto"  # ddp: `devices` processes share the rows of a step
    devices: int | None = ranged(None, least=1, most=10**4)  # ddp: processes per node; null: one for each GPU
    num_nodes: int = ranged(1, least=1, most=10**5)  # ddp: machines that share a job
    checkpoint_every: int = ranged(50, least=1, most=STEPS, in_key=False)  # steps; then a state is kept
    log_every: int = ranged(10, least=1, most=STEPS, in_key=False)  # steps; then losses are read, checked and logged
    memory: Size | None = not_in_key(
        None
    )  # task=stitch: the most of a process, such as 8GB; null: what is free now, and
    # 2 GiB for states on a CPU outside of training
    callbacks: list[str] = field(default_factory=list)  # of plugins, in this order
    recompute: bool = not_in_key(False)  # task=stitch: keep no states inside the frozen blocks: less memory, more time

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.strategy == "auto" and (self.devices or 1, self.num_nodes) != (1, 1):
            raise ConfigError("trainer.devices and trainer.num_nodes are for several processes; add trainer=ddp")

    @property
    def memory_bytes(self) -> float | None:
        """The most memory of a process, in bytes; None: what is free."""
        return None if self.memory is None else bytes_of(self.memory)


@dataclass
class LoggerConfig(Checked, part="logger"):
    """Where curves go, and what else is known of a job: none, csv, wandb or tensorboard."""

    kind: Literal["none", "csv", "wandb", "tensorboard"] = "csv"  # csv: curves beside the result
    project: str = "thinkalike"  # of W&B
    entity: str | None = None  # of W&B: user or team; null: the default of the key
    group: str | None = None  # of W&B; null: the sweep, if the job belongs to one

    def check_package(self) -> None:
        """Raise a ConfigError if the package that writes there is missing."""
        if self.kind == "tensorboard" and importlib.util.find_spec("tensorboard") is None:
            raise ConfigError("logger=tensorboard needs a package: pip install tensorboard")


Start = Literal["random", "least_squares", "transferred"]
WIDEST = 10**7
LOOKS = 13  # at the report, after the one at the start


@dataclass
class SAEConfig(Checked, part="sae"):
    """A sparse autoencoder of one site, and its training: Adam at a constant rate."""

    layer: int = ranged(0, least=0, most=10**4)  # the site: the residual stream after this block
    width: int = ranged(256, least=1, most=WIDEST)  # latents
    activation: Literal["topk", "relu"] = "topk"
    k: int = ranged(8, least=1, most=WIDEST)  # of topk: latents that are active at once
    sparsity: float = ranged(0.1, least=0)  # of relu: weight of Σ z ‖direction‖ / d in the loss
    start: Start = "random"  # least_squares: with a fitted decoder | transferred: from the SAE of another model
    source: str | None = None  # transferred: a result of task=sae, or a model whose SAE is trained by this recipe
    source_layer: int | None = ranged(None, least=0, most=10**4)  # of a source that is a model; null: layer
    stitch: str | None = None  # transferred: a result of task=stitch in both directions; null: maps are fitted
    map_tokens: int = ranged(4096, least=2, most=COUNTS)  # that maps and a decoder are fitted on, and states scaled by
    beside: list[Start] = field(default_factory=list)  # other starts that are trained in the same pass
    tokens: int = ranged(327680, least=0, most=COUNTS)  # that the model reads for training; 0: the start as it is
    tokens_per_step: int = ranged(256, least=1, most=TOKENS_AT_ONCE)  # tokens that a step reads
    steps_per_buffer: int = ranged(16, least=1, most=STEPS)  # whose states are shuffled among each other
    lr: float = ranged(4e-3, above=0)  # of states of variance 1; a source that is a model has this rate alone
    lr_multiples: list[float] = ranged(list, above=0, most=1e6)  # of further rates, tried in the same pass
    seeds: int = ranged(1, least=1, most=1000)  # of the start, and of the order of states
    dead_after: int = ranged(4096, least=0, most=COUNTS)  # states; topk gives such latents a gradient; 0: it does not
    skip_first_tokens: int = ranged(1, least=0, most=10**6)  # of each row: attention rests there, on outsized states
    curve_tokens: int = ranged(8192, least=2, most=COUNTS)  # of the report that is looked at during training

    def __post_init__(self) -> None:
        super().__post_init__()
        if 0 < self.tokens < self.buffer:
            raise ConfigError(f"sae.tokens={self.tokens} must be at least sae.tokens_per_step × sae.steps_per_buffer")
        if "transferred" in self.starts and self.source is None:
            raise ConfigError("sae.start=transferred needs sae.source=<a result of task=sae, or a model>")

    @property
    def unused(self) -> Collection[str]:
        return () if "transferred" in self.starts else {"source", "source_layer", "stitch"}

    @property
    def starts(self) -> list[str]:
        """All starts, that of the result first."""
        return list(dict.fromkeys([self.start, *self.beside]))

    @property
    def factors(self) -> list[float]:
        """All multiples of the rate, 1 first."""
        return list(dict.fromkeys([1.0, *self.lr_multiples]))

    @property
    def active(self) -> int | None:
        """How many latents are active at once; None: a ReLU."""
        return self.k if self.activation == "topk" else None

    @property
    def revived(self) -> int:
        """How many dead latents get a gradient at once, at most."""
        return min(32, self.width)

    @property
    def buffer(self) -> int:
        """The tokens whose states are shuffled among each other."""
        return self.tokens_per_step * self.steps_per_buffer

    @property
    def steps(self) -> int:
        """The steps of training, of whole buffers."""
        return self.tokens // self.buffer * self.steps_per_buffer

    @property
    def looks(self) -> list[int]:
        """The steps before which the report is looked at: 0, the end, and between them half an octave apart."""
        return sorted({0, *(round(self.steps * 2 ** (-place / 2)) for place in range(LOOKS))})
