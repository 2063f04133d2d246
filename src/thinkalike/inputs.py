"""What a user hands to a function becomes parts of a configuration: models, texts, stimuli and arrays of states.

    model_configs({"source": "gpt2", "target": (module, tokenizer)})
    text_config(["One text.", "Another one."], {})
    stimuli_config(pandas.DataFrame(...), {"sample": 100})
    recorded({"low": array, "high": array}, argument="source", number=1)

Errors name the argument of the function.
"""

from __future__ import annotations

import datetime
import hashlib
import json
import os
import re
import sys
from collections.abc import Container, Iterable, Iterator, KeysView, Mapping, Sequence, Set
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Float
from torch import Tensor, nn

from thinkalike.arguments import shown, tensor_of
from thinkalike.config import DataConfig, ModelConfig, StimuliConfig, options, part_named
from thinkalike.config.groups import option
from thinkalike.config.in_memory import (
    LoadedModelConfig,
    Records,
    Table,
    TableInMemory,
    TextInMemory,
    loaded_model_config,
)
from thinkalike.config.recorded import RecordedArrays
from thinkalike.config.schema import made
from thinkalike.data.recordings import IDS, RUNS, UNNAMED_LAYER
from thinkalike.data.tables import MARKS, with_named_index
from thinkalike.digests import tokenizer_fingerprint
from thinkalike.errors import ConfigError, one_line, plain_line
from thinkalike.models.frozen import FrozenModel
from thinkalike.models.identity import identity_of
from thinkalike.models.labels import label
from thinkalike.models.load import load_model
from thinkalike.models.model_config import configured
from thinkalike.models.module_facts import entries_of
from thinkalike.shards.index import holds_states

Model = str | os.PathLike[str] | ModelConfig | FrozenModel | nn.Module | tuple[nn.Module, Any]
Arrays = np.ndarray | Tensor | pd.DataFrame | Mapping[str, Any]
Text = str | os.PathLike[str] | Iterable[str] | Iterable[Mapping[str, Any]]
StimulusTable = str | os.PathLike[str] | pd.DataFrame
Settings = Mapping[str, Any]

RECORDING_FILES = (".npz", ".safetensors")
RESERVED = (IDS, RUNS, "__metadata__")  # names in a file of recorded states that are no layers
LONGEST_NAME = 1000  # letters of the name of a layer
TABLE_FILES = {".parquet": "table", ".conllu": "conllu", **dict.fromkeys(MARKS, "table")}


# ---- models


def is_model(side: Any) -> bool:
    """Return whether a side of a comparison is a model, by name or in memory, and not recorded states."""
    if isinstance(side, str | os.PathLike):
        return Path(side).suffix not in RECORDING_FILES
    is_pair = isinstance(side, tuple) and len(side) == 2 and isinstance(side[0], nn.Module) and callable(side[1])
    return is_pair or isinstance(side, ModelConfig | FrozenModel) or type(side).__name__ == "TransformerBridge"


def model_configs(models: Mapping[str, Any], settings: Settings) -> list[ModelConfig]:
    """Return the configurations of models, named or in memory, with these settings, such as site.

    A model in memory enters keys by its weights, settings, tokenizer, and what else decides its output. One that has
    the label of another model gets a number. Two models are one only if they are one module with one tokenizer.

    Args:
        models: by the names of the arguments, which errors have.
    """
    configs: list[ModelConfig] = []
    named = {argument: _named_model(model, argument) for argument, model in models.items() if _is_named(model)}
    loaded: dict[tuple[int, ...], FrozenModel] = {}  # by what is the same object
    for argument, model in models.items():
        if argument in named:
            configs.append(named[argument])
            continue
        objects = model if isinstance(model, tuple) else (model,)
        identity = tuple(map(id, objects))
        if identity not in loaded:
            loaded[identity] = model if isinstance(model, FrozenModel) else load_model(*objects)
        config = _told_apart(config_of(loaded[identity]), configs)
        if any(label(other) == config.name for other in named.values()):
            # A name that is loaded later has settings that a model in memory lacks, so they tell nobody anything.
            config = replace(config, name=f"{config.name} (in memory)")
        configs.append(config)
    return [replace(config, **settings) for config in configs]


