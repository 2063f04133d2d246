"""A function for each instrument: what its command does, of models, text and stimuli as a notebook has them.

- A model is a name, ORG/NAME, a folder, a model that `load_model` gave, a `TransformerBridge`, or a pair (model of
  transformers, tokenizer). `mlem`, `rsa` and `compare` also take arrays, (stimuli, width), one or by names of layers.
- `texts` is the name of a data set, a file, or a list or column of strings or of records with a `field`.
- `stimuli` is a name, a file, or a DataFrame.
- The other keywords are the settings of the same names of a command line, with their defaults; None leaves one to it.
- `store` is the folder in which results are kept and found again, as those of commands; None keeps the result no longer
  than its object.
"""

from __future__ import annotations

import contextlib
import datetime
import hashlib
import json
import math
import os
import re
import tempfile
import weakref
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from inspect import Parameter, signature
from pathlib import Path
from typing import Any, overload

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float
from safetensors.numpy import save_file
from torch import Tensor, nn

from thinkalike import plugins
from thinkalike.arguments import check_rows, checked_numbers, shown, takes_arrays, tensor_of
from thinkalike.config import ModelConfig, compose_open_job, measure_entry, measure_schema, options, part_named
from thinkalike.config.parts import SMALL, AnalyzeConfig, DataConfig, StimuliConfig, model_settings
from thinkalike.config.schema import default_of, is_open
from thinkalike.data.recordings import IDS, IN_ORDER, RUNS
from thinkalike.data.tables import MARKS, with_named_index
from thinkalike.digests import tokenizer_fingerprint
from thinkalike.errors import ConfigError, ThinkalikeError, checked_path, one_line, plain
from thinkalike.global_state import isolated
from thinkalike.instruments import check_read, run_job
from thinkalike.measures.distances.neural import rsa_of_models
from thinkalike.models.behaviour import identity_of
from thinkalike.models.families import IN_MEMORY, label
from thinkalike.models.frozen import FrozenModel
from thinkalike.models.load import configured, load_model
from thinkalike.models.survey import entries_of
from thinkalike.plugins import HELD
from thinkalike.screen import watched
from thinkalike.shards.index import holds_states
from thinkalike.store import Result
from thinkalike.training.recipe import StitchConfig, StitchJob

Model = str | os.PathLike[str] | ModelConfig | FrozenModel | nn.Module | tuple[nn.Module, Any]
Arrays = np.ndarray | Tensor | pd.DataFrame | Mapping[str, Any]
Text = str | os.PathLike[str] | Iterable[str] | Iterable[Mapping[str, Any]]
Table = str | os.PathLike[str] | pd.DataFrame
Layers = str | Sequence[int] | Sequence[Sequence[int]]
OF_WORDS = ("measure.skip_first",)  # settings of measures that choose among the words of stimuli
RESERVED = (IDS, RUNS, "__metadata__")  # names in a file of recorded states that are no layers
TABLE_IN_MEMORY = "DataFrame"  # begins the path of a table in memory, before its digest
LONGEST_NAME = 1000  # letters of the name of a layer
MOST_ITEMS = 10**6  # of a setting that is a list
INPUTS = ("target", "others", "texts", "stimuli", "store", "measure")  # keywords that are no settings


def stitch(
    source: Model, target: Model | None = None, *, texts: Text | None = None, layers: Layers | None = None,
    site: str = "resid_post", kind: str = "linear", norm: str | None = None, rank: int = 16, init: str | None = None,
    ridge: float | None = None, loss: str | None = None, controls: bool = False, floor: bool | None = None,
    both: bool = False, similarity: bool = False, optimizer: str | None = None, whiten: bool | None = None,
    lr: float | None = None, lr_multiples: Sequence[float] = (), seeds: int = 1, momentum: float = 0.9,
    scale_lr_by_momentum: bool = True, weight_decay: float | None = None, clip: float = 1.0,
    schedule: str | None = None, steps: int | None = None, warmup: int | None = None,
    tokens_per_step: int | None = None, field: str | None = None, group: str | None = None,
    context: int | None = None, fit_tokens: int | None = None, report_tokens: int | None = None,
    report_share: float | None = None, scale: str = "auto", recipe: str = "honest", seed: int = 0,
    threads: int | None = None, store: str | os.PathLike[str] | None = None, force: bool = False,
) -> Result:  # fmt: skip
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
    return _result("stitch", stitch, locals(), [source, source if target is None else target])


