"""What jobs read: models, text, stimuli, pairs of sentences, populations; and the checks of their values."""

from __future__ import annotations

import os
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from pydantic import Field

from thinkalike.config.schema import (
    CONTEXT,
    COUNTS,
    SEEDS,
    TOKENS_AT_ONCE,
    Checked,
    FilePath,
    Recipe,
    left_open,
    not_in_key,
    ranged,
)
from thinkalike.errors import ConfigError

RUNS = ("dtype", "device", "context")  # settings that say how a model runs, and not which
HOW_IT_RUNS = ("dtype", "device", "device_map", "quantization", "context", "processing")  # all of them
PART = r"[A-Za-z0-9_](?:[\w.-]{0,94}[A-Za-z0-9_])?"  # the hub's rule for names of users and repositories
REPOSITORY = rf"^(?:{PART}/)?{PART}$"
DeviceMap = Literal["auto", "balanced", "balanced_low_0", "sequential", "cpu", "disk"]
Share = Annotated[float, Field(ge=0, le=1)]
Number = Annotated[int, Field(ge=0, strict=True)]  # of a model of a population
Folder = Annotated[str, Field(strict=True)]  # or its checkpoint
Group = Annotated[list[Number | Folder], Field(min_length=2)]


@dataclass
class ModelConfig(Checked, part="model"):
    """A model by its everyday name: where its weights are, and how to run it."""

    name: str = left_open(None)  # what tables and figures call it; null: no model is named
    family: str = "auto"  # which residual stream it has; auto: from the checkpoint's config.json
    hub_id: Annotated[str, Field(pattern=REPOSITORY)] | None = None  # its repository on the Hugging Face hub, ORG/NAME
    revision: str | None = None  # of the hub: branch, tag, commit; of a folder: a checkpoint in it, step64
    path: FilePath | None = not_in_key(None)  # a folder or a GGUF file; takes the place of hub_id
    base: FilePath | None = not_in_key(None)  # of an adapter: a folder, ORG/NAME or a name; null: as the adapter says
    processing: Literal["raw", "compat"] = left_open("raw")  # compat: LayerNorms folded, weights centred
    dtype: Literal["float32", "bfloat16", "float16", "float64"] = left_open("float32")  # of weights and states
    device: str = not_in_key("auto")  # cpu | cuda | cuda:1 | mps; auto: a GPU where there is one
    device_map: DeviceMap | dict[str, Any] | None = not_in_key(None)  # weights over several devices, by accelerate
    quantization: Literal["8bit", "4bit"] | None = None  # weights in fewer bits, by bitsandbytes
    side: Literal["encoder", "decoder"] | None = None  # of an encoder-decoder
    corpus: str | None = "stdlib"  # the data that `data=auto` stands for; null: that of the other model, or pydoc
    bos: bool | None = False  # rows begin with BOS; null: if the tokenizer puts it before a text by itself
    context: int | None = ranged(None, least=2, most=CONTEXT)  # tokens of a row; null: what it can take, to 1024
    mini: bool = False  # trained by this project and shipped inside it
    cls_sep: bool = False  # task=pretrain: the tokenizer puts [CLS] before a text and [SEP] after it
    index: int = ranged(0, least=0, most=SEEDS)  # which of a numbered population
    members: int | None = ranged(None, least=1, most=SEEDS, in_key=False)  # how many it has, numbered from 0
    classes: list[str] | None = None  # of a classifier, in the order of its logits; null: as config.json has them
    architecture: dict[str, Any] = field(default_factory=dict)  # what task=pretrain builds
    seed: int = ranged(0, least=0, most=SEEDS)  # of the initial weights and of the order of the training data
    pretrain_tokens: int = ranged(0, least=0, most=COUNTS)  # of a mini: pretrain.tokens where nothing is said
    pretrain_tokens_per_step: int = ranged(2048, least=2, most=TOKENS_AT_ONCE)  # likewise
    pretrain_lr: float = ranged(2e-3, above=0)  # likewise
    pretrain_vocabulary: int = ranged(1024, least=260, most=10**6)  # likewise

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.name is not None:
            self.processing, self.dtype = self.processing or "raw", self.dtype or "float32"
        if self.name == "local" and not self.path:
            raise ConfigError("model=local needs model.path=<folder with a Hugging Face checkpoint, or GGUF file>")
        if self.name == "hub" and not (self.hub_id or self.path):
            raise ConfigError("model=hub needs model.hub_id=<repository of the Hugging Face hub, ORG/NAME>")

    @property
    def called(self) -> str:
        """The everyday name, or that of the folder, the file or the repository of a model without one."""
        if self.name not in ("local", "hub"):
            return self.name
        place = os.path.abspath(self.path) if self.path else str(self.hub_id)
        return os.path.basename(place).removesuffix(".gguf")

    @property
    def unused(self) -> Collection[str]:
        in_name = any(str(self.index) in str(each) for each in (self.name, self.hub_id, self.path))
        return () if self.members or in_name else {"index"}


