"""The configuration of either entry point and of its parts: models, text, stimuli, stitches, Lightning, logs."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, TypeVar, get_args

from pydantic import AfterValidator, BeforeValidator, ByteSize, Field, InstanceOf

from thinkalike.config.recorded import RecordedArrays
from thinkalike.config.schema import (
    SEEDS,
    STEPS,
    Checked,
    FilePath,
    Layers,
    SettingValues,
    extended,
    fields_of,
    setting,
    with_settings,
)
from thinkalike.errors import ConfigError
from thinkalike.files import is_folder
from thinkalike.plugins import is_plugin
from thinkalike.shards.index import holds_states

COUNTS = 10**12  # the largest count of tokens: a product of two counts that are bounded so fits 64 bits
TOKENS_AT_ONCE = 10**8
CONTEXT = 10**7
RUNS = ("dtype", "device", "context")  # settings that say how a model runs, and not which
HOW_IT_RUNS = ("dtype", "device", "device_map", "quantization", "context", "site", "head")  # all of them
PART = r"[A-Za-z0-9_](?:[\w.-]{0,94}[A-Za-z0-9_])?"  # the hub's rule for names of users and repositories
REPOSITORY = rf"^(?:{PART}/)?{PART}$"
DeviceMap = Literal["auto", "balanced", "balanced_low_0", "sequential", "cpu", "disk"]
ModuleMap = dict[Annotated[str, Field(min_length=0)], Any]  # device by module; "" is the whole model
PROCESSES = ("strategy", "devices", "num_nodes")  # the settings of a trainer that say which processes share a job
# settings of text that do not apply to rows of a folder of states, which are cut already
OF_ROWS = {"context", "bos", "aligned", "fit_tokens", "report_tokens", "report_share", "same_split"}
SMALL = 2**28  # bytes of a checkpoint: of 64 million parameters in float32


def _of_one_line(path: str) -> str:
    if not path.isprintable():  # the last lines of stdout are paths of results
        raise ValueError("must be a path of printable characters")
    return path


def _whole_size(size: Any) -> Any:
    """Return the size of memory as it is written; pydantic reads the beginning of a text, and drops the rest."""
    if isinstance(size, str) and not re.fullmatch(r"\s*\d+(\.\d+)?\s*[A-Za-z]*\s*", size):
        raise ValueError("must be a number and a unit, such as 8GB")
    return size


Size = Annotated[ByteSize, BeforeValidator(_whole_size), AfterValidator(float)]


def _of_a_file(name: str) -> str:
    if not is_plugin(name):
        raise ValueError("must be FILE.py:NAME, an object of a file of yours")
    return name


Plugin = Annotated[str, AfterValidator(_of_a_file)]
Files = Annotated[list[FilePath], Field(min_length=1)]
Recordings = Annotated[list[FilePath | InstanceOf[RecordedArrays]], Field(min_length=1)]
Source = Literal["stdlib", "pydoc", "grammar", "text", "hub", "states"]
Site = Literal[
    "embed", "resid_pre", "z", "attn_out", "resid_mid", "mlp_post", "mlp_out", "resid_post", "ln_final"
]  # as TransformerLens calls them, in the order in which states pass them
AFTER: Site = "resid_post"  # the usual one: the stream after each block
MIDDLE: Site = "resid_mid"  # the stream between attention and MLP of each block


@dataclass
class ModelConfig(Checked, part="model"):
    """A model by its everyday name: where its weights are, and how to run it."""

    elsewhere: ClassVar[tuple[str, ...]] = ("path", "hub_id")

    # what tables and figures call it; null: no model is named
    name: str = setting(None, by_recipe=True)
    family: str = "auto"  # which residual stream it has; auto: from the checkpoint's config.json
    hub_id: Annotated[str, Field(pattern=REPOSITORY)] | None = None  # its repository on the Hugging Face hub, ORG/NAME
    revision: str | None = None  # of the hub: branch, tag, commit; of a folder: a checkpoint in it, step64
    # a folder or a GGUF file; takes the place of hub_id
    path: FilePath | None = setting(None, in_key=False)
    # of an adapter: a folder, ORG/NAME or a name; null: as the adapter says
    base: FilePath | None = setting(None, in_key=False)
    # of weights and states
    dtype: Literal["float32", "bfloat16", "float16", "float64"] = setting("float32", by_recipe=True, in_memory=True)
    # cpu | cuda | cuda:1 | mps; auto: a GPU where there is one
    device: str = setting("auto", in_key=False, in_memory=True)
    # weights over several devices, by accelerate
    device_map: DeviceMap | ModuleMap | None = setting(None, in_key=False)
    quantization: Literal["8bit", "4bit"] | None = None  # weights in fewer bits, by bitsandbytes
    # of an encoder-decoder
    side: Literal["encoder", "decoder"] | None = setting(None, in_memory=True)
    corpus: str | None = "stdlib"  # the data that `data=auto` stands for; null: that of the other model, or pydoc
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
        sites = [site for site in get_args(Site) if site in ([self.site] if isinstance(self.site, str) else self.site)]
        self.site = sites if len(sites) > 1 else sites[0]
        if self.head is not None and "z" not in sites:
            raise ConfigError(f"model.head={self.head} is a head of model.site=z, and model.site={self.site}")
        if self.name is not None:
            self.dtype = self.dtype or "float32"
        if self.name == "local" and not (self.path or self.is_in_memory):
            raise ConfigError("model=local needs model.path=<folder with a Hugging Face checkpoint, or GGUF file>")
        if self.name == "hub" and not (self.hub_id or self.path or self.is_in_memory):
            raise ConfigError("model=hub needs model.hub_id=<repository of the Hugging Face hub, ORG/NAME>")

    @property
    def called(self) -> str:
        """The everyday name, or that of the folder, the file or the repository of a model without one."""
        if self.name not in ("local", "hub") or self.is_in_memory:
            return self.name
        place = os.path.abspath(self.path) if self.path else str(self.hub_id)
        return os.path.basename(place).removesuffix(".gguf")

    @property
    def is_in_memory(self) -> bool:
        """Whether it is a model in memory, see `thinkalike.config.in_memory`."""
        return False

    @property
    def holds_states(self) -> bool:
        """Whether its path is a folder of states, which a model computed elsewhere."""
        return holds_states(self.path)

    def fixed_by(self, shape: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
        """Return the settings that the files of a bundled model decide: by name the value here and the right one.

        Args:
            shape: what its config.json says.
        """
        return {"hub_id": (self.hub_id, None)}

    def check_family(self, family: str, predicts: str) -> None:
        """Check that no setting is given that changes nothing of a model of this family.

        Args:
            predicts: what models of this family predict, such as the next token or a class.
        """

    def classes_of(self, stated: Sequence[str]) -> list[str]:
        """Return the classes of a classifier in the order of its logits, given those that its config.json states."""
        return list(stated)


def model_settings(**settings: Any) -> ModelConfig:
    """Return the settings of a model, also those that installed packages add."""
    return extended(ModelConfig)(**settings)


@dataclass
class DataConfig(Checked, part="data"):
    """Text, and how it becomes rows of tokens."""

    elsewhere: ClassVar[tuple[str, ...]] = ("source", "files", "hub_id")

    name: str = setting(None, by_recipe=True)  # what results call it; null: the corpus of the model
    source: Source | None = None
    # source=text: files or globs; .txt .jsonl[.gz|.zst] .parquet; source=states: a folder of states
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
    aligned: bool | None = None  # begin each row with a document; what is left of the one before is dropped
    fit_tokens: int | None = setting(None, least=1, most=COUNTS)  # null: as many as training sees
    # held-out tokens that numbers are of
    report_tokens: int | None = setting(None, by_recipe=True, least=2, most=COUNTS)
    # share of the documents that only the report sees
    report_share: float | None = setting(None, above=0, below=1)
    # fit on the report's documents, too, as brown2023 did
    same_split: bool | None = setting(None, by_recipe=True)
    # folder of tokens; null: $THINKALIKE_CACHE or ~/.cache/thinkalike
    cache: FilePath | None = setting(None, in_key=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.name in get_args(Source) and self.source not in (None, self.name):
            raise ConfigError(
                f"data.source={self.source} is not the text of data={self.name}; choose data={self.source}"
            )
        if self.source == "text" and not self.has_files:
            raise ConfigError("data=text needs data.files=[...]: files or globs of .txt, .jsonl[.gz|.zst] or .parquet")
        if self.source == "states" and len(self.files or []) != 1:
            raise ConfigError(
                "data=states needs data.files=[FOLDER], one folder of states, whose rows of text are read"
            )
        if self.source == "hub" and not self.hub_id:
            raise ConfigError("data=hub needs data.hub_id=<data set of the Hugging Face hub, ORG/NAME>")

    @property
    def has_files(self) -> bool:
        """Whether it names files of text; texts in memory take their place."""
        return bool(self.files)

    def by_recipe(self, job: JobConfig) -> SettingValues:
        if self.source in (None, "grammar", "states"):
            return {}
        return {"report_tokens": 2**18 if job.is_mini else 2**20, "same_split": job.recipe == "paper"}

    def settings_read(self) -> frozenset[str]:
        of_hub = {"hub_id", "subset", "split", "revision", "hub_files"}
        by_source = {
            "text": {"files", "field", "group"},
            "grammar": {"sentences"},
            "hub": {*of_hub, "field", "group"},
            "states": {"files"},
        }
        of_any_source = {"files", "field", "group", "sentences", *of_hub}
        of_other_sources = of_any_source - by_source.get(self.source or "", set())
        read = super().settings_read() - of_other_sources
        return read - OF_ROWS if self.source == "states" else read


@dataclass
class StimuliConfig(Checked, part="stimuli"):
    """What states and features are of: words of controlled sentences, or the user's own."""

    kind: Literal["controlled", "crossed", "table", "conllu"] = "controlled"  # of a grammar, or files of the user's
    # kind=controlled: how many; null: 400
    sentences: int | None = setting(None, least=1, most=COUNTS)
    grammar: str = "small"  # kind=controlled: small | large | crossed
    # kind=table (.csv .tsv .parquet), conllu: the file
    path: FilePath | None = setting(None, in_key=False)
    features: list[str] | None = None  # null: all
    kinds: dict[str, str | list[Any]] | None = None  # nominal | ordinal | numeric | continuous | [levels]
    columns: dict[str, str | None] | None = None  # kind=table: {text | word | start | stop | sentence | id: column}
    token: Literal["last", "mean", "first"] = "last"  # whose state is that of a word or text: [CLS] is the first
    sample: int | None = setting(None, least=1, most=COUNTS)  # how many stimuli; null: all
    balance: list[str] = field(default_factory=list)  # features whose combinations come equally often in the sample
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
        by_kind = {"controlled": {"sentences", "grammar"}, "table": {"path", "columns"}, "conllu": {"path"}}
        of_other_kinds = {"sentences", "grammar", "path", "columns"} - by_kind.get(self.kind, set())
        read = super().settings_read() - of_other_kinds
        return read if self.sample else read - {"balance"}


