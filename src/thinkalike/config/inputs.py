"""What jobs read: models, text, stimuli, pairs of sentences, populations; and the checks of their values."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Optional

from omegaconf import MISSING

from thinkalike.config.relevance import neutral
from thinkalike.errors import ConfigError, one_of

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
    path: Optional[str] = neutral(None)  # a folder with a checkpoint; takes the place of hub_id
    processing: str = "raw"  # raw: the checkpoint's weights; compat: LayerNorms folded, weights centred
    dtype: str = "float32"
    device: str = neutral("auto")
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
    files: Optional[list[str]] = neutral(None)  # source=text: files or globs; .txt .jsonl .jsonl.gz .jsonl.zst .parquet
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
    cache: Optional[str] = neutral(None)  # folder of the token cache; null: $THINKALIKE_CACHE or ~/.cache/thinkalike

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
class StimuliConfig:
    """What states and features are of: words of controlled sentences, or the user's own."""

    kind: str = "controlled"  # controlled: of a grammar | table: .csv .tsv .parquet | conllu
    sentences: int = 400  # kind=controlled: how many
    grammar: str = "small"  # kind=controlled: small | large
    path: Optional[str] = neutral(None)  # kind=table, conllu: the file
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


@dataclass
class PairsConfig:
    """Pairs of a premise and a hypothesis: to fit on, to report on, and a challenge."""

    source: str = "templates"  # templates: made offline | hub: MNLI and HANS | files
    fit: Optional[str] = neutral(None)  # source=files: MNLI to fine-tune on, .jsonl .tsv .txt .parquet
    report: Optional[str] = neutral(None)  # source=files: MNLI that is reported on
    challenge: Optional[str] = neutral(None)  # source=files: HANS
    fit_pairs: Optional[int] = 4000  # how many of each; null: all that there are
    report_pairs: Optional[int] = 1000
    challenge_pairs: Optional[int] = 6000
    heuristic: Optional[str] = "lexical_overlap"  # which part of the challenge is reported on; null: all
    label: Optional[str] = "non-entailment"
    counterexamples: float = 0.02  # source=templates: share of training pairs against the heuristics
    truncate: bool = True  # cut pairs that are longer than the model can take; false refuses them
    seed: int = 0

    def __post_init__(self) -> None:
        one_of("pairs.source", self.source, ("templates", "hub", "files"))
        for key in ("fit_pairs", "report_pairs", "challenge_pairs"):
            value = getattr(self, key)
            if value is not None and value <= 0:
                raise ConfigError(f"pairs.{key}={value} must be positive")
            if value is None and self.source == "templates":
                raise ConfigError(f"pairs.{key} must be a number: templates give as many pairs as are asked for")


@dataclass
class PopulationConfig:
    """Classifiers of one architecture, in two groups."""

    name: str = "bert-mini"
    base: Optional[str] = None  # the model that task=nli fine-tunes `size` times, where they are not there yet
    members: Optional[str] = None  # or the model of which they are numbers; local: they are folders
    size: int = 20
    per_group: int = 6  # where groups are not named: the most and the least accurate on the challenge
    generalizing: Optional[list[Any]] = None
    heuristic: Optional[list[Any]] = None
    published: Optional[dict[str, list[float]]] = None  # accuracies of the members by number: heldout, challenge
    cluster: Optional[list[Any]] = None  # a published grouping: these against all others

    def __post_init__(self) -> None:
        if self.published and not (self.generalizing or self.heuristic):
            accuracies = self.published["challenge"]
            ranked = sorted(range(len(accuracies)), key=lambda number: -accuracies[number])
            self.generalizing, self.heuristic = ranked[: self.per_group], ranked[: -self.per_group - 1 : -1]
        for key in ("generalizing", "heuristic"):
            group = getattr(self, key)
            if self.members and (group is None or len(group) < 2):
                raise ConfigError(f"population.{key}={group} needs at least two models of {self.members}")
        if self.base and not 2 <= self.per_group <= self.size // 2:
            raise ConfigError(
                f"population.per_group={self.per_group} must lie between 2 and half of population.size={self.size}"
            )
