"""What jobs read: models, text, stimuli, pairs of sentences, populations; and the checks of their values."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar, Optional

from omegaconf import MISSING

from thinkalike.config.ranges import (
    CONTEXT,
    COUNTS,
    SEEDS,
    TOKENS_AT_ONCE,
    Checked,
    Range,
    check_range,
    ranged,
)
from thinkalike.config.relevance import neutral
from thinkalike.config.repositories import check_repository
from thinkalike.errors import ConfigError, one_of

DTYPES = ("float32", "bfloat16", "float16", "float64")
MAPS = ("auto", "balanced", "balanced_low_0", "sequential", "cpu", "disk")  # ways to lay out weights
RUNS = ("dtype", "device", "context")  # settings that say how a model runs, and not which
HOW_IT_RUNS = ("dtype", "device", "device_map", "quantization", "context", "processing")  # all of them
WIDEST = 10**6  # of every size of an architecture
HEADS = (("n_heads", "d_model"), ("num_attention_heads", "hidden_size"), ("n_head", "n_embd"))  # by library
SIZES = {size for pair in HEADS for size in pair} | {
    "n_layers", "d_head", "d_mlp", "n_ctx",
    "num_hidden_layers", "intermediate_size", "max_position_embeddings",
    "n_layer", "n_positions", "n_inner", "state_size", "expand", "conv_kernel",
}  # fmt: skip


# Hydra reads these annotations at run time and knows Optional[...], not the `X | None` of the rest of the code.
# ruff: noqa: UP045
@dataclass
class ModelConfig(Checked, part="model"):
    """A model by its everyday name: where its weights are, and how to run it."""

    paths: ClassVar[tuple[str, ...]] = ("path",)

    name: str = MISSING  # what tables and figures call it
    family: str = "auto"  # which residual stream it has; auto: from the checkpoint's config.json
    hub_id: Optional[str] = None  # its repository on the Hugging Face hub, ORG/NAME
    revision: Optional[str] = None  # branch, tag or commit of the hub; null: main
    path: Optional[str] = neutral(None)  # a folder with a checkpoint; takes the place of hub_id
    processing: str = "raw"  # raw: the checkpoint's weights; compat: LayerNorms folded, weights centred
    dtype: str = "float32"  # of weights and states
    device: str = neutral("auto")  # cpu | cuda | cuda:1 | mps; auto: a GPU where there is one
    device_map: Any = neutral(None)  # weights over several devices, by accelerate: auto | {part: device | cpu | disk}
    quantization: Optional[str] = None  # weights in fewer bits, by bitsandbytes: 8bit | 4bit
    side: Optional[str] = None  # of an encoder-decoder: encoder | decoder
    corpus: str = "stdlib"  # the data that `data=auto` stands for
    bos: Optional[bool] = False  # rows begin with BOS; null: if the tokenizer puts it before a text by itself
    context: Optional[int] = ranged(None, least=2, most=CONTEXT)  # tokens of a row; null: what it can take, to 1024
    mini: bool = False  # trained by this project and shipped inside it
    cls_sep: bool = False  # task=pretrain: the tokenizer puts [CLS] before a text and [SEP] after it
    index: int = ranged(0, least=0, most=SEEDS)  # which of a numbered population
    members: Optional[int] = ranged(None, least=1, most=SEEDS, neutral=True)  # how many it has, numbered from 0
    classes: Optional[list[str]] = None  # of a classifier, in the order of its logits; null: as config.json has them
    architecture: dict[str, Any] = field(default_factory=dict)  # what task=pretrain builds
    seed: int = ranged(0, least=0, most=SEEDS)  # of the initial weights and of the order of the training data
    pretrain_tokens: int = ranged(0, least=0, most=COUNTS)  # of a mini: pretrain.tokens where nothing is said
    pretrain_tokens_per_step: int = ranged(2048, least=2, most=TOKENS_AT_ONCE)  # likewise
    pretrain_lr: float = ranged(2e-3, above=0)  # likewise
    pretrain_vocabulary: int = ranged(1024, least=260, most=10**6)  # likewise

    def __post_init__(self) -> None:
        super().__post_init__()
        one_of("model.processing", self.processing, ("raw", "compat"))
        one_of("model.dtype", self.dtype, DTYPES)
        for key, choices in (
            ("quantization", ("8bit", "4bit")),
            ("side", ("encoder", "decoder")),
            ("device_map", MAPS),
        ):
            if isinstance(value := getattr(self, key), str):
                one_of(f"model.{key}", value, choices)
        if not isinstance(self.device_map, str | dict | None):
            raise ConfigError(
                f"model.device_map={self.device_map} must be one of {', '.join(MAPS)}, or of the form {{part: device}}"
            )
        if self.name == "local" and not self.path:
            raise ConfigError("model=local needs model.path=<folder with a Hugging Face checkpoint>")
        if self.name == "hub" and not (self.hub_id or self.path):
            raise ConfigError("model=hub needs model.hub_id=<repository of the Hugging Face hub, ORG/NAME>")
        if self.members is not None and self.index >= self.members:
            raise ConfigError(f"model.index={self.index} must be at most {self.members - 1}: that is all there are")
        if self.hub_id is not None:
            check_repository("model.hub_id", self.hub_id)
        self._check_architecture()

    def _check_architecture(self) -> None:
        """Check sizes, and that heads share the width in equal parts; libraries check the rest."""
        shape = self.architecture
        for key in SIZES & set(shape):
            whole = shape[key] if isinstance(shape[key], int) else str(shape[key])
            check_range(f"model.architecture.{key}", whole, Range(least=1, most=WIDEST))
        if isinstance(norm := shape.get("normalization_type", "LN"), str):
            one_of("model.architecture.normalization_type", norm, ("LN", "LNPre", "RMS", "RMSPre"))
        for heads, width in HEADS:
            if heads in shape and width in shape and shape[width] % shape[heads]:
                raise ConfigError(
                    f"model.architecture: {heads}={shape[heads]} must divide {width}={shape[width]}; change either"
                )


@dataclass
class DataConfig(Checked, part="data"):
    """Text, and how it becomes rows of tokens."""

    paths: ClassVar[tuple[str, ...]] = ("files", "cache")

    name: str = MISSING  # what results call it
    source: Optional[str] = None  # stdlib | grammar | text | hub
    files: Optional[list[str]] = neutral(None)  # source=text: files or globs; .txt .jsonl .jsonl.gz .jsonl.zst .parquet
    sentences: Optional[int] = ranged(None, least=1, most=COUNTS)  # source=grammar: how many
    hub_id: Optional[str] = None  # source=hub: the repository of the data set, ORG/NAME
    subset: Optional[str] = None  # source=hub: its configuration; null: the only one
    split: Optional[str] = None  # source=hub: train, validation, ...
    revision: Optional[str] = None  # source=hub: branch, tag or commit; null: main
    hub_files: Optional[list[str]] = None  # files of a hub data set that has no loading configuration
    field: Optional[str] = None  # the field that holds the text
    context: Optional[int] = ranged(None, least=2, most=CONTEXT)  # tokens per row; null: the models'
    bos: Optional[bool] = None  # begin each row with BOS; null: what the source model expects
    aligned: Optional[bool] = None  # begin each row with a document; what is left of the one before is dropped
    fit_tokens: Optional[int] = ranged(None, least=1, most=COUNTS)  # null: as many as training sees
    report_tokens: Optional[int] = ranged(None, least=2, most=COUNTS)  # held-out tokens that numbers are of
    report_share: Optional[float] = ranged(None, above=0, below=1)  # share of the documents that only the report sees
    same_split: Optional[bool] = None  # fit on the report's documents, too, as brown2023 did
    cache: Optional[str] = neutral(None)  # folder of the token cache; null: $THINKALIKE_CACHE or ~/.cache/thinkalike

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.source is not None:
            one_of("data.source", self.source, ("stdlib", "grammar", "text", "hub"))
        if self.source == "text" and not self.files:
            raise ConfigError("data=text needs data.files=[...]: files or globs of .txt, .jsonl[.gz|.zst] or .parquet")


@dataclass
class StimuliConfig(Checked, part="stimuli"):
    """What states and features are of: words of controlled sentences, or the user's own."""

    paths: ClassVar[tuple[str, ...]] = ("path",)

    kind: str = "controlled"  # controlled, crossed: of a grammar | table: .csv .tsv .parquet | conllu
    sentences: Optional[int] = ranged(None, least=1, most=COUNTS)  # kind=controlled: how many; null: 400
    grammar: str = "small"  # kind=controlled: small | large | crossed
    path: Optional[str] = neutral(None)  # kind=table, conllu: the file
    features: Optional[list[str]] = None  # null: all
    kinds: Any = None  # {feature: nominal | ordinal | numeric | continuous | [its levels in order]}
    columns: Any = None  # kind=table: {text | word | start | stop | id: column}
    sample: Optional[int] = ranged(None, least=1, most=COUNTS)  # how many stimuli; null: all
    balance: list[str] = field(default_factory=list)  # features whose combinations come equally often in the sample
    seed: int = ranged(0, least=0, most=SEEDS)  # of the sentences and the sample

    def __post_init__(self) -> None:
        super().__post_init__()
        one_of("stimuli.kind", self.kind, ("controlled", "crossed", "table", "conllu"))
        if self.kind in ("table", "conllu") and not self.path:
            raise ConfigError(f"stimuli={self.kind} needs stimuli.path=FILE")
        of = {
            "sentences": ("controlled",),
            "grammar": ("controlled",),
            "path": ("table", "conllu"),
            "columns": ("table",),
        }
        for key, kinds in of.items():
            if self.kind not in kinds and (value := getattr(self, key)) != getattr(StimuliConfig, key):
                raise ConfigError(f"stimuli.{key}={value} plays no part in stimuli={self.kind}; leave it out")
        for key in ("kinds", "columns"):
            if not isinstance(getattr(self, key) or {}, dict):
                raise ConfigError(f"stimuli.{key}={getattr(self, key)} must be of the form {{name: value, ...}}")
        for name, kind in (self.kinds or {}).items():
            if not isinstance(kind, str | list):
                raise ConfigError(f"stimuli.kinds.{name}={kind} must be a kind, or a list of levels in order")
        for role, column in (self.columns or {}).items():
            if not isinstance(column, str | None):
                raise ConfigError(f"stimuli.columns.{role}={column} must be the name of a column, or null")
        if self.balance and not self.sample:
            raise ConfigError("stimuli.balance needs stimuli.sample=N: how many stimuli")


