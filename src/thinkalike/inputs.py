"""What a user hands to a function becomes parts of a configuration.

    model_configs({"source": "gpt2", "target": (module, tokenizer)}, {})
    text_config(["One text.", "Another one."], {})
    stimuli_config(pandas.DataFrame(...), {"sample": 100})

Errors name the argument of the function.
"""

from __future__ import annotations

import datetime
import hashlib
import json
import os
import re
import secrets
import sys
from collections.abc import (
    Callable,
    Container,
    Iterable,
    Iterator,
    KeysView,
    Mapping,
    Sequence,
    Set,
)
from dataclasses import replace
from pathlib import Path
from typing import Protocol, TypeGuard

import numpy as np
import pandas as pd
from torch import Tensor, nn

from thinkalike.arguments import shown
from thinkalike.code_text import runs_code_of_user
from thinkalike.config import (
    DataConfig,
    ModelConfig,
    SettingValues,
    StimuliConfig,
    options,
    part_named,
)
from thinkalike.config.groups import is_repository_name, option, with_changes
from thinkalike.config.in_memory import (
    LoadedModelConfig,
    Records,
    TableInMemory,
    TableWithDigest,
    TextInMemory,
    loaded_model_config,
)
from thinkalike.config.schema import made
from thinkalike.data.tables import SEPARATORS, with_named_index
from thinkalike.digests import tokenizer_fingerprint
from thinkalike.errors import ConfigError, nearest, one_line, reason_in_words
from thinkalike.models.frozen import FrozenModel
from thinkalike.models.identity import check_libraries, identity_of
from thinkalike.models.labels import label
from thinkalike.models.load import load_model
from thinkalike.models.model_config import configured
from thinkalike.models.module_facts import entries_of
from thinkalike.shards.index import holds_states
from thinkalike.state_arguments import is_file_of_states

Tokenizer = Callable[..., object]  # of transformers
ModelPair = tuple[nn.Module, Tokenizer]
Model = str | os.PathLike[str] | ModelConfig | FrozenModel | nn.Module | ModelPair


class HasCache(Protocol):
    """The `ActivationCache` of TransformerLens, which need not be installed."""

    cache_dict: dict[str, Tensor]


Layer = np.ndarray | Tensor | pd.DataFrame
# of a list of layers, see `thinkalike.state_arguments`; a cache of TransformerLens goes, too
Arrays = Layer | Mapping[str, object] | Sequence[Layer] | HasCache
Text = str | os.PathLike[str] | Iterable[str] | Iterable[Mapping[str, object]]
StimulusTable = str | os.PathLike[str] | pd.DataFrame

DIGEST_DIGITS = 16
TABLE_FILES = {".parquet": "table", ".conllu": "conllu", **dict.fromkeys(SEPARATORS, "table")}


# ---- models


def is_model(side: object) -> TypeGuard[Model]:
    """Return whether a side of a comparison is a model, by name or in memory.

    Otherwise it is recorded states.
    """
    if isinstance(side, str | os.PathLike):
        return not is_file_of_states(side)
    is_bridge = type(side).__name__ == "TransformerBridge"
    return is_bridge or is_pair(side) or isinstance(side, ModelConfig | FrozenModel)


def is_pair(side: object) -> TypeGuard[ModelPair]:
    """Return whether a side of a comparison is a model of transformers with its tokenizer."""
    if not isinstance(side, tuple) or len(side) != 2:
        return False
    module, tokenizer = side
    return isinstance(module, nn.Module) and callable(tokenizer)


