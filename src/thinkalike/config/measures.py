"""What analyze.py can be told of a measure, and of the stimuli that some of them look at."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Optional

from thinkalike.errors import ConfigError, one_of


# ruff: noqa: UP045
@dataclass
class MeasureConfig:
    """What analyze.py measures: loss and asymmetry have no settings of their own."""

    kind: str = "loss"

    def __post_init__(self) -> None:
        one_of("measure.kind", self.kind, ("loss", "asymmetry", "cka", "mlem", "rsa", "population"))


@dataclass
class CKAConfig(MeasureConfig):
    """CKA of layer pairs."""

    kind: str = "cka"
    batches: int = 64
    tokens_per_batch: int = 1024  # words, where the models' tokenizers differ
    level: str = "auto"  # token | word; auto: words where the tokenizers differ
    embed: bool = False  # also the site before block 0
    estimator: str = "unbiased"  # of HSIC: unbiased | biased
    aggregate: str = "ratio_of_means"  # over batches; mean_of_ratios, as brown2023 prints it
    kernel: str = "linear"  # linear | rbf, with the median distance as bandwidth
    flatten: str = "token"  # what a row is: token | sample | mean (over the tokens of a row of text)
    skip_first_tokens: int = 0  # of every row of text; the first is often massive
    skip_special_tokens: bool = False
    null: bool = False  # beside each value that of permuted rows
    stop_at_width: Optional[float] = None  # stop when every interval is narrower

    def __post_init__(self) -> None:
        super().__post_init__()
        one_of("measure.level", self.level, ("auto", "token", "word"))
        one_of("measure.estimator", self.estimator, ("unbiased", "biased"))
        one_of("measure.aggregate", self.aggregate, ("ratio_of_means", "mean_of_ratios"))
        one_of("measure.kernel", self.kernel, ("linear", "rbf"))
        one_of("measure.flatten", self.flatten, ("token", "sample", "mean"))
        for key in ("batches", "tokens_per_batch"):
            if getattr(self, key) <= 0:
                raise ConfigError(f"measure.{key}={getattr(self, key)} must be positive")
        if self.skip_first_tokens < 0:
            raise ConfigError(f"measure.skip_first_tokens={self.skip_first_tokens} must not be negative")


@dataclass
class RSAConfig(MeasureConfig):
    """Representational similarity analysis of the states of stimuli."""

    kind: str = "rsa"
    distance: str = "euclidean"  # euclidean | cosine | manhattan | norm_difference
    embed: bool = False  # also the site before block 0
    permutations: int = 0  # of Mantel's test; 0: no p-values

    def __post_init__(self) -> None:
        super().__post_init__()
        one_of("measure.distance", self.distance, ("euclidean", "cosine", "manhattan", "norm_difference"))
        if self.permutations < 0:
            raise ConfigError(f"measure.permutations={self.permutations} must not be negative")


@dataclass
class MLEMConfig(RSAConfig):
    """A metric-learning encoding model of every layer, and the importance of the features in it."""

    kind: str = "mlem"
    weights: str = "diagonal"  # diagonal | full, with an interaction of every two features
    alphas: list[float] = field(default_factory=lambda: [10.0**power for power in range(-4, 5)])
    difference: str = "indicator"  # indicator, as salle2024 has it | scaled, of numeric and ordinal features
    missing: str = "own_level"  # NaN is a value of its own | ignore | drop | error
    scale: str = "minmax"  # of the squared distances, over the training pairs; none
    folds: int = 5  # outer and inner
    together: str = "sentence"  # what a fold keeps together: sentence | stimulus
    permutations: int = 5  # of each feature, on each fold
    given: Optional[str] = None  # a feature within whose levels the others are permuted
    interactions: list[list[str]] = field(default_factory=list)  # pairs of features that are also permuted together
    null: int = 0  # how often each feature is made irrelevant, for p-values

    def __post_init__(self) -> None:
        super().__post_init__()
        one_of("measure.weights", self.weights, ("diagonal", "full"))
        one_of("measure.difference", self.difference, ("indicator", "scaled"))
        one_of("measure.missing", self.missing, ("own_level", "ignore", "drop", "error"))
        one_of("measure.scale", self.scale, ("minmax", "none"))
        one_of("measure.together", self.together, ("sentence", "stimulus"))
        for key, least in (("folds", 2), ("permutations", 1), ("null", 0)):
            if getattr(self, key) < least:
                raise ConfigError(f"measure.{key}={getattr(self, key)} must be at least {least}")
        if not self.alphas or min(self.alphas) < 0:
            raise ConfigError(f"measure.alphas={self.alphas} must be at least one number, none of them negative")
        for pair in self.interactions:
            if len(pair) != 2:
                raise ConfigError(f"measure.interactions holds pairs of features, not {pair}")


@dataclass
class PopulationMeasureConfig(MeasureConfig):
    """Identity stitching and CKA of all pairs of a population."""

    kind: str = "population"
    side: str = "report"  # of the pairs: report | challenge
    site: str = "resid_post"  # of CKA: resid_post | update, what a block adds last, as brown2023 had it
    include_padding: bool = False  # in CKA, as brown2023 did
    tokens_per_batch: int = 1024  # of CKA
    at_once: int = 4  # sources that run through a target's blocks together

    def __post_init__(self) -> None:
        super().__post_init__()
        one_of("measure.side", self.side, ("report", "challenge"))
        one_of("measure.site", self.site, ("resid_post", "update"))
        for key in ("tokens_per_batch", "at_once"):
            if getattr(self, key) <= 0:
                raise ConfigError(f"measure.{key}={getattr(self, key)} must be positive")


@dataclass
class StimuliConfig:
    """What states and features are of: words of controlled sentences, or the user's own."""

    kind: str = "controlled"  # controlled: of a grammar | table: .csv .tsv .parquet | conllu
    sentences: int = 400  # kind=controlled: how many
    grammar: str = "small"  # kind=controlled: small | large
    path: Optional[str] = None  # kind=table, conllu: the file
    features: Optional[list[str]] = None  # null: all
    kinds: Any = None  # {feature: nominal | ordinal | numeric | [its levels in order]}
    columns: Any = None  # kind=table: {text | word | start | stop | id: column}
    sample: Optional[int] = None  # how many stimuli; null: all
    balance: list[str] = field(default_factory=list)  # features whose combinations come equally often in the sample
    seed: int = 0

    def __post_init__(self) -> None:
        one_of("stimuli.kind", self.kind, ("controlled", "table", "conllu"))
        if self.kind != "controlled" and not self.path:
            raise ConfigError(f"stimuli={self.kind} needs stimuli.path=FILE")
        for key in ("kinds", "columns"):
            if not isinstance(getattr(self, key) or {}, dict):
                raise ConfigError(f"stimuli.{key}={getattr(self, key)} must be of the form {{name: value, ...}}")
        if self.balance and not self.sample:
            raise ConfigError("stimuli.balance needs stimuli.sample=N: how many stimuli")