@dataclass
class DataConfig(Checked, part="data"):
    """Text, and how it becomes rows of tokens."""

    name: str = left_open(None)  # what results call it; null: the corpus of the model
    source: Literal["stdlib", "pydoc", "grammar", "text", "hub"] | None = None
    files: list[FilePath] | None = not_in_key(None)  # source=text: files or globs; .txt .jsonl[.gz|.zst] .parquet
    sentences: int | None = ranged(None, least=1, most=COUNTS)  # source=grammar: how many
    hub_id: str | None = None  # source=hub: the repository of the data set, ORG/NAME
    subset: str | None = None  # source=hub: its configuration; null: the only one
    split: str | None = None  # source=hub: train, validation, ...
    revision: str | None = None  # source=hub: branch, tag or commit; null: main
    hub_files: list[str] | None = None  # files of a hub data set that has no loading configuration
    field: str | None = None  # the field that holds the text
    context: int | None = ranged(None, least=2, most=CONTEXT)  # tokens per row; null: the models'
    bos: bool | None = None  # begin each row with BOS; null: what the source model expects
    aligned: bool | None = None  # begin each row with a document; what is left of the one before is dropped
    fit_tokens: int | None = ranged(None, least=1, most=COUNTS)  # null: as many as training sees
    report_tokens: int | None = left_open(None, least=2, most=COUNTS)  # held-out tokens that numbers are of
    report_share: float | None = ranged(None, above=0, below=1)  # share of the documents that only the report sees
    same_split: bool | None = left_open(None)  # fit on the report's documents, too, as brown2023 did
    cache: FilePath | None = not_in_key(None)  # folder of tokens; null: $THINKALIKE_CACHE or ~/.cache/thinkalike

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.source == "text" and not self.files:
            raise ConfigError("data=text needs data.files=[...]: files or globs of .txt, .jsonl[.gz|.zst] or .parquet")
        if self.source == "hub" and not self.hub_id:
            raise ConfigError("data=hub needs data.hub_id=<data set of the Hugging Face hub, ORG/NAME>")

    def by_recipe(self, recipe: Recipe) -> dict[str, Any]:
        if self.source in (None, "grammar"):
            return {}
        return {"report_tokens": 2**18 if recipe.is_mini else 2**20, "same_split": recipe.is_papers}

    @property
    def unused(self) -> Collection[str]:
        of_hub = {"hub_id", "subset", "split", "revision", "hub_files"}
        read = {"text": {"files", "field"}, "grammar": {"sentences"}, "hub": {*of_hub, "field"}}
        return {"files", "field", "sentences", *of_hub} - read.get(self.source or "", set())


@dataclass
class StimuliConfig(Checked, part="stimuli"):
    """What states and features are of: words of controlled sentences, or the user's own."""

    kind: Literal["controlled", "crossed", "table", "conllu"] = "controlled"  # of a grammar, or files of the user's
    sentences: int | None = ranged(None, least=1, most=COUNTS)  # kind=controlled: how many; null: 400
    grammar: str = "small"  # kind=controlled: small | large | crossed
    path: FilePath | None = not_in_key(None)  # kind=table (.csv .tsv .parquet), conllu: the file
    features: list[str] | None = None  # null: all
    kinds: dict[str, str | list[Any]] | None = None  # nominal | ordinal | numeric | continuous | [levels]
    columns: dict[str, str | None] | None = None  # kind=table: {text | word | start | stop | id: column}
    sample: int | None = ranged(None, least=1, most=COUNTS)  # how many stimuli; null: all
    balance: list[str] = field(default_factory=list)  # features whose combinations come equally often in the sample
    seed: int = ranged(0, least=0, most=SEEDS)  # of the sentences and the sample

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.kind in ("table", "conllu") and not self.path:
            raise ConfigError(f"stimuli={self.kind} needs stimuli.path=FILE")

    @property
    def unused(self) -> Collection[str]:
        read = {"controlled": {"sentences", "grammar"}, "table": {"path", "columns"}, "conllu": {"path"}}
        unused = {"sentences", "grammar", "path", "columns"} - read.get(self.kind, set())
        return unused if self.sample else {*unused, "balance"}