def compare(
    source: Model | Arrays, target: Model | Arrays | None = None, *, measure: str | Callable[..., Any] = "cka",
    texts: Text | None = None, stimuli: Table | None = None, layers: Layers | None = None,
    site: str | Sequence[str] = "resid_post", head: int | str | None = None, ruler: str | None = None,
    batches: int | None = None, tokens_per_batch: int = 1024, level: str = "auto", embed: bool = False,
    massive: str = "drop", skip_first: int = 0, skip_special_tokens: bool = False, given: str | None = None,
    null: bool | None = None, permutations: int | None = None, estimator: str = "unbiased",
    aggregate: str = "ratio_of_means", kernel: str = "linear", flatten: str = "token", neighbours: int = 10,
    kept: float = 0.99, words: int = 8192,
    field: str | None = None, group: str | None = None, context: int | None = None, report_tokens: int | None = None,
    features: Sequence[str] | None = None, scale: str = "auto", recipe: str = "honest", seed: int = 0,
    threads: int | None = None, store: str | os.PathLike[str] | None = None, force: bool = False,
) -> Result:  # fmt: skip
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
    if callable(measure) and store is not None:
        raise ConfigError("measure is a function in memory, which has no key: with store= give FILE.py:NAME")
    kind = plugins.hold(measure) if callable(measure) else measure
    plugins.trust(plugins.named_in([kind]))
    if (own := plugins.instrument(measure_entry(kind))).of_models == "all" or "model" not in own.reads:
        raise ConfigError(f"measure={kind} is of more than two models: use python analyze.py measure={kind}")
    return _result(kind, compare, locals(), [source, source if target is None else target])


def mlem(
    model: Model | Arrays | list[Any], target: Model | Arrays | None = None, *, stimuli: Table | None = None,
    features: Sequence[str] | None = None, kinds: Mapping[str, Any] | None = None,
    columns: Mapping[str, str | None] | None = None, token: str = "last", sample: int | None = None,
    layers: Layers | None = None, site: str | Sequence[str] = "resid_post", head: int | str | None = None,
    weights: str = "diagonal", alphas: Sequence[float] | None = None, difference: str = "indicator",
    missing: str = "own_level", scale: str = "auto", folds: int = 5, together: str = "sentence", permutations: int = 5,
    given: str | None = None, interactions: Sequence[Sequence[str]] = (), null: int = 0, references: int = 3,
    distance: str = "euclidean", embed: bool = False, massive: str = "drop", skip_first: int = 0,
    recipe: str = "honest", seed: int = 0, threads: int | None = None, store: str | os.PathLike[str] | None = None,
    force: bool = False,
) -> Result:  # fmt: skip
    """Which features of words explain their distances in each layer? The table has the importance of each feature.

    A list of three recordings or more is one of subjects.

    >>> result = mlem("gpt2-mini", sample=60, features=["Number"], folds=2, references=0)
    >>> sorted(set(result.table["feature"]))
    ['Number']
    """
    if isinstance(model, list) and target is not None:
        raise ConfigError("target= has no effect beside a list of models or recordings; add the target to the list")
    sides = model if isinstance(model, list) else [model, model if target is None else target]
    return _result("mlem", mlem, locals(), sides)