@dataclass
class PairsConfig(Checked, part="pairs"):
    """Pairs of a premise and a hypothesis: to fit on, to report on, and a challenge."""

    paths: ClassVar[tuple[str, ...]] = ("fit", "report", "challenge")

    source: str = "templates"  # templates: made offline | hub: MNLI and HANS | files
    fit: Optional[str] = neutral(None)  # source=files: MNLI to fine-tune on, .jsonl .tsv .txt .parquet
    report: Optional[str] = neutral(None)  # source=files: MNLI that is reported on
    challenge: Optional[str] = neutral(None)  # source=files: HANS
    fit_pairs: Optional[int] = ranged(4000, least=1, most=COUNTS)  # how many of each; null: all that there are
    report_pairs: Optional[int] = ranged(1000, least=1, most=COUNTS)  # held out, in distribution
    challenge_pairs: Optional[int] = ranged(6000, least=1, most=COUNTS)  # of HANS, or of its kind
    heuristic: Optional[str] = "lexical_overlap"  # which part of the challenge is reported on; null: all
    label: Optional[str] = "non-entailment"  # the class of these pairs; null: both
    counterexamples: float = ranged(0.02, least=0, most=1)  # source=templates: share of fit pairs
    lexical: float = ranged(
        0.0, least=0, most=1
    )  # source=templates: share of fit pairs like the challenge's l.-overlap
    truncate: bool = True  # cut pairs that are longer than the model can take; false refuses them
    seed: int = ranged(0, least=0, most=SEEDS)  # of templates, and of which pairs of a set are taken

    def __post_init__(self) -> None:
        super().__post_init__()
        one_of("pairs.source", self.source, ("templates", "hub", "files"))
        for key in ("fit_pairs", "report_pairs", "challenge_pairs"):
            value = getattr(self, key)
            if value is None and self.source == "templates":
                raise ConfigError(f"pairs.{key} must be a number: templates give as many pairs as are asked for")


