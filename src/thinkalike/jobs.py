"""Jobs as objects: each holds what it is of and exactly the settings that it reads, and `run` does it.

    job = Compare("gelu-3l-mini", "solu-3l-mini", measure="mutual_knn", neighbours=20)
    result = run(job)                       # in memory
    result = run(job, store="results")      # kept in a folder, and found again there

A field is the setting of the same name of a command line, with its default; None leaves it to the job. Its part, such
as `measure.` or `data.`, follows from the schemas, see `setting_of`. Models, texts, stimuli and arrays of states are
given by name or as objects, see `thinkalike.inputs`.
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
import re
import tempfile
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, fields, replace
from typing import Any, ClassVar

import numpy as np
from torch import Tensor

from thinkalike import plugins
from thinkalike.arguments import check_rows, checked_numbers
from thinkalike.config import ModelConfig, measure_entry, measure_schema, part_named
from thinkalike.config.groups import open_job, unset_settings
from thinkalike.config.parts import AnalyzeConfig, DataConfig, StimuliConfig
from thinkalike.config.recorded import RecordedArrays
from thinkalike.config.schema import made
from thinkalike.errors import ConfigError, ThinkalikeError, checked_path
from thinkalike.global_state import isolated
from thinkalike.inputs import (
    Arrays,
    Model,
    StimulusTable,
    Text,
    is_model,
    model_configs,
    numbered_rows,
    recorded,
    stimuli_config,
    text_config,
)
from thinkalike.instruments import check_read, run_job
from thinkalike.screen import watched
from thinkalike.store import Result
from thinkalike.training.recipe import StitchConfig, StitchJob

Folder = str | os.PathLike[str]
Layers = str | Sequence[int] | Sequence[Sequence[int]]
Side = Model | Arrays

INPUTS = ("texts", "stimuli", "measure", "store", "force")  # fields that are no settings, beside the sides
OF_MODELS = ("site", "head")  # fields that are settings of the models
OF_WORDS = ("measure.skip_first",)  # settings of measures that choose among the words of stimuli
MOST_ITEMS = 10**6  # of a setting that is a list


@dataclass(frozen=True, kw_only=True, eq=False)
class Job:
    """A computation, with everything that decides its numbers; each kind of job is a subclass.

    Args:
        threads: CPU threads; None takes torch's default.
        store: the folder in which its result is kept and found again; None: the result stays in memory.
        force: do it again if the store has its result.

    Raises:
        ConfigError: An argument has a wrong type or value; the message names it.

    >>> isinstance(Compare("gelu-3l-mini", "solu-3l-mini", measure="mutual_knn", neighbours=20), Job)
    True
    """

    SIDES: ClassVar[tuple[str, ...]] = ("model",)  # the fields that hold what is compared
    # The job itself says which of its arguments is wrong, before a checker of types that somebody installs.
    __no_type_check__ = True

    threads: int | None = None
    store: Folder | None = None
    force: bool = False

    def __post_init__(self) -> None:
        self._check_paths()
        given = {name: value for name, value in vars(self).items() if value is not None}
        try:
            vars(self).update(checked_numbers(type(self).__init__, given))
        except ValueError as error:
            raise ConfigError(error) from None
        for name, default in self.defaults().items():
            value = plain_setting(name, getattr(self, name))
            vars(self)[name] = default if value is None else value
        self._check_sides()

    @property
    def does(self) -> str:
        """The name of the task or the measure that does the job, such as stitch or mutual_knn."""
        return type(self).__name__.lower()

    def sides(self) -> dict[str, Any]:
        """Return what is compared, by the names of the arguments; a single one stands for both sides."""
        first, *others = (getattr(self, name) for name in self.SIDES)
        if isinstance(first, list):
            return {f"{self.SIDES[0]}[{number}]": side for number, side in enumerate(first)}
        return {name: first if side is None else side for name, side in zip(self.SIDES, [first, *others], strict=True)}

    @classmethod
    def defaults(cls) -> dict[str, Any]:
        """Return the settings with their defaults."""
        return {item.name: item.default for item in fields(cls) if item.name not in (*cls.SIDES, *INPUTS)}

    def settings(self) -> dict[str, Any]:
        """Return the settings that differ from their defaults."""
        given = {}
        for name, default in self.defaults().items():
            value = getattr(self, name)
            if value is not None and value != _plain(default):
                given[name] = value
        return given

    def _check_paths(self) -> None:
        """Raise a ConfigError for a path that no file can have, of whatever may be one."""
        may_be_paths = self.sides() | {name: getattr(self, name, None) for name in ("texts", "stimuli")}
        for name, value in may_be_paths.items():
            if isinstance(value, str | os.PathLike):
                checked_path(name, value)
        if self.store is not None:
            checked_path("store", self.store)

    def _check_sides(self) -> None:
        """Raise a ConfigError for a side that is neither a model nor states, or a table in another order of rows."""
        sides = self.sides()
        if not sides:
            raise ConfigError(f"{self.SIDES[0]} is empty: give a list of models or of arrays")
        for name, side in sides.items():
            if not (is_model(side) or isinstance(side, str | os.PathLike | Mapping) or hasattr(side, "__array__")):
                raise ConfigError(
                    f"{name} is {type(side).__name__}: give a name, (model, tokenizer), a bridge or arrays"
                )
        # This is the last place that has the labels of tables: states become tensors, and stimuli are numbered.
        tables = {**sides, "stimuli": getattr(self, "stimuli", None)}
        try:
            check_rows((name, side) for name, side in tables.items() if not is_model(side))
        except ValueError as error:
            raise ConfigError(error) from None


@dataclass(frozen=True, eq=False)
class Stitch(Job):
    """Can the target use what the source computes? Fit a map between their residual streams at each layer.

    The table has the loss of each stitch, its `penalty` in nats per token with its interval, the
    baselines beside it, the bits of the target where it loses as much, and what more training would
    gain; `tables["details"]` has all columns. Without a target the source is stitched to itself.
    With site="resid_mid" layers are before the MLP of each block. With similarity=True the details
    also say how much of the states of both models is shared.

    >>> result = stitch("gelu-3l-mini", layers=[1], steps=4, tokens_per_step=256, report_tokens=2048)
    >>> list(result.table["source_layer"])
    [1]
    """

    SIDES: ClassVar[tuple[str, ...]] = ("source", "target")

    source: Model
    target: Model | None = None
    _: KW_ONLY
    texts: Text | None = None
    layers: Layers | None = None
    site: str = "resid_post"
    kind: str = "linear"
    norm: str | None = None
    rank: int = 16
    init: str | None = None
    ridge: float | None = None
    loss: str | None = None
    controls: bool = False
    floor: bool | None = None
    both: bool = False
    similarity: bool = False
    optimizer: str | None = None
    whiten: bool | None = None
    lr: float | None = None
    lr_multiples: Sequence[float] = ()
    seeds: int = 1
    momentum: float = 0.9
    scale_lr_by_momentum: bool = True
    weight_decay: float | None = None
    clip: float = 1.0
    schedule: str | None = None
    steps: int | None = None
    warmup: int | None = None
    tokens_per_step: int | None = None
    field: str | None = None
    group: str | None = None
    context: int | None = None
    fit_tokens: int | None = None
    report_tokens: int | None = None
    report_share: float | None = None
    scale: str = "auto"
    recipe: str = "honest"
    seed: int = 0


@dataclass(frozen=True, eq=False)
class Compare(Job):
    """How alike is every layer of one model to every layer of another? By CKA, or by another measure of layer pairs.

    Args:
        site: where states are taken, by TransformerLens's names, such as "attn_out", "mlp_out", "z" or "resid_mid"; of
            a list, or of every head of "z" with head="all", `tables["components"]` has the values by layer and place.
        measure: its name on the command line, such as mutual_knn, r2 or ruler, or a function of two matrices (n, d)
            and (n, e) to a number, which goes with no `store`.
        estimator: of CKA. With "unbiased", the default, `value` is the ratio of HSICs less the bias that a jackknife
            over documents, or rows of arrays, estimates. The column `uncorrected` has the ratio with this bias, which
            is `thinkalike.cka(X, Y)` of arrays in one batch; aggregate="mean_of_ratios" takes no bias off.
        ruler: "bits": `tables["readings"]` has what some values are in bits of both models.

    >>> result = compare("gelu-3l-mini", "solu-3l-mini", batches=2, tokens_per_batch=128)
    >>> result.arrays["value"].shape
    (3, 3)
    """

    SIDES: ClassVar[tuple[str, ...]] = ("source", "target")

    source: Side
    target: Side | None = None
    _: KW_ONLY
    measure: str | Callable[..., Any] = "cka"
    texts: Text | None = None
    stimuli: StimulusTable | None = None
    layers: Layers | None = None
    site: str | Sequence[str] = "resid_post"
    head: int | str | None = None
    ruler: str | None = None
    batches: int | None = None
    tokens_per_batch: int = 1024
    level: str = "auto"
    embed: bool = False
    massive: str = "drop"
    skip_first: int = 0
    skip_special_tokens: bool = False
    given: str | None = None
    null: bool | None = None
    permutations: int | None = None
    estimator: str = "unbiased"
    aggregate: str = "ratio_of_means"
    kernel: str = "linear"
    flatten: str = "token"
    neighbours: int = 10
    kept: float = 0.99
    words: int = 8192
    field: str | None = None
    group: str | None = None
    context: int | None = None
    report_tokens: int | None = None
    features: Sequence[str] | None = None
    scale: str = "auto"
    recipe: str = "honest"
    seed: int = 0

    def __post_init__(self) -> None:
        if not (isinstance(self.measure, str) or callable(self.measure)):
            raise ConfigError(f"measure is {type(self.measure).__name__}: give a name, such as 'cka', or a function")
        super().__post_init__()

    @property
    def does(self) -> str:
        return plugins.hold(self.measure) if callable(self.measure) else self.measure


@dataclass(frozen=True, eq=False)
class Mlem(Job):
    """Which features of words explain their distances in each layer? The table has the importance of each feature.

    A list of three recordings or more is one of subjects.

    >>> result = mlem("gpt2-mini", sample=60, features=["Number"], folds=2, references=0)
    >>> sorted(set(result.table["feature"]))
    ['Number']
    """

    SIDES: ClassVar[tuple[str, ...]] = ("model", "target")

    model: Side | list[Any]
    target: Side | None = None
    _: KW_ONLY
    stimuli: StimulusTable | None = None
    features: Sequence[str] | None = None
    kinds: Mapping[str, Any] | None = None
    columns: Mapping[str, str | None] | None = None
    token: str = "last"
    sample: int | None = None
    layers: Layers | None = None
    site: str | Sequence[str] = "resid_post"
    head: int | str | None = None
    weights: str = "diagonal"
    alphas: Sequence[float] | None = None
    difference: str = "indicator"
    missing: str = "own_level"
    scale: str = "auto"
    folds: int = 5
    together: str = "sentence"
    permutations: int = 5
    given: str | None = None
    interactions: Sequence[Sequence[str]] = ()
    null: int = 0
    references: int = 3
    distance: str = "euclidean"
    embed: bool = False
    massive: str = "drop"
    skip_first: int = 0
    recipe: str = "honest"
    seed: int = 0

    def __post_init__(self) -> None:
        if isinstance(self.model, list) and self.target is not None:
            raise ConfigError("target= has no effect beside a list of models or recordings; add the target to the list")
        super().__post_init__()


@dataclass(frozen=True, eq=False)
class Rsa(Job):
    """How alike are the distances of stimuli in every two layers? Of models on stimuli, or of arrays of states.

    With `stimuli`, a list of one or two models, or of arrays with a row for each stimulus, gives a `Result`. It does
    not depend on `features`, which serve to leave out columns of a table that cannot be read as features. Without
    them, arrays of states (n, d) give the matrix of `thinkalike.measures.rsa`, with `others` by default themselves.

    >>> rsa([torch.randn(9, 4), torch.randn(9, 3)]).shape
    torch.Size([2, 2])
    >>> len(rsa(["gpt2-mini", "bert-mini"], stimuli="crossed", sample=40, layers=[0, 1]).table)
    16
    """

    SIDES: ClassVar[tuple[str, ...]] = ("models",)

    models: Sequence[Any]
    _: KW_ONLY
    stimuli: StimulusTable
    distance: str = "euclidean"
    comparator: str = "spearman"
    features: Sequence[str] | None = None
    columns: Mapping[str, str | None] | None = None
    token: str = "last"
    sample: int | None = None
    layers: Layers | None = None
    site: str | Sequence[str] = "resid_post"
    head: int | str | None = None
    permutations: int = 0
    noise: str = "shrinkage"
    resamples: int = 1000
    embed: bool = False
    massive: str = "drop"
    skip_first: int = 0
    seed: int = 0

    def __post_init__(self) -> None:
        if not isinstance(self.models, list | tuple):
            raise ConfigError("rsa on stimuli takes one list of models, and no others")
        super().__post_init__()

    def sides(self) -> dict[str, Any]:
        return {f"models[{number}]": side for number, side in enumerate(self.models)}


@dataclass(frozen=True, eq=False)
class Diff(Job):
    """What did a change do to a model? The result says whether, where and on what it shows, and within which margin.

    >>> diff("gelu-3l-mini", "gelu-3l-mini").scalars["kl"]
    0.0
    """

    SIDES: ClassVar[tuple[str, ...]] = ("base", "changed")

    base: Model
    changed: Model
    _: KW_ONLY
    texts: Text | None = None
    tokens: int = 2048
    tokens_per_part: int = 512
    outputs: int = 4
    null: str = "perturbation"
    steps: int = 40
    contrast: str | None = None
    path: str | None = None
    pairs: int = 2048
    other: str | None = None
    margin: Mapping[str, float] | None = None
    field: str | None = None
    group: str | None = None
    context: int | None = None
    report_share: float | None = None


@dataclass(frozen=True, eq=False)
class Lineage(Job):
    """Does the target derive from the source, and which of its blocks? An exact test of weights, which reads no text.

    The table has the hidden units in common positions for every two blocks, with p-values under independent training.
    `tables["origins"]` has the origin of each block of the target. With likeness=False copies whose units were
    reordered are not looked for.

    >>> result = lineage("bert-mini", "bert-mini-nli")
    >>> result.scalars["blocks_with_origin"]
    6.0
    """

    SIDES: ClassVar[tuple[str, ...]] = ("source", "target")

    source: Model
    target: Model
    _: KW_ONLY
    likeness: bool = True


@dataclass(frozen=True, eq=False)
class Loss(Job):
    """How well does a model predict held-out text? The table has its loss beside the entropy of single tokens.

    >>> result = run(Loss("gelu-3l-mini", report_tokens=2048))
    >>> list(result.table["model"])
    ['gelu-3l-mini']
    """

    model: Model
    _: KW_ONLY
    texts: Text | None = None
    field: str | None = None
    group: str | None = None
    context: int | None = None
    report_tokens: int | None = None
    report_share: float | None = None
    scale: str = "auto"


@dataclass(frozen=True, eq=False)
class Trajectory(Job):
    """How do representations form over the checkpoints of a run, a folder or a model of the hub?

    >>> trajectory("gelu-3l-mini")
    Traceback (most recent call last):
    thinkalike.errors.ConfigError: ...
    """

    model: Folder | ModelConfig
    _: KW_ONLY
    texts: Text | None = None
    stimuli: StimulusTable | None = None
    steps: str | Sequence[int] = "all"
    checkpoints: str = "*"
    tokens: int = 4096
    importance: bool = True
    folds: int = 5
    least: int = 20
    permutations: int = 99
    features: Sequence[str] | None = None
    sample: int | None = None
    site: str = "resid_post"
    head: int | None = None
    field: str | None = None
    group: str | None = None
    context: int | None = None
    seed: int = 0


def run(job: Job, store: Folder | None = None, force: bool = False) -> Result:
    """Do a job, or return its result if the store has it.

    Args:
        store: the folder in which the result is kept and found again; None takes that of the job, or none at all: then
            the result is in memory, and nothing is written.
        force: do it again if the store has its result.

    >>> result = run(Compare("gelu-3l-mini", "solu-3l-mini", batches=2, tokens_per_batch=128))
    >>> result.is_kept
    False
    """
    if store is not None or force:
        job = replace(job, store=job.store if store is None else store, force=force or job.force)
    does = job.does
    check_measure(job, does)
    with isolated(), contextlib.ExitStack() as kept, naming(job), watched():
        config = configuration(job, does)
        if config.store is None and plugins.instrument_of(config).needs_store:
            config = replace(config, store=kept.enter_context(tempfile.TemporaryDirectory(prefix="thinkalike-")))
        result = run_job(config, shown=False)
        weakref.finalize(result, kept.pop_all().close)
    return result


def check_measure(job: Job, does: str) -> None:
    """Raise a ConfigError unless a measure compares two sides; code that the job names is run from now on."""
    plugins.trust(plugins.named_in([does, *job.settings().values()]))
    if isinstance(job, Stitch):
        return
    if isinstance(job, Compare) and callable(job.measure) and job.store is not None:
        raise ConfigError("measure is a function in memory, which has no key: with store= give FILE.py:NAME")
    instrument = plugins.instrument(measure_entry(does))
    if isinstance(job, Compare) and "model" not in instrument.reads:
        raise ConfigError(f"measure={does} is of more than two models: use python analyze.py measure={does}")


def configuration(job: Job, does: str) -> Any:
    """Return the configuration of a job, as a command line gives it, in which everything else is left open."""
    sides = job.sides()
    models = {name: side for name, side in sides.items() if is_model(side)}
    recordings = _recordings(sides)
    settings = _by_part(job, does)
    if len(models) > 2:
        raise ConfigError(f"{does} compares two models at most, and not {len(models)}: call it for each pair")
    if recordings:
        _check_takes_arrays(does)
    if not models:
        _check_of_arrays(settings)
    texts, stimuli = getattr(job, "texts", None), getattr(job, "stimuli", None)
    if recordings and stimuli is None:
        stimuli = _stimuli_of_rows(does, recordings, has_models=bool(models), settings=settings)

    parts: dict[str, Any] = {
        "data": text_config(texts, settings["data"]),
        "store": None if job.store is None else os.fspath(job.store),
        "force": job.force,
        **settings[""],
    }
    if isinstance(job, Stitch):
        schema: Any = StitchJob
        parts["stitch"] = made(StitchConfig, unset_settings(StitchConfig) | settings["stitch"], "stitch.")
    else:
        schema = plugins.instrument(measure_entry(does)).config
        parts["measure"] = part_named("measure", does, settings["measure"])
        parts["stimuli"] = stimuli_config(stimuli, settings["stimuli"])
    configs = model_configs(models, settings["model"])
    # The model beside recordings is the target, unless it comes before the only one.
    comes_first = len(recordings) == 1 and is_model(next(iter(sides.values())))
    is_target = bool(recordings) and len(configs) < 2 and not comes_first
    if recordings:
        parts["activations"] = recordings
    if configs and not is_target:
        parts["model"] = configs[0]
    if configs:
        parts["target"] = configs[-1]
    config = open_job(schema, **parts)

    given = [name for name, value in (("data", texts), ("stimuli", stimuli)) if value is not None]
    if len(set(map(id, models.values()))) > 1:
        given.append("target")
    for part, values in settings.items():
        part = "target" if part == "model" and is_target else part
        given += [f"{part}.{name}".lstrip(".") for name in values]
    check_read(given, config)
    return config


def _by_part(job: Job, does: str) -> dict[str, dict[str, Any]]:
    """Return the settings of a job that differ from their defaults, by part; "" has those of the job itself."""
    parts: dict[str, dict[str, Any]] = {part: {} for part in ("", "stitch", "measure", "data", "stimuli", "model")}
    for field, value in job.settings().items():
        part, _, name = setting_of(field, does).rpartition(".")
        parts[part][name] = value
    return parts


def setting_of(field: str, does: str) -> str:
    """Return the setting that a field of a job is, such as stitch.steps, given what does the job."""
    if field in OF_MODELS:
        return f"model.{field}"
    first = {"stitch": StitchConfig} if does == "stitch" else {"measure": measure_schema(does)}
    for part, schema in {**first, "data": DataConfig, "stimuli": StimuliConfig}.items():
        if field in {item.name for item in fields(schema)} - {"seed"}:  # which is the job's
            return f"{part}.{field}"
    schema = StitchJob if does == "stitch" else AnalyzeConfig
    if field not in {item.name for item in fields(schema)}:
        raise ConfigError(f"{field} is no setting of {does}; leave it out")
    return field


# ---- arrays of states in place of models


def _recordings(sides: Mapping[str, Any]) -> list[str | RecordedArrays]:
    """Return the recorded states among the sides, each once, by the name of the first argument that has it."""
    different: dict[int, tuple[str, Any]] = {}
    for name, side in sides.items():
        if not is_model(side):
            different.setdefault(id(side), (name, side))
    return [recorded(side, name, number) for number, (name, side) in enumerate(different.values(), 1)]


def _check_takes_arrays(does: str) -> None:
    if does == "stitch" or not plugins.instrument(measure_entry(does)).takes_activations:
        raise ConfigError(f"{does} runs models, and states that are given cannot run")


def _check_of_arrays(settings: Mapping[str, Mapping[str, Any]]) -> None:
    """Raise a ConfigError for a setting of models, of which there are none."""
    without_effect = [*settings["model"]]
    if "scale" in settings[""]:  # `check_read` lets the scale pass that is the default anyway
        without_effect.append("scale")
    if without_effect:
        raise ConfigError(f"{without_effect[0]}= has no effect on arrays, which no model computes; leave it out")


def _stimuli_of_rows(
    does: str, recordings: Sequence[str | RecordedArrays], has_models: bool, settings: Mapping[str, Mapping[str, Any]]
) -> Any:
    """Return stimuli that stand for the rows of arrays that were given without any."""
    given = [f"{part}.{name}" for part, values in settings.items() for name in values]
    for setting in given:
        if setting.startswith("stimuli.") or setting in OF_WORDS:
            raise ConfigError(f"{setting} has no effect on arrays without stimuli; leave it out")
    arrays = [each for each in recordings if isinstance(each, RecordedArrays)]
    if does == "mlem" or has_models or len(arrays) < len(recordings):
        raise ConfigError("stimuli is missing: a table that has a row for each row of the states")
    return numbered_rows(arrays[0])


# ---- settings as plain values, and errors in the words of a job


def plain_setting(name: str, value: Any) -> Any:
    """Return a setting as configurations have it; a ConfigError names one that no configuration can have."""
    count = _count(value)
    if count > MOST_ITEMS:
        raise ConfigError(f"{name} holds {count:,} values: give at most {MOST_ITEMS:,}")
    try:
        return _plain(value)
    except TypeError as error:
        raise ConfigError(f"{name} holds {error}: give text, numbers, True or False, or a list of them") from None


def _count(value: Any) -> int:
    """Return how many values a list or an array has, 1 for anything else, without going through them."""
    if isinstance(value, Tensor | np.ndarray):
        return math.prod(value.shape)
    return len(value) if isinstance(value, Sequence) and not isinstance(value, str) else 1


def _plain(value: Any) -> Any:
    """Return a setting as configurations have it: lists for tuples and arrays, dictionaries, text for paths.

    A TypeError names the type of a value that no configuration can have.
    """
    if hasattr(value, "tolist"):  # of NumPy, torch and pandas, whose comparisons are arrays
        return _plain(value.tolist())
    if isinstance(value, Mapping):
        return {_plain(name): _plain(inner) for name, inner in value.items()}
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if value is None or isinstance(value, str | bool | int | float):
        return value
    if isinstance(value, Sequence) and not isinstance(value, bytes | bytearray | memoryview):
        return [_plain(inner) for inner in value]
    raise TypeError(type(value).__name__)


@contextlib.contextmanager
def naming(job: Job) -> Iterator[None]:
    """Let errors and warnings call the settings of a job as its user writes them, not as a command line has them."""
    make_record = logging.getLogRecordFactory()

    def make_record_in_words(*arguments: Any, **named: Any) -> logging.LogRecord:
        record = make_record(*arguments, **named)
        if record.name.partition(".")[0] == "thinkalike":
            record.msg = _in_words_of(job, record.getMessage())
            record.args = ()
        return record

    logging.setLogRecordFactory(make_record_in_words)
    try:
        yield
    except ThinkalikeError as error:
        error.args = (_in_words_of(job, str(error)),)
        raise
    finally:
        logging.setLogRecordFactory(make_record)


WORD = r"[a-z][\w-]*(?![\w.|:/(\[-])"
"""A value of a setting that is one word, such as keep or true, and not the first of a longer text."""


def _in_words_of(job: Job, message: str) -> str:
    """Return a message in which settings are arguments of the function that did a job."""
    names = "|".join([*job.defaults(), *INPUTS])
    message = re.sub(r"\b(?:stimuli\.)?kinds\.([^=,;:.]+)=(\[[^]]*\]|\w+)", _kinds_as_argument, message)
    for setting in (rf"(?:stitch|measure|data|stimuli)\.({names})", r"model\.(site|head)", "(force)"):
        message = re.sub(rf"\b{setting}=({WORD})", _as_argument, message)
        message = re.sub(rf"\b{setting}\b", r"\1", message)
    message = re.sub(rf"\b(model)\.(\w+)=({WORD})", _as_argument_of_loading, message)

    texts = getattr(job, "texts", None)
    if texts is not None and not isinstance(texts, str | os.PathLike):
        message = re.sub(r"\bdata(?:=| )text\b", "texts", message)
    message = re.sub(r"\bdata=", "texts=", message)
    message = re.sub(r"\bdata\.files\b", "texts", message)
    return re.sub(r"\bmodel@target=", "target=", message)


def _as_argument(match: re.Match[str]) -> str:
    """Return the name and the value of a setting as an argument in Python."""
    name, value = match.groups()
    return f"{name}={_as_python(value)}"


def _as_argument_of_loading(match: re.Match[str]) -> str:
    """Return a setting of a model, which functions do not take, as an argument of `load_model`."""
    _, name, value = match.groups()
    return f"load_model(..., {name}={_as_python(value)})"


def _kinds_as_argument(match: re.Match[str]) -> str:
    """Return the kind of a feature as an argument in Python; a kind is a word, or a list of levels."""
    name, kind = match.groups()
    written = kind if kind.startswith("[") else f"{kind!r}"
    return f"kinds={{{name!r}: {written}}}"


def _as_python(value: str) -> str:
    """Return a word of a command line as Python writes it."""
    constants = {"true": "True", "false": "False", "null": "None"}
    return constants.get(value, f'"{value}"')