def model_configs(models: Mapping[str, Model], settings: SettingValues) -> list[ModelConfig]:
    """Return the configurations of models, named or in memory, with these settings, such as site.

    A model in memory enters keys by its weights, settings, tokenizer, and what else decides its
    output. One that has the label of another model gets a number. Two models are one only if they
    are one module with one tokenizer.

    Args:
        models: Each is a `Model`, by the name of its argument, which errors have.
    """
    configs: list[ModelConfig] = []
    loaded: dict[tuple[int, ...], FrozenModel] = {}  # by the identities of module and tokenizer
    call = secrets.token_hex(8)
    named = {}
    for argument, model in models.items():
        if isinstance(model, ModelConfig | str | os.PathLike):
            named[argument] = _named_model(model, argument)
    for argument, model in models.items():
        if argument in named:
            configs.append(named[argument])
            continue
        objects = model if isinstance(model, tuple) else (model,)
        identity = tuple(id(part) for part in objects)
        if identity not in loaded:
            loaded[identity] = as_frozen_model(model)
        config = _told_apart(config_of(loaded[identity], call), configs)
        if any(label(other) == config.name for other in named.values()):
            # A model that is loaded later by this name has settings that one in memory lacks, so
            # they would tell nobody anything.
            config = replace(config, name=f"{config.name} (in memory)")
        configs.append(config)
    return [with_changes(config, settings) for config in configs]


def as_frozen_model(model: Model) -> FrozenModel:
    """Return a model, frozen.

    It is a name, a folder, a model in memory with its tokenizer, or one that is frozen already.
    """
    if isinstance(model, FrozenModel):
        return model
    if isinstance(model, tuple):
        module, tokenizer = model
        return load_model(module, tokenizer)
    return load_model(model)


def _named_model(model: ModelConfig | str | os.PathLike[str], argument: str) -> ModelConfig:
    try:
        return configured(model, {})
    except ConfigError as error:
        message = re.sub(r"^model=", lambda _: f"{argument}=", str(error))
        error.args = (message,)
        raise


def config_of(model: FrozenModel, call: str) -> LoadedModelConfig:
    """Return the configuration of a model in memory, with a digest of what decides its numbers.

    Args:
        model: The model.
        call: A random text that is new at each call of a function of this package. A model or a
            tokenizer that runs code of the user's own has it in its digest: what that code reads
            cannot be known, so no result of an earlier call may be taken for its result.
    """
    check_libraries(model)
    identity = identity_of(model)
    has_own_code = not identity.is_complete or runs_code_of_user(model.tokenizer)
    how_it_runs: dict[str, object] = {
        "dtype": str(model.dtype).removeprefix("torch."),
        "bos": model.bos_each_row,
        "context": model.context,
    }
    facts = [
        model.fingerprint(),
        sorted(map(repr, entries_of(model.module).items())),
        [identity.digest, identity.traits],
        tokenizer_fingerprint(model.tokenizer),
        model.family.name,
        model.quantization,
        model.classes,
        how_it_runs,
    ]
    if has_own_code:
        facts.append(call)
        model.prove_again()
    digest = hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:DIGEST_DIGITS]
    sites: dict[str, object] = {}
    if model.sites:
        sites = {"site": model.sites.chosen, "head": model.sites.head}
    return loaded_model_config(
        model,
        f"memory:{digest}",
        has_own_code=has_own_code,
        name=model.name,
        device=str(model.device),
        corpus=model.corpus,
        **how_it_runs,
        **sites,
    )


def _told_apart(config: LoadedModelConfig, earlier: Sequence[ModelConfig]) -> LoadedModelConfig:
    """Return the configuration of a model with a digest and a name of its own.

    Args:
        earlier: The configurations of the models before it.
    """
    number = len(earlier) + 1
    for other in earlier:
        if not isinstance(other, LoadedModelConfig) or other.digest != config.digest:
            continue
        if other.loaded.module is not config.loaded.module:
            config = replace(config, digest=f"{config.digest} ({number})")
    if any(_share_a_name(config, other) for other in earlier):
        config = replace(config, name=f"{config.name} ({number})")
    return config


def _share_a_name(config: LoadedModelConfig, other: ModelConfig) -> bool:
    """Return whether two models have one label, and tables could not tell them apart."""
    if label(other) != config.name:
        return False
    if not isinstance(other, LoadedModelConfig):
        return True
    if other.digest == config.digest:
        return False
    has_same_weights = config.digest.partition(" ")[0] == other.digest.partition(" ")[0]
    has_other_site = (config.site, config.head) != (other.site, other.head)
    return not (has_same_weights and has_other_site)