def _is_named(model: Any) -> bool:
    """Return whether a model is given by its name or its configuration, and not in memory."""
    return isinstance(model, ModelConfig | str | os.PathLike)


def _named_model(model: ModelConfig | str | os.PathLike[str], argument: str) -> ModelConfig:
    try:
        return configured(model, {})
    except ConfigError as error:
        error.args = (re.sub(r"^model=", lambda _: f"{argument}=", str(error)),)
        raise


def config_of(model: FrozenModel) -> LoadedModelConfig:
    """Return the configuration of a model in memory, with a digest of what decides its numbers."""
    facts = [
        model.fingerprint(),
        sorted(map(repr, entries_of(model.module).items())),
        identity_of(model),
        tokenizer_fingerprint(model.tokenizer),
        model.family.name,
        model.quantization,
        model.classes,
    ]
    runs: dict[str, Any] = {
        "dtype": str(model.dtype).removeprefix("torch."),
        "bos": model.bos_each_row,
        "context": model.context,
    }
    sites = {"site": model.sites.chosen, "head": model.sites.head} if model.sites else {}
    digest = hashlib.sha256(json.dumps([*facts, runs]).encode()).hexdigest()[:16]
    return loaded_model_config(
        model,
        f"memory:{digest}",
        name=model.name,
        device=str(model.device),
        corpus=model.corpus,
        **runs,
        **sites,
    )


def _told_apart(config: LoadedModelConfig, before: Sequence[ModelConfig]) -> LoadedModelConfig:
    """Return the configuration of a model in memory with a digest and a name that no different model before it has."""
    number = len(before) + 1
    for other in before:
        if not isinstance(other, LoadedModelConfig) or other.digest != config.digest:
            continue
        if other.loaded.module is not config.loaded.module:
            config = replace(config, digest=f"{config.digest} ({number})")
    if any(_share_a_name(config, other) for other in before):
        config = replace(config, name=f"{config.name} ({number})")
    return config


def _share_a_name(config: LoadedModelConfig, other: ModelConfig) -> bool:
    """Return whether two models have one label and nothing that tables would tell them apart by, such as their site."""
    if label(other) != config.name:
        return False
    if not isinstance(other, LoadedModelConfig):
        return True
    is_alike = config.digest.partition(" ")[0] == other.digest.partition(" ")[0]
    has_other_site = is_alike and (config.site, config.head) != (other.site, other.head)
    return other.digest != config.digest and not has_other_site


# ---- recorded states


def recorded(side: Any, argument: str, number: int) -> str | RecordedArrays:
    """Return recorded states of stimuli: the path of their file, or arrays in memory.

    Args:
        argument: its name, which errors have.
        number: which of the recorded sides it is, from 1, by which tables call arrays.
    """
    if isinstance(side, str | os.PathLike):
        return os.fspath(side)
    layers: dict[str, Tensor] = {}
    for name, states in (side if isinstance(side, Mapping) else {UNNAMED_LAYER: side}).items():
        place = f"{argument}[{name!r}]" if isinstance(side, Mapping) else argument
        _check_layer_name(name, layers, argument, place)
        layers[str(name)] = _layer_states(states, place)
    if not layers:
        raise ConfigError(f"{argument} has no layers: give an array for each, by its name")
    return RecordedArrays(f"arrays{number if number > 1 else ''}", argument, layers)


def _check_layer_name(name: Any, before: Container[str], argument: str, place: str) -> None:
    is_name = isinstance(name, str | int) and not isinstance(name, bool)
    if not is_name or str(name) in ("", *RESERVED) or str(name) in before:
        raise ConfigError(f"{place}: a layer has a name or a number of its own, but none of {', '.join(RESERVED)}")
    if plain_line(str(name)) != str(name) or len(str(name)) > LONGEST_NAME:
        raise ConfigError(
            f"{argument}[{str(name)[:40]!r}]: the name of a layer has at most {LONGEST_NAME} "
            "letters, and no line breaks, control characters or halves of surrogate pairs"
        )


