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