@overload
def rsa(
    models: Any, others: Any = None, distance: str = "euclidean", comparator: str = "spearman", *, stimuli: None = None
) -> Tensor: ...
@overload
def rsa(
    models: Sequence[Any], others: None = None, distance: str = "euclidean", comparator: str = "spearman", *,
    stimuli: Table, features: Sequence[str] | None = None, columns: Mapping[str, str | None] | None = None,
    token: str = "last", sample: int | None = None, layers: Layers | None = None,
    site: str | Sequence[str] = "resid_post", head: int | str | None = None, permutations: int = 0,
    noise: str = "shrinkage", resamples: int = 1000, embed: bool = False, massive: str = "drop", skip_first: int = 0,
    seed: int = 0, threads: int | None = None, store: str | os.PathLike[str] | None = None, force: bool = False,
) -> Result: ...  # fmt: skip
def rsa(
    models: Any, others: Any = None, distance: str = "euclidean", comparator: str = "spearman", *,
    stimuli: Table | None = None, features: Sequence[str] | None = None,
    columns: Mapping[str, str | None] | None = None, token: str = "last", sample: int | None = None,
    layers: Layers | None = None, site: str | Sequence[str] = "resid_post", head: int | str | None = None,
    permutations: int = 0, noise: str = "shrinkage", resamples: int = 1000,
    embed: bool = False, massive: str = "drop", skip_first: int = 0, seed: int = 0, threads: int | None = None,
    store: str | os.PathLike[str] | None = None, force: bool = False,
) -> Any:  # fmt: skip
    """How alike are the distances of stimuli in every two layers? Of models on stimuli, or of arrays of states.

    With `stimuli`, a list of one or two models, or of arrays with a row for each stimulus, gives a `Result`. It does
    not depend on `features`, which serve to leave out columns of a table that cannot be read as features. Without
    them, arrays of states (n, d) give the matrix of `thinkalike.measures.rsa`, with `others` by default themselves.

    >>> rsa([torch.randn(9, 4), torch.randn(9, 3)]).shape
    torch.Size([2, 2])
    >>> len(rsa(["gpt2-mini", "bert-mini"], stimuli="crossed", sample=40, layers=[0, 1]).table)
    16
    """
    if stimuli is None:
        if any(map(_is_model, models if isinstance(models, list | tuple) else [models])):
            raise ConfigError("rsa of models needs stimuli: a DataFrame, a file, or a name such as 'controlled'")
        arguments = locals()
        for name in signature(rsa).parameters.keys() - {"models", "others", "distance", "comparator"}:
            if arguments[name] != signature(rsa).parameters[name].default:
                raise ConfigError(f"{name}= has no effect on rsa of arrays without stimuli; leave it out")
        with isolated():
            return takes_arrays(rsa_of_models)(models, others, distance, comparator)
    if others is not None or not isinstance(models, list | tuple):
        raise ConfigError("rsa on stimuli takes one list of models, and no others")
    return _result("rsa", rsa, locals(), models)


def diff(
    base: Model, changed: Model, *, texts: Text | None = None, tokens: int = 2048, tokens_per_part: int = 512,
    outputs: int = 4, null: str = "perturbation", steps: int = 40, contrast: str | None = None, path: str | None = None,
    pairs: int = 2048, other: str | None = None, margin: Mapping[str, float] | None = None, field: str | None = None,
    group: str | None = None, context: int | None = None, report_share: float | None = None,
    threads: int | None = None, store: str | os.PathLike[str] | None = None, force: bool = False,
) -> Result:  # fmt: skip
    """What did a change do to a model? The result says whether, where and on what it shows, and within which margin.

    >>> diff("gelu-3l-mini", "gelu-3l-mini").scalars["kl"]
    0.0
    """
    return _result("diff", diff, locals(), [base, changed])


def trajectory(
    model: str | os.PathLike[str] | ModelConfig, *, texts: Text | None = None, stimuli: Table | None = None,
    steps: str | Sequence[int] = "all", checkpoints: str = "*", tokens: int = 4096, importance: bool = True,
    folds: int = 5, least: int = 20, permutations: int = 99, features: Sequence[str] | None = None,
    sample: int | None = None, site: str = "resid_post", head: int | None = None, field: str | None = None,
    group: str | None = None, context: int | None = None, seed: int = 0, threads: int | None = None,
    store: str | os.PathLike[str] | None = None, force: bool = False,
) -> Result:  # fmt: skip
    """How do representations form over the checkpoints of a run, a folder or a model of the hub?

    >>> trajectory("gelu-3l-mini")
    Traceback (most recent call last):
    thinkalike.errors.ConfigError: ...
    """
    return _result("trajectory", trajectory, locals(), [model])