# ---- texts


def text_config(texts: object, settings: SettingValues) -> DataConfig:
    """Return the text that an argument stands for.

    Args:
        texts: A `Text`: a data set, a file, or texts in memory; None leaves it open.
    """
    if texts is None:
        return part_named("data", "schema", settings)
    if isinstance(texts, str | os.PathLike):
        return _named_text(texts, settings)
    if isinstance(texts, Mapping | pd.DataFrame):
        raise ConfigError(f"texts has the parts {', '.join(map(str, texts))}: give one of them")
    if not isinstance(texts, Iterable) or isinstance(texts, bytes | Tensor):
        raise ConfigError(f"texts is {type(texts).__name__}: give the name of a data set, a file or a list of strings")
    if isinstance(texts, Set) and not isinstance(texts, KeysView):
        raise ConfigError(f"texts is a {type(texts).__name__}, which has no order: give a list, such as sorted(texts)")
    for setting in ("field", "group"):
        if not isinstance(settings.get(setting, ""), str):
            raise ConfigError(f"{setting}={shown(settings[setting])} must be text, the name of one field of records")
    rows = []
    for number, text in enumerate(_texts_in(texts)):
        rows.append(_record(text, f"texts[{number}]", settings))
    values = {**option("data", "text"), **settings, "records": Records(rows)}
    return made(TextInMemory, values, "data.")


def _texts_in(texts: Iterable[object]) -> Iterator[object]:
    """Yield what an iterable gives; a ConfigError names the argument if it ends in an error."""
    count = 0
    try:
        for text in texts:
            yield text
            count += 1
    except (Exception, SystemExit) as error:  # of any kind, as code of the user runs here
        reason = reason_in_words(error)
        raise ConfigError(f"texts ends in an error after {count} of its items ({reason})") from error


def _named_text(texts: str | os.PathLike[str], settings: SettingValues) -> DataConfig:
    path = os.fspath(texts)
    if holds_states(path):
        return part_named("data", "states", {"files": [path], **settings})
    is_file = isinstance(texts, os.PathLike)
    if not is_file and path not in options("data"):
        is_file = os.path.isfile(path)
    if is_file:
        return part_named("data", "text", {"files": [path], **settings})
    if " " in path:
        raise ConfigError("texts is one string, and neither a data set nor a file: give a list of strings")
    if path not in options("data") and not is_repository_name(path):
        choices = nearest(path, options("data"))
        raise ConfigError(f"texts={shown(path)} is no file, no folder of states and no data set; {choices}")
    return part_named("data", path, settings)


def _record(text: object, place: str, settings: SettingValues) -> dict[str, object]:
    """Return a text or a record as a record.

    The text is in the field that `settings` name, or in "text".
    """
    field = str(settings.get("field", "text"))
    if isinstance(text, Mapping):
        for setting in ("field", "group"):
            name = settings.get(setting)
            if name is not None and name not in text:
                raise ConfigError(f"{place} has no field {name}; {setting}= is the name of a field of all records")
        return _plain_record(text, {field, settings.get("group")}, place)
    if not isinstance(text, str):
        raise ConfigError(f"texts holds a {type(text).__name__}: give strings, or records with a {field}")
    for setting in ("field", "group"):
        value = settings.get(setting)
        if value is not None:
            raise ConfigError(f"{setting}={value} has no effect on strings, which have no fields; leave it out")
    return {field: text}


def _plain_record(record: Mapping[object, object], read: Container[object], place: str) -> dict[str, object]:
    """Return a record as JSON can have it: the fields that are read, and None for the rest."""
    fields: dict[str, object] = {}
    for name, value in record.items():
        if not isinstance(name, str):
            raise ConfigError(f"{place} has the key {shown(name)}: give names of fields as text")
        fields[name] = _plain_cell(value, f"{place}[{name!r}]") if name in read else None
    return fields