@dataclass
class TrainerConfig(Checked, part="trainer"):
    """How Lightning runs, and how often it keeps a state to go on from; the device is the target's."""

    precision: Literal["32-true", "bf16-mixed"] = "32-true"  # the report never runs under autocast
    matmul: Literal["highest", "high", "medium"] = "highest"  # of float32 products in training
    compile: bool = False  # compile the frozen blocks: slow to start, then faster on a GPU
    strategy: Literal["auto", "ddp"] = "auto"  # ddp: `devices` processes share the rows of a step
    # ddp: processes per node; null: one for each GPU
    devices: int | None = setting(None, least=1, most=10**4)
    num_nodes: int = setting(1, least=1, most=10**5)  # ddp: machines that share a job
    # steps; then a state is kept
    checkpoint_every: int = setting(50, least=1, most=STEPS, in_key=False)
    log_every: int = setting(10, least=1, most=STEPS, in_key=False)  # steps; then losses are read, checked and logged
    # task=stitch: the most of a process, as 8GB; null: what is free, and 2 GiB for states on a CPU outside training
    memory: Size | None = setting(None, in_key=False)
    callbacks: list[Plugin] = field(default_factory=list)  # of plugins, in this order
    # task=stitch: keep no states inside the frozen blocks: less memory, more time
    recompute: bool = setting(False, in_key=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.strategy == "auto" and (self.devices or 1, self.num_nodes) != (1, 1):
            raise ConfigError("trainer.devices and trainer.num_nodes are for several processes; add trainer=ddp")


@dataclass
class LoggerConfig(Checked, part="logger"):
    """Where curves go, and what else is known of a job: none, csv, wandb or tensorboard."""

    kind: Literal["none", "csv", "wandb", "tensorboard"] = "csv"  # csv: curves beside the result
    project: str = "thinkalike"  # of W&B
    entity: str | None = None  # of W&B: user or team; null: the default of the key
    group: str | None = None  # of W&B; null: the sweep, if the job belongs to one

    def settings_read(self) -> frozenset[str]:
        read = super().settings_read()
        return read if self.kind == "wandb" else read - {"project", "entity", "group"}


@dataclass
class MeasureConfig(Checked, part="measure"):
    """The settings that every measure has; the schema of each kind stands in the file of its instrument."""

    kind: Annotated[str, Field(min_length=0)] = ""
    schemas: ClassVar[dict[str, type[MeasureConfig]]] = {}  # by kind

    def __init_subclass__(cls, **more: Any) -> None:
        super().__init_subclass__(**more)
        if "kind" in vars(cls):
            MeasureConfig.schemas[cls.kind] = cls


Measure = TypeVar("Measure", bound=MeasureConfig)


@dataclass
class JobConfig(Checked):
    """The settings that both entry points have."""

    model: ModelConfig = field(default_factory=model_settings)
    target: ModelConfig = field(default_factory=model_settings)  # of jobs of two models
    # of layer pairs: same: l to l for every l; all; [0,3]; or [[0,0],[1,2]]
    layers: Layers = setting("same", by_recipe=True)
    data: DataConfig = field(default_factory=DataConfig)
    scale: Literal["auto", "mini", "paper"] = "auto"  # size of the recipe; auto: mini for small models or without a GPU
    recipe: Literal["honest", "paper"] = "honest"  # paper: fitted, split and reported as the papers state it
    trainer: TrainerConfig = field(default_factory=TrainerConfig)
    logger: LoggerConfig = setting(LoggerConfig, in_key=False)
    # CPU threads; null: torch's default
    threads: int | None = setting(None, least=1, most=1024, in_key=False)
    seed: int = setting(0, least=0, most=SEEDS)  # of all that is drawn at random
    # the folder that results go to; null, in Python alone: the result stays in memory
    store: Annotated[FilePath, AfterValidator(_of_one_line)] | None = setting("results", in_key=False)
    force: bool = setting(False, in_key=False)  # do a finished job again
    # for another process that is at the same job; false refuses
    wait: bool = setting(True, in_key=False)
    dry_run: bool = setting(False, in_key=False)  # print what it would take, and do nothing
    # of time on this machine, 90s, 10min or 2h: it chooses layers, text, steps and kind of map that are left open
    budget: Annotated[str, Field(pattern=r"^[1-9][0-9]{0,3}(s|min|h)$")] | None = setting(None, in_key=False)

    @property
    def is_mini(self) -> bool:
        """Whether the job is of the size that suits a laptop, and not that of the papers."""
        named = [model for model in (self.model, self.target) if model.name is not None]
        return chosen_scale(self.scale, named)[0] == "mini"


@dataclass
class TrainConfig(JobConfig):
    """What all that `train.py` fits has in common; the schema of each task adds its own parts."""

    task: str = "stitch"  # what is fitted
    # what penalties stand beside: bits: the target rounded to 2 to 8 bits; null: nothing
    ruler: Literal["bits"] | None = "bits"
    similarity: bool = False  # also say whether the states of stitched layers are similar, as measure=ruler has it


@dataclass
class AnalyzeConfig(JobConfig):
    """All that `analyze.py` needs to know; the schemas of some measures add parts of their own."""

    measure: MeasureConfig = field(default_factory=MeasureConfig)
    stimuli: StimuliConfig = field(default_factory=StimuliConfig)  # of measures that look at words
    # instead of the model, or of the target where a model is named: a file, two, or subjects
    activations: FilePath | Recordings | None = setting(None, in_key=False)
    # instead of model and target: jobs of one pass
    models: list[str | dict[str, Any]] | None = setting(None, in_key=False)
    experiment: str | None = None  # a paper's figure or table; takes the place of measure
    ruler: Literal["bits"] | None = None  # bits: values stand beside copies of both models of 2 to 8 bits
    trainer: TrainerConfig = setting(TrainerConfig, in_key=False)  # which processes share the job

    def __post_init__(self) -> None:
        super().__post_init__()
        self.activations = [self.activations] if isinstance(self.activations, str) else self.activations
        given = self.activations or []
        if len(given) == 1 and len(self.beside_recordings) == 2:
            raise ConfigError(
                f"activations={given[0]} takes the place of model= or of model@target=; leave one of them out"
            )
        if len(self.recordings) < len(given) and (len(given) > 2 or self.beside_recordings):
            raise ConfigError(f"activations={given} names a file more than once; give each subject once")

    def measure_as(self, schema: type[Measure]) -> Measure:
        """Return the settings of the measure, which are of this schema: its instrument knows that, and nobody else."""
        assert isinstance(self.measure, schema), f"measure={self.measure.kind} is no {schema.__name__}"
        return self.measure

    def without_model(self) -> AnalyzeConfig:
        """Return a configuration with recordings, with those models alone that are asked for beside them."""
        return with_settings(self, self.unread_beside_recordings())

    def unread_beside_recordings(self) -> SettingValues:
        """Return what recordings leave without effect: models that are not asked for, and, without any model, what is
        of states of tokens. See `Instrument.unread`.
        """
        unread: dict[str, Any] = {name: None for name in ("model", "target") if name not in self.beside_recordings}
        if not self.beside_recordings:
            unread |= {"layers": "same", "stimuli.token": "last"}
            of_tokens = {"embed": False, "massive": "drop"}
            measured = {item.name for item in fields_of(self.measure)}
            unread |= {f"measure.{name}": value for name, value in of_tokens.items() if name in measured}
        return unread

    @property
    def recordings(self) -> list[str | RecordedArrays]:
        """The different files of `activations`, or arrays in memory that take their place."""
        entries = [str(Path(entry)) if isinstance(entry, str) else entry for entry in self.activations or []]
        return list(dict.fromkeys(entries))

    @property
    def subjects(self) -> list[str | RecordedArrays]:
        """The files of `activations` where they are subjects: three or more, or two beside a model that is named."""
        several = len(self.recordings)
        return self.recordings if several > 2 or (several == 2 and self.beside_recordings) else []

    @property
    def beside_recordings(self) -> dict[str, ModelConfig]:
        """The different models beside recordings, by part: those that are named."""
        named = {name: model for name in ("model", "target") if (model := getattr(self, name)).name is not None}
        return named if named.get("target") != self.model else {"model": self.model}


def chosen_scale(scale: str, models: Sequence[Any]) -> tuple[str, str]:
    """Return the scale of a recipe, mini or paper, and why it was chosen, or nothing if that needs no words."""
    models = [model for model in models if not model.holds_states]  # which run no model, on whatever machine
    if scale != "auto" or all(model.mini for model in models):
        return ("mini" if scale == "auto" else scale), ""
    if all(_is_small(model) for model in models if not model.mini):
        return "mini", "these models are small"
    import torch

    return ("paper", "this machine has a GPU") if torch.cuda.is_available() else ("mini", "this machine has no GPU")


def _is_small(model: Any) -> bool:
    """Return whether a model is known to be small: by its weights in memory, or by the files in its folder."""
    if model.is_in_memory:
        return bool(4 * model.weights < SMALL)
    return bool(model.path) and _bytes_in(Path(model.path)) < SMALL


def _bytes_in(folder: Path) -> int:
    """Return the bytes of the files of a folder; 0 for anything else."""
    if not is_folder(folder):
        return 0
    with os.scandir(folder) as entries:
        return sum(entry.stat().st_size for entry in entries if entry.is_file())