def checked_arguments(
    function: Callable[..., Any], arguments: Mapping[str, Any], sides: Mapping[str, Any]
) -> dict[str, Any]:
    """Return arguments with numbers and switches of Python; a ConfigError names a wrong one, or a wrong path."""
    may_be_paths = {name: arguments.get(name) for name in ("texts", "stimuli")} | dict(sides)
    paths = {name: value for name, value in may_be_paths.items() if isinstance(value, str | os.PathLike)}
    if arguments["store"] is not None:
        paths["store"] = arguments["store"]
    for name, path in paths.items():
        checked_path(name, path)
    given = {name: value for name, value in arguments.items() if value is not None}
    try:
        return {**arguments, **checked_numbers(function, given)}
    except ValueError as error:
        raise ConfigError(error) from None


def given_settings(function: Callable[..., Any], arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings among the arguments of a function that differ from their defaults, as plain values."""
    given = {}
    for name, default in settings_in(function).items():
        count = _count(arguments[name])
        if count > MOST_ITEMS:
            raise ConfigError(f"{name} holds {count:,} values: give at most {MOST_ITEMS:,}")
        try:
            value = _plain(arguments[name])
        except TypeError as error:
            raise ConfigError(f"{name} holds {error}: give text, numbers, True or False, or a list of them") from None
        if value is not None and value != _plain(default):
            given[name] = value
    return given


def _count(value: Any) -> int:
    """Return how many values a list or an array has, 1 for anything else, without going through them."""
    if isinstance(value, Tensor | np.ndarray):
        return math.prod(value.shape)
    return len(value) if isinstance(value, Sequence) and not isinstance(value, str) else 1


def check_order(sides: Mapping[str, Any]) -> None:
    """Raise a ConfigError if tables among the sides and stimuli have their rows in different orders, by their labels.

    This is the last place that has the labels: states become tensors, and stimuli are numbered.
    """
    try:
        check_rows((name, side) for name, side in sides.items() if not _is_model(side))
    except ValueError as error:
        raise ConfigError(error) from None


def place_of(keyword: str, kind: str) -> str:
    """Return the setting that a keyword of a function is, such as stitch.steps, given the kind of its job."""
    own = {"stitch": StitchConfig} if kind == "stitch" else {"measure": measure_schema(kind)}
    if keyword in ("site", "head"):
        return f"model.{keyword}"
    for part, schema in {**own, "data": DataConfig, "stimuli": StimuliConfig}.items():
        if keyword in {each.name for each in fields(schema)} - {"seed"}:  # which is the job's
            return f"{part}.{keyword}"
    job = StitchJob if kind == "stitch" else AnalyzeConfig
    if keyword not in {each.name for each in fields(job)}:
        raise ConfigError(f"{keyword} is no setting of {kind}; leave it out")
    return keyword


def settings_in(function: Callable[..., Any]) -> dict[str, Any]:
    """Return the keywords of a function that are settings, with their defaults."""
    found = {name: each.default for name, each in signature(function).parameters.items()}
    return {name: value for name, value in found.items() if value is not Parameter.empty and name not in INPUTS}


def _result(kind: str, function: Callable[..., Any], arguments: Mapping[str, Any], sides: Sequence[Any]) -> Result:
    """Return the result of the job that a function does, given its arguments, and what it compares."""
    first, second, *_ = arguments
    names = [f"{first}[{place}]" for place in range(len(sides))] if sides is arguments[first] else [first, second]
    named = dict(zip(names, sides, strict=False))
    given = given_settings(function, checked_arguments(function, arguments, named))
    plugins.trust(plugins.named_in([kind, *given.values()]))
    if not sides:
        raise ConfigError(f"{first} is empty: give a list of models or of arrays")
    for name, side in named.items():
        if not (_is_model(side) or isinstance(side, str | os.PathLike | Mapping) or hasattr(side, "__array__")):
            raise ConfigError(f"{name} is {type(side).__name__}: give a name, (model, tokenizer), a bridge or arrays")
    check_order({**named, "stimuli": arguments.get("stimuli")})
    with isolated(), contextlib.ExitStack() as kept:
        store = os.fspath(arguments["store"] or kept.enter_context(tempfile.TemporaryDirectory(prefix="thinkalike-")))
        with tempfile.TemporaryDirectory(prefix="thinkalike-") as folder, naming([*settings_in(function)]), watched():
            result = _done(kind, {place_of(name, kind): each for name, each in given.items()}, named,
                           arguments.get("texts"), arguments.get("stimuli"), Path(folder), store)  # fmt: skip
        weakref.finalize(result, kept.pop_all().close)
    return result


def _done(
    kind: str, settings: Mapping[str, Any], named: dict[str, Any], texts: Any, stimuli: Any, folder: Path, store: str
) -> Result:
    """Do the job of a kind with these settings of a command line, of models, arrays, text and stimuli in memory."""
    models = {name: each for name, each in named.items() if _is_model(each)}
    arrays = {id(each): each for each in named.values() if not _is_model(each)}
    if arrays and (kind == "stitch" or not plugins.instrument(measure_entry(kind)).takes_activations):
        raise ConfigError(f"{kind} runs models, and states that are given cannot run")
    if len(models) > 2:
        raise ConfigError(f"{kind} compares two models at most, and not {len(models)}: call it for each pair")
    parts: dict[str, dict[str, Any]] = {"stitch": {}, "measure": {}, "data": {}, "stimuli": {}, "model": {}}
    parts[""] = {"store": store}
    for setting, value in settings.items():
        part, _, name = setting.rpartition(".")
        parts[part][name] = value
    if not models and parts["model"]:
        setting = next(iter(parts["model"]))
        raise ConfigError(f"{setting} has no effect on arrays, which no model computes; leave it out")
    if not models and "scale" in settings:  # `check_read` allows the scale that is the default anyway
        raise ConfigError("scale= has no effect on arrays, which no model computes; leave it out")
    layers_of = {id(side): _layers_of(side, name) for name, side in named.items() if not _is_model(side)}
    if arrays and stimuli is None:
        for setting in settings:
            if setting.startswith("stimuli.") or setting in OF_WORDS:
                raise ConfigError(f"{setting} has no effect on arrays without stimuli; leave it out")
        stimuli = _numbered(kind, [*models.values(), *arrays.values()], layers_of)
    with in_place(models) as configs, in_table(stimuli) as (chosen, own):
        words = [] if kind == "stitch" else [f"measure={kind}"]
        names = {id(each): name for name, each in reversed(named.items())}
        files = [_recorded(layers_of[own], folder / names[own], number) for number, own in enumerate(arrays, 1)]
        words += ["activations=[recorded]"] if files else []  # Hydra's grammar has no words for some names of files
        opened: dict[str, Any] = {f.name: None if is_open(f) else default_of(f) for f in fields(StitchConfig)}
        made = {"stitch": StitchConfig(**opened | parts["stitch"])} if kind == "stitch" else {
            "measure": part_named("measure", kind, parts["measure"]),
            "stimuli": part_named("stimuli", chosen, own | parts["stimuli"]),
        }  # fmt: skip
        made["data"] = part_named("data", *text_option(texts, parts["data"], folder))
        configs = [replace(each, **parts["model"]) for each in configs]
        # The model beside recordings is the target, unless it comes before the only one.
        is_first = len(files) == 1 and _is_model(next(iter(named.values())))
        alone = files and len(configs) < 2 and not is_first
        made |= {"activations": files} if files else {}
        made |= dict(zip(["target"] if alone else ["model", "target"], [*configs, *configs[-1:]], strict=False))
        entry = "train" if kind == "stitch" else "analyze"
        config = compose_open_job(entry, words, **made, **({"scale": _scale(configs)} | parts[""]))
        keys = [*settings, *(name for name, each in (("data", texts), ("stimuli", stimuli)) if each is not None)]
        keys += ["target"] if len(set(map(id, models.values()))) > 1 else []
        if alone:
            keys = [key.replace("model.", "target.") for key in keys]
        check_read([f"{key}=0" for key in keys], config)
        return run_job(config, shown=False)


@contextlib.contextmanager
def naming(keywords: Iterable[str]) -> Iterator[None]:
    """Let errors call the settings of a job by the keywords of a function."""
    try:
        yield
    except ThinkalikeError as error:
        said = re.sub(
            rf"\b(?:(?:stitch|measure|data|stimuli)\.({'|'.join(keywords)})|model\.(site|head))\b", r"\1\2", str(error)
        )
        said = re.sub(
            r"\S*/thinkalike-\w+/([^/ ]+?)(/arrays\d*\.safetensors(: states\b)?|\.jsonl)", r"\1", said
        )  # in memory
        said = re.sub(rf"\b{TABLE_IN_MEMORY} [0-9a-f]{{64}}(: stimuli\b)?", "stimuli", said)
        said = re.sub(r"\bdata\.files\b", "texts", re.sub(r"\bdata=", "texts=", said))
        error.args = (re.sub(r"\bmodel@target=", "target=", said),)
        raise


@contextlib.contextmanager
def in_place(models: Mapping[str, Any]) -> Iterator[list[ModelConfig]]:
    """Yield the configurations of models, named or in memory; meanwhile `load_model` gives the latter for theirs.

    A model in memory enters keys by its weights, settings, tokenizer, and what else decides its output. One that has
    the label of another model gets a number. Two models share a path only if they are one module with one tokenizer.

    Args:
        models: by the names of the arguments, which errors have.
    """
    configs: list[ModelConfig] = []
    loaded: dict[tuple[int, ...], FrozenModel] = {}  # by what is the same object
    try:
        for argument, model in models.items():
            if isinstance(model, ModelConfig | str | os.PathLike):
                configs.append(_configured(model, argument))
                continue
            objects = model if isinstance(model, tuple) else (model,)
            frozen = loaded.get(tuple(map(id, objects)))
            if frozen is None:
                frozen = model if isinstance(model, FrozenModel) else load_model(*objects)
                loaded[tuple(map(id, objects))] = frozen
            config = _of_memory(frozen)
            if (before := HELD.get(str(config.path))) is not None and before.module is not frozen.module:
                config = replace(config, path=f"{config.path} ({len(configs) + 1})")
            if any(_share_a_name(config, each) for each in configs):
                config = replace(config, name=f"{config.name} ({len(configs) + 1})")
            configs.append(config)
            HELD[str(config.path)] = frozen
        yield configs
    finally:
        for config in configs:
            HELD.pop(str(config.path), None)


def _configured(model: ModelConfig | str | os.PathLike[str], argument: str) -> ModelConfig:
    """Return the configuration of a model; an error has the name of the argument that gives it."""
    try:
        return configured(model, {})
    except ConfigError as error:
        error.args = (re.sub(r"^model=", lambda _: f"{argument}=", str(error)),)
        raise


def _share_a_name(config: ModelConfig, other: ModelConfig) -> bool:
    """Return whether two models have one label and nothing that tables would tell them apart by, such as their site."""
    is_alike = str(config.path).partition(" ")[0] == str(other.path).partition(" ")[0]
    has_other_site = is_alike and (config.site, config.head) != (other.site, other.head)
    return label(other) == config.name and other.path != config.path and not has_other_site


def _of_memory(model: FrozenModel) -> ModelConfig:
    """Return the configuration that stands for a model in memory; its path has a digest of what decides its numbers."""
    facts = [model.fingerprint(), sorted(map(repr, entries_of(model.module).items())), identity_of(model)]
    facts += [tokenizer_fingerprint(model.tokenizer), model.family.name, model.quantization, model.classes]
    runs: dict[str, Any] = {"dtype": str(model.dtype)[6:], "bos": model.bos_each_row, "context": model.context}
    at = {"site": model.sites.chosen, "head": model.sites.head} if model.sites else {}
    place = f"{IN_MEMORY}{hashlib.sha256(json.dumps([*facts, runs]).encode()).hexdigest()[:16]}"
    return model_settings(name=model.name, path=place, device=str(model.device), corpus=model.corpus, **runs, **at)


def _scale(configs: Sequence[ModelConfig]) -> str:
    """Return the scale of a job where none is asked for: a model in memory has no files whose size tells it."""
    large = any(each.path in HELD and 4 * HELD[each.path].parameters() >= SMALL for each in configs)
    return "auto" if not large else "paper" if torch.cuda.is_available() else "mini"


def _is_model(side: Any) -> bool:
    if isinstance(side, str | os.PathLike):
        return Path(side).suffix not in (".npz", ".safetensors")
    is_pair = isinstance(side, tuple) and len(side) == 2 and isinstance(side[0], nn.Module) and callable(side[1])
    return is_pair or isinstance(side, ModelConfig | FrozenModel) or type(side).__name__ == "TransformerBridge"


def _numbered(kind: str, sides: Sequence[Any], layers_of: Mapping[int, str | dict[str, Tensor]]) -> pd.DataFrame:
    """Return stimuli that stand for the rows of arrays, of which nothing is known but their order."""
    if kind == "mlem" or any(_is_model(each) or isinstance(each, str | os.PathLike) for each in sides):
        raise ConfigError("stimuli is missing: a table that has a row for each row of the states")
    layers: Any = layers_of[id(sides[0])]
    states = next(iter(layers.values()))
    count = states.shape[-2]
    return pd.DataFrame({"text": list(map(str, range(count))), "row": np.arange(count) / count})


def _layers_of(side: Any, argument: str) -> str | dict[str, Tensor]:
    """Return the states of each layer by its name, or the file that holds them; a ConfigError names the argument."""
    if isinstance(side, str | os.PathLike):
        return os.fspath(side)
    layers: dict[str, Tensor] = {}
    for name, states in (side if isinstance(side, Mapping) else {"states": side}).items():
        place = f"{argument}[{name!r}]" if isinstance(side, Mapping) else argument
        if not isinstance(name, str | int) or isinstance(name, bool) or str(name) in ("", *layers, *RESERVED):
            raise ConfigError(f"{place}: a layer has a name or a number of its own, but none of {', '.join(RESERVED)}")
        if plain(str(name)) != str(name) or len(str(name)) > LONGEST_NAME:
            raise ConfigError(
                f"{argument}[{str(name)[:40]!r}]: the name of a layer has at most {LONGEST_NAME} "
                "letters, and no control characters or halves of surrogate pairs"
            )
        try:
            layers[str(name)] = tensor_of(states, Float, place).detach().cpu()
        except ValueError as error:
            raise ConfigError(error) from None
        if layers[str(name)].ndim < 2 or not layers[str(name)].numel():
            shape = tuple(layers[str(name)].shape)
            raise ConfigError(f"{place} has shape {shape}: give states of (stimuli, width) or (layers, stimuli, width)")
    if not layers:
        raise ConfigError(f"{argument} has no layers: give an array for each, by its name")
    return layers


def _recorded(layers: str | dict[str, Tensor], folder: Path, number: int) -> str:
    """Return the file of recorded states: that which is given, or one of arrays whose rows are those of the stimuli."""
    if isinstance(layers, str):
        return layers
    arrays = {name: (each.float() if each.dtype.itemsize < 4 else each).numpy() for name, each in layers.items()}
    folder.mkdir()
    path = folder / f"arrays{number if number > 1 else ''}.safetensors"
    save_file(arrays, path, metadata={IDS: IN_ORDER})  # np.savez takes names such as file for its own arguments
    return str(path)


def text_option(texts: Any, settings: dict[str, Any], folder: Path) -> tuple[str, dict[str, Any]]:
    """Return the option of `data` that a text is, and its settings; texts in memory become a file."""
    if texts is None:
        return "schema", settings
    if isinstance(texts, str | os.PathLike):
        if holds_states(os.fspath(texts)):
            return "states", {"files": [os.fspath(texts)], **settings}
        is_file = isinstance(texts, os.PathLike) or (texts not in options("data") and os.path.isfile(texts))
        if not is_file and " " in str(texts):
            raise ConfigError("texts is one string, and neither a data set nor a file: give a list of strings")
        return ("text", {"files": [os.fspath(texts)], **settings}) if is_file else (str(texts), settings)
    if isinstance(texts, Mapping | pd.DataFrame):
        raise ConfigError(f"texts has the parts {', '.join(map(str, texts))}: give one of them")
    if not isinstance(texts, Iterable) or isinstance(texts, bytes | Tensor):
        raise ConfigError(f"texts is {type(texts).__name__}: give the name of a data set, a file or a list of strings")
    for setting in ("field", "group"):
        if not isinstance(settings.get(setting, ""), str):
            raise ConfigError(f"{setting}={shown(settings[setting])} must be text, the name of one field of records")
    field = settings.get("field", "text")
    path = folder / "texts.jsonl"
    with path.open("w", encoding="utf-8") as file:
        for place, text in enumerate(texts):
            if isinstance(text, Mapping):
                record = _record(text, {field, settings.get("group")}, f"texts[{place}]")
            elif not isinstance(text, str):
                raise ConfigError(f"texts holds a {type(text).__name__}: give strings, or records with a {field}")
            elif "field" in settings:
                raise ConfigError(f"field={field} has no effect on strings, which have no fields; leave it out")
            else:
                record = {field: text}
            file.write(json.dumps(record) + "\n")
    return "text", {"files": [str(path)], **settings}


def _record(record: Mapping[Any, Any], read: Container[str | None], place: str) -> dict[str, Any]:
    """Return a record as JSON can have it: the fields that are read, and None for all others."""
    written: dict[str, Any] = {}
    for name, value in record.items():
        if not isinstance(name, str):
            raise ConfigError(f"{place} has the key {shown(name)}: give names of fields as text")
        if name not in read:
            written[name] = None
            continue
        value = value.item() if isinstance(value, np.generic) else value
        if isinstance(value, datetime.date):
            value = value.isoformat()
        if not isinstance(value, str | int | float | None):
            raise ConfigError(f"{place}[{name!r}] is {type(value).__name__}, and neither text nor a number")
        written[name] = value
    return written


@contextlib.contextmanager
def in_table(stimuli: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the option of `stimuli` that is meant, and its settings; meanwhile a DataFrame stands for a file."""
    if not isinstance(stimuli, str | os.PathLike | pd.DataFrame | None):
        raise ConfigError(f"stimuli is {type(stimuli).__name__}: give a DataFrame, a file or a name, as 'controlled'")
    if not isinstance(stimuli, pd.DataFrame):
        path = Path(stimuli or "")
        kind = {".parquet": "table", ".conllu": "conllu", **dict.fromkeys(MARKS, "table")}.get(path.suffix)
        yield (kind, {"path": str(path)}) if kind else ("schema" if stimuli is None else str(stimuli), {})
        return
    stimuli = with_named_index(stimuli, "stimuli")
    try:
        place = f"{TABLE_IN_MEMORY} {_digest(stimuli)}"
    except UnicodeEncodeError as error:
        raise ConfigError(
            f"stimuli has {error.object[error.start]!r}, which is half of a character: remove it"
        ) from None
    except (ValueError, TypeError, RecursionError) as error:
        raise ConfigError(f"stimuli has a cell that is neither text nor a number: {one_line(error)}") from error
    HELD[place] = stimuli
    try:
        yield "table", {"path": place}
    finally:
        HELD.pop(place, None)


def _digest(table: pd.DataFrame) -> str:
    """Return the SHA-256 of all that is read from a table: names, types, categories in their order, exact cells.

    `DataFrame.to_json` would not do: it writes infinity as NaN, rounds numbers, and leaves types and categories out.
    """
    columns = []
    for place, name in enumerate(table.columns.tolist()):
        column = table.iloc[:, place]
        categories: Any = None
        if isinstance(column.dtype, pd.CategoricalDtype):
            categories = [column.cat.categories.tolist(), bool(column.cat.ordered)]
        columns.append([name, str(column.dtype), categories, column.tolist()])
    content = json.dumps(columns, default=_typed, ensure_ascii=False)  # as ASCII, half a character would pass
    return hashlib.sha256(content.encode()).hexdigest()


def _typed(cell: Any) -> list[Any]:
    """Return a cell that JSON lacks with its type, since a date and its text are different cells."""
    kind = type(cell).__qualname__
    if isinstance(cell, np.ndarray | np.generic):
        return [kind, str(cell.dtype), cell.tolist()]
    return [kind, repr(cell)]


def _plain(value: Any) -> Any:
    """Return a setting as configurations have it: lists for tuples and arrays, dictionaries, text for paths.

    A TypeError names the type of a value that no configuration can have.
    """
    if hasattr(value, "tolist"):  # of NumPy, torch and pandas, whose comparisons are arrays
        return _plain(value.tolist())
    if isinstance(value, Mapping):
        return {_plain(name): _plain(each) for name, each in value.items()}
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if value is None or isinstance(value, str | bool | int | float):
        return value
    if isinstance(value, Sequence) and not isinstance(value, bytes | bytearray | memoryview):
        return [_plain(each) for each in value]
    raise TypeError(type(value).__name__)