def _layer_states(states: Any, place: str) -> Tensor:
    try:
        tensor = tensor_of(states, Float, place).detach().cpu()
    except ValueError as error:
        raise ConfigError(error) from None
    if tensor.ndim < 2 or not tensor.numel():
        shape = tuple(tensor.shape)
        raise ConfigError(f"{place} has shape {shape}: give states of (stimuli, width) or (layers, stimuli, width)")
    return tensor.float() if tensor.dtype.itemsize < 4 else tensor  # NumPy has no bfloat16


def numbered_rows(arrays: RecordedArrays) -> pd.DataFrame:
    """Return stimuli that stand for the rows of arrays, of which nothing is known but their order."""
    states = next(iter(arrays.layers.values()))
    count = states.shape[-2]
    if count < 2:
        raise ConfigError(f"{arrays.argument} has 1 row, and nothing to compare it with: give at least 4")
    return pd.DataFrame({"text": list(map(str, range(count))), "row": np.arange(count) / count})


# ---- texts


def text_config(texts: Any, settings: Settings) -> DataConfig:
    """Return the text that an argument stands for: a data set, a file, or a list in memory; None leaves it open."""
    if texts is None:
        return part_named("data", "schema", settings)  # type: ignore[no-any-return]
    if isinstance(texts, str | os.PathLike):
        return _named_text(texts, settings)
    if isinstance(texts, Mapping | pd.DataFrame):
        raise ConfigError(f"texts has the parts {', '.join(map(str, texts))}: give one of them")
    if isinstance(texts, Set) and not isinstance(texts, KeysView):
        raise ConfigError(f"texts is a {type(texts).__name__}, which has no order: give a list, such as sorted(texts)")
    if not isinstance(texts, Iterable) or isinstance(texts, bytes | Tensor):
        raise ConfigError(f"texts is {type(texts).__name__}: give the name of a data set, a file or a list of strings")
    for setting in ("field", "group"):
        if not isinstance(settings.get(setting, ""), str):
            raise ConfigError(f"{setting}={shown(settings[setting])} must be text, the name of one field of records")
    rows = [_row(text, f"texts[{number}]", settings) for number, text in enumerate(_texts_in(texts))]
    return made(TextInMemory, {**option("data", "text"), **settings, "records": Records(rows)}, "data.")


def _texts_in(texts: Iterable[Any]) -> Iterator[Any]:
    """Yield what an iterable gives; a ConfigError names the argument if it ends in an error of its own."""
    number = 0
    try:
        for text in texts:
            yield text
            number += 1
    except Exception as error:  # of any kind, as code of the user runs here
        reason = f"{type(error).__name__}: {one_line(error)}"
        raise ConfigError(f"texts ends in an error after {number} of its items ({reason})") from error


def _named_text(texts: str | os.PathLike[str], settings: Settings) -> DataConfig:
    path = os.fspath(texts)
    if holds_states(path):
        return part_named("data", "states", {"files": [path], **settings})  # type: ignore[no-any-return]
    is_file = isinstance(texts, os.PathLike) or (path not in options("data") and os.path.isfile(path))
    if is_file:
        return part_named("data", "text", {"files": [path], **settings})  # type: ignore[no-any-return]
    if " " in path:
        raise ConfigError("texts is one string, and neither a data set nor a file: give a list of strings")
    return part_named("data", path, settings)  # type: ignore[no-any-return]


def _row(text: Any, place: str, settings: Settings) -> dict[str, Any]:
    """Return a text or a record as a record; its text is in the field that `settings` name, or in "text"."""
    field = settings.get("field", "text")
    if isinstance(text, Mapping):
        for setting in ("field", "group"):
            name = settings.get(setting)
            if name is not None and name not in text:
                raise ConfigError(f"{place} has no field {name}; {setting}= is the name of a field of all records")
        return _plain_record(text, {field, settings.get("group")}, place)
    if not isinstance(text, str):
        raise ConfigError(f"texts holds a {type(text).__name__}: give strings, or records with a {field}")
    for setting in ("field", "group"):
        if settings.get(setting) is not None:
            value = settings[setting]
            raise ConfigError(f"{setting}={value} has no effect on strings, which have no fields; leave it out")
    return {field: text}


