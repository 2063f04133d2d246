"""What can be configured, and the checks of its values: plain dataclasses, which Hydra fills and code can, too."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass, field
from typing import Any, Optional

from omegaconf import MISSING

from thinkalike.config.inference import NLIConfig, PairsConfig, PopulationConfig
from thinkalike.config.measures import MeasureConfig, StimuliConfig
from thinkalike.errors import ConfigError, one_of

TRAINED = ("linear", "affine", "low_rank", "orthogonal")
CLOSED = ("least_squares", "procrustes", "reduced_rank", "bias")
DTYPES = ("float32", "bfloat16", "float16", "float64")


# Hydra reads these annotations at run time and knows Optional[...], not the `X | None` of the rest of the code.
# ruff: noqa: UP045
@dataclass
class ModelConfig:
    """A model by its everyday name: where its weights are, and how to run it."""

    name: str = MISSING
    family: str = "auto"  # which residual stream it has; auto: from the checkpoint's config.json
    hub_id: Optional[str] = None
    revision: Optional[str] = None  # branch, tag or commit of the hub; null: main
    path: Optional[str] = None  # a folder with a checkpoint; takes the place of hub_id
    processing: str = "raw"  # raw: the checkpoint's weights; compat: LayerNorms folded, weights centred
    dtype: str = "float32"
    device: str = "auto"
    corpus: str = "stdlib"  # the data that `data=auto` stands for
    bos: bool = False  # rows begin with the beginning-of-sequence token
    context: Optional[int] = None  # tokens per row; null: what the model can take, at most 1024
    mini: bool = False  # trained by this project and shipped inside it
    cls_sep: bool = False  # task=pretrain: the tokenizer puts [CLS] before a text and [SEP] after it
    index: int = 0  # which of a numbered population
    classes: Optional[list[str]] = None  # of a classifier, in the order of its logits; null: as config.json has them
    architecture: dict[str, Any] = field(default_factory=dict)  # what task=pretrain builds
    seed: int = 0  # of the initial weights and of the order of the training data
    pretrain_tokens: int = 0
    pretrain_tokens_per_step: int = 2048
    pretrain_lr: float = 2e-3
    pretrain_vocabulary: int = 1024

    def __post_init__(self) -> None:
        one_of("model.processing", self.processing, ("raw", "compat"))
        one_of("model.dtype", self.dtype, DTYPES)
        if self.name == "local" and not self.path:
            raise ConfigError("model=local needs model.path=<folder with a Hugging Face checkpoint>")


@dataclass
class DataConfig:
    """Text, and how it becomes rows of tokens."""

    name: str = MISSING
    source: Optional[str] = None  # stdlib | grammar | text | hub
    files: Optional[list[str]] = None  # source=text: files or globs; .txt .jsonl .jsonl.gz .jsonl.zst .parquet
    sentences: Optional[int] = None  # source=grammar: how many
    hub_id: Optional[str] = None
    subset: Optional[str] = None
    split: Optional[str] = None
    revision: Optional[str] = None
    hub_files: Optional[list[str]] = None  # files of a hub data set that has no loading configuration
    field: Optional[str] = None  # the field that holds the text
    context: Optional[int] = None  # tokens per row; null: the models'
    bos: Optional[bool] = None  # begin each row with BOS; null: what the source model expects
    aligned: Optional[bool] = None  # begin each row with a document; what is left of the one before is dropped
    fit_tokens: Optional[int] = None  # null: as many as training sees
    report_tokens: Optional[int] = None
    report_share: Optional[float] = None  # share of the documents that only the report sees
    same_split: Optional[bool] = None  # fit on the report's documents, too, as brown2023 did
    cache: Optional[str] = None  # folder of the token cache; null: $THINKALIKE_CACHE or ~/.cache/thinkalike

    def __post_init__(self) -> None:
        if self.source is not None:
            one_of("data.source", self.source, ("stdlib", "grammar", "text", "hub"))
        if self.source == "text" and not self.files:
            raise ConfigError("data=text needs data.files=[...]: files or globs of .txt, .jsonl[.gz|.zst] or .parquet")
        for key in ("sentences", "context", "fit_tokens", "report_tokens"):
            value = getattr(self, key)
            if value is not None and value <= 0:
                raise ConfigError(f"data.{key}={value} must be positive")
        if self.report_share is not None and not 0 < self.report_share < 1:
            raise ConfigError(f"data.report_share={self.report_share} must lie between 0 and 1")


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
    ship: bool = False  # also put it where the embedded minis are

    def __post_init__(self) -> None:
        if self.tokens < 0 or self.tokens_per_step <= 0:
            raise ConfigError(f"pretrain.tokens={self.tokens} and pretrain.tokens_per_step must be positive")


@dataclass
class TrainerConfig:
    """How Lightning runs, and how often it keeps a state to go on from; the device is the target's."""

    precision: str = "32-true"  # bf16-mixed: training runs under autocast; the report never does
    compile: bool = False  # compile the frozen blocks: slow to start, then faster on a GPU
    strategy: str = "auto"  # auto: one process | ddp: each step's rows are shared by `devices` processes
    devices: Optional[int] = None  # ddp: processes per node; null: one for each GPU
    num_nodes: int = 1
    checkpoint_every: int = 50  # steps
    threads: Optional[int] = None  # torch's; null: as it is

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