def _plain_cell(value: object, place: str) -> str | int | float | None:
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, datetime.date):
        value = value.isoformat()
    if value is not None and not isinstance(value, str | int | float):
        raise ConfigError(f"{place} is {type(value).__name__}, and neither text nor a number")
    return value


# ---- stimuli


def stimuli_config(stimuli: object, settings: SettingValues) -> StimuliConfig:
    """Return the stimuli that an argument stands for.

    Args:
        stimuli: A `StimulusTable`: a name, a file or a DataFrame; None takes the usual ones.
    """
    if isinstance(stimuli, pd.DataFrame):
        values = {**option("stimuli", "table"), **settings, "table": _table_in_memory(stimuli)}
        return made(TableInMemory, values, "stimuli.")
    if stimuli is None:
        return part_named("stimuli", "schema", settings)
    if not isinstance(stimuli, str | os.PathLike):
        raise ConfigError(f"stimuli is {type(stimuli).__name__}: give a DataFrame, a file or a name, as 'controlled'")
    path = os.fspath(stimuli)
    kind = TABLE_FILES.get(Path(path).suffix)
    if kind is None:
        return part_named("stimuli", path, settings)
    return part_named("stimuli", kind, {"path": path, **settings})


def _table_in_memory(frame: pd.DataFrame) -> TableWithDigest:
    frame = with_named_index(frame, "stimuli")
    try:
        return TableWithDigest(_table_digest(frame), frame)
    except UnicodeEncodeError as error:
        letter = error.object[error.start]
        raise ConfigError(f"stimuli has {letter!r}, which is half of a character: remove it") from None
    except (ValueError, TypeError, RecursionError) as error:
        raise ConfigError(f"stimuli has a cell that is neither text nor a number: {one_line(error)}") from error


def _table_digest(table: pd.DataFrame) -> str:
    """Return the SHA-256 of all that is read from a table.

    These are names, types, categories in their order, and exact cells. `DataFrame.to_json` would
    not do: it writes infinity as NaN, rounds numbers, and leaves types and categories out.
    """
    columns = []
    for position, name in enumerate(table.columns.tolist()):
        column = table.iloc[:, position]
        categories: list[object] | None = None
        if isinstance(column.dtype, pd.CategoricalDtype):
            categories = [column.cat.categories.tolist(), bool(column.cat.ordered)]
        cells = [_cell_for_json(cell) for cell in column.tolist()]
        columns.append([name, str(column.dtype), categories, cells])
    # With ensure_ascii, half a character would pass.
    content = json.dumps(columns, default=_typed_cell, ensure_ascii=False)
    return hashlib.sha256(content.encode()).hexdigest()


def _cell_for_json(cell: object) -> object:
    """Return a cell for JSON, with its type where JSON would write another text than it has.

    That is so for the members of an Enum.
    """
    if type(cell) in (str, int, float, bool):
        return cell
    if isinstance(cell, str):
        written = str.__str__(cell)
    elif isinstance(cell, int):
        written = int.__repr__(cell)
    elif isinstance(cell, float):
        written = float.__repr__(cell)
    else:
        return cell
    return cell if str(cell) == written else _typed_cell(cell)


def _typed_cell(cell: object) -> list[object]:
    """Return a cell that JSON lacks with its type, since a date and its text are two cells.

    Cells are read by `str`. For classes of libraries it says no less than `repr`, but a class of a
    user may say anything.
    """
    kind = type(cell).__qualname__
    if isinstance(cell, np.longdouble):  # `tolist` leaves it as it is
        return [kind, repr(cell)]
    if isinstance(cell, np.ndarray | np.generic | Tensor):
        return [kind, str(cell.dtype), cell.tolist()]
    library = type(cell).__module__.partition(".")[0]
    if library == "pandas" or library in sys.stdlib_module_names:
        return [kind, repr(cell)]
    return [kind, repr(cell), str(cell)]
