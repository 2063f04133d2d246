"""What can be configured, and its checks: dataclasses that Hydra fills, and the decorator that makes a script a door.

Configuration ends here. A door composes `conf/` with the command line, gets one of the dataclasses below, and nothing
under this module imports hydra or omegaconf.
"""

from __future__ import annotations

import dataclasses
import functools
import logging
import math
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Optional, TypeVar

from hydra.core.config_store import ConfigStore
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import ChoiceSweep
from hydra.errors import HydraException
from omegaconf import MISSING, DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from thinkalike.errors import ConfigError, ThinkalikeError, nearest, one_of

CONF = Path(__file__).resolve().parents[2] / "conf"

FAMILIES = ("auto", "native", "legacy", "gpt_neox", "gpt2", "mamba", "bert")
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
    index: int = 0  # which of a numbered population
    architecture: dict[str, Any] = field(default_factory=dict)  # what task=pretrain builds
    seed: int = 0  # of the initial weights and of the order of the training data
    pretrain_tokens: int = 0

    def __post_init__(self) -> None:
        one_of("model.family", self.family, FAMILIES)
        one_of("model.processing", self.processing, ("raw", "compat"))
        one_of("model.dtype", self.dtype, DTYPES)
        if self.name == "local" and not self.path:
            raise ConfigError("model=local needs model.path=<folder with a Hugging Face checkpoint>")


@dataclass
class DataConfig:
    """Text, and how it becomes rows of tokens."""

    name: str = MISSING
    source: Optional[str] = None  # stdlib | text | hub
    files: Optional[list[str]] = None  # source=text: files or globs; .txt .jsonl .jsonl.gz .jsonl.zst .parquet
    hub_id: Optional[str] = None
    subset: Optional[str] = None
    split: Optional[str] = None
    revision: Optional[str] = None
    hub_files: Optional[list[str]] = None  # files of a hub data set that has no loading configuration
    field: Optional[str] = None  # the field that holds the text
    context: Optional[int] = None  # tokens per row; null: the models'
    bos: Optional[bool] = None  # begin each row with BOS; null: what the source model expects
    fit_tokens: Optional[int] = None  # null: as many as training sees
    report_tokens: Optional[int] = None
    report_share: Optional[float] = None  # share of the documents that only the report sees
    cache: Optional[str] = None  # folder of the token cache; null: $THINKALIKE_CACHE or ~/.cache/thinkalike

    def __post_init__(self) -> None:
        if self.source is not None:
            one_of("data.source", self.source, ("stdlib", "text", "hub"))
        if self.source == "text" and not self.files:
            raise ConfigError("data=text needs data.files=[...]: files or globs of .txt, .jsonl[.gz|.zst] or .parquet")
        for key in ("context", "fit_tokens", "report_tokens"):
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
    lr: float = 1.0
    momentum: float = 0.9
    scale_lr_by_momentum: bool = True  # the rate that SGD gets is lr * (1 - momentum)
    weight_decay: float = 1e-3  # pulls φ to the identity where the widths match
    clip: float = 1.0  # gradient norm per stitch; 0: none
    schedule: str = "linear"  # linear | tuned_lens
    steps: int = 2000
    warmup: int = 200
    tokens_per_step: int = 16384

    def __post_init__(self) -> None:
        one_of("stitch.kind", self.kind, ("identity", "linear", "affine"))
        one_of("stitch.norm", self.norm, ("none", "pre", "post"))
        one_of("stitch.schedule", self.schedule, ("linear", "tuned_lens"))
        if self.kind == "identity":
            if self.norm != "none":
                raise ConfigError(f"stitch.norm={self.norm} does not go with stitch=identity, which has no LayerNorm")
            self.steps = self.warmup = 0
        elif self.steps <= 0:
            raise ConfigError(f"stitch.steps={self.steps} must be positive; stitch=identity trains nothing")
        elif not 0 <= self.warmup < self.steps:
            raise ConfigError(f"stitch.warmup={self.warmup} must lie between 0 and stitch.steps={self.steps}")
        if not (math.isfinite(self.lr) and self.lr > 0):
            raise ConfigError(f"stitch.lr={self.lr} must be positive and finite")
        if not 0 <= self.momentum < 1:
            raise ConfigError(f"stitch.momentum={self.momentum} must lie in [0, 1)")
        if self.tokens_per_step <= 0:
            raise ConfigError(f"stitch.tokens_per_step={self.tokens_per_step} must be positive")


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

    precision: str = "32-true"
    checkpoint_every: int = 50  # steps
    threads: Optional[int] = None  # torch's; null: as it is


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
    scale: str = "auto"  # size of the recipe: mini | paper; auto: mini for minis
    trainer: TrainerConfig = field(default_factory=TrainerConfig)
    logger: LoggerConfig = field(default_factory=LoggerConfig)
    seed: int = 0
    store: str = "results"
    force: bool = False

    def __post_init__(self) -> None:
        one_of("task", self.task, ("stitch", "pretrain"))


@dataclass
class AnalyzeConfig:
    """All that `analyze.py` needs to know."""

    measure: str = "loss"
    model: ModelConfig = field(default_factory=ModelConfig)
    data: DataConfig = field(default_factory=DataConfig)
    scale: str = "auto"
    seed: int = 0
    store: str = "results"
    force: bool = False

    def __post_init__(self) -> None:
        one_of("measure", self.measure, ("loss",))


