"""The parts of a configuration: models, text, stimuli, Lightning, logs and measures."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, ClassVar, Literal, get_args

from pydantic import AfterValidator, BeforeValidator, ByteSize, Field

from thinkalike.advice import named_setting
from thinkalike.config.schema import (
    SEEDS,
    STEPS,
    Checked,
    FilePath,
    RecipeJob,
    SettingValues,
    extended,
    of_form,
    setting,
)
from thinkalike.errors import ConfigError, ModelError, plain_name
from thinkalike.files import absolute
from thinkalike.plugins import is_plugin
from thinkalike.shards.index import holds_states

# the largest count of tokens: a product of two counts that are bounded so fits 64 bits
COUNTS = 10**12
TOKENS_AT_ONCE = 10**8
CONTEXT = 10**7
# settings that say how a model runs, and not which it is: those that an experiment or a population
# passes on to its models, and all of them
RUN_SETTINGS = ("dtype", "device", "context")
HOW_IT_RUNS = ("dtype", "device", "device_map", "quantization", "context", "site", "head")
# the hub's rule for names of users and repositories
NAME_ON_HUB = r"[A-Za-z0-9_](?:[\w.-]{0,94}[A-Za-z0-9_])?"
REPOSITORY = rf"^(?:{NAME_ON_HUB}/)?{NAME_ON_HUB}$"
DeviceMap = Literal["auto", "balanced", "balanced_low_0", "sequential", "cpu", "disk"]
# the device of each module; "" is the whole model
ModuleMap = dict[Annotated[str, Field(min_length=0)], object]
# the settings of a trainer that say which processes share a job
PROCESSES = ("strategy", "devices", "num_nodes")
# settings of text that do not apply to rows of a folder of states, which are cut already
OF_ROWS = {
    "context",
    "bos",
    "aligned",
    "fit_tokens",
    "evaluation_tokens",
    "evaluation_share",
    "same_split",
}


def _whole_size(size: object) -> object:
    """Return the size of memory as it is written.

    pydantic alone would read the beginning of a text, and drop the rest.
    """
    if isinstance(size, str) and not re.fullmatch(r"\s*\d+(\.\d+)?\s*[A-Za-z]*\s*", size):
        raise ValueError("must be a number and a unit, such as 8GB")
    return size


Size = Annotated[ByteSize, BeforeValidator(_whole_size), AfterValidator(float)]


def _of_a_file(name: str) -> str:
    if not is_plugin(name):
        raise ValueError("must be FILE.py:NAME, an object of a file of yours")
    return name


Plugin = Annotated[str, AfterValidator(_of_a_file)]
# sources of text of which the mini models have read nothing
UNSEEN_BY_MINIS = ("text", "hub")
Source = Literal["stdlib", "pydoc", "grammar", "text", "hub", "states"]
# as TransformerLens calls them, in the order in which states pass them
Site = Literal[
    "embed",
    "resid_pre",
    "z",
    "attn_out",
    "resid_mid",
    "mlp_post",
    "mlp_out",
    "resid_post",
    "ln_final",
]
AFTER: Site = "resid_post"  # the usual one: the stream after each block
MIDDLE: Site = "resid_mid"  # the stream between attention and MLP of each block


@dataclass
class ModelConfig(Checked, part="model"):
    """A model: where its weights are, and how it runs."""

    elsewhere: ClassVar[tuple[str, ...]] = ("path", "hub_id")

    # name of the model in tables and figures; null: no model is chosen
    name: str = setting(None, by_recipe=True)
    # model family (architecture), which decides how the model is cut into blocks; auto: as the
    # checkpoint's config.json says
    family: str = "auto"
    # repository of the model on the Hugging Face hub, ORG/NAME
    hub_id: Annotated[str, of_form(REPOSITORY, "ORG/NAME or NAME, as on the hub")] | None = None
    # branch, tag or commit of the hub repository, or a checkpoint inside a folder, such as step64
    revision: str | None = None
    # folder with a checkpoint, or a GGUF file; used in place of hub_id
    path: FilePath | None = setting(None, in_key=False)
    # base model of a LoRA adapter: a folder, ORG/NAME or a name; null: the one that the adapter
    # names
    base: FilePath | None = setting(None, in_key=False)
    # number format of weights and states
    dtype: Literal["float32", "bfloat16", "float16", "float64"] = setting(
        "float32", by_recipe=True, in_memory=True
    )
    # device that the model runs on: cpu, cuda, cuda:1 or mps; auto: a GPU if there is one
    device: str = setting("auto", in_key=False, in_memory=True)
    # how accelerate spreads the weights over several devices
    device_map: DeviceMap | ModuleMap | None = setting(None, in_key=False)
    # load the weights in 8 or 4 bits with bitsandbytes
    quantization: Literal["8bit", "4bit"] | None = None
    # side of an encoder-decoder model that is used
    side: Literal["encoder", "decoder"] | None = setting(None, in_memory=True)
    # data set that data=auto stands for; null: that of the other model, or pydoc
    corpus: str | None = "stdlib"
    # begin every row with the BOS token; null: only if the tokenizer adds it to a text by itself
    bos: bool | None = setting(False, in_memory=True)
    # context length, the tokens in a row; null: as many as the model takes, 1024 at most
    context: int | None = setting(None, least=2, most=CONTEXT, in_memory=True)
    # whether this project trained the model and ships it
    mini: bool = False
    # hook point at which states are read, by TransformerLens's names, or a list of them; z: the
    # output of each attention head before it is projected; mlp_post: the activations of the MLP's
    # hidden units
    site: Site | Annotated[list[Site], Field(min_length=1)] = setting(AFTER, in_memory=True)
    # attention head that is read at site=z; null: all heads concatenated; all: each head
    # separately
    head: int | Literal["all"] | None = setting(None, least=0, in_memory=True)
    # accept an implausible model, which predicts an English sentence worse than a uniform guess
    implausible: bool = setting(False, in_key=False, in_memory=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_sites()
        if self.name is not None:
            self.dtype = self.dtype or "float32"
        if self.name == "local" and not (self.path or self.is_in_memory):
            raise ConfigError(
                "model=local needs model.path="
                "<folder with a Hugging Face checkpoint, or GGUF file>"
            )
        if self.name == "hub" and not (self.hub_id or self.path or self.is_in_memory):
            raise ConfigError(
                "model=hub needs model.hub_id=<repository of the Hugging Face hub, ORG/NAME>"
            )

    def _check_sites(self) -> None:
        """Put several sites in their order in the model, and check that a head has its site."""
        chosen = [self.site] if isinstance(self.site, str) else self.site
        in_order = [site for site in get_args(Site) if site in chosen]
        self.site = in_order if len(in_order) > 1 else in_order[0]
        if self.head is not None and "z" not in in_order:
            raise ConfigError(
                f"{named_setting('model.head', self.head)} is a head of "
                f"{named_setting('model.site', 'z')}, and "
                f"{named_setting('model.site', self.site)}"
            )

    @property
    def called(self) -> str:
        """The everyday name; without one, that of the folder, the file or the repository."""
        if self.name not in ("local", "hub") or self.is_in_memory:
            return self.name
        place = os.path.normpath(absolute(Path(self.path))) if self.path else str(self.hub_id)
        return plain_name(os.path.basename(place).removesuffix(".gguf"))

    @property
    def is_in_memory(self) -> bool:
        """Whether it is a model in memory, see `thinkalike.config.in_memory`."""
        return False

    @property
    def weights_in_memory(self) -> int | None:
        """How many weights it has, if it is a model in memory."""
        return None

    @property
    def holds_states(self) -> bool:
        """Whether its path is a folder of states, which a model computed elsewhere."""
        return holds_states(self.path)

    def check_has_weights(self) -> None:
        """Check that it can run.

        Raises:
            ModelError: It is a folder of states, which a model computed elsewhere.
        """
        if self.holds_states:
            raise ModelError(
                f"model={self.path} is a folder of states, which has no weights to run: "
                f"{named_setting('measure', 'cka')} and its kin, r2, ruler, mlem and rsa "
                "compare it"
            )

    def fixed_by(self, shape: Mapping[str, object]) -> dict[str, tuple[object, object]]:
        """Return the settings that the files of a bundled model decide.

        Args:
            shape: What its config.json says.

        Returns:
            By name the value here and the right one.
        """
        return {"hub_id": (self.hub_id, None)}

    def check_family(self, family: str, predicts: str) -> None:
        """Check that no setting is given that changes nothing of a model of this family.

        Args:
            predicts: What models of this family predict, such as the next token or a class.
        """

    def classes_of(self, stated: Sequence[str]) -> list[str]:
        """Return the classes of a classifier in the order of its logits.

        Args:
            stated: Those that its config.json states.
        """
        return list(stated)


def model_settings(**settings: object) -> ModelConfig:
    """Return the settings of a model, also those that installed packages add."""
    schema = extended(ModelConfig)
    return schema(**settings)  # type: ignore[arg-type]  # the schema checks them


@dataclass
class DataConfig(Checked, part="data"):
    """The text that models read, and how it is cut into rows of tokens."""

    elsewhere: ClassVar[tuple[str, ...]] = ("source", "files", "hub_id")

    # name of the text in results; null: the text that the model was trained on
    name: str = setting(None, by_recipe=True)
    # where the text comes from; usually set by the name of the data
    source: Source | None = None
    # for source=text: files or globs (.txt, .jsonl[.gz|.zst], .parquet); for source=states: one
    # folder of states
    files: list[FilePath] | None = setting(None, in_key=False)
    # for source=grammar: number of sentences
    sentences: int | None = setting(None, least=1, most=COUNTS)
    # for source=hub: repository of the data set, ORG/NAME
    hub_id: str | None = None
    # for source=hub: configuration of the data set; null: its only one
    subset: str | None = None
    # for source=hub: split of the data set, such as train or validation
    split: str | None = None
    # for source=hub: branch, tag or commit; null: main
    revision: str | None = None
    # for source=hub: files to read if the data set has no loading configuration
    hub_files: list[str] | None = None
    # field of each record that holds the text
    field: str | None = None
    # field by which documents are grouped for intervals, or "file" or "folder"; null: every
    # document counts separately
    group: str | None = setting(None, in_key=False)
    # context length, the tokens in a row; null: as many as both models take
    context: int | None = setting(None, least=2, most=CONTEXT)
    # begin every row with the BOS token; null: as the source model expects
    bos: bool | None = None
    # align rows with documents: begin every row at the start of a document, and drop the rest of
    # the previous one
    aligned: bool | None = None
    # number of tokens that maps are fitted on; null: as many as the steps of training read
    fit_tokens: int | None = setting(None, least=1, most=COUNTS)
    # number of held-out tokens that results are computed on
    evaluation_tokens: int | None = setting(None, by_recipe=True, least=2, most=COUNTS)
    # share of the documents that is held out for evaluation
    evaluation_share: float | None = setting(None, above=0, below=1)
    # fit and evaluate on the same split of the documents, as Brown et al. (2023) did
    same_split: bool | None = setting(None, by_recipe=True)
    # folder that keeps the tokenized text; null: $THINKALIKE_CACHE or ~/.cache/thinkalike
    cache: FilePath | None = setting(None, in_key=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.name in get_args(Source) and self.source not in (None, self.name):
            raise ConfigError(
                f"data.source={self.source} is not the text of data={self.name}; "
                f"choose data={self.source}"
            )
        if self.source == "text" and not self.has_files:
            raise ConfigError(
                "data=text needs data.files=[...]: "
                "files or globs of .txt, .jsonl[.gz|.zst] or .parquet"
            )
        if self.source == "states" and len(self.files or []) != 1:
            raise ConfigError(
                "data=states needs data.files=[FOLDER], "
                "one folder of states, whose rows of text are read"
            )
        if self.source == "hub" and not self.hub_id:
            raise ConfigError(
                "data=hub needs data.hub_id=<data set of the Hugging Face hub, ORG/NAME>"
            )

    @property
    def has_files(self) -> bool:
        """Whether it names files of text; texts in memory take their place."""
        return bool(self.files)

    def by_recipe(self, job: RecipeJob) -> SettingValues:
        if self.source in (None, "grammar", "states"):
            return {}
        evaluation_tokens = 2**18 if job.is_mini else 2**20
        return {"evaluation_tokens": evaluation_tokens, "same_split": job.recipe == "paper"}

    def settings_read(self) -> frozenset[str]:
        of_hub = {"hub_id", "subset", "split", "revision", "hub_files"}
        by_source = {
            "text": {"files", "field", "group"},
            "grammar": {"sentences"},
            "hub": {*of_hub, "field", "group"},
            "states": {"files"},
        }
        of_any_source = {"files", "field", "group", "sentences", *of_hub}
        of_this_source = by_source.get(self.source or "", set())
        names = super().settings_read() - (of_any_source - of_this_source)
        if self.source == "states":
            names -= OF_ROWS
        return names


@dataclass
class StimuliConfig(Checked, part="stimuli"):
    """The stimuli of a measure of words: generated sentences, or texts of your own."""

    # sentences of a built-in grammar (controlled, crossed), or a file of your own (table, conllu)
    kind: Literal["controlled", "crossed", "table", "conllu"] = "controlled"
    # for kind=controlled: number of sentences; null: 400
    sentences: int | None = setting(None, least=1, most=COUNTS)
    # for kind=controlled: which grammar makes the sentences: small, large or crossed
    grammar: str = "small"
    # for kind=table (.csv, .tsv, .parquet) and conllu: the file
    path: FilePath | None = setting(None, in_key=False)
    # names of the features that are analysed; null: all
    features: list[str] | None = None
    # kind of each feature: nominal, ordinal, numeric, continuous, or the list of its levels in
    # order
    kinds: dict[str, str | list[object]] | None = None
    # for kind=table: which columns hold text, word, start, stop, sentence and id
    columns: dict[str, str | None] | None = None
    # which token of a word (or text) gives its state: the last, the first such as [CLS], or the
    # mean over all
    token: Literal["last", "mean", "first"] = "last"
    # size of a random sample of the stimuli; null: all are used
    sample: int | None = setting(None, least=1, most=COUNTS)
    # features that are balanced: their combinations are equally frequent in the sample
    balance: list[str] = field(default_factory=list)
    # column such as word or item: the stimuli that share a value of it stay together in folds,
    # intervals and permutations; null: those of one text
    groups: str | None = None
    # random seed of the sentences and of the sample
    seed: int = setting(0, least=0, most=SEEDS)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.kind in ("table", "conllu") and not self.has_file:
            raise ConfigError(f"stimuli={self.kind} needs stimuli.path=FILE")

    @property
    def has_file(self) -> bool:
        """Whether it names a file; a table in memory takes its place."""
        return bool(self.path)

    def settings_read(self) -> frozenset[str]:
        by_kind = {
            "controlled": {"sentences", "grammar"},
            "table": {"path", "columns"},
            "conllu": {"path"},
        }
        of_any_kind = {"sentences", "grammar", "path", "columns"}
        of_this_kind = by_kind.get(self.kind, set())
        names = super().settings_read() - (of_any_kind - of_this_kind)
        if not self.sample:
            names -= {"balance"}
        return names


@dataclass
class TrainerConfig(Checked, part="trainer"):
    """How Lightning trains on the device of the target, and how often it writes checkpoints."""

    # precision of training; evaluation always runs in full precision
    precision: Literal["32-true", "bf16-mixed"] = "32-true"
    # precision of float32 matrix products in training
    matmul: Literal["highest", "high", "medium"] = "highest"
    # compile the frozen blocks with torch.compile: slow to start, then faster on a GPU
    compile: bool = False
    # ddp: several processes share the rows of each step
    strategy: Literal["auto", "ddp"] = "auto"
    # for strategy=ddp: processes per machine; null: one for each GPU
    devices: int | None = setting(None, least=1, most=10**4)
    # for strategy=ddp: number of machines that share a job
    num_nodes: int = setting(1, least=1, most=10**5)
    # number of steps after which a checkpoint is written
    checkpoint_every: int = setting(50, least=1, most=STEPS, in_key=False)
    # number of steps after which losses are checked and logged
    log_every: int = setting(10, least=1, most=STEPS, in_key=False)
    # for task=stitch: most memory that a process may use, such as 8GB; null: all that is free, and
    # 2 GiB for cached states on a CPU
    memory: Size | None = setting(None, in_key=False)
    # Lightning callbacks of your own, FILE.py:NAME, in this order
    callbacks: list[Plugin] = field(default_factory=list)
    # for task=stitch: recompute activations of the frozen blocks instead of keeping them: less
    # memory, more time
    recompute: bool = setting(False, in_key=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        is_of_several = (self.devices or 1) > 1 or self.num_nodes > 1
        if self.strategy == "auto" and is_of_several:
            raise ConfigError(
                "trainer.devices and trainer.num_nodes are for several processes; add trainer=ddp"
            )
        if self.strategy == "auto":
            self.devices = None  # 1 says the same of one process, and keys tell the values apart


@dataclass
class LoggerConfig(Checked, part="logger"):
    """Where the curves and numbers of a job are logged: none, csv, wandb or tensorboard."""

    # where training curves go; csv: a file beside the result
    kind: Literal["none", "csv", "wandb", "tensorboard"] = "csv"
    # W&B project
    project: str = "thinkalike"
    # W&B user or team; null: the default of the API key
    entity: str | None = None
    # W&B group; null: the sweep, if the job belongs to one
    group: str | None = None

    def settings_read(self) -> frozenset[str]:
        names = super().settings_read()
        if self.kind != "wandb":
            names -= {"project", "entity", "group"}
        return names


@dataclass
class MeasureConfig(Checked, part="measure"):
    """The settings that every measure has; that of each kind is in the file of its instrument.

    Attributes:
        schemas: The schema of each kind.
        instrument_in_memory: The `Instrument` of a measure that is an object in memory, such as a
            function; None: the kind names the instrument.
    """

    kind: Annotated[str, Field(min_length=0)] = ""
    schemas: ClassVar[dict[str, type[MeasureConfig]]] = {}
    instrument_in_memory: ClassVar[object | None] = None

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if "kind" in vars(cls) and cls.instrument_in_memory is None:
            MeasureConfig.schemas[cls.kind] = cls
