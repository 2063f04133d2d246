"""Where checkpoints are, and whether what lies there is one.

Nothing here imports torch or transformers before a model is read.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path
from typing import cast

from thinkalike.advice import named_setting
from thinkalike.config import ModelConfig, model_named
from thinkalike.config.parts import HOW_IT_RUNS
from thinkalike.digests import LARGEST_JSON, read_json, regular
from thinkalike.errors import ConfigError, ModelError, listed, natural_order, one_line
from thinkalike.files import LARGEST_READ_WHOLE, READ_WHOLE, is_folder, is_there, too_large
from thinkalike.models.formats import WEIGHT_FILES, check_no_pointer, conversion

# The folder of the minis.
ASSETS = Path(__file__).resolve().parents[1] / "assets"

# The file that describes an adapter.
ADAPTER = "adapter_config.json"

# Every checkpoint has one of these files.
DESCRIPTIONS = ("config.json", ADAPTER)

# A folder with one of these files is read as transformers wrote it.
WEIGHTS = ("model*.safetensors", "pytorch_model*.bin")

# The names of a run's checkpoints: step64, global_step64, checkpoint-500, step1000-tokens4B.
STEP = re.compile(r"(?:step|checkpoint)[-_=]?(\d+)")

# The suffixes of files of a configuration and of a tokenizer, ...
TOKENIZER_SUFFIXES = set(READ_WHOLE)
# ... the names of those that loading reads, and not of a run's notes, which may be long, ...
NAMES_THAT_LOADING_READS = re.compile(
    "token|vocab|merges|config|special|chat_template|piece|spm|bpe|^dict|emoji|tekken|maps|index"
)
# ... and of all files that loading may read, with those of weights.
READ_SUFFIXES = {*TOKENIZER_SUFFIXES, ".safetensors", ".bin", ".pt", ".pth"}

# The suffix of a file with the weights of a module of Lightning, whose config.json and tokenizer
# are beside it.
LIGHTNING = ".ckpt"

# The remedy for an index of weights.
GIVE_ONE_REVISION = "take the index and all of its files from one revision"

JsonObject = dict[str, object]


def named_folder(config: ModelConfig) -> Path | None:
    """Return the folder or file that a configuration names, or None if the model is on the hub.

    Whether it exists is not checked. `model.revision` names a folder inside it, such as a run's
    step64 or checkpoint-500, or a checkpoint file of Lightning.
    """
    if config.path:
        folder = Path(config.path)
    elif config.mini:
        folder = ASSETS / config.name
    else:
        return None
    if config.revision:
        return folder / config.revision
    return folder


def revisions_in(folder: Path) -> list[Path]:
    """Return the checkpoints in a folder: subfolders, and checkpoint files of Lightning.

    They come in natural order: step9 before step10. A subfolder counts if it has a config.json or
    the description of an adapter. A folder that does not exist has none.
    """
    if not is_folder(folder):
        return []
    names = []
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.endswith(LIGHTNING) or is_folder(entry.path):
                names.append(entry.name)
    revisions = []
    for name in sorted(names, key=natural_order):
        path = folder / name
        has_description = any((path / file).is_file() for file in DESCRIPTIONS)
        if path.suffix == LIGHTNING or has_description:
            revisions.append(path)
    return revisions


def folder_of(config: ModelConfig) -> Path | None:
    """Return the folder or file of a checkpoint after checking it; None: it is on the hub.

    A file is one of GGUF or of Lightning. Names, sizes and JSON files are checked; weights are not
    read.

    Raises:
        ConfigError: There is no such revision, or a setting of a bundled model is not the one that
            it was trained with.
        ModelError: The folder has no whole checkpoint.
    """
    folder = named_folder(config)
    if folder is None:
        return None
    if config.revision and is_there(folder.parent) and not is_there(folder):
        revisions = listed([path.name for path in revisions_in(folder.parent)]) or "none"
        raise ConfigError(
            f"{named_setting('model.revision', config.revision)} is not in {folder.parent}, "
            f"whose revisions are: {revisions}"
        )
    gguf_file = gguf_in(folder) if is_there(folder) else None
    if gguf_file is not None:
        check_no_pointer([gguf_file])
        return gguf_file

    if is_folder(folder) and not _has_weight_files(folder) and not is_adapter(folder):
        how_to_convert = conversion(folder)
        if how_to_convert:
            raise ModelError(f"model={config.called}: {how_to_convert}")

    folder_of_files = enclosing_folder(folder)
    file_names = os.listdir(folder_of_files) if is_folder(folder_of_files) else []
    _check_readable(folder_of_files, file_names)
    read_names = [name for name in sorted(file_names) if Path(name).suffix in READ_SUFFIXES]
    check_no_pointer([folder_of_files / name for name in read_names])
    if folder.suffix == LIGHTNING:
        check_no_pointer([folder])
    _check_has_config(config, folder_of_files, file_names)
    _check_index(folder)
    if not is_adapter(folder):
        check_no_adapter(config, str(folder), file_names)
    if config.mini and not config.path:
        _check_mini(config, folder)
    return folder


def is_gguf(place: str | Path) -> bool:
    """Return whether a place is a file, and not a repository, whose name ends in .gguf."""
    return str(place).endswith(".gguf") and Path(place).is_file()


def gguf_in(place: Path) -> Path | None:
    """Return the GGUF file at a path: the file itself, or the only GGUF file of a folder.

    None means that the folder has no GGUF file, or that it has weights in the format of
    transformers, which are read instead.

    Raises:
        ModelError: The folder has several.
    """
    if is_gguf(place):
        return place
    if _has_weight_files(place):
        return None
    files = sorted(file for file in place.glob("*.gguf") if file.is_file())
    if len(files) > 1:
        names = listed([file.name for file in files])
        raise ModelError(
            f"{place} has {len(files)} GGUF files ({names}); name one: model={files[0]}"
        )
    return files[0] if files else None


def path_arguments(place: str) -> dict[str, str]:
    """Return the keyword arguments of `from_pretrained` that say where a checkpoint is.

    Args:
        place: A folder, a repository of the hub, or a GGUF file.
    """
    if not is_gguf(place):
        return {"pretrained_model_name_or_path": place or "."}  # "" is the working directory
    folder, file_name = os.path.split(place)
    return {"pretrained_model_name_or_path": folder or ".", "gguf_file": file_name}


def is_adapter(folder: Path) -> bool:
    """Return whether a folder holds an adapter and no whole model."""
    return (folder / ADAPTER).is_file() and not _has_weight_files(folder)


def base_of(config: ModelConfig) -> ModelConfig | None:
    """Return the configuration of the model that an adapter changes; None: it is no adapter.

    The base is the model that the setting `model.base` names, or else adapter_config.json. Its
    configuration has the adapter's own settings of how a model runs, such as dtype and device.

    Raises:
        ConfigError: `model.base` is given for a model that is no adapter.
        ModelError: No base is known, it is not here, or it is an adapter itself.
    """
    folder = Path(config.path or "", config.revision or "")  # a revision is a subfolder
    if not config.path or not is_adapter(folder):
        if config.base:
            folder_of(config)  # raises the error of its folder if there is one
            raise ConfigError(
                f"{named_setting('model.base', config.base)}: {config.called} is no adapter; "
                "leave it out"
            )
        return None

    settings = checkpoint_json(folder / ADAPTER)
    base_name = config.base or settings.get("base_model_name_or_path")
    if not base_name or not isinstance(base_name, str):
        raise ModelError(f"{folder / ADAPTER} names no base_model_name_or_path; {give_base()}")
    base = _model_or_none(base_name)
    if base is None or (base.path and not is_there(base.path)):
        raise ModelError(f"model={config.called}: its base {base_name} is not here; {give_base()}")
    if base.path and is_adapter(Path(base.path)):
        raise ModelError(
            f"model={config.called}: its base {base_name} is an adapter itself; {give_base()}"
        )
    # If the base is on the hub, adapter_config.json may also state a revision of it.
    stated_revision = settings.get("revision")
    if not config.base and not base.path and stated_revision not in (None, ""):
        base = replace(base, revision=_stated_revision(stated_revision, folder, base_name))
    # Settings such as dtype and device are those of the adapter.
    settings_of_running = {name: getattr(config, name) for name in (*HOW_IT_RUNS, "bos", "side")}
    return replace(base, **settings_of_running)


def _stated_revision(revision: object, folder: Path, base_name: str) -> str:
    """Check the revision of the base that an adapter's files state, and return it.

    The files may be of unknown origin, so that the value may be anything.

    Args:
        revision: The value in adapter_config.json.
        folder: The folder of the adapter.
        base_name: The repository of the base.

    Raises:
        ModelError: It does not have the form of a revision.
    """
    from thinkalike.hub import check_revision  # only adapters need this import

    try:
        check_revision(revision, base_name)
    except ConfigError as error:
        raise ModelError(f"{folder / ADAPTER}: {error}") from None
    return cast(str, revision)


def _model_or_none(name: str) -> ModelConfig | None:
    """Return the configuration of the model with a path or name, or None if there is none.

    A path that exists here comes before the name of a model.
    """
    path_or_name = str(Path(name).absolute()) if is_there(name) else name
    try:
        return model_named(path_or_name, {})
    except ConfigError:
        return None


def _has_weight_files(folder: Path) -> bool:
    """Return whether a folder has weights as transformers writes them."""
    return any(any(folder.glob(pattern)) for pattern in WEIGHTS)


def _check_readable(folder: Path, names: Collection[str]) -> None:
    """Refuse files of a checkpoint that cannot be read, and files of settings that are too large.

    transformers would say that an unreadable file is missing, and would wait forever for a named
    pipe. It reads files of a configuration or of a tokenizer as a whole, whose size is therefore
    limited.

    Args:
        folder: The folder of the checkpoint.
        names: The names of its files; those that loading does not read are ignored.

    Raises:
        ModelError: A file is not a regular file, may not be read, or is too large.
    """
    suffixes = READ_SUFFIXES | {LIGHTNING}
    for name in sorted(names):
        path = os.path.join(folder, name)
        suffix = os.path.splitext(name)[1]
        if suffix not in suffixes:
            continue
        # For a link whose target does not exist, `isfile` is false, so it is refused below.
        if os.path.isfile(path) and os.access(path, os.R_OK):
            size = os.path.getsize(path)
            is_read_whole = suffix in TOKENIZER_SUFFIXES and NAMES_THAT_LOADING_READS.search(name)
            if is_read_whole and size > LARGEST_READ_WHOLE:
                raise ModelError(too_large(path, size))
            continue
        try:
            regular(Path(path)).open("rb").close()  # raises the error that says why
        except OSError as error:
            raise ModelError(f"{path} cannot be read ({one_line(error)}); replace it") from error


def _check_has_config(config: ModelConfig, folder: Path, file_names: Collection[str]) -> None:
    """Raise a ModelError if a folder has neither a config.json nor an adapter_config.json.

    Args:
        config: The configuration of the model.
        folder: The folder, which may not exist.
        file_names: The names of its files.
    """
    if any(name in file_names for name in DESCRIPTIONS):
        return
    remedy = "save_pretrained writes one"
    if config.mini:
        remedy = "it comes with this package: install that again"
    if is_folder(folder):
        fault = "has no config.json"
    elif is_there(folder):
        fault = "is a file"
    else:
        fault = "is not there"
    raise ModelError(f"model={config.called}: the folder {folder} {fault}; {remedy}")


def _check_index(folder: Path) -> None:
    """Check the files that the indexes of weights (*.index.json) in a folder name.

    They must be inside the folder. The files of the index that will be read must also exist, and
    have the suffix of a file of weights, since the fingerprint of a checkpoint covers no others.
    Any other index may be left over from an earlier save.

    Raises:
        ModelError: An index names a file outside or one of another suffix, or the one that is read
            names a missing file.
    """
    # transformers reads the first of these files that exists, which may be an index.
    file_that_is_read = None
    for name in WEIGHT_FILES:
        if (folder / name).is_file():
            file_that_is_read = name
            break
    for index in folder.glob("*.index.json"):
        names = weight_map(index).values()
        for parent in {os.path.dirname(name) for name in names}:
            if parent and not (folder / parent).resolve().is_relative_to(folder.resolve()):
                raise ModelError(f"{index} names weights outside its folder: {parent}")
            if index.name == file_that_is_read and not (folder / parent).is_dir():
                raise ModelError(
                    f"{index} names weights in {parent}, and there is no such folder; "
                    f"{GIVE_ONE_REVISION}"
                )
        if index.name != file_that_is_read:
            continue
        for name in dict.fromkeys(names):  # each file once, in the order of the index
            if Path(name).suffix not in READ_SUFFIXES:
                raise ModelError(
                    f"{index} names {name}, and files of weights end in .safetensors or .bin; "
                    "rename it, there too"
                )
            if not (folder / name).is_file():
                raise ModelError(
                    f"{index} names {name}, and there is no such file; {GIVE_ONE_REVISION}"
                )


def weight_map(index: Path) -> dict[str, str]:
    """Return the entry `weight_map` of an index of weights: the file of each tensor, by name.

    Args:
        index: An index, such as model.safetensors.index.json.

    Raises:
        ModelError: The index is damaged, or `weight_map` is missing or has another form.
    """
    file_of_tensor = checkpoint_json(index).get("weight_map")
    fault = (
        f"{index} has no weight_map of tensors and the names of their files; {GIVE_ONE_REVISION}"
    )
    if not isinstance(file_of_tensor, dict):
        raise ModelError(fault)
    if not all(isinstance(file, str) and file for file in file_of_tensor.values()):
        raise ModelError(fault)
    return file_of_tensor


def check_no_adapter(config: ModelConfig, place: str, files: Collection[str]) -> None:
    """Raise a ModelError if the files of a whole model include an adapter_config.json.

    With both in one place, it is unclear whether the model is meant or the model with the adapter.
    On the hub, where adapters are not read, a repository with an adapter is refused altogether.

    Args:
        config: The configuration of the model.
        place: The folder or repository of the model, for the message.
        files: The names of the files there.
    """
    if ADAPTER in files:
        raise ModelError(
            f"model={config.called}: {place} has an {ADAPTER} beside a model or on the hub; "
            "give a folder of the adapter alone, with "
            f"{named_setting('model.base', like='MODEL')}, or remove its files to read the base "
            "model"
        )


def _check_mini(config: ModelConfig, folder: Path) -> None:
    """Raise a ConfigError for a setting that differs from what a bundled model was trained with.

    Such a setting would change the key of a result, but none of its numbers.
    """
    # By the name of each such setting: (the value asked for, the value in training).
    settings = config.fixed_by(checkpoint_json(folder / "config.json"))
    for name, (asked_for, trained_with) in settings.items():
        if asked_for != trained_with:
            raise ConfigError(
                f"{named_setting(f'model.{name}', asked_for)}: {config.called} is trained "
                f"already, and has {trained_with}; leave it out"
            )


def enclosing_folder(place: Path) -> Path:
    """Return the folder of a checkpoint: the parent of a file of Lightning, else `place`."""
    if place.suffix == LIGHTNING:
        return place.parent
    return place


def files_beside(place: Path) -> list[Path]:
    """Return the files of the configuration and the tokenizer beside a checkpoint file, sorted.

    A GGUF file holds both itself, so the list is empty for it. An index of weights, which is JSON
    as well, is left out.
    """
    if place.suffix == ".gguf":
        return []
    files = []
    for path in sorted(place.parent.iterdir()):
        is_index = "index" in path.name
        if path.suffix in TOKENIZER_SUFFIXES and path.is_file() and not is_index:
            files.append(path)
    return files


def checkpoint_json(path: Path, largest: int = LARGEST_JSON) -> JsonObject:
    """Read a JSON object from a file of a checkpoint.

    Args:
        path: The file.
        largest: The most bytes that the file may have.

    Raises:
        ModelError: The file is larger, or holds anything but a JSON object.
    """
    try:
        return read_json(path, largest)
    except ValueError as error:
        raise ModelError(
            f"{path} is no JSON object ({error}); replace it by the checkpoint's own"
        ) from None


def give_base() -> str:
    """Return the remedy of errors about the model that an adapter changes."""
    return f"give {named_setting('model.base', like='FOLDER')}, ORG/NAME or an everyday name"