Config = TypeVar("Config", TrainConfig, AnalyzeConfig)
SCHEMAS: dict[str, type] = {"train": TrainConfig, "analyze": AnalyzeConfig}
GROUPS: dict[str, type] = {
    "model": ModelConfig,
    "data": DataConfig,
    "stitch": StitchConfig,
    "trainer": TrainerConfig,
    "logger": LoggerConfig,
}


def register() -> None:
    """Tell Hydra the schemas and the resolver `${at_scale:mini,paper}`, which picks one of two values."""
    store = ConfigStore.instance()
    for name, schema in SCHEMAS.items():
        store.store(name=f"{name}_schema", node=schema)
    for group, schema in GROUPS.items():
        store.store(group=group, name="schema", node=schema)
    OmegaConf.register_new_resolver("at_scale", _at_scale, replace=True)


def _at_scale(mini: Any, paper: Any, *, _root_: DictConfig) -> Any:
    one_of("scale", _root_.scale, ("auto", "mini", "paper"))
    small = _root_.model.mini if _root_.scale == "auto" else _root_.scale == "mini"
    return mini if small else paper


def resolve(composed: DictConfig, schema: type[Config]) -> Config:
    """A composed configuration as its dataclass, with `data=auto` replaced by what suits the model."""
    OmegaConf.set_struct(composed, False)
    if composed.data.name == "auto":
        chosen = {key: value for key, value in composed.data.items_ex(resolve=False) if value is not None}
        corpus = OmegaConf.load(CONF / "data" / f"{composed.model.corpus}.yaml")
        assert isinstance(corpus, DictConfig)
        corpus.pop("defaults", None)
        composed.data = OmegaConf.merge(composed.data, chosen, corpus)
    return OmegaConf.to_object(OmegaConf.merge(schema, composed))  # type: ignore[return-value]


def as_dict(config: Any) -> dict[str, Any]:
    """A configuration dataclass as plain nested dictionaries."""
    return dataclasses.asdict(config)


def to_yaml(config: dict[str, Any]) -> str:
    """The text of a `config.yaml`."""
    return OmegaConf.to_yaml(OmegaConf.create(config))


def options(group: str) -> list[str]:
    """The names that a configuration group offers: `options("model")`."""
    return sorted(path.stem for path in (CONF / group).glob("*.yaml"))


def check_overrides(overrides: list[str], schema: type) -> None:
    """Refuse misspelt groups, options and keys of a command line with the nearest right one.

    Raises:
        ConfigError: an override names what does not exist, or is no override at all.
    """
    try:
        parsed = OverridesParser.create().parse_overrides(overrides)
    except HydraException as error:
        raise ConfigError(f"cannot read the command line: {str(error).splitlines()[0]}") from None
    for override in parsed:
        key = override.key_or_group
        if override.is_add() or override.is_delete() or key.startswith("hydra"):
            continue
        value = override.value()
        if (CONF / key).is_dir():
            _check_option(key, value.list if isinstance(value, ChoiceSweep) else [value])
        else:
            _check_key(key, schema)


def _check_option(group: str, values: list[Any]) -> None:
    for value in values:
        if isinstance(value, str) and value not in options(group):
            raise ConfigError(f"{group}={value} is not known; {nearest(value, options(group))}")


def _check_key(key: str, schema: Any) -> None:
    parts, walked = key.split("."), ""
    for part in parts:
        if not dataclasses.is_dataclass(schema):
            return  # inside a free dictionary
        fields = {item.name: item for item in dataclasses.fields(schema)}
        if part not in fields:
            raise ConfigError(f"'{key}' is not a setting; {nearest(walked + part, [walked + name for name in fields])}")
        schema, walked = GROUPS.get("model" if part == "target" else part), f"{walked}{part}."
        schema = PretrainConfig if part == "pretrain" else schema


def door(name: str) -> Callable[[Callable[[Any], Any]], Callable[[], None]]:
    """Make a function of a configuration the main function of a script.

    The function gets a checked dataclass and returns the folder of its results, which becomes the last line of stdout.
    An error that a user can act on is one line on stderr and exit status 1.
    """
    schema = SCHEMAS[name]

    def decorate(job: Callable[[Any], Any]) -> Callable[[], None]:
        @functools.wraps(job)
        def task(composed: DictConfig) -> None:
            logging.basicConfig(stream=sys.stderr, level=logging.WARNING, format="%(message)s", force=True)
            logging.getLogger("thinkalike").setLevel(logging.INFO)
            with _one_line_errors():
                print(f"results: {job(resolve(composed, schema))}", flush=True)

        def main() -> None:
            import hydra

            register()
            with _one_line_errors():
                check_overrides([word for word in sys.argv[1:] if "=" in word and not word.startswith("-")], schema)
            hydra.main(version_base="1.3", config_path=str(CONF), config_name=name)(task)()

        return main

    return decorate


class _one_line_errors:
    """Turn an error that a user can act on into one line and exit status 1."""

    def __enter__(self) -> None: ...

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if isinstance(error, (ThinkalikeError, OmegaConfBaseException)) and "THINKALIKE_TRACEBACK" not in os.environ:
            print(f"error: {str(error).splitlines()[0]}", file=sys.stderr, flush=True)
            sys.exit(1)