@dataclass
class TrainConfig:
    """All that `train.py` needs to know."""

    task: str = "stitch"
    model: ModelConfig = field(default_factory=ModelConfig)
    target: ModelConfig = field(default_factory=ModelConfig)
    layers: Any = "same"  # same: l to l for every l; or pairs, [[0,0],[1,2]]
    data: DataConfig = field(default_factory=DataConfig)
    stitch: StitchConfig = field(default_factory=StitchConfig)
    pretrain: PretrainConfig = field(default_factory=PretrainConfig)
    nli: NLIConfig = field(default_factory=NLIConfig)
    pairs: PairsConfig = field(default_factory=PairsConfig)  # of task=nli
    scale: str = "auto"  # size of the recipe: mini | paper; auto: mini for minis
    recipe: str = "honest"  # paper: as brown2023 states it, a LayerNorm in φ, fitted and reported on the same text
    trainer: TrainerConfig = field(default_factory=TrainerConfig)
    logger: LoggerConfig = field(default_factory=LoggerConfig)
    seed: int = 0
    store: str = "results"
    force: bool = False

    def __post_init__(self) -> None:
        one_of("task", self.task, ("stitch", "pretrain", "nli"))
        one_of("scale", self.scale, ("auto", "mini", "paper"))
        one_of("recipe", self.recipe, ("honest", "paper"))


@dataclass
class AnalyzeConfig:
    """All that `analyze.py` needs to know."""

    measure: MeasureConfig = field(default_factory=MeasureConfig)
    stimuli: StimuliConfig = field(default_factory=StimuliConfig)  # of measures that look at words
    pairs: PairsConfig = field(default_factory=PairsConfig)  # of experiments on classifiers
    population: PopulationConfig = field(default_factory=PopulationConfig)
    activations: Optional[str] = None  # .npz or .safetensors with states of the stimuli; takes the place of model
    experiment: Optional[str] = None  # a paper's figure or table; takes the place of measure
    recipe: str = "honest"  # of an experiment's training: honest | paper
    threads: Optional[int] = None
    model: ModelConfig = field(default_factory=ModelConfig)
    target: ModelConfig = field(default_factory=ModelConfig)  # of measures that compare two
    data: DataConfig = field(default_factory=DataConfig)
    scale: str = "auto"
    seed: int = 0
    store: str = "results"
    force: bool = False

    def __post_init__(self) -> None:
        one_of("recipe", self.recipe, ("honest", "paper"))
        one_of("scale", self.scale, ("auto", "mini", "paper"))


def as_dict(config: Any) -> dict[str, Any]:
    """A configuration dataclass as plain nested dictionaries."""
    return dataclasses.asdict(config)