@dataclass
class PairsConfig(Checked, part="pairs"):
    """Pairs of a premise and a hypothesis: to fit on, to report on, and a challenge."""

    source: Literal["templates", "hub", "files"] = "templates"  # templates: made offline | hub: MNLI and HANS
    fit: FilePath | None = not_in_key(None)  # source=files: MNLI to fine-tune on, .jsonl .tsv .txt .parquet
    report: FilePath | None = not_in_key(None)  # source=files: MNLI that is reported on
    challenge: FilePath | None = not_in_key(None)  # source=files: HANS
    fit_pairs: int | None = ranged(4000, least=1, most=COUNTS)  # how many of each; null: all that there are
    report_pairs: int | None = ranged(1000, least=1, most=COUNTS)  # held out, in distribution
    challenge_pairs: int | None = ranged(6000, least=1, most=COUNTS)  # of HANS, or of its kind
    heuristic: str | None = "lexical_overlap"  # which part of the challenge is reported on; null: all
    label: str | None = "non-entailment"  # the class of these pairs; null: both
    counterexamples: float = ranged(0.02, least=0, most=1)  # source=templates: share of fit pairs
    lexical: float = ranged(0.0, least=0, most=1)  # source=templates: share of fit pairs with lexical overlap
    truncate: bool = True  # cut pairs that are longer than the model can take; false refuses them
    seed: int = ranged(0, least=0, most=SEEDS)  # of templates, and of which pairs of a set are taken

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.source == "templates" and None in (self.fit_pairs, self.report_pairs, self.challenge_pairs):
            raise ConfigError("pairs.fit_pairs, .report_pairs and .challenge_pairs must be numbers: templates are made")

    @property
    def unused(self) -> Collection[str]:
        of_files = {"fit", "report", "challenge"} if self.source != "files" else set()
        return of_files | ({"counterexamples", "lexical"} if self.source != "templates" else set())


@dataclass
class PopulationConfig(Checked, part="population"):
    """Classifiers of one architecture, in groups: those of a name each, of a parent each, or the best and the worst."""

    name: str = left_open(None, usual="bert-mini")  # what results call it; null: planted
    base: str | None = None  # the model that task=nli fine-tunes `size` times, where they are not there yet
    members: str | None = None  # or the model of which they are numbers; local: they are folders
    size: int | None = ranged(None, least=2, most=10**5)  # of fine-tunings of base without parents
    per_group: int = ranged(6, least=1, most=10**5)  # where groups are not named: best and worst on the challenge
    generalizing: Group | None = None  # numbers of members, or folders: one group
    heuristic: Group | None = None  # the other group
    parents: dict[str, list[str]] | None = None  # {group: [words of task=nli]} of base; members are forks
    parent_options: list[str] = field(default_factory=list)  # words of task=nli that all parents share
    options: list[str] = field(default_factory=list)  # words of task=nli for each member's own fine-tuning
    null: list[str] | None = None  # two of the groups, whose parents differ in nothing but the seed
    published: dict[str, list[Share]] | None = None  # accuracies by number: {heldout: [...], challenge: [...]}
    cluster: list[Any] | None = None  # a published grouping: these against all others

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.published and not (self.generalizing or self.heuristic):
            accuracies = self.published.get("challenge", [])
            if len(accuracies) < 2 * self.per_group:
                raise ConfigError(f"population.per_group={self.per_group} needs more population.published accuracies")
            ranked = sorted(range(len(accuracies)), key=lambda number: -accuracies[number])
            self.generalizing, self.heuristic = [*ranked[: self.per_group]], [*ranked[: -self.per_group - 1 : -1]]
        if self.members and not (self.generalizing and self.heuristic):
            raise ConfigError(f"population.generalizing= and .heuristic= must name models of {self.members}")
        if self.parents is not None:
            self._check_parents(self.parents)
        elif self.base and not 2 <= self.per_group <= (self.size or 0) // 2:
            raise ConfigError(f"population.per_group={self.per_group} must be from 2 to half of size={self.size}")

    @property
    def unused(self) -> Collection[str]:
        if self.members:
            return {"size", "parents", "parent_options", "options", "null"}
        return {"size"} if self.parents else {"parent_options", "null"}

    def _check_parents(self, parents: Collection[str]) -> None:
        if self.null is not None and (len(self.null) != 2 or not {*self.null} < {*parents}):
            raise ConfigError(f"population.null={self.null} must name two of more groups: {', '.join(parents)}")
        if len(parents) < 2 or not self.base or self.per_group < 2:
            raise ConfigError(f"population.parents={parents} needs two groups or more, .base, and .per_group from 2")