@dataclass
class PopulationConfig(Checked, part="population"):
    """Classifiers of one architecture, in groups: those of a name each, of a parent each, or the best and the worst."""

    name: str = "bert-mini"  # what results call it
    base: Optional[str] = None  # the model that task=nli fine-tunes `size` times, where they are not there yet
    members: Optional[str] = None  # or the model of which they are numbers; local: they are folders
    size: Optional[int] = ranged(None, least=2, most=10**5)  # of fine-tunings of base without parents
    per_group: int = ranged(6, least=1, most=10**5)  # where groups are not named: best and worst on the challenge
    generalizing: Optional[list[Any]] = None  # numbers of members, or folders: one group
    heuristic: Optional[list[Any]] = None  # the other group
    parents: Any = None  # {group: [words of task=nli]}: fine-tunings of base, of which each group's members are forks
    parent_options: list[str] = field(default_factory=list)  # words of task=nli that all parents share
    options: list[str] = field(default_factory=list)  # words of task=nli for each member's own fine-tuning
    null: Optional[list[str]] = None  # two of the groups, whose parents differ in nothing but the seed
    published: Any = ranged(None, least=0, most=1)  # accuracies by number: {heldout: [...], challenge: [...]}
    cluster: Optional[list[Any]] = None  # a published grouping: these against all others

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.published and not (self.generalizing or self.heuristic):
            accuracies = self.published.get("challenge") if isinstance(self.published, dict) else None
            if not isinstance(accuracies, list) or len(accuracies) < 2 * self.per_group:
                raise ConfigError(
                    f"population.per_group={self.per_group} needs twice as many accuracies in population.published: "
                    "{challenge: [...]}; give them, or name the groups: population.generalizing, .heuristic"
                )
            ranked = sorted(range(len(accuracies)), key=lambda number: -accuracies[number])
            self.generalizing, self.heuristic = ranked[: self.per_group], ranked[: -self.per_group - 1 : -1]
        for key in ("generalizing", "heuristic"):
            group = getattr(self, key)
            wrong = [each for each in group or [] if isinstance(each, bool) or not isinstance(each, int | str)]
            if wrong or any(isinstance(each, int) and each < 0 for each in group or []):
                raise ConfigError(f"population.{key}={group} must be numbers of models from 0 on, or folders")
            if self.members and (group is None or len(group) < 2):
                raise ConfigError(f"population.{key}={group} needs at least two models of {self.members}")
        if self.size is not None and (self.parents is not None or not self.base):
            raise ConfigError(
                f"population.size={self.size} plays no part in population={self.name}, whose members are not the best "
                "and the worst of so many fine-tunings; say population.per_group, or leave it out"
            )
        if self.parents is not None:
            self._check_parents()
        elif self.base and not 2 <= self.per_group <= (self.size or 0) // 2:
            raise ConfigError(
                f"population.per_group={self.per_group} must lie between 2 and half of population.size={self.size}"
            )

    def _check_parents(self) -> None:
        words = self.parents.values() if isinstance(self.parents, dict) else [None]
        if len(words) < 2 or any(not isinstance(each, list) for each in words):
            raise ConfigError(
                f"population.parents={self.parents} must name two groups or more, each with the words of its parent's "
                "fine-tuning, such as {G: ['nli.index=0'], H: ['nli.index=1']}"
            )
        if self.null is not None and (len(self.null) != 2 or not {*self.null} < {*self.parents}):
            raise ConfigError(f"population.null={self.null} must name two of more groups: {', '.join(self.parents)}")
        if not self.base or self.per_group < 2:
            raise ConfigError(
                f"population.parents needs population.base and per_group of 2 or more, not {self.base} and "
                f"{self.per_group}"
            )