def _plain_record(record: Mapping[Any, Any], read: Container[str | None], place: str) -> dict[str, Any]:
    """Return a record as JSON can have it: the fields that are read, and None for all others."""
    fields: dict[str, Any] = {}
    for name, value in record.items():
        if not isinstance(name, str):
            raise ConfigError(f"{place} has the key {shown(name)}: give names of fields as text")
        fields[name] = _plain_cell(value, f"{place}[{name!r}]") if name in read else None
    return fields


def _plain_cell(value: Any, place: str) -> str | int | float | None:
    value = value.item() if isinstance(value, np.generic) else value
    if isinstance(value, datetime.date):
        value = value.isoformat()
    if not isinstance(value, str | int | float | None):
        raise ConfigError(f"{place} is {type(value).__name__}, and neither text nor a number")
    return value


# ---- stimuli


def stimuli_config(stimuli: Any, settings: Settings) -> StimuliConfig:
    """Return the stimuli that an argument stands for: a name, a file or a DataFrame; None takes the usual ones."""
    if isinstance(stimuli, pd.DataFrame):
        return made(TableInMemory, {**option("stimuli", "table"), **settings, "table": _table(stimuli)}, "stimuli.")
    if stimuli is None:
        return part_named("stimuli", "schema", settings)  # type: ignore[no-any-return]
    if not isinstance(stimuli, str | os.PathLike):
        raise ConfigError(f"stimuli is {type(stimuli).__name__}: give a DataFrame, a file or a name, as 'controlled'")
    path = os.fspath(stimuli)
    kind = TABLE_FILES.get(Path(path).suffix)
    if kind is None:
        return part_named("stimuli", path, settings)  # type: ignore[no-any-return]
    return part_named("stimuli", kind, {"path": path, **settings})  # type: ignore[no-any-return]


def _table(frame: pd.DataFrame) -> Table:
    frame = with_named_index(frame, "stimuli")
    try:
        return Table(_digest(frame), frame)
    except UnicodeEncodeError as error:
        raise ConfigError(
            f"stimuli has {error.object[error.start]!r}, which is half of a character: remove it"
        ) from None
    except (ValueError, TypeError, RecursionError) as error:
        raise ConfigError(f"stimuli has a cell that is neither text nor a number: {one_line(error)}") from error


def _digest(table: pd.DataFrame) -> str:
    """Return the SHA-256 of all that is read from a table: names, types, categories in their order, exact cells.

    `DataFrame.to_json` would not do: it writes infinity as NaN, rounds numbers, and leaves types and categories out.
    """
    columns = []
    for position, name in enumerate(table.columns.tolist()):
        column = table.iloc[:, position]
        categories: Any = None
        if isinstance(column.dtype, pd.CategoricalDtype):
            categories = [column.cat.categories.tolist(), bool(column.cat.ordered)]
        cells = [_as_read(cell) for cell in column.tolist()]
        columns.append([name, str(column.dtype), categories, cells])
    content = json.dumps(columns, default=_typed, ensure_ascii=False)  # as ASCII, half a character would pass
    return hashlib.sha256(content.encode()).hexdigest()


def _as_read(cell: Any) -> Any:
    """Return a cell for JSON, which would write the content of one whose text is another, as of members of an Enum."""
    if type(cell) in (str, int, float, bool):
        return cell
    for kind, content in ((str, str.__str__), (int, int.__repr__), (float, float.__repr__)):
        if isinstance(cell, kind) and str(cell) != content(cell):
            return _typed(cell)
    return cell


def _typed(cell: Any) -> list[Any]:
    """Return a cell that JSON lacks with its type, since a date and its text are different cells.

    Cells are read by `str`. Of libraries it says no less than `repr`, but a class of a user may say anything.
    """
    kind = type(cell).__qualname__
    if isinstance(cell, np.ndarray | np.generic):
        return [kind, str(cell.dtype), cell.tolist()]
    library = type(cell).__module__.partition(".")[0]
    if library == "pandas" or library in sys.stdlib_module_names:
        return [kind, repr(cell)]
    return [kind, repr(cell), str(cell)]
