"""The parts of a configuration: models, text, stimuli, Lightning, logs and measures."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Literal, get_args

from pydantic import AfterValidator, BeforeValidator, ByteSize, Field

from thinkalike.config.schema import (
    SEEDS,
    STEPS,
    Checked,
    FilePath,
    RecipeJob,
    SettingValues,
    extended,
    setting,
)
from thinkalike.errors import ConfigError
from thinkalike.plugins import is_plugin
from thinkalike.shards.index import holds_states

# the largest count of tokens: a product of two counts that are bounded so fits 64 bits
COUNTS = 10**12
TOKENS_AT_ONCE = 10**8
CONTEXT = 10**7
# settings that say how a model runs, and not which it is
RUNS = ("dtype", "device", "context")
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
    """A model by its everyday name: where its weights are, and how to run it."""

    elsewhere: ClassVar[tuple[str, ...]] = ("path", "hub_id")

    # what tables and figures call it; null: no model is named
    name: str = setting(None, by_recipe=True)
    family: str = "auto"  # which residual stream it has; auto: from the checkpoint's config.json
    # its repository on the Hugging Face hub, ORG/NAME
    hub_id: Annotated[str, Field(pattern=REPOSITORY)] | None = None
    # of the hub: branch, tag, commit; of a folder: a checkpoint in it, step64
    revision: str | None = None
    # a folder or a GGUF file; takes the place of hub_id
    path: FilePath | None = setting(None, in_key=False)
    # of an adapter: a folder, ORG/NAME or a name; null: as the adapter says
    base: FilePath | None = setting(None, in_key=False)
    # of weights and states
    dtype: Literal["float32", "bfloat16", "float16", "float64"] = setting(
        "float32", by_recipe=True, in_memory=True
    )
    # cpu | cuda | cuda:1 | mps; auto: a GPU where there is one
    device: str = setting("auto", in_key=False, in_memory=True)
    # weights over several devices, by accelerate
    device_map: DeviceMap | ModuleMap | None = setting(None, in_key=False)
    quantization: Literal["8bit", "4bit"] | None = None  # weights in fewer bits, by bitsandbytes
    # of an encoder-decoder
    side: Literal["encoder", "decoder"] | None = setting(None, in_memory=True)
    # the data that `data=auto` stands for; null: that of the other model, or pydoc
    corpus: str | None = "stdlib"
    # rows begin with BOS; null: if the tokenizer puts it before a text by itself
    bos: bool | None = setting(False, in_memory=True)
    # tokens of a row; null: what it can take, to 1024
    context: int | None = setting(None, least=2, most=CONTEXT, in_memory=True)
    mini: bool = False  # trained by this project and shipped inside it
    # where its states are taken; z is what heads mix, mlp_post what the last map of the MLP reads
    site: Site | Annotated[list[Site], Field(min_length=1)] = setting(AFTER, in_memory=True)
    # of z; null: all heads side by side
    head: int | Literal["all"] | None = setting(None, least=0, in_memory=True)
    # accept a model that is worse than a guess on an English sentence
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
                f"model.head={self.head} is a head of model.site=z, and model.site={self.site}"
            )

    @property
    def called(self) -> str:
        """The everyday name; without one, that of the folder, the file or the repository."""
        if self.name not in ("local", "hub") or self.is_in_memory:
            return self.name
        place = os.path.abspath(self.path) if self.path else str(self.hub_id)
        return os.path.basename(place).removesuffix(".gguf")

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
    """Text, and how it becomes rows of tokens."""

    elsewhere: ClassVar[tuple[str, ...]] = ("source", "files", "hub_id")

    # what results call it; null: the corpus of the model
    name: str = setting(None, by_recipe=True)
    source: Source | None = None
    # source=text: files or globs; .txt .jsonl[.gz|.zst] .parquet; source=states: a folder of
    # states
    files: list[FilePath] | None = setting(None, in_key=False)
    sentences: int | None = setting(None, least=1, most=COUNTS)  # source=grammar: how many
    hub_id: str | None = None  # source=hub: the repository of the data set, ORG/NAME
    subset: str | None = None  # source=hub: its configuration; null: the only one
    split: str | None = None  # source=hub: train, validation, ...
    revision: str | None = None  # source=hub: branch, tag or commit; null: main
    hub_files: list[str] | None = None  # files of a hub data set that has no loading configuration
    field: str | None = None  # the field that holds the text
    # whose documents intervals take together: a field, or "file" or "folder"
    group: str | None = setting(None, in_key=False)
    context: int | None = setting(None, least=2, most=CONTEXT)  # tokens per row; null: the models'
    bos: bool | None = None  # begin each row with BOS; null: what the source model expects
    # begin each row with a document; what is left of the one before is dropped
    aligned: bool | None = None
    fit_tokens: int | None = setting(None, least=1, most=COUNTS)  # null: as many as training sees
    # held-out tokens that numbers are of
    evaluation_tokens: int | None = setting(None, by_recipe=True, least=2, most=COUNTS)
    # share of the documents that only the report sees
    evaluation_share: float | None = setting(None, above=0, below=1)
    # fit on the report's documents, too, as brown2023 did
    same_split: bool | None = setting(None, by_recipe=True)
    # folder of tokens; null: $THINKALIKE_CACHE or ~/.cache/thinkalike
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
    """What states and features are of: words of controlled sentences, or the user's own."""

    # of a grammar, or files of the user's
    kind: Literal["controlled", "crossed", "table", "conllu"] = "controlled"
    # kind=controlled: how many; null: 400
    sentences: int | None = setting(None, least=1, most=COUNTS)
    grammar: str = "small"  # kind=controlled: small | large | crossed
    # kind=table (.csv .tsv .parquet), conllu: the file
    path: FilePath | None = setting(None, in_key=False)
    features: list[str] | None = None  # null: all
    # nominal | ordinal | numeric | continuous | [levels]
    kinds: dict[str, str | list[Any]] | None = None
    # kind=table: {text | word | start | stop | sentence | id: column}
    columns: dict[str, str | None] | None = None
    # whose state is that of a word or text: [CLS] is the first
    token: Literal["last", "mean", "first"] = "last"
    sample: int | None = setting(None, least=1, most=COUNTS)  # how many stimuli; null: all
    # features whose combinations come equally often in the sample
    balance: list[str] = field(default_factory=list)
    seed: int = setting(0, least=0, most=SEEDS)  # of the sentences and the sample

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
    """How Lightning runs, and how often it keeps a state; the device is the target's."""

    precision: Literal["32-true", "bf16-mixed"] = "32-true"  # the report never runs under autocast
    matmul: Literal["highest", "high", "medium"] = "highest"  # of float32 products in training
    compile: bool = False  # compile the frozen blocks: slow to start, then faster on a GPU
    strategy: Literal["auto", "ddp"] = "auto"  # ddp: `devices` processes share the rows of a step
    # ddp: processes per node; null: one for each GPU
    devices: int | None = setting(None, least=1, most=10**4)
    num_nodes: int = setting(1, least=1, most=10**5)  # ddp: machines that share a job
    # steps; then a state is kept
    checkpoint_every: int = setting(50, least=1, most=STEPS, in_key=False)
    # steps; then losses are read, checked and logged
    log_every: int = setting(10, least=1, most=STEPS, in_key=False)
    # task=stitch: the most of a process, as 8GB; null: what is free, and 2 GiB for states on a CPU
    # outside training
    memory: Size | None = setting(None, in_key=False)
    callbacks: list[Plugin] = field(default_factory=list)  # of plugins, in this order
    # task=stitch: keep no states inside the frozen blocks: less memory, more time
    recompute: bool = setting(False, in_key=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        is_of_several = (self.devices or 1) > 1 or self.num_nodes > 1
        if self.strategy == "auto" and is_of_several:
            raise ConfigError(
                "trainer.devices and trainer.num_nodes are for several processes; add trainer=ddp"
            )


@dataclass
class LoggerConfig(Checked, part="logger"):
    """Where curves go, and what else is known of a job: none, csv, wandb or tensorboard."""

    kind: Literal["none", "csv", "wandb", "tensorboard"] = "csv"  # csv: curves beside the result
    project: str = "thinkalike"  # of W&B
    entity: str | None = None  # of W&B: user or team; null: the default of the key
    group: str | None = None  # of W&B; null: the sweep, if the job belongs to one

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
